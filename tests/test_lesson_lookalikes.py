"""Mistakes that a check reads in wrong outputs: bias, terms, filter, padding, stride."""

from __future__ import annotations

import numpy as np
import pytest

from convlab import ConvProblem
from convlab.checking import Answer
from convlab.ladder import Tile
from convlab.lessons.lookalikes import LOOKALIKES, Tried, lookalike
from convlab.problems.oracle import CheckResult, Oracle, random_tensors
from convlab.problems.reference import reference, seven_loops

SEED = 3
PLAIN = ConvProblem(2, 3, 7, 9, 4, (3, 2))
SQUARE = ConvProblem(1, 2, 6, 6, 3, 3)
EVERYTHING = ConvProblem(1, 2, 9, 12, 3, (3, 2), (2, 3), ((2, 1), (1, 3)), (3, 4))
PROBLEMS = PLAIN, SQUARE, EVERYTHING


def answer_of(problem: ConvProblem, output: np.ndarray, tile: Tile | None = None) -> Answer:
    output = output.astype(np.float32)
    checked: CheckResult = Oracle(problem, *random_tensors(problem, SEED)).check(output)
    return Answer("one", problem, checked, output=output, tile=tile)


def answers_by(computed, tile=None):
    return [
        answer_of(one, computed(Tried(answer_of(one, np.zeros(one.output_shape), tile),
                                      *random_tensors(one, SEED))), tile)
        for one in PROBLEMS
    ]  # fmt: skip


@pytest.mark.parametrize(
    "number", range(len(LOOKALIKES)), ids=[told.split(":")[0] for told, _ in LOOKALIKES]
)
def test_each_mistake_is_named_by_its_outputs(number):
    told, computed = LOOKALIKES[number]
    assert lookalike(answers_by(computed, Tile(M_B=4, N_B=8, K_B=4)), SEED) == told


def loops(problem, input, weight, bias, **changed):
    """The seven loops with other settings, and the outputs that the problem has."""
    settings = {
        "stride": problem.stride, "padding": problem.padding, "dilation": problem.dilation,
    }  # fmt: skip
    output = seven_loops(input, weight, bias, **settings | changed)
    return output[:, :, : problem.H_o, : problem.W_o]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda p, i, w, b: loops(p, i, w, None), "lack the bias"),
        (lambda p, i, w, b: loops(p, i, w, b + b), "twice"),
        (lambda p, i, w, b: loops(p, i, w[:, :, ::-1, ::-1], b), "convolution of mathematics"),
        (lambda p, i, w, b: loops(p, i[:, :1], w[:, :1], b), "first input channel only"),
        (lambda p, i, w, b: loops(p, i, w, b, stride=1), "The stride is left out."),
        (
            lambda p, i, w, b: loops(p, i, w, b, stride=(p.s_h, 1)),
            "The stride is left out in the columns.",
        ),
        (
            lambda p, i, w, b: loops(
                p, i, w, b, padding=((0, 9), (0, 9)) if max(p.padding[0]) else p.padding
            ),
            "The padding is not taken off.",
        ),
        (
            lambda p, i, w, b: loops(
                p, i, w, b, padding=((0, 9), p.padding[1]) if max(p.padding[0]) else p.padding
            ),
            "The padding is not taken off in the rows.",
        ),
    ],
)
def test_mistakes_that_other_code_makes_are_named(wrong, said):
    found = [answer_of(one, wrong(one, *random_tensors(one, SEED))) for one in PROBLEMS]
    assert said in lookalike(found, SEED)


def test_nothing_is_named_that_one_problem_contradicts():
    def right(problem):
        return answer_of(problem, reference(problem, *random_tensors(problem, SEED)))

    def without_bias(problem):
        return answer_of(problem, reference(problem, *random_tensors(problem, SEED)[:2]))

    assert lookalike([right(one) for one in PROBLEMS], SEED) == ""
    assert lookalike([without_bias(PLAIN), right(SQUARE)], SEED) == ""
    assert (
        lookalike([without_bias(PLAIN), answer_of(SQUARE, np.zeros(SQUARE.output_shape))], SEED)
        == ""
    )
    nothing = Answer("one", PLAIN, None, "it raised an error")
    assert lookalike([without_bias(SQUARE), nothing], SEED) == ""
    half_done = reference(PLAIN, *random_tensors(PLAIN, SEED)[:2])
    half_done[0, 0] = np.nan
    assert lookalike([answer_of(PLAIN, half_done)], SEED) == ""
