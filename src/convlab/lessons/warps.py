"""What the lanes of a warp bring to a tensor core and take from it: as a picture, and checked.

Kernels multiply ``A``, of 16 rows or fewer and 8 columns, by ``B``, 8 x 8, with one warp. Their
elements are numbered, so that one sees of every number that a lane brings which element it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from numba import cuda, float32

from convlab.checking.loading import is_kernel
from convlab.device import mma_tf32
from convlab.device.products import WARP, K, M, N, warp_mma
from convlab.lessons.exercises import On, tried
from convlab.lessons.feedback import ANSWER, COUNTS, Feedback, Problem, graded
from convlab.lessons.pictures import COLOURS, INK, NOBODY, Grid, Picture, spans
from convlab.lessons.words import (
    broken,
    headline_of,
    in_one_line,
    raised_in_words,
    to_be_filled,
    unfilled,
)
from convlab.simulation import greenlets
from convlab.simulation.findings import NotSimulated
from convlab.tracing import LaunchTrace

TITLE = "your kernel for one warp"
STOPPED = "Not yet: it could not be run to its end."
ONE_WARP = "once by each lane, for all that a warp has to do here"
Place = tuple[str, int, int]  # of an element: matrix, row, column
NOWHERE: Place = ("", -1, -1)


@cuda.jit
def _one_warp(A, B, C):  # type: ignore[no-untyped-def]
    """``C = A @ B``: what the picture shows where nobody hands over a kernel."""
    g, t = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    zero = float32(0)
    a = (A[g, t], A[g + 8, t], A[g, t + 4], A[g + 8, t + 4])
    d = mma_tf32(a, (B[t, g], B[t + 4, g]), (zero, zero, zero, zero))
    C[g, 2 * t], C[g, 2 * t + 1], C[g + 8, 2 * t], C[g + 8, 2 * t + 1] = d


@dataclass(frozen=True)
class Products:
    """What lanes brought to each of a launch's calls of ``mma_tf32``: by lane, (a, b, c)."""

    launch: LaunchTrace
    wrong: dict[Any, Problem]
    output: np.ndarray
    calls: Sequence[dict[int, Any]]


def numbered_matrices(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A and B, whose elements are 1, 2, 3, ..., no number twice: TF32 holds them all."""
    numbers = np.arange(1, rows * K + K * N + 1, dtype=np.float32)
    return numbers[: rows * K].reshape(rows, K), numbers[rows * K :].reshape(K, N)


def products_of(kernel: Any, A: np.ndarray, B: np.ndarray) -> Products:
    """Launch ``kernel(A, B, C)`` with one warp, and listen. Raises whatever it raises."""
    calls: list[dict[int, Any]] = []
    written: list[np.ndarray] = []

    def listening(lanes: Any) -> Any:
        calls.append(dict(lanes))
        return warp_mma(lanes)

    with mock.patch.object(greenlets, "warp_mma", listening):
        launch, wrong = tried(kernel, On(1, WARP, (A, B)), A @ B, written)
    return Products(launch, wrong, written[0], calls)


def wanted_of(name: str, lane: int) -> list[Place]:
    """Which elements a lane holds of what PTX calls a, b and c, in order."""
    g, t = divmod(lane, 4)
    return {
        "a": [("A", g, t), ("A", g + 8, t), ("A", g, t + 4), ("A", g + 8, t + 4)],
        "b": [("B", t, g), ("B", t + 4, g)],
        "c": [("C", g, 2 * t), ("C", g, 2 * t + 1), ("C", g + 8, 2 * t), ("C", g + 8, 2 * t + 1)],
    }[name]


def who_holds_what(kernel: Any = None, rows: int = M, lane: int = 5) -> Picture:
    """The matrices of a product, with the lane that brings each element of A and B and the one that
    writes each of C, as ``kernel(A, B, C)`` does it, by default one that is right; framed what
    ``lane`` holds. Grey is what nobody brings or writes."""
    A, B = numbered_matrices(rows)
    found = products_of(kernel or _one_warp, A, B)
    names = _names(A, B)
    held: dict[Place, list[int]] = {}
    for one, (a, b, _) in found.calls[0].items() if found.calls else ():
        for number in (*a, *b):
            if (place := names.get(float(number))) is not None:
                held.setdefault(place, []).append(one)
    for request in found.launch.requests:
        if (request.array, request.operation) == ("C", "store"):
            for one, offset in zip(request.lanes, request.offsets, strict=True):
                held.setdefault(("C", *divmod(offset // 4, N)), []).append(one)
    gap = 2.2
    grid = Grid()
    at = {"A": (0.0, K + gap, rows), "B": (K + gap, 0.0, K), "C": (K + gap, K + gap, rows)}
    for matrix, (left, top, count) in at.items():
        grid.note(left, top - 1.45, f"{matrix}: {count} x 8", 10, weight="bold")
        for index in range(8):
            grid.note(left + index + 0.5, top - 0.4, str(index), 7.5, ha="center", color=INK)
        for row in range(count):
            grid.note(left - 0.2, top + row + 0.5, str(row), 7.5, ha="right", color=INK)
            for column in range(8):
                lanes = held.get((matrix, row, column), [])
                text = "" if not lanes else str(lanes[0]) if len(lanes) == 1 else f"x{len(lanes)}"
                colour = COLOURS[lanes[0] // 4] if lanes else NOBODY
                grid.cell(left + column, top + row, colour, text, size=8.5)
    mine = sorted(place for place, lanes in held.items() if lane in lanes)
    for matrix, row, column in mine:
        grid.frame(at[matrix][0] + column, at[matrix][1] + row, 1, 1)
    present = sorted(found.calls[0]) if found.calls else []
    said = ", ".join(map(_said, mine)) or "nothing"
    who = f"lane {lane} (g = {lane // 4}, t = {lane % 4})"
    alt = (
        f"Three matrices: A {rows} x 8, B 8 x 8 and C {rows} x 8. {len(present)} lanes come to the "
        f"product; {who} holds {said}"
    )
    caption = (
        "The number in a box is the lane that brings this element of A or B, or that gets this "
        "element of C and writes it, as the simulator saw it; a colour is a g = lane // 4. "
        f"Framed: {who} holds {said}."
    )
    if missing := sorted(set(range(WARP)) - set(present)):
        caption += f" Lanes {spans(missing)} do not come: what they should bring is nowhere."
    return grid.finished(alt, caption)


def _names(A: np.ndarray, B: np.ndarray) -> dict[float, Place]:
    both = (("A", A), ("B", B))
    return {float(v): (name, *place) for name, x in both for place, v in np.ndenumerate(x)}


def _said(place: Place) -> str:
    return f"{place[0]}[{place[1]}, {place[2]}]"


def check_one_warp(kernel: Any, rows: Sequence[int] = (M,)) -> Feedback:
    """Check ``kernel(A, B, C)``, launched with one warp: it must write ``A @ B`` for A of these
    numbers of rows, in one call of ``mma_tf32``, and the simulator find nothing. Nothing that is
    wrong with it raises."""
    if lines := unfilled(kernel):
        return graded(to_be_filled(TITLE, lines))
    if not is_kernel(kernel):
        what = f"this is {kernel!r}: it must be a kernel, a function below @cuda.jit"
        return graded(broken(TITLE, what))
    problems: dict[Any, Problem] = {}
    stopped = False  # before anything was computed
    for A, B in _tries(rows):
        try:
            found = products_of(kernel, A, B)
        except NotSimulated as error:
            return graded(broken(TITLE, in_one_line(error)))
        except (Exception, SystemExit) as error:  # whatever somebody's kernel raises is its result
            return graded(broken(TITLE, raised_in_words(error)))
        stopped = bool(found.launch.findings and not found.calls)
        for key, problem in found.wrong.items():
            if key != ANSWER:
                problems.setdefault(key, problem)
            elif not stopped:
                problems.setdefault(key, next(_told(found, A, B), problem))
        if len(found.calls) != 1 and not found.wrong:
            what = f"The warp comes to mma_tf32 {len(found.calls)} times; it must come {ONE_WARP}."
            problems.setdefault(COUNTS, Problem(COUNTS, what))
    if problems:
        first = [problems.pop(ANSWER)] if ANSWER in problems else []
        told = (*first, *problems.values())
        headline = STOPPED if stopped and not first else headline_of(told)
        return graded(Feedback(TITLE, headline, told))
    said = ", ".join(map(str, rows))
    right = (f"C is A @ B, for A of {said} rows", "every lane brings and writes what is its own")
    return graded(Feedback(TITLE, "Passed.", (), right))


def _tries(rows: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Numbered matrices first, because of these one can say what went wrong."""
    random = np.random.default_rng(0)
    for count in rows:
        yield numbered_matrices(count)
        A, B = random.integers(-9, 10, (count, K)), random.integers(-9, 10, (K, N))
        yield A.astype(np.float32), B.astype(np.float32)


HOW = {
    "a": "a[1] is 8 rows below a[0], a[2] four columns to the right of it, a[3] both.",
    "b": "b[0] is in row t and column g of B, b[1] four rows below it.",
    "c": "A lane's sums are two neighbours in row g, columns 2 * t and 2 * t + 1, and the two 8 "
    "rows below them.",
}


def _told(found: Products, A: np.ndarray, B: np.ndarray) -> Iterator[Problem]:
    """Why the answer is wrong: what lanes bring, then what they start from, then what they do
    with the sums."""
    if not found.calls:
        yield Problem(ANSWER, "No lane comes to mma_tf32.")
        return
    names, (lanes, *_) = _names(A, B), found.calls
    if missing := sorted(set(range(WARP)) - set(lanes)):
        columns = spans([lane // 4 for lane in missing])
        what = (
            f"Lanes {spans(missing)} do not come to mma_tf32, so what they hold of B (of columns "
            f"{columns}) is missing in everybody's sums."
        )
        yield Problem(ANSWER, what)
        return
    for which, name in enumerate("ab"):
        for number in range(len(wanted_of(name, 0))):
            wrong = []
            for lane, brought in sorted(lanes.items()):
                matrix, row, column = wanted_of(name, lane)[number]
                there = (A if matrix == "A" else B).shape
                got = float(brought[which][number])
                if row < there[0] and got != (A if matrix == "A" else B)[row, column]:
                    wrong.append((lane, got, (matrix, row, column)))
            if wrong and len(names) == A.size + B.size:
                yield _wrong_number(f"{name}[{number}]", wrong, names, len(lanes), HOW[name])
    if starts := [one for one in lanes.items() if any(value != 0 for value in one[1][2])]:
        lane, (_, _, c) = starts[0]
        yield Problem(ANSWER, f"Lane {lane} begins its sums with {c[0]:g}: they begin with zeros.")
    yield from _wrongly_written(found.output, A @ B)


def _wrong_number(
    name: str, wrong: Sequence[tuple[int, float, Place]], names: dict[float, Place], count: int,
    how: str,
) -> Problem:  # fmt: skip
    lane, got, wanted = wrong[0]
    brought = _said(names[got]) if got in names else f"{got:g}, which is in neither matrix,"
    what = (
        f"Lane {lane} (g = {lane // 4}, t = {lane % 4}) brings {brought} as {name}; wanted is "
        f"{_said(wanted)}. {len(wrong)} of {count} lanes bring a wrong {name}."
    )
    pairs = [(names.get(value, NOWHERE), place) for _, value, place in wrong]
    turned = all(found[1:] == (place[2], place[1]) for found, place in pairs)
    other = all(found[0] not in (place[0], "") for found, place in pairs)
    advice = "Rows and columns are exchanged." if turned else how
    return Problem(ANSWER, what, advice="That is of the other matrix." if other else advice)


def _wrongly_written(output: np.ndarray, right: np.ndarray) -> Iterator[Problem]:
    wrong = [place for place in np.ndindex(right.shape) if output[place] != right[place]]
    if not wrong:
        return
    row, column = wrong[0]
    got = output[row, column]
    where = [place for place in np.ndindex(right.shape) if right[place] == got]
    if np.isnan(got):
        said = "holds nothing: nobody wrote to it, or what was no number"
    elif len(where) == 1:
        said = f"holds what belongs into C[{where[0][0]}, {where[0][1]}]"
    else:
        said = f"is {got:g}, wanted is {right[row, column]:g}"
    what = (
        f"The lanes bring what they must, but {len(wrong)} of {right.size} sums are wrong: "
        f"C[{row}, {column}] {said}."
    )
    yield Problem(ANSWER, what, advice=HOW["c"])
