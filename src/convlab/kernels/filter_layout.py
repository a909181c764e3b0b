"""The layout transform of the filter: M x K becomes K_P x M_P, transposed and padded with zeros.

Row k holds term k of every output channel, so that a float4 loads four channels. K_P and M_P are
whole tiles, which removes the bounds checks from the loop.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, uint32

from convlab.problem import ConvProblem
from convlab.stage import Argument, Buffer, Flat, Launch, Program, Tile, blocks_for


def make_pack_filter(problem: ConvProblem, K_P: int, M_P: int, THREADS: int) -> Any:
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


def pack_filter(
    problem: ConvProblem,
    tile: Tile,
    make: Any = make_pack_filter,
    weight: Argument = Flat("weight"),  # noqa: B008  (frozen)
) -> Program:
    """The transposition of the filter, its rows in the order in which ``make`` takes them."""
    K_P = blocks_for(problem.K, tile.K_B) * tile.K_B
    M_P = blocks_for(problem.M, tile.M_B) * tile.M_B
    kernel, blocks = make(problem, K_P, M_P, tile.threads), blocks_for(K_P * M_P, tile.threads)
    launch = Launch(kernel, (blocks,), (tile.threads,), (weight, "packed"))
    return Program((Buffer("packed", (K_P, M_P)),), (launch,))


def require_float4(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile whose thread tile is not made of float4s."""
    tile.require_float4s("M_T", "N_T")
    even = tile.threads % tile.N_B == 0
    tile.require(even, "its threads must be a multiple of N_B: each fetches from one window")
