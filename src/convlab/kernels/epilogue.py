"""What a thread does with its sums, from s12 on: it adds the bias, and writes them or adds them to
what is there.

Where four outputs that lie together are one store, a thread's windows are neighbours. Where they
are stored one by one, windows are dealt among lanes of a warp (:mod:`window_fetch`), in s12 among
eight: their stores touch eight neighbours, where they would touch four sectors of memory and write
a quarter of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, uint64

from convlab.device import gpu_only, store4
from convlab.kernels.unrolled_product import WARP_COLUMNS, WARP_ROWS
from convlab.problem import ConvProblem
from convlab.stage import Tile
from convlab.stages.s08_vectorized import RUN

INFINITY = np.float32(np.inf)


def lanes_of(problem: ConvProblem, tile: Tile, splits: int) -> int:
    """Among how many lanes s12 deals windows: a warp's along N, where threads are by warps."""
    by_warps = tile.rows % WARP_ROWS == tile.columns % WARP_COLUMNS == 0
    by_fours = splits == 1 and problem.H_o * problem.W_o % RUN == 0
    return WARP_COLUMNS if by_warps and not by_fours else 1


def make_row_of(tile: Tile) -> Any:
    """``row_of(i)``: how far s12's channel i of a thread is from its first one."""
    ROWS = tile.rows

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(i):
        return i // RUN * RUN * ROWS + i % RUN

    return row_of


def make_finish(relu: bool) -> Any:
    """A sum with its bias; with ``relu``, what is negative becomes zero. NaN stays, as in
    PyTorch."""

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def finish(value, b):
        value += b
        return float32(0) if relu and value < float32(0) else value

    return finish


def make_write(
    problem: ConvProblem, tile: Tile, relu: bool, row_of: Any, COLUMNS: int, LANES: int
) -> Any:
    """``write(R_O, bias, output, m0, n0)``: a thread's outputs, from its first channel and window
    on. Channel i is ``row_of(i)`` further; runs of four windows are ``4 * COLUMNS`` apart, the
    windows of a run ``LANES``. Tells whether there is a sum among them that is not finite.

    Outputs stored one by one go channel after channel: what eight lanes leave of a sector of
    memory, their next store writes. Places are unsigned, so that nobody looks for numbers below
    zero, to be counted from the end."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T = tile.M_T, tile.N_T
    WHOLE_RUNS = PIXELS % RUN == 0  # no run of four crosses into the next image
    WHOLE_ROWS, WHOLE_COLUMNS = M % tile.M_B == 0, N % tile.N_B == 0
    STEP = RUN if WHOLE_RUNS else 1
    finish = make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def write(R_O, bias, output, m0, n0):
        broken = False
        first = cuda.local.array(RUN, uint64)
        for j in range(0, N_T, RUN):
            if not WHOLE_COLUMNS and n0 + j * COLUMNS >= N:
                continue
            for c in range(0, RUN, STEP):
                n = n0 + j * COLUMNS + c * LANES
                first[c] = uint64((n // PIXELS * M + m0) * PIXELS + n % PIXELS)
            for i in range(M_T):
                row = row_of(i)
                if WHOLE_ROWS or m0 + row < M:
                    b = bias[m0 + row]
                    for c in range(0, RUN, STEP):
                        if WHOLE_COLUMNS or WHOLE_RUNS or n0 + j * COLUMNS + c * LANES < N:
                            at = first[c] + uint64(row * PIXELS)
                            if WHOLE_RUNS:
                                x, y = finish(R_O[i, j], b), finish(R_O[i, j + 1], b)
                                z, w = finish(R_O[i, j + 2], b), finish(R_O[i, j + 3], b)
                                store4(output, at, (x, y, z, w))
                            else:
                                output[at] = finish(R_O[i, j + c], b)
                            for e in range(c, c + STEP):
                                broken |= not abs(R_O[i, j + e]) < INFINITY
        return broken

    return write


def make_add(problem: ConvProblem, tile: Tile, row_of: Any, LANES: int) -> Any:
    """``write`` of a block that has only a part of each sum: it adds it to what is there. The first
    part has the bias."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T, COLUMNS = tile.M_T, tile.N_T, tile.columns
    WHOLE_ROWS, WHOLE_COLUMNS = M % tile.M_B == 0, N % tile.N_B == 0

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def add(R_O, bias, output, m0, n0):
        for j in range(0, N_T, RUN):
            for c in range(RUN):
                n = n0 + j * COLUMNS + c * LANES
                if WHOLE_COLUMNS or n < N:
                    i_n, pixel = n // PIXELS, n % PIXELS
                    for i in range(M_T):
                        m = m0 + row_of(i)
                        if WHOLE_ROWS or m < M:
                            at, b = (i_n * M + m) * PIXELS + pixel, bias[m]
                            b = b if cuda.blockIdx.z == 0 else float32(0)
                            cuda.atomic.add(output, at, R_O[i, j + c] + b)

    return add
