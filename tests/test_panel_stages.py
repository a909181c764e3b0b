"""The stages whose tensor cores read windows and filter as panels in shared memory: h01 to h03,
h05 in TF32, h06 and h07."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from computing import computed
from numba.cuda.core import config

from convlab import ConvProblem, Tile
from convlab.checking.unwritten import unwritten
from convlab.ladder import stage_named
from convlab.ladder.half_precision import h06_window_rows, h07_any_channels
from convlab.ladder.stage import MOST_SHARED_BYTES
from convlab.problems.oracle import random_tensors
from convlab.running.engines import Engine, choose
from convlab.running.plans import Plan

pytestmark = pytest.mark.skipif(
    choose().is_gpu and choose().capability() != (9, 0), reason="wgmma needs a Hopper GPU"
)

STAGES = ("h01", "h02", "h03", "h06", "h07")
not_in_cudasim = pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the same Python, a minute of it")


def channels_last(*numbers, dtype: str = "bfloat16", **more) -> ConvProblem:
    return ConvProblem(*numbers, dtype=dtype, channels_last=True, **more)


def tile_of(name: str, M_B: int, N_B: int) -> Tile:
    """A tile of two warpgroups, of 64 windows each, or from h03 on of one warpgroup."""
    terms, of_one = 32 if name == "h05" else 64, name not in ("h01", "h02")
    return Tile(M_B, N_B, terms, M_B // 4, N_B // 32 if of_one else 2)


def of_type_for(name: str, problem: ConvProblem) -> ConvProblem:
    return replace(problem, dtype="float32") if name == "h05" else problem


FLOATS = {"dtype": "float32"}
# More windows than a tile, in more images than one, with a remainder; more channels than a tile.
LONG = channels_last(3, 16, 6, 8, 64, 3, padding=1)
SHAPES = {
    "several tiles": LONG,
    "stride, padding, dilation": channels_last(2, 16, 9, 11, 32, (3, 2), (2, 3), (1, 2), (3, 2)),
    "padding on two sides only": channels_last(2, 16, 5, 6, 32, 3, padding=((0, 2), (1, 0))),
    "one place": channels_last(2, 64, 6, 6, 32, 1),
    "whole slices of channels": channels_last(1, 128, 4, 5, 32, 2),
    "a remainder of channels": channels_last(1, 80, 4, 5, 32, 2),
    "one slice": channels_last(1, 16, 2, 3, 32, 1),
    "more slices than stages": channels_last(1, 192, 3, 3, 32, (3, 2), padding=1),
    "rows of windows": channels_last(2, 16, 7, 9, 32, 3),
    "rows, stride and padding along H": channels_last(
        2, 48, 6, 8, 32, (2, 3), (2, 2), ((1, 2), (0, 0)), (2, 1)
    ),
    "rows of more slices than one": channels_last(1, 96, 4, 7, 32, (2, 5)),
}


@pytest.mark.parametrize("problem", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("name", [*STAGES, "h05"])
def test_shapes(name: str, problem: ConvProblem, checked) -> None:
    stage, problem = stage_named(name), of_type_for(name, problem)
    result = checked(problem, stage, random_tensors(problem, 5, integers=True), stage.tiny_tile)
    assert result.ok, result


@pytest.mark.parametrize("name", STAGES)
def test_float16(name: str, checked) -> None:
    """The types differ in the product, in rounding, and in how a bias is widened."""
    problem = replace(SHAPES["a remainder of channels"], dtype="float16")
    result = checked(problem, stage_named(name), random_tensors(problem, 4))
    assert result.ok, result


@not_in_cudasim
@pytest.mark.parametrize(
    ("name", "M_B", "N_B"),
    [
        *((name, M_B, 128) for name in ("h01", "h02") for M_B in (64, 96)),
        *(("h03", *sizes) for sizes in ((32, 256), (64, 128), (96, 64))),
        *(("h05", *sizes) for sizes in ((32, 256), (64, 128), (96, 64))),
    ],
)
def test_tiles(name: str, M_B: int, N_B: int, checked) -> None:
    problem = replace(LONG, in_channels=96, out_channels=96, kernel_size=1)
    problem = of_type_for(name, problem)
    numbers = random_tensors(problem, 6)
    result = checked(problem, stage_named(name), numbers, tile_of(name, M_B, N_B))
    assert result.ok, result


@pytest.mark.parametrize("channels", [1, 8, 12, 33])
def test_any_number_of_output_channels(channels: int, checked) -> None:
    problem = channels_last(2, 8, 5, 7, channels, 3, 2, 1)
    result = checked(problem, stage_named("h01"), random_tensors(problem, 7))
    assert result.ok, result


@pytest.mark.parametrize("name", [*STAGES, "h05"])
def test_relu(name: str, engine: Engine) -> None:
    stage, problem = stage_named(name), of_type_for(name, channels_last(1, 16, 5, 5, 32, 2))
    numbers = random_tensors(problem, 9)
    plain, positive = (
        computed(stage, engine, problem, numbers, relu=relu) for relu in (False, True)
    )
    np.testing.assert_array_equal(np.maximum(plain.astype(np.float32), 0), positive)


@pytest.mark.parametrize("name", [*STAGES, "h05"])
def test_an_infinity_in_the_filter_stays_at_its_place(name: str, checked) -> None:
    """The numbers of a panel beyond a place's channels are the filter of the next place."""
    problem = of_type_for(name, channels_last(1, 80, 3, 4, 32, (1, 2)))
    problem = replace(problem, in_channels=72) if name == "h05" else problem
    input, weight, bias = random_tensors(problem, 10)
    weight[:, 0, 1, 0] = np.inf
    result = checked(problem, stage_named(name), (input, weight, bias))
    assert result.ok, result


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("h01", {"in_channels": 12}, "in_channels is 12: it must be a multiple of 8 for stage h01"),
        ("h02", {"in_channels": 24}, "in_channels is 24: it must be a multiple of 16 for"),
        ("h03", {"out_channels": 48}, "out_channels is 48: it must be a multiple of 32 for"),
        ("h02", {"dtype": "float32"}, "dtype is float32: it must be float16 or bfloat16"),
        ("h05", {}, "dtype is bfloat16: it must be float32 for stage h05"),
        ("h05", FLOATS | {"in_channels": 12}, "in_channels is 12: it must be a multiple of 8 for"),
        ("h05", FLOATS | {"out_channels": 24}, "out_channels is 24: it must be a multiple of 16"),
        ("h05", FLOATS | {"channels_last": False}, "channels_last is False: it must be True for"),
        ("h06", {"in_channels": 24}, "in_channels is 24: it must be a multiple of 16 for"),
        ("h01", {"channels_last": False}, "channels_last is False: it must be True for"),
        ("h02", {"stride": 9, "height": 19, "width": 19}, "stride is (9, 9): each must be at most"),
    ],
)
def test_what_a_stage_does_not_take(name: str, changes: dict[str, object], says: str) -> None:
    stage = stage_named(name)
    with pytest.raises(ValueError, match=re.escape(says)):
        stage.prepare(replace(LONG, **changes), stage.tiny_tile)


@pytest.mark.parametrize(
    ("name", "tile", "rule"),
    [
        ("h01", Tile(32, 128, 32, 8, 2), "K_B must be 64"),
        ("h01", Tile(48, 128, 64, 12, 2), "M_B must be a multiple of 32"),
        ("h02", Tile(32, 64, 64, 8, 1), "N_B must be 128 and N_T 2"),
        ("h03", Tile(32, 128, 64, 8, 2), "N_B must be 64, 128 or 256 and N_T must be N_B / 32"),
        ("h03", Tile(256, 128, 64, 64, 4), "at most 128, the sums of a thread"),
        ("h03", Tile(64, 64, 64, 8, 2), "M_T must be M_B / 4"),
        ("h05", Tile(32, 64, 64, 8, 2), "K_B must be 32, a row of 128 bytes"),
        ("h06", Tile(32, 128, 64, 8, 2), "N_B must be 64, 128 or 256 and N_T must be N_B / 32"),
    ],
    ids=str,
)
def test_a_tile_that_does_not_suit(name: str, tile: Tile, rule: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(str(tile))}: .*{re.escape(rule)}"):
        stage_named(name).prepare(of_type_for(name, LONG), tile)


def test_factors_are_cut_to_tf32(engine: Engine) -> None:
    """The last 13 bits of a float32 have no effect, and those before are not rounded up."""
    problem = of_type_for("h05", channels_last(1, 8, 4, 4, 16, 1))
    input, weight, bias = random_tensors(problem, 11)
    cut = [
        (tensor.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        for tensor in (input, weight)
    ]
    stage = stage_named("h05")
    outputs = [
        computed(stage, engine, problem, (*tensors, bias)) for tensors in ((input, weight), cut)
    ]
    np.testing.assert_array_equal(*outputs)
    assert not np.array_equal(input, cut[0])


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize(
    ("changes", "has"),
    [
        ({}, True),
        ({"padding": (1, 0)}, True),
        ({"padding": ((0, 0), (0, 1))}, False),
        ({"dilation": (1, 2)}, False),
        ({"in_channels": 64}, False),  # whole slices: rows save none
        ({"in_channels": 48, "kernel_size": (3, 2)}, False),  # 96 terms: two slices either way
        ({"kernel_size": (3, 1)}, False),
    ],
    ids=str,
)
def test_which_problems_have_rows_of_windows(changes: dict[str, object], has: bool) -> None:
    problem = replace(channels_last(1, 16, 8, 8, 32, 3), **changes)
    assert h06_window_rows.has_rows(problem) is has
    slices = stage_named("h06").prepare(problem, stage_named("h06").tiny_tile)
    windows = slices.launches[0].arguments[0]
    assert windows.run == (problem.W_f if has else 1)


def test_a_neighbour_s_infinity_stays_out_of_a_row(checked) -> None:
    """A run's last panel reaches past the run: there are the next pixel, or the next row."""
    problem = channels_last(1, 16, 3, 6, 32, (1, 3))
    input, weight, bias = random_tensors(problem, 12)
    input[0, 1, 3, :] = np.inf
    input[0, 2, 0, 5] = np.nan
    result = checked(problem, stage_named("h06"), (input, weight, bias))
    assert result.ok, result


@pytest.mark.parametrize(
    ("channels", "M_B", "N_B"),
    [(1, 32, 64), (33, 64, 64), (7, 32, 256), (40, 32, 128), (36, 32, 64), (64, 64, 64)],
)
def test_padded_channels_and_odd_outputs(channels: int, M_B: int, N_B: int, checked) -> None:
    """More windows than two tiles, the last of them short. 40 channels are stored in eights, 36 in
    two blocks one by one, and the other odd numbers by way of shared memory."""
    problem = channels_last(3, 16, 9, 8, channels, 2, padding=1)
    numbers = random_tensors(problem, 13)
    result = checked(problem, stage_named("h07"), numbers, tile_of("h07", M_B, N_B))
    assert result.ok, result


@pytest.mark.parametrize(
    ("channels", "kernel", "padding", "copies"),
    [(64, 3, 0, False), (80, 2, 1, True), (96, (1, 5), 0, True), (16, 3, 0, True)],
)
def test_a_copy_of_the_filter_begins_at_lines(
    channels, kernel, padding, copies: bool, checked, monkeypatch
) -> None:
    """A row of five pixels of 96 channels has 480 terms, and the copy 512: zeros follow a place,
    not the next place's infinity."""
    monkeypatch.setattr(h06_window_rows, "PAD_CLOCKS", 0)
    problem = channels_last(1, channels, 4, 7, 32, kernel, padding=padding)
    stage = stage_named("h06")
    names = [launch.name for launch in stage.prepare(problem, stage.tiny_tile).launches]
    assert names == ["pad_places"] * copies + ["warp_specialization"]
    input, weight, bias = random_tensors(problem, 16)
    weight[:, 0, 1, 3] = np.inf
    result = checked(problem, stage, (input, weight, bias), stage.tiny_tile)
    assert result.ok, result


@pytest.mark.same_in_cudasim
def test_a_filter_that_is_read_often_is_copied() -> None:
    """Conv5's rows of 960 bytes are read for seven tiles an SM; for one image not often enough."""
    problem = channels_last(128, 96, 24, 24, 256, 5)
    stage = stage_named("h06")
    tile = h06_window_rows.production_tile(problem)
    assert len(stage.prepare(problem, tile).launches) == 2
    assert len(stage.prepare(replace(problem, batch=1), tile).launches) == 1
    assert len(stage.prepare(replace(problem, in_channels=128), tile).launches) == 1


def test_odd_channels_above_a_block_s_are_stored_one_by_one(checked) -> None:
    problem = channels_last(1, 16, 2, 3, 257, 1)
    result = checked(problem, stage_named("h07"), random_tensors(problem, 14))
    assert result.ok, result


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("channels", [1, 53, 129, 250, 255])
def test_a_block_has_all_odd_channels_and_its_shared_memory_suffices(channels: int) -> None:
    problem = channels_last(8, 64, 40, 40, channels, 3, padding=1)
    tile = h07_any_channels.production_tile(problem)
    assert channels <= tile.M_B
    (_, launch) = stage_named("h07").prepare(problem, tile).launches
    depth = h07_any_channels.depth_of(problem, tile)
    assert depth >= 3
    barriers = (2 * depth + 2) * h07_any_channels.BARRIER_BYTES
    assert launch.shared_bytes + barriers <= MOST_SHARED_BYTES


@pytest.mark.same_in_cudasim
def test_a_check_reads_a_stage_s_own_buffer_behind_its_map() -> None:
    """h07's padded filter is given to the kernel as a tensor map."""
    problem, stage = channels_last(1, 16, 3, 4, 33, 1), stage_named("h07")
    plan = Plan(problem, stage, stage.tiny_tile, choose("simulator"))
    tensors = random_tensors(problem, 1)
    input, weight, bias = (plan.engine.to_device(one, problem.dtype) for one in tensors)
    output = np.full(problem.output_shape, 0, np.uint16)
    assert unwritten(plan, (input, weight, output, bias)) == ""
