"""The pairs of accesses that race, found in groups of accesses to one element.

Several blocks, warps or lanes make the accesses of a group, and no barrier stands between these. To
compare the accesses one by one takes long, and so does finding the circumstances on which a race's
remedy depends. Both are done only for the few groups in which the order may matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Literal

import numpy as np

from convlab.simulation.numbers.scalars import converted
from convlab.simulation.recording.access_log import (
    ATOMIC,
    GLOBAL,
    READ,
    WRITE,
    Accesses,
    AccessLog,
    LoggedAccess,
)
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.block_orders import (
    are_under_locks_of_blocks,
    has_narrow_fence,
    stands_above,
)
from convlab.simulation.rules.circumstances import Around, Circumstances
from convlab.simulation.rules.conflicts import ENOUGH_OF_THE_SAME_LINES, Conflict, same_value
from convlab.simulation.rules.happens_before import HappensBefore
from convlab.simulation.rules.memory_traffic import changes
from convlab.simulation.rules.retries import update_at
from convlab.simulation.rules.synchronization import Synchronization

Scope = Literal["block", "warp", "thread"]  # accesses of the same block, warp or thread never race


class RacingPairs:
    """Finds the pairs that race in a piece of the log, or among the accesses kept of all."""

    def __init__(self, log: AccessLog, sites: Sites, synchronization: Synchronization) -> None:
        self._log, self._sites, self._synchronization = log, sites, synchronization

    def among(
        self, accesses: Accesses, order: np.ndarray, keys: Sequence[np.ndarray], scope: Scope
    ) -> Iterator[Conflict]:
        """Give the first conflict of each group that agrees in the keys, and not more than enough
        of the same lines. ``order`` sorts by the keys."""
        synchronization = self._synchronization

        @cache
        def happens_before() -> HappensBefore:
            # Without fences, atomics order only themselves.
            atomics = _in_time(accesses, np.flatnonzero(accesses.kind == ATOMIC))
            fences = synchronization.fences
            return HappensBefore(fences, atomics if fences else [], synchronization.swaps)

        @cache
        def circumstances() -> Circumstances:
            return Circumstances(accesses, partial(update_at, self._sites), self._sites.line)

        seen: Counter[tuple[int, int]] = Counter()
        for indices, sites in _in_conflict(accesses, order, keys, getattr(accesses, scope)):
            if seen[sites] < ENOUGH_OF_THE_SAME_LINES:
                here = _in_time(accesses, indices)
                for first, second in self._first(here, scope, happens_before):
                    where = "shared race" if first.address < GLOBAL else "global race"
                    around = self._around(first, second, here, happens_before(), circumstances)
                    seen[sites] += 1
                    yield Conflict(where, first, second, around)

    def _first(
        self,
        accesses: list[LoggedAccess],
        scope: Scope,
        happens_before: Callable[[], HappensBefore],
    ) -> Iterator[tuple[LoggedAccess, LoggedAccess]]:
        """Give the first pair of accesses that races, if any does."""
        kept = [one.value for one in accesses if one.kind == WRITE]
        if not self._log.mixed:
            dtype = self._log.span_at(accesses[0].address).dtype
            kept = [converted(value, dtype) for value in kept]
        clocks = self._synchronization.clocks
        is_flag = bool(kept) and all(same_value(value, kept[0]) for value in kept)
        pairs = _flag_and_others(accesses) if is_flag else _neighbours(accesses)
        for first, second in pairs:
            if getattr(first, scope) == getattr(second, scope):
                continue
            if happens_before()(first, second):
                continue
            if scope == "thread" and self._synchronization.met(first, second):
                continue
            if clocks is not None and clocks.ordered(first, second):
                continue
            yield first, second
            return

    def _around(
        self,
        first: LoggedAccess,
        second: LoggedAccess,
        group: list[LoggedAccess],
        happens_before: HappensBefore,
        circumstances: Callable[[], Circumstances],
    ) -> Around:
        """Return the circumstances of a race. ``group`` are the accesses to the element that are
        not ordered."""
        if happens_before(first, second, fenced=False):
            return Around.POLLED
        if first.block != second.block:
            early = happens_before.early_message(first, second)
            if stands_above(first, early, self._sites):
                return Around.EARLY_MESSAGE
            seen = happens_before.message_to_another(first, second)
            if stands_above(seen, second, self._sites):
                return Around.SEEN_BY_ANOTHER
            if are_under_locks_of_blocks((first, second), self._sites):
                return Around.LOCK_OF_BLOCK
        around = circumstances().around(first, second, group)
        fences = self._synchronization.fences
        narrow = Around.TOLD in around and has_narrow_fence(first, second, fences)
        return around | Around.NARROW_FENCE if narrow else around


def _in_time(accesses: Accesses, indices: np.ndarray) -> list[LoggedAccess]:
    """Return single accesses, in execution order."""
    return sorted(accesses.rows(indices), key=lambda access: access.position)


def _in_conflict(
    accesses: Accesses, order: np.ndarray, keys: Sequence[np.ndarray], entity: np.ndarray
) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """Give the indices in each group that several entities share so that order may matter, and two
    sites that stand for all of its sites: writes of different values, or a write or an atomic
    beside another kind."""
    if not len(order):
        return
    starts = np.flatnonzero(changes(*(key[order] for key in keys)))
    least, most = (partial(of.reduceat, indices=starts) for of in (np.minimum, np.maximum))
    ends = np.append(starts[1:], len(order))
    entity, kind = entity[order], accesses.kind[order]
    several = least(entity) != most(entity)
    conflict = least(kind) != most(kind)  # reads are the least kind, then writes
    plain = several & ~conflict & (least(kind) == WRITE)
    for group in np.flatnonzero(plain):
        values = accesses.value[order[starts[group] : ends[group]]].tolist()
        conflict[group] = not all(same_value(value, values[0]) for value in values)
    for group in np.flatnonzero(several & conflict):
        indices = order[starts[group] : ends[group]]
        sites = accesses.site[indices]
        yield indices, (int(sites.min()), int(sites.max()))


def _flag_and_others(accesses: list[LoggedAccess]) -> Iterator[tuple[LoggedAccess, LoggedAccess]]:
    """Give the pairs that may race if all writes store the same value: each write with all other
    kinds, and reads with atomics."""
    for one in accesses:
        for other in accesses:
            if one.kind != READ and other.kind != WRITE and one.kind != other.kind:
                yield (one, other) if one.position < other.position else (other, one)


def _neighbours(accesses: list[LoggedAccess]) -> Iterator[tuple[LoggedAccess, LoggedAccess]]:
    """Give the pairs that may race, as few as are enough: an access that is in order with the last
    write is so with those before."""
    since: dict[int, list[LoggedAccess]] = {READ: [], WRITE: [], ATOMIC: []}
    for second in accesses:
        for kind, earlier in since.items():
            if kind != second.kind or kind == WRITE:
                yield from ((first, second) for first in earlier)
        if second.kind == WRITE:
            since = {READ: [], WRITE: [], ATOMIC: []}
        since[second.kind].append(second)
