"""The im2col kernel in the lessons: traced, judged, and what it writes as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from convlab.checking.checker import PROBLEMS
from convlab.checking.loading import in_words, is_kernel
from convlab.checking.records import SPOILED
from convlab.kernels.im2col import THREADS, make_im2col, pitch
from convlab.lessons.exercises import MODEL, On, tried
from convlab.lessons.feedback import ANSWER, Feedback, Problem, Row, graded
from convlab.lessons.pictures import (
    COLOURS,
    FAINT,
    NOBODY,
    Picture,
    cell,
    finished,
    frame,
    limits,
    note,
    sheet,
)
from convlab.lessons.words import (
    AS_FEW,
    broken,
    headline_of,
    in_one_line,
    judged_by_counts,
    not_judged,
    raised_in_words,
)
from convlab.problem import ConvProblem
from convlab.simulation.findings import NotSimulated
from convlab.stage import blocks_for
from convlab.tracing import LaunchTrace, trace

Wanted = Callable[[np.ndarray, ConvProblem], np.ndarray]
TITLE = "your im2col kernel"


def numbered(problem: ConvProblem) -> np.ndarray:
    """An input whose pixels are 1, 2, 3, ..., so that one sees where each went."""
    count = int(np.prod(problem.input_shape))
    return np.arange(1, count + 1, dtype=np.float32).reshape(problem.input_shape)


def traced_im2col(made: Any, problem: ConvProblem) -> LaunchTrace:
    """The trace of ``made(problem, WIDTH, BY_IMAGE)``, all images in one matrix."""
    width = pitch(problem.N)
    columns = np.full(problem.K * width, np.nan, np.float32)
    grid = blocks_for(columns.size, THREADS)
    return trace(made(problem, width, False), grid, THREADS, numbered(problem), columns).main


def _tries(wanted: Wanted) -> Iterator[tuple[str, tuple[Any, ...], On, np.ndarray]]:
    """A problem's name, what the kernel is made for, the launch, and what it has to write."""
    # Nothing is computed with the numbers; what is counted has to have long rows.
    tried_on = {name: one for name, one in PROBLEMS.items() if name != SPOILED}
    for name, problem in {**tried_on, "an ordinary layer": MODEL}.items():
        input = numbered(problem)
        matrix = np.asarray(wanted(input, problem), np.float32)
        width = pitch(problem.N)
        rows = np.zeros((problem.K, width), np.float32)
        rows[:, : problem.N] = matrix
        by_image = matrix.reshape(problem.K, problem.N_i, -1).transpose(1, 0, 2)
        for right, made_for in (
            (rows, (problem, width, False)),
            (by_image, (problem, problem.N, True)),
        ):
            grid = blocks_for(right.size, THREADS)
            yield name, made_for, On(grid, THREADS, (input,)), right.reshape(-1).copy()


def check_im2col(made: Any, wanted: Wanted) -> Feedback:
    """Judge ``made``, a function like ``make_im2col(problem, WIDTH, BY_IMAGE)``: its kernel must
    write what ``wanted(input, problem)`` gives, the K x N matrix, and ask memory for no more than
    the stages' own does. Nothing that is wrong with it raises."""
    if unready := not_judged(TITLE, made):
        return graded(unready)
    problems: dict[Any, Problem] = {}
    counts = np.zeros((2, 2), int)
    names: dict[str, bool] = {}
    for name, made_for, launch, right in _tries(wanted):
        try:
            kernel = made(*made_for)
        except (Exception, SystemExit) as error:
            return graded(broken(TITLE, f"{made.__name__} raised {in_words(error)}"))
        if not is_kernel(kernel):
            what = f"{made.__name__} returned {kernel!r}: it must be a kernel"
            return graded(broken(TITLE, what))
        try:
            theirs, wrong = tried(kernel, launch, right)
        except NotSimulated as error:
            return graded(broken(TITLE, in_one_line(error)))
        except (Exception, SystemExit) as error:  # whatever somebody's kernel raises is its result
            return graded(broken(TITLE, raised_in_words(error)))
        for key, problem in wrong.items():
            if key == ANSWER:
                problem = Problem(ANSWER, f"On {name!r} ({made_for[0]}): {problem.what}")
            problems.setdefault(key, problem)
        names[name] = names.get(name, True) and ANSWER not in wrong
        ours, _ = tried(make_im2col(*made_for), launch, right)
        counts += [[one.total(unit) for unit in ("requests", "sectors")] for one in (theirs, ours)]
    if problems:
        first = [problems.pop(ANSWER)] if ANSWER in problems else []
        found = (*first, *problems.values())
        right_on = sum(names.values())
        said = (f"the matrix is right on {right_on} of {len(names)} problems",) * bool(right_on)
        return graded(Feedback(TITLE, headline_of(found), found, said))
    units = ("requests to", "sectors of")
    rows = [
        Row(f"{unit} global memory", yours, target, yours <= AS_FEW * target)
        for unit, (yours, target) in zip(units, counts.T.tolist(), strict=True)
    ]
    answers = (f"the matrix is what NumPy gives, on {len(names)} problems",)
    return graded(judged_by_counts(TITLE, answers, rows))


def windows_written_out(problem: ConvProblem, column: int) -> Picture:
    """The input and the matrix that the stages' im2col kernel writes of it, pixel by pixel, with
    the window of output pixel ``column`` and its column framed. For one image without padding or
    dilation."""
    input = numbered(problem)
    width = pitch(problem.N)
    columns = np.full(problem.K * width, np.nan, np.float32)
    grid = blocks_for(columns.size, THREADS)
    trace(make_im2col(problem, width, False), grid, THREADS, input, columns)
    matrix = columns.reshape(problem.K, width).astype(int)
    marked = set(matrix[:, column].tolist())
    labels = [f"r={r} u={u} v={v}" for r, u, v in np.ndindex(problem.C_i, problem.H_f, problem.W_f)]
    left = problem.W_i + 6.5
    high = max(problem.C_i * (problem.H_i + 2), problem.K + 2)
    figure, (panel,) = sheet((left + width + 1) * 0.3, (high + 1.2) * 0.3)
    limits(panel, (-0.5, left + width + 0.5), (-2.2, high - 1))
    places = problem.H_i * problem.W_i

    def box(x: float, y: float, pixel: int) -> None:
        if not pixel:
            cell(panel, x, y, NOBODY, "0")
            return
        plain = (COLOURS[0], COLOURS[2])[(pixel - 1) // places % 2]
        cell(panel, x, y, COLOURS[1] if pixel in marked else plain, str(pixel), size=8)

    for channel in range(problem.C_i):
        top = channel * (problem.H_i + 2)
        note(panel, 0, top - 0.7, f"input[0, {channel}]", 9)
        for (row, across), pixel in np.ndenumerate(input[0, channel]):
            box(across, top + row, int(pixel))
    note(panel, left, -1.7, "column n of the matrix", 9)
    for n in range(problem.N):
        note(panel, left + n + 0.5, -0.6, str(n), 8, ha="center")
    for k, label in enumerate(labels):
        note(panel, left - 0.3, k + 0.5, label, 8, ha="right", family="monospace")
        for n in range(width):
            if n < problem.N:
                box(left + n, k, int(matrix[k, n]))
            else:
                cell(panel, left + n, k, NOBODY, hatch="////", edge=FAINT)
    row, across = divmod(column, problem.W_o)
    frame(panel, left + column, 0, 1, problem.K)
    for channel in range(problem.C_i):
        # Without dilation or padding, a window is a rectangle of the input.
        down = channel * (problem.H_i + 2) + row * problem.s_h
        frame(panel, across * problem.s_w, down, *reversed(problem.window_shape))
    copies = np.bincount(matrix[:, : problem.N].reshape(-1))[1:]
    alt = (
        f"Left {problem.C_i} channels of {problem.H_i} x {problem.W_i} numbered pixels, right the "
        f"matrix of {problem.K} rows and {problem.N} columns, each a window of the input"
    )
    caption = (
        f"Left the input, its pixels numbered; right the matrix that the kernel wrote of it. "
        f"Framed is what output pixel {column} (row {row}, column {across}) sees: a window of each "
        f"channel there, column {column} here. Its pixels are orange wherever they were copied to, "
        "for neighbouring windows share them. Each row is one term: channel r, filter row u, "
        f"filter column v. {input.size} pixels became {problem.K * problem.N} numbers; a pixel is "
        f"there up to {copies.max()} times. Hatched columns only round the rows' length up."
    )
    return finished(figure, alt, caption)
