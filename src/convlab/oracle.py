"""The oracle checks every element of a float32 output. :mod:`convlab.convolution` computes the
exact answer, :mod:`convlab.rounding` bounds the rounding errors.

Infinities and NaN
------------------
A term that is NaN or infinite makes the exact result NaN or infinite, and the output must be that
same NaN or infinity. Padding is zeros that are multiplied, so an infinite weight on padding is NaN,
as in PyTorch. Else float32 gets an infinity only by overflow: ``+inf`` is right where the positive
terms alone come, within the bound, to ``2**128 - 2**103`` or more, which rounds to infinity;
``-inf`` likewise where the negative terms do; NaN only where both do. Nothing else excuses a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convlab.convolution import (
    Doubles,
    convolution,
    each,
    finite_part,
    magnitude,
    reference,
    require_shape,
    workers_for,
)
from convlab.problem import ConvProblem
from convlab.rounding import (
    HALF_DENORMAL,
    LARGEST_EXACT_TF32,
    SMALLEST_NORMAL,
    SPLIT_ROUNDINGS,
    TF32_DENORMAL,
    TF32_WHOLE,
    Bound,
    bound_at,
    largest_error,
    rounding_bound,
)

Singles = NDArray[np.float32]

OVERFLOW = 2.0**128 - 2.0**103  # the least that float32 rounds to infinity
MANY_OUTPUTS = 2**20  # from here on compiled threads check: fewer take less time than compiling


@dataclass(frozen=True)
class CheckResult:
    """The result of checking one output; ``str`` gives it as a sentence."""

    ok: bool  # every element is within its bound
    # The largest error as a multiple of its element's bound: at most 1 is right, 0 exact; infinite
    # is a NaN or an infinity in the wrong place, or any error where the bound is 0.
    error_over_bound: float
    wrong: int  # elements, of ``total``
    total: int
    first: tuple[int, ...] | None = None  # wrong: image, channel, row, column
    got: float | None = None  # there
    expected: float | None = None  # there, in float64

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
    """What decides how exact float32 has to be, of a tensor or a part of one."""

    finite: bool
    integers: bool
    largest: float  # the size of its largest finite number
    some_small: bool  # TF32 cannot split every one

    @classmethod
    def of(cls, tensor: Singles) -> _Facts:
        sizes = np.abs(finite_part(tensor))
        return cls(
            finite=bool(np.isfinite(tensor).all()),
            integers=bool(np.array_equal(tensor, np.rint(tensor))),
            largest=float(sizes.max()),
            some_small=bool(((sizes > 0) & (sizes < TF32_WHOLE)).any()),
        )

    @classmethod
    def together(cls, parts: Iterable[_Facts]) -> _Facts:
        finite, integers, largest, some_small = zip(*parts, strict=True)
        return cls(all(finite), all(integers), max(largest), any(some_small))


class Oracle:
    """The answer to one convolution, computed once, to check any number of outputs.

    ``expected`` and ``magnitude`` are float64 of ``problem.output_shape``. ``workers`` is how many
    threads work on many outputs; None is one a core, or fewer where they would take more memory
    than the answer. Raises ``ValueError`` naming a tensor of another shape or dtype than float32.
    """

    def __init__(
        self,
        problem: ConvProblem,
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
        self.problem = problem
        many = max(input.size, math.prod(problem.output_shape)) >= MANY_OUTPUTS
        self.workers = (workers or workers_for(problem)) if many else 1
        self.expected = reference(problem, input, weight, bias, workers=self.workers)
        self.magnitude = magnitude(problem, input, weight, bias, workers=self.workers)
        inputs = _Facts.together(each(_Facts.of, input, self.workers))
        weights = _Facts.of(weight)
        biases = [] if bias is None else [_Facts.of(bias)]
        all_of_them = _Facts.together([inputs, weights, *biases])
        self._finite = self.expected  # what the finite terms sum to
        if not all_of_them.finite:
            self._finite = convolution(problem, input, weight, bias, finite_part, self.workers)
        self._with_bias = bias is not None
        self._integers = all_of_them.integers
        self._largest_factor = max(inputs.largest, weights.largest)
        # The most that a product loses where TF32 cannot hold a number's small part.
        self._too_small = TF32_DENORMAL * (
            inputs.some_small * weights.largest + weights.some_small * inputs.largest
        )

    @property
    def bound(self) -> Doubles:
        """How far each output may be from ``expected``."""
        return bound_at(self.magnitude, self._bound())

    def _bound(self, atomic_additions: int = 0, split_products: bool = False) -> Bound:
        # Each addition may lose what it adds and what comes of it.
        always, integers, least = 2 * atomic_additions * SMALLEST_NORMAL, self._integers, 0
        if split_products:
            always += self.problem.K * (self._too_small + 8 * HALF_DENORMAL)
            integers &= self._largest_factor <= LARGEST_EXACT_TF32
            least = SPLIT_ROUNDINGS
        return rounding_bound(
            self.problem, with_bias=self._with_bias, integers=integers, least=least, always=always
        )

    def check(
        self, output: Singles, atomic_additions: int = 0, split_products: bool = False
    ) -> CheckResult:
        """Check every element of a float32 output. Each of ``atomic_additions`` to an element may
        flush a denormal to zero, as GPUs do there; ``split_products`` are of numbers split in two
        for tensor cores (:mod:`convlab.rounding` has both).

        Raises ``ValueError`` when its shape or dtype is not the problem's.
        """
        require_shape("output", output, self.problem.output_shape)
        _require_float32("output", output)
        look = partial(self._look, output, self._bound(atomic_additions, split_products))
        found = each(look, range(self.problem.N_i), self.workers)
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
        """Which elements of one image's output, [C_o, H_o, W_o], are outside their bounds."""
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
    """Where a NaN or an infinity is right or allowed; the head of this module has the rules.

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
    problem: ConvProblem,
    output: Singles,
    input: Singles,
    weight: Singles,
    bias: Singles | None = None,
) -> CheckResult:
    """Check one output. For several outputs of the same tensors, make one :class:`Oracle`."""
    return Oracle(problem, input, weight, bias).check(output)


Seed = int | np.random.Generator


def random_tensors(
    problem: ConvProblem, seed: Seed, bias: bool = True, *, integers: bool = False
) -> tuple[Singles, Singles, Any]:
    """Input, weight and bias (None with ``bias=False``): float32, standard normal, of the shapes
    ``problem.input_shape``, ``problem.weight_shape`` and ``[C_o]``; the same for the same seed.

    With ``integers``, whole numbers from -9 to 9 without 0 instead: float32 sums them exactly
    while K is at most 200,000, and so do the 16-bit formats that accumulate in float32; the oracle
    then allows no error at all.
    """
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Singles:
        if integers:
            sizes, signs = rng.integers(1, 10, shape), rng.choice((-1, 1), shape)
            return np.asarray(sizes * signs, np.float32)
        return rng.standard_normal(shape, dtype=np.float32)

    input, weight = draw(*problem.input_shape), draw(*problem.weight_shape)
    return input, weight, draw(problem.C_o) if bias else None


def _require_float32(name: str, array: NDArray[Any]) -> None:
    if array.dtype != np.float32:
        raise ValueError(f"{name} is {array.dtype}: it must be float32, which the bound is for")
