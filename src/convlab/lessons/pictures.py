"""What every picture of the lessons shares: paper, ink, colours, and how a notebook shows it.

Pictures are drawn on paper of their own, so that they read the same on light and dark pages.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

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


def finished(figure: Any, alt: str, caption: str) -> Picture:
    """The sheet as a picture."""
    file = io.BytesIO()
    figure.savefig(
        file, format="png", dpi=DOTS_PER_INCH * SHARPNESS, facecolor=PAPER,
        metadata={"Software": None},
    )  # fmt: skip
    width, height = (round(inches * DOTS_PER_INCH) for inches in figure.get_size_inches())
    from matplotlib.text import Text

    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    smallest = min(sizes, default=LEAST_LABEL) * DOTS_PER_INCH / 72
    least = round(width * min(1, LEAST_LABEL / smallest))
    return Picture(file.getvalue(), width, height, alt, caption, least)


def bars_of(panel: Any, title: str) -> None:
    """Make a panel one of bars, after they are drawn: names on the left and a title, no frame and
    no numbers below, since each bar has its own."""
    panel.set_axis_on()
    panel.set_facecolor("none")
    panel.set_xticks([])
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)
    panel.set_title(title, fontsize=10, color=INK, loc="left")


def cell(
    panel: Any, column: float, row: float, colour: str, text: str = "", *, wide: float = 1,
    high: float = 1, size: float = 7, hatch: str = "", edge: str = PAPER,
) -> None:  # fmt: skip
    """A box of a grid; rows go down."""
    from matplotlib.patches import Rectangle

    panel.add_patch(
        Rectangle(
            (column, row), wide, high, facecolor=colour, edgecolor=FAINT if hatch else edge,
            hatch=hatch, linewidth=0.8,
        )
    )  # fmt: skip
    if text:
        panel.text(
            column + wide / 2, row + high / 2, text, ha="center", va="center", fontsize=size,
            color=INK,
        )  # fmt: skip


def frame(panel: Any, column: float, row: float, wide: float, high: float) -> None:
    """A thick frame around boxes of a grid."""
    from matplotlib.patches import Rectangle

    panel.add_patch(
        Rectangle((column, row), wide, high, fill=False, edgecolor=INK, linewidth=2, zorder=3)
    )


def note(panel: Any, column: float, row: float, text: str, size: float = 8, **more: Any) -> None:
    """Words beside a grid."""
    more = {"ha": "left", "va": "center", "color": INK} | more
    panel.text(column, row, text, fontsize=size, **more)


def limits(panel: Any, columns: tuple[float, float], rows: tuple[float, float]) -> None:
    """What the panel shows; boxes are squares, and rows go down."""
    panel.set_xlim(*columns)
    panel.set_ylim(rows[1], rows[0])
    panel.set_aspect("equal")


def spans(numbers: Sequence[int]) -> str:
    """``0-3, 8``: numbers in words as short as they go."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)
