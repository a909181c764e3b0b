"""Checks of functions that make a kernel for a problem: an im2col transform, a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from convlab.checking.launches import PROBLEMS, main_of
from convlab.checking.loading import is_kernel
from convlab.checking.outcome import SPOILED
from convlab.ladder import BACKWARD
from convlab.ladder.im2col.im2col_gemm import THREADS, make_im2col, pitch
from convlab.ladder.stage import blocks_for
from convlab.lessons import feedback
from convlab.lessons.exercises import MODEL, numbered
from convlab.lessons.feedback import Feedback, Problem
from convlab.lessons.kernel_checks import UNITS, On, tried
from convlab.lessons.limits import broken, graded, running
from convlab.lessons.readiness import ready
from convlab.problems.gradient import Gradient
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import reference
from convlab.tracing import LaunchTrace, trace

IN_GROUPS = ConvProblem(2, 4, 5, 6, 6, (3, 2), (1, 2), 1, groups=2)
MANY_TERMS = 10**5  # of a problem: more take seconds
# Of one problem: arguments for a learner's function, what its kernel is launched on, what that must
# write, and a kernel of ours for the same.
Case = tuple[tuple[Any, ...], On, np.ndarray, Any]


def traced_im2col(made: Any, problem: ConvProblem) -> LaunchTrace:
    """Return the trace of ``made(problem, WIDTH, BY_IMAGE)``, all images in one matrix."""
    width = pitch(problem.N)
    columns = np.full(problem.K * width, np.nan, np.float32)
    grid = blocks_for(columns.size, THREADS)
    return trace(made(problem, width, False), grid, THREADS, numbered(problem), columns).main


@graded
def check_im2col(made: Any, wanted: Callable[[np.ndarray, ConvProblem], np.ndarray]) -> Feedback:
    """Check ``made``, a function like ``make_im2col(problem, WIDTH, BY_IMAGE)``.

    Its kernel must write the K x N matrix that ``wanted(input, problem)`` returns, with no more
    memory traffic than the stages' own kernel."""

    def cases(problem: ConvProblem) -> Iterator[Case]:
        input, width = numbered(problem), pitch(problem.N)
        matrix = np.asarray(wanted(input, problem), np.float32)
        rows = np.pad(matrix, ((0, 0), (0, width - problem.N)))
        by_image = matrix.reshape(problem.K, problem.N_i, -1).transpose(1, 0, 2)
        for right, layout in ((rows, (width, False)), (by_image, (problem.N, True))):
            launch = On(blocks_for(right.size, THREADS), THREADS, (input,))
            yield (problem, *layout), launch, right.reshape(-1), make_im2col(problem, *layout)

    # Nothing is computed with the numbers; what is counted has to have long rows.
    return _on_problems(made, cases, "the matrix is", PROBLEMS)


@graded
def check_gradient(made: Any, of: str) -> Feedback:
    """Check ``made``, a function like g01's ``make_input_kernel(gradient)``.

    Its kernel must write the gradient ``of`` the ``"input"`` or the ``"weight"``, with no more
    memory traffic than g01's."""

    def cases(problem: ConvProblem) -> Iterator[Case]:
        gradient = Gradient(problem, of)  # type: ignore[arg-type]
        first, second, _ = random_tensors(gradient, 0, bias=False, integers=True)
        own = main_of(BACKWARD[0].prepare(gradient))
        right = reference(gradient, first, second).astype(np.float32)
        yield (gradient,), On(own.grid, own.block, (first, second)), right, own.kernel

    small = {name: one for name, one in PROBLEMS.items() if one.K * one.N < MANY_TERMS}
    return _on_problems(made, cases, "the gradient is", small | {"two groups": IN_GROUPS})


def _on_problems(
    made: Any, cases: Callable[[ConvProblem], Iterable[Case]], what: str,
    tried_on: Mapping[str, ConvProblem],
) -> Feedback:  # fmt: skip
    """Check a function that makes a kernel on all cases of each problem.

    ``what`` begins the sentence that says what is right."""
    ready(made)
    problems: dict[Any, Problem] = {}
    counts = np.zeros((2, 2), int)  # of requests and sectors, the learner's and ours
    tried_on = {name: one for name, one in tried_on.items() if name != SPOILED}
    tried_on["an ordinary layer"] = MODEL
    wrong_on = set()
    for name, problem in sorted(tried_on.items(), key=lambda item: item[1].N * item[1].K):
        for arguments, launch, right, own in cases(problem):
            with running(f"{made.__name__}: "):
                kernel = made(*arguments)
            if not is_kernel(kernel):
                raise broken(f"{made.__name__} returned {kernel!r}: it must be a kernel")
            with running():
                theirs, wrong, _ = tried(kernel, launch, right)
            if (answer := wrong.get(feedback.ANSWER)) is not None:
                wrong_on.add(name)
                on = f"On {name!r} ({problem}): {answer.what}"
                wrong[feedback.ANSWER] = replace(answer, what=on)
            problems = problems | wrong | problems  # the first of each kind
            ours, *_ = tried(own, launch, right)
            counts += [[one.total(unit) for one in (theirs, ours)] for unit in UNITS]
    count = len(tried_on)
    if problems:
        said = f"{what} right on {count - len(wrong_on)} of {count} problems"
        return feedback.with_problems(problems.values(), (said,) * (len(wrong_on) < count))
    told = (f"{what} what NumPy gives, on {count} problems",)
    pairs = zip(UNITS.values(), counts.tolist(), strict=True)
    return feedback.checked_by_counts(told, [feedback.row_of(unit, *pair) for unit, pair in pairs])
