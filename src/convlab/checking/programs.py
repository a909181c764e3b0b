"""A stage's program with a checked kernel in its main kernel's place, and what it is given."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import numpy as np

from convlab.checking.launches import main_of
from convlab.checking.loading import Maker, title_of
from convlab.ladder import Launch, Program, Stage, Tile
from convlab.problems.problem import ConvProblem
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan

Tensors = tuple[np.ndarray, np.ndarray, np.ndarray]
# Input, weight, output and bias, in the order in which a plan takes them.
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def main_launch(
    stage: Stage, program: Program, problem: ConvProblem, tensors: Tensors, output: np.ndarray
) -> tuple[Launch, list[Any]]:
    """The last launch of a program and its arrays, after the layout transforms have run."""
    ready = Plan(problem, stage, program.tile, Simulator(strict=False), program=program)
    input, weight, bias = tensors
    for start in ready.steps(input, weight, output, bias)[:-1]:
        start(None)
    _, arrays = ready.bound(input, weight, output, bias)[-1]
    return main_of(program), arrays


def program_with(
    stage: Stage, make: Maker, problem: ConvProblem, tile: Tile | None, **options: object
) -> Program:
    """The stage's program with the kernel in the main kernel's place, both with those options.
    Raises ``ValueError`` where it takes other arguments."""
    kernel = make(problem, tile, **options)
    if isinstance(kernel, Program):
        return replace(kernel, tensors=problem.number_type.in_kernels)
    program = stage.prepare(problem, tile, **options)
    main = main_of(program)
    own, theirs = main.kernel, inspect.signature(kernel.py_func).parameters
    # A later parameter has a default, which it keeps.
    ours = [*inspect.signature(own.py_func).parameters][: len(main.arguments)]
    required = sum(one.default is one.empty for one in theirs.values())
    if not required <= len(ours) <= len(theirs):
        raise ValueError(
            f"{title_of(kernel)} takes ({', '.join(theirs)}): like {stage.name}'s kernel it must "
            f"take ({', '.join(ours)})"
        )
    steps = [
        replace(step, kernel=kernel) if isinstance(step, Launch) and step.kernel is own else step
        for step in program.launches
    ]
    return replace(program, launches=tuple(steps))


def copies_of(problem: ConvProblem, tensors: Tensors) -> Arrays:
    """Return copies of input and weight, an output of NaN, and a copy of the bias."""
    input, weight, bias = (tensor.copy() for tensor in tensors)
    return input, weight, np.full(problem.output_shape, np.nan, input.dtype), bias


def residual_of(problem: ConvProblem) -> np.ndarray:
    """Return the tensor that a kernel is to add to the sums, of numbers as large as these."""
    rng = np.random.default_rng(problem.K)
    drawn = rng.standard_normal(problem.output_shape, dtype=np.float32)
    return (math.sqrt(problem.K) * drawn).astype(problem.number_type.numpy)
