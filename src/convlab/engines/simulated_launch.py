"""One launch of the strict simulator: threads are run, accesses judged, findings collected."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from greenlet import getcurrent

from convlab.engines.access_log import ATOMIC, READ, WRITE, AccessLog, Sites, Span
from convlab.engines.arithmetic import Arithmetic
from convlab.engines.base import Counts
from convlab.engines.checked_array import Memory, checked
from convlab.engines.findings import Finding, Findings, NotSimulated, Stop
from convlab.engines.global_memory import addresses, byte_bounds, host_array
from convlab.engines.greenlets import Block
from convlab.engines.paths import Paths
from convlab.engines.python_body import Copier, names_used
from convlab.engines.races import Access, Conflict, Race
from convlab.engines.requests import Requests, requests_of, tally
from convlab.engines.scalars import WrapsAround, float_of, meaning
from convlab.engines.simulated_cuda import BLOCKING, SimulatedCuda

Place = tuple[int, int, int]
LONG = 60_000  # entries of the log that are looked at in one go, at the end of a block
FATAL = ("out of bounds", "misaligned")


class Recorder(Protocol):
    """Who hears of all that a launch does: a trace."""

    def look(self, launch: SimulatedLaunch, requests: Requests) -> None:
        """What some blocks, the next ones, asked of memory."""

    def barrier(self, site: int, threads: int) -> None:
        """That many threads passed the barrier there."""

    def end(self, launch: SimulatedLaunch, operations: Mapping[int, int]) -> None:
        """The launch is over; floating-point operations by site."""


class SimulatedLaunch:
    """One launch."""

    def __init__(
        self,
        kernel: Any,
        grid: Place,
        block: Place,
        arguments: tuple[Any, ...],
        shared_bytes: int,
        strict: bool,
        counts: Counts | None,
        recorder: Recorder | None = None,
    ) -> None:
        self.strict, self.counts, self.recorder = strict, counts, recorder
        self.grid, self.block_shape, self.block_size = grid, block, math.prod(block)
        if not 1 <= self.block_size <= 1024:
            raise ValueError(f"{block} are {self.block_size} threads: a block has 1 to 1024")
        self.findings = Findings()
        by_request = counts is not None or recorder is not None
        self.log = AccessLog() if self.strict or by_request else None
        self.paths = Paths(self.block_size) if by_request else None
        self.arithmetic = Arithmetic() if recorder is not None else None
        number = self.arithmetic.number if self.arithmetic else None
        self.memory = Memory(self.log, self.report, number)
        self.cuda = SimulatedCuda(grid, block, self.memory, shared_bytes)
        self.cuda.on_fence = self._fence
        self.cuda.switch_through(getcurrent().switch)
        copier = self._copier()
        self.kernel: str = kernel.py_func.__name__
        self.body = copier.copy(kernel.py_func)
        self.codes = tuple(copier.codes())
        self.sites = Sites(self.codes)
        self.waits = bool(
            copier.used & BLOCKING or any(names_used(code) & BLOCKING for code in self.codes)
        )
        self.arguments = self._checked(arguments)
        self.race = Race(self.block_size)
        self.thread, self.block, self.block_number = 0, (0, 0, 0), 0
        self.first = self.phase = 0
        self.epochs = [0] * self.block_size

    def _copier(self) -> Copier:
        """Makes the kernel's body, with as much noted on the way as is asked for."""
        if self.paths is None:
            return Copier(self.cuda, self._meaning)
        builtins: dict[str, Any] = {"range": self.paths.range}
        if self.arithmetic is not None:
            builtins["float"] = self.arithmetic.cast(float_of)
            self.cuda.fma = self.arithmetic.fma  # type: ignore[method-assign]
        return Copier(self.cuda, self._meaning, builtins, self.paths.call)

    def run(self) -> None:
        """Run it all; raises ``SimulationError`` if there are findings."""
        if self.arithmetic is not None:
            self.arithmetic.watch(self.codes)
        try:
            self._run_blocks()
        except Stop:
            pass
        except (WrapsAround, ZeroDivisionError) as error:
            kind = "wraps around" if isinstance(error, WrapsAround) else "division by zero"
            self._add(kind, str(error), self._site(error), self.thread)
        except NotSimulated as error:
            file, line = self.sites.line(self._site(error))
            raise NotSimulated(f"{error}, {file}:{line}") from None
        except Exception as error:
            error.add_note(f"in {self.kernel}, block {self.block}, thread {self._at(self.thread)}")
            raise
        if self.log is not None:
            self._look()
            if self.strict:
                for conflict in self.race.finish():
                    self._conflict(conflict)
        if self.recorder is not None and self.arithmetic is not None:
            self.recorder.end(self, self.arithmetic.operations)
        self.findings.raise_any()

    def _run_blocks(self) -> None:
        cuda, log = self.cuda, self.log
        places = [_place(number, self.block_shape) for number in range(self.block_size)]
        enter = self._enterer()
        for number in range(math.prod(self.grid)):
            self.block_number = number
            self.block = _place(self.block_number, self.grid)
            cuda.blockIdx.set(self.block)
            cuda.shared.new_block()
            self.first = self.block_number * self.block_size
            self.phase += 1
            if self.paths is not None:
                self.paths.new_block()
            if self.waits:
                complain = self._complain if self.strict else None
                block = Block(self.body, self.arguments, places, enter, complain)
                block.on_barrier, block.on_warp_barrier = self._barrier, self._warp_barrier
                block.run()
            else:
                body, arguments = self.body, self.arguments
                for number, place in enumerate(places):
                    enter(number, place)
                    body(*arguments)
            if log is not None and len(log.addresses) > LONG:
                self._look()

    # What happens while it runs.

    def _enterer(self) -> Callable[[int, Place], None]:
        """What is done before each switch to a thread: often, so with everything at hand."""
        cuda, index, log, epochs = self.cuda, self.cuda.threadIdx, self.log, self.epochs

        def enter(number: int, place: Place) -> None:
            index.x, index.y, index.z = place
            cuda.laneid = number & 31
            self.thread = number

        if log is None:
            return enter
        addresses, mark, paths = log.addresses, log.marks.append, self.paths

        def enter_logged(number: int, place: Place) -> None:
            index.x, index.y, index.z = place
            cuda.laneid = number & 31
            self.thread = number
            mark((len(addresses), self.first + number, self.phase, epochs[number], 0))

        if paths is None:
            return enter_logged

        def enter_counted(number: int, place: Place) -> None:
            enter(number, place)
            paths.enter(number)
            changed()

        def changed() -> None:
            number = self.thread
            mark((len(addresses), self.first + number, self.phase, epochs[number], paths.now))

        paths.changed = changed
        return enter_counted

    def _barrier(self, threads: int, site: int) -> None:
        self.phase += 1
        if self.counts is not None:
            self.counts.barriers += threads
        if self.recorder is not None:
            self.recorder.barrier(site, threads)

    def _warp_barrier(self, threads: list[int], whole: bool) -> None:
        if whole:
            epoch = 1 + max(self.epochs)
            for number in threads:
                self.epochs[number] = epoch
        elif self.log is not None:
            position = self.race.position + len(self.log.addresses)
            self.race.warp_barriers.append((position, {self.first + number for number in threads}))

    def _fence(self, far: bool) -> None:
        if self.log is not None:
            position = self.race.position + len(self.log.addresses)
            self.race.fences.append((position, self.first + self.thread, far))

    # What it did to memory.

    def _look(self) -> None:
        """Count and judge what the log holds, and empty it."""
        assert self.log is not None
        if self.paths is not None and self.log.addresses:
            requests = requests_of(self.log, self.block_size, self.sites)
            if self.counts is not None:
                tally(requests, self.counts)
            if self.recorder is not None:
                self.recorder.look(self, requests)
        if self.strict:
            for conflict in self.race.analyse(self.log):
                self._conflict(conflict)
        self.log.clear()

    def _conflict(self, conflict: Conflict) -> None:
        assert self.log is not None
        kind, first, second = conflict
        shown = second or first
        span = self.log.span_at(first.address)
        index = span.index(first.address)
        element = f"{span.name}[{', '.join(map(str, index))}]"
        if second is None:
            what = f"{element} is read before anything in this block wrote to it"
        else:
            who = f"thread {self._at(first.thread % self.block_size)}"
            if first.block != second.block:
                who = f"block {_place(first.block, self.grid)}"
            what = f"{element} is {_verb(second)} after {who} {_past(first)} it, nothing between"
        other = None if second is None else self.sites.line(first.site)[1]
        file, line = self.sites.line(shown.site)
        self.findings.add(
            Finding(
                kind, self.kernel, file, line, what, other, _place(shown.block, self.grid),
                self._at(shown.thread % self.block_size), span.name, index, span.shape,
            )
        )  # fmt: skip

    # Findings that show at once.

    def report(
        self, kind: str, what: str, site: int, array: Any, index: tuple[int, ...] | None
    ) -> None:
        """For arrays: note a finding of the thread that runs now, and end the launch if it must."""
        self._add(kind, what, site, self.thread, None, array.name, index, tuple(array.shape))
        if kind in FATAL:
            raise Stop

    def _complain(self, kind: str, what: str, site: int, other: int | None, thread: int) -> None:
        self._add(kind, what, site, thread, other)

    def _add(
        self,
        kind: str,
        what: str,
        site: int,
        thread: int,
        other: int | None = None,
        array: str | None = None,
        index: tuple[int, ...] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        if not self.strict and kind not in (*FATAL, "wraps around", "division by zero"):
            return
        file, line = self.sites.line(site)
        other_line = None if other is None else self.sites.line(other)[1]
        self.findings.add(
            Finding(
                kind, self.kernel, file, line, what, other_line, self.block, self._at(thread),
                array, index, shape,
            )
        )  # fmt: skip

    def _site(self, error: BaseException) -> int:
        """The innermost place in the kernel that an exception came through."""
        found, trace = 0, error.__traceback__
        while trace is not None:
            if self.sites.knows(trace.tb_frame.f_code):
                found = id(trace.tb_frame.f_code) + trace.tb_lasti
            trace = trace.tb_next
        return found

    def _at(self, thread: int) -> Place:
        return _place(thread, self.block_shape)

    # Arguments and globals.

    def _meaning(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):  # a constant of the kernel's
            unlogged = Memory(None, self.report)
            return checked(value, "a constant array", 0, unlogged)
        meant = meaning(value)
        if self.arithmetic is None or not callable(meant):
            return meant
        if getattr(meant, "dtype", None) is None:
            return self.arithmetic.function(meant)
        return self.arithmetic.cast(meant) if meant.dtype.kind == "f" else meant

    def _checked(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [*inspect.signature(self.body).parameters]
        names += [f"argument {n}" for n in range(len(names), len(arguments))]
        hosts = [host_array(argument) for argument in arguments]
        starts = addresses([host for host in hosts if host is not None])
        result: list[Any] = []
        for name, argument, host in zip(names, arguments, hosts, strict=False):
            if host is None:
                plain = argument.item() if isinstance(argument, np.generic) else argument
                result.append(self.arithmetic.counted(plain) if self.arithmetic else plain)
                continue
            if host.dtype.kind not in "fiubc":
                raise NotSimulated(f"{name} is an array of {host.dtype}, which is not simulated")
            array = checked(host, name, starts[id(host)], self.memory)
            if self.log is not None and host.size:
                low, high = byte_bounds(host)
                start = array.base + low - int(host.__array_interface__["data"][0])
                self.log.spans.append(
                    Span(name, start, start + high - low, host.shape, host.itemsize)
                )
            result.append(array)
        return tuple(result)


def _place(number: int, shape: Place) -> Place:
    """Which thread of a block, or block of a grid, has that number: x runs first."""
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


_VERBS = {
    READ: ("read", "had read"),
    WRITE: ("written", "had written"),
    ATOMIC: ("updated", "had updated"),
}


def _verb(access: Access) -> str:
    return _VERBS[access.kind][0]


def _past(access: Access) -> str:
    return _VERBS[access.kind][1]
