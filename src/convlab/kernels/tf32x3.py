"""Float32 accuracy from TF32 (3xTF32): the filter in two parts, and the fix-up of the sums.

Tensor cores have two weaknesses, and the stages make up for both as Ootomo and Yokota do
("Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
performance", 2022):

- They multiply TF32, which has 10 bits of mantissa where float32 has 23. Each number is split into
  a large part and a small part, and three of the four products are added::

      x * w  =  large_x * large_w + large_x * small_w + small_x * large_w   (+ small_x * small_w)

  The product left out is at most 2**-22 of the whole, and the last bit of the small parts loses as
  much again. Together that is eight times float32's rounding of one product, and far less than its
  rounding of a sum.
- They truncate at every addition where other units round. So they add 16 terms at most, the small
  products first, and begin again at zero; ordinary additions, which round, add these partial sums.

Below ``2**-113`` a number's small part is too small for TF32: each such number may be off by
``2**-136``. An infinity has no small part, and a number next to the largest rounds to infinity:
their sums become NaN or infinite. The fix-up computes such a sum again as s01 does, so infinities
and NaN are those of the other stages.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import FLOAT4, gpu_only, mma_tf32, split_tf32, store4
from convlab.kernels import window_copies
from convlab.kernels.window_copies import FLOAT4_STEP, INFINITY, channel_group, padded_terms
from convlab.problem import ConvProblem
from convlab.stage import Buffer, Flat, Launch, Program, Tile, blocks_for

WARP = 32
MMA_K = 8  # terms that an instruction multiplies
WARPGROUP_N, WARPGROUP_K = 128, 16  # N_B and K_B of a warpgroup's tile
MOST_CHANNELS = 128  # M_B of a warpgroup's tile: with more, sums spill and two slices do not fit
PACKING_WARPS = 4  # of a block that packs; each packs 16 channels x 8 terms at a time


@cuda.jit(device=True, **gpu_only(forceinline=True))
def mma_3xtf32(f, w):
    """A lane's part of the product of 16 x 8 filter and 8 x 8 window elements: four sums of 8
    terms, from the four and two numbers that :func:`~convlab.device.mma_tf32` gives it."""
    (l0, s0), (l1, s1) = split_tf32(f[0]), split_tf32(f[1])
    (l2, s2), (l3, s3) = split_tf32(f[2]), split_tf32(f[3])
    (large, small), (large_below, small_below) = split_tf32(w[0]), split_tf32(w[1])
    zero = float32(0)
    part = mma_tf32((s0, s1, s2, s3), (large, large_below), (zero, zero, zero, zero))
    part = mma_tf32((l0, l1, l2, l3), (small, small_below), part)
    return mma_tf32((l0, l1, l2, l3), (large, large_below), part)


@dataclass(frozen=True)
class Layout:
    """Where the numbers of 8 terms lie in the packed filter: a stride for each digit of the
    channel m and the term k, in elements, and the distance from a large part to its small one."""

    m1: int  # m % 4
    m4: int  # m // 4 % 2
    m8: int  # m // 8 % 2
    m16: int  # m // 16
    k1: int  # k % 4
    k4: int  # k // 4 % 2
    small: int


def core_matrices(tile: Tile) -> Layout:
    """8 columns of 4 terms each, ``[k // 8, part, k // 4 % 2, column, k % 4]``. Channel c of eight
    is column ``2 * (c % 4) + c // 4``: a lane's channels are i, i + 4, i + 8, ..."""
    return Layout(m1=8, m4=4, m8=32, m16=64, k1=1, k4=4 * tile.M_B, small=MMA_K * tile.M_B)


def make_address(problem: ConvProblem, tile: Tile, layout: Layout) -> Any:
    """``address(m, k)``: where in ``packed`` the large part of a number is; k counts in the order
    of the slices."""
    M_B, K_P = tile.M_B, padded_terms(problem, tile)
    M1, M4, M8, M16, K1, K4, _ = astuple(layout)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def address(m, k):
        at = (int64(m // M_B) * K_P + k // 8 * 8) * (2 * M_B) + k % 4 * K1 + k // 4 % 2 * K4
        m %= M_B
        return at + m % 4 * M1 + m // 4 % 2 * M4 + m // 8 % 2 * M8 + m // 16 * M16

    return address


def pack_filter(problem: ConvProblem, tile: Tile, layout: Layout) -> Program:
    """What splits and packs the filter: both parts of each number, whole tiles."""
    row_blocks, K_P = blocks_for(problem.M, tile.M_B), padded_terms(problem, tile)
    warps = blocks_for(row_blocks * tile.M_B, 16)
    launch = Launch(
        make_pack_filter(problem, tile, layout),
        # In one dimension, because along y there may be too many.
        grid=(K_P // 8 // steps_of_warp(problem, tile) * blocks_for(warps, PACKING_WARPS),),
        block=(PACKING_WARPS * WARP,),
        arguments=(Flat("weight"), Flat("packed")),
    )
    return Program((Buffer("packed", (row_blocks, K_P, 2 * tile.M_B)),), (launch,))


def steps_of_warp(problem: ConvProblem, tile: Tile) -> int:
    """How many steps of 8 terms a warp packs. Where slices are channels of one place: the same 8
    channels at every place of the filter, which are neighbours in memory."""
    return problem.H_f * problem.W_f if channel_group(problem, tile) > 1 else 1


def make_pack_filter(problem: ConvProblem, tile: Tile, layout: Layout) -> Any:
    """``packed[address(m, k)]`` and its small part, zeros beyond K and M. A number that TF32 cannot
    hold, an infinity or one next to the largest, has infinity as its large part and itself as its
    small one: nothing is lost."""
    M, K, M_P = problem.M, problem.K, blocks_for(problem.M, tile.M_B) * tile.M_B
    PLACES, GROUP = problem.H_f * problem.W_f, channel_group(problem, tile)
    STEPS, GROUP_STEPS = steps_of_warp(problem, tile), max(1, GROUP // 8)
    BLOCKS_K = padded_terms(problem, tile) // 8 // STEPS
    # A number's rank in the order of the strides, of which each lane packs four neighbours.
    digits, ranks, rank = ("m1", "m4", "m8", "k1", "k4"), {}, 1
    for name in sorted(digits, key=lambda name: getattr(layout, name)):
        ranks[name] = rank
        rank *= 4 if name in ("m1", "k1") else 2
    M1, M4, M8, K1, K4 = (ranks[name] for name in digits)
    DOWN = [i // M1 % 4 + i // M4 % 2 * 4 + i // M8 % 2 * 8 for i in range(FLOAT4)]
    (_, D1, D2, D3), (_, E1, E2, E3) = DOWN, [i // K1 % 4 + i // K4 % 2 * 4 for i in range(FLOAT4)]
    SMALL, address = layout.small, make_address(problem, tile, layout)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def parts(weight, m, k):
        value = float32(0)
        if m < M and k < K:
            group, place, channel = k // (GROUP * PLACES), k // GROUP % PLACES, k % GROUP
            value = weight[m * K + (group * GROUP + channel) * PLACES + place]
        large, small = split_tf32(value)
        return large, small if abs(large) < INFINITY else value

    @cuda.jit(**gpu_only(launch_bounds=PACKING_WARPS * WARP))
    def split_filter(weight, packed):
        rank = uint32(cuda.threadIdx.x) % WARP * FLOAT4
        x, y = uint32(cuda.blockIdx.x) % BLOCKS_K, uint32(cuda.blockIdx.x) // BLOCKS_K
        m = (y * PACKING_WARPS + uint32(cuda.threadIdx.x) // WARP) * 16
        m += rank // M1 % 4 + rank // M4 % 2 * 4 + rank // M8 % 2 * 8
        if m >= M_P:
            return
        for step in range(STEPS):
            k = ((x // GROUP_STEPS * STEPS + uint32(step)) * GROUP_STEPS + x % GROUP_STEPS) * 8
            k += rank // K1 % 4 + rank // K4 % 2 * 4
            large0, small0 = parts(weight, m, k)
            large1, small1 = parts(weight, m + D1, k + E1)
            large2, small2 = parts(weight, m + D2, k + E2)
            large3, small3 = parts(weight, m + D3, k + E3)
            at = address(m, k)
            store4(packed, at, (large0, large1, large2, large3))
            store4(packed, at + SMALL, (small0, small1, small2, small3))

    return split_filter


def make_filter_number(problem: ConvProblem, tile: Tile, layout: Layout) -> Any:
    """``filter_number(packed, m, e)``: what was ``weight[m, e]``, e through channels and places."""
    GROUP, PLACES = channel_group(problem, tile), problem.H_f * problem.W_f
    SMALL, address = layout.small, make_address(problem, tile, layout)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(packed, m, e):
        r, place = e // PLACES, e % PLACES
        at = address(m, (r // GROUP * PLACES + place) * GROUP + r % GROUP)
        large, small = packed[at], packed[at + SMALL]
        return large + small if abs(large) < INFINITY else small

    return filter_number


def make_unrolled(multiply: Any, K_B: int, STEP: int) -> Any:
    """``multiply(..., k, R_O)`` for k = 0, STEP, ... below K_B: each a call with a constant k,
    because the compiler does not unroll so long a loop."""

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
    tile.require(
        tile.M_T % 2 == tile.N_T % LANES_M == 0,
        f"M_T must be a multiple of 2 and N_T of {LANES_M}, because a warp multiplies so many at a "
        "time",
    )
    tile.require(
        tile.M_B % (LANES_M * tile.M_T) == tile.N_B % (LANES_N * tile.N_T) == 0,
        f"M_B must be a multiple of {LANES_M} * M_T, N_B of {LANES_N} * N_T, the lanes of a warp",
    )
    tile.require(tile.K_B % MMA_K == 0, "K_B must be a multiple of 8, the terms of an instruction")


def require_warpgroup_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that four warps side by side do not share: each has all
    channels of 32 windows."""
    require_warp_tiles(tile, LANES_M=4, LANES_N=8)
    tile.require(tile.N_T == 4, "N_T must be 4, because a warp multiplies four columns a lane")
    tile.require(
        tile.N_B == WARPGROUP_N and tile.K_B == WARPGROUP_K and tile.threads == 128,
        f"N_B must be {WARPGROUP_N}, K_B {WARPGROUP_K} and M_T M_B / 4, the tile of a warpgroup",
    )
    tile.require(tile.M_B <= MOST_CHANNELS, f"M_B must be at most {MOST_CHANNELS}")


def make_epilogue(
    problem: ConvProblem, tile: Tile, relu: bool, filter_number: Any, LANES_M: int, LANES: int
) -> Any:
    """``epilogue(R_O, input, packed, bias, output, m0, n0)``: a lane's outputs, from its first
    channel and window on; its channels lie ``LANES_M`` apart, the windows of a float4 ``LANES``."""
    fix_up = make_fix_up(problem, tile, relu, filter_number, LANES_M, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(i):
        return i * LANES_M

    write = window_copies.make_write(problem, tile, relu, row_of, FLOAT4_STEP, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def epilogue(R_O, input, packed, bias, output, m0, n0):
        if write(R_O, bias, output, m0, n0):
            fix_up(input, packed, bias, output, m0, n0)

    return epilogue


def make_fix_up(
    problem: ConvProblem, tile: Tile, relu: bool, filter_number: Any, LANES_M: int, LANES: int
) -> Any:
    """The fix-up: computes again, as s01 does, the outputs of a lane that are not finite and, with
    ReLU, those that are zero, because minus infinity became zero too. The filter's numbers come
    from ``packed``, by ``filter_number(packed, m, e)``, because ``weight`` may have changed since
    it was packed."""
    p = problem
    M, N, PIXELS, K = p.M, p.N, p.H_o * p.W_o, p.K
    C_i, H_i, W_i, H_f, W_f, W_o = p.C_i, p.H_i, p.W_i, p.H_f, p.W_f, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_T, N_T = tile.M_T, tile.N_T
    finish = window_copies.make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fix_up(input, packed, bias, output, m0, n0):
        for e in range(M_T * N_T):
            i, j = uint32(e) // N_T, uint32(e) % N_T
            m = m0 + i * LANES_M
            n = n0 + j // FLOAT4 * (FLOAT4 * FLOAT4_STEP) + j % FLOAT4 * LANES
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
