"""The answer of a convolution, in float64. :func:`seven_loops` is the definition; :func:`reference`
computes the same answer fast.

All arrays are NumPy's: input ``[N_i, C_i, H_i, W_i]``, weight ``[C_o, C_i, H_f, W_f]``, bias
``[C_o]`` or None, output ``[N_i, C_o, H_o, W_o]``; of a problem with channels last the channels are
last. 16-bit numbers are converted, exactly, one image after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from convlab.problems.gradient import Gradient, Problem
from convlab.problems.number_types import Floats, as_floats
from convlab.problems.problem import ConvProblem
from convlab.problems.settings import IntOrEach, Padding

Doubles = NDArray[np.float64]
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


@np.errstate(invalid="ignore")  # inf * 0 is NaN, and meant to be
def seven_loops(
    input: Floats,
    weight: Floats,
    bias: Floats | None = None,
    stride: IntOrEach = 1,
    padding: Padding = 0,
    dilation: IntOrEach = 1,
) -> Doubles:
    """The im2win paper's Equation 1 in float64, written to be read. The paper has no padding,
    dilation or bias; here they mean what they mean in PyTorch."""
    for name, array in (("input", input), ("weight", weight)):
        if array.ndim != 4:
            raise ValueError(f"{name} has shape {array.shape}: it must have 4 dimensions")
    (N_i, C_i, H_i, W_i), (C_o, _, H_f, W_f) = input.shape, weight.shape
    problem = ConvProblem(N_i, C_i, H_i, W_i, C_o, (H_f, W_f), stride, padding, dilation)
    require_shapes(problem, input, weight, bias)
    H_o, W_o = problem.output_size
    s_h, s_w, d_h, d_w = problem.s_h, problem.s_w, problem.d_h, problem.d_w

    padded = np.pad(input.astype(np.float64), ((0, 0), (0, 0), *problem.padding))
    weight = weight.astype(np.float64)
    output = np.zeros(problem.output_shape)
    for i in range(N_i):
        for j in range(C_o):
            for m in range(H_o):
                for n in range(W_o):
                    for r in range(C_i):
                        for u in range(H_f):
                            for v in range(W_f):
                                pixel = padded[i, r, m * s_h + u * d_h, n * s_w + v * d_w]
                                output[i, j, m, n] += pixel * weight[j, r, u, v]
    return output if bias is None else output + bias[:, None, None]


def reference(
    problem: Problem,
    input: Floats,
    weight: Floats,
    bias: Floats | None = None,
    *,
    workers: int = 1,
) -> Doubles:
    """The convolution in float64, of ``problem.output_shape``: what :func:`seven_loops` returns,
    summed in another order. ``workers`` threads take an image each. Products of float32 numbers
    are exact in float64, denormals included, and cannot overflow."""
    return convolution(problem, input, weight, bias, np.asarray, workers)


def magnitude(
    problem: Problem,
    input: Floats,
    weight: Floats,
    bias: Floats | None = None,
    *,
    workers: int = 1,
) -> Doubles:
    """``sum |x||w| + |bias|`` for each output, in float64: rounding errors grow with this sum. NaN
    and infinities count as 0, because they cause no rounding."""
    return convolution(problem, input, weight, bias, lambda a: np.abs(finite_part(a)), workers)


def finite_part(array: Floats) -> Floats:
    """The numbers with 0 for NaN and infinities."""
    return np.where(np.isfinite(array), array, 0)


def convolution(
    problem: Problem,
    input: Floats,
    weight: Floats,
    bias: Floats | None,
    taken: Callable[[Floats], Floats],
    workers: int,
) -> Doubles:
    """The convolution of ``taken(tensor)`` for each tensor, as :func:`reference` computes it."""
    require_shapes(problem, input, weight, bias)
    if isinstance(problem, Gradient):
        return _gradient(problem, input, weight, taken, workers)
    result = np.zeros(problem.output_shape)
    input, weight, output = (channels_first(problem, one) for one in (input, weight, result))
    if bias is not None:
        output += taken(as_floats(bias))[:, None, None]
    # For each row of the filters, a matrix [C_o / groups, W_f * C_i / groups] for each group.
    G = problem.groups
    filters = taken(as_floats(weight)).astype(np.float64)
    filters = filters.reshape(G, problem.C_o // G, *weight.shape[1:])
    filter_rows = filters.transpose(3, 0, 1, 4, 2).reshape(problem.H_f, G, problem.C_o // G, -1)

    @np.errstate(invalid="ignore")
    def convolve(i: int) -> None:  # one image at a time, which bounds the memory
        image = taken(as_floats(input[i])).astype(np.float64)
        padded = np.pad(image, ((0, 0), *problem.padding))
        sums = output[i].reshape(G, problem.C_o // G, -1)  # a copy if the channels are last
        for u in range(problem.H_f):
            sums += filter_rows[u] @ _seen_by_row(problem, padded, u)
        if problem.channels_last:
            output[i] = sums.reshape(output[i].shape)

    _each_image(convolve, problem, workers)
    return result


def channels_first(problem: Problem, tensor: Floats) -> Floats:
    """Return a problem's input, weight or output with the channels as its second axis, in the same
    memory."""
    return tensor.transpose(0, 3, 1, 2) if problem.channels_last else tensor


def _gradient(
    gradient: Gradient,
    input: Floats,
    weight: Floats,
    taken: Callable[[Floats], Floats],
    workers: int,
) -> Doubles:
    """The chain rule, tap by tap: the pixels under a tap meet all outputs."""
    p, of_input, G = gradient.problem, gradient.of == "input", gradient.groups
    images, of_outputs = (None, input) if of_input else (input, weight)
    shape = G, p.C_o // G, p.C_i // G, *p.kernel_size
    taps = taken(weight).astype(np.float64).reshape(shape) if of_input else np.zeros(shape)

    @np.errstate(invalid="ignore")
    def of_image(i: int) -> Doubles:
        outputs = taken(of_outputs[i]).astype(np.float64).reshape(G, p.C_o // G, -1)
        padded = np.zeros((G, p.C_i // G, *p.padded_shape))
        inside = padded[..., p.p_h : p.p_h + p.H_i, p.p_w : p.p_w + p.W_i]
        filters = taps if images is None else np.zeros(shape)
        if images is not None:
            inside[...] = taken(images[i]).reshape(inside.shape)
        for u, v in np.ndindex(*p.kernel_size):
            rows, columns = padded[..., u * p.d_h :: p.s_h, :], slice(v * p.d_w, None, p.s_w)
            seen = rows[..., : p.H_o, columns][..., : p.W_o]
            if of_input:
                products = filters[..., u, v].swapaxes(1, 2) @ outputs
                seen += products.reshape(seen.shape)
            else:
                pixels = seen.reshape(G, p.C_i // G, -1)
                filters[..., u, v] = outputs @ pixels.swapaxes(1, 2)
        return inside if of_input else filters

    found = _each_image(of_image, p, workers)
    whole = np.stack(found) if of_input else np.sum(found, axis=0)
    return whole.reshape(gradient.output_shape)


def _each_image(work: Callable[[int], _Made], problem: ConvProblem, workers: int) -> list[_Made]:
    """The results of ``work`` for all images, computed by ``workers`` threads."""
    # A BLAS that starts threads in each of our threads would take longer than without them.
    with _blas().limit(limits=1 if workers > 1 else None):
        return each(work, range(problem.N_i), workers)


@cache
def _blas() -> ThreadpoolController:
    """Controls the threads of NumPy's matrix products. Finding it takes milliseconds, once."""
    return ThreadpoolController().select(user_api="blas")


def each(work: Callable[[_Item], _Made], items: Iterable[_Item], workers: int) -> list[_Made]:
    """The results of ``work`` for all items, in order, computed by ``workers`` threads."""
    if workers == 1:
        return list(map(work, items))
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, items))


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def workers_for(problem: Problem) -> int:
    """Return the number of threads that compute an answer.

    It is one for each core, but together they may take no more memory than the answer and its
    magnitude, 16 bytes for each output.
    """
    if isinstance(problem, Gradient):
        problem = problem.problem  # takes as much memory as the convolution's answer
    H_p, W_p = problem.padded_shape
    numbers = 3 * problem.C_i * H_p * W_p + problem.W_f * problem.C_i * problem.H_o * problem.W_o
    answer = 2 * problem.N_i * problem.C_o * problem.H_o * problem.W_o
    return max(1, min(cores(), answer // numbers))


def _seen_by_row(problem: ConvProblem, padded: Doubles, u: int) -> Doubles:
    """The pixels under row u of a filter: [groups, W_f * C_i / groups, H_o * W_o]."""
    G, H_o, W_o = problem.groups, problem.H_o, problem.W_o
    rows = padded.reshape(G, -1, *padded.shape[1:])[:, :, u * problem.d_h :: problem.s_h, :]
    seen = np.empty((G, problem.W_f, problem.C_i // G, H_o, W_o))
    for v in range(problem.W_f):
        seen[:, v] = rows[:, :, :H_o, v * problem.d_w :: problem.s_w][..., :W_o]
    return seen.reshape(G, -1, H_o * W_o)


def require_shapes(problem: Problem, input: Floats, weight: Floats, bias: Floats | None) -> None:
    """Raises ``ValueError`` naming the first of a problem's tensors that has another shape."""
    require_shape("input", input, problem.input_shape)
    require_shape("weight", weight, problem.weight_shape)
    if bias is not None:
        require_shape("bias", bias, (problem.out_channels,))


def require_shape(name: str, array: Floats, shape: tuple[int, ...]) -> None:
    """Raises ``ValueError`` naming the array that has another shape."""
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: for this problem it must have {shape}")
