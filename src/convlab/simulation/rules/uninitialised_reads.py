"""Reads of memory before the first write there, in shared memory and in device arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
from convlab.simulation.rules.conflicts import Conflict
from convlab.simulation.rules.unwritten import UnwrittenMemory


class UninitialisedReads:
    """Finds uninitialised reads in a launch's log, piece by piece.

    ``unwritten`` is the global memory that nothing has written. ``copied`` returns which reads are
    of what the copy engine has been told to write.
    """

    def __init__(
        self, unwritten: UnwrittenMemory, copied: Callable[[Accesses], np.ndarray] | None
    ) -> None:
        self._unwritten, self._copied = unwritten, copied
        # Shared memory written in the pieces of the log before: block and address in one number.
        self._written = np.empty(0, np.int64)
        self._in_bytes = False

    def count_in_bytes(self, log: AccessLog) -> None:
        """Count what has been written in bytes; until now it may have been counted in elements."""
        if not self._in_bytes:
            self._in_bytes, sizes = True, log.sizes(self._written)
            self._written = np.repeat(self._written, sizes) + within(sizes)

    def in_shared(
        self, accesses: Accesses, shared: np.ndarray, sets: np.ndarray
    ) -> Iterator[Conflict]:
        """Give reads of shared memory before the block's first write there."""
        address = accesses.block[shared] * GLOBAL + accesses.address[shared]
        early = _before_writes(accesses, shared, address, sets, self._written)
        if self._copied is not None and len(early):
            early = early[~self._copied(accesses.take(early))]
        for read in accesses.rows(early):
            yield Conflict("uninitialised", read, None)

    def keep_writes(self, accesses: Accesses, writes: np.ndarray) -> None:
        """Keep the addresses of the last block's writes to shared memory, because it goes on."""
        last = writes & (accesses.block == accesses.block[-1])
        written = accesses.block[last] * GLOBAL + accesses.address[last]
        self._written = np.union1d(written, self._written)

    def end_blocks(self) -> None:
        """Forget what blocks that have ended wrote to shared memory."""
        self._written = self._written[:0]

    def in_global(
        self, accesses: Accesses, far: np.ndarray, kinds: np.ndarray
    ) -> Iterator[Conflict]:
        """Give reads of device arrays before the first write of an element. ``kinds`` are those
        with all bits."""
        if not self._unwritten.masks:
            return
        kind = kinds & 3
        sets = (kind == WRITE) | ((kind == ATOMIC) & (kinds & SETS != 0))
        some = self._unwritten.among(accesses, far)
        address = accesses.address[some]
        for read in accesses.rows(_before_writes(accesses, some, address, sets)):
            yield Conflict("uninitialised", read, None)
        self._unwritten.write(accesses, far[kind[far] != READ])


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
