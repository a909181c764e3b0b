"""``conv2d``: one convolution by any stage on any engine, its arguments checked."""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial
from threading import local
from typing import Any

import numpy as np

from convlab.arguments import IntOrPair
from convlab.convolution import problem_of
from convlab.engines import Engine, address_of, check_aligned, choose
from convlab.plans import Plan, check_fits, plan
from convlab.problem import ConvProblem
from convlab.stages import Tile

KEPT_PLANS, KEPT_BYTES = 16, 2**28  # of a thread's last calls on a GPU; bytes of workspace in all


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: IntOrPair = 1,
    padding: Any = 0,
    dilation: IntOrPair = 1,
    *,
    stage: str = "auto",
    tile: Tile | None = None,
    engine: str = "auto",
    out: Any = None,
) -> Any:
    """2-D convolution (cross-correlation) with the meaning of PyTorch's ``F.conv2d``.

    ``input`` is float32 of shape (N_i, C_i, H_i, W_i), ``weight`` (C_o, C_i, H_f, W_f), ``bias``
    (C_o,) or None: NumPy arrays or Numba device arrays, all of one kind. The result, float32 of
    shape (N_i, C_o, H_o, W_o), is of the same kind; ``out`` may give the array to write it to.
    Device arrays are C-contiguous and start at a multiple of 16 bytes.

    ``stage="auto"`` is s12 on a GPU, s11 on one of compute capability below 8.0, s01 on a
    simulator. A simulator takes about a minute per million multiply-adds: it is for small problems.
    On a GPU the work runs on the default stream, and plans for a thread's last few problems are
    kept, with at most 256 MiB of workspace. There s12 may use split-K for few outputs, so the last
    bits may differ from call to call; :func:`plan` with ``whole_sums=True`` never does.

    Raises ``TypeError`` or ``ValueError`` naming the argument, its value and the rule, and what
    :func:`plan` raises; ``out`` is then untouched.
    """
    chosen = choose(engine)
    optional = {name: array for name, array in (("bias", bias), ("out", out)) if array is not None}
    given = {"input": input, "weight": weight, **optional}
    on_device = _are_device_arrays(given)
    problem = problem_of(input, weight, stride, padding, dilation)
    shapes = {"bias": (problem.out_channels,), "out": problem.output_shape}
    for name, array in given.items():
        _check_tensor(name, array, shapes.get(name, array.shape))
    if out is not None:
        _check_writable(out, given)

    if on_device and not chosen.is_gpu:  # Numba's simulator keeps its device arrays on the host
        from numba import cuda

        input, weight, bias = (
            None if array is None else array.copy_to_host() for array in (input, weight, bias)
        )
        settings = (stride, padding, dilation)
        result = conv2d(input, weight, bias, *settings, stage=stage, tile=tile, engine=engine)
        if out is None:
            return cuda.to_device(result)
        out.copy_to_device(result)
        return out
    if not on_device and chosen.is_gpu:
        copies = sum(map(math.prod, (input.shape, weight.shape, problem.output_shape)))
        check_fits("copying input, weight and output to the GPU", 4 * copies, chosen)
    ready = _ready(problem, stage, tile, chosen)
    if on_device:
        result = chosen.empty(problem.output_shape) if out is None else out
        return ready(input, weight, result, bias)
    input, weight, bias = (
        None if array is None else chosen.to_device(array) for array in (input, weight, bias)
    )
    result = chosen.to_host(ready(input, weight, chosen.empty(problem.output_shape), bias))
    if out is None:
        return result
    out[...] = result
    return out


class _Kept(local):
    """Plans of one thread: a plan runs one call at a time, and each thread may have a stream."""

    def __init__(self) -> None:
        self.plans: OrderedDict[Any, Plan] = OrderedDict()


_kept = _Kept()


def _ready(problem: ConvProblem, stage: str, tile: Tile | None, engine: Engine) -> Plan:
    """The problem's plan; on a GPU an earlier call may have kept it."""
    prepare = partial(plan, problem, stage, tile, engine.name)
    asked = isinstance(stage, str) and isinstance(tile, Tile | None)  # plan says what is wrong
    if not (engine.is_gpu and asked):
        # On a simulator each call gets a fresh workspace of NaN, because that finds mistakes.
        return prepare()
    kept, key = _kept.plans, (_current_gpu(), problem, stage, tile)
    if (ready := kept.get(key)) is not None:
        kept.move_to_end(key)
        return ready
    try:
        ready = prepare()
    except MemoryError:  # what is kept may be what is missing
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


def _is_device_array(array: Any) -> bool:
    return hasattr(array, "copy_to_host") and hasattr(array, "shape")


def _are_device_arrays(arrays: dict[str, Any]) -> bool:
    """Whether the arrays are on a device; TypeError unless all are of one known kind."""
    for name, array in arrays.items():
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array: convlab has no masks, give its data")
        if not isinstance(array, np.ndarray) and not _is_device_array(array):
            kind = type(array).__name__
            raise TypeError(f"{name} is a {kind}: it must be a NumPy array or a Numba device array")
    kinds = {name: _is_device_array(array) for name, array in arrays.items()}
    if len(set(kinds.values())) > 1:
        named = ", ".join(f"{name} {'device' if kind else 'NumPy'}" for name, kind in kinds.items())
        raise TypeError(f"the arrays are of two kinds ({named}): they must be of one")
    return kinds["input"]


def _check_tensor(name: str, array: Any, shape: tuple[int, ...]) -> None:
    if array.dtype != np.float32:
        raise TypeError(f"{name} has dtype {array.dtype}: it must be float32")
    if tuple(array.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(array.shape)}: it must be {shape}")
    if _is_device_array(array):
        if not array.is_c_contiguous():
            raise ValueError(f"{name} is a device array that is not C-contiguous: it must be")
        check_aligned(name, _memory(array)[0])


def _check_writable(out: Any, sources: dict[str, Any]) -> None:
    """Raise ``ValueError`` when ``out`` is read-only or shares memory with a source."""
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only: it must be writable")
    start, end = _memory(out)
    for name, source in sources.items():
        source_start, source_end = _memory(source)
        if name != "out" and start < source_end and source_start < end:
            raise ValueError(f"out shares memory with {name}: it must have its own")


def _memory(array: Any) -> tuple[int, int]:
    """The addresses that an array's elements lie between."""
    if isinstance(array, np.ndarray):
        return np.lib.array_utils.byte_bounds(array)
    on_gpu = hasattr(array, "device_ctypes_pointer")  # else an array of Numba's simulator
    start = address_of(array) if on_gpu else array.ctypes.data
    return start, start + 4 * math.prod(array.shape)
