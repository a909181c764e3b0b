"""How exact sums of products are: pictures of what TF32 leaves of a number, and a check.

All is computed by kernels on the simulator, whose tensor cores give what an H200's give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
from numba import cuda, float32

from convlab.device import mma_tf32, split_tf32, to_tf32
from convlab.device.products import WARP, K, M, N, split_into_tf32, warp_mma
from convlab.engines.simulator import Simulator
from convlab.lessons.charts import line_chart
from convlab.lessons.exercises import check
from convlab.lessons.feedback import ANSWER, COUNTS, Feedback, Problem, Row, graded
from convlab.lessons.launching import ready_on
from convlab.lessons.pictures import COLOURS, FAINT, NOBODY, Grid, Picture, finished, sheet
from convlab.lessons.words import AS_FEW, broken, raised_in_words
from convlab.problem import ConvProblem
from convlab.simulation import greenlets
from convlab.stages import stage_named

ACCURACY = "accuracy"
SIGN, EXPONENT, SEEN = COLOURS[3], COLOURS[1], COLOURS[0]
LEFT_OUT = 13  # bits of a float32 that TF32 has not
CHAIN = 2 * K  # terms that are added up before the tensor core begins again
TERMS = (64, 256, 1024)

# Windows of many terms for few outputs: one block of every tile, and errors that add up. Positive
# numbers, as after a ReLU, so that all cuts go the same way.
ONE_STEP, SHORT, LONG = (ConvProblem(1, channels, 5, 9, 16, 2) for channels in (2, 16, 64))
RIGHT = 1e-6  # a sum that is further off than this part of it lacks something
BILLION = 1e9


def bits_of_split(value: float) -> Picture:
    """The 32 bits of a float32 and of both parts that ``split_tf32`` makes of it; coloured is what
    a tensor core looks at. Raises ``ValueError`` for zero and what is not finite."""
    number = np.float32(value)
    if not np.isfinite(number) or not number:
        raise ValueError(f"value is {value}: it must be a finite number other than zero")
    parts = dict(zip(("large", "small"), split_into_tf32(number), strict=True))
    rows = {"x": number, **parts}
    grid = Grid()
    for at, text in ((0, "sign"), (1.3, "exponent: 8"), (9.6, "mantissa: 10 bits that TF32 has")):
        grid.note(at, -0.7 if at else -1.6, text, 8)
    grid.note(20.2, -0.7, f"and {LEFT_OUT} that it has not", 8)
    for place, (name, part) in enumerate(rows.items()):
        top = place * 1.9
        grid.note(-0.5, top + 0.5, name, 9, ha="right", weight="bold")
        bits = f"{int(part.view(np.uint32)):032b}"
        for column, bit in enumerate(bits):
            seen = column < 32 - LEFT_OUT
            kind = SIGN if column == 0 else EXPONENT if column < 9 else SEEN
            left = column + 0.3 * (column > 0) + 0.3 * (column > 8) + 0.3 * (not seen)
            grid.cell(left, top, kind if seen else NOBODY, bit, size=8, edge=FAINT)
    large, small = (float(part) for part in parts.values())
    seen_of_small = float((parts["small"].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))
    caption = (
        f"x = {float(number):.9g} is large + small = {large:.9g} + {small:.9g}, exactly. Coloured "
        "is what a tensor core looks at: red the sign, orange the exponent, blue the mantissa. "
        f"So large alone is off by {_part(large, number)}, both parts together by "
        f"{_part(large + seen_of_small, number)}."
    )
    alt = "; ".join(f"{name}: {int(part.view(np.uint32)):032b}" for name, part in rows.items())
    return grid.finished(f"The bits of x and of its two parts. {alt}", caption)


def _part(found: float, number: np.float32) -> str:
    """How far it is from the number, which is not zero."""
    off = abs(found - float(number)) / abs(float(number))
    return f"1 part in {1 / off:,.0f}" if off else "nothing"


def _by_a_warp(TERMS: int, SPLIT: bool, STEP: int) -> Any:
    """A kernel of one warp, ``C = A @ B`` of this many terms by ``mma_tf32``; after every ``STEP``
    terms the tensor core begins again, and a part is added by ordinary additions."""

    @cuda.jit
    def product(A, B, C):  # type: ignore[no-untyped-def]
        g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
        zero = float32(0)
        R_O = cuda.local.array(4, float32)
        for i in range(4):
            R_O[i] = zero
        for k0 in range(0, TERMS, STEP):
            part = (zero, zero, zero, zero)
            for k in range(k0, k0 + STEP, K):
                w, x = A[g, k + t], A[g + 8, k + t]
                y, z = A[g, k + t + 4], A[g + 8, k + t + 4]
                p, q = B[k + t, g], B[k + t + 4, g]
                if SPLIT:
                    (w, s), (x, u) = split_tf32(w), split_tf32(x)
                    (y, v), (z, r) = split_tf32(y), split_tf32(z)
                    (p, m), (q, n) = split_tf32(p), split_tf32(q)
                    part = mma_tf32((s, u, v, r), (p, q), part)
                    part = mma_tf32((w, x, y, z), (m, n), part)
                    part = mma_tf32((w, x, y, z), (p, q), part)
                else:
                    a = (to_tf32(w), to_tf32(x), to_tf32(y), to_tf32(z))
                    part = mma_tf32(a, (to_tf32(p), to_tf32(q)), part)
            for i in range(4):
                R_O[i] += part[i]
        C[g, 2 * t], C[g, 2 * t + 1] = R_O[0], R_O[1]
        C[g + 8, 2 * t], C[g + 8, 2 * t + 1] = R_O[2], R_O[3]

    return product


def _by_threads(TERMS: int) -> Any:
    """The same by ordinary float32: each lane its four sums, term after term."""

    @cuda.jit
    def product(A, B, C):  # type: ignore[no-untyped-def]
        g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
        R_O = cuda.local.array(4, float32)
        for i in range(4):
            R_O[i] = float32(0)
            for k in range(TERMS):
                R_O[i] += A[g + i // 2 * 8, k] * B[k, 2 * t + i % 2]
            C[g + i // 2 * 8, 2 * t + i % 2] = R_O[i]

    return product


WAYS: dict[str, Callable[[int], Any]] = {
    "TF32 alone": lambda terms: _by_a_warp(terms, False, terms),
    "three products, one chain": lambda terms: _by_a_warp(terms, True, terms),
    "three products, chains of 16": lambda terms: _by_a_warp(terms, True, CHAIN),
    "float32, a thread alone": _by_threads,
}


@cache
def errors_of_ways() -> dict[str, list[float]]:
    """For each way to multiply the error of sums of ``TERMS`` positive products: the root of the
    mean square, as a part of the sum."""
    random = np.random.default_rng(0)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for terms in TERMS:
        A, B = (random.random(shape, np.float32) for shape in ((M, terms), (terms, N)))
        for way, make in WAYS.items():
            C = np.full((M, N), np.nan, np.float32)
            Simulator(strict=False).launch(make(terms), 1, WARP, A, B, C)
            found[way].append(_error(C, A.astype(np.float64) @ B.astype(np.float64)))
    return found


def _error(found: np.ndarray, exact: np.ndarray) -> float:
    return _mean((found - exact) / exact)


def _mean(errors: np.ndarray) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(errors**2)))


def errors_by_terms() -> Picture:
    """How far off sums are by four ways to multiply, against how many terms they have."""
    errors = errors_of_ways()
    figure, (panel,) = sheet(7.4, 3.1)
    line_chart(panel, TERMS, errors, "error, as a part of the sum")
    panel.set(xscale="log", yscale="log")
    panel.set_xticks(TERMS, [f"{terms} terms" for terms in TERMS])
    panel.set_xticks([], minor=True)
    said = "; ".join(
        f"{way} " + ", ".join(f"{value:.1e}" for value in values) for way, values in errors.items()
    )
    terms = ", ".join(map(str, TERMS))
    caption = (
        "How far sums of products of positive numbers are from the exact ones, on average (root of "
        f"the mean square), computed on the simulator. With {terms} terms: {said}. Less is better."
    )
    return finished(figure, f"Lines of errors against {terms} terms. {said}.", caption)


def errors_of(made: Any, stage: str, problem: ConvProblem) -> tuple[np.ndarray, int]:
    """How far each output is off, as a part of it, M x N, of a stage with ``made`` in the place of
    its own, as for :func:`~convlab.lessons.traced`, and how often warps come to a tensor core."""
    random = np.random.default_rng(0)
    input = random.random(problem.input_shape, np.float32)
    weight = random.random(problem.weight_shape, np.float32)
    bias = np.zeros(problem.C_o, np.float32)
    output = np.full(problem.output_shape, np.nan, np.float32)
    tile = stage_named(stage).tiny_tile
    main, arrays = ready_on((input, weight, bias), output, made, stage, problem, tile)
    calls = []

    def counting(lanes: Any) -> Any:
        calls.append(1)
        return warp_mma(lanes)

    with mock.patch.object(greenlets, "warp_mma", counting):
        Simulator(strict=False).launch(main.kernel, main.grid, main.block, *arrays)
    windows = np.lib.stride_tricks.sliding_window_view(
        input[0].astype(np.float64), (problem.H_f, problem.W_f), axis=(1, 2)
    )
    exact = np.einsum("chwuv,ocuv->ohw", windows, weight.astype(np.float64))
    return ((output[0] - exact) / exact).reshape(problem.M, problem.N), len(calls)


def check_accuracy(made: Any, stage: str, **options: Any) -> Feedback:
    """:func:`convlab.lessons.check`, and whether sums of many terms are as exact as the stage's,
    by as many products on tensor cores."""
    found = check(made, stage, **options)
    if found.result not in ("passed", ANSWER):
        return found
    try:
        errors, products = errors_of(made, stage, LONG)
        before, once = (_mean(errors_of(made, stage, one)[0]) for one in (SHORT, ONE_STEP))
    except (Exception, SystemExit) as error:  # whatever somebody's kernel raises is its result
        return found if not found.passed else graded(broken(found.title, raised_in_words(error)))
    if not found.passed:
        first, *others = found.problems
        advice = _where_to_look(errors, once) or first.advice
        return replace(found, problems=(replace(first, advice=advice), *others))
    yours = _mean(errors)
    ours, fewest = _ours(stage)
    rows = (
        Row("error, parts in a billion", yours * BILLION, ours * BILLION, yours <= AS_FEW * ours),
        Row("products by tensor cores", products, fewest, products <= AS_FEW * fewest),
    )
    found = replace(found, rows=(*found.rows, *rows))
    if not rows[0].ok:
        headline = "Right, but not there yet: it is not as exact as the stage."
        return _told(found, _inexact(yours, before, ours), headline)
    if not rows[1].ok:
        what = f"Too many products by tensor cores: {products} for {fewest}."
        advice = "Small times small is below all that a float32 sum can hold: leave it out."
        headline = "Right, but not there yet: it multiplies more than it should."
        return _told(found, Problem(COUNTS, what, advice=advice), headline)
    return found


def _told(found: Feedback, problem: Problem, headline: str) -> Feedback:
    return graded(replace(found, headline=headline, problems=(problem,)))


@cache
def _ours(stage: str) -> tuple[float, int]:
    errors, products = errors_of(None, stage, LONG)
    return _mean(errors), products


def _where_to_look(errors: np.ndarray, once: float) -> str:
    """What is told of wrong sums of ``LONG``, one tile of s13's, from which of them are wrong;
    ``once`` is how far those of one step are off."""
    if once < RIGHT < _mean(errors):
        return (
            "It is right where a single step of 8 terms is all there is. So the steps are not put "
            "together as they should be: each begins with zeros and adds its part to R_O."
        )
    rows, columns = np.indices(errors.shape)
    quarters = rows // 8 % 2 * 2 + columns // 16 % 2
    told = ""
    for names, groups in (
        ([f"part[{n}]" for n in range(4)], quarters),
        (list("xyzw"), columns % 4),
    ):
        wrong = [name for n, name in enumerate(names) if not _mean(errors[groups == n]) < RIGHT]
        if 0 < len(wrong) < len(names):
            told = f"Wrong are only the sums that come from {', '.join(wrong)}. "
            break
    if _mean(errors) < 2.0**-9:
        told += (
            f"It is nearly right, sums are off by {_mean(errors):.0e} of themselves: large numbers "
            "are multiplied well, but something of the small ones is missing. Are there three "
            "products, each added to the one before, and are both parts where they belong?"
        )
    return told.strip()


def _inexact(yours: float, before: float, ours: float) -> Problem:
    what = (
        f"Sums of {LONG.K} terms are off by {yours:.1e} of themselves on average, the stage's by "
        f"{ours:.1e}."
    )
    if yours > 1.5 * before:
        advice = (
            f"It grows with the number of terms (with {SHORT.K} it is {before:.1e}): the tensor "
            "core cuts each time it adds to a long sum. Begin every step with zeros, and add its "
            "part to R_O by ordinary additions."
        )
    else:
        advice = (
            "It does not grow with the number of terms, so it comes from within a step: a tensor "
            "core cuts what it adds to a large sum. In which order are the three products added?"
        )
    return Problem(ACCURACY, what, advice=advice)
