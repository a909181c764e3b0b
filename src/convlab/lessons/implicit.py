"""The picture of an implicit matrix product: where a kernel finds a column of the windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from convlab.lessons.im2col import numbered
from convlab.lessons.launching import traced_on
from convlab.lessons.pictures import (
    COLOURS,
    NOBODY,
    Picture,
    cell,
    finished,
    limits,
    note,
    sheet,
)
from convlab.problem import ConvProblem


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
    tall = max(problem.K, -(-problem.C_i // across) * high)
    figure, (panel,) = sheet((left + across * wide) * 0.3, (tall + 2.6) * 0.3)
    limits(panel, (-0.3, left + across * wide - 0.5), (-2.2, tall + 0.2))
    note(panel, 0, -1.5, f"column {column} of the windows", 9)
    note(panel, left, -1.5, "where that is in the input", 9)
    for k, pixel in enumerate(pixels):
        found, colour = "padding: 0", NOBODY
        if pixel:
            place = tuple(map(int, np.unravel_index(pixel - 1, problem.input_shape)))
            terms.setdefault(place, []).append(k)
            found, colour = f"input{list(place)}", COLOURS[place[1] % len(COLOURS)]
        cell(panel, 0, k, colour, str(k), size=8)
        note(panel, 1.4, k + 0.5, found, 8, family="monospace")
    for r in range(problem.C_i):
        x, y = left + r % across * wide, r // across * high
        note(panel, x, y - 0.5, f"input[{image}, {r}]", 8)
        for row, at in np.ndindex(problem.H_i, problem.W_i):
            here = terms.get((image, r, row, at), [])
            text = "" if not here else str(here[0]) if len(here) == 1 else f"x{len(here)}"
            colour = COLOURS[r % len(COLOURS)] if here else NOBODY
            cell(panel, x + at, y + row, colour, text, size=8)
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
    return finished(figure, alt, caption)
