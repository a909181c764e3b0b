"""Pictures of layouts: where the numbers of an image go in the matrices that stages make of it.

The stages' own layout transforms run on an image whose pixels are numbered; the pictures show
what they write.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from convlab.engines.simulator import Simulator
from convlab.lessons.launching import numbered, ready_for
from convlab.lessons.pictures import COLOURS, INK, NOBODY, Grid, Picture
from convlab.plans import Plan
from convlab.problem import ConvProblem
from convlab.stages import stage_named


def made_of_numbers(stage: str, problem: ConvProblem) -> np.ndarray:
    """What a stage's first layout transform makes of an input with pixels 1, 2, 3, ...; 0 is
    padding.

    Raises ``ValueError`` for a stage without a layout transform of the input.
    """
    step = stage_named(stage)
    ready = Plan(problem, step, step.tiny_tile, Simulator(strict=False))
    weight, bias = np.zeros(problem.weight_shape, np.float32), np.zeros(problem.M, np.float32)
    tensors = numbered(problem), weight, np.zeros(problem.output_shape, np.float32), bias
    shapes = {buffer.name: buffer.shape for buffer in ready.program.buffers}
    for (launch, arrays), start in zip(ready.bound(*tensors), ready.steps(*tensors), strict=True):
        made = str(launch.arguments[-1])
        if "input" in map(str, launch.arguments) and made in shapes:
            start(None)
            return np.asarray(arrays[-1]).reshape(shapes[made]).astype(int)
    raise ValueError(f"stage is {step.name}, which has no layout transform of the input")


def windows_of(problem: ConvProblem) -> np.ndarray:
    """The numbers that each output's window holds: [output, channel, filter row, filter column]."""
    p = problem
    padded = np.pad(numbered(p).astype(int), ((0, 0), (0, 0), *p.padding))
    windows = np.lib.stride_tricks.sliding_window_view(padded, p.window_shape, axis=(2, 3))
    windows = windows[:, :, :: p.s_h, :: p.s_w, :: p.d_h, :: p.d_w]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(p.N, p.C_i, p.H_f, p.W_f)


def _coloured(grid: Grid, left: float, top: float, pixels: np.ndarray, W_i: int) -> None:
    """A matrix of numbered pixels, coloured by their columns of the input, ``W_i`` wide."""

    def colour(pixel: int) -> str:
        return COLOURS[(pixel - 1) % W_i % len(COLOURS)] if pixel else NOBODY

    grid.cells(left, top, pixels, colour, str)


def im2col_beside_im2win(problem: ConvProblem, window: int = 0) -> Picture:
    """An input of one image, s03's im2col matrix of it and s10's im2win tensor: as Figure 1 of the
    im2win paper. A frame shows the numbers of one window."""
    p = problem
    image = numbered(p)[0].astype(int)
    matrix = made_of_numbers("s03_im2col", p).reshape(p.K, -1)[:, : p.N]
    tensor = made_of_numbers("s10", p)[0]
    marked = windows_of(p)[window]
    m, n = divmod(window, p.W_o)
    first = n * p.s_w * p.H_f
    inside = slice(first, first + p.window_shape[1] * p.H_f)
    # Of each part its blocks, which stand below each other, and where the window may be in them.
    everywhere, one_column, one_run = np.s_[:, :], np.s_[:, window : window + 1], np.s_[m, inside]
    parts: dict[str, tuple[np.ndarray, Any]] = {
        "input": (image, everywhere),
        "im2col matrix": (matrix[None], one_column),
        "im2win tensor": (tensor, one_run),
    }
    grid = Grid()
    left = 0
    for title, (blocks, there) in parts.items():
        grid.note(left, -0.9, title, 9)
        for number, block in enumerate(blocks):
            top = number * (len(block) + 1)
            _coloured(grid, left, top, block, p.W_i)
            framed = np.zeros(block.shape, bool)
            framed[there] = np.isin(block[there], marked)
            for row, column in np.argwhere(framed):
                grid.cell(left + column, top + row, "none", edge=INK)
        left += blocks.shape[2] + 4
    sizes = [f"{' x '.join(map(str, one.shape))} = {one.size}" for one in (image, matrix, tensor)]
    alt = (
        f"An input of {sizes[0]} numbered pixels, its im2col matrix of {sizes[1]} and its im2win "
        f"tensor of {sizes[2]}"
    )
    caption = (
        f"{alt}, as the kernels of s03 and s10 write them. A colour is a column of the input; "
        "channels stand below each other. Framed is the window of one output: in im2win each "
        "channel's part of it is contiguous, and overlaps with its right neighbour's."
    )
    return grid.finished(alt, caption)


def im2win_orders(problem: ConvProblem, row: int = 0, windows: tuple[int, ...] = (0, 1)) -> Picture:
    """A row of output pixels' part of s10's im2win tensor and, below it, of s11's, which has
    channels innermost. Frames show windows: their places in the row of the output."""
    p = problem
    orders = {
        "s10: a row for each channel": made_of_numbers("s10", p)[0, :, row],
        "s11: channels innermost": made_of_numbers("s11", p)[row].reshape(1, -1),
    }
    grid = Grid()
    top, told = 0.0, []
    for title, tensor in orders.items():
        grid.note(0, top - 0.9, title, 9)
        _coloured(grid, 0, top, tensor, p.W_i)
        group = tensor.shape[1] // (p.W_i + sum(p.padding[1]))
        length, step = p.W_f * group, p.s_w * group
        for number, (one, ink) in enumerate(zip(windows, (INK, "#b0413e"), strict=False)):
            inset = 0.12 * number
            for line in range(len(tensor)):
                grid.cell(one * step + inset, top + line + inset, "none", edge=ink,
                          wide=length - 2 * inset, high=1 - 2 * inset)  # fmt: skip
        told.append(f"{len(tensor)} x {length}")
        top += p.C_i + 3.2
    alt = (
        f"The im2win tensor under one row of the output: a window is {told[0]} contiguous numbers "
        f"in s10 and {told[1]} in s11, where the next window begins {step} numbers further on"
    )
    caption = f"{alt}. A colour is a column of the input; two windows are framed, in black and red."
    return grid.finished(alt, caption)


def windows_written_out(problem: ConvProblem, column: int) -> Picture:
    """The input and the matrix that the stages' im2col kernel writes of it, pixel by pixel, with
    the window of output pixel ``column`` and its column framed. For one image without padding or
    dilation."""
    input = numbered(problem).astype(int)
    matrix = made_of_numbers("s03_im2col", problem).reshape(problem.K, -1)
    marked = set(matrix[:, column].tolist())
    labels = [f"r={r} u={u} v={v}" for r, u, v in np.ndindex(problem.C_i, problem.H_f, problem.W_f)]
    left = problem.W_i + 6.5
    grid = Grid()

    def colour(pixel: int) -> str:
        plain = (COLOURS[0], COLOURS[2])[(pixel - 1) // (problem.H_i * problem.W_i) % 2]
        return NOBODY if not pixel else COLOURS[1] if pixel in marked else plain

    row, across = divmod(column, problem.W_o)
    for channel in range(problem.C_i):
        top = channel * (problem.H_i + 2)
        grid.note(0, top - 0.7, f"input[0, {channel}]", 9)
        grid.cells(0, top, input[0, channel], colour, str, size=8)
        # Without dilation or padding, a window is a rectangle of the input.
        grid.frame(across * problem.s_w, top + row * problem.s_h, *reversed(problem.window_shape))
    grid.note(left, -1.7, "column n of the matrix", 9)
    for n in range(problem.N):
        grid.note(left + n + 0.5, -0.6, str(n), 8, ha="center")
    for k, label in enumerate(labels):
        grid.note(left - 0.3, k + 0.5, label, 8, ha="right", family="monospace")
    grid.cells(left, 0, matrix[:, : problem.N], colour, str, size=8)
    grid.cells(left + problem.N, 0, matrix[:, problem.N :], lambda pixel: NOBODY, hatch="////")
    grid.frame(left + column, 0, 1, problem.K)
    copies = np.bincount(matrix[:, : problem.N].reshape(-1))[1:]
    alt = (
        f"Left {problem.C_i} channels of {problem.H_i} x {problem.W_i} numbered pixels, right the "
        f"matrix of {problem.K} rows and {problem.N} columns, each a window of the input"
    )
    caption = (
        f"Framed is what output pixel {column} (row {row}, column {across}) sees, and orange are "
        "its pixels wherever the kernel copied them to, for neighbouring windows share them. Each "
        f"row is one term: channel r, filter row u, filter column v. {input.size} pixels became "
        f"{problem.K * problem.N} numbers; a pixel is there up to {copies.max()} times. Hatched "
        "columns only round the rows' length up."
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
    tensors = numbered(problem), weight, bias
    main, arrays = ready_for(made, stage, square, None, tensors, output)
    Simulator(strict=False).launch(main.kernel, main.grid, main.block, *arrays)
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
        x, y = left + r % across * (problem.W_i + 1.5), r // across * (problem.H_i + 2)
        grid.note(x, y - 0.5, f"input[{image}, {r}]", 8)
        for row, at in np.ndindex(problem.H_i, problem.W_i):
            here = terms.get((image, r, row, at), [])
            text = f"x{len(here)}" if len(here) > 1 else "".join(map(str, here))
            colour = COLOURS[r % len(COLOURS)] if here else NOBODY
            grid.cell(x + at, y + row, colour, text, size=8)
    padded = int((pixels == 0).sum())
    alt = (
        f"Column {column} of the windows: {problem.K} terms, {padded} of them padding, the others "
        f"in {len(terms)} pixels of the input"
    )
    caption = (
        f"Left column {column} of the matrix of windows, which is stored nowhere; right the pixels "
        "in which the kernel finds its terms: the same number is the same term, a colour is an "
        "input channel; `x2` says that a pixel is taken for two terms."
    )
    return grid.finished(alt, caption)
