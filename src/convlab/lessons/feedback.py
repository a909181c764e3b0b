"""What a check of an exercise says: the result, why, and what to look at, in plain words."""

from __future__ import annotations

import inspect
import linecache
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from html import escape
from types import FunctionType
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from convlab.checking import Check
from convlab.checking.checker import raised_by
from convlab.lessons.pictures import RIGHT, WRONG, Grid, Picture
from convlab.simulation.findings import Finding, NotSimulated

PASSED, UNFILLED, BROKEN, ANSWER, COUNTS = "passed", "unfilled", "broken", "answer", "counts"
DOES_NOT_COMPILE = "does not compile"
HEADLINES = {
    BROKEN: "Not yet: it could not be run to its end.",
    ANSWER: "Not yet: the answer is wrong.",
    DOES_NOT_COMPILE: "Not yet: Numba cannot compile it for a GPU.",
}
ON_A_GPU = "Not yet: the answer came out right here, but on a GPU it may not."
GREEN, RED, GREY = "#2e9e4f", "#d1503f", "#8b929a"
EMPTY = "raise NotImplementedError"  # what an unfilled cell raises
AS_FEW = 1.25  # times the target's count that still is as few
NOT_CHECKED = "floating-point operations"  # a matter of taste
MOST_PLANES = 4  # that a picture of a wrong output shows
MOST_LINES = 4  # that are told of an unfilled cell


class Line(NamedTuple):
    """A line of the learner's cell that something is said about."""

    number: int
    code: str


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``reason`` is a word for it: one of this module's, or the kind of
    a finding of the simulator, such as ``shared race``."""

    reason: str
    what: str
    lines: tuple[Line, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class Row:
    """A count beside the target's. ``ok`` is whether it is as few."""

    unit: str
    yours: float
    target: float
    ok: bool

    @property
    def mark(self) -> str:
        """What is wrong with it, in two words."""
        return "" if self.ok else "too many" if self.yours > self.target else "too few"


@dataclass(frozen=True)
class Feedback:
    """The result of a check, which a notebook shows; ``right`` says what is right already."""

    headline: str
    problems: tuple[Problem, ...] = ()
    right: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    picture: Picture | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def result(self) -> str:
        """``passed``, or the first problem's reason."""
        return self.problems[0].reason if self.problems else PASSED

    @property
    def reasons(self) -> tuple[str, ...]:
        """Everything that is wrong, in words of one or two; empty where it passed."""
        return tuple(dict.fromkeys(problem.reason for problem in self.problems))

    def __str__(self) -> str:
        text = [self.headline, *(f"  ok     {what}" for what in self.right)]
        for problem in self.problems:
            mark = "todo " if problem.reason == UNFILLED else "WRONG"
            text.append(f"  {mark}  {problem.what}")
            text += [f"         line {line.number}: {line.code}" for line in problem.lines]
            text += [f"         {problem.advice}"] * bool(problem.advice)
        if self.rows:
            text.append(f"         {'':28}{'yours':>10}{'target':>10}")
        for row in self.rows:
            numbers = f"{row.unit:28}{row.yours:10,.0f}{row.target:10,.0f}"
            text.append(f"         {numbers}  {row.mark}".rstrip())
        return "\n".join(text)

    def as_html(self) -> str:
        """A card without script, whose colours suit light and dark pages."""
        colour = GREEN if self.passed else GREY if self.result == UNFILLED else RED
        items = [f"✔ {escape(what)}" for what in self.right]
        for problem in self.problems:
            item = [escape(problem.what)]
            item += [f"line {n}: <code>{escape(code)}</code>" for n, code in problem.lines]
            item += [f"<i>{escape(problem.advice)}</i>"] * bool(problem.advice)
            items.append("✘ " * (problem.reason != UNFILLED) + "<br>".join(item))
        inside = f"<p><b>{escape(self.headline)}</b></p>"
        if items:
            listed = "".join(f"<li>{item}</li>" for item in items)
            inside += f'<ul style="list-style:none;padding-left:.5em">{listed}</ul>'
        if self.rows:
            number = '<{0} style="text-align:right;padding:.1em .6em">{1}</{0}>'.format
            head = f"<th></th>{number('th', 'yours')}{number('th', 'target')}<th></th>"
            lines = [
                f"<td>{escape(row.unit)}</td>{number('td', f'{row.yours:,.0f}')}"
                f"{number('td', f'{row.target:,.0f}')}<td>{row.mark}</td>"
                for row in self.rows
            ]
            inside += f"<table>{''.join(f'<tr>{line}</tr>' for line in (head, *lines))}</table>"
        return f'<div style="border-left:4px solid {colour};padding:.1em 1em">{inside}</div>'

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display({"text/html": self.as_html(), "text/plain": str(self)}, raw=True)
        if self.picture is not None:
            display(self.picture)


P = ParamSpec("P")


class Stopped(Exception):
    """Ends a check before its end. Its only argument is the feedback that says why."""


def graded(check: Callable[P, Feedback]) -> Callable[P, Feedback]:
    """A check that may raise :class:`Stopped`. While nbgrader grades (the environment says so), a
    check that fails raises ``AssertionError``, which nbgrader counts."""

    @wraps(check)
    def checked(*arguments: P.args, **options: P.kwargs) -> Feedback:
        try:
            feedback = check(*arguments, **options)
        except Stopped as stopped:
            (feedback,) = stopped.args
        if os.environ.get("NBGRADER_EXECUTION") == "autograde" and not feedback.passed:
            raise AssertionError(str(feedback))
        return feedback

    return checked


@contextmanager
def running(what: str = "") -> Iterator[None]:
    """Inside runs what a learner wrote: whatever that raises ends the check, and is its result."""
    try:
        yield
    except NotSimulated as error:
        raise broken(str(error)) from error
    except (Exception, SystemExit) as error:
        raise broken(f"{what}{raised_by(error)}") from error


def function_of(made: Any) -> FunctionType | None:
    """The Python function of a kernel or of what makes one; None for anything else."""
    found = getattr(made, "py_func", made)
    return found if isinstance(found, FunctionType) else None


def unfilled(made: Any) -> list[Line]:
    """The lines of its cell, which IPython calls a file, that are still to be replaced."""
    if (function := function_of(inspect.unwrap(made))) is None:
        return []
    cell = linecache.getlines(function.__code__.co_filename)
    lines = enumerate(map(str.strip, cell), 1)
    return [Line(number, line) for number, line in lines if line.startswith(EMPTY)]


def ready(made: Any, is_one: Callable[[Any], Any] = function_of) -> None:
    """Raise :class:`Stopped` for what cannot be checked: a function with lines still to be filled
    in, and what is not one, by ``is_one``."""
    if lines := unfilled(made):
        these = "these lines" if len(lines) > 1 else "this line"
        what = (
            f"Write your own lines in the cell above in place of {these}; then run that cell and "
            "this one again (Shift+Enter)."
        )
        problem = Problem(UNFILLED, what, tuple(lines[:MOST_LINES]))
        raise Stopped(Feedback("Not filled in yet: your turn.", (problem,)))
    if not is_one(made):
        rule = "hand over the function, without calling it"
        if is_one is not function_of:
            rule = "it must be a kernel, a function below @cuda.jit"
        raise broken(f"this is {made!r}: {rule}")


def broken(what: str) -> Stopped:
    """The end of a check of what could not be run, and why."""
    return Stopped(Feedback("Not yet: it could not be run.", (_error(what),)))


# What beginners' mistakes raise, by what the message says, and what they mean.
HINTS = {
    "'Array'": "A thread works on single elements, such as a[i]; a kernel has no operations on "
    "whole arrays.",
    "Dim3": "cuda.threadIdx, cuda.blockIdx and cuda.blockDim each have three numbers: .x, "
    ".y and .z.",
    "NameError": "Is the name written as in the rest of the cell? A thread's own number is "
    "cuda.threadIdx.x.",
    "float() argument": "An element of an array takes one number, such as a[i] + 10.",
    "Untyped global name": "A kernel knows numbers and arrays: name what it needs before it, as "
    "C_i is named.",
    "returned None": "The last line of a function that makes a kernel returns it.",
    "it must be a kernel": "Is @cuda.jit in the line above the function?",
}
PLACE = re.compile(r"(, in \w+, block \(.*?\), thread \(.*?\))?, (?P<file>[^,]*):(?P<line>\d+)$")


def _error(what: str) -> Problem:
    """An error in words, with the line that raised it, where the simulator noted that."""
    what = " ".join(what.split()).strip(". ")
    place, said = PLACE.search(what), PLACE.sub("", what)
    if not re.search("[_.]", said.split(" ", 1)[0]):  # else it begins with something's name
        said = _capital(said)
    lines = () if place is None else _lines(place["file"], int(place["line"]))
    return Problem(BROKEN, f"{said}.", lines, _hint(what))


def _hint(what: str) -> str:
    return next((hint for piece, hint in HINTS.items() if piece in what), "")


def _lines(file: str, *numbers: int | None) -> tuple[Line, ...]:
    """Lines of the file, or of the cell, which IPython calls a file."""
    found = sorted({number for number in numbers if number is not None})
    return tuple(Line(number, linecache.getline(file, number).strip()) for number in found)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def of_finding(finding: Finding, kernel: Any = None) -> Problem:
    """A finding of the simulator with the lines it is about. Of a trace, whose findings name files
    in short, it needs the kernel."""
    seen = ""
    if finding.thread is not None:
        block = "" if finding.block is None else f" of block {_place(finding.block)}"
        seen = f", seen in thread {_place(finding.thread)}{block}"
    file = finding.file if kernel is None else kernel.py_func.__code__.co_filename
    lines = _lines(file, finding.line, finding.other_line)
    what = f"{_capital(finding.kind)}: {finding.what}{seen}."
    return Problem(finding.kind, what, lines, f"What usually fixes it: {finding.remedy}.")


def _place(place: tuple[int, ...]) -> str:
    """``3`` for what has one dimension, ``(3, 1)`` else."""
    return str(place[0]) if not any(place[1:]) else f"({', '.join(map(str, place))})"


def feedback_on(found: Check, stage: str, at_most: float) -> Feedback:
    """What ``convlab.check`` found, against ``at_most`` times the stage's counts."""
    problems = [of_finding(finding) for finding in found.findings]
    wrong = [answer for answer in found.answers if not answer.ok]
    right = [f"the answer is right on {len(found.answers)} problems"] * (not wrong)
    raised = [one.failed for one in wrong if one.failed and re.search("raised|not end", one.failed)]
    picture = None
    if raised:
        problems.append(_error(raised[0]))
    elif (telling := found.telling) is not None and telling.check is not None:
        on = "all"
        if len(wrong) < len(found.answers):
            on = f"{len(wrong)} of {len(found.answers)}"
        which = "" if on == "all" else f": {', '.join(repr(answer.name) for answer in wrong)}"
        what = (
            f"The answer is wrong on {on} problems{which}. Of {telling.name!r} "
            f"({telling.problem}) {telling.error}."
        )
        problems.append(Problem(ANSWER, what, advice=_capital(found.advice or "")))
        picture = None if telling.wrong is None else _where_wrong(telling.wrong)
    if found.machine is not None and (error := found.machine.error) is not None:
        what = f"Numba cannot compile it: {error}."
        problems.append(Problem(DOES_NOT_COMPILE, what, advice=_hint(error)))
    if problems:
        return with_problems(problems, right, picture)
    right.append("no race, no access out of bounds, no read of uninitialised memory")
    if found.float64:
        right.append(
            f"but it computes in float64, where {stage} does not: write float32(0), not 0.0"
        )
    counts = [count for count in found.counts if count.unit != NOT_CHECKED]
    rows = [row_of(count.unit, count.yours, count.stages, at_most) for count in counts]
    return checked_by_counts(right, rows)


def _where_wrong(wrong: np.ndarray) -> Picture:
    """The first planes of an output that have wrong elements."""
    grid, left = Grid(0.24), 0
    for image, channel in np.argwhere(wrong.any(axis=(2, 3)))[:MOST_PLANES].tolist():
        grid.note(left, -0.9, f"image {image}, channel {channel}", 8)
        grid.cells(left, 0, wrong[image, channel], (RIGHT, WRONG))
        left += max(wrong.shape[3], 7) + 1
    part = f"{wrong.sum()} of {wrong.size}"
    return grid.finished(f"Where the output is wrong, in red: {part} elements")


def row_of(unit: str, yours: float, target: float, at_most: float = AS_FEW) -> Row:
    """A count that may be ``at_most`` times the target."""
    return Row(unit, yours, target, yours <= at_most * target)


def checked_by_counts(right: Sequence[str], rows: Sequence[Row]) -> Feedback:
    """Feedback on a right kernel: whether its memory traffic is as low as it should be."""
    rows = tuple(row for row in rows if row.yours or row.target)
    many = [row for row in rows if not row.ok]
    if not many:
        more = ": right, with no more memory traffic than it should have." if rows else "."
        return Feedback(f"Passed{more}", (), tuple(right), rows)
    told = ", ".join(
        f"{row.unit} ({row.yours / row.target:.1f} times the target)" if row.target else row.unit
        for row in many
    )
    headline = "Right, but not there yet: it causes more memory traffic than it should."
    return Feedback(headline, (Problem(COUNTS, f"Too many {told}."),), tuple(right), rows)


def with_problems(
    problems: Iterable[Problem], right: Sequence[str] = (), picture: Picture | None = None
) -> Feedback:
    """The feedback of what is wrong, with a wrong answer first."""
    found = tuple(sorted(problems, key=lambda one: one.reason not in (ANSWER, BROKEN)))
    headline = HEADLINES.get(found[0].reason, ON_A_GPU)
    return Feedback(headline, found, tuple(right), picture=picture)
