"""Pictures of a trace: what a block touches, and where the lanes of one warp go for each line.

Every number comes from the strict simulator's run of the real kernel (:mod:`convlab.tracing`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from convlab.problem import ConvProblem
from convlab.site.markup import code, counted
from convlab.stages import stage_named
from convlab.tracing import LaunchTrace, Trace
from convlab.tracing.records import Access, Request
from convlab.tracing.table import statement_of

WORD, SECTOR, BANKS = 4, 32, 32  # bytes, bytes, how many
WIDE = 640  # of a picture, in its own units; the page scales it
A_ROW = 128  # words of global memory that stand side by side
MOST_ROWS = 4  # of sectors; a request has at most 128


def shapes_of(stage: str, problem: ConvProblem) -> dict[str, tuple[int, ...]]:
    """The shapes of all arrays of a stage, which its kernels may see as one row of elements."""
    chosen = stage_named(stage)
    program = chosen.prepare(problem, chosen.model_tile)
    tensors = {
        "input": problem.input_shape,
        "weight": problem.weight_shape,
        "bias": (problem.C_o,),
        "output": problem.output_shape,
    }
    return {**tensors, **{buffer.name: buffer.shape for buffer in program.buffers}}


# What the block touches.


def footprints(launch: LaunchTrace, shapes: dict[str, tuple[int, ...]]) -> str:
    """Every array of a launch as a map of its elements; those that one block touches are filled."""
    maps = []
    for array in launch.arrays:
        if array.name == "bias":
            continue
        shape = shapes.get(array.name, array.shape) if array.space == "global" else array.shape
        runs = {
            operation: [run for one in launch.footprints if one.array == array.name
                        and (one.operation == "load") is (operation == "read") for run in one.runs]
            for operation in ("read", "written")
        }  # fmt: skip
        touched = [operation for operation, found in runs.items() if found]
        if touched and len(shape) > 1:
            maps.append(_map(array.name, array.space, shape, runs, touched))
    return f'<div class="maps">{"".join(maps)}</div>'


def _map(
    name: str,
    space: str,
    shape: tuple[int, ...],
    runs: dict[str, list[tuple[int, int]]],
    touched: list[str],
) -> str:
    """One array: the planes of its last two dimensions, side by side."""
    height, width = shape[-2:]
    if height * width <= 64 and len(shape) == 4:  # small filters: a row for each
        height, width = shape[0], math.prod(shape[1:])
    planes = math.prod(shape) // (height * width)
    cell = 4 if math.prod(shape) <= 2048 else 2
    if planes == 1:
        cell = max(2, min(8, 256 // width, 256 // height))
    across = max(1, min(planes, 288 // (cell * width + 6)))
    down = -(-planes // across)
    w, h = across * (cell * width + 6) - 6, down * (cell * height + 6) - 6
    parts = []
    for plane in range(planes):
        x, y = plane % across * (cell * width + 6), plane // across * (cell * height + 6)
        parts.append(f'<rect class="memory" x="{x}" y="{y}" width="{cell * width}" '
                     f'height="{cell * height}"/>')  # fmt: skip
    kind = "both" if len(touched) > 1 else touched[0]
    for operation in touched:
        for first, count in runs[operation]:
            for plane, row, column, length in _spans(first, count, height, width):
                x = plane % across * (cell * width + 6) + column * cell
                y = plane // across * (cell * height + 6) + row * cell
                parts.append(f'<rect class="{kind}" x="{x}" y="{y}" '
                             f'width="{cell * length}" height="{cell}"/>')  # fmt: skip
    number = sum(count for runs_of in runs.values() for _, count in runs_of)
    sizes = " x ".join(map(str, shape))
    verb = " and ".join(touched)
    if len(touched) > 1:
        number = len({e for found in runs.values() for f, c in found for e in range(f, f + c)})
    told = f"{name}, {sizes}: {number:,} of {math.prod(shape):,} elements {verb}"
    return (
        f'<div class="map"><svg role="img" aria-label="{escape(told)}" viewBox="-1 -1 {w + 2} '
        f'{h + 2}" width="{w + 2}" height="{h + 2}">{"".join(parts)}</svg>'
        f"<p><code>{escape(name)}</code> ({space}, {sizes})<br>{number:,} of "
        f"{math.prod(shape):,} {verb}</p></div>"
    )


def _spans(first: int, count: int, height: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """A run of elements as pieces of rows: plane, row, column, length."""
    while count > 0:
        rest, column = divmod(first, width)
        plane, row = divmod(rest, height)
        length = min(count, width - column)
        yield plane, row, column, length
        first, count = first + length, count - length


# What one warp asks for.


def requests(launch: LaunchTrace, own: str) -> str:
    """A strip for each line and array: the places to which the lanes of one request go; ``own`` is
    the file whose lines need no name before them."""
    starts = {array.name: array.start for array in launch.arrays}
    strips = []
    shown = sorted(launch.accesses, key=lambda one: (one.file, one.line))
    for access in shown:
        request = _typical(launch, access)
        if request is not None:
            file = Path(access.file).name
            where = f"line {access.line}" if file == own else f"{file}, line {access.line}"
            code_there = code(statement_of(launch, access.file, access.line))
            strips.append(_strip(access, request, starts[access.array], f"{where}: {code_there}"))
    return f'<div class="strips">{"".join(strips)}</div>'


def _typical(launch: LaunchTrace, access: Access) -> Request | None:
    """The first request with the most lanes, which no edge has cut short."""
    alike = [
        one
        for one in launch.requests
        if (one.file, one.line, one.array, one.operation, one.width)
        == (access.file, access.line, access.array, access.operation, access.width)
    ]
    return max(alike, key=lambda one: len(one.lanes), default=None)


def _strip(access: Access, request: Request, start: int, where: str) -> str:
    far = access.space == "global"
    cost = request.sectors if far else request.passes
    unit = "sector" if far else "pass"
    lanes = counted(len(request.lanes), "lane")
    each = f"{request.width} bytes each" if request.width != WORD else "a number each"
    total = access.sectors if far else access.passes
    fewest = access.fewest_sectors if far else access.fewest_passes
    told = (
        f"{lanes} {access.operation} {request.array} ({access.space}), {each}: "
        f"{counted(cost, unit)}"
    )
    enough = "as few as can be" if total == fewest else f"where {fewest:,} would do"
    wasteful = ' class="wasteful"' if total >= 2 * fewest else ""
    return (
        f'<div class="strip"><p class="where">{where}</p>'
        f"{request_picture(request, access.space, start, told)}"
        f"<p>{escape(told)}. In the whole launch {counted(access.requests, 'request')}, "
        f"<b{wasteful}>{counted(total, unit)}</b>, {enough}.</p></div>"
    )


def request_picture(request: Request, space: str, start: int = 0, told: str = "one request") -> str:
    """One request as a drawing: sectors of global memory, or passes of shared memory's banks.

    ``start`` is where its array begins in that memory, ``told`` the drawing in words.
    """
    return (_memory if space == "global" else _banks)(request, start, told)


def _fill(lane: int | None) -> str:
    """From blue, lane 0, to orange, lane 31; nothing for a place that no lane wants."""
    if lane is None:
        return ""
    hue, light = 212 - 182 * lane / 31, 48 - 6 * math.sin(math.pi * lane / 31)
    return f' style="fill: hsl({hue:.0f} 75% {light:.0f}%)"'


def _words(request: Request, start: int) -> Iterator[tuple[int, int]]:
    """Every word of 4 bytes that a lane wants: its number in memory, and the lane."""
    for lane, offset in zip(request.lanes, request.offsets, strict=True):
        first = (start + offset) // WORD
        for word in range(first, first + max(1, request.width // WORD)):
            yield word, lane


def _memory(request: Request, start: int, told: str) -> str:
    """Global memory: the sectors that are fetched, eight numbers each; what a lane wants is
    filled with its colour, and what lies between sectors far apart is left out."""
    wanted: dict[int, int] = {}
    for word, lane in _words(request, start):
        wanted.setdefault(word, lane)
    per_sector = SECTOR // WORD
    sectors = sorted({word // per_sector for word in wanted})
    rows: list[list[int]] = [sectors[i : i + 16] for i in range(0, len(sectors), 16)]
    cell, tall = WIDE / A_ROW, 14
    parts = []
    for row, members in enumerate(rows[:MOST_ROWS]):
        y = row * (tall + 5)
        for place, sector in enumerate(members):
            x = place * per_sector * cell
            for i in range(per_sector):
                fill = _fill(wanted.get(sector * per_sector + i))
                parts.append(f'<rect class="word" x="{x + i * cell:.1f}" y="{y}" '
                             f'width="{cell:.1f}" height="{tall}"{fill}/>')  # fmt: skip
            parts.append(f'<rect class="sector" x="{x:.1f}" y="{y}" '
                         f'width="{per_sector * cell:.1f}" height="{tall}"/>')  # fmt: skip
            if place and members[place - 1] != sector - 1:
                parts.append(f'<path class="gap" d="M {x:.1f} {y - 2} v {tall + 4}"/>')
    height = min(len(rows), MOST_ROWS) * (tall + 5)
    return _svg(parts, height, told)


def _banks(request: Request, start: int, told: str) -> str:
    """Shared memory: 32 banks side by side, a row for each pass in which they answer."""
    rows = _passes(request, start)
    tall, wide = 12, WIDE / BANKS
    parts = [
        f'<rect class="bank" x="{bank * wide + 1:.1f}" y="{level * (tall + 2)}" '
        f'width="{wide - 2:.1f}" height="{tall}"{_fill(row.get(bank))}/>'
        for level, row in enumerate(rows)
        for bank in range(BANKS)
    ]
    return _svg(parts, len(rows) * (tall + 2), told)


def _passes(request: Request, start: int) -> list[dict[int, int]]:
    """For each pass, the lane that each bank answers: the first of those that want its word.

    Wide accesses are served some lanes at a time (:mod:`convlab.simulation.memory_rules`); how many
    is what makes the trace's count of passes.
    """
    least = {4: 32, 8: 16, 16: 8}[max(WORD, request.width)]
    for together in (least, min(32, 2 * least)):
        rows: list[dict[int, int]] = []
        for first in range(0, 32, together):
            stacks: dict[int, dict[int, int]] = {}
            for word, lane in _words(request, start):
                if first <= lane < first + together:
                    stacks.setdefault(word % BANKS, {}).setdefault(word, lane)
            deepest = max(map(len, stacks.values()), default=0)
            rows += [
                {
                    bank: [*stack.values()][level]
                    for bank, stack in stacks.items()
                    if level < len(stack)
                }
                for level in range(deepest)
            ]
        if len(rows) == request.passes:
            return rows
    raise ValueError(f"a request of {request.array} in line {request.line} has {request.passes} "
                     f"passes, and its picture would have {len(rows)}")  # fmt: skip


def _svg(parts: Sequence[str], height: float, told: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(told)}" viewBox="-1 -3 {WIDE + 2} {height + 4}">'
        f"{''.join(parts)}</svg>"
    )


def captions(trace: Trace) -> tuple[str, str]:
    """What the two pictures show, in words."""
    launch = trace.main
    number = launch.block_shown[0] + launch.grid[0] * launch.block_shown[1]
    blocks = math.prod(launch.grid)
    tile = f", with the tile {escape(trace.about['tile'])}" if "tile" in trace.about else ""
    where = (
        f"<code>{launch.kernel}</code> on Conv9 in small ({escape(trace.about['problem'])}){tile}"
    )
    first = (
        f"What one block (number {number} of {blocks}) of {where} touches. Each field is an array; "
        '<span class="key read"></span> was read, <span class="key written"></span> was written, '
        '<span class="key both"></span> was both, the rest was left alone. Arrays in shared memory '
        "are the block's own. Traced on the strict simulator."
    )
    second = (
        "Where the lanes of one warp go, for each line of the kernel that asks for memory. Colours "
        'run from <span class="key first"></span> lane 0 to <span class="key last"></span> lane '
        "31; a number that several lanes want has the colour of the first. Global memory is drawn "
        "as the sectors of 32 bytes that are fetched: what is filled was wanted, what is empty "
        "came along for nothing, and a thick line is a jump to another address. Shared memory is "
        "drawn as its 32 banks, with a row for each pass: a bank gives one number a pass, and "
        "accesses of 16 bytes are served 8 or 16 lanes at a time."
    )
    return first, second
