"""Refuses a cell that failed, that has lines to fill in, or that defines something else."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from convlab.lessons.explanations import CONVLAB
from convlab.lessons.feedback import BROKEN, UNFILLED, Feedback, Line, Mistake
from convlab.lessons.limits import Stopped, broken
from convlab.lessons.missing_barriers import tree_of
from convlab.lessons.pictures import joined
from convlab.lessons.progress import history

EMPTY = "raise NotImplementedError"  # the line of an unfilled cell
ALL_TO_DO = "Not filled in yet: your turn."
SOME_TO_DO = "So far so good: what is filled in is right, and the rest is your turn."
MOST_LINES = 4  # shown lines of an unfilled cell


def function_of(made: Any) -> FunctionType | None:
    """Return the Python function of a kernel or of a function that makes one, otherwise None."""
    found = getattr(made, "py_func", made)
    return found if isinstance(found, FunctionType) else None


def _stale(function: FunctionType, own: str) -> Mistake | None:
    """Return the mistake of a cell that should have redefined the function and failed.

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
    return Mistake(BROKEN, f"{what}.", lines, again)


def is_to_do(made: Any) -> bool:
    """Return whether the function has lines to fill in, or one of its cell that it uses has."""
    function = function_of(inspect.unwrap(made))
    return function is not None and bool(_empty_lines(function))


def _empty_lines(function: FunctionType) -> list[Line]:
    """Return the unfilled lines of a function's cell, without those of functions that it does not
    use: a cell may hold several functions, which are filled in one after the other."""
    file = function.__code__.co_filename  # IPython calls cells files
    numbered = enumerate(map(str.strip, linecache.getlines(file)), 1)
    lines = [Line(number, line) for number, line in numbered if line.startswith(EMPTY)]
    tree = tree_of(file) if lines else None
    defined = [] if tree is None else [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    by_name = {one.name: one for one in defined}
    first = function.__code__.co_firstlineno
    own = next((one for one in defined if _holds(one, first)), None)
    if own is None:
        return lines
    used, new = {own.name}, [own.name]
    while new:
        names = {node.id for node in ast.walk(by_name[new.pop()]) if isinstance(node, ast.Name)}
        found = (names & by_name.keys()) - used
        used |= found
        new += found
    others = [one for one in defined if one.name not in used]
    return [line for line in lines if not any(_holds(one, line.number) for one in others)]


def _holds(function: ast.FunctionDef, line: int) -> bool:
    first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
    return first <= line <= (function.end_lineno or 0)


def ready(made: Any, is_one: Callable[[Any], Any] = function_of) -> None:
    """Raise :class:`Stopped` if the cell failed, has lines to fill in, or ``is_one`` refuses
    ``made``."""
    lines: list[Line] = []
    function = function_of(inspect.unwrap(made))
    if function is not None:
        cell = linecache.getlines(function.__code__.co_filename)  # IPython calls cells files
        if (mistake := _stale(function, "".join(cell).strip())) is not None:
            raise Stopped(Feedback("Not yet: the cell above did not run.", (mistake,)))
        lines = _empty_lines(function)
    if lines:
        these = "these lines" if len(lines) > 1 else "this line"
        what = joined(f"""Write your own lines in the cell above in place of {these}; then run that
            cell and this one again (Shift+Enter).""")
        mistake = Mistake(UNFILLED, what, tuple(lines[:MOST_LINES]))
        raise Stopped(Feedback(ALL_TO_DO, (mistake,)))
    if not is_one(made):
        rule = "pass the function itself, without calling it"
        if is_one is not function_of:
            rule = "it must be a kernel, a function below @cuda.jit"
        raise broken(f"the check got {made!r}: {rule}")
