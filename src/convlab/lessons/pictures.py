"""What every picture of the lessons shares: paper, ink, colours, and how a notebook shows it.

Pictures are drawn on paper of their own, so that they read the same on light and dark pages.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

PAPER, INK, FAINT, NOBODY = "#fbfaf6", "#24292f", "#8b929a", "#eceae3"
RIGHT, WRONG = "#7fbf8e", "#e0705c"
# Eight colours that colour-blind people tell apart (Okabe and Ito), lightened to be written on.
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
    """A picture as PNG, ``width`` x ``height`` points large. ``alt`` says what it shows to who
    cannot see it, ``caption`` what it means; a notebook shows the caption below."""

    png: bytes = field(repr=False)
    width: int
    height: int
    alt: str
    caption: str
    least: int = 0  # points: how narrow it may be shown

    def _ipython_display_(self) -> None:
        from IPython.display import Markdown, display

        data = base64.b64encode(self.png).decode()
        # As HTML, because a notebook's PNG has no alt text in JupyterLab.
        html = (
            f'<div style="overflow-x:auto"><img src="data:image/png;base64,{data}" '
            f'alt="{escape(self.alt)}" width="{self.width}" '
            f'style="max-width:100%;min-width:{self.least}px"></div>'
        )
        display({"text/html": html, "text/plain": self.alt}, raw=True)
        display(Markdown(f"*{self.caption}*"))


def sheet(width: float, height: float, columns: int = 1, **more: Any) -> tuple[Any, list[Any]]:
    """An empty sheet of paper, in inches, and its panels, side by side, without axes."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=PAD, h_pad=PAD)
    figure = Figure(figsize=(width, height), facecolor=PAPER, layout=layout)
    panels = figure.subplots(1, columns, squeeze=False, **more)[0]
    for panel in panels:
        panel.set_axis_off()
    return figure, list(panels)


def finished(figure: Any, alt: str, caption: str = "") -> Picture:
    """The sheet as a picture; ``alt`` begins with a capital. Without a caption, ``alt`` is one."""
    from matplotlib.text import Text

    alt = alt[:1].upper() + alt[1:]
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

    The paper becomes as large as what is drawn; ``unit`` is a box's size in inches, less where the
    drawing would be wider than ``widest`` inches.
    """

    def __init__(self, unit: float = 0.3, widest: float = 7.4) -> None:
        self.figure, (self.panel,) = sheet(1, 1)
        self.unit, self.widest = unit, widest
        self.boxes: list[tuple[float, float, float, float]] = []  # left, top, right, bottom
        self.notes: list[tuple[float, float, float, str]] = []  # column, row, inches, alignment

    def cell(
        self, column: float, row: float, colour: str, text: str = "", *, wide: float = 1,
        high: float = 1, size: float = 7, hatch: str = "", edge: str = "", line: float = 0.8,
    ) -> None:  # fmt: skip
        """A box, with words in its middle."""
        from matplotlib.patches import Rectangle

        self.boxes.append((column, row, column + wide, row + high))
        edge = edge or (FAINT if hatch else PAPER)
        box = Rectangle((column, row), wide, high, facecolor=colour, edgecolor=edge, hatch=hatch)
        box.set_linewidth(line)
        self.panel.add_patch(box)
        if text:
            self._write(column + wide / 2, row + high / 2, text, size, ha="center")

    def cells(
        self, left: float, top: float, values: np.ndarray,
        colour: Sequence[str] | Callable[[Any], str], text: Callable[[Any], str] = lambda value: "",
        **style: Any,
    ) -> None:  # fmt: skip
        """A box for each element of a matrix, with the colour and words of its value."""
        for (row, column), value in np.ndenumerate(values):
            painted = colour(value) if callable(colour) else colour[int(value)]
            self.cell(left + column, top + row, painted, text(value), **style)

    def frame(self, column: float, row: float, wide: float = 1, high: float = 1) -> None:
        """A thick frame around boxes, over them if drawn after them."""
        self.cell(column, row, "none", wide=wide, high=high, edge=INK, line=2)

    def note(self, column: float, row: float, text: str, size: float = 8, **more: Any) -> None:
        """Words beside the boxes."""
        a_letter = 0.0088 if more.get("family") == "monospace" else 0.0076  # inches a point
        inches = 0.0 if "rotation" in more else len(text) * size * a_letter
        self.notes.append((column, row, inches, more.get("ha", "left")))
        self._write(column, row, text, size, **more)

    def _write(self, column: float, row: float, text: str, size: float, **more: Any) -> None:
        self.panel.text(column, row, text, fontsize=size, **{"va": "center", "color": INK} | more)

    def finished(self, alt: str, caption: str = "") -> Picture:
        """The drawing as a picture, as :func:`finished`."""
        lefts, tops, rights, bottoms = zip(*self.boxes, strict=True)
        unit = self.unit
        for _ in range(3):  # words stay as large as they are while boxes shrink
            left, top, right, bottom = min(lefts), min(tops), max(rights), max(bottoms)
            for column, row, inches, align in self.notes:
                part = {"left": 0.0, "center": 0.5, "right": 1.0}[align]
                left = min(left, column - part * inches / unit)
                right = max(right, column + (1 - part) * inches / unit)
                top, bottom = min(top, row - 0.1 / unit), max(bottom, row + 0.1 / unit)
            unit = min(unit, unit * self.widest / ((right - left) * unit))
        self.panel.set(xlim=(left - 0.2, right + 0.2), ylim=(bottom + 0.2, top - 0.2))
        self.panel.set_aspect("equal")
        width, height = (right - left + 0.4) * unit, (bottom - top + 0.4) * unit
        self.figure.set_size_inches(width + 2 * PAD, height + 2 * PAD)
        return finished(self.figure, alt, caption)


def spans(numbers: Iterable[int]) -> str:
    """``0-3, 8``: numbers in words as short as they go."""
    runs = groupby(enumerate(sorted(set(numbers))), lambda one: one[1] - one[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in ends)
