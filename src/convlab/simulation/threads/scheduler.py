"""Schedules the blocks of a launch, so that one may wait for another; finds who waits in vain.

A block runs until its threads have ended or do nothing but poll. Then the next one runs, and so
on, round after round. If no thread has done anything but poll for a whole round, and neither
memory nor the threads' variables have changed since the round before, nothing ever will: that is
a deadlock. No more blocks wait than an H100 runs at a time: others begin when one ends.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from convlab.simulation.language.code_names import may_wait
from convlab.simulation.language.rewritten_code import ENDLESS
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.local_arrays import LocalArray
from convlab.simulation.memory.structured_arrays import Record, RecordArray
from convlab.simulation.recording.access_log import WARP, WRITE, AccessLog
from convlab.simulation.recording.sites import site_of
from convlab.simulation.rules.findings import Stop
from convlab.simulation.threads.greenlets import YIELD, Block, Request

FIRST, LATER, MOST = 64, 8, 4096  # iterations of a loop before it is looked at, as a rule
SOON = 6  # looks, until which a loop that stores in the same few elements is looked at as often
STEPS = 10_000_000  # of one loop of one thread
POLLS = 50_000  # of all threads while nothing else happens
BOUND = 1000  # polls of each thread: a loop that gives up goes on before that
MANY, MOST_BARRIERS = 1024, 100_000
PERIOD = 6  # after how many rounds all may be the same again
LATE = 4  # times that others go on before another block begins
FEW = 8  # addresses that a loop reads which polls
# Of an H100 or H200, which is what a program is told that it has; of an SM's shared memory each
# block takes 1 KiB more.
SMS, SM_BLOCKS, SM_THREADS, SM_BYTES, OWN_BYTES = 132, 32, 2048, 228 * 1024, 1024


class Scheduler:
    """The blocks of a launch, a :class:`~convlab.simulation.launch.SimulatedLaunch`, one
    of which runs."""

    def __init__(self, launch: Any) -> None:
        self._launch = launch
        self.waiting: deque[Block] = deque()  # blocks not at their end, the one that runs first
        self._barriers = self._unknown = 0
        self._seen: Any = None
        self._until = 0

    @property
    def alone(self) -> bool:
        """Whether no block but the one that runs has begun and not ended."""
        return len(self.waiting) == 1

    def run(self, blocks: Iterator[Block]) -> None:
        """Run them all. Raises :class:`Stop` for a deadlock, which is then among the findings."""
        launch, waiting = self._launch, self.waiting
        in_vain = rounds = polls = tries = 0  # since a thread did anything else
        now: Any = None
        late = LATE if launch.order.late else 0
        resumed, to_begin = 0, math.prod(launch.grid)
        while True:
            full = to_begin > 0 and len(waiting) >= self._resident_blocks()
            if resumed >= late * len(waiting) and to_begin and not full:
                block, resumed, to_begin = next(blocks), 0, to_begin - 1
            elif waiting:
                block, resumed = waiting.popleft(), resumed + 1
                launch.resume(block)
            else:
                break
            waiting.appendleft(block)
            before = block.polls
            further = block.run()
            waiting.popleft()
            launch.leave(block)
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
                more = f", and an H100 runs {len(waiting):,} of the blocks at a time" * full
                if self._repeats(rounds):
                    self._report(more)
                if polls > POLLS and launch.log is not None and polls > BOUND * self._polling():
                    memory, now = now, self._state()[0]
                    if now == memory or tries > POLLS * 20:
                        self._report(f" after {tries + polls:,} tries")
                    tries, polls = tries + polls, 0

    def _resident_blocks(self) -> int:
        """How many blocks an H100 runs at the same time."""
        launch = self._launch
        threads: int = -(-launch.block_size // WARP) * WARP
        fit: int = SM_BYTES // (launch.cuda.shared.nbytes + OWN_BYTES)
        return SMS * min(SM_BLOCKS, SM_THREADS // threads, fit)

    def _polling(self) -> int:
        """How many threads poll."""
        waiting = (thread for block in self.waiting for thread in block.waiting)
        return sum(thread.waits_for().kind == YIELD for thread in waiting)

    def _grid_barrier(self) -> None:
        """Let all blocks go on from it."""
        launch, first = self._launch, self.waiting[0].waiting[0]
        if ended := math.prod(launch.grid) - len(self.waiting):
            blocks = math.prod(launch.grid)
            what = f"{ended} of {blocks} blocks ended before this barrier of the grid"
            launch.reports.add("barrier divergence", what, first.waits_for().site, first.number)
        for block in self.waiting:
            block.released = True
        launch.race.grid_barriers.append(launch.position)

    def _repeats(self, count: int) -> bool:
        """Whether all is as it was some rounds ago. It takes long to compare: rounds 1, 2, 4, ...
        are kept, each for the next few."""
        if count & (count - 1) == 0:
            self._seen, self._until = self._state(), count + PERIOD
            return False
        return count <= self._until and self._state() == self._seen

    def endless(self) -> Iterable[int]:
        """What a ``while`` loop runs through: 0, 1, 2, ..., with a look at it now and then."""
        steps = itertools.chain.from_iterable(self._steps())
        loops = self._launch.loops
        return steps if loops is None else loops.endless(steps, site_of(1))

    def _steps(self) -> Iterator[range]:
        launch, log = self._launch, self._launch.log
        done, chunk = 0, FIRST
        before: list[Any] | None = None
        for looks in itertools.count(1):
            begin = 0 if log is None else len(log.addresses)
            yield range(done, done + chunk)
            done += chunk
            kernels = next(self._frames(sys._getframe()))
            site = id(kernels.f_code) + kernels.f_lasti
            # If the loop only computes, its variables are all that what happens next depends on.
            if log is not None and len(log.addresses) == begin and not self._may_wait(kernels):
                now = [*_variables(kernels.f_locals)]
                if now == before:
                    what = f"after {done:,} iterations this loop only repeats what it has done"
                    self._endless(what, site)
                before = now if looks & (looks - 1) == 0 else before
            else:
                before = None
            few, stores = (True, True) if log is None else _repeated(log, begin)
            if log is None:  # it may compute, not poll
                self._unknown += chunk
                if self._unknown > 10 * STEPS:
                    self._endless(f"loops have run {10 * STEPS:,} times, and no thread ended", site)
            if few:
                launch.cuda.hub(Request(YIELD, site))
            if not few or done > SOON * FIRST:
                chunk = min(2 * chunk, MOST)
            if few and not stores:
                chunk = LATER
            if done > STEPS:
                self._endless(f"this loop has run {STEPS:,} times and has not ended", site)

    def _may_wait(self, frame: FrameType) -> bool:
        """Whether other threads may run, or tell this one something, while the function runs."""
        return self._launch.deep or may_wait(frame.f_code)

    def barrier(self, site: int) -> None:
        """A barrier is passed: perhaps over and over, with nothing changed."""
        self._barriers += 1
        if self._barriers < MANY:
            return
        if self._repeats(self._barriers):
            self._endless("threads pass this barrier over and over, and nothing changes", site)
        if self._barriers > MOST_BARRIERS:
            self._endless(f"{MOST_BARRIERS:,} barriers have not led to an end", site)

    def _endless(self, what: str, site: int) -> None:
        self._launch.reports.add("endless loop", what, site, self._launch.thread)
        raise Stop

    # What a deadlock is, and what is said of it.

    def _state(self) -> Any:
        """All that what happens next depends on."""
        launch = self._launch
        threads = [
            (frame.f_code, frame.f_lasti, [*_variables(frame.f_locals)])
            for block in self.waiting
            for thread in block.waiting
            for frame in self._frames(thread.greenlet.gr_frame)
        ]
        kept = [block.kept.shared for block in self.waiting if block.kept]
        memory = [array.host.tobytes() for array in launch.global_arrays()]
        return memory, kept, launch.cuda.shared.keep(), threads

    def _frames(self, frame: Any) -> Iterator[Any]:
        """The kernel's of this frame and those that called it."""
        while frame is not None:
            if self._launch.sites.knows(frame.f_code):
                yield frame
            frame = frame.f_back

    def _report(self, much: str) -> None:
        waits = sorted(self.waits(), key=lambda wait: wait.kind != YIELD)
        first, reports = waits[0], self._launch.reports
        said = "; ".join(map(str, waits[:4])) + ("; ..." if len(waits) > 4 else "")
        other = next((wait.site for wait in waits if wait.line != first.line), None)
        kind, what = "deadlock", f"no thread can go on{much}: {said}"
        if all(wait.stores for wait in waits):
            kind, what = "endless loop", f"nothing changes any more{much}: {said}"
        reports.add(kind, what, first.site, first.thread, other, block=reports.block(first.block))
        raise Stop

    def waits(self) -> list[Wait]:
        """What the threads wait for, those that wait for the same at the same line together."""
        launch = self._launch
        found: dict[tuple[Any, ...], Wait] = {}
        last = self._last_accesses()
        for block in self.waiting:
            for thread in block.waiting:
                frame = next(self._frames(thread.greenlet.gr_frame), None)
                if frame is None:  # it runs
                    continue
                site = id(frame.f_code) + frame.f_lasti
                line, kind = launch.sites.where(site), thread.waits_for().kind
                polled, stores = "", False
                number = block.number * block.size + thread.number
                if kind == YIELD and number in last:
                    polled, stores = self._polled(*last[number])
                who = f"thread {thread.index} of block {launch.reports.block(block.number)}"
                wait = Wait(block.number, thread.number, site, line, kind, who, polled, stores)
                found.setdefault((line, kind, polled), wait).count += 1
        return list(found.values())

    def _last_accesses(self) -> dict[int, tuple[int, int]]:
        """By thread the address and the kind of its last access."""
        if (log := self._launch.log) is None:
            return {}
        columns = log.columns()
        threads, back = np.unique(columns.thread[::-1], return_index=True)
        last = columns.take(len(columns.thread) - 1 - back)
        entries = zip(last.address.tolist(), last.kind.tolist(), strict=True)
        return dict(zip(threads.tolist(), entries, strict=True))

    def _polled(self, address: int, kind: int) -> tuple[str, bool]:
        """What an access was to, with what is there, and whether it was a store."""
        assert self._launch.log is not None
        span = self._launch.log.span_at(address)
        index, _ = span.split(address)
        shown = f"{span.name}[{', '.join(map(str, index))}]"
        for array in self._launch.global_arrays():
            if array.name == span.name and array.shape == span.shape:
                shown += f" (it stays {array.host[index]})"
        return shown, kind & 3 == WRITE


@dataclass
class Wait:
    """Threads that wait for the same: the first one, what it does where, and how many."""

    block: int
    thread: int
    site: int
    line: str  # and its file
    kind: str
    who: str
    polled: str
    stores: bool
    count: int = 0

    def __str__(self) -> str:
        who = self.who + (f" and {self.count - 1:,} more" if self.count > 1 else "")
        s = "" if self.count > 1 else "s"
        if self.stores:
            return f"{who} store{s} in {self.polled} in {self.line}"
        if self.kind == YIELD:
            return f"{who} poll{s} {self.polled or 'memory'} in {self.line}"
        if self.kind.startswith("syncthreads"):
            return f"{who} wait{s} at the barrier in {self.line}"
        return f"{who} wait{s} at {self.kind} in {self.line} for other lanes"


def _repeated(log: AccessLog, begin: int) -> tuple[bool, bool]:
    """Whether the accesses from there on are to the same few elements over and over, and whether
    any is a plain store."""
    addresses, sites = log.addresses[begin:], log.sites[begin:]
    few = 0 < len(set(addresses)) <= FEW < len(addresses)
    return few, any(site >= 0 and site & 1 for site in sites)


def _variables(names: Mapping[str, Any]) -> Iterator[Any]:
    for name, value in names.items():
        at: Any = ()
        if isinstance(value, Record):
            value, at = value._array, value._at
        if isinstance(value, RecordArray):
            value = value._whole
        if isinstance(value, LocalArray):
            yield name, value.cells[:], at
        elif isinstance(value, CheckedArray):
            yield name, value.base, value.shape, value.strides, at
        elif not name.startswith(ENDLESS):
            yield name, value
