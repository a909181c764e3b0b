"""From what a check found to plain words for who wrote the kernel."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import numpy as np

from convlab.checking import Check
from convlab.checking.records import SPOILED, Answer, Count
from convlab.lessons import maps
from convlab.lessons.feedback import ANSWER, BROKEN, COUNTS, UNFILLED, Feedback, Line, Problem, Row
from convlab.lessons.pictures import RIGHT, WRONG, Picture
from convlab.simulation.findings import Finding

EMPTY = "NotImplementedError"  # what an unfilled cell raises


def function_of(made: Any) -> FunctionType | None:
    """The Python function of a kernel or of what makes one; None for anything else."""
    found = getattr(made, "py_func", made)
    return found if isinstance(found, FunctionType) else None


def unfilled(made: Any) -> tuple[Line, ...]:
    """The lines that are still to be replaced by the learner's own, in ``made`` and in the
    functions of the same cell that it calls."""
    function = function_of(made)
    found = _unfilled(function)
    if function is None:
        return found
    for name in function.__code__.co_names:
        part = function_of(function.__globals__.get(name))
        if part is not None and part.__code__.co_filename == function.__code__.co_filename:
            found += _unfilled(part)
    return tuple(sorted(found, key=lambda line: line.number))


def _unfilled(function: FunctionType | None) -> tuple[Line, ...]:
    try:
        lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # made by exec, say: then it is simply run
        return ()
    raised = (node for node in ast.walk(tree) if isinstance(node, ast.Raise))
    numbers = sorted(
        node.lineno for node in raised if node.exc is not None and EMPTY in ast.unparse(node.exc)
    )
    return tuple(Line(first + number - 1, lines[number - 1].strip()) for number in numbers)


def line_of(file: str, number: int) -> Line:
    """A line of the file, or of the cell, which IPython calls a file."""
    return Line(number, linecache.getline(file, number).strip())


AS_FEW = 1.25  # times the target's count that still is as few
NOT_CHECKED = "floating-point operations"  # a matter of taste
MOST_LINES = 4  # that are told of an unfilled cell
DOES_NOT_COMPILE = "does not compile"


def to_be_filled(title: str, lines: tuple[Line, ...]) -> Feedback:
    """Of a cell with these lines still to be replaced."""
    these = "these lines" if len(lines) > 1 else "this line"
    what = (
        f"Write your own lines in the cell above in place of {these}; then run that cell and this "
        "one again (Shift+Enter)."
    )
    problem = Problem(UNFILLED, what, lines[:MOST_LINES])
    return Feedback(title, "Not filled in yet: your turn.", (problem,))


def not_checkable(title: str, made: Any) -> Feedback | None:
    """What is said of what cannot be checked: a function with lines still to be filled in, or no
    function. None for what can."""
    if lines := unfilled(made):
        return to_be_filled(title, lines)
    if function_of(made) is None:
        return broken(title, f"this is {made!r}: hand over the function, without calling it")
    return None


def broken(title: str, what: str) -> Feedback:
    """Of what could not be run, and why."""
    return Feedback(title, "Not yet: it could not be run.", (_error(what),))


# What beginners' mistakes raise, by what the message says, and what they mean.
HINTS = {
    "'Array'": "A thread works on single elements, such as a[i]; a kernel has no operations on "
    "whole arrays.",
    "Dim3": "cuda.threadIdx, cuda.blockIdx and cuda.blockDim each have three numbers: .x, "
    ".y and .z.",
    "NameError": "Is the name written as in the rest of the cell? A thread's own number is "
    "cuda.threadIdx.x.",
    "float() argument": "A place of an array takes one number, such as a[i] + 10.",
    "Untyped global name": "A kernel knows numbers and arrays: name what it needs before it, as "
    "C_i is named.",
    "returned None": "The last line of a function that makes a kernel returns it.",
    "it must be a kernel": "Is @cuda.jit in the line above the function?",
}
PLACE = re.compile(r"(, in \w+, block \(.*?\), thread \(.*?\))?, (?P<file>[^,]*):(?P<line>\d+)$")


def _error(what: str) -> Problem:
    """An error in words, with the line that raised it, where the simulator noted that."""
    what = what.strip(". ")
    place = PLACE.search(what)
    lines = () if place is None else (line_of(place["file"], int(place["line"])),)
    return Problem(BROKEN, f"{_sentence(PLACE.sub('', what))}.", lines, _hint(what))


def _hint(what: str) -> str:
    return next((hint for piece, hint in HINTS.items() if piece in what), "")


def in_one_line(error: Exception) -> str:
    """What an error says."""
    return " ".join(str(error).split())


def raised_in_words(error: BaseException) -> str:
    """What a kernel raised, and what the simulator notes: thread, file and line."""
    notes = getattr(error, "__notes__", ())
    return ", ".join([f"it raised {type(error).__name__}: {error}", *notes])


def feedback_on(title: str, found: Check, stage: str, at_most: float) -> Feedback:
    """What ``convlab.check`` found, against ``at_most`` times the stage's counts."""
    problems = [of_finding(finding, None) for finding in found.findings]
    wrong = [answer for answer in found.answers if not answer.ok]
    picture = None
    right: list[str] = []
    telling = _telling(wrong)
    if telling is not None:
        raised = next((one for one in wrong if one.failed and "it raised" in one.failed), None)
        if raised is not None:
            problems.insert(0, _error(raised.failed or ""))
        elif telling.check is not None:
            problems.insert(0, _wrong_answer(found, wrong, telling))
            picture = _where_wrong(telling.wrong)
    else:
        right.append(f"the answer is right on {len(found.answers)} problems")
    if found.machine is not None and found.machine.error is not None:
        error = found.machine.error
        what = f"Numba cannot compile it: {error}."
        problems.append(Problem(DOES_NOT_COMPILE, what, advice=_hint(error)))
    if problems:
        return Feedback(
            title, headline_of(problems), tuple(problems), tuple(right), picture=picture
        )
    right.append("no race, no access out of bounds, nothing read that nobody wrote")
    if found.float64:
        right.append(
            f"but it computes in float64, where {stage} does not: write float32(0), not 0.0"
        )
    return checked_by_counts(title, right, [_row(count, at_most) for count in found.counts])


def _telling(wrong: Sequence[Answer]) -> Answer | None:
    """The wrong answer that shows most: with the smallest part wrong, and ordinary numbers."""
    ordinary = [answer for answer in wrong if answer.name != SPOILED]
    return min(ordinary or wrong, key=Answer.part_wrong, default=None)


def _wrong_answer(found: Check, wrong: Sequence[Answer], telling: Answer) -> Problem:
    names = ", ".join(repr(answer.name) for answer in wrong)
    on = "all" if len(wrong) == len(found.answers) else f"{len(wrong)} of {len(found.answers)}"
    which = "" if len(wrong) == len(found.answers) else f": {names}"
    what = (
        f"The answer is wrong on {on} problems{which}. Of {telling.name!r} ({telling.problem}) "
        f"{telling.error}."
    )
    return Problem(ANSWER, what, advice=_capital(found.advice or ""))


def _row(count: Count, at_most: float) -> Row:
    few = count.yours <= at_most * count.stages or count.unit == NOT_CHECKED
    return Row(count.unit, count.yours, count.stages, few)


def checked_by_counts(title: str, right: Sequence[str], rows: Sequence[Row]) -> Feedback:
    """Of a kernel that is right: whether it asks for as little as it should."""
    rows = [row for row in rows if (row.yours or row.target) and row.unit != NOT_CHECKED]
    many = [row for row in rows if not row.ok]
    if not many:
        headline = (
            "Passed."
            if not rows
            else "Passed: right, and it asks memory for no more than it should."
        )
        return Feedback(title, headline, (), tuple(right), tuple(rows))
    told = ", ".join(
        f"{row.unit} ({row.yours / row.target:.1f} times the target)" if row.target else row.unit
        for row in many
    )
    problem = Problem(COUNTS, f"Too many {told}.")
    headline = "Right, but not there yet: it asks memory for more than it should."
    return Feedback(title, headline, (problem,), tuple(right), tuple(rows))


def headline_of(problems: Sequence[Problem]) -> str:
    """The first problem in one sentence."""
    first = problems[0].reason
    if first == BROKEN:
        return "Not yet: it could not be run to its end."
    if first == ANSWER:
        return "Not yet: the answer is wrong."
    if first == DOES_NOT_COMPILE:
        return "Not yet: Numba cannot compile it for a GPU."
    return "Not yet: the answer came out right here, but on a GPU it may not."


def of_finding(finding: Finding, function: Any) -> Problem:
    """A finding of the simulator with the lines it is about."""
    file = finding.file if function is None else function.__code__.co_filename
    numbers = [finding.line]
    if finding.other_line not in (None, finding.line):
        numbers.append(finding.other_line)
    lines = tuple(line_of(file, number) for number in sorted(numbers))
    what = f"{_capital(finding.kind)}: {finding.what}{_seen_in(finding)}."
    return Problem(finding.kind, what, lines, f"What usually mends it: {finding.remedy}.")


def _seen_in(finding: Finding) -> str:
    if finding.thread is None:
        return ""
    block = "" if finding.block is None else f" of block {_number(finding.block)}"
    return f", seen in thread {_number(finding.thread)}{block}"


def _number(place: tuple[int, ...]) -> str:
    """``3`` for what has one dimension, ``(3, 1)`` else."""
    return str(place[0]) if not any(place[1:]) else f"({', '.join(map(str, place))})"


def _sentence(text: str) -> str:
    """With a capital, unless it begins with something's name."""
    return text if re.search("[_.]", text.split(" ", 1)[0]) else _capital(text)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _where_wrong(wrong: np.ndarray | None) -> Picture | None:
    if wrong is None:
        return None
    part = f"{int(wrong.sum())} of {wrong.size}"
    return maps.planes(wrong, f"Where the output is wrong, in red: {part} elements", (RIGHT, WRONG))
