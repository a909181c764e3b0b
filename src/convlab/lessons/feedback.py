"""What a check of an exercise says: the result, why, and what to look at, in plain words."""

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
EMPTY = "raise NotImplementedError"  # what an unfilled cell raises
AS_FEW = 1.25  # times the target's count that still is as few
NOT_CHECKED = "floating-point operations"  # a matter of taste
MOST_ROWS, MOST_COLUMNS = 8, 10  # of a plane that a picture of a wrong output shows
SECONDS = 4.0  # that one launch of a lesson may take: right ones take less than a tenth of that
PRINTED = 32  # lines that are shown of what kernels print: a warp's
NOT_THE_LEARNERS = (CONVLAB, *map(Path, sysconfig.get_paths().values()))
MOST_LINES = 4  # that are told of an unfilled cell


class Line(NamedTuple):
    """A line of the learner's cell that something is said about."""

    number: int
    code: str
    library: str = ""  # the file, where it is not the learner's but convlab's own

    def __str__(self) -> str:
        return f"line {self.number}{f' of {self.library}' * bool(self.library)}"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``reason`` is a word for it: one of this module's, or the kind of
    a finding of the simulator, such as ``shared race``."""

    reason: str
    what: str
    lines: tuple[Line, ...] = ()
    advice: str = ""

    @property
    def cause(self) -> Any:
        """The same for what one mistake causes: races at many lines may lack one barrier."""
        return self.reason if self.reason in UNORDERED else (self.reason, self.lines)


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
            text += [f"         {line}: {line.code}" for line in problem.lines]
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
            item += [f"{line}: <code>{escape(line.code)}</code>" for line in problem.lines]
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

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback, which would be of convlab's own lines."""
        return str(self).splitlines()


class TooLong(BaseException):
    """Raised in the middle of what has taken too long; no kernel's ``except Exception`` gets it."""


def graded(check: Callable[P, Feedback]) -> Callable[P, Feedback]:
    """A check that may raise :class:`Stopped`, and that the reader may stop. While nbgrader grades
    (the environment says so), a check that fails raises ``AssertionError``, which nbgrader
    counts."""

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
    """Inside runs a learner's code, for so long at most; what it raises is the check's result."""
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
    """Inside runs what a learner wrote: :class:`Stopped` ends it after so many seconds of work, if
    there is a limit, or when the reader stops it, and names the loop. The first lines that it
    prints are shown."""
    thread, lock, over = get_ident(), Lock(), Event()
    began = process_time()  # not the time of day: the machine may have much else to do

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
                raise_there(None)  # what was to be raised and has not been yet
            printed.end()
    except TooLong as error:
        lines = _loop_of(error)
        where = "in this loop" if lines else "at work"
        what = joined(f"""After {seconds:.0f} seconds your code is still {where}; a right answer has
            finished by then.""")
        advice = "Does the loop's condition become false, and is its range as long as it must be?"
        problem = Problem(BROKEN, what, lines, advice if lines else "")
        raise Stopped(Feedback(HEADLINES[BROKEN], (problem,))) from None
    except KeyboardInterrupt as error:
        lines = _loop_of(error)
        what = f"You stopped the check{' while your code was in this loop' * bool(lines)}."
        raise Stopped(Feedback("Stopped.", (Problem(BROKEN, what, lines),))) from None


class _FirstLines(io.TextIOBase):
    """Passes on the first lines and counts the others: a kernel's are printed by every thread."""

    def __init__(self, to: Any) -> None:
        self._to, self._lines = to, 0

    def write(self, text: str) -> int:
        if self._lines < PRINTED:
            self._to.write(text)
        self._lines += text.count("\n")
        return len(text)

    def end(self) -> None:
        """Say how many lines were left out."""
        if (more := self._lines - PRINTED) > 0:
            self._to.write(f"... and {more:,} more lines, which are not shown\n")


def _loop_of(error: BaseException) -> tuple[Line, ...]:
    """The loop of the learner's function that an exception came through: the innermost ``while``
    around that line, else the innermost ``for``."""
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
    """The Python function of a kernel or of what makes one; None for anything else."""
    found = getattr(made, "py_func", made)
    return found if isinstance(found, FunctionType) else None


def _stale(function: FunctionType, own: str) -> Problem | None:
    """What is wrong where the notebook's history has a later cell that was to define the function
    anew and failed: the function is that of the cell ``own``, from before."""
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
    """Raise :class:`Stopped` for a cell that failed, for lines still to be filled in, and for what
    ``is_one`` refuses."""
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
    """The end of a check of what could not be run, and why."""
    return Stopped(Feedback("Not yet: your code could not run.", (_error(what),)))


# What beginners' mistakes raise, by what the message says, and what they mean.
HINTS = {
    "'Array'": "A thread works on single elements, such as a[i]; a kernel has no operations on "
    "whole arrays.",
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
    """An error in words, with the line that raised it, where the simulator noted that."""
    what = " ".join(what.split()).strip(". ")
    place, said = PLACE.search(what), PLACE.sub("", what)
    if not re.search("[_.]", said.split(" ", 1)[0]):  # else it begins with something's name
        said = _capital(said)
    lines = () if place is None else _lines((place["file"], int(place["line"])))
    return Problem(BROKEN, f"{said}.", lines, _hint(what))


def _hint(what: str) -> str:
    return next((hint for piece, hint in HINTS.items() if piece in what), "")


def _lines(*places: tuple[str | None, int | None], kernel: Any = None) -> tuple[Line, ...]:
    """Lines of files, or of cells, which IPython calls files; the learner's come first. Traces name
    files in short: those of a ``kernel``'s launch."""
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
    """Findings of the simulator with the lines they are about; of a trace, with its kernel. Of
    several with one cause, that which shows most of the learner's lines is told."""
    problems: dict[Any, list[Problem]] = {}
    for finding in findings:
        one = _of_finding(finding, kernel)
        problems.setdefault(one.cause, []).append(one)
    told = []
    for same in problems.values():
        # The one to tell has the most lines of the learner's, the fewest of a library's.
        shown = min(same, key=lambda one: sum(bool(line.library) for line in one.lines))
        if (places := len({one.lines for one in same})) > 1:
            more = f" The same happens at {places} pairs of lines; one fix may help at all of them."
            shown = replace(shown, advice=shown.advice + more)
        told.append(shown)
    return told


def _of_finding(finding: Finding, kernel: Any) -> Problem:
    what = f"{_capital(finding.kind)}: {finding.what}"
    if finding.thread is not None:
        what += f", seen in thread {_place(finding.thread)}"
        what += "" if finding.block is None else f" of block {_place(finding.block)}"
    places = (finding.file, finding.line), (finding.other_file, finding.other_line)
    # A warp's barrier is in no lesson, and with it threads of other warps are the next finding.
    remedy = f"What usually fixes it: {finding.remedy.replace('syncwarp', 'syncthreads')}."
    return Problem(finding.kind, f"{what}.", _lines(*places, kernel=kernel), remedy)


def _place(place: tuple[int, ...]) -> str:
    """``3`` for what has one dimension, ``(3, 1)`` else."""
    return str(place[0]) if not any(place[1:]) else f"({', '.join(map(str, place))})"


def feedback_on(found: Check, stage: str, at_most: float, seed: int = 0) -> Feedback:
    """What ``convlab.check`` found with that seed, against ``at_most`` times the stage's counts."""
    problems = of_findings(found.findings)
    wrong = [answer for answer in found.answers if not answer.ok]
    right = [f"the answer is right on {len(found.answers)} problems"] * (not wrong)
    ended = "raised|not end|iterations"
    raised = [one.failed for one in wrong if one.failed and re.search(ended, one.failed)]
    picture = None
    if (telling := found.telling) is not None and telling.check is not None:
        many = sum(one.check is not None for one in wrong)
        on = f"{many} of {len(found.answers)}" if many < len(found.answers) else "all"
        what = joined(f"""The answer is wrong on {on} problems. Of the simplest of them,
            {telling.name!r} ({telling.problem}), {telling.error}.""")
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
    """The first wrong plane of an output beside the expected one, a channel, and a filter."""
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
    """A count that may be ``at_most`` times the target."""
    return Row(unit, yours, target, yours <= at_most * target)


def checked_by_counts(right: Sequence[str], rows: Sequence[Row], advice: str = "") -> Feedback:
    """Feedback on a right kernel: whether its memory traffic is as low as it should be."""
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
    """The feedback of what is wrong, a wrong answer first; ``right`` says what is right."""
    found = tuple(sorted(problems, key=lambda one: one.reason not in (ANSWER, BROKEN)))
    headline = HEADLINES.get(found[0].reason, ON_A_GPU if right else NO_ANSWER)
    return Feedback(headline, found, tuple(right), picture=picture)
