"""The tuner and `convlab tune`, on a simulator that says it is a GPU, with a timer that measures
what a test says."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import chain, count
from types import ModuleType, SimpleNamespace
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from pretended_gpu import PretendedGpu
from strategies import problems
from test_cli import convlab_

from convlab import ConvProblem, Tile, engines, plans, stages, tuned
from convlab.bench import tuning
from convlab.engines import EngineUnavailable
from convlab.kernels import tile_heuristic
from convlab.kernels.tile_heuristic import Heuristic
from convlab.stages import s12_fused_im2win as s12
from convlab.workloads import UNSEEN, UNTUNED, paper_layer, problem_of

pytestmark = pytest.mark.same_in_cudasim

TILES = (Tile(16, 32, 4, 4, 4), Tile(32, 32, 4, 4, 4), Tile(12, 32, 3, 12, 8))
MODEL = TILES[1]
PROBLEM = ConvProblem(3, 3, 4, 4, 5, 3, padding=1)  # two blocks, one of them with a remainder
SHAPES, ANOTHER = "3x3x4x4,5x3x3x3,p1", "1x3x4x4*5x3x3x3,stride 2"
FEW = SimpleNamespace(
    candidates=lambda problem: TILES, best_tile=lambda *_, **__: MODEL, splits=(1,),
    most_splits=lambda problem: 0,
)  # fmt: skip
tile_heuristic.HEURISTICS["few tiles"] = cast(Heuristic, FEW)
S12 = replace(s12.STAGE, tiles=replace(s12.STAGE.tiles, heuristic="few tiles"))
TASKS = tuning.tasks_for({"small": PROBLEM}, S12)


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A GPU on which everything takes 1.5 ms, and a cache of the test's own."""

    def measure(call):
        call(None)
        return SimpleNamespace(median_ms=1.5, spread_percent=2.5, repeats=10)

    timer = ModuleType("convlab.timer")
    timer.measure = measure
    monkeypatch.setitem(sys.modules, "convlab.timer", timer)
    engine = PretendedGpu(strict=False)
    monkeypatch.setattr(tuning, "choose", lambda name: engine)
    monkeypatch.setattr(engines, "choose", lambda name: engine)
    monkeypatch.setattr(tuning, "processes", lambda engine: 1)
    with_it = tuple(S12 if stage.name == S12.name else stage for stage in stages.LADDER)
    monkeypatch.setattr(stages, "LADDER", with_it)
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plans, "tuned_tile", tuned.tuned_tile)
    tuned._rows_once.cache_clear()
    return engine


@pytest.fixture
def times(gpu, monkeypatch):
    """What each tile takes, in ms, without anything computed: an error for a word, Ctrl-C for
    None; then 1, 2, 3 and so on."""
    coming: list[float | str | None] = []
    after = count(1)

    def measure_group(tasks):
        found = []
        for task in tasks:
            ms = coming.pop(0) if coming else float(next(after))
            if ms is None:
                raise KeyboardInterrupt
            wrong = isinstance(ms, str)
            found.append(tuning.Measured(task, *((None, None, ms) if wrong else (ms, 1.5))))
        return found

    monkeypatch.setattr(tuning, "measure_group", measure_group)
    return coming


# The tuner.


def test_every_candidate_is_checked_and_timed(gpu):
    found = list(tuning.measure_all(TASKS, 1))
    assert found == [tuning.Measured(task, 1.5, 2.5) for task in TASKS]
    assert [one.task.tile for one in found] == list(TILES)


@pytest.mark.parametrize(
    ("ms", "ratio"),
    [
        ([0.5, 0.25, 0.75], 1.0),
        ([0.5, 0.75, 0.6], 1.5),
        ([1.0, None, 2.0], None),
        ([None] * 3, None),
    ],
)
def test_the_ratio_is_the_heuristic_s_time_over_the_best(gpu, ms, ratio):
    measured = [tuning.Measured(task, time) for task, time in zip(TASKS, ms, strict=True)]
    found = tuning.tuned(measured, S12, gpu)
    best = min(filter(None, ms), default=None)
    assert found.best is (measured[ms.index(best)] if best else None)
    assert (found.model, found.model_ms, found.ratio) == (MODEL, ms[1], ratio)
    assert json.loads(json.dumps(found.as_json()))["ratio"] == ratio


@pytest.mark.parametrize(("image", "batch"), [(0, 3), (-1, 3), (-1, 2), (0, 1)])
@pytest.mark.parametrize("run", ["checked", "timed"])
def test_a_wrong_first_or_last_image_is_found(run, image, batch, gpu, monkeypatch):
    """Also where only the timed runs spoil it."""
    call = plans.Plan.__call__

    def spoil(plan, input, weight, out, bias, **options):
        if run == "checked" or not options:
            call(plan, input, weight, out, bias, **options)
        if (run == "timed") == bool(options):  # only a timed call says on which stream
            out[image, 2, 3, 3] = np.nan

    monkeypatch.setattr(tuning.Plan, "__call__", spoil)
    tasks = tuning.tasks_for({"p": replace(PROBLEM, batch=batch)}, S12)[:1]
    (one,) = tuning.measure_group(tasks)
    assert one.time_ms is None
    assert "1 of" in str(one.error)
    assert ("after it was timed" in str(one.error)) == (run == "timed")


def test_a_tile_that_raises_does_not_stop_the_others(gpu, monkeypatch):
    def plan(problem, stage, tile, engine):
        if tile == TILES[0]:
            raise RuntimeError("this\none is not\nfor compilers")
        return plans.Plan(problem, stage, tile, engine)

    monkeypatch.setattr(tuning, "Plan", plan)
    first, second = tuning.measure_group(TASKS[:2])
    assert first.error == "RuntimeError: this one is not for compilers"
    assert second.error is None


def test_a_time_beyond_the_arithmetic_is_refused(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "peak_flops", lambda precision: 1e3)
    (one,) = tuning.measure_all(TASKS[:1], 1)
    assert "its time is refused" in str(one.error)


def test_tensors_that_do_not_fit_are_every_tile_s_error(gpu, monkeypatch):
    monkeypatch.setattr(tuning, "_two_images", Mock(side_effect=MemoryError("too large")))
    found = tuning.measure_group(TASKS)
    assert [one.error for one in found] == ["MemoryError: too large"] * 3


@pytest.mark.parametrize(("jobs", "sizes"), [(1, [1] * 15), (4, [3] * 5), (5, [1] * 15)])
def test_a_process_does_a_problem_where_that_leaves_none_idle(jobs, sizes):
    many = {f"p{number}": replace(PROBLEM, batch=number) for number in range(1, 6)}
    tasks = tuning.tasks_for(many, S12)
    parts = tuning.groups(tasks, jobs)
    assert [len(part) for part in parts] == sizes
    assert list(chain.from_iterable(parts)) == tasks


@pytest.mark.parametrize(("free", "most"), [(0, 1), (5 * 2**30, 2), (2**50, 16), (None, 1)])
def test_processes_are_as_many_as_have_room(free, most, monkeypatch):
    monkeypatch.setattr(tuning, "cores", lambda: 64)
    assert tuning.processes(SimpleNamespace(free_bytes=lambda: free)) == most


def test_processes_of_their_own_hand_back_what_they_found():
    """Two real processes; with no GPU, what they find is that there is none."""
    if engines.unavailable("gpu") is None:
        pytest.skip("there is a GPU, and these tiles would be measured on it")
    found = list(tuning.measure_all(TASKS, 2))
    assert [one.task for one in found] == TASKS
    assert all(str(one.error).startswith("EngineUnavailable: ") for one in found)


# The verb.


def test_one_problem_is_shown_tile_by_tile_and_its_best_remembered(gpu, times, tmp_path):
    times += [0.5, 0.75, 0.6]
    ran = convlab_("tune", "--problem", SHAPES, "--json", tmp_path / "t.json")
    assert ran.exit_code == 0, ran.output
    lines = [line.split() for line in ran.stdout.splitlines() if "/" in line.split(" ")[0]]
    assert [line[0] for line in lines] == ["16x32x4/4x4", "12x32x3/12x8", "32x32x4/4x4"]
    assert [line[4] for line in lines] == ["1.00", "1.20", "1.50"]
    assert ["model's" in line for line in lines] == [False, False, True]
    assert plans.tile_for(PROBLEM, S12, gpu) == TILES[0]
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["multiprocessors"] == 4
    assert document["problems"][0]["ratio"] == 1.5
    assert str(tuned.tiles_file()) in ran.stdout.replace("\n", "")


def test_several_problems_are_a_line_each(times):
    times += [1, 2, 3, 6, 4, 5]
    ran = convlab_("tune", "--problem", SHAPES, "--problem", ANOTHER)
    assert ran.exit_code == 0, ran.output
    ratios = [line.split()[-1] for line in ran.stdout.splitlines() if "x3x3" in line]
    assert ratios == ["2.00", "1.00"]


def test_a_wrong_tile_is_named_and_exits_1_and_the_right_ones_count(gpu, times):
    times += ["ValueError: no", 1, 2]
    ran = convlab_("tune", "--problem", SHAPES)
    assert ran.exit_code == 1
    assert "16x32x4/4x4: ValueError: no" in ran.stdout
    assert plans.tile_for(PROBLEM, S12, gpu) == TILES[1]


def test_ctrl_c_keeps_the_problems_that_are_done(gpu, times, tmp_path):
    times += [3, 2, 1, 5, None]
    file = tmp_path / "t.json"
    ran = convlab_("tune", "--problem", SHAPES, "--problem", ANOTHER, "--json", file)
    assert ran.exit_code == 130
    assert "after 1 of 2 problems" in ran.stderr
    assert ran.stdout.count("x3x3") == 2  # what was begun is shown
    assert plans.tile_for(PROBLEM, S12, gpu) == TILES[2]
    assert plans.tile_for(problem_of(ANOTHER), S12, gpu) == MODEL
    assert not file.exists()


def test_forgetting(gpu, times):
    times += [1, 2, 3]
    assert convlab_("tune", "--problem", SHAPES).exit_code == 0
    assert "0 tiles are" in convlab_("tune", "--forget", "--layer", "conv1").stdout
    assert plans.tile_for(PROBLEM, S12, gpu) == TILES[0]
    assert "1 tile is" in convlab_("tune", "--forget", "--problem", SHAPES).stdout
    assert plans.tile_for(PROBLEM, S12, gpu) == MODEL


def test_all_are_the_layers_and_what_nobody_tuned_for(times, monkeypatch):
    tasks_for = Mock(wraps=tuning.tasks_for)
    monkeypatch.setattr(tuning, "tasks_for", tasks_for)
    monkeypatch.setattr(tuned, "remember", lambda *_: None)  # whole files, 93 times
    assert convlab_("tune", "--all").exit_code == 0
    assert len(tasks_for.call_args.args[0]) == 12 + len(UNTUNED) + len(UNSEEN) == 93
    assert convlab_("tune", "--batch", "2").exit_code == 0
    assert [*tasks_for.call_args.args[0].values()] == [paper_layer("conv9", 2)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stage", "s05"], "stage is 's05_shared_memory'"),
        (["--stage", "s99"], "stage is 's99'"),
        (["--layer", "conv13"], "layer is 'conv13'"),
        (["--problem", "64"], "--problem is '64'"),
        (["--problem", "1x2x3x4,5x6x1x1"], "filters of 6 channels"),
        (["--problem", "1x2x3x4,5x2x9x1"], "kernel_size (9, 1)"),
        (["--problem", "1x2x3x4,5x2x1x1,q3"], "--problem ends in ',q3'"),
        (["--batch", "0"], "--batch is 0"),
        (["--forget", "--batch", "0"], "--batch is 0"),
        (["--all", "--batch", "1"], "--all"),
        (["--forget", "--json", "x.json"], "--forget"),
    ],
)
def test_what_is_refused_in_a_line(gpu, arguments, said):
    ran = convlab_("tune", *arguments)
    assert ran.exit_code == 2
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not tuned.tiles_file().exists()


def test_without_a_gpu_it_is_refused(monkeypatch):
    monkeypatch.setattr(engines, "choose", Mock(side_effect=EngineUnavailable("there is none")))
    ran = convlab_("tune")
    assert (ran.exit_code, ran.stderr) == (2, "convlab: there is none\n")


@pytest.mark.parametrize(
    ("broken", "arguments"),
    [
        ("cache", ["--problem", SHAPES]),  # a file in the folder's place
        ("cache/tiles.json", ["--problem", SHAPES]),  # a folder in the file's
        ("cache/tiles.json", ["--forget"]),
        ("cache/tiles.json", ["--forget", "--layer", "conv9"]),
    ],
)
def test_tiles_that_cannot_be_kept_are_refused_before_any_work(
    gpu, tmp_path, monkeypatch, broken, arguments
):
    path = tmp_path / broken
    path.write_text("") if broken == "cache" else path.mkdir(parents=True)
    monkeypatch.setattr(tuning, "measure_all", lambda *_: pytest.fail("work was done"))
    ran = convlab_("tune", *arguments)
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1)
    assert str(path) in ran.stderr
    assert "CONVLAB_CACHE" in ran.stderr
    assert path.exists()


@given(problems(max_macs=10_000))
@settings(max_examples=50)
def test_a_problem_is_read_as_it_is_printed(problem):
    assert problem_of(str(problem)) == problem
    short = problem_of("128x64x56x56,64x64x3x5,s2,p(1,2),d1")
    assert short == ConvProblem(128, 64, 56, 56, 64, (3, 5), 2, (1, 2), 1)
