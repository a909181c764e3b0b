"""The short way of a layer's call on a GPU, for shapes and settings that were computed before.

PyTorch's way to a custom operator in Python and this package's checks take ten times as long as the
launch, and nothing of that depends on the numbers. So the first call goes through the operator, and
later ones with such tensors come here: some comparisons, the memory for the output, the launch.

The operator is needed again wherever somebody looks at operators: inside PyTorch's compiler,
tracers, transforms and dispatch modes, and for derivatives of derivatives.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from convlab.problems.gradient import Gradient
from convlab.problems.settings import IntOrEach, Padding, windows_of
from convlab.running.engines import Engine, choose
from convlab.running.plans import Plan
from convlab.running.torch_asked import Asked, asked_for
from convlab.running.torch_derivatives import Context, Convolution, Gradients, Of
from convlab.running.torch_operators import ready_plan, settings_of, whole
from convlab.running.torch_tensors import (
    OF_BUFFERS,
    TENSORS,
    current_stream,
    goes_short,
    is_whole,
    needs_gradient,
)

LayerSettings = tuple[IntOrEach, Padding, IntOrEach, int, str, str]
Key = tuple[object, ...]


class _Context(Context, Protocol):
    """The object in which PyTorch keeps what a derivative needs."""

    seen: Seen


class _Ready:
    """A plan, and the shapes of the arrays that PyTorch allocates for its calls."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.output_shape = plan.problem.output_shape
        buffers = plan.program.buffers
        self.workspace = [(buffer.shape, OF_BUFFERS[buffer.dtype]) for buffer in buffers]


class Seen:
    """A layer's convolution of tensors of certain shapes on one GPU, and its two gradients."""

    def __init__(self, axes: int, asked: Asked, index: int, engine: Engine) -> None:
        self.axes, self.asked, self.index, self._engine = axes, asked, index, engine
        self._problem = asked.problem()
        self._ready: dict[Of, _Ready] = {}

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution, with its derivatives where they are needed."""
        if self.axes == 1:
            input, weight = input.unsqueeze(2), weight.unsqueeze(2)
        tensors = (input, weight) if bias is None else (input, weight, bias)
        with _named("convlab::conv2d"):
            output: Tensor = (
                _apply(input, weight, bias, self)
                if needs_gradient(tensors)
                else self.compute(None, input, weight, bias)
            )
        return output.squeeze(2) if self.axes == 1 else output

    def compute(self, of: Of, first: Tensor, second: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the convolution or one of its gradients, of tensors on the current GPU."""
        ready = self._ready.get(of) or self._made_ready(of)
        index = self.index
        output = first.new_empty(ready.output_shape)
        ready.plan(
            _as_kernels_take_it(first, index),
            _as_kernels_take_it(second, index),
            output,
            None if bias is None else _as_kernels_take_it(bias, index),
            stream=current_stream(index),
            workspace=[first.new_empty(shape, dtype=kind) for shape, kind in ready.workspace],
        )
        return output

    def _made_ready(self, of: Of) -> _Ready:
        problem = self._problem if of is None else Gradient(self._problem, of)
        stage = self.asked.settings.stage
        self._ready[of] = _Ready(ready_plan(self.index, problem, stage, self._engine))
        return self._ready[of]


class _Short(torch.autograd.Function):  # type: ignore[misc]
    """The convolution for autograd, without an operator."""

    @staticmethod
    def forward(
        ctx: _Context, input: Tensor, weight: Tensor, bias: Tensor | None, seen: Seen
    ) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.seen = seen
        return seen.compute(None, input, weight, bias)

    @staticmethod
    def backward(ctx: _Context, of_output: Tensor) -> Gradients:
        seen = ctx.seen
        if torch.is_grad_enabled() or not goes_short(seen.index, of_output):
            asked = seen.asked
            ctx.shapes, ctx.settings = (asked.input_shape, asked.weight_shape), asked.settings
            return (*Convolution.backward(ctx, of_output)[:3], None)
        input, weight = ctx.saved_tensors
        for_input, for_weight, for_bias, _ = ctx.needs_input_grad
        with _named("convlab::gradients"):
            of_input = seen.compute("input", of_output, weight) if for_input else None
            of_weight = seen.compute("weight", input, of_output) if for_weight else None
        return of_input, of_weight, of_output.sum((0, 2, 3)) if for_bias else None, None


def _named(name: str) -> AbstractContextManager[object]:
    """Inside, PyTorch's profiler sees that name, if it runs."""
    if not torch.autograd._profiler_enabled():
        return _NOT_NAMED
    named: AbstractContextManager[object] = torch.profiler.record_function(name)
    return named


_NOT_NAMED = nullcontext()


# `Function.apply` looks for tensors that a transform has left, which takes 4 us: here are none.
_apply = super(torch.autograd.Function, _Short).apply


def _as_kernels_take_it(tensor: Tensor, index: int) -> Tensor:
    """Return the tensor, or a copy that is contiguous and aligned."""
    return tensor if is_whole(tensor) else whole(tensor, index)


# Calls that were computed before. Plans are never dropped either.
_seen: dict[Key, Seen] = {}


def _key(
    axes: int, input: Tensor, weight: Tensor, bias: Tensor | None, settings: LayerSettings
) -> Key:
    shape = None if bias is None else bias.shape
    return axes, input.get_device(), input.shape, weight.shape, shape, settings


def seen_before(
    axes: int, input: Tensor, weight: Tensor, bias: Tensor | None, settings: LayerSettings
) -> Seen | None:
    """Return the short way of a layer's call, if there was an equal one and this one may take
    it."""
    if type(input) not in TENSORS or input.is_nested:
        return None  # it may have no shape
    try:
        seen = _seen.get(_key(axes, input, weight, bias, settings))
    except TypeError:  # a setting that is a list has no hash
        return None
    if seen is None or not goes_short(seen.index, input, weight, bias):
        return None
    return seen


def remember(
    axes: int, input: Tensor, weight: Tensor, bias: Tensor | None, settings: LayerSettings
) -> None:
    """Let later calls like this one, which a GPU has computed, take the short way if they may."""
    if axes > 2 or type(input) not in TENSORS:
        return
    if not goes_short(input.get_device(), input, weight, bias):
        return
    if input.dim() != axes + 2 or not input.shape[0] or not (engine := choose(settings[-1])).is_gpu:
        return
    stride, padding, dilation, groups, stage, engine_name = settings
    windows = windows_of(axes, weight.shape[2:], stride, padding, dilation)
    images, filters = input, weight
    if axes == 1:
        images, filters = input.unsqueeze(2), weight.unsqueeze(2)
    asked = asked_for(images, filters, settings_of(windows, groups, stage, engine_name))
    try:
        _seen[_key(axes, input, weight, bias, settings)] = Seen(
            axes, asked, input.get_device(), engine
        )
    except TypeError:  # as above
        return
