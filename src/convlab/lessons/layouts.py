"""Pictures of layouts: where the numbers of an image go in the matrices that stages make of it.

The stages' own pre-passes are run on an image whose pixels are numbered, and what they wrote is
drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convlab.engines.simulator import Simulator
from convlab.lessons.pictures import (
    COLOURS,
    INK,
    NOBODY,
    Picture,
    cell,
    finished,
    limits,
    note,
    sheet,
)
from convlab.plans import Plan
from convlab.problem import ConvProblem
from convlab.stages import stage_named


def made_of_numbers(stage: str, problem: ConvProblem) -> np.ndarray:
    """What a stage's first pre-pass makes of an input whose pixels are 1, 2, 3, ...; 0 is padding.

    Raises ``ValueError`` for a stage without a pre-pass on the input.
    """
    step = stage_named(stage)
    ready = Plan(problem, step, step.tiny_tile, Simulator(strict=False))
    size = int(np.prod(problem.input_shape))
    input = np.arange(1, size + 1, dtype=np.float32).reshape(problem.input_shape)
    weight = np.zeros(problem.weight_shape, np.float32)
    bias, output = np.zeros(problem.M, np.float32), np.zeros(problem.output_shape, np.float32)
    bound = ready.bound(input, weight, output, bias)
    passes = [n for n, (one, _) in enumerate(bound[:-1]) if "input" in map(str, one.arguments)]
    if not passes:
        raise ValueError(f"stage is {step.name}, which has no pre-pass on the input")
    ready.steps(input, weight, output, bias)[passes[0]](None)
    step_there, arrays = bound[passes[0]]
    name = str(step_there.arguments[-1])
    (shape,) = (buffer.shape for buffer in ready.program.buffers if buffer.name == name)
    return np.asarray(arrays[-1]).reshape(shape).astype(int)


def windows_of(problem: ConvProblem) -> list[np.ndarray]:
    """The numbers that each output's window holds, channels one after the other."""
    p = problem
    numbers = np.arange(1, int(np.prod(p.input_shape)) + 1).reshape(p.input_shape)
    (above, below), (left, right) = p.padding
    padded = np.pad(numbers, ((0, 0), (0, 0), (above, below), (left, right)))
    return [
        padded[
            i, :,
            m * p.s_h : m * p.s_h + p.H_f * p.d_h : p.d_h,
            n * p.s_w : n * p.s_w + p.W_f * p.d_w : p.d_w,
        ]
        for i in range(p.N_i) for m in range(p.H_o) for n in range(p.W_o)
    ]  # fmt: skip


def im2col_beside_im2win(problem: ConvProblem, window: int = 0) -> Picture:
    """An input of one image, s03's im2col matrix of it and s10's im2win tensor: as Figure 1 of the
    im2win paper. A frame shows the numbers of one window."""
    p = problem
    image = np.arange(1, int(np.prod(p.input_shape)) + 1).reshape(p.input_shape)[0]
    matrix = made_of_numbers("s03_im2col", p).reshape(p.K, -1)[:, : p.N]
    tensor = made_of_numbers("s10", p)[0]
    marked = {int(number) for number in windows_of(p)[window].ravel()}
    m, n = window // p.W_o, window % p.W_o
    wide = tensor.shape[2]
    high = max(p.C_i * (p.H_i + 1), p.K, p.C_i * (p.H_o + 1)) + 1.5
    left = (0.0, p.W_i + 4.0, p.W_i + p.N + 8.0)
    total = left[2] + wide + 0.5
    scale = min(0.3, 7.4 / total)
    figure, (panel,) = sheet(7.4, (high + 1.2) * scale + 0.1)
    limits(panel, (-0.4, max(total, 7.4 / scale - 0.6)), (-1.6, high - 1))

    def boxes(block: np.ndarray, at: float, top: float, framed: Any) -> None:
        for (row, column), number in np.ndenumerate(block):
            own = (number - 1) % p.W_i
            colour = NOBODY if number == 0 else COLOURS[own % len(COLOURS)]
            cell(panel, at + column, top + row, colour, str(number), size=7)
        for (row, column), number in np.ndenumerate(block):
            if number in marked and framed(row, column):
                cell(panel, at + column, top + row, "none", edge=INK)

    note(panel, left[0], -0.9, "input", 9)
    note(panel, left[1], -0.9, "im2col matrix", 9)
    note(panel, left[2], -0.9, "im2win tensor", 9)
    first = n * p.s_w * p.H_f
    inside = range(first, first + p.window_shape[1] * p.H_f)
    for channel in range(p.C_i):
        boxes(image[channel], left[0], channel * (p.H_i + 1), lambda row, column: True)
        top = channel * (p.H_o + 1)
        boxes(tensor[channel], left[2], top, lambda row, column: row == m and column in inside)
    boxes(matrix, left[1], 0, lambda row, column: column == window)
    sizes = image.size, matrix.size, tensor.size
    shapes = (
        f"{p.C_i} x {p.H_i} x {p.W_i}", f"{matrix.shape[0]} x {matrix.shape[1]}",
        f"{tensor.shape[0]} x {tensor.shape[1]} x {tensor.shape[2]}",
    )  # fmt: skip
    alt = (
        f"An input of {shapes[0]} = {sizes[0]} numbered pixels, its im2col matrix of {shapes[1]} = "
        f"{sizes[1]} and its im2win tensor of {shapes[2]} = {sizes[2]}, with the pixels of one "
        "window framed in each."
    )
    caption = (
        f"What the kernels of s03 and s10 make of an input whose {sizes[0]} pixels are numbered "
        f"({shapes[0]}: channels stand below each other). A colour is a column of the input. "
        f"The im2col matrix ({shapes[1]} = {sizes[1]} numbers) has a column for each window; the "
        f"im2win tensor ({shapes[2]} = {sizes[2]} numbers) has a row for each row of the output "
        "and channel. Framed is the window of one output, in each of the three: in im2win it is "
        "one run for each channel, and its right neighbour's run overlaps with it."
    )
    return finished(figure, alt, caption)


def im2win_orders(problem: ConvProblem, row: int = 0, windows: tuple[int, ...] = (0, 1)) -> Picture:
    """A row of output pixels' part of s10's im2win tensor and, below it, of s11's, which has
    channels innermost. Frames show windows: their places in the row of the output."""
    p = problem
    outer = made_of_numbers("s10", p)[0, :, row]
    inner = made_of_numbers("s11", p)[row].reshape(1, -1)
    wide = max(outer.shape[1], inner.shape[1])
    scale = min(0.3, 7.2 / (wide + 0.6))
    gap = p.C_i + 3.2
    figure, (panel,) = sheet(7.4, (gap + 3.2) * scale + 0.1)
    limits(panel, (-0.3, max(wide + 0.3, 7.2 / scale)), (-1.6, gap + 1.8))
    runs = []
    inks = (INK, "#b0413e")
    for top, tensor in ((0.0, outer), (gap, inner)):
        for (line, column), number in np.ndenumerate(tensor):
            own = (number - 1) % p.W_i
            colour = NOBODY if number == 0 else COLOURS[own % len(COLOURS)]
            cell(panel, column, top + line, colour, str(number), size=6.5)
        group = tensor.shape[1] // (p.W_i + sum(p.padding[1]))
        length = p.W_f * group
        for one, ink in zip(windows, inks, strict=False):
            for line in range(len(tensor)):
                start = one * p.s_w * group
                lower = 0.12 * windows.index(one)
                cell(
                    panel, start + lower, top + line + lower, "none", edge=ink,
                    wide=length - 2 * lower, high=1 - 2 * lower,
                )  # fmt: skip
        runs.append((len(tensor), length, group * p.s_w))
    note(panel, 0, -0.9, "s10: a row for each channel", 9)
    note(panel, 0, gap - 0.9, "s11: channels innermost", 9)
    (several, short, _), (_, long, step) = runs
    said = (
        f"in s10 a window is {several} runs of {short} numbers, in s11 one run of {long}, and the "
        f"next window's begins {step} numbers further on"
    )
    alt = f"The part of the im2win tensor under one row of the output, in two orders: {said}."
    caption = (
        "What the transforms of s10 and s11 write for one row of the output, of an input whose "
        f"pixels are numbered ({p.C_i} channels, {p.H_f} x {p.W_f} filter). A colour is a column "
        f"of the input{'; 0 is padding or only fills up' * (0 in inner)}. Framed in black and red "
        f"are two windows: {said}."
    )
    return finished(figure, alt, caption)
