"""A trace as tables of text, for a terminal and for a notebook, and as one HTML page that works
offline.

The page is ``viewer/page.html`` with the style sheet, the scripts and the trace put into it. What
it shows beside the source are the records' own numbers; ``viewer/*.js`` draw them.
"""

from __future__ import annotations

import io
import json
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import count, pairwise, takewhile
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers.python import PythonLexer
from pygments.token import Token
from rich.console import Group, RenderableType
from rich.text import Text

from convlab.support.columns import Columns
from convlab.support.terminal import Terminal
from convlab.support.values import counted
from convlab.support.whole_files import write_whole
from convlab.tracing.recorded import UNITS, Cost, LaunchTrace, LineAccess, Trace, WarpRequest, Work

LEGEND = (
    "A request is one load or store of a warp's 32 lanes. Global memory answers it in sectors of "
    "32 bytes, shared memory in wavefronts; in brackets the fewest that would do. Caches are not "
    "simulated. FLOP are the floating-point operations that all threads execute; the ladder "
    "divides its bytes by the convolution's FLOP instead. Threads at a barrier are arrivals, "
    "over all blocks."
)
NO_SOURCE = "(no source)"
WIDTH = 100
INDENT = " " * 6  # before an access's label


def as_tables(trace: Trace) -> Group:
    """Every launch: its lines, its arrays, its totals."""
    parts: list[RenderableType] = []
    for launch in trace.launches:
        heading = Text(f"{launch.kernel}: {blocks_of_threads(launch)}", "bold")
        findings = [Text(str(finding), "bold red") for finding in launch.findings]
        parts += [heading, Text(), _lines_table(launch), Text(), _arrays_table(launch)]
        parts += [Text(), _totals(launch), *findings, Text()]
    return Group(*parts, Text(LEGEND, "dim"))


def as_text(trace: Trace, width: int = WIDTH) -> str:
    """The tables without colours."""
    file = io.StringIO()
    Terminal(file=file, width=width, color_system=None).print(as_tables(trace))
    return file.getvalue()


def as_html(shown: RenderableType, style: str) -> str:
    """A notebook's card of what rich shows: no script, and ``style`` for the box around it."""
    console = Terminal(file=io.StringIO(), width=WIDTH, record=True)
    console.print(shown)
    code_format = f'<div style="{style}"><pre>{{code}}</pre></div>'
    return console.export_html(code_format=code_format, inline_styles=True)


def card(trace: Trace) -> str:
    """The tables for a notebook."""
    return as_html(as_tables(trace), "max-height: 40em; overflow: auto")


def blocks_of_threads(launch: LaunchTrace) -> str:
    """``8 x 4 blocks of 64 threads``."""
    blocks, threads = (
        f"{extent(shape)} {noun}{'' if math.prod(shape) == 1 else 's'}"
        for shape, noun in ((launch.grid, "block"), (launch.block, "thread"))
    )
    return f"{blocks} of {threads}"


def extent(shape: tuple[int, ...]) -> str:
    """Sizes without the ones at their end: ``8 x 4``."""
    end = max((axis for axis, size in enumerate(shape, 1) if size > 1), default=1)
    return " x ".join(f"{size:,}" for size in shape[:end])


def statement_of(launch: LaunchTrace, file: str, line: int) -> str:
    """A line of the source, without its indentation, with the lines that complete its call."""
    lines = launch.source.get(file, {})
    code = lines.get(line, NO_SOURCE).strip()
    while code.count("(") > code.count(")") and (line := line + 1) in lines:
        more = lines[line].strip()
        code += more if code.endswith("(") or more.startswith(")") else f" {more}"
    return code


def _lines_table(launch: LaunchTrace) -> Columns:
    rows: list[Sequence[Text] | Text] = []
    for at in launch.lines():
        code = launch.source.get(at[0], {}).get(at[1], NO_SOURCE)
        rows.append(Text(f"{at[1]:>4}  {code.strip()}"))
        rows += [
            Text(INDENT + _done(work), "dim")
            for work in launch.work if (work.file, work.line) == at
        ]  # fmt: skip
        for access in launch.accesses:
            if (access.file, access.line) == at:
                width = f"{counted(access.width, 'byte')} a lane"
                rows.append([
                    Text(f"{INDENT}{access.array}: {access.operation}, {width}", "dim"),
                    Text(f"{access.requests:,}"), Text(f"{access.lanes / access.requests:.3g}"),
                    _against(access.cost),
                ])  # fmt: skip
    return Columns(("line", "requests", "lanes", "sectors or wavefronts"), rows)


def _done(work: Work) -> str:
    """Return a line's floating-point operations and barriers, in words."""
    flops = f"{work.flops:,} FLOP" if work.flops else ""
    barrier = f"{counted(work.barriers, 'thread')} at the barrier" if work.barriers else ""
    return ", ".join(filter(None, (flops, barrier)))


def _against(cost: Cost) -> Text:
    text = f"{cost.total:,} ({cost.fewest:,}) {cost.unit:<10}"
    return Text(text, {"good": "green", "fair": "yellow", "bad": "red"}[cost.grade])


def _arrays_table(launch: LaunchTrace) -> Columns:
    rows = []
    for array in launch.arrays:
        accesses = launch.of(array.name)
        cost = Cost.of(accesses)
        asked, moved = (launch.total(name, accesses) for name in ("bytes_asked", "bytes_moved"))
        rows.append([
            Text(f"{array.name} ({array.space})"), Text("x".join(map(str, array.shape))),
            Text(f"{cost.requests:,}"), Text(f"{asked:,}"),
            Text(f"{moved:,}" if array.space == "global" else ""), _against(cost),
        ])  # fmt: skip
    head = ("array", "shape", "requests", "bytes asked", "bytes moved", "sectors or wavefronts")
    return Columns(head, rows)


def _totals(launch: LaunchTrace) -> Text:
    lines = []
    for space in UNITS:
        if accesses := launch.of(space=space):
            unit, requests, total, fewest = Cost.of(accesses)
            each = f"{total / requests:.2f} {unit} each (fewest {fewest / requests:.2f})"
            moved = f", {counted(launch.bytes_moved, 'byte')}" if space == "global" else ""
            lines.append(f"{space} memory: {counted(requests, 'request')}, {each}{moved}")
    worst = max(launch.accesses, key=lambda one: one.conflict_degree, default=None)
    if worst is not None and worst.conflict_degree > 1:
        lines.append(
            f"worst bank conflict: {worst.conflict_degree:.3g} wavefronts for each that is "
            f"needed, {worst.array} in line {worst.line}"
        )
    contended = max(launch.accesses, key=lambda one: one.contention, default=None)
    if contended is not None and contended.contention > 1:
        lines.append(
            f"atomics: up to {contended.contention} lanes of a warp at one address, one after the "
            f"other, {contended.array} in line {contended.line}"
        )
    if launch.flops:
        lines.append(
            f"arithmetic: {counted(launch.flops, 'floating-point operation')}, "
            f"{launch.bytes_per_flop:.3g} bytes an operation"
        )
    return Text("\n".join(lines))


# The page.

SCRIPTS = ("requests.js", "drawing.js", "viewer.js")
MARKER = re.compile(r"<!--\{(\w+)\}-->")
# What a page colours beside Python's own words.
GPU_NAMES = (
    "cuda", "threadIdx", "blockIdx", "blockDim", "gridDim", "shared", "local", "atomic",
    "syncthreads",
)  # fmt: skip


def page(trace: Trace) -> str:
    """The page: one text that needs no other file and no network."""
    document = json.dumps(_document(trace), separators=(",", ":"), allow_nan=False)  # ASCII only
    for character in "<>&":  # nothing in it ends the script element or opens a comment
        document = document.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "title": escape(f"{trace.title} - convlab trace"),
        "css": _asset("viewer.css"),
        "js": "\n".join(map(_asset, SCRIPTS)),
        "trace": document,
    }
    return MARKER.sub(lambda place: parts[place[1]], _asset("page.html"))


def write_page(trace: Trace, path: str | Path) -> None:
    """Write the page to a file, to be opened with a browser."""
    write_whole(Path(path), page(trace).encode())


def _asset(name: str) -> str:
    return files("convlab.tracing").joinpath("viewer", name).read_text(encoding="utf-8")


def _document(trace: Trace) -> dict[str, Any]:
    document = trace.as_json()
    for launch, shown in zip(trace.launches, document["launches"], strict=True):
        numbers = {one.key: number for number, one in enumerate(launch.accesses)}
        shown |= {
            "source": [*_functions(launch)],
            "size": blocks_of_threads(launch),
            "costs": {
                space: _cost(accesses) for space in UNITS if (accesses := launch.of(space=space))
            },
            "requests": [_row(one, numbers[one.key]) for one in launch.requests],
            "flops": launch.flops,
            "bytes_moved": launch.bytes_moved,
            "bytes_per_flop": launch.bytes_per_flop,
            "findings": [
                {"file": one.file, "line": one.line, "text": str(one)} for one in launch.findings
            ],
        }
        for access, one in zip(shown["accesses"], launch.accesses, strict=True):
            access["cost"] = _cost([one])
        for array in shown["arrays"]:
            accesses = launch.of(array["name"])
            array["cost"] = _cost(accesses)
            array["bytes_asked"] = launch.total("bytes_asked", accesses)
    return document


def _cost(accesses: Sequence[LineAccess]) -> dict[str, object]:
    cost = Cost.of(accesses)
    return {**cost._asdict(), "grade": cost.grade}


def _functions(launch: LaunchTrace) -> Iterator[dict[str, object]]:
    """The source by functions, which are neighbouring lines, without their indentation, as HTML
    whose classes the page's style sheet colours."""
    lexer = PythonLexer(stripnl=False, ensurenl=False)
    lexer.add_filter("highlight", names=GPU_NAMES, tokentype=Token.Name.Builtin.Pseudo)
    for file, lines in launch.source.items():
        for first in (line for line in lines if line - 1 not in lines):
            own = [lines[line] for line in takewhile(lines.__contains__, count(first))]
            text = textwrap.dedent("\n".join(own))
            coloured = str(highlight(text, lexer, HtmlFormatter(nowrap=True)))
            yield {"file": file, "first": first, "lines": coloured.removesuffix("\n").split("\n")}


def _row(request: WarpRequest, access: int) -> list[int | list[int]]:
    """A request, short: number of its access, warp, lanes as bits, where the first lane reads, how
    far it is from each lane to the next (one number where all are the same), sectors, wavefronts.
    """
    steps = [after - before for before, after in pairwise(request.offsets)] or [0]
    step = steps[0] if len({*steps}) == 1 else steps
    return [
        access, request.warp, sum(1 << lane for lane in request.lanes), request.offsets[0], step,
        request.sectors, request.wavefronts,
    ]  # fmt: skip
