"""The sentence of a race: who accesses the element, and what is missing between the two."""

from __future__ import annotations

import math
from linecache import getline

import numpy as np

from convlab.simulation.recording.access_log import (
    ATOMIC,
    READ,
    WARP,
    WRITE,
    AccessLog,
    LoggedAccess,
)
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.circumstances import Around, update_in
from convlab.simulation.rules.conflicts import Conflict
from convlab.simulation.rules.coordinates import Coordinates, coordinates_of
from convlab.simulation.rules.finding_words import (
    AT_ONCE,
    EARLY_MESSAGE,
    EXCHANGED,
    HARMLESS,
    IN_A_BRANCH,
    LOCK_OF_BLOCK,
    LOOP_STEP,
    LOOP_STEP_OF_BLOCKS,
    NARROW_FENCE,
    NO_BARRIER,
    NO_FENCE,
    NO_ORDER,
    NO_ORDER_OF_COOPERATIVE,
    NOT_ATOMIC,
    NOT_ONE_STEP,
    ONE_LOCKED,
    OWN_RESULT,
    PLAIN_POLL,
    SAME_WARP,
    SEEN_BY_ANOTHER,
    TWO_STORES,
    UNFENCED,
    UNFENCED_BLOCKS,
)

DOES = {READ: "reads", WRITE: "writes", ATOMIC: "updates"}


class RaceSentences:
    """Puts the races of a log into words. ``syncs_warps`` if the kernel calls ``syncwarp``,
    ``syncs_grid`` if it waits for the whole grid."""

    def __init__(
        self,
        sites: Sites,
        log: AccessLog,
        grid: Coordinates,
        block_shape: Coordinates,
        syncs_warps: bool,
        syncs_grid: bool,
    ) -> None:
        self._sites, self.columns = sites, log.columns()
        self._grid, self._block_shape, self._syncs_warps = grid, block_shape, syncs_warps
        self._syncs_grid = syncs_grid
        self._block_size = math.prod(block_shape)
        # How many threads and warps reach two sites, by both sites, the block, and one warp if only
        # that counts. A log may have hundreds of races of two lines.
        self._reached: dict[tuple[int, int, int, int | None], tuple[int, int]] = {}

    def sentence(self, conflict: Conflict, element: str) -> str:
        """Say which two threads or blocks access the element, and what is missing between them."""
        first, second = conflict.first, conflict.second
        assert second is not None
        one, other = self._thread(first), self._thread(second)
        missing = self._missing(first, second, conflict.around)
        if first.block != second.block:
            one, other = self._block(first), self._block(second)
        elif (
            missing.startswith(NO_BARRIER)
            and LOOP_STEP not in missing
            and self._in_a_branch(first, second)
        ):
            missing += IN_A_BRANCH
        elif first.warp == second.warp and self._by_warps(first, second):
            other += SAME_WARP
        if self._polls(first) or self._polls(second):
            element += PLAIN_POLL
        benign = conflict.kind == "global race" and self._may_be_benign(first, second)
        if benign and missing != OWN_RESULT:  # there the number is wanted, not a test of it
            missing += HARMLESS
        did = first.value if first.kind == ATOMIC and first.value else DOES[first.kind]
        does = "overwrites" if second.kind == WRITE else second.value or DOES[second.kind]
        return f"{one} {did} {element} and {other} {does} it, {missing}"

    def _thread(self, access: LoggedAccess) -> str:
        number = access.thread % self._block_size
        return f"thread {coordinates_of(number, self._block_shape)}"

    def _block(self, access: LoggedAccess) -> str:
        return f"block {coordinates_of(access.block, self._grid)}"

    def _missing(self, first: LoggedAccess, second: LoggedAccess, around: Around) -> str:
        """Say what is missing between the two accesses of a race."""
        blocks = first.block != second.block
        if Around.POLLED in around:
            return NO_FENCE
        if Around.TOLD in around:
            told = NARROW_FENCE if Around.NARROW_FENCE in around else UNFENCED_BLOCKS
            return told if blocks else UNFENCED
        if Around.LOCK_OF_BLOCK in around:
            return LOCK_OF_BLOCK
        if Around.LOCKED in around:
            return ONE_LOCKED
        if Around.EARLY_MESSAGE in around:
            return EARLY_MESSAGE
        if Around.SEEN_BY_ANOTHER in around:
            return SEEN_BY_ANOTHER
        if Around.OWN_RESULT in around:
            return OWN_RESULT
        not_ordered = f", {NO_ORDER}" if blocks else ""
        update = update_in(*self._sites.line(second.site)) if Around.UPDATES in around else ""
        if update:
            return NOT_ATOMIC.format(update) + not_ordered
        if Around.ONE_STEP in around:
            return NOT_ONE_STEP + not_ordered
        if Around.EXCHANGED in around:
            return EXCHANGED + not_ordered
        if Around.LOOP_STEP in around:
            return LOOP_STEP_OF_BLOCKS if blocks else LOOP_STEP
        if blocks:
            return NO_ORDER_OF_COOPERATIVE if self._syncs_grid else NO_ORDER
        if Around.AT_ONCE in around:
            return AT_ONCE
        return TWO_STORES if first.kind == second.kind == WRITE else NO_BARRIER

    def _reaching(
        self, first: LoggedAccess, second: LoggedAccess, warp: int | None = None
    ) -> tuple[int, int]:
        """Return how many threads and warps of the block reach the site of either access; with
        ``warp``, how many of that warp alone."""
        asked = first.site, second.site, first.block, warp
        if asked not in self._reached:
            columns = self.columns
            here = (columns.site == first.site) | (columns.site == second.site)
            here &= columns.block == first.block
            if warp is not None:
                here &= columns.warp == warp
            threads, warps = np.unique(columns.thread[here]), np.unique(columns.warp[here])
            self._reached[asked] = len(threads), len(warps)
        return self._reached[asked]

    def _in_a_branch(self, first: LoggedAccess, second: LoggedAccess) -> bool:
        """Return whether one branch contains both accesses and not all threads reach it: threads of
        the block, or of the warp if a warp's barrier may order the two."""
        warp, size = None, self._block_size
        if first.warp == second.warp and self._by_warps(first, second):
            warp = first.warp
            size = min(WARP, size - first.warp % WARP * WARP)
        threads, _ = self._reaching(first, second, warp)
        return threads < size and self._sites.together_in_branch(first.site, second.site)

    def _by_warps(self, first: LoggedAccess, second: LoggedAccess) -> bool:
        """Return whether ``syncwarp`` is the remedy for the accesses of two lanes: the kernel calls
        it, or only some warps reach that branch."""
        if self._syncs_warps:
            return True
        _, warps = self._reaching(first, second)
        all_warps = -(-self._block_size // WARP)
        return warps < all_warps and self._sites.together_in_branch(first.site, second.site)

    def _may_be_benign(self, first: LoggedAccess, second: LoggedAccess) -> bool:
        """Return whether a thread tests what another sets, as searches of graphs do on purpose."""
        for one, other in (first, second), (second, first):
            if one.kind == READ:
                words = getline(*self._sites.line(one.site)).split()
                tests = words[:1] in (["if"], ["elif"])
                # A loop may never read it again.
                return tests or (other.kind == ATOMIC and words[:1] != ["while"])
        return False

    def _polls(self, access: LoggedAccess) -> bool:
        """Return whether it is a load in the condition of a loop that does nothing else."""
        file, line = self._sites.line(access.site)
        loop = getline(file, line).split()[:1] == ["while"] and access.kind == READ
        does = getline(file, line + 1).strip()
        return loop and (does == "pass" or does.startswith("cuda.nanosleep("))
