"""Functions that are made of a learner's text with a change, to find the change that helps."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import FunctionType
from typing import Any

SECONDS = 4.0  # after which no further change is tried
_numbers = count()


@contextmanager
def made_of(function: ast.FunctionDef, like: FunctionType) -> Iterator[Any]:
    """Give the function of a changed text, with the names that ``like`` has. Inside, its lines can
    be looked up, as the simulator does; a search tries hundreds of texts, so they are not kept."""
    text = ast.unparse(function)
    file = f"<changed {next(_numbers)}>"  # of its own, because what is known of a line is kept
    names = dict(like.__globals__)
    for name, cell in zip(like.__code__.co_freevars, like.__closure__ or (), strict=True):
        names[name] = cell.cell_contents
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        exec(compile(text, file, "exec"), names)
        yield names[function.name]
    finally:
        del linecache.cache[file]
