"""The ladder's run: checked, counted, timed; broken stages named; JSON that any reader takes."""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Timer
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32
from pretended_gpu import PretendedGpu

from convlab.ladder import LADDER, Program, Stage, Tile, stage_named
from convlab.ladder.main import m01_direct
from convlab.measuring import ladder_run as ladder
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.running.engines import choose
from convlab.running.engines.gpu import Gpu
from convlab.running.plans import Plan

# The simulator wherever the tests run: a kernel broken on purpose must not meet a real GPU.
SIMULATOR = choose("cudasim")
TINY = ConvProblem(2, 2, 4, 3, 3, kernel_size=2)
M01 = stage_named("m01")
(READS,) = (
    number
    for number, line in enumerate(Path(m01_direct.__file__).read_text().splitlines(), start=1)
    if "pixel = input[" in line
)


def results(
    problem: ConvProblem, *stages: Stage, engine: Any = SIMULATOR
) -> list[ladder.StageResult]:
    return list(ladder.run(problem, stages, engine, random_tensors(problem, 0)))


def cannot_be_prepared(problem: ConvProblem, tile: None = None) -> Program:
    raise ValueError("this stage\n  needs   something else")


def broken(prepare: Callable[..., Program]) -> Stage:
    """A stage that is m01 but for its ``prepare``."""
    return replace(M01, module="convlab.ladder.main.m02_broken", prepare=prepare)


def with_more_channels(more: int) -> Stage:
    """A stage that is m01 but reads so many more channels than there are."""

    def prepare(problem: ConvProblem, tile: None = None) -> Program:
        read = replace(problem, in_channels=problem.in_channels + more)
        (launch,) = m01_direct.prepare(problem).launches
        return Program((), (replace(launch, kernel=m01_direct.make_kernel(read)),))

    return broken(prepare)


def test_layout_transforms_are_counted_apart():
    m05, m06 = results(TINY, stage_named("m05"), stage_named("m06"))
    assert m05.transform_counts is None
    assert m06.counts.keys() == m06.transform_counts.keys()
    packed = m06.workspace_bytes // 4  # one store each
    assert m06.transform_counts["global_stores"] == packed
    assert m06.transform_counts["global_loads"] == math.prod(TINY.weight_shape)
    assert m06.transform_counts["barriers"] == m06.transform_counts["flops_per_byte"] == 0
    assert m06.counts["global_stores"] == math.prod(TINY.output_shape)
    assert m06.counts["flops_per_byte"] == TINY.flops / m06.counts["global_bytes"]


def test_side_by_side_stages_give_the_same_in_the_same_order():
    stages = [broken(cannot_be_prepared), *map(stage_named, ("m03", "m02", "m06")), M01]
    engine, tensors = choose("simulator"), random_tensors(TINY, 0)
    alone = [*ladder.run(TINY, stages, engine, tensors)]
    for processes in (2, 9):
        together = [*ladder.run(TINY, stages, engine, tensors, processes)]
        assert together == alone  # also the stage's counts, but not its output
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_array_equal(one.output, other.output)
    assert [one.status for one in alone] == ["FAILED", "OK", "OK", "OK", "OK"]


def test_a_stage_whose_process_is_killed_has_failed_and_the_others_go_on():
    def out_of_memory(problem: ConvProblem, tile: None = None) -> Program:
        os.kill(os.getpid(), signal.SIGKILL)  # as Linux does
        raise AssertionError

    stages = M01, broken(out_of_memory), M01
    ran = ladder.run(TINY, stages, SIMULATOR, random_tensors(TINY, 0), 2)
    first, killed, last = ran
    assert first.ok
    assert last.ok
    assert killed.error == "its process was killed by signal 9 (exit code -9)"
    assert killed.output is None


def test_no_process_is_left_after_an_interrupt():
    def endless(problem: ConvProblem, tile: None = None) -> Program:
        while True:
            time.sleep(1)

    run = ladder.run(TINY, [M01, *[broken(endless)] * 2], SIMULATOR, random_tensors(TINY, 0), 2)
    assert next(run).ok
    waiting = Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    waiting.start()
    with pytest.raises(KeyboardInterrupt):
        next(run)
    waiting.join()
    assert multiprocessing.active_children() == []


def test_so_many_stages_run_at_once_as_there_are_cores(monkeypatch):
    assert ladder.processes_for(PretendedGpu()) == 1  # they would disturb each other's times
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert ladder.processes_for(SIMULATOR) == min(cores, ladder.MOST_PROCESSES)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert ladder.processes_for(SIMULATOR) == 1


def test_a_plan_is_gone_before_the_next_is_made(monkeypatch):
    alive: list[weakref.ref[Plan]] = []

    def plan(*arguments: Any) -> Plan:
        assert not [ready for ready in alive if ready() is not None]
        ready = Plan(*arguments)
        alive.append(weakref.ref(ready))
        return ready

    monkeypatch.setattr(ladder, "Plan", plan)
    gc.disable()
    try:
        results(TINY, M01, with_more_channels(1), stage_named("m06"), M01)
    finally:
        gc.enable()
    assert len(alive) == 4


@cuda.jit
def spoils_the_bias(input, weight, bias, output):
    bias[0] = float32(5)


def test_a_stage_that_spoils_its_sources_is_named_and_the_next_are_not():
    def spoil(problem: ConvProblem, tile: None = None) -> Program:
        right = m01_direct.prepare(problem).launches
        spoiling = replace(right[0], kernel=spoils_the_bias, grid=(1,), block=(1,))
        return Program(buffers=(), launches=(*right, spoiling))

    guilty, next_one = results(TINY, broken(spoil), M01, engine=choose("simulator"))
    assert guilty.error == "a kernel wrote to bias, not its output"
    assert next_one.ok


M03 = stage_named("m03")
NO_TILE = replace(M03, tiles=replace(M03.tiles, tiny=Tile(M_B=2, N_B=2, K_B=2, M_T=2)))
SAID_OF_TILE = r"raised ValueError at m03_shared_memory\.py:\d+: tile 2x2x2/2x1: "


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (broken(cannot_be_prepared), "raised ValueError: this stage needs something else$"),
        (with_more_channels(1), rf"raised IndexError at m01_direct\.py:{READS}: .*index \("),
        (NO_TILE, SAID_OF_TILE),
        (replace(NO_TILE, module=m01_direct.__name__), SAID_OF_TILE),  # a file that stages share
    ],
)
def test_a_stage_that_raises_fails_and_the_next_go_on(stage, said):
    failed, after = results(TINY, stage, stage_named("m02"))
    assert not failed.ok
    assert failed.check is failed.error_over_bound is failed.counts is None
    assert failed.status == "FAILED"
    assert re.match(said, failed.error)
    assert "\n" not in failed.error
    assert after.ok


@pytest.fixture
def gpu(monkeypatch):
    """A simulator that says that it is a GPU: for what only a GPU's run does."""

    def plan(problem: ConvProblem, stage: Stage, tile: None, engine: PretendedGpu) -> Plan:
        return Plan(problem, stage, stage.tiny_tile, engine)

    monkeypatch.setattr(ladder, "Plan", plan)
    return PretendedGpu(strict=False)


def pretended_timer(monkeypatch: pytest.MonkeyPatch, *times_ms: float, runs: int = 1) -> None:
    """A ``convlab.measuring.timer`` that measures these times, one after the other."""
    times = iter(times_ms)

    def measure(call: Callable[[Any], None]) -> SimpleNamespace:
        for _ in range(runs):
            call(None)
        return SimpleNamespace(median_ms=next(times), spread_percent=1.5, repeats=10)

    module = ModuleType("convlab.measuring.timer")
    module.measure = measure
    monkeypatch.setitem(sys.modules, "convlab.measuring.timer", module)


def test_a_kernel_s_launches_are_timed_together_whether_ours_or_a_library_s(gpu, monkeypatch):
    """The whole, then each kernel: all its launches, which are one an image."""
    pretended_timer(monkeypatch, 4.0, 0.5, 1.0, 2.0, 4.0, 1.0, 2.0)
    stages = map(stage_named, ("i02_im2col_per_image", "i04_im2col_blas"))
    ours, theirs = results(TINY, *stages, engine=gpu)
    assert ours.time_ms == 4
    assert ours.launch_ms == {"pack_filter": 0.5, "im2col": 1.0, "matrix_product": 2.0}
    assert theirs.launch_ms == {"im2col": 1.0, "blas": 2.0}


def test_counts_are_of_all_the_main_kernel_s_launches():
    (each,) = results(TINY, stage_named("i02_im2col_per_image"))
    images = ConvProblem(1, 2, 4, 3, 3, kernel_size=2)
    one, library = results(images, *map(stage_named, ("i01_im2col", "i04_im2col_blas")))
    assert library.counts is None
    assert each.counts["global_loads"] == 2 * one.counts["global_loads"]
    assert each.transform_counts["global_loads"] > one.transform_counts["global_loads"]


def test_a_gpu_is_timed_and_not_counted(gpu, monkeypatch):
    pretended_timer(monkeypatch, 4.0, 2.0)
    found = results(TINY, M01, stage_named("m02"), engine=gpu)
    slow, fast = ladder.as_json(TINY, gpu, found)["stages"]
    assert (slow["time_ms"], slow["speedup"]) == (4.0, 1.0)
    assert (fast["time_ms"], fast["speedup"], fast["time_spread"]) == (2.0, 2.0, 1.5)
    assert fast["tflops"] == pytest.approx(TINY.flops / 2e-3 / 1e12)
    assert fast["launch_ms"] == {"implicit_gemm": 2.0}
    assert slow["counts"] is fast["counts"] is None
    (alone,) = ladder.as_json(TINY, gpu, found[1:])["stages"]
    assert alone["speedup"] is None


def test_a_gpu_is_checked_again_after_timing(gpu, monkeypatch):
    pretended_timer(monkeypatch, 1.0, runs=0)  # so the output stays as it was poisoned
    (result,) = results(TINY, M01, engine=gpu)
    assert result.status == "WRONG"
    assert math.isnan(result.check.got)
    assert result.time_ms is result.launch_ms is None


@pytest.mark.parametrize(("part_of_peak", "ok"), [(0.99, True), (1.01, False)])
def test_faster_than_the_gpu_can_be_is_refused(gpu, monkeypatch, part_of_peak, ok):
    pretended_timer(monkeypatch, 2.0)
    rate = TINY.flops / 2e-3
    monkeypatch.setattr(PretendedGpu, "peak_flops", lambda self, precision: rate / part_of_peak)
    (result,) = results(TINY, M01, engine=gpu)
    assert result.ok is ok
    if not ok:
        assert (result.status, result.check.ok) == ("FAILED", True)
        assert "refused: 2 ms are " in result.error
        assert "pretended GPU" in result.error
        assert result.time_ms is result.tflops is result.launch_ms is None


@pytest.mark.parametrize(
    ("capability", "fp32", "tf32"),
    [
        ((9, 0), 66.9, 535.3),
        ((8, 0), 33.45, 267.6),
        ((8, 6), 66.9, 66.9),
        ((12, 0), 66.9, 66.9),
        ((7, 5), 33.45, None),
        ((6, 1), None, None),
    ],
)
def test_the_peaks_of_a_gpu(monkeypatch, capability, fp32, tf32):
    """Peaks in TFLOP/s: of the ordinary units, of the tensor cores, and of three TF32 products
    each."""
    device = SimpleNamespace(
        compute_capability=capability, MULTIPROCESSOR_COUNT=132, CLOCK_RATE=1_980_000
    )
    monkeypatch.setattr("convlab.running.engines.gpu.cuda.get_current_device", lambda: device)
    third = tf32 and tf32 / 3
    for precision, wanted in (("fp32", fp32), ("tf32", tf32), ("3xtf32", third)):
        peak = Gpu().peak_flops(precision)
        assert peak == (None if wanted is None else pytest.approx(wanted * 1e12, rel=1e-3))


def test_a_stage_on_tensor_cores_has_their_peak(gpu, monkeypatch):
    """Faster than ordinary units can be, slower than a third of what tensor cores do."""
    pretended_timer(monkeypatch, 2.0, 1.0, 1.0, 2.0)  # of t03 and its two launches; of m01
    rate = TINY.flops / 2e-3
    peaks = {"fp32": rate / 2, "3xtf32": 2 * rate}
    monkeypatch.setattr(PretendedGpu, "peak_flops", lambda self, precision: peaks[precision])
    tensor_cores, ordinary = results(TINY, stage_named("t03"), M01, engine=gpu)
    assert tensor_cores.ok
    assert not ordinary.ok


def test_a_wrong_answer_is_told_and_not_timed(gpu, monkeypatch):
    pretended_timer(monkeypatch)
    (result,) = results(TINY, with_more_channels(-1), engine=gpu)
    assert result.error_over_bound > 1
    assert result.error == str(result.check)
    assert "first at [0, 0, 0, 0]" in result.error
    assert result.timing is None


def strict(document: Any) -> Any:
    """The document, through JSON as the standard has it."""
    return json.loads(json.dumps(document, allow_nan=False))


def test_json():
    """Its keys are test_json.py's subject."""
    stages = (M01, broken(lambda problem, tile=None: Program((), ())), stage_named("m02"))
    document = strict(ladder.as_json(TINY, SIMULATOR, results(TINY, *stages)))
    assert document["engine"] == "cudasim"
    assert document["environment"] is None
    assert document["problem"] == {
        "batch": 2, "in_channels": 2, "height": 4, "width": 3, "out_channels": 3,
        "kernel_size": [2, 2], "stride": [1, 1], "padding": [[0, 0], [0, 0]], "dilation": [1, 1],
        "groups": 1, "dtype": "float32", "channels_last": False, "input_shape": [2, 2, 4, 3],
        "weight_shape": [3, 2, 2, 2], "output_shape": [2, 3, 3, 2],
        "gemm": {"M": 3, "N": 12, "K": 8}, "flops": 576,
    }  # fmt: skip
    right, wrong, _ = document["stages"]
    assert (right["name"], right["ok"], right["error"]) == ("m01_direct", True, None)
    assert right["first_wrong"] is right["time_ms"] is right["speedup"] is None
    assert right["workspace_bytes"] == 0
    assert right["tile"] is None
    (tiled,) = ladder.as_json(TINY, SIMULATOR, results(TINY, M03))["stages"]
    assert tiled["tile"] == str(M03.tiny_tile)
    assert right["counts"]["layout_transforms"] is None
    assert (wrong["ok"], wrong["error_over_bound"]) == (False, "inf")
    assert wrong["first_wrong"].pop("expected") < math.inf
    assert wrong["first_wrong"] == {"index": [0, 0, 0, 0], "got": "nan"}


def test_waits_are_foretold_on_a_simulator_only():
    """The estimate counts all that a tile computes, its remainders too."""
    engine = SimpleNamespace(name="simulator", is_gpu=False, multiply_adds_per_second=10)
    products = TINY.M * TINY.N * TINY.K
    assert ladder.estimated_seconds(TINY, LADDER[:2], engine) == products / 5
    assert M03.model_tile == Tile(8, 32, 8)
    assert ladder.estimated_seconds(TINY, [M03], engine) == 8 * 32 * 8 / 10
    assert ladder.estimated_seconds(TINY, LADDER, PretendedGpu()) is None


def test_what_a_gpu_s_times_were_measured_with(gpu, monkeypatch):
    pretended_timer(monkeypatch, 4.0)
    found = results(TINY, M01, engine=gpu)
    arguments = ["ladder", "--json", "two words.json"]
    document = strict(ladder.as_json(TINY, gpu, found, arguments=arguments))
    environment = document["environment"]
    assert environment["command"] == "convlab ladder --json 'two words.json'"
    assert datetime.fromisoformat(environment["date"]).utcoffset() == timedelta(0)
    assert environment["packages"]["numpy"] == np.__version__
    assert sys.prefix not in json.dumps(environment)
