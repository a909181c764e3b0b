"""The blocks of a launch while they run: begins each, notes its barriers, and looks at the log
between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from convlab.simulation.launch.analysis import LogAnalysis
from convlab.simulation.launch.launch_rules import LaunchRules
from convlab.simulation.launch.recorder import Recorder
from convlab.simulation.launch.simulated_gpu import SimulatedGpu
from convlab.simulation.launch.translation import Translation
from convlab.simulation.recording.access_log import LaunchClock
from convlab.simulation.recording.loops import Paths
from convlab.simulation.rules.coordinates import Coordinates, coordinates_of
from convlab.simulation.rules.happens_before import BLOCK_FENCE, FENCE
from convlab.simulation.rules.memory_traffic import Counts
from convlab.simulation.rules.orders import Order
from convlab.simulation.rules.reports import Reports
from convlab.simulation.threads.greenlets import Block, SavedState
from convlab.simulation.threads.waiting import ThreadRunner

OnBlock = Callable[[str, int, int], None]  # name of the kernel, number of the block, blocks in all


class RunningBlocks:
    """Makes the blocks of a launch and follows them. ``reports`` is None without strict checks,
    ``analysis`` None without a log."""

    def __init__(
        self,
        translation: Translation,
        gpu: SimulatedGpu,
        grid: Coordinates,
        block_shape: Coordinates,
        clock: LaunchClock,
        rules: LaunchRules,
        analysis: LogAnalysis | None,
        paths: Paths | None,
        reports: Reports | None,
        counts: Counts | None,
        recorder: Recorder | None,
        order: Order,
        on_block: OnBlock | None,
        blocks: Sequence[int],
    ) -> None:
        self._translation, self._gpu = translation, gpu
        self._grid, self._block_shape = grid, block_shape
        self._clock, self._cuda, self._scheduler = clock, gpu.cuda, gpu.scheduler
        self._history, self._shuffles = rules.history, rules.shuffles
        self._synchronization = rules.synchronization
        self._analysis, self._paths = analysis, paths
        self._reports, self._counts, self._recorder = reports, counts, recorder
        self._order, self._on_block, self._numbers = order, on_block, blocks
        self._phases = self._epoch = 0  # barriers so far, of all blocks and of all warps

    def begin(self) -> Iterator[Block]:
        """Give the blocks one after the other, each ready to run."""
        block_size = self._clock.block_size
        indices = [coordinates_of(number, self._block_shape) for number in range(block_size)]
        enter = self._enterer()
        idle: list[ThreadRunner] = []
        for turn in self._order.blocks(len(self._numbers)):
            number = self._numbers[turn]
            self._tell(number)
            block = Block(
                body=self._translation.body,
                arguments=self._gpu.memory.arguments,
                indices=indices,
                enter=enter,
                on_barrier=self._barrier,
                on_warp_barrier=self._warp_barrier,
                complain=None if self._reports is None else self._reports.add,
                shuffles=self._shuffles,
                number=number,
                order=self._order,
                waits_in_calls=self._translation.waits_in_calls,
                idle=idle,
            )
            self._cuda.shared.new_block()
            self._phases += 1
            self._enter_block(number, self._phases)
            yield block

    def _tell(self, number: int) -> None:
        """Say that a block begins, or has come to a barrier."""
        if self._on_block is not None:
            self._on_block(self._translation.name, number, math.prod(self._grid))

    def leave(self, block: Block) -> None:
        """Save the state of a block that waits for others. Look at the log if it has ended."""
        if block.waiting:
            block.saved = SavedState(self._clock.phase, self._cuda.shared.contents())
            return
        self._gpu.end_block()
        self._history.end_block()
        if self._analysis is not None and not self._scheduler.waiting and self._analysis.is_due:
            self._analysis.look(whole=True)

    def resume(self, block: Block) -> None:
        """Restore the state of a block that has waited for others."""
        assert block.saved is not None
        self._enter_block(block.number, block.saved.phase)
        self._cuda.shared.restore(block.saved.shared)

    def fence(self, far: bool) -> None:
        """Note a fence of the running thread; ``far`` if it is the whole GPU's."""
        self._history.fence()
        if self._reports is not None:
            kind = FENCE if far else BLOCK_FENCE
            self._synchronization.note_fence(self._clock.access(kind))

    def _enter_block(self, number: int, phase: int) -> None:
        index, clock = self._cuda.blockIdx, self._clock
        index.x, index.y, index.z = coordinates_of(number, self._grid)
        clock.block_number, clock.first, clock.phase = number, number * clock.block_size, phase

    def _enterer(self) -> Callable[[int, Coordinates], None]:
        """Return the function that is called before each switch to a thread: so often that all it
        needs is at hand."""
        cuda, index, clock, paths = self._cuda, self._cuda.threadIdx, self._clock, self._paths
        epochs, log = clock.epochs, clock.log
        addresses = None if log is None else log.addresses
        mark = None if log is None else log.marks.extend

        def enter(number: int, thread_index: Coordinates) -> None:
            index.x, index.y, index.z = thread_index
            cuda.laneid = number & 31
            clock.thread = number
            if mark is not None and addresses is not None:
                thread = clock.first + number
                mark((len(addresses), thread, clock.phase, epochs[thread]))
                if paths is not None:
                    paths.enter(thread)

        return enter

    def _barrier(self, threads: int, site: int) -> None:
        self._gpu.hopper.meet(range(self._clock.block_size))
        self._phases += 1
        self._clock.phase = self._phases
        self._scheduler.barrier(site)
        self._tell(self._clock.block_number)
        if self._counts is not None:
            self._counts.barriers += threads
        if self._recorder is not None:
            self._recorder.barrier(site, threads)
        elif self._analysis is not None and self._analysis.is_due and self._scheduler.alone:
            self._analysis.look(whole=False)

    def _warp_barrier(self, threads: list[int], whole: bool) -> None:
        first = self._clock.first
        self._gpu.hopper.meet(threads)
        if whole:
            self._epoch += 1
            for number in threads:
                self._clock.epochs[first + number] = self._epoch
        elif self._reports is not None:
            met = {first + number for number in threads}
            self._synchronization.note_warp_barrier(self._clock.position, met)
