"""Reads of dynamic shared memory through another name than it was written by.

Every ``cuda.shared.array(0, ...)`` of a kernel is the same memory, from its first byte on. A kernel
that uses two of them as two arrays reads from one what it has stored in the other. Two slices of
one array may overlap, as their indices show; and a device function may request the memory again and
read what its caller has stored there, as long as it has stored nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from convlab.simulation.recording.access_log import (
    ATOMIC,
    GLOBAL,
    READ,
    SETS,
    Accesses,
    AccessLog,
    LoggedAccess,
    joined,
    within,
)
from convlab.simulation.rules.memory_traffic import changes

ENOUGH = 500  # reads that are reported; more are the same mistake again


class Aliased(NamedTuple):
    """A read, the write that it finds, and the two elements by their names."""

    read: LoggedAccess
    write: LoggedAccess
    element: str
    other: str


class DynamicMemory:
    """Analyses a launch's log piece by piece."""

    def __init__(self) -> None:
        # The last write to each byte by each name, in the pieces of the log before.
        self._writes: tuple[Accesses, np.ndarray] | None = None

    def look(self, log: AccessLog, whole: bool) -> Iterator[Aliased]:
        """Give the reads in the log by another name. ``whole`` if the last block has ended."""
        if len(log.dynamic) > 1 and len(log.columns().address):
            yield from self._look(log)
        if whole:
            self._writes = None

    def _look(self, log: AccessLog) -> Iterator[Aliased]:
        columns = log.columns()
        here = np.flatnonzero(columns.address < log.dynamic_bytes)
        size = columns.size[here]
        accesses, name = columns.take(np.repeat(here, size)), np.repeat(log.names[here], size)
        accesses = accesses._replace(address=accesses.address + within(size))
        if self._writes is not None:
            accesses = joined([self._writes[0], accesses])
            name = np.concatenate([self._writes[1], name])
        if not len(name):
            return
        cell = accesses.block * GLOBAL + accesses.address
        order = np.lexsort((accesses.position, cell))
        accesses, name, cell = accesses.take(order), name[order], cell[order]
        kind, index = accesses.kind & 3, np.arange(len(order))
        begin = np.maximum.accumulate(np.where(changes(cell), index, 0))
        writes = kind != READ
        last = np.maximum.accumulate(np.where(writes, index, -1))
        before = np.append(-1, last[:-1])  # the last write before each
        reads = (kind == READ) | ((kind == ATOMIC) & (accesses.kind & SETS == 0))
        other = np.flatnonzero(reads & (before >= begin) & (name[before] != name))
        for at in other[np.argsort(accesses.position[other], kind="stable")][:ENOUGH].tolist():
            mine, its = (log.dynamic[number] for number in (name[at], name[before[at]]))
            earlier = slice(begin[at], at)
            stored = (writes[earlier] & (name[earlier] == name[at])).any()
            if mine.code == its.code or stored:
                read, write = accesses.rows(np.array([at, before[at]]))
                yield Aliased(read, write, mine.element(read.address), its.element(read.address))
        self._writes = _last_writes(accesses, name, np.flatnonzero(writes), cell)


def _last_writes(
    accesses: Accesses, name: np.ndarray, writes: np.ndarray, cell: np.ndarray
) -> tuple[Accesses, np.ndarray]:
    """Return the last write of each name to each byte."""
    latest = writes[::-1]
    _, first = np.unique(np.stack([cell[latest], name[latest]]), axis=1, return_index=True)
    kept = latest[first]
    return accesses.take(kept), name[kept]
