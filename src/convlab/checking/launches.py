"""Launches of a checked kernel: the problems, and tiles that show what small ones hide."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product
from typing import NamedTuple

from convlab.checking.loading import Maker, offers
from convlab.checking.outcome import ADDED, ADDED_TOO, BESIDE, RELU, SPOILED
from convlab.ladder import Launch, Program, Stage, Tile
from convlab.ladder.stage import RESIDUAL
from convlab.problems.problem import ConvProblem
from convlab.simulation.rules.memory_traffic import WARP

# Sizes of one, primes, remainders in M, N and K of every tile, unequal padding: a kernel that is
# right on powers of two may fail here.
PIXEL = ConvProblem(1, 1, 1, 1, 1, 1)
LOW, DEEP = "a 1 x 1 filter", "several images, many channels"  # with tiles of their own
PROBLEMS = {
    "a single pixel": PIXEL,
    # More rows than the im2win transform takes columns; a column that no window sees.
    LOW: ConvProblem(1, 8, 17, 4, 6, 1, stride=(1, 2)),
    "prime sizes": ConvProblem(1, 2, 7, 5, 3, (3, 2)),
    # A pixel is three float4s in NHWC; a column of the filter takes several im2win tiles.
    DEEP: ConvProblem(2, 11, 5, 2, 9, (4, 1)),
    "a stride larger than the filter": ConvProblem(2, 3, 9, 12, 5, (2, 1), stride=(4, 3)),
    "padding wider than the image": ConvProblem(1, 2, 2, 3, 3, 3, padding=((3, 1), (0, 2))),
    "several images": ConvProblem(3, 8, 3, 3, 13, 2),
    "several rows of blocks": ConvProblem(
        1, 5, 5, 8, 21, (2, 3), stride=(2, 3), padding=(1, 2), dilation=(1, 2)
    ),
    # A column of the filter is one term less than whole float4s. Rows have padding and dilation: a
    # padding that is multiplied by the dilation is wrong here.
    "dilation": ConvProblem(
        1, 5, 12, 9, 4, (3, 2), dilation=(3, 2), stride=(1, 2), padding=((2, 1), (0, 0))
    ),
    # Several slices of one place of the filter; more than the channels and the columns that a block
    # of the C_in-parallel stages takes.
    "many channels, a wide image": ConvProblem(
        1, 24, 3, 31, 2, (2, 3), stride=(3, 1), padding=(1, 3), dilation=(1, 2)
    ),
    "everything at once": ConvProblem(
        2, 5, 5, 8, 5, (2, 3), stride=(2, 3), padding=(1, 2), dilation=(1, 2)
    ),
    # Windows see the spoiled pixels, the first, the middle and the last, and those around them.
    SPOILED: ConvProblem(2, 3, 6, 5, 9, (2, 3), stride=(2, 3), padding=(1, 3), dilation=(1, 2)),
    RELU: ConvProblem(2, 16, 4, 3, 5, (2, 3), stride=(3, 1), padding=(2, 3), dilation=(2, 1)),
}
EVERYTHING = PROBLEMS["everything at once"]
COUNTED = "what is counted below"
# For stages without tiles: both, as a loop over rows that counts columns is right on one. Each has
# several blocks along one side, and strides, which count in where a block begins.
PARTS = tuple(f"a {shape} filter that takes more than shared memory" for shape in ("tall", "wide"))
TALL = "another tile"
SEVERAL = "several blocks of several warps"  # larger for some stages: in_blocks
SPLIT = "split-K"
TALL_TOO, SPLIT_TOO = "another tile, fewer columns", "split-K, fewer slices"
OTHER_DEPTH = "several warps, another depth"
TALL_DEEP = "another tile, many channels"
OWN_TILE = TALL, TALL_TOO, OTHER_DEPTH, TALL_DEEP  # left out where the stage has no such tile
PROBLEMS[PARTS[0]] = ConvProblem(1, 1, 181, 159, 1, (3, 2), (2, 3), dilation=(80, 150))
PROBLEMS[PARTS[1]] = ConvProblem(1, 1, 159, 227, 1, (2, 3), (3, 2), dilation=(150, 80))
# With K_B = 5 seven slices, of which split-K gives one block four and the other three: an even and
# two odd numbers, of which the largest goes through a pipeline of three more than twice. With
# K_B = 4 each slice is one place of the filter.
PROBLEMS[TALL] = PROBLEMS[SEVERAL] = replace(EVERYTHING, in_channels=4, kernel_size=(2, 4))
PROBLEMS[SPLIT] = replace(PROBLEMS[TALL], batch=6, out_channels=61)  # four blocks of _split's tile
# With K_B = 5 five slices, in split-K three and two: the third slice of a pipeline is never filled.
PROBLEMS[TALL_TOO] = PROBLEMS[OTHER_DEPTH] = replace(EVERYTHING, in_channels=4)
PROBLEMS[SPLIT_TOO] = replace(PROBLEMS[TALL_TOO], batch=4, out_channels=61)
# The threads of a kernel before the main one, such as the im2win transform of many channels, may
# depend on the tile's columns: with the tiny tile they are one warp. The last block of channels is
# not full.
PROBLEMS[TALL_DEEP] = ConvProblem(1, 28, 4, 7, 5, (2, 1), stride=(1, 2), padding=(1, 0))
# Problems for some stages only.
FULL, CHUNKS = "whole tiles", "more channels than a slice"
STAYING, STAYING_TOO = "one block for all tiles", "two blocks for all tiles"
BROKEN_PIECE = "an input whose last 16 bytes are not whole"
WITHIN_ROWS = "blocks that begin within a row of outputs"
FOR_SOME = {
    # For stages with tiles: M_B channels, 128 windows, and 64 terms. Each of the others leaves a
    # remainder, which may hide that the last element of a tile is missing.
    FULL: ConvProblem(2, 8, 11, 9, 1, (4, 2)),
    # For tiles whose slices take more channels than any problem above has: with K_B = 64 two slices
    # of each place of the filter, of which the second is not full. The whole filter and input rows
    # for all its rows do not fit h04's shared memory.
    CHUNKS: ConvProblem(4, 80, 11, 10, 24, (5, 2), dilation=2),
    # For kernels whose blocks stay, with one SM or two: a block computes several tiles. The first
    # reads a row of the filter so often that h06 copies it.
    STAYING: ConvProblem(4, 5, 9, 12, 61, (5, 3), stride=(2, 1), padding=2),
    STAYING_TOO: ConvProblem(4, 3, 9, 12, 16, (2, 3), padding=(1, 0)),
    # For kernels that load 16 bytes from any pixel on. The input has 135 numbers, one less than a
    # multiple of eight and of four, so a load of the last 16 bytes reads past its end.
    BROKEN_PIECE: ConvProblem(1, 3, 5, 9, 3, (3, 2)),
    # For blocks of 64 or 128 windows: ten rows of seven, so that the second block does not begin in
    # the first column. Two blocks of 128 that begin 32 windows apart do not reach the last image.
    # The strides differ: one must not be taken for the other.
    WITHIN_ROWS: ConvProblem(3, 3, 11, 15, 16, (2, 3), stride=(1, 2)),
    # For kernels that copy more than the windows, such as whole rows of the input: all numbers
    # that no window has are NaN, those below a window and those to its right too. h04 reads these
    # windows in two strips, of which the second is not full, and copies a sixth row.
    BESIDE: ConvProblem(1, 5, 11, 6, 3, (5, 1), stride=(6, 2)),
}
# For kernels that add a tensor: remainders of windows and of channels, by whole 16-byte accesses
# and, with 21 channels, one by one.
PROBLEMS[ADDED] = ConvProblem(3, 2, 7, 8, 72, 1)
PROBLEMS[ADDED_TOO] = ConvProblem(2, 3, 3, 4, 21, 1)
# What a stage and a kernel may offer.
OPTIONS: dict[str, dict[str, int]] = {
    RELU: {"relu": True},
    ADDED: {RESIDUAL: True},
    ADDED_TOO: {RESIDUAL: True},
    SPLIT: {"splits": 2},
    SPLIT_TOO: {"splits": 2},
    STAYING: {"sm_count": 1},
    STAYING_TOO: {"sm_count": 2},
}


class SplitSizes(NamedTuple):
    """The slices of K, and the rows and columns of blocks, that ``in_splits`` gives a problem."""

    slices: int
    rows: int
    columns: int


SPLIT_SIZES = {SPLIT: SplitSizes(7, 2, 2), SPLIT_TOO: SplitSizes(5, 1, 1)}
# Channels that the last row of blocks lacks. It is not full, so that a kernel must check bounds. It
# is almost full, so that a block that begins too early leaves channels out.
LACKING = 3
WIDEST = 4 * WARP  # threads of a checked block, at most
MORE = (2, 3), (3, 2), (2, 1), (1, 2), (1, 1)  # times M_T and N_T of the tiny tile, the best first
TALLER = 5, 3, 2  # times M_T of the tiny tile


@cache
def _wide(tiny: Tile) -> tuple[Tile, ...]:
    """Small tiles of more than two warps, first those whose sizes differ most, so that one taken
    for another shows: the last warp is not full, threads do not divide what they share, and each
    computes more than in the tiny tile. Within one warp, as the tiny tile has, a missing barrier
    does no harm."""
    found = []
    for rows in range(1, WIDEST // 2 + 1):
        for columns in range(2 * WARP // rows + 1, WIDEST // rows + 1):
            for times_M, times_N in MORE:
                M_T, N_T = times_M * tiny.M_T, times_N * tiny.N_T
                for K_B in {tiny.K_B, rows, 2 * rows, columns, 2 * columns}:
                    if tiny.K_B <= K_B <= 3 * tiny.K_B:
                        found.append(Tile(rows * M_T, columns * N_T, K_B, M_T, N_T))

    def cost(tile: Tile) -> tuple[int, int]:
        slices = [tile.K_B * tile.M_B, tile.K_B * tile.N_B]
        alike = sum(slice % tile.threads == 0 for slice in slices)
        alike += sum(side % max(1, tile.threads // tile.K_B) == 0 for side in (tile.M_B, tile.N_B))
        alike += 4 - len({tile.M_B, tile.N_B, tile.K_B, tile.threads})
        if tile.threads % WARP == 0:
            alike += 2
        if tile.rows == tile.columns:
            alike += 1
        more = MORE.index((tile.M_T // tiny.M_T, tile.N_T // tiny.N_T))
        return alike + 2 * more, sum(slices)

    return tuple(sorted(found, key=cost))


@cache
def _tall(tiny: Tile) -> tuple[Tile, ...]:
    """Tiles of few threads whose four sizes differ, where each thread computes more rows than in
    the tiny tile: the wide ones have more columns. Those come first whose K_B is odd if the tiny
    one's is even, or the other way round; then small ones whose threads do not share windows
    evenly."""
    found = []
    for columns in range(2, 4 * tiny.columns + 1):
        for rows in range(1, 2 * tiny.threads // columns + 1):
            for times, K_B in product(TALLER, (tiny.K_B + 1, tiny.K_B)):
                M_T, N_T = times * tiny.M_T, tiny.N_T
                tile = Tile(rows * M_T, columns * N_T, K_B, M_T, N_T)
                sizes = {tile.M_B, tile.N_B, tile.K_B, tile.threads}
                if rows != columns and (M_T > N_T or N_T == 1) and len(sizes) == 4:
                    found.append(tile)

    def cost(tile: Tile) -> tuple[int, bool, int]:
        times, slices = TALLER.index(tile.M_T // tiny.M_T), tile.K_B * (tile.M_B + tile.N_B)
        even = tile.K_B * tile.N_B % (4 * tile.threads) == 0  # as many float4s for each thread
        return times, tile.K_B == tiny.K_B, slices * (1 + 2 * even)

    return tuple(sorted(found, key=cost))


def _low(tiny: Tile) -> tuple[Tile, ...]:
    """The tiny tile with one row of threads, so that M_B may be as little as 4. Where a tile is a
    warpgroup's, the tallest, whose slices leave shared memory no room for padding."""
    tallest = replace(tiny, M_B=16 * tiny.M_B, M_T=16 * tiny.M_T)
    return (tallest if tiny.N_B == 4 * WARP else replace(tiny, M_B=tiny.M_T),)


def _deep(tiny: Tile) -> tuple[Tile, ...]:
    """A tile of two threads, where a window's float4s in a slice are three, a number that divides
    none of the sizes; then one three times as deep as the tiny tile."""
    M_T, N_T = tiny.M_T, tiny.N_T
    narrow = Tile(4 * M_T, N_T, 3 * tiny.K_B // 2, 2 * M_T, N_T)
    return (narrow, replace(tiny, K_B=3 * tiny.K_B))


def _split(tiny: Tile) -> tuple[Tile, ...]:
    """A tile of 4 x 2 threads, each of which computes more than in the tiny tile, and of a K_B that
    is odd if the tiny one's is even."""
    M_T, N_T = 2 * tiny.M_T, 3 * tiny.N_T
    return (Tile(4 * M_T, 2 * N_T, tiny.K_B + 1, M_T, N_T),)


def _doubled(tiny: Tile) -> tuple[Tile, ...]:
    """Tiles of twice as many channels, and of twice as many windows if a thread may have them."""
    taller = replace(tiny, M_B=2 * tiny.M_B, M_T=2 * tiny.M_T)
    return (replace(taller, N_B=2 * tiny.N_B, N_T=2 * tiny.N_T), taller)


# Candidates by problem, from the tiny tile; OTHER_DEPTH's, which need the stage, are in tile_for.
TILES: dict[str, Callable[[Tile], tuple[Tile, ...]]] = {
    LOW: _low, DEEP: _deep, TALL: _tall, TALL_TOO: _tall, TALL_DEEP: _tall, SEVERAL: _wide,
    SPLIT: _split, SPLIT_TOO: _split, CHUNKS: _wide, ADDED: _doubled,
}  # fmt: skip


@lru_cache
def tile_for(stage: Stage, name: str) -> Tile | None:
    """The tile for one of the problems: the first of ``TILES`` for it that the stage takes. Where
    the stage takes none, or the problem has none of its own, the tiny tile, but None for those in
    ``OWN_TILE``. None for a stage without tiles."""
    tiny = stage.tiny_tile
    if tiny is None:
        return None
    tiles = TILES[name](tiny) if name in TILES else ()
    if name == OTHER_DEPTH:  # odd where the tiny tile's is even, or the other way round
        tiles = (replace(tile_for(stage, SEVERAL) or tiny, K_B=tiny.K_B + 1),)
    problem = stage.adapted(EVERYTHING)
    for tile in tiles:
        try:
            stage.prepare(problem, tile)
        except ValueError:
            continue
        return tile
    return None if name in OWN_TILE else tiny


def needs_chunks(tile: Tile) -> bool:
    """Return whether a slice may take more channels than any of ``PROBLEMS`` has."""
    most = max((one.in_channels for one in PROBLEMS.values()), default=0)
    return most < tile.K_B


def in_splits(problem: ConvProblem, tile: Tile, sizes: SplitSizes) -> ConvProblem:
    """Return the problem, enlarged if its sums have fewer slices than asked.

    Then it also has so many rows and columns of blocks, almost full ones: a block that begins too
    early leaves outputs out.
    """
    places, pixels = problem.K // problem.C_i, problem.N // problem.batch
    if (sizes.slices - 1) * tile.K_B < problem.K:
        return problem
    return replace(
        problem,
        batch=sizes.columns * tile.N_B // pixels,
        in_channels=(sizes.slices - 1) * tile.K_B // places + 1,
        out_channels=sizes.rows * tile.M_B - LACKING,
    )


def main_of(program: Program) -> Launch:
    """The main kernel's launch: the last, behind which a library's step may come."""
    return next(step for step in reversed(program.launches) if isinstance(step, Launch))


def in_blocks(stage: Stage, problem: ConvProblem, tile: Tile | None, rows: int = 1) -> ConvProblem:
    """The problem with as many more channels or images as take more than one block, and the images
    that fill most of a block's columns. With a tile there are ``rows`` of blocks or more, and the
    last of several is almost full, so that one that begins too early leaves channels out."""

    def larger(times: int) -> ConvProblem:
        if tile is None:
            return replace(problem, batch=(1 + times) * problem.batch)
        lacking = LACKING if tile.M_B > 8 else 1
        channels = (1 + times) * tile.M_B - lacking if times else problem.out_channels
        images = (tile.N_B - 1) // (problem.N // problem.batch)
        return replace(problem, out_channels=channels, batch=max(problem.batch, images))

    tried = map(stage.adapted, map(larger, range(rows - 1 if tile else 0, 64)))
    several = (one for one in tried if math.prod(main_of(stage.prepare(one, tile)).grid) > 1)
    return next(several, problem)


class Planned(NamedTuple):
    """A problem to try a kernel on: its name, the tile, and options of the kernel's maker.

    With ``if_right`` it is large and ends the check if an earlier problem is wrong.
    """

    name: str
    problem: ConvProblem
    tile: Tile | None
    options: dict[str, int]
    if_right: bool


def _suits(name: str, stage: Stage, tile: Tile | None) -> bool:
    """Return whether the problem of that name is for a stage, with this tile or without tiles."""
    if name == BROKEN_PIECE:
        return stage.channels_last and stage.channel_multiples == (1, 1)
    if name in (WITHIN_ROWS, BESIDE):
        return stage.channels_last
    if tile is None:
        return name not in (*OWN_TILE, FULL, CHUNKS)
    if name == CHUNKS:
        return needs_chunks(tile)
    return name not in PARTS


def _resized(stage: Stage, name: str, problem: ConvProblem, tile: Tile | None) -> ConvProblem:
    """Return the problem of that name as the stage takes it, with the blocks that it is to have."""
    if name == FULL and tile is not None:
        problem = replace(problem, out_channels=tile.M_B)
    if name in SPLIT_SIZES and tile is not None:
        problem = in_splits(problem, tile, SPLIT_SIZES[name])
    problem = stage.adapted(problem)
    if name == SEVERAL:
        return in_blocks(stage, problem, tile, rows=2)
    # TALL_DEEP keeps its few output channels: it is for the kernels before the main one.
    if name in OWN_TILE and name != TALL_DEEP:
        return in_blocks(stage, problem, tile)
    return problem


def planned(stage: Stage, make: Maker, first: tuple[str, ...] = ()) -> list[Planned]:
    """Return the problems that a right kernel is tried on, those named in ``first`` before the
    others, without the one that is counted."""
    found = []
    problems = PROBLEMS | FOR_SOME
    for name in dict.fromkeys((*first, *problems)):
        problem = problems[name]
        options, tile = OPTIONS.get(name, {}), tile_for(stage, name)
        if not (offers(stage.prepare, options) and offers(make, options)):
            continue
        if not _suits(name, stage, tile):
            continue
        problem = _resized(stage, name, problem, tile)
        large = name == SEVERAL or name in FOR_SOME
        found.append(Planned(name, problem, tile, options, if_right=large))
    return found
