"""``convlab tune --dask``: tiles measured by several workers, here with pretended GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import ENVIRONMENT, Fakes, pretend_gpu, pretend_workers
from test_cli import convlab_, refused
from test_tuning import ANOTHER, M15, MODEL, SHAPES, TILES

from convlab import ladder as stages
from convlab.measuring import cases, gpu_workers
from convlab.measuring.machine import version
from convlab.measuring.results import ResultRow
from convlab.problems.workloads import problem_of
from convlab.running import engines, plans, tuned
from convlab.running.compilers import compiler
from convlab.running.engines.absent import AbsentGpu, GpuFacts

pytestmark = pytest.mark.same_in_cudasim

ADDRESS = "tcp://host:8786"
H100 = GpuFacts("NVIDIA H100", (9, 0), 132)
PROBLEMS = ["--problem", SHAPES, "--problem", ANOTHER]


@pytest.fixture
def times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float | None]]:
    """Workers on GPUs that this machine has not, and a cache of the test's own; returns each
    problem's times in ms, a tile after the other, None for Ctrl-C."""
    coming: dict[str, list[float | None]] = {SHAPES: [3.0, 1.0, 2.0], ANOTHER: [1.0, 2.0, 3.0]}
    names = {str(problem_of(shapes)): shapes for shapes in coming}

    def run(tried: Sequence[cases.BenchCase], bench: object) -> Iterator[ResultRow]:
        for case in tried:
            if (ms := coming[names[case.layer]].pop(0)) is None:
                raise KeyboardInterrupt
            known = {"time_ms": ms, "time_spread": 1.5, "repeats": 20, "tflops": 1.0}
            yield ResultRow(*case.key, "measured", **known)

    pretend_gpu(monkeypatch, "bench_fakes:Fakes")
    monkeypatch.setattr(engines, "unavailable", lambda name: "there is none")
    with_it = tuple(M15 if stage.name == M15.name else stage for stage in stages.LADDER)
    monkeypatch.setattr(stages, "LADDER", with_it)
    monkeypatch.setattr(cases, "run", run)
    has(monkeypatch, {})
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plans, "tuned_tile", tuned.tuned_tile)
    tuned._rows_once.cache_clear()
    return coming


def has(monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]) -> None:
    """Give the workers a GPU and this machine's packages, but for those that are changed."""
    packages = {name: version(name) for name in ("convlab", "numba-cuda", "numba-cuda-mlir")}
    environment = ENVIRONMENT | {"compiler": compiler(), "packages": packages | changed}

    def facts(self: Fakes) -> dict[str, Any]:
        found: dict[str, Any] = FACTS(self)
        return found | {"environment": environment, "gpu": H100}

    monkeypatch.setattr(Fakes, "facts", facts)


FACTS = Fakes.facts


def remembered(shapes: str) -> Any:
    return plans.program_for(problem_of(shapes), M15, None, AbsentGpu(H100)).tile


def test_each_problem_s_best_tile_is_remembered_here(
    times: dict[str, list[float | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pretend_workers(monkeypatch)
    file = tmp_path / "t.json"
    ran = convlab_("tune", *PROBLEMS, "--dask", ADDRESS, "--json", file)
    assert ran.exit_code == 0, ran.output
    assert asked == [ADDRESS]
    assert f"runs on  workers at {ADDRESS}, each with NVIDIA H100" in ran.stdout
    assert ran.stdout.count(": 3 tiles\n") == 2  # progress
    assert "The best tiles of 2 problems are remembered in" in ran.stdout
    assert (remembered(SHAPES), remembered(ANOTHER)) == (TILES[1], TILES[0])
    document = json.loads(file.read_text())
    assert (document["device"], document["multiprocessors"]) == ("NVIDIA H100", 132)
    assert document["environment"]["gpu"]["name"] == "a fake GPU"  # the workers', not ours
    assert document["environment"]["command"].startswith("convlab tune --problem ")
    names = [problem["name"] for problem in document["problems"]]
    assert names == [str(problem_of(shapes)) for shapes in (SHAPES, ANOTHER)]  # as asked for
    found = {
        one["name"]: [tile["time_ms"] for tile in one["tiles"]] for one in document["problems"]
    }
    assert [*found.values()] == [[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]]
    assert [one["best"] for one in document["problems"]] == [[*astuple(TILES[n])] for n in (1, 0)]


def test_ctrl_c_keeps_the_problems_that_are_measured(
    times: dict[str, list[float | None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_workers(monkeypatch, count=1)
    times[ANOTHER][1] = None
    file = tmp_path / "t.json"
    ran = convlab_("tune", *PROBLEMS, "--dask", ADDRESS, "--json", file)
    assert ran.exit_code == 130, ran.output
    assert "after 1 of 2 problems, which are remembered" in ran.stderr
    assert (remembered(SHAPES), remembered(ANOTHER)) == (TILES[1], MODEL)
    assert not file.exists()


def test_workers_that_differ_from_the_command_are_refused(
    times: dict[str, list[float | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_workers(monkeypatch)
    own = version("numba-cuda")
    has(monkeypatch, {"numba-cuda": "0.1"})
    said = refused("tune", *PROBLEMS, "--dask", ADDRESS)
    assert f"the workers at {ADDRESS} have numba-cuda 0.1, and this command has {own}: " in said
    has(monkeypatch, {"convlab": "9.9"})
    monkeypatch.setattr(gpu_workers, "code_fingerprint", iter(("other", "own")).__next__)
    said = refused("tune", *PROBLEMS, "--dask", ADDRESS)
    assert f"the workers at {ADDRESS} have convlab 9.9, and this command is convlab " in said
    assert not tuned.tiles_file().exists()


def test_workers_without_a_gpu_and_a_wrong_address_are_refused(
    times: dict[str, list[float | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convlab.support.dask_workers.ANSWER_SECONDS", 1)
    said = refused("tune", *PROBLEMS, "--dask", "nowhere")
    without = "a Dask scheduler is reached by distributed: run "  # where it is not installed
    assert "no Dask scheduler answers at 'nowhere': " in said or without in said
    pretend_workers(monkeypatch)
    monkeypatch.setattr(Fakes, "facts", FACTS)
    said = refused("tune", *PROBLEMS, "--dask", ADDRESS)
    assert said.endswith(f"the workers at {ADDRESS} have no GPU to tune for")
