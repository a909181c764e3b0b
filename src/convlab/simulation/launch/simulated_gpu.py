"""The GPU that one launch runs on: memory, the names of ``cuda``, and the units beside the threads.

Those units are the copies that a thread starts and waits for, the tensor cores, and Hopper's copy
engine, warpgroups and barriers in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from greenlet import getcurrent

from convlab.simulation.launch.global_memory import GlobalMemory
from convlab.simulation.launch.translation import Translation
from convlab.simulation.memory.index_checks import Index, IndexChecks
from convlab.simulation.memory.launch_memory import Memory
from convlab.simulation.memory.unwritten_arrays import UnwrittenArrays
from convlab.simulation.numbers.counted_operations import Arithmetic
from convlab.simulation.recording.access_log import LaunchClock
from convlab.simulation.recording.loops import Loops
from convlab.simulation.rules.coordinates import Coordinates
from convlab.simulation.rules.finding_words import DYNAMIC_BYTES
from convlab.simulation.rules.reports import Reports
from convlab.simulation.threads.async_copies import AsyncCopies
from convlab.simulation.threads.hopper import Hopper
from convlab.simulation.threads.scheduler import Scheduler
from convlab.simulation.threads.simulated_cuda import SimulatedCuda
from convlab.simulation.threads.tensor_cores import TensorCores


class SimulatedGpu:
    """The parts of a GPU in one launch, which know each other.

    ``block_count`` is the number of blocks that run. If ``late``, a block begins when those before
    it have had several turns.
    ``unwritten`` are device arrays, not all written. ``options`` are those of the kernel's
    ``@cuda.jit``. ``on_fence`` hears of each fence, and whether it is the whole GPU's.
    """

    def __init__(
        self,
        *,
        grid: Coordinates,
        block: Coordinates,
        shared_bytes: int,
        block_count: int,
        late: bool,
        clock: LaunchClock,
        reports: Reports,
        arithmetic: Arithmetic | None,
        loops: Loops | None,
        unwritten: UnwrittenArrays | None,
        options: Mapping[str, object],
        strict: bool,
        on_fence: Callable[[bool], None],
    ) -> None:
        self._reports = reports
        number = arithmetic.number if arithmetic else None
        memory = Memory(clock.log, self._report_array, number)
        self.memory = GlobalMemory(memory, arithmetic, unwritten)
        self.cuda = SimulatedCuda(
            grid=grid,
            block=block,
            memory=memory,
            dynamic_bytes=shared_bytes,
            hub=getcurrent().switch,
            on_fence=on_fence,
        )
        if arithmetic is not None:
            self.cuda.fma = arithmetic.fma
        self.copies = AsyncCopies(clock, strict)
        self.hopper = Hopper(
            cuda=self.cuda,
            clock=clock,
            reports=reports,
            arithmetic=arithmetic,
            options=options,
            strict=strict,
        )
        self.tensor_cores = TensorCores(self.cuda, clock, arithmetic, self.hopper.clocks.fence)
        self.scheduler = Scheduler(
            clock=clock,
            reports=reports,
            cuda=self.cuda,
            arrays=self.memory.arrays,
            loops=loops,
            block_count=block_count,
            late=late,
        )

    @property
    def intrinsics(self) -> dict[object, Callable[..., object]]:
        """The intrinsics of the units beside the threads: what each does on this GPU."""
        return self.copies.intrinsics | self.tensor_cores.intrinsics | self.hopper.intrinsics

    def note_used(self, translation: Translation) -> None:
        """Tell the units what the kernel's text says of their use."""
        self.scheduler.waits_in_calls = translation.waits_in_calls
        starts = {self.tensor_cores.start, self.tensor_cores.start_one}
        self.tensor_cores.used = not starts.isdisjoint(translation.called)
        self.hopper.note_used(translation.called)

    def end_block(self) -> None:
        """End the block's unfinished work: report copies in flight, note when the others ended, and
        forget them."""
        for unit in self.copies, self.tensor_cores, self.hopper:
            unit.end_block()

    def let_go(self) -> None:
        """End the threads, and keep no array alive: the parts of a launch refer to each other."""
        self.scheduler.let_go()
        self.memory.let_go()
        for part in self.copies, self.tensor_cores, self.cuda.shared:
            vars(part).clear()

    def _report_array(
        self,
        kind: str,
        what: str,
        site: int,
        array: IndexChecks,
        index: Index | None,
        goes_on: bool = False,
        /,
    ) -> None:
        """Note a finding about an array, with the size of dynamic shared memory if it is there."""
        if kind == "out of bounds" and self.cuda.shared.is_dynamic(array):
            given = self.cuda.shared.dynamic_bytes
            what += f": the launch gives {given} {DYNAMIC_BYTES}"
        self._reports.of_array(kind, what, site, array, index, goes_on)
