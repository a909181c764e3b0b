"""Bounds of a time: a GPU's arithmetic, the bytes that have to move, a kernel's own traffic.

A time below the roofline's floor is refused. The floor over the time, in percent, is the share of
the roofline. :class:`Why` puts the strict simulator's counts beside that share: the part of the
peak that they leave if nothing else limits the kernel. In one clock an SM starts four multiply-adds
of a warp, and meanwhile takes one memory instruction of a warp, serves one wavefront of its shared
memory, or moves four sectors out of its L1 cache (128 bytes a clock each; NVIDIA's CUDA C++
Programming Guide and the Hopper tuning guide).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from convlab.ladder import LADDER, Stage, production_tile
from convlab.ladder.stage import Tiles
from convlab.measuring import ladder_run as ladder
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import paper_layer
from convlab.running.engines import choose
from convlab.support.files import Count, Name, Natural, Positive

EVERY_MULTIPLICATION = ("gemm", "direct")  # methods that do all M * N * K of them
# Parts of the names of cuDNN's kernels that do fewer multiplications than a GEMM: Fourier
# transforms, the complex products between two of them, Winograd's.
FEWER_MULTIPLICATIONS = ("fft", "cf32", "cgemm", "winograd")
WARP = 32
PER_CLOCK = 4  # multiply-adds of a warp that an SM starts
SECTORS_PER_CLOCK = 4
SEED = 0
LAYER = "conv9"
# A piece of that layer, small enough to be counted in seconds: its filters over a quarter of its
# channels, and as many pixels as one or two of a GPU's tiles have, so that these are full.
PIECE = ConvProblem(1, 16, 8, 16, 64, 3, padding=1)


@dataclass(frozen=True)
class Machine:
    """A GPU's ceilings, in operations and bytes a second, None where unknown: ``fp32_flops``,
    ``tf32_flops`` and ``memory_bytes_per_second`` follow from its clocks; ``sgemm_tflops`` and
    ``copy_bytes_per_second`` are what cuBLAS and a copy in its memory reached."""

    device: Name
    fp32_flops: Positive | None = None
    tf32_flops: Positive | None = None
    memory_bytes_per_second: Positive | None = None
    l2_bytes: Count = 0
    multiprocessors: Natural | None = None
    sgemm_tflops: Positive | None = None
    copy_bytes_per_second: Positive | None = None

    def peak_flops(self, precision: str) -> float | None:
        """The operations a second that no kernel can exceed: that of the tensor cores for ``tf32``,
        a third of it for ``3xtf32``, which multiplies three times, and twice it for ``fp16`` and
        ``bf16``."""
        share = {"tf32": 1.0, "3xtf32": 1 / 3, "fp16": 2.0, "bf16": 2.0}.get(precision)
        if share is None:
            return self.fp32_flops
        return None if self.tf32_flops is None else self.tf32_flops * share


def least_flops(problem: ConvProblem, method: str) -> float:
    """The operations that a method cannot do without: all of them in a product over windows.
    Fourier and Winograd algorithms do at least one for each output, input channel and filter, so at
    most ``H_f * W_f`` times fewer: F(m, r) takes m + r - 1 for m outputs (Winograd, Arithmetic
    Complexity of Computations, 1980)."""
    fewer = 1 if method in EVERY_MULTIPLICATION else math.prod(problem.kernel_size)
    return problem.flops / fewer


def floor_seconds(problem: ConvProblem, machine: Machine, precision: str = "fp32") -> float | None:
    """The least time for the arithmetic or, if longer, the bytes; None if unknown."""
    peak, bandwidth = machine.peak_flops(precision), machine.memory_bytes_per_second
    floors = [problem.flops / peak] if peak else []
    floors += [problem.least_bytes / bandwidth] if bandwidth else []
    return max(floors, default=None)


def too_fast(
    problem: ConvProblem, time_ms: float, machine: Machine, precision: str, method: str
) -> str | None:
    """Return why a time cannot be right, in one sentence; None where it can. What is written may
    stay in L2 when the clock stops, so the output counts only beyond that."""
    if not 0 < time_ms < math.inf:
        return f"the clock said {time_ms} ms, which no work takes"
    peak, bandwidth = machine.peak_flops(precision), machine.memory_bytes_per_second
    flops = least_flops(problem, method)
    refused = f"refused, above the roofline: {time_ms:.4g} ms"
    if peak and flops / peak > time_ms / 1e3:
        return (
            f"{refused} are {flops / time_ms / 1e9:,.4g} TFLOP/s, and {machine.device} can do "
            f"{peak / 1e12:,.4g} in {precision} at most"
        )
    output = problem.number_type.nbytes * math.prod(problem.output_shape)
    moved = problem.least_bytes - min(machine.l2_bytes, output)
    if bandwidth and moved / bandwidth > time_ms / 1e3:
        return (
            f"{refused} for {moved / 1e6:,.4g} MB are {moved / time_ms / 1e9:,.3g} TB/s, and "
            f"{machine.device}'s memory moves {bandwidth / 1e12:,.3g} at most"
        )
    return None


def in_gemm_class(method: str, kernels: str | None) -> bool:
    """Return whether kernels do every multiplication, as GEMM and direct algorithms do.

    If the library chooses (``any``), the names of its kernels decide; without names the answer is
    no.
    """
    if method != "any":
        return method in EVERY_MULTIPLICATION
    names = (kernels or FEWER_MULTIPLICATIONS[0]).lower()
    return not any(sign in names for sign in FEWER_MULTIPLICATIONS)


@dataclass(frozen=True)
class Why:
    """The memory traffic of a stage's main kernel for each multiply-add of a warp.

    ``requests``, ``sectors`` of global memory and ``wavefronts`` of shared memory are counted on
    :data:`PIECE`; ``bytes_per_flop`` is what global memory moves. None stands for a kernel that
    cannot be counted.
    """

    stage: str
    requests: float | None = None
    sectors: float | None = None
    wavefronts: float | None = None
    bytes_per_flop: float | None = None

    def allows(self, pace: float = 1.0) -> float | None:
        """Return the percentage of the peak that the slowest of these leaves; None without counts.

        ``pace`` is the arithmetic's speed over fp32's.
        """
        slowest = max(self.requests or 0, (self.sectors or 0) / SECTORS_PER_CLOCK,
                      self.wavefronts or 0)  # fmt: skip
        return min(100.0, 100 / (PER_CLOCK * pace * slowest)) if slowest else None


def counted(names: Sequence[str]) -> Iterator[Why]:
    """Count each of these stages on :data:`PIECE`; names of no stage are left out."""
    return (_counted(stage) for stage in LADDER if stage.name in names)


def _counted(stage: Stage) -> Why:
    """With the production tile of the whole layer instead of the one for small problems, and
    without split-K: a piece of the layer would be split."""
    if (tile := production_tile(stage, paper_layer(LAYER))) is not None:
        stage = replace(stage, tiles=Tiles(tiny=tile, model=tile))
    tensors = random_tensors(PIECE, SEED)
    (result,) = ladder.run(PIECE, [stage], choose("simulator"), tensors)
    counts = {name: count or 0 for name, count in (result.counts or {}).items()}
    if not counts.get("global_requests"):
        return Why(stage.name)
    warp_multiply_adds = PIECE.flops / 2 / WARP
    return Why(
        stage.name,
        (counts["global_requests"] + counts["shared_requests"]) / warp_multiply_adds,
        counts["global_sectors"] / warp_multiply_adds,
        counts["shared_wavefronts"] / warp_multiply_adds,
        counts["bytes_per_flop"],
    )
