"""The check of a learner's kernel in the place of a stage's: ``check``.

It is that of :mod:`convlab.checking`, in plain words. It does not raise an exception if a learner's
code is wrong; the feedback says what is wrong.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from time import process_time
from typing import Any

from numba.cuda.core import config

from convlab.checking import Answer, Check
from convlab.checking import check as checked
from convlab.checking.checker import check_also, is_right_on
from convlab.checking.common_causes import features, numbers_in
from convlab.checking.launches import EVERYTHING, OPTIONS
from convlab.checking.outcome import SPOILED_INPUTS
from convlab.ladder import Stage, Tile, stage_named
from convlab.lessons import feedback
from convlab.lessons.exercises import MODEL, PADDED_ROWS, ready_for
from convlab.lessons.explanations import Seen, lines_of, with_calls
from convlab.lessons.feedback import ANSWER, MEMORY, Feedback
from convlab.lessons.limits import SECONDS, Stopped, broken, graded, limited
from convlab.lessons.progress_line import say_progress
from convlab.lessons.readiness import function_of, ready
from convlab.lessons.renamed import change_that_helps
from convlab.lessons.stage_compilation import (
    checked_by_types,
    notes_on,
    numbas_refusal,
    refused_or_slip,
)
from convlab.lessons.stage_counts import (
    far_too_many,
    hints_on,
    row_of_jumps,
    rows_of_several_writers,
    with_counts_of_second_tile,
)
from convlab.lessons.stage_feedback import feedback_on, seen_on
from convlab.lessons.unstored import block_number, unstored
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.simulation.rules.findings import Finding
from convlab.tracing import trace_launch

SLOW = 18.0  # seconds that any check may take
LONG = 6.0  # seconds after which a check asks whether Numba refuses the kernel
TIMES = 150  # and more, of the stage's own time on one problem: right ones take up to 90 (t03)
OF_INDICES = ("out of bounds", "uninitialised", "misaligned")  # may come from a wrong name
VAGUE = ("The output is NaN", "The sums of")  # advice that does not name the mistake
MOST_TRIED = 3  # wrong problems on which a change is tried, before all others


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
                model=MODEL, too_many=partial(far_too_many, chosen_stage, at_most, seed),
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
            found = replace(found, machine=checked_by_types(chosen_stage, made))
        refused = refused_or_slip(chosen_stage, made, found, compiled=compiled)
        notes = notes_on(chosen_stage, made, found)
        function = function_of(inspect.unwrap(made))
        own = function.__code__.co_filename if function is not None else ""
        given = bool(getattr(made, "is_part", False)) and "sync" not in _text_of(made)
        told = feedback_on(
            found, at_most, seed, refused, notes, own, barriers_given=given,
            seen=_seen(chosen_stage, made, found, seed),
        )  # fmt: skip
        too_much = [row for row in told.rows if not row.ok]
        several, hints = rows_of_several_writers(chosen_stage, made, found.launches)
        if told.rows and (too_much or several):
            hints |= hints_on(chosen_stage, made, found.launches, too_much)
            rows = (*told.rows, *several)
            return feedback.checked_by_counts(told.right, rows, hints, told.notes)
        told = _with_change(chosen_stage, made, found, told, seed)
        if told.passed and isinstance(also, Tile):
            told = with_counts_of_second_tile(chosen_stage, made, also, at_most, seed, told)
        if not told.passed or not in_order:
            return told
        row, hint = row_of_jumps(chosen_stage, made, in_order)
    rows, hints = (*told.rows, row), {MEMORY: hint}
    return feedback.checked_by_counts(told.right, rows, hints, told.notes)


def _before_problem(
    stage: Stage, made: Any, began: float, name: str, number: int, count: int
) -> None:
    """Say which problem comes next. If the check takes long, ask whether Numba refuses the kernel:
    what Numba cannot type runs many times slower here. Raises ``Stopped`` if so."""
    say_progress(name, number, count)
    if process_time() - began > LONG:
        refused = numbas_refusal(stage, made)
        if refused is not None:
            raise Stopped(feedback.with_mistakes([refused]))


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
        launch = trace_launch(main, arrays, block_shown=shown)
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
