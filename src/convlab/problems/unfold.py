"""Convolution as unfold, einsum and fold, for NumPy, CuPy and PyTorch arrays of any dimensions.

Source: Faster Convolution (002), Algorithm 1, for ``Conv2d`` with one stride and one padding; here
1-D, 2-D, 3-D and more, with a stride, a padding and a dilation for each axis. Every step is a call
of an array library. Shapes, with ``S`` for all spatial axes:

- pad: ``[N, C_i, *S]`` to ``[N, C_i, *(S + padding)]``
- unfold: to ``[N, C_i * prod(kernel), prod(out)]``
- einsum with the filters ``[C_o, C_i * prod(kernel)]``: to ``[N, C_o, prod(out)]``
- fold: to ``[N, C_o, *out]``
- bias: ``[C_o]``, added to each channel
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from convlab.problems.arrays import (
    ApiArray,
    ApiArrayT,
    check_dense,
    check_unmasked,
    compat,
    dtype_name,
)
from convlab.problems.settings import IntOrEach, Padding, Pair, Windows, windows_of
from convlab.support.host_memory import check_memory, host_bytes
from convlab.support.values import shown

HALVES = ("float16", "bfloat16")  # whose sums are kept in float32
DTYPES = (*HALVES, "float32", "float64", "complex64", "complex128")


def unfold_einsum(
    input: ApiArrayT,
    weight: ApiArrayT,
    bias: ApiArrayT | None = None,
    stride: IntOrEach = 1,
    padding: Padding = 0,
    dilation: IntOrEach = 1,
) -> ApiArrayT:
    """The convolution (cross-correlation) of ``[N, C_i, *S]`` with ``[C_o, C_i, *kernel]``, plus
    ``bias[C_o]``: what PyTorch's ``conv1d``, ``conv2d`` and ``conv3d`` give, in any number of
    dimensions, as an array of the same library and dtype.

    The arrays are of one library and one of ``unfold.DTYPES``. Sums of 16-bit numbers are kept in
    float32 and rounded once. ``stride`` and ``dilation`` are each an int or one for each axis;
    ``padding`` may also be a (before, after) pair for each, ``'valid'`` or ``'same'``. Raises
    ``TypeError``, ``ValueError`` or ``MemoryError`` naming the argument, its value and the rule,
    and ``ModuleNotFoundError`` for CuPy or PyTorch arrays where array-api-compat is not installed.
    """
    arrays: dict[str, ApiArray] = {"input": input, "weight": weight}
    if bias is not None:
        arrays["bias"] = bias
    xp = _namespace_of(arrays)
    _check_shapes(input, weight, bias)
    C_o, C_i, *kernel = weight.shape
    windows, out = _windows(input, kernel, stride, padding, dilation, C_o)
    dtype, sums = input.dtype, xp.float32 if dtype_name(input) in HALVES else input.dtype
    columns = _unfolded(xp.astype(input, sums, copy=False), windows, out)
    filters = xp.reshape(xp.astype(weight, sums, copy=False), (C_o, C_i * math.prod(kernel)))
    folded = fold(xp.einsum("bis,oi->bos", columns, filters), out)
    if bias is not None:
        added = xp.reshape(xp.astype(bias, sums, copy=False), (1, C_o, *[1] * len(kernel)))
        folded = folded + added
    result: ApiArrayT = xp.astype(folded, dtype, copy=False)
    return result


def unfold(
    input: ApiArray,
    kernel_size: IntOrEach,
    stride: IntOrEach = 1,
    padding: Padding = 0,
    dilation: IntOrEach = 1,
) -> ApiArray:
    """Every window of ``[N, C, *S]`` as a column: ``[N, C * prod(kernel_size), prod(out)]``, what
    PyTorch's ``unfold`` gives for 2-D images. Takes and raises what :func:`unfold_einsum` does."""
    _namespace_of({"input": input})
    return _unfolded(input, *_windows(input, kernel_size, stride, padding, dilation))


def unfold_one_hot(
    input: ApiArray,
    kernel_size: IntOrEach,
    stride: IntOrEach = 1,
    padding: Padding = 0,
    dilation: IntOrEach = 1,
) -> ApiArray:
    """:func:`unfold` by convolution with one-hot filters, so whatever can convolve can unfold. The
    one difference: an infinity or NaN spoils its whole window, because zero times it is NaN."""
    xp = _namespace_of({"input": input})
    windows, _ = _windows(input, kernel_size, stride, padding, dilation)
    kernel = windows.kernel
    (N, C, *size), elements = input.shape, math.prod(kernel)
    _check_memory("one-hot filters", elements**2, input)
    eye = xp.eye(elements, dtype=input.dtype, device=input.device)
    planes, one_hot = xp.reshape(input, (N * C, 1, *size)), xp.reshape(eye, (elements, 1, *kernel))
    unfolded = unfold_einsum(planes, one_hot, None, stride, padding, dilation)
    columns: ApiArray = xp.reshape(unfolded, (N, C * elements, math.prod(unfolded.shape[2:])))
    return columns


def fold(columns: ApiArray, out: Sequence[int]) -> ApiArray:
    """``[N, C_o, prod(out)]`` to ``[N, C_o, *out]``: folding with a 1 x 1 kernel moves nothing."""
    folded: ApiArray = namespace(columns).reshape(columns, (*columns.shape[:2], *out))
    return folded


def pad(input: ApiArray, padding: Sequence[Pair]) -> ApiArray:
    """Zeros before and behind every spatial axis; the input itself where there are none."""
    if not any(map(any, padding)):
        return input
    size = input.shape[2:]
    padded_size = [n + sum(zeros) for n, zeros in zip(size, padding, strict=True)]
    shape = (*input.shape[:2], *padded_size)
    padded = namespace(input).zeros(shape, dtype=input.dtype, device=input.device)
    inside = (slice(p, p + n) for n, (p, _) in zip(size, padding, strict=True))
    padded[(..., *inside)] = input
    result: ApiArray = padded
    return result


def taps(
    kernel: Sequence[int], out: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Each filter element, and the slices of the padded input that it meets, one each output."""
    for offset in itertools.product(*map(range, kernel)):
        axes = zip(offset, dilation, out, stride, strict=True)
        yield offset, tuple(slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, n, s in axes)


def namespace(array: object, name: str = "input") -> Any:
    """The array's library, with the array API's names. Raises ``TypeError`` for anything else."""
    check_unmasked(name, array)
    if isinstance(array, np.ndarray):
        return np
    library = type(array).__module__.partition(".")[0]
    if library not in ("cupy", "torch") or not hasattr(array, "ndim"):
        what = f"{name} is a {type(array).__name__}"
        raise TypeError(f"{what}: it must be an array of NumPy, CuPy or PyTorch")
    if hasattr(array, "layout"):  # PyTorch's
        check_dense(name, array)
    return compat().array_namespace(array)


def _unfolded(input: ApiArray, windows: Windows, out: tuple[int, ...]) -> ApiArray:
    """:func:`unfold`, its arguments checked."""
    kernel, stride, padding, dilation = windows
    xp, (N, C, *_) = namespace(input), input.shape
    padded = pad(input, padding)
    seen = [padded[(..., *tap)] for _, tap in taps(kernel, out, stride, dilation)]
    columns: ApiArray = xp.reshape(
        xp.stack(seen, axis=2), (N, C * math.prod(kernel), math.prod(out))
    )
    return columns


def _windows(
    input: ApiArray,
    kernel_size: IntOrEach,
    stride: IntOrEach,
    padding: Padding,
    dilation: IntOrEach,
    C_o: int = 0,
) -> tuple[Windows, tuple[int, ...]]:
    """An input's windows, and how many along each axis. Raises ``TypeError`` or ``ValueError`` for
    settings that do not fit, ``MemoryError`` for more windows, or ``C_o`` outputs of each, than
    memory holds."""
    N, C, *size = input.shape if len(input.shape) > 2 else (0, 0)
    if not size:
        raise ValueError(f"input has shape {tuple(input.shape)}: it must be [N, C, *size]")
    windows = windows_of(len(size), kernel_size, stride, padding, dilation)
    padded = [n + sum(zeros) for n, zeros in zip(size, windows.padding, strict=True)]
    out = windows.outputs(size)
    columns = math.prod((*windows.kernel, *out))
    # Without images or channels, too, NumPy refuses shapes whose other sizes are too many.
    needed = max(N, 1) * (max(C, 1) * (math.prod(padded) + columns) + C_o * math.prod(out))
    _check_memory("the unfolded input", needed, input)
    return windows, out


def _namespace_of(arrays: Mapping[str, ApiArray]) -> Any:
    """The arrays' library. Raises ``TypeError`` unless all share it, a dtype and a device."""
    found = {name: namespace(array, name) for name, array in arrays.items()}
    input = arrays["input"]
    for name, array in arrays.items():
        if (dtype := dtype_name(array)) not in DTYPES:
            raise TypeError(f"{name} has dtype {dtype[:50]}: it must be {', '.join(DTYPES)}")
        if found[name] is not found["input"]:
            kinds = type(array).__name__, type(input).__name__
            raise TypeError(f"{name} is a {kinds[0]}: it must be a {kinds[1]}, as input is")
        for what in ("dtype", "device"):
            mine, other = (getattr(one, what, None) for one in (array, input))
            if mine != other:
                raise TypeError(f"{name} has {what} {mine}: it must be input's, {other}")
    return found["input"]


def _check_shapes(input: ApiArray, weight: ApiArray, bias: ApiArray | None) -> None:
    if input.ndim < 3 or weight.ndim != input.ndim:
        raise ValueError(
            f"input has shape {shown(tuple(input.shape))} and weight {shown(tuple(weight.shape))}: "
            "they must be [N, C_i, *size] and [C_o, C_i, *kernel_size] with as many axes"
        )
    if weight.shape[1] != input.shape[1]:
        raise ValueError(
            f"weight has shape {shown(tuple(weight.shape))}: its second size must be input's "
            f"{input.shape[1]} channels"
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(
            f"bias has shape {shown(tuple(bias.shape))}: it must be ({weight.shape[0]},)"
        )


def _check_memory(what: str, elements: int, like: ApiArray) -> None:
    """Raise ``MemoryError`` for more than fits; a GPU's library knows how much that is there."""
    on_gpu = hasattr(like, "__cuda_array_interface__")
    check_memory(what, elements * max(4, like.dtype.itemsize), None if on_gpu else host_bytes())
