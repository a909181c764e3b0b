"""The ladder's results as a picture: a bar for each stage.

It is plain SVG text, so that the same results give the same bytes with every version of everything.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from convlab.bench.ladder_results import Results, Step
from convlab.bench.palette import CARD, COLOURS, INK, LINE, QUIET, with_dark_mode
from convlab.stages import family, short_name

WIDTH, MARGIN = 860, 28
TOP, ROW, BAR = 108, 54, 17  # where the rows begin, their pitch, a bar's height
LABEL = 205  # to the right of the longest bar
BAD = COLOURS[4]
# By a stage's family: what it reads, and its bar's colour.
FAMILIES = {
    "plain": ("the input itself", COLOURS[0]),
    "im2col": ("the im2col matrix", COLOURS[1]),
    "im2win": ("im2win's windows", COLOURS[2]),
}
LEGEND_AT = {2: (MARGIN, 190, 370), 3: (MARGIN, 190, 370, 550)}  # by how many families there are
TIMES = "\N{MULTIPLICATION SIGN}"
PALE = 0.3  # opacity of what a bar would be without layout transforms
FONT = "-apple-system, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace"


def picture(results: Results) -> str:
    """An SVG with a bar for each stage: its TFLOP/s, its speedup and its idea."""
    bottom = TOP + ROW * len(results.steps)
    caption = list(_caption(results, bottom + 24))
    height = bottom + 24 + 19 * len(caption) + 6
    title = f"From seven loops to im2win: one convolution in {len(results.steps)} stages"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" font-family="{FONT}" font-size="13">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape('; '.join(map(_in_words, results.steps)))}</desc>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="{CARD}" '
        f'stroke="{LINE}"/>',
        _text(MARGIN, 38, title, size=18, bold=True),
        _text(MARGIN, 61, f"{results.title}. Longer is faster."),
        *_legend(results.steps),
        *_bars(results.steps),
        *caption,
        "</svg>",
    ]
    return with_dark_mode("\n".join(lines) + "\n")


def _bars(steps: Sequence[Step]) -> Iterator[str]:
    longest = max((step.reach for step in steps if step.reach), default=1.0)
    scale = (WIDTH - 2 * MARGIN - LABEL) / longest
    before = None
    for row, step in enumerate(steps):
        y = TOP + row * ROW
        yield _heading(step, before, y + 12)
        yield from _bar(step, y + 18, scale)
        before = step


def _heading(step: Step, before: Step | None, y: float) -> str:
    """The stage's idea, above its bar; where it starts from, unless that is the row above."""
    name, rest = step.idea
    base = step.stage.builds_on
    if base and before is not None and before.stage.name not in base:
        rest += f" (starts again from {', '.join(map(short_name, base))})"
    return (
        f'<text x="{MARGIN}" y="{y}" fill="{INK}"><tspan fill="{QUIET}">{step.number}</tspan> '
        f'<tspan font-weight="600">{escape(name)}</tspan>'
        f'<tspan fill="{QUIET}" dx="8">{escape(rest)}</tspan></text>'
    )


def _bar(step: Step, y: float, scale: float) -> Iterator[str]:
    end = step.reach
    if step.tflops is None or end is None:
        yield _text(MARGIN, y + 13, "failed", fill=BAD, bold=True)
        return
    colour = FAMILIES[family(step.stage)][1]
    if end > step.tflops:
        yield _rect(MARGIN, y, scale * end, colour, opacity=PALE)
    yield _rect(MARGIN, y, scale * step.tflops, colour)
    ratio = "" if step.speedup is None else f"{_brief(step.speedup)}{TIMES}"
    slower = step.speedup is not None and step.speedup < 1
    x = MARGIN + scale * end + 9
    yield (
        f'<text x="{x:.1f}" y="{y + 13}" fill="{INK}">'
        f'<tspan font-weight="600">{_brief(step.tflops)}</tspan> TFLOP/s'
        f'<tspan dx="10" font-weight="600" fill="{BAD if slower else INK}">{ratio}</tspan></text>'
    )
    if end > step.tflops:
        alone = f"{_brief(end)} without layout transforms"
        yield _text(x, y + 29, alone, size=12, fill=QUIET)


def _legend(steps: Sequence[Step]) -> Iterator[str]:
    shown = {"plain", "im2win"} | {family(step.stage) for step in steps}
    entries = [
        (f"reads {name}", colour, 1.0) for mark, (name, colour) in FAMILIES.items() if mark in shown
    ]
    places = LEGEND_AT[len(entries)]
    entries.append(
        ("its main kernel alone, without layout transforms", FAMILIES["im2win"][1], PALE)
    )
    for x, (text, colour, opacity) in zip(places, entries, strict=True):
        yield _rect(x, 78, 12, colour, opacity, height=12)
        yield _text(x + 18, 89, text, size=12, fill=QUIET)


def _caption(results: Results, y: float) -> Iterator[str]:
    paragraphs = (
        f"{results.shapes[0].upper()}{results.shapes[1:]}. {TIMES} is the speedup over the "
        "first bar, red where a stage is slower. im2win copies the input into an order in which "
        "the pixels that a filter sees at once lie together; that copy and every other layout "
        "transform is part of the time. Each result was checked, element by element, against a "
        "float64 reference.",
        f"Measured on: {results.machine}.",
    )
    for text, columns, font in (
        *((paragraph, 116, None) for paragraph in paragraphs),
        (results.command or "", 104, MONO),
    ):
        for line in textwrap.wrap(text, columns):
            yield _text(MARGIN, y, line, size=12, fill=QUIET, font=font)
            y += 19


def _in_words(step: Step) -> str:
    """The bar for those who cannot see it."""
    if step.tflops is None:
        return f"{step.stage.name} failed"
    ratio = "" if step.speedup is None else f", {_brief(step.speedup)} times the first"
    return f"{step.stage.name} {_brief(step.tflops)} TFLOP/s{ratio}"


def _brief(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _rect(
    x: float, y: float, width: float, colour: str, opacity: float = 1.0, height: float = BAR
) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" rx="2" fill="{colour}" '
        f'fill-opacity="{opacity}"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 13,
    fill: str = INK,
    bold: bool = False,
    font: str | None = None,
) -> str:
    weight = ' font-weight="600"' if bold else ""
    family = f' font-family="{font}"' if font else ""
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{fill}"{weight}{family}>'
        f"{escape(text)}</text>"
    )
