"""Conflicts of the accesses in a log: races and uninitialised reads.

Two accesses that share a byte race if at least one writes, not both are atomic, different threads
make them and nothing orders them. A block's barrier orders its threads, a warp barrier the lanes of
a warp; only a message orders two blocks: a fence and an atomic before, and the same atomic after.
Stores of one and the same value by several threads are not a race, because flags are set like that.

Only accesses that may be part of a conflict are sorted: a sieve, which is a small table of hashes,
lets through the accesses to an element that is also written in the same phase, and few others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

import numpy as np

from convlab.simulation.recording.access_log import (
    ATOMIC,
    GLOBAL,
    READ,
    SETS,
    WRITE,
    Accesses,
    AccessLog,
    within,
)
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.conflicts import Conflict
from convlab.simulation.rules.guessed_reads import GuessedReads
from convlab.simulation.rules.kept_accesses import KeptAccesses
from convlab.simulation.rules.memory_traffic import packed
from convlab.simulation.rules.racing_pairs import RacingPairs
from convlab.simulation.rules.synchronization import Synchronization
from convlab.simulation.rules.uninitialised_reads import UninitialisedReads
from convlab.simulation.rules.unwritten import UnwrittenMemory

SIEVE = 1 << 18


class Race:
    """Analyses a launch's log piece by piece: whole blocks, or whole phases of one.

    ``checks`` are the positions of the atomics that check a number read before; they grow as the
    launch runs. ``unwritten`` is the global memory that nothing has written. ``copied`` returns
    which reads are of what the copy engine has been told to write.
    """

    def __init__(
        self,
        sites: Sites,
        synchronization: Synchronization,
        *,
        checks: Set[int],
        unwritten: UnwrittenMemory,
        copied: Callable[[Accesses], np.ndarray] | None,
    ) -> None:
        self._sites, self._synchronization = sites, synchronization
        self._guesses = GuessedReads(sites, checks)
        self._uninitialised = UninitialisedReads(unwritten, copied)
        self._kept = KeptAccesses(sites, synchronization)

    def analyse(self, log: AccessLog, whole: bool = True) -> Iterator[Conflict]:
        """Give the conflicts within the blocks that the log holds. ``whole`` if the last block has
        ended."""
        columns = log.columns()
        if len(columns.address):
            if log.mixed:
                columns = _in_bytes(columns)
                self._uninitialised.count_in_bytes(log)
            accesses = self._guesses.as_atomics(_seen_by_all_as_atomics(columns))
            shared = columns.address < GLOBAL
            if shared.any():
                sets = (accesses.kind == WRITE) | (columns.kind & SETS != 0)
                yield from self._uninitialised.in_shared(accesses, np.flatnonzero(shared), sets)
                if not whole:
                    self._uninitialised.keep_writes(accesses, shared & sets)
            yield from self._within_blocks(log, accesses, columns.of_products)
            if not shared.all():
                far = np.flatnonzero(~shared)
                yield from self._uninitialised.in_global(accesses, far, columns.kind)
                self._kept.add(accesses, far)
        self._synchronization.end_piece()
        if whole:
            self._uninitialised.end_blocks()

    def finish(self, log: AccessLog) -> Iterator[Conflict]:
        """Give the conflicts between blocks."""
        if (kept := self._kept.together()) is None:
            return
        accesses = self._guesses.known_as_atomics(kept)
        accesses = _in_bytes(accesses) if log.mixed else accesses
        address, kind = accesses.address, accesses.kind
        between = self._synchronization.grid_barriers_before(accesses)
        some = np.flatnonzero(np.isin(address, address[kind != READ]))
        order = some[np.lexsort((address[some], between[some]))]
        pairs = RacingPairs(log, self._sites, self._synchronization)
        yield from pairs.among(accesses, order, [between, address], "block")

    def _within_blocks(
        self, log: AccessLog, accesses: Accesses, of_products: np.ndarray
    ) -> Iterator[Conflict]:
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
        pairs = RacingPairs(log, self._sites, self._synchronization)
        yield from pairs.among(accesses, order, keys[:2], "warp")
        yield from pairs.among(accesses, order, keys, "thread")


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


def _in_bytes(accesses: Accesses) -> Accesses:
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
