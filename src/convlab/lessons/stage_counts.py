"""The memory traffic of a learner's kernel beside that of the stage in whose place it stands.

What is counted becomes rows of a table; hints name the lines that cause what is too much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from convlab.checking.checker import compared_with, counts_also
from convlab.checking.launches import main_of
from convlab.checking.loading import maker
from convlab.checking.outcome import TRANSFORMS
from convlab.checking.programs import program_with
from convlab.ladder import Launch, Stage, Tile
from convlab.lessons import feedback
from convlab.lessons.exercises import MODEL, PICTURE_SECONDS, ready_for, traced
from convlab.lessons.explanations import lines_of, with_calls
from convlab.lessons.feedback import BARRIERS, MEMORY, SEVERAL_WRITERS, Feedback, Hint, Row
from convlab.lessons.limits import running
from convlab.lessons.pictures import joined
from convlab.lessons.stage_feedback import rows_of
from convlab.lessons.traffic_hints import AGAIN, most_of, stored_by_several
from convlab.problems.oracle import random_tensors
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan, with_tile
from convlab.support.values import counted
from convlab.tracing import LaunchTrace, trace_steps

FAR = 3  # times what is allowed: larger problems would take long, and show nothing that is sooner
COUNTED = {  # by what is counted: the count of a trace, and the memory
    "requests to global memory": ("requests", "global"),
    "sectors of global memory": ("sectors", "global"),
    "sectors stored": ("sectors", "global"),
    "requests to shared memory": ("requests", "shared"),
    "wavefronts of shared memory": ("wavefronts", "shared"),
}
TOO_MANY_BARRIERS = joined("""A barrier must stand between a store and a load of the same element by
    different threads. Which of these barriers stand between none?""")
STORED_BY_SEVERAL = joined("""Several threads store the same element of {array}, so they do the same
    work: let the elements of {array} be shared among all threads of the block, each element to one
    thread.""")


def far_too_many(stage: Stage, at_most: float, seed: int, counts: dict[str, int]) -> bool:
    """Return whether a count is many times what is allowed, so that large problems take long."""
    rows = rows_of(compared_with(stage, counts, stage.adapted(MODEL), seed), at_most)
    return any(row.yours > FAR * row.allowed * row.target > 0 for row in rows)


def rows_of_several_writers(
    stage: Stage, made: Any, yours: Sequence[LaunchTrace]
) -> tuple[list[Row], dict[str, Hint]]:
    """Return a row for each shared array whose elements several threads store, all the same number,
    and the hint for the first of them."""
    found = stored_by_several(yours[-1]) if yours else {}
    rows, hints = list[Row](), dict[str, Hint]()
    if all(times <= AGAIN for times, _ in found.values()):
        return rows, hints
    most = max((times for times, _ in stored_by_several(_traces(stage)[-1]).values()), default=1.0)
    for array, (times, place) in found.items():
        unit = f"threads that store an element of {array}"
        row = feedback.row_of(unit, times, max(1.0, most), AGAIN, SEVERAL_WRITERS)
        if not row.ok:
            rows.append(row)
            program = program_with(stage, maker(made, stage), stage.adapted(MODEL), _tile(stage))
            lines = with_calls(main_of(program).kernel, place)
            hints.setdefault(SEVERAL_WRITERS, Hint(STORED_BY_SEVERAL.format(array=array), lines))
    return rows, hints


def with_counts_of_second_tile(
    stage: Stage, made: Any, tile: Tile, at_most: float, seed: int, told: Feedback
) -> Feedback:
    """Return the feedback ``told`` of a kernel that passed, unless its counts are too high with
    another tile: with few threads each thread has more to load, and it shows which numbers
    neighbouring threads load."""
    answer, counts, launches = counts_also(made, stage.name, tile, MODEL, seed)
    rows = rows_of(counts, at_most)
    too_much = [row for row in rows if not row.ok]
    if not answer.ok or not too_much:
        return told
    hints = hints_on(with_tile(stage, tile), made, launches, too_much)
    found = feedback.checked_by_counts(told.right, rows, hints, told.notes)
    sizes = f"M_B = {tile.M_B}, N_B = {tile.N_B}, K_B = {tile.K_B}"
    where = f"With blocks of {counted(tile.threads, 'thread')} ({sizes}):"
    mistakes = [replace(one, what=f"{where} {one.what[0].lower()}{one.what[1:]}")
                for one in found.mistakes]  # fmt: skip
    return replace(found, mistakes=tuple(mistakes))


def hints_on(
    stage: Stage, made: Any, yours: Sequence[LaunchTrace], rows: Sequence[Row]
) -> dict[str, Hint]:
    """Return the lines that cause most of the counts that are too high. ``yours`` are the launches
    that have been counted."""
    with running(seconds=PICTURE_SECONDS):
        program = program_with(stage, maker(made, stage), stage.adapted(MODEL), _tile(stage))
        ours = _traces(stage)
    kernels = [step.kernel for step in program.launches if isinstance(step, Launch)]
    hints = dict[str, Hint]()
    # Sectors and wavefronts say more than requests, and the main kernel more than the transforms.
    by_place = sorted(
        (row.unit.startswith(TRANSFORMS), unit == "requests", unit, space)
        for row in rows
        if (found := COUNTED.get(row.unit.removeprefix(TRANSFORMS))) is not None
        for unit, space in [found]
    )
    if by_place:
        before, _, unit, space = by_place[0]
        part = slice(-1) if before else slice(-1, None)
        kernel = kernels[0 if before else -1]
        hints[MEMORY] = most_of(kernel, yours[part], unit, ours[part], space)
    barriers = [(one.file, one.line) for one in yours[-1].work if one.barriers]
    hints[BARRIERS] = Hint(TOO_MANY_BARRIERS, lines_of(*barriers, kernel=kernels[-1]))
    return hints


def _tile(stage: Stage) -> Tile | None:
    """Return the tile whose memory traffic is counted."""
    return stage.model_tile or stage.tiny_tile


@cache
def _traces(stage: Stage) -> tuple[LaunchTrace, ...]:
    """Return the traces of a stage's launches on the problem that is counted."""
    problem = stage.adapted(MODEL)
    program = program_with(stage, stage.prepare, problem, _tile(stage))
    plan = Plan(problem, stage, program.tile, Simulator(strict=False), program=program)
    input, weight, bias = random_tensors(problem, 0)
    output = np.full(problem.output_shape, np.nan, input.dtype)
    return trace_steps(plan, input, weight, output, bias)


def _jumps_of(launch: LaunchTrace, array: str) -> int:
    """Count the block's reads of another element than the one after the thread's last read."""
    jumps, last = 0, dict[tuple[int, int], int]()
    for one in launch.requests_of(array, "load"):
        for lane, offset in zip(one.lanes, one.offsets, strict=True):
            jumps += abs(last.get((one.warp, lane), offset) - offset) > one.width
            last[one.warp, lane] = offset
    return jumps


def row_of_jumps(stage: Stage, made: Any, array: str) -> tuple[Row, Hint]:
    """Return the row of the jumps between a thread's reads of an array, and the hint with the line
    that reads it."""
    yours, ours = (traced(one, stage.name, MODEL) for one in (made, None))
    unit = f"jumps between reads of {array}"
    row = feedback.row_of(unit, _jumps_of(yours, array), _jumps_of(ours, array))
    main, _ = ready_for(made, stage.name, MODEL, None, random_tensors(MODEL, 0))
    reads = Counter[tuple[str, int]]()
    for one in yours.of(array):
        if one.operation == "load":
            reads[one.file, one.line] += one.lanes
    places = [place for place, _ in reads.most_common(1)]
    advice = joined(f"""A jump is a read of a number that does not lie beside the thread's last one
        in {array}. The thread's next number should be the neighbour of its last number: which
        index must count fastest in its loop?""")
    return row, Hint(advice, lines_of(*places, kernel=main.kernel))
