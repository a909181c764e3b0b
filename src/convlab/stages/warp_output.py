"""What a lane does with its sums, where tensor cores have computed them: s13's, and s14's.

A lane has the sums of some channels, for runs of four neighbouring windows each. It adds the bias,
writes them, and asks of each whether it is finite: one that is not is computed again, term by term.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from convlab.device import gpu_only, store4
from convlab.problem import ConvProblem
from convlab.stages.s08_vectorized import RUN
from convlab.stages.tiles import Tile
from convlab.stages.window_fetch import dealing_lanes

INFINITY = np.float32(np.inf)
COLUMNS = 4  # runs of a warp's windows: as many as lie between two of a lane's


def lanes_of(problem: ConvProblem, tile: Tile, lanes: int) -> int:
    """Among how many lanes windows are dealt, as in s12 (:mod:`thread_output`)."""
    by_fours = problem.H_o * problem.W_o % RUN == 0
    return 1 if by_fours else dealing_lanes(tile, lanes)


def make_finish(relu: bool) -> Any:
    """A sum with its bias; with ``relu``, what is negative becomes zero. NaN stays."""

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def finish(value, b):
        value += b
        return float32(0) if relu and value < float32(0) else value

    return finish


def make_write(problem: ConvProblem, tile: Tile, relu: bool, ROWS: int, LANES: int) -> Any:
    """s12's ``write``, of sums which lie where the tensor cores leave them: a lane's channels are
    ``ROWS`` apart, its runs of four windows 16, the windows of a run ``LANES``. Tells whether there
    is a sum among them that is not finite."""
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
                m = m0 + i * ROWS
                if WHOLE_ROWS or m < M:
                    b = bias[m]
                    for c in range(0, RUN, STEP):
                        if WHOLE_COLUMNS or WHOLE_RUNS or n0 + j * COLUMNS + c * LANES < N:
                            at = first[c] + uint64(i * ROWS * PIXELS)
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


def make_mend(
    problem: ConvProblem, tile: Tile, relu: bool, filter_number: Any, ROWS: int, LANES: int
) -> Any:
    """Computes those of a lane's outputs again that are not finite, as s01 does. The filter's
    numbers come from ``packed``, by ``filter_number(packed, m, e)``, as they do for all the others:
    it may outlive ``weight``'s."""
    p = problem
    M, N, PIXELS, K = p.M, p.N, p.H_o * p.W_o, p.K
    C_i, H_i, W_i, H_f, W_f, W_o = p.C_i, p.H_i, p.W_i, p.H_f, p.W_f, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_T, N_T = tile.M_T, tile.N_T
    finish = make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def mend(input, packed, bias, output, m0, n0):
        for e in range(M_T * N_T):
            i, j = uint32(e) // N_T, uint32(e) % N_T
            m, n = m0 + i * ROWS, n0 + j // RUN * (RUN * COLUMNS) + j % RUN * LANES
            if m >= M or n >= N:
                continue
            i_n, pixel = n // PIXELS, n % PIXELS
            at = (i_n * M + m) * PIXELS + pixel
            zero = relu and output[at] == float32(0)  # which minus infinity became too
            if abs(output[at]) < INFINITY and not zero:
                continue
            total = float32(0)
            for k in range(K):
                r, u, v = uint32(k) // (H_f * W_f), uint32(k) // W_f % H_f, uint32(k) % W_f
                i_h = int32(pixel // W_o * s_h + u * d_h) - p_h
                i_w = int32(pixel % W_o * s_w + v * d_w) - p_w
                number = float32(0)  # outside the image is padding
                if 0 <= i_h < H_i and 0 <= i_w < W_i:
                    number = input[((int64(i_n) * C_i + r) * H_i + i_h) * W_i + i_w]
                total += number * filter_number(packed, m, uint32(k))
            output[at] = finish(total, bias[m])

    return mend
