"""Right sums in a wrong place: outputs of one channel, or of one pixel, stored as those of another.

A kernel with tiles that reads one row of the filter and writes another has every sum, but not where
it belongs. This shows if a channel's sums are found in another channel, the bias apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convlab.checking import Answer
from convlab.checking.outcome import SPOILED_INPUTS
from convlab.problems.oracle import random_tensors
from convlab.problems.reference import reference

CLOSE = 1e-3  # times the largest sum: far above what rounding to TF32 changes
MOST = 4000  # sums of a problem: it is compared with all others
KINDS = (("output channel", "rows"), ("output pixel", "columns"))


def misplaced(answers: Sequence[Answer], seed: int) -> str:
    """Return the sentence about sums that are in a wrong place; empty unless this explains every
    wrong answer. ``seed`` is that of the numbers of the check."""
    wrong = [one for one in answers if not one.ok and one.name not in SPOILED_INPUTS]
    small = [one for one in wrong if one.problem.M * one.problem.N <= MOST]
    if not small or any(one.output is None or one.problem.channels_last for one in wrong):
        return ""
    tables = [_sums(one, seed) for one in sorted(small, key=Answer.work)]
    for axis, (kind, lines) in enumerate(KINDS):
        moved = [_moved(*(table.swapaxes(0, axis) for table in pair)) for pair in tables]
        named = [first for found in moved if found for first in found]
        if named and all(found is not None for found in moved):
            to, of = named[0]
            return (
                f"The sums of {kind} {of} stand in the place of {kind} {to}: do the {lines} of the "
                "tile that a thread reads fit those that it writes?"
            )
    return ""


def _sums(answer: Answer, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums without the bias as [channel, pixel of all images]: got, and right."""
    p = answer.problem
    input, weight, bias = random_tensors(p, seed)
    assert answer.output is not None
    right = reference(p, input, weight, np.zeros_like(bias))
    got = answer.output - bias.reshape(1, -1, 1, 1)
    both = (got, right)
    got, right = (one.transpose(1, 0, 2, 3).reshape(p.out_channels, -1) for one in both)
    return got, right


def _moved(got: np.ndarray, right: np.ndarray) -> list[tuple[int, int]] | None:
    """Return the rows of ``got`` that are other rows of ``right``, each with that one. Sums of 0
    belong to a row of the tile past the last one. None if any other row is wrong."""
    close = CLOSE * float(np.abs(right).max(initial=0))
    found: list[tuple[int, int]] = []
    for number, row in enumerate(got):
        alike = np.abs(right - row).max(axis=1) <= close
        if alike[number]:
            continue
        if alike.any():
            found.append((number, int(np.argmax(alike))))
        elif not np.abs(row).max() <= close:
            return None
    return found
