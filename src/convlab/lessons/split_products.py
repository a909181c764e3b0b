"""The products that tensor cores compute of split numbers, told by their operands.

A kernel that splits each number into a large and a small part needs three products in each step:
small by large, large by small, and large by large. The operands of its calls of ``mma_tf32`` show
which of these products it computes, and with which sums each of them begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from convlab.device.products import split_into_tf32
from convlab.lessons.pictures import joined

Call = dict[int, Any]  # the operands (a, b, c) of a product, by lane
Factors = tuple[str, str]  # the parts of the filter and of the windows that are multiplied
LARGE, SMALL, OTHER = "large", "small", ""
NEEDED: tuple[Factors, ...] = ((SMALL, LARGE), (LARGE, SMALL), (LARGE, LARGE))


class Parts:
    """The large and the small parts of an array's numbers."""

    def __init__(self, numbers: np.ndarray) -> None:
        large, small = np.vectorize(split_into_tf32)(numbers)
        self._of = {LARGE: {*large.ravel().tolist()}, SMALL: {*small.ravel().tolist()}}

    def kind_of(self, operands: Iterable[float]) -> str:
        """Return which parts the operands of a product are; zeros belong to every part."""
        found = {float(one) for one in operands if one}
        return next((kind for kind, numbers in self._of.items() if found <= numbers), OTHER)


def what_is_multiplied(calls: Sequence[Call], weight: np.ndarray, input: np.ndarray) -> str:
    """Return the sentence about the first thing that is wrong with the products of a single step;
    empty if nothing is. ``calls`` are the products of one warp, in order."""
    of_filter, of_windows = Parts(weight), Parts(input)
    found: list[Factors] = []
    for call in calls:
        a, b = (
            [number for lane in call.values() for number in lane[operand]] for operand in (0, 1)
        )
        found.append((of_filter.kind_of(a), of_windows.kind_of(b)))
    for factor, of in enumerate(("filter", "windows")):
        if any(one[factor] == OTHER for one in found):
            return joined(f"""A product gets numbers of the {of} that are neither all large parts
                nor all small parts: store both results of split_tf32, each in its own array.""")
    if missing := [one for one in NEEDED if one not in found]:
        instead = next((one for one in found if one not in NEEDED), None)
        told = f"No product multiplies {_said(missing[0])}"
        if instead is not None:
            told += f", but one multiplies {_said(instead)}"
        return f"{told}: does each array hold the parts that its name says?"
    starts = [_begins_with_zeros(call) for call in calls]
    size = len(NEEDED)
    if len(calls) % size == 0 and set(map(frozenset, _grouped(found, size))) == {frozenset(NEEDED)}:
        for number, (_, begins) in enumerate(pairwise(starts), 1):
            if begins and number % size:
                return joined(f"""Product {number % size + 1} of the three begins with zeros again,
                    so the products before it are lost: each must add to the result of the one
                    before.""")
    return ""


def _grouped(found: Sequence[Factors], size: int) -> list[tuple[Factors, ...]]:
    return [tuple(found[first : first + size]) for first in range(0, len(found), size)]


def _begins_with_zeros(call: Call) -> bool:
    return not any(number for _, _, c in call.values() for number in c)


def _said(factors: Factors) -> str:
    of_filter, of_windows = factors
    return f"the {of_filter} parts of the filter by the {of_windows} parts of the windows"
