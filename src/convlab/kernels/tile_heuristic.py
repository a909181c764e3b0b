"""Which tile suits a problem, and among how many blocks to split its sums: a model of what a GPU's
busiest multiprocessor has to do.

All blocks cost the same, so a GPU is done when the multiprocessor with the most of them is, which
has ``busiest = ceil(blocks / sm_count)``. Two things can be what it waits for. In clocks:

    throughput = busiest * M_B * N_B * (K_P + overhead) / (FMA_A_CLOCK * rate)
    latency = rounds * slices * (slice + copy * copies + K_B * (step + fma * M_T * N_T))

Throughput is what counts where many warps take turns: all the multiply-adds of its blocks. K_P is K
rounded up to whole slices, ``overhead`` what a block does before and after them, in steps of k,
``rate`` how well the tile's inner loop uses a multiprocessor when there is plenty to do.

Latency is what counts where a multiprocessor has a block or two, as with one image: a warp cannot
go faster than one after the other, however idle the rest is. For each slice there is a barrier with
a wait, each of the thread's copies (``copies``, of 4 bytes of windows and of 16 of the filter), and
K_B steps, each of some loads and M_T x N_T multiply-adds. As many blocks as fit run side by side,
so this is paid in ``rounds``. Small thread tiles win there, large ones elsewhere.
:class:`Costs` has what each of these takes.

Where both count, neither is hidden wholly behind the other: the time is taken to be the root of the
sum of their squares. Channels and pixels that do not exist cost what others do: they are in the
blocks. Memory is not in the model, because it is the same for all tiles.

Split sums make ``splits`` times as many blocks, each with so many fewer slices: work for
SMs that would have none, or less than the busiest. The price is a launch that clears
the output, and ``splits`` atomic additions to each:

    SPLIT + ADDITION * splits * M * N

The constants are fitted to what an H200 took in 936 cases, tiles and splits worth trying on 116
problems: to the logarithms of these times by least squares, then by a random search for what makes
the choice least bad. Where they say about the same, rounder ones were taken. docs/tiles.md has how
well that chooses where it was not fitted, and the model's tile beside the best of each problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from convlab.problem import ConvProblem
from convlab.stage import GRID_LIMIT, Tile, blocks_for
from convlab.stages.s08_vectorized import RUN

H200_SMS = 132  # of an H200, where nobody says
REGISTERS, BESIDE_SUMS = 65536, 64  # a multiprocessor's; what a thread needs beside its sums
FMA_A_CLOCK = 102.0  # multiply-adds of the best tile, where 128 is what the arithmetic could do
SPLIT, ADDITION = 4700.0, 0.0042  # clocks
SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
MOST_SUMS = 64  # a thread's, to be split: more leave the registers on their way to the additions
MOST_OUTPUTS = 9 * 64 * 64 * H200_SMS  # to be split: of more it gained 3 %, or lost


@dataclass(frozen=True)
class Costs:
    """A stage's constants in the formulas above: in clocks of a thread, but ``overhead``, which is
    in steps of k."""

    overhead: float
    slice: float
    copy: float
    step: float
    fma: float


# The times do not show that a step of k takes anything by itself, nor a block's beginning and end.
COSTS = Costs(overhead=0.0, slice=50.0, copy=50.0, step=0.0, fma=0.4)

Shape = tuple[int, int, int, int]  # (M_B, N_B, M_T, N_T) of a tile

# Multiply-adds a clock on an H200 where nothing is left over, over the best one's. Eight more were
# measured on 55 problems; nowhere was one faster than the best of these by 2 %.
RATES: dict[Shape, float] = {
    (128, 64, 8, 8): 1.0,
    (64, 128, 8, 8): 0.92,
    (96, 128, 12, 8): 0.94,
    (64, 64, 8, 4): 0.84,
    (64, 32, 8, 4): 0.825,
    (32, 64, 4, 8): 0.79,
    (32, 32, 4, 4): 0.68,
    (16, 128, 4, 8): 0.45,
}
FEW_OUTPUTS = 6 * 64 * 64 * H200_SMS  # six blocks of 64 x 64 for each
DEEP, DEPTH = (32, 32, 4, 4), 32  # the one that is also tried with slices so deep: fewer barriers


def slice_depth(problem: ConvProblem) -> int:
    """K_B: 16 or 8 channels of one place of the filter where that divides C_i. Else 16 elements
    where that makes at most 2 % more steps of k than K, for large K; else the depth from 6 to 16
    with the fewest steps, the smallest of them. An odd depth has two slices in a turn: where there
    are only two or three, and no padding to look after, the next even one is quicker."""
    for channels in (16, 8):
        if problem.C_i % channels == 0:
            return channels
    if blocks_for(problem.K, 16) * 16 <= 1.02 * problem.K:
        return 16
    depths = range(min(6, problem.K), min(16, problem.K) + 1)
    depth = min(depths, key=lambda depth: (blocks_for(problem.K, depth) * depth, depth))
    few, bare = 8 < depth < problem.K <= 3 * depth, problem.padding == ((0, 0), (0, 0))
    return depth + 1 if few and bare and depth % 2 else depth


def suited(problem: ConvProblem, shapes: Iterable[Shape]) -> list[Shape]:
    """Those of the shapes that are worth trying: none that computes a third more channels than
    another, those that do not exist included, and none so small that its blocks would be far more
    than there is use for, or than a grid has."""
    narrowest = min(32 if has_few_outputs(problem) else 64, problem.M)
    narrowest = max(narrowest, min(128, blocks_for(problem.M, GRID_LIMIT[1])))
    wide_enough = [shape for shape in shapes if narrowest <= shape[0]]
    channels = {M_B: blocks_for(problem.M, M_B) * M_B for M_B, *_ in wide_enough}
    most = min(channels.values()) * 4 / 3
    return [shape for shape in wide_enough if channels[shape[0]] <= most]


def has_few_outputs(problem: ConvProblem) -> bool:
    """Whether small blocks, and deep slices of them, are worth trying."""
    return problem.M * problem.N <= FEW_OUTPUTS


def candidates(problem: ConvProblem) -> tuple[Tile, ...]:
    """The tiles to choose from: what a tuner measures."""
    depth, deep = slice_depth(problem), has_few_outputs(problem) and problem.C_i % DEPTH == 0
    tiles = []
    for shape in suited(problem, RATES):
        M_B, N_B, M_T, N_T = shape
        tiles.append(Tile(M_B, N_B, depth, M_T, N_T))
        if shape == DEEP and deep:
            tiles.append(Tile(M_B, N_B, DEPTH, M_T, N_T))
    return tuple(tiles)


def estimated_cost(
    problem: ConvProblem, tile: Tile, sm_count: int = H200_SMS, splits: int = 1
) -> float:
    """What the model says of a tile of :func:`candidates`, in clocks."""
    blocks = splits * blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    slices = blocks_for(blocks_for(problem.K, tile.K_B), splits)
    rate = RATES[tile.M_B, tile.N_B, tile.M_T, tile.N_T]
    price = 0.0 if splits == 1 else SPLIT + ADDITION * splits * problem.M * problem.N
    copies = tile.K_B * (tile.N_B + tile.M_B / RUN) / tile.threads
    return clocks(tile, blocks, slices, copies, rate, COSTS, sm_count) + price


def clocks(
    tile: Tile,
    blocks: int,
    slices: int,
    copies: float,
    rate: float,
    costs: Costs,
    sm_count: int,
) -> float:
    """Throughput and latency of so many blocks of so many slices, with ``copies`` a thread each."""
    busiest = blocks_for(blocks, sm_count)
    steps = slices * tile.K_B + costs.overhead
    throughput = busiest * tile.M_B * tile.N_B * steps / (FMA_A_CLOCK * rate)

    sums = tile.M_T * tile.N_T
    at_once = max(1, REGISTERS // (tile.threads * (sums + BESIDE_SUMS)))
    slice_ = costs.slice + costs.copy * copies + tile.K_B * (costs.step + costs.fma * sums)
    latency = blocks_for(busiest, at_once) * slices * slice_
    return math.hypot(throughput, latency)


def best_splits(problem: ConvProblem, tile: Tile, sm_count: int = H200_SMS) -> int:
    """Among how many blocks the model would split each sum; at most :func:`most_splits`. 1 where
    there are too many outputs, for a tile that it does not know, and where a thread's sums would
    leave its registers: half as many are too many where the last rows of blocks stick out, and
    every addition has to be asked about.
    """
    return _cheapest_splits(problem, tile, sm_count, most_splits(problem) or 1)


def _cheapest_splits(problem: ConvProblem, tile: Tile, sm_count: int, most: int) -> int:
    most_sums = MOST_SUMS // 2 if problem.M % tile.M_B else MOST_SUMS
    known = (tile.M_B, tile.N_B, tile.M_T, tile.N_T) in RATES
    sums = tile.M_T * tile.N_T
    if not known or sums > most_sums or problem.M * problem.N > MOST_OUTPUTS:
        return 1
    slices = blocks_for(problem.K, tile.K_B)
    return min(
        (splits for splits in SPLITS if splits <= min(slices, most)),
        key=lambda splits: estimated_cost(problem, tile, sm_count, splits),
    )


@lru_cache(maxsize=64)
def most_splits(problem: ConvProblem) -> int:
    """What is added atomically to an output, at most: the parts that any of :func:`candidates` has
    on an H200, 0 where none splits. Other tiles and other GPUs have no more, so that whoever judges
    an output has to know nothing but the problem. By the model, on docs/tiles.md's 93 problems and
    GPUs of 16, 24, to 264 SMs, that costs 16 % at most, and more than 1 % in 6 of 100
    cases."""
    most = max(
        (_cheapest_splits(problem, tile, H200_SMS, SPLITS[-1]) for tile in candidates(problem)),
        default=1,
    )
    return most if most > 1 else 0


def best_tile(problem: ConvProblem, sm_count: int = H200_SMS, whole_sums: bool = False) -> Tile:
    """The tile that the model takes to be the fastest: each with its :func:`best_splits`, or with
    ``whole_sums`` each unsplit."""

    def cost(tile: Tile) -> float:
        splits = 1 if whole_sums else best_splits(problem, tile, sm_count)
        return estimated_cost(problem, tile, sm_count, splits)

    return min(candidates(problem), key=cost)
