"""Feedback on a kernel in the place of a stage's: its wrong answers, findings and counts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from convlab.checking import Answer, Check
from convlab.checking.common_causes import features
from convlab.checking.outcome import BARRIERS as AT_BARRIERS
from convlab.checking.outcome import TrafficCount
from convlab.lessons.error_hints import hint_for
from convlab.lessons.explanations import (
    NOT_SEEN,
    Seen,
    capital,
    error_in_words,
    of_findings,
)
from convlab.lessons.feedback import (
    ANSWER,
    BARRIERS,
    DOES_NOT_COMPILE,
    MEMORY,
    Feedback,
    Mistake,
    Row,
    checked_by_counts,
    row_of,
    with_mistakes,
)
from convlab.lessons.lookalikes import lookalike
from convlab.lessons.misplaced import misplaced
from convlab.lessons.pictures import NOBODY, RIGHT, WRONG, Grid, Picture, joined
from convlab.problems.oracle import random_tensors
from convlab.problems.reference import reference
from convlab.simulation.rules.findings import Finding
from convlab.support.values import counted

NOT_CHECKED = "floating-point operations"  # a matter of taste
MOST_ROWS, MOST_COLUMNS = 8, 10  # of each plane in the picture of a wrong output


def feedback_on(
    found: Check, at_most: float, seed: int, refused: Mistake | None, notes: Sequence[str],
    own: str, barriers_given: bool = False, seen: Mapping[Finding, Seen] = NOT_SEEN,
) -> Feedback:  # fmt: skip
    """Return the feedback of a check of ``convlab.check``.

    Counts may be ``at_most`` times the stage's; ``seed`` is that of the check's numbers.
    ``refused`` is what Numba does not compile, or a slip in the text; ``notes`` are about a
    right kernel, and ``own`` is the file of the learner's cell. With ``barriers_given`` the
    learner's part of the kernel has no barrier. ``seen`` tells more of the findings.
    """
    mistakes = of_findings(found.findings, own=own, barriers_given=barriers_given, seen=seen)
    wrong = [answer for answer in found.answers if not answer.ok]
    ended = all(answer.ended for answer in found.answers)
    right: list[str] = []
    if ended and not wrong:
        later = max(0, found.planned - len(found.answers))
        follow = "; larger ones will follow when the rest is right" if later else ""
        right.append(f"the answer is right on {len(found.answers)} problems{follow}")
    raising = "raised|not end|iterations"
    raised = [one.failed for one in wrong if one.failed and re.search(raising, one.failed)]
    picture = None
    if (telling := found.telling) is not None and telling.check is not None:
        many = sum(one.check is not None for one in wrong)
        is_what = "It" if many == 1 else "The smallest of them"
        smallest = joined(f"""{is_what} is {telling.name!r} ({telling.problem}), which has
            {features(telling.problem)}. There, {telling.error}.""")
        stopped = len(wrong) - many
        on = _wrong_on(many, len(found.answers), found.planned, stopped)
        parts = on, found.shared, smallest
        what = " ".join(filter(None, parts))
        advice = f"{capital(found.advice)}." if found.advice else lookalike(found.answers, seed)
        advice = advice or misplaced(found.answers, seed)
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
    return checked_by_counts(right, rows_of(found.counts, at_most), notes=notes)


def seen_on(answer: Answer) -> str:
    """Return the sentence that names the problem and the tile on which a finding was seen."""
    told = f"This is on {answer.name!r} ({answer.problem}), which has {features(answer.problem)}"
    if (tile := answer.tile) is not None:
        sizes = f"M_B = {tile.M_B}, N_B = {tile.N_B} and K_B = {tile.K_B}"
        if max(tile.M_T, tile.N_T) > 1:
            sizes = f"M_B = {tile.M_B}, N_B = {tile.N_B}, K_B = {tile.K_B}, M_T = {tile.M_T} "
            sizes += f"and N_T = {tile.N_T}"
        told += f"; the tile has {sizes}"
    return f"{told}."


def rows_of(counts: Sequence[TrafficCount], at_most: float) -> list[Row]:
    """Return the rows of counts that may be ``at_most`` times the stage's."""
    return [
        row_of(
            count.unit,
            count.yours,
            count.stages,
            at_most,
            kind=BARRIERS if count.unit.endswith(AT_BARRIERS) else MEMORY,
        )
        for count in counts
        if count.unit != NOT_CHECKED
    ]


def _wrong_on(many: int, tried: int, planned: int, stopped: int = 0) -> str:
    """Return the sentence that says on how many problems the answer is wrong, and on how many there
    is none because the kernel ``stopped``. The larger problems are left out while small ones show
    what is wrong."""
    some = f"all {tried}" if many == tried else f"{many} of {tried}"
    told = [f"the answer is wrong on {some} problems"]
    if stopped:
        told.append(f"on {stopped} more the kernel could not go on to its end")
    if tried < planned:
        later = counted(planned - tried, "larger problem")
        told.append(f"{later} will follow when these are right")
    *first, last = told
    return capital(f"{', '.join(first)}, and {last}." if first else f"{last}.")


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
