"""Pictures of tiles: which outputs a thread of a block has, what it reads for them, and how often.

All are drawn from the trace of a real launch of a stage from s05 on: a block computes a tile of the
matrix product from a slice of the filter, ``S_F``, and one of the windows, ``S_I``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from convlab.lessons.maps import array_named
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
from convlab.simulation.memory_rules import WARP, WORD_BYTES
from convlab.tracing import LaunchTrace
from convlab.tracing.records import Request

SLICES = {"S_F": COLOURS[0], "S_I": COLOURS[1]}
FILTER, WINDOWS, THREAD, WARP_MATES = COLOURS[0], COLOURS[1], COLOURS[3], COLOURS[5]
MOST_READS, MOST_COLUMNS = 20, 32


def outputs_of_threads(launch: LaunchTrace, problem: ConvProblem) -> np.ndarray:
    """For each output, as a matrix of channels and pixels, the thread of the block shown that
    computes it; -1 where none does."""
    threads = np.full(problem.M * problem.N, -1)
    for request in launch.requests:
        if (request.array, request.operation) == ("output", "store"):
            for lane, elements in _elements(request):
                threads[elements] = request.warp * WARP + lane
    images = threads.reshape(problem.N_i, problem.M, -1)
    return images.transpose(1, 0, 2).reshape(problem.M, problem.N)


def _elements(request: Request) -> Iterator[tuple[int, list[int]]]:
    """Which elements of 4 bytes each lane wants."""
    for lane, offset in zip(request.lanes, request.offsets, strict=True):
        first = offset // WORD_BYTES
        yield lane, list(range(first, first + request.width // WORD_BYTES))


def _tile(launch: LaunchTrace, problem: ConvProblem) -> np.ndarray:
    """The block's part of the matrix of outputs."""
    threads = outputs_of_threads(launch, problem)
    rows, columns = (np.flatnonzero((threads >= 0).any(axis=axis)) for axis in (1, 0))
    return threads[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def tile_of_threads(launch: LaunchTrace, problem: ConvProblem, thread: int = 0) -> Picture:
    """Which thread computes which output of the block's tile: a number in each box; the outputs of
    ``thread`` and those of its warp have colours of their own."""
    tile = _tile(launch, problem)
    shown = tile[:, :MOST_COLUMNS]
    rows, columns = shown.shape
    figure, (panel,) = sheet(0.26 * columns + 0.7, 0.26 * rows + 0.95)
    limits(panel, (-1.6, columns + 0.2), (-2.6, rows + 0.2))
    for (row, column), one in np.ndenumerate(shown):
        own = THREAD if one == thread else WARP_MATES
        colour = own if one // WARP == thread // WARP else NOBODY
        cell(panel, column, row, colour, str(one) if one >= 0 else "", size=8.5)
    threads = len({int(one) for one in tile.flat if one >= 0})
    note(panel, 0, -1.9, "one tile of the output: which thread computes what", 11)
    note(panel, 0, -0.7, f"{tile.shape[1]} pixels →", 10)
    note(panel, -0.8, 0, f"{rows} channels →", 10, rotation=270, ha="center", va="top")
    outputs, mine = int((tile == thread).sum()), tile == thread
    said = "one output" if outputs == 1 else f"{outputs} outputs"
    alt = (
        f"A tile of {tile.shape[0]} x {tile.shape[1]} outputs, computed by {threads} threads. "
        f"Thread {thread} computes {said}, in {int(mine.any(axis=1).sum())} of the rows and "
        f"{int(mine.any(axis=0).sum())} of the columns."
    )
    in_warp = shown // WARP == thread // WARP
    mates = "Yellow: the other threads of its warp. " if in_warp.sum() > outputs else ""
    others = "" if in_warp.all() else "Grey: the other warps. "
    whole = "" if shown.shape == tile.shape else f"The first {columns} columns are shown. "
    caption = (
        f"The {tile.shape[0]} x {tile.shape[1]} outputs of one block of {threads} threads. Rows "
        "are output channels, columns output pixels; the number in a box is the thread that "
        f"computes this output. Red: thread {thread}, {said}. {mates}{others}{whole}"
    )
    return finished(figure, alt, caption.strip())


def thread_in_tile(launch: LaunchTrace, problem: ConvProblem, thread: int = 0) -> Picture:
    """What a thread reads from the slices in shared memory for one term of its sums, and the
    outputs it adds them to. ``S_F`` is drawn with a row for each channel, also where it lies turned
    round in memory."""
    tile = _tile(launch, problem)
    K_B, N_B = array_named(launch, "S_I").shape
    lies = array_named(launch, "S_F").shape
    turned = lies[0] == K_B and lies[1] != K_B
    M_B = lies[1] if turned else lies[0]
    reads = _reads_of_one_term(launch, thread, K_B, turned)
    gap = 2
    wide, high = K_B + gap + N_B, K_B + gap + M_B
    scale = min(0.24, 9.2 / (wide + 2))
    figure, (panel,) = sheet((wide + 1) * scale + 0.3, (high + 3) * scale + 0.3)
    limits(panel, (-0.4, wide + 0.4), (-1.8, high + 1.8))
    left, top = K_B + gap, K_B + gap
    for row, column in np.ndindex(M_B, K_B):
        cell(panel, column, top + row, NOBODY)
    for row, column in np.ndindex(K_B, N_B):
        cell(panel, left + column, row, NOBODY)
    for row, column in np.ndindex(M_B, N_B):
        there = row < tile.shape[0] and column < tile.shape[1]
        mine = there and tile[row, column] == thread
        cell(panel, left + column, top + row, THREAD if mine else NOBODY)
    for number, (array, row, column) in reads:
        if array == "S_F":
            cell(panel, column, top + row, FILTER, str(number), size=8.5)
        else:
            cell(panel, left + column, row, WINDOWS, str(number), size=8.5)
    note(panel, left, -0.9, f"slice of the windows, S_I: {K_B} terms x {N_B} pixels", 10)
    note(panel, 0, high + 0.9, f"S_F: {M_B} channels x {K_B} terms", 10)
    note(panel, left + N_B, high + 0.9, "outputs of the tile", 10, ha="right")
    requests = max(number for number, _ in reads)
    outputs = int((tile == thread).sum())
    each = len(reads) // requests
    several = f", each of which brings {each} numbers" if each > 1 else ""
    alt = (
        f"For one term thread {thread} makes {requests} reads from shared memory{several}: "
        f"{sum(array == 'S_F' for _, (array, _, _) in reads)} numbers of S_F and "
        f"{sum(array == 'S_I' for _, (array, _, _) in reads)} of S_I, for {outputs} outputs."
    )
    lying = " S_F is drawn with channels as rows; in memory it lies turned round." * turned
    caption = (
        f"What thread {thread} does for one term of its sums. Blue: what it reads of the filter's "
        f"slice; orange: of the windows' slice; red: the {outputs} outputs that it multiplies and "
        f"adds them into. A number says with which read it comes: {requests} reads{several}, for "
        f"{outputs} multiplications and additions.{lying}"
    )
    return finished(figure, alt, caption)


def _reads_of_one_term(
    launch: LaunchTrace, thread: int, K_B: int, turned: bool
) -> list[tuple[int, tuple[str, int, int]]]:
    """What the thread reads for the first term of a slice: the read's number, from 1, the array,
    and row and column in the product. What it reads again counts once."""
    warp, its_lane = divmod(thread, WARP)
    found: dict[tuple[str, int, int], int] = {}
    number = 0
    for request in _shared_reads(launch, warp):
        width = array_named(launch, request.array).shape[1]
        mine = next((elements for lane, elements in _elements(request) if lane == its_lane), [])
        places = [divmod(element, width) for element in mine]
        if request.array == "S_F" and turned:
            places = [(column, row) for row, column in places]
        terms = [column if request.array == "S_F" else row for row, column in places]
        new = [(request.array, *place) for place, k in zip(places, terms, strict=True) if k == 0]
        new = [place for place in new if place not in found]
        number += bool(new)
        found |= dict.fromkeys(new, number)
    return [(number, place) for place, number in found.items()]


def _shared_reads(launch: LaunchTrace, warp: int) -> list[Request]:
    return [
        one for one in launch.requests
        if one.warp == warp and one.operation == "load" and one.array in SLICES
    ]  # fmt: skip


def reads_for_a_product(launch: LaunchTrace) -> float:
    """Reads of a thread from the slices for each product that it adds to a sum."""
    lanes = sum(
        launch.total("lanes", [one for one in launch.of(name) if one.operation == "load"])
        for name in SLICES
    )
    return lanes / (max(work.flops for work in launch.work) / 2)


def _read(request: Request) -> str:
    """``F`` or ``I``, and how many numbers it brings where they are several."""
    numbers = request.width // WORD_BYTES
    return request.array[-1] + (str(numbers) if numbers > 1 else "")


def reads_in_turn(launches: dict[str, LaunchTrace], warp: int = 0) -> Picture:
    """A warp's first reads from the slices, in their order, a row for each launch; and how many
    reads there are for a product."""
    figure, (panel,) = sheet(7.4, 0.53 * len(launches) + 0.3)
    limits(panel, (-0.3, MOST_READS + 9.2), (-0.8, 2.1 * len(launches)))
    note(panel, MOST_READS + 1, -0.2, "reads a product", 8)
    said, orders = [], []
    for place, (name, launch) in enumerate(launches.items()):
        top = 2.1 * place
        note(panel, 0, top - 0.2, name, 9)
        for turn, request in enumerate(_shared_reads(launch, warp)[:MOST_READS]):
            cell(panel, turn, top + 0.3, SLICES[request.array], _read(request), size=8)
        reads = reads_for_a_product(launch)
        note(panel, MOST_READS + 1, top + 0.8, f"{reads:.4g}", 10)
        order = " ".join(_read(one) for one in _shared_reads(launch, warp)[:MOST_READS])
        orders.append(order)
        said.append(f"{name}: {order}, {reads:.4g} reads a product")
    alt = f"Reads from shared memory in turn, F of S_F and I of S_I. {'; '.join(said)}"
    wide = " `F4`, `I4`: a single read that brings four neighbours." * ("4" in "".join(orders))
    caption = (
        f"The first {MOST_READS} reads of warp {warp} from shared memory, from left to right: "
        f"`F` (blue) reads the filter's slice `S_F`, `I` (orange) the windows' slice `S_I`.{wide} "
        "On the right: how many reads there are for each product that a thread adds to a sum."
    )
    return finished(figure, alt, caption)
