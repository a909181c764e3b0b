"""What can be said of a learner's code by reading it: is it filled in, what does a line say?"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from types import FunctionType
from typing import Any

from convlab.lessons.feedback import Line

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
