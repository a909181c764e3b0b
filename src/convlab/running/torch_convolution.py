"""The convolution that ``convlab.torch``'s layers call, of one, two or three axes."""

from __future__ import annotations

import torch
from torch import Tensor

from convlab.problems.settings import IntOrEach, Padding, Windows, windows_of
from convlab.running.chosen_stages import has_stage_for
from convlab.running.engines import choose
from convlab.running.torch_asked import asked_for, note
from convlab.running.torch_derivatives import Convolution, apply
from convlab.running.torch_operators import check_tensors, output_size, settings_of, sizes_of
from convlab.running.torch_prepare import before_first_call
from convlab.running.torch_tensors import autocast_type
from convlab.support.values import shown


# The compiler takes the call as one too: it runs it with tensors without numbers, and so reports
# what the checks refuse.
@torch.compiler.allow_in_graph
def convolve(
    axes: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: IntOrEach,
    padding: Padding,
    dilation: IntOrEach,
    groups: int,
    stage: str,
    engine: str,
) -> Tensor:
    """Return the convolution of images, or of one image, of 1, 2 or 3 axes. Two axes are those of
    ``convlab::conv2d``; one is a height of 1 beside it. Of three, each output plane becomes an
    image, whose channels are the input planes that it sees.

    ``torch.autocast`` casts the tensors first. Where the engine has no stage for its type and these
    channels, or none with groups, the result alone has that type."""
    given = input, weight, bias
    to = autocast_type(given)
    if to is not None and groups == 1 and _has_stage(to, weight, engine):
        input, weight, bias = (None if one is None else one.to(to) for one in given)
    elif to is not None:
        settings = stride, padding, dilation, groups, stage, engine
        with torch.autocast(input.device.type, enabled=False):
            return convolve(axes, *given, *settings).to(to)
    check_tensors({"input": input, "weight": weight, "bias": bias})
    size, filter_size = sizes_of(input), sizes_of(weight)
    if len(size) not in (axes + 1, axes + 2):
        rule = f"it must have {axes + 2} dimensions, or {axes + 1}"
        raise ValueError(f"input has shape {shown(size)}: {rule}")
    if len(filter_size) != axes + 2:
        rule = f"it must have {axes + 2} dimensions"
        raise ValueError(f"weight has shape {shown(filter_size)}: {rule}")
    windows = windows_of(axes, filter_size[2:], stride, padding, dilation)
    output_size(size, filter_size, windows, groups)

    images = input if input.dim() == axes + 2 else input.unsqueeze(0)
    filters, count, planes = weight, images.shape[0], 1
    if axes == 1:
        images, filters = images.unsqueeze(2), weight.unsqueeze(2)
    elif axes == 3:
        seen = _planes_seen(images, windows)
        planes = seen.shape[1]
        images, filters = seen.flatten(0, 1).flatten(1, 2), weight.flatten(1, 2)
    settings = settings_of(windows, groups, stage, engine)
    asked = asked_for(images, filters, settings)
    if not note(asked) and type(images) is Tensor and not torch.jit.is_tracing():
        before_first_call(asked)
    output = apply(Convolution, images, filters, bias, *settings)
    if axes == 1:
        output = output.squeeze(2)
    elif axes == 3:
        output = output.unflatten(0, (count, planes)).transpose(1, 2).contiguous()
    return output if input.dim() == axes + 2 else output.squeeze(0)


def _has_stage(to: torch.dtype, weight: Tensor, engine: str) -> bool:
    """Return whether the engine computes with that type, and with the weight's channels."""
    C_o, C_i = sizes_of(weight)[:2]
    return has_stage_for(choose(engine), str(to).split(".")[-1], (C_i, C_o))


def _planes_seen(volumes: Tensor, windows: Windows) -> Tensor:
    """[N_i, C_i, D_i, H_i, W_i] as [N_i, D_o, C_i, D_f, H_i, W_i]: for each output plane, the input
    planes that it sees."""
    before, behind = windows.padding[0]
    padded = torch.nn.functional.pad(volumes, (0, 0, 0, 0, before, behind))
    spanned = padded.unfold(2, windows.spans[0], windows.stride[0])  # a view, whose last axis is it
    return spanned[..., :: windows.dilation[0]].permute(0, 2, 1, 5, 3, 4)
