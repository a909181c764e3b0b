"""One launch on the compiled engine: from its arguments to its suspects."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from convlab.simulation.compiled import blocks as _blocks  # noqa: F401  its code is called
from convlab.simulation.compiled import context as words
from convlab.simulation.compiled.array_names import LOCAL_LIMIT
from convlab.simulation.compiled.cells import (
    CELL,
    CONFIRMED,
    GUESS_WORDS,
    IN_CONFLICT,
    MOST_GUESSES,
    POLLED,
    SEEN,
    TOLD_WORDS,
)
from convlab.simulation.compiled.context import LAUNCH, WORD
from convlab.simulation.compiled.kernels import KernelMachineCode
from convlab.simulation.compiled.memory import ArgumentWords
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.compiled.runtime import callable_from_python
from convlab.simulation.compiled.stacks import Stacks
from convlab.simulation.compiled.suspects import ROW, ROWS, Suspect, suspects_in
from convlab.simulation.rules.coordinates import Coordinates
from convlab.simulation.rules.launch_checks import BLOCK_BYTES
from convlab.simulation.threads.block_memory import STATIC_BYTES

NO_LIMIT = 1 << 62
FEW_BLOCKS = 16  # that run again together
TURN_SECONDS = 0.1  # between two looks at the time and at Ctrl-C


@dataclass
class Result:
    """The result of a run: its suspects, and whether it has come to its end."""

    suspects: list[Suspect]
    whole: bool
    beyond_warp: bool  # whether a shuffle has read from beyond the warp
    unchanged: bool  # whether an atomic has left an element as it was
    guesses_wrong: bool  # whether plain reads that no atomic checks are in conflict with atomics
    first_phases: np.ndarray  # by block; 0 for one that has not begun

    def reasons(self) -> str:
        """Return why blocks are suspect, in words."""
        return ", ".join(sorted({one.words for one in self.suspects}))

    def _block_in(self, phase: int) -> int:
        """Return the block that ran in a phase: the last of those that had begun."""
        begun = np.where(self.first_phases <= phase, self.first_phases, 0)
        return int(begun.argmax())

    def blocks(self) -> list[int]:
        """Return the blocks that another engine must look at: those that are suspect, and those
        that have done what makes them so."""
        found = {one.block for one in self.suspects}
        if max(found) < FEW_BLOCKS:  # all up to the last, so that the first of several is named
            return [*range(max(found) + 1)]
        for one in self.suspects:
            if one.other_phase:
                found.add(self._block_in(one.other_phase))
        return sorted(found)


class CompiledLaunch:
    """A launch whose kernel is machine code. ``on_block`` hears how far it is."""

    def __init__(
        self,
        kernel: KernelMachineCode,
        arguments: ArgumentWords,
        grid: Coordinates,
        block: Coordinates,
        shared_bytes: int,
        steps: int | None,
        on_block: Callable[[int, int], None] | None,
    ) -> None:
        self._kernel, self._arguments = kernel, arguments
        self._grid, self._block, self._dynamic = grid, block, shared_bytes
        self._steps, self._on_block = steps, on_block
        threads = math.prod(block)
        self._stacks = Stacks(threads)
        # Zeros, so that no cell holds the serial number of an array of another launch.
        self._local = np.zeros((threads, LOCAL_LIMIT), np.uint8)
        self._shared = np.full(BLOCK_BYTES, 0xFF, np.uint8)  # NaN of floats: nobody wrote them
        self._cells = np.zeros((BLOCK_BYTES, CELL // WORD), np.int64)
        self._offsets = np.zeros(kernel.site_count, np.int64)
        self._first_phases = np.zeros(math.prod(grid), np.int64)
        self._told = np.zeros((math.prod(grid), TOLD_WORDS), np.int64)
        self._guesses = np.zeros((MOST_GUESSES, GUESS_WORDS), np.int64)
        self._table = np.zeros((ROWS, ROW), np.int64)

    def run(self, beyond: int = 0, backwards: bool = False) -> Result:
        """Run all blocks, or those up to the first that cannot go on. With ``beyond`` 1 or -1 a
        shuffle from beyond the warp gives a larger or a smaller number than the lane's own. If
        ``backwards``, blocks and threads run from the last to the first."""
        self._prepare()
        LAUNCH[words.BEYOND], LAUNCH[words.BACKWARDS] = beyond, backwards
        run = callable_from_python("run_blocks", 6)
        records, stacks = self._stacks.records, self._stacks.memory
        threads, blocks = len(records), math.prod(self._grid)
        done, turn, whole = 0, 1, True
        while done < blocks and whole:
            begin, last = perf_counter(), min(done + turn, blocks)
            try:
                after = run(
                    done, last, threads, records.ctypes.data, stacks.ctypes.data, self._stacks.begin
                )
            except KeyboardInterrupt as interrupt:
                interrupt.add_note(f"{self._kernel.name} was interrupted after {done} blocks")
                raise
            if self._stacks.overflown:
                raise NeedsGreenlets("a thread needs a larger stack")
            whole, done = not LAUNCH[words.ENDED], after
            turn = max(1, int(turn * min(10.0, TURN_SECONDS / (perf_counter() - begin + 1e-9))))
            if self._on_block is not None:
                self._on_block(done, blocks)
        suspects = [*suspects_in(self._table, int(LAUNCH[words.SUSPECTS]))]
        return Result(
            suspects=suspects,
            whole=whole,
            beyond_warp=bool(LAUNCH[words.BEYOND_WARP]),
            unchanged=bool(LAUNCH[words.UNCHANGED]),
            guesses_wrong=self._guesses_wrong(),
            first_phases=self._first_phases,
        )

    def _guesses_wrong(self) -> bool:
        """Return whether reads are in conflict with atomics, and perhaps no guesses. If atomics
        have changed global memory after reads, that may have been any read of global memory."""
        facts = self._guesses[:, 0]
        conflicts = IN_CONFLICT | (SEEN if LAUNCH[words.CONFLICTS] else 0)
        facts = facts[facts & conflicts != 0]
        return bool((facts & (CONFIRMED | POLLED) != CONFIRMED).any())

    def _prepare(self) -> None:
        """Set the words of the launch and of its threads."""
        LAUNCH[:] = 0
        for first, sizes in (words.GRID_X, self._grid), (words.SIZE_X, self._block):
            LAUNCH[first : first + 3] = sizes
        LAUNCH[words.BLOCKS] = math.prod(self._grid)
        LAUNCH[words.ENTRY] = self._kernel.entry
        LAUNCH[words.ARGUMENTS] = self._arguments.words.ctypes.data
        LAUNCH[words.SHARED] = self._shared.ctypes.data
        LAUNCH[words.SHARED_END] = -(-self._dynamic // 16) * 16
        limit = LAUNCH[words.SHARED_END] + STATIC_BYTES
        LAUNCH[words.SHARED_LIMIT] = min(limit, len(self._shared))
        LAUNCH[words.DYNAMIC_BYTES] = self._dynamic
        LAUNCH[words.CELLS] = self._cells.ctypes.data
        LAUNCH[words.OFFSETS] = self._offsets.ctypes.data
        LAUNCH[words.FIRST_PHASES] = self._first_phases.ctypes.data
        LAUNCH[words.GUESSES] = self._guesses.ctypes.data
        LAUNCH[words.TOLD] = self._told.ctypes.data
        LAUNCH[words.SUSPECT_TABLE] = self._table.ctypes.data
        LAUNCH[words.STEPS_LEFT] = NO_LIMIT if self._steps is None else self._steps
        records = self._stacks.records
        numbers = np.arange(len(records))
        z, y, x = np.unravel_index(numbers, self._block[::-1])
        records[:, words.THREAD_X : words.THREAD_Z + 1] = np.stack([x, y, z], axis=1)
        records[:, words.LANE] = numbers % 32
        records[:, words.LOCAL] = self._local.ctypes.data + numbers * self._local.strides[0]
