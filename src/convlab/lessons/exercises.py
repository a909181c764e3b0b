"""``check``: a learner's answer to an exercise, judged by :mod:`convlab.checking`, told kindly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from convlab.checking import Check
from convlab.checking import check as checked
from convlab.checking.checker import EVERYTHING
from convlab.checking.loading import is_kernel
from convlab.checking.records import Count
from convlab.engines.findings import Finding, NotSimulated
from convlab.lessons import maps
from convlab.lessons.feedback import (
    ANSWER,
    BROKEN,
    COUNTS,
    UNFILLED,
    Feedback,
    Line,
    Problem,
    Row,
    graded,
)
from convlab.lessons.launching import traced
from convlab.lessons.learners_code import function_of, line_of, unfilled
from convlab.lessons.pictures import RIGHT, WRONG, Picture
from convlab.problem import ConvProblem
from convlab.stages import Tile, short_name, stage_named
from convlab.tracing import LaunchTrace, trace

# What is counted: small, so that a check takes seconds; still several blocks and slices of K.
MODEL = ConvProblem(1, 4, 6, 16, 16, 3, padding=1)
AS_FEW = 1.25  # times the target's count that still is as few
NOT_JUDGED = "floating-point operations"  # a matter of taste
MOST_LINES = 4  # that are told of an unfilled cell
DOES_NOT_COMPILE, INPUT = "does not compile", "input changed"


def check(
    made: Any, stage: str, *, also: Tile | None = None, at_most: float = AS_FEW, seed: int = 0
) -> Feedback:
    """Judge ``made``, a kernel or a function ``make_kernel`` that makes one, as the stage.

    It passes when its answers are right on small problems that careless kernels get wrong, the
    strict simulator finds nothing, and it asks memory for ``at_most`` times what the stage asks.
    ``also`` is a tile with which the simulator must find nothing either: of other
    proportions than the stage's own small one, on which careless kernels are right by chance.
    Nothing that is wrong with it raises; an unknown stage does (``ValueError``).
    """
    step = stage_named(stage)
    title = f"your kernel as {step.name}"
    lines = unfilled(made)
    if lines:
        return graded(_to_be_filled(title, lines))
    if function_of(made) is None:
        return graded(
            _broken(title, f"this is {made!r}: hand over the function, without calling it")
        )
    try:
        found = checked(made, step.name, seed=seed, model=MODEL)
    except ValueError as error:
        return graded(_broken(title, _plain(error)))
    if found.ok and also is not None:
        findings = traced(made, stage, EVERYTHING, also, seed=seed).findings
        found = replace(found, findings=tuple(replace(f, file=_file(made)) for f in findings))
    return graded(_feedback(title, found, short_name(step.name), at_most))


def _file(made: Any) -> str:
    function = function_of(made)
    return "" if function is None else function.__code__.co_filename


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
        return graded(_to_be_filled(title, lines))
    if not is_kernel(kernel):
        return graded(
            _broken(title, f"this is {kernel!r}: it must be a kernel, a function below @cuda.jit")
        )
    problems: dict[Any, Problem] = {}
    traces: list[LaunchTrace] = []
    total = 0
    for launch in on:
        total += 1
        right = np.asarray(wanted(*launch.inputs))
        try:
            made, output, changed = _traced(kernel, launch, right)
        except NotSimulated as error:
            return graded(_broken(title, _plain(error)))
        except (Exception, SystemExit) as error:  # whatever somebody's kernel raises is its result
            return graded(_broken(title, _raised(error)))
        for finding in made.findings:
            problem = _found(finding, function_of(kernel))
            problems.setdefault((finding.kind, finding.line, finding.other_line), problem)
        same = np.isclose(output, right, rtol=1e-5, atol=1e-6, equal_nan=True)
        if changed:
            what = "The kernel changed its input, which is only to be read."
            problems.setdefault(INPUT, Problem(INPUT, what))
        if not same.all():
            problems.setdefault(ANSWER, _wrong_element(output, right, ~same))
        traces.append(made)
    first = [problems.pop(ANSWER)] if ANSWER in problems else []
    found = [*first, *problems.values()]
    answers = () if first else (f"the answer is what NumPy gives, on {total} launches",)
    if found:
        return graded(Feedback(title, _headline(found), tuple(found), answers))
    rows = [_sectors(traces)] if fewest_sectors else []
    rows += [_elements(traces)] if each_once else []
    return graded(_judged_by_counts(title, answers, rows))


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
    problems = tuple(_found(finding, function_of(kernel)) for finding in findings)
    headline = "The simulator found nothing wrong."
    if problems:
        headline = f"The simulator found something wrong, in {len(problems)} place"
        headline += "s." if len(problems) > 1 else "."
    return Feedback("your kernel", headline, problems)


# From what was found to plain words.


def _to_be_filled(title: str, lines: tuple[Line, ...]) -> Feedback:
    many = len(lines) > 1
    what = (
        f"Write your lines in the cell above, where it says FILL ME IN, in place of "
        f"{'these' if many else 'this one'}; then run that cell and this one again (Shift+Enter)."
    )
    problem = Problem(UNFILLED, what, lines[:MOST_LINES])
    return Feedback(title, "Not filled in yet: your turn.", (problem,))


def _broken(title: str, what: str) -> Feedback:
    return Feedback(title, "Not yet: it could not be run.", (Problem(BROKEN, what),))


def _plain(error: Exception) -> str:
    return " ".join(str(error).split())


def _raised(error: BaseException) -> str:
    notes = getattr(error, "__notes__", ())
    return ", ".join([f"it raised {type(error).__name__}: {error}", *notes])


def _feedback(title: str, found: Check, stage: str, at_most: float) -> Feedback:
    problems = [_found(finding, None) for finding in found.findings]
    wrong = [answer for answer in found.answers if not answer.ok]
    picture = None
    right: list[str] = []
    telling = found.telling
    if telling is not None:
        raised = next((one for one in wrong if one.failed and "it raised" in one.failed), None)
        if raised is not None:
            problems.insert(0, Problem(BROKEN, f"{_capital(raised.failed or '')}."))
        elif telling.verdict is not None:
            what = (
                f"The answer is wrong on {len(wrong)} of {len(found.answers)} problems. The one "
                f"that tells most is {telling.name!r} ({telling.problem}): {telling.error}."
            )
            problems.insert(0, Problem(ANSWER, what, advice=_capital(found.advice or "")))
            picture = _where_wrong(telling.wrong)
    else:
        right.append(f"the answer is right on {len(found.answers)} problems")
    if found.machine is not None and found.machine.error is not None:
        problems.append(
            Problem(DOES_NOT_COMPILE, f"Numba cannot compile it: {found.machine.error}.")
        )
    if problems:
        return Feedback(title, _headline(problems), tuple(problems), tuple(right), picture=picture)
    right.append("no race, no access out of bounds, nothing read that nobody wrote")
    if found.float64:
        right.append(
            f"but it computes in float64, where {stage} does not: write float32(0), not 0.0"
        )
    return _judged_by_counts(title, right, [_row(count, at_most) for count in found.counts])


def _row(count: Count, at_most: float) -> Row:
    few = count.yours <= at_most * count.stages or count.unit == NOT_JUDGED
    return Row(count.unit, count.yours, count.stages, few)


def _judged_by_counts(title: str, right: Sequence[str], rows: Sequence[Row]) -> Feedback:
    rows = [row for row in rows if (row.yours or row.target) and row.unit != NOT_JUDGED]
    many = [row for row in rows if not row.ok]
    if not many:
        headline = (
            "Passed."
            if not rows
            else "Passed: right, and it asks memory for no more than it should."
        )
        return Feedback(title, headline, (), tuple(right), tuple(rows))
    told = ", ".join(
        f"{row.unit} ({row.yours / row.target:.1f} times the target)" if row.target else row.unit
        for row in many
    )
    problem = Problem(COUNTS, f"Too many {told}.")
    headline = "Right, but not there yet: it asks memory for more than it should."
    return Feedback(title, headline, (problem,), tuple(right), tuple(rows))


def _headline(problems: Sequence[Problem]) -> str:
    first = problems[0].reason
    if first == BROKEN:
        return "Not yet: it could not be run to its end."
    if first == ANSWER:
        return "Not yet: the answer is wrong."
    if first == DOES_NOT_COMPILE:
        return "Not yet: Numba cannot compile it for a GPU."
    return "Not yet: the answer came out right here, but on a GPU it may not."


def _found(finding: Finding, function: Any) -> Problem:
    """A finding of the simulator with the lines it is about."""
    file = finding.file if function is None else function.__code__.co_filename
    numbers = [finding.line]
    if finding.other_line not in (None, finding.line):
        numbers.append(finding.other_line)
    lines = tuple(line_of(file, number) for number in sorted(numbers))
    what = f"{_capital(finding.kind)}: {finding.what}{_seen_in(finding)}."
    return Problem(finding.kind, what, lines, f"What usually mends it: {finding.remedy}.")


def _seen_in(finding: Finding) -> str:
    if finding.thread is None:
        return ""
    block = "" if finding.block is None else f" of block {_number(finding.block)}"
    return f", seen in thread {_number(finding.thread)}{block}"


def _number(place: tuple[int, ...]) -> str:
    """``3`` for what has one dimension, ``(3, 1)`` else."""
    return str(place[0]) if not any(place[1:]) else f"({', '.join(map(str, place))})"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _where_wrong(wrong: np.ndarray | None) -> Picture | None:
    if wrong is None:
        return None
    part = f"{int(wrong.sum())} of {wrong.size}"
    return maps.planes(wrong, f"Where the output is wrong, in red: {part} elements", (RIGHT, WRONG))
