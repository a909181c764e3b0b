"""The filter as s13 multiplies it: every number split in two, in the order in which lanes hold it.

Tensor cores multiply TF32, which has 10 bits of mantissa where float32 has 23. So each number is
the sum of two, ``large + small`` (:func:`convlab.device.split_tf32`). The filter is the same for
all windows, so it is split once, here, and not by every block again.

A lane multiplies four numbers of a 16 x 8 matrix, its fragment, and gets them with one load where
they lie together. So that is how they are packed: for every row of blocks, for 8 terms of the sum
at a time, for every 16 channels, the fragments of 32 lanes, of the large parts and then of the
small ones: ``packed[m // M_B, k // 8, m % M_B // 16, part, lane, number]``. Lanes that are
neighbours read what is neighbours, so that no bank is asked twice.

A number that TF32 cannot hold, an infinity or one next to the largest, has infinity as its large
part, and as its small part itself: so all numbers of the filter can be had back
(:func:`make_filter_number`).
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int64, uint32

from convlab.device import gpu_only, split_tf32, store4
from convlab.kernels.epilogue import INFINITY
from convlab.kernels.window_copies import group_size
from convlab.problem import ConvProblem
from convlab.stage import Buffer, Flat, Launch, Tile, blocks_for

WARP = 32
ROWS, TERMS = 16, 8  # of the matrix that a warp's lanes hold together
FRAGMENTS = WARP * 4  # numbers of such a matrix
WARPS = 4  # of a block that packs


def packed_buffer(problem: ConvProblem, tile: Tile) -> Buffer:
    """Two numbers for each of the filter's, in whole tiles."""
    row_blocks, slices = blocks_for(problem.M, tile.M_B), blocks_for(problem.K, tile.K_B)
    return Buffer("packed", (row_blocks, slices * tile.K_B, 2 * tile.M_B))


def pack_launch(problem: ConvProblem, tile: Tile) -> Launch:
    """The filter's splitting and re-ordering. A warp packs 16 channels of the output: 8 terms, or
    where slices are channels of one place, 8 channels of the input at every place of the filter,
    which are neighbours in memory."""
    row_blocks, K_P = blocks_for(problem.M, tile.M_B), blocks_for(problem.K, tile.K_B) * tile.K_B
    warps = row_blocks * tile.M_B // ROWS
    return Launch(
        make_pack_filter(problem, tile, K_P, warps),
        grid=(K_P // TERMS // turns(problem, tile), blocks_for(warps, WARPS)),
        block=(WARPS * WARP,),
        arguments=(Flat("weight"), Flat("packed")),
    )


def turns(problem: ConvProblem, tile: Tile) -> int:
    """How many steps of 8 terms a warp packs: those which read the same bytes of the filter."""
    return problem.H_f * problem.W_f if group_size(problem, tile) > 1 else 1


def make_split_number(problem: ConvProblem, tile: Tile) -> Any:
    """``split_number(weight, m, k)``: both parts of a number of the filter, by its place in the
    window's order."""
    M, K, PLACES = problem.M, problem.K, problem.H_f * problem.W_f
    GROUP = group_size(problem, tile)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def split_number(weight, m, k):
        value = float32(0)
        if m < M and k < K:
            group, place, channel = k // (GROUP * PLACES), k // GROUP % PLACES, k % GROUP
            value = weight[m * K + (group * GROUP + channel) * PLACES + place]
        large, small = split_tf32(value)
        return large, small if abs(large) < INFINITY else value

    return split_number


def make_pack_filter(problem: ConvProblem, tile: Tile, K_P: int, COUNT: int) -> Any:
    """The kernel. Zeros beyond K and M."""
    M_B, GROUP, TURNS = tile.M_B, group_size(problem, tile), turns(problem, tile)
    STEPS = max(1, GROUP // TERMS)  # of 8 channels, in a group
    element = make_split_number(problem, tile)

    @cuda.jit(**gpu_only(launch_bounds=WARPS * WARP))
    def split_filter(weight, packed):
        lane = uint32(cuda.threadIdx.x) % WARP
        tile_ = uint32(cuda.blockIdx.y) * WARPS + uint32(cuda.threadIdx.x) // WARP
        if tile_ >= COUNT:
            return
        m, x = tile_ * ROWS + lane // 4, uint32(cuda.blockIdx.x)
        for turn in range(TURNS):
            step = (x // STEPS * TURNS + uint32(turn)) * STEPS + x % STEPS
            k = step * TERMS + lane % 4
            large0, small0 = element(weight, m, k)
            large1, small1 = element(weight, m + 8, k)
            large2, small2 = element(weight, m, k + 4)
            large3, small3 = element(weight, m + 8, k + 4)
            row_block, within = tile_ * ROWS // M_B, tile_ * ROWS % M_B // ROWS
            at = (int64(row_block) * K_P + step * TERMS) * (2 * M_B)
            at += within * (2 * FRAGMENTS) + lane * 4
            store4(packed, at, (large0, large1, large2, large3))
            store4(packed, at + FRAGMENTS, (small0, small1, small2, small3))

    return split_filter


def make_filter_number(problem: ConvProblem, tile: Tile) -> Any:
    """``filter_number(packed, m, e)``: what was ``weight[m, e]``, e through channels and places."""
    M_B, K_P = tile.M_B, blocks_for(problem.K, tile.K_B) * tile.K_B
    GROUP, PLACES = group_size(problem, tile), problem.H_f * problem.W_f

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(packed, m, e):
        r, place = e // PLACES, e % PLACES
        k = (r // GROUP * PLACES + place) * GROUP + r % GROUP
        lane, number = m % 8 * 4 + k % 4, m // 8 % 2 + k // 4 % 2 * 2
        at = (int64(m // M_B) * K_P + k // TERMS * TERMS) * (2 * M_B)
        at += m % M_B // ROWS * (2 * FRAGMENTS) + lane * 4 + number
        large, small = packed[at], packed[at + FRAGMENTS]
        return large + small if abs(large) < INFINITY else small

    return filter_number
