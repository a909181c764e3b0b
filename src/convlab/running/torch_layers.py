"""PyTorch's layers, with any stage of the ladder as their convolution and its gradients.

:mod:`convlab.torch` is their public name. ``torch_convolution.py`` has the convolution that they
call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import FrameType

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.lazy import LazyModuleMixin

from convlab.ladder import stage_named
from convlab.problems.settings import IntOrEach, each, windows_of
from convlab.running.chosen_stages import AUTO_TF32, asked_stage, computes_tf32
from convlab.running.engines import choose
from convlab.running.torch_convolution import convolve
from convlab.running.torch_short import remember, seen_before
from convlab.running.torch_tensors import autocast_type
from convlab.support.values import integer, shown

# Where torch.fx traces a layer itself, this is one call: its checks ask for what no Proxy has.
torch.fx.wrap("convolve")


class _Layer(_ConvNd):  # type: ignore[misc]
    """The common part of the layers of 1, 2 and 3 axes, each of which is derived from PyTorch's
    layer too."""

    axes: int
    stage: str
    engine: str
    precision: str | None = None  # a layer of an older version, unpickled, has none

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntOrEach,
        stride: IntOrEach = 1,
        padding: IntOrEach | str = 0,
        dilation: IntOrEach = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        stage: str = "auto",
        engine: str = "auto",
        precision: str | None = None,
    ) -> None:
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if integer(name, channels, at_least=0) % integer("groups", groups, at_least=1):
                raise ValueError(f"groups is {groups}: it must divide {name}, {channels}")
        if not isinstance(padding, str):
            each("padding", padding, self.axes, at_least=0)  # PyTorch takes no two of an axis
        windows = windows_of(self.axes, kernel_size, stride, padding, dilation)
        super().__init__(
            in_channels, out_channels, windows.kernel, windows.stride,
            padding if isinstance(padding, str) else tuple(before for before, _ in windows.padding),
            windows.dilation, groups, bias, padding_mode, device, dtype,
        )  # fmt: skip
        _check(self, stage, engine, precision)
        _set(self, stage, engine, precision)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # Read at each call, as PyTorch does: programs change a layer's padding and dilation.
        stage = _stage_now(self, input)
        settings = self.stride, self.padding, self.dilation, self.groups, stage, self.engine
        if torch.compiler.is_dynamo_compiling():  # which traces no search for the layer's name
            return convolve(self.axes, input, weight, bias, *settings)
        try:
            if autocast_type((input, weight)) is not None:
                return convolve(self.axes, input, weight, bias, *settings)
            if (seen := seen_before(self.axes, input, weight, bias, settings)) is not None:
                return seen(input, weight, bias)
            output = convolve(self.axes, input, weight, bias, *settings)
        except Exception as error:
            _name_layer(error, self)
            raise
        remember(self.axes, input, weight, bias, settings)
        return output

    def extra_repr(self) -> str:
        own = f"stage={self.stage}, engine={self.engine}"
        if self.precision is not None:
            own += f", precision={self.precision}"
        return f"{super().extra_repr()}, {own}"


class Conv1d(_Layer, torch.nn.Conv1d):  # type: ignore[misc]
    """``torch.nn.Conv1d`` by a stage of the ladder, as a 2-D convolution of height 1. All else is
    as in :class:`Conv2d`."""

    axes = 1


class Conv2d(_Layer, torch.nn.Conv2d):  # type: ignore[misc]
    """``torch.nn.Conv2d`` by a stage of the ladder: the same arguments, parameters and state dict.

    Takes and returns float32, float16 or bfloat16 ``[N_i, C_i, H_i, W_i]`` tensors, or one image
    without ``N_i``, of any strides; the result is contiguous, but of 16 bits it has its channels
    last in memory if ``input`` has. ``torch.autocast`` casts the tensors, as for PyTorch's layer.
    ``precision`` is that of float32 tensors: ``"float32"``, ``"tf32"``, or None, which on a GPU
    with a stage for TF32 means what ``torch.backends.cudnn.allow_tf32`` says, PyTorch's default
    being TF32. Gradients are computed in float32. ``stage`` computes the output and both gradients
    (g02 through it); ``"auto"`` is :func:`convlab.plan`'s; groups are computed by ``grouped`` where
    the stage has none. ``engine="auto"`` is the GPU where there is one: a tensor elsewhere is
    copied there and its result back. Raises ``ValueError`` for an unknown stage, engine or
    precision, or a ``padding_mode`` other than zeros; at a call, ``TypeError`` for a tensor of
    another type, ``ValueError`` for a shape that does not fit, and ``NotImplementedError`` for
    derivatives in forward mode. Inside a model, the error of a call begins with the layer's name.
    """

    axes = 2


class Conv3d(_Layer, torch.nn.Conv3d):  # type: ignore[misc]
    """``torch.nn.Conv3d`` by a stage of the ladder: a 2-D convolution with one image for each
    output plane, whose channels are copies of the input planes that the output plane sees. All else
    is as in :class:`Conv2d`."""

    axes = 3


LAYERS = {torch.nn.Conv1d: Conv1d, torch.nn.Conv2d: Conv2d, torch.nn.Conv3d: Conv3d}


class Replaced(int):
    """The number of layers that :func:`replace` replaced, and which: ``replaced`` are their names,
    ``skipped`` are the names of the other convolutions, each with the reason."""

    replaced: tuple[str, ...]
    skipped: dict[str, str]

    def __new__(cls, replaced: Iterable[str], skipped: dict[str, str]) -> Replaced:
        names = tuple(replaced)
        number = super().__new__(cls, len(names))
        number.replaced, number.skipped = names, skipped
        return number

    def __getnewargs__(self) -> tuple[tuple[str, ...], dict[str, str]]:  # type: ignore[override]
        """Return what copies and pickles are made with."""
        return self.replaced, self.skipped

    def __str__(self) -> str:
        return str(int(self))

    def __repr__(self) -> str:
        return f"Replaced(replaced={self.replaced}, skipped={self.skipped})"


Skip = str | Iterable[str] | Callable[[str, torch.nn.Module], bool]


def replace(
    model: torch.nn.Module,
    stage: str = "auto",
    engine: str = "auto",
    *,
    precision: str | None = None,
    skip: Skip = (),
) -> Replaced:
    """Make each ``torch.nn.Conv1d``, ``Conv2d`` and ``Conv3d`` of ``model``, itself included, the
    layer of that name here, of that stage, engine and precision, in place: parameters, hooks and
    names stay.

    Returns how many there are, as an int that also lists them, and the convolutions that stay as
    they are, with the reason: see :class:`Replaced`. Layers of derived classes stay, because they
    may compute something else, and so do those that ``skip`` names: a name of the model's
    ``named_modules()``, or several, each with all that is inside; or a function that takes name and
    layer and says ``True``.

    Before any layer is changed, raises as :class:`Conv2d` does, with the layer's name, for a layer
    that is not skipped; ``TypeError`` for a ``model`` that is not a ``torch.nn.Module``;
    ``ValueError`` for a name in ``skip`` that the model does not have.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {shown(model)}: it must be a torch.nn.Module")
    is_skipped = _skipping(model, skip)
    chosen: dict[str, torch.nn.Module] = {}
    skipped: dict[str, str] = {}
    for name, layer in model.named_modules():
        if type(layer) not in _REPLACED_BY:
            if (reason := _why_kept(layer)) is not None:
                skipped[name] = reason
        elif is_skipped(name, layer):
            skipped[name] = "skip selects it"
        else:
            _check(layer, stage, engine, precision, name)
            chosen[name] = layer
    for layer in chosen.values():
        layer.__class__ = _REPLACED_BY[type(layer)]
        _set(layer, stage, engine, precision)
    return Replaced(chosen, skipped)


_REPLACED_BY: dict[type, type[_Layer]] = {**LAYERS, **{one: one for one in LAYERS.values()}}


def _skipping(model: torch.nn.Module, skip: Skip) -> Callable[[str, torch.nn.Module], bool]:
    """Return the function that says whether ``skip`` selects a layer."""
    if callable(skip):
        return skip
    try:
        names = [skip] if isinstance(skip, str) else [*skip]
    except TypeError:
        rule = "it must be a name, several names, or a function of a name and a layer"
        raise TypeError(f"skip is {shown(skip)}: {rule}") from None
    modules = list(model.named_modules(remove_duplicate=False))  # a shared layer has several names
    known = {name for name, _ in modules}
    for name in names:
        if name not in known:
            rule = "it must name modules of the model, as named_modules() does"
            raise ValueError(f"skip has {shown(name)}: {rule}")

    def is_inside(module: str) -> bool:
        return any(name in ("", module) or module.startswith(f"{name}.") for name in names)

    selected = {id(layer) for module, layer in modules if is_inside(module)}
    return lambda _, layer: id(layer) in selected


def _why_kept(layer: torch.nn.Module) -> str | None:
    """Return why a layer of another class stays as it is; None for one that is not a
    convolution."""
    kind = type(layer).__name__
    if isinstance(layer, torch.jit.ScriptModule):
        compiled = getattr(layer, "original_name", "")
        is_convolution = compiled in {one.__name__ for one in LAYERS}
        return f"TorchScript has compiled this {compiled}" if is_convolution else None
    if not isinstance(layer, _ConvNd):
        return None
    if isinstance(layer, _ConvTransposeNd):
        return f"{kind} is a transposed convolution, which convlab does not have"
    if torch.nn.utils.parametrize.is_parametrized(layer):
        return f"{kind} is parametrized: replace the layer first, then parametrize it"
    if isinstance(layer, LazyModuleMixin):
        return f"{kind} has no sizes until its first call: call the model once first"
    bases = (f"{one.__module__}.{one.__name__}" for one in _REPLACED_BY if isinstance(layer, one))
    if (base := next(bases, None)) is not None:
        return f"{kind} is derived from {base}, and may compute something else"
    return f"{kind} is not a layer that convlab has"


def _check(
    layer: torch.nn.Module, stage: str, engine: str, precision: str | None, name: str = ""
) -> None:
    """Raise ``ValueError`` or ``TypeError``, naming the layer, for what it cannot compute."""
    if (mode := layer.padding_mode) != "zeros":
        or_skip = f", or skip must select {name!r}" if name else ""
        where = f"{name}: " if name else ""
        raise ValueError(f"{where}padding_mode is {shown(mode)}: it must be 'zeros'{or_skip}")
    if not isinstance(stage, str) or stage != "auto":
        stage_named(stage)
    asked_stage(stage, precision)
    choose(engine)


def _stage_now(layer: _Layer, input: Tensor) -> str:
    """Return the stage that a layer asks for in a call. Without a precision of its own, a layer of
    ``stage="auto"`` takes PyTorch's setting for convolutions, which is one of CUDA's."""
    if not isinstance(input, Tensor) or input.dtype != torch.float32:
        return layer.stage
    if layer.precision is not None:
        return asked_stage(layer.stage, layer.precision)
    if layer.stage == "auto" and torch.backends.cudnn.allow_tf32:
        return AUTO_TF32 if _has_tf32(layer.engine, input.get_device()) else layer.stage
    return layer.stage


@lru_cache(maxsize=64)
def _has_tf32(engine_name: str, gpu: int) -> bool:
    """Return whether that GPU, or the current one for a tensor on the host, has TF32."""
    if not (engine := choose(engine_name)).is_gpu:
        return False
    if gpu < 0:
        return computes_tf32(engine.capability())
    return computes_tf32(torch.cuda.get_device_capability(gpu))


def _set(layer: torch.nn.Module, stage: str, engine: str, precision: str | None) -> None:
    """Give the layer its stage, engine and precision."""
    layer.stage, layer.engine, layer.precision = stage, engine, precision
    # torch.fx, and what is built on it, asks a module for its `__module__`, and takes those of
    # torch.nn as one call. A layer here stays one too, under its name in the model.
    layer.__module__ = torch.nn.Conv2d.__module__


def _name_layer(error: Exception, layer: torch.nn.Module) -> None:
    """Begin the error's message with the layer's name in the outermost module that is called, other
    than PyTorch's own wrappers of a model."""
    name = ""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_locals.get("self")
        is_wrapper = "._" in type(module).__module__  # torch.export._trace, torch._dynamo
        if isinstance(module, torch.nn.Module) and module is not layer and not is_wrapper:
            found = (name for name, one in module.named_modules() if one is layer)
            name = next(found, name)
        frame = frame.f_back
    if name and len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{name}: {error.args[0]}",)
