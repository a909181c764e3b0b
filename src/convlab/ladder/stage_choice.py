"""The choice of the fastest stage for a problem and a GPU, by the models that choose tiles.

A tile's model (:mod:`convlab.ladder.tile_heuristic`) estimates the clocks of the main kernel. A
call takes more: its launches, the layout transform of the filter, and the memory that no cache
holds. :data:`CALLS` has the price of these for each stage that is chosen from, fitted to the times
of 21 layers at batch 1 and 32 and of the paper's twelve layers on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from convlab.ladder.stage import Stage
from convlab.ladder.tile_heuristic import H200_SMS, heuristic_of
from convlab.problems.problem import ConvProblem

H200_BYTES_A_CLOCK = 2430.0  # 4.81 TB/s and at most 1.98 GHz


@dataclass(frozen=True)
class GpuLimits:
    """The limits of a GPU that decide which stage and tile is the fastest; the defaults are an
    H200's. ``bytes_a_clock`` is the bandwidth of its memory, by its data sheet, in bytes for each
    clock of an SM at its highest frequency."""

    sm_count: int = H200_SMS
    bytes_a_clock: float = H200_BYTES_A_CLOCK


@dataclass(frozen=True)
class CallPrice:
    """The clocks of a call beside the model's, on an H200: once, for each number of the filter that
    is packed, and for each byte of the three tensors. ``model`` corrects the model itself."""

    model: float
    start: float
    packing: float
    memory: float


CALLS = {
    "m15": CallPrice(model=0.95, start=12700.0, packing=0.0037, memory=1.3e-4),
    "t06": CallPrice(model=1.0, start=14500.0, packing=0.0156, memory=1.0e-4),
}


def estimated_clocks(
    stage: Stage, problem: ConvProblem, gpu: GpuLimits | None = None, **options: bool
) -> float | None:
    """Return the estimated clocks of a call with the tile and split-K that the model chooses; None
    for a stage without a price."""
    gpu = gpu or GpuLimits()
    heuristic, price = heuristic_of(stage), CALLS.get(stage.name.partition("_")[0])
    if heuristic is None or price is None:
        return None
    split_k = heuristic.allows_split_k(**options)
    tile = heuristic.best_tile(problem, gpu.sm_count, split_k=split_k)
    splits = heuristic.best_splits(problem, tile, gpu.sm_count) if split_k else 1
    clocks = heuristic.estimated_cost(problem, tile, gpu.sm_count, splits)
    moved = price.packing * problem.M * problem.K + price.memory * problem.least_bytes
    slower = H200_BYTES_A_CLOCK / gpu.bytes_a_clock
    return price.model * clocks + price.start + slower * moved


@lru_cache(maxsize=256)  # a model's layers ask again and again
def fastest(stages: tuple[Stage, ...], problem: ConvProblem, gpu: GpuLimits) -> Stage:
    """Return the stage of the fewest estimated clocks; the first where none has a price."""
    known = [(estimated_clocks(stage, problem, gpu), stage) for stage in stages]
    priced = [(clocks, stage) for clocks, stage in known if clocks is not None]
    return min(priced, key=lambda pair: pair[0])[1] if priced else stages[0]
