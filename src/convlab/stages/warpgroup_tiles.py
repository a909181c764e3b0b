"""Which tile suits a problem in s14: s13's model (:mod:`warp_tiles`), for tiles of one warpgroup.

All are 128 windows wide and 16 terms deep. What there is to choose is how many channels a block
computes: more of them make more of each window that is fetched and split, and leave fewer blocks.
The rates are fitted to one run over the paper's twelve layers on an H200, which was not kept.
"""

from __future__ import annotations

from convlab.problem import ConvProblem
from convlab.stages.tile_choice import MULTIPROCESSORS
from convlab.stages.tiles import Tile
from convlab.stages.warp_tiles import busiest_work, suited_channels

WINDOWS, TERMS = 128, 16  # of a block, of a slice

# By channels of a block: multiply-adds a clock on an H200 where nothing is left over, over the best
# one's.
RATES: dict[int, float] = {96: 1.0, 64: 0.96, 32: 0.65}


def candidates(problem: ConvProblem) -> tuple[Tile, ...]:
    """The tiles to choose from: what a tuner measures."""
    suited = suited_channels(problem, RATES)
    return tuple(Tile(M_B, WINDOWS, TERMS, M_B // 4, 4) for M_B in RATES if M_B in suited)


def estimated_cost(
    problem: ConvProblem, tile: Tile, multiprocessors: int = MULTIPROCESSORS
) -> float:
    """What the model says of a tile of :func:`candidates`, as s13's does."""
    return busiest_work(problem, tile, multiprocessors) / RATES[tile.M_B]


def best_tile(problem: ConvProblem, multiprocessors: int = MULTIPROCESSORS) -> Tile:
    """The tile that the model takes to be the fastest."""
    return min(candidates(problem), key=lambda tile: estimated_cost(problem, tile, multiprocessors))
