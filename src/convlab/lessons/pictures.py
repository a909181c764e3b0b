"""Pictures for notebooks: boxes on squared paper, bars and lines.

Pictures are drawn on paper of their own, so that they read the same on light and dark pages.
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

from convlab.tracing import Trace
from convlab.tracing.views import page

PAPER, INK, FAINT, NOBODY = "#fbfaf6", "#24292f", "#8b929a", "#eceae3"
RIGHT, WRONG = "#7fbf8e", "#e0705c"
# Eight colours that colour-blind people can tell apart (Okabe and Ito), light enough for words.
COLOURS = (
    "#8ecae6", "#f6bd60", "#95d5a4", "#e5989b", "#b8b8e8", "#f2e394", "#b5c9a8", "#d9b99b",
)  # fmt: skip
DOTS_PER_INCH, SHARPNESS = 100, 2
# On a narrow page a picture shrinks, but no further than to where its smallest label is this many
# pixels high and can still be read; then it is scrolled.
LEAST_LABEL = 6.3
PAD = 0.09  # inches of paper around a panel


@dataclass(frozen=True)
class Picture:
    """A picture as PNG or SVG (``kind``), ``width`` x ``height`` points large.

    ``alt`` describes it for readers who cannot see it. ``caption`` explains it, below the picture.
    """

    data: bytes = field(repr=False)
    width: int
    height: int
    alt: str
    caption: str
    least: int = 0  # points: how narrow it may be shown
    kind: str = "png"  # of data:image/...

    def _ipython_display_(self) -> None:
        from IPython.display import Markdown, display

        data = base64.b64encode(self.data).decode()
        # As HTML, because a notebook's PNG has no alt text in JupyterLab.
        html = (
            f'<div style="overflow-x:auto"><img src="data:image/{self.kind};base64,{data}" '
            f'alt="{escape(self.alt)}" width="{self.width}" '
            f'style="max-width:100%;min-width:{self.least}px"></div>'
        )
        display({"text/html": html, "text/plain": self.alt}, raw=True)
        display(Markdown(f"*{self.caption}*"))


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
    from matplotlib.text import Text

    alt, caption = joined(alt[:1].upper() + alt[1:]), joined(caption)
    file = io.BytesIO()
    dpi = DOTS_PER_INCH * SHARPNESS
    figure.savefig(file, format="png", dpi=dpi, facecolor=PAPER, metadata={"Software": None})
    width, height = (round(inches * DOTS_PER_INCH) for inches in figure.get_size_inches())
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    smallest = min(sizes, default=LEAST_LABEL) * DOTS_PER_INCH / 72
    least = round(width * min(1, LEAST_LABEL / smallest))
    return Picture(file.getvalue(), width, height, alt, caption or alt, least)


class Grid:
    """A drawing on squared paper: a box is one unit wide and high, and rows go down.

    The paper is as large as the drawing. ``unit`` is a box's size in inches, or less if the drawing
    would be wider than ``widest`` inches.
    """

    def __init__(self, unit: float = 0.3, widest: float = 7.4) -> None:
        self.figure, (self.panel,) = sheet(1, 1)
        self.unit, self.widest = unit, widest
        # Left, top, right, bottom of each thing drawn: in boxes, and how many inches beyond that.
        self._extents: list[tuple[list[float], list[float]]] = []

    def cell(
        self, column: float, row: float, colour: str, text: str = "", *, wide: float = 1,
        high: float = 1, size: float = 7, hatch: str = "", edge: str = "", line: float = 0.8,
    ) -> None:  # fmt: skip
        """Draw a box with words in its middle."""
        from matplotlib.patches import Rectangle

        self._extents.append(([column, row, column + wide, row + high], [0.0] * 4))
        edge = edge or (FAINT if hatch else PAPER)
        box = Rectangle((column, row), wide, high, facecolor=colour, edgecolor=edge, hatch=hatch)
        box.set_linewidth(line)
        self.panel.add_artist(box)  # not as a patch: finished() sets the limits
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

    def note(self, column: float, row: float, text: str, size: float = 8, **more: Any) -> None:
        """Write words beside the boxes. ``more`` are matplotlib's options of text."""
        a_letter = 0.0088 if more.get("family") == "monospace" else 0.0076  # inches a point
        inches = 0.0 if "rotation" in more else len(text) * size * a_letter
        before = {"left": 0.0, "center": 0.5, "right": 1.0}[more.get("ha", "left")] * inches
        self._extents.append(([column, row] * 2, [-before, -0.1, inches - before, 0.1]))
        self._write(column, row, text, size, **more)

    def _write(self, column: float, row: float, text: str, size: float, **more: Any) -> None:
        self.panel.text(column, row, text, fontsize=size, **{"va": "center", "color": INK} | more)

    def finished(self, alt: str, caption: str = "") -> Picture:
        """Return the drawing as a picture, as :func:`finished` does."""
        boxes, inches = (np.array(one) for one in zip(*self._extents, strict=True))
        unit = self.unit
        for _ in range(3):  # words stay as large as they are while boxes shrink
            ends = boxes + inches / unit
            (left, top), (right, bottom) = ends[:, :2].min(axis=0), ends[:, 2:].max(axis=0)
            unit = min(unit, self.widest / (right - left))
        self.panel.set(xlim=(left - 0.2, right + 0.2), ylim=(bottom + 0.2, top - 0.2))
        self.panel.set_aspect("equal")
        size = np.array([right - left + 0.4, bottom - top + 0.4]) * unit
        sheet = size + 2 * PAD
        self.figure.set_size_inches(*sheet)
        self.figure.set_layout_engine("none")  # which would draw all of it a second time
        self.panel.set_position((*(PAD / sheet), *(size / sheet)))
        return finished(self.figure, alt, caption)


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
    explains; otherwise each bar has the next colour. A dotted line is drawn at ``line``. Each bar
    is ``high`` inches high.
    """
    from matplotlib.patches import Patch

    rows = max(map(len, panels.values()))
    legend = [Patch(color=colour, label=name) for name, colour in (colours or {}).items()]
    figure, axes = sheet(7.4, high * rows + 0.55 + 0.35 * (len(legend) > 1), len(panels))
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
        axis.set_title(title, fontsize=10, color=INK, loc="left")
        if len(legend) > 1:
            axis.legend(
                handles=legend, loc="upper left", bbox_to_anchor=(0, 0), ncols=3, fontsize=9,
                frameon=False, labelcolor=INK,
            )  # fmt: skip
        if line is not None:
            axis.axvline(line, color=INK, linewidth=1, linestyle=":")
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
