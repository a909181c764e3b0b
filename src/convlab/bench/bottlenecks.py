"""Why a stage is not faster: what the strict simulator counts, beside what a GPU measured.

In one clock an SM starts four multiply-adds of a warp, and meanwhile takes one memory instruction
of a warp, serves one wavefront of its shared memory, or moves four sectors out of its L1 cache (128
bytes a clock each; NVIDIA's CUDA C++ Programming Guide and the Hopper tuning guide). So counts tell
how much of the peak a kernel could reach if nothing else were in its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from convlab import ladder
from convlab.bench.roofline import Machine
from convlab.engines import choose
from convlab.oracle import random_tensors
from convlab.plans import with_tile
from convlab.problem import ConvProblem
from convlab.stages import LADDER, Stage
from convlab.workloads import paper_layer

WARP = 32
PER_CLOCK = 4  # multiply-adds of a warp that an SM starts
SECTORS_PER_CLOCK = 4
SEED = 0
LAYER = "conv9"
# A piece of that layer, small enough to be counted in seconds: its filters over a quarter of its
# channels, and as many pixels as one or two of a GPU's tiles have, so that these are full.
PIECE = ConvProblem(1, 16, 8, 16, 64, 3, padding=1)
# What tensor cores reach by s13's instruction, in a loop on registers alone: no count shows it, and
# it was measured (docs/notes/fast.md). By GPU, TF32.
BY_MMA_SYNC, MMA_SYNC_FLOPS = "s13_tensor_cores", {"NVIDIA H200": 315e12}


@dataclass(frozen=True)
class Why:
    """What a stage's main kernel asks of an SM for each multiply-add of a warp, counted on
    :data:`PIECE`: ``requests``, ``sectors`` of global memory, ``wavefronts`` of shared memory.
    ``bytes_per_flop`` is what global memory moves. None where nothing can be counted. ``pace`` is
    how many times as many multiply-adds as in fp32 the arithmetic of the stage could start,
    ``instruction`` the percent of its peak that its instruction reaches by itself."""

    stage: str
    requests: float | None = None
    sectors: float | None = None
    wavefronts: float | None = None
    bytes_per_flop: float | None = None
    pace: float = 1.0
    instruction: float = 100.0

    @property
    def limits(self) -> dict[str, float]:
        """How much of the arithmetic peak each leaves, in percent, the tightest first."""
        found = {} if self.instruction >= 100 else {"the instruction": self.instruction}
        for name, count, per_clock in (
            ("memory instructions", self.requests, 1),
            ("sectors of global memory", self.sectors, SECTORS_PER_CLOCK),
            ("wavefronts of shared memory", self.wavefronts, 1),
        ):
            if count:
                found[name] = min(100.0, 100 * per_clock / (PER_CLOCK * self.pace * count))
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    @property
    def tightest(self) -> tuple[str, float] | None:
        """What leaves least, and how much; None where nothing was counted."""
        return next(iter(self.limits.items()), None)

    def on(self, machine: Machine, precision: str) -> Why:
        """The same with a GPU's ``pace`` and ``instruction`` for the stage's arithmetic."""
        peak, fp32, tf32 = (machine.peak_flops(one) for one in (precision, "fp32", "tf32"))
        reached = MMA_SYNC_FLOPS.get(machine.device) if self.stage == BY_MMA_SYNC else None
        return replace(
            self,
            pace=peak / fp32 if peak and fp32 else self.pace,
            instruction=100 * reached / tf32 if reached and tf32 else 100.0,
        )


def counted(names: Sequence[str]) -> Iterator[Why]:
    """Count each stage of these names on :data:`PIECE`, with the tile that a GPU takes for the
    whole layer, by the strict simulator. Results may name stages that no longer exist: these are
    left out."""
    there = {stage.name: stage for stage in LADDER}
    return (_counted(there[name]) for name in names if name in there)


@cache  # it takes seconds
def _counted(stage: Stage) -> Why:
    tensors = random_tensors(PIECE, SEED)
    (result,) = ladder.run(PIECE, [_as_on_a_gpu(stage)], choose("simulator"), tensors)
    counts, warp_multiply_adds = result.counts, PIECE.flops / 2 / WARP
    if counts is None or not counts["global_requests"]:
        return Why(stage.name)
    requests = (counts["global_requests"] or 0) + (counts["shared_requests"] or 0)
    return Why(
        stage.name,
        requests / warp_multiply_adds,
        (counts["global_sectors"] or 0) / warp_multiply_adds,
        (counts["shared_wavefronts"] or 0) / warp_multiply_adds,
        counts["bytes_per_flop"],
    )


def _as_on_a_gpu(stage: Stage) -> Stage:
    """The stage with its production tile instead of the one for small problems, and without
    split-K, as on the whole layer: a piece of it would be split."""
    if stage.tiny_tile is None:
        return stage
    prepare = stage.prepare
    if "whole_sums" in stage.options:
        prepare = partial(prepare, whole_sums=True)
    return replace(with_tile(stage, stage.production_tile(paper_layer(LAYER))), prepare=prepare)
