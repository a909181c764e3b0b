"""Pictures for notebooks: boxes on squared paper, bars and lines.

Pictures are SVG on paper of their own, which is dark where the page or the reader's system is.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

from convlab.lessons.progress import history
from convlab.measuring.plots import FONTS, readable, with_dark_mode

PAPER, INK, FAINT, NOBODY = "#fbfaf6", "#24292f", "#8b929a", "#eceae3"
RIGHT, WRONG = "#7fbf8e", "#e0705c"
# Eight colours that colour-blind people can tell apart (Okabe and Ito), light enough for words.
COLOURS = (
    "#8ecae6", "#f6bd60", "#95d5a4", "#e5989b", "#b8b8e8", "#f2e394", "#b5c9a8", "#d9b99b",
)  # fmt: skip
# The colours that they have on dark pages. INK, which is light there, is read on all of them.
DARK = {
    PAPER: "#1c2129", INK: "#e4e8ef", FAINT: "#7d8794", NOBODY: "#323946", RIGHT: "#2a7346",
    WRONG: "#a3392c",
} | dict(zip(COLOURS, (
    "#1f6a8f", "#8a5500", "#27703f", "#a04450", "#5858a8", "#736300", "#536b40", "#785534",
), strict=True))  # fmt: skip
DOTS_PER_INCH, POINTS_PER_INCH = 100, 72
# On a narrow page a picture shrinks, but no further than to where its smallest label is this many
# pixels high and can still be read; then it is scrolled.
LEAST_LABEL = 6.3
PAD = 0.09  # inches of paper around a panel


# Sentences of legends that were shown, and the cells that showed them: a notebook shows each once.
_explained: dict[str, str] = {}


@dataclass(frozen=True)
class Picture:
    """A picture as SVG, ``width`` x ``height`` pixels large.

    ``alt`` describes it for readers who cannot see it. ``caption`` says below it what it shows, and
    the sentences of ``legend`` how to read what is in it, here and in others of its kind.
    """

    data: bytes = field(repr=False)
    width: int
    height: int
    alt: str
    caption: str
    least: int = 0  # pixels: how narrow it may be shown
    legend: tuple[str, ...] = ()

    @property
    def html(self) -> str:
        """The picture as HTML, which has an alternative text in JupyterLab, too."""
        data = base64.b64encode(self.data).decode()
        return (
            f'<div style="overflow-x:auto"><img src="data:image/svg+xml;base64,{data}" '
            f'alt="{escape(self.alt)}" width="{self.width}" '
            f'style="max-width:100%;min-width:{self.least}px"></div>'
        )

    def _ipython_display_(self) -> None:
        from IPython.display import Markdown, display

        display({"text/html": self.html, "text/plain": self.alt}, raw=True)
        display(Markdown(f"*{f'{self.caption} {explanation(self)}'.strip()}*"))


def explanation(*pictures: Picture) -> str:
    """Return those sentences of the pictures' legends that no earlier cell of this notebook has
    shown."""
    cell = (history() or [""])[-1]
    sentences = dict.fromkeys(sentence for picture in pictures for sentence in picture.legend)
    return " ".join(one for one in sentences if _explained.setdefault(one, cell) == cell)


def joined(text: str) -> str:
    """Join the lines of a text with single spaces. Other spaces stay, because code has them."""
    return re.sub(r"\n *", " ", text)


def sheet(width: float, height: float, columns: int = 1) -> tuple[Any, list[Any]]:
    """Return an empty sheet of paper, in inches, and its panels, side by side, without axes."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=PAD, h_pad=PAD)
    figure = Figure(figsize=(width, height), facecolor=PAPER, layout=layout)
    panels = list(figure.subplots(1, columns, squeeze=False)[0])
    for panel in panels:
        panel.set_axis_off()
    return figure, panels


def finished(figure: Any, alt: str, caption: str = "") -> Picture:
    """Return the sheet as a picture. ``alt`` begins with a capital; it is also the caption if there
    is no other."""
    import matplotlib
    from matplotlib.text import Text

    file = io.StringIO()
    # Without a salt and a date, the same sheet is the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "lesson"}):
        figure.savefig(file, format="svg", facecolor=PAPER, metadata={"Date": None})
    size = [inches * DOTS_PER_INCH for inches in figure.get_size_inches()]
    labels = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    return _picture(readable(file.getvalue(), DARK), size, labels, alt, caption)


def _picture(
    svg: str, size: Sequence[float], labels: Iterable[float], alt: str, caption: str,
    legend: Iterable[str] = (),
) -> Picture:  # fmt: skip
    """Return a picture of ``size`` pixels; ``labels`` are the sizes of its words in points."""
    alt, caption = joined(alt[:1].upper() + alt[1:]), joined(caption)
    width, height = map(round, size)
    smallest = min(labels, default=LEAST_LABEL) * DOTS_PER_INCH / POINTS_PER_INCH
    least = round(width * min(1, LEAST_LABEL / smallest))
    sentences = tuple(map(joined, legend))
    return Picture(svg.encode(), width, height, alt, caption or alt, least, sentences)


@dataclass(frozen=True)
class _Box:
    """A box of a drawing, its place and size in boxes; ``line`` is its edge's width in points."""

    column: float
    row: float
    wide: float
    high: float
    style: tuple[str, str, float]  # colour, edge, line
    hatched: bool

    def path(self, unit: float) -> str:
        """Return the box as commands of an SVG path; ``unit`` is a box's size in pixels."""
        x, y, wide, high = (
            _brief_number(side * unit) for side in (self.column, self.row, self.wide, self.high)
        )
        return f"M{x} {y}h{wide}v{high}h-{wide}z"


@dataclass(frozen=True)
class _Note:
    """Words of a drawing at a place in boxes; ``size`` is in points."""

    column: float
    row: float
    text: str
    size: float
    style: str  # attributes of SVG


class Grid:
    """A drawing on squared paper: a box is one unit wide and high, and rows go down.

    The paper is as large as the drawing. ``unit`` is a box's size in inches, or less if the drawing
    would be wider than ``widest`` inches.
    """

    def __init__(self, unit: float = 0.3, widest: float = 7.4) -> None:
        self.unit, self.widest = unit, widest
        self._boxes: list[_Box] = []
        self._notes: list[_Note] = []
        # Left, top, right, bottom of each thing drawn: in boxes, and how many inches beyond that.
        self._extents: list[tuple[list[float], list[float]]] = []

    def cell(
        self, column: float, row: float, colour: str, text: str = "", *, wide: float = 1,
        high: float = 1, size: float = 7, hatched: bool = False, edge: str = "", line: float = 0.8,
    ) -> None:  # fmt: skip
        """Draw a box with words in its middle."""
        self._extents.append(([column, row, column + wide, row + high], [0.0] * 4))
        style = colour, edge or (FAINT if hatched else PAPER), line
        self._boxes.append(_Box(column, row, wide, high, style, hatched))
        if text:
            self._write(column + wide / 2, row + high / 2, text, size, ha="center")

    def cells(
        self, left: float, top: float, values: np.ndarray,
        colour: Sequence[str] | Callable[[Any], str], text: Callable[[Any], str] = lambda value: "",
        **style: Any,
    ) -> None:  # fmt: skip
        """Draw a box for each element of a matrix, with the colour and words of its value."""
        for (row, column), value in np.ndenumerate(values):
            painted = colour(value) if callable(colour) else colour[int(value)]
            self.cell(left + column, top + row, painted, text(value), **style)

    def frame(self, column: float, row: float, wide: float = 1, high: float = 1) -> None:
        """Draw a thick frame around boxes; draw it after the boxes."""
        self.cell(column, row, "none", wide=wide, high=high, edge=INK, line=2)

    def note(
        self, column: float, row: float, text: str, size: float = 8, *, ha: str = "left",
        family: str = "", weight: str = "", colour: str = INK, down: bool = False,
    ) -> None:  # fmt: skip
        """Write words beside the boxes: from (``column``, ``row``) to the right, or ``down``, or
        as ``ha`` (``left``, ``center``, ``right``) says."""
        a_letter = 0.0088 if family == "monospace" else 0.0076  # inches a point
        inches = len(text) * size * a_letter
        before = {"left": 0.0, "center": 0.5, "right": 1.0}[ha] * inches
        beyond = [-0.1, 0.0, 0.1, inches] if down else [-before, -0.1, inches - before, 0.1]
        self._extents.append(([column, row] * 2, beyond))
        self._write(
            column, row, text, size, ha=ha, family=family, weight=weight, colour=colour, down=down
        )

    def _write(
        self, column: float, row: float, text: str, size: float, *, ha: str, family: str = "",
        weight: str = "", colour: str = INK, down: bool = False,
    ) -> None:  # fmt: skip
        anchor = {"left": "start", "center": "middle", "right": "end"}[ha]
        style = f'fill="{colour}" text-anchor="{anchor}"'
        style += f' font-family="{family}"' if family else ""
        style += f' font-weight="{weight}"' if weight else ""
        style += ' writing-mode="vertical-rl"' if down else ""
        self._notes.append(_Note(column, row, text, size, style))

    def finished(self, alt: str, caption: str = "", *legend: str) -> Picture:
        """Return the drawing as a picture, as :func:`finished` does. Each sentence of ``legend``
        explains one thing that is in the drawing."""
        boxes, inches = (np.array(one) for one in zip(*self._extents, strict=True))
        unit = self.unit
        for _ in range(3):  # words stay as large as they are while boxes shrink
            ends = boxes + inches / unit
            (left, top), (right, bottom) = ends[:, :2].min(axis=0), ends[:, 2:].max(axis=0)
            unit = min(unit, self.widest / (right - left))
        margin = 0.2 + PAD / unit
        unit *= DOTS_PER_INCH
        size = [float(side + 2 * margin) * unit for side in (right - left, bottom - top)]
        svg = with_dark_mode(self._svg(float(left - margin), float(top - margin), unit, size), DARK)
        labels = [note.size for note in self._notes]
        return _picture(svg, size, labels, alt, caption, legend)

    def _svg(self, left: float, top: float, unit: float, size: Sequence[float]) -> str:
        """Return the drawing as SVG: boxes in the order in which they were drawn, words on top."""
        x, y, width, height = map(_brief_number, (left * unit, top * unit, *size))
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="{x} {y} {width} {height}" font-family="{FONTS.replace(chr(39), "")}">',
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{PAPER}"/>',
        ]
        if any(box.hatched for box in self._boxes):
            parts.append(HATCHING)
        for (style, hatched), alike in groupby(self._boxes, lambda box: (box.style, box.hatched)):
            path = "".join(box.path(unit) for box in alike)
            colour, edge, line = style
            pixels = _brief_number(line * DOTS_PER_INCH / POINTS_PER_INCH)
            parts.append(
                f'<path fill="{colour}" stroke="{edge}" stroke-width="{pixels}" d="{path}"/>'
            )
            if hatched:
                parts.append(f'<path fill="url(#hatching)" d="{path}"/>')
        for (points, style), notes in groupby(self._notes, lambda note: (note.size, note.style)):
            pixels = _brief_number(points * DOTS_PER_INCH / POINTS_PER_INCH)
            texts = "".join(
                f'<text x="{_brief_number(note.column * unit)}" '
                f'y="{_brief_number(note.row * unit)}">{escape(note.text)}</text>'
                for note in notes
            )
            parts.append(
                f'<g {style} font-size="{pixels}" dominant-baseline="central" '
                f'xml:space="preserve">{texts}</g>'
            )
        return "\n".join([*parts, "</svg>\n"])


HATCHING = (
    '<pattern id="hatching" width="6" height="6" patternUnits="userSpaceOnUse">'
    f'<path d="M-1 1L1 -1M0 6L6 0M5 7L7 5" stroke="{FAINT}"/></pattern>'
)


def _brief_number(value: float) -> str:
    """Return a number of an SVG with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


# The bars of a panel: numbers by name, or labels with the parts that are stacked.
Bars = Mapping[str, float] | Sequence[tuple[str, Mapping[str, float]]]


def _brief(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"


def bars(
    panels: Mapping[str, Bars], caption: str, colours: Mapping[str, str] | None = None, *,
    unit: str = "", label: Callable[[float], str] = _brief, line: float | None = None,
    high: float = 0.3, size: float = 9.5,
) -> Picture:  # fmt: skip
    """Draw horizontal bars with their totals, in panels side by side, by their titles.

    The first panel has the bars' labels. ``colours`` holds a colour for each part, which a legend
    explains; otherwise each bar has the next colour. A dotted line is drawn at ``line``, with the
    number above it. Each bar is ``high`` inches high.
    """
    from matplotlib.patches import Patch

    rows = max(map(len, panels.values()))
    legend = [Patch(color=colour, label=name) for name, colour in (colours or {}).items()]
    of_legend = 0.35 if len(legend) > 1 else 0.0
    figure, axes = sheet(7.4, high * rows + 0.55 + of_legend, len(panels))
    told, words = [], {"fontsize": size, "color": INK}
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        if isinstance(panel, Mapping):
            panel = [(name, {name: value}) for name, value in panel.items()]
        values = []
        for row, (name, parts) in enumerate(panel):
            total = 0.0
            for part, value in parts.items():
                colour = colours[part] if colours else COLOURS[row % len(COLOURS)]
                axis.barh(row, value, left=total, height=0.75, color=colour)
                total += value
            axis.annotate(
                label(total) if parts else "", (total, row), xytext=(5, 0), va="center",
                textcoords="offset points", **words, bbox={"fc": PAPER, "ec": "none", "pad": 0.3},
            )  # fmt: skip
            if len(parts) == 1:
                values.append(f"{name} {label(total)}{unit}")
            elif parts:
                said = (f"{part} {label(value)}{unit}" for part, value in parts.items())
                values.append(f"{name}: {', '.join(said)}")
        most = max(sum(parts.values()) for _, parts in panel) or 1
        axis.set(xlim=(0, most * 1.25), ylim=(rows - 0.4, -0.6), xticks=[], facecolor="none")
        axis.set_axis_on()
        names = [name for name, _ in panel] if axis is axes[0] else []
        axis.set_yticks(range(len(names)), names, **words)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        above = 6 if line is None else 6 + 1.5 * size  # points, with room for the line's number
        axis.set_title(title, fontsize=10, color=INK, loc="left", pad=above)
        if len(legend) > 1:
            axis.legend(
                handles=legend, loc="upper left", bbox_to_anchor=(0, 0), ncols=3, fontsize=9,
                frameon=False, labelcolor=INK,
            )  # fmt: skip
        if line is not None:
            axis.axvline(line, color=INK, linewidth=1, linestyle=":")
            axis.annotate(
                label(line), (line, 1), xycoords=("data", "axes fraction"), ha="center",
                va="bottom", **words,
            )  # fmt: skip
        told.append(f"{title}: {'; '.join(values)}")
    return finished(figure, f"Bars, {'. '.join(told)}", caption)


def lines(
    x: Sequence[float], lines: Mapping[str, Sequence[float]], title: str, caption: str,
    label: str = "{:.2f}", **axes: Any,
) -> Picture:  # fmt: skip
    """Draw lines with markers and a legend. ``axes`` are options of matplotlib's axes."""
    figure, (panel,) = sheet(7, 3)
    said = []
    for (name, values), marker, colour in zip(lines.items(), "osD^", COLOURS, strict=False):
        panel.plot(range(len(x)), values, marker=marker, markeredgecolor=INK, markeredgewidth=0.6,
                   label=name, color=colour)  # fmt: skip
        points = (f"{label.format(y)} at {at}" for at, y in zip(x, values, strict=True))
        said.append(f"{name} {', '.join(points)}")
    panel.set_axis_on()
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=9, colors=INK)
    panel.grid(axis="y", color=FAINT, alpha=0.3)
    panel.set_title(title, fontsize=10, color=INK, loc="left")
    panel.set_xticks(range(len(x)), map(str, x))
    panel.set(facecolor="none", **axes)
    panel.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
    return finished(figure, f"Lines, {title}: {'; '.join(said)}", caption)


def spans(numbers: Iterable[int]) -> str:
    """Return numbers in short, as ``0-3, 8``."""
    runs = groupby(enumerate(sorted(set(numbers))), lambda one: one[1] - one[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in ends)


def only_or_count(numbers: Sequence[int]) -> str:
    """Return the number if there is one, ``x2`` if there are two, and nothing if there is none."""
    return f"x{len(numbers)}" if len(numbers) > 1 else "".join(map(str, numbers))
