"""The oracle: what a convolution's answer is, and how far from it float32 rounding may lead.

:func:`seven_loops` is the definition, to be read. :func:`reference` computes the same, fast.
:class:`Oracle` judges a float32 output against it, element by element.

All arrays are NumPy's: input ``[N_i, C_i, H_i, W_i]``, weight ``[C_o, C_i, H_f, W_f]``, bias
``[C_o]`` or None, output ``[N_i, C_o, H_o, W_o]``.

How far a float32 result may be from the exact one is :mod:`convlab.rounding`'s subject.

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
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from convlab.problem import ConvProblem, IntOrPair, Padding
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

Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]

OVERFLOW = 2.0**128 - 2.0**103  # the least that float32 rounds to infinity
MANY_OUTPUTS = 2**20  # from here on threads judge, compiled: fewer take less time than to compile
PIECE = 2**15  # outputs judged at once: few enough for a core's cache


@np.errstate(invalid="ignore")  # inf * 0 is NaN, and meant to be
def seven_loops(
    input: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None = None,
    stride: IntOrPair = 1,
    padding: Padding = 0,
    dilation: IntOrPair = 1,
) -> Doubles:
    """The convolution as the im2win paper's Equation 1 has it, in float64: to read, not to be fast.

    The paper has neither padding, dilation nor bias; here they are as in PyTorch.
    """
    for name, array in (("input", input), ("weight", weight)):
        if array.ndim != 4:
            raise ValueError(f"{name} has shape {array.shape}: it must have four axes")
    N_i, C_i, H_i, W_i = input.shape
    C_o, _, H_f, W_f = weight.shape
    problem = ConvProblem(N_i, C_i, H_i, W_i, C_o, (H_f, W_f), stride, padding, dilation)
    _require_shapes(problem, input, weight, bias)

    H_o, W_o = problem.H_o, problem.W_o
    s_h, s_w, d_h, d_w = problem.s_h, problem.s_w, problem.d_h, problem.d_w

    padded = np.pad(input.astype(np.float64), ((0, 0), (0, 0), *problem.padding))
    weight = weight.astype(np.float64)
    output = np.zeros(problem.output_shape)
    for i in range(N_i):
        for j in range(C_o):
            for m in range(H_o):
                for n in range(W_o):
                    for r in range(C_i):
                        for u in range(H_f):
                            for v in range(W_f):
                                pixel = padded[i, r, m * s_h + u * d_h, n * s_w + v * d_w]
                                output[i, j, m, n] += pixel * weight[j, r, u, v]
    return output if bias is None else output + bias[:, None, None]


def reference(
    problem: ConvProblem,
    input: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None = None,
    *,
    workers: int = 1,
) -> Doubles:
    """The convolution in float64, of ``problem.output_shape``: what :func:`seven_loops` returns,
    summed in another order. ``workers`` threads take an image each.

    Products of float32 numbers are exact in float64, denormals included, and cannot overflow.
    """
    return _convolution(problem, input, weight, bias, np.asarray, workers)


def magnitude(
    problem: ConvProblem,
    input: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None = None,
    *,
    workers: int = 1,
) -> Doubles:
    """``sum |x||w| + |bias|`` for each output, in float64: what rounding errors grow with.

    NaN and infinities count as 0, because no rounding comes of them.
    """
    return _convolution(
        problem, input, weight, bias, lambda array: np.abs(_finite_part(array)), workers
    )


def _finite_part(array: NDArray[Any]) -> NDArray[Any]:
    """The numbers with 0 for NaN and infinities."""
    return np.where(np.isfinite(array), array, 0)


def _convolution(
    problem: ConvProblem,
    input: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None,
    taken: Callable[[NDArray[Any]], NDArray[Any]],
    workers: int,
) -> Doubles:
    """The convolution of what is ``taken`` of each tensor."""
    _require_shapes(problem, input, weight, bias)
    output = np.zeros(problem.output_shape)
    if bias is not None:
        output += taken(bias)[:, None, None]
    # A matrix [C_o, W_f*C_i] for each row of the filters.
    filters = taken(weight).astype(np.float64)
    filter_rows = filters.transpose(2, 0, 3, 1).reshape(problem.H_f, problem.C_o, -1)

    @np.errstate(invalid="ignore")
    def convolve(i: int) -> None:  # an image, which bounds the memory this takes
        padded = np.pad(taken(input[i]).astype(np.float64), ((0, 0), *problem.padding))
        result = output[i].reshape(problem.C_o, -1)
        for u in range(problem.H_f):
            result += filter_rows[u] @ _seen_by_row(problem, padded, u)

    each(convolve, range(problem.N_i), workers)
    return output


_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def each(work: Callable[[_Item], _Made], items: Iterable[_Item], workers: int) -> list[_Made]:
    """What the work makes of each item, by so many threads."""
    if workers == 1:
        return list(map(work, items))
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, items))


def _seen_by_row(problem: ConvProblem, padded: Doubles, u: int) -> Doubles:
    """What row u of a filter meets, a column for each output pixel: [W_f*C_i, H_o*W_o]."""
    rows = padded[:, u * problem.d_h :: problem.s_h][:, : problem.H_o]
    seen = np.empty((problem.W_f, problem.C_i, problem.H_o, problem.W_o))
    for v in range(problem.W_f):
        seen[v] = rows[:, :, v * problem.d_w :: problem.s_w][:, :, : problem.W_o]
    return seen.reshape(problem.W_f * problem.C_i, -1)


@dataclass(frozen=True)
class Verdict:
    """What the oracle says of one output; ``str`` says it in a sentence."""

    ok: bool
    """Whether every element is within its bound."""
    error_over_bound: float
    """The largest error, as a multiple of its element's bound: at most 1 is right, 0 is exact, and
    infinite is a NaN or an infinity in the wrong place, or any error where the bound is 0."""
    wrong: int
    """How many elements are wrong, of ``total``."""
    total: int
    first: tuple[int, int, int, int] | None = None
    """The first wrong element: image, channel, row, column; None when all are right."""
    got: float | None = None
    """What was there."""
    expected: float | None = None
    """What should have been there, in float64."""

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
    largest: float
    """The size of its largest finite number."""
    some_small: bool
    """Whether TF32 cannot split every one."""

    @classmethod
    def of(cls, tensor: Singles) -> _Facts:
        sizes = np.abs(_finite_part(tensor))
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
    """The answer to one convolution, worked out once, to judge any number of outputs by.

    ``expected`` and ``magnitude`` are float64 of ``problem.output_shape``. ``workers`` is how many
    threads work where there is much to do, None for one a core; the attribute how many it takes.
    Takes float32 tensors; raises
    ``ValueError`` naming the one that has another shape or dtype.
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
        _require_shapes(problem, input, weight, bias)
        self.problem = problem
        much = max(input.size, math.prod(problem.output_shape)) >= MANY_OUTPUTS
        self.workers = (workers or os.cpu_count() or 1) if much else 1
        self.expected = reference(problem, input, weight, bias, workers=self.workers)
        self.magnitude = magnitude(problem, input, weight, bias, workers=self.workers)
        inputs = _Facts.together(each(_Facts.of, input, self.workers))
        weights = _Facts.of(weight)
        all_of_them = _Facts.together(
            [inputs, weights, *([] if bias is None else [_Facts.of(bias)])]
        )
        self._finite = self.expected  # what the finite terms sum to
        if not all_of_them.finite:
            self._finite = _convolution(problem, input, weight, bias, _finite_part, self.workers)
        self._with_bias = bias is not None
        self._integers = all_of_them.integers
        self._largest_factor = max(inputs.largest, weights.largest)
        # The most that a product may lose of a number too small for TF32.
        self._too_small = TF32_DENORMAL * (
            inputs.some_small * weights.largest + weights.some_small * inputs.largest
        )

    @property
    def bound(self) -> Doubles:
        """How far each output may be from ``expected``."""
        return bound_at(self.magnitude, self._bound())

    def _bound(self, atomic_additions: int = 0, split_products: bool = False) -> Bound:
        # Each addition may lose what it adds and what comes of it.
        always = 2 * atomic_additions * SMALLEST_NORMAL
        if not split_products:
            return rounding_bound(
                self.problem, with_bias=self._with_bias, integers=self._integers, always=always
            )
        return rounding_bound(
            self.problem,
            with_bias=self._with_bias,
            integers=self._integers and self._largest_factor <= LARGEST_EXACT_TF32,
            least=SPLIT_ROUNDINGS,
            always=always + self.problem.K * (self._too_small + 8 * HALF_DENORMAL),
        )

    def judge(
        self, output: Singles, atomic_additions: int = 0, split_products: bool = False
    ) -> Verdict:
        """Judge every element of a float32 output; of ``atomic_additions`` to each of them, every
        one may flush a denormal to zero, as GPUs do there. ``split_products`` says that they are
        of numbers split in two, on tensor cores; see :mod:`convlab.rounding` for both.

        Raises ``ValueError`` when its shape or dtype is not the problem's.
        """
        _require_shape("output", output, self.problem.output_shape)
        _require_float32("output", output)
        look = partial(self._look, output, self._bound(atomic_additions, split_products))
        found = each(look, range(self.problem.N_i), self.workers)
        largest = max(error for error, _, _ in found)
        wrong = sum(count for _, count, _ in found)
        if wrong == 0:
            return Verdict(True, largest, 0, output.size)
        first = next(place for _, _, place in found if place is not None)
        got, expected = float(output[first]), float(self.expected[first])
        return Verdict(False, largest, wrong, output.size, first, got, expected)

    def _look(
        self, output: Singles, bound: Bound, image: int
    ) -> tuple[float, int, tuple[int, int, int, int] | None]:
        """Of an image the largest error, how many elements are wrong, where the first is."""
        if output.size >= MANY_OUTPUTS:
            largest = largest_error(
                output[image], self.expected[image], self.magnitude[image], bound
            )
            if largest <= 1:
                return largest, 0, None
        # Only where something is wrong, or no number, or little.
        largest, wrong, first = 0.0, 0, None
        _, C_o, H_o, W_o = self.problem.output_shape
        channels = max(1, PIECE // (H_o * W_o))
        for start in range(0, C_o, channels):
            piece = (image, slice(start, start + channels))
            errors = self._error_over_bound(piece, output[piece], bound)
            largest = max(largest, float(errors.max()))
            are_wrong = errors > 1
            if first is None and are_wrong.any():
                channel, row, column = np.unravel_index(are_wrong.argmax(), are_wrong.shape)
                first = (image, start + int(channel), int(row), int(column))
            wrong += int(np.count_nonzero(are_wrong))
        return largest, wrong, first

    def is_wrong(
        self,
        image: int,
        output: Singles,
        atomic_additions: int = 0,
        split_products: bool = False,
    ) -> NDArray[np.bool_]:
        """Which elements of one image's output, [C_o, H_o, W_o], are outside their bounds."""
        bound = self._bound(atomic_additions, split_products)
        errors = self._error_over_bound(image, output, bound)
        wrong: NDArray[np.bool_] = errors > 1
        return wrong

    def _error_over_bound(
        self, where: int | tuple[int, slice], output: Singles, allowed: Bound
    ) -> Doubles:
        """Each element's error as a multiple of its bound, never NaN; ``where`` they are: an image,
        and some of its channels."""
        expected, magnitude = self.expected[where], self.magnitude[where]
        bound = bound_at(magnitude, allowed)
        judged = np.isfinite(output) & np.isfinite(expected)
        error = np.abs(np.subtract(output, expected, out=np.zeros_like(expected), where=judged))
        exact_or_not = np.where(error == 0, 0.0, np.inf)
        over: Doubles = np.divide(error, bound, out=exact_or_not, where=bound > 0)
        if not judged.all():
            excused = _same_or_overflowed(output, expected, self._finite[where], magnitude, bound)
            over[~judged] = np.where(excused, 0.0, np.inf)[~judged]
        return over


def _same_or_overflowed(
    output: Singles, expected: Doubles, finite: Doubles, magnitude: Doubles, bound: Doubles
) -> NDArray[np.bool_]:
    """Where a NaN or an infinity is what it must be or may be; see the head of this module.

    ``finite`` and ``magnitude`` are what the finite terms and their sizes sum to: half the sum of
    the two is the sum of the positive terms, half the difference is that of the negative ones.
    """
    up = ((magnitude + finite) / 2 + bound >= OVERFLOW) | (expected == np.inf)
    down = ((magnitude - finite) / 2 + bound >= OVERFLOW) | (expected == -np.inf)
    excused: NDArray[np.bool_] = (
        (np.isnan(output) & (np.isnan(expected) | (up & down)))
        | ((output == np.inf) & up & (expected > -np.inf))
        | ((output == -np.inf) & down & (expected < np.inf))
    )
    return excused


def judge(
    problem: ConvProblem,
    output: Singles,
    input: Singles,
    weight: Singles,
    bias: Singles | None = None,
) -> Verdict:
    """Judge one output. For several outputs of the same tensors, make one :class:`Oracle`."""
    return Oracle(problem, input, weight, bias).judge(output)


Seed = int | np.random.Generator


@overload
def random_tensors(
    problem: ConvProblem, seed: Seed, bias: Literal[True] = True, *, integers: bool = False
) -> tuple[Singles, Singles, Singles]: ...
@overload
def random_tensors(
    problem: ConvProblem, seed: Seed, bias: bool, *, integers: bool = False
) -> tuple[Singles, Singles, Singles | None]: ...
def random_tensors(
    problem: ConvProblem, seed: Seed, bias: bool = True, *, integers: bool = False
) -> tuple[Singles, Singles, Singles | None]:
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


def _require_shapes(
    problem: ConvProblem,
    input: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None,
) -> None:
    _require_shape("input", input, problem.input_shape)
    _require_shape("weight", weight, problem.weight_shape)
    if bias is not None:
        _require_shape("bias", bias, (problem.C_o,))


def _require_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: for this problem it must have {shape}")


def _require_float32(name: str, array: NDArray[Any]) -> None:
    if array.dtype != np.float32:
        raise ValueError(f"{name} is {array.dtype}: it must be float32, which the bound is for")
