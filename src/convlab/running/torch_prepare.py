"""A model's kernels compiled before its first call: ``convlab.torch.prepare``, and in that call.

A copy of the model is called with tensors that have shapes and no numbers. Its layers note the
convolutions that they are asked for, and these are compiled in several processes.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from convlab.running.compile_ahead import compile_ahead
from convlab.running.engines import choose
from convlab.running.torch_asked import Asked, noted_convolutions
from convlab.support.values import shown

HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called",
)  # fmt: skip
# Classes that only wrap a model.
_WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


def prepare(
    model: torch.nn.Module,
    example: Tensor | tuple[Any, ...] | Mapping[str, Any],
    *,
    backward: bool | None = None,
    processes: int | None = None,
) -> int:
    """Compile all kernels that convlab's layers in ``model`` need for inputs of the shapes of
    ``example``, in several processes, and return how many were compiled: those that the cache on
    disk has are not compiled again.

    ``example`` is what the model is called with: a tensor, a tuple of arguments, or a mapping of
    arguments by name. ``backward`` compiles the gradients' kernels too, of the inputs and weights
    that need gradients; None does so if the model is in training mode. ``processes`` is by default
    the number of cores. It says on standard error how long it will take and how far it is. Ctrl-C
    ends it, and the next call goes on from there. Without a GPU there is nothing to compile.

    A copy of the model is called, without hooks and with tensors that have no numbers, so neither
    parameters nor buffers change and a GPU has nothing to do.

    Raises ``TypeError`` for a wrong argument; ``ValueError`` for a ``processes`` below 1, or a
    model that cannot be called without numbers, with the reason; ``RuntimeError`` for a kernel that
    cannot be compiled, after the others are.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {shown(model)}: it must be a torch.nn.Module")
    if not isinstance(example, Tensor | tuple | Mapping):
        rule = "it must be a tensor, a tuple of arguments or a mapping of arguments by name"
        raise TypeError(f"example is {shown(example)}: {rule}")
    if not isinstance(backward, bool | None):
        raise TypeError(f"backward is {shown(backward)}: it must be True, False or None")
    if processes is not None and type(processes) is not int:
        raise TypeError(f"processes is {shown(processes)}: it must be an int or None")
    if processes is not None and processes < 1:
        raise ValueError(f"processes is {processes}: it must be at least 1")
    arguments, named = _arguments(example)
    gradients = model.training if backward is None else backward
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(gradients):
            inner, device = _without_wrappers(model)
            asked = convolutions_of(inner, arguments, named, device)
    except Exception as error:  # a model may raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"the model cannot be prepared, because it cannot be called without numbers: {reason}"
        ) from error
    return compile_asked(asked, processes)


def _without_wrappers(model: torch.nn.Module) -> tuple[torch.nn.Module, torch.device | None]:
    """Return the model inside PyTorch's wrappers of it, ``torch.compile``'s too, and the device to
    which a wrapper moves what it is called with; None if the caller does that."""
    device = None
    while (inner := getattr(model, "_orig_mod", None)) is not None or isinstance(model, _WRAPPERS):
        if isinstance(model, _WRAPPERS) and model.device_ids:
            device = next((one.device for one in model.parameters()), device)
        model = model.module if inner is None else inner
    return model, device


def _arguments(
    example: Tensor | tuple[Any, ...] | Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Tensor):
        return (example,), {}
    return (example, {}) if isinstance(example, tuple) else ((), dict(example))


def convolutions_of(
    model: torch.nn.Module,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
    device: torch.device | None = None,
) -> list[Asked]:
    """Return what the model's layers are asked for in such a call, of tensors that are moved to
    ``device`` before if there is one. Raises whatever the model raises without numbers."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def without_numbers(tensor: Tensor) -> Tensor:
        made = fake.from_tensor(tensor)
        return made if device is None else made.to(device)

    with fake, noted_convolutions() as asked:
        _without_numbers(model, fake)(
            *tree_map_only(Tensor, without_numbers, arguments),
            **tree_map_only(Tensor, without_numbers, dict(named)),
        )
    return asked


def _without_numbers(model: torch.nn.Module, fake: FakeTensorMode) -> torch.nn.Module:
    """Return a copy of the model whose parameters and buffers have no numbers, and without hooks:
    they are the user's, who does not expect a call."""
    tensors = [*model.parameters(), *model.buffers()]
    copied = copy.deepcopy(model, {id(tensor): fake.from_tensor(tensor) for tensor in tensors})
    for module in copied.modules():
        for hooks in HOOKS:
            getattr(module, hooks).clear()
    return copied


def compile_asked(asked: list[Asked], processes: int | None = None) -> int:
    """Compile the kernels of these convolutions, and of their gradients where those are needed, for
    the current GPU; return how many were compiled."""
    on_gpu = [(one, choose(one.settings.engine)) for one in asked]
    on_gpu = [(one, engine) for one, engine in on_gpu if engine.is_gpu]
    if not on_gpu:
        return 0
    wanted = [problem for one, _ in on_gpu for problem in one.wanted()]
    return compile_ahead(wanted, on_gpu[0][1], processes)


# The first call.

_called: set[Asked] = set()
_CALL = torch.nn.Module._call_impl.__code__  # how every module is called


def before_first_call(asked: Asked) -> None:
    """Compile in several processes what a layer is asked for, if that is new; inside a model, also
    what the model's other layers will be asked for. Without a GPU there is nothing to do."""
    if asked in _called or not choose(asked.settings.engine).is_gpu:
        return
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return  # nobody may compile now
    found = [asked, *_asked_of_model()]
    with suppress(RuntimeError):  # the layer that needs the kernel will say so
        compile_asked(found)
    _called.update(found)


def _asked_of_model() -> list[Asked]:
    """Return what the layers of the model that is called now are asked for; nothing where there is
    no model, or one that cannot be called without numbers."""
    if torch._C._len_torch_dispatch_stack() or (call := _outermost_call()) is None:
        return []  # somebody may be counting the model's operators
    gradients = torch.is_grad_enabled()
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(gradients):
            return convolutions_of(call.module, call.arguments, call.named)
    except Exception:  # a model may raise anything; its layers are then compiled one by one
        return []


class _Call(NamedTuple):
    """A call of a module."""

    module: torch.nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]


def _outermost_call() -> _Call | None:
    """Return the outermost call of a module that contains the layer, other than of PyTorch's
    wrappers of a model."""
    calls: list[_Call] = []  # the layer's first
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _CALL:
            calls.append(_Call(*(frame.f_locals[name] for name in ("self", "args", "kwargs"))))
        frame = frame.f_back
    if not calls:
        return None
    layer, *outer = calls
    models = (call for call in reversed(outer) if not isinstance(call.module, _WRAPPERS))
    return next((call for call in models if layer.module in {*call.module.modules()}), None)
