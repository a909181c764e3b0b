"""Remembered tiles: found again by who may use them, and no harm done by a file that is no good."""

from __future__ import annotations

import json
import os
from dataclasses import astuple, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from pretended_gpu import PretendedGpu

from convlab import ConvProblem, plan
from convlab.ladder import stage_named, tile_heuristic
from convlab.ladder.main import m15_split_k as m15
from convlab.problems.oracle import random_tensors
from convlab.problems.workloads import paper_layer
from convlab.running import plans, tuned
from convlab.running.engines import choose

pytestmark = pytest.mark.same_in_cudasim

M15, GPU = m15.STAGE, "pretended GPU"
PROBLEM = ConvProblem(1, 64, 9, 9, 64, 3)
SEVEN = replace(PROBLEM, batch=7)
best_splits, best_tile = tile_heuristic.M15.best_splits, tile_heuristic.M15.best_tile
candidates = tile_heuristic.M15.candidates
CHOSEN = best_tile(PROBLEM, 4)
OTHER = next(tile for tile in candidates(PROBLEM) if tile != CHOSEN)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A cache of the test's own, which plans look into."""
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(plans, "tuned_tile", tuned.tuned_tile)
    tuned._rows_once.cache_clear()
    return tmp_path / "tiles.json"


def taken(problem=PROBLEM, engine=None, **switches):
    return plans.program_for(problem, M15, None, engine or PretendedGpu(), **switches).tile


def put(tile=OTHER, problem=PROBLEM):
    tuned.remember(problem, M15, GPU, tile, 0.5)


def write(file, *rows):
    file.write_text(json.dumps({"format": 1, "tiles": rows}))
    tuned._rows_once.cache_clear()


def test_a_remembered_tile_is_taken_and_else_the_heuristic_s(file):
    assert taken() == CHOSEN
    put()
    assert taken() == OTHER
    assert taken(SEVEN) == best_tile(SEVEN, 4)
    assert taken(engine=PretendedGpu("another GPU")) == CHOSEN
    assert taken(engine=choose("simulator")) == M15.tiny_tile
    # A tile that is named is taken whatever is remembered.
    assert plans.program_for(PROBLEM, M15, CHOSEN, PretendedGpu()).tile == CHOSEN
    assert plans.program_for(PROBLEM, M15, None, PretendedGpu()).tile == OTHER


@pytest.mark.parametrize(("option", "default"), [("relu", False), ("split_k", True)])
def test_a_tile_that_was_measured_with_the_defaults_is_for_plans_with_them(option, default, file):
    put()
    assert {*M15.options, *M15.switches} == {"relu", "split_k"}
    assert taken(**{option: default}) == OTHER
    assert taken(**{option: not default}) == best_tile(PROBLEM, 4, split_k=False)
    program = plans.program_for(PROBLEM, M15, None, PretendedGpu(), **{option: not default})
    assert program.tile == best_tile(PROBLEM, 4, split_k=False)


def test_the_keyword_for_whole_sums_names_the_new_one():
    with pytest.raises(ValueError, match=r"^whole_sums is split_k now: give split_k=False to have"):
        plan(PROBLEM, "m15", engine="simulator", whole_sums=True)


@pytest.mark.parametrize("count", [4, 24, 108, 132])
def test_tile_and_split_k_are_of_the_gpu_s_number_of_sms(file, count):
    engine = PretendedGpu(sms=count)
    for problem in (ConvProblem(4, 256, 14, 14, 256, 3, padding=1), paper_layer("conv12")):
        assert taken(problem, engine) == best_tile(problem, count)
        program = plans.program_for(problem, M15, None, engine)
        splits = best_splits(problem, best_tile(problem, count), count)
        slices = problem.K // program.tile.K_B
        assert program.launches[-1].grid[2] == -(-slices // -(-slices // splits))
        named = plans.program_for(problem, M15, program.tile, engine)
        assert named.launches[-1].grid == program.launches[-1].grid
        whole = plans.program_for(problem, M15, program.tile, engine, split_k=False)
        assert whole.launches[-1].grid[2] == 1
    small = ConvProblem(1, 512, 7, 7, 512, 3, padding=1)
    assert best_tile(small, 4) != best_tile(small, 132)


@pytest.mark.parametrize("name", ["m11_warp_tiling", "m15_split_k"])
def test_a_benchmark_takes_the_heuristic_s_whatever_is_remembered(name, file, monkeypatch):
    """Else the same code would give another row."""
    from convlab.measuring import baselines, systems

    stage, engine, made = stage_named(name), PretendedGpu(), []
    rule = plans.tile_by_rule(PROBLEM, stage, engine)
    other = next(tile for tile in candidates(PROBLEM) if tile != rule)
    tuned.remember(PROBLEM, stage, GPU, other, 0.5)
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
        {"stage": "m11_warp_tiling"},
        *({"tile": tile} for tile in ([128, 128, 32, 8, 8], [64, 128], [], 7, [[64]], None)),
        {"tile": [float(size) for size in astuple(OTHER)]},
    ],
    ids=str,
)
def test_what_does_not_suit_is_passed_over(file, changed):
    put()
    (row,) = tuned.read(file).values()
    write(file, row | changed)
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
def test_a_broken_file_is_no_file_and_is_rebuilt(file, content):
    file.write_bytes(content)
    assert taken() == CHOSEN
    assert file.read_bytes() == content  # a plan writes nothing
    put()
    assert taken() == OTHER
    assert [row["tile"] for row in tuned.read(file).values()] == [[*astuple(OTHER)]]


@pytest.mark.parametrize("broken", [None, {}, {"gpu": None}, {"problem": ["a"]}, {"tile": 7}])
def test_a_broken_row_does_not_cost_the_others(file, broken):
    put()
    (row,) = tuned.read(file).values()
    write(file, row | {"problem": "another"} | broken if isinstance(broken, dict) else broken, row)
    assert taken() == OTHER


def test_what_cannot_be_read_is_not_there(file, monkeypatch):
    file.mkdir()
    assert taken() == CHOSEN
    file.rmdir()
    put()
    with monkeypatch.context() as patched:
        patched.setattr(tuned, "code", Mock(side_effect=OSError("no source")))
        assert taken() == CHOSEN
    monkeypatch.setattr(tuned, "tiles_file", Mock(side_effect=RuntimeError("no home folder")))
    assert taken() == CHOSEN


def test_the_file_is_read_once(file, monkeypatch):
    put()
    read = Mock(wraps=tuned.read)
    monkeypatch.setattr(tuned, "read", read)
    assert [taken() for _ in range(5)] == [OTHER] * 5
    read.assert_called_once_with(file)


def test_replacing_and_forgetting(file):
    assert tuned.forget(None) == 0
    assert not file.exists()
    put(problem=SEVEN)
    put()
    put(tile=CHOSEN)
    assert len(tuned.read(file)) == 2
    assert tuned.read(file)[str(PROBLEM), GPU, M15.name, "numba-cuda"]["tile"] == [*astuple(CHOSEN)]
    put()
    assert tuned.forget({str(PROBLEM)}) == 1
    assert taken() == CHOSEN
    assert len(tuned.read(file)) == 1
    assert tuned.forget(None) == 1
    assert tuned.read(file) == {}


def test_the_file_is_written_whole_or_not_at_all(file, monkeypatch):
    put()
    before = file.read_bytes()
    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
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
def test_where_it_lies(variables, folder, monkeypatch):
    for name in ("CONVLAB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tuned.tiles_file() == Path(folder) / "tiles.json"


def test_the_code_changes_with_what_stages_are_made_of_and_numba_cuda(tmp_path, monkeypatch):
    assert all(any(tuned.SOURCE.glob(files)) for files in tuned.CODE)  # none has moved
    files = ("problems/problem.py", "ladder/stage.py", "ladder/main/m15.py", "device/mma.py")
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(tuned, "SOURCE", tmp_path)
    codes = [tuned.code.__wrapped__()]
    for file in files:
        (tmp_path / file).write_text("# changed")
        codes.append(tuned.code.__wrapped__())
    assert codes[1] == codes[0]  # problem.py is no part of a stage
    monkeypatch.setattr(tuned, "version", lambda package: "0.99")
    assert len({*codes, tuned.code.__wrapped__()}) == len(files) + 1


def test_auto_is_m15_on_a_gpu_and_m01_on_a_simulator(monkeypatch):
    problem = ConvProblem(1, 2, 4, 4, 3, 2)
    assert plan(problem, engine="simulator").stage is stage_named("m01")
    monkeypatch.setattr(plans, "choose", lambda name: PretendedGpu(strict=False))
    assert plan(problem).stage is M15


def test_tiles_under_an_earlier_name_of_a_stage_are_told_of_once(file):
    put()
    (row,) = tuned.read(file).values()
    write(file, row, row | {"stage": "s12_fused_im2win"})
    says = "s12_fused_im2win is m15_split_k now. `convlab tune` measures anew"
    with pytest.warns(UserWarning, match=says):
        assert taken() == OTHER
    assert taken() == OTHER  # once: here a warning is an error
