"""Runs kernels for notebooks: on the GPU where there is one, else on the strict simulator."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from typing import Any
from unittest import mock

import numpy as np
from numba import cuda
from numba.cuda.core.errors import NumbaPerformanceWarning

from convlab.checking.checker import Tensors, main_launch, maker, program_with
from convlab.engines import choose
from convlab.engines.simulator import Simulator
from convlab.kernels.receptive_field import channel_parallel_field
from convlab.oracle import random_tensors
from convlab.problem import ConvProblem
from convlab.simulation.findings import SimulationError
from convlab.stages import Launch, Program, Tile, stage_named
from convlab.tracing import LaunchTrace, trace


def where() -> str:
    """A sentence that says where :func:`run` runs kernels."""
    if choose().is_gpu:
        return f"Kernels run on your GPU, {choose().device}."
    return "There is no GPU here, and none is needed: kernels run on convlab's simulator."


def run(kernel: Any, grid: Any, block: Any, *arrays: Any) -> None:
    """``kernel[grid, block](*arrays)``, on the GPU where there is one, else on the simulator, which
    says what is wrong with the kernel. NumPy arrays are written to as the kernel writes."""
    if choose().is_gpu:
        there = [cuda.to_device(one) if isinstance(one, np.ndarray) else one for one in arrays]
        with warnings.catch_warnings():  # the lessons' launches are small, and Numba says so
            warnings.simplefilter("ignore", NumbaPerformanceWarning)
            kernel[grid, block](*there)
        for here, copy in zip(arrays, there, strict=True):
            if isinstance(here, np.ndarray):
                copy.copy_to_host(here)
        return
    try:
        Simulator().launch(kernel, grid, block, *arrays)
    except SimulationError as error:
        print("The simulator found something wrong:")
        for finding in error.findings or (error,):
            print(f"- {finding}")


def traced(
    made: Any, stage: str, problem: ConvProblem, tile: Tile | None = None, *,
    block_shown: int = 0, seed: int = 0,
) -> LaunchTrace:  # fmt: skip
    """The trace of a learner's kernel in the place of the stage's, on random numbers.

    ``made`` is ``make_kernel(problem, tile)``, without ``tile`` for a stage that has none;
    ``tile=None`` takes the stage's tile for counting.
    """
    main, arrays = ready_for(made, stage, problem, tile, random_tensors(problem, seed))
    return trace(main.kernel, main.grid, main.block, *arrays, block_shown=block_shown).main


AFTER = ("bias", "output")  # what a kernel touches once its sums are complete


def ready_for(
    made: Any, stage: str, problem: ConvProblem, tile: Tile | None, tensors: Tensors,
    output: np.ndarray | None = None,
) -> tuple[Launch, list[Any]]:  # fmt: skip
    """The main launch of a stage and its arrays after the layout transforms, with a learner's
    kernel in the stage's place: ``made`` makes it, or a whole ``Program`` as :func:`part_of` does;
    None leaves the stage's own. ``tensors`` are input, weight and bias; without an ``output`` it
    is NaN."""
    step = stage_named(stage)
    tile = tile or step.model_tile
    if output is None:
        output = np.full(problem.output_shape, np.nan, np.float32)
    program = program_with(step, maker(made or step.prepare, step), problem, tile)
    return main_launch(step, program, problem, tensors, output)


def part_of(stage: str, **parts: Any) -> Any:
    """A function that makes a stage's ``Program`` with a learner's function in the place of one of
    its module's, as in ``part_of("s11", make_fetch=make_fetch)``, or of a module whose functions
    that one uses: what checks and pictures take for a ``make_kernel``.

    Raises ``ValueError`` for a function that no stage has.
    """
    step = stage_named(stage)
    ((name, made),) = parts.items()
    own = importlib.import_module(step.module)
    used = sorted({str(getattr(one, "__module__", "")) for one in vars(own).values()})
    others = [importlib.import_module(one) for one in used if one.startswith("convlab.kernels.")]
    module = next((one for one in (own, *others) if hasattr(one, name)), None)
    if module is None:
        raise ValueError(f"{step.name} has no function {name!r}")

    def make_program(problem: ConvProblem, tile: Tile | None = None) -> Program:
        with mock.patch.multiple(module, **parts):
            return step.prepare(problem, tile)

    shown = ", ".join(f"{name}={part.__name__}" for name, part in parts.items())
    make_program.__name__ = f"part_of({stage!r}, {shown})"  # as one writes it
    make_program.__wrapped__ = made  # type: ignore[attr-defined]  # its lines are the learner's
    return _taking(make_program, "problem", *(["tile"] if step.tiny_tile else []))


def _taking(function: Any, *names: str) -> Any:
    """The function, said to have these parameters; its source stays the wrapped function's."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = Signature([Parameter(name, kind) for name in names])
    return function


def with_field(made: Any) -> Callable[[ConvProblem], Any]:
    """``made(problem, field)`` as a function of the problem alone, with the block that the
    C_in-parallel stages take."""

    @wraps(made)
    def make_kernel(problem: ConvProblem) -> Any:
        return made(problem, channel_parallel_field(problem))

    return _taking(make_kernel, "problem")  # type: ignore[no-any-return]


def numbered(problem: ConvProblem) -> np.ndarray:
    """An input whose pixels are 1, 2, 3, ..., so that one sees where each went."""
    count = int(np.prod(problem.input_shape))
    return np.arange(1, count + 1, dtype=np.float32).reshape(problem.input_shape)
