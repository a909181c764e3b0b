"""Run a learner's kernel, and check it in the place of a stage's: ``run``, ``traced``, ``check``.

The checks are those of :mod:`convlab.checking`, in plain words. A check does not raise an exception
if a learner's code is wrong; the feedback says what is wrong.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import cache, wraps
from importlib import import_module
from inspect import Parameter, Signature
from time import process_time
from typing import Any
from unittest import mock

import numpy as np
from numba import cuda
from numba.cuda.core import config
from numba.cuda.core.errors import NumbaPerformanceWarning

from convlab.checking import check as checked
from convlab.checking.checker import Tensors, check_also, main_launch, program_with
from convlab.checking.launches import EVERYTHING, main_of
from convlab.checking.loading import maker
from convlab.checking.outcome import CompiledKernel
from convlab.ladder import Launch, Program, Stage, Tile, short_name, stage_named
from convlab.ladder.channels.receptive_field import channel_parallel_field
from convlab.lessons import feedback
from convlab.lessons.feedback import Feedback
from convlab.lessons.limits import SECONDS, broken, graded, limited, running
from convlab.lessons.readiness import ready
from convlab.lessons.stage_feedback import feedback_on
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.running.engines import choose
from convlab.running.engines.kernels import argument_types
from convlab.running.engines.lowering import float64_lines
from convlab.running.engines.simulator import Simulator
from convlab.simulation.rules.findings import SimulationError
from convlab.tracing import LaunchTrace, trace

# What is counted: small, so that a check takes seconds; still several blocks and slices of K.
TIMES = 50  # what a check may take, of the stage's own time on one problem: right ones take 20
PICTURE_SECONDS = 10.0  # that a launch may take, of which a picture is drawn
MODEL = ConvProblem(1, 4, 6, 16, 16, 3, padding=1)


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
        return trace(main.kernel, main.grid, main.block, *arrays).main


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

    ``part_of("m11", make_fetch=make_fetch)`` replaces the function ``make_fetch`` of the stage's
    module, or of a module whose functions that one uses. Checks and pictures take the result as
    they take a ``make_kernel``. Raises ``ValueError`` for a function that the stage does not have.
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
    if module is None:
        raise ValueError(f"{chosen_stage.name} has no function {name!r}")

    def make_program(problem: ConvProblem, tile: Tile | None = None) -> Program:
        with mock.patch.multiple(module, **parts):
            return chosen_stage.prepare(problem, tile)

    # As one writes it. Its lines are the learner's.
    make_program.__name__ = f"part_of({stage!r}, {name}={getattr(made, '__name__', made)})"
    make_program.__wrapped__ = made  # type: ignore[attr-defined]
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

    return _taking(make_kernel, "problem")


def numbered(problem: ConvProblem) -> np.ndarray:
    """Return an input whose pixels are 1, 2, 3, ..., so that each can be found again."""
    count = math.prod(problem.input_shape)
    return np.arange(1, count + 1, dtype=np.float32).reshape(problem.input_shape)


@graded
def check(
    made: Any, stage: str, *, also: Tile | ConvProblem | None = None,
    at_most: float = feedback.AS_FEW, in_order: str = "", seed: int = 0,
) -> Feedback:  # fmt: skip
    """Check ``made``, a kernel or a function ``make_kernel`` that makes one, as the stage.

    The check passes if the answers are right on small problems on which careless kernels fail, the
    strict simulator finds nothing, and the memory traffic is at most ``at_most`` times the stage's.
    ``also`` is another problem, or a second tile, because careless kernels may be right by chance
    with the stage's small tile. ``in_order`` names an array that each thread must read from one
    number to the next as often as the stage's. The kernel may take many times as long as the
    stage's. Raises ``ValueError`` for an unknown stage.
    """
    chosen_stage = stage_named(stage)
    ready(made)
    with limited(2 * SECONDS + TIMES * _seconds(chosen_stage.name)):
        try:
            found = checked(made, chosen_stage.name, seed=seed, model=MODEL)
        except ValueError as error:
            raise broken(str(error)) from error
        if found.ok and also is not None:
            answer, findings = check_also(made, chosen_stage.name, also, seed)
            answers = found.answers if answer.ok else (*found.answers, answer)
            found = replace(found, answers=answers, findings=findings)
        if found.ok and found.machine is None and not config.ENABLE_CUDASIM:
            found = replace(found, machine=_by_types(chosen_stage, made))
        told = feedback_on(found, short_name(chosen_stage.name), at_most, seed)
        if not told.passed or not in_order:
            return told
        jumps = (jumps_of(traced(one, stage, MODEL), in_order) for one in (made, None))
    row = feedback.row_of(f"jumps between reads of {in_order}", *jumps)
    return feedback.checked_by_counts(told.right, (*told.rows, row))


@cache
def _seconds(stage: str) -> float:
    """Return the seconds that the stage's own kernel takes on the hardest of the problems."""
    start = process_time()
    check_also(stage_named(stage).prepare, stage, EVERYTHING)
    return process_time() - start


def _by_types(stage: Stage, made: Any) -> CompiledKernel | None:
    """Return the check of Numba's types, for machines without the compilers."""
    both = made, stage.prepare
    programs = [program_with(stage, maker(one, stage), EVERYTHING, stage.tiny_tile) for one in both]
    yours, stages = (_float64_lines(program) for program in programs)
    return (
        CompiledKernel(float64=tuple(f"line {n}" for n in yours)) if yours and not stages else None
    )


def _float64_lines(program: Program) -> tuple[int, ...] | None:
    """Return the lines of a program's main kernel that compute in float64."""
    main = main_of(program)
    return float64_lines(main.kernel, argument_types(main, program))


def jumps_of(launch: LaunchTrace, array: str) -> int:
    """Count the block's reads of another element than the one after the thread's last read."""
    jumps, last = 0, dict[tuple[int, int], int]()
    for one in launch.requests_of(array, "load"):
        for lane, offset in zip(one.lanes, one.offsets, strict=True):
            jumps += abs(last.get((one.warp, lane), offset) - offset) > one.width
            last[one.warp, lane] = offset
    return jumps
