"""The stage that "auto" takes: the models' choice beside times of an H200."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import gpu_tables
import pytest
from gpu_tables import Gpu, gpu_section, mean, read
from pretended_gpu import PretendedGpu

from convlab import ConvProblem
from convlab.ladder import stage_named
from convlab.ladder.stage_choice import CALLS, GpuLimits, estimated_clocks
from convlab.problems.workloads import paper_layer
from convlab.running.chosen_stages import auto_stage, stage_for
from convlab.running.engines.absent import AbsentGpu, GpuFacts

pytestmark = pytest.mark.same_in_cudasim

RESULTS = Path(__file__).parents[1] / "docs/results/splits_h200.json"
LATE = ConvProblem(1, 512, 7, 7, 512, 3, padding=1)
BOTH = M15, T06 = stage_named("m15"), stage_named("t06")


@cache
def h200() -> Gpu:
    """Return the times of an H200. Every output was right."""
    return read(RESULTS)


@pytest.mark.parametrize(("batch", "least"), [(1, 1.9), (32, 1.8)])
def test_auto_beside_pytorch_s_float32(batch: int, least: float) -> None:
    gpu = h200()
    of_batch = [one for one in gpu.layers.values() if one.problem.batch == batch]
    assert len(of_batch) == 21
    speedups = [one.torch / one.chosen(gpu.limits) for one in of_batch]
    assert min(speedups) > 1
    assert mean(speedups) > least


def test_the_choice_is_close_to_the_best() -> None:
    gpu = h200()
    ratios = [one.chosen(gpu.limits) / one.best() for one in gpu.layers.values()]
    assert mean(ratios) < 1.03
    assert max(ratios) < 1.15


def test_each_gpu_has_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(h200(), device="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(gpu_tables, "gpus", lambda: [other, h200()])
    section = gpu_section()
    head = next(line for line in section.splitlines() if line.startswith("| layer"))
    assert [f"{name}: auto" in head for name in ("H100 80GB HBM3", "H200")] == [True, True]
    assert section.count("| resnet_1 x 32 |") == 1
    assert section.count("| 32 | NVIDIA H") == 2


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
