"""Colours of pictures: what is seen on a light page is seen on a dark one."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from convlab.bench import report_plots
from convlab.bench.palette import COLOURS, DARK, LIGHT, with_dark_mode

pytestmark = pytest.mark.same_in_cudasim


def channels(colour: str) -> list[float]:
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def luminance(colour: list[float]) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, card: str, opaque: float = 1.0) -> float:
    mixed = [
        opaque * one + (1 - opaque) * other
        for one, other in zip(channels(colour), channels(card), strict=True)
    ]
    low, high = sorted((luminance(mixed), luminance(channels(card))))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("card", [LIGHT["panel"], DARK["panel"]])
def test_what_is_plotted_reads_on_both_cards(card):
    assert all(contrast(colour, card) >= 3 for colour in COLOURS)
    assert contrast(COLOURS[0], card, report_plots.DOTS) >= 3


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_words_read_on_both_cards(theme):
    assert all(contrast(theme[name], theme["panel"]) >= 4.5 for name in ("ink", "quiet"))


def test_a_file_s_colours_follow_the_reader_s_pages():
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="1"><rect fill="#ffffff"/></svg>\n'
    tree = ElementTree.fromstring(with_dark_mode(svg))
    style, rect = tree
    assert style.text.startswith("@media (prefers-color-scheme: dark) {")
    assert style.text.count("{") == style.text.count("}")
    assert rect.get("fill") == "#ffffff"  # for who knows nothing of styles
