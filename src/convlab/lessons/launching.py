"""Runs kernels for notebooks: on the GPU where there is one, else on the strict simulator."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from convlab.engines import choose
from convlab.engines.findings import SimulationError
from convlab.engines.simulator import Simulator
from convlab.oracle import random_tensors
from convlab.plans import Plan
from convlab.problem import ConvProblem
from convlab.stages import Launch, Tile, stage_named
from convlab.tracing import LaunchTrace, trace


def where() -> str:
    """Where :func:`run` runs kernels, in words."""
    if choose().is_gpu:
        return f"Kernels run on your GPU, {choose().device}."
    return "There is no GPU here, and none is needed: kernels run on convlab's simulator."


def run(kernel: Any, grid: Any, block: Any, *arrays: Any) -> None:
    """``kernel[grid, block](*arrays)``, on the GPU where there is one, else on the simulator, which
    says what is wrong with the kernel. NumPy arrays are written to as the kernel writes."""
    if choose().is_gpu:
        _on_the_gpu(kernel, grid, block, arrays)
        return
    try:
        Simulator().launch(kernel, grid, block, *arrays)
    except SimulationError as error:
        print("The simulator found something wrong:")
        for finding in error.findings or (error,):
            print(f"- {finding}")


def _on_the_gpu(kernel: Any, grid: Any, block: Any, arrays: tuple[Any, ...]) -> None:
    from numba import cuda
    from numba.cuda.core.errors import NumbaPerformanceWarning

    there = [cuda.to_device(one) if isinstance(one, np.ndarray) else one for one in arrays]
    with warnings.catch_warnings():  # the lessons' launches are small, and Numba says so
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        kernel[grid, block](*there)
    for here, copy in zip(arrays, there, strict=True):
        if isinstance(here, np.ndarray):
            copy.copy_to_host(here)


def traced(
    made: Any, stage: str, problem: ConvProblem, tile: Tile | None = None, *,
    block_shown: int = 0, seed: int = 0,
) -> LaunchTrace:  # fmt: skip
    """The trace of a learner's kernel in the place of the stage's, on random numbers.

    ``made`` is ``make_kernel(problem, tile)``, without ``tile`` for a stage that has none;
    ``tile=None`` takes the stage's tile for counting.
    """
    output = np.full(problem.output_shape, np.nan, np.float32)
    tensors = random_tensors(problem, seed)
    return traced_on(tensors, output, made, stage, problem, tile, block_shown=block_shown)


def traced_on(
    tensors: tuple[np.ndarray, np.ndarray, np.ndarray], output: np.ndarray, made: Any, stage: str,
    problem: ConvProblem, tile: Tile | None = None, *, block_shown: int = 0,
) -> LaunchTrace:  # fmt: skip
    """As :func:`traced`, on an input, weight and bias of one's own, into ``output``."""
    step = stage_named(stage)
    tile = tile or step.model_tile
    program = step.prepare(problem, tile)
    main = program.launches[-1]
    assert isinstance(main, Launch)
    kernel = made(problem) if tile is None else made(problem, tile)
    steps = (*program.launches[:-1], replace(main, kernel=kernel))
    ready = Plan.of(replace(program, launches=steps), problem, step, Simulator(strict=False))
    input, weight, bias = tensors
    for start in ready.steps(input, weight, output, bias)[:-1]:
        start(None)
    _, arrays = ready.bound(input, weight, output, bias)[-1]
    return trace(kernel, main.grid, main.block, *arrays, block_shown=block_shown).main
