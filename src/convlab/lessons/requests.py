"""Pictures of one request: what the 32 lanes of a warp want of memory, and what memory moves."""

from __future__ import annotations

import math
from collections import defaultdict

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
    spans,
)
from convlab.simulation.memory_rules import BANKS, SECTOR_BYTES, WORD_BYTES
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
    scale = min(0.27, 7.4 / (columns * wide))
    head = _head(launch, request)
    least = max(4.2, 0.078 * len(head) + 0.4)  # inches: room for the line of code
    figure, (panel,) = sheet(
        max(least, columns * wide * scale + 0.3), (rows * 1.3 + 2) * scale + 0.2
    )
    limits(panel, (-0.3, max(columns * wide, least / scale - 1)), (-1.8, rows * 1.3 + 0.1))
    note(panel, 0, -0.9, head, 9, family="monospace")
    for place, sector in enumerate(shown):
        left, top = place // rows * wide, place % rows * 1.3
        for one in range(per_sector):
            wanted = lanes.get(sector * per_sector + one)
            if wanted:
                cell(panel, left + one, top, _colour(wanted), _label(wanted))
            else:
                cell(panel, left + one, top, NOBODY, hatch="////")
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
    return finished(figure, alt, caption)


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
    figure, (panel,) = sheet(7.4, 0.225 * rows + 0.75)
    limits(panel, (-0.3, BANKS + 0.3), (-2.4, rows + 0.2))
    note(panel, 0, -1.8, _head(launch, request), 9, family="monospace")
    for bank in range(BANKS):
        note(panel, bank + 0.5, -0.5, str(bank), 6, ha="center")
        for row in range(rows):
            cell(panel, bank, row, NOBODY)
    for row, words in enumerate(passes):
        for word, wanted in words.items():
            cell(panel, word % BANKS, row, _colour(wanted), _label(wanted), size=6)
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
    return finished(figure, alt, caption)


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
