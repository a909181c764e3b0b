"""A residual that a stage's epilogue adds: ``relu(conv(x, w) + bias + residual)`` as one kernel."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from numba import cuda
from numba.cuda.core import config

import convlab
from convlab import ConvProblem, Tile
from convlab.ladder import LADDER, production_program, stage_named
from convlab.ladder.half_precision import h01_panels
from convlab.problems.oracle import Oracle, random_tensors
from convlab.running.engines import Engine, choose
from convlab.running.plans import Plan

STAGES = [stage.name for stage in LADDER if "residual" in stage.options]

needs_hopper = pytest.mark.skipif(
    choose().is_gpu and choose().capability() != (9, 0), reason="wgmma needs a Hopper GPU"
)


def channels_last(*numbers, dtype: str = "bfloat16", **more) -> ConvProblem:
    return ConvProblem(*numbers, dtype=dtype, channels_last=True, **more)


SMALL = channels_last(1, 16, 4, 5, 32, 2)
SHAPES = {
    "several tiles": channels_last(3, 16, 6, 8, 64, 3, padding=1),
    "stride, padding, dilation": channels_last(2, 16, 9, 11, 32, (3, 2), (2, 3), (1, 2), (3, 2)),
    "a remainder of channels": channels_last(1, 80, 4, 5, 96, 2),
    "float16": channels_last(1, 80, 4, 5, 32, 2, dtype="float16"),
}


def numbers_of(problem: ConvProblem, seed: int = 3):
    """Whole numbers, whose sums float32 holds exactly: each output has one right value."""
    tensors = random_tensors(problem, seed, integers=True)
    residual = np.random.default_rng(seed + 1).integers(-99, 99, problem.output_shape)
    return tensors, residual.astype(problem.number_type.numpy)


def expected_of(problem: ConvProblem, tensors, residual, relu: bool) -> np.ndarray:
    sums = Oracle(problem, *tensors).expected + residual.astype(np.float64)
    sums = np.where(sums < 0, 0, sums) if relu else sums
    return sums.astype(np.float32).astype(problem.number_type.numpy)


def computed(
    engine: Engine,
    name: str,
    problem: ConvProblem,
    tensors,
    residual,
    tile: Tile | None = None,
    in_place: bool = False,
    **switches: bool,
) -> np.ndarray:
    """Return what a stage writes to an output that was poisoned with NaN, or held the residual."""
    input, weight, bias, added = (
        engine.to_device(one, problem.dtype) for one in (*tensors, residual)
    )
    unwritten = np.full(problem.output_shape, np.nan, np.float32)
    output = added if in_place else engine.to_device(unwritten, problem.dtype)
    plan = Plan(problem, stage_named(name), tile, engine, residual=True, **switches)
    plan(input, weight, output, bias, residual=added)
    return engine.to_host(output, problem.dtype)


@needs_hopper
@pytest.mark.parametrize("problem", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("name", STAGES)
def test_shapes(name: str, problem: ConvProblem, engine: Engine) -> None:
    tensors, residual = numbers_of(problem)
    for relu in (False, True):
        made = computed(engine, name, problem, tensors, residual, relu=relu)
        np.testing.assert_array_equal(made, expected_of(problem, tensors, residual, relu))


@needs_hopper
@pytest.mark.parametrize("channels", [1, 12, 33])
def test_any_number_of_output_channels(channels: int, engine: Engine) -> None:
    """Channels that are no multiple of eight are loaded and stored one by one."""
    problem = channels_last(2, 8, 5, 7, channels, 3, 2, 1)
    tensors, residual = numbers_of(problem)
    made = computed(engine, "h01", problem, tensors, residual, relu=True)
    np.testing.assert_array_equal(made, expected_of(problem, tensors, residual, True))


@needs_hopper
@pytest.mark.skipif(config.ENABLE_CUDASIM, reason="the same Python, a minute of it")
@pytest.mark.parametrize(("M_B", "N_B"), [(32, 256), (64, 128), (96, 64)])
def test_tiles_of_several_products(M_B: int, N_B: int, engine: Engine) -> None:
    problem = channels_last(3, 96, 6, 8, 96, 1)
    tensors, residual = numbers_of(problem)
    tile = Tile(M_B, N_B, 64, M_B // 4, N_B // 32)
    made = computed(engine, "h03", problem, tensors, residual, tile, relu=True)
    np.testing.assert_array_equal(made, expected_of(problem, tensors, residual, True))


@needs_hopper
@pytest.mark.parametrize("name", STAGES)
def test_nan_and_infinities_stay_where_they_are(name: str, engine: Engine) -> None:
    """ReLU keeps NaN, and an infinity that is added reaches no other output."""
    tensors, residual = numbers_of(SMALL)
    flat = residual.reshape(-1)
    flat[[0, 9, 50, 100]] = np.nan, np.inf, -np.inf, np.nan
    made = computed(engine, name, SMALL, tensors, residual, relu=True)
    expected = expected_of(SMALL, tensors, residual, True)
    assert np.isnan(made.astype(np.float32)).sum() == 2
    np.testing.assert_array_equal(made.astype(np.float32), expected.astype(np.float32))


@needs_hopper
@pytest.mark.parametrize("name", STAGES)
def test_sums_are_rounded_once(name: str, engine: Engine) -> None:
    """256 + 1 is 257, which bfloat16 rounds to 256; -256 added to the sum before that leaves 1."""
    problem = channels_last(1, 16, 1, 1, 32, 1)
    input, weight = np.zeros(problem.input_shape), np.zeros(problem.weight_shape)
    input[..., :2], weight[..., 0], weight[..., 1] = 1, 256, 1
    kind = problem.number_type.numpy
    tensors = input.astype(kind), weight.astype(kind), np.zeros(32, kind)
    residual = np.full(problem.output_shape, -256, kind)
    made = computed(engine, name, problem, tensors, residual)
    np.testing.assert_array_equal(made.astype(np.float32), 1)


@needs_hopper
@pytest.mark.parametrize("name", STAGES)
def test_the_output_may_be_the_residual(name: str, engine: Engine) -> None:
    tensors, residual = numbers_of(SMALL)
    made = computed(engine, name, SMALL, tensors, residual, in_place=True)
    np.testing.assert_array_equal(made, expected_of(SMALL, tensors, residual, False))


@pytest.mark.slow
def test_a_wrong_kernel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows 8 further get the residual of the lane's first window."""
    right = h01_panels.make_residual

    def make_wrong(problem: ConvProblem, tile: Tile):
        fetch, add = right(problem, tile)

        @cuda.jit(device=True)
        def fetch_wrong(R, first, residual, m_t, n_t):
            fetch(R, first, residual, m_t, n_t)
            for r in range(4):
                R[first // 2 + 4 + r] = R[first // 2 + r]

        return fetch_wrong, add

    monkeypatch.setattr(h01_panels, "make_residual", make_wrong)
    problem = SHAPES["several tiles"]
    tensors, residual = numbers_of(problem, seed=6)
    made = computed(choose("simulator"), "h01", problem, tensors, residual)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(made, expected_of(problem, tensors, residual, False))


# --- What is refused, and what calls take ---------------------------------------------------------


def test_a_plan_asks_for_the_residual_that_it_adds(engine: Engine) -> None:
    simulator = choose("simulator")
    arrays = [simulator.to_device(one, SMALL.dtype) for one in random_tensors(SMALL, 1)]
    input, weight, _ = arrays
    out = simulator.empty(SMALL.output_shape, SMALL.dtype)
    with pytest.raises(TypeError, match="residual is None: a plan with residual=True must be"):
        convlab.plan(SMALL, "h03", engine="simulator", residual=True)(input, weight, out)
    with pytest.raises(TypeError, match="residual is ndarray: it must be None unless the plan is"):
        convlab.plan(SMALL, "h03", engine="simulator")(input, weight, out, residual=out)


def test_stages_without_a_residual_say_which_have_one() -> None:
    problem = ConvProblem(1, 3, 5, 5, 4, 3)
    adding = ", ".join(STAGES)
    says = f"residual is True: stage m15_split_k adds no tensor; those that do are {adding}"
    assert "h01_panels, h02_copy_engine, h03_warp_specialization" in adding
    with pytest.raises(ValueError, match=re.escape(says)):
        convlab.plan(problem, "m15", engine="simulator", residual=True)


def test_auto_takes_a_stage_that_adds() -> None:
    """h04 takes any channels, but adds nothing; h01 does."""
    problem = channels_last(1, 8, 4, 4, 8, 1)
    plan = convlab.plan(problem, engine="simulator", residual=True)
    assert plan.stage.name == "h01_panels"
    with pytest.raises(ValueError, match="no stage computes it in bfloat16 and adds a residual"):
        convlab.plan(replace(problem, in_channels=3), engine="simulator", residual=True)


@needs_hopper
@pytest.mark.parametrize("groups", [1, 2])
def test_conv2d(groups: int, engine: Engine) -> None:
    """Arrays have their channels second, as PyTorch's; groups are computed one after the other."""
    problem = channels_last(2, 16, 4, 5, 32, 2)
    tensors, residual = numbers_of(problem)
    input, weight, bias = tensors
    wanted = expected_of(problem, tensors, residual, True).transpose(0, 3, 1, 2)
    images, filters = input.transpose(0, 3, 1, 2), weight.transpose(0, 3, 1, 2)
    added = residual.transpose(0, 3, 1, 2)
    if groups == 2:
        images = np.concatenate([images, images], 1)
        filters, bias = np.concatenate([filters, filters]), np.concatenate([bias, bias])
        added, wanted = np.concatenate([added, added], 1), np.concatenate([wanted, wanted], 1)
    call = {"groups": groups, "stage": "h01", "relu": True, "residual": added}
    made = convlab.conv2d(images, filters, bias, **call)
    np.testing.assert_array_equal(made, wanted)
    again = np.ascontiguousarray(added)
    assert convlab.conv2d(images, filters, bias, **call | {"residual": again}, out=again) is again
    np.testing.assert_array_equal(again, wanted)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"residual": np.zeros((1, 4, 3, 4))}, TypeError, "residual has dtype float64: it must"),
        (
            {"residual": np.zeros((1, 4, 3, 3), np.float16)},
            ValueError,
            "residual has shape (1, 4, 3, 3): it must be (1, 4, 3, 4)",
        ),
        ({"residual": [1.0]}, TypeError, "residual is"),
        ({"relu": 1}, TypeError, "relu is 1: it must be True or False"),
        (
            {"residual": np.zeros((1, 4, 3, 4), np.float16), "stage": "h04"},
            ValueError,
            "residual is True: stage h04_stem adds no tensor",
        ),
    ],
    ids=str,
)
def test_what_conv2d_refuses(changes, error, says: str) -> None:
    images, filters = np.zeros((1, 8, 4, 5), np.float16), np.zeros((4, 8, 2, 2), np.float16)
    with pytest.raises(error, match=re.escape(says)):
        convlab.conv2d(images, filters, engine="simulator", **{"stage": "h01"} | changes)


# --- Machine code ---------------------------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.parametrize("name", STAGES)
def test_loads_are_16_bytes_and_begin_before_the_last_product_ends(name: str) -> None:
    from convlab.running.engines.disassembly import code_of
    from convlab.running.engines.kernels import compile_launch

    problem = channels_last(32, 64, 56, 56, 256, 1)

    def compiled(residual: bool) -> list[str]:
        program = production_program(stage_named(name), problem, residual=residual)
        return [*code_of(compile_launch(program.launches[-1], program, (9, 0)))]

    plain, adding = compiled(False), compiled(True)
    loads = [number for number, line in enumerate(adding) if line.startswith("LDG.E.128")]
    before = sum(line.startswith("LDG.E.128") for line in plain)
    tile = production_program(stage_named(name), problem).tile
    assert tile is not None
    sums = tile.M_T * tile.N_T if name == "h03_warp_specialization" else tile.M_B // 2
    assert len(loads) - before == sums // 8
    last_product = max(n for n, line in enumerate(adding) if line.startswith("WARPGROUP.DEPBAR"))
    assert sum(load < last_product for load in loads) >= sums // 8
    assert not any(line.startswith(("STL", "LDL")) for line in adding)
