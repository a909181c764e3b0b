"""The oracle against other people's convolutions, and its bound against float32 itself."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.tensor_cores import THREE_PRODUCTS, split_product
from strategies import cases, problems, tensors
from test_unfold import correlation

from convlab.problems.oracle import (
    SPLIT_ROUNDINGS,
    CheckResult,
    Oracle,
    bound_at,
    check_output,
    random_tensors,
    rounding_bound,
)
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import magnitude, reference, seven_loops, workers_for

pytestmark = pytest.mark.same_in_cudasim

FLOAT32 = np.finfo(np.float32)
DENORMAL = float(FLOAT32.smallest_subnormal)
inf, nan = math.inf, math.nan

# Nothing in it agrees with anything else: batch, channels, sizes, filter, stride, padding.
TYPICAL = ConvProblem(2, 3, 9, 7, 5, (3, 2), (2, 1), ((1, 0), (0, 2)), (1, 2))


def dot(x, w):
    """The problem, input and weight of one output: the dot product of two short vectors."""
    input = np.array(x, np.float32).reshape(1, -1, 1, 1)
    weight = np.array(w, np.float32).reshape(1, -1, 1, 1)
    return ConvProblem(1, input.size, 1, 1, 1, 1), input, weight


def one(value):
    return np.full((1, 1, 1, 1), value, np.float32)


# --- The answer ---------------------------------------------------------------------------------


def scipys_convolution(problem, input, weight, bias):
    padded = np.pad(input.astype(float), ((0, 0), (0, 0), *problem.padding))
    output = correlation(padded, weight, problem.stride, problem.dilation)
    return output if bias is None else output + bias[:, None, None]


def assert_close(got, expected, magnitude):
    """Equal but for float64 rounding of a sum in another order."""
    assert got.shape == expected.shape
    assert (np.abs(got - expected) <= 1e-12 * magnitude).all()


@pytest.mark.slow
@given(cases(kinds=("normal", "denormals", "huge")))
def test_scipy_agrees(case):
    problem, (input, weight, bias) = case
    size = magnitude(problem, input, weight, bias)
    sizes = [None if part is None else np.abs(part) for part in (input, weight, bias)]
    assert_close(size, scipys_convolution(problem, *sizes), size)
    expected = scipys_convolution(problem, input, weight, bias)
    assert_close(reference(problem, input, weight, bias), expected, size)
    p = problem
    assert_close(seven_loops(input, weight, bias, p.stride, p.padding, p.dilation), expected, size)


@given(cases())
def test_the_fast_oracle_is_the_seven_loops_on_any_numbers(case):
    """NaN and infinities in the same places too: the matrix library adds and skips none."""
    p, (input, weight, bias) = case
    read = seven_loops(input, weight, bias, p.stride, p.padding, p.dilation)
    fast = reference(p, input, weight, bias)
    finite = np.isfinite(read)
    assert np.array_equal(fast[~finite], read[~finite], equal_nan=True)
    size = magnitude(p, input, weight, bias)
    assert_close(fast[finite], read[finite], size[finite])


def test_padding_is_zeros_that_are_multiplied():
    """PyTorch multiplies them too: 0 * inf is NaN, so an infinite weight on padding must not be
    skipped."""
    problem = ConvProblem(1, 1, 1, 3, 1, (1, 3), padding=(0, 1))
    input, weight = np.ones(problem.input_shape), np.array([inf, 1, 1]).reshape(1, 1, 1, 3)
    expected = [[[[nan, inf, inf]]]]
    np.testing.assert_equal(seven_loops(input, weight, padding=(0, 1)), expected)
    np.testing.assert_equal(reference(problem, input, weight), expected)


# --- The bound ----------------------------------------------------------------------------------


def in_float32(problem, input, weight, bias, rng):
    """One of the many right ways to compute a convolution in float32, chosen at random.

    Products are rounded and added, as a chain or as any tree, or fused multiply-adds are chained;
    in any order, the bias anywhere.
    """
    padded = np.pad(input.astype(np.float64), ((0, 0), (0, 0), *problem.padding))
    windows = np.lib.stride_tricks.sliding_window_view(padded, problem.window_shape, axis=(2, 3))
    windows = windows[:, :, :: problem.s_h, :: problem.s_w, :: problem.d_h, :: problem.d_w]
    products = windows[:, None] * weight.astype(np.float64)[None, :, :, None, None]  # exact
    products = np.moveaxis(products, 2, -1).reshape(*problem.output_shape, problem.K)

    how = rng.choice(["chain", "tree", "fused"])
    terms = list(np.moveaxis(products, -1, 0))
    if how != "fused":
        terms = [term.astype(np.float32) for term in terms]
    if bias is not None:
        terms.append(np.broadcast_to(bias[:, None, None], problem.output_shape))
    rng.shuffle(terms)
    if how == "tree":
        while len(terms) > 1:
            left, right = (terms.pop(rng.integers(len(terms))) for _ in range(2))
            terms.append(left + right)
        return terms[0]
    total = np.float32(0)
    for term in terms:
        total = (total + term).astype(np.float32)  # rounds a fused term for the first time
    return total


@given(cases(), st.integers(0, 2**16))
@settings(max_examples=150)
def test_float32_passes_in_any_order_on_any_numbers(case, seed):
    problem, (input, weight, bias) = case
    for part in (input, weight, bias):
        if part is not None:
            part.flags.writeable = False
    with np.errstate(all="ignore"):
        output = in_float32(problem, input, weight, bias, np.random.default_rng(seed))
    result = Oracle(problem, input, weight, bias).check(output)
    assert result.ok, str(result)
    assert result.error_over_bound <= 1


@given(problems(max_macs=300), st.sampled_from(["zeros", "integers"]), st.booleans())
def test_where_float32_is_exact_nothing_else_passes(problem, kind, bias):
    oracle = Oracle(problem, *tensors(problem, kind, 0, bias=bias))
    exact = oracle.expected.astype(np.float32)
    assert (oracle.bound == 0).all()
    assert oracle.check(exact) == CheckResult(True, 0.0, 0, exact.size)
    assert oracle.check(np.nextafter(exact, np.float32(inf))).wrong == exact.size


@pytest.mark.parametrize(
    ("K", "bias", "least", "roundings"),
    [(10, False, 0, 10), (10, True, 0, 11), (1, False, 48, 48), (48, True, 48, 49)],
)
def test_the_bound_is_gamma_times_the_magnitude(K, bias, least, roundings):
    bound = rounding_bound(K, with_bias=bias, least=least)
    gamma = roundings / (2**24 - roundings)
    assert bound_at(np.array([1.0, 3.0]), bound) == pytest.approx([gamma, 3 * gamma], rel=1e-14)
    assert bound_at(1.0, bound) == pytest.approx(gamma, rel=1e-14)
    assert SPLIT_ROUNDINGS == 48


@pytest.mark.parametrize("integers", [False, True])
def test_a_residual_is_one_more_term_of_each_sum(integers):
    given = random_tensors(TYPICAL, 3, integers=integers)
    residual = random_tensors(TYPICAL, 4, integers=integers)[0]
    residual = np.resize(residual, TYPICAL.output_shape).astype(np.float32)
    residual[0, 0, 0], residual[1, 2, 1] = inf, nan
    oracle, without = Oracle(TYPICAL, *given, residual=residual), Oracle(TYPICAL, *given)
    right = (without.expected + residual).astype(np.float32)
    assert oracle.check(right).ok
    np.testing.assert_array_equal(oracle.expected, without.expected + residual)
    finite = np.isfinite(residual)
    np.testing.assert_allclose(
        oracle.magnitude[finite], (without.magnitude + np.abs(residual))[finite]
    )
    for wrong in (without.expected, np.where(finite, right, 0), np.where(right == inf, nan, right)):
        assert not oracle.check(wrong.astype(np.float32)).ok
    with pytest.raises(ValueError, match=r"^residual has shape"):
        Oracle(TYPICAL, *given, residual=residual[:, :1])
    with pytest.raises(ValueError, match=r"^residual is float64: it must be float32"):
        Oracle(TYPICAL, *given, residual=residual.astype(np.float64))


def test_without_a_bound_there_is_no_check():
    problem = ConvProblem(1, 2**24 - 1, 1, 1, 1, 1)
    assert bound_at(1.0, rounding_bound(problem.K, with_bias=False)) > 1e6
    with pytest.raises(ValueError, match=r"sums 16777216 numbers: .* below 2\*\*24"):
        rounding_bound(problem.K, with_bias=True)


@pytest.mark.parametrize("side", [-1, 1])
def test_a_little_over_the_bound_fails_and_a_little_under_passes(side):
    oracle = Oracle(TYPICAL, *random_tensors(TYPICAL, 0))
    edge = (oracle.expected + side * oracle.bound).astype(np.float32)
    over = oracle.check(np.nextafter(edge, np.float32(side * inf)))
    assert over.wrong == over.total
    assert 1 < over.error_over_bound < 1.5
    under = oracle.check(np.nextafter(edge, np.float32(-side * inf)))
    assert under.ok
    assert 0.5 < under.error_over_bound <= 1


# --- Infinities, NaN, overflow, underflow -------------------------------------------------------

BIG = 1e20  # its square is beyond float32


# One vector, another, what their dot product may be in float32, and what it may not be.
DOT_PRODUCTS = {
    "plain": ([1, 1], [1, 2], [3], [nan, inf, -inf, -3, 0]),
    "NaN in": ([nan, 1], [1, 1], [nan], [1, inf, -inf]),
    "infinity in": ([inf, 1], [1, 1], [inf], [nan, -inf, FLOAT32.max]),
    "minus infinity in": ([inf, 1], [-1, 1], [-inf], [nan, inf, FLOAT32.min]),
    "infinities cancel": ([inf, inf], [1, -1], [nan], [inf, -inf, 0]),
    "infinity times zero": ([inf, 1], [0, 1], [nan], [1, inf]),
    "infinity and an overflow against it": ([inf, BIG], [1, -BIG], [inf, nan], [-inf, 0]),
    "infinity and an overflow with it": ([inf, BIG], [1, BIG], [inf], [nan, -inf, 0]),
    "NaN and an overflow": ([nan, BIG], [1, BIG], [nan], [inf, -inf, 0]),
    "product overflows": ([BIG, 1], [BIG, 1], [inf], [nan, -inf, FLOAT32.max]),
    "sum overflows": ([3e38, 3e38], [1, 1], [inf], [nan, -inf, 0]),
    "sum overflows below": ([3e38, 3e38], [-1, -1], [-inf], [nan, inf, 0]),
    "no sum overflows": ([3e38, 3e38], [1, -1], [0], [nan, inf, -inf]),
    "two overflows cancel": ([BIG, BIG], [BIG, -BIG], [nan, inf, -inf, 0], [FLOAT32.max]),
    "overflow on the way": ([3e38] * 3, [1, 1, -1], [3e38, inf], [nan, -inf, 0]),
    "the largest number": ([FLOAT32.max], [1], [FLOAT32.max, inf], [nan, -inf]),
    "zeros": ([0, -0.0], [1, 1], [0, -0.0], [DENORMAL, -DENORMAL, nan]),
    "product underflows": ([DENORMAL], [0.5], [0, DENORMAL], [2 * DENORMAL, nan]),
    "product is denormal": ([DENORMAL], [1.25], [DENORMAL], [0, 2 * DENORMAL]),
    "product is a tie": ([2.0**-75], [2.0**-75], [0, DENORMAL], [-DENORMAL]),
    "product vanishes": ([2.0**-80], [2.0**-80], [0], [DENORMAL]),
    "two products vanish": ([2.0**-80] * 2, [2.0**-80] * 2, [0], [DENORMAL]),
    "integers up to 2**24": ([4095, 1], [4096, 1], [16773121], [16773120, 16773122]),
    "integers beyond 2**24": ([4096, 1], [4096, 1], [2**24, 2**24 + 2], [2**24 + 4]),
    "denormals are not flushed": ([2.0**-130], [1], [2.0**-130], [0, nan]),
}


@pytest.mark.parametrize(("x", "w", "right", "wrong"), DOT_PRODUCTS.values(), ids=DOT_PRODUCTS)
def test_special_numbers(x, w, right, wrong):
    oracle = Oracle(*dot(x, w))
    for value in right:
        result = oracle.check(one(value))
        assert result.ok, str(result)
    for value in wrong:
        result = oracle.check(one(value))
        assert not result.ok, f"{value} passes"
        if not (math.isfinite(value) and np.isfinite(oracle.expected).all()):
            assert result.error_over_bound == inf


# --- Wrong on purpose ---------------------------------------------------------------------------


def a_term_dropped(problem, input, weight, bias):
    """Return the sums of which one lacks what the last channel's last filter element adds."""
    last = np.zeros_like(weight)
    last[..., -1, -1, -1] = weight[..., -1, -1, -1]
    terms = reference(problem, input, last)
    place = tuple(np.argwhere(terms)[0])  # the first that is not padding
    output = reference(problem, input, weight, bias)
    output[place] -= terms[place]
    return output


def last_row_unwritten(problem, input, weight, bias):
    output = reference(problem, input, weight, bias)
    output[:, :, -1] = nan
    return output


MISTAKES = {
    "a term dropped": a_term_dropped,
    "shifted": lambda *made: np.roll(reference(*made), 1, axis=3),
    "bias forgotten": lambda p, x, w, b: reference(p, x, w),
    "filter flipped": lambda p, x, w, b: reference(p, x, w[:, :, ::-1, ::-1], b),
    "first image again": lambda p, x, w, b: reference(p, np.broadcast_to(x[:1], x.shape), w, b),
    "last row unwritten": last_row_unwritten,
}


@pytest.mark.parametrize("integers", [False, True], ids=["normal", "integers"])
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_wrong_output_fails(mistake, integers):
    made = random_tensors(TYPICAL, 0, integers=integers)
    output = mistake(TYPICAL, *made).astype(np.float32)
    right = reference(TYPICAL, *made).astype(np.float32)
    oracle = Oracle(TYPICAL, *made)
    for checked in (right, output, right, output):
        result = oracle.check(checked)
        assert result.ok == (checked is right)
    assert result == check_output(TYPICAL, output, *made) or np.isnan(result.got)
    assert result.error_over_bound > 100
    assert result.wrong == np.count_nonzero(output != right)
    assert result.first == tuple(np.argwhere(output != right)[0])


# --- The result --------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (0, 4, 2, 1), (1, 0, 0, 6), (1, 4, 3, 6)])
def test_a_poisoned_element_is_found_where_it_is_in_plain_python(place):
    oracle = Oracle(TYPICAL, *random_tensors(TYPICAL, 0))
    output = oracle.expected.astype(np.float32)
    output[place] = nan
    result = oracle.check(output)
    expected = CheckResult(False, inf, 1, 280, place, nan, float(oracle.expected[place]))
    assert repr(result) == repr(expected)  # and so JSON can hold it; NaN equals nothing
    assert f"1 of 280 outputs is wrong, first at {[*place]}: got nan, expec" in str(result)
    assert "all 280" in str(oracle.check(oracle.expected.astype(np.float32)))


# --- What is refused, and random tensors --------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "bad", "names"),
    [
        (0, np.zeros((2, 3, 9, 8), np.float32), r"input .*\(2, 3, 9, 8\)"),
        (1, np.zeros((5, 3, 2, 3), np.float32), r"weight .*\(5, 3, 3, 2\)"),
        (2, np.zeros((5, 1), np.float32), r"bias .*\(5, 1\)"),
        (0, np.zeros(TYPICAL.input_shape), "input is float64: .* float32"),
        (1, np.zeros(TYPICAL.weight_shape, int), r"weight is int\d+: .* float32"),
        (2, np.zeros(5, np.float16), "bias is float16: .* float32"),
        (3, one(0), r"output .*\(1, 1, 1, 1\): .* \(2, 5, 4, 7\)"),
        (3, np.zeros(TYPICAL.output_shape), "output is float64: .* float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tensor_of_another_shape_or_dtype_is_refused(place, bad, names):
    made = [*random_tensors(TYPICAL, 0), np.zeros(TYPICAL.output_shape, np.float32)]
    made[place] = bad
    with pytest.raises(ValueError, match=names):
        Oracle(TYPICAL, *made[:3]).check(made[3])


def test_seven_loops_refuses_tensors_that_do_not_belong_together():
    with pytest.raises(ValueError, match=r"input has shape \(3, 3\): it must have 4 dimensions"):
        seven_loops(np.ones((3, 3)), np.ones((1, 1, 2, 2)))
    with pytest.raises(ValueError, match=r"weight has shape \(1, 2, 2, 2\): .* \(1, 1, 2, 2\)"):
        seven_loops(np.ones((1, 1, 3, 3)), np.ones((1, 2, 2, 2)))


@pytest.mark.parametrize("integers", [False, True], ids=["normal", "integers"])
def test_random_tensors_are_the_same_for_the_same_seed(integers):
    made = random_tensors(TYPICAL, 7, integers=integers)
    again = random_tensors(TYPICAL, np.random.default_rng(7), integers=integers)
    shapes = (TYPICAL.input_shape, TYPICAL.weight_shape, (TYPICAL.out_channels,))
    assert tuple(tensor.shape for tensor in made) == shapes
    for tensor, other in zip(made, again, strict=True):
        assert tensor.dtype == np.float32
        assert np.array_equal(tensor, other)
        assert (tensor == np.rint(tensor)).all() == integers
    assert not np.array_equal(made[0], random_tensors(TYPICAL, 8, integers=integers)[0])
    assert random_tensors(TYPICAL, 0, bias=False)[2] is None


def test_an_atomic_addition_may_take_a_denormal_for_zero_and_nothing_more():
    problem, x, w = dot([2.0**-60, 2.0**-62], [2.0**-68, 2.0**-68])
    oracle = Oracle(problem, x, w)
    flushed = np.zeros(problem.output_shape, np.float32)
    assert not oracle.check(flushed).ok
    assert oracle.check(flushed, atomic_additions=2).ok
    assert not oracle.check(flushed + np.float32(2.0**-123), atomic_additions=2).ok


# --- Products of numbers split in two -----------------------------------------------------------


def as_convolution(a, b):
    """The problem, input and weight of which ``a @ b`` is the convolution."""
    (M, K), N = a.shape, b.shape[1]
    return ConvProblem(1, K, 1, N, M, 1), b.reshape(1, K, 1, N), a.reshape(M, K, 1, 1)


def checked_as_split(a, b, output):
    oracle = Oracle(*as_convolution(a, b))
    return oracle.check(output.reshape(oracle.expected.shape), split_products=True)


def powers(rng, shape, least, most):
    return np.ldexp(rng.uniform(1, 2, shape), rng.integers(least, most + 1, shape))


def near_one(rng, shape, bits, low):
    return 1 + rng.integers(0, 3, shape) * 2.0**-bits + low * 2.0**-23


AWKWARD = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.uniform(0, 1, shape),
    # Just below a tie: small parts as large as they get, and nearest to each other's size.
    "largest small parts": lambda rng, shape: near_one(rng, shape, 10, 2**12 - 1),
    # Small parts of twelve bits, of which the last is lost.
    "odd small parts": lambda rng, shape: near_one(
        rng, shape, 10, 2 * rng.integers(2**10, 2**11, shape) + 1
    ),
    "far apart": lambda rng, shape: powers(rng, shape, -10, 10) * rng.choice((-1, 1), shape),
    "integers": lambda rng, shape: rng.integers(2**11, 2**13, shape),
    "large": lambda rng, shape: powers(rng, shape, 90, 100),
    "where TF32 ends": lambda rng, shape: powers(rng, shape, -116, -110),
    "subnormal": lambda rng, shape: rng.integers(1, 2**14, shape) * 2.0**-149,
    "products are subnormal": lambda rng, shape: powers(rng, shape, -70, -69),
}  # fmt: skip


@pytest.mark.parametrize("chain", [1, 2])
@pytest.mark.parametrize("left", AWKWARD)
def test_split_products_are_within_the_bound(left, chain):
    for right, K in product(AWKWARD, (1, 7, 9, 16, 25, 48, 49)):
        rng = np.random.default_rng(5 + K)
        a, b = (AWKWARD[kind](rng, shape).astype(np.float32)
                for kind, shape in ((left, (24, K)), (right, (K, 16))))  # fmt: skip
        result = checked_as_split(a, b, split_product(a, b, chain))
        assert result.ok, f"{right}, K = {K}: {result}"


def test_the_bound_of_split_products_is_not_idle():
    """The loss here is a quarter of the bound, and at most the bound where numbers cancel."""
    rng = np.random.default_rng(7)
    a, b = (AWKWARD["largest small parts"](rng, shape).astype(np.float32)
            for shape in ((64, 25), (25, 64)))  # fmt: skip
    assert 1 / 5 < checked_as_split(a, b, split_product(a, b, 1)).error_over_bound < 1
    a, b = np.hstack([a, a]), np.vstack([b, -b])
    b[0] = np.nextafter(b[0], np.float32(0))
    assert all(checked_as_split(a, b, split_product(a, b, chain)).ok for chain in (1, 2))


def test_one_small_product_loses_three_times_and_that_is_allowed():
    """Each of the three instructions cuts nearly a whole 2**-149 off it."""
    a = np.array([[float.fromhex("0x1.b1cfa2p-69")]], np.float32)
    b = np.array([[float.fromhex("0x1.0252d8p-68")]], np.float32)
    output = split_product(a, b, 1)
    assert float(a[0, 0]) * float(b[0, 0]) - float(output[0, 0]) > 2.9 * 2.0**-149
    assert checked_as_split(a, b, output).ok
    assert not checked_as_split(a, b, output - np.float32(4 * 2.0**-149)).ok


@pytest.mark.parametrize("K", [1, 9, 40, 147, 288])
@pytest.mark.parametrize("left_out", [(0,), (1,), (0, 1)], ids=str)
def test_a_small_product_left_out_is_found(left_out, K):
    a, b = (np.random.default_rng(K).standard_normal((2, 1024, K))).astype(np.float32)
    a, b = a[:32], b[:32].T.copy()
    kept = [parts for place, parts in enumerate(THREE_PRODUCTS) if place not in left_out]
    assert checked_as_split(a, b, split_product(a, b, 2)).error_over_bound < 0.3
    result = checked_as_split(a, b, split_product(a, b, 2, kept))
    assert not result.ok
    assert result.error_over_bound > 2


def test_split_products_of_whole_numbers_are_exact_up_to_2_to_the_11():
    rng = np.random.default_rng(8)
    a, b = rng.integers(-(2**11), 2**11 + 1, (16, 3)), rng.integers(-9, 10, (3, 16))
    a[0, 0] = 2**11
    a, b = a.astype(np.float32), b.astype(np.float32)
    right = split_product(a, b, 1)
    np.testing.assert_array_equal(right, a @ b)
    assert checked_as_split(a, b, right).error_over_bound == 0
    right[3, 4] += 2.0**-6
    assert checked_as_split(a, b, right).wrong == 1
    a[0, 0] += 1  # it is not all in its large part any more
    right[0] += b[0]
    assert checked_as_split(a, b, right).ok


def test_a_large_number_allows_nothing_elsewhere():
    a, b = np.ones((1, 4), np.float32), np.ones((4, 2), np.float32)
    b[0, 1] = FLOAT32.max
    wrong = np.array([[4.001, FLOAT32.max]], np.float32)
    assert checked_as_split(a, b, wrong).wrong == 1
    b[0, 0] = 2.0**-120  # a number of the input that TF32 has few bits of, and weights are small
    assert checked_as_split(a, b, wrong - np.float32([1, 0])).wrong == 1
    a[0, 3] = 2.0**-120  # now it is of the weight, and meets the large one
    b[0, 0], b[3, 1] = 1, FLOAT32.max
    assert checked_as_split(a, b, np.array([[3.001, FLOAT32.max]], np.float32)).ok


# --- Threads, and the compiled pass -------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "most"),
    [
        # An image takes 129.5 MB, and the answer 6.5 GB.
        (ConvProblem(128, 64, 224, 224, 64, 3), 45),
        (ConvProblem(1, 64, 224, 224, 64, 3), 1),
        (ConvProblem(4, 512, 30, 30, 1, 3), 1),
        (ConvProblem(4096, 3, 32, 32, 64, 3), 10_000),
    ],
)
def test_threads_take_no_more_memory_than_the_answer(monkeypatch, problem, most):
    monkeypatch.setattr("convlab.problems.reference.cores", lambda: 10_000)
    assert most / 2 < workers_for(problem) <= most * 1.2
    monkeypatch.setattr("convlab.problems.reference.cores", lambda: 3)
    assert workers_for(problem) == min(3, most)
    with pytest.raises(ValueError, match=r"^workers is 0: it must be at least 1$"):
        Oracle(TYPICAL, *random_tensors(TYPICAL, 0), workers=0)


SPECIAL = [0.0, -0.0, 0.1, -3.3, 1e-45, -1e-40, 1e-30, 3e38, -3e38, inf, -inf, nan]


@given(
    st.lists(st.sampled_from(SPECIAL), min_size=24, max_size=24)
    | st.sampled_from(([0.1] * 24, [-3.0] * 24)),
    st.lists(st.sampled_from(SPECIAL), min_size=4, max_size=4)
    | st.sampled_from(([0.3] * 4, [2.0] * 4)),
    st.lists(st.tuples(st.integers(0, 23), st.sampled_from(SPECIAL)), max_size=4),
    st.integers(0, 23),
    st.booleans(),
)
@settings(max_examples=40)
def test_many_outputs_are_checked_as_few_are(x, w, mistakes, off, split):
    """Threads and a compiled pass check many. NaN, infinities, denormals and overflow may be among
    them, and one output is next to the right one."""
    problem = ConvProblem(2, 2, 2, 3, 2, 1)
    tensors = (np.float32(x).reshape(problem.input_shape), np.float32(w).reshape(2, 2, 1, 1))
    allowances = {"atomic_additions": int(split), "split_products": split}
    few = Oracle(problem, *tensors)
    assert few.workers == 1
    with np.errstate(over="ignore"):
        output = few.expected.astype(np.float32)
    output.flat[off] = np.nextafter(output.flat[off], np.float32(0))
    for place, value in mistakes:
        output.flat[place] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("convlab.problems.oracle.MANY_OUTPUTS", 1)
        many = Oracle(problem, *tensors, workers=3)
        result = many.check(output, **allowances)
    assert many.workers == 3
    np.testing.assert_array_equal(many.expected, few.expected)
    np.testing.assert_array_equal(many.magnitude, few.magnitude)
    # Compared as text: what was got and expected may be NaN, which equals nothing.
    assert repr(result) == repr(few.check(output, **allowances))
