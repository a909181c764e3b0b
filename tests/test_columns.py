"""The command's tables: no cell is cut, at 80 columns and where the output is redirected."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.text import Text
from test_cli import compiler, convlab_  # noqa: F401 (a fixture)

from convlab.checking.outcome import Check, TrafficCount
from convlab.commands import cli
from convlab.commands.bench_tables import agreement_table, summary
from convlab.commands.doctor import doctor_table
from convlab.commands.ladder_table import COUNTS, ladder_table
from convlab.commands.lint_tables import differences_table, lint_table
from convlab.commands.stages import stages_table
from convlab.commands.tune import _tiles_table, _tuned_table
from convlab.commands.tuned_problems import Tuned
from convlab.ladder import BACKWARD, LADDER, Tile
from convlab.lessons.source import folder_of
from convlab.measuring import ladder_run as ladder
from convlab.measuring import machine as doctor
from convlab.measuring.machine_code import Difference, KernelRow
from convlab.measuring.results import open_results
from convlab.problems import workloads
from convlab.problems.oracle import CheckResult
from convlab.support.columns import LONGEST_WORD, Columns

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
WIDTH = 80
ELLIPSES = "\N{HORIZONTAL ELLIPSIS}", "..."


def printed(table: RenderableType, width: int = WIDTH) -> str:
    """The table as a redirected command prints it."""
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def words_of(text: str) -> str:
    """The characters without blanks, which is what folding leaves as it was."""
    return "".join(text.split())


def check_whole(table: Columns, width: int = WIDTH) -> None:
    """Assert that every cell of a table can be read in what is printed."""
    text = printed(table, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width, text
    assert not any(sign in text for sign in ELLIPSES), text
    for column in table._columns:
        for cell in (column.head, *column.cells):
            for word in cell.plain.split():
                assert len(word) > LONGEST_WORD or word in text, (word, text)
            if not column.folds and cell is not column.head:
                assert any(cell.plain in line for line in lines), (cell.plain, text)


# Every table of the command, with the longest names and large numbers.

LONG = replace(LADDER[0], module="convlab.ladder.main.m10_im2win_vectorized_and_more")
RIGHT = CheckResult(True, 0.0123, wrong=0, total=1)
PROBLEM = workloads.problem_of("1128x1200x1128x1128*1512x1200x11x11,p15")
TILE = Tile(128, 256, 16, 16, 16)


def counted(engine: str) -> Columns:
    """The ladder's table of a simulator, with the counts of a large problem."""
    counts = {name: 123_456_789_012 for name, _ in COUNTS[engine].values()}
    results = [
        ladder.StageResult(stage, 10**10, 2**30, check=RIGHT, counts=counts)
        for stage in (*LADDER, LONG)
    ]
    return ladder_table(results, SimpleNamespace(is_gpu=False, name=engine))


def timed() -> Columns:
    timing = SimpleNamespace(median_ms=123456.789, spread_percent=12.3)
    results = [
        ladder.StageResult(stage, 10**10, 2**40, check=RIGHT, timing=timing)
        for stage in (*LADDER, LONG)
    ]
    return ladder_table(results, SimpleNamespace(is_gpu=True))


def stored_rows() -> list[KernelRow]:
    names = {field.name for field in fields(KernelRow)}
    rows = json.loads((ROOT / "docs/results/lint_conv9_sm90.json").read_text(encoding="utf-8"))
    known = [{name: value for name, value in row.items() if name in names} for row in rows]
    few = [KernelRow(**row) for row in known]
    longer = {"problem": "a long name of a problem", "arch": "sm_120", "spill_bytes": 4,
              "stack_bytes": 4, "float64": ("DADD",), "registers": 255,
              "findings": ("a", "b", "c", "d", "e")}  # fmt: skip
    return [*few, replace(few[-1], kernel="a_kernel_with_a_name_of_its_own_kind", **longer)]


def differing() -> Columns:
    changes = {"loop_instructions": (123456789, 987654321), "kernel": ("one_name", "another_name")}
    worse = ("share of multiply-adds in the loop", "loop instructions per multiply-add")
    return differences_table([Difference(row, changes, worse) for row in stored_rows()])


def tuned(problem: str = str(PROBLEM)) -> Tuned:
    row = {"time_ms": 123456.7, "time_spread": 12.3, "tflops": 1234.5}
    given = SimpleNamespace(ok=True, state="right", **row)
    failed = SimpleNamespace(ok=False, state="too fast", **dict.fromkeys(row))
    rows: Any = {TILE: given, Tile(64, 128, 8, 8, 8): failed}
    return Tuned(problem, PROBLEM, TILE, rows)


def compared() -> Columns:
    results = open_results(ROOT / "docs/results/bench_h200.json")
    return agreement_table(results, results)


TABLES: dict[str, Callable[[], Columns]] = {
    "stages": lambda: stages_table(LADDER),
    "stages: gradients": lambda: stages_table(BACKWARD, "backward"),
    "ladder on a GPU": timed,
    "ladder on the simulator": lambda: counted("simulator"),
    "ladder on cudasim": lambda: counted("cudasim"),
    "lint": lambda: lint_table(stored_rows()),
    "lint --against": differing,
    "tune: one problem": lambda: _tiles_table(tuned()),
    "tune: several problems": lambda: _tuned_table([tuned(), tuned("x" * 100)]),
    "report: two files": compared,
}


@pytest.mark.parametrize("width", [40, 60, WIDTH, 132])
@pytest.mark.parametrize("name", TABLES)
def test_no_cell_is_cut(name, width):
    check_whole(TABLES[name](), width)


def test_every_table_shows_its_cells_whole():
    """Only facts in two columns, the second of which folds, are a table of rich's."""
    users = {
        path.name
        for path in (ROOT / "src/convlab").rglob("*.py")
        if re.search(r"rich\.table|rich import .*\btable\b", path.read_text(encoding="utf-8"))
    }
    assert users == {"doctor.py"}
    assert (ROOT / "src/convlab/commands/doctor.py").read_text().count("Table(") == 0


@pytest.mark.parametrize("width", [60, WIDTH, 200])
def test_speeds_of_a_bench_are_whole(width):
    results = open_results(ROOT / "docs/results/bench_h200.json")
    text = printed(summary(results, width=width), width)
    assert not any(sign in text for sign in ELLIPSES)
    assert max(map(len, text.splitlines())) <= width
    timed = {row.system for row in results.rows.values() if row.tflops}
    assert all(re.search(rf"^{name} ", text, re.M) for name in timed)


def test_facts_of_the_doctor_are_whole():
    found = doctor.facts() | {"os": "a system " * 30, "executable": "/folder" * 40}
    text = printed(doctor_table(found))
    assert words_of(found["os"]) in words_of(text)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert words_of(found["executable"]) in words_of(text)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_counts_of_a_check_stand_apart():
    count = TrafficCount("sectors of global memory", 123_456_789_012, 987_654_321_098)
    check = Check("kernel", "m03_shared_memory", (), (), (count,))
    (line,) = (line for line in str(check).splitlines() if count.unit in line)
    assert line.split()[4:6] == ["123,456,789,012", "987,654,321,098"]


COMMANDS = (
    "stages", "doctor", "lessons {folder} --status", "trace m03", "trace m11",
    "ladder --engine simulator --stage m01 --stage m10 --stage i02_im2col_per_image",
    "ladder --engine cudasim --stage m01 --stage m03",
    "report {results} --no-counts", "report {results} {results} --no-counts",
    "lint", "lint --layer all --arch sm_120",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS)
def test_redirected_commands_cut_nothing(words, tmp_path, compiler):  # noqa: F811
    compiler()
    folder = tmp_path / "lessons"
    if "{folder}" in words:
        assert convlab_("lessons", folder, "--no-open").exit_code == 0
    results = folder_of("docs/results", "results") / "bench_h200.json"
    result = convlab_(*words.format(folder=folder, results=results).split())
    assert result.exit_code == 0, result.output
    assert "\N{HORIZONTAL ELLIPSIS}" not in result.stdout
    tables_of_it = [line for line in result.stdout.splitlines() if not line.startswith("left out:")]
    assert max(map(len, tables_of_it)) <= WIDTH


@pytest.mark.parametrize("verb", ["", *typer.main.get_command(cli.app).commands])
def test_help_cuts_nothing(verb):
    text = convlab_(*verb.split(), "--help").stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert max(map(len, text.splitlines())) <= WIDTH


# The table itself, with whatever is in it.

WORDS = st.text("abcdefgh_ \n", min_size=1, max_size=40).filter(str.strip)
NUMBERS = st.integers(0, 10**15).map("{:,}".format)


@st.composite
def tables_of_anything(draw: Any) -> tuple[Columns, Sequence[Sequence[str]]]:
    words, numbers = draw(st.integers(1, 3)), draw(st.integers(0, 12))
    head = [draw(WORDS) for _ in range(words + numbers)]
    folded = [name for name in head[1:words] if draw(st.booleans())]
    row = st.tuples(*[WORDS] * words, *[NUMBERS] * numbers)
    rows = draw(st.lists(row, min_size=1, max_size=4))
    cells = [[Text(cell) for cell in row] for row in rows]
    return Columns(head, cells, words, folded), rows


@settings(max_examples=100, deadline=None)
@given(tables_of_anything(), st.integers(1, 130))
def test_no_character_is_lost(made, width):
    table, rows = made
    text = printed(table, width)
    assert max(map(len, text.splitlines())) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    shown = sorted(words_of(text))
    for row in rows:
        for cell in row:
            for sign in words_of(cell):
                shown.remove(sign)
    whole = max(len(line) for row in rows for cell in row for line in cell.split("\n"))
    if 2 * whole + 4 <= width:
        assert all(number in text for row in rows for number in row[table._words :])
