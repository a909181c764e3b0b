"""The filter as s14 multiplies it: split in two as for s13, in the order in which tensor cores read
it from shared memory.

They read core matrices: 8 columns of 4 terms, 128 bytes that lie together. Here a column is a
channel of the output. For every row of blocks, for 8 terms of the sum at a time, the large parts
and then the small ones: ``packed[m // M_B, k // 8, part, k // 4 % 2, column, k % 4]``.

Which channel is which column is free, and a lane gets two columns that are neighbours. So that its
channels are four apart all through, channel c of eight is column ``2 * (c % 4) + c // 4``.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, int64, uint32

from convlab.device import gpu_only
from convlab.kernels.epilogue import INFINITY
from convlab.kernels.filter_fragments import (
    TERMS,
    WARP,
    WARPS,
    make_split_number,
    turns,
)
from convlab.kernels.window_copies import group_size
from convlab.problem import ConvProblem
from convlab.stage import Flat, Launch, Tile, blocks_for

COLUMNS = 8  # of a core matrix


def pack_launch(problem: ConvProblem, tile: Tile) -> Launch:
    """The filter's splitting and re-ordering. A warp packs 8 channels of the output: 8 terms, or
    where slices are channels of one place, 8 channels of the input at every place of the filter."""
    row_blocks, K_P = blocks_for(problem.M, tile.M_B), blocks_for(problem.K, tile.K_B) * tile.K_B
    warps = row_blocks * tile.M_B // COLUMNS
    return Launch(
        make_pack_filter(problem, tile, K_P, warps),
        # All in a row: along y there may be too many.
        grid=(K_P // TERMS // turns(problem, tile) * blocks_for(warps, WARPS),),
        block=(WARPS * WARP,),
        arguments=(Flat("weight"), Flat("packed")),
    )


def make_pack_filter(problem: ConvProblem, tile: Tile, K_P: int, COUNT: int) -> Any:
    """The kernel. Zeros beyond K and M."""
    M_B, GROUP, TURNS = tile.M_B, group_size(problem, tile), turns(problem, tile)
    STEPS = max(1, GROUP // TERMS)  # of 8 channels, in a group
    ALONG_K = K_P // TERMS // TURNS  # blocks
    split_number = make_split_number(problem, tile)

    @cuda.jit(**gpu_only(launch_bounds=WARPS * WARP))
    def split_filter_to_cores(weight, packed):
        lane = uint32(cuda.threadIdx.x) % WARP
        x, y = uint32(cuda.blockIdx.x) % ALONG_K, uint32(cuda.blockIdx.x) // ALONG_K
        eight = y * WARPS + uint32(cuda.threadIdx.x) // WARP
        if eight >= COUNT:
            return
        column, term = lane // 4, lane % 4  # so that lanes write neighbours
        m = eight * COLUMNS + column // 2 + column % 2 * 4
        row_block, first = eight * COLUMNS // M_B, eight * COLUMNS % M_B
        for turn in range(TURNS):
            step = (x // STEPS * TURNS + uint32(turn)) * STEPS + x % STEPS
            at = (int64(row_block) * K_P + step * TERMS) * (2 * M_B) + first * 4 + lane
            for half in range(2):
                large, small = split_number(weight, m, step * TERMS + half * 4 + term)
                packed[at + half * (4 * M_B)] = large
                packed[at + (2 + half) * (4 * M_B)] = small

    return split_filter_to_cores


def make_filter_number(problem: ConvProblem, tile: Tile) -> Any:
    """``filter_number(packed, m, e)``: what was ``weight[m, e]``, e through channels and places."""
    M_B, K_P = tile.M_B, blocks_for(problem.K, tile.K_B) * tile.K_B
    GROUP, PLACES = group_size(problem, tile), problem.H_f * problem.W_f

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(packed, m, e):
        r, place = e // PLACES, e % PLACES
        k = (r // GROUP * PLACES + place) * GROUP + r % GROUP
        column = m % M_B // COLUMNS * COLUMNS + m % 4 * 2 + m // 4 % 2
        at = (int64(m // M_B) * K_P + k // TERMS * TERMS) * (2 * M_B)
        at += k // 4 % 2 * (4 * M_B) + column * 4 + k % 4
        large, small = packed[at], packed[at + TERMS * M_B]
        return large + small if abs(large) < INFINITY else small

    return filter_number
