"""Pictures of who does what: threads on an array's elements, a block on a matrix product.

All are drawn from the trace of a real launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from convlab.lessons.pictures import COLOURS, FAINT, NOBODY, Grid, Picture, spans
from convlab.problem import ConvProblem
from convlab.simulation.memory_rules import WARP
from convlab.tracing import LaunchTrace
from convlab.tracing.records import Array

MOST_COLUMNS, MOST_ROWS, MOST_PLANES = 32, 20, 3
TILE, SLICES = COLOURS[4], (*COLOURS[:4], *COLOURS[5:])


def array_named(launch: LaunchTrace, name: str) -> Array:
    """The array of that name. Raises ``ValueError`` naming those there are."""
    for array in launch.arrays:
        if array.name == name:
            return array
    there = ", ".join(array.name for array in launch.arrays)
    raise ValueError(f"array is {name!r}: the launch touches {there}")


def threads_on(launch: LaunchTrace, name: str, operation: str = "store") -> np.ndarray:
    """For each element of an array the thread of the block shown that loads or stores it, the last
    one where several do; -1 where none does. Of the array's shape."""
    array = array_named(launch, name)
    threads = np.full(math.prod(array.shape), -1)
    for request in launch.requests:
        if (request.array, request.operation) == (name, operation):
            elements = np.array(request.offsets) // array.itemsize
            threads[elements] = request.warp * WARP + np.array(request.lanes)
    return threads.reshape(array.shape)


def who_does_what(
    launch: LaunchTrace, array: str = "output", operation: str = "store",
    plane: tuple[int, ...] | None = None,
) -> Picture:  # fmt: skip
    """Which thread of the block shown has which element of an array: a number in each box, a colour
    for each warp. ``plane`` chooses a matrix of an array with more than two dimensions, the first
    by default; an array with one dimension is written in rows of 32."""
    threads = threads_on(launch, array, operation)
    shape = threads.shape
    where = array
    if len(shape) > 2:
        plane = plane or (0,) * (len(shape) - 2)
        threads, where = threads[plane], f"{array}[{', '.join(map(str, plane))}]"
    elif len(shape) == 1:
        row = min(MOST_COLUMNS, shape[0])
        padded = np.full(math.ceil(shape[0] / row) * row, -2)
        padded[: shape[0]] = threads
        threads = padded.reshape(-1, row)
    threads = threads[:MOST_ROWS, :MOST_COLUMNS]
    rows, columns = threads.shape
    grid = Grid()
    for (row, column), thread in np.ndenumerate(threads):
        if thread > -2:
            colour = NOBODY if thread < 0 else COLOURS[thread // WARP % len(COLOURS)]
            grid.cell(column, row, colour, str(thread) if thread >= 0 else "")
    verb = "writes" if operation == "store" else "reads"
    block = launch.block_shown[0] if launch.grid[1:] == (1, 1) else launch.block_shown
    grid.note(0, -0.8, f"{where}: which thread of block {block} {verb} it", 9)
    found = sorted({int(thread) for thread in threads.flat if thread >= 0})
    warps = len({thread // WARP for thread in found})
    busy = "no thread" if not found else f"threads {spans(found)}"
    alt = f"{where} as a grid of {rows} x {columns} boxes; {busy} of block {block} have one each"
    caption = (
        f"Each box is an element of `{where}`; the number is the thread of block {block} that "
        f"{verb} it. "
        + ("A colour is a warp: 32 threads that work together. " if warps > 1 else "")
        + ("Grey boxes belong to other blocks." if -1 in threads else "")
    )
    return grid.finished(alt, caption.strip())


def touched(launch: LaunchTrace, name: str) -> np.ndarray:
    """Which elements of an array the block shown touches, of the array's shape."""
    array = array_named(launch, name)
    found = np.zeros(math.prod(array.shape), bool)
    for footprint in launch.footprints:
        if footprint.array == name:
            for first, count in footprint.runs:
                found[first : first + count] = True
    return found.reshape(array.shape)


def block_of_product(launch: LaunchTrace, problem: ConvProblem, K_B: int) -> Picture:
    """What the block shown has to do with the matrix product that the convolution is: its rows of
    the filter matrix, its columns of the matrix of windows, its part of the output. A shade is a
    slice of ``K_B`` terms."""
    M, N, K = problem.M, problem.N, problem.K
    filters = touched(launch, "weight").reshape(M, K)
    # In memory the output is [image, channel, pixel]; as a matrix [channel, image and pixel].
    outputs = touched(launch, "output").reshape(problem.N_i, M, -1).transpose(1, 0, 2).reshape(M, N)
    columns = outputs.any(axis=0)
    grid = Grid(0.11)

    def boxes(left: int, top: int, shape: tuple[int, int], marked: np.ndarray, by: int) -> None:
        grid.cell(left, top, NOBODY, wide=shape[1], high=shape[0], edge=FAINT)
        for row, column in np.argwhere(marked):
            k = (row, column)[by] if by >= 0 else 0
            colour = SLICES[k // K_B % len(SLICES)] if by >= 0 else TILE
            grid.cell(left + column, top + row, colour, edge=colour)

    gap = 4
    windows = np.broadcast_to(columns, (K, N))
    boxes(K + gap, 0, (K, N), windows, by=0)
    boxes(0, K + gap, (M, K), filters, by=1)
    boxes(K + gap, K + gap, (M, N), outputs, by=-1)
    grid.note(K + gap, -2.5, f"windows: K = {K} terms x N = {N} pixels", 8)
    grid.note(0, K + gap + M + 2.5, f"filter: M = {M} x K = {K}", 8)
    grid.note(K + gap, K + gap + M + 2.5, f"output: M = {M} x N = {N}", 8)
    rows = np.flatnonzero(filters.any(axis=1))
    wide, high = int(columns.sum()), len(rows)
    block = f"({', '.join(map(str, launch.block_shown[:2]))})"
    alt = (
        f"Three matrices: filter {M} x {K}, windows {K} x {N}, output {M} x {N}. Block {block} "
        f"computes {high} x {wide} of the output from {high} rows of the filter and {wide} columns "
        f"of the windows, in {math.ceil(K / K_B)} slices of {K_B} terms."
    )
    caption = (
        f"What block {block} touched. Its {high} x {wide} outputs (violet) need {high} rows of the "
        f"filter matrix and {wide} columns of the windows, and each of those numbers is needed by "
        f"a whole row or column of threads. Each colour is a slice of {K_B} terms: slices are "
        "fetched one after the other."
    )
    return grid.finished(alt, caption)


def one_thread(launch: LaunchTrace, thread: int) -> Picture:
    """What one thread of the block shown touches of every tensor with rows and columns."""
    warp, lane = divmod(thread, WARP)
    found: dict[str, np.ndarray] = {}
    for array in launch.arrays:
        if array.space == "global" and len(array.shape) == 4:
            found[array.name] = np.zeros(math.prod(array.shape), bool)
    operations = dict.fromkeys(found, "load")
    for request in launch.requests:
        if request.warp == warp and lane in request.lanes and request.array in found:
            offset = request.offsets[request.lanes.index(lane)]
            item = array_named(launch, request.array).itemsize
            found[request.array][offset // item : (offset + request.width) // item] = True
            operations[request.array] = request.operation
    chosen: list[tuple[str, tuple[int, ...], np.ndarray]] = []
    for name, marked in found.items():
        tensor = marked.reshape(array_named(launch, name).shape)
        places = [place for place in np.ndindex(*tensor.shape[:2]) if tensor[place].any()]
        chosen += [(name, place, tensor[place]) for place in places[:MOST_PLANES]]
    widths = [max(plane.shape[1], 4) + 1.5 for _, _, plane in chosen]  # room for the name above
    grid = Grid(0.26)
    left = 0.0
    for (name, place, plane), wide in zip(chosen, widths, strict=True):
        grid.note(left, -0.9, f"{name}[{place[0]}, {place[1]}]", 8)
        colour = COLOURS[1] if operations[name] == "store" else COLOURS[0]
        for (row, column), is_marked in np.ndenumerate(plane):
            grid.cell(left + column, row, colour if is_marked else NOBODY)
        left += wide
    counts = {name: int(marked.sum()) for name, marked in found.items()}
    said = ", ".join(
        f"{'writes' if operations[name] == 'store' else 'reads'} {count} of {name}"
        for name, count in counts.items()
    )
    alt = f"Thread {thread} of block {launch.block_shown[0]}: {said}"
    caption = f"What thread {thread} alone does. It {said}: blue is read, orange written."
    return grid.finished(alt, caption)


def planes(marked: np.ndarray, title: str, colours: tuple[str, str], most: int = 4) -> Picture:
    """Which elements of a tensor [image, channel, row, column] are marked: the first ``most`` of
    its planes that have any."""
    chosen = [place for place in np.ndindex(*marked.shape[:2]) if marked[place].any()][:most]
    wide = max(marked.shape[3], 7) + 1
    grid = Grid(0.24)
    for number, (image, channel) in enumerate(chosen):
        left = number * wide
        grid.note(left, -0.9, f"image {image}, channel {channel}", 8)
        for (row, column), is_marked in np.ndenumerate(marked[image, channel]):
            grid.cell(left + column, row, colours[int(is_marked)])
    return grid.finished(f"{title}: {_places(chosen)}", title)


def _places(chosen: Iterable[tuple[int, ...]]) -> str:
    return "; ".join(f"image {image}, channel {channel}" for image, channel in chosen)


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
    grid = Grid()
    for one, (title, numbers, colour) in enumerate(grids):
        left, top = one % across * wide, one // across * high
        grid.note(left, top - 0.8, title, 9)
        for (row, column), number in np.ndenumerate(numbers):
            text = str(number) if number >= 0 else ""
            grid.cell(left + column, top + row, colour if text else NOBODY, text, edge=FAINT)
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
    return grid.finished(alt, caption)


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
    grid = Grid()
    left = 0
    for (title, plane), colour in zip(planes, COLOURS[:2], strict=True):
        grid.note(left, -1.6, f"{title}: {plane.shape[0]} x {plane.shape[1]}", 9)
        for (row, column), is_marked in np.ndenumerate(plane):
            grid.cell(left + column, row, colour if is_marked else NOBODY)
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
    return grid.finished(alt, caption)


def _extent(marked: np.ndarray) -> str:
    """``8 x 32``: of the rectangle that is marked."""
    return f"{marked.any(axis=1).sum()} x {marked.any(axis=0).sum()}"
