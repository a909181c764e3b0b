"""What the tests of s13 and s14 share: both multiply numbers split in two, and compute again what
is not finite."""

from __future__ import annotations

from typing import Any

import conftest
import numpy as np
from kernels.tensor_cores import split

from convlab import ConvProblem, Stage, Tile
from convlab.engines import Engine
from convlab.oracle import random_tensors

F = np.float32
INF, NAN, MOST = np.inf, np.nan, float(np.finfo(np.float32).max)

# Five channels, so that no slice can be channels of one place; K of 30 and N of 60; stride and
# padding are uneven.
FEW = ConvProblem(3, 5, 7, 6, 9, (2, 3), stride=(2, 1), padding=((0, 2), (1, 0)))
# Fifteen pixels an image, so that a run of four windows may be of two.
TAIL = ConvProblem(5, 4, 4, 5, 21, (2, 1))
ODD = ConvProblem(5, 5, 7, 6, 9, (2, 3), stride=(2, 1), padding=((0, 0), (1, 0)))


def many(channels: int) -> ConvProblem:
    """So many that a slice can be channels of one place: six slices, or more."""
    return ConvProblem(2, channels, 5, 5, 17, (3, 2), (1, 2), (1, 2), (2, 1))


def name_of(parameter: Any) -> str:
    """A stage's name, else the text: for the names of tests."""
    return str(getattr(parameter, "name", parameter))


def warpgroup_tile(channels: int) -> Tile:
    return Tile(channels, 128, 16, channels // 4, 4)


def computed(stage, engine, problem, numbers, tile=None, **options: bool) -> np.ndarray:
    """By the tiny tile, where none is named."""
    return conftest.computed(stage, engine, problem, numbers, tile or stage.tiny_tile, **options)


# The filter


def awkward_weight(problem: ConvProblem) -> np.ndarray:
    """With numbers that TF32 cannot hold."""
    weight = random_tensors(problem, 1)[1]
    numbers = weight.reshape(problem.M, -1)
    numbers[2, -1], numbers[3, 1], numbers[1, 2], numbers[-1, -1] = -MOST, INF, NAN, -INF
    return weight


def packed_filter(
    stage: Stage, problem: ConvProblem, tile: Tile, weight: Any, engine: Engine
) -> Any:
    """As the stage packs it, on the engine, where NaN was before."""
    program = stage.prepare(problem, tile)
    (buffer,) = program.buffers
    packed = engine.to_device(np.full(buffer.shape, NAN, F).reshape(-1))
    step = program.launches[0]
    engine.build(step, program)([engine.to_device(weight.reshape(-1)), packed])
    return packed


def both_parts(stage: Stage, problem: ConvProblem, tile: Tile, weight: Any) -> np.ndarray:
    """``[part, m, k]``, with k in the order of the slices, zeros beyond M and K: by arithmetic."""
    (buffer,) = stage.prepare(problem, tile).buffers
    ordered = np.zeros((buffer.shape[0] * tile.M_B, buffer.shape[1]), F)
    group = tile.channel_group(problem)
    by_groups = weight.reshape(problem.M, -1, group, problem.H_f * problem.W_f)
    ordered[: problem.M, : problem.K] = by_groups.swapaxes(2, 3).reshape(problem.M, problem.K)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = np.stack(split(ordered))
    parts[1] = np.where(np.isfinite(parts[0]), parts[1], ordered)
    return parts
