"""Barriers in shared memory (``mbarrier``), with phases: arrivals of threads, bytes of copies.

The bytes of a copy land at the latest time that is possible: when a thread waits for the phase and
nothing else is missing, or when something arrives for the next phase. So a kernel that reads before
it waits reads what was there before.

A wait names only a parity. A thread that is late by a whole phase would wait for another one, so
the next phase must not end before all threads that wait for this one have come to their wait:
someone who arrives for the next phase must know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from convlab import device
from convlab.device.shared_barriers import check_arrivals, check_bytes, check_parity
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.recording.access_log import WARP, LaunchClock
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.finding_words import (
    LACKS,
    NO_BARRIER,
    NO_BARRIER_FENCE,
    NO_INIT,
    TOO_MANY_ARRIVE,
    WAITED_FOR,
)
from convlab.simulation.rules.findings import Stop
from convlab.simulation.rules.reports import Reports
from convlab.simulation.rules.thread_clocks import Knowledge, ThreadClocks, both
from convlab.simulation.threads.async_copies import is_shared
from convlab.simulation.threads.simulated_cuda import SimulatedCuda
from convlab.simulation.threads.waiting import PHASE, WaitingCall


class Landing(Protocol):
    """A copy on its way to shared memory."""

    @property
    def nbytes(self) -> int:
        """The number of bytes that arrive at the barrier."""

    def land(self) -> None:
        """Store the bytes."""


class BarrierEvent(NamedTuple):
    """A thread of a block at a line, and the time."""

    thread: int
    site: int
    time: int


class Waited(NamedTuple):
    """A wait of a thread that has returned: the phase that it waited for."""

    phase: int
    event: BarrierEvent


@dataclass(eq=False)
class SharedBarrier:
    """A barrier of a block. A phase ends after ``arrivals`` arrivals and all expected bytes."""

    name: str
    arrivals: int
    entry: int  # of the block's clocks
    made: BarrierEvent
    pending: int  # arrivals
    ended: int = 0  # phases
    expected: int = 0  # bytes
    copies: list[Landing] = field(default_factory=list)  # in flight
    arrived: Knowledge = field(default_factory=lambda: np.zeros(0, np.int64))  # in this phase
    known: Knowledge = field(default_factory=lambda: np.zeros(0, np.int64))  # in phases before
    waited: dict[int, Waited] = field(default_factory=dict)  # by thread
    last: BarrierEvent | None = None  # of the last arrival

    @property
    def in_flight(self) -> int:
        """The bytes of copies that are in flight."""
        return sum(copy.nbytes for copy in self.copies)

    def phase(self, number: int) -> str:
        """Return a phase in words."""
        return f"phase {number} of {self.name}"

    def lacks(self) -> str:
        """Return what the phase that goes on lacks, in words."""
        missing = []
        if self.pending:
            missing.append(f"{self.pending} of the {self.arrivals} arrivals")
        if (more := self.expected - self.in_flight) > 0:
            missing.append(f"{more:,} of the {self.expected:,} bytes that it expects")
        return " and ".join(missing)


@dataclass
class PhaseWait:
    """A thread's wait for the phase of a parity; ``known`` is what the thread learns by it."""

    barrier: SharedBarrier
    parity: int
    settle: Callable[[SharedBarrier], None]
    thread: int
    known: Knowledge | None = None
    phase: int = 0

    def over(self) -> bool:
        """Return whether the phase has ended. No phase ends that this thread does not wait for:
        copies land as late as they can."""
        if self.barrier.ended % 2 == self.parity:
            self.settle(self.barrier)
        return self.returns_at_once()

    def returns_at_once(self) -> bool:
        """Return whether the phase has ended already."""
        if self.barrier.ended % 2 == self.parity:
            return False
        self.known, self.phase = self.barrier.known, self.barrier.ended - 1
        return True

    def __str__(self) -> str:
        barrier = self.barrier
        lacks = barrier.lacks()
        said = f"{barrier.phase(barrier.ended)} (parity {self.parity}), {LACKS} {lacks}"
        before = barrier.waited.get(self.thread)
        last = -1 if before is None else before.phase
        told = f"{said}; it has waited for phase {last}" if last >= 0 else said
        if last + 2 <= barrier.ended and (last + 1) % 2 == self.parity:
            told += f"{' and' if last >= 0 else '; it has'} missed phase {last + 1}"
        return told


class SharedBarriers:
    """The barriers of a launch in shared memory. Without ``reports`` nothing is checked."""

    def __init__(
        self,
        cuda: SimulatedCuda,
        clock: LaunchClock,
        clocks: ThreadClocks,
        reports: Reports,
        strict: bool,
    ) -> None:
        self._cuda, self._clock, self._clocks = cuda, clock, clocks
        self._reports, self._strict = reports, strict
        self._barriers: dict[tuple[int, int], SharedBarrier] = {}  # by block and address
        self._fences: dict[int, list[int]] = {}  # times, by the thread's number in the launch
        self.intrinsics: dict[object, Callable[..., object]] = {
            device.init_barrier: self.init,
            device.fence_barriers: self.fence,
            device.expect_bytes: self.expect,
            device.arrive_barrier: self.arrive,
            device.wait_barrier: self.wait,
        }

    def end_block(self) -> None:
        """Forget the barriers of the block, which has ended. Report copies that are in flight."""
        block = self._clock.block_number
        for key in [one for one in self._barriers if one[0] == block]:
            barrier = self._barriers.pop(key)
            if barrier.copies and barrier.last is not None:
                what = f"the block ends while a copy is in flight: nobody{WAITED_FOR} "
                what += barrier.phase(barrier.ended)
                self._reports.add("copy in flight", what, barrier.last.site, barrier.last.thread)

    # The intrinsics that a kernel calls.

    def init(self, barriers: CheckedArray, i: int, arrivals: int) -> None:
        """``init_barrier``: begin the first phase of a barrier."""
        site = site_of(1)
        check_arrivals(int(arrivals))
        key, name = self._key_and_name("init_barrier", barriers, i, site)
        entry = self._clocks.here.entry()
        count = int(arrivals)
        self._barriers[key] = SharedBarrier(name, count, entry, self._here(site), pending=count)

    def fence(self) -> None:
        """``fence_barriers``: note the fence of the thread."""
        self._fences.setdefault(self._clock.number, []).append(self._clocks.now())

    def expect(self, barriers: CheckedArray, i: int, count: int) -> None:
        """``expect_bytes``: arrive, and let the phase await so many more bytes."""
        check_bytes(int(count))
        site = site_of(1)
        self._arrive(self.known("expect_bytes", barriers, i, site), site, int(count))

    def arrive(self, barriers: CheckedArray, i: int) -> None:
        """``arrive_barrier``: arrive."""
        site = site_of(1)
        self._arrive(self.known("arrive_barrier", barriers, i, site), site, 0)

    def wait(self, barriers: CheckedArray, i: int, parity: int) -> None:
        """``wait_barrier``: wait for the phase of that parity."""
        site, parity = site_of(1), int(parity)
        check_parity(parity)
        barrier = self.known("wait_barrier", barriers, i, site)
        wait = PhaseWait(barrier, parity, self.settle, self._clock.thread)
        if not wait.returns_at_once():  # else other threads go on before its copies land
            self._cuda.hub(WaitingCall(PHASE, site, wait))
        event = self._here(site)
        if self._strict and wait.known is not None:
            self._clocks.here.learn(event.thread, wait.known, event.time)
        barrier.waited[event.thread] = Waited(wait.phase, event)

    # What a barrier does.

    def add_copy(self, barrier: SharedBarrier, copy: Landing) -> None:
        """Let the bytes of a copy, which begins now, arrive at a barrier."""
        if not barrier.pending:
            self.settle(barrier)
        barrier.copies.append(copy)

    def known(self, name: str, barriers: CheckedArray, i: int, site: int) -> SharedBarrier:
        """Return the barrier ``barriers[i]``, with the phase that goes on. Ends the launch if
        nobody has initialised it."""
        key, shown = self._key_and_name(name, barriers, i, site)
        barrier = self._barriers.get(key)
        if barrier is None:
            self._reports.add(
                "uninitialised", f"{shown} {NO_INIT}", site, self._clock.thread, ends=True
            )
            raise Stop
        made, me = barrier.made, self._clock.thread
        if self._strict and me != made.thread:
            knowledge = self._clocks.here.known[me]
            if knowledge[made.thread] < made.time:
                one, other = (f"thread {self._reports.thread(t)}" for t in (made.thread, me))
                what = f"{one} initialises {shown} and {other} uses it, {NO_BARRIER}"
                self._reports.add("shared race", what, site, me, made.site)
        return barrier

    def check_fenced(self, barrier: SharedBarrier, knowledge: Knowledge, site: int) -> None:
        """Report a barrier that a copy uses and that its maker has not fenced before."""
        made = barrier.made
        fences = self._fences.get(self._clock.first + made.thread, ())
        if not any(made.time < fence <= knowledge[made.thread] for fence in fences):
            what = f"the copy engine uses {barrier.name} {NO_BARRIER_FENCE}"
            self._reports.add("not fenced", what, site, self._clock.thread, made.site)

    def settle(self, barrier: SharedBarrier) -> None:
        """End the phase that goes on, and land its copies, if nothing is missing."""
        if barrier.pending or barrier.in_flight < barrier.expected:
            return
        if (brought := barrier.in_flight) > barrier.expected and barrier.last is not None:
            what = f"{barrier.phase(barrier.ended)} expects {barrier.expected:,} bytes, but copies"
            what += f" bring {brought:,}: it may end before they have landed, or never"
            self._reports.add("bytes not expected", what, barrier.last.site, barrier.last.thread)
        for copy in barrier.copies:
            copy.land()
        if self._strict:
            self._check_waits(barrier)
            barrier.known = both(barrier.known, barrier.arrived)
            if len(barrier.known) <= barrier.entry:
                barrier.known = both(barrier.known, np.zeros(barrier.entry + 1, np.int64))
            barrier.known[barrier.entry] = barrier.ended + 1
        barrier.ended += 1
        barrier.pending, barrier.expected = barrier.arrivals, 0
        barrier.copies, barrier.arrived = [], np.zeros(0, np.int64)

    def _arrive(self, barrier: SharedBarrier, site: int, nbytes: int) -> None:
        self.settle(barrier)
        event = self._here(site)
        if not barrier.pending:
            what = f"{barrier.name} {TOO_MANY_ARRIVE} phase {barrier.ended}, which awaits bytes,"
            what += " and a thread arrives once more"
            self._reports.add("wrong phase", what, site, event.thread)
            return
        barrier.pending -= 1
        barrier.expected += nbytes
        barrier.last = event
        if self._strict:
            past = self._clocks.here.past_of([event.thread], event.time)
            barrier.arrived = both(barrier.arrived, past)

    def _check_waits(self, barrier: SharedBarrier) -> None:
        """Report a thread that may come to its wait for a phase when the next one, which ends now,
        has ended too. Lanes of a warp come together."""
        late: dict[int, tuple[int, Waited] | None] = {}  # by warp; None where one is known
        for thread, waited in barrier.waited.items():
            if waited.phase != barrier.ended - 1:
                continue
            warp, event = thread // WARP, waited.event
            is_known = thread < len(barrier.arrived) and barrier.arrived[thread] >= event.time
            if is_known:
                late[warp] = None
            else:
                late.setdefault(warp, (thread, waited))
        for found in late.values():
            if found is None:
                continue
            thread, waited = found
            who = f"thread {self._reports.thread(thread)}"
            phase = barrier.ended
            before = f"phase {phase - 1}" if phase else "the phase before the first"
            what = f"{barrier.phase(phase)} may end before {who} has come to its wait for {before}:"
            what += f" no thread that arrives for phase {phase} knows of that wait"
            last = None if barrier.last is None else barrier.last.site
            self._reports.add("wrong phase", what, waited.event.site, thread, last)

    def _key_and_name(
        self, name: str, barriers: CheckedArray, i: int, site: int
    ) -> tuple[tuple[int, int], str]:
        """Return the block and the address of a barrier, and its name."""
        if not is_shared(barriers) or barriers.dtype != np.uint64 or barriers.ndim != 1:
            shown = getattr(barriers, "name", barriers)
            raise TypeError(f"{name}: {shown} must be a shared array of uint64 with one dimension")
        at = barriers.check((i,), site)
        address = barriers.first_address + at[0] * barriers.strides[0]
        return (self._clock.block_number, address), barriers.show(at)

    def _here(self, site: int) -> BarrierEvent:
        return BarrierEvent(self._clock.thread, site, self._clocks.now())
