"""What no convolution can be faster than: a GPU's arithmetic, and the bytes that have to move.

Two uses. A time below the floor is refused: what was measured is not what was meant. And the floor
over the time, in percent, says how much is left to gain.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from convlab.problem import ConvProblem

EVERY_MULTIPLICATION = ("gemm", "direct")  # methods that do all M * N * K of them


@dataclass(frozen=True)
class Machine:
    """A GPU's ceilings: operations and bytes a second, None where nobody knows.

    ``fp32_flops``, ``tf32_flops`` and ``memory_bytes_per_second`` follow from its clocks and are
    not reached by anything; ``sgemm_tflops`` and ``copy_bytes_per_second`` are what cuBLAS and a
    copy of device memory were measured to reach.
    """

    device: str
    fp32_flops: float | None = None
    tf32_flops: float | None = None
    memory_bytes_per_second: float | None = None
    l2_bytes: int = 0
    multiprocessors: int | None = None
    sgemm_tflops: float | None = None
    copy_bytes_per_second: float | None = None

    def peak_flops(self, precision: str) -> float | None:
        """The operations a second that no kernel can exceed: of the tensor cores for ``tf32``, a
        third of it for ``3xtf32``, which does three for each."""
        if precision == "tf32":
            return self.tf32_flops
        if precision == "3xtf32":
            return None if self.tf32_flops is None else self.tf32_flops / 3
        return self.fp32_flops

    def as_json(self) -> dict[str, Any]:
        """The ceilings as a document of :mod:`json`."""
        return asdict(self)


def least_flops(problem: ConvProblem, method: str) -> float:
    """The operations that a method cannot do without.

    A product over windows does all of them. Fourier and Winograd algorithms do fewer
    multiplications, but none does fewer than one for each output, input channel and filter: F(m, r)
    takes m + r - 1 for m outputs (Winograd, Arithmetic Complexity of Computations, 1980), a Fourier
    transform more; so by ``H_f * W_f`` fewer at the most.
    """
    if method in EVERY_MULTIPLICATION:
        return float(problem.flops)
    return problem.flops / (problem.H_f * problem.W_f)


def floor_seconds(
    problem: ConvProblem, machine: Machine, precision: str = "fp32", method: str = "gemm"
) -> float | None:
    """The least time that the arithmetic takes, or the bytes where these take longer; None where
    the machine is not known."""
    peak, bandwidth = machine.peak_flops(precision), machine.memory_bytes_per_second
    floors = [least_flops(problem, method) / peak] if peak else []
    floors += [problem.least_bytes / bandwidth] if bandwidth else []
    return max(floors, default=None)


def too_fast(
    problem: ConvProblem, time_ms: float, machine: Machine, precision: str, method: str
) -> str | None:
    """Why a time cannot be right, in one sentence; None where it can.

    What is written may stay in L2 when the clock stops, so the output counts only beyond that.
    """
    peak, bandwidth = machine.peak_flops(precision), machine.memory_bytes_per_second
    flops = least_flops(problem, method)
    refused = f"refused, above the roofline: {time_ms:.4g} ms"
    if peak and flops / peak > time_ms / 1e3:
        return (
            f"{refused} are {flops / time_ms / 1e9:,.4g} TFLOP/s, and {machine.device} can do "
            f"{peak / 1e12:,.4g} in {precision} at most"
        )
    output = 4 * math.prod(problem.output_shape)
    moved = problem.least_bytes - min(machine.l2_bytes, output)
    if bandwidth and moved / bandwidth > time_ms / 1e3:
        return (
            f"{refused} for {moved / 1e6:,.4g} MB are {moved / time_ms / 1e9:,.3g} TB/s, and "
            f"{machine.device}'s memory moves {bandwidth / 1e12:,.3g} at most"
        )
    return None


def percent_of_roofline(
    problem: ConvProblem, time_ms: float, machine: Machine, precision: str = "fp32"
) -> float | None:
    """The floor of the convolution as it is defined, all multiplications done, over the time. An
    algorithm that does fewer may pass 100."""
    floor = floor_seconds(problem, machine, precision)
    return None if floor is None else 100 * floor / (time_ms / 1e3)
