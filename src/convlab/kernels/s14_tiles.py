"""Which tile suits a problem in s14.

All are 128 windows wide and 16 terms deep. What there is to choose is how many channels a block
computes: more of them make more of each window that is fetched and split, and leave fewer blocks.
As in s13's model (:mod:`warp_tiles`) a GPU is done when the multiprocessor with the most blocks is:

    blocks * channels * (K_P + OVERHEAD) / rate

As many blocks as fit work side by side. One that is left over and works by itself takes longer than
its share: it waits, and nobody works meanwhile. So it counts for :data:`ALONE` blocks.

The constants are fitted to runs over the paper's twelve layers on an H200, which were not kept.
"""

from __future__ import annotations

from convlab.kernels.s13_tiles import OVERHEAD, suited_channels
from convlab.kernels.tile_heuristic import H200_SMS
from convlab.problem import ConvProblem
from convlab.stage import Tile, blocks_for
from convlab.stages.s08_vectorized import RUN

WINDOWS, TERMS = 128, 16  # of a block, of a slice

# By channels of a block: multiply-adds a clock on an H200 where nothing is left over, over the best
# one's. No odd multiples of 8: those that were measured (88, 104, 120) were slower than 64.
RATES: dict[int, float] = {128: 1.0, 112: 1.0, 96: 0.93, 64: 0.89, 32: 0.6}
ALONE = 1.5
MOST_ONE_BY_ONE = 96  # channels: more sums would leave the registers where they are stored so


def blocks_at_once(tile: Tile) -> int:
    """Blocks that a multiprocessor's 65,536 registers shall hold: a thread keeps its sums, and
    needs more for half as many under way, both parts of what it multiplies, and addresses."""
    return max(1, 65536 // (tile.threads * (tile.M_T * tile.N_T + 96)))


def candidates(problem: ConvProblem) -> tuple[Tile, ...]:
    """The tiles to choose from: what a tuner measures. None that computes a third more channels
    than another, those that do not exist included, none with more blocks than a grid has, and none
    whose sums would leave the registers where an image's pixels are no multiple of four."""
    most = max(RATES) if problem.H_o * problem.W_o % RUN == 0 else MOST_ONE_BY_ONE
    suited = suited_channels(problem, {M_B for M_B in RATES if most >= M_B})
    return tuple(Tile(M_B, WINDOWS, TERMS, M_B // 4, 4) for M_B in RATES if M_B in suited)


def estimated_cost(problem: ConvProblem, tile: Tile, sm_count: int = H200_SMS) -> float:
    """What the model says of a tile of :func:`candidates`."""
    blocks = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    busiest = blocks_for(blocks, sm_count)
    alone = busiest % blocks_at_once(tile) == 1
    counted = busiest - 1 + ALONE if alone else busiest
    steps = blocks_for(problem.K, tile.K_B) * tile.K_B + OVERHEAD
    return counted * tile.M_B * steps / RATES[tile.M_B]


def best_tile(problem: ConvProblem, sm_count: int = H200_SMS) -> Tile:
    """The tile that the model takes to be the fastest."""
    return min(candidates(problem), key=lambda tile: estimated_cost(problem, tile, sm_count))
