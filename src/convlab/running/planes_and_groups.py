"""A convolution of one, two or three axes and of any groups, by plans of 2-D convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from convlab.ladder import Stage, Tile
from convlab.ladder.stage import RESIDUAL
from convlab.problems.arrays import is_whole, with_channels_last
from convlab.problems.problem import ConvProblem
from convlab.running.chosen_stages import stage_for
from convlab.running.convolution_call import Call
from convlab.running.engines import Engine
from convlab.running.kept_plans import kept_plan
from convlab.running.plans import Plan
from convlab.running.simulated_time import announced

ALL = slice(None)  # a whole axis: Numba's device arrays take no ellipsis


class Chosen(NamedTuple):
    """The stage, tile and engine that a call asks for, the GPU's stream, 0 by default, and the
    stage's options (``relu``, ``residual``)."""

    stage: str
    tile: Tile | None
    engine: Engine
    stream: int = 0
    options: tuple[str, ...] = ()

    @property
    def adds_residual(self) -> bool:
        """True if the call adds a tensor."""
        return RESIDUAL in self.options

    def put(self, target: Any, key: Any, value: Any) -> Any:
        """``target[key] = value`` of the engine's arrays, on the stream; the target."""
        if self.stream:
            from numba import cuda

            target.setitem(key, value, cuda.external_stream(self.stream))
        else:
            target[key] = value
        return target


def convolve_arrays(call: Call, tensors: list[Any], out: Any, asked: Chosen) -> None:
    """Write the convolution of the engine's arrays, in the order of ``READ_ONLY``, to ``out``. They
    are contiguous, or of four axes and for a stage whose channels are last."""
    (input, weight, bias, residual), problem = tensors, call.problem
    filters = _shaped(weight, problem.weight_shape)
    if not call.depth:
        images, maps = _shaped(input, problem.input_shape), _shaped(out, problem.output_shape)
        if residual is not None:
            residual = _shaped(residual, problem.output_shape)
        _run_groups(problem, (images, filters, bias, residual), maps, asked)
        return
    # All images' planes at once: [N_i, C_i, D_i, H_i, W_i] to [N_i, D_o, C_i, D_f, H_i, W_i].
    windows = call.windows
    D_f, stride, dilation = windows.kernel[0], windows.stride[0], windows.dilation[0]
    before = windows.padding[0][0]  # planes of zeros
    D_i, D_o = call.depth, call.shape[-3]
    N_i, C_i, size = problem.N_i // D_o, problem.C_i // D_f, (problem.H_i, problem.W_i)
    volume = input.reshape((N_i, C_i, D_i, *size))
    seen = asked.engine.empty((N_i, D_o, C_i, D_f, *size), problem.dtype)
    for d in range(D_o):
        for tap in range(D_f):
            plane = d * stride + tap * dilation - before
            inside = 0 <= plane < D_i
            zero = np.zeros((), seen.dtype)[()]
            asked.put(seen, (ALL, d, ALL, tap), volume[:, :, plane] if inside else zero)
    maps = asked.engine.empty(problem.output_shape, problem.dtype)
    _run_groups(problem, (seen.reshape(problem.input_shape), filters, bias, None), maps, asked)
    planes = maps.reshape((N_i, D_o, *maps.shape[1:]))
    volume = out.reshape((N_i, problem.C_o, D_o, *problem.output_size))
    for d in range(D_o):
        asked.put(volume, (ALL, ALL, d), planes[:, d])


def _shaped(array: Any, shape: tuple[int, ...]) -> Any:
    return array if tuple(array.shape) == shape else array.reshape(shape)


def runs_whole(problem: ConvProblem, asked: Chosen) -> Stage | None:
    """Return the stage that computes all groups of a call in one plan; None where there is none."""
    stage = stage_for(asked.stage, asked.engine, problem, asked.adds_residual)
    return stage if problem.groups == 1 or stage.grouped else None


def _run_groups(problem: ConvProblem, tensors: tuple[Any, ...], out: Any, asked: Chosen) -> None:
    """Run all groups by one plan, or one after the other where the stage has none."""
    groups = problem.groups
    if runs_whole(problem, asked):
        _run(_plan(problem, asked), tensors, out, asked)
        return
    C_i, C_o = problem.C_i // groups, problem.C_o // groups
    one = replace(problem, in_channels=C_i, out_channels=C_o, groups=1)
    ready, empty = _plan(one, asked), asked.engine.empty
    shapes = one.input_shape, one.weight_shape, (C_o,), one.output_shape
    pairs = zip(tensors, shapes, strict=True)
    own: list[Any] = [
        None if tensor is None else empty(shape, one.dtype) for tensor, shape in pairs
    ]
    part = empty(one.output_shape, one.dtype)
    with announced(ready.problem, ready.stage, ready.tile, ready.engine, calls=groups):
        for g in range(groups):
            channels, filters = slice(g * C_i, (g + 1) * C_i), slice(g * C_o, (g + 1) * C_o)
            keys = (ALL, channels), filters, filters, (ALL, filters)
            for target, tensor, key in zip(own, tensors, keys, strict=True):
                if tensor is not None:
                    asked.put(target, ALL, tensor[key])
            _run(ready, tuple(own), part, asked)
            asked.put(out, (ALL, filters), part)


def _plan(problem: ConvProblem, asked: Chosen) -> Plan:
    """Return the plan for a problem, in the layout of its stage."""
    stage = stage_for(asked.stage, asked.engine, problem, asked.adds_residual)
    if stage.channels_last:
        problem = replace(problem, channels_last=True)
    return kept_plan(problem, *asked)


def _run(ready: Plan, tensors: tuple[Any, ...], out: Any, asked: Chosen) -> None:
    """Run a plan on arrays with the channels as second axis. For a stage whose channels are last,
    arrays that do not lie so in memory are copied, and so is the result."""
    input, weight, bias, residual = tensors
    problem, stream = ready.problem, asked.stream or None
    if not problem.channels_last:
        ready(input, weight, out, bias, residual=residual, stream=stream)
        return

    def copied(view: Any) -> Any:
        return asked.put(asked.engine.empty(tuple(view.shape), problem.dtype), ALL, view)

    views = map(with_channels_last, (input, weight))
    images, filters = (view if is_whole(view) else copied(view) for view in views)
    target = with_channels_last(out)
    made = target
    if not is_whole(target):
        made = asked.engine.empty(problem.output_shape, problem.dtype)
    added = None
    if residual is not None:
        view = with_channels_last(residual)
        added = view if is_whole(view) else copied(view)
    ready(images, filters, made, bias, residual=added, stream=stream)
    if made is not target:
        asked.put(target, ALL, made)
