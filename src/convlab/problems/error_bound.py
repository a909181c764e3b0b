"""The bound of the rounding errors of an output, as a function of its exact value and its
magnitude, and the passes over many outputs that use it. docs/checking.md derives the bound."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from convlab.problems.number_types import Floats, NumberType, Rounding, as_floats, rounded
from convlab.problems.reference import Doubles

ROUNDOFF = 2.0**-24  # float32's u: half the distance from 1 to the next number
HALF_DENORMAL = 2.0**-150  # half of float32's smallest number above zero
SMALLEST_NORMAL = 2.0**-126
LARGEST_EXACT = 2**24  # float32 holds every integer up to here
LARGEST_EXACT_TF32 = 2**11  # and TF32 up to here
SPLIT_ROUNDINGS = 48  # the fewest roundings that a sum of split products counts as
TF32_DENORMAL = 2.0**-136  # TF32's smallest number above zero
TF32_WHOLE = 2.0**-113  # below it, a number's small part is too small for TF32
TF32_LOSS = 2.0**-10 + 2.0**-22  # of a product whose factors are rounded to TF32
TF32_CUT_LOSS = 2.0**-9 + 2.0**-20  # of one whose factors are cut to TF32

_Size = TypeVar("_Size", float, NDArray[np.float64])


class Bound(NamedTuple):
    """The largest error allowed in one problem's outputs. The first four fields bound the error of
    a sum as a function of its ``magnitude``; 16-bit outputs are such sums, rounded once more."""

    gamma: float
    underflow: float  # the most that all products below the normal range lose together
    exact_up_to: float  # the magnitude up to which no bit is lost; negative if there is none
    always: float  # what is lost whatever the magnitude
    is_rounded: bool = False  # once more, to an output of 16 bits
    rounding: Rounding = Rounding(0.0, 0.0, 0.0)  # to the output's type, if it is rounded
    overflow: float = math.inf  # the least number that the type rounds to infinity
    cut: bool = False  # factors are cut to TF32, so the smallest numbers are zeros


def bound_at(magnitude: _Size, bound: Bound) -> _Size:
    """Return the largest error of sums of this magnitude, as numbers or as arrays."""
    underflown = (1 + bound.gamma) * np.minimum(bound.underflow, magnitude)
    lost = bound.gamma * magnitude + underflown + bound.always
    return lost * (magnitude > bound.exact_up_to)  # type: ignore[no-any-return]


def allowed_error(
    expected: _Size,
    magnitude: _Size,
    bound: Bound,
    of_sums: Any = bound_at,
    nearest: Any = rounded,
) -> _Size:
    """Return the largest error of outputs with these exact values: that of their sums, or for 16
    bits that of their sums rounded to the output's type. The two functions may be compiled ones."""
    lost: _Size = of_sums(magnitude, bound)
    if not bound.is_rounded:
        return lost
    below = expected - nearest(expected - lost, bound.rounding)
    above = nearest(expected + lost, bound.rounding) - expected
    return np.maximum(np.abs(below), np.abs(above))  # type: ignore[no-any-return]


def rounding_bound(
    K: int,
    *,
    with_bias: bool,
    integers: bool = False,
    least: int = 0,
    always: float = 0.0,
    of_products: float = 0.0,
    output: NumberType | None = None,
) -> Bound:
    """The bound of float32 sums of K terms. ``integers`` says that every tensor holds integers that
    the products keep whole, ``least`` is the least number of roundings to allow, ``always`` a
    further loss that is allowed unless all are integers, ``of_products`` the relative error of each
    product beside its rounding, ``output`` the type of 16 bits that the sums are rounded to. Raises
    ``ValueError`` from ``n = 2**24`` roundings on, where gamma_n means nothing."""
    roundings = max(K, least) + with_bias
    if roundings >= 1 / ROUNDOFF:
        raise ValueError(
            f"each output sums {roundings} numbers: the error bound holds below 2**24, because "
            "float32 may lose all digits over that many"
        )
    gamma = roundings * ROUNDOFF / (1 - roundings * ROUNDOFF)
    gamma += of_products * (1 + gamma)
    exact_up_to = LARGEST_EXACT if integers else -1
    sums = Bound(gamma, K * HALF_DENORMAL, exact_up_to, 0.0 if integers else always)
    if output is None:
        return sums
    return sums._replace(is_rounded=True, rounding=output.rounding, overflow=output.overflow)


def instructions(taps: int, channels: int, terms: int) -> int:
    """Return how many of a tensor core's instructions, of so many terms each, add products to a sum
    over taps and channels, at most: each tap may fill its last instruction up with zeros."""
    return taps * -(-channels // terms)


def roundings_on_tensor_cores(K: int, instructions: int) -> int:
    """Return how many roundings of float32 a sum of K products by that many instructions may lose,
    with a float32 addition after each."""
    return -(-K // 2) + 3 * instructions


def largest_error(output: Floats, expected: Doubles, magnitude: Doubles, bound: Bound) -> float:
    """The largest error of many outputs as a multiple of its bound. It is infinite if an output or
    an expected value is not finite, or an output may have to be infinite. The three arrays have one
    shape. The function is compiled: with NumPy alone, the check of a benchmark's hundreds of
    millions of outputs takes longer than anything else in it."""
    flat = (np.asarray(array).reshape(-1) for array in (as_floats(output), expected, magnitude))
    return float(_compiled()[0](*flat, bound))


def squared_errors(output: Floats, expected: Doubles) -> tuple[float, float, float]:
    """The sums of squared errors and of squared expected values, and the largest error. If an
    element is not finite, the first sum is not finite either, and the largest error means nothing.
    Also compiled."""
    flat = (np.asarray(array).reshape(-1) for array in (as_floats(output), expected))
    errors, sizes, largest = _compiled()[1](*flat)
    return float(errors), float(sizes), float(largest)


def _where_for_one(condition: bool, one: float, other: float) -> float:
    return one if condition else other


@cache
def _compiled() -> tuple[Any, Any]:
    from numba import njit  # a second of compiling, only for many outputs

    of_sums, to_type, allowed, where = (
        njit(nogil=True)(one) for one in (bound_at, rounded, allowed_error, _where_for_one)
    )

    def to_nearest(number: float, rounding: Rounding) -> float:
        return to_type(number, rounding, where)  # type: ignore[no-any-return]

    nearest = njit(nogil=True)(to_nearest)

    def largest_error(output: Floats, expected: Doubles, magnitude: Doubles, bound: Bound) -> float:
        largest, finite = 0.0, True
        for e in range(output.size):
            error = abs(output[e] - expected[e])
            finite &= error < np.inf and abs(expected[e]) < bound.overflow
            if error > 0:
                most = allowed(expected[e], magnitude[e], bound, of_sums, nearest)
                largest = max(largest, error / most if most > 0 else np.inf)
        return largest if finite else np.inf

    def squared_errors(output: Floats, expected: Doubles) -> tuple[float, float, float]:
        errors = sizes = largest = 0.0
        for e in range(output.size):
            error = output[e] - expected[e]
            errors += error * error
            sizes += expected[e] * expected[e]
            largest = max(largest, abs(error))
        return errors, sizes, largest

    return njit(nogil=True)(largest_error), njit(nogil=True)(squared_errors)
