"""Which accesses of a log conflict: races and reads of memory that nobody wrote.

Two accesses to one address race when at least one writes, not both are atomic, different threads
make them and nothing orders them. A block's barrier orders its threads, a warp barrier the lanes of
a warp; nothing orders two blocks but a fence and an atomic before, and the same atomic after.
Stores of one and the same value by several threads are no race: flags are set like that.

Only what may be part of a conflict is sorted: a sieve, which is a small table of hashes, lets
through the accesses to a place that is also written in the same phase, and few others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from convlab.engines.access_log import ATOMIC, GLOBAL, READ, WIDE, WRITE, AccessLog, Columns

SIEVE = 1 << 18
TABLE = 8_000_000  # what is numbered beyond this is sorted, not put in a table
ENOUGH = 500  # groups in conflict that are looked at one by one; more are the same mistakes again


class Access(NamedTuple):
    """One side of a conflict."""

    address: int
    site: int
    kind: int
    thread: int
    block: int
    warp: int
    position: int
    value: Any


class Conflict(NamedTuple):
    """``kind`` as in a Finding; ``second`` is None for a read of what nobody wrote."""

    kind: str
    first: Access
    second: Access | None


class Race:
    """Analyses a launch's log piece by piece, each of whole blocks."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        # Position, thread, and whether other blocks may rely on it.
        self.fences: list[tuple[int, int, bool]] = []
        self.warp_barriers: list[tuple[int, set[int]]] = []  # of parts of warps: position, threads
        self.position = 0  # of the log's first entry in the launch
        self._kept: list[_Accesses] = []  # to global memory: one of a kind for each block

    def analyse(self, log: AccessLog) -> Iterator[Conflict]:
        """Conflicts within the blocks that the log holds."""
        columns = log.columns()
        if not len(columns.address):
            return
        accesses = _Accesses(columns, log.values, self.position, self.block_size)
        self.position += len(columns.address)
        shared = columns.address < GLOBAL
        if shared.any():
            yield from self._uninitialised(accesses, np.flatnonzero(shared))
        yield from self._within_blocks(accesses)
        if not shared.all():
            self._keep(accesses, np.flatnonzero(~shared))
        self.warp_barriers.clear()

    def finish(self) -> Iterator[Conflict]:
        """Conflicts between blocks."""
        if not self._kept:
            return
        accesses = _Accesses.joined(self._kept)
        atomics = self._atomics(accesses)
        address, kind = accesses.columns.address, accesses.columns.kind
        some = np.flatnonzero(np.isin(address, address[kind != READ]))
        order = some[np.argsort(address[some], kind="stable")]
        groups = _Groups(address[order])
        for group in groups.in_conflict(accesses.block[order], kind[order]):
            yield from self._first([*accesses.at(order[group])], "block", atomics)

    def _uninitialised(self, accesses: _Accesses, shared: np.ndarray) -> Iterator[Conflict]:
        """Reads of shared memory before the block's first write there. Where another thread writes
        in the same phase there is a race, which says more."""
        address, kind = accesses.columns.address[shared], accesses.columns.kind[shared]
        block = accesses.block[shared] - accesses.block[0]
        key = block * (int(address.max()) + 1) + address
        if key.max() > TABLE:
            key = np.unique(key, return_inverse=True)[1]
        never = len(accesses.block)
        first_write = np.full(int(key.max()) + 1, never, np.int32)
        writes = np.flatnonzero(kind == WRITE)[::-1]  # backwards: of several the first one stays
        first_write[key[writes]] = shared[writes]
        first = first_write[key]
        early, first = shared[first > shared], first[first > shared]
        last = np.minimum(first, never - 1)
        thread, phase = accesses.columns.thread, accesses.columns.phase
        race = (thread[last] != thread[early]) & (phase[last] == phase[early]) & (first < never)
        for access in accesses.at(early[~race][:ENOUGH]):
            yield Conflict("uninitialised", access, None)

    def _within_blocks(self, accesses: _Accesses) -> Iterator[Conflict]:
        """Between warps of one phase, and between lanes of a warp with no warp barrier between."""
        columns, warp, atomics = accesses.columns, accesses.warp, self._atomics(accesses)
        changed = columns.kind != READ
        hashes = (columns.address + columns.phase * 0x9E3779B1) & (SIEVE - 1)
        written = np.zeros(SIEVE, bool)
        written[hashes[changed]] = True
        some = np.flatnonzero(written[hashes])
        for scope, entity, keys in (
            ("warp", warp, (columns.phase, columns.address)),
            ("thread", columns.thread, (warp, columns.epoch, columns.phase, columns.address)),
        ):
            order = some[np.lexsort([key[some] for key in keys])]
            groups = _Groups(*(key[order] for key in keys))
            for group in groups.in_conflict(entity[order], columns.kind[order]):
                yield from self._first([*accesses.at(order[group])], scope, atomics)

    def _keep(self, accesses: _Accesses, far: np.ndarray) -> None:
        """Of each block's accesses of a kind to a global address keep one: the last write, since a
        fence may come after it, and the first read or atomic."""
        address = accesses.columns.address
        low = int(address[far].min())
        width = int(address[far].max()) - low + 1
        for kind in (READ, WRITE, ATOMIC):
            chosen = far[accesses.columns.kind[far] == kind]
            if not len(chosen):
                continue
            if kind == WRITE:
                chosen = chosen[::-1]
            each = (accesses.block[chosen] - accesses.block[0]) * width + address[chosen] - low
            every = kind == ATOMIC and self.fences  # any of them may tell another block something
            self._kept.append(accesses.take(chosen if every else chosen[_firsts(each)]))

    def _atomics(self, accesses: _Accesses) -> list[Access]:
        """All atomics, where fences give them a meaning beyond themselves."""
        return (
            [*accesses.at(np.flatnonzero(accesses.columns.kind == ATOMIC))] if self.fences else []
        )

    def _first(
        self, accesses: list[Access], scope: str, atomics: list[Access]
    ) -> Iterator[Conflict]:
        """The first pair that races, if any does."""
        writes = [a for a in accesses if a.kind == WRITE]
        flag = writes and all(_same(w.value, writes[0].value) for w in writes)
        for write in [a for a in accesses if a.kind != READ]:
            for other in accesses:
                if getattr(write, scope) == getattr(other, scope):
                    continue
                if write.kind == other.kind == ATOMIC or (write.kind == other.kind and flag):
                    continue
                first, second = sorted((write, other), key=lambda access: access.position)
                if self._told(first, second, scope, atomics):
                    continue
                if scope == "thread" and self._met(first, second):
                    continue
                kind = "shared race" if write.address < GLOBAL else "global race"
                yield Conflict(kind, first, second)
                return

    def _met(self, first: Access, second: Access) -> bool:
        """Whether both lanes came to a barrier of a part of their warp between."""
        return any(
            first.position < position <= second.position and {first.thread, second.thread} <= met
            for position, met in self.warp_barriers
        )

    def _told(self, first: Access, second: Access, scope: str, atomics: list[Access]) -> bool:
        """Whether the first thread fenced, then told the second by an atomic: a lock, or a counter
        of blocks that are done, where one thread speaks for its block."""

        def same(thread: int, access: Access) -> bool:
            if scope == "block":
                return thread // self.block_size == access.block
            return thread == access.thread

        told: dict[int, int] = {}
        if first.kind == ATOMIC:
            told[first.address] = first.position
        fences = (p for p, t, far in self.fences if same(t, first) and (far or scope != "block"))
        fence = next((position for position in fences if position >= first.position), None)
        if fence is not None:
            for atomic in atomics:
                if atomic.position >= fence and same(atomic.thread, first):
                    told.setdefault(atomic.address, atomic.position)
        return any(
            told.get(atomic.address, second.position) < atomic.position <= second.position
            for atomic in atomics
            if same(atomic.thread, second)
        )


class _Accesses:
    """A log's columns, and what follows from them."""

    def __init__(self, columns: Columns, values: list[Any], start: int, block_size: int) -> None:
        self.columns = columns._replace(kind=columns.kind & (WIDE - 1))
        self.block, within = np.divmod(columns.thread, block_size)
        self.warp = self.block * 32 + within // 32
        self.position = np.arange(start, start + len(self.block))
        self._values = list(values)
        self._value = np.cumsum(self.columns.kind == WRITE) - 1  # which of the values is whose

    @classmethod
    def joined(cls, parts: list[_Accesses]) -> _Accesses:
        """Parts of several logs as one."""
        new = cls.__new__(cls)
        new.columns = Columns(
            *(np.concatenate(column) for column in zip(*(p.columns for p in parts), strict=True))
        )
        new.block, new.warp, new.position = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("block", "warp", "position")
        )
        new._values = [value for part in parts for value in part._values]
        new._value = np.arange(len(new._values))
        return new

    def take(self, places: np.ndarray) -> _Accesses:
        """Some of them, each with its value."""
        new = type(self).__new__(type(self))
        new.columns = Columns(*(column[places] for column in self.columns))
        new.block, new.warp, new.position = (
            column[places] for column in (self.block, self.warp, self.position)
        )
        writes = self.columns.kind[places] == WRITE
        ordinals = self._value[places].tolist()
        new._values = [
            self._values[n] if w else None for n, w in zip(ordinals, writes.tolist(), strict=True)
        ]
        new._value = np.arange(len(places))
        return new

    def at(self, places: np.ndarray) -> Iterator[Access]:
        """Single ones, in the order in which they happened."""
        columns = self.columns
        for at in sorted(places.tolist(), key=lambda at: int(self.position[at])):
            kind = int(columns.kind[at])
            yield Access(
                int(columns.address[at]), int(columns.site[at]), kind, int(columns.thread[at]),
                int(self.block[at]), int(self.warp[at]), int(self.position[at]),
                self._values[self._value[at]] if kind == WRITE else None,
            )  # fmt: skip


class _Groups:
    """Runs of equal keys in sorted columns."""

    def __init__(self, *keys: np.ndarray) -> None:
        new = np.zeros(len(keys[0]), bool)
        new[:1] = True
        for key in keys:
            new[1:] |= key[1:] != key[:-1]
        self.starts = np.flatnonzero(new)
        self.lengths = np.diff(self.starts, append=len(new))

    def in_conflict(self, entity: np.ndarray, kind: np.ndarray) -> Iterator[slice]:
        """Groups with several entities and a write, or an atomic beside something else."""
        if not len(self.starts):
            return

        def some(of: np.ndarray) -> np.ndarray:
            found: np.ndarray = np.logical_or.reduceat(of, self.starts)
            return found

        several = np.minimum.reduceat(entity, self.starts) != np.maximum.reduceat(
            entity, self.starts
        )
        mixed = some(kind == WRITE) | (some(kind == ATOMIC) & some(kind == READ))
        for group in np.flatnonzero(several & mixed)[:ENOUGH]:
            start = int(self.starts[group])
            yield slice(start, start + int(self.lengths[group]))


def _firsts(key: np.ndarray) -> np.ndarray:
    """Where each different number stands first."""
    size = int(key.max()) + 1
    if size > TABLE:
        return np.unique(key, return_index=True)[1]
    first = np.empty(size, np.int32)
    places = np.arange(len(key), dtype=np.int32)
    first[key[::-1]] = places[::-1]
    return np.flatnonzero(first[key] == places)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)
