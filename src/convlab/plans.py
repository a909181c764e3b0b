"""``plan``: a stage prepared for a problem on an engine, ready to be called again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from convlab.engines import Engine, choose
from convlab.problem import ConvProblem
from convlab.stages import Stage, Tile, stage_named
from convlab.stages.base import Argument, Flat, Launch, Program

# What "auto" means until the best stage is chosen from the problem: the end of the ladder on a
# GPU; on a simulator, where every thread costs, the stage with the fewest and simplest.
AUTO_STAGE_GPU = "s11_im2win_full"
AUTO_STAGE_SIMULATOR = "s01_direct"


class Plan:
    """A stage prepared for a problem on an engine: kernels built, workspace allocated.

    Calling it launches the kernels and does nothing else, so that it can be captured in a CUDA
    graph (on a ``stream`` of your own: CUDA does not capture the default one). Its workspace is
    its own, so one plan must not run on two streams at once. Made by :func:`plan`.

    ``tile`` is the one its main kernel was made with, ``workspace_bytes`` the device memory that
    the stage needs beside input, weight, bias and output.
    """

    def __init__(
        self,
        problem: ConvProblem,
        stage: Stage,
        tile: Tile | None,
        engine: Engine,
        **switches: bool,
    ) -> None:
        program = program_for(problem, stage, tile, engine, **switches)
        self._make(program, problem, stage, engine, switches)

    @classmethod
    def of(cls, program: Program, problem: ConvProblem, stage: Stage, engine: Engine) -> Plan:
        """A plan of that very program: ``stage``'s, or one with somebody's kernel in it."""
        made = cls.__new__(cls)
        made._make(program, problem, stage, engine, {})
        return made

    def _make(
        self,
        program: Program,
        problem: ConvProblem,
        stage: Stage,
        engine: Engine,
        switches: dict[str, bool],
    ) -> None:
        self.problem, self.stage, self.engine, self.switches = problem, stage, engine, switches
        self.program = program
        self.tile, self.workspace_bytes = self.program.tile, self.program.workspace_bytes
        check_fits(f"stage {stage.name}'s workspace", self.workspace_bytes, engine)
        self._starts = [engine.build(launch, self.program) for launch in self.program.launches]
        self._own = {buffer.name: engine.empty(buffer.shape) for buffer in self.program.buffers}
        self._no_bias = engine.to_device(np.zeros(problem.out_channels, np.float32))

    def __call__(
        self, input: Any, weight: Any, out: Any, bias: Any = None, *, stream: Any = None
    ) -> Any:
        """Write the convolution of ``input`` and ``weight`` to ``out`` and return ``out``.

        All are the engine's arrays: float32, C-contiguous, starting at a multiple of 16 bytes, of
        the problem's ``input_shape``, ``weight_shape``, ``(out_channels,)`` and ``output_shape``.
        Nothing is checked here (``conv2d`` checks). On a GPU the call returns before the work is
        done.
        """
        for step in self.steps(input, weight, out, bias):
            step(stream)
        return out

    def steps(
        self, input: Any, weight: Any, out: Any, bias: Any = None
    ) -> list[Callable[[Any], None]]:
        """One function of a stream for each launch, in the order of ``program.launches``."""
        launches = self.bound(input, weight, out, bias)
        return [
            partial(start, arrays)
            for start, (_, arrays) in zip(self._starts, launches, strict=True)
        ]

    def bound(
        self, input: Any, weight: Any, out: Any, bias: Any = None
    ) -> list[tuple[Launch, list[Any]]]:
        """Each launch with the arrays that its kernel gets, in order."""
        bias = self._no_bias if bias is None else bias
        arrays = {"input": input, "weight": weight, "bias": bias, "output": out, **self._own}
        return [
            (launch, [_pick(argument, arrays) for argument in launch.arguments])
            for launch in self.program.launches
        ]

    def __repr__(self) -> str:
        tile = "" if self.tile is None else f", tile {self.tile}"
        return f"Plan({self.problem}: {self.stage.name}{tile} on {self.engine.name})"


def plan(
    problem: ConvProblem,
    stage: str = "auto",
    tile: Tile | None = None,
    engine: str = "auto",
    **switches: bool,
) -> Plan:
    """Prepare ``stage`` for ``problem``: build its kernels and allocate its workspace.

    ``tile=None`` takes the stage's production tile on a GPU and its tiny one on a simulator.
    ``switches`` turn off techniques of stages that have any (``Stage.switches``).

    Raises ``ValueError`` for an unknown stage, engine or switch or a tile that does not suit the
    stage, ``EngineUnavailable`` where the engine cannot run, ``MemoryError`` with the size where
    the workspace does not fit; all before anything is launched.
    """
    chosen = choose(engine)
    if not isinstance(problem, ConvProblem):
        raise TypeError(f"problem is {problem!r}: it must be a ConvProblem")
    if tile is not None and not isinstance(tile, Tile):
        raise TypeError(f"tile is {tile!r}: it must be a Tile or None")
    if stage == "auto":
        stage = AUTO_STAGE_GPU if chosen.is_gpu else AUTO_STAGE_SIMULATOR
    step = stage_named(stage)
    for name, value in switches.items():
        if name not in step.switches:
            known = ", ".join(step.switches) or "none"
            raise ValueError(f"switch {name!r} is not one of {step.name}'s: {known}")
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}: a switch must be True or False")
    if tile is not None and step.tiny_tile is None:
        raise ValueError(f"tile is {tile}: stage {step.name} has no tiles, so it must be None")
    return Plan(problem, step, tile, chosen, **switches)


def program_for(
    problem: ConvProblem, stage: Stage, tile: Tile | None, engine: Engine, **switches: bool
) -> Program:
    """The stage's program at ``tile``, or where that is None at the tile that suits the engine.

    The last ones made are kept, so that a convolution done again is not compiled again.
    """
    tile = tile or (stage.production_tile(problem) if engine.is_gpu else stage.tiny_tile)
    return _prepared(problem, stage, tile, tuple(sorted(switches.items())))


@lru_cache(maxsize=64)
def _prepared(
    problem: ConvProblem, stage: Stage, tile: Tile | None, switches: tuple[tuple[str, bool], ...]
) -> Program:
    return stage.prepare(problem, tile, **dict(switches))


def _pick(argument: Argument, arrays: dict[str, Any]) -> Any:
    if not isinstance(argument, Flat):
        return arrays[argument]
    array = arrays[argument.name]
    if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
        raise ValueError(f"{argument.name} is not C-contiguous: a plan's arrays must be")
    return array.reshape(-1)


def check_fits(what: str, nbytes: int, engine: Engine) -> None:
    """Raise ``MemoryError`` with the sizes when the engine has less memory than ``nbytes``."""
    free = engine.free_bytes()
    if free is not None and nbytes > free:
        raise MemoryError(
            f"{what} needs {_size(nbytes)}, but {_size(free)} are all there is on {engine.device}"
        )


def _size(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"
