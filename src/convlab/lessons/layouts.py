"""Pictures of layouts: where the numbers of an image go in the matrices that stages make of it.

The stages' own layout transforms run on an image whose pixels are numbered; the pictures show
what they write.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from convlab.engines.simulator import Simulator
from convlab.kernels.im2col import THREADS, make_im2col, pitch
from convlab.lessons.launching import numbered, traced_on
from convlab.lessons.pictures import COLOURS, FAINT, INK, NOBODY, Grid, Picture
from convlab.plans import Plan
from convlab.problem import ConvProblem
from convlab.stage import blocks_for
from convlab.stages import stage_named
from convlab.tracing import trace


def made_of_numbers(stage: str, problem: ConvProblem) -> np.ndarray:
    """What a stage's first layout transform makes of an input with pixels 1, 2, 3, ...; 0 is
    padding.

    Raises ``ValueError`` for a stage without a layout transform of the input.
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
        raise ValueError(f"stage is {step.name}, which has no layout transform of the input")
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
    left = (0.0, p.W_i + 4.0, p.W_i + p.N + 8.0)
    grid = Grid()

    def boxes(block: np.ndarray, at: float, top: float, framed: Any) -> None:
        for (row, column), number in np.ndenumerate(block):
            own = (number - 1) % p.W_i
            colour = NOBODY if number == 0 else COLOURS[own % len(COLOURS)]
            grid.cell(at + column, top + row, colour, str(number), size=7)
        for (row, column), number in np.ndenumerate(block):
            if number in marked and framed(row, column):
                grid.cell(at + column, top + row, "none", edge=INK)

    grid.note(left[0], -0.9, "input", 9)
    grid.note(left[1], -0.9, "im2col matrix", 9)
    grid.note(left[2], -0.9, "im2win tensor", 9)
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
    return grid.finished(alt, caption)


def im2win_orders(problem: ConvProblem, row: int = 0, windows: tuple[int, ...] = (0, 1)) -> Picture:
    """A row of output pixels' part of s10's im2win tensor and, below it, of s11's, which has
    channels innermost. Frames show windows: their places in the row of the output."""
    p = problem
    outer = made_of_numbers("s10", p)[0, :, row]
    inner = made_of_numbers("s11", p)[row].reshape(1, -1)
    gap = p.C_i + 3.2
    grid = Grid()
    runs = []
    inks = (INK, "#b0413e")
    for top, tensor in ((0.0, outer), (gap, inner)):
        for (line, column), number in np.ndenumerate(tensor):
            own = (number - 1) % p.W_i
            colour = NOBODY if number == 0 else COLOURS[own % len(COLOURS)]
            grid.cell(column, top + line, colour, str(number), size=6.5)
        group = tensor.shape[1] // (p.W_i + sum(p.padding[1]))
        length = p.W_f * group
        for one, ink in zip(windows, inks, strict=False):
            for line in range(len(tensor)):
                start = one * p.s_w * group
                lower = 0.12 * windows.index(one)
                grid.cell(start + lower, top + line + lower, "none", edge=ink,
                    wide=length - 2 * lower, high=1 - 2 * lower,
                )  # fmt: skip
        runs.append((len(tensor), length, group * p.s_w))
    grid.note(0, -0.9, "s10: a row for each channel", 9)
    grid.note(0, gap - 0.9, "s11: channels innermost", 9)
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
    return grid.finished(alt, caption)


def windows_written_out(problem: ConvProblem, column: int) -> Picture:
    """The input and the matrix that the stages' im2col kernel writes of it, pixel by pixel, with
    the window of output pixel ``column`` and its column framed. For one image without padding or
    dilation."""
    input = numbered(problem)
    width = pitch(problem.N)
    columns = np.full(problem.K * width, np.nan, np.float32)
    blocks = blocks_for(columns.size, THREADS)
    trace(make_im2col(problem, width, False), blocks, THREADS, input, columns)
    matrix = columns.reshape(problem.K, width).astype(int)
    marked = set(matrix[:, column].tolist())
    labels = [f"r={r} u={u} v={v}" for r, u, v in np.ndindex(problem.C_i, problem.H_f, problem.W_f)]
    left = problem.W_i + 6.5
    grid = Grid()
    places = problem.H_i * problem.W_i

    def box(x: float, y: float, pixel: int) -> None:
        if not pixel:
            grid.cell(x, y, NOBODY, "0")
            return
        plain = (COLOURS[0], COLOURS[2])[(pixel - 1) // places % 2]
        grid.cell(x, y, COLOURS[1] if pixel in marked else plain, str(pixel), size=8)

    for channel in range(problem.C_i):
        top = channel * (problem.H_i + 2)
        grid.note(0, top - 0.7, f"input[0, {channel}]", 9)
        for (row, across), pixel in np.ndenumerate(input[0, channel]):
            box(across, top + row, int(pixel))
    grid.note(left, -1.7, "column n of the matrix", 9)
    for n in range(problem.N):
        grid.note(left + n + 0.5, -0.6, str(n), 8, ha="center")
    for k, label in enumerate(labels):
        grid.note(left - 0.3, k + 0.5, label, 8, ha="right", family="monospace")
        for n in range(width):
            if n < problem.N:
                box(left + n, k, int(matrix[k, n]))
            else:
                grid.cell(left + n, k, NOBODY, hatch="////", edge=FAINT)
    row, across = divmod(column, problem.W_o)
    grid.frame(left + column, 0, 1, problem.K)
    for channel in range(problem.C_i):
        # Without dilation or padding, a window is a rectangle of the input.
        down = channel * (problem.H_i + 2) + row * problem.s_h
        grid.frame(across * problem.s_w, down, *reversed(problem.window_shape))
    copies = np.bincount(matrix[:, : problem.N].reshape(-1))[1:]
    alt = (
        f"Left {problem.C_i} channels of {problem.H_i} x {problem.W_i} numbered pixels, right the "
        f"matrix of {problem.K} rows and {problem.N} columns, each a window of the input"
    )
    caption = (
        f"Left the input, its pixels numbered; right the matrix that the kernel wrote of it. "
        f"Framed is what output pixel {column} (row {row}, column {across}) sees: a window of each "
        f"channel there, column {column} here. Its pixels are orange wherever they were copied to, "
        "for neighbouring windows share them. Each row is one term: channel r, filter row u, "
        f"filter column v. {input.size} pixels became {problem.K * problem.N} numbers; a pixel is "
        f"there up to {copies.max()} times. Hatched columns only round the rows' length up."
    )
    return grid.finished(alt, caption)


def windows_seen(made: Any, stage: str, problem: ConvProblem) -> np.ndarray:
    """The K x N matrix of windows as a kernel in the stage's place sees it: for each term the
    number of the pixel that it takes, counted from 1, 0 where it takes none.

    The kernel has to tell: it gets K filters, each of which is one at one place and zero elsewhere,
    and an input of numbered pixels. Filter k then picks out term k.
    """
    square = replace(problem, out_channels=problem.K)
    weight = np.eye(problem.K, dtype=np.float32).reshape(square.weight_shape)
    bias = np.zeros(problem.K, np.float32)
    output = np.zeros(square.output_shape, np.float32)
    traced_on((numbered(problem), weight, bias), output, made, stage, square)
    return output.transpose(1, 0, 2, 3).reshape(problem.K, problem.N).astype(int)


def column_of_windows(made: Any, stage: str, problem: ConvProblem, column: int) -> Picture:
    """Where a kernel in the stage's place finds each term of a column of the matrix of windows: the
    column on the left, the image's channels on the right, numbers are terms. ``made`` makes the
    kernel, as for :func:`~convlab.lessons.traced`.

    Raises ``ValueError`` for a column that there is not.
    """
    if not 0 <= column < problem.N:
        raise ValueError(f"column is {column}: the matrix has columns 0 to {problem.N - 1}")
    pixels = windows_seen(made, stage, problem)[:, column]
    terms: dict[tuple[int, ...], list[int]] = {}
    image = column // (problem.H_o * problem.W_o)
    left, across = 10.0, min(2, problem.C_i)
    wide, high = problem.W_i + 1.5, problem.H_i + 2
    grid = Grid()
    grid.note(0, -1.5, f"column {column} of the windows", 9)
    grid.note(left, -1.5, "where that is in the input", 9)
    for k, pixel in enumerate(pixels):
        found, colour = "padding: 0", NOBODY
        if pixel:
            place = tuple(map(int, np.unravel_index(pixel - 1, problem.input_shape)))
            terms.setdefault(place, []).append(k)
            found, colour = f"input{list(place)}", COLOURS[place[1] % len(COLOURS)]
        grid.cell(0, k, colour, str(k), size=8)
        grid.note(1.4, k + 0.5, found, 8, family="monospace")
    for r in range(problem.C_i):
        x, y = left + r % across * wide, r // across * high
        grid.note(x, y - 0.5, f"input[{image}, {r}]", 8)
        for row, at in np.ndindex(problem.H_i, problem.W_i):
            here = terms.get((image, r, row, at), [])
            text = "" if not here else str(here[0]) if len(here) == 1 else f"x{len(here)}"
            colour = COLOURS[r % len(COLOURS)] if here else NOBODY
            grid.cell(x + at, y + row, colour, text, size=8)
    padded = int((pixels == 0).sum())
    alt = (
        f"Column {column} of the windows: {problem.K} terms, {padded} of them padding, the others "
        f"in {len(terms)} pixels of the input"
    )
    caption = (
        f"Left column {column} of the matrix of windows, {problem.K} terms, which is stored "
        "nowhere; right the pixels in which the kernel finds them: the same number is the same "
        "term, a colour is an input channel, grey pixels are not in this column."
    )
    if padded:
        caption += f" {padded} terms are padding."
    if any(len(here) > 1 for here in terms.values()):
        caption += " `x2` says that a pixel was taken for two terms."
    return grid.finished(alt, caption)
