"""What a lane does with its sums, where tensor cores have computed them: s13's, and s14's.

They lie where the instruction leaves them; else they are written as s12's are
(:mod:`thread_output`). One that is not finite is computed again, term by term.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import gpu_only
from convlab.kernels import epilogue
from convlab.kernels.epilogue import INFINITY, make_finish
from convlab.problem import ConvProblem
from convlab.stage import Tile
from convlab.stages.s08_vectorized import RUN

COLUMNS = 4  # runs of a warp's windows: as many as lie between two of a lane's


def lanes_of(problem: ConvProblem, lanes: int) -> int:
    """Among how many lanes windows are dealt: a warp's along N, where outputs are stored one by
    one."""
    return 1 if problem.H_o * problem.W_o % RUN == 0 else lanes


def make_write(problem: ConvProblem, tile: Tile, relu: bool, ROWS: int, LANES: int) -> Any:
    """s12's ``write``, of a lane's channels that are ``ROWS`` apart."""

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(i):
        return i * ROWS

    return epilogue.make_write(problem, tile, relu, row_of, COLUMNS, LANES)


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
