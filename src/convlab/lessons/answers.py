"""Answers that learners give, wrong ones and right ones, and what the checks say of them.

``lessons/answers/NN_name.py`` holds, for every exercise and hunt of a lesson, at least five wrong
answers and two right ones that look different from ours, as changes of ours.
``python -m convlab.lessons.answers`` runs them all and writes the table
``lessons/answers/README.md``. It exits 1 if a check gives another result than expected.
"""

from __future__ import annotations

import argparse
import ast
import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import count, groupby
from typing import Any

from convlab.lessons import build, places
from convlab.lessons.feedback import DOES_NOT_COMPILE, PASSED, UNFILLED, Feedback
from convlab.lessons.source import LEARNER, Cell, Lesson, read, without_marks

PAGE = "lessons/answers/README.md"
GIVEN = "as the learner finds it"
_numbers = count()


@dataclass(frozen=True)
class Answer:
    """An answer: our solution with pieces replaced. ``says`` is what the check must give as a
    reason, ``passed`` for a right one; ``line`` a piece of a line that it must point at."""

    what: str
    says: str
    changes: tuple[tuple[str, str], ...] = ()
    line: str = ""

    def of(self, solution: str) -> str:
        """The answer's text. Raises ``ValueError`` where a piece is not there exactly once."""
        for old, new in self.changes:
            if solution.count(old) != 1:
                raise ValueError(
                    f"answer {self.what!r}: {old!r} is there {solution.count(old)} times"
                )
            solution = solution.replace(old, new)
        return solution


def wrong(what: str, says: str, *changes: tuple[str, str], line: str = "") -> Answer:
    """A wrong answer, and the reason that the check must give."""
    return Answer(what, says, changes, line)


def right(what: str, *changes: tuple[str, str]) -> Answer:
    """A right answer that looks different from ours."""
    return Answer(what, PASSED, changes)


def given(says: str) -> Answer:
    """A hunt as the learner finds it, and the reason that the check must give."""
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
        """Whether it said what it must."""
        if self.answer.says == PASSED:
            return self.feedback.passed
        lines = [line.code for problem in self.feedback.problems for line in problem.lines]
        named = not self.answer.line or any(self.answer.line in line for line in lines)
        return self.answer.says in self.feedback.reasons and named

    @property
    def said(self) -> str:
        """The reasons. Not whether it compiles: that is found only where compilers are installed,
        and the page is to be the same everywhere."""
        told = [reason for reason in self.feedback.reasons if reason != DOES_NOT_COMPILE]
        return ", ".join(told) or PASSED


def answers_of(lesson: str) -> dict[str, tuple[Answer, ...]]:
    """The answers of a lesson by exercise, as its file has them; none where there is no file."""
    path = places.CHECKOUT / "lessons/answers" / f"{lesson}.py"
    if not path.is_file():
        return {}
    there: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), there)
    return {name: tuple(answers) for name, answers in there["ANSWERS"].items()}


def checked(lesson: Lesson, exercise: Cell, answer: Answer) -> CheckResult:
    """Put the answer into the exercise's cell, run what the lesson needs and then its check."""
    if answer.what == GIVEN:
        text = exercise.of(LEARNER)
    else:
        text = answer.of(without_marks(exercise.text))
    return CheckResult(lesson.name, exercise.name, answer, _checked(lesson, exercise, text))


def _checked(lesson: Lesson, exercise: Cell, text: str) -> Feedback:
    """Run setup, the checks before (later ones use their functions), this cell and its check."""
    there: dict[str, Any] = {}
    for cell in lesson.cells:
        if cell.role == "setup":
            _run(cell.text, there)
        elif cell.role == "check" and cell.name != exercise.name:
            _run(cell.text, there, show=False)
        elif cell == exercise:
            _run(text, there)
            feedback = _run(lesson.check_of(exercise.name).text, there)
            assert isinstance(feedback, Feedback)
            return feedback
    raise ValueError(f"{lesson.name} has no exercise {exercise.name!r}")


def _run(text: str, there: dict[str, Any], show: bool = True) -> Any:
    """Run a cell as notebooks do: its last value is what it gives, its lines can be looked up.
    Without ``show`` it is run without what it shows."""
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


def results_of(lesson: Lesson) -> Iterator[CheckResult]:
    """The result of every answer to every exercise of the lesson."""
    answers = answers_of(lesson.name)
    for exercise in lesson.exercises():
        if exercise.role == "exercise":
            yield checked(lesson, exercise, given(UNFILLED))
        for answer in answers.get(exercise.name, ()):
            yield checked(lesson, exercise, answer)


HEAD = """# Answers to the lessons' exercises

Wrong answers of the kind that learners write, and right ones that look different from ours, with
what the check of the notebook says. `python -m convlab.lessons.answers` runs them and writes this
table; [the lessons](../../docs/lessons.md) says where the answers are.
"""


def table(found: Sequence[CheckResult]) -> str:
    """The page."""
    lines = [HEAD]
    for lesson, results in groupby(found, lambda result: result.lesson):
        lines += [
            f"## {lesson}",
            "",
            "| exercise | answer | the check says |",
            "| --- | --- | --- |",
        ]
        for result in results:
            mark = "" if result.ok else " (NOT WHAT IT MUST)"
            lines.append(f"| {result.exercise} | {result.answer.what} | {result.said}{mark} |")
        lines.append("")
    few = sum(result.answer.says == PASSED for result in found)
    as_it_must = "each" if all(result.ok for result in found) else "NOT all"
    lines.append(f"{len(found)} answers, {few} of them right; {as_it_must} checked as it must be.")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the answers of the lessons named, or of all, and print each result.

    With no names the page is written too. Returns 0 where each was checked as it must be, 1 where
    one was not, 2 for an unknown name or a source that is no lesson.
    """
    parser = argparse.ArgumentParser(prog="python -m convlab.lessons.answers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as 05_shared_memory")
    options = parser.parse_args(arguments)
    try:
        lessons = [read(path) for path in build.sources(options.names)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    found = []
    for result in (one for lesson in lessons for one in results_of(lesson)):
        found.append(result)
        mark = "ok   " if result.ok else f"WRONG, must be {result.answer.says}:"
        about = f"{result.lesson}, {result.exercise}: {result.answer.what}"
        reasons = ", ".join(result.feedback.reasons) or PASSED
        print(f"{mark} {about}: {reasons}", flush=True)
    if not options.names:
        page = places.CHECKOUT / PAGE
        page.write_text(table(found), encoding="utf-8")
        print(f"wrote {page}")
    return int(not all(result.ok for result in found))


if __name__ == "__main__":
    sys.exit(main())
