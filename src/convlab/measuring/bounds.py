"""The check of a benchmark's outputs: element by element, and by norm.

The oracle's bound on an element holds for every order of a float32 sum. With thousands of terms
that bound is so wide that TF32 would pass. A norm is sharper, because rounding errors of random
numbers cancel. A float32 sum must meet both; TF32, Fourier and Winograd meet a norm of their own.
docs/checking.md has the reasons and the sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from convlab.problems.error_bound import ROUNDOFF, squared_errors
from convlab.problems.gradient import Gradient, Problem
from convlab.problems.oracle import Allowances, Oracle, Singles
from convlab.problems.reference import each

FP32 = "fp32"  # the oracle's bound, and a norm
HALVES = "16 bits"  # of stages the oracle's bound, and a norm
RULES = (FP32, "tf32", "fft", "winograd", HALVES)
FP32_SHARE = 8  # times sqrt(K) roundings; random sums make about 0.3
TF32_LIMIT = 2.0**-9
WINOGRAD_LIMIT = 2.0**-14  # TF32 in its place would not pass
LARGEST = 16  # one element's error may be so many times the limit on the root mean square
FFT_ETA = 6.7  # of a radix-2 butterfly, in units of roundoff: 1 + 4 * sqrt(2)


@dataclass(frozen=True)
class Checked:
    """The result of checking one output.

    ``bound`` is the rule that the output was checked by and ``error_over_bound`` its largest error
    as a part of that bound. ``reason`` says in a sentence what is wrong, or is None.
    """

    bound: str
    error_over_bound: float
    reason: str | None = None

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return self.reason is None


def bounds_for(precision: str, method: str) -> tuple[str, ...]:
    """Return the rules that an output may meet, the sharpest first; the first one met counts."""
    if precision == "tf32":
        return ("tf32",)
    if precision in ("fp16", "bf16"):
        return (HALVES,)
    if method == "any":  # the library chooses: it may compute either sum
        return (FP32, "fft", "winograd")
    return (method if method in ("fft", "winograd") else FP32,)


def limit(problem: Problem, bound: str) -> float:
    """Return the relative error in the 2-norm that a rule allows."""
    made = problem.as_convolution if isinstance(problem, Gradient) else problem
    points = math.prod(1 << (size - 1).bit_length() for size in made.padded_shape)
    transforms = 3 * math.log2(max(points, 2)) * FFT_ETA
    limits = {
        FP32: FP32_SHARE * math.sqrt(problem.K) * ROUNDOFF,
        "tf32": TF32_LIMIT,
        "winograd": WINOGRAD_LIMIT,
        "fft": (transforms + made.C_i + 2) * ROUNDOFF,
        # Twice the largest error of the one rounding, with room for a library's sums.
        HALVES: 2.0 ** (1 - made.number_type.bits),
    }
    if bound not in limits:
        raise ValueError(f"bound is {bound!r}: it must be one of {', '.join(RULES)}")
    return limits[bound]


class Checker:
    """The float64 answer of a convolution without bias, or of a gradient, for any outputs.

    Raises ``MemoryError`` if the host has no room for it: 16 bytes for each output, and up to as
    much again while the answer is computed.
    """

    def __init__(self, problem: Problem, input: Singles, weight: Singles) -> None:
        self.problem = problem
        self._oracle = Oracle(problem, input, weight)

    def check(
        self,
        output: Singles,
        precision: str = "fp32",
        method: str = "gemm",
        allowances: Allowances | None = None,
    ) -> Checked:
        """Check every element of an output; ``allowances`` are more arguments of
        :meth:`Oracle.check`. Raises ``ValueError`` when its shape or dtype is not the problem's."""
        if output.shape != self.problem.output_shape:
            raise ValueError(
                f"output has shape {output.shape}: for this problem it must have "
                f"{self.problem.output_shape}"
            )
        for bound in bounds_for(precision, method):
            checked = self._by_norm(output, bound)
            if checked.ok and (bound == FP32 or (bound == HALVES and method != "any")):
                by_norm = checked.error_over_bound
                checked = self._by_element(output, allowances, by_norm, bound)
            if checked.ok:
                return checked
        return replace(checked, reason=self._unwritten(output) or checked.reason)

    def _by_element(
        self, output: Singles, allowances: Allowances | None, by_norm: float, bound: str = FP32
    ) -> Checked:
        result = self._oracle.check(output, **(allowances or {}))
        reason = None if result.ok else str(result)
        return Checked(bound, max(by_norm, result.error_over_bound), reason)

    def _by_norm(self, output: Singles, bound: str) -> Checked:
        allowed, images = limit(self.problem, bound), range(len(output))
        expected, workers = self._oracle.expected, self._oracle.workers
        sums = each(lambda image: squared_errors(output[image], expected[image]), images, workers)
        errors, sizes = (math.fsum(one[place] for one in sums) for place in (0, 1))
        largest = max(one[2] for one in sums)
        if not math.isfinite(errors):
            errors = largest = math.inf
        of_norm = _part(math.sqrt(errors), math.sqrt(sizes))
        of_mean = _part(largest, math.sqrt(sizes / output.size))
        over = max(of_norm, of_mean / LARGEST) / allowed
        if over <= 1:
            return Checked(bound, over)
        broken = f"{of_norm:.3g} of the output's 2-norm, not {allowed:.3g}"
        if of_mean / LARGEST > of_norm:
            mean = "of the output's root mean square in one element"
            broken = f"{of_mean:.3g} {mean}, not {LARGEST * allowed:.3g}"
        said = f"the error is {over:.3g} times what {bound} may make: {broken}"
        return Checked(bound, over, said)

    def _unwritten(self, output: Singles) -> str | None:
        """A sentence about the NaN that remain in an output; None if there are none."""
        workers = self._oracle.workers
        left = sum(each(lambda one: int(np.count_nonzero(np.isnan(one))), output, workers))
        if left == output.size:
            return "it wrote nothing: every output still holds the NaN that it was filled with"
        if left:
            return f"{left:,} of {output.size:,} outputs are NaN: not written, or not numbers"
        return None


def _part(error: float, size: float) -> float:
    """The error as a part of the size."""
    if error == 0:
        return 0.0
    return error / size if size else math.inf
