"""Checks of a kernel against NumPy, on launches of any arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from convlab.checking.loading import is_kernel
from convlab.ladder.stage import blocks_for
from convlab.lessons import feedback
from convlab.lessons.explanations import of_findings
from convlab.lessons.feedback import Feedback, Problem
from convlab.lessons.limits import graded, running
from convlab.lessons.pictures import joined
from convlab.lessons.readiness import ready
from convlab.simulation.rules.memory_traffic import SECTOR_BYTES, WARP
from convlab.support.values import counted
from convlab.tracing import LaunchTrace, trace

FEW = 8  # shown numbers around a wrong one
UNITS = {"requests": "requests to global memory", "sectors": "sectors of global memory"}


class On(NamedTuple):
    """A launch to try a kernel on: its grid, its block and its input arrays."""

    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    inputs: tuple[np.ndarray, ...]


@graded
def check_kernel(
    kernel: Any, wanted: Callable[..., np.ndarray], on: Iterable[On], *,
    fewest_sectors: bool = False, each_once: bool = False, busiest: int | None = None,
    at_most: float = feedback.AS_FEW, before: float | None = None,
) -> Feedback:  # fmt: skip
    """Check a kernel against ``wanted``, a function of NumPy on the same inputs.

    The kernel gets the inputs of each launch and then an output of the wanted shape and dtype,
    which holds ``before``; by default this is a value that no kernel may leave there.

    With ``fewest_sectors`` the kernel's requests must take as few sectors of global memory as
    inputs and output have. With ``each_once`` its threads must access as many elements as inputs
    and output have, by as few requests of whole warps. ``busiest`` is the most accesses that one
    thread may make. All counts may be ``at_most`` times as large.
    """
    ready(kernel, is_kernel)
    problems: dict[Any, Problem] = {}
    traces: list[LaunchTrace] = []
    by_size = sorted(on, key=lambda launch: sum(array.size for array in launch.inputs))
    for launch in by_size:  # the simplest that fails is told
        right = np.asarray(wanted(*launch.inputs))
        with running():
            made, wrong, _ = tried(kernel, launch, right, before)
        problems = problems | wrong | problems  # the first of each kind
        traces.append(made)
    answers = (f"the answer is what NumPy gives, on {len(traces)} launches",)
    if problems:
        right_ones = () if feedback.ANSWER in problems else answers
        return feedback.with_problems(problems.values(), right_ones)
    arrays = [array for launch in traces for array in launch.arrays if array.space == "global"]
    sizes = [(math.prod(array.shape), array.itemsize) for array in arrays]
    targets: dict[str, tuple[str, int]] = {}  # by what is counted: its name, and the fewest
    if fewest_sectors:
        # Not the fewest for the requests that there are: those of one lane need a sector each.
        fewest = sum(blocks_for(elements * item, SECTOR_BYTES) for elements, item in sizes)
        targets["sectors"] = UNITS["sectors"], fewest
    if each_once:
        targets["lanes"] = "elements read and written", sum(elements for elements, _ in sizes)
        by_warps = sum(blocks_for(elements, WARP) for elements, _ in sizes)
        targets["requests"] = UNITS["requests"], by_warps
    rows = []
    for unit, (name, fewest) in targets.items():
        yours = sum(launch.total(unit, launch.of(space="global")) for launch in traces)
        rows.append(feedback.row_of(name, yours, fewest, at_most))
    if busiest is not None:
        yours = max(map(_busiest, traces))
        rows.append(feedback.row_of("accesses of the busiest thread", yours, busiest, at_most))
    advice = "Which elements do several threads read or write?" if each_once else ""
    return feedback.checked_by_counts(answers, rows, advice)


def _busiest(launch: LaunchTrace) -> int:
    """Return the most accesses that a thread of the block shown makes."""
    lanes = Counter((one.warp, lane) for one in launch.requests for lane in one.lanes)
    return max(lanes.values(), default=0)


def tried(
    kernel: Any, launch: On, right: np.ndarray, before: float | None = None
) -> tuple[LaunchTrace, dict[Any, Problem], np.ndarray]:
    """Return the trace of a launch, its problems, each once, and its output.

    The output should become ``right`` and holds ``before`` first. Raises whatever the kernel
    raises.
    """
    if before is None:
        before = np.nan if right.dtype.kind == "f" else np.iinfo(right.dtype).max
    output = np.full(right.shape, before, right.dtype)
    inputs = [array.copy() for array in launch.inputs]
    made = trace(kernel, launch.grid, launch.block, *inputs, output).main
    found = of_findings(made.findings, kernel)
    problems: dict[Any, Problem] = {problem.cause: problem for problem in found}
    if not all(map(np.array_equal, inputs, launch.inputs)):
        what = "The kernel changed its input, which it must only read."
        problems[feedback.INPUT] = Problem(feedback.INPUT, what)
    wrong = ~np.isclose(output, right, rtol=1e-5, atol=1e-6, equal_nan=True)
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0].tolist())
        said = f"the kernel wrote {output[where]:.6g}"
        if np.isnan(output[where]):
            said = "nothing, or NaN, was written there"
        elif output[where] == right.dtype.type(before):
            said = "nothing was written there"
        what = joined(f"""With grid {launch.grid} and block {launch.block} the answer is wrong in
            {wrong.sum()} of {wrong.size} places, first at
            {where[0] if len(where) == 1 else list(where)}: {said}, wanted is
            {right[where]:.6g}.""")
        start = max(where[-1] - FEW // 4, 0)
        near = (*where[:-1], slice(start, start + FEW))
        named = zip(signature(kernel.py_func).parameters, launch.inputs, strict=False)
        alike = [(name, one) for name, one in named if one.shape == right.shape]
        shown = [*alike, ("wanted", right), ("got", output)]
        told = [f"{name} {' '.join(f'{n:.4g}' for n in array[near])}" for name, array in shown]
        what += f" Around there: {'; '.join(told)}."
        problems[feedback.ANSWER] = Problem(feedback.ANSWER, what)
    return made, problems, output


def what_is_wrong(kernel: Any, grid: Any, block: Any, *arguments: Any) -> Feedback:
    """Return the strict simulator's findings on a launch, ``kernel[grid, block](*arguments)``."""
    findings = trace(kernel, grid, block, *arguments).main.findings
    problems = tuple(of_findings(findings, kernel))
    places = f"in {counted(len(problems), 'place')}"
    headline = f"something wrong, {places}" if problems else "nothing wrong"
    return Feedback(f"The simulator found {headline}.", problems)
