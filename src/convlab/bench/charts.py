"""Lines with markers over named places, as plain SVG text: the same numbers give the same bytes.

On dark pages the card is dark. Each line has a colour and a marker of its own, so that either tells
it apart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from xml.sax.saxutils import escape

from convlab.bench.palette import CARD, COLOURS, INK, LINE, QUIET, with_dark_mode

Values = Sequence[float | None]

WIDTH, PLOT_HEIGHT, MARGIN = 860, 300, 28
LEFT, TOP = 74, 78  # where the plot begins
LEGEND_ROW, LEGEND_COLUMNS = 22, 3
ASIDE = 14  # from one mark of a place to the next
UNSETTLED = "hollow: the runs' spread stayed above 2 %"
FONT = "-apple-system, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"


@dataclass(frozen=True)
class Chart:
    """What is drawn: a line for each of ``series`` over ``places``; None leaves a gap. ``log``
    draws powers of ten, for numbers above zero. Where lines are not ``joined``, the marks of a
    place stand side by side, so that none hides another of the same height. ``unsettled`` has, by
    series, the places whose numbers were not steady: their marks are hollow. ``over_one`` says that
    they are ratios, and draws the line at 1 for the eye."""

    title: str
    places: Sequence[str]
    across: str
    upwards: str
    series: Mapping[str, Values]
    log: bool = False
    joined: bool = True
    over_one: bool = False
    unsettled: Mapping[str, Collection[int]] = field(default_factory=dict)

    def svg(self) -> str:
        """The picture."""
        rows = -(-len(self.series) // LEGEND_COLUMNS)
        bottom = TOP + PLOT_HEIGHT
        height = bottom + 56 + LEGEND_ROW * rows
        drawn = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" font-family="{FONT}" font-size="12">',
            f"<title>{escape(self.title)}</title>",
            f"<desc>{escape(self._in_words())}</desc>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" '
            f'fill="{CARD}" stroke="{LINE}"/>',
            _text(MARGIN, 34, self.title, INK, size=16, bold=True),
            _text(MARGIN, 58, self.upwards, QUIET),
            *self._note(),
            *self._grid(bottom),
            _text((LEFT + WIDTH - MARGIN) / 2, bottom + 40, self.across, QUIET, anchor="middle"),
        ]
        for number, (name, values) in enumerate(self.series.items()):
            drawn += self._line(number, values, self.unsettled.get(name, ()))
            x = LEFT + number % LEGEND_COLUMNS * (WIDTH - LEFT) / LEGEND_COLUMNS
            y = bottom + 62 + number // LEGEND_COLUMNS * LEGEND_ROW
            drawn += [_marker(number, x, y - 4), _text(x + 12, y, name, INK)]
        return with_dark_mode("\n".join([*drawn, "</svg>\n"]))

    def _known(self) -> list[float]:
        return [value for values in self.series.values() for value in values if value is not None]

    def _ticks(self) -> list[float]:
        known = self._known() or [1.0]
        if not self.log:
            return linear_ticks(max(known))
        return log_ticks(min(known), max(known))

    def _down(self, value: float) -> float:
        ticks = self._ticks()
        low, high = ticks[0], ticks[-1]
        if self.log:
            low, high, value = (math.log10(one) for one in (low, high, value))
        return TOP + (high - value) / (high - low) * PLOT_HEIGHT

    def _across(self, place: int) -> float:
        step = (WIDTH - MARGIN - LEFT) / len(self.places)
        return LEFT + (place + 0.5) * step

    def _aside(self, number: int) -> float:
        return 0.0 if self.joined else ASIDE * (number - (len(self.series) - 1) / 2)

    def _grid(self, bottom: float) -> Iterator[str]:
        for tick in self._ticks():
            y = self._down(tick)
            stroke = QUIET if self.over_one and tick == 1 else LINE
            yield (
                f'<line x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="{stroke}"/>'
            )
            yield _text(LEFT - 10, y + 4, f"{tick:,.10g}", QUIET, anchor="end")
        for place, name in enumerate(self.places):
            yield _text(self._across(place), bottom + 20, name, QUIET, anchor="middle")

    def _note(self) -> Iterator[str]:
        if any(self.unsettled.values()):
            yield _text(WIDTH - MARGIN, 58, UNSETTLED, QUIET, anchor="end")

    def _line(self, number: int, values: Values, unsettled: Collection[int]) -> Iterator[str]:
        colour, aside = COLOURS[number % len(COLOURS)], self._aside(number)
        points = [
            None if value is None else (self._across(place) + aside, self._down(value))
            for place, value in enumerate(values)
        ]
        for one, other in pairwise(points):
            if self.joined and one and other:
                yield (
                    f'<line x1="{one[0]:.1f}" y1="{one[1]:.1f}" x2="{other[0]:.1f}" '
                    f'y2="{other[1]:.1f}" stroke="{colour}" stroke-width="1.5"/>'
                )
        for place, point in enumerate(points):
            if point:
                yield _marker(number, *point, hollow=place in unsettled)

    def _in_words(self) -> str:
        def said(name: str, place: int, value: float | None) -> str:
            mark = "~" if place in self.unsettled.get(name, ()) else ""
            return "none" if value is None else f"{mark}{value:.3g}"

        return "; ".join(
            f"{name}: " + ", ".join(said(name, place, value) for place, value in enumerate(values))
            for name, values in self.series.items()
        )


def linear_ticks(highest: float) -> list[float]:
    """From zero to at least the highest, in steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(highest / 5 or 1))
    step = next(power * times for times in (1, 2, 5, 10) if highest <= 6 * power * times)
    count = math.ceil(highest / step - 1e-9)
    return [step * number for number in range(count + 1)]


def log_ticks(lowest: float, highest: float) -> list[float]:
    """Powers of ten, their doubles and fives around these numbers; where that is more than two
    powers, of doubles and fives only the first and the last."""
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    last = max(last, first + 1)
    fine = [
        times * 10.0**power for power in range(first, last) for times in (1, 2, 5)
    ] + [10.0**last]  # fmt: skip
    below = max(tick for tick in fine if tick <= lowest * (1 + 1e-9))
    above = min(tick for tick in fine if tick >= highest * (1 - 1e-9))
    powers = [10.0**power for power in range(first, last + 1)]
    shown = {below, above, *powers} if last - first > 2 else fine
    kept = [tick for tick in fine if below <= tick <= above and tick in shown]
    return kept if len(kept) > 1 else [below, next(tick for tick in fine if tick > below)]


def _star(points: int, outer: float, inner: float) -> list[tuple[float, float]]:
    """The corners of a star, the first at the top."""
    angles = [math.pi * corner / points for corner in range(2 * points)]
    return [
        (radius * math.sin(angle), -radius * math.cos(angle))
        for angle, radius in zip(angles, (outer, inner) * points, strict=True)
    ]


# Corners around the middle; none is a circle. As many as there are colours: a colour that comes
# again, after the tenth line, has the next shape.
SHAPES: tuple[Sequence[tuple[float, float]], ...] = (
    (),
    ((-4, -4), (4, -4), (4, 4), (-4, 4)),
    ((0, -5), (5, 4), (-5, 4)),
    ((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)),
    ((0, 5), (5, -4), (-5, -4)),
    ((-1.6, -5), (1.6, -5), (1.6, -1.6), (5, -1.6), (5, 1.6), (1.6, 1.6), (1.6, 5), (-1.6, 5),
     (-1.6, 1.6), (-5, 1.6), (-5, -1.6), (-1.6, -1.6)),
    _star(5, 6.2, 2.6),
    ((-5, 0), (4, -5), (4, 5)),
    ((5, 0), (-4, -5), (-4, 5)),
    _star(4, 6, 2.2),
)  # fmt: skip


def _marker(number: int, x: float, y: float, *, hollow: bool = False) -> str:
    colour = COLOURS[number % len(COLOURS)]
    paint = f'fill="{CARD}" stroke="{colour}" stroke-width="1.8"' if hollow else f'fill="{colour}"'
    corners = SHAPES[(number + number // len(COLOURS)) % len(SHAPES)]
    if not corners:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {paint}/>'
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" {paint}/>'


def _text(
    x: float,
    y: float,
    text: str,
    fill: str,
    *,
    size: int = 12,
    bold: bool = False,
    anchor: str = "start",
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
        f"{weight}>{escape(text)}</text>"
    )
