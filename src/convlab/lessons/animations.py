"""Animations drawn from traces, and a viewer of traces: a tile that moves over the input, slices in
two buffers.

Each animation is an SVG with its own style sheet and no script. Readers whose system asks for less
motion see one frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby

import numpy as np

from convlab.lessons.maps import array_named
from convlab.lessons.pictures import COLOURS, DARK, INK, NOBODY, PAPER, Picture, joined
from convlab.lessons.timelines import ARRIVE, MULTIPLY, EventLog
from convlab.measuring.plots import with_dark_mode
from convlab.tracing import LaunchTrace, Trace
from convlab.tracing.recorded import WarpRequest
from convlab.tracing.views import page

BOX, MARGIN, LETTERS = 12, 10, 11  # pixels: of an element, around the drawing, of words
# Slices in buffers: how many frames, and in pixels a row's height, the boxes and where they begin.
FRAMES, TALL, WIDE, HIGH = 48, 74, 80, 30
LEFT = {"in flight": 0, "buffer 0": 130, "buffer 1": 220, "multiplied": 350}
# Of line_by_line: an element's box, the width of the arrays' names, and that of a line of code.
BOX_OF_LINE, LABELS, LETTERS_OF_CODE = 26, 40, 300
STYLE = f"""text{{font:{LETTERS}px system-ui,sans-serif;fill:{INK};dominant-baseline:middle}}
.f{{visibility:hidden;animation:f %.4gs step-end infinite}}
@keyframes f{{0%%{{visibility:visible}}%.4g%%{{visibility:hidden}}}}
@media(prefers-reduced-motion:reduce){{.f{{animation:none}}.s{{visibility:visible}}}}
@media(prefers-color-scheme:dark){{text{{fill:{DARK[INK]}}}}}"""


def box(x: float, y: float, wide: float, high: float, colour: str, text: str = "") -> str:
    """Return a box with words in its middle."""
    made = f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" fill="{colour}"/>'
    return made + (note(x + wide / 2, y + high / 2, text, "middle") if text else "")


def note(x: float, y: float, text: str, anchor: str = "start") -> str:
    """Return words that start at a point, or have their ``"middle"`` or ``"end"`` there."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def moving(
    width: float, height: float, ground: str, frames: Sequence[str], seconds: float,
    alt: str, caption: str,
) -> Picture:  # fmt: skip
    """Return an SVG that shows ``ground``, and over it one frame after the other.

    Each frame stays for ``seconds``. ``width`` and ``height`` are pixels without the margin.
    """
    style = STYLE % (seconds * len(frames), 100 / len(frames))
    groups = "".join(
        f'<g class="{"f s" if number == len(frames) // 2 else "f"}" '
        f'style="animation-delay:{seconds * number:.4g}s">{frame}</g>'
        for number, frame in enumerate(frames)
    )
    width, height = round(width + 2 * MARGIN), round(height + 2 * MARGIN)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-MARGIN} {-MARGIN} {width} {height}" '
        f'width="{width}" height="{height}"><style>{style}</style>'
        f"{box(-MARGIN, -MARGIN, width, height, PAPER)}{ground}{groups}</svg>"
    )
    svg = with_dark_mode(svg, DARK)
    return Picture(svg.encode(), width, height, alt, joined(caption))


def tile_over_input(launch: LaunchTrace, K_B: int) -> Picture:
    """Animate the pixels of the first image that the block shown loads, term after term.

    Each request of the launch for ``input`` must load one term; a slice has ``K_B`` terms.
    """
    shape = array_named(launch, "input").shape[1:]
    channels, rows, columns = shape
    tall = (rows + 1) * BOX
    ground = "".join(
        box(c * BOX, r * tall + h * BOX, BOX - 1, BOX - 1, NOBODY)
        for r in range(channels) for h in range(rows) for c in range(columns)
    )  # fmt: skip
    ground += "".join(
        note(columns * BOX + 8, r * tall + rows * BOX / 2, f"channel {r}") for r in range(channels)
    )
    item, frames = array_named(launch, "input").itemsize, []
    most_rows = 1  # of pixels, in a term
    loads = launch.requests_of("input", "load")
    for k, request in enumerate(loads):
        pixels = sorted({offset // item for offset in request.offsets})
        colour, frame = COLOURS[k // K_B % len(COLOURS)], ""
        most_rows = max(most_rows, len({pixel // columns for pixel in pixels}))
        for _, run in groupby(
            enumerate(pixels), lambda pair: (pair[1] // columns, pair[1] - pair[0])
        ):
            first, *others = (pixel for _, pixel in run)
            r, h, c = (int(at) for at in np.unravel_index(first, shape))
            wide = (1 + len(others)) * BOX - 1
            frame += box(c * BOX, r * tall + h * BOX, wide, BOX - 1, colour)
        frames.append(frame + note(0, channels * tall, f"slice {k // K_B}, term k = {k}"))
    caption = f"""The pixels that a block loads, term after term, as the simulator ran it:
        {len(loads)} terms in slices of {K_B}, a colour for each slice. The block loads the same
        pixels again and again, moved by a row or a column."""
    if most_rows > 1:
        caption += (
            f""" The pixels of a term lie in {most_rows} rows, because the block's outputs do."""
        )
    alt = f"Animation: the tile of a block moves over {channels} channels in {len(loads)} steps"
    return moving(columns * BOX + 80, channels * tall + 8, ground, frames, 0.45, alt, caption)


def line_by_line(launch: LaunchTrace, *arrays: str, hidden: str = "") -> Picture:
    """Animate which elements of the arrays the block shown reads and writes, line after line.

    Each element that is accessed has the number of its thread, in a thin frame for a read and in a
    thick one for a write. What is written stays coloured. A barrier has a step of its own; in the
    loops of a block with several warps it may have none. Instead of a line of code that begins with
    ``hidden`` there are three dots: a learner has yet to write that line.
    """
    touched = {name: _touched(launch, name) for name in arrays}
    tops = {name: 2 * BOX_OF_LINE * number for number, name in enumerate(arrays)}
    wide = LABELS + max(map(len, touched.values())) * BOX_OF_LINE
    high = 2 * BOX_OF_LINE * len(arrays)
    ground = "".join(
        note(LABELS - 6, tops[name] + BOX_OF_LINE / 2, name, "end")
        + "".join(_element(number, tops[name], NOBODY) for number in range(len(touched[name])))
        for name in arrays
    )
    frames, written = [], ""
    before: WarpRequest | None = None
    for requests in _at_a_time([one for one in launch.requests if one.array in arrays]):
        if before is not None and _barrier_between(launch, before, requests[0]):
            frames.append(written + note(LABELS, high, "cuda.syncthreads(): all wait"))
        before, frame = requests[-1], ""
        for one in requests:
            item, stores = array_named(launch, one.array).itemsize, one.operation != "load"
            for lane, offset in zip(one.lanes, one.offsets, strict=True):
                number = offset // item - touched[one.array][0]
                box_of = (number, tops[one.array], COLOURS[lane % len(COLOURS)], str(lane))
                frame += _element(*box_of, edge=2 if stores else 1)
                written += _element(*box_of) if stores else ""
        code = launch.source[requests[0].file][requests[0].line].partition("  #")[0].strip()
        code = "..." if hidden and code.startswith(hidden) else code
        frames.append(written + frame + note(LABELS, high, code))
    caption = f"A block of {launch.block[0]} threads, as the simulator ran it, line after line."
    legend = """A number is the thread that accesses the element: a thin frame is a read, a thick
        one a write. What is written stays coloured."""
    alt = f"Animation: {', '.join(arrays)} in {len(frames)} steps of a block"
    wide, high = max(wide, LETTERS_OF_CODE), high + LETTERS
    picture = moving(wide, high, ground, frames, 1.6, alt, caption)
    return replace(picture, legend=(joined(legend),))


def _at_a_time(requests: Sequence[WarpRequest]) -> list[list[WarpRequest]]:
    """Return the requests of one line together, but nothing after a store, and no array twice."""
    groups: list[list[WarpRequest]] = []
    for one in requests:
        last = groups[-1] if groups else []
        together = (
            last
            and last[-1].operation == "load"
            and (one.file, one.line) == (last[-1].file, last[-1].line)
            and one.operation not in [other.operation for other in last if other.array == one.array]
        )
        if together:
            last.append(one)
        else:
            groups.append([one])
    return groups


def _barrier_between(launch: LaunchTrace, before: WarpRequest, after: WarpRequest) -> bool:
    """Return whether a barrier stands between two requests that follow each other.

    The second request is in a line further down, or in the next iteration of a loop.
    """
    if before.file != after.file:
        return False
    passed = [*range(before.line + 1, after.line)]
    if after.line <= before.line:
        if before.warp != after.warp or (before.line == after.line and before.operation == "load"):
            return False  # the next warp, or the store of the same statement
        start, end = _loop_around(launch.source[after.file], after.line)
        passed = [*range(before.line + 1, end), *range(start + 1, after.line)]
    barriers = [one.line for one in launch.work if one.barriers and one.file == before.file]
    return any(line in passed for line in barriers)


def _loop_around(code: Mapping[int, str], line: int) -> tuple[int, int]:
    """Return the line where the innermost loop around a line begins, and the first one below it."""

    def depth(number: int) -> int:
        return len(code[number]) - len(code[number].lstrip())

    heads = [
        number for number in code
        if number < line and depth(number) < depth(line)
        and re.match(r"\s*(for|while)\b", code[number])
    ]  # fmt: skip
    if not heads:
        return line, line
    start = max(heads)
    below = [n for n in code if n > line and code[n].strip() and depth(n) <= depth(start)]
    return start, min(below, default=max(code) + 1)


def _touched(launch: LaunchTrace, array: str) -> range:
    """Return the elements from the first to the last that the block shown accesses."""
    item = array_named(launch, array).itemsize
    offsets = [
        offset // item for one in launch.requests if one.array == array for offset in one.offsets
    ]
    return range(min(offsets), max(offsets) + 1)


def _element(number: int, top: float, colour: str, text: str = "", edge: int = 0) -> str:
    """Return the box of an element in its array's row, with an edge of so many pixels."""
    left = LABELS + number * BOX_OF_LINE
    made = box(left, top, BOX_OF_LINE - 2, BOX_OF_LINE - 2, colour, text)
    return made.replace("<rect", f'<rect stroke="{INK}" stroke-width="{edge}"', 1)


def slices_in_buffers(**logs: EventLog) -> Picture:
    """Animate event logs below each other: slices in flight, in buffers, and being multiplied."""
    longest = max(len(one.what) for one in logs.values())
    ground, frames = "", [""] * FRAMES
    for number, (name, one) in enumerate(logs.items()):
        top, stays = number * TALL + LETTERS, _stays(one)
        ground += note(0, top, name)
        for head in dict.fromkeys(head for _, head, _, _ in stays):
            ground += box(LEFT[head], top + 22, WIDE, HIGH, NOBODY)
            ground += note(LEFT[head] + WIDE / 2, top + 14, head, "middle")
        for frame in range(FRAMES):
            for part, head, first, last in stays:
                if first <= frame * longest / FRAMES <= last:
                    what = COLOURS[part % len(COLOURS)], f"slice {part}"
                    frames[frame] += box(LEFT[head], top + 22, WIDE, HIGH, *what)
    caption = """What thread 0 does as time goes on, as the simulator ran it: a slice is in flight
        from its request until it lies in shared memory. With one buffer a thread fetches or
        multiplies; with two, the next slice is in flight while this one is multiplied."""
    alt = f"Animation: slices come into shared memory and are multiplied, for {', '.join(logs)}"
    return moving(max(LEFT.values()) + WIDE, TALL * len(logs), ground, frames, 0.35, alt, caption)


def _stays(one: EventLog) -> list[tuple[int, str, float, float]]:
    """Yield each slice's number, a place where it is, and the first and last event there."""
    flights, work = one.flights(), one.by_slice(MULTIPLY)
    addresses = one.address[one.by_slice(ARRIVE)[:, 0]].tolist()
    buffers, stays = sorted(set(addresses)), []
    for number, (asked, came) in enumerate(flights):
        over = [
            later for (_, later), address in zip(flights, addresses, strict=True)
            if address == addresses[number] and later > came
        ]  # fmt: skip
        stays += [
            (number, "in flight", asked, came),
            (number, f"buffer {buffers.index(addresses[number])}", came, min(over, default=np.inf)),
            (number, "multiplied", *work[number][[0, -1]].tolist()),
        ]
    return stays


@dataclass(frozen=True)
class Viewer:
    """The page of ``convlab trace --html`` in a frame of a notebook, with styles of its own."""

    trace: Trace = field(repr=False)

    def _repr_html_(self) -> str:
        return (
            f'<iframe title="{escape(self.trace.title)}" srcdoc="{escape(page(self.trace))}" '
            'style="width:100%;height:42em;border:1px solid #8b929a" loading="lazy"></iframe>'
        )


def step_through(trace: Trace) -> Viewer:
    """Return a viewer that steps through the requests of a trace."""
    return Viewer(trace)
