"""A log's accesses as columns, with what follows from them: the thread, the time, the stored value.

For :mod:`convlab.simulation.races`: columns to sift all at once, and single accesses of what is
left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from convlab.simulation.access_log import ATOMIC, EXCHANGE, READ, WIDE, WRITE, Columns

WARPS = 32  # of a block, at most


class Access(NamedTuple):
    """One side of a conflict."""

    address: int
    site: int
    kind: int
    thread: int
    block: int
    warp: int
    phase: int
    epoch: int
    position: int
    value: Any


class Accesses:
    """A log's columns, and what follows from them. An exchange is an atomic that ``sets``."""

    def __init__(self, columns: Columns, values: list[Any], start: int, block_size: int) -> None:
        kind = columns.kind & (WIDE - 1)
        self.sets = (kind == WRITE) | (kind == EXCHANGE)  # whatever was there before
        self.columns = columns._replace(kind=np.minimum(kind, ATOMIC))
        self.block, within = np.divmod(columns.thread, block_size)
        self.warp = self.block * WARPS + within // 32
        self.position = np.arange(start, start + len(self.block))
        self._values = list(values)
        self._value = np.cumsum(kind == WRITE) - 1  # which of the values is whose

    @classmethod
    def joined(cls, parts: list[Accesses]) -> Accesses:
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

    def take(self, indices: np.ndarray) -> Accesses:
        """Some of them, each with its value."""
        new = type(self).__new__(type(self))
        new.columns = self.columns.take(indices)
        new.block, new.warp, new.position = (
            column[indices] for column in (self.block, self.warp, self.position)
        )
        writes = self.columns.kind[indices] == WRITE
        ordinals = self._value[indices].tolist()
        new._values = [
            self._values[n] if w else None for n, w in zip(ordinals, writes.tolist(), strict=True)
        ]
        new._value = np.arange(len(indices))
        return new

    def at(self, indices: np.ndarray) -> Iterator[Access]:
        """Single ones, in the order in which they happened."""
        columns = self.columns
        for at in sorted(indices.tolist(), key=lambda at: int(self.position[at])):
            kind = int(columns.kind[at])
            yield Access(
                int(columns.address[at]), int(columns.site[at]), kind, int(columns.thread[at]),
                int(self.block[at]), int(self.warp[at]), int(columns.phase[at]),
                int(columns.epoch[at]), int(self.position[at]),
                self._values[self._value[at]] if kind == WRITE else None,
            )  # fmt: skip

    def value_numbers(self, writes: np.ndarray) -> np.ndarray:
        """A number for each different value among those of these writes."""
        known: dict[Any, int] = {}
        values = (self._values[index] for index in self._value[writes].tolist())
        # NaN, which is not itself, counts as one value.
        numbers = [known.setdefault(v if v == v else None, len(known)) for v in values]
        return np.array(numbers, np.int64)


class Groups:
    """Groups of accesses that agree in all of the keys, by which the accesses are sorted."""

    def __init__(self, accesses: Accesses, order: np.ndarray, *keys: np.ndarray) -> None:
        new = np.zeros(len(order), bool)
        new[:1] = True
        for key in keys:
            sorted_ = key[order]
            new[1:] |= sorted_[1:] != sorted_[:-1]
        self._accesses, self._order = accesses, order
        self._starts = np.flatnonzero(new)
        self._ends = np.append(self._starts[1:], len(order))

    def in_conflict(self, entity: np.ndarray) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
        """The indices in each group that several entities share so that order may matter, and two
        sites that stand for all of its sites: writes of different values, or a write or an atomic
        beside something else."""
        order, starts = self._order, self._starts
        if not len(starts):
            return
        entity, site = entity[order], self._accesses.columns.site[order]
        kind = self._accesses.columns.kind[order]
        several = _least(entity, starts) != _most(entity, starts)
        mixed = _least(kind, starts) != _most(kind, starts)
        writes_only = _least(kind, starts) == WRITE
        # Reads have the smallest number: the least is WRITE where writes are mixed with atomics.
        plain = several & ~mixed & writes_only
        different = self._of_different_values(plain)
        first, last = _least(site, starts), _most(site, starts)
        for group in np.flatnonzero(several & (mixed | different)):
            indices = order[self._starts[group] : self._ends[group]]
            yield indices, (int(first[group]), int(last[group]))

    def _of_different_values(self, among: np.ndarray) -> np.ndarray:
        """Which of these groups of writes store different values."""
        different = np.zeros(len(among), bool)
        if among.any():
            lengths = (self._ends - self._starts)[among]
            chosen = np.repeat(among, self._ends - self._starts)
            numbers = self._accesses.value_numbers(self._order[chosen])
            starts = np.cumsum(lengths) - lengths
            different[among] = _least(numbers, starts) != _most(numbers, starts)
        return different


def _least(of: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return np.asarray(np.minimum.reduceat(of, starts))


def _most(of: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum.reduceat(of, starts))


assert READ < WRITE < ATOMIC  # Groups relies on it


class Conflict(NamedTuple):
    """``kind`` as in a Finding; ``second`` is None for an uninitialised read."""

    kind: str
    first: Access
    second: Access | None


# Fences and messages. A thread fences, then tells by an atomic: it releases a lock, or counts
# finished blocks. Another thread that reads this by an atomic at the same address may rely on all
# that came before the fence. Each step may be another thread's, where a barrier lies between.


class Fence(NamedTuple):
    """A ``threadfence``, or if not ``far`` a ``threadfence_block``."""

    thread: int
    block: int
    warp: int
    phase: int
    epoch: int
    position: float  # half-way between two accesses
    far: bool


def fence(thread: int, block_size: int, phase: int, epoch: int, position: int, far: bool) -> Fence:
    """The fence of that thread of the launch; the position is the next access's."""
    block, within = divmod(thread, block_size)
    return Fence(thread, block, block * WARPS + within // 32, phase, epoch, position - 0.5, far)


def ordered(one: Access | Fence, other: Access | Fence) -> bool:
    """Whether program order or a barrier puts one before the other."""
    if one.position > other.position:
        return False
    if one.thread == other.thread or (one.block == other.block and one.phase < other.phase):
        return True
    return one.warp == other.warp and one.epoch < other.epoch


class Messages:
    """The fences and the atomics of some blocks."""

    def __init__(self, fences: Iterable[Fence], atomics: Iterable[Access]) -> None:
        self._fences: dict[int, list[Fence]] = defaultdict(list)
        self._atomics: dict[int, list[Access]] = defaultdict(list)
        for one in fences:
            self._fences[one.block].append(one)
        for atomic in atomics:
            self._atomics[atomic.block].append(atomic)

    def told(self, first: Access, second: Access) -> bool:
        """Whether the thread of the second access may rely on the first one."""
        told: dict[int, int] = {}  # since which position, by address
        if first.kind == ATOMIC:
            told[first.address] = first.position
        for one in self._after(first, first.block == second.block):
            for atomic in self._atomics[first.block]:
                if ordered(one, atomic):
                    since = told.get(atomic.address, atomic.position)
                    told[atomic.address] = min(since, atomic.position)
        return bool(told) and any(
            told.get(atomic.address, second.position) < atomic.position
            and (atomic.position == second.position or ordered(atomic, second))
            for atomic in self._atomics[second.block]
        )

    def _after(self, first: Access, near: bool) -> Iterable[Fence]:
        """The first fence of each thread that comes after the access and reaches far enough."""
        found: dict[int, Fence] = {}
        for one in self._fences[first.block]:
            if (near or one.far) and one.thread not in found and ordered(first, one):
                found[one.thread] = one
        return found.values()
