"""Pictures of channel-parallel kernels, and what makes one from the problem alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from convlab.kernels.receptive_field import channel_parallel_field
from convlab.lessons.maps import touched
from convlab.lessons.pictures import (
    COLOURS,
    FAINT,
    NOBODY,
    Picture,
    cell,
    finished,
    limits,
    note,
    sheet,
)
from convlab.problem import ConvProblem
from convlab.simulation.memory_rules import WARP
from convlab.tracing import LaunchTrace


def with_field(made: Any) -> Callable[[ConvProblem], Any]:
    """``made(problem, field)`` as a function of the problem alone, with the block that the
    C_in-parallel stages take."""

    @wraps(made)
    def make_kernel(problem: ConvProblem) -> Any:
        return made(problem, channel_parallel_field(problem))

    # The source is still found to be made's; the parameters are not.
    make_kernel.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("problem", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    )
    return make_kernel


def who_adds(launch: LaunchTrace, problem: ConvProblem) -> Picture:
    """Which threads of the block shown add to the outputs of the first plane: a grid for each input
    channel, and one that says how many add to each output."""
    channel_of = _channels_read(launch, problem)
    _, _, H_o, W_o = problem.output_shape
    threads = np.full((problem.C_i, H_o, W_o), -1)
    times = np.zeros((H_o, W_o), int)
    for request in launch.requests:
        if (request.array, request.operation) == ("output", "atomic"):
            for lane, offset in zip(request.lanes, request.offsets, strict=True):
                element = offset // 4
                if element < H_o * W_o:
                    thread = request.warp * WARP + lane
                    place = divmod(element, W_o)
                    threads[(channel_of[thread], *place)] = thread
                    times[place] += 1
    grids = [
        (f"threads that read input channel {r}", threads[r], COLOURS[r % len(COLOURS)])
        for r in range(problem.C_i)
    ]
    grids.append(("output[0, 0]: how many add to it", times, NOBODY))
    across, wide, high = 2, W_o + 2, H_o + 2.2
    down = -(-len(grids) // across)
    figure, (panel,) = sheet(across * wide * 0.29, down * high * 0.29)
    limits(panel, (-0.3, across * wide - 1), (-1.7, down * high - 1.8))
    for grid, (title, numbers, colour) in enumerate(grids):
        left, top = grid % across * wide, grid // across * high
        note(panel, left, top - 0.8, title, 9)
        for (row, column), number in np.ndenumerate(numbers):
            text = str(number) if number >= 0 else ""
            cell(panel, left + column, top + row, colour if text else NOBODY, text, edge=FAINT)
    most = int(times.max())
    alt = (
        f"{problem.C_i} grids of {H_o} x {W_o} threads, one for each input channel, and the grid "
        f"of outputs, to each of which {most} threads add"
    )
    caption = (
        f"Each coloured box is a thread of block {launch.block_shown[0]}, with its number, at the "
        "place of the output pixel that it computes; a colour is an input channel. The last grid "
        f"is output channel 0: {most} threads, one of each colour, add to each of its pixels."
    )
    return finished(figure, alt, caption)


def _channels_read(launch: LaunchTrace, problem: ConvProblem) -> dict[int, int]:
    """Which input channel each thread of the block shown reads."""
    found: dict[int, int] = {}
    for request in launch.requests:
        if (request.array, request.operation) == ("input", "load"):
            for lane, offset in zip(request.lanes, request.offsets, strict=True):
                channel = offset // 4 // (problem.H_i * problem.W_i) % problem.C_i
                found[request.warp * WARP + lane] = channel
    return found


def region_and_field(launch: LaunchTrace, problem: ConvProblem) -> Picture:
    """What the block shown fetches of an input channel and what it computes of an output channel:
    of each tensor the first plane that it touches."""
    planes = []
    for name, shape in (("input", problem.input_shape), ("output", problem.output_shape)):
        marked = touched(launch, name).reshape(shape)
        place = tuple(int(one) for one in np.argwhere(marked.any(axis=(2, 3)))[0])
        planes.append((f"{name}[{place[0]}, {place[1]}]", marked[place]))
    (_, field), (_, region) = planes
    total = sum(plane.shape[1] + 3 for _, plane in planes)
    scale = 7.4 / total
    figure, (panel,) = sheet(7.4, (field.shape[0] + 4) * scale)
    limits(panel, (-0.5, total), (-3.4, field.shape[0] + 0.4))
    left = 0
    for (title, plane), colour in zip(planes, COLOURS[:2], strict=True):
        note(panel, left, -1.6, f"{title}: {plane.shape[0]} x {plane.shape[1]}", 9)
        for (row, column), is_marked in np.ndenumerate(plane):
            cell(panel, left + column, row, colour if is_marked else NOBODY)
        left += plane.shape[1] + 3
    block = launch.block_shown[0]
    sizes = [_extent(plane) for plane in (field, region)]
    alt = (
        f"Block {block} fetches {sizes[0]} pixels of an input channel and computes {sizes[1]} "
        "pixels of an output channel"
    )
    caption = (
        f"Block {block}: to compute the {sizes[1]} outputs on the right (orange) it fetches the "
        f"{sizes[0]} pixels on the left (blue) once, its receptive field. Grey belongs to other "
        "blocks."
    )
    return finished(figure, alt, caption)


def _extent(marked: np.ndarray) -> str:
    """``8 x 32``: of the rectangle that is marked."""
    return f"{marked.any(axis=1).sum()} x {marked.any(axis=0).sum()}"
