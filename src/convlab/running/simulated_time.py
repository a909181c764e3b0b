"""The time that a simulator takes for a plan: estimated, and announced if it is long."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from convlab.ladder import Stage, Tile
from convlab.ladder.stage import blocks_for
from convlab.problems.gradient import Gradient, Problem
from convlab.running.able_stages import calls_a_library
from convlab.running.engines import Engine
from convlab.support.progress import duration, progress, say

ANNOUNCED_FROM_SECONDS = 30  # a longer simulation says how long it takes


def simulated_seconds(
    problem: Problem, stage: Stage, tile: Tile | None, engine: Engine
) -> float | None:
    """Return about how many seconds a simulator takes for a stage; None on a GPU. A tile computes
    outputs that do not exist too; with few output channels they are most of its work."""
    if engine.is_gpu:
        return None
    convolution = problem.as_convolution if isinstance(problem, Gradient) else problem
    if calls_a_library(stage):
        # NumPy multiplies at once. To copy four elements takes as long as one multiply-add.
        multiply_adds = convolution.N * convolution.K // 4
    elif tile is None:
        multiply_adds = problem.flops // 2
    else:
        block = tile.M_B, tile.N_B, tile.K_B
        sizes = zip((convolution.M, convolution.N, convolution.K), block, strict=True)
        multiply_adds = math.prod(blocks_for(n, b) * b for n, b in sizes)
    return multiply_adds / engine.multiply_adds_per_second


@contextmanager
def announced(
    problem: Problem, stage: Stage, tile: Tile | None, engine: Engine, calls: int = 1
) -> Iterator[None]:
    """If so many calls of a plan take a simulator long, say on standard error how long, and then
    show their progress. Inside another one that does so already, nothing is said again."""
    seconds = calls * (simulated_seconds(problem, stage, tile, engine) or 0)
    if seconds < ANNOUNCED_FROM_SECONDS or engine.on_block is not None:
        yield
        return
    work = f"{calls * problem.flops // 2:,} multiply-adds on {engine.device}"
    say(f"{work} take about {duration(seconds)}; Ctrl-C ends them")
    engine.on_block = progress()
    try:
        yield
    finally:
        engine.on_block = None
