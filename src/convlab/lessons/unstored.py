"""Elements of a shared array that no thread stores, in words.

A read of an element that nothing was stored to has two usual causes: a barrier is missing, or the
stores leave elements out. A trace tells them apart.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from convlab.lessons.missing_barriers import function_around, loops_around
from convlab.simulation.rules.findings import FATAL, Finding
from convlab.support.values import counted
from convlab.tracing import LaunchTrace

AXES = {1: ("elements",), 2: ("rows", "columns")}  # by the number of dimensions


class Unstored(NamedTuple):
    """The sentence about the elements of an array that are never stored, and the lines, as file and
    number, that store to the array."""

    said: str
    places: tuple[tuple[str, int], ...]


def unstored(launch: LaunchTrace, finding: Finding, own: str = "") -> Unstored | None:
    """Return which elements no thread of the shown block stores, of the array that a finding names.

    None if the array is not a shared one, if the element of the finding is stored at some time, or
    if the launch ended before all stores. ``own`` is the learner's file.
    """
    arrays = [one for one in launch.arrays if (one.name, one.space) == (finding.array, "shared")]
    if not arrays or any(one.kind in FATAL for one in launch.findings):
        return None
    array = arrays[0]
    stored = np.zeros(math.prod(array.shape), bool)
    places: dict[tuple[str, int], None] = {}
    for one in launch.requests_of(array.name, "store"):
        places[one.file, one.line] = None
        for offset in one.offsets:
            first = offset // array.itemsize
            stored[first : first + max(1, one.width // array.itemsize)] = True
    missing = ~stored.reshape(array.shape)
    index = finding.index
    if not missing.any() or (index is not None and not missing[index]):
        return None
    if not stored.any():
        return Unstored(f"No thread stores to {array.name}.", ())
    sentences = [_never_stored(array.name, missing)]
    threads, most = math.prod(launch.block), _most_stored_at_first(launch, array.name)
    own_lines = [line for file, line in places if file == Path(own).name]
    if why := _why_not(own, own_lines, few=most * threads < stored.size):
        sentences.append(why)
    elif most * threads < stored.size:
        each = "one" if most == 1 else f"at most {most}"
        sentences.append(
            f"{array.name} has {stored.size} elements here and the block "
            f"{counted(threads, 'thread')}, each of which stores {each}: a thread must store more "
            "of them, in a loop."
        )
    else:
        sentences.append("Compare the index of its store with that of its read.")
    return Unstored(" ".join(sentences), tuple(places))


def _why_not(own: str, lines: Sequence[int], few: bool) -> str:
    """Return what keeps the stores in the lines of a learner's file from other elements: a
    condition, or a loop over the elements that ends too early; empty if there is neither, or if
    each thread stores too ``few`` and no loop is around the store."""
    for line in lines:
        function = function_around(own, line)
        if function is None:
            continue
        loops = [one for one in loops_around(function, line) if "sync" not in ast.unparse(one)]
        branches = [
            node
            for node in ast.walk(function)
            if isinstance(node, ast.If) and node.lineno < line <= (node.end_lineno or 0)
        ]
        if few and not loops:
            return ""
        if branches:
            return (
                f"The store in line {line} is in the if in line {branches[-1].lineno}: where its "
                "condition is false, nothing is stored. Store float32(0) there, if the element "
                "belongs to no number of the array that is read, or correct the condition."
            )
        if few:
            return (
                f"The loop in line {loops[-1].lineno} does not come to these elements: does it "
                "make enough passes, in the right steps, and are the indices in it the right ones?"
            )
    return ""


def _never_stored(name: str, missing: np.ndarray) -> str:
    """Return the sentence about missing elements: whole rows or columns, or their number."""
    for axis, lines in enumerate(AXES.get(missing.ndim, ())):
        others = tuple(other for other in range(missing.ndim) if other != axis)
        whole = np.asarray(missing.all(axis=others))
        if whole.any() and missing.sum() == whole.sum() * missing.size // missing.shape[axis]:
            numbers = np.flatnonzero(whole).tolist()
            return f"No thread stores to {_listed(numbers, lines)} of {name}."
    return f"No thread stores to {missing.sum()} of the {missing.size} elements of {name}."


def _listed(numbers: Sequence[int], lines: str) -> str:
    """Return ``rows 2 to 7``, ``row 3`` or ``rows 1, 3, ...``."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"{lines.removesuffix('s')} {first}"
    if last - first + 1 == len(numbers):
        return f"{lines} {first} to {last}"
    return f"{lines} {', '.join(map(str, numbers[:3]))}{', ...' if len(numbers) > 3 else ''}"


def _most_stored_at_first(launch: LaunchTrace, array: str) -> int:
    """Return the most elements that one thread stores before any thread reads the array."""
    itemsize = next(one.itemsize for one in launch.arrays if one.name == array)
    elements = Counter[tuple[int, int]]()
    for one in launch.requests:
        if one.array != array:
            continue
        if one.operation != "store":
            break
        for lane in one.lanes:
            elements[one.warp, lane] += max(1, one.width // itemsize)
    return max(elements.values(), default=0)


def block_number(block: tuple[int, ...] | None, grid: Sequence[int]) -> int:
    """Return the number of a block in its grid, x first, as traces count blocks."""
    number, times = 0, 1
    for place, size in zip(block or (), grid, strict=False):
        number, times = number + place * times, times * size
    return number
