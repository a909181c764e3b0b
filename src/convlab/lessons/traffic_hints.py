"""The lines and arrays that cause most of a kernel's traffic, for hints about counts too high."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from convlab.lessons.explanations import with_calls
from convlab.lessons.feedback import Hint
from convlab.simulation.rules.memory_traffic import WARP
from convlab.tracing import LaunchTrace

WHY = {
    "lanes": "Which elements do several threads read or write?",
    "requests": "A warp makes one request for up to 32 lanes: do its threads work together, and "
    "does each of them fetch a number only once?",
    "sectors": "A sector has 8 neighbours: does a warp use all of them?",
    "wavefronts": "Lanes that access different numbers in one bank take turns: how far apart are "
    "the numbers of neighbouring lanes?",
}
DOES = {"load": "reads of", "store": "stores to", "atomic": "atomics on"}
CodeLine = tuple[str, int]


def busiest_thread(launch: LaunchTrace) -> tuple[int, CodeLine | None]:
    """Return the most accesses that a thread of the block shown makes, and the line that makes
    most of them."""
    lanes: dict[tuple[int, int], Counter[CodeLine]] = {}
    for one in launch.requests:
        for lane in one.lanes:
            lanes.setdefault((one.warp, lane), Counter())[one.file, one.line] += 1
    if not lanes:
        return 0, None
    most = max(lanes.values(), key=Counter.total)
    return most.total(), most.most_common(1)[0][0]


def share_of_one_thread(launch: LaunchTrace) -> float:
    """Return the part of the shown block's accesses that its busiest thread makes; 0 if a single
    warp's lanes make no more accesses than there are lanes."""
    accesses = sum(len(one.lanes) for one in launch.requests)
    return busiest_thread(launch)[0] / accesses if accesses > 2 * WARP else 0.0


def busiest_element(launch: LaunchTrace) -> tuple[int, CodeLine | None]:
    """Return the most atomics on one element that the block shown makes, and their line."""
    elements: Counter[tuple[str, int]] = Counter()
    places: dict[tuple[str, int], CodeLine] = {}
    for one in launch.requests:
        if one.operation == "atomic":
            for offset in one.offsets:
                elements[one.array, offset] += 1
                places[one.array, offset] = one.file, one.line
    if not elements:
        return 0, None
    ((element, count),) = elements.most_common(1)
    return count, places[element]


def stores_of_each(launch: LaunchTrace, array: str, elements: int) -> float:
    """Return how often each element of an array is stored on average."""
    stores = (one for one in launch.of(array) if one.operation == "store")
    return sum(one.lanes for one in stores) / max(1, elements)


def writers_of_an_element(launch: LaunchTrace, array: str) -> int:
    """Return the most threads of the block shown that store one element of an array."""
    writers: dict[int, set[tuple[int, int]]] = {}
    for one in launch.requests_of(array, "store"):
        for lane, offset in zip(one.lanes, one.offsets, strict=True):
            writers.setdefault(offset, set()).add((one.warp, lane))
    return max(map(len, writers.values()), default=0)


def most_of(
    kernel: Any,
    launches: Sequence[LaunchTrace],
    unit: str,
    others: Sequence[LaunchTrace] = (),
    space: str = "global",
) -> Hint:
    """Return the hint for a count of a memory, ``space``, that is too high.

    It names the array and the operation with the largest excess over ``others``, the launches of a
    kernel that is good enough, or without these the array with the largest excess over its size,
    and the line that makes most of these accesses.
    """
    yours, theirs = _by_array(launches, unit, space), _by_array(others, unit, space)
    excess: dict[tuple[str, str], int] = {}  # by array and operation
    if theirs:
        for array, counts in yours.items():
            for operation, count in counts.items():
                excess[array, operation] = count - theirs.get(array, Counter())[operation]
    else:
        fewest = _sizes(launches, unit)
        for array, counts in yours.items():
            (operation, _), *_ = counts.most_common(1)
            excess[array, operation] = counts.total() - fewest.get(array, 0)
    if not excess or max(excess.values()) <= 0:
        return Hint()
    array, operation = max(excess, key=lambda key: excess[key])
    lines: Counter[tuple[str, int]] = Counter()
    for launch in launches:
        for one in launch.accesses:
            if (one.space, one.array, one.operation) == (space, array, operation):
                lines[one.file, one.line] += getattr(one, unit)
    place, _ = lines.most_common(1)[0]
    told = f"Most of the excess comes from {DOES[operation]} {array}. {WHY[unit]}"
    return Hint(told, with_calls(kernel, place))


def _by_array(launches: Sequence[LaunchTrace], unit: str, space: str) -> dict[str, Counter[str]]:
    """Return the counts of a unit by array, and of each array by operation."""
    found: dict[str, Counter[str]] = {}
    for launch in launches:
        for one in launch.accesses:
            if one.space == space and (count := getattr(one, unit)):
                found.setdefault(one.array, Counter())[one.operation] += count
    return found


def _sizes(launches: Sequence[LaunchTrace], unit: str) -> dict[str, int]:
    """Return the elements of each array, or the sectors or requests that they fill."""
    parts = {"lanes": 1, "requests": 32, "sectors": 8}
    found: Counter[str] = Counter()
    for launch in launches:
        for array in launch.arrays:
            found[array.name] += -(-math.prod(array.shape) // parts.get(unit, 1))
    return found
