"""The memory traffic of a kernel on its launches: rows of counts, and hints on those too high."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from convlab.ladder.stage import blocks_for
from convlab.lessons import feedback
from convlab.lessons.explanations import lines_of
from convlab.lessons.feedback import (
    MEMORY,
    ONE_ELEMENT,
    SEVERAL_WRITERS,
    Hint,
)
from convlab.lessons.pictures import joined
from convlab.lessons.traffic_hints import (
    CodeLine,
    most_of,
    share_of_one_thread,
)
from convlab.simulation.rules.memory_traffic import SECTOR_BYTES, WARP
from convlab.tracing import LaunchTrace

UNITS = {"requests": "requests to global memory", "sectors": "sectors of global memory"}
MOST_WORK = 0.5  # of a block's accesses, which one thread should not make


def counts_of_memory(
    kernel: Any, traces: Sequence[LaunchTrace], fewest_sectors: bool, each_once: bool,
    at_most: float,
) -> tuple[list[feedback.Row], dict[str, Hint]]:  # fmt: skip
    """Return the counts of global memory that are asked for, and the hint for them."""
    arrays = [array for launch in traces for array in launch.arrays if array.space == "global"]
    sizes = [(math.prod(array.shape), array.itemsize) for array in arrays]
    targets: dict[str, tuple[str, int]] = {}  # by what is counted: its name, and the fewest
    if fewest_sectors:
        # Not the fewest for the requests that there are: those of one lane need a sector each.
        fewest = sum(blocks_for(elements * item, SECTOR_BYTES) for elements, item in sizes)
        targets["sectors"] = UNITS["sectors"], fewest
    if each_once:
        targets["lanes"] = "elements read and written", sum(elements for elements, _ in sizes)
        by_warps = sum(blocks_for(elements, WARP) for elements, _ in sizes)
        targets["requests"] = UNITS["requests"], by_warps
    rows, hints = [], dict[str, Hint]()
    for unit, (name, fewest) in targets.items():
        yours = sum(launch.total(unit, launch.of(space="global")) for launch in traces)
        rows.append(feedback.row_of(name, yours, fewest, at_most))
        if not rows[-1].ok and MEMORY not in hints:
            hints[MEMORY] = _hint_on_memory(kernel, traces, unit)
    return rows, hints


def as_several_writers(
    rows: list[feedback.Row], hints: dict[str, Hint], output: str, times: float
) -> tuple[list[feedback.Row], dict[str, Hint]]:
    """Return the rows and hints of memory as those of a kernel whose threads all write the same
    elements, which is the reason why the counts are too high."""
    told = f"""Each element of {output} is stored {times:.0f} times, because several threads write
        it. No rule says which thread writes last, so let each element be written by one thread."""
    lines = hints[MEMORY].lines if MEMORY in hints else ()
    return [
        replace(row, kind=SEVERAL_WRITERS) if row.kind == MEMORY and not row.ok else row
        for row in rows
    ], {**hints, SEVERAL_WRITERS: Hint(joined(told), lines)}


def as_one_writer(
    rows: list[feedback.Row], hints: dict[str, Hint], output: str, times: float
) -> tuple[list[feedback.Row], dict[str, Hint]]:
    """Return the rows, and hints that say that one thread stores an element again and again."""
    told = f"""Each element of {output} is stored {times:.0f} times by its thread, and only the last
        store counts: store the result once, when it is complete."""
    lines = hints[MEMORY].lines if MEMORY in hints else ()
    return rows, {**hints, MEMORY: Hint(joined(told), lines)}


def _hint_on_memory(kernel: Any, traces: Sequence[LaunchTrace], unit: str) -> Hint:
    hint = most_of(kernel, traces, unit)
    if any(share_of_one_thread(one) > MOST_WORK for one in traces):
        return hint._replace(advice="One thread of a block makes most of its accesses.")
    return hint


def hint_on_busiest(kernel: Any, kind: str, place: CodeLine) -> Hint:
    """Return the hint for one thread, or one element, that has too much to do."""
    lines = lines_of(place, kernel=kernel)
    if kind == ONE_ELEMENT:
        return Hint("Atomics on one element take place one after the other.", lines)
    advice = "While one thread does this, the others wait: let them share it."
    if lines and "sum(" in lines[0].code:
        advice = f"In a kernel, sum() is a loop that one thread runs. {advice}"
    return Hint(advice, lines)
