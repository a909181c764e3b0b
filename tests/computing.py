"""Runs stages for the tests, and checks what they compute."""

from __future__ import annotations

import numpy as np
from strategies import Tensors

from convlab import Stage, Tile
from convlab.ladder import Program, allowances
from convlab.problems.oracle import CheckResult, Oracle
from convlab.problems.problem import ConvProblem
from convlab.running.engines import Engine
from convlab.running.plans import Plan


def run_and_check(
    engine: Engine,
    problem: ConvProblem,
    stage: Stage,
    tensors: Tensors,
    tile: Tile | None = None,
    program: Program | None = None,
    **switches: bool,
) -> CheckResult:
    output = computed(stage, engine, problem, tensors, tile, program, **switches)
    return Oracle(problem, *tensors).check(output, **allowances(stage, problem))


def computed(
    stage: Stage,
    engine: Engine,
    problem: ConvProblem,
    tensors: Tensors,
    tile: Tile | None = None,
    program: Program | None = None,
    **switches: bool,
) -> np.ndarray:
    """Return what a stage, or a program of it, writes to an output that was poisoned with NaN."""
    unwritten = np.full(problem.output_shape, np.nan, np.float32)
    output = engine.to_device(unwritten, problem.dtype)
    input, weight, bias = (
        None if tensor is None else engine.to_device(tensor, problem.dtype) for tensor in tensors
    )
    Plan(problem, stage, tile, engine, program=program, **switches)(input, weight, output, bias)
    return engine.to_host(output, problem.dtype)
