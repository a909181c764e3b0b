"""A convolution of one, two or three axes and of any groups, by plans of 2-D convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from convlab.ladder import Tile, stage_named
from convlab.problems.problem import ConvProblem
from convlab.running.convolution_call import Call
from convlab.running.engines import Engine
from convlab.running.kept_plans import kept_plan
from convlab.running.simulated_time import announced

ALL = slice(None)  # a whole axis: Numba's device arrays take no ellipsis


class Chosen(NamedTuple):
    """The stage, tile and engine that a call asks for, and the GPU's stream, 0 by default."""

    stage: str
    tile: Tile | None
    engine: Engine
    stream: int = 0

    def put(self, target: Any, key: Any, value: Any) -> Any:
        """``target[key] = value`` of the engine's arrays, on the stream; the target."""
        if self.stream:
            from numba import cuda

            target.setitem(key, value, cuda.external_stream(self.stream))
        else:
            target[key] = value
        return target


def convolve_arrays(call: Call, tensors: list[Any], out: Any, asked: Chosen) -> None:
    """Write the convolution of the engine's contiguous arrays to ``out``."""
    (input, weight, bias), problem = tensors, call.problem
    filters = weight.reshape(problem.weight_shape)
    if not call.depth:
        images, maps = input.reshape(problem.input_shape), out.reshape(problem.output_shape)
        _run_groups(problem, (images, filters, bias), maps, asked)
        return
    # All images' planes at once: [N_i, C_i, D_i, H_i, W_i] to [N_i, D_o, C_i, D_f, H_i, W_i].
    windows = call.windows
    D_f, stride, dilation = windows.kernel[0], windows.stride[0], windows.dilation[0]
    before = windows.padding[0][0]  # planes of zeros
    D_i, D_o = call.depth, call.shape[-3]
    N_i, C_i, size = problem.N_i // D_o, problem.C_i // D_f, (problem.H_i, problem.W_i)
    volume = input.reshape((N_i, C_i, D_i, *size))
    seen = asked.engine.empty((N_i, D_o, C_i, D_f, *size))
    for d in range(D_o):
        for tap in range(D_f):
            plane = d * stride + tap * dilation - before
            inside = 0 <= plane < D_i
            asked.put(seen, (ALL, d, ALL, tap), volume[:, :, plane] if inside else np.float32(0))
    maps = asked.engine.empty(problem.output_shape)
    _run_groups(problem, (seen.reshape(problem.input_shape), filters, bias), maps, asked)
    planes = maps.reshape((N_i, D_o, *maps.shape[1:]))
    volume = out.reshape((N_i, problem.C_o, D_o, *problem.output_size))
    for d in range(D_o):
        asked.put(volume, (ALL, ALL, d), planes[:, d])


def _run_groups(problem: ConvProblem, tensors: tuple[Any, ...], out: Any, asked: Chosen) -> None:
    """Run all groups by one plan, or one after the other where the stage has none."""
    groups, stream = problem.groups, asked.stream or None
    if groups == 1 or asked.stage == "auto" or stage_named(asked.stage).grouped:
        ready, (input, weight, bias) = kept_plan(problem, *asked), tensors
        ready(input, weight, out, bias, stream=stream)
        return
    C_i, C_o = problem.C_i // groups, problem.C_o // groups
    ready = kept_plan(replace(problem, in_channels=C_i, out_channels=C_o, groups=1), *asked)
    one, empty = ready.problem, asked.engine.empty
    shapes = one.input_shape, one.weight_shape, (C_o,)
    pairs = zip(tensors, shapes, strict=True)
    own: list[Any] = [None if tensor is None else empty(shape) for tensor, shape in pairs]
    part = empty(one.output_shape)
    with announced(ready.problem, ready.stage, ready.tile, ready.engine, calls=groups):
        for g in range(groups):
            channels, filters = slice(g * C_i, (g + 1) * C_i), slice(g * C_o, (g + 1) * C_o)
            keys = (ALL, channels), filters, filters
            for target, tensor, key in zip(own, tensors, keys, strict=True):
                if tensor is not None:
                    asked.put(target, ALL, tensor[key])
            ready(own[0], own[1], part, own[2], stream=stream)
            asked.put(out, (ALL, filters), part)
