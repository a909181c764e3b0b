"""A convolution with its bias, a residual and ReLU for inference: the operator
``convlab::fused_conv2d``, and the layer that :func:`convlab.torch.fuse` puts into a model.

Where a stage can add a residual and apply ReLU, all of it is one kernel. Elsewhere, as in float32,
PyTorch adds the residual and applies ReLU to the convolution's output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from convlab.ladder.stage import RESIDUAL
from convlab.problems.settings import windows_of
from convlab.running.chosen_stages import stage_of_layer
from convlab.running.engines import Engine, choose
from convlab.running.torch_asked import Asked, asked_for, note
from convlab.running.torch_convolution import convolve
from convlab.running.torch_derivatives import Setting
from convlab.running.torch_operators import (
    compute,
    infer,
    operator,
    output_size,
    settings_of,
    sizes_of,
)
from convlab.running.torch_prepare import before_first_call
from convlab.running.torch_tensors import autocast_type

_TAKES = "Tensor input, Tensor weight, Tensor? bias, Tensor? residual, bool relu"


@operator("fused_conv2d", _TAKES)
def fused_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    *settings: Setting,
) -> Tensor:
    """``relu(conv2d(input, weight, bias) + residual)`` as one kernel, without derivatives. The
    stage must have the options; ``residual`` has the result's shape and type."""
    options = _asked_options(relu, residual)
    tensors = input, weight, bias, residual
    return compute(None, input.shape, weight.shape, tensors, *settings, options=options)


@fused_conv2d.register_fake
def _(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    *settings: Setting,
) -> Tensor:
    tensors = input, weight, bias, residual
    return infer(None, input.shape, weight.shape, tensors, *settings)


def _asked_options(relu: bool, residual: Tensor | None) -> tuple[str, ...]:
    return ("relu",) * relu + (RESIDUAL,) * (residual is not None)


class FusedConv2d(torch.nn.Module):  # type: ignore[misc]
    """A convolution for inference: ``relu(conv2d(input, weight, bias) + residual)``.

    Takes ``[N_i, C_i, H_i, W_i]``, or one image without ``N_i``, and a residual of the result's
    shape or none; float32, float16 or bfloat16, all of one type. The result has its channels last
    in memory if ``input`` has 16 bits and its channels last. It has no derivatives: ``weight`` and
    ``bias`` need none. Raises as :class:`convlab.torch.Conv2d` does.
    """

    def __init__(
        self, layer: torch.nn.Conv2d, relu: bool = False, stage: str = "auto", engine: str = "auto"
    ) -> None:
        super().__init__()
        # Kernels for 16 bits read the channels last; so no call copies the weight.
        weight = layer.weight.detach().clone(memory_format=torch.channels_last)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias: torch.nn.Parameter | None = None
        if layer.bias is not None:
            self.bias = torch.nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
        self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation
        self.groups, self.relu, self.stage, self.engine = layer.groups, relu, stage, engine

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the convolution with all that is fused."""
        given = self.stride, self.padding, self.dilation, self.groups
        tensors = input, self.weight, self.bias
        options = self._in_kernel(input, residual)
        if options is None:
            made = convolve(2, *tensors, *given, self.stage, self.engine)
            made = made if residual is None else made + residual
            return torch.relu(made) if self.relu else made
        images = input if input.dim() == 4 else input.unsqueeze(0)
        if residual is not None and input.dim() == 3:
            residual = residual.unsqueeze(0)
        windows = windows_of(2, sizes_of(self.weight)[2:], *given[:3])
        settings = settings_of(windows, self.groups, self.stage, self.engine)
        asked = asked_for(images, self.weight, settings)._replace(options=options)
        if not note(asked) and type(images) is Tensor and not torch.jit.is_tracing():
            before_first_call(asked)
        made = fused_conv2d(images, self.weight, self.bias, residual, self.relu, *settings)
        return made if input.dim() == 4 else made.squeeze(0)

    def _in_kernel(self, input: Tensor, residual: Tensor | None) -> tuple[str, ...] | None:
        """Return the options of the stage that computes all in one kernel; None where there is
        none, or where PyTorch must cast or broadcast tensors first, or refuse them."""
        given = (input, self.weight) if residual is None else (input, self.weight, residual)
        if not all(isinstance(one, Tensor) and one.dtype == self.weight.dtype for one in given):
            return None
        if autocast_type(given) is not None or input.dim() not in (3, 4) or not input.numel():
            return None
        windows = windows_of(2, sizes_of(self.weight)[2:], self.stride, self.padding, self.dilation)
        sizes = sizes_of(input)
        size = output_size(sizes, sizes_of(self.weight), windows, self.groups)
        shape = (*sizes[:-3], self.weight.shape[0], *size)
        if residual is not None and sizes_of(residual) != shape:
            return None
        images = input if input.dim() == 4 else input.unsqueeze(0)
        settings = settings_of(windows, self.groups, self.stage, self.engine)
        options = _asked_options(self.relu, residual)
        asked = asked_for(images, self.weight, settings)._replace(options=options)
        return options if _has_options(asked, choose(self.engine)) else None

    def extra_repr(self) -> str:
        """Return what PyTorch shows of the layer."""
        C_o, C_i, *size = self.weight.shape
        own = f"{C_i * self.groups}, {C_o}, kernel_size={tuple(size)}, stride={self.stride}"
        return f"{own}, padding={self.padding}, relu={self.relu}, stage={self.stage}"


def _has_options(asked: Asked, engine: Engine) -> bool:
    """Return whether the stage of that convolution has its options; a convolution that no stage
    computes is refused by name when it is computed."""
    settings: Any = asked.settings
    adds = RESIDUAL in asked.options
    try:
        stage = stage_of_layer(settings.stage, engine, asked.problem(), adds)
    except ValueError:
        return False
    return set(asked.options) <= set(stage.options)
