"""Remembered tiles: found again by who may use them, and no harm done by a file that is no good."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from convlab import ConvProblem, Tile, plan, plans, tuned
from convlab.engines import choose
from convlab.engines.simulator import Simulator
from convlab.kernels import tile_heuristic
from convlab.oracle import random_tensors
from convlab.shell import write_whole
from convlab.stages import s12_fused_im2win as s12
from convlab.stages import stage_named
from convlab.workloads import paper_layer

pytestmark = pytest.mark.same_in_cudasim

S12, GPU = s12.STAGE, "pretended GPU"
PROBLEM = ConvProblem(1, 64, 9, 9, 64, 3)
best_splits, best_tile = tile_heuristic.S12.best_splits, tile_heuristic.S12.best_tile
candidates = tile_heuristic.S12.candidates
CHOSEN = best_tile(PROBLEM, 4)
OTHER = next(tile for tile in candidates(PROBLEM) if tile != CHOSEN)


class PretendedGpu(Simulator):
    name, is_gpu, device = "gpu", True, GPU

    def sm_count(self) -> int:
        return 4


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, which plans look into."""
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(plans, "tuned_tile", tuned.tuned_tile)
    tuned._entries_once.cache_clear()
    return tmp_path / "tiles.json"


def taken(problem: ConvProblem = PROBLEM, engine: Any = None, **switches: bool) -> Tile | None:
    return plans.tile_for(problem, S12, engine or PretendedGpu(), **switches)


def put(tile: Tile = OTHER, problem: ConvProblem = PROBLEM, **changed: Any) -> None:
    entry = tuned.entry_for(problem, S12, GPU, tile, 0.5)
    if "sizes" in changed:
        changed["tile"] = changed.pop("sizes")
    tuned.remember(replace(entry, **changed), write_whole)


def test_a_remembered_tile_is_taken_and_else_the_heuristic_s(file: Path) -> None:
    assert taken() == CHOSEN
    put()
    assert taken() == OTHER
    assert taken(replace(PROBLEM, batch=2)) == best_tile(replace(PROBLEM, batch=2), 4)


@pytest.mark.parametrize("option", S12.options)
def test_what_was_measured_without_an_option_is_for_plans_without_it(
    option: str, file: Path
) -> None:
    put()
    assert taken(**{option: False}) == OTHER
    assert taken(**{option: True}) == best_tile(PROBLEM, 4, whole_sums=True)
    program = plans.program_for(PROBLEM, S12, None, PretendedGpu(), **{option: True})
    assert program.tile == best_tile(PROBLEM, 4, whole_sums=True)


def test_another_gpu_has_its_own_and_a_simulator_none(file: Path) -> None:
    put()
    other = PretendedGpu()
    other.device = "another GPU"
    assert taken(engine=other) == CHOSEN
    assert taken(engine=choose("simulator")) == S12.tiny_tile
    # A tile that is named is taken whatever is remembered.
    assert plans.program_for(PROBLEM, S12, CHOSEN, PretendedGpu()).tile == CHOSEN
    assert plans.program_for(PROBLEM, S12, None, PretendedGpu()).tile == OTHER


def test_the_heuristic_knows_how_many_sms_there_are(file: Path) -> None:
    problem = ConvProblem(1, 512, 7, 7, 512, 3, padding=1)
    many = PretendedGpu()
    many.sm_count = lambda: 132
    assert taken(problem) == best_tile(problem, 4) != best_tile(problem, 132)
    assert taken(problem, many) == best_tile(problem, 132)


@pytest.mark.parametrize("count", [4, 24, 108, 132])
def test_sums_are_split_for_the_gpu_that_the_tile_is_chosen_for(file: Path, count: int) -> None:
    engine = PretendedGpu()
    engine.sm_count = lambda: count
    for problem in (ConvProblem(4, 256, 14, 14, 256, 3, padding=1), paper_layer("conv12")):
        program = plans.program_for(problem, S12, None, engine)
        splits = best_splits(problem, best_tile(problem, count), count)
        slices = problem.K // program.tile.K_B
        assert program.launches[-1].grid[2] == -(-slices // -(-slices // splits))
        named = plans.program_for(problem, S12, program.tile, engine)
        assert named.launches[-1].grid == program.launches[-1].grid
        whole = plans.program_for(problem, S12, program.tile, engine, whole_sums=True)
        assert whole.launches[-1].grid[2] == 1


@pytest.mark.parametrize("name", ["s11_im2win_full", "s12_fused_im2win"])
def test_a_benchmark_takes_the_heuristic_s_whatever_is_remembered(
    name: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the same code would give another row."""
    from convlab.bench import baselines, systems

    stage, engine, made = stage_named(name), PretendedGpu(), []
    rule = plans.tile_by_rule(PROBLEM, stage, engine)
    other = next(tile for tile in candidates(PROBLEM) if tile != rule)
    tuned.remember(tuned.entry_for(PROBLEM, stage, GPU, other, 0.5), write_whole)
    for module in (systems, baselines):
        monkeypatch.setattr(module, "choose", lambda name: engine)
    monkeypatch.setattr(engine, "build", lambda step, program: made.append(program.tile))
    system = systems.system_named(name)
    assert system.compile is not None
    system.compile(PROBLEM)
    tensors = random_tensors(PROBLEM, 0, bias=False)[:2]
    prepared = system.prepare(PROBLEM, *tensors)
    assert {*made} == {rule}
    assert prepared.algorithm == str(rule)


@pytest.mark.parametrize(
    "changed",
    [
        {"code": "0123456789abcdef"},
        {"stage": "s11_im2win_full"},
        {"sizes": (128, 128, 32, 8, 8)},  # not a candidate
        {"sizes": (64, 128)},
        {"sizes": ()},
    ],
    ids=str,
)
def test_what_does_not_suit_is_passed_over(file: Path, changed: dict[str, Any]) -> None:
    put(**changed)
    assert len(tuned.read(file)) == 1
    assert taken() == CHOSEN


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"\xff\xfe\x00", b"null", b"[]", b'{"format": 1}', b'{"format": 1, "tiles": 7}',
        b'{"format": 2, "tiles": []}', b'{"format": 1, "tiles": [null, 7, [], {}, "x"]}',
        b"[" * 100_000,
    ],
    ids=lambda content: repr(content[:30]),
)  # fmt: skip
def test_a_broken_file_is_no_file_and_is_rebuilt(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert taken() == CHOSEN
    assert file.read_bytes() == content  # a plan writes nothing
    put()
    assert taken() == OTHER
    assert [tuple(row["tile"]) for row in json.loads(file.read_text())["tiles"]] == [
        (OTHER.M_B, OTHER.N_B, OTHER.K_B, OTHER.M_T, OTHER.N_T)
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [("tile", [64, "128", 16, 8, 8]), ("tile", 7), ("tile", [True] * 5), ("time_ms", "1"),
     ("gpu", None), ("problem", ["a"]), ("date", 7), ("more", 1)],
)  # fmt: skip
def test_a_broken_entry_does_not_cost_the_others(file: Path, key: str, value: object) -> None:
    put()
    document = json.loads(file.read_text())
    broken = dict(document["tiles"][0], problem="another") | {key: value}
    file.write_text(json.dumps(document | {"tiles": [broken, document["tiles"][0]]}))
    tuned._entries_once.cache_clear()
    assert len(tuned.read(file)) == 1
    assert taken() == OTHER


def test_what_cannot_be_read_is_not_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: Exception) -> Callable[..., Any]:
        def fail(*_: object) -> Any:
            raise error

        return fail

    file.mkdir()
    assert taken() == CHOSEN
    file.rmdir()
    put()
    with monkeypatch.context() as patched:
        patched.setattr(tuned, "code_of", fails(SyntaxError("half a line")))
        assert taken() == CHOSEN
    for name in ("CONVLAB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", fails(RuntimeError("Could not determine home directory.")))
    assert taken() == CHOSEN


def test_the_file_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put()
    reads: list[Path] = []
    read = tuned.read
    monkeypatch.setattr(tuned, "read", lambda path: reads.append(path) or read(path))
    for _ in range(5):
        assert taken() == OTHER
    assert reads == [file]


def test_replacing_and_forgetting(file: Path) -> None:
    assert tuned.forget(None, write_whole) == 0
    assert not file.exists()
    put(code="an earlier version")
    put(problem=replace(PROBLEM, batch=7))
    put()
    put(tile=CHOSEN)
    entries = tuned.read(file)
    assert len(entries) == 2
    assert entries[str(PROBLEM), GPU, S12.name].tile[:2] == (CHOSEN.M_B, CHOSEN.N_B)
    put()
    assert tuned.forget({str(PROBLEM)}, write_whole) == 1
    assert taken() == CHOSEN
    assert len(tuned.read(file)) == 1
    assert tuned.forget(None, write_whole) == 1
    assert tuned.read(file) == {}


def test_the_file_is_written_whole_or_not_at_all(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put()
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(Exception, match=r"^2$|^$"):  # the command's way to end
        put(tile=CHOSEN)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"CONVLAB_CACHE": "/a"}, "/a"),
        ({"CONVLAB_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/convlab"),
        ({"HOME": "/c"}, "/c/.cache/convlab"),
        ({"HOME": "/c", "CONVLAB_CACHE": "", "XDG_CACHE_HOME": ""}, "/c/.cache/convlab"),
    ],
)
def test_where_it_lies(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONVLAB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tuned.tiles_file() == Path(folder) / "tiles.json"


# What counts as the same code.


def test_a_stage_is_made_of_its_file_and_what_that_imports_from_stages_and_device() -> None:
    names = {file.name for file in tuned.sources(S12.module)}
    assert {"s12_fused_im2win.py", "window_copies.py", "tile_heuristic.py", "vector.py"} <= names
    assert "stage.py" in names
    assert not names & {"s11_im2win_full.py", "s05_shared_memory.py", "problem.py", "plans.py"}


def test_the_code_changes_with_what_the_stage_is_made_of_and_numba_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("stages", "kernels", "device"):
        shutil.copytree(tuned.SOURCE / folder, tmp_path / folder)
    monkeypatch.setattr(tuned, "SOURCE", tmp_path)

    def code(changed: str = "") -> str:
        tuned.code_of.cache_clear()
        if changed:
            with (tmp_path / changed).open("a") as stream:
                stream.write("\n# changed\n")
        return tuned.code_of(S12.module)

    before = code()
    assert code("stages/s05_shared_memory.py") == before
    changed = {code("kernels/window_copies.py"), code("device/async_copy.py")}
    monkeypatch.setattr(tuned, "version", lambda package: "0.99")
    assert len({before, *changed, code()}) == 4
    tuned.code_of.cache_clear()


def test_auto_is_s12_on_a_gpu_and_s01_on_a_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ConvProblem(1, 2, 4, 4, 3, 2)
    assert plan(problem, engine="simulator").stage is stage_named("s01")
    monkeypatch.setattr(plans, "choose", lambda name: PretendedGpu(strict=False))
    assert plan(problem).stage is S12
