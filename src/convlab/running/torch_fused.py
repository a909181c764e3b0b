"""A convolution with its bias, a residual and ReLU for inference: the operator
``convlab::fused_conv2d``, and the layer that :func:`convlab.torch.fuse` puts into a model.

Where a stage can add a residual and apply ReLU, all of it is one kernel. Elsewhere, as in float32,
PyTorch adds the residual and applies ReLU to the convolution's output.
"""

from __future__ import annotations

import torch
from torch import Tensor

from convlab.ladder.stage import RESIDUAL
from convlab.problems.settings import IntOrEach, Padding, windows_of
from convlab.running.chosen_stages import stage_of_layer
from convlab.running.engines import choose
from convlab.running.torch_asked import Asked, Settings, asked_for, note
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


# The compiler takes the call as one, as it does the layers' convolution.
@torch.compiler.allow_in_graph
def convolve_fused(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    stride: IntOrEach,
    padding: Padding,
    dilation: IntOrEach,
    groups: int,
    stage: str,
    engine: str,
) -> Tensor:
    """Return ``relu(conv2d(input, weight, bias) + residual)`` of images, or of one image: by one
    kernel where a stage has the options, else by a convolution and PyTorch."""
    given = stride, padding, dilation, groups
    settings = _in_one_kernel(input, weight, residual, relu, *given, stage, engine)
    if settings is None:
        made = convolve(2, input, weight, bias, *given, stage, engine)
        made = made if residual is None else made + residual
        return torch.relu(made) if relu else made
    batched = input.dim() == 4
    images = input if batched else input.unsqueeze(0)
    if residual is not None and not batched:
        residual = residual.unsqueeze(0)
    asked = _asked(images, weight, settings, relu, residual)
    if not note(asked) and type(images) is Tensor and not torch.jit.is_tracing():
        before_first_call(asked)
    made = fused_conv2d(images, weight, bias, residual, relu, *settings)
    return made if batched else made.squeeze(0)


def _in_one_kernel(
    input: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    relu: bool,
    stride: IntOrEach,
    padding: Padding,
    dilation: IntOrEach,
    groups: int,
    stage: str,
    engine: str,
) -> Settings | None:
    """Return the operator's settings; None where no stage has the options, and where PyTorch must
    cast or broadcast tensors first, or refuse them."""
    given = (input, weight) if residual is None else (input, weight, residual)
    if not all(isinstance(one, Tensor) and one.dtype == weight.dtype for one in given):
        return None
    sizes, filter_size = sizes_of(input), sizes_of(weight)
    if autocast_type(given) is not None or len(sizes) not in (3, 4) or not all(sizes):
        return None
    windows = windows_of(2, filter_size[2:], stride, padding, dilation)
    shape = (*sizes[:-3], filter_size[0], *output_size(sizes, filter_size, windows, groups))
    if residual is not None and sizes_of(residual) != shape:
        return None
    settings = settings_of(windows, groups, stage, engine)
    images = input if len(sizes) == 4 else input.unsqueeze(0)
    asked = _asked(images, weight, settings, relu, residual)
    try:
        found = stage_of_layer(stage, choose(engine), asked.problem(), residual is not None)
    except ValueError:
        return None  # the convolution says why
    return settings if set(asked.options) <= set(found.options) else None


def _asked(
    images: Tensor, weight: Tensor, settings: Settings, relu: bool, residual: Tensor | None
) -> Asked:
    options = _asked_options(relu, residual)
    return asked_for(images, weight, settings)._replace(options=options)


class FusedConv2d(torch.nn.Module):  # type: ignore[misc]
    """A convolution for inference: ``relu(conv2d(input, weight, bias) + residual)``.

    Takes ``[N_i, C_i, H_i, W_i]``, or one image without ``N_i``, and a residual of the result's
    shape, or one that PyTorch broadcasts to it, or none; float32, float16 or bfloat16, all of one
    type. The result has its channels last in memory if ``input`` has 16 bits and its channels last.
    It has no derivatives: ``weight`` and ``bias`` need none. Raises as
    :class:`convlab.torch.Conv2d` does.
    """

    def __init__(
        self, layer: torch.nn.Conv2d, relu: bool = False, stage: str = "auto", engine: str = "auto"
    ) -> None:
        super().__init__()
        weight = layer.weight.detach().clone()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias: torch.nn.Parameter | None = None
        if layer.bias is not None:
            self.bias = torch.nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
        self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation
        self.groups, self.relu, self.stage, self.engine = layer.groups, relu, stage, engine
        self.__module__ = torch.nn.Conv2d.__module__  # torch.fx takes it as one call, too

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the convolution with all that is fused."""
        settings = self.stride, self.padding, self.dilation, self.groups, self.stage, self.engine
        return convolve_fused(input, self.weight, self.bias, residual, self.relu, *settings)

    def extra_repr(self) -> str:
        """Return what PyTorch shows of the layer."""
        C_o, C_i, *size = self.weight.shape
        own = f"{C_i * self.groups}, {C_o}, kernel_size={tuple(size)}, stride={self.stride}"
        return f"{own}, padding={self.padding}, relu={self.relu}, stage={self.stage}"
