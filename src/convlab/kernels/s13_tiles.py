"""Which tile suits a problem in s13: :mod:`tile_choice`'s throughput, without latency and splits.

All blocks cost the same, so a GPU is done when the multiprocessor with the most of them is:

    busiest * M_B * N_B * (K_P + OVERHEAD) / rate

K_P is K rounded up to whole slices, OVERHEAD what a block does before and after its slices, in
steps of k, ``rate`` how well a tile does where there is plenty to do. The constants are fitted to
what an H200 took for the paper's twelve layers. Then, of the candidates, the tile that it chose was
the fastest for eleven of them, and within 2 % of that for Conv5; these times were not kept.
"""

from __future__ import annotations

from collections.abc import Collection

from convlab.kernels.filter_fragments import TERMS
from convlab.kernels.tile_heuristic import H200_SMS
from convlab.problem import ConvProblem
from convlab.stage import GRID_LIMIT, Tile, blocks_for
from convlab.stages.s08_vectorized import RUN

OVERHEAD = 80

# (M_B, N_B, M_T, N_T): multiply-adds a clock on an H200 where nothing is left over, over the best
# one's.
RATES: dict[tuple[int, int, int, int], float] = {
    (128, 64, 16, 8): 1.0,
    (128, 64, 8, 8): 0.97,
    (64, 128, 8, 8): 0.98,
    (96, 64, 12, 8): 1.0,
    (96, 64, 6, 8): 0.93,
    (64, 64, 4, 8): 0.97,
    (32, 64, 4, 8): 0.84,
}
MOST_SUMS = 64  # a thread's, where they are written one by one: more would leave its registers


def slice_depth(problem: ConvProblem) -> int:
    """K_B: 16 where that divides C_i or adds at most 2 % to K, else 8."""
    whole = problem.C_i % 16 == 0 or blocks_for(problem.K, 16) * 16 <= 1.02 * problem.K
    return 2 * TERMS if whole else TERMS


def suited_channels(problem: ConvProblem, sizes: Collection[int]) -> set[int]:
    """Those of the sizes of M_B that compute at most a third more channels than another, those that
    do not exist included, with no more blocks than a grid has."""
    narrowest = min(max(sizes), blocks_for(problem.M, GRID_LIMIT[1]))
    channels = {M_B: blocks_for(problem.M, M_B) * M_B for M_B in sizes if narrowest <= M_B}
    most = min(channels.values()) * 4 / 3
    return {M_B for M_B, count in channels.items() if count <= most}


def candidates(problem: ConvProblem) -> tuple[Tile, ...]:
    """The tiles to choose from: what a tuner measures. None that computes a third more channels
    than another, those that do not exist included, none with more blocks than a grid has, and none
    whose sums would leave the registers where an image's pixels are no multiple of four."""
    suited = suited_channels(problem, {M_B for M_B, *_ in RATES})
    depth, whole_runs = slice_depth(problem), problem.H_o * problem.W_o % RUN == 0
    return tuple(
        Tile(M_B, N_B, depth, M_T, N_T)
        for M_B, N_B, M_T, N_T in RATES
        if M_B in suited and (whole_runs or M_T * N_T <= MOST_SUMS)
    )


def estimated_cost(problem: ConvProblem, tile: Tile, sm_count: int = H200_SMS) -> float:
    """What the model says of a tile of :func:`candidates`: multiply-adds that the busiest
    multiprocessor has to do, over how well it does them."""
    blocks = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    steps = blocks_for(problem.K, tile.K_B) * tile.K_B + OVERHEAD
    rate = RATES[tile.M_B, tile.N_B, tile.M_T, tile.N_T]
    return blocks_for(blocks, sm_count) * tile.M_B * tile.N_B * steps / rate


def best_tile(problem: ConvProblem, sm_count: int = H200_SMS) -> Tile:
    """The tile that the model takes to be the fastest."""
    return min(candidates(problem), key=lambda tile: estimated_cost(problem, tile, sm_count))
