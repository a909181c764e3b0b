"""Fences and messages: which accesses of different blocks, or threads, are in order all the same.

A thread fences, then tells by an atomic: it releases a lock, or counts finished blocks. Another
thread that reads this by an atomic at the same address may rely on all that came before the fence.
Each step may be another thread's, where a barrier lies between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from convlab.simulation.access_log import ATOMIC, Access


class Fence(NamedTuple):
    """A ``threadfence``, or if not ``far`` a ``threadfence_block``."""

    thread: int
    block: int
    warp: int
    phase: int
    epoch: int
    position: float  # half-way between two accesses
    far: bool


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
