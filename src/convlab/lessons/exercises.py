"""Run a learner's kernel, or a part of one, in the place of a stage's: ``run``, ``traced``."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature
from typing import Any
from unittest import mock

import numpy as np
from numba import cuda
from numba.cuda.core.errors import NumbaPerformanceWarning

from convlab.checking.launches import PROBLEMS
from convlab.checking.loading import maker
from convlab.checking.programs import Tensors, main_launch, program_with
from convlab.ladder import Launch, Program, Tile, stage_named
from convlab.ladder.channels.receptive_field import channel_parallel_field
from convlab.lessons.limits import running
from convlab.lessons.parts import has_part, kernel_with
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.running.engines import choose
from convlab.running.engines.simulator import Simulator
from convlab.simulation.launch.translation import checked_kernel
from convlab.simulation.rules.findings import SimulationError
from convlab.simulation.rules.launch_checks import check_all_given
from convlab.tracing import LaunchTrace, trace_launch

# What is counted: small, so that a check takes seconds; still several blocks and slices of K.
PICTURE_SECONDS = 10.0  # that a launch may take, of which a picture is drawn
MODEL = ConvProblem(1, 4, 6, 16, 16, 3, padding=1)
# Rows have padding and dilation here, which they have in no problem of convlab.check: a padding
# that is multiplied by the dilation is right there.
ROWS = "padding wider than the image"
PADDED_ROWS = replace(PROBLEMS[ROWS], dilation=(2, 1))


def where() -> str:
    """Return a sentence that says where :func:`run` runs kernels."""
    if choose().is_gpu:
        return f"Kernels run on your GPU, {choose().device}."
    return "There is no GPU here, and you need none: kernels run on convlab's simulator."


def run(kernel: Any, grid: Any, block: Any, *arrays: Any) -> None:
    """Run ``kernel[grid, block](*arrays)`` on the GPU if there is one, otherwise on the simulator,
    which reports mistakes of the kernel. The kernel's stores go to the NumPy arrays."""
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
        check_all_given(checked_kernel(kernel).py_func, arrays)
        Simulator().launch(kernel, grid, block, *arrays)
    except SimulationError as error:
        print("The simulator found something wrong:")
        for finding in error.findings or (error,):
            print(f"- {finding}")


def traced(made: Any, stage: str, problem: ConvProblem, tile: Tile | None = None) -> LaunchTrace:
    """Return the trace of a learner's kernel in the place of the stage's, on random numbers.

    ``made`` is ``make_kernel(problem, tile)``, without ``tile`` for a stage that has no tile. With
    ``tile=None`` the stage's tile for counting is taken.
    """
    with running(seconds=PICTURE_SECONDS):
        main, arrays = ready_for(made, stage, problem, tile, random_tensors(problem, 0))
        return trace_launch(main, arrays)


def ready_for(
    made: Any, stage: str, problem: ConvProblem, tile: Tile | None, tensors: Tensors,
    output: np.ndarray | None = None,
) -> tuple[Launch, list[Any]]:  # fmt: skip
    """Return a stage's main launch with a learner's kernel, and its arrays.

    The layout transforms have run. ``made`` makes the kernel, or a whole ``Program`` as
    :func:`part_of` does; None keeps the stage's own. ``tensors`` are input, weight and bias.
    Without an ``output``, the output is NaN.
    """
    chosen_stage = stage_named(stage)
    if output is None:
        output = np.full(problem.output_shape, np.nan, np.float32)
    make = maker(made or chosen_stage.prepare, chosen_stage)
    program = program_with(chosen_stage, make, problem, tile or chosen_stage.model_tile)
    return main_launch(chosen_stage, program, problem, tensors, output)


def part_of(stage: str, **parts: Any) -> Any:
    """Return a function that makes a stage's ``Program`` with a learner's function in it.

    ``part_of("m09", make_transform=made)`` replaces the function ``make_transform`` of the stage's
    module, or of a module whose functions that one uses. ``part_of("m11", fetch=made)`` replaces
    the part ``fetch`` of the stage's kernel by that which ``made(problem, tile)`` makes. Checks and
    pictures take the result as they take a ``make_kernel``. Raises ``ValueError`` for a function
    and a part that the stage does not have.
    """
    chosen_stage = stage_named(stage)
    ((name, made),) = parts.items()
    own = import_module(chosen_stage.module)
    used = sorted({str(getattr(one, "__module__", "")) for one in vars(own).values()})
    others = [
        import_module(one)
        for one in used
        if one.startswith(("convlab.ladder.layouts.", "convlab.ladder."))
    ]
    module = next((one for one in (own, *others) if hasattr(one, name)), None)
    is_part = module is None and has_part(chosen_stage.name, name)
    if is_part:
        module, parts = own, {"make_kernel": kernel_with(chosen_stage.name, name, made)}
    if module is None:
        raise ValueError(f"{chosen_stage.name} has no function {name!r}")

    def make_program(problem: ConvProblem, tile: Tile | None = None) -> Program:
        with mock.patch.multiple(module, **parts):
            return chosen_stage.prepare(problem, tile)

    # As one writes it. Its lines are the learner's.
    make_program.__name__ = f"part_of({stage!r}, {name}={getattr(made, '__name__', made)})"
    make_program.__wrapped__ = made  # type: ignore[attr-defined]
    make_program.is_part = is_part  # type: ignore[attr-defined]
    make_program.remade = lambda other: part_of(stage, **{name: other})  # type: ignore[attr-defined]
    return _taking(make_program, "problem", *(["tile"] if chosen_stage.tiny_tile else []))


def _taking(function: Any, *names: str) -> Any:
    """Return the function with these parameters; its source stays the learner's."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = Signature([Parameter(name, kind) for name in names])
    return function


def with_field(made: Any) -> Any:
    """Return ``made(problem, field)`` as a function of the problem, with its stage's block."""

    @wraps(made)
    def make_kernel(problem: ConvProblem) -> Any:
        return made(problem, channel_parallel_field(problem))

    make_kernel.remade = with_field  # type: ignore[attr-defined]
    return _taking(make_kernel, "problem")


def numbered(problem: ConvProblem) -> np.ndarray:
    """Return an input whose pixels are 1, 2, 3, ..., so that each can be found again."""
    count = math.prod(problem.input_shape)
    return np.arange(1, count + 1, dtype=np.float32).reshape(problem.input_shape)
