"""Which tile suits a problem in s11: :mod:`tile_choice`'s model, without split sums.

What is multiplied are the ``K_W = W_f * G`` elements that a window has in the im2win tensor, not K,
and they are fetched by fours like the filter. The kernel has another loop than s12's, and so other
rates, fitted to what an H200 took for the candidates of 55 problems (docs/tiles.md) beside
:data:`COSTS`, which were s12's at that time. The pre-passes take the same with every tile, and are
left out.
"""

from __future__ import annotations

from convlab.kernels.im2win_layout import group_size
from convlab.kernels.tile_heuristic import H200_SMS, Costs, Shape, clocks, suited
from convlab.problem import ConvProblem
from convlab.stage import Tile, blocks_for
from convlab.stages.s08_vectorized import RUN

SHALLOW = 8  # K_B where 16 are too many
FEW_TERMS, FEW_SUMS = 168, 32  # of such a window, and of a thread then
COSTS = Costs(overhead=55.0, slice=4.0, copy=3.0, step=38.0, fma=0.74)

# Multiply-adds a clock on an H200 where nothing is left over, over the best one's.
RATES: dict[Shape, float] = {
    (128, 64, 8, 8): 1.0,
    (64, 128, 8, 8): 0.9,
    (96, 64, 8, 8): 0.82,
    (64, 64, 8, 4): 0.84,
    (64, 32, 8, 4): 0.78,
    (32, 64, 4, 8): 0.75,
    (32, 32, 4, 4): 0.72,  # at 0.70 too rarely chosen on these problems, at 0.74 too often
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
    """The tiles to choose from: what a tuner measures. Windows of few terms, as three channels have
    them, come with few sums a thread: where there is little to multiply, more warps hide each
    other's loads, and 8 x 8 sums took 1 to 27 % longer on five problems of 36 and 168 terms."""
    elements, depth = window_elements(problem), slice_depth(problem)
    shapes = suited(problem, RATES)
    if depth == SHALLOW and elements <= FEW_TERMS:
        shapes = [shape for shape in shapes if shape[2] * shape[3] <= FEW_SUMS] or shapes
    return tuple(Tile(M_B, N_B, depth, M_T, N_T) for M_B, N_B, M_T, N_T in shapes)


def estimated_cost(problem: ConvProblem, tile: Tile, sm_count: int = H200_SMS) -> float:
    """What the model says of a tile of :func:`candidates`, in clocks."""
    blocks = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    slices = blocks_for(window_elements(problem), tile.K_B)
    rate = RATES[tile.M_B, tile.N_B, tile.M_T, tile.N_T]
    loads = tile.K_B * (tile.M_B + tile.N_B) / RUN / tile.threads
    return clocks(tile, blocks, slices, loads, rate, COSTS, sm_count)


def best_tile(problem: ConvProblem, sm_count: int = H200_SMS) -> Tile:
    """The tile that the model takes to be the fastest."""
    return min(candidates(problem), key=lambda tile: estimated_cost(problem, tile, sm_count))
