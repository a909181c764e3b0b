"""``conv1d``, ``conv2d``, ``conv3d``: any stage on any engine, for any library's arrays."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from threading import local
from typing import Any, NamedTuple

import numpy as np

from convlab.ladder import Tile, stage_named
from convlab.ladder.stage import SOURCES
from convlab.problems.arrays import (
    Array,
    ArrayT,
    Placement,
    dtype_name,
    extent,
    on_gpu,
    on_host,
    placement_of,
)
from convlab.problems.problem import ConvProblem
from convlab.problems.settings import IntOrEach, Padding, Windows, windows_of
from convlab.running.engines import Engine, choose
from convlab.running.plans import Plan, check_fits, plan
from convlab.running.simulated_time import announced
from convlab.support.values import integer, shown

Settings = tuple[IntOrEach, Padding, IntOrEach, int]  # stride, padding, dilation, groups
# The GPU, its stream, and all that a plan is made for.
PlanKey = tuple[int, int, ConvProblem, str, Tile | None]
ALL = slice(None)  # a whole axis: Numba's device arrays take no ellipsis
KEPT_PLANS, KEPT_BYTES = 16, 2**28  # of a thread's last calls on a GPU; bytes of workspace in all
KEPT_SHORT = 256  # calls whose checks are kept


def conv1d(
    input: ArrayT,
    weight: ArrayT,
    bias: ArrayT | None = None,
    stride: IntOrEach = 1,
    padding: Padding = 0,
    dilation: IntOrEach = 1,
    groups: int = 1,
    *,
    stage: str = "auto",
    tile: Tile | None = None,
    engine: str = "auto",
    out: ArrayT | None = None,
) -> ArrayT:
    """1-D convolution of ``[N_i, C_i, W_i]`` with ``[C_o, C_i / groups, W_f]``, as PyTorch's
    ``F.conv1d``: a 2-D convolution of height 1. All else is as in :func:`conv2d`."""
    arrays, settings = (input, weight, bias, out), (stride, padding, dilation, groups)
    result: ArrayT = _convolve(1, arrays, settings, stage, tile, engine)
    return result


def conv2d(
    input: ArrayT,
    weight: ArrayT,
    bias: ArrayT | None = None,
    stride: IntOrEach = 1,
    padding: Padding = 0,
    dilation: IntOrEach = 1,
    groups: int = 1,
    *,
    stage: str = "auto",
    tile: Tile | None = None,
    engine: str = "auto",
    out: ArrayT | None = None,
) -> ArrayT:
    """2-D convolution (cross-correlation) with the meaning of PyTorch's ``F.conv2d``.

    ``input`` is float32 of shape (N_i, C_i, H_i, W_i), or (C_i, H_i, W_i) for one image, ``weight``
    (C_o, C_i / groups, H_f, W_f), ``bias`` (C_o,) or None: arrays of NumPy, Numba, CuPy, PyTorch or
    JAX, all of one library and device, of any strides. The result, float32 of shape (N_i, C_o, H_o,
    W_o), without N_i for one image, is a contiguous array of that library on that device; ``out``
    may give the array to write it to. ``padding`` may also be ``'same'`` or ``'valid'``. Without
    images or channels the result is empty, as in PyTorch.

    ``stage="auto"`` is m15 on a GPU, m11 on a GPU of compute capability below 8.0, m01 on a
    simulator, and ``grouped`` for groups; any other stage computes one group after the other. A
    simulator takes seconds per million multiply-adds; before a call of more than half a minute it
    says on standard error how long the call will take, and then shows its progress. On a GPU the
    work runs on the current stream of CuPy or PyTorch, else on the default stream. Arrays that are
    C-contiguous and begin at a multiple of 16 bytes are not copied. Plans for a thread's last few
    problems are kept, with at most 256 MiB of workspace. On a GPU, m15 may use split-K for few
    outputs, so the last bits may differ from call to call; :func:`plan` with ``split_k=False``
    never splits.

    Raises ``TypeError`` or ``ValueError`` naming the argument, its value and the rule, and what
    :func:`plan` raises; ``out`` is then untouched. ``ModuleNotFoundError`` says that arrays of
    CuPy, PyTorch and JAX need array-api-compat, ``RuntimeError`` that ``torch.compile`` takes
    ``convlab.torch.Conv2d`` instead.
    """
    arrays, settings = (input, weight, bias, out), (stride, padding, dilation, groups)
    result: ArrayT = _convolve(2, arrays, settings, stage, tile, engine)
    return result


def conv3d(
    input: ArrayT,
    weight: ArrayT,
    bias: ArrayT | None = None,
    stride: IntOrEach = 1,
    padding: Padding = 0,
    dilation: IntOrEach = 1,
    groups: int = 1,
    *,
    stage: str = "auto",
    tile: Tile | None = None,
    engine: str = "auto",
    out: ArrayT | None = None,
) -> ArrayT:
    """3-D convolution of ``[N_i, C_i, D_i, H_i, W_i]`` with ``[C_o, C_i / groups, D_f, H_f, W_f]``,
    as PyTorch's ``F.conv3d``. It is a 2-D convolution with one image for each output plane; the
    image's channels are copies of the D_f input planes that the output plane sees. All else is as
    in :func:`conv2d`."""
    arrays, settings = (input, weight, bias, out), (stride, padding, dilation, groups)
    result: ArrayT = _convolve(3, arrays, settings, stage, tile, engine)
    return result


class _Call(NamedTuple):
    """A call's settings, checked: the 2-D problem that it becomes, and its output's shape."""

    problem: ConvProblem
    depth: int  # input planes; 0 for fewer axes
    windows: Windows  # of all axes
    shape: tuple[int, ...]
    is_empty: bool


def _call_of(
    axes: int, input: tuple[int, ...], weight: tuple[int, ...], settings: Settings
) -> _Call:
    """Check a call's shapes and settings. Raises ``TypeError`` or ``ValueError`` where they do not
    fit."""
    stride, padding, dilation, groups = settings
    groups = integer("groups", groups, at_least=1)
    for name, shape in (("input", input), ("weight", weight)):
        if len(shape) != axes + 2 and not (name == "input" and len(shape) == axes + 1):
            may = f"{axes + 2} dimensions{f', or {axes + 1}' if name == 'input' else ''}"
            raise ValueError(f"{name} has shape {shown(shape)}: it must have {may}")
    batched = input if len(input) == axes + 2 else (1, *input)
    N_i, C_i, *size = batched
    C_o, channels, *kernel = weight
    if C_i % groups or C_o % groups:
        must = f"it must divide input's {C_i} channels and weight's {C_o} filters"
        raise ValueError(f"groups is {groups}: {must}")
    if channels != C_i // groups:
        raise ValueError(
            f"weight has shape {shown(weight)}: its second size must be input's {C_i} channels"
            f"{'' if groups == 1 else f' / {groups} groups'}"
        )
    windows = windows_of(axes, kernel, stride, padding, dilation)
    taps, strides, zeros, dilations = windows
    if axes == 1:
        size, taps, strides, dilations = [1, *size], (1, *taps), (1, *strides), (1, *dilations)
        zeros = ((0, 0), *zeros)
    depth, planes_out, planes_seen = 0, 1, 1
    if axes == 3:
        depth = integer("input's depth", size[0], at_least=1)
        planes_out, planes_seen = windows.outputs(size)[0], taps[0]
    problem = ConvProblem(
        max(N_i, 1) * planes_out, max(C_i, groups) * planes_seen, size[-2], size[-1], C_o,
        taps[-2:], strides[-2:], zeros[-2:], dilations[-2:], groups,
    )  # fmt: skip
    sizes = (planes_out, *problem.output_size)[3 - axes :]
    shape = (C_o if C_i else 0, *sizes)  # as in PyTorch, no channels if the input has none
    whole = (N_i, *shape) if len(input) == axes + 2 else shape
    return _Call(problem, depth, windows, whole, not (N_i and C_i))


class _Asked(NamedTuple):
    """The stage, tile and engine that a call asks for, and the GPU's stream, 0 by default."""

    stage: str
    tile: Tile | None
    engine: Engine
    stream: int = 0

    def put(self, target: Any, key: Any, value: Any) -> Any:
        """``target[key] = value`` of the engine's arrays, on the stream; the target."""
        if self.stream:
            from numba import cuda

            target.setitem(key, value, cuda.external_stream(self.stream))
        else:
            target[key] = value
        return target


def _convolve(
    axes: int, arrays: tuple[Any, ...], settings: Settings,
    stage: str, tile: Tile | None, engine_name: str,
) -> Any:  # fmt: skip
    input, weight, bias, out = arrays
    _refuse_compiling(f"conv{axes}d")
    if (result := _again(axes, arrays, (*settings, stage, tile, engine_name))) is not None:
        return result
    asked = _Asked(stage, tile, engine := choose(engine_name))
    optional = {name: array for name, array in (("bias", bias), ("out", out)) if array is not None}
    given = {"input": input, "weight": weight, **optional}
    placement = _placement(given)
    call = _call_of(axes, tuple(input.shape), tuple(weight.shape), settings)
    _check_shape("bias", bias, (weight.shape[0],))
    _check_shape("out", out, call.shape)
    if call.is_empty:
        return placement.empty(call.shape) if out is None else out
    if engine.is_gpu and placement.gpu is not None:
        result = _on_gpu(given, call, asked, placement)
        if placement.library == "PyTorch":
            _remember(axes, arrays, (*settings, stage, tile, engine_name), call, asked)
        return result

    views = {name: on_host(array) for name, array in given.items()}
    _check_out(views)
    sizes = [math.prod(views[name].shape) for name in ("input", "weight")]
    needed = 4 * (sum(sizes) + math.prod(call.shape))
    check_fits("copying input, weight and output", needed, engine)
    tensors = [engine.to_device(views[name]) if name in views else None for name in SOURCES]
    made = engine.empty(call.shape)
    _run(call, tensors, made, asked)
    result = engine.to_host(made)
    if out is None:
        return placement.from_host(result)
    target = views["out"] if placement.gpu is None else on_gpu(out)
    target[ALL] = result
    return out


# The short way of a call with PyTorch's tensors, where an equal one was computed before. Checks and
# Numba's views of arrays take ten times as long as a launch, and do not depend on the numbers.


class _Short(NamedTuple):
    """A call that was checked: what its plan is made for, and its output's shape, in 2-D and as the
    caller has it."""

    problem: ConvProblem
    stage: str
    tile: Tile | None
    output_shape: tuple[int, ...]
    shape: tuple[int, ...]


def _short_key(axes: int, arrays: tuple[Any, ...], asked: tuple[object, ...]) -> tuple[object, ...]:
    input, weight, bias, _ = arrays
    return axes, input.shape, weight.shape, None if bias is None else bias.shape, asked


def _again(axes: int, arrays: tuple[Any, ...], asked: tuple[object, ...]) -> Any:
    """Return the convolution, if an equal call has left its plan and this call may take it; else
    None."""
    known = vars(_kept).get("short")
    input, weight, bias, out = arrays
    if not known or out is not None:
        return None
    from convlab.running.torch_tensors import (
        TENSORS,
        current_stream,
        goes_short,
        is_whole,
        needs_gradient,
    )

    if type(input) not in TENSORS or not goes_short(gpu := input.get_device(), input, weight, bias):
        return None
    tensors = input, weight, *(() if bias is None else (bias,))
    if needs_gradient(tensors) or not all(map(is_whole, tensors)):
        return None
    try:
        found = known.get(_short_key(axes, arrays, asked))
    except TypeError:  # a setting that is a list has no hash
        return None
    if found is None:
        return None
    stream = current_stream(gpu)
    plan_key = gpu, stream, found.problem, found.stage, found.tile
    if (ready := _kept.plans.get(plan_key)) is None:
        return None
    _kept.plans.move_to_end(plan_key)
    made = input.new_empty(found.output_shape)
    if found.shape == found.output_shape:
        ready(input, weight, made, bias, stream=stream)
        return made
    input, weight = input.view(found.problem.input_shape), weight.view(found.problem.weight_shape)
    ready(input, weight, made, bias, stream=stream)
    return made.view(found.shape)


def _remember(
    axes: int, arrays: tuple[Any, ...], given: tuple[object, ...], call: _Call, asked: _Asked
) -> None:
    """Let later calls like this one of PyTorch's tensors take the short way. A call of several
    plans, or with copies of planes, has none."""
    groups = call.problem.groups
    several = groups > 1 and asked.stage != "auto" and not stage_named(asked.stage).grouped
    if call.depth or several:
        return
    known = vars(_kept).setdefault("short", {})
    if len(known) >= KEPT_SHORT:
        known.clear()
    with suppress(TypeError):  # as above
        key = _short_key(axes, arrays, given)
        known[key] = _Short(
            problem=call.problem,
            stage=asked.stage,
            tile=asked.tile,
            output_shape=call.problem.output_shape,
            shape=call.shape,
        )


def _refuse_compiling(name: str) -> None:
    """Raise ``RuntimeError`` inside ``torch.compile``, whose own errors would not say why."""
    if (torch := sys.modules.get("torch")) is None or "torch._dynamo" not in sys.modules:
        return
    # PyTorch runs a function that it cannot trace, but traces what this function calls. In that
    # case only the callback shows that PyTorch traces.
    callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)
    if torch.compiler.is_compiling() or callable(callback()):
        what = f"{name} is called inside torch.compile, which cannot trace it"
        layer = f"convlab.torch.{name.capitalize()}"
        raise RuntimeError(f"{what}: use {layer}, or convlab.torch.replace on a model")


def _on_gpu(given: dict[str, Any], call: _Call, asked: _Asked, placement: Placement) -> Any:
    """Return the convolution of arrays in a GPU's memory, on the stream of the library's next
    work."""
    from numba import cuda

    engine = asked.engine
    with nullcontext() if placement.library == "Numba" else cuda.gpus[placement.gpu]:
        asked = asked._replace(stream=placement.stream())
        views = {name: on_gpu(array, asked.stream) for name, array in given.items()}
        _check_out(views)
        result = given["out"] if "out" in given else placement.empty(call.shape)
        view = on_gpu(result, asked.stream)
        made = view if _is_whole(view) else engine.empty(call.shape)
        for name in given.keys() & {*SOURCES}:
            if not _is_whole(views[name]):
                views[name] = asked.put(engine.empty(views[name].shape), ALL, views[name])
        _run(call, [*map(views.get, SOURCES)], made, asked)
        if made is not view:
            asked.put(view, ALL, made)
        if placement.library == "JAX":  # whose next work runs on a stream of its own
            engine.synchronize()
    return result


def _is_whole(array: Any) -> bool:
    """Return True if a stage can read a device array without a copy, also by float4 loads."""
    return bool(array.is_c_contiguous()) and extent(array)[0] % 16 == 0


def _run(call: _Call, tensors: list[Any], out: Any, asked: _Asked) -> None:
    """Write the convolution of the engine's contiguous arrays to ``out``."""
    (input, weight, bias), problem = tensors, call.problem
    filters = weight.reshape(problem.weight_shape)
    if not call.depth:
        images, maps = input.reshape(problem.input_shape), out.reshape(problem.output_shape)
        _run_groups(problem, (images, filters, bias), maps, asked)
        return
    # All images' planes at once: [N_i, C_i, D_i, H_i, W_i] to [N_i, D_o, C_i, D_f, H_i, W_i].
    windows = call.windows
    D_f, stride, dilation = windows.kernel[0], windows.stride[0], windows.dilation[0]
    before = windows.padding[0][0]  # planes of zeros
    D_i, D_o = call.depth, call.shape[-3]
    N_i, C_i, size = problem.N_i // D_o, problem.C_i // D_f, (problem.H_i, problem.W_i)
    volume = input.reshape((N_i, C_i, D_i, *size))
    seen = asked.engine.empty((N_i, D_o, C_i, D_f, *size))
    for d in range(D_o):
        for tap in range(D_f):
            plane = d * stride + tap * dilation - before
            inside = 0 <= plane < D_i
            asked.put(seen, (ALL, d, ALL, tap), volume[:, :, plane] if inside else np.float32(0))
    maps = asked.engine.empty(problem.output_shape)
    _run_groups(problem, (seen.reshape(problem.input_shape), filters, bias), maps, asked)
    planes = maps.reshape((N_i, D_o, *maps.shape[1:]))
    volume = out.reshape((N_i, problem.C_o, D_o, *problem.output_size))
    for d in range(D_o):
        asked.put(volume, (ALL, ALL, d), planes[:, d])


def _run_groups(problem: ConvProblem, tensors: tuple[Any, ...], out: Any, asked: _Asked) -> None:
    """Run all groups by one plan, or one after the other where the stage has none."""
    groups, stream = problem.groups, asked.stream or None
    if groups == 1 or asked.stage == "auto" or stage_named(asked.stage).grouped:
        ready, (input, weight, bias) = _ready(problem, *asked), tensors
        ready(input, weight, out, bias, stream=stream)
        return
    C_i, C_o = problem.C_i // groups, problem.C_o // groups
    ready = _ready(replace(problem, in_channels=C_i, out_channels=C_o, groups=1), *asked)
    one, empty = ready.problem, asked.engine.empty
    shapes = one.input_shape, one.weight_shape, (C_o,)
    pairs = zip(tensors, shapes, strict=True)
    own: list[Any] = [None if tensor is None else empty(shape) for tensor, shape in pairs]
    part = empty(one.output_shape)
    with announced(ready.problem, ready.stage, ready.tile, ready.engine, calls=groups):
        for g in range(groups):
            channels, filters = slice(g * C_i, (g + 1) * C_i), slice(g * C_o, (g + 1) * C_o)
            keys = (ALL, channels), filters, filters
            for target, tensor, key in zip(own, tensors, keys, strict=True):
                if tensor is not None:
                    asked.put(target, ALL, tensor[key])
            ready(own[0], own[1], part, own[2], stream=stream)
            asked.put(out, (ALL, filters), part)


# Each thread keeps its own plans: a plan runs one call at a time, and threads may have own streams.
_kept = local()


def _ready(
    problem: ConvProblem, stage: str, tile: Tile | None, engine: Engine, stream: int = 0
) -> Plan:
    """Return the problem's plan; on a GPU an earlier call on the same stream may have kept it."""
    prepare = partial(plan, problem, stage, tile, engine.name)
    asked = isinstance(stage, str) and isinstance(tile, Tile | None)  # plan says what is wrong
    if not (engine.is_gpu and asked):
        # On a simulator each call gets a fresh workspace of NaN, which shows unwritten elements.
        return prepare()
    kept: OrderedDict[PlanKey, Plan] = vars(_kept).setdefault("plans", OrderedDict())
    key = (_current_gpu(), stream, problem, stage, tile)
    if (ready := kept.get(key)) is not None:
        kept.move_to_end(key)
        return ready
    try:
        ready = prepare()
    except MemoryError:  # the kept plans may hold the missing memory
        kept.clear()
        ready = prepare()
    if ready.workspace_bytes <= KEPT_BYTES:
        kept[key] = ready
        while len(kept) > KEPT_PLANS or sum(p.workspace_bytes for p in kept.values()) > KEPT_BYTES:
            kept.popitem(last=False)
    return ready


def _current_gpu() -> int:
    from numba import cuda

    return int(cuda.get_current_device().id)


def _placement(arrays: dict[str, Any]) -> Placement:
    """Return the place of the arrays; TypeError unless they are in one place and float32."""
    of_input = placement_of("input", arrays["input"])
    for name, array in arrays.items():
        if (placement := placement_of(name, array)) != of_input:
            raise TypeError(f"{name} is of {placement}: it must be of input's {of_input}")
        if (dtype := dtype_name(array)) != "float32":
            raise TypeError(f"{name} has dtype {dtype[:50]}: it must be float32")
    if of_input.library == "JAX" and "out" in arrays:
        raise TypeError("out is a JAX array, which nothing can write to: it must be None")
    return of_input


def _check_shape(name: str, array: Array | None, shape: tuple[int, ...]) -> None:
    if array is not None and tuple(array.shape) != shape:
        raise ValueError(f"{name} has shape {shown(tuple(array.shape))}: it must be {shape}")


def _check_out(views: dict[str, Any]) -> None:
    """Raise ``ValueError`` if ``out`` is read-only or shares memory with an input or itself."""
    if (out := views.get("out")) is None:
        return
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only: it must be writable")
    if any(size > 1 and not step for size, step in zip(out.shape, out.strides, strict=True)):
        raise ValueError("out has elements that share memory: each must have its own")
    start, end = extent(out)
    for name in views.keys() & {*SOURCES}:
        source_start, source_end = extent(views[name])
        if start < source_end and source_start < end:
            raise ValueError(f"out shares memory with {name}: it must have its own")
