"""Which tile suits a problem in s14: s13's model (:mod:`warp_tiles`), for tiles of one warpgroup.

All are 128 windows wide and 16 terms deep. What there is to choose is how many channels a block
computes: more of them make more of each window that is fetched and split, and leave fewer blocks.
"""

from __future__ import annotations

import math

from convlab.problem import ConvProblem
from convlab.stages.base import GRID_LIMIT, blocks_for
from convlab.stages.tile_choice import MULTIPROCESSORS
from convlab.stages.tiles import Tile

WINDOWS, TERMS = 128, 16  # of a block, of a slice
OVERHEAD = 80

# By channels of a block: multiply-adds a clock on an H200 where nothing is left over, over the best
# one's.
RATES: dict[int, float] = {96: 1.0, 64: 0.96, 32: 0.65}


def candidates(problem: ConvProblem) -> tuple[Tile, ...]:
    """The tiles to choose from: what a tuner measures. None that computes a third more channels
    than another, those that do not exist included, and none with more blocks than a grid has."""
    narrowest = min(max(RATES), blocks_for(problem.M, GRID_LIMIT[1]))
    channels = {M_B: blocks_for(problem.M, M_B) * M_B for M_B in RATES if narrowest <= M_B}
    most = min(channels.values()) * 4 / 3
    return tuple(
        Tile(M_B, WINDOWS, TERMS, M_B // 4, 4)
        for M_B in RATES
        if channels.get(M_B, math.inf) <= most
    )


def estimated_cost(
    problem: ConvProblem, tile: Tile, multiprocessors: int = MULTIPROCESSORS
) -> float:
    """What the model says of a tile of :func:`candidates`: multiply-adds that the busiest
    multiprocessor has to do, over how well it does them."""
    blocks = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    steps = blocks_for(problem.K, tile.K_B) * tile.K_B + OVERHEAD
    work = blocks_for(blocks, multiprocessors) * tile.M_B * tile.N_B * steps
    return work / RATES[tile.M_B]


def best_tile(problem: ConvProblem, multiprocessors: int = MULTIPROCESSORS) -> Tile:
    """The tile that the model takes to be the fastest."""
    return min(candidates(problem), key=lambda tile: estimated_cost(problem, tile, multiprocessors))
