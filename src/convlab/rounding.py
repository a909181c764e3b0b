"""How far float32 rounding may lead from a convolution's exact result.

The bound
---------
A dot product of K terms rounds each term at most ``n = K`` times (``K + 1`` with a bias), in any
order of summation, with fused multiply-adds or without. With ``u = 2**-24`` and
``gamma_n = n*u / (1 - n*u)`` (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition,
section 3.1)::

    |output - exact| <= gamma_n * magnitude,    magnitude = sum |x||w| + |bias|

Below the normal range a product is off by up to half the smallest denormal, ``2**-150``, but never
by more than itself, and sums are exact: that adds ``(1 + gamma_n) * min(K * 2**-150, magnitude)``
(denormals are kept, as GPUs do in float32 unless told otherwise). An atomic addition to global
memory is the exception: there GPUs take denormals for zero, which may cost ``2 * 2**-126`` each.
The reference is a float64 sum, which is off by ``(n - 1) * 2**-53 * magnitude``. The second-order
terms of gamma_n exceed that, so the bound needs no further term.

Products of numbers split in two
--------------------------------
A tensor core multiplies TF32: 11 significant bits. s13 and s14 split each number, ``x = large +
small``, ``|small| <= 2**-11 |x|``, and leave out ``small * small``, at most ``2**-22`` of the
product, and of each small part the 12th bit, ``2**-23`` of its number: ``2**-21`` of the product
together. They add 16 terms at most on the tensor core, in six instructions, of which s13's first
two, and s14's first four, add small products only. Each is within ``2**-21`` of what it adds (nine
terms cut 25 bits below the largest one, and the sum cut): four times ``2**-21`` and, for the first
two, ``2**-30``. That makes ``8 + 33`` roundings, and with one addition for every 8 terms ``41 +
ceil(K / 8)``: no more than ``max(K, 48)``. So from 48 terms on the bound is that of other stages.
Below ``2**-113`` TF32 has fewer bits and loses up to ``2**-136``. Each such x adds ``2**-136 * max
|w|``, and each such w adds ``2**-136 * max |x|``. Each of three instructions may also cut a
denormal sum by ``2**-149``, even if the sum has one term: that adds ``K * 2**-147``. Integers are
exact where ``large`` is all of them, up to ``2**11``.

Where all tensors hold only integers and ``magnitude`` is at most ``2**24``, float32 makes no error
and the bound is 0. This is the sharper test: the bound above grows with K times the magnitude, and
with some thousands of terms one whole term hides below it. (Winograd and Fourier algorithms compute
other sums; neither bound is theirs.)
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from convlab.problem import ConvProblem

ROUNDOFF = 2.0**-24  # float32's u: half the distance from 1 to the next number
HALF_DENORMAL = 2.0**-150  # half of float32's smallest number above zero
SMALLEST_NORMAL = 2.0**-126
LARGEST_EXACT = 2**24  # float32 holds every integer up to here
LARGEST_EXACT_TF32 = 2**11  # and TF32 up to here
SPLIT_ROUNDINGS = 48  # the fewest that sums of split products are worth
TF32_DENORMAL = 2.0**-136  # TF32's smallest number above zero
TF32_WHOLE = 2.0**-113  # the least number whose two parts TF32 holds as well as any other's

_Size = TypeVar("_Size", float, NDArray[np.float64])


class Bound(NamedTuple):
    """The largest error allowed in one problem's outputs, as a function of their ``magnitude``."""

    gamma: float
    underflow: float
    """The most that products below the normal range lose together."""
    exact_up_to: float
    """Up to this magnitude nothing is lost; negative where that is true of none."""
    always: float
    """What is lost whatever the magnitude."""


def bound_at(magnitude: _Size, bound: Bound) -> _Size:
    """How far outputs of this magnitude may be from the exact result: numbers or arrays of them."""
    rounded = bound.gamma * magnitude
    underflown = (1 + bound.gamma) * np.minimum(bound.underflow, magnitude)
    may_be: _Size = (rounded + underflown + bound.always) * (magnitude > bound.exact_up_to)
    return may_be


def rounding_bound(
    problem: ConvProblem,
    *,
    with_bias: bool,
    integers: bool = False,
    least: int = 0,
    always: float = 0.0,
) -> Bound:
    """The bound of a problem's float32 outputs; see the head of this module.

    ``integers`` says that every tensor holds integers only, ``least`` is the least number of
    roundings to allow, ``always`` a further loss that is allowed unless all are integers.

    Raises ``ValueError`` from ``n = 2**24`` roundings on, where gamma_n means nothing.
    """
    roundings = max(problem.K, least) + with_bias
    if roundings >= 1 / ROUNDOFF:
        raise ValueError(
            f"each output sums {roundings} numbers: the error bound holds below 2**24, because "
            "float32 may lose all digits over that many"
        )
    gamma = roundings * ROUNDOFF / (1 - roundings * ROUNDOFF)
    exact_up_to = LARGEST_EXACT if integers else -1
    return Bound(gamma, problem.K * HALF_DENORMAL, exact_up_to, 0.0 if integers else always)


def largest_error(
    output: NDArray[np.float32],
    expected: NDArray[np.float64],
    magnitude: NDArray[np.float64],
    bound: Bound,
) -> float:
    """The largest error of many outputs as a multiple of its bound, infinite where one of them or
    of what was expected is no finite number. The three arrays are of one shape.

    Compiled for the processor: one pass and no arrays in between. With NumPy alone, checking a
    benchmark's hundreds of millions of outputs takes longer than anything else in it.
    """
    flat = (np.asarray(array).reshape(-1) for array in (output, expected, magnitude))
    return float(_compiled()[0](*flat, bound))


def squared_errors(
    output: NDArray[np.float32], expected: NDArray[np.float64]
) -> tuple[float, float, float]:
    """The sum of squared errors, the sum of squares of what was expected, and the largest error.
    Where an element is not finite, the first result is not finite either, and the largest error
    means nothing. This is compiled too."""
    errors, sizes, largest = _compiled()[1](
        np.asarray(output).reshape(-1), np.asarray(expected).reshape(-1)
    )
    return float(errors), float(sizes), float(largest)


@cache
def _compiled() -> tuple[Any, Any]:
    from numba import njit  # a second of compiling, only for many outputs

    bound_of = njit(nogil=True)(bound_at)

    def largest_error(output: Any, expected: Any, magnitude: Any, bound: Bound) -> float:
        largest, finite = 0.0, True
        for e in range(output.size):
            error = abs(output[e] - expected[e])
            finite &= error < np.inf
            if error > 0:
                allowed = bound_of(magnitude[e], bound)
                largest = max(largest, error / allowed if allowed > 0 else np.inf)
        return largest if finite else np.inf

    def squared_errors(output: Any, expected: Any) -> tuple[float, float, float]:
        errors = sizes = largest = 0.0
        for e in range(output.size):
            error = output[e] - expected[e]
            errors += error * error
            sizes += expected[e] * expected[e]
            largest = max(largest, abs(error))
        return errors, sizes, largest

    return njit(nogil=True)(largest_error), njit(nogil=True)(squared_errors)
