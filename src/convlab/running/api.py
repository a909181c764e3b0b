"""``conv1d``, ``conv2d``, ``conv3d``: any stage on any engine, for any library's arrays."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np

from convlab.ladder import Tile
from convlab.ladder.stage import READ_ONLY, RESIDUAL
from convlab.problems.arrays import (
    Array,
    ArrayT,
    Placement,
    dtype_name,
    extent,
    has_channels_last,
    is_whole,
    on_gpu,
    on_host,
    placement_of,
)
from convlab.problems.number_types import DTYPES, as_in_kernels
from convlab.problems.settings import IntOrEach, Padding
from convlab.running import short_calls
from convlab.running.chosen_stages import asked_stage
from convlab.running.convolution_call import Call, Settings, call_of
from convlab.running.engines import choose
from convlab.running.planes_and_groups import ALL, Chosen, convolve_arrays, runs_whole
from convlab.running.plans import check_fits
from convlab.support.values import shown


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
    precision: str | None = None,
    out: ArrayT | None = None,
) -> ArrayT:
    """1-D convolution of ``[N_i, C_i, W_i]`` with ``[C_o, C_i / groups, W_f]``, as PyTorch's
    ``F.conv1d``: a 2-D convolution of height 1. All else is as in :func:`conv2d`."""
    arrays, settings = (input, weight, bias, out), (stride, padding, dilation, groups)
    result: ArrayT = _convolve(1, arrays, settings, stage, tile, engine, precision)
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
    precision: str | None = None,
    relu: bool = False,
    residual: ArrayT | None = None,
    out: ArrayT | None = None,
) -> ArrayT:
    """2-D convolution (cross-correlation) with the meaning of PyTorch's ``F.conv2d``.

    ``input`` has shape (N_i, C_i, H_i, W_i), or (C_i, H_i, W_i) for one image, ``weight``
    (C_o, C_i / groups, H_f, W_f), ``bias`` (C_o,) or is None: arrays of NumPy, Numba, CuPy, PyTorch
    or JAX, all of one library and device, of any strides, and of one type: float32, float16 or
    bfloat16. The result of that type and of shape (N_i, C_o, H_o, W_o), without N_i for one image,
    is a contiguous array of that library on that device; ``out`` may give the array to write it to.
    ``precision="tf32"`` multiplies float32 numbers in TF32, which is faster; None and ``"float32"``
    keep float32's accuracy. Sums are float32 for every type.

    ``residual``, an array of the result's shape and type, is added to the sums, and ``relu=True``
    replaces negative results by zero: ``relu(conv2d(input, weight) + bias + residual)`` is one
    kernel, and each result is rounded once. ``out`` may be the residual itself. Stages with these
    options take them (``Stage.options``); those that add a residual are for 16 bits.

    Stages for 16 bits need the channels last in memory. Arrays that lie so, such as PyTorch's with
    ``torch.channels_last``, are read where they are; others are copied before the convolution, and
    its result after it. The result of a PyTorch tensor with its channels last has them last too.
    ``padding`` may also be ``'same'`` or ``'valid'``. Without
    images or channels the result is empty, as in PyTorch.

    ``stage="auto"`` is the faster of t06 and m15 on a GPU of compute capability 9.0, m15 or m11 on
    others, m01 on a simulator, ``grouped`` for groups, and for 16 bits and TF32 the last stage of
    the ladder that takes the problem; a stage without groups computes one group after the other. A
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
    result: ArrayT = _convolve(2, arrays, settings, stage, tile, engine, precision, relu, residual)
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
    precision: str | None = None,
    out: ArrayT | None = None,
) -> ArrayT:
    """3-D convolution of ``[N_i, C_i, D_i, H_i, W_i]`` with ``[C_o, C_i / groups, D_f, H_f, W_f]``,
    as PyTorch's ``F.conv3d``. It is a 2-D convolution with one image for each output plane; the
    image's channels are copies of the D_f input planes that the output plane sees. All else is as
    in :func:`conv2d`."""
    arrays, settings = (input, weight, bias, out), (stride, padding, dilation, groups)
    result: ArrayT = _convolve(3, arrays, settings, stage, tile, engine, precision)
    return result


def _convolve(
    axes: int, arrays: tuple[Any, ...], settings: Settings,
    stage: str, tile: Tile | None, engine_name: str, precision: str | None,
    relu: bool = False, residual: Any = None,
) -> Any:  # fmt: skip
    input, weight, bias, out = arrays
    _refuse_compiling(f"conv{axes}d")
    words = (*settings, stage, tile, engine_name, precision)
    if type(relu) is not bool:
        raise TypeError(f"relu is {shown(relu)}: it must be True or False")
    options = ("relu",) * relu + (RESIDUAL,) * (residual is not None)
    if not options and (result := short_calls.again(axes, arrays, words)) is not None:
        return result
    engine = choose(engine_name)
    more = (("bias", bias), (RESIDUAL, residual), ("out", out))
    optional = {name: array for name, array in more if array is not None}
    given = {"input": input, "weight": weight, **optional}
    placement, dtype = _placement(given), dtype_name(input)
    asked = Chosen(asked_stage(stage, precision, dtype), tile, engine, options=options)
    call = call_of(axes, tuple(input.shape), tuple(weight.shape), settings, dtype)
    _check_shape("bias", bias, (weight.shape[0],))
    _check_shape(RESIDUAL, residual, call.shape)
    _check_shape("out", out, call.shape)
    if call.is_empty:
        return placement.empty(call.shape, dtype) if out is None else out
    if engine.is_gpu and placement.gpu is not None:
        result = _on_gpu(given, call, asked, placement)
        if placement.library == "PyTorch" and not options:
            short_calls.remember(axes, arrays, words, call, asked)
        return result

    views = {name: on_host(array) for name, array in given.items()}
    _check_out(views)
    sizes = [math.prod(views[name].shape) for name in views.keys() & {"input", "weight", RESIDUAL}]
    needed = call.problem.number_type.nbytes * (sum(sizes) + math.prod(call.shape))
    check_fits("copying input, weight and output", needed, engine)
    tensors = [
        engine.to_device(views[name], dtype) if name in views else None for name in READ_ONLY
    ]
    made = engine.empty(call.shape, dtype)
    convolve_arrays(call, tensors, made, asked)
    result = engine.to_host(made, dtype)
    if out is None:
        return placement.from_host(result)
    target = views["out"] if placement.gpu is None else on_gpu(out)
    target[ALL] = result if placement.gpu is None else as_in_kernels(result)
    return out


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


def _on_gpu(given: dict[str, Any], call: Call, asked: Chosen, placement: Placement) -> Any:
    """Return the convolution of arrays in a GPU's memory, on the stream of the library's next
    work."""
    from numba import cuda

    engine, dtype = asked.engine, call.problem.dtype
    of_input = given["input"]
    stage = runs_whole(call.problem, asked)
    channels_last = bool(stage and stage.channels_last) and len(call.shape) == 4 and not call.depth
    keeps = channels_last and placement.library == "PyTorch" and has_channels_last(of_input)
    with nullcontext() if placement.library == "Numba" else cuda.gpus[placement.gpu]:
        asked = asked._replace(stream=placement.stream())
        views = {name: on_gpu(array, asked.stream) for name, array in given.items()}
        _check_out(views)
        result = given.get("out")
        if result is None:
            result = placement.empty(call.shape, dtype, channels_last=keeps)
        view = on_gpu(result, asked.stream)
        made = view if channels_last or is_whole(view) else engine.empty(call.shape, dtype)
        for name in given.keys() & ({"bias"} if channels_last else {*READ_ONLY}):
            if not is_whole(views[name]):
                views[name] = asked.put(engine.empty(views[name].shape, dtype), ALL, views[name])
        convolve_arrays(call, [*map(views.get, READ_ONLY)], made, asked)
        if made is not view:
            asked.put(view, ALL, made)
        if placement.library == "JAX":  # whose next work runs on a stream of its own
            engine.synchronize()
    return result


def _placement(arrays: dict[str, Any]) -> Placement:
    """Return the place of the arrays; TypeError unless they are in one place and of one type that a
    problem may have."""
    of_input = placement_of("input", arrays["input"])
    wanted = dtype_name(arrays["input"])
    if wanted not in DTYPES:
        must = "float32, float16 or bfloat16"
        raise TypeError(f"input has dtype {dtype_name(arrays['input'])[:50]}: it must be {must}")
    for name, array in arrays.items():
        if (placement := placement_of(name, array)) != of_input:
            raise TypeError(f"{name} is of {placement}: it must be of input's {of_input}")
        if (dtype := dtype_name(array)) != wanted:
            raise TypeError(f"{name} has dtype {dtype[:50]}: it must be {wanted}, as input is")
    if of_input.library == "JAX" and "out" in arrays:
        raise TypeError("out is a JAX array, which nothing can write to: it must be None")
    return of_input


def _check_shape(name: str, array: Array | None, shape: tuple[int, ...]) -> None:
    if array is not None and tuple(array.shape) != shape:
        raise ValueError(f"{name} has shape {shown(tuple(array.shape))}: it must be {shape}")


def _check_out(views: dict[str, Any]) -> None:
    """Raise ``ValueError`` if ``out`` is read-only or shares memory with an input or itself. It may
    be the residual: each element is read before it is written."""
    if (out := views.get("out")) is None:
        return
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only: it must be writable")
    if any(size > 1 and not step for size, step in zip(out.shape, out.strides, strict=True)):
        raise ValueError("out has elements that share memory: each must have its own")
    start, end = extent(out)
    for name in views.keys() & {*READ_ONLY}:
        if name == RESIDUAL and _is_same(out, views[name]):
            continue
        source_start, source_end = extent(views[name])
        if start < source_end and source_start < end:
            raise ValueError(f"out shares memory with {name}: it must have its own")


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two arrays of one shape have each element at the same address."""
    return extent(one) == extent(other) and one.strides == other.strides
