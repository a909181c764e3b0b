"""Tensors of 16 bits and channels last: problems, the reference, the oracle and its bound."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

from convlab import ConvProblem, Gradient
from convlab.device.products import multiply_add, rounded_to_tf32
from convlab.problems import oracle as oracles
from convlab.problems.error_bound import allowed_error, largest_error, rounding_bound
from convlab.problems.number_types import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    NUMBER_TYPES,
    as_floats,
    as_in_kernels,
    rounded,
)
from convlab.problems.oracle import Oracle, before_relu, random_tensors
from convlab.problems.reference import reference
from convlab.simulation.numbers.bfloat16 import rounded as rounded_exactly

pytestmark = pytest.mark.same_in_cudasim

HALVES = ("bfloat16", "float16")
PROBLEM = ConvProblem(2, 3, 9, 7, 5, (3, 2), (2, 1), ((1, 0), (0, 2)), (1, 2))
inf, nan = math.inf, math.nan

of_halves = pytest.mark.parametrize("dtype", HALVES)


def halves(dtype, problem=PROBLEM):
    return replace(problem, dtype=dtype, channels_last=True)


# --- Problems -----------------------------------------------------------------------------------


@given(problems(), st.sampled_from(HALVES))
def test_channels_last_moves_the_channels_and_16_bits_are_half_the_bytes(problem, dtype):
    last = replace(problem, dtype=dtype, channels_last=True)
    for name in ("input", "weight", "output"):
        first, channels, *size = getattr(problem, f"{name}_shape")
        assert getattr(last, f"{name}_shape") == (first, *size, channels)
    assert (last.M, last.N, last.K, last.flops) == (problem.M, problem.N, problem.K, problem.flops)
    assert 2 * last.least_bytes == problem.least_bytes
    assert str(last).endswith(f", {dtype}, channels last")
    assert eval(repr(last)) == last != problem
    assert str(replace(last, channels_last=False)) == f"{problem}, {dtype}"


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"dtype": "float64"}, ValueError, r"dtype is 'float64': it must be one of float32, float"),
        ({"dtype": np.float16}, TypeError, r"dtype is .*float16.*: it must be a name, such as"),
        ({"channels_last": 1}, TypeError, r"channels_last is 1: it must be True or False"),
    ],
    ids=str,
)
def test_other_types_and_layouts_are_refused(changes, error, says):
    with pytest.raises(error, match=says):
        replace(PROBLEM, **changes)


@of_halves
def test_gradients_of_16_bits_are_refused_in_one_sentence(dtype):
    with pytest.raises(ValueError, match=r"^problem is .*channels last: it must be float32 and"):
        Gradient(halves(dtype), "input")


# --- Numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16], ids=lambda kind: kind.name)
@given(number=st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_rounding_is_to_the_nearest_number_of_the_type(kind, number):
    exact = rounded_exactly(number, kind.name)
    if math.isfinite(exact):
        assert rounded(number, kind.rounding) == exact
        assert rounded(np.array([number]), kind.rounding) == [exact]
    assert math.isinf(exact) == (abs(number) >= kind.overflow)
    assert abs(exact) <= kind.largest or math.isinf(exact)


def test_kernels_get_the_bits_of_16_bit_numbers():
    ones = np.ones((2, 3), ml_dtypes.bfloat16)
    bits = as_in_kernels(ones)
    assert (bits.dtype, bits[0, 0]) == (np.uint16, 0x3F80)
    assert np.shares_memory(bits, ones)
    assert as_in_kernels(np.ones(1, np.float16))[0] == 0x3C00
    floats = np.ones(2, np.float32)
    assert as_in_kernels(floats) is floats is as_floats(floats)
    assert as_floats(ones).dtype == np.float32
    assert [kind.in_kernels for kind in NUMBER_TYPES.values()] == ["float32", "uint16", "uint16"]


# --- The oracle ---------------------------------------------------------------------------------


@of_halves
@given(problem=problems())
def test_the_reference_of_channels_last_is_that_of_channels_first(problem, dtype):
    last = halves(dtype, problem)
    input, weight, bias = random_tensors(last, 3)
    assert {tensor.dtype for tensor in (input, weight, bias)} == {last.number_type.numpy}
    first = (as_floats(one).transpose(0, 3, 1, 2) for one in (input, weight))
    expected = reference(problem, *first, as_floats(bias))
    got = reference(last, input, weight, bias)
    np.testing.assert_array_equal(got, expected.transpose(0, 2, 3, 1))


def as_rounded(sums, dtype):
    with np.errstate(over="ignore"):
        return np.asarray(sums, np.float32).astype(NUMBER_TYPES[dtype].numpy)


@of_halves
@pytest.mark.parametrize("many", [False, True])
def test_a_sum_that_is_rounded_once_passes_and_one_that_is_rounded_twice_fails(
    dtype, many, monkeypatch
):
    if many:
        monkeypatch.setattr(oracles, "MANY_OUTPUTS", 1)
    problem = halves(dtype)
    input, weight, bias = random_tensors(problem, 0)
    oracle = Oracle(problem, input, weight, bias)
    once = oracle.check(as_rounded(oracle.expected, dtype))
    assert once.ok, once
    assert once.error_over_bound <= 1
    # Rounded before the bias is added, and after.
    sums = as_floats(as_rounded(reference(problem, input, weight), dtype))
    twice = oracle.check(as_rounded(sums + as_floats(bias), dtype))
    assert twice.wrong > 5, twice
    assert twice.error_over_bound > 1.2
    # One number off is not the nearest.
    bits = as_rounded(oracle.expected, dtype).view(np.uint16)
    next_one = oracle.check((bits + 1).astype(np.uint16).view(problem.number_type.numpy))
    assert next_one.wrong > 0.9 * next_one.total


@of_halves
def test_a_dropped_term_fails(dtype):
    problem = halves(dtype)
    input, weight, bias = random_tensors(problem, 0)
    oracle = Oracle(problem, input, weight, bias)
    weight[:, -1, -1, -1] = 0
    dropped = oracle.check(as_rounded(reference(problem, input, weight, bias), dtype))
    assert dropped.wrong > dropped.total / 3


@of_halves
def test_sums_of_integers_are_exact_before_the_rounding(dtype):
    problem = halves(dtype, ConvProblem(1, 40, 9, 9, 8, 3))
    tensors = random_tensors(problem, 0, integers=True)
    oracle = Oracle(problem, *tensors)
    assert oracle.check(as_rounded(oracle.expected, dtype)).ok
    exact = np.abs(oracle.expected) < 2**problem.number_type.bits
    assert (oracle.bound[exact] == 0).all()
    off = oracle.check(as_rounded(oracle.expected + np.where(exact, 1, 0), dtype))
    assert off.wrong == np.count_nonzero(exact) > 0


SPECIAL = {
    # x, w, dtype, right outputs, wrong ones
    "the largest": ([65504], [1], "float16", [65504], [inf, nan, 65472]),
    "just below a tie": ([65504, 15], [1, 1], "float16", [65504], [inf, nan]),
    "overflow": ([65504, 16], [1, 1], "float16", [inf], [65504, -inf, nan]),
    "far over": ([65504], [65504], "float16", [inf], [65504, nan]),
    "overflow on the way": ([65504, 65504], [2, -2], "float16", [0], [inf, nan]),
    "subnormal": ([2.0**-14], [0.5 + 2.0**-10], "float16", [2.0**-15 + 2.0**-24], [2.0**-15, 0]),
    "half the smallest": ([2.0**-14], [2.0**-11], "float16", [0, 2.0**-24], [2.0**-23]),
    "infinity": ([inf, 1], [1, 1], "float16", [inf], [65504, nan]),
    "infinity times zero": ([inf], [0], "bfloat16", [nan], [0, inf]),
    "the largest bfloat16": ([2.0**127], [1.9921875], "bfloat16", [BFLOAT16.largest], [nan, 0]),
    "bfloat16 overflows": ([2.0**127], [2], "bfloat16", [inf], [BFLOAT16.largest, nan]),
    "a bfloat16 subnormal": ([2.0**-126], [2.0**-7], "bfloat16", [2.0**-133], [0, 2.0**-132]),
}  # fmt: skip


@pytest.mark.parametrize(("x", "w", "dtype", "right", "wrong"), SPECIAL.values(), ids=SPECIAL)
def test_numbers_at_the_ends_of_the_types(x, w, dtype, right, wrong):
    kind = NUMBER_TYPES[dtype].numpy
    problem = ConvProblem(1, len(x), 1, 1, 1, 1, dtype=dtype, channels_last=True)
    input, weight = (np.array(one, kind).reshape(1, 1, 1, -1) for one in (x, w))
    oracle = Oracle(problem, input, weight)
    for value in right:
        assert oracle.check(np.full((1, 1, 1, 1), value, kind)).ok, value
    for value in wrong:
        assert not oracle.check(np.full((1, 1, 1, 1), value, kind)).ok, value


@of_halves
def test_a_tensor_of_another_type_is_refused(dtype):
    problem = halves(dtype)
    tensors = random_tensors(problem, 0)
    with pytest.raises(ValueError, match=f"^output is float32: it must be {dtype}, the problem's"):
        Oracle(problem, *tensors).check(np.zeros(problem.output_shape, np.float32))
    with pytest.raises(ValueError, match=f"^weight is float32: it must be {dtype}, the problem's"):
        Oracle(problem, tensors[0], as_floats(tensors[1]), tensors[2])


@of_halves
def test_relu_keeps_the_type(dtype):
    problem = halves(dtype)
    oracle = Oracle(problem, *random_tensors(problem, 0))
    output = as_rounded(np.maximum(oracle.expected, 0), dtype)
    assert oracle.check(before_relu(output, oracle.expected)).ok
    output[output == 0] = -1
    assert not oracle.check(before_relu(output, oracle.expected)).ok


def test_the_bound_of_float32_knows_nothing_of_types():
    bound = rounding_bound(9, with_bias=False)
    assert (bound.is_rounded, bound.overflow) == (False, inf)
    assert Oracle(PROBLEM, *random_tensors(PROBLEM, 0))._bound().is_rounded is False


@pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16], ids=lambda kind: kind.name)
def test_the_compiled_bound_is_numpys(kind):
    rng = np.random.default_rng(0)
    sizes = 2.0 ** rng.integers(kind.least - 12, kind.most - 1, 3000)  # denormals of the type too
    expected = rng.uniform(-1, 1, 3000) * sizes
    magnitude = np.abs(expected) * rng.uniform(1, 9, 3000)
    bound = rounding_bound(500, with_bias=False, output=kind)
    output = (expected + rng.uniform(-1, 1, 3000) * bound.gamma * magnitude).astype(kind.numpy)
    allowed = allowed_error(expected, magnitude, bound)
    errors = np.abs(as_floats(output) - expected)
    for part in np.split(np.arange(3000), 30):
        found = largest_error(output[part], expected[part], magnitude[part], bound)
        assert found == (errors[part] / allowed[part]).max() > 0


def seconds_of_a_check(kind):
    """The least of three times in which the compiled loop checks outputs that are not exact."""
    exact = np.random.default_rng(0).standard_normal(200_000)
    kind_of_bound = None if kind is FLOAT32 else kind
    bound = rounding_bound(500, with_bias=False, output=kind_of_bound)
    arguments = exact.astype(kind.numpy), exact, np.abs(exact), bound
    largest_error(*arguments)  # compiles
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        largest_error(*arguments)
        times.append(time.perf_counter() - begin)
    return min(times)


@pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16], ids=lambda kind: kind.name)
def test_checking_16_bits_takes_about_as_long_as_float32(kind):
    # An array for each number, or powers of two computed anew, took 80 times as long.
    assert seconds_of_a_check(kind) < 20 * seconds_of_a_check(FLOAT32)


# --- Sums on tensor cores -----------------------------------------------------------------------


def on_tensor_cores(a, b, terms, skip=None):
    """``a @ b`` by instructions of so many terms, without the term number ``skip``."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for first in range(0, a.shape[1], terms):
        chosen = [k for k in range(first, min(first + terms, a.shape[1])) if k != skip]
        if chosen:
            total = multiply_add(a[:, chosen], b[chosen], total)
    return total


def as_convolution(a, b, dtype="float32"):
    """The problem, input and weight of which ``a @ b`` is the convolution."""
    (M, K), N = a.shape, b.shape[1]
    if dtype == "float32":
        return ConvProblem(1, K, 1, N, M, 1), b.reshape(1, K, 1, N), a.reshape(M, K, 1, 1)
    problem = ConvProblem(1, K, 1, N, M, 1, dtype=dtype, channels_last=True)
    kind = problem.number_type.numpy
    return problem, b.T.astype(kind).reshape(1, 1, N, K), a.astype(kind).reshape(M, 1, 1, K)


KINDS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.uniform(0.5, 1, shape),
    "far apart": lambda rng, shape: np.ldexp(rng.uniform(-1, 1, shape), rng.integers(-9, 9, shape)),
    "small": lambda rng, shape: rng.standard_normal(shape) * 2.0**-12,
}


@of_halves
@pytest.mark.parametrize("left", KINDS)
def test_sums_of_16_bit_products_are_within_the_bound(dtype, left):
    kind = NUMBER_TYPES[dtype].numpy
    for right, K in product(KINDS, (1, 7, 16, 17, 100)):
        rng = np.random.default_rng(K)
        a = as_floats(KINDS[left](rng, (32, K)).astype(kind))
        b = as_floats(KINDS[right](rng, (K, 24)).astype(kind))
        oracle = Oracle(*as_convolution(a, b, dtype))
        for terms in (16, 8, 1):  # the fewest instructions, and more with zeros
            if terms == 1 and K > 16:
                continue
            sums = on_tensor_cores(a, b, terms)
            output = as_rounded(sums.T, dtype).reshape(oracle.expected.shape)
            result = oracle.check(output)
            assert result.ok, f"{right}, K = {K}, terms = {terms}: {result}"
        if K > 1:
            dropped = as_rounded(on_tensor_cores(a, b, 16, skip=K // 2).T, dtype)
            assert oracle.check(dropped.reshape(oracle.expected.shape)).wrong > 32


def test_the_loss_of_one_instruction_is_what_the_bound_counts():
    """Sixteen terms just below what the largest one lets through are all lost."""
    K = 17
    a = np.full((1, K), 1.0, np.float32)
    b = np.full((K, 1), 2.0**-25 * (1 - 2.0**-8), np.float32)
    b[0] = 1
    lost = (np.float64(a) @ np.float64(b) - on_tensor_cores(a, b, K)).item()
    assert 15.9 * 2.0**-25 < lost <= (16 / 2 + 2) * 2.0**-24
    oracle = Oracle(*as_convolution(a, b, "bfloat16"))
    gamma = oracle._bound().gamma
    assert gamma == pytest.approx((9 + 3 * 2) * 2.0**-24, rel=0.2)


AS_TF32 = np.vectorize(rounded_to_tf32, otypes=[np.float32])


def checked_as_tf32(a, b, output):
    oracle = Oracle(*as_convolution(a, b))
    return oracle.check(output.reshape(oracle.expected.shape), tf32_products=True)


@pytest.mark.parametrize("left", KINDS)
def test_one_product_of_tf32_is_within_the_bound(left):
    for right, K in product(KINDS, (1, 9, 60)):
        rng = np.random.default_rng(K)
        a, b = (KINDS[kind](rng, shape).astype(np.float32)
                for kind, shape in ((left, (32, K)), (right, (K, 24))))  # fmt: skip
        result = checked_as_tf32(a, b, on_tensor_cores(AS_TF32(a), AS_TF32(b), 8))
        assert result.ok, f"{right}, K = {K}: {result}"
        # Numbers of bfloat16 have three bits less; in long sums their errors cancel.
        if K < 60:
            coarse = [as_floats(one.astype(ml_dtypes.bfloat16)) for one in (a, b)]
            assert not checked_as_tf32(a, b, on_tensor_cores(*coarse, 8)).ok


def test_the_bound_of_tf32_is_not_idle():
    worst = np.float32(1 + 2.0**-11 - 2.0**-23)  # just below a tie
    a, b = np.full((8, 4), worst), np.full((4, 8), worst)
    result = checked_as_tf32(a, b, on_tensor_cores(AS_TF32(a), AS_TF32(b), 8))
    assert 0.9 < result.error_over_bound <= 1
    integers = np.arange(-8, 8, dtype=np.float32).reshape(4, 4) * 255
    exact = integers @ integers
    assert checked_as_tf32(integers, integers, exact).error_over_bound == 0
    assert not checked_as_tf32(integers, integers, exact + 1).ok
