"""``plan``: a stage prepared for a problem on an engine, ready to be called again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np

from convlab.ladder import Stage, Tile, production_program, production_tile
from convlab.ladder.stage import (
    RESIDUAL,
    SOURCES,
    Program,
    Step,
)
from convlab.problems.arrays import Array, ArrayT
from convlab.problems.gradient import Gradient, Problem
from convlab.problems.problem import ConvProblem
from convlab.running.able_stages import check_runs
from convlab.running.chosen_stages import asked_stage, stage_for, why_no_residual
from convlab.running.engines import (
    Engine,
    Stream,
    address_of,
    check_aligned,
    choose,
)
from convlab.running.launch_arguments import arguments_of
from convlab.running.simulated_time import announced
from convlab.running.tuned import tuned_tile
from convlab.support.host_memory import check_memory
from convlab.support.values import shown


class Plan:
    """A stage prepared for a problem on an engine, made by :func:`plan`: kernels built, workspace
    allocated.

    A call only launches the kernels, so a CUDA graph can capture it (on a ``stream`` of your own).
    Calls share one workspace, so make two plans for concurrent work on two streams. With
    ``own_workspace=False`` the caller gives each call its workspace: arrays for
    ``program.buffers``. ``tile`` is the main kernel's tile, ``workspace_bytes`` the device memory
    beside the four tensors. If ``packed``, a call only exchanges addresses and calls the driver
    (``engines/packed_program.py``); if ``one_graph``, it calls the driver once.
    """

    def __init__(
        self,
        problem: Problem,
        stage: Stage,
        tile: Tile | None,
        engine: Engine,
        workspace_limit: int | None = None,
        program: Program | None = None,
        own_workspace: bool = True,
        **switches: bool,
    ) -> None:
        check_runs(stage, engine)
        self.problem = cast(ConvProblem, problem)  # a Gradient has what a plan reads
        if program is None:
            program = program_for(self.problem, stage, tile, engine, workspace_limit, **switches)
        self.stage, self.engine, self.switches = stage, engine, switches
        self.tile, self.workspace_bytes = program.tile, program.workspace_bytes
        hint = "; workspace_limit=BYTES takes fewer images at a time" if stage.in_slices else ""
        buffers = program.buffers if own_workspace else ()
        if buffers:
            check_fits(f"stage {stage.name}'s workspace", self.workspace_bytes, engine, hint)
        self._own = {buffer.name: engine.empty(buffer.shape, buffer.dtype) for buffer in buffers}
        no_bias = np.zeros(problem.out_channels, np.float32)
        self._no_bias = engine.to_device(no_bias, problem.dtype)
        self._use(program)

    @property
    def adds_residual(self) -> bool:
        """True if calls take a residual: the plan was made with ``residual=True``."""
        return self.switches.get(RESIDUAL, False)

    def __del__(self) -> None:
        """Free the arrays. Numba frees memory in batches, perhaps while a graph is captured."""
        if "_own" in vars(self):
            with suppress(Exception), self.engine.freeing():  # the driver may be gone
                self._no_bias = None
                self._own.clear()

    def _use(self, program: Program) -> None:
        """Make the calls run that program, on this plan's workspace."""
        problem, self.program = self.problem, program
        self._starts = [self.engine.build(launch, program) for launch in program.launches]
        shapes = {
            "input": problem.input_shape,
            "weight": problem.weight_shape,
            "bias": (problem.out_channels,),
            "output": problem.output_shape,
        }
        if self.adds_residual:
            shapes[RESIDUAL] = problem.output_shape
        self._together = together = self.engine.pack(program, shapes, self._own)
        self.packed, self.one_graph = bool(together), bool(together and together.one_graph)
        self._no_bias_address = address_of(self._no_bias) if self.packed else 0

    def __call__(
        self,
        input: Array,
        weight: Array,
        out: ArrayT,
        bias: Array | None = None,
        *,
        residual: Array | None = None,
        stream: Stream = None,
        workspace: Sequence[Array] = (),
    ) -> ArrayT:
        """Write the convolution of ``input`` and ``weight`` to ``out`` and return ``out``.

        All are the engine's arrays: of the problem's ``dtype``, C-contiguous, starting at a
        multiple of 16 bytes, of the problem's ``input_shape``, ``weight_shape``,
        ``(out_channels,)`` and ``output_shape``. A plan made with ``residual=True`` takes a
        ``residual`` like ``out``, which may be ``out`` itself, and adds it to the sums before their
        ReLU and their one rounding; raises ``TypeError`` without one, or if another plan is given
        one.
        On a GPU they may be of any library with ``__cuda_array_interface__``, and the call returns
        before the work is done. ``stream`` is None for the default stream, a stream of any library
        with ``__cuda_stream__``, or a handle. ``conv2d`` checks arrays; this call does not. A call
        of more than half a minute on a simulator says on standard error how long it will take, and
        then shows its progress.

        On a GPU only: raises ``TypeError`` for a wrong stream or, if ``packed``, an array in the
        host's memory, ``ValueError`` for a misaligned array, ``RuntimeError`` if another GPU is
        current or the driver refuses a launch, with the driver's error.
        """
        added = self._added(residual)
        if self._together is not None:
            bias = self._no_bias if bias is None else bias
            self._together(input, weight, bias, out, *added, *workspace, stream=stream)
            return out
        steps = self.steps(input, weight, out, bias, workspace, residual)
        with announced(self.problem, self.stage, self.tile, self.engine):
            for step in steps:
                step(stream)
        return out

    def start_at(
        self,
        input: int,
        weight: int,
        bias: int | None,
        output: int,
        workspace: Sequence[int] = (),
        *,
        stream: int = 0,
    ) -> None:
        """Start a plan that is ``packed`` with arrays at these addresses of the GPU's memory, on
        the stream of that handle. This is a call for those who know the addresses: finding them
        takes longer than the launch. The plan adds no residual."""
        assert self._together is not None, "the plan is not packed"
        assert not self.adds_residual, "the plan adds a residual, which has no address here"
        bias = self._no_bias_address if bias is None else bias
        self._together.at((input, weight, bias, output, *workspace), stream)

    def steps(
        self,
        input: Array,
        weight: Array,
        out: Array,
        bias: Array | None = None,
        workspace: Sequence[Array] = (),
        residual: Array | None = None,
    ) -> list[Callable[[Stream], None]]:
        """Return for each step a function that takes a stream, in the order of
        ``program.launches``. On a GPU, raises ``TypeError`` for an array in the host's memory and
        ``ValueError`` for a misaligned one; the functions raise ``RuntimeError`` if another GPU is
        current."""
        given = {"input": input, "weight": weight, "bias": bias, "output": out}
        given |= {RESIDUAL: residual}
        lent = zip(self.program.buffers, workspace, strict=False)
        given |= {buffer.name: array for buffer, array in lent}
        for name, array in given.items():
            if array is not None:
                self.engine.check_array(name, array)
        bound = self.bound(input, weight, out, bias, workspace, residual)
        return [partial(start, got) for start, (_, got) in zip(self._starts, bound, strict=True)]

    def bound(
        self,
        input: Array,
        weight: Array,
        out: Array,
        bias: Array | None = None,
        workspace: Sequence[Array] = (),
        residual: Array | None = None,
    ) -> list[tuple[Step, list[Any]]]:
        """Return each step, in order, with the arrays that it gets."""
        bias = self._no_bias if bias is None else bias
        arrays = {"input": input, "weight": weight, "bias": bias, "output": out}
        arrays |= dict(zip([RESIDUAL], self._added(residual), strict=False))
        arrays = {name: self.engine.for_kernels(array) for name, array in arrays.items()}
        lent = zip(self.program.buffers, workspace, strict=False)
        arrays |= self._own | {buffer.name: array for buffer, array in lent}
        return [(step, arguments_of(step, arrays)) for step in self.program.launches]

    def _added(self, residual: Array | None) -> tuple[Array, ...]:
        """Return what a call adds. Raises ``TypeError`` where there is no residual for a plan that
        adds one, or one for another plan."""
        if self.adds_residual:
            if residual is None:
                raise TypeError("residual is None: a plan with residual=True must be given one")
            return (residual,)
        if residual is not None:
            rule = "it must be None unless the plan is made with residual=True"
            raise TypeError(f"residual is {type(residual).__name__}: {rule}")
        return ()

    def for_weight(
        self, weight: Array, bias: Array | None = None, *, stream: Stream = None
    ) -> PlanForWeight:
        """A plan called as ``(input, out, *, residual=None, stream=None)`` for inference, where
        weight and bias are constant: the layout transform of the filter runs now, once, on
        ``stream``.

        The new plan has a workspace of its own and keeps ``weight`` and ``bias``. If the weight
        changes later, a stage that transforms it still computes with the numbers of this call. The
        transform has ended when the call returns, so any stream may follow. No graph captures it.

        On a GPU, raises ``ValueError`` for a misaligned weight or bias, ``TypeError`` for one in
        the host's memory, before anything is launched.
        """
        for name, array in (("weight", weight), ("bias", bias)):
            if self.engine.is_gpu and array is not None:
                check_aligned(name, address_of(array))
        program = self.program
        own = Plan(self.problem, self.stage, self.tile, self.engine, None, program, **self.switches)
        given = {"weight": weight, "bias": bias}
        arrays = {name: self.engine.for_kernels(array) for name, array in given.items()} | own._own
        # A step depends on the weight alone where it takes neither input nor output, and no buffer
        # of an earlier step that does.
        others, rest = {"input", "output", RESIDUAL}, []
        for step, start in zip(program.launches, own._starts, strict=True):
            names = {str(argument) for argument in step.arguments}
            if others.isdisjoint(names):
                start(arguments_of(step, arrays), stream)
            else:
                others |= names - set(SOURCES)
                rest.append(step)
        if len(rest) < len(program.launches):
            self.engine.synchronize()
        own._use(replace(program, launches=tuple(rest)))
        return PlanForWeight(own, weight, bias)

    def __repr__(self) -> str:
        tile = "" if self.tile is None else f", tile {self.tile}"
        return f"Plan({self.problem}: {self.stage.name}{tile} on {self.engine.name})"


@dataclass(frozen=True)
class PlanForWeight:
    """A plan for one weight and bias, from :meth:`Plan.for_weight`; ``plan`` has the other
    steps."""

    plan: Plan
    weight: Array
    bias: Array | None

    def __call__(
        self,
        input: Array,
        out: ArrayT,
        *,
        residual: Array | None = None,
        stream: Stream = None,
    ) -> ArrayT:
        """Write the convolution of ``input`` to ``out`` and return ``out``, as a plan does."""
        return self.plan(input, self.weight, out, self.bias, residual=residual, stream=stream)


def plan(
    problem: Problem,
    stage: str = "auto",
    tile: Tile | None = None,
    engine: str = "auto",
    *,
    precision: str | None = None,
    workspace_limit: int | None = None,
    **switches: bool,
) -> Plan:
    """Prepare ``stage`` for ``problem``: build its kernels and allocate its workspace.

    ``stage="auto"`` is m01 on a simulator and ``grouped`` for a problem with groups. On a GPU it is
    m15, m11 on a GPU of compute capability below 8.0, and on a GPU of compute capability 9.0 the
    faster of t06 and m15 by their models (``ladder/stage_choice.py``). For numbers of 16 bits, and
    with ``precision="tf32"``, which multiplies float32 numbers in TF32 (t07 rounds them, h05 and
    h09 cut them), it is ``chosen_stages.reduced_stage``'s; ``precision="float32"`` and None keep
    float32's accuracy. For a :class:`~convlab.problems.gradient.Gradient`, the stage is "g01",
    "g02", "g03", or a stage of the ladder, through which g02 computes; "auto" is g01 on a
    simulator, and on a GPU g03 where it runs, else g02. ``tile=None`` is the stage's tiny tile on a
    simulator. On a GPU it is the tile that ``convlab tune`` remembered for this problem, GPU and
    code if all switches have their defaults, else the stage's production tile
    (``ladder/tile_heuristic.py``). ``workspace_limit``, in bytes, makes a stage with
    ``Stage.in_slices`` take fewer images at a time. ``switches`` turn off techniques
    (``Stage.switches``) or ask for more (``Stage.options``), such as ``relu=True``, or
    ``residual=True`` for calls that add a tensor.

    Raises ``ValueError`` for an unknown stage, engine or switch, a tile that does not suit the
    stage, or a limit that one image's workspace exceeds; ``EngineUnavailable`` if the engine cannot
    run, or its GPU cannot run the stage; ``MemoryError`` with the size if the workspace does not
    fit. It raises before anything is launched.
    """
    chosen = choose(engine)
    check_asked(problem, tile)
    adds = switches.get(RESIDUAL) is True
    chosen_stage = stage_for(asked_stage(stage, precision, problem.dtype), chosen, problem, adds)
    if "whole_sums" in switches:
        raise ValueError("whole_sums is split_k now: give split_k=False to have no split-K")
    for name, value in switches.items():
        if name not in chosen_stage.switches + chosen_stage.options:
            if name == RESIDUAL:
                raise ValueError(why_no_residual(chosen_stage, value))
            known = ", ".join(chosen_stage.switches + chosen_stage.options) or "none"
            raise ValueError(f"switch {shown(name)} is not one of {chosen_stage.name}'s: {known}")
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {shown(value)}: a switch must be True or False")
    if tile is not None and chosen_stage.tiny_tile is None:
        raise ValueError(
            f"tile is {tile}: stage {chosen_stage.name} has no tiles, so it must be None"
        )
    if workspace_limit is not None and type(workspace_limit) is not int:
        raise TypeError(f"workspace_limit is {shown(workspace_limit)}: it must be an int or None")
    if workspace_limit is not None and abs(workspace_limit) >= 2**63:
        raise ValueError(f"workspace_limit is {shown(workspace_limit)}: it must be below 2**63")
    if workspace_limit is not None and not chosen_stage.in_slices:
        raise ValueError(
            f"workspace_limit is {workspace_limit}: stage {chosen_stage.name} does all images at "
            "once, so it must be None"
        )
    return Plan(problem, chosen_stage, tile, chosen, workspace_limit, None, **switches)


def check_asked(problem: object, tile: object) -> None:
    """Raise ``TypeError`` unless they are a problem, and a tile or None."""
    if not isinstance(problem, ConvProblem | Gradient):
        raise TypeError(f"problem is {shown(problem)}: it must be a ConvProblem or a Gradient")
    if not isinstance(tile, Tile | None):
        raise TypeError(f"tile is {shown(tile)}: it must be a Tile or None")


def program_for(
    problem: Problem,
    stage: Stage,
    tile: Tile | None,
    engine: Engine,
    workspace_limit: int | None = None,
    **switches: bool,
) -> Program:
    """Return the stage's program at ``tile``. None is the tiny tile on a simulator; on a GPU it is
    the tile that tuning remembered, else the stage's production tile. The last programs are kept,
    so that a repeated convolution is not compiled again."""
    problem = cast(ConvProblem, problem)  # a Gradient has what stages read
    if tile is None:
        tile = stage.tiny_tile
        if engine.is_gpu:
            tile = _tuned_tile(problem, stage, engine, switches)
    return _prepared(
        stage, problem, tile, engine.sm_count(), workspace_limit, tuple(sorted(switches.items()))
    )


@lru_cache(maxsize=64)
def _prepared(
    stage: Stage,
    problem: ConvProblem,
    tile: Tile | None,
    sm_count: int | None,
    workspace_limit: int | None,
    switches: tuple[tuple[str, bool], ...],
) -> Program:
    return production_program(
        stage, problem, tile, sm_count, workspace_limit=workspace_limit, **dict(switches)
    )


def _tuned_tile(
    problem: ConvProblem, stage: Stage, engine: Engine, switches: Mapping[str, bool]
) -> Tile | None:
    """Return the tile that ``convlab tune`` remembered; None where there is none. Tiles are tuned
    with a stage's defaults, so that plans with other options do not take them."""
    plain = all(value == (name in stage.switches) for name, value in switches.items())
    return tuned_tile(problem, stage, engine.device) if plain else None


def tile_by_rule(
    problem: ConvProblem, stage: Stage, engine: Engine, **switches: bool
) -> Tile | None:
    """Return the stage's production tile on the engine's GPU, without regard to remembered
    tiles."""
    return production_tile(stage, problem, engine.sm_count(), **switches)


def with_tile(stage: Stage, tile: Tile | None) -> Stage:
    """The stage with that tile as its tiny and model tile; None leaves both as they are."""
    if tile is None or stage.tiles is None:
        return stage
    return replace(stage, tiles=replace(stage.tiles, tiny=tile, model=tile))


def check_fits(what: str, nbytes: int, engine: Engine, hint: str = "") -> None:
    """Raise ``MemoryError`` with the sizes when the engine has less memory than ``nbytes``."""
    check_memory(what, nbytes, engine.free_bytes(), engine.device, hint)
