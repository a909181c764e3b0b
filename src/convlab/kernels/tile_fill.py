"""How a block fetches a tile that it then takes apart the other way: line by line, to be emptied
column by column."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, uint32

from convlab.device import gpu_only, load4
from convlab.stage import blocks_for

RUN = 4  # numbers that one instruction moves
FETCHED = 16  # numbers that a thread asks for before it stores the first


def make_fill(place: Any, LINES: int, COLUMNS: int, BY_FOURS: bool, SIDE: int) -> Any:
    """``fill(source, tile, origin, t)``: a block's threads fetch LINES x COLUMNS elements.

    ``place(origin, line, column)`` says where in ``source`` an element is: whether there is one
    (zero otherwise), and its number; ``origin`` is what it has to know of the block. Lines begin
    COLUMNS + 1 elements apart in ``tile``. ``t`` is one of the block's SIDE * SIDE / 4 threads. A
    warp takes 32 columns of a line at a time, or, by fours, of four lines: eight runs of each,
    which then go to 32 banks, number by number.
    """
    WARPS, PITCH = SIDE // RUN, COLUMNS + 1
    LINES_AT_A_TIME = RUN if BY_FOURS else 1
    NUMBERS = RUN if BY_FOURS else 1  # that a thread fetches at a time
    RUNS = SIDE // NUMBERS  # lanes side by side
    DOWN = blocks_for(LINES, LINES_AT_A_TIME)
    UNITS = DOWN * blocks_for(COLUMNS, SIDE)
    STEPS = blocks_for(UNITS, WARPS)
    ROUNDS = blocks_for(STEPS * NUMBERS, FETCHED)
    AT_ONCE = blocks_for(STEPS, ROUNDS)
    SHAPE = (AT_ONCE, NUMBERS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fill(source, tile, origin, t):
        fetched = cuda.local.array(SHAPE, float32)
        warp, lane = t // SIDE, t % SIDE
        for first in range(0, STEPS, AT_ONCE):
            for f in range(AT_ONCE):
                unit = uint32((first + f) * WARPS + warp)
                line = uint32(unit % DOWN * LINES_AT_A_TIME + lane // RUNS)
                column = uint32(unit // DOWN * SIDE + lane % RUNS * NUMBERS)
                there, at = place(origin, line, column)
                there = there and column < COLUMNS
                if BY_FOURS:
                    run = (float32(0), float32(0), float32(0), float32(0))
                    if there:
                        run = load4(source, at)
                    fetched[f, 0], fetched[f, 1], fetched[f, 2], fetched[f, 3] = run
                else:
                    number = float32(0)
                    if there:
                        number = source[at]
                    fetched[f, 0] = number
            for f in range(AT_ONCE):
                unit = uint32((first + f) * WARPS + warp)
                line = uint32(unit % DOWN * LINES_AT_A_TIME + lane // RUNS)
                column = uint32(unit // DOWN * SIDE + lane % RUNS * NUMBERS)
                if line < LINES and column < COLUMNS:
                    for c in range(NUMBERS):
                        tile[line * PITCH + column + c] = fetched[f, c]

    return fill
