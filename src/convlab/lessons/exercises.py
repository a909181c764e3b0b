"""``check``: a learner's answer to an exercise, judged by :mod:`convlab.checking`, told kindly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convlab.checking import check as checked
from convlab.checking.checker import check_tile
from convlab.checking.loading import is_kernel
from convlab.lessons.feedback import ANSWER, Feedback, Problem, Row, graded
from convlab.lessons.learners_code import function_of, unfilled
from convlab.lessons.words import (
    AS_FEW,
    broken,
    feedback_on,
    headline_of,
    in_one_line,
    judged_by_counts,
    not_judged,
    of_finding,
    raised_in_words,
    to_be_filled,
)
from convlab.problem import ConvProblem
from convlab.simulation.findings import NotSimulated
from convlab.stages import Tile, short_name, stage_named
from convlab.tracing import LaunchTrace, trace

# What is counted: small, so that a check takes seconds; still several blocks and slices of K.
MODEL = ConvProblem(1, 4, 6, 16, 16, 3, padding=1)
INPUT = "input changed"


def check(
    made: Any, stage: str, *, also: Tile | None = None, at_most: float = AS_FEW, seed: int = 0
) -> Feedback:
    """Judge ``made``, a kernel or a function ``make_kernel`` that makes one, as the stage.

    It passes when its answers are right on small problems that careless kernels get wrong, the
    strict simulator finds nothing, and it asks memory for ``at_most`` times what the stage asks.
    ``also`` is a tile with which it must be right too and the simulator find nothing: of other
    proportions than the stage's own small one, on which careless kernels are right by chance.
    Nothing that is wrong with it raises; an unknown stage does (``ValueError``).
    """
    step = stage_named(stage)
    title = f"your kernel as {step.name}"
    if unready := not_judged(title, made):
        return graded(unready)
    try:
        found = checked(made, step.name, seed=seed, model=MODEL)
    except ValueError as error:
        return graded(broken(title, in_one_line(error)))
    if found.ok and also is not None:
        answer, findings = check_tile(made, step.name, also, seed)
        answers = found.answers if answer.ok else (*found.answers, answer)
        found = replace(found, answers=answers, findings=findings)
    return graded(feedback_on(title, found, short_name(step.name), at_most))


@dataclass(frozen=True)
class On:
    """A launch to try a kernel on: its grid, its block and its input arrays."""

    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    inputs: tuple[np.ndarray, ...]


def check_kernel(
    kernel: Any,
    wanted: Callable[..., np.ndarray],
    on: Iterable[On],
    *,
    fewest_sectors: bool = False,
    each_once: bool = False,
) -> Feedback:
    """Judge a kernel by what ``wanted``, NumPy on the same inputs, gives: the kernel gets the
    inputs of each launch and then the array to write to, of the shape and dtype wanted.

    With ``fewest_sectors`` its requests must take as few sectors of global memory as would hold
    what they want, with ``each_once`` its threads must access as many elements as inputs and
    output have, both give or take a quarter. Nothing that is wrong with the kernel raises.
    """
    title = "your kernel"
    lines = unfilled(kernel)
    if lines:
        return graded(to_be_filled(title, lines))
    if not is_kernel(kernel):
        return graded(
            broken(title, f"this is {kernel!r}: it must be a kernel, a function below @cuda.jit")
        )
    problems: dict[Any, Problem] = {}
    traces: list[LaunchTrace] = []
    total = 0
    for launch in on:
        total += 1
        right = np.asarray(wanted(*launch.inputs))
        try:
            made, wrong = tried(kernel, launch, right)
        except NotSimulated as error:
            return graded(broken(title, in_one_line(error)))
        except (Exception, SystemExit) as error:  # whatever somebody's kernel raises is its result
            return graded(broken(title, raised_in_words(error)))
        for what, problem in wrong.items():
            problems.setdefault(what, problem)
        traces.append(made)
    first = [problems.pop(ANSWER)] if ANSWER in problems else []
    found = [*first, *problems.values()]
    answers = () if first else (f"the answer is what NumPy gives, on {total} launches",)
    if found:
        return graded(Feedback(title, headline_of(found), tuple(found), answers))
    rows = [_sectors(traces)] if fewest_sectors else []
    rows += [_elements(traces)] if each_once else []
    return graded(judged_by_counts(title, answers, rows))


def tried(
    kernel: Any, launch: On, right: np.ndarray, written: list[np.ndarray] | None = None
) -> tuple[LaunchTrace, dict[Any, Problem]]:
    """The trace of a launch whose output should be ``right``, and what is wrong, each thing once.
    What it did write is appended to ``written``.

    Raises whatever the kernel raises.
    """
    made, output, changed = _traced(kernel, launch, right)
    if written is not None:
        written.append(output)
    problems: dict[Any, Problem] = {}
    for finding in made.findings:
        key = finding.kind, finding.line, finding.other_line
        problems.setdefault(key, of_finding(finding, function_of(kernel)))
    same = np.isclose(output, right, rtol=1e-5, atol=1e-6, equal_nan=True)
    if changed:
        what = "The kernel changed its input, which is only to be read."
        problems[INPUT] = Problem(INPUT, what)
    if not same.all():
        problems[ANSWER] = _wrong_element(output, right, ~same)
    return made, problems


def _traced(kernel: Any, launch: On, like: np.ndarray) -> tuple[LaunchTrace, np.ndarray, bool]:
    """The trace, as far as the kernel went, its output, poisoned before, and whether it wrote to
    its inputs."""
    poison = np.nan if like.dtype.kind == "f" else np.iinfo(like.dtype).max
    output = np.full(like.shape, poison, like.dtype)
    inputs = [array.copy() for array in launch.inputs]
    made = trace(kernel, launch.grid, launch.block, *inputs, output).main
    both = zip(inputs, launch.inputs, strict=True)
    return made, output, not all(np.array_equal(now, was) for now, was in both)


def _wrong_element(output: np.ndarray, right: np.ndarray, wrong: np.ndarray) -> Problem:
    where = tuple(int(place) for place in np.argwhere(wrong)[0])
    got = output[where]
    poisoned = np.isnan(got) if got.dtype.kind == "f" else got == np.iinfo(got.dtype).max
    place = where[0] if len(where) == 1 else list(where)
    said = "nothing was written there" if poisoned else f"the kernel wrote {got:.6g}"
    return Problem(
        ANSWER,
        f"The answer is wrong in {int(wrong.sum())} of {wrong.size} places, first at {place}: "
        f"{said}, wanted is {right[where]:.6g}.",
    )


def _sectors(traces: Sequence[LaunchTrace]) -> Row:
    yours, fewest = (
        sum(launch.total(name) for launch in traces) for name in ("sectors", "fewest_sectors")
    )
    return Row("sectors of global memory", yours, fewest, yours <= AS_FEW * fewest)


def _elements(traces: Sequence[LaunchTrace]) -> Row:
    yours = sum(launch.total("lanes") for launch in traces)
    there = sum(math.prod(array.shape) for launch in traces for array in launch.arrays)
    return Row("elements read and written", yours, there, yours <= AS_FEW * there)


def what_is_wrong(kernel: Any, grid: Any, block: Any, *arguments: Any) -> Feedback:
    """What the strict simulator finds wrong with a launch, ``kernel[grid, block](*arguments)``."""
    findings = trace(kernel, grid, block, *arguments).main.findings
    problems = tuple(of_finding(finding, function_of(kernel)) for finding in findings)
    headline = "The simulator found nothing wrong."
    if problems:
        headline = f"The simulator found something wrong, in {len(problems)} place"
        headline += "s." if len(problems) > 1 else "."
    return Feedback("your kernel", headline, problems)
