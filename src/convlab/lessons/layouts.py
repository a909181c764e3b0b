"""Pictures of layouts: the places of an image's pixels in the matrices that stages make of it.

The stages' own layout transforms run on an image whose pixels are numbered; the pictures show
what they write.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from convlab.ladder import stage_named
from convlab.ladder.layouts.im2win_layout import group_size
from convlab.ladder.stage import Tile, blocks_for
from convlab.lessons.exercises import numbered, ready_for, run
from convlab.lessons.pictures import COLOURS, INK, NOBODY, Grid, Picture, only_or_count
from convlab.lessons.plain_im2win import BLOCK as PACKING_BLOCK
from convlab.lessons.plain_im2win import make_packing, packed_buffer
from convlab.problems.problem import ConvProblem
from convlab.running.engines.simulator import Simulator
from convlab.running.plans import Plan

MOST_COLUMNS = 24  # boxes beside each other, at their full size


def made_of_numbers(stage: str, problem: ConvProblem) -> np.ndarray:
    """Return the array that a stage's first layout transform writes for pixels 1, 2, 3, ...; 0 is
    padding. Raises ``ValueError`` for a stage without a layout transform of the input."""
    chosen_stage = stage_named(stage)
    ready = Plan(problem, chosen_stage, chosen_stage.tiny_tile, Simulator(strict=False))
    weight, bias = np.zeros(problem.weight_shape, np.float32), np.zeros(problem.M, np.float32)
    tensors = numbered(problem), weight, np.zeros(problem.output_shape, np.float32), bias
    shapes = {buffer.name: buffer.shape for buffer in ready.program.buffers}
    for (launch, arrays), start in zip(ready.bound(*tensors), ready.steps(*tensors), strict=True):
        made = str(launch.arguments[-1])
        if "input" in map(str, launch.arguments) and made in shapes:
            start(None)
            return np.asarray(arrays[-1]).reshape(shapes[made]).astype(int)
    raise ValueError(f"stage is {chosen_stage.name}, which has no layout transform of the input")


def _coloured(grid: Grid, left: float, top: float, pixels: np.ndarray, W_i: int) -> None:
    """Draw a matrix of numbered pixels, coloured by their columns of the input, ``W_i`` wide."""
    colours = [NOBODY, *(COLOURS[n % W_i % len(COLOURS)] for n in range(pixels.max()))]
    grid.cells(left, top, pixels, colours, str)


def im2col_beside_im2win(problem: ConvProblem, window: int = 0) -> Picture:
    """Draw an input of one image, i01's im2col matrix of it and m09's im2win tensor.

    This is Figure 1 of the im2win paper. Frames mark the numbers of one window.
    """
    p = problem
    image = numbered(p)[0].astype(int)
    matrix = made_of_numbers("i01_im2col", p).reshape(p.K, -1)[:, : p.N]
    tensor = made_of_numbers("m09", p)[0]
    m, n = divmod(window, p.W_o)
    first = n * p.s_w * p.H_f
    # Each part's blocks, which stand below each other, with the places of the window in them.
    parts: dict[str, tuple[np.ndarray, Any]] = {
        "input": (image, np.s_[:, :]),
        "im2col matrix": (matrix[None], np.s_[:, window : window + 1]),
        "im2win tensor": (tensor, np.s_[m, first : first + p.window_shape[1] * p.H_f]),
    }
    grid, left, line, tallest = Grid(), 0, 0, 0
    for title, (blocks, there) in parts.items():
        if left + blocks.shape[2] > MOST_COLUMNS:  # a line of its own, so that numbers stay large
            left, line = 0, tallest + 3
        grid.note(left, line - 0.9, title, 9)
        for number, block in enumerate(blocks):
            top = line + number * (len(block) + 1)
            tallest = max(tallest, top + len(block))
            _coloured(grid, left, top, block, p.W_i)
            framed = np.zeros(block.shape, bool)
            framed[there] = np.isin(block[there], matrix[:, window])
            for row, column in np.argwhere(framed):
                grid.cell(left + column, top + row, "none", edge=INK)
        left += blocks.shape[2] + 4
    sizes = [f"{' x '.join(map(str, one.shape))} = {one.size}" for one in (image, matrix, tensor)]
    alt = f"""An input of {sizes[0]} numbered pixels, its im2col matrix of {sizes[1]} and its im2win
        tensor of {sizes[2]}"""
    legend = """A colour is a column of the input; channels stand below each other. Frames mark the
        window of one output: in im2win the part of each channel is contiguous, and overlaps with
        the part of the window to the right."""
    caption = f"{alt}, as the kernels of the stages i01 (im2col) and m09 (im2win) write them."
    return grid.finished(alt, caption, legend)


def im2win_orders(problem: ConvProblem) -> Picture:
    """Draw the first output row's part of m09's im2win tensor, and below it of m11's.

    m11's tensor, which is m10's, has channels innermost. Frames mark the first two windows.
    """
    p = problem
    orders = {
        "m09: a row for each channel": made_of_numbers("m09", p)[0, :, 0],
        "m11: channels innermost": made_of_numbers("m11", p)[0].reshape(1, -1),
    }
    grid, top, told = Grid(), 0.0, []
    for title, tensor in orders.items():
        grid.note(0, top - 0.9, title, 9)
        _coloured(grid, 0, top, tensor, p.W_i)
        group = tensor.shape[1] // (p.W_i + sum(p.padding[1]))
        length, step = p.W_f * group, p.s_w * group
        for number, ink in enumerate((INK, "#b0413e")):
            inset = 0.12 * number
            for line in range(len(tensor)):
                grid.cell(number * step + inset, top + line + inset, "none", edge=ink,
                          wide=length - 2 * inset, high=1 - 2 * inset)  # fmt: skip
        told.append(f"{len(tensor)} x {length}")
        top += p.C_i + 3.2
    alt = f"""The im2win tensor under one row of the output: a window is {told[0]} contiguous
        numbers in m09 and {told[1]} in m11, where the next window begins {step} numbers further
        on"""
    caption = f"{alt}. A colour is a column of the input; two windows are framed, in black and red."
    return grid.finished(alt, caption)


def packed_filter(problem: ConvProblem, tile: Tile) -> Picture:
    """Draw the first filter of a problem, and the matrices of the packed filter that lesson 11's
    layout transform of the filter makes. Weights are numbered 1, 2, 3, ...; 0 is no weight."""
    p, G = problem, group_size(problem)
    weight = np.arange(1, math.prod(p.weight_shape) + 1, dtype=np.float32).reshape(p.weight_shape)
    buffer = packed_buffer(p, tile)
    flat = np.zeros(math.prod(buffer.shape), np.float32)
    blocks = blocks_for(flat.size, PACKING_BLOCK)
    run(make_packing(p, tile), blocks, PACKING_BLOCK, weight, flat)
    packed = flat.reshape(buffer.shape).astype(int)

    def colour(number: int) -> str:
        return COLOURS[(number - 1) % p.W_f % len(COLOURS)] if number else NOBODY

    grid, first = Grid(0.26), weight[0].astype(int)
    for i_c, plane in enumerate(first):
        top = i_c * (p.H_f + 2)
        grid.note(0, top - 0.7, f"weight[0, {i_c}]", 9)
        grid.cells(0, top, plane, colour, str)
    left = p.W_f + 10
    for k in range(buffer.shape[1]):
        f_w, place = divmod(k, G)
        f_h, i_c = divmod(place, p.C_i)
        there = f_w < p.W_f and f_h < p.H_f
        term = f"f_w={f_w} f_h={f_h} i_c={i_c}" if there else "zeros"
        grid.note(left - 0.4, k + 0.5, f"k={k}: {term}", 8, ha="right", family="monospace")
    for number, matrix in enumerate(packed):
        start = left + number * (tile.M_B + 2)
        last = min(p.M, (number + 1) * tile.M_B) - 1
        grid.note(start, -0.7, f"o_c = {number * tile.M_B}-{last}", 9)
        grid.cells(start, 0, matrix, colour, str)
        for k0 in range(0, len(matrix), tile.K_B):
            grid.frame(start, k0, tile.M_B, tile.K_B)
    alt = f"""A filter of {p.C_i} x {p.H_f} x {p.W_f} numbered weights, and the packed filter of
        {p.M} such filters: {len(packed)} matrices of {buffer.shape[1]} terms x {tile.M_B} output
        channels"""
    caption = f"""{alt}. A colour is a column of the filter. Each column of a matrix is one filter,
        and each row one term. A frame is a slice of {tile.K_B} terms, which the kernel loads at
        once. On the left is filter 0 alone, with weights 1 to {weight[0].size}; the weights of the
        other filters go on counting, up to {weight.size}."""
    return grid.finished(alt, caption)


def windows_written_out(problem: ConvProblem, column: int) -> Picture:
    """Draw an input and the matrix that the stages' im2col kernel writes of it, pixel by pixel.

    The window of output pixel ``column`` and its column are framed. The problem has one image, no
    padding and no dilation.
    """
    p = problem
    input = numbered(p).astype(int)
    matrix = made_of_numbers("i01_im2col", p).reshape(p.K, -1)
    marked = set(matrix[:, column].tolist())

    def colour(pixel: int) -> str:
        plain = (COLOURS[0], COLOURS[2])[(pixel - 1) // (p.H_i * p.W_i) % 2]
        return NOBODY if not pixel else COLOURS[1] if pixel in marked else plain

    grid, left = Grid(), p.W_i + 8
    row, across = divmod(column, p.W_o)
    for channel in range(p.C_i):
        top = channel * (p.H_i + 2)
        grid.note(0, top - 0.7, f"input[0, {channel}]", 9)
        grid.cells(0, top, input[0, channel], colour, str, size=8)
        # Without dilation or padding, a window is a rectangle of the input.
        grid.frame(across * p.s_w, top + row * p.s_h, *reversed(p.window_shape))
    grid.note(left, -1.7, "column n of the matrix", 9)
    for n in range(p.N):
        grid.note(left + n + 0.5, -0.6, str(n), 8, ha="center")
    for k, (i_c, f_h, f_w) in enumerate(np.ndindex(p.C_i, p.H_f, p.W_f)):
        label = f"i_c={i_c} f_h={f_h} f_w={f_w}"
        grid.note(left - 0.3, k + 0.5, label, 8, ha="right", family="monospace")
    grid.cells(left, 0, matrix[:, : p.N], colour, str, size=8)
    grid.cells(left + p.N, 0, matrix[:, p.N :], lambda pixel: NOBODY, hatched=True)
    grid.frame(left + column, 0, 1, p.K)
    copies = np.bincount(matrix[:, : p.N].reshape(-1))[1:]
    alt = f"""Left {p.C_i} channels of {p.H_i} x {p.W_i} numbered pixels, right the matrix of {p.K}
        rows and {p.N} columns, each a window of the input"""
    caption = f"""Frames mark the window of output pixel {column} (row {row}, column {across}). Its
        pixels are orange in all places to which the kernel copied them, because neighbouring
        windows share pixels. Each row is one term: channel i_c, filter row f_h, filter column f_w.
        The matrix stores {p.K * p.N} numbers for {input.size} pixels, a pixel up to
        {copies.max()} times.
        The hatched columns only pad the rows."""
    return grid.finished(alt, caption)


def windows_seen(made: Any, stage: str, problem: ConvProblem) -> np.ndarray:
    """Return the K x N matrix of windows that a kernel in the stage's place reads.

    An element is the number of its pixel, from 1, or 0. The kernel gets an input of numbered pixels
    and K filters that are one at one place and zero elsewhere: filter k picks out term k.
    """
    square = replace(problem, out_channels=problem.K)
    weight = np.eye(problem.K, dtype=np.float32).reshape(square.weight_shape)
    output = np.zeros(square.output_shape, np.float32)
    tensors = numbered(problem), weight, np.zeros(problem.K, np.float32)
    main, arrays = ready_for(made, stage, square, None, tensors, output)
    Simulator(strict=False).launch(main.kernel, main.grid, main.block, *arrays)
    return output.transpose(1, 0, 2, 3).reshape(problem.K, problem.N).astype(int)


def column_of_windows(made: Any, stage: str, problem: ConvProblem, column: int) -> Picture:
    """Draw the pixels in which a kernel finds each term of a column of the matrix of windows.

    The column is on the left, the image's channels are on the right, and numbers are terms.
    ``made`` makes the kernel, as for :func:`~convlab.lessons.traced`. Raises ``ValueError`` for a
    column that the matrix does not have.
    """
    if not 0 <= column < problem.N:
        raise ValueError(f"column is {column}: the matrix has columns 0 to {problem.N - 1}")
    pixels = windows_seen(made, stage, problem)[:, column]
    terms: dict[tuple[int, ...], list[int]] = {}
    image = column // (problem.H_o * problem.W_o)
    grid, left, across = Grid(), 10.0, min(2, problem.C_i)
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
            colour = COLOURS[r % len(COLOURS)] if here else NOBODY
            grid.cell(x + at, y + row, colour, only_or_count(here), size=8)
    alt = f"""Column {column} of the windows: {problem.K} terms, {(pixels == 0).sum()} of them
        padding, the others in {len(terms)} pixels of the input"""
    caption = f"""On the left is column {column} of the matrix of windows, which is stored nowhere.
        On the right are the pixels that the kernel takes as its terms. Equal numbers are the same
        term, and each colour is an input channel."""
    if any(len(found) > 1 for found in terms.values()):
        caption += " `x2` means that the kernel takes a pixel for two terms."
    return grid.finished(alt, caption)
