"""``Conv2d``: PyTorch's layer, with any stage of the ladder as its convolution and its gradients.

Three custom operators, ``convlab::conv2d``, ``input_gradient`` and ``weight_gradient``: each
is the derivative of the others, so autograd can differentiate again. PyTorch allocates all that a
call on a GPU needs, and the work runs on its current stream, so a CUDA graph can capture it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from convlab.arguments import integer, paddings, pair, shown
from convlab.arrays import check_dense
from convlab.engines import Engine, choose
from convlab.gradient import Gradient, Problem
from convlab.plans import Plan, stage_for
from convlab.problem import ConvProblem
from convlab.stage import Stage
from convlab.stages import GROUPED, stage_named


class Conv2d(torch.nn.Conv2d):  # type: ignore[misc]
    """``torch.nn.Conv2d`` by a stage of the ladder: the same arguments, parameters and state dict.

    Takes and returns float32 ``[N_i, C_i, H_i, W_i]`` tensors, or one image without ``N_i``, of any
    strides; the result is contiguous. ``stage`` computes the output and both gradients (b02 through
    it); ``"auto"`` is :func:`convlab.plan`'s; groups are computed by ``grouped`` where the stage
    has none. ``engine="auto"`` is the GPU where there is one: a tensor elsewhere is copied there
    and its result back. Raises ``ValueError`` for an unknown stage or engine, or a
    ``padding_mode`` other than zeros; at a call, ``TypeError`` for what is no float32 tensor and
    ``NotImplementedError`` for derivatives in forward mode.
    """

    stage: str
    engine: str

    def __init__(
        self, *arguments: Any, stage: str = "auto", engine: str = "auto", **more: Any
    ) -> None:
        _check_sizes(*arguments, **more)
        super().__init__(*arguments, **more)
        _check(self, stage, engine)
        self.stage, self.engine = stage, engine

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not isinstance(input, Tensor):
            raise TypeError(f"input is {shown(input)}: it must be a torch.Tensor")
        check_dense("input", input)
        for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
            # PyTorch's custom operators have no forward derivative; torch.func.jvp would give 0.
            if tensor is not None and unpack_dual(tensor).tangent is not None:
                why = "because the layer has derivatives in backward mode only"
                raise NotImplementedError(f"{name} has a tangent: it must have none, {why}")
        sides = self._reversed_padding_repeated_twice  # two of a padding in a one-element tuple
        left, right, top, bottom = sides if len(sides) == 4 else [*sides, *sides]
        padding, batched = [top, bottom, left, right], input.dim() != 3
        settings = self.stride, padding, self.dilation, self.groups, self.stage, self.engine
        images = input if batched else input.unsqueeze(0)
        output = torch.ops.convlab.conv2d(images, weight, bias, *settings)
        return output if batched else output.squeeze(0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, stage={self.stage}, engine={self.engine}"


def replace(model: torch.nn.Module, stage: str = "auto", engine: str = "auto") -> int:
    """Make each ``torch.nn.Conv2d`` of ``model``, itself included, a :class:`Conv2d` of that stage
    and engine, in place: parameters, hooks and names stay. Returns how many there are.

    Layers of other classes, those derived from ``torch.nn.Conv2d`` among them, stay as they are.
    Raises as :class:`Conv2d` does, with the layer's name, before any layer is changed, and
    ``TypeError`` for a ``model`` that is no ``torch.nn.Module``.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {shown(model)}: it must be a torch.nn.Module")
    kinds = (torch.nn.Conv2d, Conv2d)
    layers = {name: one for name, one in model.named_modules() if type(one) in kinds}
    for name, layer in layers.items():
        _check(layer, stage, engine, f"{name}: " if name else "")
    for layer in layers.values():
        layer.__class__, layer.stage, layer.engine = Conv2d, stage, engine
    return len(layers)


def _check_sizes(
    in_channels: Any, out_channels: Any, kernel_size: Any, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: Any = 1, *others: Any, **more: Any,
) -> None:  # fmt: skip
    """Raise ``TypeError`` or ``ValueError`` for what PyTorch's layer refuses without its name, or
    takes and cannot convolve."""
    for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
        if integer(name, channels, at_least=0) % integer("groups", groups, at_least=1):
            raise ValueError(f"groups is {groups}: it must divide {name}, {channels}")
    steps, taps = pair("stride", stride, at_least=1), pair("kernel_size", kernel_size, at_least=1)
    pair("dilation", dilation, at_least=1)
    if isinstance(padding, str):
        paddings(padding, steps, taps)
    else:
        pair("padding", padding, at_least=0)


def _check(layer: torch.nn.Conv2d, stage: str, engine: str, where: str = "") -> None:
    if (mode := layer.padding_mode) != "zeros":
        raise ValueError(f"{where}padding_mode is {shown(mode)}: it must be 'zeros'")
    if not isinstance(stage, str) or stage != "auto":
        stage_named(stage)
    choose(engine)


SETTINGS = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str stage, str engine"
)


def _operator(name: str, takes: str) -> Any:
    """Makes the function below a custom operator of these arguments and the settings."""
    schema = f"({takes}, {SETTINGS}) -> Tensor"
    return torch.library.custom_op(f"convlab::{name}", mutates_args=(), schema=schema)


@_operator("conv2d", "Tensor input, Tensor weight, Tensor? bias")
def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
    """The convolution; ``padding`` is top, bottom, left, right."""
    return _compute(None, input.shape, weight.shape, (input, weight, bias), *settings)


@_operator("input_gradient", "Tensor gradient, Tensor weight, SymInt[] shape")
def input_gradient(
    gradient: Tensor, weight: Tensor, shape: Sequence[int], *settings: Any
) -> Tensor:
    """dL/dinput, of that shape, from dL/doutput and the weight."""
    return _compute("input", shape, weight.shape, (gradient, weight), *settings)


@_operator("weight_gradient", "Tensor input, Tensor gradient, SymInt[] shape")
def weight_gradient(
    input: Tensor, gradient: Tensor, shape: Sequence[int], *settings: Any
) -> Tensor:
    """dL/dweight, of that shape, from the input and dL/doutput."""
    return _compute("weight", input.shape, shape, (input, gradient), *settings)


def _problem(
    input: Sequence[int],
    weight: Sequence[int],
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> ConvProblem:
    for name, shape, may in (("input", input, ", or 3"), ("weight", weight, "")):
        if len(shape) != 4:
            rule = f"it must have 4 dimensions{may}"
            raise ValueError(f"{name} has shape {shown((*shape,))}: {rule}")
    if input[1] != weight[1] * groups:
        rule = f"it must have {weight[1] * groups} channels"
        raise ValueError(f"input has shape {shown((*input,))}: {rule}")
    (N_i, C_i, H_i, W_i), zeros = input, (padding[:2], padding[2:])
    images, filters = (max(1, N_i), C_i, H_i, W_i), (weight[0], tuple(weight[2:]))
    return ConvProblem(*images, *filters, stride, zeros, dilation, groups)


def _compute(
    of: Any,
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    tensors: tuple[Tensor | None, ...],
    *settings: Any,
) -> Tensor:
    """The output of a convolution, or the gradient of its input or weight."""
    (first, *_), (*shape_settings, stage, engine) = tensors, settings
    for name, tensor in zip(("input", "weight", "bias"), tensors, strict=False):
        if tensor is not None and tensor.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {tensor.dtype}: it must be torch.float32")
    assert first is not None
    forward = _problem(input_shape, weight_shape, *shape_settings)
    problem = forward if of is None else Gradient(forward, of)
    if input_shape[0] == 0:
        shape = weight_shape if of == "weight" else (0, *problem.output_shape[1:])
        return first.new_zeros(tuple(shape))
    chosen = choose(engine)
    if not chosen.is_gpu:
        arrays: list[Any] = [None if t is None else t.numpy(force=True).copy("C") for t in tensors]
        input, weight, *bias = arrays
        ready = Plan(problem, _stage(stage, chosen, problem), None, chosen)
        made = ready(input, weight, chosen.empty(problem.output_shape), *bias)
        return torch.from_numpy(made).to(first.device)
    return _on_gpu(problem, tensors, stage, chosen).to(first.device)


def _on_gpu(
    problem: Problem, tensors: tuple[Tensor | None, ...], stage: str, engine: Engine
) -> Tensor:
    from numba import cuda

    device = next((t.device for t in tensors if t is not None and t.is_cuda), None)
    number = torch.cuda.current_device() if device is None else device.index
    with torch.cuda.device(number), cuda.gpus[number]:
        ready = _ready(number, problem, stage, engine)
        whole: list[Any] = [None if t is None else _whole(t, number) for t in tensors]
        input, weight, *bias = whole
        shapes = problem.output_shape, *(buffer.shape for buffer in ready.program.buffers)
        output, *workspace = (torch.empty(shape, device=number) for shape in shapes)
        stream = torch.cuda.current_stream().cuda_stream
        ready(input, weight, output, *bias, stream=stream, workspace=workspace)
        return output


def _whole(tensor: Tensor, number: int) -> Tensor:
    """On the GPU, contiguous, beginning at a multiple of 16 bytes."""
    tensor = tensor.detach().to(torch.device("cuda", number)).resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


# Never dropped: a captured graph launches a plan's machine code, and has no hold of it.
_plans: dict[tuple[Any, ...], Plan] = {}


def _ready(number: int, problem: Problem, stage: str, engine: Engine) -> Plan:
    """The GPU's plan for a problem, whose calls take their workspace from PyTorch."""
    key = number, problem, stage
    if key not in _plans:
        if torch.cuda.is_current_stream_capturing():
            what = f"{problem} is captured in a CUDA graph before its first call"
            raise RuntimeError(f"{what}: call it once before, which compiles its kernels")
        chosen = _stage(stage, engine, problem)
        _plans[key] = Plan(problem, chosen, None, engine, own_workspace=False)
    return _plans[key]


def _stage(name: str, engine: Engine, problem: Problem) -> Stage:
    stage = stage_for(name, engine, problem)
    return stage if problem.groups == 1 or stage.grouped else GROUPED


@conv2d.register_fake
def _(input, weight, bias, stride, padding, dilation, groups, stage, engine):  # type: ignore[no-untyped-def]
    zeros = padding[0] + padding[1], padding[2] + padding[3]
    windows = ((k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True))
    axes = zip(input.shape[2:], zeros, windows, stride, strict=True)
    size = [(pixels + zero - window) // step + 1 for pixels, zero, window, step in axes]
    return input.new_empty([input.shape[0], weight.shape[0], *size])


@input_gradient.register_fake
@weight_gradient.register_fake
def _(first, second, shape, *settings):  # type: ignore[no-untyped-def]
    return first.new_empty(shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """For the derivatives: two tensors, and the settings that all three operators share."""
    first, second, *_ = inputs
    ctx.save_for_backward(first, second)
    ctx.shapes, ctx.settings = (first.shape, second.shape), inputs[3:]


def _of_output(ctx: Any, of_output: Tensor) -> tuple[Any, ...]:
    (input, weight), settings = ctx.saved_tensors, ctx.settings
    of_input = of_weight = of_bias = None
    if ctx.needs_input_grad[0]:
        of_input = input_gradient(of_output, weight, ctx.shapes[0], *settings)
    if ctx.needs_input_grad[1]:
        of_weight = weight_gradient(input, of_output, ctx.shapes[1], *settings)
    if ctx.needs_input_grad[2]:
        of_bias = of_output.sum((0, 2, 3))
    return of_input, of_weight, of_bias, *[None] * len(settings)


def _of_input_gradient(ctx: Any, by: Tensor) -> tuple[Any, ...]:
    (gradient, weight), settings = ctx.saved_tensors, ctx.settings
    needs = ctx.needs_input_grad
    of_gradient = conv2d(by, weight, None, *settings) if needs[0] else None
    of_weight = weight_gradient(by, gradient, ctx.shapes[1], *settings) if needs[1] else None
    return of_gradient, of_weight, None, *[None] * len(settings)


def _of_weight_gradient(ctx: Any, by: Tensor) -> tuple[Any, ...]:
    (input, gradient), settings = ctx.saved_tensors, ctx.settings
    needs = ctx.needs_input_grad
    of_input = input_gradient(gradient, by, ctx.shapes[0], *settings) if needs[0] else None
    of_gradient = conv2d(input, by, None, *settings) if needs[1] else None
    return of_input, of_gradient, None, *[None] * len(settings)


conv2d.register_autograd(_of_output, setup_context=_keep)
input_gradient.register_autograd(_of_input_gradient, setup_context=_keep)
weight_gradient.register_autograd(_of_weight_gradient, setup_context=_keep)
