"""h08, and h09 in TF32: padded copies of the input and of the filter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from computing import computed
from numba.cuda.core import config
from test_panel_stages import SHAPES

from convlab import ConvProblem, Stage, Tile
from convlab.ladder import production_tile, stage_named
from convlab.ladder.half_precision import h06_window_rows as h06
from convlab.ladder.half_precision import h07_any_channels as h07
from convlab.ladder.half_precision import h08_padded_input as h08
from convlab.ladder.stage import MOST_SHARED_BYTES
from convlab.problems.oracle import CheckResult, random_tensors
from convlab.problems.workloads import STEMS, UNSEEN_LAYERS
from convlab.running.engines import Engine, choose

pytestmark = pytest.mark.skipif(
    choose().is_gpu and choose().capability() != (9, 0), reason="wgmma needs a Hopper GPU"
)
not_in_cudasim = pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the same Python, a minute of it")

H08, H09 = stage_named("h08"), stage_named("h09")
Checked = Callable[..., CheckResult]
TYPES = ("bfloat16", "float32")
in_both = pytest.mark.parametrize("dtype", TYPES)


def last(*numbers: object, dtype: str = "bfloat16", **more: object) -> ConvProblem:
    return ConvProblem(*numbers, dtype=dtype, channels_last=True, **more)  # type: ignore[arg-type]


def stage_of(problem: ConvProblem) -> Stage:
    return H09 if problem.dtype == "float32" else H08


def tile_of(M_B: int, N_B: int, dtype: str = "bfloat16") -> Tile:
    return Tile(M_B, N_B, 32 if dtype == "float32" else 64, M_B // 4, N_B // 32)


@in_both
@pytest.mark.parametrize("name", [*SHAPES][:3])
def test_shapes(name: str, dtype: str, checked: Checked) -> None:
    """The numbers of channels are as the copy engine and the products need them."""
    problem = replace(SHAPES[name], dtype=dtype)
    result = checked(problem, stage_of(problem), random_tensors(problem, 5, integers=True))
    assert result.ok, result


@in_both
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_odd_channels(name: str, dtype: str, checked: Checked) -> None:
    whole = SHAPES[name]
    channels = whole.in_channels - 3, whole.out_channels - 9
    problem = replace(whole, in_channels=channels[0], out_channels=channels[1], dtype=dtype)
    result = checked(
        problem,
        stage_of(problem),
        random_tensors(problem, 6, integers=True),
        tile_of(64, 64, dtype),
    )
    assert result.ok, result


@not_in_cudasim
@in_both
@pytest.mark.parametrize("channels", [1, 2, 6, 9, 15, 20, 31, 37, 53, 66, 70])
def test_any_numbers_of_channels(channels: int, dtype: str, checked: Checked) -> None:
    """Up to 300 output channels: of one block and of several, in fours, eights and odd."""
    outputs = channels * 43 % 300 + 1
    problem = last(1, channels, 2, 3, outputs, (1, 2), dtype=dtype)
    result = checked(
        problem, stage_of(problem), random_tensors(problem, channels), tile_of(64, 64, dtype)
    )
    assert result.ok, result


@not_in_cudasim
@in_both
@pytest.mark.parametrize("sizes", [(32, 256), (96, 128), (192, 64)], ids=str)
@pytest.mark.parametrize("outputs", [31, 72])
def test_tiles(outputs: int, sizes: tuple[int, int], dtype: str, checked: Checked) -> None:
    problem = last(3, 21, 9, 8, outputs, 2, padding=1, dtype=dtype)
    result = checked(problem, stage_of(problem), random_tensors(problem, 7), tile_of(*sizes, dtype))
    assert result.ok, result


def test_float16(checked: Checked) -> None:
    """The types of 16 bits differ in the product, in rounding, and in how a bias is widened."""
    problem = last(1, 21, 4, 5, 33, 2, dtype="float16")
    result = checked(problem, H08, random_tensors(problem, 4), tile_of(64, 64))
    assert result.ok, result


@pytest.mark.parametrize("count", [7, 8, 9, 15, 16, 17])
def test_the_array_s_last_numbers(count: int, checked: Checked) -> None:
    """The last pieces of 16 bytes end in the array, or do not."""
    problem = last(1, 3, 1, count, 5, 1)
    result = checked(problem, H08, random_tensors(problem, 8, integers=True))
    assert result.ok, result


@in_both
@pytest.mark.parametrize("channels", [5, 12, 24, 37])
def test_infinities_and_nans_stay_at_their_places(
    channels: int, dtype: str, checked: Checked
) -> None:
    """The neighbours of a pixel and of a filter's place are in its pieces of 16 bytes."""
    problem = last(2, channels, 4, 5, 13, 2, dtype=dtype)
    input, weight, bias = random_tensors(problem, 10)
    input[0, 2, 3, 0], input[1, 0, 0, channels - 1] = np.inf, np.nan
    weight[3, 0, 1, channels - 1], weight[9, 1, 0, 0] = -np.inf, np.nan
    bias[12] = np.inf
    result = checked(problem, stage_of(problem), (input, weight, bias))
    assert result.ok, result


@in_both
def test_relu(dtype: str, engine: Engine) -> None:
    problem = last(1, 11, 4, 5, 19, 2, dtype=dtype)
    numbers = random_tensors(problem, 9)
    plain, positive = (
        computed(stage_of(problem), engine, problem, numbers, relu=relu) for relu in (False, True)
    )
    np.testing.assert_array_equal(np.maximum(plain.astype(np.float32), 0), positive)


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize(
    ("dtype", "channels", "outputs", "buffers"),
    [
        ("bfloat16", 32, 64, []),
        ("bfloat16", 32, 65, ["padded_weight"]),
        ("bfloat16", 24, 64, ["padded_weight"]),  # 48 bytes a pixel
        ("bfloat16", 28, 64, ["padded_weight", "padded_input"]),
        ("float32", 8, 16, []),
        ("float32", 12, 16, ["padded_weight"]),  # 48 bytes a pixel
        ("float32", 53, 53, ["padded_weight", "padded_input"]),
    ],
)
def test_what_is_copied(dtype: str, channels: int, outputs: int, buffers: list[str]) -> None:
    problem = last(1, channels, 4, 5, outputs, 1, dtype=dtype)
    stage = stage_of(problem)
    program = stage.prepare(problem, stage.tiny_tile)
    assert [buffer.name for buffer in program.buffers] == buffers
    assert [launch.name for launch in program.launches[:-1]] == ["pad_channels"] * len(buffers)
    windows, filter, *_ = program.launches[-1].arguments
    named = [name for name in ("padded_input", "padded_weight") if name in buffers]
    assert {str(windows), str(filter)} == {*named} | {"input", "weight"} - {
        name.removeprefix("padded_") for name in named
    }
    of_number = 2 if dtype == "bfloat16" else 4
    assert windows.shape[-1] * of_number % 16 == 0
    assert all(buffer.nbytes == of_number * buffer.shape[0] for buffer in program.buffers)


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize(
    ("name", "dtype", "pixels"),
    [
        ("odd_wide", "bfloat16", (True, 64)),  # 37: whole slices of 64, lines of 128 bytes
        ("odd_wide", "float32", (True, 64)),  # 37: two slices of 32 either way
        ("odd_53", "float32", (True, 64)),
        ("odd_dilated", "float32", (True, 32)),
        ("odd_strided", "bfloat16", (True, 64)),  # 48: the engine could read it
        ("odd_255", "bfloat16", (False, 256)),
    ],
)
def test_an_estimate_chooses_the_padded_channels(
    name: str, dtype: str, pixels: tuple[bool, int]
) -> None:
    layer = replace((STEMS | UNSEEN_LAYERS)[name], batch=32, dtype=dtype, channels_last=True)
    assert h08.pixels_of(layer) == pixels
    if pixels[0]:  # a copy costs more than none would, if the engine could read the input so
        uncopied = h08.Pixels(False, pixels[1])
        assert h08.clocks_of(replace(layer, in_channels=pixels[1]), uncopied) < h08.clocks_of(
            layer, h08.Pixels(*pixels)
        )


@pytest.mark.same_in_cudasim
@in_both
def test_rows_of_windows_are_runs_of_whole_pixels(dtype: str) -> None:
    def run_of(channels: int) -> int:
        problem = last(1, channels, 4, 9, 32, 3, dtype=dtype)
        stage = stage_of(problem)
        return int(stage.prepare(problem, stage.tiny_tile).launches[-1].arguments[0].run)

    copied, whole, in_part = (13, 16, 24) if dtype == "bfloat16" else (5, 8, 12)
    assert [run_of(channels) for channels in (copied, whole, in_part)] == [3, 3, 1]


@pytest.mark.same_in_cudasim
def test_where_h06_and_h07_take_a_problem_it_is_the_same() -> None:
    problem = last(8, 48, 20, 21, 64, 3)
    for stage, outputs in ((h06, 64), (h07, 65), (h07, 72), (h07, 300)):
        asked = replace(problem, out_channels=outputs)
        tile = h08.production_tile(asked)
        assert tile == stage.production_tile(asked)
        mine, its = (one.STAGE.prepare(asked, tile).launches[-1] for one in (h08, stage))
        assert (mine.grid, mine.shared_bytes) == (its.grid, its.shared_bytes)
        windows, filter = (launch.arguments[:2] for launch in (mine, its))
        assert windows[0] == filter[0]
        assert replace(windows[1], of="") == replace(filter[1], of="")


@pytest.mark.same_in_cudasim
@in_both
@pytest.mark.parametrize("channels", [1, 43, 53, 93, 101, 129, 250, 255])
def test_a_block_has_all_odd_channels_and_its_shared_memory_suffices(
    channels: int, dtype: str
) -> None:
    problem = last(8, 53, 40, 40, channels, 3, padding=1, dtype=dtype)
    tile = h08.production_tile(problem)
    assert channels <= tile.M_B
    launch = stage_of(problem).prepare(problem, tile).launches[-1]
    depth = h07.depth_of(problem, tile)
    assert depth >= 3
    barriers = (2 * depth + 2) * h07.BARRIER_BYTES
    assert launch.shared_bytes + barriers <= MOST_SHARED_BYTES


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize(
    ("channels", "sizes"),
    [
        (72, (96, 128)),
        (96, (96, 128)),
        (192, (96, 128)),
        (189, (192, 64)),  # odd: a block has all
        (64, (64, 256)),
        (256, (128, 128)),
    ],
)
@in_both
def test_blocks_of_96_channels_where_128_are_not_filled(
    channels: int, sizes: tuple[int, int], dtype: str
) -> None:
    problem = last(32, 64, 56, 56, channels, 3, padding=1, dtype=dtype)
    tile = production_tile(stage_of(problem), problem)
    assert tile == tile_of(*sizes, dtype)
    if dtype == "bfloat16" and channels % 32 == 0:
        assert production_tile(stage_named("h03"), problem) == tile


@pytest.mark.parametrize(("stage", "terms"), [(H08, 64), (H09, 32)])
def test_a_tile_of_other_slices_is_refused(stage: Stage, terms: int) -> None:
    problem = last(1, 5, 4, 4, 5, 1, dtype=stage.dtypes[0])
    with pytest.raises(ValueError, match=f"K_B must be {terms}, a row of 128 bytes"):
        stage.prepare(problem, Tile(32, 64, 96 - terms, 8, 2))


def test_a_padded_tensor_that_cannot_be_counted_is_refused() -> None:
    says = "in_channels is 9: 2,147,483,648 rows of 16 are too many: a padded tensor must have less"
    with pytest.raises(ValueError, match=says):
        h08.make_pad("float16", 9, 16, 2**31, 2**31)


@pytest.mark.gate
@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("name", ["odd_53", "odd_wide", "odd_strided", "odd_192"])
def test_kernels_do_not_spill_and_copies_are_16_bytes_wide(name: str, dtype: str) -> None:
    from convlab.running.engines.disassembly import code_of
    from convlab.running.engines.kernels import compile_launch

    known = STEMS | UNSEEN_LAYERS | {"odd_192": ConvProblem(32, 50, 28, 28, 189, 3, padding=1)}
    problem = replace(known[name], batch=32, dtype=dtype, channels_last=True)
    stage = stage_of(problem)
    program = stage.prepare(problem, production_tile(stage, problem))
    for launch in program.launches:
        cubin = compile_launch(launch, program, (9, 0))
        assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)
        if launch.name == "pad_channels":
            code = [*code_of(cubin)]
            assert sum(line.startswith("STG.E.128") for line in code) == 1
            wide = sum(line.startswith("LDG.E.128") for line in code)
            aligned = name == "odd_strided"  # 96 bytes a pixel, or 192
            assert wide == (1 if aligned else 0 if dtype == "float32" else 2)
            assert cubin.registers <= 40


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("stage", [H08, H09], ids=lambda stage: stage.name)
def test_what_the_copy_engine_cannot_walk_is_refused_before(stage) -> None:
    dtype = stage.dtypes[0]
    far = ConvProblem(1, 5, 40, 40, 7, 3, stride=9, dtype=dtype, channels_last=True)
    assert stage.why_not(far) == "stride is (9, 9): each must be at most 8"
    assert stage.why_not(replace(far, stride=(8, 8))) is None
