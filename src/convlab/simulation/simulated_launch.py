"""One launch of the strict simulator: threads are run, accesses checked, findings collected."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, Protocol

import numpy as np
from greenlet import getcurrent

from convlab.device import emulation_of
from convlab.simulation.access_log import WARP, AccessLog, Sites
from convlab.simulation.async_copies import AsyncCopies
from convlab.simulation.checked_array import Memory, checked
from convlab.simulation.findings import (
    FATAL,
    Coordinates,
    NotSimulated,
    Reports,
    SimulationError,
    Stop,
    coordinates_of,
)
from convlab.simulation.greenlets import Block
from convlab.simulation.launch_arguments import as_seen, check_shape, python_function
from convlab.simulation.memory_rules import Counts
from convlab.simulation.messages import Fence
from convlab.simulation.paths import Paths
from convlab.simulation.python_body import Copier, names_used
from convlab.simulation.races import Race
from convlab.simulation.requests import Requests, requests_of, tally
from convlab.simulation.scalars import BUILTINS, Arithmetic, WrapsAround, meaning
from convlab.simulation.simulated_cuda import BLOCKING, SimulatedCuda
from convlab.simulation.tensor_cores import Now, TensorCores

LONG = 60_000  # entries of the log that are looked at in one go


class Recorder(Protocol):
    """Is told all that a launch does, for a trace. ``loads_of`` is for :func:`requests_of`."""

    loads_of: Mapping[tuple[str, int], int]

    def look(self, launch: SimulatedLaunch, requests: Requests) -> None:
        """What some blocks, the next ones, asked of memory."""

    def barrier(self, site: int, threads: int) -> None:
        """Record that ``threads`` threads passed the barrier at ``site``."""

    def end(self, launch: SimulatedLaunch, operations: Mapping[int, int]) -> None:
        """The launch is over; floating-point operations by site."""


class SimulatedLaunch:
    """One launch."""

    def __init__(
        self,
        kernel: Any,
        grid: Coordinates,
        block: Coordinates,
        arguments: tuple[Any, ...],
        shared_bytes: int,
        strict: bool,
        counts: Counts | None,
        recorder: Recorder | None = None,
    ) -> None:
        check_shape(grid, block)
        function = python_function(kernel)
        self.strict, self.counts, self.recorder = strict, counts, recorder
        self.grid, self.block_shape, self.block_size = grid, block, math.prod(block)
        self.kernel: str = function.__name__
        self.reports = Reports(self.kernel, grid, block, strict)
        by_request = counts is not None or recorder is not None
        self.log = AccessLog(self.block_size) if self.strict or by_request else None
        self.paths = (
            Paths(self.block_size, self.log) if self.log is not None and by_request else None
        )
        self.arithmetic = Arithmetic() if recorder is not None else None
        number = self.arithmetic.number if self.arithmetic else None
        self.memory = Memory(self.log, self.report, number)
        self.cuda = SimulatedCuda(
            grid, block, self.memory, shared_bytes, getcurrent().switch, self._fence
        )
        self.copies = AsyncCopies(self.log, strict, self._thread)
        self.tensor_cores = TensorCores(self.cuda, self.log, self.arithmetic, self._now)
        own = self.copies.intrinsics | self.tensor_cores.intrinsics
        self.intrinsics = {emulation_of(one): does for one, does in own.items()}
        self.together = False  # whether threads meet at an intrinsic, whatever the kernel calls it
        copier = self._copier()
        self.body = copier.copy(function)
        self.codes: tuple[CodeType, ...] = tuple(copier.codes())
        self.sites = self.reports.sites = Sites(self.codes)
        used = copier.used.union(*map(names_used, self.codes))
        self.waits = bool(used & BLOCKING) or self.together
        counted = self.arithmetic.counted if self.arithmetic else lambda number: number
        self.arguments = as_seen(self.body, arguments, self.memory, counted)
        self.race = Race()
        self.thread, self.block, self.block_number = 0, (0, 0, 0), 0
        self.first = self.phase = self.epoch = 0
        self.epochs = [0] * self.block_size

    def _copier(self) -> Copier:
        """Makes the kernel's body, with as much recorded as this launch needs."""
        if self.paths is None:
            return Copier(self.cuda, self._meaning, BUILTINS, emulation=self._emulation)
        builtins: dict[str, Any] = {**BUILTINS, "range": self.paths.range}
        if self.arithmetic is not None:
            builtins["float"] = self.arithmetic.cast(BUILTINS["float"])
            self.cuda.fma = self.arithmetic.fma
        paths = self.paths
        return Copier(
            self.cuda, self._meaning, builtins, paths.call, self._emulation, paths.endless
        )

    def _emulation(self, value: object) -> Callable[..., Any] | None:
        """What an intrinsic does in this launch; None for anything else, and for a device function:
        this simulator runs the function itself, though others need its emulation."""
        emulation = None if hasattr(value, "py_func") else emulation_of(value)
        if emulation is None:
            return None
        found = self.intrinsics.get(emulation, emulation)
        cores = self.tensor_cores
        cores.used = cores.used or found == cores.start
        self.together = self.together or found in (cores.mma, cores.start)
        return found

    def run(self) -> None:
        """Run it all; raises ``SimulationError`` if there are findings, else what the kernel
        raised. What was seen before an exception counts too."""
        try:
            self._run()
        finally:  # keep no array alive: what is left of a launch refers to itself in many ways
            self.arguments = ()
            self.cuda.shared.let_go()
            self.memory.let_go()
            self.copies.let_go()
            self.tensor_cores.let_go()

    def _run(self) -> None:
        error: Exception | None = None
        where = ""
        if self.arithmetic is not None:
            self.arithmetic.watch(self.codes)
        try:
            self._run_blocks()
        except Stop:
            pass
        except (WrapsAround, ZeroDivisionError) as stopped:
            kind = "wraps around" if isinstance(stopped, WrapsAround) else "division by zero"
            self._add(kind, str(stopped), self._site(stopped), self.thread)
        except NotSimulated as unknown:
            raise NotSimulated(f"{unknown}, {self._where(unknown)}") from None
        except Exception as raised:
            error, where = raised, self._where(raised)
            if raised.args[:1] == (errno.ERANGE,):
                what = "a power beyond the largest float is not simulated: write math.pow"
                error = NotSimulated(f"{what}, {where}")
        self._look_at_the_rest()
        if error is not None:
            thread = self.reports.thread(self.thread)
            error.add_note(f"in {self.kernel}, block {self.block}, thread {thread}, {where}")
        elif self.recorder is not None and self.arithmetic is not None:
            self.recorder.end(self, self.arithmetic.operations)
        try:
            self.reports.raise_any()
        except SimulationError as found:
            raise found from error
        if error is not None:
            raise error

    def _run_blocks(self) -> None:
        cuda, log = self.cuda, self.log
        thread_indices = [
            coordinates_of(number, self.block_shape) for number in range(self.block_size)
        ]
        enter = self._enterer()
        for number in range(math.prod(self.grid)):
            self.block_number = number
            self.block = coordinates_of(self.block_number, self.grid)
            cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z = self.block
            cuda.shared.new_block()
            self.copies.new_block()
            self.tensor_cores.new_block()
            self.first = self.block_number * self.block_size
            self.phase += 1
            if self.paths is not None:
                self.paths.new_block()
            if self.waits:
                complain = self._add if self.strict else None
                Block(
                    self.body, self.arguments, thread_indices, enter, self._barrier,
                    self._warp_barrier, complain,
                ).run()  # fmt: skip
            else:
                body, arguments = self.body, self.arguments
                for number, thread_index in enumerate(thread_indices):
                    enter(number, thread_index)
                    body(*arguments)
            if log is not None and len(log.addresses) > LONG:
                self._look(whole=True)

    # What happens while it runs.

    def _enterer(self) -> Callable[[int, Coordinates], None]:
        """What is done before each switch to a thread: often, so with everything at hand."""
        cuda, index, epochs, paths = self.cuda, self.cuda.threadIdx, self.epochs, self.paths
        addresses = None if self.log is None else self.log.addresses
        mark = None if self.log is None else self.log.marks.extend

        def enter(number: int, thread_index: Coordinates) -> None:
            index.x, index.y, index.z = thread_index
            cuda.laneid = number & 31
            self.thread = number
            if mark is not None and addresses is not None:
                mark((len(addresses), self.first + number, self.phase, epochs[number]))
                if paths is not None:
                    paths.enter(number)

        return enter

    def _barrier(self, threads: int, site: int) -> None:
        self.phase += 1
        if self.counts is not None:
            self.counts.barriers += threads
        if self.recorder is not None:
            self.recorder.barrier(site, threads)
        elif self.log is not None and len(self.log.addresses) > LONG:
            self._look(whole=False)

    def _warp_barrier(self, threads: list[int], whole: bool) -> None:
        if whole:
            self.epoch += 1
            for number in threads:
                self.epochs[number] = self.epoch
        elif self.log is not None:
            self.race.warp_barriers.append(
                (self.log.position, {self.first + number for number in threads})
            )

    def _fence(self, far: bool) -> None:
        if self.log is not None:
            block, warp = self.block_number, self.block_number * WARP + self.thread // WARP
            epoch, position = self.epochs[self.thread], self.log.position - 0.5
            self.race.fences.append(
                Fence(self._thread(), block, warp, self.phase, epoch, position, far)
            )

    def _thread(self) -> int:
        """The number in the launch of the one that runs."""
        return self.first + self.thread

    def _now(self) -> Now:
        position = 0 if self.log is None else self.log.position
        return Now(self._thread(), self.thread, position, self.phase)

    # What it did to memory.

    def _look(self, whole: bool) -> None:
        """Count and check what the log holds, and empty it. It is ``whole`` if the last block has
        ended; else that has only come to a barrier."""
        assert self.log is not None
        if self.paths is not None and self.log.addresses:
            requests = requests_of(
                self.log, self.sites,
                None if self.recorder is None else self.recorder.loads_of,
            )  # fmt: skip
            if self.counts is not None:
                tally(requests, self.counts)
            if self.recorder is not None:
                self.recorder.look(self, requests)
        if self.strict:
            for look in self.copies.look, self.tensor_cores.look, self.race.analyse:
                for conflict in look(self.log, whole):
                    self.reports.conflict(conflict, self.log)
        self.log.clear()

    def _look_at_the_rest(self) -> None:
        """Look at the rest, and at what blocks did to each other."""
        if self.log is not None:
            self._look(whole=True)
            if self.strict:
                for conflict in self.race.finish():
                    self.reports.conflict(conflict, self.log)

    # Findings that show at once.

    def report(
        self, kind: str, what: str, site: int, array: Any, index: tuple[int, ...] | None
    ) -> None:
        """For arrays: note a finding of the thread that runs now, and end the launch if it must."""
        self._add(kind, what, site, self.thread, None, array.name, index, tuple(array.shape))
        if kind in FATAL:
            raise Stop

    def _add(self, kind: str, what: str, site: int, thread: int, *more: Any) -> None:
        self.reports.add(kind, what, site, self.block, thread, *more)

    def _where(self, error: BaseException) -> str:
        file, line = self.sites.line(self._site(error))
        return f"{file}:{line}"

    def _site(self, error: BaseException) -> int:
        """The innermost instruction of the kernel that an exception came through."""
        found, trace = 0, error.__traceback__
        while trace is not None:
            if self.sites.knows(trace.tb_frame.f_code):
                found = id(trace.tb_frame.f_code) + trace.tb_lasti
            trace = trace.tb_next
        return found

    # Globals.

    def _meaning(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):  # a constant of the kernel's, which is compiled into it
            constant = value.copy()
            constant.flags.writeable = False
            return checked(constant, "a constant array", 0, Memory(None, self.report))
        meant = meaning(value)
        if self.arithmetic is None or not callable(meant):
            return meant
        if getattr(meant, "dtype", None) is None:
            return self.arithmetic.function(meant)
        return self.arithmetic.cast(meant) if meant.dtype.kind == "f" else meant
