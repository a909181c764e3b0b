"""Which tile suits a problem: a model of what a GPU's busiest multiprocessor has to do.

All blocks cost the same, so a GPU is done when the multiprocessor with the most of them is, which
has ``busiest = ceil(blocks / multiprocessors)``. Two things can be what it waits for. In clocks:

    throughput = busiest * M_B * N_B * (K_P + OVERHEAD) / (FMA_A_CLOCK * rate)
    latency = rounds * slices * (SLICE + COPY * copies + K_B * (STEP + FMA * M_T * N_T))

Throughput is what counts where many warps take turns: all the multiply-adds of its blocks. K_P is K
rounded up to whole slices, OVERHEAD what a block does before and after its slices, in steps of k,
``rate`` how well the tile's inner loop uses a multiprocessor when there is plenty to do.

Latency is what counts where a multiprocessor has a block or two, as with one image: a warp cannot
go faster than one after the other, however idle the rest is. For each slice there is a barrier with
a wait, each of the thread's copies (``copies``, of 4 bytes of windows and of 16 of the filter), and
K_B steps, each of some loads and M_T x N_T multiply-adds. As many blocks as fit run side by side,
so this is paid in ``rounds``. Small thread tiles and deep slices win there, large ones elsewhere.

Where both count, neither is hidden wholly behind the other: the time is taken to be the root of the
sum of their squares. Channels and pixels that do not exist cost what others do: they are in the
blocks. Memory is not in the model, because it is the same for all tiles.

The constants are fitted to what an H200 took for 593 tiles on 55 problems. docs/tiles.md has what
the model chooses beside the best tile of each.
"""

from __future__ import annotations

import math

from convlab.problem import ConvProblem
from convlab.stages.base import blocks_for
from convlab.stages.s08_vectorized import RUN
from convlab.stages.tiles import Tile

MULTIPROCESSORS = 132  # of an H200, where nobody says
REGISTERS, BESIDE_SUMS = 65536, 64  # a multiprocessor's; what a thread needs beside its sums
FMA_A_CLOCK = 94.5  # multiply-adds of the best tile, where 128 is what the arithmetic could do
OVERHEAD = 32
SLICE, COPY, STEP, FMA = 67.0, 12.0, 18.0, 1.5  # clocks

# (M_B, N_B, M_T, N_T): multiply-adds a clock on an H200 where nothing is left over, over the best
# one's. Eight more were measured; nowhere was one faster than the best of these by 2 %.
RATES: dict[tuple[int, int, int, int], float] = {
    (128, 64, 8, 8): 1.0,
    (64, 128, 8, 8): 0.98,
    (96, 128, 12, 8): 0.93,
    (64, 64, 8, 4): 0.91,
    (64, 32, 8, 4): 0.89,
    (32, 64, 4, 8): 0.80,
    (32, 32, 4, 4): 0.70,
    (16, 128, 4, 8): 0.65,
}
FEW_OUTPUTS = 6 * 64 * 64 * MULTIPROCESSORS  # six blocks of 64 x 64 for each
DEEP, DEPTH = (32, 32, 4, 4), 32  # the one that is also tried with slices so deep: fewer barriers


def slice_depth(problem: ConvProblem) -> int:
    """K_B: 16 or 8 channels of one place of the filter where that divides C_i. Else the depth from
    6 to 16 with the fewest steps of k beyond K, the smallest of them."""
    for channels in (16, 8):
        if problem.C_i % channels == 0:
            return channels
    depths = range(min(6, problem.K), min(16, problem.K) + 1)
    return min(depths, key=lambda depth: (blocks_for(problem.K, depth) * depth, depth))


def candidates(problem: ConvProblem) -> tuple[Tile, ...]:
    """The tiles to choose from: what a tuner measures. None that computes a third more channels
    than another, those that do not exist included, and none so small that its blocks would be far
    more than there is use for."""
    few_outputs = problem.M * problem.N <= FEW_OUTPUTS
    narrowest = min(32 if few_outputs else 64, problem.M)
    channels = {M_B: blocks_for(problem.M, M_B) * M_B for M_B, *_ in RATES if narrowest <= M_B}
    most = min(channels.values()) * 4 / 3
    depth = slice_depth(problem)
    tiles = []
    for shape in RATES:
        M_B, N_B, M_T, N_T = shape
        if channels.get(M_B, math.inf) <= most:
            tiles.append(Tile(M_B, N_B, depth, M_T, N_T))
            if shape == DEEP and few_outputs and problem.C_i % DEPTH == 0:
                tiles.append(Tile(M_B, N_B, DEPTH, M_T, N_T))
    return tuple(tiles)


def estimated_cost(
    problem: ConvProblem, tile: Tile, multiprocessors: int = MULTIPROCESSORS
) -> float:
    """What the model says of a tile of :func:`candidates`, in clocks."""
    blocks = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    busiest = blocks_for(blocks, multiprocessors)
    slices = blocks_for(problem.K, tile.K_B)
    rate = FMA_A_CLOCK * RATES[tile.M_B, tile.N_B, tile.M_T, tile.N_T]
    throughput = busiest * tile.M_B * tile.N_B * (slices * tile.K_B + OVERHEAD) / rate

    sums = tile.M_T * tile.N_T
    at_once = max(1, REGISTERS // (tile.threads * (sums + BESIDE_SUMS)))
    copies = tile.K_B * (tile.N_B + tile.M_B / RUN) / tile.threads
    slice_ = SLICE + COPY * copies + tile.K_B * (STEP + FMA * sums)
    latency = blocks_for(busiest, at_once) * slices * slice_
    return math.hypot(throughput, latency)


def best_tile(problem: ConvProblem, multiprocessors: int = MULTIPROCESSORS) -> Tile:
    """The tile that the model takes to be the fastest."""
    return min(candidates(problem), key=lambda tile: estimated_cost(problem, tile, multiprocessors))
