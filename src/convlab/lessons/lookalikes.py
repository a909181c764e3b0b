"""Mistakes that wrong outputs show: what is computed in the place of the convolution.

A kernel that forgets the bias writes exactly the convolution without its bias. Each entry of
:data:`LOOKALIKES` computes what one such mistake leads to. A mistake is named only if it leads to
the outputs on every problem on which the answer is wrong, so no chance can name it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from convlab.checking import Answer
from convlab.checking.outcome import SPOILED_INPUTS
from convlab.ladder.stage import blocks_for
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import reference

CLOSE = 1e-3  # times the largest output: far above what rounding to TF32 changes
Pair = tuple[int, int]


class Tried(NamedTuple):
    """A wrong answer and the tensors that its kernel ran on."""

    answer: Answer
    input: np.ndarray
    weight: np.ndarray
    bias: np.ndarray


class Windows(NamedTuple):
    """The numbers that lead from an output to its pixels, by (height, width): pixel
    ``o * stride + f * dilation - before``."""

    stride: Pair
    dilation: Pair
    before: Pair


Computed = Callable[[Tried], np.ndarray]


def _biased(times: Callable[[Answer], int]) -> Computed:
    """Return a function that computes outputs with so many times the bias."""

    def output(tried: Tried) -> np.ndarray:
        bias = times(tried.answer) * tried.bias
        return reference(tried.answer.problem, tried.input, tried.weight, bias)

    return output


def _weighted(changed: Callable[[np.ndarray], np.ndarray]) -> Computed:
    """Return a function that computes outputs with other weights."""

    def output(tried: Tried) -> np.ndarray:
        weight = np.ascontiguousarray(changed(tried.weight))
        return reference(tried.answer.problem, tried.input, weight, tried.bias)

    return output


def _sliced(changed: Callable[[np.ndarray, int], np.ndarray]) -> Computed:
    """Return a function that computes outputs with filters changed slice by slice: as a matrix with
    a column for each term, given with the number of terms of a slice."""

    def output(tried: Tried) -> np.ndarray:
        p, tile = tried.answer.problem, tried.answer.tile
        if tile is None:
            return np.full(p.output_shape, np.nan, np.float32)
        matrix = changed(tried.weight.reshape(p.M, -1), tile.K_B)
        weight = np.ascontiguousarray(matrix.reshape(tried.weight.shape), np.float32)
        return reference(p, tried.input, weight, tried.bias)

    return output


def _last_slice(matrix: np.ndarray, K_B: int) -> np.ndarray:
    changed = matrix.copy()
    changed[:, : (matrix.shape[1] - 1) // K_B * K_B] = 0
    return changed


def _first_of_filter(matrix: np.ndarray, K_B: int) -> np.ndarray:
    return matrix[:, np.arange(matrix.shape[1]) % K_B]


def _first_of_windows(matrix: np.ndarray, K_B: int) -> np.ndarray:
    """Return the filters that give the same sums if each slice has the pixels of the first one."""
    changed = np.zeros_like(matrix)
    for first in range(0, matrix.shape[1], K_B):
        slice_ = matrix[:, first : first + K_B]
        changed[:, : slice_.shape[1]] += slice_
    return changed


def _from_pixels(changed: Callable[[Windows], Windows]) -> Computed:
    """Return a function that computes outputs from other pixels; outside of the input are zeros."""

    def output(tried: Tried) -> np.ndarray:
        p = tried.answer.problem
        above, left = p.padding[0][0], p.padding[1][0]
        (s_h, s_w), (d_h, d_w), (b_h, b_w) = changed(Windows(p.stride, p.dilation, (above, left)))
        rows = (p.H_o - 1) * s_h + (p.H_f - 1) * d_h + 1
        columns = (p.W_o - 1) * s_w + (p.W_f - 1) * d_w + 1
        pixels = np.zeros((p.N_i, p.in_channels, rows, columns), tried.input.dtype)
        first = max(0, -b_h), max(0, -b_w)  # of the input's pixels that some window meets
        last = max(first[0], rows - b_h), max(first[1], columns - b_w)
        there = tried.input[:, :, first[0] : last[0], first[1] : last[1]]
        at = first[0] + b_h, first[1] + b_w
        pixels[:, :, at[0] : at[0] + there.shape[2], at[1] : at[1] + there.shape[3]] = there
        problem = ConvProblem(
            p.batch, p.in_channels, rows, columns, p.out_channels, p.kernel_size,
            stride=(s_h, s_w), dilation=(d_h, d_w), groups=p.groups,
        )  # fmt: skip
        return reference(problem, pixels, tried.weight, tried.bias)

    return output


def _without(*place: int | slice) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that puts zeros in a place of each filter."""

    def changed(weight: np.ndarray) -> np.ndarray:
        weight = weight.copy()
        weight[(slice(None), *place)] = 0
        return weight

    return changed


def _last_alone(weight: np.ndarray) -> np.ndarray:
    rest: np.ndarray = weight - _without(-1, -1, -1)(weight)
    return rest


def _transposed(weight: np.ndarray) -> np.ndarray:
    """Return square filters with rows and columns exchanged; others as they are."""
    square = weight.shape[2] == weight.shape[3]
    return weight.swapaxes(2, 3) if square else weight


def _slices(answer: Answer) -> int:
    """Return the slices of a sum; 1 for a kernel without tiles."""
    return 1 if answer.tile is None else blocks_for(answer.problem.K, answer.tile.K_B)


def _changed_along(
    windows: Windows, axes: Sequence[int], changed: Callable[[int, int, int], tuple[int, int, int]]
) -> Windows:
    """Return the windows' numbers with those along some axes changed."""
    both = list(zip(*windows, strict=True))  # stride, dilation and padding of each axis
    for axis in axes:
        both[axis] = changed(*both[axis])
    return Windows(*zip(*both, strict=True))


def _first_of_slice(matrix: np.ndarray, K_B: int) -> np.ndarray:
    kept = np.zeros_like(matrix)
    kept[:, ::K_B] = matrix[:, ::K_B]
    return kept


def _last_of_slice(matrix: np.ndarray, K_B: int) -> np.ndarray:
    kept = np.zeros_like(matrix)
    kept[:, K_B - 1 :: K_B] = matrix[:, K_B - 1 :: K_B]
    return kept


def _first_number_of_filter(matrix: np.ndarray, K_B: int) -> np.ndarray:
    """Return the filters whose numbers in a slice are all that of the slice's first term."""
    terms = np.arange(matrix.shape[1])
    return matrix[:, terms // K_B * K_B]


def _first_pixel_of_slice(matrix: np.ndarray, K_B: int) -> np.ndarray:
    """Return the filters that give the same sums if a slice's pixels are all its first one."""
    changed = np.zeros_like(matrix)
    for first in range(0, matrix.shape[1], K_B):
        changed[:, first] = matrix[:, first : first + K_B].sum(axis=1)
    return changed


def _of_another_channel(tried: Tried) -> np.ndarray:
    """Return the outputs with the bias that they have if it is that of any channel; else NaN."""
    got = tried.answer.output
    sums = reference(tried.answer.problem, tried.input, tried.weight, np.zeros_like(tried.bias))
    if got is None:
        return np.full_like(sums, np.nan)
    added = got - sums
    nearest = np.abs(added[..., None] - tried.bias).argmin(axis=-1)
    outputs: np.ndarray = sums + tried.bias[nearest]
    return outputs


WHERE = {"": (0, 1), " in the rows": (0,), " in the columns": (1,)}
# What happens to stride, dilation and padding along the axes.
ALONG_AXES: tuple[tuple[str, Callable[[int, int, int], tuple[int, int, int]]], ...] = (
    ("The padding is not taken off{}.", lambda stride, dilation, before: (stride, dilation, 0)),
    ("The padding is added{}, and must be taken off.",
     lambda stride, dilation, before: (stride, dilation, -before)),
    ("The padding is multiplied by the dilation{}: take it off after the multiplication.",
     lambda stride, dilation, before: (stride, dilation, before * dilation)),
    ("The padding is multiplied by the stride{}: take it off after the multiplication.",
     lambda stride, dilation, before: (stride, dilation, before * stride)),
    ("The stride multiplies the filter's place{} too: multiply the output's place alone by it.",
     lambda stride, dilation, before: (stride, stride * dilation, before)),
    ("The stride is left out{}.", lambda stride, dilation, before: (1, dilation, before)),
    ("The dilation is left out{}.", lambda stride, dilation, before: (stride, 1, before)),
)  # fmt: skip
EVERY_PRODUCT = "The bias is added with every product: add it once, after the loop."
EVERY_SLICE = "The bias is added with every slice: add it once, after the loop."
# The first that fits counts.
LOOKALIKES: tuple[tuple[str, Computed], ...] = (
    ("The outputs lack the bias, and nothing else: add that of the output's channel, once.",
     _biased(lambda answer: 0)),
    ("The bias is in each output twice: add it once.", _biased(lambda answer: 2)),
    (EVERY_PRODUCT, _biased(lambda answer: answer.problem.K)),
    (EVERY_PRODUCT, _biased(lambda answer: answer.problem.K + 1)),
    (EVERY_SLICE, _biased(_slices)),
    (EVERY_SLICE, _biased(lambda answer: _slices(answer) + 1)),
    ("The sums are right, but they have the bias of another channel: that of output channel m is "
     "bias[m].", _of_another_channel),
    ("The outputs are the bias alone: the sums that are written have no products.",
     _weighted(np.zeros_like)),
    ("The last term of each sum is missing: where does the loop over the terms end?",
     _weighted(_without(-1, -1, -1))),
    ("The first term of each sum is missing: where does the loop over the terms begin?",
     _weighted(_without(0, 0, 0))),
    ("The sums have the terms of the last slice only: clear the sum before the loop over the "
     "slices, and not inside it.", _sliced(_last_slice)),
    ("The sums have only the first term of each slice: which numbers does a pass of the loop over "
     "the terms of the slice use?", _sliced(_first_of_slice)),
    ("The sums have only the last term of each slice: does each pass of the loop over the terms of "
     "the slice add its product?", _sliced(_last_of_slice)),
    ("The products of a slice all have the filter's number of its first term: each pass of the "
     "loop over the terms must read the number of its own term.", _sliced(_first_number_of_filter)),
    ("The products of a slice all have the windows' pixel of its first term: each pass of the loop "
     "over the terms must read the pixel of its own term.", _sliced(_first_pixel_of_slice)),
    ("Each slice has the filter's numbers of the first one: add the slice's first term to the term "
     "when you fetch.", _sliced(_first_of_filter)),
    ("Each slice has the windows' pixels of the first one: add the slice's first term to the term "
     "when you fetch.", _sliced(_first_of_windows)),
    ("Each output is its last product and the bias: add the products up, with +=.",
     _weighted(_last_alone)),
    ("The sums have the terms of the first input channel only.",
     _weighted(_without(slice(1, None)))),
    ("The first row of the filter is missing in the sums.",
     _weighted(_without(slice(None), 0))),
    ("The rows and columns of the filter are read from the last to the first. (The convolution of "
     "mathematics does so, that of neural networks does not.)",
     _weighted(lambda weight: weight[:, :, ::-1, ::-1])),
    ("The rows of the filter are read from the last to the first.",
     _weighted(lambda weight: weight[:, :, ::-1])),
    ("The columns of the filter are read from the last to the first.",
     _weighted(lambda weight: weight[:, :, :, ::-1])),
    ("The terms of the filter are read from the last to the first.",
     _weighted(lambda weight: weight[:, ::-1, ::-1, ::-1])),
    ("The rows and the columns of the filter are exchanged.", _weighted(_transposed)),
    ("The padding above and that on the left are exchanged.",
     _from_pixels(lambda w: w._replace(before=w.before[::-1]))),
    ("The strides of rows and columns are exchanged.",
     _from_pixels(lambda w: w._replace(stride=w.stride[::-1]))),
    ("The dilations of rows and columns are exchanged.",
     _from_pixels(lambda w: w._replace(dilation=w.dilation[::-1]))),
    ("The stride stands in the place of the dilation.",
     _from_pixels(lambda w: w._replace(dilation=w.stride))),
    *((told.format(where), _from_pixels(partial(_changed_along, axes=axes, changed=changed)))
      for told, changed in ALONG_AXES for where, axes in WHERE.items()),
)  # fmt: skip


def lookalike(answers: Sequence[Answer], seed: int) -> str:
    """Return the sentence about the mistake that leads to the outputs of all answers, right ones
    too; empty if none of ``LOOKALIKES`` does. ``seed`` is that of the numbers of the check."""
    ordinary = [one for one in answers if one.name not in SPOILED_INPUTS]
    if all(one.ok for one in ordinary):
        return ""
    if any(one.output is None or one.problem.channels_last for one in ordinary):
        return ""
    in_turn = sorted(ordinary, key=lambda one: one.ok)  # wrong ones rule out most mistakes
    tried = [Tried(one, *random_tensors(one.problem, seed)) for one in in_turn]
    for told, computed in LOOKALIKES:
        if all(_alike(one, computed) for one in tried):
            return told
    return ""


def _alike(tried: Tried, computed: Computed) -> bool:
    """Return whether an output is what a mistake leads to, but for rounding."""
    other, output = computed(tried), tried.answer.output
    largest = float(np.abs(other).max(initial=0))
    if output is None or not np.isfinite(largest):
        return False
    return np.allclose(output, other, rtol=0, atol=CLOSE * largest)
