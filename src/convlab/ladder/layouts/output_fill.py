"""First values of an output to whose elements several blocks add."""

from __future__ import annotations

from functools import lru_cache

from numba import cuda, float32, int64, uint32

from convlab.device import gpu_only
from convlab.ladder.stage import Flat, Launch, blocks_for
from convlab.problems.problem import ConvProblem

THREADS = 256


@lru_cache(maxsize=32)  # one kernel for all stages
def bias_launch(problem: ConvProblem) -> Launch:
    """Every output starts as its channel's bias, because additions need a first value."""
    C_o, PIXELS = problem.C_o, problem.H_o * problem.W_o
    OUTPUTS = problem.M * problem.N

    @cuda.jit
    def fill_with_bias(bias, output):
        e = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        if e < OUTPUTS:
            output[e] = bias[e // PIXELS % C_o]

    grid = (blocks_for(OUTPUTS, THREADS),)
    return Launch(fill_with_bias, grid, (THREADS,), ("bias", Flat("output")))


def zeros_launch(problem: ConvProblem) -> Launch:
    """Sets ``output`` to zeros, for split-K's additions."""
    return zeros_of("output", problem.M * problem.N)


def zeros_of(name: str, elements: int) -> Launch:
    """Sets the array of that name to zeros."""
    OUTPUTS = elements  # a constant of the kernel

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def clear(output):
        at = int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if at < OUTPUTS:
            output[at] = float32(0)

    return Launch(clear, (blocks_for(elements, THREADS),), (THREADS,), (Flat(name),))
