"""What s12b to s14 share: sums of split numbers, to float32 accuracy, and the fix-up of sums that
are not finite."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda.core import config
from split_products import FEW, INF, MOST, NAN, SHAPES, F, computed, many

from convlab import ConvProblem, Stage, Tile, plan, plans
from convlab.device import to_tf32
from convlab.engines import Engine, choose
from convlab.kernels import split_tf32, window_copies
from convlab.oracle import Oracle, random_tensors
from convlab.plans import stages_for
from convlab.stages import LADDER, stage_named
from convlab.workloads import LAYER_NAMES, paper_layer

STAGES = [stage for stage in LADDER if stage.precision == "3xtf32"]
S12E, S13, S14 = map(stage_named, ("s12e", "s13", "s14"))
UNPACKED = [stage_named(name) for name in ("s12b", "s12c", "s12d")]  # split what they read
# Numba's simulator has a thread for every thread: there, one or two warps and less of all will do.
RUN = [STAGES[0], S13, S14] if config.ENABLE_CUDASIM else STAGES
VALUES = [INF, NAN] if config.ENABLE_CUDASIM else [INF, -INF, NAN, MOST, -MOST]
WRITTEN = {True: "float4"} | ({} if config.ENABLE_CUDASIM else {False: "scalar"})
PLACES = ("input", "weight", "bias")
stages = pytest.mark.parametrize("stage", RUN, ids=lambda stage: stage.name)


@pytest.fixture(autouse=True)
def _where_it_runs(request: pytest.FixtureRequest) -> None:
    """On a GPU, the stages that it can run."""
    stage = request.node.callspec.params.get("stage") if hasattr(request.node, "callspec") else None
    if stage is not None and {"engine", "checked"} & set(request.fixturenames):
        able, reason = stages_for(choose(), (stage,))
        if stage not in able:
            pytest.skip(str(reason))


def with_and_without_relu(stage: Stage) -> list[dict[str, bool]]:
    return [{}, {"relu": True}] if "relu" in stage.options else [{}]


def test_every_rung_of_the_tensor_cores_is_here() -> None:
    numbers = " ".join(stage.name.split("_")[0] for stage in STAGES)
    assert numbers == "s12b s12c s12d s12e s13 s13b s13c s13d s14"
    for stage in STAGES:
        assert stage.allowances(FEW) == {"atomic_additions": 0, "split_products": True}
    assert stage_named("s12").precision == "fp32"


@stages
@pytest.mark.parametrize("problem", SHAPES.values(), ids=SHAPES.keys())
def test_shapes(problem: ConvProblem, stage: Stage, checked: Any) -> None:
    for with_bias in (True, False) if problem in [*SHAPES.values()][:2] else (True,):
        numbers = random_tensors(problem, 1, with_bias, integers=True)
        result = checked(problem, stage, numbers, stage.tiny_tile)
        assert result.ok, result


@stages
def test_places_that_do_not_fit_constant_memory_are_computed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, checked: Any
) -> None:
    monkeypatch.setattr(window_copies, "TABLE_BYTES", 0)
    for problem in (many(16), FEW):
        plans._prepared.cache_clear()  # programs are kept
        assert checked(problem, stage, random_tensors(problem, 2), stage.tiny_tile).ok


@cuda.jit(device=True)
def large_part_alone(value):
    return to_tf32(value), float32(0)


@pytest.mark.parametrize(
    ("stage", "module"),
    [(stage, sys.modules[stage.module]) for stage in RUN if stage not in UNPACKED]
    + [(stage, split_tf32) for stage in RUN if stage is not S12E],
    ids=lambda one: one.__name__ if isinstance(one, ModuleType) else one.name,
)
def test_a_forgotten_small_part_is_found(stage: Stage, module: ModuleType, checked: Any) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "split_tf32", large_part_alone)
        plans._prepared.cache_clear()  # programs are kept
        result = checked(FEW, stage, random_tensors(FEW, 4), stage.tiny_tile)
    plans._prepared.cache_clear()
    assert not result.ok
    assert result.error_over_bound > 10
    assert result.wrong > result.total / 2


@stages
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("whole_runs", WRITTEN, ids=WRITTEN.get)
def test_what_is_not_finite_and_what_is_nearly_not(
    whole_runs: bool, where: str, stage: Stage, engine: Engine
) -> None:
    """Right without ReLU, by the oracle; with it, the same and no negative numbers. Each value is
    in an image or a filter of its own, so that no other hides what becomes of it."""
    problem = ConvProblem(len(VALUES), 3, 4, 4 if whole_runs else 3, 5, 3, padding=1)
    numbers = dict(zip(PLACES, random_tensors(problem, 3), strict=True))
    for number, value in enumerate(VALUES):
        numbers[where][number : number + 1].reshape(-1)[2 if where != "bias" else 0] = value
    plain = computed(stage, engine, problem, numbers.values())
    result = Oracle(problem, *numbers.values()).check(plain, split_products=True)
    assert result.ok, result
    if "relu" not in stage.options:
        return
    clipped = computed(stage, engine, problem, numbers.values(), relu=True)
    np.testing.assert_array_equal(clipped, np.where(plain < 0, F(0), plain))


@stages
def test_padding_with_an_infinite_weight_is_nan(stage: Stage, engine: Engine) -> None:
    problem = ConvProblem(1, 8, 4, 4, 2, 3, padding=1)
    input, weight, bias = random_tensors(problem, 5)
    weight[1, 3, 0, 0] = INF
    for options in with_and_without_relu(stage):
        output = computed(stage, engine, problem, (input, weight, bias), **options)[0]
        nan = np.zeros((4, 4), bool)
        nan[0], nan[:, 0] = True, True
        np.testing.assert_array_equal(np.isnan(output[1]), nan)
        assert np.isfinite(output[0]).all()


@stages
def test_a_sum_that_overflows_is_added_in_another_order(stage: Stage, engine: Engine) -> None:
    """By channels it passes through minus infinity, by places it does not."""
    problem = ConvProblem(1, 8, 1, 3, 1, (1, 3))
    input, weight = np.ones(problem.input_shape, F), np.zeros(problem.weight_shape, F)
    weight[0, :2, 0] = [[-3e38, 3e38, 0], [-3e38, 0, 3.3e38]]
    for options in with_and_without_relu(stage):
        output = computed(stage, engine, problem, (input, weight, None), **options)
        assert output.item() == pytest.approx(3e37, rel=1e-6)


@pytest.mark.parametrize(
    ("stage", "options"),  # s12b packs nothing: it reads the weight as it is
    [(one, options) for one in RUN[1:] for options in with_and_without_relu(one)],
)
def test_a_constant_weight(options: dict[str, bool], stage: Stage, engine: Engine) -> None:
    """What is computed again is, too, of the weight that was there."""
    problem = ConvProblem(1, 8, 4, 6, 5, (2, 3), padding=(1, 0))
    _, weight, bias = random_tensors(problem, 7)
    weight[1, 2, 0, 1] = INF
    on = engine.to_device
    kept = on(weight)
    chosen = plan(problem, stage.name, stage.tiny_tile, engine.name, **options)
    ready = chosen.for_weight(kept, on(bias))
    kept[:] = 0
    for seed in (8, 9):
        other = random_tensors(problem, seed)[0]
        output = on(np.full(problem.output_shape, NAN, F))
        ready(on(other), output)
        wanted = computed(stage, engine, problem, (other, weight, bias), **options)
        np.testing.assert_array_equal(engine.to_host(output), wanted)
    assert np.isnan(wanted).any()


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_the_workspace_is_the_filter_once_or_twice(stage: Stage) -> None:
    for layer in LAYER_NAMES:
        problem = paper_layer(layer)
        tile = stage.production_tile(problem)
        assert isinstance(tile, Tile)
        rows, depth = -(-problem.M // tile.M_B) * tile.M_B, -(-problem.K // tile.K_B) * tile.K_B
        parts = 0 if stage.name == "s12b_mma" else 1 if stage in (S12E, *UNPACKED) else 2
        assert stage.prepare(problem, tile).workspace_bytes == parts * 4 * rows * depth
