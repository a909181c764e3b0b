"""The lines and arrays that cause most of a kernel's traffic, for hints about counts too high."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from convlab.lessons.explanations import with_calls
from convlab.lessons.feedback import Hint
from convlab.simulation.rules.memory_traffic import WARP, WORD_BYTES
from convlab.tracing import LaunchTrace

WHY = {
    "lanes": "Which elements do several threads read or write?",
    "requests": "A warp makes one request for up to 32 lanes: do its threads work together, and "
    "does each of them fetch a number only once?",
    "sectors": "A sector has 8 neighbours: does a warp use all of them?",
    "wavefronts": "Lanes that access different numbers in one bank take turns: how far apart are "
    "the numbers of neighbouring lanes?",
}
READ_AGAIN = (
    "Each thread reads the same number of {array} {times} while nothing changes it. Read it "
    "once, keep it in a variable or a local array, that is in a register, and use it from there."
)
STORED_AGAIN = (
    "Each thread stores to the same element of {array} {times}, and only the last store counts. "
    "Keep the number in a variable until it is complete, and store it once."
)
ADDED_AGAIN = (
    "Each thread adds to the same element of {array} {times}. Add its numbers up in a variable, "
    "and use one atomic for the sum."
)
AGAIN_TOLD = {"load": READ_AGAIN, "store": STORED_AGAIN, "atomic": ADDED_AGAIN}
ONE_NUMBER = (
    "Each of these {does} {array} moves one number, and a float4 moves four neighbours at once: "
    "use {call}."
)
SEVERAL_READERS = (
    "{threads} threads of a block read the same number of {array}, on average. Let one thread "
    "fetch it and store it to shared memory: from there all threads of the block read it."
)
WASTE = 1.1  # times the fewest sectors or wavefronts: with no more, a request wastes nothing
AGAIN = 1.5  # times that threads read or store a number, above which this is told
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


def stored_by_several(launch: LaunchTrace) -> dict[str, tuple[float, CodeLine]]:
    """Return how many threads of the block shown store an element of each shared array, on average,
    while no thread reads it, and the line that makes most of these stores.

    Arrays of fewer elements than a warp has lanes are left out: what all threads store there costs
    one request.
    """
    found = {}
    for array in launch.arrays:
        if array.space != "shared" or math.prod(array.shape) < WARP:
            continue
        turn, lines = Counter[int](), Counter[CodeLine]()
        writers = set[tuple[int, int, int, int]]()
        for one in (each for each in launch.requests if each.array == array.name):
            for lane, offset in zip(one.lanes, one.offsets, strict=True):
                for word in range(offset, offset + one.width, WORD_BYTES):
                    if one.operation == "store":
                        writers.add((one.warp, lane, word, turn[word]))
                        lines[one.file, one.line] += 1
                    else:
                        turn[word] += 1
        if writers:
            elements = {(word, at) for _, _, word, at in writers}
            found[array.name] = len(writers) / len(elements), lines.most_common(1)[0][0]
    return found


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
    why = _why(launches, others, unit, (space, array, operation))
    told = f"Most of the excess comes from {DOES[operation]} {array}. {why}"
    return Hint(told, with_calls(kernel, place))


def _why(
    launches: Sequence[LaunchTrace],
    others: Sequence[LaunchTrace],
    unit: str,
    of: tuple[str, str, str],
) -> str:
    """Return the reason for too high a count of a memory, array and operation.

    Threads that access one number again and again, or a number that others fetch, or one number
    where a float4 would do, say more than what each request costs. But lanes whose numbers lie
    farther apart than float4s do waste sectors or wavefronts, and float4s would not help. Requests
    that waste nothing are too many requests.
    """
    space, array, operation = of
    again = max((times_again(one, array, operation) for one in launches), default=1.0)
    before = max((times_again(one, array, operation) for one in others), default=1.0)
    if again >= AGAIN * before:
        return AGAIN_TOLD[operation].format(array=array, times=_times(again))
    if space == "global" and operation == "load" and _shares(others):
        yours, theirs = (_readers(these, array) for these in (launches, others))
        if yours >= 2 * max(1.0, theirs):
            return SEVERAL_READERS.format(array=array, threads=f"{yours:.0f}")
    if others and operation != "atomic":
        yours, theirs = (_width(these, of) for these in (launches, others))
        times = _times_the_waste(launches, others, unit, of)
        apart, _ = _apart(launches, array, operation)
        scattered = times >= AGAIN and apart > round(theirs / max(1.0, yours))
        if theirs >= 2 * yours and not scattered:
            does, call = ("loads of", "load4") if operation == "load" else ("stores to", "store4")
            return ONE_NUMBER.format(does=does, array=array, call=call)
    if unit in ("sectors", "wavefronts") and not _wastes_more(launches, others, unit, of):
        unit = "requests"
    return f"{WHY[unit]}{_distance(launches, unit, of)}"


def _shares(launches: Sequence[LaunchTrace]) -> bool:
    """Return whether launches use shared memory."""
    return any(array.space == "shared" for one in launches for array in one.arrays)


def _readers(launches: Sequence[LaunchTrace], array: str) -> float:
    """Return how many threads of the block shown read a number of an array, on average."""
    pairs = set[tuple[int, int, int]]()
    for launch in launches:
        for one in launch.requests_of(array, "load"):
            for lane, offset in zip(one.lanes, one.offsets, strict=True):
                for word in range(offset, offset + one.width, WORD_BYTES):
                    pairs.add((one.warp, lane, word))
    return len(pairs) / max(1, len({word for *_, word in pairs}))


def _times_the_waste(
    launches: Sequence[LaunchTrace],
    others: Sequence[LaunchTrace],
    unit: str,
    of: tuple[str, str, str],
) -> float:
    """Return how many times as much of a unit requests waste as those of ``others``."""
    if unit not in ("sectors", "wavefronts"):
        return 1.0
    return _waste(launches, unit, of) / max(1.0, _waste(others, unit, of))


def _distance(launches: Sequence[LaunchTrace], unit: str, of: tuple[str, str, str]) -> str:
    """Return the sentence about how far apart the numbers of neighbouring lanes lie, with a space
    before it; empty for a count that does not depend on it, or if nothing can be told."""
    if unit not in ("sectors", "wavefronts"):
        return ""
    _, array, operation = of
    most, width = _apart(launches, array, operation)
    if most <= width:
        return ""
    return f" Here the numbers of neighbouring threads mostly lie {most} apart."


def _apart(launches: Sequence[LaunchTrace], array: str, operation: str) -> tuple[int, int]:
    """Return how far apart the numbers of neighbouring lanes mostly lie, in numbers, and how many
    numbers a lane accesses at most; (0, 1) if no neighbouring lanes access the array."""
    apart, width = Counter[int](), 1
    for launch in launches:
        itemsize = next((one.itemsize for one in launch.arrays if one.name == array), WORD_BYTES)
        for one in launch.requests_of(array, operation):
            width = max(width, one.width // itemsize)
            for (lane, here), (next_lane, there) in pairwise(
                zip(one.lanes, one.offsets, strict=True)
            ):
                if next_lane == lane + 1:
                    apart[abs(there - here) // itemsize] += 1
    return apart.most_common(1)[0][0] if apart else 0, width


def _times(number: float) -> str:
    """Return ``twice`` or ``3 times``."""
    return "twice" if round(number) == 2 else f"{number:.0f} times"


def _wastes_more(
    launches: Sequence[LaunchTrace],
    others: Sequence[LaunchTrace],
    unit: str,
    of: tuple[str, str, str],
) -> bool:
    """Return whether requests need more of a unit than neighbours in memory would, and more than
    those of ``others`` do."""
    yours, theirs = (_waste(these, unit, of) for these in (launches, others))
    return yours > WASTE * max(1.0, theirs)


def _width(launches: Sequence[LaunchTrace], of: tuple[str, str, str]) -> float:
    """Return the bytes that a lane's access moves, on average."""
    found = [
        (one.bytes_asked, one.lanes)
        for launch in launches
        for one in launch.accesses
        if (one.space, one.array, one.operation) == of
    ]
    return sum(asked for asked, _ in found) / max(1, sum(lanes for _, lanes in found))


def _waste(launches: Sequence[LaunchTrace], unit: str, of: tuple[str, str, str]) -> float:
    """Return the count of a unit over the fewest that the same requests could need."""
    found = [
        one
        for launch in launches
        for one in launch.accesses
        if (one.space, one.array, one.operation) == of
    ]
    fewest: int = sum(getattr(one, f"fewest_{unit}") for one in found)
    total: int = sum(getattr(one, unit) for one in found)
    return total / max(1, fewest)


def times_again(launch: LaunchTrace, array: str, operation: str) -> float:
    """Return how often threads of the block shown access one number of an array, on average.

    Loads of a number count together until any thread stores to it, stores of a thread until any
    thread reads the number, and all its atomics.
    """
    ends = {"load": ("store", "atomic"), "store": ("load", "atomic")}.get(operation, ())
    turn = Counter[int]()  # by word: how often the other operation has come between
    words, different = 0, set[tuple[int, int, int, int]]()
    for one in launch.requests:
        if one.array != array:
            continue
        for lane, offset in zip(one.lanes, one.offsets, strict=True):
            for word in range(offset, offset + one.width, WORD_BYTES):
                if one.operation in ends:
                    turn[word] += 1
                elif one.operation == operation:
                    different.add((one.warp, lane, word, turn[word]))
                    words += 1
    return words / max(1, len(different))


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
