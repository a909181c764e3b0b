"""The stage that "auto" takes: the models' choice beside times of an H200."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from pretended_gpu import PretendedGpu

from convlab import ConvProblem
from convlab.ladder import stage_named, tile_named
from convlab.ladder.stage_choice import CALLS, GpuLimits, estimated_clocks, fastest
from convlab.ladder.tile_heuristic import heuristic_of
from convlab.problems.workloads import paper_layer, problem_of, unseen_layers
from convlab.running.engines.absent import AbsentGpu, GpuFacts
from convlab.running.plans import auto_stage, stage_for

pytestmark = pytest.mark.same_in_cudasim

RESULTS = Path(__file__).parents[1] / "docs/results/splits_h200.json"
LATE = ConvProblem(1, 512, 7, 7, 512, 3, padding=1)
BOTH = M15, T06 = stage_named("m15"), stage_named("t06")


@cache
def measured() -> dict[str, tuple[ConvProblem, float, dict[tuple[object, ...], float]]]:
    """Return for each layer the problem, PyTorch's time, and the times of stages' tiles and
    splits. Every output was right."""
    times: dict[str, dict[tuple[object, ...], float]] = defaultdict(dict)
    by_torch = {}
    for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]:
        assert row["error"] < 16, row  # roundings of the sum of the products' sizes
        assert problem_of(row["problem"]) == unseen_layers()[row["layer"]]
        if row["stage"] == "torch_fp32":
            by_torch[row["layer"]] = row["ms"]
        else:
            choice = row["stage"], tile_named(row["tile"]), row["splits"]
            times[row["layer"]][choice] = row["ms"]
    known = unseen_layers()
    return {name: (known[name], by_torch[name], of_it) for name, of_it in times.items()}


def time_of_choice(problem: ConvProblem, times: dict[tuple[object, ...], float]) -> float:
    """The time of the stage that is chosen, with the model's best of the tiles and splits that were
    measured."""
    stage = fastest(BOTH, problem, GpuLimits())
    heuristic = heuristic_of(stage)
    assert heuristic is not None
    own = [choice for choice in times if choice[0] == stage.name.partition("_")[0]]
    return times[
        min(own, key=lambda one: heuristic.estimated_cost(problem, one[1], splits=one[2]))  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize(("batch", "least"), [(1, 1.9), (32, 1.8)])
def test_auto_beside_pytorch_s_float32(batch: int, least: float) -> None:
    of_batch = [one for one in measured().values() if one[0].batch == batch]
    assert len(of_batch) == 21
    speedups = [torch / time_of_choice(problem, times) for problem, torch, times in of_batch]
    assert min(speedups) > 1
    assert math.prod(speedups) ** (1 / 21) > least


def test_the_choice_is_close_to_the_best() -> None:
    ratios = [
        time_of_choice(problem, times) / min(times.values())
        for problem, _, times in measured().values()
    ]
    assert math.prod(ratios) ** (1 / len(ratios)) < 1.03
    assert max(ratios) < 1.15


def test_many_images_go_to_tensor_cores_and_single_ones_do_not() -> None:
    hopper = PretendedGpu("H100", (9, 0), sms=132)
    assert auto_stage(hopper, paper_layer("conv9")) is T06
    assert auto_stage(hopper, LATE) is M15
    assert stage_for("auto", hopper, replace(LATE, batch=32)) is T06
    ampere = PretendedGpu("A100", (8, 0), sms=108)
    assert auto_stage(ampere, paper_layer("conv9")) is M15
    turing = PretendedGpu("T4", (7, 5), sms=40)
    assert auto_stage(turing, paper_layer("conv9")) is stage_named("m11")


def test_a_gpu_of_less_bandwidth_pays_more_for_the_filter() -> None:
    slow = GpuLimits(bytes_a_clock=500.0)
    for stage in BOTH:
        usual = estimated_clocks(stage, LATE)
        assert usual is not None
        assert (estimated_clocks(stage, LATE, slow) or 0) > usual
    assert estimated_clocks(stage_named("m11"), LATE) is None
    assert set(CALLS) == {"m15", "t06"}
    facts = GpuFacts("NVIDIA H100", (9, 0), 132, bytes_a_clock=1690.0)
    assert AbsentGpu(facts).limits() == GpuLimits(132, 1690.0)
    assert PretendedGpu(sms=7).limits() == GpuLimits(7)
