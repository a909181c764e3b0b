"""Accesses of a launch that happen before others because threads communicate.

A thread calls a fence and then an atomic: it releases a lock, sets a flag, or counts finished
blocks. A thread that reads this by an atomic at the same address may rely on all accesses before
the fence, and on those that the fencing thread relied on itself; its own fence and atomic then pass
them on. Each step may be another thread of the block, if a barrier lies between.

A thread that polls or takes a lock must call a fence before it goes on, unless a barrier follows: a
compiler may move later reads before the loop. Without that fence, an H200 counted 1 instead of 16.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable
from heapq import merge
from operator import attrgetter
from typing import NamedTuple, Protocol

from convlab.simulation.recording.access_log import ATOMIC, LoggedAccess

# The kinds of fences, beside those of accesses: ``threadfence_block``, ``threadfence``.
BLOCK_FENCE, FENCE = 64, 65
IN_TIME = attrgetter("position")
# Equal for two events of a thread with no barrier between.
BETWEEN_BARRIERS = attrgetter("thread", "phase", "epoch")
# An access's thread, phase and epoch, and its place among the fences and atomics of the launch.
Moment = tuple[int, int, int, int]


class Fences(Protocol):
    """Each thread's last fence that is known."""

    def get(self, thread: int, /) -> LoggedAccess | None:
        """Return a thread's last fence that is known; None without one."""

    def items(self) -> Iterable[tuple[int, LoggedAccess]]:
        """Give the threads with their last fences."""

    def update(self, fences: Iterable[tuple[int, LoggedAccess]], /) -> None:
        """Learn later fences of threads."""


class KnownByThread(NamedTuple):
    """The fences that a thread knows: by itself, by its warp, by its block. Additions stay private
    to the thread. A ChainMap does the same and takes twice as long."""

    own: dict[int, LoggedAccess]
    warps: dict[int, LoggedAccess]
    blocks: dict[int, LoggedAccess]

    def get(self, thread: int, /) -> LoggedAccess | None:
        """Return the thread's last fence in the first part that has one."""
        for part in self:
            if (fence := part.get(thread)) is not None:
                return fence
        return None

    def items(self) -> Iterable[tuple[int, LoggedAccess]]:
        """Return each thread with its last fence, once."""
        return {**self.blocks, **self.warps, **self.own}.items()

    def update(self, fences: Iterable[tuple[int, LoggedAccess]], /) -> None:
        """Add fences that the thread knows by itself."""
        self.own.update(fences)


class Learned(NamedTuple):
    """An atomic by which a thread learned of a fence. If it ``polls``, the thread must call a fence
    itself."""

    atomic: LoggedAccess
    fence: LoggedAccess
    polls: bool


class Known:
    """The fences that the threads of a block know: each thread by itself, its warp since the last
    barrier of the warp, and all threads since that of the block."""

    def __init__(self) -> None:
        self._block: dict[int, LoggedAccess] = {}
        self._warps: dict[int, dict[int, LoggedAccess]] = defaultdict(dict)
        self._threads: dict[tuple[int, int], dict[int, LoggedAccess]] = defaultdict(dict)
        self._phase = 0
        self._epochs: dict[int, int] = {}

    def by(self, event: LoggedAccess) -> KnownByThread:
        """Return the fences that the thread of this event knows."""
        warp = event.warp
        if event.phase != self._phase:
            self._phase = event.phase
            for part in (*self._warps.values(), *self._threads.values()):
                add(self._block, part)
            self._warps.clear()
            self._threads.clear()
        elif event.epoch != self._epochs.get(warp):
            for other in [one for one in self._threads if one[0] == warp]:
                add(self._warps[warp], self._threads.pop(other))
        self._epochs[warp] = event.epoch
        return KnownByThread(self._threads[warp, event.thread], self._warps[warp], self._block)


def add(known: Fences, more: Fences) -> list[LoggedAccess]:
    """Add fences to those known; return the new ones."""
    new = [
        fence
        for thread, fence in more.items()
        if (old := known.get(thread)) is None or old.position < fence.position
    ]
    known.update((fence.thread, fence) for fence in new)
    return new


class HappensBefore:
    """The order that fences and atomics make, both given in execution order. ``swaps`` are the
    positions of the atomics that are a ``cas``."""

    def __init__(
        self,
        fences: Iterable[LoggedAccess],
        atomics: Iterable[LoggedAccess],
        swaps: Collection[int],
    ) -> None:
        # By the block that learned and the block of the fence; then the fences of each thread.
        self._learned: dict[tuple[int, int], list[Learned]] = defaultdict(list)
        self._fences: dict[int, list[LoggedAccess]] = defaultdict(list)
        self._atomics: dict[tuple[int, int], list[LoggedAccess]] = defaultdict(list)
        known: dict[int, Known] = defaultdict(Known)
        fenced: dict[tuple[int, int], Known] = defaultdict(Known)  # by the block and kind of fence
        # The fences that can be learned at an address: in any block (-1), or in one block alone.
        told: dict[tuple[int, int], dict[int, LoggedAccess]] = defaultdict(dict)
        changed: dict[tuple[int, int], float] = {}  # the position of the last change
        read: dict[tuple[int, int, int], float] = {}  # the position of the last read, by thread
        before: dict[int, tuple[int, int]] = {}  # each thread's last atomic
        self._positions: list[float] = []  # of all events
        # Answers by the moments of two accesses. Accesses to many elements often share a moment,
        # because no fence, atomic or barrier of their thread lies between them.
        self._answers: dict[tuple[Moment, Moment, bool], bool] = {}
        for event in merge(fences, atomics, key=IN_TIME):
            self._positions.append(event.position)
            block, thread = event.block, event.thread
            if event.kind != ATOMIC:
                self._fences[thread].append(event)
                reach = fenced[block, event.kind].by(event)
                add(reach, known[block].by(event))
                add(reach, {thread: event})
                continue
            self._atomics[block, event.address].append(event)
            here = event.address, event.site
            polls = event.position in swaps or before.get(thread) == here
            before[thread] = here
            for kind, where in ((FENCE, -1), (BLOCK_FENCE, block)):
                board = event.address, where
                if read.get((*board, thread), -1) < changed.get(board, -1):
                    for fence in add(known[block].by(event), told[board]):
                        self._learned[block, fence.block].append(Learned(event, fence, polls))
                if (block, kind) in fenced and add(told[board], fenced[block, kind].by(event)):
                    changed[board] = event.position
                read[*board, thread] = event.position

    def __call__(self, first: LoggedAccess, second: LoggedAccess, fenced: bool = True) -> bool:
        """Return whether the thread of the second access may rely on the first access. Unless
        ``fenced``, a fence of its own after it polled is not needed."""
        if first.kind == ATOMIC and any(
            atomic.position > first.position and in_order(atomic, second)
            for atomic in self._atomics[second.block, first.address]
        ):
            return True
        if (learned := self._learned.get((second.block, first.block))) is None:
            return False
        asked = self._moment(first), self._moment(second), fenced
        if (answer := self._answers.get(asked)) is None:
            answer = self._answers[asked] = any(
                in_order(one.atomic, second)
                and in_order(first, one.fence)
                and not (fenced and one.polls and self._early(one.atomic, second))
                for one in reversed(learned)
            )
        return answer

    def early_message(self, first: LoggedAccess, second: LoggedAccess) -> LoggedAccess | None:
        """Return the atomic by which another thread of the first one's block signals the second
        thread that the block has stored, although no barrier lies between the first access and its
        fence: a block's ticket that one thread takes too early. None without one."""
        for one in self._learned.get((second.block, first.block), ()):
            fence = one.fence
            if fence.thread == first.thread or fence.phase != first.phase:
                continue
            if not in_order(one.atomic, second):
                continue
            for atomic in self._atomics[first.block, one.atomic.address]:
                if atomic.thread == fence.thread and atomic.position > fence.position:
                    return atomic
        return None

    def message_to_another(self, first: LoggedAccess, second: LoggedAccess) -> LoggedAccess | None:
        """Return the atomic by which another thread of the second one's block sees the signal of
        the first access, with no barrier between that atomic and the second access. None without
        one."""
        for one in self._learned.get((second.block, first.block), ()):
            atomic = one.atomic
            apart = atomic.thread != second.thread and atomic.phase == second.phase
            if apart and in_order(first, one.fence):
                return atomic
        return None

    def _moment(self, access: LoggedAccess) -> Moment:
        """Return all that the order of an access and the events depends on. Its thread tells its
        block and warp."""
        # Events before the access, and events not after it: they differ only at an event itself.
        before = bisect_left(self._positions, access.position)
        not_after = bisect_right(self._positions, access.position)
        return access.thread, access.phase, access.epoch, before + not_after

    def _early(self, atomic: LoggedAccess, second: LoggedAccess) -> bool:
        """Return whether an access may come before the atomic that it waits for: its thread has
        neither called a fence nor passed a barrier since."""
        return BETWEEN_BARRIERS(atomic) == BETWEEN_BARRIERS(second) and not any(
            atomic.position < fence.position < second.position
            for fence in self._fences[second.thread]
        )


def in_order(one: LoggedAccess, other: LoggedAccess) -> bool:
    """Return whether program order or a barrier puts one access before the other, or both are
    one."""
    if one.position > other.position:
        return False
    if one.thread == other.thread or (one.block == other.block and one.phase < other.phase):
        return True
    return one.warp == other.warp and one.epoch < other.epoch
