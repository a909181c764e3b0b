"""A trace as one HTML page that works offline, and as a card for a notebook.

The page is ``viewer/page.html`` with the style sheet, the scripts and the trace put into it. What
it shows beside the source are the records' own numbers; ``viewer/requests.js`` draws them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from convlab.tracing.records import Access, LaunchTrace, Request, Trace
from convlab.tracing.table import blocks_of_threads, code_of, counted

SCRIPTS = ("requests.js", "footprints.js", "source.js", "viewer.js")
PLACE = re.compile(r"<!--\{(\w+)\}-->")
CARD_LINES = 5  # of a launch: those that ask memory for most


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
        launches.append({
            **document,
            "source": [[file, [*lines.items()]] for file, lines in launch.source.items()],
            "findings": [
                {"file": finding.file, "line": finding.line, "text": str(finding)}
                for finding in launch.findings
            ],
            "requests": _rows(launch),
            "totals": _totals(launch),
            "flops": launch.flops,
            "bytes_moved": launch.bytes_moved,
            "bytes_per_flop": launch.bytes_per_flop,
        })  # fmt: skip
    return {"title": trace.title, "about": trace.about, "launches": launches}


def _rows(launch: LaunchTrace) -> list[list[Any]]:
    """The requests, short: number of the access, warp, lanes as bits, where the first lane reads,
    how far it is from each lane to the next, sectors, wavefronts."""
    numbers = {
        (one.file, one.line, one.array, one.operation, one.width): number
        for number, one in enumerate(launch.accesses)
    }
    return [
        [
            numbers[one.file, one.line, one.array, one.operation, one.width], one.warp,
            sum(1 << lane for lane in one.lanes), one.offsets[0], _steps(one),
            one.sectors, one.wavefronts,
        ]
        for one in launch.requests
    ]  # fmt: skip


def _steps(request: Request) -> int | list[int]:
    """From each lane's place to the next one's; a single number where all are the same."""
    places = request.offsets
    steps = [after - before for before, after in pairwise(places)]
    return steps if len(set(steps)) > 1 else (steps or [0])[0]


def _totals(launch: LaunchTrace) -> dict[str, Any]:
    """Sums of requests and of what they cost, for each memory and each array."""

    def sums(space: str, unit: str) -> dict[str, int]:
        accesses = launch.of(space=space)
        return {
            "requests": launch.total("requests", accesses),
            "total": launch.total(unit, accesses),
            "fewest": launch.total(f"fewest_{unit}", accesses),
        }

    names = ("requests", "sectors", "fewest_sectors", "wavefronts", "fewest_wavefronts")
    arrays = {}
    for array in launch.arrays:
        accesses = launch.of(array.name)
        arrays[array.name] = {name: launch.total(name, accesses) for name in names}
        arrays[array.name]["asked"] = launch.total("bytes_asked", accesses)
    return {
        "global": sums("global", "sectors"),
        "shared": sums("shared", "wavefronts"),
        "arrays": arrays,
    }


# The card.

_SMALL = "font-size: 0.9em; opacity: 0.75"
_CELL = "padding: 2px 14px 2px 0; text-align: left; white-space: nowrap"
_CODE = "max-width: 26em; overflow: hidden; text-overflow: ellipsis"
_RED = "color: #c5392f; font-weight: 600"


def card(trace: Trace) -> str:
    """A summary for a notebook: what each launch costs and which lines cost most."""
    about = " · ".join(
        escape(trace.about[key]) for key in ("idea", "problem") if key in trace.about
    )
    parts = [
        '<div class="convlab-trace" style="line-height: 1.5">',
        f"<b>{escape(trace.title)}</b> <span style='{_SMALL}'>{about}</span>",
        *(part for launch in trace.launches for part in _card_of(launch)),
        f"<div style='{_SMALL}'>Sectors and wavefronts per request, in brackets the fewest "
        "that would do. <code>print(trace)</code> has every line, "
        "<code>write_page(trace, path)</code> from <code>convlab.tracing</code> makes "
        "a page to step through.</div>",
        "</div>",
    ]
    return "\n".join(parts)


def _card_of(launch: LaunchTrace) -> Iterator[str]:
    facts = [
        blocks_of_threads(launch),
        *(
            f"{counted(requests, f'{space} request')}, {total / requests:.2f} {unit} each "
            f"({fewest / requests:.2f})"
            for space, unit, requests, total, fewest in _costs(launch)
        ),
    ]
    if launch.bytes_per_flop is not None:
        facts.append(f"{launch.bytes_per_flop:.3g} bytes an operation")
    yield f"<div style='margin-top: 6px'><code>{escape(launch.kernel)}</code>: "
    yield f"{escape('; '.join(facts))}</div>"
    yield "<table style='border-collapse: collapse; font-size: inherit'>"
    # By cost, then in the order of the source again.
    costly = sorted(launch.accesses, key=lambda one: -(one.sectors + one.wavefronts))[:CARD_LINES]
    for access in sorted(costly, key=launch.accesses.index):
        yield _card_row(launch, access)
    yield "</table>"
    for finding in launch.findings:
        yield f"<div style='{_RED}'>{escape(str(finding))}</div>"


def _costs(launch: LaunchTrace) -> Iterator[tuple[str, str, int, int, int]]:
    for space, unit in (("global", "sectors"), ("shared", "wavefronts")):
        accesses = launch.of(space=space)
        requests, total, fewest = (
            launch.total(name, accesses) for name in ("requests", unit, f"fewest_{unit}")
        )
        if requests:
            yield space, unit, requests, total, fewest


def _card_row(launch: LaunchTrace, access: Access) -> str:
    code = code_of(launch, access.file, access.line)
    far = access.space == "global"
    unit = "sectors" if far else "wavefronts"
    total, fewest = (
        (access.sectors, access.fewest_sectors)
        if far
        else (access.wavefronts, access.fewest_wavefronts)
    )
    cost = f"{total / access.requests:.3g} {unit} ({fewest / access.requests:.3g})"
    cells = (
        (f"{access.line}", _SMALL),
        (f"<code>{escape(code)}</code>", _CODE),
        (f"{escape(access.array)} {access.operation}", ""),
        (counted(access.requests, "request"), ""),
        (cost, _RED if total >= 2 * fewest else ""),
    )
    row = "".join(f"<td style='{_CELL}; {style}'>{text}</td>" for text, style in cells)
    return f"<tr style='background: none'>{row}</tr>"
