"""Pictures of threads on the elements of an array, and of a block on a matrix product.

All are drawn from the trace of a real launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from convlab.lessons.pictures import COLOURS, FAINT, NOBODY, Grid, Picture, spans
from convlab.problems.problem import ConvProblem
from convlab.simulation.rules.memory_traffic import WARP
from convlab.support.values import counted
from convlab.tracing import LaunchTrace
from convlab.tracing.recorded import TracedArray

MOST_COLUMNS, MOST_ROWS, MOST_PLANES = 32, 20, 3
TILE, SLICES = COLOURS[4], (*COLOURS[:4], *COLOURS[5:])
THREAD, WARP_MATES = COLOURS[3], COLOURS[5]


def array_named(launch: LaunchTrace, name: str) -> TracedArray:
    """Return the array of that name. Raises ``ValueError`` with the names of the arrays."""
    there = {array.name: array for array in launch.arrays}
    if name not in there:
        raise ValueError(f"array is {name!r}: the launch touches {', '.join(there)}")
    return there[name]


def elements_of(launch: LaunchTrace, name: str, operation: str) -> Iterator[tuple[int, int]]:
    """Yield each access of the block shown to an array: the thread and the element's flat index."""
    item = array_named(launch, name).itemsize
    for request in launch.requests_of(name, operation):
        for lane, offset in zip(request.lanes, request.offsets, strict=True):
            for element in range(offset // item, (offset + request.width) // item):
                yield request.warp * WARP + lane, element


def threads_on(launch: LaunchTrace, name: str, operation: str = "store") -> np.ndarray:
    """Return for each element of an array the last thread of the block shown that loads or stores
    it, or -1."""
    threads = np.full(array_named(launch, name).shape, -1)
    for thread, element in elements_of(launch, name, operation):
        threads.flat[element] = thread
    return threads


def touched(launch: LaunchTrace, name: str) -> np.ndarray:
    """Return an array of the same shape that is true where the block shown touches the element."""
    found = np.zeros(array_named(launch, name).shape, bool)
    for footprint in launch.footprints:
        for first, count in footprint.runs if footprint.array == name else ():
            found.flat[first : first + count] = True
    return found


def as_matrix(outputs: np.ndarray, problem: ConvProblem) -> np.ndarray:
    """Return an output [image, channel, pixel] as the matrix [channel, image and pixel]."""
    planes = outputs.reshape(problem.N_i, problem.M, -1)
    return planes.transpose(1, 0, 2).reshape(problem.M, problem.N)


def _number(thread: int) -> str:
    return str(thread) if thread >= 0 else ""


def _block(launch: LaunchTrace) -> str:
    return f"block {launch.block_shown[0] if launch.grid[1:] == (1, 1) else launch.block_shown}"


def _extent(plane: np.ndarray) -> str:
    """Return the numbers of rows and columns with a mark, as ``3 x 4``."""
    return f"{plane.any(axis=1).sum()} x {plane.any(axis=0).sum()}"


def who_does_what(
    launch: LaunchTrace, array: str = "output", operation: str = "store",
    plane: tuple[int, ...] | None = None,
) -> Picture:  # fmt: skip
    """Draw the thread of the block shown that accesses each element of an array.

    Each box has the thread's number and each warp a colour. ``plane`` chooses a matrix of an array
    with more than two dimensions, the first by default. An array with one dimension is drawn in
    rows of 32.
    """
    threads = threads_on(launch, array, operation)
    where = array
    if threads.ndim > 2:
        plane = plane or (0,) * (threads.ndim - 2)
        threads, where = threads[plane], f"{array}[{', '.join(map(str, plane))}]"
    elif threads.ndim == 1:
        row = min(MOST_COLUMNS, threads.size)
        threads = np.pad(threads, (0, -threads.size % row), constant_values=-2).reshape(-1, row)
    threads = threads[:MOST_ROWS, :MOST_COLUMNS]
    grid = Grid()
    for (down, column), thread in np.ndenumerate(threads):
        if thread > -2:
            colour = NOBODY if thread < 0 else COLOURS[thread // WARP % len(COLOURS)]
            grid.cell(column, down, colour, _number(thread))
    block, verb = _block(launch), "writes" if operation == "store" else "reads"
    grid.note(0, -0.8, f"{where}: which thread of {block} {verb} it", 9)
    found = spans(int(thread) for thread in threads.flat if thread >= 0)
    alt = f"{where} as a grid of {' x '.join(map(str, threads.shape))} boxes: threads {found}"
    caption = f"The threads of {block} and the elements of `{where}` that each {verb}."
    legend = ["Each box is an element, and the number in it is the thread."]
    if threads.max() >= WARP:
        legend.append("Each colour is a warp: 32 threads with neighbouring numbers.")
    if launch.ended and not launch.requests:
        legend.append(f"The launch ended before {block} ran: {launch.findings[-1].what}.")
    elif (threads == -1).any():
        legend.append("This block does not access the grey boxes.")
    return grid.finished(alt, caption, *legend)


def warps_of_blocks(launch: LaunchTrace) -> Picture:
    """Draw every warp of a launch as a row of 32 lanes, with the thread of the block in each; lanes
    without a thread are hatched. The launch's grid has one dimension."""
    threads, blocks = math.prod(launch.block), launch.grid[0]
    warps = math.ceil(threads / WARP)
    grid = Grid()
    for row, (block, warp) in enumerate(np.ndindex(blocks, warps)):
        grid.note(-0.4, row + 0.5, f"block {block}, warp {warp}", 8, ha="right")
        for lane in range(WARP):
            thread, colour = warp * WARP + lane, COLOURS[row % len(COLOURS)]
            if thread < threads:
                grid.cell(lane, row, colour, str(thread))
            else:
                grid.cell(lane, row, NOBODY, hatched=True)
    idle = warps * WARP - threads
    of_block = f"{counted(blocks, 'block')} of {threads} threads: {counted(warps, 'warp')} each"
    alt = f"{of_block}, in which {idle} lanes have no thread" if idle else of_block
    legend = ["Each row is a warp. The number in a box is a thread's number in its block."]
    if idle:
        legend.append("Hatched lanes have no thread and do nothing.")
    return grid.finished(alt, f"{alt}.", *legend)


def block_of_product(launch: LaunchTrace, problem: ConvProblem, K_B: int) -> Picture:
    """Draw the part of the block shown in the convolution's matrix product.

    The part has rows of the filter matrix, columns of the matrix of windows, and outputs. A shade
    is a slice of ``K_B`` terms.
    """
    M, N, K = problem.M, problem.N, problem.K
    filters = touched(launch, "weight").reshape(M, K)
    outputs = as_matrix(touched(launch, "output"), problem)
    windows = np.broadcast_to(outputs.any(axis=0), (K, N))
    start = K + 4
    # Terms are the rows of the windows and the columns of the filter.
    matrices = ((start, 0, windows, 0), (0, start, filters, 1), (start, start, outputs, None))
    grid = Grid(0.11)
    for left, top, marked, axis in matrices:
        grid.cell(left, top, NOBODY, wide=marked.shape[1], high=marked.shape[0], edge=FAINT)
        for place in np.argwhere(marked):
            colour = TILE if axis is None else SLICES[place[axis] // K_B % len(SLICES)]
            grid.cell(left + place[1], top + place[0], colour, edge=colour)
    grid.note(start, -2.5, f"windows: K = {K} terms x N = {N} pixels", 8)
    grid.note(0, start + M + 2.5, f"filter: M = {M} x K = {K}", 8)
    grid.note(start, start + M + 2.5, f"output: M = {M} x N = {N}", 8)
    block, size = _block(launch), _extent(outputs)
    alt = f"""Three matrices: filter {M} x {K}, windows {K} x {N}, output {M} x {N}. {block}
        computes {size} of the output, in {math.ceil(K / K_B)} slices of {K_B} terms"""
    caption = f"""What {block} touches: its {size} outputs (violet), and the rows of the filter
        matrix and the columns of the windows that they need."""
    legend = f"""Each colour is a slice of {K_B} terms: the block fetches the slices one after the
        other."""
    return grid.finished(alt, caption, legend)


def one_thread(launch: LaunchTrace, thread: int) -> Picture:
    """Draw the elements that one thread of the block shown touches, in each tensor."""
    grid, left, told = Grid(0.26), 0.0, []
    for array in launch.arrays:
        if array.space != "global" or len(array.shape) != 4:
            continue
        verb, colour, tensor = "reads", COLOURS[0], np.zeros(array.shape, bool)
        for operation in ("load", "atomic", "store"):
            for who, element in elements_of(launch, array.name, operation):
                if who == thread:
                    tensor.flat[element] = True
                    if operation == "store":
                        verb, colour = "writes", COLOURS[1]
        told.append(f"{verb} {tensor.sum()} of {array.name}")
        for i, channel in np.argwhere(tensor.any(axis=(2, 3)))[:MOST_PLANES].tolist():
            grid.note(left, -0.9, f"{array.name}[{i}, {channel}]", 8)
            grid.cells(left, 0, tensor[i, channel], (NOBODY, colour))
            left += max(array.shape[3], 4) + 1.5  # room for the name above
    alt = f"Thread {thread} of {_block(launch)}: {', '.join(told)}"
    return grid.finished(alt, f"{alt}. It reads the blue elements and writes the orange ones.")


def who_uses(
    launch: LaunchTrace, problem: ConvProblem, pixel: tuple[int, int, int, int]
) -> Picture:
    """Draw the outputs whose threads read one pixel of the input.

    A box shows the filter tap over the pixel. The kernel must have a thread for each output.
    """
    p, (image, channel, *place) = problem, pixel
    wanted = int(np.ravel_multi_index(pixel, p.input_shape))
    read = elements_of(launch, "input", "load")
    readers = [thread for thread, element in read if element == wanted]
    uses = np.isin(threads_on(launch, "output"), readers)

    def tap(*output: int) -> str:
        axes = zip(place, (p.p_h, p.p_w), output, p.stride, p.dilation, strict=True)
        return ",".join(str((i + pad - o * s) // d) for i, pad, o, s, d in axes)

    grid, one = Grid(0.36), np.zeros((p.H_i, p.W_i), bool)
    one[*place] = True
    grid.note(0, -0.9, f"input[{image}, {channel}]", 9)
    grid.cells(0, 0, one, (NOBODY, COLOURS[0]))
    for j in range(min(p.C_o, MOST_PLANES)):
        left = p.W_i + 1.5 + j * (p.W_o + 1.5)
        grid.note(left, -0.9, f"output[{image}, {j}]", 9)
        for (row, column), used in np.ndenumerate(uses[image, j]):
            colour, text = (COLOURS[1], tap(row, column)) if used else (NOBODY, "")
            grid.cell(left + column, row, colour, text)
    taps = [tap(*output) for output in np.argwhere(uses)[:, 2:].tolist()]
    alt = f"Pixel {[*pixel]} of the input and the {len(taps)} outputs that use it"
    if taps:
        alt += f", the first under filter tap {taps[0]}, the last under {taps[-1]}"
    caption = f"""The blue pixel is part of {len(taps)} outputs (orange). A box shows the filter tap
        `f_h,f_w` under which the pixel lies for this output: the further down and right the output
        is, the further up and left the tap is."""
    return grid.finished(alt, caption)


def who_adds(launch: LaunchTrace, problem: ConvProblem) -> Picture:
    """Draw the threads of the block shown that add to the outputs of the first plane.

    There is a grid for each input channel, and one with the number of threads for each output.
    """
    _, _, H_o, W_o = problem.output_shape
    pixels = problem.H_i * problem.W_i
    reads = elements_of(launch, "input", "load")
    channel_of = {thread: element // pixels % problem.C_i for thread, element in reads}
    threads = np.full((problem.C_i, H_o, W_o), -1)
    times = np.zeros((H_o, W_o), int)
    for thread, element in elements_of(launch, "output", "atomic"):
        if element < H_o * W_o:
            threads[channel_of[thread]].flat[element] = thread
            times.flat[element] += 1
    grid, titles = Grid(), [f"threads that read input channel {r}" for r in range(len(threads))]
    titles.append("output[0, 0]: how many add to it")
    for place, (title, numbers) in enumerate(zip(titles, [*threads, times], strict=True)):
        colour = NOBODY if numbers is times else COLOURS[place % len(COLOURS)]
        left, top = place % 2 * (W_o + 2), place // 2 * (H_o + 2.2)
        grid.note(left, top - 0.8, title, 9)
        # 0 is a thread, too; -1, which is none, takes the last colour.
        colours = [colour] * (int(numbers.max()) + 1) + [NOBODY]
        grid.cells(left, top, numbers, colours, _number, edge=FAINT)
    alt = f"""{problem.C_i} grids of {H_o} x {W_o} threads, one for each input channel, and the grid
        of outputs, to each of which {times.max()} threads add"""
    caption = f"""Each coloured box is a thread of {_block(launch)}, with its number, at the place
        of the output pixel that it computes; a colour is an input channel. The last grid is output
        channel 0: one thread of each colour adds to each of its pixels."""
    return grid.finished(alt, caption)


def region_and_field(launch: LaunchTrace, problem: ConvProblem) -> Picture:
    """Draw the pixels of an input channel that the block shown fetches, and the outputs of an
    output channel that it computes: of each tensor the first plane that it touches."""
    grid, left, sizes = Grid(), 0, []
    for name, colour in (("input", COLOURS[0]), ("output", COLOURS[1])):
        marked = touched(launch, name).reshape(getattr(problem, f"{name}_shape"))
        image, channel = np.argwhere(marked.any(axis=(2, 3)))[0]
        plane = marked[image, channel]
        rows, columns = plane.shape
        grid.note(left, -1.6, f"{name}[{image}, {channel}]: {rows} x {columns}", 9)
        grid.cells(left, 0, plane, (NOBODY, colour))
        left += columns + 3
        sizes.append(_extent(plane))
    block, (field, region) = _block(launch), sizes
    alt = f"""{block} fetches {field} pixels of an input channel and computes {region} pixels of an
        output channel"""
    caption = f"""To compute the {region} outputs on the right (orange), {block} fetches the {field}
        pixels on the left (blue) once: its receptive field."""
    return grid.finished(alt, caption)


def tile_of(launch: LaunchTrace, problem: ConvProblem) -> np.ndarray:
    """Return the thread of each output of the block's tile, its part of the output matrix."""
    threads = as_matrix(threads_on(launch, "output"), problem)
    rows, columns = (np.flatnonzero((threads >= 0).any(axis=axis)) for axis in (1, 0))
    return threads[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def tile_of_threads(launch: LaunchTrace, problem: ConvProblem, thread: int = 0) -> Picture:
    """Draw the thread that computes each output of the block's tile, as a number in a box.

    The outputs of ``thread`` and those of its warp have colours of their own.
    """
    tile = tile_of(launch, problem)

    def colour(one: int) -> str:
        return THREAD if one == thread else WARP_MATES if one // WARP == thread // WARP else NOBODY

    grid = Grid()
    grid.cells(0, 0, tile[:, :MOST_COLUMNS], colour, _number, size=7.5)
    grid.note(0, -1.9, "one tile of the output: which thread computes what", 11)
    grid.note(0, -0.7, f"{tile.shape[1]} pixels →", 10)
    grid.note(-0.8, 0, f"{len(tile)} channels →", 10, down=True)
    rows, columns = _extent(tile == thread).split(" x ")
    alt = f"""A tile of {" x ".join(map(str, tile.shape))} outputs, computed by
        {len(set(tile[tile >= 0].tolist()))} threads. Thread {thread} computes
        {(tile == thread).sum()}, in {rows} of the rows and {columns} of the columns."""
    caption = f"The outputs of one block. Red is thread {thread}, yellow the rest of its warp."
    legend = f"""Rows are output channels, columns output pixels; the number in a box is the thread
        that computes this output. At most {MOST_COLUMNS} columns are shown."""
    return grid.finished(alt, caption, legend)
