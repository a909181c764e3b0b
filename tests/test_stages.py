"""Every stage on every kind of problem, checked element by element."""

from __future__ import annotations

import difflib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numba.cuda.core import config
from strategies import Tensors, cases, tensors

from convlab import LADDER, ConvProblem, Stage, Tile
from convlab.ladder import ABLATION, BACKWARD, RENAMED, family, production_tile, stage_named
from convlab.ladder.channels.receptive_field import field_for
from convlab.problems.oracle import random_tensors
from convlab.running.able_stages import stages_for
from convlab.running.engines import choose

STAGES, LEFT_OUT = stages_for(choose())  # without a library for it, some cannot run on a GPU
ON_GPU = choose().is_gpu
# A GPU compiles for each, a simulator crawls through each, Numba's the most; they are others each
# time.
EXAMPLES, MOST_MACS = (25, 1500) if ON_GPU else (3 if config.ENABLE_CUDASIM else 10, 1000)

stages = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)

AWKWARD = {
    "one of everything": ConvProblem(1, 1, 1, 1, 1, 1),
    "1x1 filter": ConvProblem(2, 5, 3, 4, 6, 1),
    "one output pixel": ConvProblem(1, 3, 5, 4, 7, (5, 4)),
    "one row": ConvProblem(2, 2, 1, 13, 3, (1, 3)),
    "one column": ConvProblem(2, 2, 13, 1, 3, (3, 1)),
    "primes": ConvProblem(1, 3, 7, 11, 5, (3, 2)),
    "stride larger than filter": ConvProblem(1, 2, 11, 13, 3, 2, stride=(3, 5)),
    "padding larger than filter": ConvProblem(1, 2, 3, 2, 3, 2, padding=(3, 4)),
    "padding on two sides only": ConvProblem(1, 2, 4, 5, 3, 3, padding=((0, 2), (1, 0))),
    "same": ConvProblem(1, 3, 5, 6, 2, (4, 3), padding="same", dilation=(1, 2)),
    "dilation": ConvProblem(1, 2, 9, 11, 3, (3, 2), dilation=(2, 5)),
    "stride and dilation": ConvProblem(2, 2, 11, 12, 3, 3, (2, 3), (1, 2), (3, 2)),
    "whole tiles": ConvProblem(1, 8, 4, 8, 16, (1, 2), padding=((0, 0), (0, 1))),
    "one more than a tile": ConvProblem(1, 5, 3, 3, 17, 1),
    "output in whole float4s, rows not": ConvProblem(2, 1, 2, 6, 5, 1),
    "one window of many channels": ConvProblem(1, 40, 1, 1, 17, 1),
}
# Numba's simulator runs the same Python: there, those that take every branch which all take.
BRANCHES = (
    "primes", "same", "dilation", "stride and dilation", "whole tiles",
    "output in whole float4s, rows not", "one window of many channels",
)  # fmt: skip
PROBLEMS = {name: AWKWARD[name] for name in (BRANCHES if config.ENABLE_CUDASIM else AWKWARD)}


@pytest.mark.slow
@stages
@given(case=cases(MOST_MACS))
@settings(max_examples=EXAMPLES)
def test_any_problem_and_any_values(
    stage: Stage, case: tuple[ConvProblem, Tensors], checked
) -> None:
    problem, numbers = case
    if stage.why_not(problem):  # its type, its layout, or its channels
        problem = stage.adapted(problem)
        numbers = random_tensors(problem, 1)
    result = checked(problem, stage, numbers, stage.tiny_tile)
    assert result.ok, f"{stage.name} on {problem}: {result}"


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        (stage, name)
        for stage in STAGES
        # Those of 16 bits have hundreds of threads a block, and shapes of their own in
        # test_panel_stages.py and test_stem.py.
        for name in (BRANCHES if stage.channels_last else PROBLEMS)
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_awkward_problem(stage: Stage, name: str, checked) -> None:
    # Whole numbers: float32 sums them exactly, so that any wrong term shows. Some have no bias.
    problem = stage.adapted(PROBLEMS[name])
    numbers = random_tensors(problem, 1, problem.C_o != 3, integers=True)
    result = checked(problem, stage, numbers, stage.tiny_tile)
    assert result.ok, f"{stage.name}: {result}"


@pytest.mark.parametrize("name", ["c02_receptive_field", "c03_output_channels"])
@pytest.mark.parametrize(
    ("problem", "parts"),
    [
        (ConvProblem(1, 2, 210, 205, 2, 2, dilation=200), 2),
        (ConvProblem(1, 1, 9, 400, 2, (2, 90), dilation=(1, 4)), 1),
        (ConvProblem(1, 2, 301, 302, 2, 1, stride=300), 1),
    ],
    ids=["far taps", "a wide filter", "far pixels"],
)
def test_a_field_larger_than_shared_memory_is_taken_in_parts(
    name: str, problem: ConvProblem, parts: int, checked
) -> None:
    field = field_for(problem, 8)
    assert (field.parts(problem), 4 * prod(field.shape) <= 48 * 1024) == (parts, True)
    result = checked(problem, stage_named(name), random_tensors(problem, 1, integers=True))
    assert result.ok, result


@stages
def test_values_that_float_arithmetic_treats_specially(stage: Stage, checked) -> None:
    """An image and a filter of each kind, so that each kind meets each."""
    kinds = ("nan", "infinities", "denormals", "huge", "negative zeros")
    one = stage.adapted(ConvProblem(1, 3, 4, 6, 1, (2, 3), stride=(1, 2), padding=1))
    each = [tensors(one, kind, seed, bias=True) for seed, kind in enumerate(kinds, 3)]
    numbers = tuple(np.concatenate(parts) for parts in zip(*each, strict=True))
    problem = replace(one, batch=len(kinds), out_channels=len(kinds) * one.out_channels)
    result = checked(problem, stage, numbers, stage.tiny_tile)
    assert result.ok, f"{stage.name}: {result}"


@pytest.mark.parametrize("on", [*itertools.product((True, False), repeat=3)], ids=str)
@pytest.mark.parametrize("tile", [Tile(8, 4, 4, 4, 4), Tile(4, 24, 4, 4, 4)], ids=str)
def test_ablation_is_right_too(on: tuple[bool, ...], tile: Tile, checked) -> None:
    # Slices enough for both buffers to be used again, even where each is 16 deep. With the second
    # tile two threads of six have no float4 of the filter.
    problem = ConvProblem(1, 4, 9, 9, 9, 3, (2, 1), (1, 2), (3, 2))
    numbers = random_tensors(problem, 2, integers=True)
    switches = dict(zip(ABLATION.switches, on, strict=True))
    result = checked(problem, ABLATION, numbers, tile, **switches)
    assert result.ok, result


def test_tiles_of_the_ablation() -> None:
    problem, tile = AWKWARD["primes"], Tile(128, 128, 24, 8, 8)
    assert ABLATION.prepare(problem, tile, prefetch=False).tile == tile  # one buffer is half of two
    with pytest.raises(ValueError, match=re.escape(f"{tile}: its slices take 49920 bytes")):
        ABLATION.prepare(problem, tile)
    # Without the micro-kernel a thread has one output; the tile that was passed is named.
    assert ABLATION.prepare(problem, ABLATION.tiny_tile, microkernel=False).tile == Tile(16, 8, 32)
    with pytest.raises(ValueError, match="tile 6x8x4/1x1: M_B, N_B and K_B"):
        ABLATION.prepare(problem, Tile(6, 8, 4), microkernel=False)


# Tiles of other shapes than the tiny ones: one thread, wide, tall, deep, with remainders in the
# threads' shares of a slice.
OTHER_TILES = {
    "m03": [Tile(1, 1, 1), Tile(2, 8, 3), Tile(8, 2, 5)],
    "m04": [Tile(4, 2, 3, M_T=4), Tile(6, 8, 5, M_T=3)],
    "m05": [Tile(8, 4, 3, 2, 2), Tile(4, 4, 1, 1, 1), Tile(8, 2, 5, 2, 1)],
    "m06": [Tile(16, 4, 3, 4, 4), Tile(32, 8, 5, 4, 4)],
    "m08": [Tile(16, 4, 2, 4, 4), Tile(32, 8, 6, 4, 4), Tile(32, 4, 8, 8, 4)],
    "m10": [Tile(16, 4, 16, 4, 4), Tile(32, 8, 8, 8, 4)],
    "m11": [
        *(Tile(4, 4, 4, 4, 4), Tile(8, 12, 12, 4, 4), Tile(8, 16, 8, 8, 8), Tile(4, 24, 4, 4, 4)),
        *(Tile(12, 32, 8, 4, 4), Tile(32, 64, 16, 4, 4)),  # two warps along M, two along N
    ],
    "m12": [
        *(Tile(32, 64, 16, 4, 4), Tile(12, 32, 8, 4, 4)),
        Tile(32, 96, 32, 4, 4),  # three slices: no room
    ],
    **{key: [Tile(32, 64, 8, 4, 4), Tile(4, 8, 4, 4, 4)] for key in ("m13", "m14")},
    "m15": [
        *(Tile(32, 64, 8, 4, 4), Tile(4, 8, 4, 4, 4)),
        *(Tile(32, 64, 5, 4, 4), Tile(4, 8, 1, 4, 4), Tile(4, 8, 2, 4, 4)),
    ],
    "t01": [Tile(32, 32, 16, 4, 8), Tile(16, 32, 24, 2, 8)],
    "t02": [Tile(32, 32, 24, 2, 8), Tile(64, 32, 8, 4, 8), Tile(16, 64, 16, 2, 16)],
    "t03": [Tile(32, 64, 8, 2, 8)],
}
USUAL = ConvProblem(2, 3, 5, 4, 9, (2, 3), padding=1, stride=(1, 2))
# Five channels, so that no slice can be channels of one place; K of 30 and N of 60.
FEW = ConvProblem(3, 5, 7, 6, 9, (2, 3), stride=(2, 1), padding=((0, 2), (1, 0)))
# Fifteen pixels an image, so that four neighbouring windows may be of two images.
TAIL = ConvProblem(5, 4, 4, 5, 21, (2, 1))
ODD = ConvProblem(5, 5, 7, 6, 9, (2, 3), stride=(2, 1), padding=((0, 0), (1, 0)))
EIGHT_CHANNELS = ConvProblem(2, 8, 6, 7, 18, (3, 2), (1, 2), (1, 2), (2, 1))
# More windows than a block of t05 computes (128) and more filters than two blocks of 8, neither a
# multiple. Outputs of LONG are stored as float4s, of LONG_ODD (15 pixels an image) as scalars.
LONG = ConvProblem(18, 3, 4, 3, 20, (2, 1), padding=((0, 1), (0, 0)))
LONG_ODD = ConvProblem(9, 3, 4, 5, 20, (2, 1))


def many(channels: int) -> ConvProblem:
    """So many that a slice can be channels of one place: six slices, or more."""
    return ConvProblem(2, channels, 5, 5, 17, (3, 2), (1, 2), (1, 2), (2, 1))


def warpgroup_tile(channels: int) -> Tile:
    return Tile(channels, 128, 16, channels // 4, 4)


FUSED_TILES = [
    Tile(16, 32, 8, 4, 4),  # a warp of 4 x 8
    Tile(32, 32, 4, 4, 4),  # two of them
    Tile(16, 64, 8, 4, 4),  # two side by side
    Tile(16, 64, 4, 4, 8),  # twice as many windows as threads
    Tile(8, 16, 3, 4, 4),  # eight threads for 16 columns, an odd depth, a warp that is none
    Tile(16, 8, 7, 4, 4),  # as many threads as columns; a tail of K
    Tile(32, 8, 2, 4, 4),  # two rows of a slice at a time
    Tile(12, 32, 1, 12, 8),  # slices of one step
]
WARP_TILES = [
    Tile(16, 32, 8, 2, 8),  # one warp
    Tile(32, 32, 8, 2, 8),  # two along M, which fetch two rows of a slice at a time
    Tile(16, 64, 8, 2, 8),  # two along N
    Tile(64, 64, 8, 4, 8),  # two along both
    Tile(48, 32, 8, 6, 8),
    Tile(16, 64, 8, 2, 16),  # twice as many windows as threads
    Tile(128, 32, 8, 16, 8),
    Tile(16, 32, 16, 2, 8),  # chains of 16 terms
    Tile(32, 64, 24, 4, 8),  # of 8, for 16 does not divide 24
    Tile(16, 32, 32, 2, 8),
]
WARPGROUP_CHANNELS = [8, 24] if config.ENABLE_CUDASIM else [8, 24, 64, 128]
if ON_GPU:
    WARPGROUP_CHANNELS += [16, 40, 96, 120]
SPLIT_TILES = [
    *(("t03", t) for t in WARP_TILES if t.threads * t.K_B <= 512 or not config.ENABLE_CUDASIM),
    *(("t05", warpgroup_tile(channels)) for channels in WARPGROUP_CHANNELS),
]


def where_it_runs(name: str) -> pytest.MarkDecorator:
    """The mark that skips the stage where it cannot run, with the reason."""
    return pytest.mark.skipif(stage_named(name) not in STAGES, reason=str(LEFT_OUT))


def runnable(ways: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Arguments of a test, of which the first is a stage's name."""
    return [pytest.param(*way, marks=where_it_runs(way[0])) for way in ways]


def tiles_and_problems() -> Iterator[tuple[str, Tile, ConvProblem]]:
    for name, tiles in OTHER_TILES.items():
        yield from ((name, tile, USUAL) for tile in tiles)
    # Every way in which the fused stages fetch and multiply.
    for tile, problem in itertools.product(FUSED_TILES, (EIGHT_CHANNELS, FEW, TAIL)):
        yield "m15", tile, problem
    for way, problem in zip(SPLIT_TILES, itertools.cycle((FEW, ODD, TAIL)), strict=False):
        yield *way, problem
    yield "t05", warpgroup_tile(24), ConvProblem(1, 16, 1, 3, 70, 1)  # two blocks that pack
    tiny = stage_named("t05").tiny_tile
    yield "t05", tiny, ConvProblem(1, 48, 3, 4, 9, (2, 1))  # groups of channels follow one another
    for depth in (1, 15, 16, 17, 32, 33, 48, 49):  # up to 32 terms are two slices, fetched at once
        yield "t05", tiny, ConvProblem(1, depth, 1, 3, 5, 1)
    for p in LONG, LONG_ODD:
        assert (p.N > 128, p.M > 16, p.N % 128 > 0, p.M % 8 > 0) == (True,) * 4
        yield "t05", tiny, p


@pytest.mark.parametrize(("name", "tile", "problem"), runnable(tiles_and_problems()), ids=str)
def test_tiles_are_parameters(name: str, tile: Tile, problem: ConvProblem, checked) -> None:
    result = checked(problem, stage_named(name), random_tensors(problem, 3, integers=True), tile)
    assert result.ok, result


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tile"), runnable(SPLIT_TILES), ids=str)
def test_slices_that_are_channels_of_one_place(name: str, tile: Tile, checked) -> None:
    problem = many(tile.K_B)
    assert tile.channel_group(problem) == tile.K_B
    result = checked(problem, stage_named(name), random_tensors(problem, 1), tile)
    assert result.ok, result


UNSUITED_TILES = {  # and a part of the sentence that names the sizes and the rule
    "m03": [(Tile(4, 4, 4, 2, 1), "M_T = N_T = 1"), (Tile(32, 32, 193), "shared memory has 49152")],
    "m04": [(Tile(4, 4, 4, 1, 2), "N_T = 1"), (Tile(64, 64, 97, 16), "shared memory has 49152")],
    "m05": [(Tile(5, 7, 3, 5, 7), "multiple of N_B"), (Tile(128, 128, 64, 8, 8), "65536 bytes")],
    "m06": [
        (Tile(8, 8, 4, 2, 4), "M_T and N_T must be multiples of 4"),
        (Tile(4, 8, 4, 4, 4), "a multiple of N_B"),
        (Tile(128, 128, 64, 8, 8), "take 65536 bytes"),
    ],
    "m08": [
        (Tile(16, 4, 3, 4, 4), "K_B must be even"),
        (Tile(32, 16, 2, 4, 4), "share K_B x M_B / 4 float4s"),
        (Tile(128, 128, 32, 8, 8), "take 65536 bytes"),
    ],
    "m10": [
        (Tile(16, 8, 6, 4, 4), "K_B must"),
        (Tile(32, 16, 4, 4, 4), "share K_B x M_B / 4"),
        (Tile(128, 128, 32, 8, 8), "take 66560 bytes"),
    ],
    "m11": [
        (Tile(16, 4, 6, 4, 4), "M_T, N_T and K_B must be multiples of 4"),
        (Tile(16, 6, 4, 4, 2), "M_T, N_T and K_B must be multiples of 4"),
        (Tile(8, 8, 4, 2, 4), "M_T, N_T and K_B must be multiples of 4"),
        (Tile(128, 128, 32, 8, 8), "take 66560 bytes"),
    ],
    "m15": [
        (Tile(16, 32, 4, 2, 4), "multiples of 4"),
        (Tile(24, 32, 4, 4, 4), "a multiple or a divisor of N_B"),
        (Tile(128, 128, 32, 8, 8), "shared memory"),
    ],
    "t01": [(Tile(16, 64, 8, 2, 16), "a multiple of N_B"), (Tile(128, 128, 48, 8, 8), "50880")],
    "t03": [
        (Tile(16, 32, 8, 1, 8), "M_T must be a multiple of 2"),
        (Tile(16, 32, 8, 2, 4), "N_T of 8"),
        (Tile(12, 32, 8, 2, 8), "M_B must be a multiple of 8"),
        (Tile(16, 48, 8, 2, 8), "N_B of 4 "),
        (Tile(16, 32, 12, 2, 8), "K_B must be a multiple of 8"),
        (Tile(48, 64, 8, 2, 16), "a multiple or a divisor of N_B"),
        (Tile(128, 64, 24, 8, 8), "shared memory"),
    ],
    "t05": [
        (Tile(8, 64, 16, 2, 4), "N_B must be 128"),
        (Tile(8, 256, 16, 2, 4), "N_B must be 128"),
        (Tile(8, 128, 8, 2, 4), "K_B 16"),
        (Tile(8, 128, 32, 2, 4), "K_B 16"),
        (Tile(12, 128, 16, 3, 4), "M_T must be a multiple of 2"),
        (Tile(136, 128, 16, 34, 4), "at most 128"),
        (Tile(32, 128, 16, 4, 4), "M_T M_B / 4"),
        (Tile(32, 128, 16, 8, 8), "N_T must be 4"),
    ],
}


@pytest.mark.parametrize(
    ("name", "tile", "rule"),
    [(name, *refused) for name, refusals in UNSUITED_TILES.items() for refused in refusals],
    ids=str,
)
def test_a_tile_that_does_not_suit_is_refused_with_its_rule(
    name: str, tile: Tile, rule: str
) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(str(tile))}: .*{re.escape(rule)}"):
        stage_named(name).prepare(AWKWARD["primes"], tile)


def test_production_tiles_waste_few_rows() -> None:
    for rows in (64, 96, 128, 65, 1, 192, 1088, 300):
        tile = production_tile(stage_named("m08"), ConvProblem(1, 1, 1, 1, rows, 1))
        wasted = -rows % tile.M_B
        assert tile.M_B == 64 or 4 * wasted < rows + wasted or -rows % 64 == wasted


@stages
def test_a_stage_says_what_it_is(stage: Stage) -> None:
    names = [other.name for other in LADDER]
    assert stage.module.endswith(stage.name)
    assert stage.title
    # As docs/README.md lists them.
    assert re.match(
        r"(im2win paper \(000\)|Accelerating 2D Convolutions on GPU \(001\)|"
        r"Faster Convolution \(002\)|CUDA IM2COL Kernels Design \(003\)), ",
        stage.source,
    )
    assert all(names.index(earlier) < names.index(stage.name) for earlier in stage.builds_on)


def test_an_earlier_number_of_several_stages_is_refused_with_their_names() -> None:
    today = "c01_input_channels or c02_receptive_field or c03_output_channels"
    with pytest.raises(ValueError, match=f"'s02': s02 is {today} now"):
        stage_named("s02")


@pytest.mark.same_in_cudasim
@stages
def test_a_step_of_many_changed_lines_says_why(stage: Stage) -> None:
    bases = [stage_named(name) for name in stage.builds_on]
    steps = [changed_lines(file_of(base), file_of(stage)) for base in bases]
    words = " ".join((sys.modules[stage.module].__doc__ or "").split())
    named = " and ".join(name.split("_")[0] for name in stage.builds_on)
    says = f"The difference to {named} is long (over 150 lines), because" in words
    assert says == (bool(steps) and min(steps) > 150), steps


def changed_lines(old: Path, new: Path) -> int:
    """Lines added and removed, as ``diff`` counts them."""
    texts = [file.read_text(encoding="utf-8").splitlines() for file in (old, new)]
    delta = difflib.unified_diff(*texts, n=0, lineterm="")
    return sum(line[0] in "+-" for line in delta if not line.startswith(("+++", "---", "@@")))


def file_of(stage: Stage) -> Path:
    return Path(sys.modules[stage.module].__file__ or "")


def test_an_earlier_name_is_refused_with_today_s() -> None:
    for old, new in RENAMED.items():
        said = re.escape(f"stage is '{old}': {old} is {new} now")
        with pytest.raises(ValueError, match=f"^{said}$"):
            stage_named(old)
        with pytest.raises(ValueError, match=rf" is .*\b{new}\b.* now$"):
            stage_named(old.split("_")[0])
        assert new in {stage.name for stage in (*LADDER, *BACKWARD)}
    assert not {stage.name for stage in LADDER} & {*RENAMED}


def test_a_family_is_handed_down_the_ladder() -> None:
    families = {stage.name: family(stage) for stage in LADDER}
    for name, found in families.items():  # t01 has m05's loads
        windows = (name >= "m09" or name[0] == "h") and name != "t01_mma"
        assert found == ("im2win" if windows else "im2col" if name[0] == "i" else "plain")
