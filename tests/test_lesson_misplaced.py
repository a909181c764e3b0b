"""Sums in a wrong place are told: those of another output channel, or of another output pixel."""

from __future__ import annotations

import numpy as np
import pytest

from convlab import ConvProblem
from convlab.checking.outcome import Answer
from convlab.lessons.misplaced import misplaced
from convlab.problems.oracle import CheckResult, Oracle, random_tensors
from convlab.problems.reference import reference

PROBLEM = ConvProblem(2, 3, 4, 5, 4, 2)


def answer(changed, problem=PROBLEM):
    """A wrong answer whose sums, [channel, pixel], are what ``changed`` returns."""
    input, weight, bias = tensors = random_tensors(problem, 0)
    sums = reference(problem, input, weight, np.zeros_like(bias)).astype(np.float32)
    n, m, h, w = sums.shape
    table = changed(sums.transpose(1, 0, 2, 3).reshape(m, -1).copy())
    output = table.reshape(m, n, h, w).transpose(1, 0, 2, 3) + bias.reshape(1, -1, 1, 1)
    output = output.astype(np.float32)
    found: CheckResult = Oracle(problem, *tensors).check(output)
    return Answer("a problem", problem, found, output=output)


def garbled(table):
    table[1, 3] += 1
    return table


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda table: table[[0, 2, 1, 3]], "The sums of output channel 2 stand in the place of"),
        (lambda table: table[:, ::-1], "stand in the place of output pixel 0"),
        (
            lambda table: table[[0, 1, 1, 3]],
            "output channel 1 stand in the place of output channel 2",
        ),
        (lambda table: table[[2, 1, 0, 3]] * [[1], [1], [1], [0]], "of output channel 2 stand"),
        (garbled, ""),
    ],
)
def test_sums_in_a_wrong_place_are_told(changed, said):
    found = misplaced([answer(changed)], 0)
    assert said in found
    assert bool(found) == bool(said)


def test_every_wrong_answer_must_be_explained():
    answers = [answer(lambda table: table[::-1]), answer(garbled)]
    assert misplaced(answers[:1], 0)
    assert misplaced(answers, 0) == ""
    assert misplaced([answer(lambda table: table)], 0) == ""
