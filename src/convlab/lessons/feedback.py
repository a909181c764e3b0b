"""Feedback of an exercise's check: the result, the reason, and a hint, in plain words."""

from __future__ import annotations

import ast
import inspect
import io
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from ctypes import c_ulong, py_object, pythonapi
from dataclasses import dataclass, field, replace
from functools import wraps
from html import escape
from pathlib import Path
from threading import Event, Lock, Thread, get_ident
from time import process_time
from types import FunctionType
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from convlab.checking import Answer, Check
from convlab.checking.checker import raised_by
from convlab.lessons.pictures import NOBODY, RIGHT, WRONG, Grid, Picture, joined
from convlab.lessons.progress import history, note
from convlab.problems.oracle import random_tensors
from convlab.problems.reference import reference
from convlab.simulation.rules.findings import Finding, NotSimulated

PASSED, UNFILLED, BROKEN, ANSWER, COUNTS = "passed", "unfilled", "broken", "answer", "counts"
DOES_NOT_COMPILE, INPUT = "does not compile", "input changed"
HEADLINES = {
    BROKEN: "Not yet: your code did not run to its end.",
    ANSWER: "Not yet: the answer is wrong.",
    INPUT: "Not yet: the kernel writes to its input.",
    DOES_NOT_COMPILE: "Not yet: Numba cannot compile the kernel for a GPU.",
}
ON_A_GPU = "Not yet: the answer is right here, but it may be wrong on a GPU."
NO_ANSWER = "Not yet: the simulator found a mistake, and the answer is not known to be right."
UNORDERED = ("shared race", "global race", "copy in flight")
GREEN, RED, GREY = "#2e9e4f", "#d1503f", "#8b929a"
CONVLAB = Path(__file__).parents[1]
EMPTY = "raise NotImplementedError"  # the line of an unfilled cell
AS_FEW = 1.25  # a count may be this many times the target's
NOT_CHECKED = "floating-point operations"  # a matter of taste
MOST_ROWS, MOST_COLUMNS = 8, 10  # of each plane in the picture of a wrong output
SECONDS = 4.0  # limit of one launch of a lesson; a right one takes less than a tenth of it
PRINTED = 32  # shown lines of a kernel's output: one warp's
NOT_THE_LEARNERS = (CONVLAB, *map(Path, sysconfig.get_paths().values()))
MOST_LINES = 4  # shown lines of an unfilled cell


class Line(NamedTuple):
    """A line of the learner's cell that a problem names."""

    number: int
    code: str
    library: str = ""  # the file's name if the line is convlab's own

    def __str__(self) -> str:
        if self.library:
            return f"line {self.number} of {self.library}"
        return f"line {self.number}"


@dataclass(frozen=True)
class Problem:
    """One mistake. ``reason`` is one of this module's words, or the kind of a finding of the
    simulator, such as ``shared race``."""

    reason: str
    what: str
    lines: tuple[Line, ...] = ()
    advice: str = ""

    @property
    def cause(self) -> Any:
        """A key that problems of one cause share: one missing barrier may cause several races."""
        return self.reason if self.reason in UNORDERED else (self.reason, self.lines)


@dataclass(frozen=True)
class Row:
    """A count beside the target's. ``ok`` is true if the count is low enough."""

    unit: str
    yours: float
    target: float
    ok: bool

    @property
    def mark(self) -> str:
        """'too many' or 'too few', or nothing if the count is right."""
        return "" if self.ok else "too many" if self.yours > self.target else "too few"


@dataclass(frozen=True)
class Feedback:
    """The result of a check, which a notebook shows. ``right`` lists the parts that are right."""

    headline: str
    problems: tuple[Problem, ...] = ()
    right: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    picture: Picture | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    @property
    def result(self) -> str:
        """``passed``, or the first problem's reason."""
        return self.problems[0].reason if self.problems else PASSED

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of all problems, each once; empty if the check passed."""
        return tuple(dict.fromkeys(problem.reason for problem in self.problems))

    def __str__(self) -> str:
        text = [self.headline, *(f"  ok     {what}" for what in self.right)]
        for problem in self.problems:
            mark = "todo " if problem.reason == UNFILLED else "WRONG"
            text.append(f"  {mark}  {problem.what}")
            text += [f"         {line}: {line.code}" for line in problem.lines]
            if problem.advice:
                text.append(f"         {problem.advice}")
        if self.rows:
            text.append(f"         {'':28}{'yours':>10}{'target':>10}")
        for row in self.rows:
            numbers = f"{row.unit:28}{row.yours:10,.0f}{row.target:10,.0f}"
            text.append(f"         {numbers}  {row.mark}".rstrip())
        return "\n".join(text)

    def as_html(self) -> str:
        """Return a card of HTML without script, whose colours suit light and dark pages."""
        colour = GREEN if self.passed else GREY if self.result == UNFILLED else RED
        items = [f"✔ {escape(what)}" for what in self.right]
        for problem in self.problems:
            item = [escape(problem.what)]
            item += [f"{line}: <code>{escape(line.code)}</code>" for line in problem.lines]
            if problem.advice:
                item.append(f"<i>{escape(problem.advice)}</i>")
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
    """An exception that ends a check. Its only argument is the feedback with the reason."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback of convlab's own lines."""
        return str(self).splitlines()


class TooLong(BaseException):
    """Raised in code that takes too long. A kernel's ``except Exception`` does not catch it."""


def graded(check: Callable[P, Feedback]) -> Callable[P, Feedback]:
    """Make a check return the feedback of :class:`Stopped`, and let the reader stop the check.

    While nbgrader grades, as an environment variable says, a check that fails raises
    ``AssertionError``, which nbgrader counts.
    """

    @wraps(check)
    def checked(*arguments: P.args, **options: P.kwargs) -> Feedback:
        try:
            with limited():
                feedback = check(*arguments, **options)
        except Stopped as stopped:
            (feedback,) = stopped.args
        note(feedback.result)
        if os.environ.get("NBGRADER_EXECUTION") == "autograde" and not feedback.passed:
            raise AssertionError(str(feedback))
        return feedback

    return checked


@contextmanager
def running(what: str = "", seconds: float = SECONDS) -> Iterator[None]:
    """Run a learner's code with a time limit; its exception becomes the check's result."""
    try:
        with limited(seconds):
            yield
    except NotSimulated as error:
        raise broken(str(error)) from error
    except Stopped:
        raise
    except (Exception, SystemExit) as error:
        raise broken(f"{what}{raised_by(error)}") from error


@contextmanager
def limited(seconds: float | None = None) -> Iterator[None]:
    """Run a learner's code until it ends, the reader stops it, or it has worked for ``seconds``.

    :class:`Stopped` then names the loop that was running. Only the first printed lines are shown.
    """
    thread, lock, over = get_ident(), Lock(), Event()
    began = process_time()  # not the time of day: the machine may be busy with other work

    def raise_there(error: type[BaseException] | None) -> None:
        pythonapi.PyThreadState_SetAsyncExc(c_ulong(thread), error and py_object(error))

    def watch(limit: float) -> None:
        left = limit
        while not over.wait(left):
            left = limit - (process_time() - began)
            with lock:
                if left <= 0 and not over.is_set():
                    return raise_there(TooLong)

    if seconds is not None:
        Thread(target=watch, args=(seconds,), daemon=True).start()
    printed = _FirstLines(sys.stdout)
    try:
        try:
            with redirect_stdout(printed):
                yield
        finally:
            with lock:
                over.set()
                raise_there(None)  # cancel an exception that is not raised yet
            printed.end()
    except TooLong as error:
        lines = _loop_of(error)
        where = "in this loop" if lines else "at work"
        what = joined(f"""After {seconds:.0f} seconds your code is still {where}; a right answer
            needs less time.""")
        advice = "Does the loop's condition become false, and is its range as long as it must be?"
        problem = Problem(BROKEN, what, lines, advice if lines else "")
        raise Stopped(Feedback(HEADLINES[BROKEN], (problem,))) from None
    except KeyboardInterrupt as error:
        lines = _loop_of(error)
        what = "You stopped the check."
        if lines:
            what = "You stopped the check while your code was in this loop."
        raise Stopped(Feedback("Stopped.", (Problem(BROKEN, what, lines),))) from None


class _FirstLines(io.TextIOBase):
    """A stream that writes the first lines and counts the others; every thread may print."""

    def __init__(self, to: Any) -> None:
        self._to, self._lines = to, 0

    def write(self, text: str) -> int:
        if self._lines < PRINTED:
            self._to.write(text)
        self._lines += text.count("\n")
        return len(text)

    def end(self) -> None:
        """Write how many lines were left out."""
        if (more := self._lines - PRINTED) > 0:
            self._to.write(f"... and {more:,} more lines, which are not shown\n")


def _loop_of(error: BaseException) -> tuple[Line, ...]:
    """Return the line of the learner's loop in which an exception was raised: of the innermost
    ``while``, else of the innermost ``for``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        known = any(Path(frame.filename).is_relative_to(folder) for folder in NOT_THE_LEARNERS)
        if known or frame.name == "<module>" or frame.lineno is None:
            continue
        try:
            tree = ast.parse("".join(linecache.getlines(frame.filename)))
        except SyntaxError:
            return ()
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.While | ast.For)]
        around = [one for one in loops if one.lineno <= frame.lineno <= (one.end_lineno or 0)]
        if around:
            loop = max(around, key=lambda node: (isinstance(node, ast.While), node.lineno))
            return _lines((frame.filename, loop.lineno))
    return ()


def function_of(made: Any) -> FunctionType | None:
    """Return the Python function of a kernel or of a function that makes one, otherwise None."""
    found = getattr(made, "py_func", made)
    return found if isinstance(found, FunctionType) else None


def _stale(function: FunctionType, own: str) -> Problem | None:
    """Return the problem of a cell that should have redefined the function and failed.

    The function is still that of the earlier cell ``own``; None if it is not out of date.
    """
    defines = re.compile(rf"^[ ]*def {function.__name__}\(", re.MULTILINE)
    cells = [cell.strip() for cell in history() if defines.search(cell)]
    before = own in cells or Path(function.__code__.co_filename).is_relative_to(CONVLAB)
    if not before or not cells or cells[-1] == own:
        return None
    what = "It raised an error when you last ran it, so there is nothing new to check"
    lines: tuple[Line, ...] = ()
    try:
        compile(cells[-1], "", "exec")
    except SyntaxError as error:
        number = error.lineno or 1
        code = "".join(cells[-1].splitlines()[number - 1 : number])
        what, lines = f"SyntaxError: {error.msg}", (Line(number, code.strip()),)
    again = "Correct the cell above, run it, and then run this cell again."
    return Problem(BROKEN, f"{what}.", lines, again)


def ready(made: Any, is_one: Callable[[Any], Any] = function_of) -> None:
    """Raise :class:`Stopped` if the cell failed, has lines to fill in, or ``is_one`` refuses
    ``made``."""
    lines: list[Line] = []
    if (function := function_of(inspect.unwrap(made))) is not None:
        cell = linecache.getlines(function.__code__.co_filename)  # IPython calls cells files
        if (problem := _stale(function, "".join(cell).strip())) is not None:
            raise Stopped(Feedback("Not yet: the cell above did not run.", (problem,)))
        numbered = enumerate(map(str.strip, cell), 1)
        lines = [Line(number, line) for number, line in numbered if line.startswith(EMPTY)]
    if lines:
        these = "these lines" if len(lines) > 1 else "this line"
        what = joined(f"""Write your own lines in the cell above in place of {these}; then run that
            cell and this one again (Shift+Enter).""")
        problem = Problem(UNFILLED, what, tuple(lines[:MOST_LINES]))
        raise Stopped(Feedback("Not filled in yet: your turn.", (problem,)))
    if not is_one(made):
        rule = "pass the function itself, without calling it"
        if is_one is not function_of:
            rule = "it must be a kernel, a function below @cuda.jit"
        raise broken(f"the check got {made!r}: {rule}")


def broken(what: str) -> Stopped:
    """Return the exception that ends a check of code that could not run."""
    return Stopped(Feedback("Not yet: your code could not run.", (_error(what),)))


# Hints for beginners' mistakes, by a piece of the error's message.
SINGLE_ELEMENTS = (
    "A thread works on single elements, such as a[i]; a kernel has no operations on whole arrays."
)
HINTS = {
    "'Array'": SINGLE_ELEMENTS,
    "would allocate an array": SINGLE_ELEMENTS,
    "Dim3": "cuda.threadIdx, cuda.blockIdx and cuda.blockDim each have three numbers: .x, "
    ".y and .z.",
    "NameError": "Is the name written as in the rest of the cell? A thread's own number is "
    "cuda.threadIdx.x.",
    "float() argument": "An element of an array takes one number, such as a[i] + 10.",
    "Untyped global name": "A kernel can use only numbers and arrays from outside: give what it "
    "needs a name before the kernel, as for C_i.",
    "returned None": "A function that makes a kernel must return the kernel in its last line.",
    "it must be a kernel": "Is @cuda.jit in the line above the function?",
    "'method'": "Is a pair of parentheses missing, as in cuda.grid(1)?",
    "is no integer": "// divides to an integer, / to a float.",
    "<intrinsic wait_copies>": "wait_copies takes a constant, such as IN_FLIGHT: compute the "
    "number outside of the kernel.",
    "run more than": "Does the kernel have one loop too many?",
}
PLACE = re.compile(r"(, in \w+, block \(.*?\), thread \(.*?\))?, (?P<file>[^,]*):(?P<line>\d+)$")


def _error(what: str) -> Problem:
    """Return an error as a problem, with the line that raised it if the simulator noted that."""
    what = " ".join(what.split()).strip(". ")
    place, said = PLACE.search(what), PLACE.sub("", what)
    if not re.search("[_.]", said.split(" ", 1)[0]):  # else it begins with something's name
        said = _capital(said)
    lines = () if place is None else _lines((place["file"], int(place["line"])))
    return Problem(BROKEN, f"{said}.", lines, _hint(what))


def _hint(what: str) -> str:
    return next((hint for piece, hint in HINTS.items() if piece in what), "")


def _lines(*places: tuple[str | None, int | None], kernel: Any = None) -> tuple[Line, ...]:
    """Return lines of files or of cells, which IPython calls files; the learner's come first.

    Traces have short names of files. With a ``kernel``, such a name is looked up among its files.
    """
    found = set()
    for file, number in places:
        if file is None or number is None:
            continue
        if kernel is not None:
            own = kernel.py_func.__code__.co_filename
            files = (one for one in (own, *linecache.cache) if Path(one).name == Path(file).name)
            file = next(files, own)
        library = Path(file).name if Path(file).is_relative_to(CONVLAB) else ""
        found.add(Line(number, linecache.getline(file, number).strip(), library))
    return tuple(sorted(found, key=lambda line: (line.library, line.number)))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def of_findings(findings: Iterable[Finding], kernel: Any = None) -> list[Problem]:
    """Return findings of the simulator as problems with their lines; pass the kernel of a trace.

    Of several findings with one cause, only one is returned: that with most of the learner's lines.
    """
    problems: dict[Any, list[Problem]] = {}
    for finding in findings:
        one = _of_finding(finding, kernel)
        problems.setdefault(one.cause, []).append(one)
    told = []
    for same in problems.values():
        # The one to show has the most lines of the learner's and the fewest of a library's.
        shown = min(same, key=lambda one: sum(bool(line.library) for line in one.lines))
        if (places := len({one.lines for one in same})) > 1:
            more = f" The same happens at {places} pairs of lines; one fix may remove all of them."
            shown = replace(shown, advice=shown.advice + more)
        told.append(shown)
    return told


def _of_finding(finding: Finding, kernel: Any) -> Problem:
    what = f"{_capital(finding.kind)}: {finding.what}"
    if finding.thread is not None:
        what += f", seen in thread {_place(finding.thread)}"
        what += "" if finding.block is None else f" of block {_place(finding.block)}"
    places = (finding.file, finding.line), (finding.other_file, finding.other_line)
    # No lesson has a warp's barrier, and after it races with other warps would be found next.
    remedy = f"What usually fixes it: {finding.remedy.replace('syncwarp', 'syncthreads')}."
    return Problem(finding.kind, f"{what}.", _lines(*places, kernel=kernel), remedy)


def _place(place: tuple[int, ...]) -> str:
    """Return ``3`` for a place with one dimension, otherwise ``(3, 1)``."""
    return str(place[0]) if not any(place[1:]) else f"({', '.join(map(str, place))})"


def feedback_on(found: Check, stage: str, at_most: float, seed: int = 0) -> Feedback:
    """Return the feedback of a check of ``convlab.check``.

    Counts may be ``at_most`` times the stage's; ``seed`` is that of the check's numbers.
    """
    problems = of_findings(found.findings)
    wrong = [answer for answer in found.answers if not answer.ok]
    right = [f"the answer is right on {len(found.answers)} problems"] * (not wrong)
    ended = "raised|not end|iterations"
    raised = [one.failed for one in wrong if one.failed and re.search(ended, one.failed)]
    picture = None
    if (telling := found.telling) is not None and telling.check is not None:
        many = sum(one.check is not None for one in wrong)
        on = f"{many} of {len(found.answers)}" if many < len(found.answers) else "all"
        what = joined(f"""The answer is wrong on {on} problems. The simplest of them is
            {telling.name!r} ({telling.problem}). There, {telling.error}.""")
        problems.append(Problem(ANSWER, what, advice=_capital(found.advice or "")))
        picture = None if telling.wrong is None else side_by_side(telling, seed)
    if raised:
        problems.append(_error(raised[0]))
    if found.machine is not None and (error := found.machine.error) is not None:
        what = f"Numba cannot compile it: {error}."
        problems.append(Problem(DOES_NOT_COMPILE, what, advice=_hint(error)))
    if problems:
        return with_problems(problems, right, picture)
    right.append("no race, no access out of bounds, no read of uninitialised memory")
    if found.float64:
        right.append(f"but it computes in float64, and {stage} does not: write float32(0), not 0.0")
    counts = [count for count in found.counts if count.unit != NOT_CHECKED]
    rows = [row_of(count.unit, count.yours, count.stages, at_most) for count in counts]
    return checked_by_counts(right, rows)


def side_by_side(answer: Answer, seed: int) -> Picture:
    """Draw the first wrong plane of an output, the expected one, a channel and a filter."""
    assert answer.wrong is not None
    assert answer.output is not None
    input, weight, bias = random_tensors(answer.problem, seed)
    i, j = np.argwhere(answer.wrong.any(axis=(2, 3)))[0].tolist()
    expected = reference(answer.problem, input, weight, bias)[i, j]
    of = f" of {answer.problem.C_i}"
    planes = {
        f"input {i}, channel 0{of}": input[i, 0],
        f"filter {j}, channel 0{of}": weight[j, 0],
        f"expected: output {i}, channel {j}": expected,
        "got": answer.output[i, j],
    }
    grid, left = Grid(0.33, widest=12), 0
    for name, plane in planes.items():
        shown = plane[:MOST_ROWS, :MOST_COLUMNS]
        grid.note(left, -0.9, name, 8)
        for place, number in np.ndenumerate(shown):
            colour = NOBODY
            if name == "got":
                colour = WRONG if answer.wrong[i, j][place] else RIGHT
            grid.cell(left + place[1], place[0], colour, f"{number:.2g}", size=5.5)
        left += max(shown.shape[1], 5) + 1
    part = f"{answer.wrong.sum()} of {answer.wrong.size}"
    return grid.finished(
        f"Input, expected and got of {answer.name!r}; wrong ones are in red, {part} in all outputs"
    )


def row_of(unit: str, yours: float, target: float, at_most: float = AS_FEW) -> Row:
    """Return the row of a count that may be ``at_most`` times the target."""
    return Row(unit, yours, target, yours <= at_most * target)


def checked_by_counts(right: Sequence[str], rows: Sequence[Row], advice: str = "") -> Feedback:
    """Return the feedback on a right kernel: passed, or too much memory traffic."""
    rows = tuple(row for row in rows if row.yours or row.target)
    if all(row.ok for row in rows):
        more = ": right, with no more memory traffic than it should have." if rows else "."
        return Feedback(f"Passed{more}", (), tuple(right), rows)
    told = ", ".join(
        f"{row.unit} ({row.yours / row.target:.1f} times the target)" if row.target else row.unit
        for row in rows if not row.ok
    )  # fmt: skip
    headline = "Right, but not there yet: the kernel causes more memory traffic than it should."
    problem = Problem(COUNTS, f"Too many {told}.", advice=advice)
    return Feedback(headline, (problem,), tuple(right), rows)


def with_problems(
    problems: Iterable[Problem], right: Sequence[str] = (), picture: Picture | None = None
) -> Feedback:
    """Return the feedback of problems, a wrong answer first; ``right`` lists what is right."""
    found = tuple(sorted(problems, key=lambda one: one.reason not in (ANSWER, BROKEN)))
    headline = HEADLINES.get(found[0].reason, ON_A_GPU if right else NO_ANSWER)
    return Feedback(headline, found, tuple(right), picture=picture)
