"""Convolution as unfold, einsum and fold, for NumPy, CuPy and PyTorch arrays of any dimensions.

Source: Faster Convolution (002), Algorithm 1, for ``Conv2d`` with one stride and one padding; here
1-D, 2-D, 3-D and more, with a stride, a padding and a dilation for each axis. Every step is a call
of an array library. Shapes, with ``S`` for all spatial axes:

- pad: ``[N, C_i, *S]`` to ``[N, C_i, *(S + 2 * padding)]``
- unfold: to ``[N, C_i * prod(kernel), prod(out)]``
- einsum with the filters ``[C_o, C_i * prod(kernel)]``: to ``[N, C_o, prod(out)]``
- fold: to ``[N, C_o, *out]``
- bias: ``[C_o]``, added to each channel
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

IntOrEach = int | Sequence[int]


def unfold_einsum(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: IntOrEach = 1,
    padding: IntOrEach = 0,
    dilation: IntOrEach = 1,
) -> Any:
    """The convolution (cross-correlation) of ``[N, C_i, *S]`` with ``[C_o, C_i, *kernel]``, plus
    ``bias[C_o]``: what PyTorch's ``conv1d``, ``conv2d`` and ``conv3d`` give, in any number of
    dimensions, as an array of the same library and dtype.

    ``stride``, ``padding`` and ``dilation`` are each an int or one for each axis. Raises
    ``ValueError`` naming the argument, its value and the rule, and ``ModuleNotFoundError`` for
    CuPy or PyTorch arrays where array-api-compat is not installed.
    """
    _check(input, weight, bias)
    xp = namespace(input)
    C_o, _, *kernel = weight.shape
    unfolded = unfold(input, kernel, stride, padding, dilation)
    columns = xp.einsum("bis,oi->bos", unfolded, xp.reshape(weight, (C_o, -1)))
    folded = fold(columns, _out_of(input, kernel, stride, padding, dilation))
    return folded if bias is None else folded + xp.reshape(bias, (1, C_o, *[1] * len(kernel)))


def unfold(
    input: Any,
    kernel_size: IntOrEach,
    stride: IntOrEach = 1,
    padding: IntOrEach = 0,
    dilation: IntOrEach = 1,
) -> Any:
    """Every window of ``[N, C, *S]`` as a column: ``[N, C * prod(kernel_size), prod(out)]``, what
    PyTorch's ``unfold`` gives for 2-D images."""
    xp, (N, C, *size) = namespace(input), input.shape
    kernel = _each("kernel_size", kernel_size, len(size), at_least=1)
    out = _out_of(input, kernel, stride, padding, dilation)
    padded = pad(input, padding)
    seen = [padded[(..., *tap)] for _, tap in taps(kernel, out, stride, dilation)]
    return xp.reshape(xp.stack(seen, axis=2), (N, C * math.prod(kernel), math.prod(out)))


def unfold_one_hot(
    input: Any,
    kernel_size: IntOrEach,
    stride: IntOrEach = 1,
    padding: IntOrEach = 0,
    dilation: IntOrEach = 1,
) -> Any:
    """:func:`unfold` by convolution with one-hot filters, so whatever can convolve can unfold. The
    one difference: an infinity or NaN spoils its whole window, because zero times it is NaN."""
    xp, (N, C, *size) = namespace(input), input.shape
    kernel = _each("kernel_size", kernel_size, len(size), at_least=1)
    elements = math.prod(kernel)
    eye = xp.eye(elements, dtype=input.dtype, **_on(input))
    planes, one_hot = xp.reshape(input, (N * C, 1, *size)), xp.reshape(eye, (elements, 1, *kernel))
    unfolded = unfold_einsum(planes, one_hot, None, stride, padding, dilation)
    return xp.reshape(unfolded, (N, C * elements, math.prod(unfolded.shape[2:])))


def fold(columns: Any, out: Sequence[int]) -> Any:
    """``[N, C_o, prod(out)]`` to ``[N, C_o, *out]``: folding with a 1 x 1 kernel moves nothing."""
    return namespace(columns).reshape(columns, (*columns.shape[:2], *out))


def pad(input: Any, padding: IntOrEach) -> Any:
    """Zeros around every spatial axis; the input itself where there are none."""
    size = input.shape[2:]
    before = _each("padding", padding, len(size), at_least=0)
    if not any(before):
        return input
    padded_size = [n + 2 * p for n, p in zip(size, before, strict=True)]
    shape = (*input.shape[:2], *padded_size)
    padded = namespace(input).zeros(shape, dtype=input.dtype, **_on(input))
    padded[(..., *(slice(p, p + n) for n, p in zip(size, before, strict=True)))] = input
    return padded


def taps(
    kernel: Sequence[int], out: Sequence[int], stride: IntOrEach, dilation: IntOrEach
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Each filter element, and the slices of the padded input that it meets: one element per
    output."""
    strides = _each("stride", stride, len(kernel), at_least=1)
    dilations = _each("dilation", dilation, len(kernel), at_least=1)
    for offset in itertools.product(*map(range, kernel)):
        axes = zip(offset, dilations, out, strides, strict=True)
        yield offset, tuple(slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, n, s in axes)


def namespace(array: Any) -> Any:
    """The array's library, with the array API's names."""
    if isinstance(array, np.ndarray):
        return np
    try:
        from array_api_compat import array_namespace
    except ModuleNotFoundError:
        kind = type(array).__module__.split(".")[0]
        install = "python -m pip install -e '.[arrays]' in convlab's folder"
        raise ModuleNotFoundError(f"{kind} arrays need array-api-compat: {install}") from None
    return array_namespace(array)


def _out_of(
    input: Any, kernel: Sequence[int], stride: IntOrEach, padding: IntOrEach, dilation: IntOrEach
) -> tuple[int, ...]:
    """The output's size along each axis. Raises ``ValueError`` where no window fits."""
    size = input.shape[2:]
    strides = _each("stride", stride, len(size), at_least=1)
    pads = _each("padding", padding, len(size), at_least=0)
    dilations = _each("dilation", dilation, len(size), at_least=1)
    axes = zip(size, kernel, strides, pads, dilations, strict=True)
    out = tuple((n + 2 * p - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in axes)
    if min(out) < 1:
        raise ValueError(
            f"kernel_size {tuple(kernel)} with dilation {dilation} does not fit input of size "
            f"{tuple(size)} with padding {padding}: it must not span more"
        )
    return out


def _each(name: str, value: IntOrEach, axes: int, *, at_least: int) -> tuple[int, ...]:
    """One value for each axis."""
    each = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(each) != axes or any(entry < at_least for entry in each):
        raise ValueError(
            f"{name} is {value!r}: it must be an int of at least {at_least}, or {axes} of them, "
            "one for each axis"
        )
    return each


def _check(input: Any, weight: Any, bias: Any) -> None:
    if input.ndim < 3 or weight.ndim != input.ndim:
        raise ValueError(
            f"input has shape {tuple(input.shape)} and weight {tuple(weight.shape)}: they must be "
            "[N, C_i, *size] and [C_o, C_i, *kernel_size] with as many axes"
        )
    if weight.shape[1] != input.shape[1]:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}: its second size must be input's "
            f"{input.shape[1]} channels"
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"bias has shape {tuple(bias.shape)}: it must be ({weight.shape[0]},)")


def _on(like: Any) -> dict[str, Any]:
    """The device that new arrays have to be on; NumPy has none to name before 2.0."""
    return {} if isinstance(like, np.ndarray) else {"device": like.device}
