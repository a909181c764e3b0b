"""Recorded answers of learners fit their cells: what can be known without running a check."""

from __future__ import annotations

import ast
import builtins
import dis
from collections.abc import Iterator
from types import CodeType

import check_answers
import pytest

from convlab.lessons.source import read, sources

pytestmark = pytest.mark.same_in_cudasim


def instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from instructions(constant)


def unknown_names(before: list[str], text: str) -> set[str]:
    """Return the names that a cell reads and that neither it nor the cells before it define."""
    known, read_names = set(dir(builtins)), set()
    for cell in (*before, text):
        for one in instructions(compile(ast.parse(cell), "cell", "exec")):
            if one.opname in ("STORE_NAME", "STORE_GLOBAL", "IMPORT_NAME"):
                known.add(one.argval)
            if cell is text and one.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
                read_names.add(one.argval)
    return read_names - known


def test_names_that_nothing_defines_are_found():
    cell = "SIZE = 2\ndef make(p):\n    K = p.K\n    def kernel(a):\n        a[K] = N * SIZE\n"
    assert unknown_names([], cell) == {"N"}
    assert unknown_names(["N = 3"], cell) == set()


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_answers_use_names_that_their_cell_has(path):
    """An answer whose names have gone from its cell is refused for this, and not for its mistake.
    Only those may have such a name that must be found broken."""
    lesson = read(path)
    answers = check_answers.answers_of(lesson)
    for exercise in lesson.exercises():
        cells = lesson.cells[: lesson.cells.index(exercise)]
        before = [cell.text for cell in cells if cell.role in ("setup", "check")]
        for answer in answers[exercise.name]:
            if answer.says != "broken":
                assert unknown_names(before, answer.of(exercise)) == set(), answer.what
