"""Calls with numbers of 16 bits, and with TF32: types go in and come out, and "auto" chooses."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from kernels.halves import DIRECT_16
from pretended_gpu import PretendedGpu

import convlab
from convlab import ConvProblem, ladder
from convlab.ladder import stage_named
from convlab.problems.number_types import NUMBER_TYPES, as_floats
from convlab.problems.oracle import Oracle, random_tensors
from convlab.running.chosen_stages import AUTO_TF32, asked_stage, reduced_stage, stage_for
from convlab.running.engines import EngineUnavailable, choose

PROBLEM = ConvProblem(2, 3, 4, 5, 3, (3, 2), (2, 1), padding=1)
of_halves = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


@pytest.fixture
def with_halves(monkeypatch):
    """The ladder with one stage of 16 bits."""
    floats = tuple(stage for stage in ladder.LADDER if stage.dtypes == ("float32",))
    monkeypatch.setattr(ladder, "LADDER", (*floats, DIRECT_16))


def right(output, problem, tensors):
    return Oracle(problem, *tensors).check(output)


@of_halves
def test_conv2d_takes_and_gives_16_bits(dtype, with_halves):
    problem = replace(PROBLEM, dtype=dtype)
    input, weight, bias = tensors = random_tensors(problem, 0)
    output = convlab.conv2d(*tensors, (2, 1), 1, engine="simulator")
    assert output.dtype == NUMBER_TYPES[dtype].numpy
    assert output.flags.c_contiguous
    assert right(output, problem, tensors).ok
    # One image, strides, an array to write to, and one with its channels last in memory.
    last = np.ascontiguousarray(input.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for images in (last, input[::-1][::-1]):
        out = np.empty_like(output)
        assert convlab.conv2d(images, weight, bias, (2, 1), 1, engine="simulator", out=out) is out
        np.testing.assert_array_equal(out, output)
    one = convlab.conv2d(input[1], weight, bias, (2, 1), 1, engine="simulator")
    np.testing.assert_array_equal(one, output[1])
    named = convlab.conv2d(*tensors, (2, 1), 1, engine="simulator", stage=DIRECT_16.name)
    np.testing.assert_array_equal(named, output)


@of_halves
def test_groups_and_other_axes_have_16_bits_too(dtype, with_halves):
    kind = NUMBER_TYPES[dtype].numpy
    rng = np.random.default_rng(0)

    def whole(*shape):
        return rng.integers(-3, 4, shape).astype(kind)

    x, w = whole(2, 4, 5, 5), whole(6, 2, 2, 3)
    groups = convlab.conv2d(x, w, groups=2, engine="simulator")
    floats = convlab.conv2d(as_floats(x), as_floats(w), groups=2, engine="simulator")
    np.testing.assert_array_equal(as_floats(groups), floats)
    x, w = whole(2, 3, 9), whole(4, 3, 3)
    row = convlab.conv1d(x, w, stride=2, padding=1, engine="simulator")
    floats = convlab.conv1d(as_floats(x), as_floats(w), stride=2, padding=1, engine="simulator")
    np.testing.assert_array_equal(as_floats(row), floats)
    x, w = whole(1, 2, 4, 4, 3), whole(3, 2, 2, 2, 2)
    volume = convlab.conv3d(x, w, padding=1, engine="simulator")
    floats = convlab.conv3d(as_floats(x), as_floats(w), padding=1, engine="simulator")
    np.testing.assert_array_equal(as_floats(volume), floats)
    assert volume.dtype == kind


def test_the_types_of_a_call_are_one():
    ones = np.ones((1, 1, 2, 2), np.float16)
    with pytest.raises(TypeError, match=r"^weight has dtype float32: it must be float16, as input"):
        convlab.conv2d(ones, ones.astype(np.float32))
    with pytest.raises(
        TypeError, match=r"^input has dtype float64: it must be float32, float16 or"
    ):
        convlab.conv2d(ones.astype(float), ones)
    empty = convlab.conv2d(np.ones((0, 1, 2, 2), ml_dtypes.bfloat16), ones.astype("bfloat16"))
    assert (empty.dtype, empty.shape) == (ml_dtypes.bfloat16, (0, 1, 1, 1))


def test_a_plan_of_16_bits_needs_its_layout(with_halves):
    with pytest.raises(ValueError, match=r"^channels_last is False: it must be True for stage x01"):
        convlab.plan(replace(PROBLEM, dtype="float16"), engine="simulator")
    made = convlab.plan(replace(PROBLEM, dtype="float16", channels_last=True), engine="simulator")
    assert made.stage is DIRECT_16


@pytest.mark.parametrize(
    ("stage", "precision", "dtype", "says"),
    [
        ("auto", "tf23", "float32", r"precision is 'tf23': it must be None, 'float32' or 'tf32'$"),
        ("auto", "tf32", "float16", r"precision is 'tf32': it must be None for float16 numbers$"),
        ("m15", "tf32", "float32", r"precision is 'tf32': it must be 'float32' for stage m15_"),
        ("t07", "float32", "float32", r"precision is 'float32': it must be 'tf32' for stage t07_"),
    ],
)
def test_a_precision_that_does_not_fit_is_refused(stage, precision, dtype, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        asked_stage(stage, precision, dtype)


def test_tf32_is_asked_for_and_chosen():
    assert asked_stage("auto", None) == asked_stage("auto", "float32") == "auto"
    assert asked_stage("auto", "tf32") == AUTO_TF32
    assert asked_stage("t07", "tf32") == "t07"
    hopper = PretendedGpu(capability=(9, 0))
    chosen = stage_for(AUTO_TF32, hopper, PROBLEM)
    assert chosen is stage_named("t07")
    # With the channels last it is the stage that takes these, where their numbers suit it.
    last = replace(PROBLEM, channels_last=True, in_channels=8, out_channels=16)
    assert stage_for(AUTO_TF32, hopper, last) is stage_named("h05")
    odd = replace(last, out_channels=17)
    assert stage_for(AUTO_TF32, hopper, odd) is stage_named("h09")
    for channels, name in ((3, "t07"), (7, "t07"), (9, "h09"), (53, "h09")):
        problem = replace(last, in_channels=channels)
        assert stage_for(AUTO_TF32, hopper, problem) is stage_named(name)
    assert stage_for("auto", hopper, PROBLEM) is stage_named("m15")
    with pytest.raises(EngineUnavailable, match=r"needs a GPU of compute capability 9\.0"):
        stage_for(AUTO_TF32, PretendedGpu("A100", capability=(8, 0)), PROBLEM)


def test_auto_is_the_last_stage_that_takes_the_problem(monkeypatch):
    def only_fours(problem, tile):
        if problem.C_i % 4:
            raise ValueError(f"in_channels is {problem.C_i}: it must be a multiple of 4")
        return DIRECT_16.prepare(problem, tile)

    picky = replace(DIRECT_16, module="tests.x02_picky", prepare=only_fours)
    floats = tuple(stage for stage in ladder.LADDER if stage.dtypes == ("float32",))
    monkeypatch.setattr(ladder, "LADDER", (*floats, DIRECT_16, picky))
    simulator, problem = choose("simulator"), replace(PROBLEM, dtype="bfloat16")
    assert reduced_stage(simulator, problem) is DIRECT_16
    fours = replace(problem, in_channels=8, out_channels=2, groups=2)
    assert reduced_stage(simulator, fours) is picky
    monkeypatch.setattr(ladder, "LADDER", (*floats, picky))
    with pytest.raises(ValueError, match=r"^problem is .*: no stage computes it in bfloat16$"):
        reduced_stage(simulator, problem)


def test_tf32_is_computed_in_a_call():
    problem = ConvProblem(1, 3, 5, 6, 4, 3)
    tensors = random_tensors(problem, 0)
    output = convlab.conv2d(*tensors, engine="simulator", precision="tf32")
    oracle = Oracle(problem, *tensors)
    assert oracle.check(output, tf32_products=True).ok
    assert not oracle.check(output).ok
    exact = convlab.conv2d(*tensors, engine="simulator", precision="float32")
    assert oracle.check(exact).ok


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"in_channels": 64, "out_channels": 64}, "h06_window_rows"),
        ({"in_channels": 64, "out_channels": 255}, "h07_any_channels"),
        ({"in_channels": 3, "out_channels": 64}, "h04_stem"),
        ({"in_channels": 8, "out_channels": 64}, "h04_stem"),
        ({"in_channels": 15, "out_channels": 64}, "h04_stem"),
        # Whole slices are worth a copy.
        (
            {"batch": 32, "in_channels": 48, "height": 65, "width": 67, "out_channels": 72}
            | {"kernel_size": 5, "stride": 2, "padding": 2},
            "h08_padded_input",
        ),
        ({"in_channels": 24, "out_channels": 64}, "h08_padded_input"),
        ({"in_channels": 37, "out_channels": 101, "padding": 1}, "h08_padded_input"),
        ({"in_channels": 53, "out_channels": 53}, "h08_padded_input"),
        ({"in_channels": 31, "out_channels": 43, "padding": 1}, "h08_padded_input"),
        ({"in_channels": 31, "out_channels": 64, "padding": 1}, "h04_stem"),  # outputs in eights
        ({"in_channels": 48, "out_channels": 64, "padding": 1}, "h04_stem"),  # slices not full
        ({"in_channels": 16, "out_channels": 64}, "h06_window_rows"),  # rows fill them
    ],
    ids=str,
)
def test_which_stage_computes_16_bits_on_hopper(changes, name):
    hopper = PretendedGpu(capability=(9, 0))
    problem = ConvProblem(1, 3, 16, 16, 5, 3, dtype="bfloat16", channels_last=True)
    assert stage_for("auto", hopper, replace(problem, **changes)) is stage_named(name)
