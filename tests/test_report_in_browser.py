"""The report in a real browser: what matters most of a wide table is never cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from convlab.bench import report
from convlab.bench.results import open_results

pytestmark = pytest.mark.same_in_cudasim


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    measured = open_results(Path(__file__).parents[1] / "docs/results/bench_h200.json")
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report.make(measured).html(), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [390, 1100, 1700])
def test_no_table_is_cut_where_it_matters(page, chromium, width):
    """The page is as wide as the window and shows every mean; on a desk also every number."""
    chromium.window(width, 900)
    chromium.open(page)
    assert chromium.run("document.documentElement.scrollWidth") <= width
    means = chromium.run(
        "[...document.querySelectorAll('th')].filter(one => one.textContent === 'mean')"
        ".map(one => [one.getBoundingClientRect().right,"
        " one.closest('.scrolls').getBoundingClientRect().right])"
    )
    cut = chromium.run(
        "[...document.querySelectorAll('.scrolls')].filter(one => "
        "one.scrollWidth > one.clientWidth).map(one => one.textContent.slice(0, 60))"
    )
    assert means
    assert all(right <= edge for right, edge in means)
    assert cut == [] or width == 390
