"""The stage for few channels, h04: windows read from rows of the input in shared memory."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from computing import computed
from numba.cuda.core import config

from convlab import ConvProblem, Tile
from convlab.ladder import stage_named
from convlab.ladder.half_precision import h04_stem
from convlab.ladder.half_precision.window_spans import Spans, production_tile, spans_of, tile_of
from convlab.ladder.stage import MOST_SHARED_BYTES
from convlab.problems.oracle import random_tensors
from convlab.running.engines import Engine, choose
from convlab.running.engines.kernels import compile_launch

pytestmark = pytest.mark.skipif(
    choose().is_gpu and choose().capability() != (9, 0), reason="wgmma needs a Hopper GPU"
)

H04 = stage_named("h04")
HALVES = ("bfloat16", "float16")
not_in_cudasim = pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the same Python, a minute of it")


def channels_last(*numbers, dtype: str = "bfloat16", **more) -> ConvProblem:
    return ConvProblem(*numbers, dtype=dtype, channels_last=True, **more)


SHAPES = {
    "rows of an odd length": channels_last(2, 3, 7, 9, 8, 3),
    "windows at odd numbers": channels_last(1, 5, 4, 70, 8, (1, 3)),
    "runs in eights": channels_last(1, 8, 5, 6, 16, 3),
    "padded rows of an odd length": channels_last(2, 3, 6, 7, 8, 3, padding=1),
    "padding on two sides only": channels_last(1, 3, 5, 6, 8, 3, padding=((0, 2), (1, 0))),
    "more padding than image": channels_last(1, 3, 2, 3, 8, 3, padding=(3, 4)),
    "strides": channels_last(1, 3, 15, 17, 8, (5, 7), (2, 4), (2, 3)),
    "patches": channels_last(2, 3, 8, 12, 40, 4, 4),
    "filter rows apart": channels_last(1, 3, 11, 8, 8, 3, dilation=(4, 1)),
    "elements apart": channels_last(1, 3, 9, 12, 8, (2, 3), (1, 2), (1, 2), (2, 3)),
    "one element": channels_last(2, 70, 3, 5, 33, 1),
    "two filter rows": channels_last(1, 21, 4, 6, 9, 2, padding=1),
    "many odd channels": channels_last(1, 53, 4, 5, 97, 3, padding=1),
    "channels not in eights": channels_last(1, 3, 5, 6, 12, 2),
}


@pytest.mark.parametrize("problem", SHAPES.values(), ids=SHAPES.keys())
def test_shapes(problem: ConvProblem, checked) -> None:
    result = checked(problem, H04, random_tensors(problem, 5, integers=True))
    assert result.ok, result


@pytest.mark.parametrize("name", ["padded rows of an odd length", "channels not in eights"])
def test_float16(name: str, checked) -> None:
    """The types differ in the product, in rounding, and in how a bias is widened."""
    problem = replace(SHAPES[name], dtype="float16")
    result = checked(problem, H04, random_tensors(problem, 4))
    assert result.ok, result


# Two images, rows of an odd length, and enough windows for several spans of each width.
LONG = channels_last(2, 3, 5, 71, 40, (3, 2), (1, 2), (1, 1))


@pytest.mark.slow
@not_in_cudasim
@pytest.mark.parametrize(
    ("width", "parts", "rows"),
    [(1, 1, 4), (4, 1, 4), (8, 2, 2), (8, 2, 4), (16, 4, 1), (32, 4, 2), (64, 4, 3), (64, 1, 4)],
)
def test_windows_read_in_any_way(width: int, parts: int, rows: int, checked, monkeypatch) -> None:
    """Also in several slices: with fewer rows than the filter has."""
    spans = Spans(LONG, width, parts, rows, padding=(8, 16))
    monkeypatch.setattr(h04_stem, "spans_of", lambda problem, tile: spans)
    result = checked(LONG, H04, random_tensors(LONG, 6, integers=True), tile_of(32, 1))
    assert result.ok, result


@pytest.mark.slow
@not_in_cudasim
@pytest.mark.parametrize("M_B", [64, 96, 128])
def test_tiles(M_B: int, checked) -> None:
    problem = replace(LONG, out_channels=136)
    result = checked(problem, H04, random_tensors(problem, 7, integers=True), tile_of(M_B, 2))
    assert result.ok, result


@pytest.mark.slow
@not_in_cudasim
def test_blocks_that_stay_take_one_tile_after_another(checked) -> None:
    for warpgroups in (1, 3):
        numbers = random_tensors(LONG, 8, integers=True)
        program = H04.prepare(LONG, tile_of(32, warpgroups), sm_count=1)
        result = checked(LONG, H04, numbers, program.tile, program=program)
        assert result.ok, result


@pytest.mark.parametrize("relu", [False, True])
def test_relu(relu: bool, engine: Engine) -> None:
    problem = SHAPES["channels not in eights"]
    numbers = random_tensors(problem, 9)
    plain = computed(H04, engine, problem, numbers).astype(np.float32)
    found = computed(H04, engine, problem, numbers, relu=relu).astype(np.float32)
    np.testing.assert_array_equal(found, np.maximum(plain, 0) if relu else plain)


@pytest.mark.parametrize(
    ("problem", "number"),
    [
        (channels_last(1, 3, 4, 9, 8, (2, 2)), np.inf),
        (channels_last(1, 3, 4, 9, 8, (2, 2), (1, 2), ((1, 0), (1, 1))), np.nan),
        (channels_last(1, 13, 2, 6, 8, (1, 2)), np.inf),
        (channels_last(1, 2, 5, 7, 8, (2, 2), dilation=(2, 3)), np.inf),
    ],
    ids=["rows", "padding and stride", "strips", "dilation"],
)
def test_what_is_not_finite_stays_in_its_windows(
    problem: ConvProblem, number: float, engine: Engine
) -> None:
    """No number of another window is multiplied, not even by zero."""
    input, weight, bias = random_tensors(problem, 10)
    weight[weight == 0] = 1
    clean = computed(H04, engine, problem, (input, weight, bias))
    for row, column in ((1, 0), (0, 3), (1, problem.W_i - 1)):
        given = input.copy()
        given[0, row, column, -1] = number
        touched = np.zeros((problem.H_o, problem.W_o), bool)
        for u in range(problem.H_f):
            for v in range(problem.W_f):
                y, x = row - u * problem.d_h + problem.p_h, column - v * problem.d_w + problem.p_w
                h, w = y // problem.s_h, x // problem.s_w
                if y % problem.s_h == x % problem.s_w == 0 <= min(h, w):
                    if h < problem.H_o and w < problem.W_o:
                        touched[h, w] = True
        found = computed(H04, engine, problem, (given, weight, bias))
        assert not np.isfinite(found[0, touched].astype(np.float32)).any()
        np.testing.assert_array_equal(found[0, ~touched], clean[0, ~touched])


@pytest.mark.parametrize(
    ("tile", "rule"),
    [
        (Tile(48, 64, 64, 12, 2), "M_B must be 32, 64, 96 or 128"),
        (Tile(160, 64, 64, 40, 2), "M_B must be 32, 64, 96 or 128"),
        (Tile(32, 64, 32, 8, 2), "K_B 64"),
        (Tile(32, 96, 64, 8, 2), "N_B must be 64 a warpgroup"),
    ],
    ids=str,
)
def test_a_tile_that_does_not_suit(tile: Tile, rule: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(str(tile))}: .*{re.escape(rule)}"):
        H04.prepare(LONG, tile)


def test_a_filter_that_does_not_fit_shared_memory_is_refused() -> None:
    problem = channels_last(1, 1024, 8, 8, 64, 3)
    with pytest.raises(
        ValueError, match=r"^kernel_size is \(3, 3\) over 1024 in_channels: 32 channels"
    ):
        H04.prepare(problem, tile_of(32, 1))
    assert production_tile(problem) == tile_of(32, 1)


# How windows are read.

STEMS = {
    "conv1": channels_last(128, 3, 227, 227, 96, 11, 4),
    "conv3": channels_last(128, 3, 227, 227, 64, 7, 2),
    "conv7": channels_last(128, 3, 224, 224, 64, 3),
    "resnet": channels_last(32, 3, 224, 224, 64, 7, 2, 3),
    "vit": channels_last(32, 3, 224, 224, 768, 16, 16),
    "convnext": channels_last(32, 3, 224, 224, 96, 4, 4),
    "det": channels_last(32, 256, 40, 40, 255, 1),
    "odd": channels_last(32, 53, 28, 28, 97, 3, 1, 1),
}
stems = pytest.mark.parametrize("problem", STEMS.values(), ids=STEMS.keys())


@stems
def test_spans_hold_what_lanes_read(problem: ConvProblem) -> None:
    tile = production_tile(problem)
    spans = spans_of(problem, tile)
    assert spans is not None
    assert spans.shared_bytes(tile) <= MOST_SHARED_BYTES
    assert spans.rows * spans.slices >= spans.filter_rows
    assert spans.parts * spans.strip >= spans.run > (spans.parts - 1) * (spans.strip - 4)
    # The last window's last strip, from the furthest begin, and the word behind it.
    furthest = 8 - spans.alignment + (min(spans.width, problem.W_o) - 1) * spans.next
    assert furthest + spans.parts * spans.strip + 2 * spans.may_be_odd <= 8 * spans.pieces
    assert spans.padded(spans.slice_numbers + 4096).wavefronts() <= spans.wavefronts()


def test_padding_spreads_the_loads_over_the_banks() -> None:
    patches = Spans(STEMS["det"], 1, 4, 1)
    assert patches.padded(2 * patches.slice_numbers).wavefronts() < patches.wavefronts()


@pytest.mark.gate
@pytest.mark.usefixtures("compiled_once")
@stems
def test_stems_do_not_spill(problem: ConvProblem) -> None:
    for dtype in HALVES:
        of_type = replace(problem, dtype=dtype)
        program = H04.prepare(of_type, production_tile(of_type))
        cubin = compile_launch(program.launches[-1], program, (9, 0))
        assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)
