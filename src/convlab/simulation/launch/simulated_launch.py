"""One launch of the strict simulator: threads are run, accesses checked, findings collected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from convlab.device import emulation_of
from convlab.simulation.language.compilations import NumbaKernel
from convlab.simulation.launch.analysis import LogAnalysis
from convlab.simulation.launch.failures import Failure, Failures
from convlab.simulation.launch.launch_rules import LaunchRules
from convlab.simulation.launch.recorder import RecordedLaunch, Recorder
from convlab.simulation.launch.running_blocks import OnBlock, RunningBlocks
from convlab.simulation.launch.simulated_gpu import SimulatedGpu
from convlab.simulation.launch.translation import Translator, checked_kernel, has_debug
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.touched import Touched
from convlab.simulation.memory.unwritten_arrays import UnwrittenArrays
from convlab.simulation.numbers.counted_operations import Arithmetic
from convlab.simulation.recording.access_log import AccessLog, LaunchClock
from convlab.simulation.recording.loops import Loops, Paths
from convlab.simulation.rules.coordinates import Coordinates
from convlab.simulation.rules.findings import NotSimulated, SimulationError, Stop
from convlab.simulation.rules.launch_checks import argument_names, check_arguments, check_shape
from convlab.simulation.rules.memory_traffic import Counts
from convlab.simulation.rules.orders import USUAL, Order
from convlab.simulation.rules.reports import Reports
from convlab.simulation.rules.unwritten import Masks
from convlab.simulation.threads.block_memory import NoRoom


class SimulatedLaunch:
    """One launch, in an order of its blocks and threads.

    ``loops`` limits the iterations of all loops. ``counts`` are counted up, ``recorder`` and
    ``on_block`` hear of the launch, ``touched`` collects the bytes that it reads and writes. If
    ``typed``, registers have Numba's types; ``untyped`` says why they have not. If ``blocks`` are
    given, by their numbers, only those run. ``unwritten`` are device arrays, not all written.
    """

    def __init__(
        self,
        kernel: object,
        *,
        grid: Coordinates,
        block: Coordinates,
        arguments: tuple[object, ...],
        shared_bytes: int = 0,
        strict: bool = True,
        counts: Counts | None = None,
        recorder: Recorder | None = None,
        loops: Loops | None = None,
        typed: bool = False,
        order: Order = USUAL,
        on_block: OnBlock | None = None,
        touched: Touched | None = None,
        blocks: Sequence[int] | None = None,
        unwritten: UnwrittenArrays | None = None,
    ) -> None:
        check_shape(grid, block)
        compiled = checked_kernel(kernel)
        check_arguments(compiled.py_func, arguments)
        self.kernel: str = compiled.py_func.__name__
        self.strict, self._recorder, self.order = strict, recorder, order
        self.typed = typed  # as asked for; ``untyped`` says why it is not so
        by_request = counts is not None or recorder is not None
        block_size = math.prod(block)
        is_logged = strict or by_request or touched is not None
        self.log = AccessLog(block_size) if is_logged else None
        self.clock = clock = LaunchClock(self.log, block_size)
        self.reports = Reports(self.kernel, grid, block, strict, clock)
        self.notes: list[str] = []  # possible mistakes, which are not findings
        self.order_notes: list[str] = []  # results that a seeded order changes
        self.arithmetic = Arithmetic() if recorder is not None else None
        paths = Paths(self.log, loops) if self.log is not None and by_request else None

        numbers = range(math.prod(grid)) if blocks is None else blocks
        self._gpu = SimulatedGpu(
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
            block_count=len(numbers),
            late=order.late,
            clock=clock,
            reports=self.reports,
            arithmetic=self.arithmetic,
            loops=paths or loops,
            unwritten=unwritten,
            options=getattr(kernel, "targetoptions", {}),
            strict=strict,
            on_fence=self._fence,
        )
        self._translate(compiled, arguments, paths or loops)
        rules = LaunchRules(translation=self.translation, gpu=self._gpu, clock=clock, order=order)
        # Only now, because a history needs the sites of a kernel that is translated for this GPU.
        self._gpu.cuda.atomic.history = rules.history
        self.history, self.shuffles = rules.history, rules.shuffles
        self.synchronization = rules.synchronization
        self._recorded: RecordedLaunch | None = None
        self._analysis: LogAnalysis | None = None
        if self.log is not None:
            self._recorded = RecordedLaunch(
                kernel=self.kernel,
                grid=grid,
                block_shape=block,
                log=self.log,
                sites=self.sites,
                codes=self.translation.codes,
            )
            self._analysis = LogAnalysis(
                launch=self._recorded,
                gpu=self._gpu,
                rules=rules,
                reports=self.reports if strict else None,
                counts=counts,
                recorder=recorder,
                touched=touched,
            )
        self._failures = Failures(self.translation, self.reports, clock, loops, has_debug(kernel))
        self._blocks = RunningBlocks(
            translation=self.translation,
            gpu=self._gpu,
            grid=grid,
            block_shape=block,
            clock=clock,
            rules=rules,
            analysis=self._analysis,
            paths=paths,
            reports=self.reports if strict else None,
            counts=counts,
            recorder=recorder,
            order=order,
            on_block=on_block,
            blocks=numbers,
        )

    def _translate(
        self, kernel: NumbaKernel, arguments: tuple[object, ...], loops: Loops | None
    ) -> None:
        """Translate the kernel, place the arguments in memory, and tell the other parts what the
        kernel's text says."""
        own = self._gpu.intrinsics
        translator = Translator(
            kernel=kernel,
            cuda=self._gpu.cuda,
            memory=self._gpu.memory,
            report=self.reports.of_array,
            intrinsics={e: does for one, does in own.items() if (e := emulation_of(one))},
            arithmetic=self.arithmetic,
            loops=loops,
            endless=self._gpu.scheduler.endless,
        )
        self.translation = translation = translator.translate(arguments, self.typed)
        self.sites = self.reports.sites = translation.sites
        self.reports.counter_at = translation.counter_at
        self.reports.syncs_warps = translation.syncs_warps
        self.reports.syncs_grid = translation.syncs_grid
        self._gpu.note_used(translation)
        names = argument_names(translation.body, len(arguments))
        self._gpu.memory.place(arguments, names)

    @property
    def untyped(self) -> str:
        """The reason why registers do not have Numba's types, if they should; else empty."""
        return self.translation.untyped

    @property
    def left_unwritten(self) -> Masks:
        """The bytes of the ``unwritten`` arrays that the launch has not written either."""
        return self._gpu.memory.unwritten.masks

    def global_arrays(self) -> Iterator[CheckedArray]:
        """Give the arrays among the arguments."""
        return self._gpu.memory.arrays()

    def run(self) -> None:
        """Run the whole launch; raises ``SimulationError`` if there are findings, else what the
        kernel raised. Findings before an exception count too."""
        try:
            self._run()
        finally:
            self._gpu.let_go()

    def _run(self) -> None:
        if self.arithmetic is not None:
            self.arithmetic.codes.update(map(id, self.translation.codes))
        ended, failure = self._run_blocks()
        if self._analysis is not None:
            self._analysis.finish()
        error = None if failure is None else failure.error
        if failure is not None:
            self._failures.describe(failure)
        elif self._recorder is not None and self.arithmetic is not None:
            assert self._recorded is not None
            self._recorder.end(self._recorded, self.arithmetic.operations)
        try:
            self.reports.raise_any(ended)
        except SimulationError as found:
            for note in getattr(error, "__notes__", ()) if isinstance(error, NoRoom) else ():
                found.add_note(note)
            raise found from error
        if error is not None:
            raise error

    def _run_blocks(self) -> tuple[bool, Failure | None]:
        """Run all blocks. Returns whether the launch ended before its end, and the exception that
        ended it unless that is a finding."""
        try:
            self._gpu.scheduler.run(self._blocks)
        except Stop:
            return True, None
        except KeyboardInterrupt as interrupt:
            if self.log is not None:
                self.log.forget_half_an_entry()
            said = [f"{self.kernel} was interrupted in {self._failures.where(interrupt)}"]
            interrupt.add_note("; ".join([*said, *map(str, self._gpu.scheduler.waits())]))
            raise
        except NotSimulated as unknown:
            raise NotSimulated(f"{unknown}, {self._failures.where(unknown)}") from None
        except Exception as raised:
            return True, self._failures.note(raised)
        return False, None

    def _fence(self, far: bool) -> None:
        self._blocks.fence(far)
