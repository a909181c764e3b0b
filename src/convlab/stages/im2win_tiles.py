"""Which tile suits a problem in s11: :mod:`tile_choice`'s model, without split sums.

The kernel has another loop than s12's, and so other constants. A window has ``K_W = W_f * G``
elements in the im2win tensor, K_P with those of the last slice. A thread holds what it has fetched
in registers, so that fewer blocks fit side by side, and a turn of the loop waits for the loads that
it asked for:

    throughput = busiest * M_B * N_B * (K_P + OVERHEAD) / (FMA_A_CLOCK * rate)
    latency = rounds * slices * (SLICE + LOAD * loads + K_B * (STEP + FMA * M_T * N_T))

The pre-passes take the same with every tile, and are in neither.

The constants are fitted to what an H200 took for the candidates of 55 problems (docs/tiles.md).
Fitted to every other one of them, they chose for the rest what took 1.2 % longer than the best,
25 % at worst.
"""

from __future__ import annotations

import math

from convlab.problem import ConvProblem
from convlab.stages.base import GRID_LIMIT, blocks_for
from convlab.stages.im2win_tensor import group_size
from convlab.stages.s08_vectorized import RUN
from convlab.stages.tile_choice import (
    DEEP,
    DEPTH,
    FEW_OUTPUTS,
    FMA_A_CLOCK,
    MULTIPROCESSORS,
    REGISTERS,
)
from convlab.stages.tiles import Tile

BESIDE_SUMS = 88  # registers that a thread needs beside its sums
OVERHEAD = 60
SHALLOW, FEW_SUMS = 8, 32  # a slice of few terms, and the most sums a thread has with it
SLICE, LOAD, STEP, FMA = 4.0, 22.0, 57.0, 0.55  # clocks

# (M_B, N_B, M_T, N_T): multiply-adds a clock on an H200 where nothing is left over, over the best
# one's.
RATES: dict[tuple[int, int, int, int], float] = {
    (128, 64, 8, 8): 1.0,
    (64, 128, 8, 8): 0.9,
    (96, 64, 8, 8): 0.82,
    (64, 64, 8, 4): 0.84,
    (64, 32, 8, 4): 0.78,
    (32, 64, 4, 8): 0.75,
    (32, 32, 4, 4): 0.66,
    (16, 128, 4, 8): 0.5,
}


def window_elements(problem: ConvProblem) -> int:
    """K_W: what a window's sums run over, the zeros that fill its groups included."""
    return problem.W_f * group_size(problem)


def slice_depth(problem: ConvProblem) -> int:
    """K_B: 16 where that adds at most 2 % to K_W, else 8."""
    K_W = window_elements(problem)
    return 16 if blocks_for(K_W, 16) * 16 <= 1.02 * K_W else SHALLOW


def candidates(problem: ConvProblem) -> tuple[Tile, ...]:
    """The tiles to choose from: what a tuner measures. As in s12, none that computes a third more
    channels than another, and none so small that its blocks would be far more than there is use
    for, or than a grid has. Slices of 8, as three channels have them, come with few sums a thread:
    where there is little to multiply, more warps hide each other's loads, and 8 x 8 sums took 1 to
    27 % longer."""
    few_outputs = problem.M * problem.N <= FEW_OUTPUTS
    narrowest = min(32 if few_outputs else 64, problem.M)
    narrowest = max(narrowest, min(128, blocks_for(problem.M, GRID_LIMIT[1])))
    channels = {M_B: blocks_for(problem.M, M_B) * M_B for M_B, *_ in RATES if narrowest <= M_B}
    most = min(channels.values()) * 4 / 3
    depth, whole = slice_depth(problem), window_elements(problem) % DEPTH == 0
    shapes = [shape for shape in RATES if channels.get(shape[0], math.inf) <= most]
    if depth == SHALLOW:
        shapes = [shape for shape in shapes if shape[2] * shape[3] <= FEW_SUMS] or shapes
    tiles = [Tile(M_B, N_B, depth, M_T, N_T) for M_B, N_B, M_T, N_T in shapes]
    if few_outputs and whole and DEEP in shapes:
        M_B, N_B, M_T, N_T = DEEP
        tiles.append(Tile(M_B, N_B, DEPTH, M_T, N_T))
    return tuple(tiles)


def estimated_cost(
    problem: ConvProblem, tile: Tile, multiprocessors: int = MULTIPROCESSORS
) -> float:
    """What the model says of a tile of :func:`candidates`, in clocks."""
    blocks = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    busiest = blocks_for(blocks, multiprocessors)
    slices = blocks_for(window_elements(problem), tile.K_B)
    rate = FMA_A_CLOCK * RATES[tile.M_B, tile.N_B, tile.M_T, tile.N_T]
    throughput = busiest * tile.M_B * tile.N_B * (slices * tile.K_B + OVERHEAD) / rate

    sums = tile.M_T * tile.N_T
    at_once = max(1, REGISTERS // (tile.threads * (sums + BESIDE_SUMS)))
    loads = tile.K_B * (tile.M_B + tile.N_B) / RUN / tile.threads
    slice_ = SLICE + LOAD * loads + tile.K_B * (STEP + FMA * sums)
    return math.hypot(throughput, blocks_for(busiest, at_once) * slices * slice_)


def best_tile(problem: ConvProblem, multiprocessors: int = MULTIPROCESSORS) -> Tile:
    """The tile that the model takes to be the fastest."""
    return min(candidates(problem), key=lambda tile: estimated_cost(problem, tile, multiprocessors))
