"""``conv2d``: one convolution by any stage on any engine, its arguments checked."""

from __future__ import annotations

import math
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import local
from typing import Any

import numpy as np

from convlab.arguments import IntOrPair, duration, shown
from convlab.convolution import problem_of
from convlab.engines import Engine, address_of, check_aligned, choose
from convlab.plans import Plan, check_fits, plan, simulated_seconds
from convlab.problem import ConvProblem
from convlab.stages import Tile

MOST_GROUPS = 64  # each has launches of its own
PATIENCE_SECONDS = 30  # of a simulation that does not say how long it takes
KEPT_PLANS, KEPT_BYTES = 16, 2**28  # of a thread's last calls on a GPU; bytes of workspace in all


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: IntOrPair = 1,
    padding: Any = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    *,
    stage: str = "auto",
    tile: Tile | None = None,
    engine: str = "auto",
    out: Any = None,
) -> Any:
    """2-D convolution (cross-correlation) with the meaning of PyTorch's ``F.conv2d``.

    ``input`` is float32 of shape (N_i, C_i, H_i, W_i), or (C_i, H_i, W_i) for one image, ``weight``
    (C_o, C_i / groups, H_f, W_f), ``bias`` (C_o,) or None: NumPy arrays or Numba device arrays, all
    of one kind. The result, float32 of shape (N_i, C_o, H_o, W_o), without N_i for one image, is of
    the same kind; ``out`` may give the array to write it to. Device arrays are C-contiguous and
    start at a multiple of 16 bytes. ``groups`` is at most 64, because each group is launched on its
    own, and 1 for device arrays on a GPU. ``padding`` is also ``'same'`` or ``'valid'``.

    ``stage="auto"`` is s12 on a GPU, s11 on one of compute capability below 8.0, s01 on a
    simulator. A simulator takes seconds per million multiply-adds; before a call of more than half
    a minute it says on standard error how long, and then how far it is. On a GPU the work runs on
    the default stream, and plans for a thread's last few problems are kept, with at most 256 MiB of
    workspace. There s12 may use split-K for few outputs, so the last bits may differ from call to
    call; :func:`plan` with ``whole_sums=True`` never does.

    Raises ``TypeError`` or ``ValueError`` naming the argument, its value and the rule, and what
    :func:`plan` raises; ``out`` is then untouched.
    """
    chosen = choose(engine)
    optional = {name: array for name, array in (("bias", bias), ("out", out)) if array is not None}
    given = {"input": input, "weight": weight, **optional}
    on_device = _are_device_arrays(given)
    for name, array in given.items():
        _check_tensor(name, array)
    one_image = len(input.shape) == 3
    images = input.reshape((1, *input.shape)) if one_image else input
    problem = problem_of(images, weight, stride, padding, dilation, groups)
    shape = (problem.N_i, weight.shape[0], *problem.output_size)
    _check_shape("bias", bias, shape[1:2])
    _check_shape("out", out, shape[one_image:])
    if out is not None:
        _check_writable(out, given)
    if groups > (most := 1 if on_device and chosen.is_gpu else MOST_GROUPS):
        own, split = "each has launches of its own", "device arrays are not split into groups"
        why = split if most == 1 else own
        raise ValueError(f"groups is {groups}: it must be at most {most}, because {why}")

    if on_device and not chosen.is_gpu:  # Numba's simulator keeps its device arrays on the host
        from numba import cuda

        input, weight, bias = (
            None if array is None else array.copy_to_host() for array in (input, weight, bias)
        )
        settings = (stride, padding, dilation, groups)
        result = conv2d(input, weight, bias, *settings, stage=stage, tile=tile, engine=engine)
        if out is None:
            return cuda.to_device(result)
        out.copy_to_device(result)
        return out
    if not on_device:
        copies = 4 * sum(map(math.prod, (input.shape, weight.shape, shape)))
        check_fits("copying input, weight and output", copies, chosen)
    ready = _ready(problem, stage, tile, chosen)
    if on_device:
        result = chosen.empty(shape[one_image:]) if out is None else out
        ready(images, weight, result.reshape(shape) if one_image else result, bias)
        return result
    with _announced(ready, groups):
        parts = [_one_group(ready, g, images, weight, bias) for g in range(groups)]
    result = parts[0] if groups == 1 else np.concatenate(parts, axis=1)
    if one_image:
        result = result[0]
    if out is None:
        return result
    out[...] = result
    return out


def _one_group(ready: Plan, group: int, input: Any, weight: Any, bias: Any) -> np.ndarray:
    """The output channels of one group, from the host and to it."""
    engine, problem = ready.engine, ready.problem
    channels = slice(group * problem.C_i, (group + 1) * problem.C_i)
    filters = slice(group * problem.C_o, (group + 1) * problem.C_o)
    given = input[:, channels], weight[filters], None if bias is None else bias[filters]
    input, weight, bias = (None if array is None else engine.to_device(array) for array in given)
    return engine.to_host(ready(input, weight, engine.empty(problem.output_shape), bias))


@contextmanager
def _announced(ready: Plan, groups: int) -> Iterator[None]:
    """Where a simulator takes long, say on standard error how long, and then how far it is."""
    engine, problem = ready.engine, ready.problem
    seconds = groups * (simulated_seconds(problem, ready.stage, ready.tile, engine) or 0)
    if seconds < PATIENCE_SECONDS:
        yield
        return
    work = f"{groups * problem.flops // 2:,} multiply-adds on {engine.device}"
    _say(f"{work} take about {duration(seconds)}; Ctrl-C ends them")
    begun = last = time.monotonic()

    def on_block(kernel: str, number: int, blocks: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last > max(5, seconds / 20):
            last = now
            _say(f"{kernel}: block {number} of {blocks} after {duration(now - begun)}")

    engine.on_block = on_block
    try:
        yield
    finally:
        engine.on_block = None


def _say(line: str) -> None:
    print(f"convlab: {line}", file=sys.stderr, flush=True)


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


def _check_tensor(name: str, array: Any) -> None:
    if array.dtype != np.float32:
        raise TypeError(f"{name} has dtype {str(array.dtype)[:50]}: it must be float32")
    if _is_device_array(array):
        if not array.is_c_contiguous():
            raise ValueError(f"{name} is a device array that is not C-contiguous: it must be")
        check_aligned(name, _memory(array)[0])


def _check_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    if array is not None and tuple(array.shape) != shape:
        raise ValueError(f"{name} has shape {shown(tuple(array.shape))}: it must be {shape}")


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
