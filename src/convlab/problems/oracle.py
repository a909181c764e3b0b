"""The oracle checks every element of a float32 output against the exact answer, which
:mod:`convlab.problems.reference` computes, within a bound of the rounding errors.

``|output - exact| <= gamma_n * magnitude``, where ``magnitude = sum |x||w| + |bias|`` and ``n`` is
K, or K + 1 with a bias. ``docs/checking.md`` derives the bound, its terms for denormals, atomic
additions and products of numbers split in two for tensor cores, and says which NaN and infinities
are right. If all tensors hold only integers and ``magnitude`` is at most ``2**24``, the bound is 0.
(Winograd and Fourier algorithms compute other sums, so this bound does not hold for them.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, TypedDict, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from convlab.problems.gradient import Problem
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import (
    Doubles,
    convolution,
    each,
    finite_part,
    magnitude,
    reference,
    require_shape,
    workers_for,
)

Singles = NDArray[np.float32]

ROUNDOFF = 2.0**-24  # float32's u: half the distance from 1 to the next number
HALF_DENORMAL = 2.0**-150  # half of float32's smallest number above zero
SMALLEST_NORMAL = 2.0**-126
LARGEST_EXACT = 2**24  # float32 holds every integer up to here
LARGEST_EXACT_TF32 = 2**11  # and TF32 up to here
SPLIT_ROUNDINGS = 48  # the fewest roundings that a sum of split products counts as
TF32_DENORMAL = 2.0**-136  # TF32's smallest number above zero
TF32_WHOLE = 2.0**-113  # below it, a number's small part is too small for TF32
OVERFLOW = 2.0**128 - 2.0**103  # the least number that float32 rounds to infinity
MANY_OUTPUTS = 2**20  # from here on compiled threads check; fewer take less time than compiling

_Size = TypeVar("_Size", float, NDArray[np.float64])


class Bound(NamedTuple):
    """The largest error allowed in one problem's outputs, as a function of their ``magnitude``."""

    gamma: float
    underflow: float  # the most that all products below the normal range lose together
    exact_up_to: float  # the magnitude up to which no bit is lost; negative if there is none
    always: float  # what is lost whatever the magnitude


def bound_at(magnitude: _Size, bound: Bound) -> _Size:
    """Return the largest error of outputs of this magnitude, as numbers or as arrays."""
    underflown = (1 + bound.gamma) * np.minimum(bound.underflow, magnitude)
    lost = bound.gamma * magnitude + underflown + bound.always
    return lost * (magnitude > bound.exact_up_to)  # type: ignore[no-any-return]


def rounding_bound(
    K: int, *, with_bias: bool, integers: bool = False, least: int = 0, always: float = 0.0
) -> Bound:
    """The bound of float32 sums of K terms; docs/checking.md derives it. ``integers`` says that
    every tensor holds integers only, ``least`` is the least number of roundings to allow,
    ``always`` a further loss that is allowed unless all are integers. Raises ``ValueError`` from
    ``n = 2**24`` roundings on, where gamma_n means nothing."""
    roundings = max(K, least) + with_bias
    if roundings >= 1 / ROUNDOFF:
        raise ValueError(
            f"each output sums {roundings} numbers: the error bound holds below 2**24, because "
            "float32 may lose all digits over that many"
        )
    gamma = roundings * ROUNDOFF / (1 - roundings * ROUNDOFF)
    exact_up_to = LARGEST_EXACT if integers else -1
    return Bound(gamma, K * HALF_DENORMAL, exact_up_to, 0.0 if integers else always)


def largest_error(output: Singles, expected: Doubles, magnitude: Doubles, bound: Bound) -> float:
    """The largest error of many outputs as a multiple of its bound. It is infinite if an output or
    an expected value is not finite. The three arrays have one shape. The function is compiled: with
    NumPy alone, the check of a benchmark's hundreds of millions of outputs takes longer than
    anything else in it."""
    flat = (np.asarray(array).reshape(-1) for array in (output, expected, magnitude))
    return float(_compiled()[0](*flat, bound))


def squared_errors(output: Singles, expected: Doubles) -> tuple[float, float, float]:
    """The sums of squared errors and of squared expected values, and the largest error. If an
    element is not finite, the first sum is not finite either, and the largest error means nothing.
    Also compiled."""
    flat = (np.asarray(array).reshape(-1) for array in (output, expected))
    errors, sizes, largest = _compiled()[1](*flat)
    return float(errors), float(sizes), float(largest)


@cache
def _compiled() -> tuple[Any, Any]:
    from numba import njit  # a second of compiling, only for many outputs

    bound_of = njit(nogil=True)(bound_at)

    def largest_error(
        output: Singles, expected: Doubles, magnitude: Doubles, bound: Bound
    ) -> float:
        largest, finite = 0.0, True
        for e in range(output.size):
            error = abs(output[e] - expected[e])
            finite &= error < np.inf
            if error > 0:
                allowed = bound_of(magnitude[e], bound)
                largest = max(largest, error / allowed if allowed > 0 else np.inf)
        return largest if finite else np.inf

    def squared_errors(output: Singles, expected: Doubles) -> tuple[float, float, float]:
        errors = sizes = largest = 0.0
        for e in range(output.size):
            error = output[e] - expected[e]
            errors += error * error
            sizes += expected[e] * expected[e]
            largest = max(largest, abs(error))
        return errors, sizes, largest

    return njit(nogil=True)(largest_error), njit(nogil=True)(squared_errors)


class Allowances(TypedDict, total=False):
    """Arguments of :meth:`Oracle.check` that depend on how an output was computed."""

    atomic_additions: int
    split_products: bool


@dataclass(frozen=True)
class CheckResult:
    """The result of checking one output; ``str`` gives it as a sentence."""

    ok: bool  # every element is within its bound
    # The largest error as a multiple of its element's bound: at most 1 is right, 0 exact; infinite
    # is a NaN or an infinity in the wrong place, or any error where the bound is 0.
    error_over_bound: float
    wrong: int  # elements, of ``total``
    total: int
    first: tuple[int, ...] | None = None  # the wrong element: image, channel, row, column
    got: float | None = None  # the output there
    expected: float | None = None  # the right value there, in float64

    def __str__(self) -> str:
        size = f"the largest error is {self.error_over_bound:.3g} times the bound"
        if math.isinf(self.error_over_bound):
            size = "no rounding makes such an error"
        if self.ok:
            return f"all {self.total} outputs are right; {size}"
        are = "is" if self.wrong == 1 else "are"
        return (
            f"{self.wrong} of {self.total} outputs {are} wrong, first at {list(self.first or ())}: "
            f"got {self.got:.9g}, expected {self.expected:.9g}; {size}"
        )


class _Facts(NamedTuple):
    """The facts about a tensor, or a part of it, that decide how exact float32 has to be."""

    finite: bool
    integers: bool
    largest: float  # the absolute value of its largest finite number
    some_small: bool  # some number is too small for TF32 to split

    @classmethod
    def of(cls, tensor: Singles) -> _Facts:
        sizes = np.abs(finite_part(tensor))
        return cls(
            finite=bool(np.isfinite(tensor).all()),
            integers=bool(np.array_equal(tensor, np.rint(tensor))),
            largest=float(sizes.max()),
            some_small=bool(((sizes > 0) & (sizes < TF32_WHOLE)).any()),
        )


class Oracle:
    """The answer to one convolution, computed once, to check any number of outputs. ``expected``
    and ``magnitude`` are float64 of ``problem.output_shape``. ``workers`` is how many threads work
    on many outputs; None is one per core, or fewer if they would need more memory than the answer.
    Raises ``ValueError`` naming a tensor of another shape or dtype than float32."""

    def __init__(
        self,
        problem: Problem,
        input: Singles,
        weight: Singles,
        bias: Singles | None = None,
        *,
        workers: int | None = None,
    ) -> None:
        tensors = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
        for name, tensor in tensors.items():
            _require_float32(name, tensor)
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}: it must be at least 1")
        self.problem = cast(ConvProblem, problem)  # a Gradient has what is read here
        many = max(input.size, math.prod(problem.output_shape)) >= MANY_OUTPUTS
        self.workers = (workers or workers_for(problem)) if many else 1
        self.expected = reference(problem, input, weight, bias, workers=self.workers)
        self.magnitude = magnitude(problem, input, weight, bias, workers=self.workers)
        parts = [*input, weight] if bias is None else [*input, weight, bias]
        facts = each(_Facts.of, parts, self.workers)
        images, weights = facts[: len(input)], facts[len(input)]
        self._finite = self.expected  # the sums of the finite terms
        if not all(part.finite for part in facts):
            self._finite = convolution(problem, input, weight, bias, finite_part, self.workers)
        self._with_bias = bias is not None
        self._integers = all(part.integers for part in facts)
        largest = max(image.largest for image in images)
        self._largest_factor = max(largest, weights.largest)
        # The most that a product loses if TF32 cannot hold the small part of a number.
        some_small = any(image.some_small for image in images)
        self._too_small = TF32_DENORMAL * (
            some_small * weights.largest + weights.some_small * largest
        )

    @property
    def bound(self) -> Doubles:
        """Return the largest allowed distance of each output from ``expected``."""
        return bound_at(self.magnitude, self._bound())

    def _bound(self, atomic_additions: int = 0, split_products: bool = False) -> Bound:
        # Each addition may flush its summand and its result to zero.
        always, integers, least = 2 * atomic_additions * SMALLEST_NORMAL, self._integers, 0
        if split_products:
            always += self.problem.K * (self._too_small + 8 * HALF_DENORMAL)
            integers &= self._largest_factor <= LARGEST_EXACT_TF32
            least = SPLIT_ROUNDINGS
        terms, with_bias = self.problem.K, self._with_bias
        return rounding_bound(
            terms, with_bias=with_bias, integers=integers, least=least, always=always
        )

    def check(
        self, output: Singles, atomic_additions: int = 0, split_products: bool = False
    ) -> CheckResult:
        """Check every element of a float32 output. Each of ``atomic_additions`` to an element may
        flush a denormal to zero, as GPUs do in atomic additions. ``split_products`` are products of
        numbers split in two for tensor cores. Raises ``ValueError`` if the output's shape or dtype
        is not the problem's.
        """
        require_shape("output", output, self.problem.output_shape)
        _require_float32("output", output)
        look = partial(self._look, output, self._bound(atomic_additions, split_products))
        found = each(look, range(len(self.expected)), self.workers)
        largest = max(error for error, _, _ in found)
        wrong = sum(count for _, count, _ in found)
        if wrong == 0:
            return CheckResult(True, largest, 0, output.size)
        first = next(place for _, _, place in found if place is not None)
        got, expected = float(output[first]), float(self.expected[first])
        return CheckResult(False, largest, wrong, output.size, first, got, expected)

    def _look(
        self, output: Singles, bound: Bound, image: int
    ) -> tuple[float, int, tuple[int, ...] | None]:
        """An image's largest error, how many of its elements are wrong, and the first of them."""
        whole = output[image], self.expected[image], self.magnitude[image]
        if output.size >= MANY_OUTPUTS and (largest := largest_error(*whole, bound)) <= 1:
            return largest, 0, None
        # Few outputs, or one that is wrong or not finite.
        errors = self._error_over_bound(image, output[image], bound)
        wrong = np.argwhere(errors > 1)
        first = (image, *map(int, wrong[0])) if wrong.size else None
        return float(errors.max()), len(wrong), first

    def is_wrong(
        self, image: int, output: Singles, atomic_additions: int = 0, split_products: bool = False
    ) -> NDArray[np.bool_]:
        """Return the elements of an image's output, [C_o, H_o, W_o], outside their bounds."""
        bound = self._bound(atomic_additions, split_products)
        return np.asarray(self._error_over_bound(image, output, bound) > 1)

    def _error_over_bound(self, image: int, output: Singles, allowed: Bound) -> Doubles:
        """The error of each element of an image as a multiple of its bound, never NaN."""
        expected, magnitude = self.expected[image], self.magnitude[image]
        bound = bound_at(magnitude, allowed)
        compared = np.isfinite(output) & np.isfinite(expected)
        error = np.abs(np.subtract(output, expected, out=np.zeros_like(expected), where=compared))
        exact_or_not = np.where(error == 0, 0.0, np.inf)
        over: Doubles = np.divide(error, bound, out=exact_or_not, where=bound > 0)
        if not compared.all():
            excused = _same_or_overflowed(output, expected, self._finite[image], magnitude, bound)
            over[~compared] = np.where(excused, 0.0, np.inf)[~compared]
        return over


def _same_or_overflowed(
    output: Singles, expected: Doubles, finite: Doubles, magnitude: Doubles, bound: Doubles
) -> NDArray[np.bool_]:
    """Return where a NaN or an infinity is right or allowed; docs/checking.md has the rules.

    ``finite`` and ``magnitude`` are the sums of the finite terms and of their sizes. Half of their
    sum is the sum of the positive terms; half of their difference is the sum of the negative terms.
    """
    up = ((magnitude + finite) / 2 + bound >= OVERFLOW) | (expected == np.inf)
    down = ((magnitude - finite) / 2 + bound >= OVERFLOW) | (expected == -np.inf)
    excused: NDArray[np.bool_] = (
        (np.isnan(output) & (np.isnan(expected) | (up & down)))
        | ((output == np.inf) & up & (expected > -np.inf))
        | ((output == -np.inf) & down & (expected < np.inf))
    )
    return excused


def check_output(
    problem: Problem, output: Singles, input: Singles, weight: Singles, bias: Singles | None = None
) -> CheckResult:
    """Check one output. For several outputs of the same tensors, make one :class:`Oracle`."""
    return Oracle(problem, input, weight, bias).check(output)


Seed = int | np.random.Generator


def before_relu(output: Singles, expected: Doubles) -> Singles:
    """The output before the ReLU, as far as it can be known: a zero may have been any negative
    number, so a zero is right where a negative number is expected. A negative number becomes NaN,
    which is wrong, because ReLU leaves no negative number."""
    sums = np.where((output == 0) & (expected < 0), expected, output).astype(np.float32)
    return np.where(output < 0, np.float32(np.nan), sums)


def random_tensors(
    problem: Problem, seed: Seed, bias: bool = True, *, integers: bool = False
) -> tuple[Singles, Singles, Any]:
    """Input, weight and bias (None with ``bias=False``): float32, standard normal, of the shapes
    ``problem.input_shape``, ``problem.weight_shape`` and ``[C_o]``; the same for the same seed.
    With ``integers``, whole numbers from -9 to 9 without 0: float32 sums them exactly while K is at
    most 200,000, and the oracle allows no error."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Singles:
        if integers:
            sizes, signs = rng.integers(1, 10, shape), rng.choice((-1, 1), shape)
            return np.asarray(sizes * signs, np.float32)
        return rng.standard_normal(shape, dtype=np.float32)

    input, weight = draw(*problem.input_shape), draw(*problem.weight_shape)
    return input, weight, draw(problem.out_channels) if bias else None


def _require_float32(name: str, array: NDArray[np.floating]) -> None:
    if array.dtype != np.float32:
        raise ValueError(f"{name} is {array.dtype}: it must be float32, which the bound is for")
