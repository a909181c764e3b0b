"""A model that chooses a problem's tile, and the number of blocks that share each sum (split-K).

It estimates the work of a GPU's busiest SM, with the constants of m11 to t06 as data: M11, M13,
M15, T03, T05 and T06. In clocks, with ``busiest = ceil(blocks / sm_count)``:

    throughput = busiest * M_B * N_B * (K_P + overhead) / (FMA_A_CLOCK * rate)
    latency = rounds * slices * (slice + copy * copies + K_B * (step + fma * M_T * N_T))
    split-K's price = start + splits * (addition * M * N + join * M_B * N_B)

Throughput counts if many warps take turns, latency if an SM has one or two blocks. If both count,
neither hides the other completely, so the time is the root of the sum of their squares.
docs/tiles.md explains the model, what its constants are fitted to, and how well it chooses.
"""

# The file has over 400 lines, because a constant means nothing without the formula that it is
# fitted to, so all six tables stand below the one model.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from convlab.device import FLOAT4
from convlab.ladder.stage import GRID_LIMIT, Program, Stage, Tile, blocks_for, sms_for
from convlab.problems.oracle import Allowances
from convlab.problems.problem import ConvProblem

H200_SMS = 132  # assumed where the number of SMs is unknown
FMA_A_CLOCK = 102.0  # multiply-adds of the best tile; the arithmetic units could do 128
SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
FEW_SUMS = 32  # per thread for windows of few terms, so that more warps hide each other's loads
FEW_OUTPUTS = 6 * 64 * 64 * H200_SMS  # six blocks of 64 x 64 for each SM: small blocks are tried

TileShape = tuple[int, int, int, int]  # (M_B, N_B, M_T, N_T) of a tile


def shape_of(tile: Tile) -> TileShape:
    """The sizes that decide a tile's speed: (M_B, N_B, M_T, N_T)."""
    return tile.M_B, tile.N_B, tile.M_T, tile.N_T


@dataclass(frozen=True)
class Latency:
    """The latency of the parts of a slice, in clocks of a thread."""

    slice: float
    copy: float
    step: float
    fma: float


@dataclass(frozen=True)
class SplitPrice:
    """The price of split-K in clocks: once for a launch that fills an array with zeros, for every
    output of every part, and for every output of a tile that one block adds up by itself."""

    start: float
    addition: float
    join: float = 0.0


@dataclass(frozen=True, eq=False)
class Heuristic:
    """The model with a stage's constants. ``rates`` are multiply-adds per clock on an H200, without
    remainders and relative to m15's best tile (m11, t03 and t05: to their own best); its keys are
    the shapes to choose from."""

    rates: Mapping[TileShape, float]
    slice_depth: Callable[[ConvProblem], int]  # K_B
    overhead: float
    latency: Latency | None = None
    terms: Callable[[ConvProblem], int] = lambda problem: problem.K  # of a sum, zeros included
    window_copy: int = 1  # elements of the windows that one copy moves
    smallest: tuple[int, int] = (1, 1)  # the smallest M_B to try: for few outputs, for many
    deep: tuple[TileShape, int] | None = None  # a shape that few outputs also try with this K_B
    few_terms: int = 0  # if a window has at most so many, a thread has at most FEW_SUMS
    most_scalar_sums: int = 1024  # per thread, if its stores are scalar: more would spill
    registers: int = 64  # per thread beside its sums; and for each step of K_B
    registers_of_k: int = 0
    alone: float = 1.0  # a block that has an SM to itself in the last round counts as so many
    splits: tuple[int, ...] = (1,)
    split_price: SplitPrice = SplitPrice(0.0, 0.0)
    atomic: bool = False  # parts of a sum are added by atomic additions, in any order
    most_split_sums: int = 1024  # per thread in split-K: more would spill
    most_outputs: int = 0  # problems with more are not split

    def resident_blocks(self, tile: Tile) -> int:
        """Blocks that an SM's registers hold at a time."""
        return tile.resident_blocks(self.registers + self.registers_of_k * tile.K_B)

    def candidates(self, problem: ConvProblem) -> tuple[Tile, ...]:
        """The tiles to choose from, which a tuner measures. This leaves out tiles that compute over
        a third more channels than another tile (channels that do not exist included), tiles with
        more blocks than a grid has, and tiles whose sums would spill."""
        few_outputs = problem.M * problem.N <= FEW_OUTPUTS
        scalar_stores = problem.H_o * problem.W_o % FLOAT4 != 0
        most_sums = self.most_scalar_sums if scalar_stores else 1024
        shapes = [shape for shape in self.rates if shape[2] * shape[3] <= most_sums]
        narrowest = min(max(M_B for M_B, *_ in shapes), blocks_for(problem.M, GRID_LIMIT[1]))
        smallest = self.smallest[0 if few_outputs else 1]
        narrowest = max(narrowest, min(smallest, problem.M))
        channels = {M_B: blocks_for(problem.M, M_B) * M_B for M_B, *_ in shapes if narrowest <= M_B}
        most = min(channels.values()) * 4 / 3
        shapes = [shape for shape in shapes if channels.get(shape[0], most + 1) <= most]
        depth = self.slice_depth(problem)
        if depth < 16 and self.terms(problem) <= self.few_terms:
            shapes = [shape for shape in shapes if shape[2] * shape[3] <= FEW_SUMS] or shapes
        tiles = []
        for shape in shapes:
            M_B, N_B, M_T, N_T = shape
            tiles.append(Tile(M_B, N_B, depth, M_T, N_T))
            if self.deep and shape == self.deep[0] and few_outputs:
                if problem.C_i % self.deep[1] == 0:
                    tiles.append(Tile(M_B, N_B, self.deep[1], M_T, N_T))
        return tuple(tiles)

    def estimated_cost(
        self, problem: ConvProblem, tile: Tile, sm_count: int = H200_SMS, splits: int = 1
    ) -> float:
        """The time that the model estimates for one of the :meth:`candidates`, in clocks."""
        blocks = splits * blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
        slices = blocks_for(blocks_for(self.terms(problem), tile.K_B), splits)
        busiest, resident = blocks_for(blocks, sm_count), self.resident_blocks(tile)
        counted = busiest - 1 + self.alone if busiest % resident == 1 else busiest
        steps = slices * tile.K_B + self.overhead
        rate = FMA_A_CLOCK * self.rates[shape_of(tile)]
        throughput, latency = counted * tile.M_B * tile.N_B * steps / rate, 0.0
        if (costs := self.latency) is not None:
            copies = tile.K_B * (tile.N_B / self.window_copy + tile.M_B / FLOAT4) / tile.threads
            step = costs.step + costs.fma * (tile.M_T * tile.N_T)
            slice_ = costs.slice + costs.copy * copies + tile.K_B * step
            latency = blocks_for(busiest, resident) * slices * slice_
        return math.hypot(throughput, latency) + self._price(problem, tile, splits)

    def _price(self, problem: ConvProblem, tile: Tile, splits: int) -> float:
        if splits == 1:
            return 0.0
        price = self.split_price
        each = price.addition * problem.M * problem.N + price.join * tile.M_B * tile.N_B
        return price.start + splits * each

    def best_splits(self, problem: ConvProblem, tile: Tile, sm_count: int = H200_SMS) -> int:
        """The number of blocks among which the model splits each sum, with atomic additions at most
        :meth:`most_splits`. It is 1 for too many outputs, for a tile that the model does not know,
        and if a thread's sums would spill. With a bounds check for every atomic addition, half as
        many sums spill."""
        most = self.most_splits(problem) or 1 if self.atomic else self.splits[-1]
        return self._cheapest_splits(problem, tile, sm_count, most)

    def _cheapest_splits(self, problem: ConvProblem, tile: Tile, sm_count: int, most: int) -> int:
        most_sums = self.most_split_sums
        if self.atomic and problem.M % tile.M_B:
            most_sums //= 2
        known, sums = shape_of(tile) in self.rates, tile.M_T * tile.N_T
        if not known or sums > most_sums or self.most_outputs < problem.M * problem.N:
            return 1
        most = min(most, blocks_for(self.terms(problem), tile.K_B))
        return min(
            (splits for splits in self.splits if splits <= most),
            key=lambda splits: self.estimated_cost(problem, tile, sm_count, splits),
        )

    @lru_cache(maxsize=64)  # noqa: B019  (the instances are this module's constants)
    def most_splits(self, problem: ConvProblem) -> int:
        """The most atomic additions to an output: the most parts that any of :meth:`candidates` has
        on an H200, 0 if none splits. Other tiles and other GPUs get no more parts, so the check of
        an output needs only the problem. By the model, on docs/tiles.md's 93 problems and GPUs of
        16, 24, to 264 SMs, this limit costs at most 16 %, and more than 1 % in 6 of 100 cases."""
        most = max(
            self._cheapest_splits(problem, tile, H200_SMS, self.splits[-1])
            for tile in self.candidates(problem)
        )
        return most if most > 1 else 0

    def best_tile(
        self, problem: ConvProblem, sm_count: int = H200_SMS, split_k: bool = True
    ) -> Tile:
        """The tile that the model finds the fastest, each with its :meth:`best_splits`, or
        without split-K if ``split_k`` is False."""

        def cost(tile: Tile) -> float:
            splits_sums = split_k and len(self.splits) > 1
            splits = self.best_splits(problem, tile, sm_count) if splits_sums else 1
            return self.estimated_cost(problem, tile, sm_count, splits)

        return min(self.candidates(problem), key=cost)

    def allows_split_k(self, *, split_k: bool = True, relu: bool = False, **others: bool) -> bool:
        """Return whether a stage's options allow split-K: ``relu`` needs whole sums, which no block
        has if parts are added by atomic additions."""
        return len(self.splits) > 1 and split_k and not (relu and self.atomic)


def im2win_terms(problem: ConvProblem) -> int:
    """Elements that a window has in m11's im2win tensor: W_f columns, each padded to a float4."""
    return problem.W_f * blocks_for(problem.H_f * problem.C_i, FLOAT4) * FLOAT4


def depth_8_or_16(terms: int) -> int:
    """K_B: 16 if this adds at most 2 % to the terms, else 8."""
    return 16 if blocks_for(terms, 16) * 16 <= 1.02 * terms else 8


def fused_depth(problem: ConvProblem) -> int:
    """K_B of m15: 16 or 8 channels of one place of the filter if this divides C_i. Otherwise 16 if
    this adds at most 2 % to K, for large K; otherwise the depth from 6 to 16 with the fewest steps,
    the smallest of several. An odd depth needs two slices in a turn of the loop, so with only two
    or three slices, and no padding, the next even depth is faster."""
    for channels in (16, 8):
        if problem.C_i % channels == 0:
            return channels
    if depth_8_or_16(problem.K) == 16:
        return 16
    depths = range(min(6, problem.K), min(16, problem.K) + 1)
    depth = min(depths, key=lambda depth: (blocks_for(problem.K, depth) * depth, depth))
    few, bare = 8 < depth < problem.K <= 3 * depth, problem.padding == ((0, 0), (0, 0))
    return depth + 1 if few and bare and depth % 2 else depth


M11 = Heuristic(
    rates={
        (128, 64, 8, 8): 1.0,
        (64, 128, 8, 8): 0.9,
        (96, 64, 8, 8): 0.82,
        (64, 64, 8, 4): 0.84,
        (64, 32, 8, 4): 0.78,
        (32, 64, 4, 8): 0.75,
        (32, 32, 4, 4): 0.72,  # at 0.70 too rarely chosen on the fitted problems, at 0.74 too often
        (16, 128, 4, 8): 0.5,
    },
    slice_depth=lambda problem: depth_8_or_16(im2win_terms(problem)),
    overhead=55.0,
    latency=Latency(slice=4.0, copy=3.0, step=38.0, fma=0.74),
    terms=im2win_terms,
    window_copy=FLOAT4,
    smallest=(32, 64),
    few_terms=168,  # 8 x 8 sums took 1 to 27 % longer on five problems of 36 and 168 terms
)

M15 = Heuristic(
    # Eight more shapes were measured on 55 problems; none was faster than the best by 2 %.
    rates={
        (128, 64, 8, 8): 1.0,
        (64, 128, 8, 8): 0.92,
        (96, 128, 12, 8): 0.94,
        (64, 64, 8, 4): 0.84,
        (64, 32, 8, 4): 0.825,
        (32, 64, 4, 8): 0.79,
        (32, 32, 4, 4): 0.68,
        (16, 128, 4, 8): 0.45,
    },
    slice_depth=fused_depth,
    # The times do not show that a step of k, or a block's beginning and end, costs anything.
    overhead=0.0,
    latency=Latency(slice=50.0, copy=50.0, step=0.0, fma=0.4),
    smallest=(32, 64),
    deep=((32, 32, 4, 4), 32),  # fewer barriers
    splits=SPLITS,
    split_price=SplitPrice(start=4700.0, addition=0.0042),
    atomic=True,
    most_split_sums=64,
    most_outputs=9 * 64 * 64 * H200_SMS,  # with more outputs, split-K gained at most 3 % or lost
)

M13 = replace(
    M15,
    splits=(1,),
    atomic=False,
    slice_depth=lambda problem: blocks_for(fused_depth(problem), 4) * 4,
)

T03 = Heuristic(
    rates={
        (128, 64, 16, 8): 1.0,
        (128, 64, 8, 8): 0.97,
        (64, 128, 8, 8): 0.98,
        (96, 64, 12, 8): 1.0,
        (96, 64, 6, 8): 0.93,
        (64, 64, 4, 8): 0.97,
        (32, 64, 4, 8): 0.84,
    },
    slice_depth=lambda problem: depth_8_or_16(problem.K),
    overhead=80.0,
    most_scalar_sums=64,
    registers=88,  # both parts of the operands, of K_B terms, and addresses
    registers_of_k=2,
)


class WarpgroupRates(NamedTuple):
    """The speed of a tile of 128 windows in t05, relative to its best tile, and in t06, in
    multiply-adds per clock and SM."""

    t05: float
    t06: float


# By M_B. t06's of 32, 64, 112 and 128 are fitted to 220 times of an H200, of 21 layers at batch 1
# and 32 and of t05 on the paper's layers; tensor cores could do 341. Its others are in proportion
# to these on layers of few channels (tests/tools/warpgroup_tiles.py). t05's of 8, 16, 48 and 80 are
# estimates, not measured. No other multiples of 8: with 24 and 40 gains are small, and 88,
# 104 and 120 were slower than 64.
WARPGROUP_RATES = {
    128: WarpgroupRates(t05=1.0, t06=341.0),
    112: WarpgroupRates(t05=1.0, t06=341.0),
    96: WarpgroupRates(t05=0.93, t06=341.0),
    80: WarpgroupRates(t05=0.86, t06=320.0),
    64: WarpgroupRates(t05=0.89, t06=334.0),
    48: WarpgroupRates(t05=0.72, t06=300.0),
    32: WarpgroupRates(t05=0.6, t06=260.0),
    16: WarpgroupRates(t05=0.4, t06=150.0),
    8: WarpgroupRates(t05=0.2, t06=75.0),
}

T05 = Heuristic(
    rates={(M_B, 128, M_B // 4, 4): rates.t05 for M_B, rates in WARPGROUP_RATES.items()},
    slice_depth=lambda problem: 16,
    overhead=80.0,
    smallest=(32, 32),
    most_scalar_sums=96,
    registers=96,  # half as many sums in flight, both parts of the operands, and addresses
    alone=1.5,
)

T06 = replace(
    T05,
    rates={
        (M_B, 128, M_B // 4, 4): rates.t06 / FMA_A_CLOCK for M_B, rates in WARPGROUP_RATES.items()
    },
    overhead=75.0,
    latency=Latency(slice=1590.0, copy=0.0, step=0.0, fma=0.0),
    alone=1.0,
    most_split_sums=112,
    splits=(*SPLITS, 24, 32),
    # To store a part and to load it takes 8 bytes, and one SM loads the parts of a tile.
    split_price=SplitPrice(start=5550.0, addition=0.00095, join=0.103),
    most_outputs=M15.most_outputs,
)

# By the name that a stage's ``Tiles.heuristic`` gives.
HEURISTICS = {"m11": M11, "m13": M13, "m15": M15, "t03": T03, "t05": T05, "t06": T06}


def paper_tile(problem: ConvProblem) -> Tile:
    """The paper's own sizes (128 x 128 x 8, 8 x 8 per thread), but 64 rows if 128 would leave at
    least a quarter of all rows without a channel, and 64 would leave fewer."""
    rows_of_128, rows_of_64 = (blocks_for(problem.M, size) * size for size in (128, 64))
    wasteful = 4 * (rows_of_128 - problem.M) >= rows_of_128
    M_B = 64 if wasteful and rows_of_64 < rows_of_128 else 128
    return Tile(M_B=M_B, N_B=128, K_B=8, M_T=8, N_T=8)


def heuristic_of(stage: Stage) -> Heuristic | None:
    """The model that chooses the stage's tile, if one does."""
    name = stage.tiles and stage.tiles.heuristic
    return HEURISTICS[name] if name else None


def candidates(stage: Stage, problem: ConvProblem) -> tuple[Tile, ...]:
    """The tiles that a tuner measures; none for a stage without a heuristic."""
    heuristic = heuristic_of(stage)
    return heuristic.candidates(problem) if heuristic else ()


def production_tile(
    stage: Stage, problem: ConvProblem, sm_count: int | None = None, **options: bool
) -> Tile | None:
    """The stage's tile for a GPU of ``sm_count`` SMs; None for a stage without tiles."""
    if heuristic := heuristic_of(stage):
        return heuristic.best_tile(
            problem, sm_count or H200_SMS, split_k=heuristic.allows_split_k(**options)
        )
    if stage.tiles is None:
        return None
    production: Callable[..., Tile] = stage.tiles.production or paper_tile
    return production(problem, **sms_for(production, sm_count))


def splits_for(
    stage: Stage, problem: ConvProblem, tile: Tile | None, sm_count: int | None, **options: bool
) -> dict[str, int]:
    """``{"splits": n}`` for a stage with split-K, by the model; empty for any other stage, and if
    an option rules split-K out."""
    heuristic = heuristic_of(stage)
    if heuristic is None or tile is None or not heuristic.allows_split_k(**options):
        return {}
    return {"splits": heuristic.best_splits(problem, tile, sm_count or H200_SMS)}


def production_program(
    stage: Stage,
    problem: ConvProblem,
    tile: Tile | None = None,
    sm_count: int | None = None,
    *,
    workspace_limit: int | None = None,
    **switches: bool,
) -> Program:
    """Return the stage prepared with that tile, by default with its production tile, and with
    split-K by the model, for a GPU of ``sm_count`` SMs, by default an H200. A stage whose grid
    depends on the number of SMs is given it."""
    tile = tile or production_tile(stage, problem, sm_count, **switches)
    # A number of splits that is given stays.
    options: dict[str, int] = splits_for(stage, problem, tile, sm_count, **switches) | switches
    if workspace_limit is not None:
        options["workspace_limit"] = workspace_limit
    return stage.prepare(problem, tile, **options, **sms_for(stage.prepare, sm_count))


def allowances(stage: Stage, problem: ConvProblem) -> Allowances:
    """The arguments of ``Oracle.check`` that depend on the stage's arithmetic."""
    heuristic, additions = heuristic_of(stage), stage.atomic_additions(problem)
    if heuristic and heuristic.atomic:
        additions += heuristic.most_splits(problem)
    return {
        "atomic_additions": additions,
        "split_products": stage.precision == "3xtf32",
        "tf32_products": stage.precision == "tf32",
        "cut_factors": stage.cuts_to_tf32,
    }
