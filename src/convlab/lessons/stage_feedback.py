"""Feedback on a kernel in the place of a stage's: its wrong answers, findings and counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from convlab.checking import Answer, Check
from convlab.checking.outcome import BARRIERS as AT_BARRIERS
from convlab.lessons.explanations import capital, error_in_words, hint_for, of_findings
from convlab.lessons.feedback import (
    ANSWER,
    BARRIERS,
    DOES_NOT_COMPILE,
    MEMORY,
    Feedback,
    Mistake,
    checked_by_counts,
    row_of,
    with_mistakes,
)
from convlab.lessons.lookalikes import lookalike
from convlab.lessons.pictures import NOBODY, RIGHT, WRONG, Grid, Picture, joined
from convlab.problems.oracle import random_tensors
from convlab.problems.reference import reference
from convlab.support.values import counted

NOT_CHECKED = "floating-point operations"  # a matter of taste
MOST_ROWS, MOST_COLUMNS = 8, 10  # of each plane in the picture of a wrong output


def feedback_on(
    found: Check, at_most: float, seed: int, refused: Mistake | None, notes: Sequence[str],
    own: str, barriers_given: bool = False,
) -> Feedback:  # fmt: skip
    """Return the feedback of a check of ``convlab.check``.

    Counts may be ``at_most`` times the stage's; ``seed`` is that of the check's numbers.
    ``refused`` is what Numba does not compile, or a slip in the text; ``notes`` are about a
    right kernel, and ``own`` is the file of the learner's cell. With ``barriers_given`` the
    learner's part of the kernel has no barrier.
    """
    mistakes = of_findings(found.findings, own=own, barriers_given=barriers_given)
    wrong = [answer for answer in found.answers if not answer.ok]
    ended = all(answer.ended for answer in found.answers)
    right: list[str] = []
    if ended and not wrong:
        right.append(f"the answer is right on {len(found.answers)} problems")
    stopped = "raised|not end|iterations"
    raised = [one.failed for one in wrong if one.failed and re.search(stopped, one.failed)]
    picture = None
    if (telling := found.telling) is not None and telling.check is not None:
        many = sum(one.check is not None for one in wrong)
        simplest = joined(f"""The simplest of them is {telling.name!r} ({telling.problem}). There,
            {telling.error}.""")
        parts = _wrong_on(many, len(found.answers), found.planned), found.shared, simplest
        what = " ".join(filter(None, parts))
        advice = f"{capital(found.advice)}." if found.advice else lookalike(found.answers, seed)
        mistakes.append(Mistake(ANSWER, what, advice=advice))
        picture = None if telling.wrong is None else side_by_side(telling, seed)
    if refused is not None:
        lines = refused.lines or (error_in_words(raised[0]).lines if raised else ())
        mistakes = [replace(refused, lines=lines)]
    elif raised:
        mistakes.append(error_in_words(raised[0]))
    if refused is None and found.machine is not None and (error := found.machine.error) is not None:
        what = f"Numba cannot compile it: {error}."
        mistakes.append(Mistake(DOES_NOT_COMPILE, what, advice=hint_for(error)))
    if mistakes:
        return with_mistakes(mistakes, right, picture)
    right.append("no race, no access out of bounds, no read of uninitialised memory")
    counts = [count for count in found.counts if count.unit != NOT_CHECKED]
    rows = [
        row_of(
            count.unit,
            count.yours,
            count.stages,
            at_most,
            kind=BARRIERS if count.unit.endswith(AT_BARRIERS) else MEMORY,
        )
        for count in counts
    ]
    return checked_by_counts(right, rows, notes=notes)


def _wrong_on(many: int, tried: int, planned: int) -> str:
    """Return the sentence that says on how many problems the answer is wrong. The larger problems
    are left out while small ones show what is wrong."""
    some = f"all {tried}" if many == tried else f"{many} of {tried}"
    if tried >= planned:
        return f"The answer is wrong on {some} problems."
    later = counted(planned - tried, "larger problem")
    return f"The answer is wrong on {some} problems, and {later} will follow when these are right."


def side_by_side(answer: Answer, seed: int) -> Picture:
    """Draw the first wrong plane of an output, the expected one, a channel and a filter."""
    assert answer.wrong is not None
    assert answer.output is not None
    input, weight, bias = random_tensors(answer.problem, seed)
    i, j = np.argwhere(answer.wrong.any(axis=(2, 3)))[0].tolist()
    expected = reference(answer.problem, input, weight, bias)[i, j]
    of = f" of {answer.problem.C_i}"
    planes = {
        f"input {i}, channel 0{of}": input[i, 0],
        f"filter {j}, channel 0{of}": weight[j, 0],
        f"expected: output {i}, channel {j}": expected,
        "got": answer.output[i, j],
    }
    grid, left = Grid(0.33, widest=12), 0
    for name, plane in planes.items():
        shown = plane[:MOST_ROWS, :MOST_COLUMNS]
        grid.note(left, -0.9, name, 8)
        for place, number in np.ndenumerate(shown):
            colour = NOBODY
            if name == "got":
                colour = WRONG if answer.wrong[i, j][place] else RIGHT
            grid.cell(left + place[1], place[0], colour, f"{number:.2g}", size=5.5)
        left += max(shown.shape[1], 5) + 1
    part = f"{answer.wrong.sum()} of {answer.wrong.size}"
    return grid.finished(
        f"Input, expected and got of {answer.name!r}; wrong ones are in red, {part} in all outputs"
    )
