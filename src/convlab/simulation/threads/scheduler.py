"""Schedules the blocks of a launch, so that one may wait for another; finds deadlocks.

A block runs until its threads have ended or do nothing but poll. Then the next one runs, and so
on, round after round. If no thread has done anything but poll for a whole round, and neither
memory nor the threads' variables have changed since the round before, nothing ever will: that is
a deadlock. No more blocks wait than an H100 runs at a time: others begin when one ends.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Protocol

from convlab.simulation.language.code_names import may_wait
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.recording.access_log import WARP, AccessLog, LaunchClock
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.recording.loops import Loops
from convlab.simulation.rules.findings import Stop
from convlab.simulation.rules.reports import Reports
from convlab.simulation.threads.greenlets import Block
from convlab.simulation.threads.simulated_cuda import SimulatedCuda
from convlab.simulation.threads.snapshots import (
    Snapshot,
    Variable,
    frames_of_kernel,
    snapshot,
    variables,
)
from convlab.simulation.threads.waiting import YIELD, WaitingCall
from convlab.simulation.threads.waits import Wait, said_of_stuck_loop, waits_of

# Iterations of a loop before a look at it: at first, of one that polls, and at most.
FIRST, LATER, MOST = 64, 8, 4096
SOON = 6  # looks at a loop that stores in the same few elements, before they become rarer
STEPS = 10_000_000  # of one loop of one thread
POLLS = 50_000  # of all threads while nothing else happens
BOUND = 1000  # polls of each thread: a loop that gives up goes on before that
MANY, MOST_BARRIERS = 1024, 100_000
PERIOD = 6  # rounds in which the state may return to an earlier one
LATE = 4  # times that others go on before another block begins
FEW = 8  # different addresses that a loop accesses if it polls
# The limits of an H100 or H200, the GPU that a program is told that it has: SMs, and blocks,
# threads and bytes of shared memory for each SM. Each block uses OWN_BYTES more than its arrays.
SMS, SM_BLOCKS, SM_THREADS, SM_BYTES, OWN_BYTES = 132, 32, 2048, 228 * 1024, 1024


class Blocks(Protocol):
    """The blocks of a launch, to be run."""

    def begin(self) -> Iterator[Block]:
        """Give the blocks one after the other, each ready to run."""
        ...

    def resume(self, block: Block) -> None:
        """Restore the state of a block that has waited."""

    def leave(self, block: Block) -> None:
        """Save the state of a block: another one runs from here on."""


class Scheduler:
    """Runs the blocks of a launch in turns. ``loops`` hears of ``while`` loops; ``arrays`` gives
    the arrays in global memory. If ``late``, a block begins when those before it have had several
    turns."""

    def __init__(
        self,
        clock: LaunchClock,
        reports: Reports,
        cuda: SimulatedCuda,
        arrays: Callable[[], Iterator[CheckedArray]],
        loops: Loops | None,
        block_count: int,
        late: bool,
    ) -> None:
        self._clock, self._reports, self._cuda = clock, reports, cuda
        self._arrays, self._loops = arrays, loops
        self._number_of_blocks, self._turns_before = block_count, LATE if late else 0
        # The blocks that have begun and not ended, first the one that runs.
        self.waiting: deque[Block] = deque()
        self.grid_barriers: list[int] = []  # positions in the log
        self.waits_in_calls = True  # whether threads may wait in device functions
        self._barriers = self._unknown = 0
        self._seen: Snapshot | None = None
        self._until = 0

    @property
    def alone(self) -> bool:
        """Return whether the block that runs is the only one that has begun and not ended."""
        return len(self.waiting) == 1

    def let_go(self) -> None:
        """End all threads that still wait."""
        for block in self.waiting:
            block.let_go()
        self.waiting.clear()

    def run(self, blocks: Blocks) -> None:
        """Run all blocks. Raises :class:`Stop` for a deadlock, which is then a finding."""
        waiting, fresh = self.waiting, blocks.begin()
        in_vain = rounds = polls = tries = 0  # since a thread did anything else
        now: list[bytes] | None = None  # the global memory
        resumed, to_begin = 0, self._number_of_blocks
        while True:
            full = to_begin > 0 and len(waiting) >= self._resident_blocks()
            if resumed >= self._turns_before * len(waiting) and to_begin and not full:
                block, resumed, to_begin = next(fresh), 0, to_begin - 1
            elif waiting:
                block, resumed = waiting.popleft(), resumed + 1
                blocks.resume(block)
            else:
                break
            waiting.appendleft(block)
            before = block.polls
            further = block.run()
            waiting.popleft()
            blocks.leave(block)
            if block.waiting:
                waiting.append(block)
            if further:
                in_vain = rounds = polls = tries = self._unknown = 0
                now = None
                continue
            in_vain, polls = in_vain + 1, polls + block.polls - before
            full = to_begin > 0 and len(waiting) >= self._resident_blocks()
            if not waiting or (to_begin and not full) or in_vain < len(waiting):
                continue
            if all(one.at_grid_barrier for one in waiting) and not full:
                self._grid_barrier()
                in_vain = 0
            else:
                in_vain, rounds = 0, rounds + 1
                more = (
                    f", and an H100 runs {len(waiting):,} of the blocks at a time" if full else ""
                )
                if self._repeats(rounds):
                    self._report(more)
                may_poll_on = polls <= POLLS or self._clock.log is None
                if not may_poll_on and polls > BOUND * self._polling():
                    memory, now = now, self._snapshot().memory
                    if now == memory or tries > POLLS * 20:
                        self._report(f" after {tries + polls:,} tries")
                    tries, polls = tries + polls, 0

    def _resident_blocks(self) -> int:
        """Return the number of blocks that an H100 runs at the same time."""
        threads = -(-self._clock.block_size // WARP) * WARP
        fit = SM_BYTES // (self._cuda.shared.nbytes + OWN_BYTES)
        return SMS * min(SM_BLOCKS, SM_THREADS // threads, fit)

    def _polling(self) -> int:
        """Return the number of threads that poll."""
        waiting = (thread for block in self.waiting for thread in block.waiting)
        return sum(thread.waits_at().kind == YIELD for thread in waiting)

    def _grid_barrier(self) -> None:
        """Let all blocks go on from a barrier of the grid."""
        first, blocks = self.waiting[0].waiting[0], self._number_of_blocks
        if ended := blocks - len(self.waiting):
            what = f"{ended} of {blocks} blocks ended before this barrier of the grid"
            self._reports.add("barrier divergence", what, first.waits_at().site, first.number)
        for block in self.waiting:
            block.release()
        self.grid_barriers.append(self._clock.position)

    def _repeats(self, count: int) -> bool:
        """Return whether the state equals that of an earlier round. To compare takes long: the
        states of rounds 1, 2, 4, ... are kept, each for the next few."""
        if count & (count - 1) == 0:
            self._seen, self._until = self._snapshot(), count + PERIOD
            return False
        return count <= self._until and self._snapshot() == self._seen

    def _snapshot(self) -> Snapshot:
        return snapshot(self.waiting, self._arrays(), self._cuda.shared, self._reports.sites)

    def endless(self) -> Iterable[int]:
        """Return the steps of a ``while`` loop, 0, 1, 2, ..., with a look at it now and then."""
        steps = itertools.chain.from_iterable(self._steps())
        return steps if self._loops is None else self._loops.endless(steps, site_of(1))

    def _steps(self) -> Iterator[range]:
        log = self._clock.log
        done, chunk = 0, FIRST
        before: list[Variable] | None = None
        for looks in itertools.count(1):
            begin = 0 if log is None else len(log.addresses)
            yield range(done, done + chunk)
            done += chunk
            frame = next(frames_of_kernel(sys._getframe(), self._reports.sites))
            site = id(frame.f_code) + frame.f_lasti
            # If the loop only computes, what happens next depends on its variables alone.
            if log is not None and len(log.addresses) == begin and not self._may_wait(frame):
                now = [*variables(frame.f_locals)]
                if now == before:
                    what = f"after {done:,} iterations this loop only repeats what it has done"
                    stuck = said_of_stuck_loop(frame, site, self._reports.sites)
                    self._endless(f"{what}: {stuck}" if stuck else what, site)
                before = now if looks & (looks - 1) == 0 else before
            else:
                before = None
            few, stores = (True, True) if log is None else _repeated(log, begin)
            if log is None:  # without a log, nobody knows whether it polls
                self._unknown += chunk
                if self._unknown > 10 * STEPS:
                    self._endless(f"loops have run {10 * STEPS:,} times, and no thread ended", site)
            if few:
                self._cuda.hub(WaitingCall(YIELD, site))
            if not few or done > SOON * FIRST:
                chunk = min(2 * chunk, MOST)
            if few and not stores:
                chunk = LATER
            if done > STEPS:
                self._endless(f"this loop has run {STEPS:,} times and has not ended", site)

    def _may_wait(self, frame: FrameType) -> bool:
        """Return whether other threads may run, or communicate with this one, in the function."""
        return self.waits_in_calls or may_wait(frame.f_code)

    def barrier(self, site: int) -> None:
        """Note that a barrier is passed; report one that is passed over and over."""
        self._barriers += 1
        if self._barriers < MANY:
            return
        if self._repeats(self._barriers):
            self._endless("threads pass this barrier over and over, and nothing changes", site)
        if self._barriers > MOST_BARRIERS:
            self._endless(f"{MOST_BARRIERS:,} barriers have not led to an end", site)

    def _endless(self, what: str, site: int) -> None:
        self._reports.add("endless loop", what, site, self._clock.thread)
        raise Stop

    def _report(self, much: str) -> None:
        waits = sorted(self.waits(), key=lambda wait: wait.kind != YIELD)
        first, reports = waits[0], self._reports
        said = "; ".join(map(str, waits[:4])) + ("; ..." if len(waits) > 4 else "")
        other = next((wait.site for wait in waits if wait.line != first.line), None)
        kind, what = "deadlock", f"no thread can go on{much}: {said}"
        if all(wait.stores for wait in waits):
            kind, what = "endless loop", f"nothing changes any more{much}: {said}"
        if (stuck := next((wait for wait in waits if wait.stuck), None)) is not None:
            # Others may wait for such a thread, which waits for nobody.
            first, other, kind, what = stuck, None, "endless loop", str(stuck)
        reports.add(kind, what, first.site, first.thread, other, block=reports.block(first.block))
        raise Stop

    def waits(self) -> list[Wait]:
        """Return what the threads wait for."""
        return waits_of(self.waiting, self._clock.log, self._reports, [*self._arrays()])


def _repeated(log: AccessLog, begin: int) -> tuple[bool, bool]:
    """Return whether the accesses from the entry ``begin`` on are to the same few elements over and
    over, and whether any is a plain store."""
    addresses, sites = log.addresses[begin:], log.sites[begin:]
    few = 0 < len(set(addresses)) <= FEW < len(addresses)
    return few, any(site >= 0 and site & 1 for site in sites)
