"""The tables and the picture of docs/comparisons.md, from the results of other benchmarks.

``python -m convlab.bench.comparisons`` reads what ``convlab.bench.memory``, ``.im2col``,
``.transforms`` and ``.channel_sweeps`` wrote to docs/results and rewrites what is between the
page's markers; where there is no such file yet it says so and shows no number. ``--check`` rewrites
nothing and exits 1 where the page differs from what the results give.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from convlab.bench import channel_sweeps, im2col, memory, transforms
from convlab.bench.generated import RESULTS, document_of, filled, holding, regenerate, section
from convlab.workloads import SWEEPS

PAGE, PICTURE = "docs/comparisons.md", "docs/images/channel_sweeps.svg"
# By marker: the file of results, the module that measures and what shows it.
SECTIONS: dict[str, tuple[str, str, Callable[[dict[str, Any]], str]]] = {
    "memory": ("memory.json", "memory", memory.show),
    "im2col": ("im2col_h200.json", "im2col", im2col.show),
    "transforms": ("transforms_h200.json", "transforms", transforms.show),
    "channel_sweeps": ("channel_sweeps_h200.json", "channel_sweeps", channel_sweeps.show),
}


def generated(root: Path) -> dict[Path, str]:
    """The page, and the picture where its results are there, as they have to be.

    Raises ``ValueError`` saying what is missing or is no result.
    """
    page = root / PAGE
    files = {page: filled(page, {name: holding(_section(root, name)) for name in SECTIONS})}
    sweeps = _read(root, "channel_sweeps")
    return files if sweeps is None else files | {root / PICTURE: picture(sweeps)}


def _section(root: Path, name: str) -> str:
    file, module, show = SECTIONS[name]
    command = f"python -m convlab.bench.{module} --json {RESULTS}/{file}"
    drawn = f"![{ABOUT}](images/{Path(PICTURE).name})\n\n" if name == "channel_sweeps" else ""
    return section(root, file, command, lambda document: f"{drawn}{show(document)}")


def _read(root: Path, name: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = document_of(root / RESULTS / SECTIONS[name][0])
    return found


# The picture: a panel a sweep, speedup over s01 against what is swept, both by powers of two.

ABOUT = "Speedup of the channel-parallel stages over s01 against image size, channels and filter"
WIDTH, HEIGHT, LEFT, TOP, GAP = 400, 240, 52, 34, 28
COLOURS = {"s02_cin_naive": "#9a6700", "s02_cin": "#0969da", "s02_cout": "#1a7f37"}
INK, QUIET, LINE, CARD = "#1f2328", "#59636e", "#d1d9e0", "#ffffff"
FONT = "-apple-system, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"


def picture(document: dict[str, Any]) -> str:
    """The sweeps as plain SVG text, so that the same results give the same bytes."""
    panels = [
        _panel(document, sweep, (number % 2) * WIDTH, 40 + number // 2 * HEIGHT)
        for number, sweep in enumerate(SWEEPS)
    ]
    legend = [
        _text(20 + 150 * number, 26, name, colour, bold=True)
        for number, (name, colour) in enumerate(COLOURS.items())
    ]
    width, height = 2 * WIDTH, 50 + 2 * HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="{FONT}" font-size="12">',
            f"<title>{ABOUT}</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{CARD}" stroke="{LINE}"/>',
            *legend,
            _text(20 + 150 * len(COLOURS), 26, "times as fast as s01; below 1 it loses", QUIET),
            *(line for panel in panels for line in panel),
            "</svg>\n",
        ]
    )


def _panel(document: dict[str, Any], sweep: str, x0: int, y0: int) -> list[str]:
    points = [point for point in document["points"] if point["sweep"] == sweep]
    lines = {
        name: [
            (math.log2(point["value"]), math.log2(ratio))
            for point in points
            if (ratio := channel_sweeps.speedup(point, name))
        ]
        for name in COLOURS
    }
    known = [y for line in lines.values() for _, y in line]
    low, high = math.floor(min([*known, -1])), math.ceil(max([*known, 1]))
    first, last = (math.log2(SWEEPS[sweep][end]) for end in (0, -1))

    def across(x: float) -> float:
        return x0 + LEFT + (x - first) / (last - first) * (WIDTH - LEFT - GAP)

    def down(y: float) -> float:
        return y0 + TOP + (high - y) / (high - low) * (HEIGHT - TOP - GAP)

    drawn = [_text(x0 + LEFT, y0 + 20, sweep, INK, bold=True)]
    for power in range(low, high + 1):
        stroke = INK if power == 0 else LINE
        y = down(power)
        drawn.append(
            f'<line x1="{across(first):.1f}" x2="{across(last):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{stroke}"/>'
        )
        drawn.append(_text(x0 + 14, y + 4, f"{2.0**power:g}", QUIET))
    drawn += [
        _text(across(math.log2(value)) - 6, y0 + HEIGHT - 8, str(value), QUIET)
        for value in SWEEPS[sweep]
    ]
    for name, line in lines.items():
        dots = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line)
        drawn.append(
            f'<polyline points="{dots}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>'
        )
    return drawn


def _text(x: float, y: float, text: str, colour: str, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}"{weight}>{escape(text)}</text>'


def main(arguments: Sequence[str] | None = None) -> int:
    """Regenerate, or with ``--check`` only compare; returns the exit code."""
    about = f"Make the tables and the picture of {PAGE} from {RESULTS}."
    return regenerate("convlab.bench.comparisons", about, generated, arguments)


if __name__ == "__main__":
    sys.exit(main())
