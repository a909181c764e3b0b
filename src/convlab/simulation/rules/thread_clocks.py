"""Vector clocks: the part of the other threads' past that each thread of a block knows.

Barriers in shared memory order some threads and copies of a block, not all of its threads: one
thread arrives, another waits for the phase. So each thread has a *knowledge*: for every thread of
the block the time up to which its accesses have happened, for every barrier the number of phases
that have ended, and for every warpgroup the number of its products that have ended. A thread that
arrives at a barrier leaves its knowledge there, and a thread that waits for the phase takes it.

A time is a position in the log and a count of events: an access comes after all events before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np

from convlab.simulation.recording.access_log import LaunchClock, LoggedAccess

Knowledge = np.ndarray  # one time or number for each thread, barrier and warpgroup; never changed

NEVER = int(np.iinfo(np.int64).max)  # a time after all others
_EVENTS = 32  # bits of a time that count events
_LAST = (1 << _EVENTS) - 1


def time_of(position: float | np.ndarray) -> np.ndarray:
    """Return the time of an access, or of several, from the position in the log."""
    return np.asarray(np.asarray(position).astype(np.int64) << _EVENTS | _LAST)


def both(one: Knowledge, other: Knowledge) -> Knowledge:
    """Return what is known by one, or the other, or both."""
    if len(one) < len(other):
        one, other = other, one
    known = one.copy()
    np.maximum(known[: len(other)], other, out=known[: len(other)])
    return known


def knows(knowledge: Knowledge, what: int, least: int) -> bool:
    """Return whether so much is known of a thread, a barrier or a warpgroup."""
    return least <= 0 or (what < len(knowledge) and bool(knowledge[what] >= least))


class BlockClocks:
    """The knowledge of the threads of one block, now and earlier."""

    def __init__(self, size: int) -> None:
        self._entries = self.size = size
        nothing = np.zeros(size, np.int64)
        self.known: list[Knowledge] = [nothing] * size
        # Of each thread, since which times it has had which knowledge.
        self._since: list[list[int]] = [[0] for _ in range(size)]
        self._had: list[list[Knowledge]] = [[nothing] for _ in range(size)]
        # Threads with the same past share one knowledge, so that most unions are known already.
        self._unions: dict[tuple[int, int], tuple[Knowledge, Knowledge, Knowledge]] = {}

    def entry(self) -> int:
        """Return the number of a new entry: of a barrier, or of a warpgroup."""
        self._entries += 1
        return self._entries - 1

    def learn(self, thread: int, news: Knowledge, time: int) -> None:
        """Let a thread take the news."""
        before = self.known[thread]
        key = id(before), id(news)
        if key not in self._unions:
            known = both(before, news)
            if len(known) == len(before) and (known == before).all():
                known = before
            self._unions[key] = before, news, known
        known = self._unions[key][2]
        if known is not before:
            self._set(thread, known, time)

    def _set(self, thread: int, known: Knowledge, time: int) -> None:
        self.known[thread] = known
        self._since[thread].append(time)
        self._had[thread].append(known)

    def past_of(self, threads: Sequence[int], time: int) -> Knowledge:
        """Return what these threads know together, with all that they have done so far."""
        known = self.known[threads[0]]
        for other in {id(one): one for one in map(self.known.__getitem__, threads)}.values():
            if other is not known:
                known = both(known, other)
        known = known.copy()
        known[list(threads)] = time
        return known

    def known_to_each(self, threads: Sequence[int]) -> Knowledge:
        """Return what every one of these threads knows."""
        each = [*{id(one): one for one in map(self.known.__getitem__, threads)}.values()]
        least = min(map(len, each))
        return np.asarray(np.minimum.reduce([one[:least] for one in each]))

    def meet(self, threads: Sequence[int], time: int) -> None:
        """Let threads learn all that any of them knows, as at a barrier of theirs."""
        known = self.past_of(threads, time)
        for thread in threads:
            self._set(thread, known, time)

    def at(self, thread: int, time: int) -> Knowledge:
        """Return a thread's knowledge at a time."""
        return self._had[thread][bisect_right(self._since[thread], time) - 1]

    def knows_from(self, thread: int, entry: int, least: int) -> int:
        """Return the time from which a thread knows at least ``least`` of an entry, NEVER if it
        does not. A thread forgets nothing, so bisection finds the time."""
        had = self._had[thread]
        begin = bisect_left(had, True, key=lambda one: knows(one, entry, least))
        return self._since[thread][begin] if begin < len(had) else NEVER


class ThreadClocks:
    """The clocks of a launch's blocks. ``used`` if the kernel has barriers that need them."""

    def __init__(self, clock: LaunchClock, strict: bool) -> None:
        self._clock, self._strict = clock, strict
        self.used = False
        self._events = 0
        self._blocks: dict[int, BlockClocks] = {}
        self._fences: dict[int, list[int]] = {}  # times of a thread's fences, by its number
        self._fence_times: dict[int, np.ndarray] = {}  # the same, as arrays that end with NEVER

    @property
    def here(self) -> BlockClocks:
        """The clocks of the block that runs."""
        number = self._clock.block_number
        if number not in self._blocks:
            self._blocks[number] = BlockClocks(self._clock.block_size)
        return self._blocks[number]

    def of_block(self, number: int) -> BlockClocks | None:
        """Return the clocks of a block; None if it has none."""
        return self._blocks.get(number)

    def now(self) -> int:
        """Return the time, which is later than all times before."""
        self._events += 1
        return self._clock.position << _EVENTS | self._events

    def meet(self, threads: Iterable[int]) -> None:
        """Note that threads of the block, by their numbers in it, have met at a barrier."""
        if self.used and self._strict:
            self.here.meet([*threads], self.now())

    def fence(self) -> None:
        """Note that the thread that runs has fenced its accesses to shared memory."""
        if self.used and self._strict:
            self._fences.setdefault(self._clock.number, []).append(self.now())

    def fences_of(self, thread: int) -> np.ndarray:
        """Return the times of a thread's fences and NEVER, by the thread's number in the launch."""
        fences, times = self._fences.get(thread, []), self._fence_times.get(thread)
        if times is None or len(times) != len(fences) + 1:  # the thread has fenced since
            times = self._fence_times[thread] = np.array([*fences, NEVER], np.int64)
        return times

    def ordered(self, first: LoggedAccess, second: LoggedAccess) -> bool:
        """Return whether the second thread knows of the first access, by a barrier in shared
        memory."""
        if not self.used or first.block != second.block or first.block not in self._blocks:
            return False
        size = self._clock.block_size
        known = self._blocks[first.block].at(second.thread % size, int(time_of(second.position)))
        return bool(known[first.thread % size] >= time_of(first.position))

    def forget(self) -> None:
        """Forget the blocks that have ended."""
        self._blocks.clear()
        self._fences.clear()
        self._fence_times.clear()
