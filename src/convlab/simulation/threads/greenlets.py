"""Runs the threads of a block as greenlets: each on its own until it waits for others.

Deterministic: threads run in order of their number, and a round ends when all wait or are done.
Then the threads continue whose call is complete (:mod:`convlab.simulation.threads.meetings`).
Threads that poll, or have failed to get a lock, let the others go first; a block in which nothing
else happens lets other blocks go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType

from greenlet import getcurrent

from convlab.device.products import WARP
from convlab.simulation.rules.coordinates import Coordinates
from convlab.simulation.rules.orders import USUAL, Order
from convlab.simulation.rules.shuffles import Shuffles
from convlab.simulation.threads.block_memory import SharedContents
from convlab.simulation.threads.meeting_checks import Complain
from convlab.simulation.threads.meetings import Meetings
from convlab.simulation.threads.waiting import Thread, ThreadRunner, yields

ENDED = object()  # returned by a greenlet that has no threads left
IDLE_ROUNDS = 2  # rounds in which all only poll, before other blocks go on


@dataclass(frozen=True)
class SavedState:
    """The state of a block while other blocks run."""

    phase: int
    shared: SharedContents


class Block:
    """The threads of one block. ``enter(number, index)`` is called before each switch to one.

    ``on_barrier(threads, site)`` receives the number of threads that pass a barrier, and its site;
    ``on_warp_barrier`` the threads that pass one of a warp, and whether those are all of the warp
    that live. If the ``order`` gives way, the block lets others go on whenever one of its threads
    yields, and then reverses its threads. ``waits_in_calls`` if threads may wait in functions that
    the body calls. ``shuffles`` has the numbers that lanes read from nobody. ``idle`` are greenlets
    that blocks before have left, and that run threads again.
    """

    def __init__(
        self,
        body: Callable[..., int | None],
        arguments: tuple[object, ...],
        indices: Sequence[Coordinates],
        enter: Callable[[int, Coordinates], None],
        on_barrier: Callable[[int, int], None],
        on_warp_barrier: Callable[[list[int], bool], None],
        complain: Complain | None,
        idle: list[ThreadRunner],
        shuffles: Shuffles | None = None,
        number: int = 0,
        order: Order = USUAL,
        waits_in_calls: bool = True,
    ) -> None:
        self.number, self.size, self._idle = number, len(indices), idle
        self._body, self._arguments, self._enter = body, arguments, enter
        self._backwards, self._gives_way = order.backwards, order.gives_way
        self._random = order.random(number)
        ranks = self._ranks()
        threads = sorted(enumerate(indices), key=lambda one: ranks[one[0]])
        self._fresh = iter(threads)
        self._begun = False
        self._now = threads[0]  # the thread that has begun last
        self._meetings = Meetings(
            size=self.size,
            file=body.__code__.co_filename if isinstance(body, FunctionType) else "",
            waits_in_calls=waits_in_calls,
            parted=order.parted,
            on_barrier=on_barrier,
            on_warp_barrier=on_warp_barrier,
            complain=complain,
            shuffles=shuffles,
        )
        self.waiting: list[Thread] = []
        self.polls = 0  # turns in which a thread did nothing but poll
        self.saved: SavedState | None = None

    @property
    def at_grid_barrier(self) -> bool:
        """Return whether all threads of the block wait at a barrier of the grid."""
        return self._meetings.at_grid_barrier

    def release(self) -> None:
        """Let the threads go on from the barrier of the grid."""
        self._meetings.released = True

    def _ranks(self) -> Sequence[int]:
        """Return each thread's rank in the order in which the threads run now. With random numbers
        it is another one in each round."""
        ranks = range(self.size)
        if self._random is None:
            return ranks[::-1] if self._backwards else ranks
        warps = [*range(-(-self.size // WARP))]
        self._random.shuffle(warps)
        return [warps[number // WARP] * WARP + number % WARP for number in ranks]

    def run(self) -> bool:
        """Run until all threads have ended, or all that are left only poll; then ``waiting`` has
        them. Returns whether a thread did anything else."""
        further, rounds = self._start(), 0
        if self._gives_way:  # at most one round in each run
            self._backwards ^= not further  # the thread that came first comes last
            rounds = IDLE_ROUNDS if further and any(map(yields, self.waiting)) else IDLE_ROUNDS - 1
        enter, meetings = self._enter, self._meetings
        while self.waiting and rounds < IDLE_ROUNDS:
            ranks = self._ranks()
            if self._random is not None:  # those at one barrier would keep their order
                self.waiting.sort(key=lambda thread: ranks[thread.number])
            ready, waiting = meetings.who_continues(self.waiting, ranks)
            moved = False
            for thread in ready:
                enter(thread.number, thread.index)
                polled = yields(thread)
                thread.call = thread.worker.switch(*thread.result)
                if thread.call is ENDED:
                    self._idle.append(thread.worker)
                    moved = True
                    continue
                waiting.append(thread)
                if polled and yields(thread):
                    self.polls += 1
                else:
                    moved = True
            self.waiting = waiting
            further |= moved
            lets_go = self._gives_way and any(map(yields, waiting))
            rounds = rounds + 1 if lets_go or not moved else 0
        return further

    def let_go(self) -> None:
        """End the threads that still wait, in a launch that ends before them. Their frames refer to
        the whole launch, and the garbage collector does not look into those of a greenlet."""
        for thread in self.waiting:
            thread.worker.throw()
        self.waiting = []

    def _start(self) -> bool:
        """Let each thread run until it waits for the first time. Returns whether any had to begin.

        One greenlet runs thread after thread while they end; another one goes on where one waits.
        """
        if self._begun:
            return False
        self._begun = True
        while True:
            worker = self._idle.pop() if self._idle else ThreadRunner(runner)
            worker.loops, worker.work = [], self._work
            call = worker.switch()
            if call is ENDED:
                self._idle.append(worker)
                return True
            number, index = self._now
            self.waiting.append(Thread(number, index, worker, call))

    def _work(self) -> None:
        enter, body, arguments = self._enter, self._body, self._arguments
        for number, index in self._fresh:
            self._now = number, index
            enter(number, index)
            if (line := body(*arguments)) is not None:
                self._meetings.returned[number] = line


def runner() -> None:
    """Run threads of one block after the other, as the body of a greenlet, because creating a
    greenlet takes longer than running a short thread."""
    hub = getcurrent().parent.switch
    while True:
        getcurrent().work()
        # It refers to the block, and so to the list of idle greenlets: neither would ever go.
        del getcurrent().work
        hub(ENDED)
