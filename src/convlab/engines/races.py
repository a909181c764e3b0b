"""Which accesses of a log conflict: races and reads of memory that nobody wrote.

Two accesses to one address race when at least one writes, not both are atomic, different threads
make them and nothing orders them. A block's barrier orders its threads, a warp barrier the lanes of
a warp; nothing orders two blocks but a fence and an atomic before, and the same atomic after. Stores
of one and the same value by several threads are no race: flags are set like that.

All accesses are sorted by address once, and each question is asked of whole groups of neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from convlab.engines.access_log import ATOMIC, GLOBAL, READ, WIDE, WRITE, AccessLog, Columns

ENOUGH = 500  # groups in conflict that are looked at one by one; more are the same mistakes again


class Access(NamedTuple):
    """One side of a conflict."""

    address: int
    site: int
    kind: int
    thread: int
    block: int
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
        self.fences: list[tuple[int, int]] = []  # position, block
        self.position = 0  # of the log's first entry in the launch
        self._kept: list[tuple[Columns, np.ndarray, np.ndarray]] = []  # global: one a block

    def analyse(self, log: AccessLog) -> Iterator[Conflict]:
        """Conflicts within the blocks that the log holds."""
        columns = log.columns()
        if not len(columns.address):
            return
        kind = columns.kind & (WIDE - 1)
        columns = columns._replace(kind=kind)
        values = np.full(len(kind), None, object)
        values[kind == WRITE] = log.values
        position = np.arange(len(kind)) + self.position
        self.position += len(kind)
        yield from self._uninitialised(columns, position, values)
        for scope in ("warp", "thread"):
            yield from self._within_blocks(columns, position, values, scope)
        self._keep(columns, position, values)

    def finish(self) -> Iterator[Conflict]:
        """Conflicts between blocks."""
        if not self._kept:
            return
        columns = Columns(*(np.concatenate(c) for c in zip(*(k[0] for k in self._kept), strict=True)))
        position, values = (np.concatenate([k[i] for k in self._kept]) for i in (1, 2))
        block = columns.thread // self.block_size
        order = np.argsort(columns.address, kind="stable")
        groups = _Groups(columns.address[order])
        for group in groups.in_conflict(block[order], columns.kind[order]):
            accesses = self._accesses(columns, position, values, order[group])
            yield from self._first(accesses, "block")

    def _uninitialised(
        self, columns: Columns, position: np.ndarray, values: np.ndarray
    ) -> Iterator[Conflict]:
        shared = np.flatnonzero(columns.address < GLOBAL)
        if not len(shared):
            return
        key = columns.thread[shared] // self.block_size * GLOBAL + columns.address[shared]
        order = np.argsort(key, kind="stable")
        groups = _Groups(key[order])
        written = columns.kind[shared][order] == WRITE
        # Whether the group has a write up to here: its writes so far, less those before the group.
        so_far = np.cumsum(written)
        before = (so_far - written)[groups.starts]
        late = so_far - np.repeat(before, groups.lengths) == 0
        for place in shared[order[late]][:ENOUGH]:
            (access,) = self._accesses(columns, position, values, np.array([place]))
            yield Conflict("uninitialised", access, None)

    def _within_blocks(
        self, columns: Columns, position: np.ndarray, values: np.ndarray, scope: str
    ) -> Iterator[Conflict]:
        """Between warps of one phase, or between threads of a warp with no warp barrier between."""
        thread, warp = columns.thread, self._warp(columns.thread)
        keys = [columns.phase, columns.address]
        if scope == "thread":
            keys = [warp, columns.epoch, *keys]
        # One write at least: most addresses are only read, and sorting is what takes time.
        changed = np.unique(columns.address[columns.kind != READ])
        some = np.flatnonzero(np.isin(columns.address, changed))
        if not len(some):
            return
        order = some[np.lexsort([key[some] for key in keys])]
        groups = _Groups(*(key[order] for key in keys))
        entity = warp if scope == "warp" else thread
        for group in groups.in_conflict(entity[order], columns.kind[order]):
            accesses = self._accesses(columns, position, values, order[group])
            yield from self._first(accesses, scope)

    def _warp(self, thread: np.ndarray) -> np.ndarray:
        """A number for each warp of the launch."""
        block, within = np.divmod(thread, self.block_size)
        warp: np.ndarray = block * 32 + within // 32
        return warp

    def _keep(self, columns: Columns, position: np.ndarray, values: np.ndarray) -> None:
        """Of each block's accesses of a kind to a global address keep one: the last write, since a
        fence may come after it, and the first read or atomic."""
        some = np.flatnonzero(columns.address >= GLOBAL)
        for kind in (READ, WRITE, ATOMIC):
            chosen = some[columns.kind[some] == kind]
            if not len(chosen):
                continue
            if kind == WRITE:
                chosen = chosen[::-1]
            block = columns.thread[chosen] // self.block_size
            each = columns.address[chosen] * (int(block.max()) + 1) + block
            kept = chosen[np.unique(each, return_index=True)[1]]
            self._kept.append((columns.take(kept), position[kept], values[kept]))

    def _accesses(
        self, columns: Columns, position: np.ndarray, values: np.ndarray, places: np.ndarray
    ) -> list[Access]:
        found = []
        for at in places:
            thread = int(columns.thread[at])
            found.append(
                Access(
                    int(columns.address[at]), int(columns.site[at]), int(columns.kind[at]), thread,
                    thread // self.block_size, int(position[at]), values[at],
                )
            )  # fmt: skip
        return sorted(found, key=lambda access: access.position)

    def _first(self, accesses: list[Access], scope: str) -> Iterator[Conflict]:
        """The first pair that races, if any does."""
        writes = [a for a in accesses if a.kind == WRITE]
        flag = writes and all(_same(w.value, writes[0].value) for w in writes)
        for write in [a for a in accesses if a.kind != READ]:
            for other in accesses:
                if self._entity(write, scope) == self._entity(other, scope):
                    continue
                if write.kind == other.kind == ATOMIC or (write.kind == other.kind and flag):
                    continue
                if scope == "block" and self._ordered(*sorted((write, other), key=_position)):
                    continue
                kind = "shared race" if write.address < GLOBAL else "global race"
                yield Conflict(kind, *sorted((write, other), key=_position))
                return

    def _entity(self, access: Access, scope: str) -> int:
        if scope == "block":
            return access.block
        if scope == "thread":
            return access.thread
        return access.block * 32 + access.thread % self.block_size // 32

    def _ordered(self, first: Access, second: Access) -> bool:
        """Whether the first one's block fenced it, and told the second's block by an atomic."""
        fence = next((p for p, b in self.fences if b == first.block and p >= first.position), None)
        told: dict[int, int] = {}
        if first.kind == ATOMIC:
            told[first.address] = first.position
        if fence is not None:
            for atomic in self._atomics():
                if atomic.block == first.block and atomic.position >= fence:
                    told.setdefault(atomic.address, atomic.position)
        if not told:
            return False
        return any(
            atomic.block == second.block
            and told.get(atomic.address, second.position) < atomic.position <= second.position
            for atomic in self._atomics()
        )

    def _atomics(self) -> list[Access]:
        found = []
        for columns, position, values in self._kept:
            places = np.flatnonzero(columns.kind == ATOMIC)
            found += self._accesses(columns, position, values, places)
        return found


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


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)


def _position(access: Access) -> int:
    return access.position
