"""What a kernel in these tables is run with, and what must be found."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from convlab.engines.simulator import Finding, SimulationError, Simulator

F = np.float32


@dataclass(frozen=True)
class Case:
    """A kernel and its launch. ``arguments()`` makes new ones; ``kind`` is None for a right kernel,
    ``line`` a piece of the source line that the finding names, ``result`` what the last array must
    hold afterwards, ``capability`` the only GPUs' that have what it uses, if not all have."""

    kernel: Any
    grid: Any
    block: Any
    arguments: Callable[[], list[Any]]
    kind: str | None = None
    line: str = ""
    shared_bytes: int = 0
    result: Callable[[list[Any]], Any] | None = None
    capability: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        return str(self.kernel.py_func.__name__)

    def launch(self, engine: Simulator) -> list[Any]:
        """Launch it; its arguments afterwards."""
        arguments = self.arguments()
        engine.launch(
            self.kernel, self.grid, self.block, *arguments, shared_bytes=self.shared_bytes
        )
        return arguments


@cache
def findings_of(case: Case) -> tuple[Finding, ...]:
    """What the strict simulator finds."""
    try:
        case.launch(Simulator())
    except SimulationError as error:
        return error.findings
    return ()


def floats(*sizes: int | tuple[int, ...]) -> Callable[[], list[Any]]:
    """Arrays of those shapes, filled 0, 1, 2, ..."""
    return lambda: [np.arange(np.prod(size), dtype=F).reshape(size) for size in sizes]


def row_and(*others: np.ndarray, size: int = 64) -> Callable[[], list[Any]]:
    """0, 1, 2, ... and copies of the others."""
    return lambda: [np.arange(size, dtype=F), *(other.copy() for other in others)]


def edited(function: Any, name: str, edits: dict[str, Any]) -> Any:
    """The function ``name(a, b)`` whose lines are those of ``function``, except that each line in
    ``edits`` becomes the line or the lines beside it. Raises ``ValueError`` for a line that is not
    there exactly once."""
    lines = inspect.getsource(function).splitlines()
    del lines[: 1 + next(n for n, line in enumerate(lines) if line.startswith("def "))]
    body = []
    for line in lines:
        old, indent = line.strip(), line[: len(line) - len(line.lstrip())]
        new = edits.get(old, old)
        body += [indent + one for one in ((new,) if isinstance(new, str) else new)]
    for old in edits:
        if (count := [line.strip() for line in lines].count(old)) != 1:
            raise ValueError(f"{name}: {function.__name__} has {old!r} {count} times")
    return kernel_function(name, "a, b", [line[4:] for line in body], function)


def kernel_function(name: str, arguments: str, lines: list[str], beside: Any) -> Any:
    """A function of these lines, with the globals of the function ``beside``; its file, ``<name>``,
    can be read by :mod:`linecache`."""
    text = "\n    ".join([f"def {name}({arguments}):", *lines]) + "\n"
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), beside.__globals__, there := {})
    return there[name]
