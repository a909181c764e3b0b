"""Files: written whole and under a name that nobody can plant, read as records or refused."""

from __future__ import annotations

import json
import os
import random
import stat
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import papers
import pytest
import results_tables
import typer
from bench_samples import sample
from hypothesis import given
from hypothesis import strategies as st
from kernels import textbook
from test_cli import printed, refused

from convlab.checking.loading import maker
from convlab.commands.bench_tables import summary
from convlab.commands.output_files import check_writable
from convlab.commands.run import _found
from convlab.ladder import stage_named
from convlab.lessons import charts, progress
from convlab.measuring import analysis
from convlab.measuring.machine_code import stored_rows
from convlab.measuring.photograph import load
from convlab.measuring.results import open_results, set_aside
from convlab.running import tuned
from convlab.support.files import document, record
from convlab.support.whole_files import check_room_for, write_whole
from convlab.tracing import open_trace, page, trace
from convlab.tracing.views import as_text

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]


# Writing.


@pytest.fixture
def umask():
    """The umask of most users."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def permissions(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_a_new_file_has_the_permissions_of_any_and_an_old_one_keeps_its_own(tmp_path, umask):
    new, private, shared = (tmp_path / name for name in ("new", "private", "shared"))
    for file, mode in ((private, 0o600), (shared, 0o666)):
        file.touch()
        file.chmod(mode)
    for file in (new, private, shared):
        write_whole(file, b"content")
        assert file.read_bytes() == b"content"
    assert [*map(permissions, (new, private, shared))] == [0o640, 0o600, 0o666]
    assert sorted(os.listdir(tmp_path)) == ["new", "private", "shared"]


def test_no_planted_link_is_written_through(tmp_path, monkeypatch):
    """Neither under the name that older versions took, nor under the one that is drawn."""
    victim, target = tmp_path / "victim", tmp_path / "target.json"
    victim.write_text("precious")
    planted = [tmp_path / f".target.json.{os.getpid()}", tmp_path / ".convlab-guessed"]
    for link in planted:
        link.symlink_to(victim)
    write_whole(target, b"1")
    check_room_for(target)
    check_writable("--json", target)
    monkeypatch.setattr("secrets.token_hex", lambda size: "guessed")
    for write in (partial(write_whole, target, b"2"), partial(check_room_for, target)):
        with pytest.raises(FileExistsError):
            write()
    assert victim.read_text() == "precious"
    assert target.read_bytes() == b"1"
    assert all(link.is_symlink() for link in planted)


def test_a_link_that_a_person_gives_stays_and_its_file_is_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    write_whole(link, b"new")  # of a file that is not there yet
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_names_that_convlab_chooses_are_not_those_of_links(tmp_path):
    file, older = tmp_path / "bench.json", sample(layers=["conv12"])
    file.write_text("results")
    (tmp_path / f"bench-{older.identity}.json").symlink_to(tmp_path / "elsewhere")
    assert set_aside(file, older).name == f"bench-{older.identity}-2.json"
    assert not (tmp_path / "elsewhere").exists()


def test_a_long_name_can_be_written(tmp_path):
    write_whole(tmp_path / ("x" * 255), b"")
    with pytest.raises(OSError, match="too long"):
        check_room_for(tmp_path / ("x" * 256))


# Reading.


def report_of(file: Path) -> None:
    results = open_results(file)
    analysis.as_json(results, [results])
    printed(summary(results))


def read_tiles(file: Path) -> None:
    """Read tuned tiles, which refuses nothing: a plan then takes the heuristic's tile."""
    assert isinstance(tuned.read(file), dict)


def read_progress(file: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "FILE", file.name)
        state = progress.read(file.parent)
    cells = [{"source": "# check 05 slices", "metadata": {}}]
    progress.row("05_shared_memory", {"cells": cells}, state)
    progress.forget(state, "05")


def read_notebook(file: Path) -> None:
    mine = progress.notebook_of(file, file.read_bytes())
    progress.updated(mine, NOTEBOOK)
    progress.tips(mine)


def read_chart(kind: type, file: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "folder_of", lambda *_: file.parent)
        charts.result(file.stem, kind)


def read_trace(file: Path) -> None:
    opened = open_trace(file)
    as_text(opened)
    page(opened)


def read_program(file: Path) -> None:
    try:
        _found(str(file), False)
    except typer.Exit as refusal:
        raise ValueError(str(file)) from refusal


def read_ladder(file: Path) -> None:
    results_tables.read_ladder(file)


READERS: dict[str, Callable[[Path], object]] = {
    "results": report_of,
    "stored machine code": stored_rows,
    "trace": read_trace,
    "tiles": read_tiles,
    "progress": read_progress,
    "notebook": read_notebook,
    "chart of the ladder": partial(read_chart, charts.LadderResult),
    "chart of memory": partial(read_chart, charts.MemoryResult),
    "chart of sweeps": partial(read_chart, charts.SweepResult),
    "chart of memories": partial(read_chart, charts.LevelsResult),
    "any page": papers.read_json,
    "page of the ladder": read_ladder,
}
OTHERS: dict[str, Callable[[Path], object]] = {
    "picture": lambda file: load(file, 100),
    "kernel": lambda file: maker(str(file), stage_named("m01")),
    "program": read_program,
}
NOTEBOOK = {"cells": [{"source": [], "metadata": {"convlab": {"cell": "a"}}}]}


@cache
def right_documents() -> dict[str, Any]:
    """Return a right document for each reader."""
    stored = ROOT / "docs/results"
    launch = trace(textbook.copy, 1, 32, np.zeros(32, np.float32), np.zeros(32, np.float32))
    checks = {"05 slices": {"tries": 1, "began": 5, "passed": None}}
    results = json.loads((stored / "ladder_conv9_h200.json").read_text())
    tile = dict.fromkeys(tuned.KEY, "m15") | {"code": "c", "tile": [1, 2], "time_ms": 1}
    named = {
        name: json.loads((stored / f"{file}.json").read_text())
        for name, file in (
            ("chart of memory", "memory"),
            ("chart of sweeps", "channel_sweeps_h200"),
            ("chart of memories", "memory_levels_h200"),
            ("stored machine code", "lint_conv9_sm90"),
        )
    }
    return named | {
        "results": json.loads(json.dumps(sample(layers=["conv12"]).as_json())),
        "trace": json.loads(json.dumps(launch.as_json())),
        "tiles": {"format": 1, "tiles": [tile]},
        "progress": {"checks": checks, "hints": {"05": 1}},
        "notebook": NOTEBOOK,
        "chart of the ladder": results,
        "any page": {},
        "page of the ladder": results,
    }


def assert_answered(read: Callable[[Path], object], file: Path) -> str:
    """The file is read, or refused in one sentence with its name."""
    try:
        read(file)
    except ValueError as error:
        said = str(error)
        assert str(file) in said
        assert "\n" not in said
        assert len(said) < 600 + len(str(file))
        return said
    except OSError as error:  # which the command makes a sentence of
        return str(error) if error.filename else pytest.fail(f"{error} names no file")
    return ""


HOSTILE = {
    "empty": b"", "cut short": b'{"format": "convlab', "binary": bytes(range(256)),
    "not UTF-8": b'{"format": "\xff"}', "half of a character": b'{"format": "\\ud800"}',
    "UTF-16": '{"format": 1}'.encode("utf-16"), "two values": b"1 2", "NaN": b"[NaN]",
    "infinite": b"[Infinity]", "a huge number": b'{"format": 1e999}',
    "many digits": b'{"format": ' + b"9" * 5000 + b"}", "deep": b"[" * 100_000,
    "deep and closed": b"[" * 60 + b"]" * 60, "very deep": b'{"a":' * 10**5 + b"1" + b"}" * 10**5,
    "twice the same key": b'{"format": 1, "format": 2}', "null": b"null", "a number": b"1",
    "zeros": bytes(99),
}  # fmt: skip


@pytest.mark.parametrize("name", [*READERS, *OTHERS])
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_read_or_refused_in_a_sentence(tmp_path, name, content, capsys):
    file = tmp_path / ("hostile.py" if name in ("kernel", "program") else "hostile.json")
    file.write_bytes(content)
    assert_answered((READERS | OTHERS)[name], file)


@pytest.mark.parametrize("name", [*READERS, *OTHERS])
def test_what_is_not_a_file_is_refused_at_once(tmp_path, name, capsys):
    (folder := tmp_path / "folder.json").mkdir()
    (endless := tmp_path / "endless.json").symlink_to("/dev/zero")
    os.mkfifo(pipe := tmp_path / "pipe.json")
    (loop := tmp_path / "loop.json").symlink_to(loop)
    (huge := tmp_path / "huge.json").touch()
    os.truncate(huge, 2**40)
    if name == "notebook":  # whose content is given
        return
    for file in (folder, endless, pipe, loop, huge, tmp_path / "absent.json"):
        said = assert_answered((READERS | OTHERS)[name], file)
        left = name == "tiles" or (name == "progress" and "absent" in file.name)
        assert said or left or (name == "progress" and file is loop)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([10**400, -1, 2**63, 1e308, 5e-324, "\u001b[2J", "", "x" * 10**5])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)  # fmt: skip


def changed(whole: Any, value: Any, draw: random.Random) -> Any:
    """The document with another value somewhere, or without it."""
    whole = deepcopy(whole)
    at, left = whole, draw.randint(1, 5)
    while isinstance(at, dict | list) and at:
        key = draw.choice([*at]) if isinstance(at, dict) else draw.randrange(len(at))
        left -= 1
        if left == 0 or not isinstance(at[key], dict | list) or not at[key]:
            if draw.random() < 0.2:
                del at[key]
            else:
                at[key] = value
            break
        at = at[key]
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@given(value=json_values)
def test_any_json_is_read_or_refused_in_a_sentence(tmp_path_factory, name, value):
    file = tmp_path_factory.mktemp("any") / "any.json"
    file.write_text(json.dumps(value))
    assert_answered(READERS[name], file)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@given(value=json_values, draw=st.randoms(use_true_random=False))
def test_a_right_file_with_anything_in_it_is_too(tmp_path_factory, name, value, draw):
    file = tmp_path_factory.mktemp("any") / "any.json"
    file.write_text(json.dumps(changed(right_documents()[name], value, draw)))
    assert_answered(READERS[name], file)


@pytest.mark.parametrize("name", READERS)
def test_what_a_reader_takes_is_read(tmp_path, name):
    file = tmp_path / "right.json"
    file.write_text(json.dumps(right_documents()[name]))
    assert assert_answered(READERS[name], file) == ""


def test_a_refusal_has_the_place_the_value_and_the_rule():
    with pytest.raises(ValueError, match=r"^its \[1\] is 'x': it must be an integer$"):
        record([1, "x"], list[int])
    with pytest.raises(ValueError, match=r"^it is None: it must be an object$"):
        record(document("null"), progress.State)
    with pytest.raises(ValueError, match=r"^its checks\[...\] has no tries: it must have one$"):
        record({"checks": {"a": {}}, "hints": {}}, progress.State)


@pytest.mark.parametrize("content", ["null", "1", "[]", '{"checks": 1}'])
@pytest.mark.parametrize(
    "arguments",
    [("report", "x.json"), ("lint", "m01", "--against", "x.json"), ("trace", "x.json")],
    ids=" ".join,
)
def test_the_command_names_the_file_that_it_cannot_use(tmp_path, monkeypatch, arguments, content):
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_text(content)
    assert "'x.json'" in refused(*arguments)


@pytest.mark.parametrize("content", ["null", "1", "[1]", '{"checks": {"a": 1}, "hints": {}}'])
@pytest.mark.parametrize("option", [("--status",), ("--hint", "05"), ("--no-open",)])
def test_lessons_name_a_file_of_progress_that_is_none(tmp_path, option, content):
    (tmp_path / progress.FILE).write_text(content)
    said = refused("lessons", tmp_path, *option)
    assert progress.FILE in said
    assert "delete it" in said


def test_a_page_s_section_names_a_file_of_something_else(tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "ROOT", tmp_path)
    (tmp_path / "docs/results").mkdir(parents=True)
    for section in results_tables.SECTIONS.values():
        file = tmp_path / "docs/results" / section.file
        for text in ("[]", "{}", '{"rows": 1}', '{"rows": [1], "environment": 2}'):
            file.write_text(text)
            with pytest.raises(ValueError, match="is no result of") as refused:
                papers.made(section)
            assert str(file) in str(refused.value)
