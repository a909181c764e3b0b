"""Run learners' typical answers, wrong and right, through the lessons' checks.

``lessons/answers/NN_name.py`` holds, for every exercise and hunt of a lesson, at least twelve
wrong answers and three right ones that look different from ours, as changes of ours.
``python tests/tools/check_answers.py`` runs them all and writes the table
``lessons/answers/README.md``. ``check_answers.py NAME...`` runs those of the lessons named, with
``--exercise NAME`` of some of their exercises, and replaces their rows in the table; the other rows
stay. It exits 1 if a check gives another result than expected. ``--table`` runs no answer, and
writes the table of all that are stored, with what each check must say. The tests marked ``answers``
hold that it says so.
"""

from __future__ import annotations

import argparse
import ast
import linecache
import re
import runpy
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import count, groupby
from operator import itemgetter
from typing import Any

from build_notebooks import lessons_named

from convlab.lessons.feedback import DOES_NOT_COMPILE, PASSED, UNFILLED, Feedback
from convlab.lessons.source import LEARNER, Cell, Lesson, read, sources
from convlab.support.installing import CHECKOUT

PAGE = "lessons/answers/README.md"
GIVEN = "as the learner finds it"
_numbers = count()


@dataclass(frozen=True)
class Answer:
    """An answer: our solution with pieces replaced.

    ``says`` is the reason that the check must give, or ``passed``. ``line`` is a piece of a line
    that the check must show, and ``told`` a piece of its sentences about the mistake.
    """

    what: str
    says: str
    changes: tuple[tuple[str, str], ...] = ()
    line: str = ""
    told: str = ""

    def of(self, exercise: Cell) -> str:
        """Return the text of the cell. Raises ``ValueError`` unless it has each piece once."""
        if self.what == GIVEN:
            return exercise.of(LEARNER)
        text = exercise.solution
        for old, new in self.changes:
            if (times := text.count(old)) != 1:
                raise ValueError(f"answer {self.what!r}: {old!r} is there {times} times")
            text = text.replace(old, new)
        return text


def wrong(
    what: str, says: str, *changes: tuple[str, str], line: str = "", told: str = ""
) -> Answer:
    """Return a wrong answer, with the reason that the check must give."""
    return Answer(what, says, changes, line, told)


def right(what: str, *changes: tuple[str, str]) -> Answer:
    """Return a right answer that looks different from ours."""
    return Answer(what, PASSED, changes)


def given(says: str) -> Answer:
    """Return a hunt as the learner gets it, with the reason that the check must give."""
    return Answer(GIVEN, says)


@dataclass(frozen=True)
class CheckResult:
    """The result of an answer's check."""

    lesson: str
    exercise: str
    answer: Answer
    feedback: Feedback

    @property
    def ok(self) -> bool:
        """True if the check gave the expected reason, line and words."""
        if self.answer.says == PASSED:
            return self.feedback.passed
        lines = [line.code for mistake in self.feedback.mistakes for line in mistake.lines]
        named = not self.answer.line or any(self.answer.line in line for line in lines)
        told = self.answer.told in str(self.feedback)
        return self.answer.says in self.feedback.reasons and named and told

    @property
    def said(self) -> str:
        """The reasons but 'does not compile', because not every machine has the compilers."""
        told = [reason for reason in self.feedback.reasons if reason != DOES_NOT_COMPILE]
        return ", ".join(told) or PASSED


def answers_of(lesson: Lesson) -> dict[str, list[Answer]]:
    """Return the answers of a lesson's file by exercise, with the exercises as they are given."""
    path = CHECKOUT / "lessons/answers" / f"{lesson.name}.py"
    there = runpy.run_path(str(path))["ANSWERS"]
    blank = [exercise.name for exercise in lesson.exercises() if exercise.role != "hunt"]
    return {
        name: [given(UNFILLED), *found] if name in blank else found for name, found in there.items()
    }


def checked(lesson: Lesson, exercise: Cell, answer: Answer) -> CheckResult:
    """Put the answer into the exercise's cell, run the cells that it needs and then its check."""
    feedback = feedback_on(lesson, exercise, answer.of(exercise))
    return CheckResult(lesson.name, exercise.name, answer, feedback)


def feedback_on(lesson: Lesson, exercise: Cell, text: str) -> Feedback:
    """Run the setup, the checks before, ``text`` in the place of the exercise, and its check."""
    there: dict[str, Any] = {}
    for cell in lesson.cells[: lesson.cells.index(exercise)]:
        if cell.role == "setup":
            _run(cell.text, there)
        elif cell.role == "check":
            _run(cell.text, there, show=False)
    _run(text, there)
    feedback: Feedback = _run(lesson.check_of(exercise.name).text, there)
    return feedback


def _run(text: str, there: dict[str, Any], show: bool = True) -> Any:
    """Run a cell as notebooks do and return its last value; its lines can be looked up.

    Without ``show`` the cell is run without the pictures that it shows.
    """
    file = f"<answer {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    tree = ast.parse(text)
    if not show:
        tree.body = [node for node in tree.body if not isinstance(node, ast.Expr)]
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(StringIO()):
        exec(compile(tree, file, "exec"), there)
        if isinstance(last, ast.Expr):
            return eval(compile(ast.Expression(last.value), file, "eval"), there)
    return None


HEAD = """# Answers to the lessons' exercises

Wrong answers of the kind that learners write, and right ones that look different from ours, with
the reason that the check of the notebook must give. `python tests/tools/check_answers.py` runs them
and writes this table, with `--table` it only writes it, and the tests marked `answers` hold that
the check gives the reason. [The lessons](../../docs/lessons.md) says where the answers are.
"""
COLUMNS = "| exercise | answer | the check must say |\n| --- | --- | --- |"


MARK = " (NOT WHAT IT MUST)"
Row = tuple[str, str, str]  # of the table: exercise, answer, what the check must say


def expected_rows(lesson: Lesson) -> list[Row]:
    """Return the rows of a lesson's stored answers, in the exercises' order."""
    answers = answers_of(lesson)
    return [
        (exercise.name, answer.what, answer.says)
        for exercise in lesson.exercises()
        for answer in answers[exercise.name]
    ]


def row_of(result: CheckResult) -> Row:
    """Return a result's row of the table. It has a mark if the check says something else."""
    says = result.answer.says if result.ok else f"{result.said}{MARK}"
    return result.exercise, result.answer.what, says


def table(rows: Mapping[str, Sequence[Row]]) -> str:
    """Return the page ``lessons/answers/README.md`` of the rows by lesson."""
    lines = [HEAD]
    for lesson, told in rows.items():
        lines += [f"## {lesson}", "", COLUMNS, *(f"| {' | '.join(row)} |" for row in told), ""]
    said = [says for told in rows.values() for *_, says in told]
    count = f"{len(said)} answers, {said.count(PASSED)} of them right."
    marked = any(one.endswith(MARK) for one in said)
    lines.append(f"{count} NOT all were checked as they must be." if marked else count)
    return "\n".join(lines) + "\n"


def rows_in(text: str) -> dict[str, list[Row]]:
    """Return the rows of the page by lesson."""
    rows: dict[str, list[Row]] = {}
    for name, part in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        rows[name] = re.findall(
            r"^\| (?!exercise|---)(.*?) \| (.*?) \| (.*) \|$", part, re.MULTILINE
        )
    return rows


def replaced(
    rows: Mapping[str, Sequence[Row]], found: Sequence[CheckResult]
) -> dict[str, list[Row]]:
    """Return the rows with those of the exercises in ``found`` replaced, in the lessons' order."""
    told = {name: list(of_lesson) for name, of_lesson in rows.items()}
    for name, results in groupby(found, lambda result: result.lesson):
        new: dict[str, list[Row]] = {}
        for result in results:
            new.setdefault(result.exercise, []).append(row_of(result))
        old = {
            exercise: list(these) for exercise, these in groupby(told.get(name, ()), itemgetter(0))
        }
        order = [exercise.name for exercise in read(*sources([name])).exercises()]
        both = old | new
        told[name] = [row for exercise in order for row in both.get(exercise, ())]
    return {path.stem: told[path.stem] for path in sources() if path.stem in told}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the answers of the named lessons, or of all, print each result and write the page.

    Returns 0 if each answer got the expected result, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="python tests/tools/check_answers.py", description=__doc__
    )
    parser.add_argument("--exercise", action="append", default=[], help="of these alone")
    parser.add_argument("--table", action="store_true", help="run none, only write the table")
    options, lessons = lessons_named(parser, arguments)
    page = CHECKOUT / PAGE
    if options.table:
        rows = {path.stem: expected_rows(read(path)) for path in sources()}
        page.write_text(table(rows), encoding="utf-8")
        print(f"wrote {page}")
        return 0
    found = []
    for lesson in lessons:
        answers = answers_of(lesson)
        for exercise in lesson.exercises():
            if options.exercise and exercise.name not in options.exercise:
                continue
            for answer in answers[exercise.name]:
                result = checked(lesson, exercise, answer)
                found.append(result)
                mark = "ok   " if result.ok else f"WRONG, must be {answer.says}:"
                reasons = ", ".join(result.feedback.reasons) or PASSED
                about = f"{lesson.name}, {exercise.name}: {answer.what}"
                print(f"{mark} {about}: {reasons}", flush=True)
    page.write_text(
        table(replaced(rows_in(page.read_text(encoding="utf-8")), found)), encoding="utf-8"
    )
    print(f"wrote {page}")
    return int(not all(result.ok for result in found))


if __name__ == "__main__":
    sys.exit(main())
