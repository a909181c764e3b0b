"""A learner's code run with limits of time and of printed lines; its exceptions end the check."""

from __future__ import annotations

import ast
import io
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from ctypes import c_ulong, py_object, pythonapi
from dataclasses import replace
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from threading import Event, Lock, Thread, get_ident
from time import process_time
from typing import Any, ParamSpec

from convlab.checking.checker import raised_by
from convlab.lessons.explanations import CONVLAB, PLACE, error_in_words, lines_of
from convlab.lessons.feedback import (
    BROKEN,
    HEADLINES,
    Feedback,
    Line,
    Mistake,
    with_mistakes,
)
from convlab.lessons.pictures import joined
from convlab.lessons.progress import note
from convlab.lessons.progress_line import progress_line
from convlab.simulation.recording.loops import EndlessLoop
from convlab.simulation.rules.findings import NotSimulated

P = ParamSpec("P")
SECONDS = 4.0  # limit of one launch of a lesson; a right one takes less than a tenth of it
PRINTED = 32  # shown lines of a kernel's output: one warp's
END_OF_WHILE = "Does something in the loop make its condition false in the end, in every thread?"
END_OF_FOR = "Is the loop's range as long as it must be?"
_at_work: list[str] = []  # checks that call each other, the learner's first
NOT_THE_LEARNERS = (CONVLAB, *map(Path, sysconfig.get_paths().values()))


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
        _at_work.append(check.__name__)
        try:
            with progress_line() as line, limited():
                feedback = check(*arguments, **options)
        except Stopped as stopped:
            (feedback,) = stopped.args
        finally:
            _at_work.pop()
        if _at_work:  # the check that called this one says what the result is
            return feedback
        feedback = replace(feedback, display_id=line.display_id)
        note(feedback.result)
        if os.environ.get("NBGRADER_EXECUTION") == "autograde" and not feedback.passed:
            raise AssertionError(str(feedback))
        return feedback

    return checked


def broken(what: str, otherwise: str = "", place: tuple[str, int] | None = None) -> Stopped:
    """Return the exception that ends a check of code that could not run. ``otherwise`` is the
    advice if there is none for ``what``; ``place`` is the learner's line, if ``what`` names one of
    a library."""
    mistake = error_in_words(what)
    lines = mistake.lines
    if place is not None and all(line.library for line in lines):
        lines = lines_of(place) + lines
    mistake = replace(mistake, lines=lines, advice=mistake.advice or otherwise)
    return Stopped(Feedback("Not yet: your code could not run.", (mistake,)))


@contextmanager
def running(
    what: str = "",
    seconds: float = SECONDS,
    instead: Callable[[], Mistake | None] = lambda: None,
) -> Iterator[None]:
    """Run a learner's code with a time limit; its exception becomes the check's result.

    ``what`` begins the sentence about it. ``instead`` returns a mistake that says more than the
    exception, or None.
    """
    try:
        with limited(seconds):
            yield
    except Stopped:
        raise
    except EndlessLoop as error:
        raise endless(error) from None
    except (Exception, SystemExit) as error:
        said = str(error) if isinstance(error, NotSimulated) else f"{what}{raised_by(error)}"
        place = _learners_line(error)
        if not PLACE.search(said) and place is not None:
            said = f"{said.rstrip('. ')}, {place[0]}:{place[1]}"
        if (found := instead()) is None:
            raise broken(said, _attribute_meant(error), place) from error
        found = replace(found, lines=found.lines or error_in_words(said).lines)
        raise Stopped(with_mistakes([found])) from error


def _learners_line(error: BaseException) -> tuple[str, int] | None:
    """Return the file and line of the learner's function in which an error was raised; None if it
    was raised in none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.name != "<module>" and frame.lineno is not None and _is_learners(frame.filename):
            return frame.filename, frame.lineno
    return None


def _is_learners(file: str) -> bool:
    """Return whether a file or cell has a learner's code: no library's, and none that is made."""
    known = any(Path(file).is_relative_to(folder) for folder in NOT_THE_LEARNERS)
    return not known and bool(linecache.getlines(file))


def _attribute_meant(error: BaseException) -> str:
    """Return the question about an attribute that is not there, if the object has a similar one."""
    if not isinstance(error, AttributeError) or not error.name:
        return ""
    names = [name for name in dir(error.obj) if not name.startswith("_")]
    alike = [name for name in names if name.lower() == error.name.lower()]
    found = alike or get_close_matches(error.name, names, n=1)
    return f"Is {found[0]} meant?" if found else ""


def endless(error: EndlessLoop) -> Stopped:
    """Return the exception that ends a check of a kernel whose loop does not end."""
    said = error_in_words(", ".join([str(error), *getattr(error, "__notes__", ())]))
    advice = END_OF_WHILE if error.code.startswith("while ") else END_OF_FOR
    return Stopped(Feedback(HEADLINES[BROKEN], (replace(said, advice=advice),)))


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
        advice = f"{END_OF_WHILE} {END_OF_FOR}"
        mistake = Mistake(BROKEN, what, lines, advice if lines else "")
        raise Stopped(Feedback(HEADLINES[BROKEN], (mistake,))) from None
    except KeyboardInterrupt as error:
        lines = _loop_of(error)
        what = "You stopped the check."
        if lines:
            what = "You stopped the check while your code was in this loop."
        raise Stopped(Feedback("Stopped.", (Mistake(BROKEN, what, lines),))) from None


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
        learners = _is_learners(frame.filename)
        if not learners or frame.name == "<module>" or frame.lineno is None:
            continue
        try:
            tree = ast.parse("".join(linecache.getlines(frame.filename)))
        except SyntaxError:
            return ()
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.While | ast.For)]
        around = [one for one in loops if one.lineno <= frame.lineno <= (one.end_lineno or 0)]
        if around:
            loop = max(around, key=lambda node: (isinstance(node, ast.While), node.lineno))
            return lines_of((frame.filename, loop.lineno))
    return ()
