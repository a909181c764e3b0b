"""The check of a learner's kernel in the place of a stage's: ``check``.

It is that of :mod:`convlab.checking`, in plain words. It does not raise an exception if a learner's
code is wrong; the feedback says what is wrong.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from time import process_time
from typing import Any

import numpy as np
from numba.cuda.core import config

from convlab.checking import Answer, Check
from convlab.checking import check as checked
from convlab.checking.checker import check_also, compared_with, counts_also, is_right_on
from convlab.checking.common_causes import features, numbers_in
from convlab.checking.launches import EVERYTHING, OPTIONS, main_of
from convlab.checking.loading import maker
from convlab.checking.outcome import SPOILED_INPUTS, TRANSFORMS, CompiledKernel
from convlab.checking.programs import program_with
from convlab.ladder import Launch, Program, Stage, Tile, short_name, stage_named
from convlab.lessons import feedback
from convlab.lessons.compiling import cause_of_error, refusal
from convlab.lessons.exercises import MODEL, PADDED_ROWS, PICTURE_SECONDS, ready_for, traced
from convlab.lessons.explanations import Seen, lines_of, with_calls
from convlab.lessons.feedback import (
    ANSWER,
    BARRIERS,
    MEMORY,
    SEVERAL_WRITERS,
    Feedback,
    Hint,
    Mistake,
    Row,
)
from convlab.lessons.kernel_text import branched_stores, plain_zeros, slip
from convlab.lessons.limits import SECONDS, Stopped, broken, graded, limited, running
from convlab.lessons.pictures import joined
from convlab.lessons.progress_line import say_progress
from convlab.lessons.readiness import function_of, ready
from convlab.lessons.renamed import change_that_helps
from convlab.lessons.stage_feedback import feedback_on, rows_of, seen_on
from convlab.lessons.traffic_hints import AGAIN, most_of, stored_by_several
from convlab.lessons.unstored import block_number, unstored
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.running.engines.compilation import float64_lines
from convlab.running.engines.kernels import argument_types
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan, with_tile
from convlab.simulation.rules.findings import Finding
from convlab.support.values import counted
from convlab.tracing import LaunchTrace, trace, trace_steps

SLOW = 18.0  # seconds that any check may take
LONG = 6.0  # seconds after which a check asks whether Numba refuses the kernel
FAR = 3  # times what is allowed: larger problems would take long, and show nothing that is sooner
TIMES = 150  # and more, of the stage's own time on one problem: right ones take up to 90 (t03)
COUNTED = {  # by what is counted: the count of a trace, and the memory
    "requests to global memory": ("requests", "global"),
    "sectors of global memory": ("sectors", "global"),
    "sectors stored": ("sectors", "global"),
    "requests to shared memory": ("requests", "shared"),
    "wavefronts of shared memory": ("wavefronts", "shared"),
}
OF_INDICES = ("out of bounds", "uninitialised", "misaligned")  # may come from a wrong name
VAGUE = ("The output is NaN", "The sums of")  # advice that does not name the mistake
MOST_TRIED = 3  # wrong problems on which a change is tried, before all others
TOO_MANY_BARRIERS = joined("""A barrier must stand between a store and a load of the same element by
    different threads. Which of these barriers stand between none?""")


STORED_BY_SEVERAL = joined("""Several threads store the same element of {array}, so they do the same
    work: let the elements of {array} be shared among all threads of the block, each element to one
    thread.""")


@graded
def check(
    made: Any, stage: str, *, also: Tile | ConvProblem | None = None,
    at_most: float = feedback.AS_FEW, in_order: str = "", seed: int = 0,
) -> Feedback:  # fmt: skip
    """Check ``made``, a kernel or a function ``make_kernel`` that makes one, as the stage.

    The check passes if the answers are right on small problems on which careless kernels fail, the
    strict simulator finds nothing, and the memory traffic is at most ``at_most`` times the stage's.
    ``also`` is another problem, or a second tile, because careless kernels may be right by chance
    with the stage's small tile. ``in_order`` names an array that each thread must read from one
    number to the next as often as the stage's. The kernel may take many times as long as the
    stage's. Raises ``ValueError`` for an unknown stage.
    """
    chosen_stage = stage_named(stage)
    ready(made)
    with limited(max(SLOW, 2 * SECONDS + TIMES * _seconds(chosen_stage.name))):
        try:
            found = checked(
                made, chosen_stage.name, seed=seed, first_findings=True,
                on_problem=partial(_before_problem, chosen_stage, made, process_time()),
                model=MODEL, too_many=partial(_far_too_many, chosen_stage, at_most, seed),
            )  # fmt: skip
        except ValueError as error:
            raise broken(str(error)) from error
        for one in (PADDED_ROWS, also):
            if found.ok and one is not None:
                answer, findings = check_also(made, chosen_stage.name, one, seed)
                answers = found.answers if answer.ok else (*found.answers, answer)
                on = (answer,) * len(findings)
                more = found.planned + (not answer.ok)
                found = replace(
                    found, answers=answers, findings=findings, found_on=on, planned=more
                )
        compiled = found.machine is not None and found.machine.error is None
        if found.ok and found.machine is None and not config.ENABLE_CUDASIM:
            found = replace(found, machine=_by_types(chosen_stage, made))
        refused = _refused(chosen_stage, made, found, compiled=compiled)
        notes = _notes(chosen_stage, made, found)
        function = function_of(inspect.unwrap(made))
        own = function.__code__.co_filename if function is not None else ""
        given = bool(getattr(made, "is_part", False)) and "sync" not in _text_of(made)
        told = feedback_on(
            found, at_most, seed, refused, notes, own, barriers_given=given,
            seen=_seen(chosen_stage, made, found, seed),
        )  # fmt: skip
        too_much = [row for row in told.rows if not row.ok]
        several, hints = _stored_by_several(chosen_stage, made, found.launches)
        if told.rows and (too_much or several):
            hints |= _hints(chosen_stage, made, found.launches, too_much)
            rows = (*told.rows, *several)
            return feedback.checked_by_counts(told.right, rows, hints, told.notes)
        told = _with_change(chosen_stage, made, found, told, seed)
        if told.passed and isinstance(also, Tile):
            told = _counted_also(chosen_stage, made, also, at_most, seed, told)
        if not told.passed or not in_order:
            return told
        row, hint = _in_order(stage, made, in_order)
    rows, hints = (*told.rows, row), {MEMORY: hint}
    return feedback.checked_by_counts(told.right, rows, hints, told.notes)


def _before_problem(
    stage: Stage, made: Any, began: float, name: str, number: int, count: int
) -> None:
    """Say which problem comes next. If the check takes long, ask whether Numba refuses the kernel:
    what Numba cannot type runs many times slower here. Raises ``Stopped`` if so."""
    say_progress(name, number, count)
    if process_time() - began > LONG:
        refused = _numbas_refusal(stage, made)
        if refused is not None:
            raise Stopped(feedback.with_mistakes([refused]))


def _numbas_refusal(stage: Stage, made: Any) -> Mistake | None:
    """Return what Numba refuses in a kernel; None if nothing, or if that is not known here."""
    program = program_with(stage, maker(made, stage), EVERYTHING, stage.tiny_tile)
    main = main_of(program)
    return refusal(main.kernel, argument_types(main, program))


def _far_too_many(stage: Stage, at_most: float, seed: int, counts: dict[str, int]) -> bool:
    """Return whether a count is many times what is allowed, so that large problems take long."""
    rows = rows_of(compared_with(stage, counts, stage.adapted(MODEL), seed), at_most)
    return any(row.yours > FAR * row.allowed * row.target > 0 for row in rows)


def _with_change(stage: Stage, made: Any, found: Check, told: Feedback, seed: int) -> Feedback:
    """Return the feedback with the line of the learner's kernel in which a name stands in the place
    of another, if this is the cause and nothing else is known to be."""
    function = function_of(inspect.unwrap(made))
    again = getattr(made, "remade", lambda other: other)
    reasons = [one.reason for one in told.mistakes]
    wrong = [one for one in found.wrong if one.name not in (*OPTIONS, *SPOILED_INPUTS)]
    if function is None or not wrong or not {*reasons} <= {ANSWER, *OF_INDICES}:
        return told
    main = reasons.index(ANSWER) if ANSWER in reasons else 0
    known = told.mistakes[main].advice
    if reasons[main] == ANSWER and known and not known.startswith(VAGUE):
        return told
    # Those that have most come first, so that no other change is right on them by chance.
    wrong.sort(key=lambda one: (-features(one.problem).count(","), numbers_in(one.problem)))

    few = wrong[:MOST_TRIED]
    others = [
        one
        for one in found.answers
        if one.name not in (*OPTIONS, *SPOILED_INPUTS) and not any(one is tried for tried in few)
    ]

    def is_right(changed: Any) -> bool:
        made_again = again(changed)
        return all(is_right_on(made_again, stage, some, seed) for some in (few, others))

    named = {line.number for mistake in told.mistakes for line in mistake.lines}
    change = change_that_helps(function, is_right, named)
    if change is None:
        return told
    lines = lines_of((function.__code__.co_filename, change.line))
    follows = f"The cause may be in line {change.line}."
    mistakes = [
        replace(one, advice=change.advice if {*one.lines} & {*lines} else follows)
        for one in told.mistakes
    ]
    shown = lines if reasons[main] == ANSWER else told.mistakes[main].lines + lines
    shown = tuple(dict.fromkeys(shown))
    advice = change.advice
    if len(shown) > 1:
        advice = advice.replace("this line", f"line {change.line}")
    mistakes[main] = replace(told.mistakes[main], lines=shown, advice=advice)
    return replace(told, mistakes=tuple(mistakes))


def _stored_by_several(
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


def _counted_also(
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
    hints = _hints(with_tile(stage, tile), made, launches, too_much)
    found = feedback.checked_by_counts(told.right, rows, hints, told.notes)
    sizes = f"M_B = {tile.M_B}, N_B = {tile.N_B}, K_B = {tile.K_B}"
    where = f"With blocks of {counted(tile.threads, 'thread')} ({sizes}):"
    mistakes = [replace(one, what=f"{where} {one.what[0].lower()}{one.what[1:]}")
                for one in found.mistakes]  # fmt: skip
    return replace(found, mistakes=tuple(mistakes))


def _seen(stage: Stage, made: Any, found: Check, seed: int) -> dict[Finding, Seen]:
    """Return where each finding was seen, and which elements of its array are never stored."""
    seen = {}
    for finding, answer in zip(found.findings, found.found_on, strict=True):
        seen[finding] = Seen(seen_on(answer))
        if finding.kind == "uninitialised":
            seen[finding] = _never_stored(stage, made, finding, answer, seed)
    return seen


def _never_stored(stage: Stage, made: Any, finding: Finding, answer: Answer, seed: int) -> Seen:
    """Return where a finding was seen, and which elements no thread stores if this is its cause."""
    tensors = random_tensors(answer.problem, seed)
    with suppress(Exception):  # it need not come to its end
        main, arrays = ready_for(made, stage.name, answer.problem, answer.tile, tensors)
        own = str(main.kernel.py_func.__code__.co_filename)
        shown = block_number(finding.block, main.grid)
        launch = trace(main.kernel, main.grid, main.block, *arrays, block_shown=shown).main
        if (never := unstored(launch, finding, own)) is not None:
            return Seen(seen_on(answer), never.said, with_calls(main.kernel, *never.places))
    return Seen(seen_on(answer))


def _text_of(made: Any) -> str:
    """Return the text of a learner's function; empty if it is not known."""
    try:
        return inspect.getsource(inspect.unwrap(made))
    except (OSError, TypeError):
        return ""


@cache
def _seconds(stage: str) -> float:
    """Return the seconds that the stage's own kernel takes on the hardest of the problems."""
    start = process_time()
    check_also(stage_named(stage).prepare, stage, EVERYTHING)
    return process_time() - start


def _by_types(stage: Stage, made: Any) -> CompiledKernel | None:
    """Return the check of Numba's types, for machines without the compilers."""
    both = made, stage.prepare
    programs = [program_with(stage, maker(one, stage), EVERYTHING, stage.tiny_tile) for one in both]
    yours, stages = (_float64_lines(program) for program in programs)
    return (
        CompiledKernel(float64=tuple(f"line {n}" for n in yours)) if yours and not stages else None
    )


def _float64_lines(program: Program) -> tuple[int, ...] | None:
    """Return the lines of a program's main kernel that compute in float64; None if they are not
    known, as in a process of Numba's simulator, which knows no types."""
    if config.ENABLE_CUDASIM:
        return None
    main = main_of(program)
    return float64_lines(main.kernel, argument_types(main, program))


def _refused(stage: Stage, made: Any, found: Check, *, compiled: bool) -> Mistake | None:
    """Return what Numba does not compile, or a slip in the text of a kernel with mistakes. Numba
    refuses nothing in a kernel that is ``compiled``."""
    if found.ok and compiled:
        return None
    if any(one.endless for one in found.answers):  # then not all problems have been tried
        return None
    raised = any(one.check is None and one.ended for one in found.wrong)
    program = program_with(stage, maker(made, stage), EVERYTHING, stage.tiny_tile)
    main = main_of(program)
    types = argument_types(main, program)
    if raised or not (found.wrong or found.findings):
        refused = (cause_of_error if raised else refusal)(main.kernel, types)
        if refused is not None:
            return refused
    if found.ok:
        return None
    own = [step for step in program.launches if isinstance(step, Launch) and _is_of(made, step)]
    for step in own or [main]:
        mistake = slip(step.kernel, [one.ndim for one in argument_types(step, program)])
        if mistake is not None:
            return mistake
    return None


def _is_of(made: Any, launch: Launch) -> bool:
    """Return whether the kernel of a launch is in the learner's cell."""
    function = function_of(inspect.unwrap(made))
    code = launch.kernel.py_func.__code__
    return function is not None and code.co_filename == function.__code__.co_filename


def _notes(stage: Stage, made: Any, found: Check) -> tuple[str, ...]:
    """Return what could be better in a right kernel: stores in several branches, and arithmetic in
    float64."""
    if not found.ok:
        return ()
    function = function_of(inspect.unwrap(made))
    apart = () if function is None else branched_stores(function)
    if not found.float64:
        return apart
    program = program_with(stage, maker(made, stage), EVERYTHING, stage.tiny_tile)
    file = main_of(program).kernel.py_func.__code__.co_filename
    lines = lines_of(*((file, number) for number in _float64_lines(program) or ()))
    if not lines and function is not None:
        own = function.__code__.co_filename
        lines = lines_of(*((own, number) for number in plain_zeros(function)))
    where = "".join(f", in {line}: {line.code}" for line in lines[:1])
    told = f"""it computes in float64{where}, and {short_name(stage.name)} does not. Write
        float32(0) where a number of the arrays is missing or a sum begins, and neither 0 nor 0.0;
        write no / of integers."""
    return (*apart, joined(told))


def _hints(
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


def _in_order(stage: str, made: Any, array: str) -> tuple[Row, Hint]:
    """Return the row of the jumps between a thread's reads of an array, and the hint with the line
    that reads it."""
    yours, ours = (traced(one, stage, MODEL) for one in (made, None))
    unit = f"jumps between reads of {array}"
    row = feedback.row_of(unit, jumps_of(yours, array), jumps_of(ours, array))
    main, _ = ready_for(made, stage, MODEL, None, random_tensors(MODEL, 0))
    reads = Counter[tuple[str, int]]()
    for one in yours.of(array):
        if one.operation == "load":
            reads[one.file, one.line] += one.lanes
    places = [place for place, _ in reads.most_common(1)]
    advice = joined(f"""A jump is a read of a number that does not lie beside the thread's last one
        in {array}. The thread's next number should be the neighbour of its last number: which
        index must count fastest in its loop?""")
    return row, Hint(advice, lines_of(*places, kernel=main.kernel))


def jumps_of(launch: LaunchTrace, array: str) -> int:
    """Count the block's reads of another element than the one after the thread's last read."""
    jumps, last = 0, dict[tuple[int, int], int]()
    for one in launch.requests_of(array, "load"):
        for lane, offset in zip(one.lanes, one.offsets, strict=True):
            jumps += abs(last.get((one.warp, lane), offset) - offset) > one.width
            last[one.warp, lane] = offset
    return jumps
