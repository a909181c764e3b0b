"""The derivatives of ``convlab.torch``'s operators, and how the operators take batches.

Each of the three operators is the derivative of the others, so autograd can differentiate again.
``torch.func`` asks these classes for both. :mod:`convlab.running.torch_operators` has the
operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

Of = Literal["input", "weight"] | None  # the tensor that a gradient is of; None is the convolution
NAMES: dict[Of, tuple[str, ...]] = {
    None: ("input", "weight", "bias"),
    "input": ("gradient", "weight"),
    "weight": ("input", "gradient"),
}
NO_TANGENT = (
    "has a tangent: it must have none, because the layer has derivatives in backward mode only"
)
GROUPS = 3  # the place of `groups` in the settings

Setting: TypeAlias = "Sequence[int] | int | str"
Argument: TypeAlias = "Tensor | Sequence[int] | int | str | None"  # of an operator
Gradients: TypeAlias = "tuple[Tensor | None, ...]"  # for each argument of an operator


class Context(Protocol):
    """The object in which PyTorch keeps what a derivative needs."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    shapes: tuple[Sequence[int], Sequence[int]]  # of the first two tensors
    settings: tuple[Setting, ...]

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors for the derivative."""


class Batch(Protocol):
    """The batch over which ``torch.func.vmap`` maps an operator."""

    batch_size: int


class _Differentiable(torch.autograd.Function):  # type: ignore[misc]
    """An operator, its derivative, and how it takes batches, as ``torch.func`` asks for them."""

    of: Of

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep two tensors, and the settings that all three operators share."""
        first, second, *_ = inputs
        ctx.save_for_backward(first, second)
        ctx.shapes, ctx.settings = (first.shape, second.shape), inputs[3:]

    @classmethod
    def jvp(cls, ctx: Context, *tangents: Tensor | None) -> None:
        """Refuse derivatives in forward mode, which a transform around another one hides."""
        given = zip(NAMES[cls.of], tangents, strict=False)  # settings have none
        name = next(name for name, tangent in given if tangent is not None)
        raise NotImplementedError(f"{name} {NO_TANGENT}")


def apply(function: type[_Differentiable], *arguments: Argument) -> Tensor:
    """Call the function's operator. The transforms of ``torch.func`` do not take an operator that
    has a derivative, so inside them call the function itself."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    return function.forward(*arguments)


class Convolution(_Differentiable):
    """The convolution, whose derivatives are the other two operators."""

    of = None

    @staticmethod
    def forward(*arguments: Argument) -> Tensor:
        """Return the output of the convolution."""
        return torch.ops.convlab.conv2d(*arguments)

    @staticmethod
    def backward(ctx: Context, of_output: Tensor) -> Gradients:
        """Return the gradients of the input, the filters and the bias, from the output's."""
        (input, weight), settings = ctx.saved_tensors, ctx.settings
        of_input = of_weight = of_bias = None
        kind = of_output.dtype
        # Gradients are computed in float32; of 16 bits, both ways are exact but for one rounding.
        by, input, weight = of_output.float(), input.float(), weight.float()
        if ctx.needs_input_grad[0]:
            of_input = apply(InputGradient, by, weight, ctx.shapes[0], *settings).to(kind)
        if ctx.needs_input_grad[1]:
            of_weight = apply(WeightGradient, input, by, ctx.shapes[1], *settings).to(kind)
        if ctx.needs_input_grad[2]:
            of_bias = of_output.sum((0, 2, 3))
        return of_input, of_weight, of_bias, *[None] * len(settings)

    @staticmethod
    def vmap(info: Batch, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
        """Convolve a batch of inputs, of filters or of both at once."""
        (input, weight, bias, *settings), (images, filters, biases, *_) = arguments, in_dims
        if filters is None and biases is None:  # a batch of batches of images
            output = apply(Convolution, _folded(input, images, 0, info), weight, bias, *settings)
            return _unfolded(output, 0, info), 0
        settings[GROUPS] *= info.batch_size
        output = apply(
            Convolution,
            _folded(input, images, 1, info),
            _folded(weight, filters, 0, info),
            None if bias is None else _folded(bias, biases, 0, info),
            *settings,
        )
        return _unfolded(output, 1, info), 0


class InputGradient(_Differentiable):
    """dL/dinput of a convolution, from dL/doutput and the filters."""

    of = "input"

    @staticmethod
    def forward(*arguments: Argument) -> Tensor:
        """Return dL/dinput."""
        return torch.ops.convlab.input_gradient(*arguments)

    @staticmethod
    def backward(ctx: Context, by: Tensor) -> Gradients:
        """Return the gradients of dL/doutput and of the filters, from that of dL/dinput."""
        (gradient, weight), settings = ctx.saved_tensors, ctx.settings
        needs, of_gradient, of_weight = ctx.needs_input_grad, None, None
        if needs[0]:
            of_gradient = apply(Convolution, by, weight, None, *settings)
        if needs[1]:
            of_weight = apply(WeightGradient, by, gradient, ctx.shapes[1], *settings)
        return of_gradient, of_weight, None, *[None] * len(settings)

    @staticmethod
    def vmap(info: Batch, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
        """Compute a batch of gradients, of one filter or of a batch of them."""
        (gradient, weight, shape, *settings), (images, filters, *_) = arguments, in_dims
        axis = 0 if filters is None else 1
        if axis == 1:
            settings[GROUPS] *= info.batch_size
            weight = _folded(weight, filters, 0, info)
        shape = [*shape]
        shape[axis] *= info.batch_size
        gradient = _folded(gradient, images, axis, info)
        result = apply(InputGradient, gradient, weight, shape, *settings)
        return _unfolded(result, axis, info), 0


class WeightGradient(_Differentiable):
    """dL/dweight of a convolution, from the input and dL/doutput."""

    of = "weight"

    @staticmethod
    def forward(*arguments: Argument) -> Tensor:
        """Return dL/dweight."""
        return torch.ops.convlab.weight_gradient(*arguments)

    @staticmethod
    def backward(ctx: Context, by: Tensor) -> Gradients:
        """Return the gradients of the input and of dL/doutput, from that of dL/dweight."""
        (input, gradient), settings = ctx.saved_tensors, ctx.settings
        needs, of_input, of_gradient = ctx.needs_input_grad, None, None
        if needs[0]:
            of_input = apply(InputGradient, gradient, by, ctx.shapes[0], *settings)
        if needs[1]:
            of_gradient = apply(Convolution, input, by, None, *settings)
        return of_input, of_gradient, None, *[None] * len(settings)

    @staticmethod
    def vmap(info: Batch, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
        """Compute a batch of gradients, as one convolution with more groups."""
        (input, gradient, shape, *settings), (images, outputs, *_) = arguments, in_dims
        settings[GROUPS] *= info.batch_size
        shape = [shape[0] * info.batch_size, *shape[1:]]
        batches = _folded(input, images, 1, info), _folded(gradient, outputs, 1, info)
        result = apply(WeightGradient, *batches, shape, *settings)
        return _unfolded(result, 0, info), 0


def _folded(tensor: Tensor, batch: int | None, into: int, info: Batch) -> Tensor:
    """The tensor with its batch folded into an axis, whose part for each element of the batch
    follows the part before. Without a batch, each gets the same."""
    if batch is None:
        tensor, batch = tensor.expand(info.batch_size, *tensor.shape), 0
    return tensor.movedim(batch, into).flatten(into, into + 1)


def _unfolded(tensor: Tensor, axis: int, info: Batch) -> Tensor:
    """The tensor with that axis's batch as the first axis."""
    sizes = info.batch_size, tensor.shape[axis] // info.batch_size
    return tensor.unflatten(axis, sizes).movedim(axis, 0)
