"""Stages g01 to g03: gradients within the rounding bound of float64 ones, on every engine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from computing import run_and_check
from hypothesis import given
from hypothesis import strategies as st
from numba.cuda.core import config
from strategies import problems

from convlab.ladder import BACKWARD, allowances, production_program, stage_named
from convlab.ladder.gradients import g02_exchanged_roles as g02
from convlab.ladder.gradients import g03_shared_pixels as g03
from convlab.ladder.gradients.g02_exchanged_roles import through
from convlab.ladder.stage import Tile
from convlab.measuring.machine_code import lint_stage
from convlab.problems.gradient import Gradient
from convlab.problems.oracle import Oracle, random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import reference
from convlab.problems.workloads import paper_layer, problem_of
from convlab.running.chosen_stages import stage_for
from convlab.running.engines import choose
from convlab.running.plans import Plan, plan
from convlab.tracing import trace_stage

SIDES = ("input", "weight")
AWKWARD = {
    "plain": ConvProblem(2, 3, 5, 6, 4, 3),
    "sides differ": ConvProblem(1, 2, 7, 8, 3, (3, 2), (2, 3), ((0, 3), (2, 1)), (2, 1)),
    "a column of each phase": ConvProblem(1, 2, 5, 6, 3, 1, stride=2),
    "rows untouched": ConvProblem(2, 2, 9, 8, 3, 2, (4, 3)),
    "window of zeros": ConvProblem(1, 1, 1, 1, 1, 2, 10, ((5, 5), (5, 0))),
    "pixel between windows": ConvProblem(1, 2, 1, 1, 3, 1, 2, 1),
    "more padding than filter": ConvProblem(1, 3, 6, 6, 2, 2, 1, ((5, 7), (1, 4))),
    "larger than the image": ConvProblem(3, 4, 3, 3, 4, 5, 1, 2),
    "stride and dilation alike": ConvProblem(1, 3, 9, 9, 2, 3, 2, 1, 2),
    "stride and dilation unlike": ConvProblem(1, 2, 11, 9, 4, 3, (3, 2), (4, 9), (2, 3)),
    "two groups": ConvProblem(2, 4, 5, 6, 6, (3, 2), (1, 2), 1, groups=2),
    "depthwise": ConvProblem(2, 6, 10, 7, 6, (3, 1), 2, (1, 0), groups=6),
}


@pytest.mark.parametrize("of", SIDES)
@pytest.mark.parametrize("problem", AWKWARD.values(), ids=AWKWARD)
def test_the_reference_is_the_derivative(problem, of):
    """The loss is linear in either tensor, so its derivative by an element is its value at that
    element's unit vector."""
    gradient = Gradient(problem, of)
    input, weight, _ = random_tensors(problem, 1)
    of_output = np.random.default_rng(2).standard_normal(problem.output_shape).astype("f4")
    other = (of_output, weight) if of == "input" else (input, of_output)
    got = reference(gradient, *other, workers=2)
    for place in {0, got.size // 2, got.size - 1}:
        unit = np.zeros(gradient.output_shape, np.float32)
        unit.flat[place] = 1
        tensors = (unit, weight) if of == "input" else (input, unit)
        loss = (of_output * reference(problem, *tensors)).sum()
        np.testing.assert_allclose(got.flat[place], loss, 1e-12, 1e-12)


@pytest.mark.parametrize("of", SIDES)
@pytest.mark.parametrize("name", ["g01", "g02", "g03", "m03", "t03_split_once"])
@pytest.mark.parametrize("problem", AWKWARD.values(), ids=AWKWARD)
def test_awkward_shapes_are_right(problem, name, of, engine, checked):
    gradient = Gradient(problem, of)
    stage = stage_for(name, engine, gradient)
    if not stage.runs_on(engine.capability()):
        pytest.skip(f"the GPU is too old for {stage.name}")
    result = checked(gradient, stage, random_tensors(gradient, 3, bias=False))
    assert result.ok, str(result)


@pytest.mark.slow
@given(problems(max_macs=600), st.integers(0, 2**32 - 1))
def test_any_shape_is_right(checked_in_simulator, problem, seed):
    for of in SIDES:
        gradient = Gradient(problem, of)
        tensors = random_tensors(gradient, seed, bias=False, integers=True)
        for stage in (BACKWARD[0], through(stage_named("m01"))):
            result = checked_in_simulator(gradient, stage, tensors)
            assert result.ok, f"{stage.name}: {result}"
            assert result.error_over_bound == 0


@pytest.mark.parametrize("of", SIDES)
@pytest.mark.parametrize("stage", BACKWARD, ids=lambda stage: stage.name)
def test_numbas_simulator_agrees(stage, of):
    gradient = Gradient(AWKWARD["sides differ"], of)
    numbers = random_tensors(gradient, 4, bias=False)
    assert run_and_check(choose("cudasim"), gradient, stage, numbers).ok


@pytest.mark.parametrize(
    ("problem", "of", "kernel"),
    [
        *((AWKWARD[name], of, "grouped") for name in ("two groups", "depthwise") for of in SIDES),
        (ConvProblem(4, 8, 16, 16, 16, 3, 1, 1), "input", "split_k"),  # nothing to interleave
    ],
)
def test_groups_are_left_to_grouped(problem, of, kernel):
    assert BACKWARD[1].name == "g02_exchanged_roles"
    program = BACKWARD[1].prepare(Gradient(problem, of), BACKWARD[1].tiny_tile)
    assert kernel in [step.name for step in program.launches][-2:]


# g03's own kernel: of dL/dweight, whose pixels several blocks share.
G03 = BACKWARD[2]
TINY = Tile(8, 128, 16, 2, 4)
TWO_TAPS = Tile(16, 64, 16, 4, 2)
PIXELS = {
    # 75 pixels, five slices with a tail; 18 taps; nine channels are two blocks.
    "tails": (ConvProblem(3, 2, 5, 5, 9, 3, padding=1), TINY, 2),
    # float4s of dL/doutput; 153 taps are two blocks; a dilation.
    "aligned": (ConvProblem(1, 17, 4, 6, 9, 3, padding=1, dilation=(1, 2)), TINY, 1),
    "more than 32 channels": (ConvProblem(2, 2, 4, 4, 37, 2), Tile(40, 128, 16, 10, 4), 2),
    # One pixel an image: four neighbouring pixels are of four images.
    "one output": (ConvProblem(37, 3, 3, 2, 8, (3, 2)), TINY, 3),
    "many parts": (ConvProblem(11, 1, 5, 5, 3, 3), TINY, 100),
    # One product a slice. 27 taps are not whole warps of 16; 66 are two blocks.
    "few taps": (ConvProblem(2, 3, 7, 6, 9, 3, padding=1), TWO_TAPS, 2),
    "two taps a lane": (ConvProblem(1, 11, 5, 6, 20, (2, 3), stride=(2, 1)), TWO_TAPS, 1),
}


@pytest.mark.parametrize(("problem", "tile", "splits"), PIXELS.values(), ids=PIXELS)
def test_blocks_share_the_pixels(problem, tile, splits, engine):
    if not G03.runs_on(engine.capability()):
        pytest.skip(f"the GPU is not one for {G03.name}")
    gradient = Gradient(problem, "weight")
    input, of_output, _ = random_tensors(gradient, splits, bias=False)
    input[0, 0, 0, 0], of_output[-1, -1, -1, -1] = np.inf, np.nan
    program = G03.prepare(gradient, tile, splits=splits)
    plan_ = Plan(gradient, G03, tile, engine, program=program)
    found = []
    for _ in range(2):
        output = engine.to_device(np.full(gradient.output_shape, np.nan, np.float32))
        plan_(engine.to_device(input), engine.to_device(of_output), output)
        found.append(engine.to_host(output))
    np.testing.assert_array_equal(*found)  # the parts are added in one order
    result = Oracle(gradient, input, of_output).check(found[0], **allowances(G03, gradient))
    assert result.ok, str(result)


@pytest.mark.same_in_cudasim
def test_as_many_blocks_share_a_sum_as_fill_the_gpu():
    cases = ("conv7", 1, (64, 64)), ("conv9", 5, (64, 128)), ("conv12", 6 * 36, (96, 128))
    for layer, tiles, sizes in cases:
        gradient = Gradient(paper_layer(layer, 32), "weight")
        tile = g03.tile_of(gradient)
        program = production_program(G03, gradient)
        x, y, splits = program.launches[0].grid
        assert (x * y, tile.M_B, tile.N_B) == (tiles, *sizes)
        room = 132 * tile.resident_blocks(g03.REGISTERS)
        assert splits == 1 or room / 2 < x * y * splits <= room
        smaller = production_program(G03, gradient, sm_count=78)  # an H20
        x, y, splits = smaller.launches[0].grid
        room = 78 * smaller.tile.resident_blocks(g03.REGISTERS)
        assert splits == 1 or room / 2 < x * y * splits <= room


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("of", SIDES)
def test_both_gradients_are_planned_for_the_gpu_s_sms(of, groups, monkeypatch):
    asked = []

    def splits_for(stage, problem, tile, sm_count, **switches):
        asked.append(sm_count)
        return {}

    monkeypatch.setattr(g02, "splits_for", splits_for)
    problem = ConvProblem(2, 8, 9, 9, 8, 3, groups=groups)
    production_program(BACKWARD[1], Gradient(problem, of), sm_count=78)
    production_program(G03, Gradient(problem, of), sm_count=78)
    assert set(asked) == {78}


@pytest.mark.same_in_cudasim
@pytest.mark.parametrize(
    ("tile", "rule"),
    [
        (Tile(128, 128, 16, 32, 4), "its slices take 50688 bytes, and shared memory has 49152"),
        (Tile(136, 64, 16, 34, 2), "M_B must be at most 128"),
        (Tile(12, 64, 16, 3, 2), "M_B must be a multiple of 8, the columns of a core matrix"),
        (Tile(16, 32, 16, 4, 1), "N_T must be 2 or 4, a lane's taps of one or two products"),
        (Tile(16, 64, 16, 2, 4), "N_B must be 32 * N_T, K_B 16 and M_T M_B / 4, the tile of a"),
    ],
)
def test_tiles_of_taps_that_a_warpgroup_cannot_share(tile, rule):
    gradient = Gradient(AWKWARD["plain"], "weight")
    with pytest.raises(ValueError, match=rf"^tile {re.escape(f'{tile}: {rule}')}"):
        G03.prepare(gradient, tile)


def test_a_wrong_gradient_is_found():
    """One pixel off, or the filters not flipped."""
    gradient = Gradient(ConvProblem(1, 2, 5, 5, 2, 3, padding=1), "input")
    of_output, weight, _ = random_tensors(gradient, 5, bias=False)
    right = reference(gradient, of_output, weight).astype(np.float32)
    wrong = reference(gradient, of_output, np.ascontiguousarray(weight[..., ::-1, ::-1]))
    oracle = Oracle(gradient, of_output, weight)
    assert oracle.check(right).ok
    assert not oracle.check(wrong.astype(np.float32)).ok
    assert not oracle.check(np.roll(right, 1, axis=3)).ok


def test_no_more_work_than_the_convolution():
    """A stride of two leaves three zeros of four between outputs; none is multiplied by."""
    for layer in (ConvProblem(4, 8, 32, 32, 16, 4, 2, 1), ConvProblem(4, 8, 32, 32, 16, 1, 2)):
        for of in SIDES:
            assert Gradient(layer, of).as_convolution.flops < 1.2 * layer.flops


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, "input"), r"^problem is 3: it must be a ConvProblem$"),
        ((AWKWARD["plain"], "bias"), r"^of is 'bias': it must be 'input' or 'weight'$"),
        ((AWKWARD["plain"], np.ones(2)), r"^of is array\(\[1., 1.\]\): it must be 'input' or"),
    ],
)
def test_what_a_gradient_refuses(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Gradient(*arguments)


def test_plan_takes_a_gradient_by_any_stage():
    gradient = Gradient(AWKWARD["plain"], "input")
    names = {
        "auto": "g01_direct_gradients",
        "g02": "g02_exchanged_roles",
        "g03": "g03_shared_pixels",
        "m03": "g02_exchanged_roles",
    }
    for name, expected in names.items():
        assert plan(gradient, name, engine="simulator").stage.name == expected
    with pytest.raises(ValueError, match=r"^stage is 'g01': it must compute a convolution"):
        plan(AWKWARD["plain"], "g01")


def test_a_gradient_is_traced():
    made = trace_stage("g02", Gradient(AWKWARD["plain"], "weight"))
    names = [launch.kernel for launch in made.launches]
    assert names == ["exchange_axes"] * 2 + ["pack_filter", "split_k", "exchange_axes"]


@pytest.mark.gate
@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("stage", BACKWARD, ids=lambda stage: stage.name)
def test_gradients_compile_cleanly(stage):
    if config.ENABLE_CUDASIM:
        pytest.skip("Numba's simulator compiles nothing")
    layers = {
        "conv9": paper_layer("conv9"),
        "stride": ConvProblem(32, 64, 56, 56, 128, 3, 2, 1),
        "depthwise": ConvProblem(8, 96, 112, 112, 96, 3, 2, 1, groups=96),
        "awkward": AWKWARD["sides differ"],
    }
    made = {f"{of} {name}": Gradient(layer, of) for name, layer in layers.items() for of in SIDES}
    rows = list(lint_stage(stage, made, ((9, 0),)))
    assert not [row for row in rows if not row.ok], [(str(row), row.findings) for row in rows]


@pytest.mark.same_in_cudasim
def test_the_tile_of_a_weight_s_gradient_is_close_to_the_best():
    """Of the tiles that were timed on an H200, by geometric mean over 18 layers."""
    file = Path(__file__).parents[1] / "docs/results/warpgroup_tiles_h200.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["of"] == "weight" and "tile" in row and "splits" not in row:
            times.setdefault(row["problem"], {})[row["tile"]] = row["ms"]
    losses = []
    for problem, by_tile in times.items():
        chosen = g03.tile_of(Gradient(problem_of(problem), "weight"))
        losses.append(by_tile[str(chosen)] / min(by_tile.values()))
    assert len(losses) == 18
    assert np.exp(np.mean(np.log(losses))) < 1.01
    assert max(losses) < 1.05
