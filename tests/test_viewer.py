"""The viewer's page and card as text: whole, safe, small."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import screenshots
from kernels.traced import awkward_trace, with_most_requests
from kernels.wrong import WRONG

from convlab import Trace, open_trace, trace, trace_stage
from convlab.tracing import card, page

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def s08() -> Trace:
    return trace_stage("s08")


class Elements(HTMLParser):
    """What a browser finds in a page: tags, what is in scripts, what would be asked for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(data)


def test_a_page_needs_nothing_else(s08):
    text = page(s08)
    assert all(link.startswith(("data:,", "#")) for link in Elements(text).links)
    assert "default-src 'none'" in text
    assert not re.findall(r"https?://|@import|url\(", text)
    assert not re.findall(r"<!--\{\w+\}-->", text)


def test_what_a_kernel_says_stays_text():
    made = awkward_trace()
    text = page(made)
    found = Elements(text)
    assert found.tags.count("script") == 2
    assert "<title>&lt;awkward&gt; &amp;" in text
    document = json.loads(found.scripts[0])
    assert document["title"] == made.title
    (function,) = document["launches"][0]["source"]
    lines = ["".join(text for _, text in pieces) for pieces in function["lines"]]
    assert lines == list(*map(dict.values, made.main.source.values()))
    assert "alert" not in re.sub(r"<script id=.*?</script>", "", text, flags=re.DOTALL)


def test_a_card_shows_the_launches_and_stays_text(s08):
    assert s08._repr_html_() == card(s08)
    shown = card(s08)
    for words in ("pack_filter", "vectorized", "S_I load", "4 wavefronts (2)", "an operation"):
        assert words in shown
    tags = {"div", "b", "span", "code", "table", "tr", "td"}
    assert {*Elements(card(awkward_trace())).tags} <= tags
    assert "&lt;awkward&gt;" in card(awkward_trace())


def test_a_card_shows_findings():
    case = WRONG[0]
    made = trace(case.kernel, case.grid, case.block, *case.arguments())
    assert made.main.findings
    assert made.main.findings[0].what.split("<")[0] in card(made)


def test_a_page_is_not_much_larger_than_what_it_shows(s08):
    """20,000 requests, the most that a trace keeps, make a page of megabytes, not tens."""
    assert len(page(s08)) < 200_000
    assert len(page(with_most_requests(s08))) < 2_000_000


def test_a_page_of_a_saved_trace_is_the_same(s08, tmp_path):
    s08.save(tmp_path / "s08.json")
    assert page(open_trace(tmp_path / "s08.json")) == page(s08)


def test_the_pictures_of_the_documentation_are_there():
    shown = (ROOT / "docs/trace.md").read_text(encoding="utf-8")
    for picture in screenshots.PICTURES:
        file = ROOT / screenshots.FOLDER / picture.file
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size < 150_000
        assert f"images/{picture.file}" in shown
