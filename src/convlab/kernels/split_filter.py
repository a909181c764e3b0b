"""The filter split in two before the launch, for s13 to s14: both parts of each number (see
:mod:`tf32x3`), in the order in which tensor cores hold them. Terms are as in :mod:`window_copies`.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

from numba import cuda, float32, int64, uint32

from convlab.device import FLOAT4, gpu_only, split_tf32, store4
from convlab.kernels.window_copies import INFINITY
from convlab.problem import ConvProblem
from convlab.stage import Buffer, Flat, Launch, Program, Tile, blocks_for

WARP = 32
PACKING_WARPS = 4  # of a block that packs; each packs 16 channels x 8 terms at a time


@dataclass(frozen=True)
class Layout:
    """Where the numbers of 8 terms lie in the packed filter, in elements: a stride for each digit
    of channel m (m % 4, m // 4 % 2, m // 8 % 2, m // 16) and of term k (k % 4, k // 4 % 2), and the
    distance from a large part to its small one."""

    m1: int
    m4: int
    m8: int
    m16: int
    k1: int
    k4: int
    small: int


def core_matrices(tile: Tile) -> Layout:
    """8 columns of 4 terms each, ``[k // 8, part, k // 4 % 2, column, k % 4]``. In order, the
    columns are channels 0, 4, 1, 5, 2, 6, 3 and 7 of eight: a lane, whose sums are columns
    2 * thread_in_group and one more, has channels thread_in_group, + 4, + 8, ..., evenly spaced."""
    return Layout(m1=8, m4=4, m8=32, m16=64, k1=1, k4=4 * tile.M_B, small=8 * tile.M_B)


def make_address(problem: ConvProblem, tile: Tile, layout: Layout) -> Any:
    """``address(m, k)``: where in ``packed`` the large part of a number is; k counts in the order
    of the slices."""
    M_B, K_P = tile.M_B, tile.whole_slices(problem.K)
    M1, M4, M8, M16, K1, K4, _ = astuple(layout)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def address(m, k):
        at = (int64(m // M_B) * K_P + k // 8 * 8) * (2 * M_B) + k % 4 * K1 + k // 4 % 2 * K4
        m %= M_B
        return at + m % 4 * M1 + m // 4 % 2 * M4 + m // 8 % 2 * M8 + m // 16 * M16

    return address


@lru_cache(maxsize=32)  # one kernel for all stages
def pack_filter(problem: ConvProblem, tile: Tile, layout: Layout) -> Program:
    """Whole tiles of ``packed[address(m, k)]`` and its small part, zeros beyond K and M. A number
    that TF32 cannot hold, an infinity or one next to the largest, has infinity as its large part
    and itself as its small one: nothing is lost."""
    M, K, K_P = problem.M, problem.K, tile.whole_slices(problem.K)
    row_blocks, PLACES = blocks_for(M, tile.M_B), problem.H_f * problem.W_f
    M_P, GROUP = row_blocks * tile.M_B, tile.channel_group(problem)
    # How many steps of 8 terms a warp packs. If a slice is channels of one place, a warp packs the
    # same 8 channels at every place of the filter, because these are neighbours in memory.
    STEPS, GROUP_STEPS = PLACES if GROUP > 1 else 1, max(1, GROUP // 8)
    BLOCKS_K = K_P // 8 // STEPS
    # The numbers have ranks in the order of the strides; each lane packs four neighbours by rank.
    digits, ranks, rank = ("m1", "m4", "m8", "k1", "k4"), {}, 1
    for name in sorted(digits, key=lambda name: getattr(layout, name)):
        ranks[name] = rank
        rank *= 4 if name in ("m1", "k1") else 2
    M1, M4, M8, K1, K4 = (ranks[name] for name in digits)
    _, D1, D2, D3 = (i // M1 % 4 + i // M4 % 2 * 4 + i // M8 % 2 * 8 for i in range(FLOAT4))
    _, E1, E2, E3 = (i // K1 % 4 + i // K4 % 2 * 4 for i in range(FLOAT4))
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

    # The grid has one dimension, because y may not hold so many blocks.
    grid = (BLOCKS_K * blocks_for(M_P, 16 * PACKING_WARPS),)
    launch = Launch(split_filter, grid, (PACKING_WARPS * WARP,), (Flat("weight"), Flat("packed")))
    return Program((Buffer("packed", (row_blocks, K_P, 2 * tile.M_B)),), (launch,))


def make_filter_number(problem: ConvProblem, tile: Tile, layout: Layout) -> Any:
    """``filter_number(packed, m, e)``: what was ``weight[m, e]``, e through channels and places."""
    GROUP, PLACES = tile.channel_group(problem), problem.H_f * problem.W_f
    SMALL, address = layout.small, make_address(problem, tile, layout)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(packed, m, e):
        r, place = e // PLACES, e % PLACES
        at = address(m, (r // GROUP * PLACES + place) * GROUP + r % GROUP)
        large, small = packed[at], packed[at + SMALL]
        return large + small if abs(large) < INFINITY else small

    return filter_number
