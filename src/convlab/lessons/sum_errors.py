"""Errors of sums by tensor cores: drawn by the number of terms, and checked in a learner's kernel.

Sums are computed on the simulator, whose tensor cores give the results of an H200's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from convlab.device.products import K, M, N, multiply_add, split_into_tf32, warp_mma
from convlab.ladder import stage_named
from convlab.lessons import feedback, pictures
from convlab.lessons.exercises import ready_for
from convlab.lessons.feedback import ANSWER, COUNTS, Feedback, Mistake
from convlab.lessons.limits import Stopped, graded, running
from convlab.lessons.pictures import Picture, joined
from convlab.lessons.split_products import what_is_multiplied
from convlab.lessons.stage_checks import check
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import reference
from convlab.running.engines.simulator import Simulator
from convlab.simulation.threads import warp_calls

CHAIN = 2 * K  # terms that are added up before the tensor core begins again
SUM_TERMS = (64, 256, 1024)


def _by_tensor_cores(A: np.ndarray, B: np.ndarray, split: bool, step: int) -> np.ndarray:
    """Compute ``A @ B`` by ``mma_tf32``.

    After every ``step`` terms the tensor core begins again, and ordinary additions add its part.
    """
    (large_a, small_a), (large_b, small_b) = map(np.vectorize(split_into_tf32), (A, B))
    factors = [(large_a, large_b)]
    if split:  # the small products first
        factors = [(small_a, large_b), (large_a, small_b), *factors]
    total = np.zeros((M, N), np.float32)
    for first in range(0, len(B), step):
        part = np.zeros((M, N), np.float32)
        for k in range(first, first + step, K):
            for left, right in factors:
                part = multiply_add(left[:, k : k + K], right[k : k + K], part)
        total += part
    return total


def _by_threads(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Compute ``A @ B`` by float32's fused multiply-adds, term after term; each rounds once."""
    total = np.zeros((M, N), np.float32)
    for column, row in zip(A.T.astype(np.float64), B.astype(np.float64), strict=True):
        total = (column[:, None] * row + total).astype(np.float32)
    return total


WAYS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "TF32 alone": lambda A, B: _by_tensor_cores(A, B, False, len(B)),
    "three products, one chain": lambda A, B: _by_tensor_cores(A, B, True, len(B)),
    "three products, chains of 16": lambda A, B: _by_tensor_cores(A, B, True, CHAIN),
    "float32, a thread alone": _by_threads,
}


def _mean(errors: np.ndarray) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(errors**2)))


@cache
def errors_of_ways() -> dict[str, list[float]]:
    """Return the root mean square of the relative errors of sums, by each way to multiply."""
    random = np.random.default_rng(0)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for terms in SUM_TERMS:
        A, B = (random.random(shape, np.float32) for shape in ((M, terms), (terms, N)))
        exact = A.astype(np.float64) @ B
        for way, multiply in WAYS.items():
            found[way].append(_mean((multiply(A, B) - exact) / exact))
    return found


def errors_by_terms() -> Picture:
    """Draw the errors of sums by four ways to multiply, against the number of terms."""
    caption = """How far sums of products of positive numbers are from the exact ones, on average
        (root of the mean square), computed on the simulator. Less is better."""
    title = "error, as a part of the sum"
    more = {"label": "{:.1e}", "yscale": "log", "xlabel": "terms"}
    return pictures.lines(SUM_TERMS, errors_of_ways(), title, caption, **more)


ACCURACY = "accuracy"
# Windows of many terms for few outputs: one block of every tile, and errors that add up. Positive
# numbers, as after a ReLU, so that all cuts go the same way.
ONE_STEP, SHORT, LONG = (ConvProblem(1, channels, 5, 9, 16, 2) for channels in (2, 16, 64))
RIGHT = 1e-6  # a sum with a larger relative error lacks a part
BILLION = 1e9


class Sums(NamedTuple):
    """The relative errors of a stage's outputs, M x N, its tensor core products in order, and what
    is said of the parts that these multiply."""

    errors: np.ndarray
    products: int
    multiplied: str


def errors_of(made: Any, stage: str, problem: ConvProblem) -> Sums:
    """Return the errors of a stage's outputs for positive numbers, and its products.

    ``made`` is in the place of the stage's own function, as for :func:`~convlab.lessons.traced`.
    """
    random = np.random.default_rng(0)
    input = random.random(problem.input_shape, np.float32)
    weight = random.random(problem.weight_shape, np.float32)
    output = np.full(problem.output_shape, np.nan, np.float32)
    tensors = input, weight, np.zeros(problem.C_o, np.float32)
    tile = stage_named(stage).tiny_tile
    main, arrays = ready_for(made, stage, problem, tile, tensors, output)
    with mock.patch.object(warp_calls, "warp_mma", wraps=warp_mma) as heard:
        Simulator(strict=False).launch(main.kernel, main.grid, main.block, *arrays)
    exact = reference(problem, input, weight)
    calls = [call.args[0] for call in heard.call_args_list]
    said = what_is_multiplied(calls, weight, input) if problem == ONE_STEP else ""
    return Sums(((output - exact) / exact).reshape(problem.M, problem.N), len(calls), said)


@cache
def _ours(stage: str) -> tuple[float, int]:
    ours = errors_of(None, stage, LONG)
    return _mean(ours.errors), ours.products


@graded
def check_accuracy(made: Any, stage: str, **options: Any) -> Feedback:
    """Check a kernel as :func:`convlab.lessons.check` does, and the errors of long sums.

    Sums of many terms must be as exact as the stage's, by as many products on tensor cores.
    """
    found = check(made, stage, **options)
    if found.result not in ("passed", ANSWER):
        return found
    try:
        with running():
            errors, products, _ = errors_of(made, stage, LONG)
            # What inexact sums are compared with, and wrong ones.
            once = errors_of(made, stage, SHORT if found.passed else ONE_STEP)
    except Stopped:
        if found.passed:
            raise
        return found
    if not found.passed:
        first, *others = found.mistakes
        advice = once.multiplied or _where_to_look(errors, _mean(once.errors))
        if advice:  # lines of a change that helps would contradict it
            first = replace(first, lines=(), advice=advice)
        return replace(found, mistakes=(first, *others))
    yours, fewer = _mean(errors), _mean(once.errors)
    ours, fewest = _ours(stage)
    error = feedback.row_of("error, parts in a billion", yours * BILLION, ours * BILLION)
    count = feedback.row_of("products by tensor cores", products, fewest)
    found = replace(found, rows=(*found.rows, error, count))
    if not error.ok:
        headline = "Right, but not there yet: the kernel is not as exact as the stage."
        return replace(found, headline=headline, mistakes=(_inexact(yours, fewer, ours),))
    if not count.ok:
        what = f"Too many products by tensor cores: {products} for {fewest}."
        advice = "The product small times small is too small to change a float32 sum: leave it out."
        headline = "Right, but not there yet: the kernel multiplies more than it should."
        return replace(found, headline=headline, mistakes=(Mistake(COUNTS, what, advice=advice),))
    return found


def _where_to_look(errors: np.ndarray, once: float) -> str:
    """Return the hint for wrong sums of ``LONG``, one tile of t03's, by the places of wrong ones.

    ``once`` are the errors of sums of one step. Empty if the sums of ``LONG`` are right: then the
    mistake shows on other problems only.
    """
    if _mean(errors) < RIGHT:
        return ""
    if once < RIGHT < _mean(errors):
        return joined("""The sums are right for a single step of 8 terms, so the kernel combines the
            steps wrongly: each step must begin with zeros and add its part to R_O.""")
    rows, columns = np.indices(errors.shape)
    quarters = rows // 8 % 2 * 2 + columns // 16 % 2
    told, parts = "", [f"part[{n}]" for n in range(4)]
    for names, groups in ((parts, quarters), (list("xyzw"), columns % 4)):
        wrong = [name for n, name in enumerate(names) if not _mean(errors[groups == n]) < RIGHT]
        if 0 < len(wrong) < len(names):
            told = f"Only the sums that come from {', '.join(wrong)} are wrong. "
            break
    if _mean(errors) < 2.0**-9:
        told += joined(f"""The sums are nearly right: they are off by {_mean(errors):.0e} of
            themselves. The large parts are multiplied well, but something of the small parts is
            missing. Are there three products, each added to the one before, and is each part in its
            place?""")
    return told.strip()


def _inexact(yours: float, before: float, ours: float) -> Mistake:
    what = joined(f"""Sums of {LONG.K} terms are off by {yours:.1e} of themselves on average, the
        stage's by {ours:.1e}.""")
    advice = joined("""The error does not grow with the number of terms, so it arises within a step:
        a tensor core truncates what it adds to a large sum. In which order are the three products
        added?""")
    if yours > 1.5 * before:
        advice = joined(f"""The error grows with the number of terms (with {SHORT.K} it is
            {before:.1e}): the tensor core truncates each time it adds to a long sum. Begin every
            step with zeros, and add its part to R_O by ordinary additions.""")
    return Mistake(ACCURACY, what, advice=advice)
