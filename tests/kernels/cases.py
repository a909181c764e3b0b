"""Records of the tables of kernels: how each is run, and what must be found."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int32, uint32  # noqa: F401  for edits

from convlab.device import (  # noqa: F401  for edits
    commit_copies,
    copy_async,
    copy_async4,
    load4,
    mma_tf32,
    store4,
    wait_copies,
)
from convlab.running.engines.simulator import Finding, SimulationError, Simulator

F = np.float32
ALL = 0xFFFFFFFF
TABLE = np.array([4.0, 3.0, 2.0, 1.0], F)
FIELDS = np.dtype([("x", np.float32), ("y", np.int16), ("z", np.int16)])
ODD = np.dtype([("x", np.float32), ("tag", np.int8)])
Edits = dict[str, str | tuple[str, ...]]  # the line or the lines that take a line's place


def floats(*sizes: int | tuple[int, ...]) -> Callable[[], list[Any]]:
    """Arrays of those shapes, filled 0, 1, 2, ..."""
    return lambda: [np.arange(np.prod(size), dtype=F).reshape(size) for size in sizes]


TWO_ROWS = floats(32, 32)


@dataclass(frozen=True)
class Case:
    """A kernel and its launch. ``arguments()`` makes new ones; ``kind`` is None for a right kernel,
    ``line`` a piece of the source line that the finding names, ``result`` what the last array must
    hold afterwards, ``capability`` the only GPUs' that have what it uses, if not all have."""

    kernel: Any
    grid: Any = 1
    block: Any = 32
    arguments: Callable[[], list[Any]] = TWO_ROWS
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

    def edited(self, name: str, edits: Edits, **launch: Any) -> Case:
        """A case with other lines, named so, and perhaps launched or checked otherwise."""
        return replace(self, kernel=cuda.jit(edited(self.kernel.py_func, name, edits)), **launch)

    def mistaken(
        self, name: str, kind: str, line: str, edits: Edits, launch: dict[str, Any] | None = None
    ) -> Case:
        """A wrong case with other lines than this one's."""
        return self.edited(name, edits, kind=kind, line=line, result=None, **launch or {})


@cache
def findings_of(case: Case) -> tuple[Finding, ...]:
    """Return the strict simulator's findings."""
    try:
        case.launch(Simulator())
    except SimulationError as error:
        return error.findings
    return ()


def row_and(*others: np.ndarray, size: int = 64) -> Callable[[], list[Any]]:
    """0, 1, 2, ... and copies of the others."""
    return lambda: [np.arange(size, dtype=F), *(other.copy() for other in others)]


def edited(function: Any, name: str, edits: Edits) -> Any:
    """A function of that name with the parameters and lines of ``function``, except that each line
    in ``edits`` becomes the line or the lines beside it. Raises ``ValueError`` for a line that is
    not there exactly once."""
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
    parameters = ", ".join(inspect.signature(function).parameters)
    return kernel_function(name, parameters, [line[4:] for line in body], function)


def kernel_function(name: str, arguments: str, lines: list[str], beside: Any) -> Any:
    """A function of these lines, with the globals of the function ``beside``; its file, ``<name>``,
    can be read by :mod:`linecache`. A second function of the same name takes the first one's place
    there."""
    text = "\n    ".join([f"def {name}({arguments}):", *lines]) + "\n"
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), beside.__globals__, there := {})
    return there[name]


# Two right kernels, of which many others are edits, and their lines.


def each_its_element(a, b):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    b[i] = a[i]


def through_shared_memory(a, b):  # type: ignore[no-untyped-def]
    S = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    S[i] = a[i]
    cuda.syncthreads()
    b[i] = S[i]


INDEX, DO = "i = cuda.grid(1)", "b[i] = a[i]"
ARRAY, PUT = "S = cuda.shared.array(64, float32)", "S[i] = a[i]"
BARRIER, WRITE = "cuda.syncthreads()", "b[i] = S[i]"


# Device functions that ask for dynamic shared memory themselves, for edits.


@cuda.jit(device=True)
def read_of_dynamic_memory(i):  # type: ignore[no-untyped-def]
    T = cuda.shared.array(0, float32)
    return T[i]


@cuda.jit(device=True)
def exchanged_in_dynamic_memory(value, i):  # type: ignore[no-untyped-def]
    T = cuda.shared.array(0, float32)
    T[i] = value
    cuda.syncthreads()
    return T[31 - i]
