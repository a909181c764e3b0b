"""The oracle: what a convolution's answer is, and how far from it float32 rounding may lead.

:func:`seven_loops` is the definition, to be read. :func:`reference` computes the same, fast.
:class:`Oracle` judges a float32 output against it, element by element.

All arrays are NumPy's: input ``[N_i, C_i, H_i, W_i]``, weight ``[C_o, C_i, H_f, W_f]``, bias
``[C_o]`` or None, output ``[N_i, C_o, H_o, W_o]``.

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
The float64 sum that stands for the exact one is off by ``(n - 1) * 2**-53 * magnitude``, which is
less than what gamma_n has to spare in its second-order terms, so it adds nothing.

Products of numbers split in two
--------------------------------
A tensor core multiplies TF32: 11 significant bits. s13 splits each number, ``x = large + small``,
``|small| <= 2**-11 |x|``, and leaves out ``small * small``, at most ``2**-22`` of the product, and
of each small part the 12th bit, ``2**-23`` of its number: ``2**-21`` of the product together. It
adds 16 terms at most on the tensor core, in six instructions, of which the first two add small
products only. Each is within ``2**-21`` of what it adds (nine terms cut 25 bits below the largest
one, and the sum cut): four times ``2**-21`` and, for the first two, ``2**-30``. That makes ``8 +
33`` roundings, and with one addition for every 8 terms ``41 + ceil(K / 8)``: no more than
``max(K, 48)``. So from 48 terms on the bound is the same as everybody's. Below ``2**-113`` TF32
has fewer bits, at worst none of ``2**-136``; each such x adds ``2**-136 * max |w|``, each such w
``2**-136 * max |x|``. And each of three instructions may cut a denormal sum by ``2**-149``, which a
single term may meet all alone: that adds ``K * 2**-147``. Integers are exact where ``large`` is all
of them, up to ``2**11``.

Where all tensors hold integers only and ``magnitude`` is at most ``2**24``, float32 makes no error
at all and the bound is 0. This is the sharper test: the bound above grows with K times the
magnitude, and with some thousands of terms one whole term hides below it. (Winograd and Fourier
algorithms compute other sums; neither bound is theirs.)

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from convlab.problem import ConvProblem, IntOrPair, Padding

Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]

ROUNDOFF = 2.0**-24  # float32's u: half the distance from 1 to the next number
HALF_DENORMAL = 2.0**-150  # half of float32's smallest number above zero
SMALLEST_NORMAL = 2.0**-126
OVERFLOW = 2.0**128 - 2.0**103  # the least that float32 rounds to infinity
LARGEST_EXACT = 2**24  # float32 holds every integer up to here
LARGEST_EXACT_TF32 = 2**11  # and TF32 up to here
SPLIT_ROUNDINGS = 48  # the fewest that sums of split products are worth
TF32_DENORMAL = 2.0**-136  # TF32's smallest number above zero
TF32_WHOLE = 2.0**-113  # the least number whose two parts TF32 holds as well as any other's
MANY_OUTPUTS = 2**20  # from here on several threads judge: fewer take less time than a thread
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


@np.errstate(invalid="ignore")
def reference(
    problem: ConvProblem,
    input: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None = None,
) -> Doubles:
    """The convolution in float64, of ``problem.output_shape``: what :func:`seven_loops` returns,
    summed in another order.

    Products of float32 numbers are exact in float64, denormals included, and cannot overflow.
    """
    _require_shapes(problem, input, weight, bias)
    output = np.zeros(problem.output_shape)
    if bias is not None:
        output += bias[:, None, None]
    # A matrix [C_o, W_f*C_i] for each row of the filters.
    filter_rows = (
        weight.astype(np.float64).transpose(2, 0, 3, 1).reshape(problem.H_f, problem.C_o, -1)
    )
    for i in range(problem.N_i):  # image by image, which bounds the memory this takes
        padded = np.pad(input[i].astype(np.float64), ((0, 0), *problem.padding))
        result = output[i].reshape(problem.C_o, -1)
        for u in range(problem.H_f):
            result += filter_rows[u] @ _seen_by_row(problem, padded, u)
    return output


def _seen_by_row(problem: ConvProblem, padded: Doubles, u: int) -> Doubles:
    """What row u of a filter meets, a column for each output pixel: [W_f*C_i, H_o*W_o]."""
    rows = padded[:, u * problem.d_h :: problem.s_h][:, : problem.H_o]
    seen = np.empty((problem.W_f, problem.C_i, problem.H_o, problem.W_o))
    for v in range(problem.W_f):
        seen[v] = rows[:, :, v * problem.d_w :: problem.s_w][:, :, : problem.W_o]
    return seen.reshape(problem.W_f * problem.C_i, -1)


def magnitude(
    problem: ConvProblem,
    input: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None = None,
) -> Doubles:
    """``sum |x||w| + |bias|`` for each output, in float64: what rounding errors grow with.

    NaN and infinities count as 0, because no rounding comes of them.
    """
    input, weight, bias = _finite_parts(input, weight, bias)
    return reference(problem, abs(input), abs(weight), None if bias is None else abs(bias))


def _finite_parts(
    input: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any] | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """The tensors with 0 for NaN and infinities."""
    input, weight = (np.where(np.isfinite(array), array, 0) for array in (input, weight))
    return input, weight, None if bias is None else np.where(np.isfinite(bias), bias, 0)


def rounding_bound(
    problem: ConvProblem,
    magnitude: Doubles,
    *,
    with_bias: bool,
    integers: bool = False,
    least: int = 0,
) -> Doubles:
    """How far each float32 output may be from the exact result; see the head of this module.

    ``magnitude`` is :func:`magnitude`'s; ``integers`` says that every tensor holds integers only,
    ``least`` is how many roundings a sum is worth that has fewer terms.

    Raises ``ValueError`` from ``n = 2**24`` roundings on, where gamma_n means nothing.
    """
    roundings = max(problem.K, least) + with_bias
    if roundings >= 1 / ROUNDOFF:
        raise ValueError(
            f"each output sums {roundings} numbers: the error bound holds below 2**24, because "
            "float32 may lose all digits over that many"
        )
    gamma = roundings * ROUNDOFF / (1 - roundings * ROUNDOFF)
    underflow = np.minimum(problem.K * HALF_DENORMAL, magnitude)
    bound = gamma * magnitude + (1 + gamma) * underflow
    return np.where(magnitude <= LARGEST_EXACT, 0.0, bound) if integers else bound


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


class Oracle:
    """The answer to one convolution, worked out once, to judge any number of outputs by.

    ``expected`` and ``magnitude`` are float64 of ``problem.output_shape``. ``workers`` is how many
    threads judge large outputs, None for one a core. Takes float32 tensors; raises ``ValueError``
    naming the one that has another shape or dtype.
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
        self.problem = problem
        self._workers = workers or os.cpu_count() or 1
        self.expected = reference(problem, input, weight, bias)
        self.magnitude = magnitude(problem, input, weight, bias)
        self._finite = self.expected  # what the finite terms sum to
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            self._finite = reference(problem, *_finite_parts(input, weight, bias))
        self._with_bias = bias is not None
        self._integers = all(np.array_equal(tensor, np.rint(tensor)) for tensor in tensors.values())
        sizes = [
            np.abs(tensor, where=np.isfinite(tensor), out=np.zeros_like(tensor))
            for tensor in (input, weight)
        ]
        self._largest = [float(size.max()) for size in sizes]
        some_small = [bool(((size > 0) & (size < TF32_WHOLE)).any()) for size in sizes]
        # The most that a product may lose of a number too small for TF32.
        self._too_small = TF32_DENORMAL * (
            some_small[0] * self._largest[1] + some_small[1] * self._largest[0]
        )

    @property
    def bound(self) -> Doubles:
        """How far each output may be from ``expected``."""
        return self._bound(self.magnitude)

    def _bound(
        self, magnitude: Doubles, atomic_additions: int = 0, split_products: bool = False
    ) -> Doubles:
        exact = self._integers
        if split_products:
            exact = exact and max(self._largest) <= LARGEST_EXACT_TF32
        bound = rounding_bound(
            self.problem,
            magnitude,
            with_bias=self._with_bias,
            integers=exact,
            least=SPLIT_ROUNDINGS if split_products else 0,
        )
        if exact:  # integers are never as small as what follows
            return bound
        if split_products:
            bound = bound + self.problem.K * (self._too_small + 8 * HALF_DENORMAL)
        # Each may lose what it adds and what comes of it.
        return bound + 2 * atomic_additions * SMALLEST_NORMAL

    def judge(
        self, output: Singles, atomic_additions: int = 0, split_products: bool = False
    ) -> Verdict:
        """Judge every element of a float32 output; of ``atomic_additions`` to each of them, every
        one may flush a denormal to zero, as GPUs do there. ``split_products`` says that they are
        of numbers split in two, on tensor cores; see the head of this module for both.

        Raises ``ValueError`` when its shape or dtype is not the problem's.
        """
        _require_shape("output", output, self.problem.output_shape)
        _require_float32("output", output)
        N_i, C_o, H_o, W_o = self.problem.output_shape
        channels = max(1, PIECE // (H_o * W_o))
        pieces = [
            (image, slice(channel, channel + channels))
            for image in range(N_i)
            for channel in range(0, C_o, channels)
        ]

        def look(piece: tuple[int, slice]) -> tuple[float, int, int]:
            """The largest error, how many elements are wrong, which is the first."""
            errors = self._error_over_bound(piece, output[piece], atomic_additions, split_products)
            wrong = errors > 1
            return float(errors.max()), int(np.count_nonzero(wrong)), int(wrong.argmax())

        if output.size < MANY_OUTPUTS:
            found = list(map(look, pieces))
        else:
            with ThreadPoolExecutor(self._workers) as pool:
                found = list(pool.map(look, pieces))
        largest = max(error for error, _, _ in found)
        wrong = sum(count for _, count, _ in found)
        if wrong == 0:
            return Verdict(True, largest, 0, output.size)
        (image, some), place = next(
            (piece, place) for piece, (_, count, place) in zip(pieces, found, strict=True) if count
        )
        channel, row, column = np.unravel_index(place, (channels, H_o, W_o))
        first = (image, some.start + int(channel), int(row), int(column))
        got, expected = float(output[first]), float(self.expected[first])
        return Verdict(False, largest, wrong, output.size, first, got, expected)

    def is_wrong(
        self,
        image: int,
        output: Singles,
        atomic_additions: int = 0,
        split_products: bool = False,
    ) -> NDArray[np.bool_]:
        """Which elements of one image's output, [C_o, H_o, W_o], are outside their bounds."""
        errors = self._error_over_bound(image, output, atomic_additions, split_products)
        wrong: NDArray[np.bool_] = errors > 1
        return wrong

    def _error_over_bound(
        self,
        where: int | tuple[int, slice],
        output: Singles,
        atomic_additions: int,
        split_products: bool,
    ) -> Doubles:
        """Each element's error as a multiple of its bound, never NaN; ``where`` they are: an image,
        and some of its channels."""
        expected, magnitude = self.expected[where], self.magnitude[where]
        bound = self._bound(magnitude, atomic_additions, split_products)
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
