"""The tuner and `convlab tune`, on a simulator that says it is a GPU, with a timer that measures
what a test says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import problems
from typer.testing import CliRunner

from convlab import ConvProblem, Tile, cli, engines, plans, stages, tuned
from convlab.bench import tuning
from convlab.commands import tune
from convlab.engines import EngineUnavailable
from convlab.engines.simulator import Simulator
from convlab.stages import s12_fused_im2win as s12
from convlab.workloads import UNSEEN, UNTUNED, paper_layer

pytestmark = pytest.mark.same_in_cudasim

TILES = (Tile(16, 32, 4, 4, 4), Tile(32, 32, 4, 4, 4), Tile(12, 32, 3, 12, 8))
MODEL = TILES[1]
PROBLEM = ConvProblem(3, 5, 6, 6, 8, 3, padding=1)
SHAPES = "3x5x6x6,8x5x3x3,p1"
S12 = replace(
    s12.STAGE,
    tiles=replace(
        s12.STAGE.tiles, candidates=lambda problem: TILES, production=lambda problem, **facts: MODEL
    ),
)


def ladder_with(changed: stages.Stage) -> tuple[stages.Stage, ...]:
    return tuple(changed if stage.name == changed.name else stage for stage in stages.LADDER)


class PretendedGpu(Simulator):
    name, is_gpu, device = "gpu", True, "pretended GPU"

    def sm_count(self) -> int:
        return 4


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the timer measures next, in ms; then 1, 2, 3 and so on. It runs the work once."""
    coming: list[float] = []
    count = iter(range(1, 1000))

    def measure(call: Callable[[Any], None]) -> SimpleNamespace:
        call(None)
        time_ms = coming.pop(0) if coming else float(next(count))
        if time_ms < 0:
            raise KeyboardInterrupt
        return SimpleNamespace(median_ms=time_ms, spread_percent=1.5, repeats=10)

    timer = ModuleType("convlab.timer")
    timer.measure = measure
    monkeypatch.setitem(sys.modules, "convlab.timer", timer)
    return coming


@pytest.fixture
def gpu(times: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    engine = PretendedGpu(strict=False)
    monkeypatch.setattr(tuning, "choose", lambda name: engine)
    monkeypatch.setattr(engines, "choose", lambda name: engine)
    monkeypatch.setattr(tuning, "processes", lambda engine: 1)
    monkeypatch.setattr(stages, "LADDER", ladder_with(S12))
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plans, "tuned_tile", tuned.tuned_tile)
    tuned._entries_once.cache_clear()
    return engine


def convlab(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), prog_name="convlab")


def tasks() -> list[tuning.Task]:
    return tuning.tasks_for({"small": PROBLEM}, S12)


# The tuner.


@pytest.mark.parametrize(("ms", "ratio"), [([0.5, 0.25, 0.75], 1.0), ([0.5, 0.75, 0.6], 1.5)])
def test_every_candidate_is_checked_and_timed(
    gpu: PretendedGpu, times: list[float], ms: list[float], ratio: float
) -> None:
    """The ratio is the heuristic's time over the best."""
    times += ms
    found = tuning.tuned(list(tuning.measure_all(tasks(), 1)), S12, gpu)
    assert [one.task.tile for one in found.measured] == list(TILES)
    assert [one.time_ms for one in found.measured] == ms
    assert [one.error for one in found.measured] == [None] * 3
    assert found.best is found.measured[ms.index(min(ms))]
    assert (found.model, found.model_ms, found.ratio) == (MODEL, ms[1], ratio)
    assert json.loads(json.dumps(found.as_json()))["ratio"] == ratio


@pytest.mark.parametrize(("image", "batch"), [(0, 3), (-1, 3), (-1, 2), (0, 1)])
def test_a_wrong_first_or_last_image_is_found(
    image: int, batch: int, gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = plans.Plan.__call__

    def spoil(plan: Any, input: Any, weight: Any, out: Any, bias: Any, **options: Any) -> None:
        call(plan, input, weight, out, bias, **options)
        out[image, 2, 3, 4] += 1

    monkeypatch.setattr(tuning.Plan, "__call__", spoil)
    problem = replace(PROBLEM, batch=batch)
    (one, *_) = tuning.measure_group(tuning.tasks_for({"p": problem}, S12))
    assert one.time_ms is None
    assert "1 of" in str(one.error)


def test_what_only_the_timed_runs_spoil_is_found(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, calls = plans.Plan.__call__, []

    def spoil(plan: Any, input: Any, weight: Any, out: Any, bias: Any, **options: Any) -> None:
        call(plan, input, weight, out, bias, **options)
        calls.append(plan)
        if len(calls) % 2 == 0:
            out[0] = np.nan

    monkeypatch.setattr(tuning.Plan, "__call__", spoil)
    errors = [one.error for one in tuning.measure_all(tasks(), 1)]
    assert all(str(error).startswith("after it was timed: ") for error in errors)


def test_a_tile_that_raises_does_not_stop_the_others(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(problem: ConvProblem, tile: Tile, **_: int) -> Any:
        if tile == TILES[0]:
            raise RuntimeError("this\none is not\nfor compilers")
        return s12.prepare(problem, tile)

    broken = replace(S12, prepare=prepare)
    monkeypatch.setattr(stages, "LADDER", ladder_with(broken))
    plans._prepared.cache_clear()
    first, *others = tuning.measure_all(tasks(), 1)
    assert first.error == "RuntimeError: this one is not for compilers"
    assert [one.error for one in others] == [None, None]
    found = tuning.tuned([first], broken, gpu)
    assert (found.best, found.model_ms, found.ratio) == (None, None, None)
    plans._prepared.cache_clear()


def test_a_time_beyond_the_arithmetic_is_refused(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "peak_flops", lambda precision: 1e3)
    assert all("its time is refused" in str(one.error) for one in tuning.measure_all(tasks(), 1))


def test_tensors_that_do_not_fit_are_every_tile_s_error(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: object) -> None:
        raise MemoryError("too large")

    monkeypatch.setattr(tuning, "_two_images", too_large)
    found = tuning.measure_group(tasks())
    assert [one.error for one in found] == ["MemoryError: too large"] * 3


def test_a_process_does_a_problem_where_that_leaves_none_idle() -> None:
    many = {f"p{number}": replace(PROBLEM, batch=number) for number in range(1, 6)}
    all_tasks = tuning.tasks_for(many, S12)
    assert [len(part) for part in tuning.groups(all_tasks, 4)] == [3] * 5
    for jobs in (1, 5, 16):
        assert [len(part) for part in tuning.groups(all_tasks, jobs)] == [1] * 15
    assert [task for part in tuning.groups(all_tasks, 4) for task in part] == all_tasks


@pytest.mark.parametrize(("free", "most"), [(0, 1), (5 * 2**30, 2), (2**50, 16), (None, 1)])
def test_processes_are_as_many_as_have_room(
    free: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning.os, "sched_getaffinity", lambda _: range(64), raising=False)
    assert tuning.processes(SimpleNamespace(free_bytes=lambda: free)) == most


def test_processes_of_their_own_hand_back_what_they_found() -> None:
    """Two real processes; with no GPU, what they find is that there is none."""
    if engines.unavailable("gpu") is None:
        pytest.skip("there is a GPU, and these tiles would be measured on it")
    found = list(tuning.measure_all(tasks(), 2))
    assert [one.task for one in found] == tasks()
    assert all(str(one.error).startswith("EngineUnavailable: ") for one in found)


# The verb.


def test_one_problem_is_shown_tile_by_tile_and_its_best_remembered(
    gpu: PretendedGpu, times: list[float], tmp_path: Path
) -> None:
    times += [0.5, 0.75, 0.6]
    ran = convlab("tune", "--problem", SHAPES, "--json", tmp_path / "t.json")
    assert ran.exit_code == 0, ran.output
    lines = [line.split() for line in ran.stdout.splitlines() if "/" in line.split(" ")[0]]
    assert [line[0] for line in lines] == ["16x32x4/4x4", "12x32x3/12x8", "32x32x4/4x4"]
    assert [line[4] for line in lines] == ["1.00", "1.20", "1.50"]
    assert ["model's" in line for line in lines] == [False, False, True]
    assert plans.tile_for(PROBLEM, S12, gpu) == TILES[0]
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["multiprocessors"] == 4
    assert document["problems"][0]["ratio"] == 1.5
    assert "remembered in" in ran.stdout


def test_several_problems_are_a_line_each(gpu: PretendedGpu, times: list[float]) -> None:
    times += [1, 2, 3, 6, 4, 5]
    ran = convlab("tune", "--problem", SHAPES, "--problem", "1x5x6x6*8x5x3x3,stride 2")
    assert ran.exit_code == 0, ran.output
    assert [line.split()[-1] for line in ran.stdout.splitlines() if "x3x3" in line] == [
        "2.00", "1.00",
    ]  # fmt: skip
    assert "The best tiles of 2 problems are" in " ".join(ran.stdout.split())


def test_a_wrong_tile_is_named_and_exits_1_and_the_right_ones_count(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = tuning._compiled

    def first_fails(task: tuning.Task, engine: Any) -> Any:
        return (task, ValueError("no")) if task.tile == TILES[0] else compiled(task, engine)

    monkeypatch.setattr(tuning, "_compiled", first_fails)
    ran = convlab("tune", "--problem", SHAPES)
    assert ran.exit_code == 1
    assert "tile 16x32x4/4x4: ValueError: no" in ran.stdout
    assert plans.tile_for(PROBLEM, S12, gpu) == TILES[1]


def test_ctrl_c_keeps_the_problems_that_are_done(
    gpu: PretendedGpu, times: list[float], tmp_path: Path
) -> None:
    times += [3, 2, 1, 5, -1]
    file = tmp_path / "t.json"
    ran = convlab("tune", "--problem", SHAPES, "--problem", "1x5x6x6,8x5x3x3", "--json", file)
    assert ran.exit_code == 130
    assert "interrupted after 1 of 2 problems, which are remembered" in ran.stderr
    assert plans.tile_for(PROBLEM, S12, gpu) == TILES[2]
    assert plans.tile_for(replace(PROBLEM, batch=1, padding=0), S12, gpu) == MODEL
    assert not file.exists()


def test_forgetting(gpu: PretendedGpu, times: list[float]) -> None:
    times += [1, 2, 3]
    assert convlab("tune", "--problem", SHAPES).exit_code == 0
    assert "0 tiles are forgotten" in convlab("tune", "--forget", "--layer", "conv1").stdout
    assert plans.tile_for(PROBLEM, S12, gpu) == TILES[0]
    assert "1 tile is forgotten" in convlab("tune", "--forget", "--problem", SHAPES).stdout
    assert plans.tile_for(PROBLEM, S12, gpu) == MODEL


def test_all_are_the_layers_and_what_nobody_tuned_for(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuning.Task] = []

    def measure_all(tasks: list[tuning.Task], jobs: int) -> Iterator[tuning.Measured]:
        asked.extend(tasks)
        return (tuning.Measured(task, 1.0, 1.0) for task in tasks)

    monkeypatch.setattr(tuning, "measure_all", measure_all)
    assert convlab("tune", "--all").exit_code == 0
    assert len({task.name for task in asked}) == 12 + len(UNTUNED) + len(UNSEEN) == 93
    asked.clear()
    assert convlab("tune", "--batch", "2").exit_code == 0
    assert {task.problem for task in asked} == {paper_layer("conv9", 2)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stage", "s05"], "stage is 's05_shared_memory': it has one tile for a problem"),
        (["--stage", "s99"], "stage is 's99': it must be one of"),
        (["--layer", "conv13"], "layer is 'conv13'"),
        (["--problem", "64"], "--problem is '64': it must be input and filters"),
        (["--problem", "1x2x3x4,5x6x1x1"], "filters of 6 channels: the input has 2"),
        (["--problem", "1x2x3x4,5x2x9x1"], "kernel_size (9, 1)"),
        (["--problem", "1x2x3x4,5x2x1x1,q3"], "--problem ends in ',q3'"),
        (["--batch", "0"], "--batch is 0"),
        (["--all", "--batch", "1"], "--all names its problems"),
        (["--forget", "--json", "x.json"], "--forget measures nothing"),
    ],
)
def test_what_is_refused_in_a_line(gpu: PretendedGpu, arguments: list[str], said: str) -> None:
    ran = convlab("tune", *arguments)
    assert ran.exit_code == 2
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not tuned.tiles_file().exists()


def test_without_a_gpu_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise EngineUnavailable("there is none")

    monkeypatch.setattr(engines, "choose", none)
    ran = convlab("tune")
    assert (ran.exit_code, ran.stderr) == (2, "convlab: there is none\n")


@pytest.mark.parametrize("broken", ["cache", "cache/tiles.json"])
def test_tiles_that_cannot_be_kept_are_refused_before_any_work(
    gpu: PretendedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """A file in the folder's place, a folder in the file's."""
    if broken == "cache":
        (tmp_path / broken).write_text("")
    else:
        (tmp_path / broken).mkdir(parents=True)
    monkeypatch.setattr(tuning, "measure_all", lambda *_: pytest.fail("work was done"))
    asked = [["--problem", SHAPES], ["--forget"], ["--forget", "--layer", "conv9"]]
    for arguments in asked[: 1 if broken == "cache" else 3]:
        ran = convlab("tune", *arguments)
        assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1)
        assert str(tmp_path / broken) in ran.stderr
        assert "CONVLAB_CACHE" in ran.stderr
    assert (tmp_path / broken).exists()


@given(problems(max_macs=10_000))
@settings(max_examples=100)
def test_a_problem_is_read_as_it_is_printed(problem: ConvProblem) -> None:
    assert tune.problem_of(str(problem)) == problem


def test_the_short_way_to_write_a_problem() -> None:
    expected = ConvProblem(128, 64, 56, 56, 64, (3, 5), 2, (1, 2), 1)
    assert tune.problem_of("128x64x56x56,64x64x3x5,s2,p(1,2),d1") == expected
