"""Float32 accuracy from TF32 (3xTF32): the filter in two parts, and the fix-up of the sums.

The stages make up for two weaknesses of tensor cores as Ootomo and Yokota do ("Recovering single
precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022):

- They multiply TF32, which has 10 bits of mantissa where float32 has 23. Each number is split into
  a large part and a small part, and three of the four products are added::

      x * w  =  large_x * large_w + large_x * small_w + small_x * large_w   (+ small_x * small_w)

  The product left out is at most 2**-22 of the whole, and the last bit of the small parts loses as
  much again: eight times float32's rounding of one product, far less than its rounding of a sum.
- They truncate at every addition where other units round. So they add at most 16 terms, the small
  products first, and begin again at zero. Ordinary additions, which round, add the partial sums.

Below ``2**-113`` a number's small part is too small for TF32: each such number may be off by
``2**-136``. An infinity has no small part, and a number next to the largest rounds to infinity, so
their sums become NaN or infinite. The fix-up computes such a sum again as s01 does, so infinities
and NaN are those of the other stages.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import FLOAT4, gpu_only
from convlab.kernels import window_copies
from convlab.kernels.window_copies import INFINITY
from convlab.problem import ConvProblem
from convlab.stage import Tile

MMA_K = 8  # terms that an instruction multiplies
FLOAT4_STEP = 4  # a lane has every fourth float4 of windows up to s13, and only one from s13b on


def make_unrolled(multiply: Any, K_B: int, STEP: int) -> Any:
    """``multiply(..., k, R_O)`` for k = 0, STEP, ... below K_B: each is a call with a constant k,
    because the compiler does not unroll so long a loop. A single step is a call as well, because
    with a loop s13b took 1.37 times as long on Conv7."""

    def steps_from(k: int) -> Any:
        following = steps_from(k + STEP) if k + STEP < K_B else None

        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def step(S_F, S_I, at_F, at_I, R_O):
            multiply(S_F, S_I, at_F, at_I, k, R_O)
            if following is not None:
                following(S_F, S_I, at_F, at_I, R_O)

        return step

    return steps_from(0)


def require_warp_tiles(tile: Tile, LANES_M: int, LANES_N: int) -> None:
    """Raise ``ValueError`` for a tile that ``mma`` does not divide: its matrices have 16 rows, 8
    columns and 8 terms, and a warp has LANES_M x LANES_N lanes along M and N."""
    whole = tile.M_T % 2 == tile.N_T % LANES_M == 0
    sizes = f"M_T must be a multiple of 2 and N_T of {LANES_M}"
    tile.require(whole, f"{sizes}, because a warp multiplies so many at a time")
    whole = tile.M_B % (LANES_M * tile.M_T) == tile.N_B % (LANES_N * tile.N_T) == 0
    sizes = f"M_B must be a multiple of {LANES_M} * M_T, N_B of {LANES_N} * N_T"
    tile.require(whole, f"{sizes}, the lanes of a warp")
    tile.require(tile.K_B % MMA_K == 0, "K_B must be a multiple of 8, the terms of an instruction")


def require_warpgroup_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that four warps side by side cannot share: each has all
    channels of 32 windows. With more than 128 channels sums spill and two slices do not fit."""
    require_warp_tiles(tile, LANES_M=4, LANES_N=8)
    tile.require(tile.N_T == 4, "N_T must be 4, because a warp multiplies four columns a lane")
    whole = tile.N_B == 128 and tile.K_B == 16 and tile.threads == 128
    tile.require(whole, "N_B must be 128, K_B 16 and M_T M_B / 4, the tile of a warpgroup")
    tile.require(tile.M_B <= 128, "M_B must be at most 128")


def make_epilogue(
    problem: ConvProblem, tile: Tile, relu: bool, filter_number: Any, LANES_M: int, LANES: int
) -> Any:
    """``epilogue(R_O, input, packed, bias, output, m_t, n_t)``: a lane's outputs, from its first
    channel m_t and window n_t on; channels lie ``LANES_M`` apart, a float4's windows ``LANES``."""
    fix_up = make_fix_up(problem, tile, relu, filter_number, LANES_M, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(i):
        return i * LANES_M

    write = window_copies.make_write(problem, tile, relu, row_of, FLOAT4_STEP, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def epilogue(R_O, input, packed, bias, output, m_t, n_t):
        if write(R_O, bias, output, m_t, n_t):
            fix_up(input, packed, bias, output, m_t, n_t)

    return epilogue


def make_fix_up(
    problem: ConvProblem, tile: Tile, relu: bool, filter_number: Any, LANES_M: int, LANES: int
) -> Any:
    """Computes again, as s01 does, the outputs of a lane that are not finite and, with ReLU, those
    that are zero, because minus infinity became zero too. The filter's numbers come from ``packed``
    (``filter_number(packed, m, e)``), because ``weight`` may have changed since it was packed."""
    p = problem
    M, N, PIXELS, K = p.M, p.N, p.H_o * p.W_o, p.K
    C_i, H_i, W_i, H_f, W_f, W_o = p.C_i, p.H_i, p.W_i, p.H_f, p.W_f, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_T, N_T = tile.M_T, tile.N_T
    finish = window_copies.make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fix_up(input, packed, bias, output, m_t, n_t):
        for e in range(M_T * N_T):
            i, j = uint32(e) // N_T, uint32(e) % N_T
            m = m_t + i * LANES_M
            n = n_t + j // FLOAT4 * (FLOAT4 * FLOAT4_STEP) + j % FLOAT4 * LANES
            if m >= M or n >= N:
                continue
            i_n, pixel = n // PIXELS, n % PIXELS
            at = (i_n * M + m) * PIXELS + pixel
            zero = relu and output[at] == float32(0)  # ReLU also makes minus infinity zero
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

    return fix_up
