"""Tensor cores on the strict simulator: right to the bit where that can be said, within the stated
bound elsewhere, counted, and refused where a warp is not whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.cases import kernel_function
from kernels.tensor_cores import (
    bound,
    cut,
    exact,
    gemm_shape,
    products,
    random_products,
    rounded,
    roundings,
    split,
    splits,
    tf32_gemm,
)
from numba import cuda

from convlab import device
from convlab.device import emulation_of, mma_tf32, split_tf32, to_tf32
from convlab.device.products import rounded_to_tf32, split_into_tf32
from convlab.running.engines.simulator import Simulator
from convlab.tracing import trace

pytestmark = pytest.mark.same_in_cudasim

F = np.float32
INF, NAN, MOST = np.inf, np.nan, float(np.finfo(np.float32).max)


def multiplied(a, b, c) -> np.ndarray:
    d = np.full(c.shape, NAN, F)
    Simulator().launch(products, len(a), 32, a, b, c, d)
    return d


@pytest.mark.parametrize("spread", [0, 3, 20])
def test_products_are_within_the_bound_in_any_order_of_terms(spread: int) -> None:
    a, b, c = random_products(20, 1, spread)
    found = multiplied(a, b, c)
    error = np.abs(found - exact(a, b, c))
    assert (error <= bound(a, b, c)).all()
    assert error.any()
    order = np.random.default_rng(8).permutation(8)
    np.testing.assert_array_equal(multiplied(a[:, :, order], b[:, order], c), found)


def test_nan_and_infinities_stay_in_their_rows_and_columns() -> None:
    a, b, c = random_products(1, 4, 0)
    usual = multiplied(a, b, c)
    a[0, 2, 5], b[0, 1, 3], c[0, 9, 6] = NAN, INF, -INF
    found = multiplied(a, b, c)[0]
    assert np.isnan(found[2]).all()
    others = [row for row in range(16) if row != 2]
    np.testing.assert_array_equal(found[others, 3], np.copysign(INF, a[0, others, 1]))
    assert found[9, 6] == -INF
    found[2], found[:, 3], found[9, 6] = usual[0, 2], usual[0, :, 3], usual[0, 9, 6]
    np.testing.assert_array_equal(found, usual[0])


MOST_TERM = 2.0**127
ONE_SUM = [  # the first terms on the left and on the right, what they are added to, the sum
    ([1 + 2**-10 - 2**-23], [-3], 0, -3),  # what is not rounded is cut
    ([1 + 2**-10], [-3], 0, -3 * (1 + 2**-10)),
    ([1], [2.0**-24 * 1.5], 1, 1),  # and so is a sum
    ([-1], [2.0**-24 * 1.5], -1, -1),
    ([-1], [2.0**-24 * 1.5], 1, 1 - 2.0**-23),  # the exact sum is nearer to 1
    *(([left], [right], c, NAN) for left, right, c in ((INF, 0, 0), (INF, 1, -INF), (0, NAN, 0))),
    ([0], [0], NAN, NAN),
    ([MOST_TERM], [1], MOST_TERM * (1 - 2.0**-24), MOST),
    ([MOST_TERM], [2], 0, INF),
    ([MOST_TERM, -MOST_TERM], [MOST_TERM, MOST_TERM], 0, 0),  # too large, but not their sum
    # Subnormal numbers are aligned by the least exponent: the exact sum would be a float32 too.
    ([2.0**-136], [2.0**100], 2.0**-52, 2.0**-36),
    ([2.0**-126], [2.0**90], 2.0**-52, 2.0**-36 + 2.0**-52),
    ([-(2.0**-100)], [2.0**-49], -0.0, -(2.0**-149)),
    ([-(2.0**-100)], [2.0**-109], -0.0, 0.0),
]


@pytest.mark.parametrize(("left", "right", "total", "wanted"), ONE_SUM)
def test_one_sum_as_an_h200_adds_it_up(left, right, total: float, wanted: float) -> None:
    a, b, c = np.zeros((1, 16, 8), F), np.zeros((1, 8, 8), F), np.full((1, 16, 8), total, F)
    for k, (x, y) in enumerate(zip(left, right, strict=True)):
        a[0, :, k], b[0, k] = x, y
    found = multiplied(a, b, c)
    np.testing.assert_array_equal(found, np.full_like(found, wanted))
    assert np.isnan(wanted) or (np.signbit(found) == np.signbit(wanted)).all()


# Rounding


def to_nearest(*values: float) -> list[float]:
    a = np.array(values, F)
    b = np.full_like(a, 7)
    Simulator().launch(roundings, 1 + a.size // 64, 64, a, b)
    return b.tolist()


def test_rounding_is_to_the_nearest_and_ties_go_away_from_zero() -> None:
    place, tie, ulp = 2.0**-10, 2.0**-11, 2.0**-23
    assert to_nearest(1 + tie, 1 + tie - ulp, -1 - tie, -1 - tie + ulp, 1 + 3 * tie) == [
        1 + place, 1, -1 - place, -1, 1 + 2 * place,
    ]  # fmt: skip
    assert str(to_nearest(-0.0, 1.5, INF, -INF, NAN)) == "[-0.0, 1.5, inf, -inf, nan]"
    assert to_nearest(MOST, 2 - ulp) == [INF, 2]
    assert to_nearest(2.0**-149, 2.0**-137, 3 * 2.0**-137) == [0, 2.0**-136, 2.0**-135]
    numbers = random_products(40, 5, 30)[0].ravel()
    found = np.array(to_nearest(*numbers.tolist()), F)
    np.testing.assert_array_equal(found, rounded(numbers))
    np.testing.assert_array_equal(found, cut(found))
    assert rounded_to_tf32(1e39) == INF  # a number that float32 does not have


# Splitting

LAST_TO_STAY = 2.0**128 - 2.0**116 - 2.0**104  # the largest that is not rounded to infinity


@given(bits=st.integers(0, 2**32 - 1))
@example(bits=0x7F7FEFFF)  # the largest whose large part is finite
@example(bits=0x7F7FF000)
@example(bits=0xFFFFFFFF)  # NaN that wraps around
@example(bits=0x00000FFF)
@settings(max_examples=200)
def test_both_parts_of_any_number(bits: int) -> None:
    value = np.uint32(bits).view(F)
    large, small = split_into_tf32(value)
    assert (large.dtype, small.dtype) == (F, F)
    if np.isnan(value) or np.isinf(value):
        assert np.isnan(small)
        assert np.isnan(value) or large == value
        return
    assert int(large.view(np.uint32)) % 2**13 == 0
    assert large == rounded_to_tf32(value)
    if np.isinf(large):
        assert abs(float(value)) > LAST_TO_STAY
        assert small == -large
        return
    whole, size = float(value), abs(float(value))
    assert float(large) + float(small) == whole
    assert abs(float(small)) <= (2.0**-11 * size if size >= 2.0**-126 else 2.0**-137)
    lost = abs(float(small) - float(cut(small)))
    assert lost <= (2.0**-23 * size if size >= 2.0**-113 else 2.0**-136)


def test_numbers_are_split_in_kernels() -> None:
    numbers = random_products(40, 6, 30)[0].ravel()
    parts = np.full((numbers.size, 2), 7, F)
    Simulator().launch(splits, 1 + numbers.size // 64, 64, numbers, parts)
    np.testing.assert_array_equal(parts.T, split(numbers))
    assert parts[:, 1].any()


# Kernels


def test_its_trace_counts_operations_and_finds_no_bank_conflicts() -> None:
    m, n, k = 40, 64, 32  # rows for two blocks, of which one sticks out
    numbers = [np.ones(size, F) for size in ((m, k), (k, n), (m, n))]
    launch = trace(tf32_gemm, *gemm_shape(m, n), *numbers).main
    work = [line for line in launch.work if line.flops]
    assert [line.flops for line in work] == [2 * 64 * n * k]
    assert "mma_tf32(left, right, total)" in launch.source[work[0].file][work[0].line]
    loads = [a for a in launch.accesses if a.array in ("S_A", "S_B") and a.operation == "load"]
    warps = 4 * 2 * 2
    assert sum(a.requests for a in loads) == warps * k // 8 * (4 + 2 * 2)
    assert [a.wavefronts for a in loads] == [a.requests for a in loads]


@cuda.jit
def squared(numbers, out):
    lane = cuda.threadIdx.x
    x = to_tf32(numbers[lane])
    d = mma_tf32((x, x, x, x), (x, x), (x * 2, x, x, x))
    out[lane] = d[0] * d[1]


def test_operations_are_counted_of_whole_warps_and_of_their_results() -> None:
    launch = trace(squared, 1, 64, np.ones(64, F), np.zeros(64, F)).main
    assert [work.flops for work in launch.work] == [2 * 2 * 16 * 8 * 8 + 64, 64]
    assert launch.flops == 2 * 2048 + 128


also_mma, tensor_core = mma_tf32, device


@cuda.jit(device=True)
def under_another_name(x):
    return also_mma((x, x, x, x), (x, x), (x, x, x, x))


def of_one_number(numbers: str) -> Any:
    """``out[i]``, once ``x`` is ``out[i]``, becomes the first of these."""
    lines = ["i = cuda.threadIdx.x", "x = out[i]", f"out[i] = {numbers}[0]"]
    return cuda.jit(kernel_function("kernel", "out", lines, of_one_number))


by_a_device_function = of_one_number("under_another_name(x)")
by_the_module = of_one_number("tensor_core.mma_tf32((x, x, x, x), (x, x), (x, x, x, x))")


@pytest.mark.parametrize("kernel", [by_a_device_function, by_the_module])
@pytest.mark.parametrize("strict", [True, False])
def test_threads_wait_for_each_other_whatever_it_is_called(kernel, strict: bool) -> None:
    out = np.arange(32, dtype=F) % 4
    Simulator(strict=strict).launch(kernel, 1, 32, out)
    thread_in_group = np.arange(32) % 4
    # Rows of A and columns of B are 0, 1, 2, 3, 0, 1, 2, 3.
    assert out.tolist() == (2 * (0 + 1 + 4 + 9) + thread_in_group).tolist()


@cuda.jit
def first_half_alone(out):
    x = out[cuda.threadIdx.x]
    if cuda.threadIdx.x < 16:
        out[cuda.threadIdx.x] = mma_tf32((x, x, x, x), (x, x), (x, x, x, x))[0]


def test_what_a_missing_lane_holds_is_nan() -> None:
    out = np.ones(32, F)
    Simulator(strict=False).launch(first_half_alone, 1, 32, out)
    columns = 2 * (np.arange(16) % 4)  # of D; the lanes that are missing hold B's from 4 on
    np.testing.assert_array_equal(np.isnan(out[:16]), columns >= 4)
    assert (out[16:] == 1).all()


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ("mma_tf32((x, x, x, x), (x, x), (x, x))", "c is a tuple of 2, .* tuple of 4"),
        ("mma_tf32((x, x, x, x), x, (x, x, x, x))", "b is float, .* tuple of 2"),
    ],
)
def test_fragments_have_their_sizes(numbers: str, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Simulator().launch(of_one_number(numbers), 1, 32, np.ones(32, F))


def test_outside_a_kernel_there_is_no_warp() -> None:
    emulation = emulation_of(mma_tf32) or mma_tf32
    with pytest.raises(RuntimeError, match="32 lanes of a warp"):
        emulation((1.0,) * 4, (1.0,) * 2, (1.0,) * 4)
    assert (emulation_of(to_tf32) or to_tf32)(F(1.0)) == 1
    assert (emulation_of(split_tf32) or split_tf32)(F(1.0)) == (1, 0)
