"""The operators of ``convlab.torch``: a convolution and its two gradients, for PyTorch's autograd.

Three custom operators, ``convlab::conv2d``, ``input_gradient`` and ``weight_gradient``: each
is the derivative of the others, so autograd can differentiate again. PyTorch allocates all that a
call on a GPU needs, and the work runs on its current stream, so a CUDA graph can capture it.

The operators refuse the same tensors whether they compute or only infer shapes, as on PyTorch's
device ``meta``, in ``torch.export`` and under ``torch.compile``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from convlab.ladder import stage_named
from convlab.ladder.stage import RESIDUAL
from convlab.problems.arrays import check_dense, dtype_name, has_channels_last, on_host
from convlab.problems.gradient import Gradient, Problem
from convlab.problems.number_types import as_in_kernels
from convlab.problems.settings import Windows
from convlab.running.chosen_stages import stage_of_layer
from convlab.running.engines import Engine, choose
from convlab.running.plans import Plan
from convlab.running.torch_asked import (
    Settings,
    check_channels,
    check_dimensions,
    in_float32,
    problem_of,
)
from convlab.running.torch_derivatives import (
    NAMES,
    NO_TANGENT,
    Argument,
    Convolution,
    Gradients,
    InputGradient,
    Of,
    Setting,
    WeightGradient,
)
from convlab.running.torch_tensors import DTYPES, OF_BUFFERS
from convlab.support.values import shown

SETTINGS = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str stage, str engine"
)


class Operator(Protocol):
    """A custom operator of PyTorch, as far as this module uses it."""

    def __call__(self, *arguments: Argument) -> Tensor: ...

    def register_fake(self, infer: Callable[..., Tensor]) -> object:
        """Register the function that returns a result's shape and type without its numbers."""

    def register_autograd(
        self, backward: Callable[..., Gradients], *, setup_context: Callable[..., None]
    ) -> None:
        """Register the function of the derivatives, and the one that keeps what it needs."""


def settings_of(windows: Windows, groups: int, stage: str, engine: str) -> Settings:
    """Return the operators' settings, of the last two axes; one axis is the second of two."""
    return Settings(
        stride=[1, *windows.stride][-2:],
        padding=[side for pair in [(0, 0), *windows.padding][-2:] for side in pair],
        dilation=[1, *windows.dilation][-2:],
        groups=groups,
        stage=stage,
        engine=engine,
    )


def sizes_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the tensor's shape in integers, or in symbols of a compilation."""
    if not torch.jit.is_tracing():
        return tuple(tensor.shape)
    with warnings.catch_warnings():  # its sizes are tensors; a check need not be in the trace
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return tuple(int(n) for n in tensor.shape)


def check_tensors(tensors: dict[str, Tensor | None]) -> None:
    """Raise ``TypeError`` for what is not a dense tensor of the weight's type, which must be one
    that layers take; ``NotImplementedError`` for a tangent."""
    wanted = _type_of(tensors["weight"])
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is {shown(tensor)}: it must be a torch.Tensor")
        check_dense(name, tensor)
        _check_dtype(name, tensor, wanted)
        # PyTorch's custom operators have no forward derivative; torch.func.jvp would give 0.
        if unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(f"{name} {NO_TANGENT}")


def _type_of(weight: Tensor | None) -> torch.dtype:
    """Return the type that all tensors of a convolution with this weight must have."""
    takes = isinstance(weight, Tensor) and weight.dtype in DTYPES
    return weight.dtype if takes else torch.float32  # type: ignore[union-attr]


def _check_dtype(name: str, tensor: Tensor, wanted: torch.dtype) -> None:
    if tensor.dtype != wanted:
        raise TypeError(f"{name} has dtype {tensor.dtype}: it must be {wanted}")


def output_size(
    input: Sequence[int], weight: Sequence[int], windows: Windows, groups: int
) -> tuple[int, ...]:
    """Return the size of each axis of the output. Sizes may be PyTorch's symbols. Raises
    ``ValueError`` for shapes that do not fit."""
    check_channels(input, weight, groups)
    if weight[0] % groups:
        raise ValueError(f"groups is {groups}: it must divide weight's {weight[0]} filters")
    return windows.outputs(input[-len(windows.stride) :], bits=None)


def operator(name: str, takes: str) -> Callable[[Callable[..., Tensor]], Operator]:
    """Make the function below a custom operator of these arguments and the settings."""
    schema = f"({takes}, {SETTINGS}) -> Tensor"
    operator: Callable[[Callable[..., Tensor]], Operator] = torch.library.custom_op(
        f"convlab::{name}", mutates_args=(), schema=schema
    )
    return operator


@operator("conv2d", "Tensor input, Tensor weight, Tensor? bias")
def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None, *settings: Setting) -> Tensor:
    """The convolution; ``padding`` is top, bottom, left, right."""
    return compute(None, input.shape, weight.shape, (input, weight, bias), *settings)


@operator("input_gradient", "Tensor gradient, Tensor weight, SymInt[] shape")
def input_gradient(
    gradient: Tensor, weight: Tensor, shape: Sequence[int], *settings: Setting
) -> Tensor:
    """dL/dinput, of that shape, from dL/doutput and the weight."""
    return compute("input", shape, weight.shape, (gradient, weight), *settings)


@operator("weight_gradient", "Tensor input, Tensor gradient, SymInt[] shape")
def weight_gradient(
    input: Tensor, gradient: Tensor, shape: Sequence[int], *settings: Setting
) -> Tensor:
    """dL/dweight, of that shape, from the input and dL/doutput."""
    return compute("weight", input.shape, shape, (input, gradient), *settings)


# What is refused, by the operators that compute and by those that only infer shapes.


def _check_given(of: Of, tensors: tuple[Tensor | None, ...], output_shape: tuple[int, ...]) -> None:
    """Raise ``TypeError`` or ``ValueError`` for tensors that a convolution of that output, or its
    gradient, cannot take."""
    first = tensors[0]
    assert first is not None
    wanted = _type_of(tensors[1]) if of is None else torch.float32
    for name, tensor in zip((*NAMES[of], RESIDUAL), tensors, strict=False):
        if tensor is None:
            continue
        _check_dtype(name, tensor, wanted)
        if tensor.is_meta and not first.is_meta:  # PyTorch would give the memory as it found it
            rule = f"it must have numbers, as {NAMES[of][0]} on {first.device} has"
            raise ValueError(f"{name} is on meta: {rule}")
        musts = {"bias": output_shape[1:2], "gradient": output_shape, RESIDUAL: output_shape}
        must = musts.get(name)
        if must is not None and tuple(tensor.shape) != tuple(must):
            given = f"{name} has shape {shown((*tensor.shape,))}"
            raise ValueError(f"{given}: it must be {shown((*must,))}")


def infer(
    of: Of,
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    tensors: tuple[Tensor | None, ...],
    *settings: Setting,
) -> Tensor:
    """A tensor without numbers, of the result's shape; refuses what :func:`compute` refuses."""
    given, first = Settings._make(settings), tensors[0]
    assert first is not None
    if given.stage != "auto":
        stage_named(given.stage)
    size: tuple[int, ...]
    if all(isinstance(n, int) for n in (*input_shape, *weight_shape, given.groups)):
        size = problem_of(input_shape, weight_shape, given).output_size
    else:  # symbols of a compilation: a problem has integers only
        check_dimensions(input_shape, weight_shape)
        top, bottom, left, right = given.padding
        windows = Windows(
            kernel=tuple(weight_shape[2:]),
            stride=tuple(given.stride),
            padding=((top, bottom), (left, right)),
            dilation=tuple(given.dilation),
        )
        size = output_size(input_shape, weight_shape, windows, given.groups)
    output_shape = input_shape[0], weight_shape[0], *size
    _check_given(of, tensors, output_shape)
    shape = {None: output_shape, "input": input_shape, "weight": weight_shape}[of]
    return first.new_empty(shape).contiguous(memory_format=_format_of_result(first))


def _format_of_result(first: Tensor) -> torch.memory_format:
    """Return the layout of a result: channels last for 16 bits where the input has them last."""
    if first.dtype != torch.float32 and has_channels_last(first):
        return torch.channels_last
    return torch.contiguous_format


@conv2d.register_fake
def _(input: Tensor, weight: Tensor, bias: Tensor | None, *settings: Setting) -> Tensor:
    return infer(None, input.shape, weight.shape, (input, weight, bias), *settings)


@input_gradient.register_fake
def _(gradient: Tensor, weight: Tensor, shape: Sequence[int], *settings: Setting) -> Tensor:
    return infer("input", shape, weight.shape, (gradient, weight), *settings)


@weight_gradient.register_fake
def _(input: Tensor, gradient: Tensor, shape: Sequence[int], *settings: Setting) -> Tensor:
    return infer("weight", input.shape, shape, (input, gradient), *settings)


# The work.


def compute(
    of: Of,
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    tensors: tuple[Tensor | None, ...],
    *settings: Setting,
    options: tuple[str, ...] = (),
) -> Tensor:
    """The output of a convolution, or the gradient of its input or weight. ``options`` are the
    stage's; with a residual, it is the last of the tensors."""
    given, first = Settings._make(settings), tensors[0]
    assert first is not None
    forward = problem_of(input_shape, weight_shape, given, dtype_name(first))
    output_shape = input_shape[0], forward.out_channels, *forward.output_size
    _check_given(of, tensors, output_shape)
    if input_shape[0] == 0:
        shapes = {None: output_shape, "input": input_shape, "weight": weight_shape}
        return first.new_zeros(tuple(shapes[of]))
    # Gradients of float32 have their channels first, also those of a stage that has them last.
    floats = forward.dtype == "float32"
    problem = forward if of is None else Gradient(in_float32(forward) if floats else forward, of)
    chosen = choose(given.engine)
    if problem.channels_last:
        tensors = tuple(map(_channels_last, tensors))
    if chosen.is_gpu:
        made = _on_gpu(problem, tensors, given.stage, chosen, options).to(first.device)
    else:
        made = _on_simulator(problem, tensors, given.stage, chosen, options).to(first.device)
    if problem.channels_last:
        made = made.permute(0, 3, 1, 2).contiguous(memory_format=_format_of_result(first))
    return made


def _channels_last(tensor: Tensor | None) -> Tensor | None:
    """Return a view of the tensor with its channels as last axis; a bias stays."""
    return tensor if tensor is None or tensor.dim() != 4 else tensor.permute(0, 2, 3, 1)


def _on_simulator(
    problem: Problem,
    tensors: tuple[Tensor | None, ...],
    stage: str,
    engine: Engine,
    options: tuple[str, ...],
) -> Tensor:
    on_host = [None if tensor is None else _on_host(tensor) for tensor in tensors]
    input, weight, bias, residual = (*on_host, None, None)[:4]
    assert input is not None
    assert weight is not None
    chosen = stage_of_layer(stage, engine, problem, RESIDUAL in options)
    ready = Plan(problem, chosen, None, engine, **_switches(options))
    output = engine.empty(problem.output_shape, problem.dtype)
    made = ready(input, weight, output, bias, residual=residual)
    kind = getattr(torch, problem.dtype)
    return torch.from_numpy(as_in_kernels(made)).view(kind)


def _on_host(tensor: Tensor) -> np.ndarray:
    """Return the tensor's numbers in a C-contiguous array of NumPy's own. NumPy is shown a copy:
    PyTorch cannot resize a tensor's memory any more once NumPy has seen it, as fully_shard does."""
    copy = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return on_host(copy)


def _on_gpu(
    problem: Problem,
    tensors: tuple[Tensor | None, ...],
    stage: str,
    engine: Engine,
    options: tuple[str, ...],
) -> Tensor:
    from numba import cuda

    device = next((t.device for t in tensors if t is not None and t.is_cuda), None)
    number = torch.cuda.current_device() if device is None else device.index
    with torch.cuda.device(number), cuda.gpus[number]:
        ready = ready_plan(number, problem, stage, engine, options)
        all_whole = [None if tensor is None else whole(tensor, number) for tensor in tensors]
        input, weight, bias, residual = (*all_whole, None, None)[:4]
        assert input is not None
        assert weight is not None
        kind, buffers = getattr(torch, problem.dtype), ready.program.buffers
        output = torch.empty(problem.output_shape, dtype=kind, device=number)
        workspace = [
            torch.empty(buffer.shape, dtype=OF_BUFFERS[buffer.dtype], device=number)
            for buffer in buffers
        ]
        stream = torch.cuda.current_stream().cuda_stream
        ready(input, weight, output, bias, residual=residual, stream=stream, workspace=workspace)
        return output


def whole(tensor: Tensor, number: int) -> Tensor:
    """Return the tensor on the GPU, contiguous, beginning at a multiple of 16 bytes."""
    tensor = tensor.detach().to(torch.device("cuda", number)).resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


# Never dropped: a captured graph launches a plan's kernels on its arrays, and keeps neither.
_plans: dict[tuple[int, Problem, str, tuple[str, ...]], Plan] = {}


def _switches(options: tuple[str, ...]) -> dict[str, Any]:
    return dict.fromkeys(options, True)


def ready_plan(
    number: int, problem: Problem, stage: str, engine: Engine, options: tuple[str, ...] = ()
) -> Plan:
    """Return the GPU's plan for a problem with these options of its stage; its calls take their
    workspace from PyTorch. Raises ``RuntimeError`` where it is not made yet and its first call is
    captured."""
    key = number, problem, stage, options
    if key not in _plans:
        if torch.cuda.is_current_stream_capturing():
            what = f"{problem} is captured in a CUDA graph before its first call"
            raise RuntimeError(f"{what}: call it once before, which compiles its kernels")
        chosen = stage_of_layer(stage, engine, problem, RESIDUAL in options)
        _plans[key] = Plan(problem, chosen, None, engine, own_workspace=False, **_switches(options))
    return _plans[key]


conv2d.register_autograd(Convolution.backward, setup_context=Convolution.setup_context)
input_gradient.register_autograd(InputGradient.backward, setup_context=InputGradient.setup_context)
weight_gradient.register_autograd(
    WeightGradient.backward, setup_context=WeightGradient.setup_context
)
