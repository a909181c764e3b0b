"""A trace as one HTML page that works offline.

The page is ``viewer/page.html`` with the style sheet, the scripts and the trace put into it. What
it shows beside the source are the records' own numbers; ``viewer/requests.js`` draws them.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from itertools import count, pairwise, takewhile
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers.python import PythonLexer
from pygments.token import Token

from convlab.tracing.records import LaunchTrace, Request, Trace
from convlab.tracing.table import blocks_of_threads

SCRIPTS = ("requests.js", "footprints.js", "source.js", "viewer.js")
PLACE = re.compile(r"<!--\{(\w+)\}-->")
# What a page colours beside Python's own words.
GPU_NAMES = (
    "cuda", "threadIdx", "blockIdx", "blockDim", "gridDim", "shared", "local", "atomic",
    "syncthreads",
)  # fmt: skip


def page(trace: Trace) -> str:
    """The page: one text that needs no other file and no network."""
    parts = {
        "title": escape(f"{trace.title} - convlab trace"),
        "css": _asset("viewer.css"),
        "js": "\n".join(map(_asset, SCRIPTS)),
        "trace": _script_json(_document(trace)),
    }
    return PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def write_page(trace: Trace, path: str | Path) -> None:
    """Write the page to a file, to be opened with a browser."""
    Path(path).write_text(page(trace), encoding="utf-8")


def _asset(name: str) -> str:
    return files("convlab.tracing").joinpath("viewer", name).read_text(encoding="utf-8")


def _script_json(document: dict[str, Any]) -> str:
    """JSON that can stand inside a script element: nothing in it ends that or opens a comment."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)  # ASCII only
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _document(trace: Trace) -> dict[str, Any]:
    launches = []
    for launch, document in zip(trace.launches, trace.as_json()["launches"], strict=True):
        findings = [{"file": f.file, "line": f.line, "text": str(f)} for f in launch.findings]
        launches.append({
            **document, "source": [*_functions(launch)], "findings": findings,
            "size": blocks_of_threads(launch),
            "requests": _rows(launch), "flops": launch.flops, "bytes_moved": launch.bytes_moved,
            "bytes_per_flop": launch.bytes_per_flop,
        })  # fmt: skip
    return {"title": trace.title, "about": trace.about, "launches": launches}


def _functions(launch: LaunchTrace) -> Iterator[dict[str, Any]]:
    """The source by functions, which are neighbouring lines, without their indentation."""
    for file, lines in launch.source.items():
        for first in (line for line in lines if line - 1 not in lines):
            own = [lines[line] for line in takewhile(lines.__contains__, count(first))]
            text = textwrap.dedent("\n".join(own))
            yield {"file": file, "first": first, "lines": _coloured(text)}


def _coloured(text: str) -> list[str]:
    """The lines of a text as HTML, whose classes the page's style sheet colours."""
    lexer = PythonLexer(stripnl=False, ensurenl=False)
    lexer.add_filter("highlight", names=GPU_NAMES, tokentype=Token.Name.Builtin.Pseudo)
    return str(highlight(text, lexer, HtmlFormatter(nowrap=True))).removesuffix("\n").split("\n")


def _rows(launch: LaunchTrace) -> list[list[Any]]:
    """The requests, short: number of the access, warp, lanes as bits, where the first lane reads,
    how far it is from each lane to the next, sectors, wavefronts."""
    numbers = {one.key: number for number, one in enumerate(launch.accesses)}
    return [
        [
            numbers[one.key], one.warp, sum(1 << lane for lane in one.lanes), one.offsets[0],
            _steps(one), one.sectors, one.wavefronts,
        ]
        for one in launch.requests
    ]  # fmt: skip


def _steps(request: Request) -> int | list[int]:
    """From each lane's place to the next one's; a single number where all are the same."""
    places = request.offsets
    steps = [after - before for before, after in pairwise(places)]
    return steps if len(set(steps)) > 1 else (steps or [0])[0]
