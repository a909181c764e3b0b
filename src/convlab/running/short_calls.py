"""The short way of a call of ``conv1d`` to ``conv3d`` with PyTorch's tensors, if an equal call was
computed before.

Checks and Numba's views of arrays take ten times as long as a launch, and do not depend on the
numbers.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from convlab.ladder import Tile
from convlab.problems.problem import ConvProblem
from convlab.running import kept_plans
from convlab.running.convolution_call import Call
from convlab.running.planes_and_groups import Chosen, runs_whole

KEPT_SHORT = 256  # calls of a thread


class _Short(NamedTuple):
    """A call that was checked: what its plan is made for, and its output's shape, in 2-D and as the
    caller has it."""

    problem: ConvProblem
    stage: str
    tile: Tile | None
    output_shape: tuple[int, ...]
    shape: tuple[int, ...]


def _key(axes: int, arrays: tuple[Any, ...], asked: tuple[object, ...]) -> tuple[object, ...]:
    input, weight, bias, _ = arrays
    return axes, input.shape, weight.shape, None if bias is None else bias.shape, asked


def again(axes: int, arrays: tuple[Any, ...], asked: tuple[object, ...]) -> Any:
    """Return the convolution, if an equal call has left its plan and this call may take it; else
    None."""
    known = vars(kept_plans.kept).get("short")
    input, weight, bias, out = arrays
    if not known or out is not None:
        return None
    from convlab.running.torch_tensors import (
        TENSORS,
        current_stream,
        goes_short,
        is_whole,
        needs_gradient,
    )

    if type(input) not in TENSORS or not goes_short(gpu := input.get_device(), input, weight, bias):
        return None
    tensors = input, weight, *(() if bias is None else (bias,))
    if needs_gradient(tensors) or not all(map(is_whole, tensors)):
        return None
    try:
        found = known.get(_key(axes, arrays, asked))
    except TypeError:  # a setting that is a list has no hash
        return None
    if found is None:
        return None
    stream = current_stream(gpu)
    plan_key = gpu, stream, found.problem, found.stage, found.tile, ()
    if (ready := kept_plans.kept.plans.get(plan_key)) is None:
        return None
    kept_plans.kept.plans.move_to_end(plan_key)
    made = input.new_empty(found.output_shape)
    if found.shape == found.output_shape:
        ready(input, weight, made, bias, stream=stream)
        return made
    input, weight = input.view(found.problem.input_shape), weight.view(found.problem.weight_shape)
    ready(input, weight, made, bias, stream=stream)
    return made.view(found.shape)


def remember(
    axes: int, arrays: tuple[Any, ...], given: tuple[object, ...], call: Call, asked: Chosen
) -> None:
    """Let later calls like this one of PyTorch's tensors take the short way. A call of several
    plans, or with copies, has none."""
    stage = runs_whole(call.problem, asked)
    if call.depth or stage is None or stage.channels_last:
        return
    known = vars(kept_plans.kept).setdefault("short", {})
    if len(known) >= KEPT_SHORT:
        known.clear()
    with suppress(TypeError):  # a setting that is a list has no hash
        key = _key(axes, arrays, given)
        known[key] = _Short(
            problem=call.problem,
            stage=asked.stage,
            tile=asked.tile,
            output_shape=call.problem.output_shape,
            shape=call.shape,
        )
