"""Layout transforms of the filter, padded with zeros to whole tiles, K_P and M_P.

The zeros remove the bounds checks from the loop. :func:`pack_filter` transposes M x K to K_P x M_P:
row k holds term k of every output channel, so that a float4 loads four channels.
:func:`pack_in_order`, from m13 on, orders the terms as the kernels copy them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from numba import cuda, float32, int64, uint32

from convlab.device import FLOAT4, gpu_only
from convlab.ladder.stage import (
    Argument,
    Buffer,
    DeviceFunction,
    Flat,
    Kernel,
    Launch,
    Program,
    Tile,
    blocks_for,
)
from convlab.problems.problem import ConvProblem

WARP = 32


def make_pack_filter(problem: ConvProblem, K_P: int, M_P: int, THREADS: int) -> Kernel:
    """The kernel that writes the filter as a K_P x M_P matrix, zeros beyond K x M."""
    M, K = problem.M, problem.K

    @cuda.jit
    def pack_filter(weight, packed):
        e = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        k, m = e // M_P, e % M_P
        if k < K_P:
            value = float32(0)
            if k < K and m < M:
                value = weight[m * K + k]
            packed[k, m] = value

    return pack_filter


@lru_cache(maxsize=32)  # one kernel for all stages
def pack_filter(
    problem: ConvProblem,
    tile: Tile,
    make: Callable[[ConvProblem, int, int, int], Kernel] = make_pack_filter,
    weight: Argument = Flat("weight"),  # noqa: B008  (frozen)
) -> Program:
    """Transposes the filter; ``make`` makes the kernel, which decides the order of the rows."""
    K_P = tile.whole_slices(problem.K)
    M_P = blocks_for(problem.M, tile.M_B) * tile.M_B
    kernel, blocks = make(problem, K_P, M_P, tile.threads), blocks_for(K_P * M_P, tile.threads)
    launch = Launch(kernel, (blocks,), (tile.threads,), (weight, "packed"))
    return Program((Buffer("packed", (K_P, M_P)),), (launch,))


def require_float4(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile whose thread tile is not made of float4s."""
    tile.require_float4s("M_T", "N_T")
    rule = "its threads must be a multiple of N_B, because each fetches from one window"
    tile.require(tile.threads % tile.N_B == 0, rule)


@lru_cache(maxsize=32)  # one kernel for all stages
def pack_in_order(problem: ConvProblem, tile: Tile) -> Program:
    """Return the launch that makes ``packed[m // M_B, k, m % M_B]``, with k in the order of
    :mod:`m13_window_copies`: one matrix for every row of blocks, so that a slice is one piece of
    memory.

    The kernel moves squares through shared memory, so that both the filter, along k, and the
    result, along m, are accessed along their rows.
    """
    M, K, PLACES, M_B = problem.M, problem.K, problem.H_f * problem.W_f, tile.M_B
    GROUP, K_P, row_blocks = tile.channel_group(problem), tile.whole_slices(K), blocks_for(M, M_B)
    M_P, SIDE = row_blocks * M_B, min(WARP, M_B)  # SIDE: less only for a simulator's tiny tiles
    SQUARE, STEP = (SIDE, SIDE + 1), SIDE // FLOAT4  # a column lies in as many banks as a row
    SQUARES = blocks_for(K_P, SIDE)  # along k

    @cuda.jit(**gpu_only(launch_bounds=SIDE * STEP))
    def pack_filter(weight, packed):
        square = cuda.shared.array(SQUARE, float32)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        block = uint32(cuda.blockIdx.x)
        e0, m0 = uint32(block % SQUARES) * SIDE, uint32(block // SQUARES) * SIDE
        for y in range(0, SIDE, STEP):
            e, m = e0 + tx, m0 + y + ty
            value = float32(0)
            if e < K and m < M:
                value = weight[m * K + e]
            square[y + ty, tx] = value
        cuda.syncthreads()  # all threads have filled the square
        for y in range(0, SIDE, STEP):
            e, m = e0 + y + ty, m0 + tx
            if e < K_P and m < M_P:
                k = e
                if e < K:
                    r, place = e // PLACES, e % PLACES
                    k = (r // GROUP * PLACES + place) * GROUP + r % GROUP
                packed[(m // M_B * K_P + k) * M_B + m % M_B] = square[tx, y + ty]

    # The grid has one dimension, because y may not hold so many blocks.
    grid, block = (SQUARES * blocks_for(M_P, SIDE),), (SIDE, STEP)
    launch = Launch(pack_filter, grid, block, (Flat("weight"), Flat("packed")))
    return Program((Buffer("packed", (row_blocks, K_P, M_B)),), (launch,))


def make_filter_number(problem: ConvProblem, tile: Tile) -> DeviceFunction:
    """``filter_number(packed, m, e)``: what was ``weight[m, e]`` before :func:`pack_in_order`."""
    M_B, K_P = tile.M_B, tile.whole_slices(problem.K)
    GROUP, PLACES = tile.channel_group(problem), problem.H_f * problem.W_f

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(packed, m, e):
        r, place = e // PLACES, e % PLACES
        k = (r // GROUP * PLACES + place) * GROUP + r % GROUP
        return packed[(int64(m // M_B) * K_P + k) * M_B + m % M_B]

    return filter_number
