"""The epilogue from s11e on: a thread adds the bias to its sums, and stores them or, with
split-K, adds them to what is there. Where tensor cores multiply, the caller recomputes sums
that are not finite (:mod:`split_tf32`).

Where the outputs of an image are a multiple of four, a thread's windows are neighbours and four
outputs are one 128-bit store. Elsewhere, and with split-K, stores are scalar, and windows are
interleaved across lanes of a warp (:mod:`window_copies`): the lanes' stores touch neighbours, where
they would touch four sectors of memory and write a quarter of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int64, uint64

from convlab.device import FLOAT4, gpu_only, store4
from convlab.problem import ConvProblem
from convlab.stage import Flat, Launch, Tile, blocks_for

INFINITY = np.float32(np.inf)
CLEARING = 256  # threads of a block that clears
FLOAT4_STEP = 4  # with mma, what COLUMNS is without: a lane's next float4 is 4 float4s on


def interleaved_lanes(problem: ConvProblem, lanes: int) -> int:
    """Across how many lanes windows are interleaved: a warp's along N, where stores are scalar."""
    return 1 if problem.H_o * problem.W_o % FLOAT4 == 0 else lanes


def make_finish(relu: bool) -> Any:
    """``finish(value, b)``: a sum with its bias; ``relu`` replaces negative numbers by zero and
    keeps NaN, as PyTorch does."""

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def finish(value, b):
        value += b
        return float32(0) if relu and value < float32(0) else value

    return finish


def make_write(
    problem: ConvProblem, tile: Tile, relu: bool, row_of: Any, COLUMNS: int, LANES: int
) -> Any:
    """``write(R_O, bias, output, m0, n0)``: a thread's outputs, from its first channel and window
    on. Channel i is ``row_of(i)`` further; float4s lie ``4 * COLUMNS`` windows
    apart; within a float4, windows are ``LANES`` apart. Returns whether some sum is not finite.

    Scalar stores go channel after channel: the next store of the same lanes writes the rest of
    their sectors. Indices are unsigned, which removes Numba's wraparound for negative indices."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T = tile.M_T, tile.N_T
    ALIGNED = PIXELS % FLOAT4 == 0  # no float4 crosses into the next image
    WHOLE_ROWS, WHOLE_COLUMNS = M % tile.M_B == 0, N % tile.N_B == 0
    STEP = FLOAT4 if ALIGNED else 1
    finish = make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def write(R_O, bias, output, m0, n0):
        broken = False
        first = cuda.local.array(FLOAT4, uint64)
        for j in range(0, N_T, FLOAT4):
            if not WHOLE_COLUMNS and n0 + j * COLUMNS >= N:
                continue
            for c in range(0, FLOAT4, STEP):
                n = n0 + j * COLUMNS + c * LANES
                first[c] = uint64((n // PIXELS * M + m0) * PIXELS + n % PIXELS)
            for i in range(M_T):
                row = row_of(i)
                if WHOLE_ROWS or m0 + row < M:
                    b = bias[m0 + row]
                    for c in range(0, FLOAT4, STEP):
                        if WHOLE_COLUMNS or ALIGNED or n0 + j * COLUMNS + c * LANES < N:
                            at = first[c] + uint64(row * PIXELS)
                            if ALIGNED:
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
    """``write`` of a split-K block, which has only a part of each sum: atomic additions. Only
    ``blockIdx.z == 0`` adds the bias."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T, COLUMNS = tile.M_T, tile.N_T, tile.columns
    WHOLE_ROWS, WHOLE_COLUMNS = M % tile.M_B == 0, N % tile.N_B == 0

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def add(R_O, bias, output, m0, n0):
        for j in range(0, N_T, FLOAT4):
            for c in range(FLOAT4):
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


def clear_launch(problem: ConvProblem) -> Launch:
    """Makes ``output`` zeros, for split-K's additions."""
    elements = problem.M * problem.N

    @cuda.jit(**gpu_only(launch_bounds=CLEARING))
    def clear(output):
        at = int64(cuda.blockIdx.x) * CLEARING + cuda.threadIdx.x
        if at < elements:
            output[at] = float32(0)

    return Launch(clear, (blocks_for(elements, CLEARING),), (CLEARING,), (Flat("output"),))
