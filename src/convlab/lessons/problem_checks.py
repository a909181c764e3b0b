"""Checks of functions that make a kernel for a problem: an im2col transform, a gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from convlab.checking.common_causes import (
    OF_PROBLEMS,
    Launched,
    features,
    numbers_in,
    said,
    shared,
)
from convlab.checking.launches import PROBLEMS, main_of
from convlab.checking.loading import is_kernel
from convlab.checking.loop_limits import ITERATIONS, TIMES
from convlab.checking.outcome import SPOILED
from convlab.ladder import BACKWARD, Tile
from convlab.ladder.im2col.im2col_gemm import THREADS, make_im2col, pitch
from convlab.ladder.stage import blocks_for
from convlab.lessons import feedback
from convlab.lessons.compiling import cause_of_error, compile_mistake, types_of
from convlab.lessons.exercises import MODEL, PADDED_ROWS, PICTURE_SECONDS, ROWS, numbered, ready_for
from convlab.lessons.explanations import lines_of
from convlab.lessons.feedback import ANSWER, MEMORY, Feedback, Hint, Mistake, Row
from convlab.lessons.kernel_checks import tried, with_exchanges
from convlab.lessons.kernel_counts import UNITS
from convlab.lessons.kernel_text import branched_stores
from convlab.lessons.launches_tried import On, Tried
from convlab.lessons.limits import broken, graded, running
from convlab.lessons.plain_im2win import BLOCK, make_packing, make_transform, whole_im2win
from convlab.lessons.progress_line import say_progress, within
from convlab.lessons.readiness import SOME_TO_DO, is_to_do, ready
from convlab.lessons.stage_checks import check
from convlab.lessons.traffic_hints import most_of
from convlab.problems.gradient import Gradient
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import reference
from convlab.simulation.recording.loops import Loops
from convlab.tracing import LaunchTrace, trace, trace_launch

IN_GROUPS = ConvProblem(2, 4, 5, 6, 6, (3, 2), (1, 2), 1, groups=2)
MOST_EXCHANGED = 3  # wrong launches on which exchanged names are tried
MANY_TERMS = 10**5  # of a problem: more take seconds
FLOAT4_BYTES = 16
FLOAT4S = "load4(array, place) loads four neighbours at once; place must be a multiple of four."
# That a filter is packed for: M_B and K_B are as different as they can be.
LAYOUT_TILES = Tile(16, 8, 4, 4, 4), Tile(12, 8, 20, 4, 4)
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
def check_layout(made: Any, wanted: Callable[..., np.ndarray], of: str) -> Feedback:
    """Check a layout transform of im2win ``of`` the ``"input"`` or the ``"weight"``.

    ``made(problem)`` makes the kernel that writes the im2win tensor, ``made(problem, tile)`` that
    which packs the filter. It must write what ``wanted``, with the tensor and the same arguments,
    returns, with no more memory traffic than a plain kernel.
    """
    small = {name: one for name, one in PROBLEMS.items() if one.K * one.N < MANY_TERMS}
    return _on_problems(made, _layouts(wanted, of), "the layout is", small)


def _layouts(wanted: Callable[..., np.ndarray], of: str) -> Callable[[ConvProblem], Iterator[Case]]:
    """Return the cases of a layout transform of im2win, by problem."""

    def case(source: np.ndarray, own: Any, *arguments: Any) -> Case:
        right = np.asarray(wanted(source, *arguments), np.float32).reshape(-1)
        return arguments, On(blocks_for(right.size, BLOCK), BLOCK, (source,)), right, own

    def of_input(problem: ConvProblem) -> Iterator[Case]:
        yield case(numbered(problem), make_transform(problem), problem)

    def of_weight(problem: ConvProblem) -> Iterator[Case]:
        numbers = np.arange(1, problem.M * problem.K + 1, dtype=np.float32)
        filters = numbers.reshape(problem.weight_shape)
        for tile in LAYOUT_TILES:
            yield case(filters, make_packing(problem, tile), problem, tile)

    return of_input if of == "input" else of_weight


@graded
def check_im2win(
    transform: Any, packing: Any, kernel: Any, *, windows: Callable[..., np.ndarray],
    packed: Callable[..., np.ndarray], at_most: float,
) -> Feedback:  # fmt: skip
    """Check the three functions of a whole im2win: each layout, then all together as m11.

    The layouts must be those that ``windows`` and ``packed`` return, as for :func:`check_layout`.
    The memory traffic may be ``at_most`` times that of m11, and every load of the two layouts must
    be a float4 load.
    """
    layouts = ((transform, windows, "input"), (packing, packed, "weight"))
    right: tuple[str, ...] = ()
    todo: tuple[str, ...] = ()
    for made, wanted, of in layouts:
        name = getattr(made, "__name__", str(made))
        if is_to_do(made):
            todo += (f"{name}: not filled in yet",)
            continue
        with within(name):
            found = check_layout(made, wanted, of)
        if not found.passed:
            before = (*right, *(f"{name}: {one}" for one in found.right))
            return replace(found, right=before, todo=todo)
        right += tuple(f"{name}: {one}" for one in found.right)
    if is_to_do(kernel):
        todo += (f"{getattr(kernel, '__name__', kernel)}: not filled in yet",)
    if todo and right:
        return Feedback(SOME_TO_DO, right=right, todo=todo)
    for made in (transform, packing, kernel):
        ready(made)
    whole = whole_im2win(transform, packing, kernel)
    with within("all three together"):
        found = check(whole, "m11", at_most=at_most)
    right += found.right
    if not found.passed:
        return replace(found, right=right)
    row, hint = _scalar_loads(whole)
    return feedback.checked_by_counts(right, (*found.rows, row), {MEMORY: hint}, found.notes)


def _scalar_loads(whole: Any) -> tuple[Row, Hint]:
    """Return the row of the scalar loads of both layouts, and the hint with their lines."""
    with running(seconds=PICTURE_SECONDS):
        main, arrays = ready_for(whole, "m11", MODEL, None, random_tensors(MODEL, 0))
        launch = trace_launch(main, arrays)
    layouts = inspect.getfullargspec(main.kernel.py_func).args[:2]
    scalar = [
        one
        for one in launch.accesses
        if one.array in layouts and one.operation == "load" and one.width < FLOAT4_BYTES
    ]
    row = feedback.row_of("scalar loads of the layouts", sum(one.lanes for one in scalar), 0)
    lines = lines_of(*((one.file, one.line) for one in scalar), kernel=main.kernel)
    return row, Hint(FLOAT4S, lines)


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
    mistakes: dict[Any, Mistake] = {}
    counts = np.zeros((2, 2), int)  # of requests and sectors, the learner's and ours
    traces: tuple[list[LaunchTrace], list[LaunchTrace]] = ([], [])
    tried_on = {name: one for name, one in tried_on.items() if name != SPOILED}
    tried_on["an ordinary layer"] = MODEL
    if ROWS in tried_on:
        tried_on[ROWS] = PADDED_ROWS
    wrong: list[ConvProblem] = []
    failed: list[tuple[ConvProblem, Any, Tried]] = []  # the problems' kernels and launches
    tiles: dict[ConvProblem, Tile] = {}  # the lowest with which a filter is packed
    in_turn = sorted(tried_on.items(), key=lambda item: numbers_in(item[1]))
    for number, (name, problem) in enumerate(in_turn, 1):
        say_progress(name, number, len(in_turn))
        for arguments, launch, right, own in cases(problem):
            with running(f"{made.__name__}: "):
                kernel = made(*arguments)
            if not is_kernel(kernel):
                raise broken(f"{made.__name__} returned {kernel!r}: it must be a kernel")
            for tile in (one for one in arguments if isinstance(one, Tile)):
                tiles[problem] = min(tile, tiles.get(problem, tile), key=lambda one: one.M_B)
            types = types_of((*launch.inputs, right))
            counter = Loops()
            most = counter.left
            ours = tried(own, launch, right, loops=counter).trace
            loops = Loops(ITERATIONS + TIMES * (most - counter.left))
            with running(instead=partial(cause_of_error, kernel, types)):
                has = f"{name!r} ({problem}), which has {features(problem)}"
                theirs = tried(kernel, launch, right, loops=loops, where=f"This is on {has}.")
            found = dict(theirs.mistakes)
            if (answer := found.get(ANSWER)) is not None:
                on = f"On {has}: {answer.what}"
                found[ANSWER] = replace(answer, what=on)
            if (answer is not None or not theirs.ended) and problem not in wrong:
                wrong.append(problem)
                failed.append((problem, kernel, theirs))
            for reason, mistake in found.items():  # the first of each kind stays
                mistakes.setdefault(reason, mistake)
            counts += [[one.total(unit) for one in (theirs.trace, ours)] for unit in UNITS]
            traces[0].append(theirs.trace)
            traces[1].append(ours)
    if not mistakes and (refused := compile_mistake(kernel, types)) is not None:
        mistakes[refused.cause] = refused
    count = len(tried_on)
    if mistakes:
        cases_of = [Launched(one, tiles.get(one), 1) for one in tried_on.values()]
        right_ones = [one for one in cases_of if one.problem not in wrong]
        if (answer := mistakes.get(ANSWER)) is not None:
            wrong_ones = [one for one in cases_of if one.problem in wrong]
            names = shared(wrong_ones, right_ones, OF_PROBLEMS)
            told = f"{answer.what} {said(names, len(wrong), 'problems')}".strip()
            mistakes[ANSWER] = replace(answer, what=told)
        # Problems that have most, so that no other exchange is right on them by chance.
        failed.sort(key=lambda one: (-features(one[0]).count(","), numbers_in(one[0])))
        hardest = [(kernel, one) for _, kernel, one in failed[:MOST_EXCHANGED]]
        mistakes = with_exchanges(hardest, mistakes)
        right_on: list[str] = []
        if right_ones:
            right_on.append(f"{what} right on {len(right_ones)} of {count} problems")
        told_wrong = feedback.with_mistakes(mistakes.values(), right_on)
        if wrong and told_wrong.headline == feedback.ON_A_GPU:  # right on some problems only
            return replace(told_wrong, headline=feedback.NO_ANSWER)
        return told_wrong
    told_right = (f"{what} what NumPy gives, on {count} problems",)
    pairs = zip(UNITS.values(), counts.tolist(), strict=True)
    rows = [feedback.row_of(unit, *pair) for unit, pair in pairs]
    hints = {}
    if too_many := [unit for unit, row in zip(UNITS, rows, strict=True) if not row.ok]:
        hints[MEMORY] = most_of(kernel, traces[0], too_many[-1], traces[1])
    notes = branched_stores(inspect.unwrap(made))
    return feedback.checked_by_counts(told_right, rows, hints, notes)
