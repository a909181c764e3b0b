"""Inputs and weights that are NaN or infinite: they show what a kernel multiplies by zero."""

from __future__ import annotations

import numpy as np

from convlab.checking.outcome import BESIDE, RELU, SPOILED
from convlab.checking.programs import Tensors
from convlab.problems.number_types import as_floats
from convlab.problems.problem import ConvProblem


def spoil(tensors: Tensors, name: str, problem: ConvProblem) -> None:
    """Change the tensors of a problem that is tried under ``name``, if it is one of those with NaN
    or infinities."""
    if name == BESIDE:
        tensors[0][~in_windows(problem)] = np.nan
    elif name in (SPOILED, RELU):
        # An infinite weight gives NaN on padding, which is zeros. An infinite last weight also
        # shows a kernel that fills a slice with weights of the next filter position instead of
        # zeros. The largest float32, which TF32 rounds to infinity, gives numbers: the inputs are
        # less than one.
        tensors[0][...] = as_floats(tensors[0]) / 8
        flat = tensors[0].reshape(-1)
        flat[0], flat[len(flat) // 2], flat[-1] = np.inf, np.nan, -np.inf
        tensors[1][-1, 0, 0, 0], tensors[1][0, 0, 0, 0] = np.inf, problem.number_type.largest
        tensors[1][len(tensors[1]) // 2, -1, -1, -1] = np.inf


def in_windows(problem: ConvProblem) -> np.ndarray:
    """Return an array of the input's shape, True where some window has the number."""
    rows, columns = (
        np.isin(
            np.arange(size),
            np.add.outer(np.arange(outputs) * stride - before, np.arange(taps) * dilation),
        )
        for size, outputs, stride, before, taps, dilation in (
            (problem.H_i, problem.H_o, problem.s_h, problem.p_h, problem.H_f, problem.d_h),
            (problem.W_i, problem.W_o, problem.s_w, problem.p_w, problem.W_f, problem.d_w),
        )
    )
    pixels = np.outer(rows, columns)
    pixels = pixels[None, :, :, None] if problem.channels_last else pixels[None, None]
    return np.broadcast_to(pixels, problem.input_shape)
