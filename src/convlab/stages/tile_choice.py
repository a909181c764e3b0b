"""Which tile suits a problem: a model of what a GPU's multiprocessors have to do.

All blocks cost the same, so a GPU is done when the multiprocessor with the most blocks is. With
``busiest = ceil(blocks / multiprocessors)`` the time of a tile is taken to be proportional to

    busiest * M_B * N_B * (K_P + OVERHEAD) / (rate * occupancy)

K_P is K rounded up to whole slices, OVERHEAD what a block does before and after its slices, in
steps of k, ``rate`` how well the tile's inner loop uses a multiprocessor, and ``occupancy`` that
fewer than ENOUGH_WARPS on it cannot hide each other's waits. Channels and pixels that do not exist
cost what others do: they are in the blocks. docs/fast.md has what this chose beside what measuring
found best.
"""

from __future__ import annotations

from convlab.problem import ConvProblem
from convlab.stages.base import blocks_for
from convlab.stages.tiles import Tile

MULTIPROCESSORS = 132  # of an H200, where nobody says
OVERHEAD, ENOUGH_WARPS, WARP = 32, 8, 32

# (M_B, N_B, M_T, N_T): TFLOP/s on an H200 where nothing is left over, over the best one's.
RATES: dict[tuple[int, int, int, int], float] = {
    (128, 64, 8, 8): 1.0,
    (64, 128, 8, 8): 1.0,
    (128, 128, 8, 8): 0.96,
    (96, 128, 12, 8): 0.92,
    (64, 64, 8, 8): 0.89,
    (64, 64, 8, 4): 0.89,
    (64, 32, 8, 4): 0.88,
    (32, 64, 4, 8): 0.85,
    (32, 128, 8, 8): 0.78,
    (32, 32, 4, 4): 0.77,
}


def slice_depth(problem: ConvProblem) -> int:
    """K_B: 16 or 8 channels of one place of the filter where that divides C_i. Else the depth from
    6 to 16 with the fewest steps of k beyond K, the smallest of them."""
    for channels in (16, 8):
        if problem.C_i % channels == 0:
            return channels
    depths = range(min(6, problem.K), min(16, problem.K) + 1)
    return min(depths, key=lambda depth: (blocks_for(problem.K, depth) * depth, depth))


def candidates(problem: ConvProblem) -> tuple[Tile, ...]:
    """The tiles to choose from: what a tuner measures."""
    K_B = slice_depth(problem)
    return tuple(Tile(M_B, N_B, K_B, M_T, N_T) for M_B, N_B, M_T, N_T in RATES)


def estimated_cost(
    problem: ConvProblem, tile: Tile, multiprocessors: int = MULTIPROCESSORS
) -> float:
    """What the model says of a tile of :func:`candidates`, to be compared with others' only."""
    blocks = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    busiest = blocks_for(blocks, multiprocessors)
    K_P = blocks_for(problem.K, tile.K_B) * tile.K_B
    occupancy = min(1.0, busiest * tile.threads / WARP / ENOUGH_WARPS)
    rate = RATES[tile.M_B, tile.N_B, tile.M_T, tile.N_T]
    return busiest * tile.M_B * tile.N_B * (K_P + OVERHEAD) / (rate * occupancy)


def best_tile(problem: ConvProblem, multiprocessors: int = MULTIPROCESSORS) -> Tile:
    """The tile that the model takes to be the fastest."""
    return min(candidates(problem), key=lambda tile: estimated_cost(problem, tile, multiprocessors))
