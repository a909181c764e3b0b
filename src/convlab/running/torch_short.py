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
ALIGNMENT = 256  # bytes, of a buffer in a workspace


class _Context(Context, Protocol):
    """The object in which PyTorch keeps what a derivative needs."""

    seen: Seen


class _Ready:
    """A plan, and what PyTorch allocates for its calls: the output, and one workspace for all of
    the plan's buffers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._output_shape = plan.problem.output_shape
        self._offsets: list[int] = []  # of the buffers in the workspace, in bytes
        offset = 0
        for buffer in plan.program.buffers:
            self._offsets.append(offset)
            offset += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
        self.workspace_numbers = offset // 4

    def __call__(
        self,
        first: Tensor,
        second: Tensor,
        bias: Tensor | None,
        workspace: Tensor | None,
        stream: int,
    ) -> Tensor:
        """Return the output for tensors that kernels can take."""
        output: Tensor = first.new_empty(self._output_shape)
        if not self._plan.packed:
            buffers = () if workspace is None else self._buffers_in(workspace)
            self._plan(first, second, output, bias, stream=stream, workspace=buffers)
            return output
        at = 0 if workspace is None else workspace.data_ptr()
        self._plan.start_at(
            first.data_ptr(),
            second.data_ptr(),
            None if bias is None else bias.data_ptr(),
            output.data_ptr(),
            [at + offset for offset in self._offsets],
            stream=stream,
        )
        return output

    def _buffers_in(self, workspace: Tensor) -> list[Tensor]:
        """Return the plan's buffers as views of the workspace."""
        numbers = workspace.view(torch.uint8)
        views: list[Tensor] = []
        for buffer, offset in zip(self._plan.program.buffers, self._offsets, strict=True):
            part = numbers[offset : offset + buffer.nbytes]
            views.append(part.view(OF_BUFFERS[buffer.dtype]).view(buffer.shape))
        return views


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
                else self.convolution(input, weight, bias)
            )
        return output.squeeze(2) if self.axes == 1 else output

    def convolution(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution of tensors on the current GPU."""
        ready, index = self._ready.get(None) or self._made_ready(None), self.index
        input = _as_kernels_take_it(input, index)
        numbers = ready.workspace_numbers
        return ready(
            input,
            _as_kernels_take_it(weight, index),
            None if bias is None else _as_kernels_take_it(bias, index),
            input.new_empty(numbers) if numbers else None,
            current_stream(index),
        )

    def gradients(
        self, input: Tensor | None, weight: Tensor | None, of_output: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of input and weight, on the current GPU. That of the input needs the
        weight, that of the weight the input; without them it is None. Both run on one stream, so
        that they can have the same workspace."""
        if input is None and weight is None:
            return None, None
        index, numbers = self.index, 0
        for_input = for_weight = None
        if weight is not None:
            for_input = self._ready.get("input") or self._made_ready("input")
            numbers = for_input.workspace_numbers
        if input is not None:
            for_weight = self._ready.get("weight") or self._made_ready("weight")
            numbers = max(numbers, for_weight.workspace_numbers)
        of_output = _as_kernels_take_it(of_output, index)
        workspace = of_output.new_empty(numbers) if numbers else None
        stream = current_stream(index)
        of_input = of_weight = None
        if for_input is not None and weight is not None:
            whole_weight = _as_kernels_take_it(weight, index)
            of_input = for_input(of_output, whole_weight, None, workspace, stream)
        if for_weight is not None and input is not None:
            whole_input = _as_kernels_take_it(input, index)
            of_weight = for_weight(whole_input, of_output, None, workspace, stream)
        return of_input, of_weight

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
        return seen.convolution(input, weight, bias)

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
            of_input, of_weight = seen.gradients(
                input if for_weight else None, weight if for_input else None, of_output
            )
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
