"""Conflicts of the accesses in a log: races and uninitialised reads.

Two accesses that share a byte race if at least one writes, not both are atomic, different threads
make them and nothing orders them. A block's barrier orders its threads, a warp barrier the lanes of
a warp; only a message orders two blocks: a fence and an atomic before, and the same atomic after.
Stores of one and the same value by several threads are not a race, because flags are set like that.

Only accesses that may be part of a conflict are sorted: a sieve, which is a small table of hashes,
lets through the accesses to an element that is also written in the same phase, and few others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from convlab.simulation.numbers.scalars import converted
from convlab.simulation.recording.access_log import (
    ATOMIC,
    GLOBAL,
    READ,
    SETS,
    WRITE,
    Accesses,
    AccessLog,
    LoggedAccess,
    joined,
    within,
)
from convlab.simulation.recording.sites import Sites, instruction
from convlab.simulation.rules.block_orders import (
    are_under_locks_of_blocks,
    has_narrow_fence,
    stands_above,
)
from convlab.simulation.rules.circumstances import Around, Circumstances, wait_for_others
from convlab.simulation.rules.happens_before import HappensBefore
from convlab.simulation.rules.memory_traffic import changes, packed
from convlab.simulation.rules.retries import Update, update_of
from convlab.simulation.rules.thread_clocks import ThreadClocks
from convlab.simulation.rules.unwritten import UnwrittenMemory

SIEVE = 1 << 18
ENOUGH = 500  # conflicts of the same lines; more are the same mistake again


class Conflict(NamedTuple):
    """Two accesses in conflict. ``kind`` is that of a Finding; ``second`` is None for an
    uninitialised read."""

    kind: str
    first: LoggedAccess
    second: LoggedAccess | None
    around: Around = Around.NOTHING


def few(conflicts: Iterable[Conflict]) -> Iterator[Conflict]:
    """Give the conflicts, but not more than enough of the same kind and lines."""
    seen: Counter[tuple[str, int, int | None]] = Counter()
    for one in conflicts:
        key = one.kind, one.first.site, one.second and one.second.site
        if seen[key] < ENOUGH:
            seen[key] += 1
            yield one


class Race:
    """Analyses a launch's log piece by piece: whole blocks, or whole phases of one.

    ``swaps`` are the positions of the atomics that are a ``cas``, ``checks`` of those that check a
    number read before, ``grid_barriers`` of the barriers of the grid; all grow as the launch runs.
    """

    def __init__(
        self,
        sites: Sites,
        swaps: Set[int] = frozenset(),
        checks: Set[int] = frozenset(),
        grid_barriers: Sequence[int] = (),
    ) -> None:
        self._sites, self._swaps, self._checks = sites, swaps, checks
        self._grid_barriers = grid_barriers
        self.fenced = False  # whether a thread has called a fence
        self.fences: list[LoggedAccess] = []
        self._guesses: set[int] = set()  # sites of reads before a check, and of those that poll
        self._polls: set[int] = set()
        self.warp_barriers: list[tuple[int, set[int]]] = []  # position, threads of a part of a warp
        # The orders that barriers in shared memory make, and the reads of what the copy engine has
        # been told to write.
        self.clocks: ThreadClocks | None = None
        self.copied: Callable[[Accesses], np.ndarray] | None = None
        # Accesses to global memory, one for each block, kind and address.
        self._kept: list[Accesses] = []
        self.unwritten = UnwrittenMemory()
        # Shared memory written in the pieces of the log before: block and address in one number.
        self._written = np.empty(0, np.int64)
        self._log, self._bytes = AccessLog(1), False

    def analyse(self, log: AccessLog, whole: bool = True) -> Iterator[Conflict]:
        """Give the conflicts within the blocks that the log holds. ``whole`` if the last block has
        ended."""
        self._log, columns = log, log.columns()
        if len(columns.address):
            if log.mixed:
                columns = in_bytes(columns)
                if not self._bytes:  # until now it was counted in elements
                    self._bytes, sizes = True, log.sizes(self._written)
                    self._written = np.repeat(self._written, sizes) + within(sizes)
            accesses = self._guesses_as_atomics(_seen_by_all_as_atomics(columns))
            shared = columns.address < GLOBAL
            if shared.any():
                sets = (accesses.kind == WRITE) | (columns.kind & SETS != 0)
                yield from self._uninitialised(accesses, np.flatnonzero(shared), sets)
                if not whole:  # the last block goes on: keep the addresses of its writes
                    last = shared & sets & (accesses.block == accesses.block[-1])
                    written = accesses.block[last] * GLOBAL + accesses.address[last]
                    self._written = np.union1d(written, self._written)
            yield from self._within_blocks(accesses, columns.of_products)
            if not shared.all():
                far = np.flatnonzero(~shared)
                if self.unwritten.masks:
                    yield from self._uninitialised_far(accesses, far, columns.kind)
                self._keep(accesses, far)
        self.warp_barriers.clear()
        if whole:
            self._written = self._written[:0]

    def finish(self) -> Iterator[Conflict]:
        """Give the conflicts between blocks."""
        if not self._kept:
            return
        accesses = self._without_guesses(joined(self._kept))
        accesses = in_bytes(accesses) if self._log.mixed else accesses
        address, kind, between = accesses.address, accesses.kind, self._between(accesses)
        some = np.flatnonzero(np.isin(address, address[kind != READ]))
        order = some[np.lexsort((address[some], between[some]))]
        yield from self._conflicts(accesses, order, [between, address], "block")

    def _between(self, accesses: Accesses) -> np.ndarray:
        """Return the number of barriers of the grid before each access."""
        return np.searchsorted(self._grid_barriers, accesses.position, "right")

    def _uninitialised(
        self, accesses: Accesses, shared: np.ndarray, sets: np.ndarray
    ) -> Iterator[Conflict]:
        """Give reads of shared memory before the block's first write there."""
        address = accesses.block[shared] * GLOBAL + accesses.address[shared]
        early = _before_writes(accesses, shared, address, sets, self._written)
        if self.copied is not None and len(early):
            early = early[~self.copied(accesses.take(early))]
        for read in accesses.rows(early):
            yield Conflict("uninitialised", read, None)

    def _uninitialised_far(
        self, accesses: Accesses, far: np.ndarray, kinds: np.ndarray
    ) -> Iterator[Conflict]:
        """Give reads of device arrays before the first write of an element. ``kinds`` are those
        with all bits."""
        kind = kinds & 3
        sets = (kind == WRITE) | ((kind == ATOMIC) & (kinds & SETS != 0))
        some = self.unwritten.among(accesses, far)
        address = accesses.address[some]
        for read in accesses.rows(_before_writes(accesses, some, address, sets)):
            yield Conflict("uninitialised", read, None)
        self.unwritten.write(accesses, far[kind[far] != READ])

    def _within_blocks(self, accesses: Accesses, of_products: np.ndarray) -> Iterator[Conflict]:
        """Give conflicts between warps of one phase, and between lanes of a warp with no warp
        barrier between. Reads by tensor cores are left to
        :class:`~convlab.simulation.threads.tensor_cores.TensorCores`."""
        address, phase = accesses.address, accesses.phase
        hashes = (address + phase * 0x9E3779B1) & (SIEVE - 1)
        written = np.zeros(SIEVE, bool)
        written[hashes[accesses.kind != READ]] = True
        some = np.flatnonzero(written[hashes] & ~of_products)
        # Sorted by all keys, they are sorted by the first two as well.
        keys = address, phase, accesses.epoch, accesses.warp
        order = some[np.lexsort(packed(*(key[some] for key in keys))[::-1])]
        yield from self._conflicts(accesses, order, keys[:2], "warp")
        yield from self._conflicts(accesses, order, keys, "thread")

    def _guesses_as_atomics(self, accesses: Accesses) -> Accesses:
        """Return the accesses with guesses as atomics. A plain read is a guess if the thread's next
        access there is a ``max`` or ``min``, or a ``cas`` that a loop tries until it succeeds: it
        does no harm if others came between. Another thread that reads at that line may find that it
        need not go on; but a thread that polls there needs an atomic."""
        if not self._checks:
            return accesses
        address, thread = accesses.address, accesses.thread
        site = self._sites.one_each(accesses.site)
        check, read = np.isin(accesses.position, [*self._checks]), accesses.kind == READ
        order = np.lexsort((accesses.position, thread, address))
        now, then = order[:-1], order[1:]
        same_place = (address[now] == address[then]) & (thread[now] == thread[then])
        pairs = read[now] & same_place & (accesses.phase[now] == accesses.phase[then])
        now, then = now[pairs], then[pairs]
        self._polls.update(site[now[read[then] & (site[now] == site[then])]].tolist())
        self._guesses.update(site[now[check[then]]].tolist())
        return self._without_guesses(accesses)

    def _without_guesses(self, accesses: Accesses) -> Accesses:
        guesses = [*self._guesses - self._polls]
        here = np.isin(self._sites.one_each(accesses.site), guesses) & (accesses.kind == READ)
        return accesses._replace(kind=np.where(here, np.int8(ATOMIC), accesses.kind))

    def _keep(self, accesses: Accesses, far: np.ndarray) -> None:
        """Keep one access per block, kind and global address: the first. With fences, or if threads
        wait for others, keep one of each thread from an atomic, fence or barrier to the next, and
        all atomics, because any of them may communicate with another block."""
        address = accesses.address
        low = int(address[far].min())
        width = int(address[far].max()) - low + 1
        among = self._between(accesses) * (int(accesses.block.max()) + 1) + accesses.block
        tells = bool(self.fences) or wait_for_others(accesses.take(far), self._update)
        if tells:
            among = self._segments(accesses)
        for kind in (READ, WRITE, ATOMIC):
            chosen = far[accesses.kind[far] == kind]
            if kind != ATOMIC or not tells:
                each = among[chosen] * width + address[chosen] - low
                chosen = chosen[np.unique(each, return_index=True)[1]]
            self._kept.append(accesses.take(chosen))

    def _segments(self, accesses: Accesses) -> np.ndarray:
        """Return a number for each stretch of a thread between its atomics, fences and barriers."""
        count = len(accesses.position)
        fences = [one for one in self.fences if one.position > accesses.position[0] - 1]
        thread, position, phase, epoch = (
            np.append(getattr(accesses, name), [getattr(one, name) for one in fences])
            for name in ("thread", "position", "phase", "epoch")
        )
        tells = np.append(accesses.kind == ATOMIC, np.ones(len(fences), bool))
        order = np.lexsort((position, thread))
        segment = np.empty(len(order), np.int64)
        new = changes(thread[order], phase[order], epoch[order]) | tells[order]
        segment[order] = np.cumsum(new)
        return segment[:count]

    def _conflicts(
        self, accesses: Accesses, order: np.ndarray, keys: Sequence[np.ndarray], scope: str
    ) -> Iterator[Conflict]:
        """Give the first conflict of each group that agrees in the keys, and not more than enough
        of the same lines. ``order`` sorts by the keys."""

        @cache
        def happens_before() -> HappensBefore:
            # Without fences, atomics order only themselves.
            atomics = _in_time(accesses, np.flatnonzero(accesses.kind == ATOMIC))
            return HappensBefore(self.fences, atomics if self.fences else [], self._swaps)

        @cache
        def circumstances() -> Circumstances:
            return Circumstances(accesses, self._update, self._sites.line)

        seen: Counter[tuple[int, int]] = Counter()
        for indices, sites in _in_conflict(accesses, order, keys, getattr(accesses, scope)):
            if seen[sites] < ENOUGH:
                here = _in_time(accesses, indices)
                for first, second in self._first(here, scope, happens_before):
                    where = "shared race" if first.address < GLOBAL else "global race"
                    around = self._around(first, second, here, happens_before(), circumstances)
                    seen[sites] += 1
                    yield Conflict(where, first, second, around)

    def _first(
        self, accesses: list[LoggedAccess], scope: str, happens_before: Callable[[], HappensBefore]
    ) -> Iterator[tuple[LoggedAccess, LoggedAccess]]:
        """Give the first pair of accesses that races, if any does."""
        kept = [one.value for one in accesses if one.kind == WRITE]
        if not self._log.mixed:
            dtype = self._log.span_at(accesses[0].address).dtype
            kept = [converted(value, dtype) for value in kept]
        is_flag = bool(kept) and all(same(value, kept[0]) for value in kept)
        pairs = _flag_and_others(accesses) if is_flag else _neighbours(accesses)
        for first, second in pairs:
            if getattr(first, scope) == getattr(second, scope):
                continue
            if happens_before()(first, second):
                continue
            if scope == "thread" and self._met(first, second):
                continue
            if self.clocks is not None and self.clocks.ordered(first, second):
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
        narrow = Around.TOLD in around and has_narrow_fence(first, second, self.fences)
        return around | Around.NARROW_FENCE if narrow else around

    def _update(self, site: int) -> Update:
        """Return the facts from the kernel's text about the access at a site."""
        if (code := self._sites.code(site)) is None:
            return Update()
        return update_of(code, instruction(code, site - id(code)), code.co_filename)

    def _met(self, first: LoggedAccess, second: LoggedAccess) -> bool:
        """Return whether both lanes passed a barrier of a part of their warp between the two
        accesses."""
        return any(
            first.position < position <= second.position and {first.thread, second.thread} <= met
            for position, met in self.warp_barriers
        )


def _before_writes(
    accesses: Accesses,
    some: np.ndarray,
    cell: np.ndarray,
    sets: np.ndarray,
    written: np.ndarray | None = None,
) -> np.ndarray:
    """Return which of some accesses, each to a ``cell``, come before the first that ``sets`` it,
    unless it is ``written`` before. If another thread writes in the same phase there is a race,
    which says more."""
    cells, key = np.unique(cell, return_inverse=True)
    never = len(accesses.block)
    first_write = np.full(len(cells), never, np.int32)
    writes = np.flatnonzero(sets[some])[::-1]  # backwards: the first one stays
    first_write[key[writes]] = some[writes]
    if written is not None and len(written):
        first_write[np.isin(cells, written)] = -1
    first = first_write[key]
    early, first = some[first > some], first[first > some]
    last = np.minimum(first, never - 1)
    thread, phase = accesses.thread, accesses.phase
    race = (thread[last] != thread[early]) & (phase[last] == phase[early]) & (first < never)
    return np.asarray(early[~race])


def _seen_by_all_as_atomics(columns: Accesses) -> Accesses:
    """Return the accesses with kinds of two bits. ``ldcv``, ``ldcg``, ``stwt`` and ``stcg`` count
    as atomics: they compile to volatile accesses, which order themselves as atomics do."""
    kind = columns.kind & 3
    some = (columns.kind & SETS != 0) & (kind != ATOMIC) & (columns.address >= GLOBAL)
    if not some.any():
        return columns._replace(kind=kind)
    value = columns.value.copy()
    value[some] = np.where(kind[some] == READ, "reads", "overwrites")
    return columns._replace(kind=np.where(some, np.int8(ATOMIC), kind), value=value)


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
        conflict[group] = not all(same(value, values[0]) for value in values)
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


def in_bytes(accesses: Accesses) -> Accesses:
    """Return the accesses cut into bytes, each with a value of its own: zero is zero in all of its
    bytes, and other numbers are equal in elements of one size."""
    size = accesses.size
    cut = Accesses(*(np.repeat(column, size) for column in accesses))
    number, value = within(size), cut.value
    several = (accesses.kind & 3 == WRITE) & (size > 1)
    parts: list[object] = []
    for whole, count in zip(accesses.value[several].tolist(), size[several].tolist(), strict=True):
        if whole == 0:
            parts += [0] * count
        else:
            parts += [(whole, count, part) for part in range(count)]
    value[np.repeat(several, size)] = np.fromiter(parts, object, len(parts))
    return cut._replace(address=cut.address + number, value=value, size=np.ones_like(number))


def same(one: object, other: object) -> bool:
    """Return whether two stores leave the same value: NaN counts as equal to NaN."""
    return bool(one == other) or (one != one and other != other)
