"""Pictures and checks of one ``mma_tf32``: the elements that each lane holds.

Kernels of one warp multiply ``A``, of 16 rows or fewer and 8 columns, by ``B``, 8 x 8. Their
elements are numbered, so a lane's number tells which element it is. Everything is computed on the
simulator, whose tensor cores give the results of an H200's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numba import cuda, float32

from convlab.checking.loading import is_kernel
from convlab.device import mma_tf32
from convlab.device.products import WARP, K, M, N, split_into_tf32, warp_mma
from convlab.lessons import feedback, pictures
from convlab.lessons.compiling import cause_of_error, compile_mistake, types_of
from convlab.lessons.feedback import ANSWER, BROKEN, COUNTS, Feedback, Mistake
from convlab.lessons.kernel_checks import tried
from convlab.lessons.launches_tried import On
from convlab.lessons.limits import graded, running
from convlab.lessons.maps import elements_of
from convlab.lessons.pictures import COLOURS, FAINT, NOBODY, Grid, Picture, joined, spans
from convlab.lessons.readiness import ready
from convlab.simulation.threads import warp_calls
from convlab.tracing import LaunchTrace

MatrixElement = tuple[str, int, int]  # matrix, row, column
NOWHERE: MatrixElement = ("", -1, -1)


@cuda.jit
def _one_warp(A, B, C):  # type: ignore[no-untyped-def]
    """Compute ``C = A @ B`` by one warp: the kernel of the picture if no other is given."""
    group_id, thread_in_group = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    zero = float32(0)
    left = A[group_id, thread_in_group], A[group_id + 8, thread_in_group]
    right = A[group_id, thread_in_group + 4], A[group_id + 8, thread_in_group + 4]
    b = B[thread_in_group, group_id], B[thread_in_group + 4, group_id]
    d = mma_tf32((*left, *right), b, (zero, zero, zero, zero))
    C[group_id, 2 * thread_in_group], C[group_id, 2 * thread_in_group + 1] = d[0], d[1]
    C[group_id + 8, 2 * thread_in_group], C[group_id + 8, 2 * thread_in_group + 1] = d[2], d[3]


class Products(NamedTuple):
    """A launch and its calls of ``mma_tf32``: the operands (a, b, c) by lane.

    ``names`` are the elements of A and B by their numbers.
    """

    launch: LaunchTrace
    wrong: dict[Any, Mistake]
    output: np.ndarray
    calls: Sequence[dict[int, Any]]
    names: dict[float, MatrixElement]


def numbered_matrices(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B with the elements 1, 2, 3, ..., each once; TF32 holds them all."""
    numbers = np.arange(1, rows * K + K * N + 1, dtype=np.float32)
    return numbers[: rows * K].reshape(rows, K), numbers[rows * K :].reshape(K, N)


def products_of(kernel: Any, A: np.ndarray, B: np.ndarray) -> Products:
    """Launch ``kernel(A, B, C)`` with one warp and record its products. Raises what it raises."""
    with mock.patch.object(warp_calls, "warp_mma", wraps=warp_mma) as heard:
        launch = tried(kernel, On(1, WARP, (A, B)), A @ B)
    calls = [call.args[0] for call in heard.call_args_list]
    names = {
        float(number): (name, *element)
        for name, matrix in (("A", A), ("B", B))
        for element, number in np.ndenumerate(matrix)
    }
    return Products(launch.trace, launch.mistakes, launch.output, calls, names)


OPERANDS = ("a[0]", "a[1]", "a[2]", "a[3]", "b[0]", "b[1]")  # as PTX numbers them


def wanted_of(lane: int) -> list[MatrixElement]:
    """Return the element of A or B that a lane must pass as each of ``OPERANDS``."""
    group_id, thread_in_group = divmod(lane, 4)
    of_a = [("A", group_id + i, thread_in_group + k) for k in (0, 4) for i in (0, 8)]
    return [*of_a, *(("B", thread_in_group + k, group_id) for k in (0, 4))]


def who_holds_what(kernel: Any = None, rows: int = M, lane: int = 5) -> Picture:
    """Draw the matrices of a product with the lane of each element.

    A lane brings an element of A or B, or writes one of C, as ``kernel(A, B, C)`` does it; by
    default the kernel is a right one. Frames mark the elements of ``lane``. Elements without a lane
    are grey.
    """
    found = products_of(kernel or _one_warp, *numbered_matrices(rows))
    held: dict[MatrixElement, list[int]] = {}
    present = found.calls[0] if found.calls else {}
    for one, (a, b, _) in present.items():
        for number in (*a, *b):
            if (element := found.names.get(float(number))) is not None:
                held.setdefault(element, []).append(one)
    if any(array.name == "C" for array in found.launch.arrays):
        for one, offset in elements_of(found.launch, "C", "store"):
            held.setdefault(("C", *divmod(offset, N)), []).append(one)
    grid, gap = Grid(), 2.2
    at = {"A": (0.0, K + gap, rows), "B": (K + gap, 0.0, K), "C": (K + gap, K + gap, rows)}
    for matrix, (left, top, count) in at.items():
        grid.note(left, top - 1.45, f"{matrix}: {count} x 8", 10, weight="bold")
        for index in range(8):
            grid.note(left + index + 0.5, top - 0.4, str(index), 7.5, ha="center")
        for row in range(count):
            grid.note(left - 0.2, top + row + 0.5, str(row), 7.5, ha="right")
        for row, column in np.ndindex(count, 8):
            lanes = held.get((matrix, row, column), [])
            colour = COLOURS[lanes[0] // 4] if lanes else NOBODY
            grid.cell(left + column, top + row, colour, pictures.only_or_count(lanes), size=8.5)
    mine = sorted(element for element, lanes in held.items() if lane in lanes)
    for matrix, row, column in mine:
        grid.frame(at[matrix][0] + column, at[matrix][1] + row)
    who = f"lane {lane} (group_id = {lane // 4}, thread_in_group = {lane % 4})"
    alt = f"""Matrices A {rows} x 8, B 8 x 8 and C {rows} x 8. {len(present)} lanes come to the
        product; {who} holds {", ".join(_said(*element) for element in mine) or "nothing"}"""
    caption = f"""The number in a box is the lane that brings this element of A or B, or that gets
        this element of C and writes it, as the simulator saw it; a colour is a group_id. Frames
        mark what {who} holds."""
    if missing := sorted(set(range(WARP)) - set(present)):
        caption += f" Lanes {spans(missing)} do not come to the call: their numbers are missing."
    return grid.finished(alt, caption)


def _said(matrix: str, row: int, column: int) -> str:
    return f"{matrix}[{row}, {column}]"


@graded
def check_one_warp(kernel: Any, rows: Sequence[int] = (M,)) -> Feedback:
    """Check ``kernel(A, B, C)``, launched with one warp.

    It must write ``A @ B`` for A of these numbers of rows, in one call of ``mma_tf32``, without
    findings of the simulator.
    """
    ready(kernel, is_kernel)
    mistakes: dict[Any, Mistake] = {}
    stopped = False  # before anything was computed
    random = np.random.default_rng(0)
    tries = []
    for count in rows:  # numbered matrices first, because they show the mistake
        others = [random.integers(-9, 10, shape) for shape in ((count, K), (K, N))]
        tries += [numbered_matrices(count), [one.astype(np.float32) for one in others]]
    for A, B in tries:
        types = types_of((A, B, A @ B))
        with running(instead=partial(cause_of_error, kernel, types)):
            found = products_of(kernel, A, B)
        stopped = bool(found.launch.findings and not found.calls)
        for key, mistake in found.wrong.items():
            if key != ANSWER:
                mistakes.setdefault(key, _with_the_layout(mistake, count))
            elif not stopped and ANSWER not in mistakes:
                mistakes[ANSWER] = _why_wrong(found, A, B) or mistake
        if len(found.calls) != 1 and not found.wrong:
            what = joined(f"""The warp calls mma_tf32 {len(found.calls)} times; each lane must call
                it exactly once, which is enough for the whole product.""")
            mistakes.setdefault(COUNTS, Mistake(COUNTS, what))
    if not mistakes and (refused := compile_mistake(kernel, types)) is not None:
        mistakes[refused.cause] = refused
    if ANSWER in mistakes:  # which says how many calls there are, if that is the reason
        mistakes.pop(COUNTS, None)
    if mistakes:
        told = feedback.with_mistakes(mistakes.values())
        if {*mistakes} == {COUNTS}:
            return replace(told, headline=RIGHT_BY_OTHER_CALLS)
        early = stopped and ANSWER not in mistakes
        return replace(told, headline=feedback.HEADLINES[BROKEN]) if early else told
    said = ", ".join(map(str, rows))
    right = (f"C is A @ B, for A of {said} rows", "every lane passes and writes its own numbers")
    return Feedback("Passed.", (), right)


RIGHT_BY_OTHER_CALLS = "Right, but not there yet: one mma_tf32 must compute the whole product."
HOW = {
    "a": "a[0] is in row group_id and column thread_in_group of A, a[1] is 8 rows below it, a[2] "
    "four columns to the right of it, a[3] both.",
    "b": "b[0] is in row thread_in_group and column group_id of B, b[1] four rows below it.",
    "c": "A lane's sums are two neighbours in row group_id, columns 2 * thread_in_group and "
    "2 * thread_in_group + 1, and the two 8 rows below them.",
}


def _with_the_layout(mistake: Mistake, rows: int) -> Mistake:
    """Return an access out of bounds with the places of a lane's numbers as its advice. Of matrices
    with all rows no lane's number is outside, so that no guard would help."""
    found = re.match(r"Out of bounds: ([ABC])\[", mistake.what)
    if found is None or rows < M:
        return mistake
    return replace(mistake, advice=HOW[found[1].lower()])


def _why_wrong(found: Products, A: np.ndarray, B: np.ndarray) -> Mistake | None:
    """Return the reason of a wrong answer: operands, first sums, or the use of the sums."""
    if not found.calls:
        return Mistake(ANSWER, "No lane calls mma_tf32.")
    lanes = found.calls[0]
    if missing := sorted(set(range(WARP)) - set(lanes)):
        columns = spans([lane // 4 for lane in missing])
        what = joined(f"""Lanes {spans(missing)} do not come to mma_tf32, so their elements of B (of
            columns {columns}) are missing in the sums of all lanes.""")
        return Mistake(ANSWER, what)
    of = {"A": A, "B": B}
    for number, name in enumerate(OPERANDS):
        wrong = []
        for lane, (a, b, _) in sorted(lanes.items()):
            matrix, row, column = element = wanted_of(lane)[number]
            got = float((*a, *b)[number])
            if row < len(of[matrix]) and got != of[matrix][row, column]:
                wrong.append((lane, got, element))
        if wrong and len(found.names) == A.size + B.size:
            return _wrong_operand(name, wrong, found.names, len(lanes))
    for lane, (_, _, c) in lanes.items():
        if any(value != 0 for value in c):
            what = f"Lane {lane} begins its sums with {c[0]:g}: sums must begin with zeros."
            return Mistake(ANSWER, what)
    if len(found.calls) > 1:
        what = joined(f"""The warp calls mma_tf32 {len(found.calls)} times. The first call is right,
            and it is the whole product: the others must not change its sums.""")
        return Mistake(ANSWER, what)
    right = A @ B
    places = np.argwhere(found.output != right).tolist()
    if not places:
        return None
    first = tuple(places[0])
    value = found.output[first]
    belongs = np.argwhere(right == value).tolist()
    if np.isnan(value):
        said = "holds nothing: no lane wrote it, or a lane wrote NaN"
    elif len(belongs) == 1:
        said = f"holds the sum that belongs in {_said('C', *belongs[0])}"
    else:
        said = f"is {value:g}, wanted is {right[first]:g}"
    what = joined(f"""The lanes pass the right numbers, but {len(places)} of {right.size} sums are
        wrong: {_said("C", *first)} {said}.""")
    return Mistake(ANSWER, what, advice=HOW["c"])


def _wrong_operand(
    name: str,
    wrong: list[tuple[int, float, MatrixElement]],
    names: dict[float, MatrixElement],
    count: int,
) -> Mistake:
    """Return the mistake of a wrong operand: the first lane's number, and a common cause."""
    lane, got, wanted = wrong[0]
    brought = _said(*names[got]) if got in names else f"{got:g}, which is in neither matrix,"
    what = joined(f"""Lane {lane} (group_id = {lane // 4}, thread_in_group = {lane % 4}) brings
        {brought} as {name}; wanted is {_said(*wanted)}. {len(wrong)} of {count} lanes bring a wrong
        {name}.""")
    pairs = [(names.get(value, NOWHERE), element) for _, value, element in wrong]
    advice = HOW[name[0]]
    if all(found[0] not in (element[0], "") for found, element in pairs):
        advice = "These numbers belong to the other matrix."
    elif all(found[1:] == (element[2], element[1]) for found, element in pairs):
        advice = "Rows and columns are exchanged."
    return Mistake(ANSWER, what, advice=advice)


SIGN, EXPONENT, SEEN = COLOURS[3], COLOURS[1], COLOURS[0]
LEFT_OUT = 13  # bits of a float32 that TF32 lacks


def bits_of_split(value: float) -> Picture:
    """Draw the 32 bits of a float32 and of both parts that ``split_tf32`` makes of it.

    The bits that a tensor core uses are coloured. Raises ``ValueError`` for zero and for numbers
    that are not finite.
    """
    number = np.float32(value)
    if not np.isfinite(number) or not number:
        raise ValueError(f"value is {value}: it must be a finite number other than zero")
    parts = split_into_tf32(number)
    grid, told = Grid(), []
    for at, text in ((0, "sign"), (1.3, "exponent: 8"), (9.6, "mantissa: 10 bits that TF32 has")):
        grid.note(at, -0.7 if at else -1.6, text, 8)
    grid.note(20.2, -0.7, f"and {LEFT_OUT} that it has not", 8)
    rows = zip(("x", "large", "small"), (number, *parts), (0, 1.9, 3.8), strict=True)
    for name, part, top in rows:
        grid.note(-0.5, top + 0.5, name, 9, ha="right", weight="bold")
        bits = f"{int(part.view(np.uint32)):032b}"
        for column, bit in enumerate(bits):
            seen = column < 32 - LEFT_OUT
            kind = SIGN if column == 0 else EXPONENT if column < 9 else SEEN
            gaps = [column > 0, column > 8, not seen].count(True)  # between the parts before it
            left = column + 0.3 * gaps
            grid.cell(left, top, kind if seen else NOBODY, bit, size=8, edge=FAINT)
        told.append(f"{name}: {bits}")
    large, small = map(float, parts)
    caption = "TF32 can hold x, so large is the whole of x."
    if small:
        caption = f"""x = {float(number):.9g} is large + small = {large:.9g} + {small:.9g}, exactly.
            A tensor core uses the coloured bits: the sign is red, the exponent orange, the mantissa
            blue. Without the small part x is off by 1 part in {abs(number / small):,.0f}."""
    return grid.finished(f"The bits of x and of its two parts. {'; '.join(told)}", caption)
