"""Pictures of a warp's requests and of a thread's reads, drawn from the trace of a launch."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np

from convlab.lessons.maps import THREAD, array_named, tile_of
from convlab.lessons.pictures import COLOURS, INK, NOBODY, Grid, Picture, only_or_count, spans
from convlab.problems.problem import ConvProblem
from convlab.simulation.rules.memory_traffic import BANKS, SECTOR_BYTES, WARP, WORD_BYTES
from convlab.support.values import counted
from convlab.tracing import LaunchTrace
from convlab.tracing.recorded import WarpRequest
from convlab.tracing.views import statement_of

MOST_SECTORS, MOST_READS = 40, 20
LANES = """The number in a box is the lane that accesses this number of the array. Four neighbouring
    lanes have one colour."""
SEVERAL_LANES = "`x{0}` in a box means that {0} lanes access this number."
WHICH = (
    "This request is number {number} of the block's {count} {verb} {array}; the first is number 0."
)
LANES_AT_ONCE = {4: (32,), 8: (16, 32), 16: (8, 16)}  # by width, in shared memory


def one_request(
    launch: LaunchTrace, array: str, operation: str = "load", number: int = 0
) -> Picture:
    """Draw one request of a warp: its sectors of global memory, or its banks and wavefronts of
    shared memory. ``number`` counts the requests of the block shown from 0. Raises ``ValueError``
    for an array or number that is not there."""
    space = array_named(launch, array).space
    found = launch.requests_of(array, operation)
    if not 0 <= number < len(found):
        raise ValueError(f"number is {number}: the block has {len(found)} {operation}s of {array}")
    request = found[number]
    code = statement_of(launch, request.file, request.line)
    brief = code if len(code) < 52 else f"{code[:50]}..."
    above = f"warp {request.warp}:  {brief}"
    who = f"Lanes {spans(request.lanes)} of warp {request.warp}"
    draw = _in_banks if space == "shared" else _in_sectors
    words = words_of(launch, request)
    grid, alt, legend = draw(request, words, above, who)
    legend.append(LANES)
    if (most := max(map(len, words.values()))) > 1:
        legend.append(SEVERAL_LANES.format(most))
    if number:
        verb = {"load": "loads of", "store": "stores to"}.get(operation, "atomics on")
        which = WHICH.format(number=number, count=len(found), verb=verb, array=array)
        legend.append(which)
    return grid.finished(alt, f"One request, of `{code}`. {alt}", *legend)


def words_of(launch: LaunchTrace, request: WarpRequest) -> dict[int, list[int]]:
    """Return the lanes that access each word of 4 bytes, by the word's number in the memory."""
    start = array_named(launch, request.array).start
    lanes: dict[int, list[int]] = defaultdict(list)
    for lane, offset in zip(request.lanes, request.offsets, strict=True):
        for byte in range(0, request.width, WORD_BYTES):
            lanes[(start + offset + byte) // WORD_BYTES].append(lane)
    return dict(sorted(lanes.items()))


Drawn = tuple[Grid, str, list[str]]  # the picture, its description, its legend's sentences


def _box(grid: Grid, column: int, row: float, lanes: list[int], **style: Any) -> None:
    """Draw a word of memory with the lane that accesses it, or the number of such lanes."""
    colour = COLOURS[1] if len(lanes) > 1 else NOBODY
    if len(lanes) == 1:
        colour = COLOURS[lanes[0] // 4 % len(COLOURS)]
    grid.cell(column, row, colour, only_or_count(lanes), **style)


def _in_sectors(request: WarpRequest, words: dict[int, list[int]], above: str, who: str) -> Drawn:
    per_sector = SECTOR_BYTES // WORD_BYTES
    sectors = sorted({word // per_sector for word in words})
    shown = sectors[:MOST_SECTORS]
    columns = max(min(4, math.ceil(len(shown) / 8)), 1 + (len(shown) > 3))
    grid = Grid(0.27)
    grid.note(0, -0.9, above, 9, family="monospace")
    for place, sector in enumerate(shown):
        left, top = place % columns * (per_sector + 1), place // columns * 1.3
        for one in range(per_sector):
            lanes = words.get(sector * per_sector + one, [])
            _box(grid, left + one, top, lanes, hatched=not lanes)
        grid.cell(left, top, "none", wide=per_sector, edge=INK, line=1.2)
    bytes_wanted = WORD_BYTES * len(words)
    verb = {"load": "read", "store": "write"}.get(request.operation, "change")
    numbers = f"{len(words)} different numbers" if len(words) > 1 else "1 number"
    alt = f"""{who} {verb} {numbers} of {request.array}, {bytes_wanted} bytes,
        which lie in {counted(len(sectors), "sector")} of {SECTOR_BYTES} bytes;
        {math.ceil(bytes_wanted / SECTOR_BYTES)} would be enough."""
    legend = ["Each frame is a sector. Read the frames like lines of a text: addresses grow."]
    if len(words) < len(sectors) * per_sector:
        legend.append("Memory moves the hatched boxes, too, although no lane accesses them.")
    return grid, alt, legend


def _in_banks(request: WarpRequest, words: dict[int, list[int]], above: str, who: str) -> Drawn:
    at_once, wavefronts = served(request, words)
    grid = Grid(0.225)
    grid.note(0, -1.8, above, 9, family="monospace")
    for bank in range(BANKS):
        grid.note(bank + 0.5, -0.5, str(bank), 6, ha="center")
        for row, lanes in enumerate(wavefronts):
            _box(grid, bank, row, lanes.get(bank, []), size=6)
    found, lie = (f"{len(words)} different words", "lie") if len(words) > 1 else ("1 word", "lies")
    banks = len({word % BANKS for word in words})
    alt = f"""{who} access {found} of {request.array}, which {lie} in {banks} of the 32 banks:
        {counted(request.wavefronts, "wavefront")}."""
    legend = [
        """Columns are the 32 banks of shared memory, and rows are wavefronts. In each
        wavefront a bank delivers one word: 4 bytes, such as one float32."""
    ]
    if at_once < WARP:
        legend.append(f"Shared memory serves {at_once} lanes at a time.")
    return grid, alt, legend


def served(
    request: WarpRequest, words: dict[int, list[int]]
) -> tuple[int, list[dict[int, list[int]]]]:
    """Return how many lanes shared memory serves at a time, and the lanes of each bank in each
    wavefront. :mod:`convlab.simulation.rules.memory_traffic` says how wide accesses are served."""
    for at_once in LANES_AT_ONCE[request.width]:
        wavefronts: list[dict[int, list[int]]] = []
        for first in range(0, WARP, at_once):
            waiting: dict[int, list[list[int]]] = defaultdict(list)  # for each word of a bank
            for word, lanes in words.items():
                if some := [lane for lane in lanes if first <= lane < first + at_once]:
                    waiting[word % BANKS].append(some)
            wavefronts += [
                {bank: queue[turn] for bank, queue in waiting.items() if turn < len(queue)}
                for turn in range(max(map(len, waiting.values()), default=0))
            ]
        if len(wavefronts) == request.wavefronts:
            return at_once, wavefronts
    raise ValueError(
        f"a request of {request.array} in line {request.line} has {request.wavefronts} "
        f"wavefronts, and its picture would have {len(wavefronts)}"
    )


SLICES = {"S_F": COLOURS[0], "S_I": COLOURS[1]}


def thread_in_tile(launch: LaunchTrace, problem: ConvProblem, thread: int = 0) -> Picture:
    """Draw the numbers that a thread reads from the slices for one term of its sums, and its
    outputs. ``S_F`` is drawn with a row for each channel, even if it is transposed in memory."""
    tile = tile_of(launch, problem)
    numbers, transposed = _reads_of_one_term(launch, thread)
    (M_B, K_B), N_B = numbers["S_F"].shape, numbers["S_I"].shape[1]
    requests = max(int(one.max()) for one in numbers.values())
    of_filter, of_windows = (np.count_nonzero(numbers[name]) for name in SLICES)
    mine = np.zeros((M_B, N_B), bool)
    mine[: tile.shape[0], : tile.shape[1]] = tile == thread
    grid = Grid(0.24, widest=9.2)
    left = top = K_B + 2
    for (name, colour), at in zip(SLICES.items(), ((0, top), (left, 0)), strict=True):
        colours = [NOBODY] + [colour] * requests
        grid.cells(*at, numbers[name], colours, lambda number: str(number or ""), size=8.5)
    grid.cells(left, top, mine, (NOBODY, THREAD))
    below = top + M_B + 0.9
    grid.note(left, -0.9, f"slice of the windows, S_I: {K_B} terms x {N_B} pixels", 10)
    grid.note(0, below, f"S_F: {M_B} channels x {K_B} terms", 10)
    grid.note(left + N_B, below, "outputs of the tile", 10, ha="right")
    each = (of_filter + of_windows) // requests
    several = f", each of which brings {each} numbers" if each > 1 else ""
    alt = f"""For one term thread {thread} makes {requests} reads from shared memory{several}:
        {of_filter} numbers of S_F and {of_windows} of S_I, for {mine.sum()} outputs."""
    caption = alt
    if transposed:
        caption += " S_F is drawn with channels as rows; in memory it is transposed."
    legend = """Blue elements come from the filter's slice, orange ones from the windows' slice; red
        boxes are the outputs that the thread adds to. The number in a box is the number of the read
        that brings this element."""
    return grid.finished(alt, caption, legend)


def _reads_of_one_term(launch: LaunchTrace, thread: int) -> tuple[dict[str, np.ndarray], bool]:
    """Return for each element of each slice the number, from 1, of the thread's read that brings it
    for the first term, or 0; and whether ``S_F`` is transposed in memory."""
    warp, lane = divmod(thread, WARP)
    numbers = {name: np.zeros(array_named(launch, name).shape, int) for name in SLICES}
    K_B, lies = len(numbers["S_I"]), numbers["S_F"].shape
    transposed = lies[0] == K_B and lies[1] != K_B
    first_term = {"S_I": np.s_[0], "S_F": np.s_[0] if transposed else np.s_[:, 0]}
    count = 0
    for request in _shared_reads(launch, warp):
        if lane in request.lanes:
            first = request.offsets[request.lanes.index(lane)] // WORD_BYTES
            read = np.zeros(numbers[request.array].shape, bool)
            read.flat[first : first + request.width // WORD_BYTES] = True
            of_term = numbers[request.array][first_term[request.array]]
            new = read[first_term[request.array]] & (of_term == 0)
            count += bool(new.any())
            of_term[new] = count
    if transposed:
        numbers["S_F"] = numbers["S_F"].T
    return numbers, transposed


def _shared_reads(launch: LaunchTrace, warp: int) -> list[WarpRequest]:
    reads = [one for one in launch.requests if (one.warp, one.operation) == (warp, "load")]
    return [one for one in reads if one.array in SLICES]


def reads_for_a_product(launch: LaunchTrace) -> float:
    """Return how often a thread reads from the slices for each product that it adds to a sum."""
    reads = [one for one in launch.accesses if one.array in SLICES and one.operation == "load"]
    return launch.total("lanes", reads) / (max(work.flops for work in launch.work) / 2)


def reads_in_turn(launches: dict[str, LaunchTrace]) -> Picture:
    """Draw warp 0's first reads from the slices, a row for each launch, and reads per product."""
    grid, told = Grid(), []
    grid.note(MOST_READS + 1, -0.2, "reads per product", 8)
    for place, (name, launch) in enumerate(launches.items()):
        top = 2.1 * place
        grid.note(0, top - 0.2, name, 9)
        names = []  # F or I, with the number of elements if a read brings several
        for turn, request in enumerate(_shared_reads(launch, 0)[:MOST_READS]):
            names.append(f"{request.array[-1]}{request.width // WORD_BYTES}".removesuffix("1"))
            grid.cell(turn, top + 0.3, SLICES[request.array], names[-1], size=8)
        reads = f"{reads_for_a_product(launch):.4g}"
        grid.note(MOST_READS + 1, top + 0.8, reads, 10)
        told.append(f"{name}: {' '.join(names)}, {reads} reads per product")
    alt = f"Reads from shared memory in turn, F of S_F and I of S_I. {'; '.join(told)}"
    caption = f"The first {MOST_READS} reads of warp 0 from shared memory, from left to right."
    legend = """`F` (blue) reads the filter's slice `S_F`, `I` (orange) the windows' slice `S_I`;
        `F4` and `I4` read four neighbours at once. On the right is the number of reads for each
        product that a thread adds to a sum."""
    return grid.finished(alt, caption, legend)
