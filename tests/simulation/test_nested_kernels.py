"""A kernel inside a function or class is judged as it is at the top of its module."""

from __future__ import annotations

import inspect
import linecache
import re
import textwrap
import warnings
from typing import Any

import numpy as np
import pytest
from kernels import atomic_pairs, messages, retries, schedules
from kernels.cases import Case
from kernels.right import RIGHT
from kernels.wrong import WRONG
from numba import cuda

import convlab
from convlab.simulation.host.programs import NotFenced

STEP = 5  # of the long tables every fifth case
NESTED = [
    *(*atomic_pairs.WRONG, *atomic_pairs.RIGHT, *retries.WRONG, *retries.RIGHT),
    *(*messages.WRONG, *messages.RIGHT, *schedules.WRONG[::STEP], *schedules.RIGHT[::STEP]),
    *(*WRONG[::STEP], *RIGHT[::STEP]),
]


def copied(function: Any, file: str, depth: int) -> Any:
    """Return a copy of a function, whose source in ``file`` stands inside ``depth`` functions and,
    if it is inside any, has a comment at the beginning of a line."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("def "))
    body = [" " * 4 * depth + line for line in lines[begin:]]
    if depth:
        body.insert(1, "# a line that was left out")
    outer = [" " * 4 * n + "def around():" for n in range(depth)]
    returns = []
    for inside in range(depth, 0, -1):
        returned = function.__name__ if inside == depth else "around()"
        returns.append(" " * 4 * inside + f"return {returned}")
    text = "\n".join([*outer, *body, *returns]) + "\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {}
    exec(compile(text, file, "exec"), {**function.__globals__}, names)
    return names["around"]() if depth else names[function.__name__]


def said_of(case: Case, depth: int) -> tuple[str, list[np.ndarray]]:
    """Return the findings and warnings of a copy of a case's kernel, without line numbers, and the
    arguments after the launch."""
    kernel = copied(case.kernel.py_func, f"<{case.name} in {depth}>", depth)
    found = ""
    arguments = case.arguments()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", NotFenced)
        try:
            convlab.simulate(
                cuda.jit(kernel), case.grid, case.block, *arguments, shared_bytes=case.shared_bytes
            )
        except convlab.SimulationError as error:
            found = str(error)
    found = "\n".join([found, *(str(one.message) for one in warned)])
    found = re.sub(r"in \d>", "", re.sub(r"lines? [\d, and]+", "", found))
    return found, [np.asarray(one) for one in arguments]


def without_closure(case: Case) -> bool:
    """Return whether a case's kernel refers to no variable of a function around it."""
    return not case.kernel.py_func.__code__.co_freevars


@pytest.mark.slow
@pytest.mark.same_in_cudasim
@pytest.mark.parametrize("case", [*filter(without_closure, NESTED)], ids=lambda case: case.name)
def test_a_nested_kernel_is_judged_the_same(case: Case) -> None:
    outside, inside = said_of(case, 0), said_of(case, 2)
    assert inside[0] == outside[0]
    if not outside[0]:
        for one, other in zip(inside[1], outside[1], strict=True):
            np.testing.assert_array_equal(one, other)
