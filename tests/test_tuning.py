"""`convlab tune`, on a simulator that says it is a GPU, with a clock that says what a test says."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from itertools import count
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from bench_fakes import Fakes, Timing, pretend_gpu
from hypothesis import given, settings
from pretended_gpu import PretendedGpu
from strategies import problems
from test_cli import convlab_, refused

from convlab import ConvProblem, Tile
from convlab import ladder as stages
from convlab.ladder import tile_heuristic
from convlab.ladder.main import m15_split_k as m15
from convlab.ladder.tile_heuristic import Heuristic
from convlab.measuring import baselines, cases, systems
from convlab.measuring.results import ResultRow
from convlab.problems.workloads import UNSEEN, UNTUNED, paper_layer, problem_of
from convlab.running import engines, plans, tuned

pytestmark = pytest.mark.same_in_cudasim

TILES = (Tile(16, 32, 4, 4, 4), Tile(32, 32, 4, 4, 4), Tile(12, 32, 3, 12, 8))
MODEL = TILES[1]
PROBLEM = ConvProblem(3, 3, 4, 4, 5, 3, padding=1)  # two blocks, one of them with a remainder
SHAPES_IN_FULL = str(PROBLEM)
SHAPES, ANOTHER = "3x3x4x4,5x3x3x3,p1", "1x3x4x4*5x3x3x3,stride 2"
FEW = SimpleNamespace(
    candidates=lambda problem: TILES, best_tile=lambda *_, **__: MODEL, splits=(1,),
    most_splits=lambda problem: 0, atomic=False, allows_split_k=lambda **options: False,
)  # fmt: skip
tile_heuristic.HEURISTICS["few tiles"] = cast(Heuristic, FEW)
M15 = replace(m15.STAGE, tiles=replace(m15.STAGE.tiles, heuristic="few tiles"))


class OnSimulator(Fakes):
    """The backend: real systems, on the simulator that says it is a GPU."""

    system_named = staticmethod(systems.system_named)

    def time(self, prepared, on_gpu=True):
        prepared.run(None)
        return Timing(1.5)

    time_called = time


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A GPU on which everything takes 1.5 ms, and a cache of the test's own."""
    pretend_gpu(monkeypatch, "test_tuning:OnSimulator")
    engine = PretendedGpu(strict=False)
    for module in (engines, systems, baselines):
        monkeypatch.setattr(module, "choose", lambda name: engine)
    monkeypatch.setattr(baselines.OnGpu, "poison", lambda self: self._arrays[2].fill(np.nan))
    with_it = tuple(M15 if stage.name == M15.name else stage for stage in stages.LADDER)
    monkeypatch.setattr(stages, "LADDER", with_it)
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plans, "tuned_tile", tuned.tuned_tile)
    tuned._rows_once.cache_clear()
    return engine


@pytest.fixture
def times(gpu, monkeypatch):
    """Give each tile its time in ms, without computing anything: an error for a word, Ctrl-C for
    None; then 1, 2, 3 and so on."""
    coming: list[float | str | None] = []
    after = count(1)

    def run(tried, bench):
        numbers = {"time_spread": 1.5, "repeats": 20, "tflops": 1.0}
        for case in tried:
            if (ms := coming.pop(0) if coming else float(next(after))) is None:
                raise KeyboardInterrupt
            failed = isinstance(ms, str)
            told = {"reason": ms} if failed else numbers | {"time_ms": ms}
            yield ResultRow(*case.key, "failed" if failed else "measured", **told)

    monkeypatch.setattr(cases, "run", run)
    return coming


def tuned_to(file, *words):
    """Return the command's exit status, and what it wrote."""
    ran = convlab_("tune", *words, "--json", file)
    return ran, json.loads(file.read_text())


@pytest.mark.parametrize(
    ("ms", "ratio"),
    [
        ([0.5, 0.25, 0.75], 1.0),
        ([0.5, 0.75, 0.6], 1.5),
        ([1.0, "ValueError: no", 2.0], None),
        (["ValueError: no"] * 3, None),
    ],
)
def test_the_ratio_is_the_heuristic_s_time_over_the_best(gpu, times, tmp_path, ms, ratio):
    times += ms
    ran, document = tuned_to(tmp_path / "t.json", "--problem", SHAPES)
    assert ran.exit_code == ("ValueError: no" in ms)
    failed = [tile for tile, one in zip(TILES, ms, strict=True) if isinstance(one, str)]
    assert all(f"{tile}: failed: ValueError: no" in ran.stdout for tile in failed)
    (found,) = document["problems"]
    assert found["ratio"] == ratio
    told = [one["time_ms"] or one["error"].removeprefix("failed: ") for one in found["tiles"]]
    assert told == ms
    best = min((one for one in ms if not isinstance(one, str)), default=None)
    taken = plans.program_for(PROBLEM, M15, None, gpu).tile
    assert taken == (TILES[ms.index(best)] if best else MODEL)


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", [None, TILES[0]])
def test_every_candidate_is_checked_and_timed_with_its_own_tile(
    gpu, monkeypatch, tmp_path, spoiled
):
    call, tiles = plans.Plan.__call__, []

    def spoil(plan, *arrays, **options):
        out = call(plan, *arrays, **options)
        tiles.append(plan.tile)
        if plan.tile == spoiled:
            arrays[2][-1, 2, 3, 3] = np.nan
        return out

    monkeypatch.setattr(plans.Plan, "__call__", spoil)
    ran, document = tuned_to(tmp_path / "t.json", "--problem", SHAPES)
    assert ran.exit_code == (spoiled is not None), ran.output
    assert [*dict.fromkeys(tiles)] == [*TILES]
    (found,) = document["problems"]
    assert [tuple(one["tile"]) for one in found["tiles"]] == [astuple(tile) for tile in TILES]
    times = [1.5] * 3 if spoiled is None else [None, 1.5, 1.5]
    assert [one["time_ms"] for one in found["tiles"]] == times
    said = f"{SHAPES_IN_FULL}, m15_split_k {TILES[0]}: wrong: 1 of 240 outputs are NaN"
    assert (said in ran.stdout.replace("\n", "")) == (spoiled is not None)


def test_one_problem_is_shown_tile_by_tile(gpu, times, tmp_path):
    times += [0.5, 0.75, 0.6]
    ran, document = tuned_to(tmp_path / "t.json", "--problem", SHAPES)
    assert ran.exit_code == 0, ran.output
    lines = [line.split() for line in ran.stdout.splitlines() if "/" in line.split(" ")[0]]
    assert [line[0] for line in lines] == ["16x32x4/4x4", "12x32x3/12x8", "32x32x4/4x4"]
    assert [line[4] for line in lines] == ["1.00", "1.20", "1.50"]
    assert ["model's" in line for line in lines] == [False, False, True]
    assert document["multiprocessors"] == 4
    assert str(tuned.tiles_file()) in ran.stdout.replace("\n", "")


def test_several_problems_are_a_line_each(times):
    times += [1, 2, 3, 6, 4, 5]
    ran = convlab_("tune", "--problem", SHAPES, "--problem", ANOTHER)
    assert ran.exit_code == 0, ran.output
    ratios = [line.split()[-1] for line in ran.stdout.splitlines() if "x3x3" in line]
    assert ratios == ["2.00", "1.00"]


def test_ctrl_c_keeps_the_problems_that_are_done(gpu, times, tmp_path):
    times += [3, 2, 1, 5, None]
    file = tmp_path / "t.json"
    ran = convlab_("tune", "--problem", SHAPES, "--problem", ANOTHER, "--json", file)
    assert ran.exit_code == 130
    assert "after 1 of 2 problems" in ran.stderr
    assert ran.stdout.count("x3x3") == 2  # what was begun is shown
    assert plans.program_for(PROBLEM, M15, None, gpu).tile == TILES[2]
    assert plans.program_for(problem_of(ANOTHER), M15, None, gpu).tile == MODEL
    assert not file.exists()


def test_forgetting(gpu, times):
    times += [1, 2, 3]
    assert convlab_("tune", "--problem", SHAPES).exit_code == 0
    assert "0 tiles are" in convlab_("tune", "--forget", "--layer", "conv1").stdout
    assert plans.program_for(PROBLEM, M15, None, gpu).tile == TILES[0]
    assert "1 tile is" in convlab_("tune", "--forget", "--problem", SHAPES).stdout
    assert plans.program_for(PROBLEM, M15, None, gpu).tile == MODEL


def test_all_are_the_layers_and_what_nobody_tuned_for(times, monkeypatch, tmp_path):
    monkeypatch.setattr(tuned, "remember", lambda *_: None)  # whole files, 93 times
    _, every = tuned_to(tmp_path / "t.json", "--all")
    assert len(every["problems"]) == 12 + len(UNTUNED) + len(UNSEEN) == 93
    _, of_two = tuned_to(tmp_path / "t.json", "--batch", "2")
    assert [one["problem"] for one in of_two["problems"]] == [str(paper_layer("conv9", 2))]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stage", "m03"], "stage is 'm03_shared_memory'"),
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
    assert said in refused("tune", *arguments)
    assert not tuned.tiles_file().exists()


def test_without_a_gpu_it_is_refused(monkeypatch):
    monkeypatch.setattr(engines, "unavailable", lambda name: "there is none")
    said = refused("tune")
    assert said.startswith("convlab: convlab tune needs a GPU")
    assert said.endswith(": there is none")
    assert "engine" not in said


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
    monkeypatch.setattr(cases, "run", lambda *_: pytest.fail("work was done"))
    line = refused("tune", *arguments)
    assert str(path) in line
    assert "CONVLAB_CACHE" in line
    assert path.exists()


@given(problems(max_macs=10_000))
@settings(max_examples=50)
def test_a_problem_is_read_as_it_is_printed(problem):
    assert problem_of(str(problem)) == problem
    short = problem_of("128x64x56x56,64x64x3x5,s2,p(1,2),d1")
    assert short == ConvProblem(128, 64, 56, 56, 64, (3, 5), 2, (1, 2), 1)
