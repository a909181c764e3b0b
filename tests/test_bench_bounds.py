"""A benchmark's check of outputs: rounding errors of any algorithm pass, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from convlab.ladder import allowances, stage_named
from convlab.measuring.bounds import FP32, RULES, Checked, Checker, bounds_for, limit
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import reference
from convlab.problems.workloads import LAYER_NAMES, paper_layer

pytestmark = pytest.mark.same_in_cudasim

PROBLEM = ConvProblem(3, 64, 14, 14, 16, 3)


@pytest.fixture(scope="module")
def tensors():
    return random_tensors(PROBLEM, 1, bias=False)[:2]


@pytest.fixture(scope="module")
def checker(tensors):
    return Checker(PROBLEM, *tensors)


@pytest.fixture(scope="module")
def answer(tensors):
    return reference(PROBLEM, *tensors)


def in_tf32(array: np.ndarray) -> np.ndarray:
    """Rounded to 10 bits of fraction, halves away from zero, as the GPU's conversion does."""
    return truncated((array.view(np.uint32) + np.uint32(1 << 12)).view(np.float32))


def truncated(array: np.ndarray) -> np.ndarray:
    """Cut to 10 bits of fraction: the worst that hardware does."""
    return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def by_fourier(input: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The convolution by float32 Fourier transforms of whole images."""
    from scipy import fft

    size = 16
    images = fft.rfft2(input, (size, size))
    filters = fft.rfft2(weight, (size, size)).conj()
    assert images.dtype == np.complex64
    product = np.einsum("ncyx,ocyx->noyx", images, filters)
    return fft.irfft2(product, (size, size))[..., :12, :12].astype(np.float32)


F43 = {
    "input": [
        [4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1],
    ],
    "filter": [
        [1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1],
    ],
    "output": [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
}  # fmt: skip


def by_winograd(input: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The convolution by F(4 x 4, 3 x 3) in float32 (Lavin and Gray, 2016)."""
    b, g, a = (np.array(F43[name], np.float32) for name in ("input", "filter", "output"))
    filters = g @ weight @ g.T
    output = np.empty(PROBLEM.output_shape, np.float32)
    for y in range(0, 12, 4):
        for x in range(0, 12, 4):
            tiles = b @ input[:, :, y : y + 6, x : x + 6] @ b.T
            product = np.einsum("ncyx,ocyx->noyx", tiles, filters)
            output[:, :, y : y + 4, x : x + 4] = a @ product @ a.T
    return output


def in_float32(input: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The convolution with one float32 running sum."""
    output = np.zeros(PROBLEM.output_shape, np.float32)
    for r, u, v in np.ndindex(64, 3, 3):
        seen = input[:, r, None, u : u + 12, v : v + 12]
        output += seen * weight[:, r, u, v][None, :, None, None]
    return output


@pytest.mark.parametrize(
    ("method", "compute", "part"),
    [("gemm", in_float32, 0.2), ("fft", by_fourier, 0.3), ("winograd", by_winograd, 0.3)],
)
def test_an_algorithm_is_right_by_the_rule_of_its_own(checker, tensors, method, compute, part):
    checked = checker.check(compute(*tensors), "fp32", method)
    assert checked.ok, checked.reason
    assert checked.bound == (FP32 if method == "gemm" else method)
    assert checked.error_over_bound < part


def test_three_products_for_one_are_checked_as_fp32(checker, tensors):
    t03 = stage_named("t03")
    assert bounds_for(t03.precision, "gemm") == (FP32,)
    allowed = allowances(t03, PROBLEM)
    right = checker.check(in_float32(*tensors), t03.precision, "gemm", allowed)
    assert (right.ok, right.bound) == (True, FP32)
    rounded = in_float32(*map(in_tf32, tensors))
    assert not checker.check(rounded, t03.precision, "gemm", allowed).ok


@pytest.mark.parametrize("rounded", [in_tf32, truncated])
def test_tf32_is_right_as_tf32_and_wrong_as_fp32(checker, tensors, rounded):
    output = in_float32(*map(rounded, tensors))
    as_tf32 = checker.check(output, "tf32")
    assert (as_tf32.ok, as_tf32.bound) == (True, "tf32")
    assert not checker.check(output, "fp32").ok
    assert not checker.check(output, "fp32", "any").ok


@pytest.mark.parametrize("method", ["gemm", "fft", "winograd", "any"])
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("spoiled", ["term", "element", "shifted", "nan", "inf", "zeros"])
def test_what_is_wrong_is_wrong_by_every_rule(checker, tensors, answer, precision, method, spoiled):
    output = answer.astype(np.float32)
    input, weight = tensors
    if spoiled == "term":  # one of 576 left out everywhere
        output -= input[:, 0, None, :12, :12] * weight[:, 0, 0, 0][None, :, None, None]
    elif spoiled == "element":
        output[1, 2, 3, 4] += 0.5 * np.sqrt((answer**2).mean())
    elif spoiled == "shifted":
        output = np.roll(output, 1, axis=-1)
    elif spoiled == "zeros":
        output[...] = 0
    else:
        output[2, 0, 0, 0] = float(spoiled)
    checked = checker.check(output, precision, method)
    assert not checked.ok
    assert checked.error_over_bound > 1


def test_what_is_not_written_and_the_first_wrong_element_are_named(checker, answer):
    output = np.full(PROBLEM.output_shape, np.nan, np.float32)
    assert checker.check(output).reason.startswith("it wrote nothing")
    output = answer.astype(np.float32)
    output[2, 5, 6, 7] = 1e6
    assert "first at [2, 5, 6, 7]" in checker._by_element(output, {}, 0.0).reason
    output[0, 0] = np.nan
    assert checker.check(output).reason.startswith("144 of 6,912 outputs are NaN")


def test_which_limit_is_broken_is_said(checker, answer):
    allowed = limit(PROBLEM, "winograd")
    spread, one = answer.astype(np.float32) * np.float32(1.01), answer.astype(np.float32)
    one[1, 2, 3, 4] += 0.5 * np.sqrt((answer**2).mean())
    for output, over, said in (
        (spread, 0.01, f"0.01 of the output's 2-norm, not {allowed:.3g}"),
        (one, 0.5 / 16, f" mean square in one element, not {16 * allowed:.3g}"),
    ):
        checked = checker.check(output, method="winograd")
        assert checked.error_over_bound == pytest.approx(over / allowed, rel=0.01)
        assert checked.reason.endswith(said)
    one[0, 0, 0, 0] = np.inf
    assert "inf times what tf32 may make" in checker.check(one, precision="tf32").reason


def test_where_all_is_zero_nothing_may_be_off():
    input, weight = np.zeros(PROBLEM.input_shape, "f4"), np.ones(PROBLEM.weight_shape, "f4")
    checker, output = Checker(PROBLEM, input, weight), np.zeros(PROBLEM.output_shape, "f4")
    tiny = output.copy()
    tiny[0, 1, 2, 3] = 1e-30
    for precision in ("fp32", "tf32"):
        assert checker.check(output, precision) == Checked(precision, 0.0)
        assert checker.check(tiny, precision).error_over_bound == np.inf


def test_what_no_rule_is_for_is_refused(checker):
    with pytest.raises(ValueError, match="output has shape"):
        checker.check(np.zeros((1, 2, 3, 4), np.float32))
    with pytest.raises(ValueError, match="bound is 'guess'"):
        limit(PROBLEM, "guess")


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_is_so_wide_that_a_missing_term_fits(rule):
    """Leaving out one of K terms is an error of 1 / sqrt(K) of the output's norm."""
    for layer in LAYER_NAMES:
        problem = paper_layer(layer)
        assert limit(problem, rule) < 0.2 / np.sqrt(problem.K), layer
