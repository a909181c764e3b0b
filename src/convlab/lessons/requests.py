"""Pictures of a warp's requests and of a block's tiles, drawn from the trace of a launch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from convlab.lessons.maps import array_named
from convlab.lessons.pictures import COLOURS, NOBODY, Grid, Picture, spans
from convlab.problem import ConvProblem
from convlab.simulation.memory_rules import BANKS, SECTOR_BYTES, WARP, WORD_BYTES
from convlab.tracing import LaunchTrace
from convlab.tracing.records import Request
from convlab.tracing.table import statement_of

MOST_SECTORS = 40
FOUR = "Four neighbouring lanes have one colour."
LANES_AT_ONCE = {4: (32,), 8: (16, 32), 16: (8, 16)}  # by width, in shared memory


def request_of(
    launch: LaunchTrace, array: str, operation: str = "load", number: int = 0
) -> Request:
    """A request of the block shown for an array; ``number`` counts them from 0.

    Raises ``ValueError`` where there is none of that number.
    """
    array_named(launch, array)
    found = [one for one in launch.requests if (one.array, one.operation) == (array, operation)]
    if not 0 <= number < len(found):
        raise ValueError(f"number is {number}: the block has {len(found)} {operation}s of {array}")
    return found[number]


def one_request(
    launch: LaunchTrace, array: str, operation: str = "load", number: int = 0
) -> Picture:
    """What one warp's load or store wants of an array: sectors of global memory, or banks and
    passes of shared memory."""
    request = request_of(launch, array, operation, number)
    if array_named(launch, array).space == "shared":
        return _in_banks(launch, request)
    return _in_sectors(launch, request)


def _lanes_by_word(launch: LaunchTrace, request: Request) -> dict[int, list[int]]:
    """Which lanes want each word of 4 bytes, words counted from the memory's start."""
    start = array_named(launch, request.array).start
    lanes: dict[int, list[int]] = defaultdict(list)
    for lane, offset in zip(request.lanes, request.offsets, strict=True):
        for byte in range(0, request.width, WORD_BYTES):
            lanes[(start + offset + byte) // WORD_BYTES].append(lane)
    return dict(sorted(lanes.items()))


def _colour(lanes: list[int]) -> str:
    return COLOURS[lanes[0] // 4 % len(COLOURS)] if len(lanes) == 1 else COLOURS[1]


def _label(lanes: list[int]) -> str:
    return str(lanes[0]) if len(lanes) == 1 else f"x{len(lanes)}"


def _code(launch: LaunchTrace, request: Request) -> str:
    return statement_of(launch, request.file, request.line)


def _head(launch: LaunchTrace, request: Request) -> str:
    code = _code(launch, request)
    code = code if len(code) < 52 else f"{code[:50]}..."
    return f"warp {request.warp}:  {code}"


def _several(lanes: dict[int, list[int]]) -> str:
    most = max(len(several) for several in lanes.values())
    return f" `x{most}` says that {most} lanes want the same number." if most > 1 else ""


def _in_sectors(launch: LaunchTrace, request: Request) -> Picture:
    lanes = _lanes_by_word(launch, request)
    per_sector = SECTOR_BYTES // WORD_BYTES
    sectors = sorted({word // per_sector for word in lanes})
    shown = sectors[:MOST_SECTORS]
    columns = min(4, math.ceil(len(shown) / 8)) if len(shown) > 2 else 1
    columns = max(columns, 2 if len(shown) > 3 else 1)
    rows = math.ceil(len(shown) / columns)
    wide = per_sector + 1
    grid = Grid(0.27)
    grid.note(0, -0.9, _head(launch, request), 9, family="monospace")
    for place, sector in enumerate(shown):
        left, top = place // rows * wide, place % rows * 1.3
        for one in range(per_sector):
            wanted = lanes.get(sector * per_sector + one)
            if wanted:
                grid.cell(left + one, top, _colour(wanted), _label(wanted))
            else:
                grid.cell(left + one, top, NOBODY, hatch="////")
    bytes_wanted = WORD_BYTES * len(lanes)
    moved = SECTOR_BYTES * len(sectors)
    fewest = math.ceil(bytes_wanted / SECTOR_BYTES)
    verb = {"load": "reads", "store": "writes"}.get(request.operation, "changes")
    alt = (
        f"Lanes {spans(request.lanes)} of warp {request.warp} {verb[:-1]} {len(lanes)} different "
        f"numbers of {request.array}, {bytes_wanted} bytes, which lie in {len(sectors)} "
        f"sector{'s' * (len(sectors) != 1)} of {SECTOR_BYTES} bytes: {moved} bytes are moved."
    )
    caption = (
        f"One request: the warp {verb} `{request.array}` in `{_code(launch, request)}`. Each row "
        f"of eight boxes is a sector, {SECTOR_BYTES} bytes; a number in a box is the lane that "
        f"wants it, hatched boxes are moved and nobody wants them.{_several(lanes)} {FOUR} "
        f"{len(sectors)} sector{'s' * (len(sectors) != 1)} for {bytes_wanted} bytes; {fewest} "
        "would hold them."
    )
    return grid.finished(alt, caption)


def _in_words(request: Request) -> str:
    return f"{request.passes} pass{'es' * (request.passes != 1)}"


def _served(launch: LaunchTrace, request: Request) -> tuple[int, list[dict[int, list[int]]]]:
    """How many lanes shared memory serves at a time, and for each pass the words it gives, with
    the lanes that want them. Wide accesses are served some lanes after the other, as
    :mod:`convlab.simulation.memory_rules` says."""
    for at_once in LANES_AT_ONCE[request.width]:
        passes: list[dict[int, list[int]]] = []
        for first in range(0, 32, at_once):
            rows: list[dict[int, list[int]]] = []
            depth: dict[int, int] = defaultdict(int)
            for word, lanes in _lanes_by_word(launch, request).items():
                if some := [lane for lane in lanes if first <= lane < first + at_once]:
                    if depth[word % BANKS] == len(rows):
                        rows.append({})
                    rows[depth[word % BANKS]][word] = some
                    depth[word % BANKS] += 1
            passes += rows
        if len(passes) == request.passes:
            break
    return at_once, passes


def _in_banks(launch: LaunchTrace, request: Request) -> Picture:
    lanes = _lanes_by_word(launch, request)
    at_once, passes = _served(launch, request)
    rows = len(passes)
    grid = Grid(0.225)
    grid.note(0, -1.8, _head(launch, request), 9, family="monospace")
    for bank in range(BANKS):
        grid.note(bank + 0.5, -0.5, str(bank), 6, ha="center")
        for row in range(rows):
            grid.cell(bank, row, NOBODY)
    for row, words in enumerate(passes):
        for word, wanted in words.items():
            grid.cell(word % BANKS, row, _colour(wanted), _label(wanted), size=6)
    banks = len({word % BANKS for word in lanes})
    alt = (
        f"Lanes {spans(request.lanes)} of warp {request.warp} want {len(lanes)} different words of "
        f"{request.array}, which lie in {banks} of the 32 banks: {request.passes} "
        f"pass{'es' * (request.passes != 1)}."
    )
    is_several = {word: some for words in passes for word, some in words.items()}
    caption = (
        f"One request for the shared array `{request.array}` in `{_code(launch, request)}`. "
        f"Columns are the 32 banks of shared memory, rows the passes; a number in a box is "
        f"the lane that wants it.{_several(is_several)} {FOUR} {_in_words(request)}: "
        + _why_so_many(request, at_once)
    )
    return grid.finished(alt, caption)


def _why_so_many(request: Request, at_once: int) -> str:
    groups = len({lane // at_once for lane in request.lanes})
    if groups == 1:
        if request.passes == 1:
            return "no bank is asked for two different numbers."
        return "a bank gives one number in each pass, and some are asked for several."
    each = f"each lane wants {request.width // WORD_BYTES} numbers, and {at_once} lanes are served"
    if request.passes == groups:
        return f"{each} at a time; no bank is asked for two different numbers by them."
    return (
        f"{each} at a time; a bank gives one number in each pass, and some are asked for several."
    )


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
    grid = Grid()
    for (row, column), one in np.ndenumerate(shown):
        own = THREAD if one == thread else WARP_MATES
        colour = own if one // WARP == thread // WARP else NOBODY
        grid.cell(column, row, colour, str(one) if one >= 0 else "", size=8.5)
    threads = len({int(one) for one in tile.flat if one >= 0})
    grid.note(0, -1.9, "one tile of the output: which thread computes what", 11)
    grid.note(0, -0.7, f"{tile.shape[1]} pixels →", 10)
    grid.note(-0.8, 0, f"{rows} channels →", 10, rotation=270, ha="center", va="top")
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
    return grid.finished(alt, caption.strip())


def thread_in_tile(launch: LaunchTrace, problem: ConvProblem, thread: int = 0) -> Picture:
    """What a thread reads from the slices in shared memory for one term of its sums, and the
    outputs it adds them to. ``S_F`` is drawn with a row for each channel, even if it is
    transposed in memory."""
    tile = _tile(launch, problem)
    K_B, N_B = array_named(launch, "S_I").shape
    lies = array_named(launch, "S_F").shape
    transposed = lies[0] == K_B and lies[1] != K_B
    M_B = lies[1] if transposed else lies[0]
    reads = _reads_of_one_term(launch, thread, K_B, transposed)
    gap = 2
    high = K_B + gap + M_B
    grid = Grid(0.24, widest=9.2)
    left, top = K_B + gap, K_B + gap
    for row, column in np.ndindex(M_B, K_B):
        grid.cell(column, top + row, NOBODY)
    for row, column in np.ndindex(K_B, N_B):
        grid.cell(left + column, row, NOBODY)
    for row, column in np.ndindex(M_B, N_B):
        there = row < tile.shape[0] and column < tile.shape[1]
        mine = there and tile[row, column] == thread
        grid.cell(left + column, top + row, THREAD if mine else NOBODY)
    for number, (array, row, column) in reads:
        if array == "S_F":
            grid.cell(column, top + row, FILTER, str(number), size=8.5)
        else:
            grid.cell(left + column, row, WINDOWS, str(number), size=8.5)
    grid.note(left, -0.9, f"slice of the windows, S_I: {K_B} terms x {N_B} pixels", 10)
    grid.note(0, high + 0.9, f"S_F: {M_B} channels x {K_B} terms", 10)
    grid.note(left + N_B, high + 0.9, "outputs of the tile", 10, ha="right")
    requests = max(number for number, _ in reads)
    outputs = int((tile == thread).sum())
    each = len(reads) // requests
    several = f", each of which brings {each} numbers" if each > 1 else ""
    alt = (
        f"For one term thread {thread} makes {requests} reads from shared memory{several}: "
        f"{sum(array == 'S_F' for _, (array, _, _) in reads)} numbers of S_F and "
        f"{sum(array == 'S_I' for _, (array, _, _) in reads)} of S_I, for {outputs} outputs."
    )
    lying = " S_F is drawn with channels as rows; in memory it is transposed." * transposed
    caption = (
        f"What thread {thread} does for one term of its sums. Blue: what it reads of the filter's "
        f"slice; orange: of the windows' slice; red: the {outputs} outputs that it multiplies and "
        f"adds them into. A number says with which read it comes: {requests} reads{several}, for "
        f"{outputs} multiplications and additions.{lying}"
    )
    return grid.finished(alt, caption)


def _reads_of_one_term(
    launch: LaunchTrace, thread: int, K_B: int, transposed: bool
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
        if request.array == "S_F" and transposed:
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
    grid = Grid()
    grid.note(MOST_READS + 1, -0.2, "reads a product", 8)
    said, orders = [], []
    for place, (name, launch) in enumerate(launches.items()):
        top = 2.1 * place
        grid.note(0, top - 0.2, name, 9)
        for turn, request in enumerate(_shared_reads(launch, warp)[:MOST_READS]):
            grid.cell(turn, top + 0.3, SLICES[request.array], _read(request), size=8)
        reads = reads_for_a_product(launch)
        grid.note(MOST_READS + 1, top + 0.8, f"{reads:.4g}", 10)
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
    return grid.finished(alt, caption)
