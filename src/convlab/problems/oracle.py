"""The oracle checks every element of an output against the exact answer, which
:mod:`convlab.problems.reference` computes, within a bound of the rounding errors.

``|output - exact| <= gamma_n * magnitude``, where ``magnitude = sum |x||w| + |bias| + |residual|``
and ``n`` is K, one more with a bias, and one more with a residual. ``docs/checking.md`` derives the
bound, its terms for denormals, atomic additions and tensor cores, and says which NaN and infinities
are right. An output of 16 bits must be a number within the bound, rounded once. If all tensors hold
only integers and ``magnitude`` is at most ``2**24``, the bound is 0. (Winograd and Fourier
algorithms compute other sums, so this bound does not hold for them.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from convlab.problems.error_bound import (
    HALF_DENORMAL,
    LARGEST_EXACT_TF32,
    SMALLEST_NORMAL,
    SPLIT_ROUNDINGS,
    TF32_CUT_LOSS,
    TF32_DENORMAL,
    TF32_LOSS,
    TF32_WHOLE,
    Bound,
    allowed_error,
    bound_at,
    instructions,
    largest_error,
    rounding_bound,
    roundings_on_tensor_cores,
)
from convlab.problems.gradient import Problem
from convlab.problems.number_types import FLOAT32, Floats, NumberType, as_floats
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

OVERFLOW = FLOAT32.overflow  # the least number that float32 rounds to infinity
MANY_OUTPUTS = 2**20  # from here on compiled threads check; fewer take less time than compiling
# Products that an instruction of a tensor core adds to a sum, by the bytes of their factors.
TERMS_16_BITS, TERMS_TF32 = 16, 8


class Allowances(TypedDict, total=False):
    """Arguments of :meth:`Oracle.check` that depend on how an output was computed."""

    atomic_additions: int
    split_products: bool
    tf32_products: bool
    cut_factors: bool


@dataclass(frozen=True)
class CheckResult:
    """The result of checking one output; ``str`` gives it as a sentence."""

    ok: bool  # every element is within its bound
    # The largest error as a multiple of its element's bound: at most 1 is right, 0 exact; infinite
    # is a NaN or an infinity in the wrong place, or any error where the bound is 0.
    error_over_bound: float
    wrong: int  # elements, of ``total``
    total: int
    first: tuple[int, ...] | None = None  # the wrong element's index: of image, channel, ...
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
    def of(cls, tensor: Floats) -> _Facts:
        tensor = as_floats(tensor)
        sizes = np.abs(finite_part(tensor))
        return cls(
            finite=bool(np.isfinite(tensor).all()),
            integers=bool(np.array_equal(tensor, np.rint(tensor))),
            largest=float(sizes.max()),
            some_small=bool(((sizes > 0) & (sizes < TF32_WHOLE)).any()),
        )


class Oracle:
    """The answer to one convolution, computed once, to check any number of outputs. ``expected``
    and ``magnitude`` are float64 of ``problem.output_shape``. A ``residual``, of that shape and of
    the problem's dtype, is added to the sums. ``workers`` is how many threads work on many outputs;
    None is one per core, or fewer if they would need more memory than the answer.
    Raises ``ValueError`` naming a tensor of another shape or dtype than the problem's."""

    def __init__(
        self,
        problem: Problem,
        input: Floats,
        weight: Floats,
        bias: Floats | None = None,
        *,
        residual: Floats | None = None,
        workers: int | None = None,
    ) -> None:
        optional = (("bias", bias), ("residual", residual))
        more = {name: tensor for name, tensor in optional if tensor is not None}
        for name, tensor in ({"input": input, "weight": weight} | more).items():
            _require_type(name, tensor, problem.number_type)
        if residual is not None:
            require_shape("residual", residual, problem.output_shape)
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}: it must be at least 1")
        self.problem = cast(ConvProblem, problem)  # a Gradient has what is read here
        many = max(input.size, math.prod(problem.output_shape)) >= MANY_OUTPUTS
        self.workers = (workers or workers_for(problem)) if many else 1
        self.expected = reference(problem, input, weight, bias, workers=self.workers)
        self.magnitude = magnitude(problem, input, weight, bias, workers=self.workers)
        parts = [*input, weight, *more.values()]
        facts = each(_Facts.of, parts, self.workers)
        images, weights = facts[: len(input)], facts[len(input)]
        self._finite = self.expected  # the sums of the finite terms
        if not all(part.finite for part in facts):
            self._finite = convolution(problem, input, weight, bias, finite_part, self.workers)
        # The same where numbers below 2**-136, which cutting to TF32 makes zeros, are zeros: an
        # infinity times such a number is NaN.
        self._cut = self.expected
        if self._finite is not self.expected and any(part.some_small for part in facts):
            self._cut = convolution(problem, input, weight, bias, _without_tf32_zeros, self.workers)
        self._with_bias, self._with_residual = bias is not None, residual is not None
        if residual is not None:
            self._add(as_floats(residual).astype(np.float64))
        self._integers = all(part.integers for part in facts)
        largest = max(image.largest for image in images)
        self._largest_factor = max(largest, weights.largest)
        # The most that a product loses if TF32 cannot hold the small part of a number.
        some_small = any(image.some_small for image in images)
        self._too_small = TF32_DENORMAL * (
            some_small * weights.largest + weights.some_small * largest
        )

    def _add(self, residual: Doubles) -> None:
        """Add a residual to all sums."""
        ended, finite = self.expected, finite_part(residual)
        with np.errstate(invalid="ignore"):  # infinities of two signs are NaN
            self.expected = ended + residual
            self._finite = self._finite + finite
            self._cut = self.expected if self._cut is ended else self._cut + residual
        self.magnitude = self.magnitude + np.abs(finite)

    @property
    def bound(self) -> Doubles:
        """Return the largest allowed distance of each output from ``expected``."""
        with np.errstate(invalid="ignore"):  # infinities
            return allowed_error(self.expected, self.magnitude, self._bound())

    def _bound(
        self,
        atomic_additions: int = 0,
        split_products: bool = False,
        tf32_products: bool = False,
        cut_factors: bool = False,
    ) -> Bound:
        p, of_products, output = self.problem, 0.0, None
        # Each addition may flush its summand and its result to zero.
        always, integers, least = 2 * atomic_additions * SMALLEST_NORMAL, self._integers, 0
        if split_products:
            always += p.K * (self._too_small + 8 * HALF_DENORMAL)
            integers &= self._largest_factor <= LARGEST_EXACT_TF32
            least = SPLIT_ROUNDINGS
        if tf32_products:
            always += p.K * self._too_small
            integers &= self._largest_factor <= LARGEST_EXACT_TF32
            of_products = TF32_CUT_LOSS if cut_factors else TF32_LOSS
            always += p.K * self._too_small * cut_factors  # cutting loses twice as much
        if p.dtype != FLOAT32.name:
            output = p.number_type
        if tf32_products or output is not None:
            taps, channels = math.prod(p.kernel_size), p.K // math.prod(p.kernel_size)
            terms = TERMS_TF32 if tf32_products else TERMS_16_BITS
            count = instructions(taps, channels, terms)
            least = roundings_on_tensor_cores(p.K, count)
            always += 2 * count * HALF_DENORMAL  # each cuts a sum that is denormal
        bound = rounding_bound(
            p.K + self._with_residual,
            with_bias=self._with_bias,
            integers=integers,
            least=least + self._with_residual,
            always=always,
            of_products=of_products,
            output=output,
        )
        return bound._replace(cut=cut_factors)

    def check(
        self,
        output: Floats,
        atomic_additions: int = 0,
        split_products: bool = False,
        tf32_products: bool = False,
        cut_factors: bool = False,
    ) -> CheckResult:
        """Check every element of an output. Each of ``atomic_additions`` to an element may flush a
        denormal to zero, as GPUs do in atomic additions. ``split_products`` are products of numbers
        split in two for tensor cores, ``tf32_products`` those of numbers rounded once to TF32, or
        with ``cut_factors`` cut to TF32. Raises ``ValueError`` if the output's shape or dtype is
        not the problem's.
        """
        require_shape("output", output, self.problem.output_shape)
        _require_type("output", output, self.problem.number_type)
        bound = self._bound(atomic_additions, split_products, tf32_products, cut_factors)
        look = partial(self._look, output, bound)
        found = each(look, range(len(self.expected)), self.workers)
        largest = max(error for error, _, _ in found)
        wrong = sum(count for _, count, _ in found)
        if wrong == 0:
            return CheckResult(True, largest, 0, output.size)
        first = next(place for _, _, place in found if place is not None)
        got, expected = float(output[first]), float(self.expected[first])
        return CheckResult(False, largest, wrong, output.size, first, got, expected)

    def _look(
        self, output: Floats, bound: Bound, image: int
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
        self,
        image: int,
        output: Floats,
        atomic_additions: int = 0,
        split_products: bool = False,
        tf32_products: bool = False,
        cut_factors: bool = False,
    ) -> NDArray[np.bool_]:
        """Return the elements of an image's output that are outside their bounds."""
        bound = self._bound(atomic_additions, split_products, tf32_products, cut_factors)
        return np.asarray(self._error_over_bound(image, output, bound) > 1)

    @np.errstate(invalid="ignore", over="ignore")
    def _error_over_bound(self, image: int, output: Floats, allowed: Bound) -> Doubles:
        """The error of each element of an image as a multiple of its bound, never NaN."""
        output = as_floats(output)
        expected, magnitude = self.expected[image], self.magnitude[image]
        bound = allowed_error(expected, magnitude, allowed)
        compared = np.isfinite(output) & np.isfinite(expected)
        lost = bound_at(magnitude, allowed)
        compared &= np.abs(expected) - lost < allowed.overflow  # others must be infinite
        error = np.abs(np.subtract(output, expected, out=np.zeros_like(expected), where=compared))
        exact_or_not = np.where(error == 0, 0.0, np.inf)
        over: Doubles = np.divide(error, bound, out=exact_or_not, where=bound > 0)
        if not compared.all():
            finite = self._finite[image]
            excused = _same_or_overflowed(
                output, expected, finite, magnitude, lost, allowed.overflow
            )
            if allowed.cut:
                excused |= np.isnan(output) & np.isnan(self._cut[image])
            over[~compared] = np.where(excused, 0.0, np.inf)[~compared]
        return over


def _without_tf32_zeros(tensor: Floats) -> Floats:
    """Return the tensor with zeros for the numbers that cutting to TF32 makes zeros."""
    numbers = as_floats(tensor)
    return np.where(np.abs(numbers) < TF32_DENORMAL, numbers.dtype.type(0), numbers)


def _same_or_overflowed(
    output: Singles,
    expected: Doubles,
    finite: Doubles,
    magnitude: Doubles,
    bound: Doubles,
    overflow: float,
) -> NDArray[np.bool_]:
    """Return where a NaN or an infinity is right or allowed; docs/checking.md has the rules.

    ``finite`` and ``magnitude`` are the sums of the finite terms and of their sizes. Half of their
    sum is the sum of the positive terms; half of their difference is the sum of the negative terms.
    ``bound`` is that of sums, and sums from ``overflow`` on are rounded to an infinity of 16 bits.
    """
    up = ((magnitude + finite) / 2 + bound >= OVERFLOW) | (expected == np.inf)
    down = ((magnitude - finite) / 2 + bound >= OVERFLOW) | (expected == -np.inf)
    is_nan = np.isnan(output) & (np.isnan(expected) | (up & down))
    up |= expected + bound >= overflow
    down |= bound - expected >= overflow
    excused: NDArray[np.bool_] = (
        is_nan
        | ((output == np.inf) & up & (expected > -np.inf))
        | ((output == -np.inf) & down & (expected < np.inf))
    )
    return excused


def check_output(
    problem: Problem, output: Floats, input: Floats, weight: Floats, bias: Floats | None = None
) -> CheckResult:
    """Check one output. For several outputs of the same tensors, make one :class:`Oracle`."""
    return Oracle(problem, input, weight, bias).check(output)


Seed = int | np.random.Generator


def before_relu(output: Floats, expected: Doubles) -> Floats:
    """The output before the ReLU, as far as it can be known: a zero may have been any negative
    number, so a zero is right where a negative number is expected. A negative number becomes NaN,
    which is wrong, because ReLU leaves no negative number."""
    sums = np.where((output == 0) & (expected < 0), expected, as_floats(output))
    return np.where(output < 0, np.nan, sums).astype(output.dtype)


def random_tensors(
    problem: Problem, seed: Seed, bias: bool = True, *, integers: bool = False
) -> tuple[Any, Any, Any]:
    """Input, weight and bias (None with ``bias=False``): standard normal, of the problem's
    ``dtype`` and of the shapes ``problem.input_shape``, ``problem.weight_shape`` and ``[C_o]``; the
    same for the same seed. With ``integers``, whole numbers from -9 to 9 without 0: float32 sums
    them exactly while K is at most 200,000, and the oracle allows no error but an output's one
    rounding to 16 bits."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Floats:
        if integers:
            sizes, signs = rng.integers(1, 10, shape), rng.choice((-1, 1), shape)
            return np.asarray(sizes * signs, np.float32)
        return rng.standard_normal(shape, dtype=np.float32)

    input, weight = draw(*problem.input_shape), draw(*problem.weight_shape)
    of_channels = draw(problem.out_channels) if bias else None
    kind = problem.number_type.numpy
    if of_channels is not None:
        of_channels = of_channels.astype(kind, copy=False)
    return input.astype(kind, copy=False), weight.astype(kind, copy=False), of_channels


def _require_type(name: str, array: Floats, kind: NumberType) -> None:
    if array.dtype != kind.numpy:
        why = "which the bound is for" if kind is FLOAT32 else "the problem's type"
        raise ValueError(f"{name} is {array.dtype}: it must be {kind.name}, {why}")
