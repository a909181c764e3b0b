"""A process that compiles kernels for another one, :mod:`convlab.running.compile_ahead`'s.

It takes tasks on standard input and answers on standard output, as pickles, until the input ends.
It needs no GPU: a task names the one to compile for.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass

from convlab.ladder import Program, Tile
from convlab.ladder.stage import RESIDUAL
from convlab.problems.gradient import Problem
from convlab.running.chosen_stages import stage_of_layer
from convlab.running.engines import Engine
from convlab.running.engines.absent import AbsentGpu, GpuFacts
from convlab.running.engines.cubin import Cubin
from convlab.running.engines.kernels import compile_launch, key_of
from convlab.running.plans import program_for


@dataclass(frozen=True)
class Wanted:
    """A convolution or a gradient whose kernels are to be compiled, as a layer asks for it, with
    options of its stage: see :func:`convlab.plan`."""

    problem: Problem
    stage: str = "auto"
    tile: Tile | None = None
    options: tuple[str, ...] = ()

    def program(self, engine: Engine) -> Program:
        """Return what the engine's plan for it would launch."""
        stage = stage_of_layer(self.stage, engine, self.problem, RESIDUAL in self.options)
        switches = dict.fromkeys(self.options, True)
        return program_for(self.problem, stage, self.tile, engine, None, **switches)


@dataclass(frozen=True)
class CompileTask:
    """One kernel to compile: its number among ``Program.kernels``, and the key that it must
    have."""

    wanted: Wanted
    number: int
    key: str
    gpu: GpuFacts


@dataclass(frozen=True)
class CompileResult:
    """A task's kernel, or why there is none."""

    cubin: Cubin | None
    error: str = ""


def compiled(task: CompileTask) -> CompileResult:
    """Return a task's kernel. The compilers' errors, and a kernel of another key, are answers
    too."""
    try:
        engine = AbsentGpu(task.gpu)
        wanted = task.wanted
        program = wanted.program(engine)
        launch = program.kernels[task.number]
        if key_of(launch, program, task.gpu.capability) != task.key:
            return CompileResult(None, f"another process would compile another {launch.name}")
        return CompileResult(compile_launch(launch, program, task.gpu.capability))
    except Exception as error:  # whatever it is, the process that needs the kernel has to say so
        return CompileResult(None, f"{type(error).__name__}: {error}")


def main() -> None:
    """Do tasks until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's to answer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            task: CompileTask = pickle.load(sys.stdin.buffer)
            pickle.dump(compiled(task), answers)
            answers.flush()
