"""The viewer: its page is whole, safe and small; in a browser every control does what it says."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
import screenshots
from browser import Browser
from kernels.traced import awkward_trace, of_all_kinds, with_most_requests
from kernels.wrong import WRONG
from numba import cuda, int8

from convlab import ConvProblem, Trace, trace, trace_stage
from convlab.tracing import card, page, write_page

pytestmark = pytest.mark.same_in_cudasim


@pytest.fixture(scope="module")
def s08() -> Trace:
    return trace_stage("s08", ConvProblem(1, 4, 6, 16, 16, 3, padding=1))


@pytest.fixture(scope="module")
def large(s08) -> str:
    """The page of a trace with as many requests as are ever kept."""
    return page(with_most_requests(s08))


@pytest.fixture(scope="module")
def wrong() -> Trace:
    """A kernel with a finding at its line."""
    case = next(case for case in WRONG if case.kind == "out of bounds")
    return trace(case.kernel, case.grid, case.block, *case.arguments())


def tags_of(text: str) -> list[str]:
    """The names of the elements that a browser finds in a text."""
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)
    parser.feed(text)
    return tags


def test_a_page_needs_nothing_else(s08):
    text = page(s08)
    assert re.findall(r'(?:src|href|srcset)="(.*?)"', text) == ["data:,", "#machine"]
    assert "default-src 'none'" in text
    assert not re.findall(r"https?://|@import|url\(", text)
    assert not re.findall(r"<!--\{\w+\}-->", text)


def test_what_a_kernel_says_stays_text():
    made = awkward_trace()
    text = page(made)
    assert tags_of(text).count("script") == 2
    assert "<title>&lt;awkward&gt; &amp;" in text
    document = json.loads(re.search(r"<script id=.*?>(.*?)</script>", text)[1])
    assert document["title"] == made.title
    (function,) = document["launches"][0]["source"]
    lines = [unescape(re.sub("<.*?>", "", line)) for line in function["lines"]]
    assert lines == list(*map(dict.values, made.main.source.values()))
    assert "alert" not in re.sub(r"<script id=.*?</script>", "", text, flags=re.DOTALL)


def test_a_card_shows_the_tables_and_stays_text(s08, wrong):
    assert s08._repr_html_() == card(s08)
    for words in ("pack_filter", "S_I: load", "wavefronts", "bytes an operation"):
        assert words in card(s08)
    assert {*tags_of(card(awkward_trace()))} == {"div", "pre", "span"}
    assert wrong.main.findings[0].what.split("<")[0] in card(wrong)


def test_a_page_is_not_much_larger_than_what_it_shows(s08, large):
    """20,000 requests, the most that a trace keeps, make a page of megabytes, not tens."""
    assert len(page(s08)) < 200_000
    assert len(large) < 2_000_000


# In a browser.


@pytest.fixture
def shown(chromium, tmp_path):
    """A function that opens the page of a trace; afterwards nobody has complained of anything."""

    def show(made: Trace | str) -> Browser:
        file = tmp_path / "page.html"
        file.write_text(made) if isinstance(made, str) else write_page(made, file)
        chromium.open(file)
        return chromium

    yield show
    chromium.run("1")  # what was said until now is heard
    assert chromium.errors == []
    assert chromium.asked_for == []


def text_of(opened: Browser, selector: str) -> str:
    return opened.run(f"document.querySelector({json.dumps(selector)}).textContent")


def number_of(opened: Browser, selector: str) -> int:
    return opened.run(f"document.querySelectorAll({json.dumps(selector)}).length")


def test_every_control_does_what_it_says(shown, s08):
    """One test for all of them: opening a page takes longer than using it."""
    opened = shown(s08)
    assert text_of(opened, "h1") == "s08_vectorized"
    assert text_of(opened, "#launches [aria-pressed=true]") == "2. vectorized"
    assert text_of(opened, "#machine-title") == "The machine"
    said = "of S_I: 4 wavefronts, 2 would do; 8 lanes are served at a time."
    assert said in text_of(opened, "#sentence")
    assert number_of(opened, "#lanes .cell") == 32

    # Buttons, keys and the slider step through the line's requests.
    first = text_of(opened, "#what")
    assert text_of(opened, "#count") == "1 of 192"
    assert opened.run("document.getElementById('previous').disabled")
    opened.page.click("#next")
    assert text_of(opened, "#count") == "2 of 192"
    opened.page.keyboard.press("ArrowRight")
    assert text_of(opened, "#count") == "3 of 192"
    opened.page.keyboard.press("ArrowLeft")
    opened.page.click("#previous")
    assert (text_of(opened, "#count"), text_of(opened, "#what")) == ("1 of 192", first)
    opened.page.click("#slider")  # its middle
    assert int(text_of(opened, "#count").split()[0]) == pytest.approx(96, abs=3)
    opened.page.keyboard.press("End")  # the slider has the keys now
    assert text_of(opened, "#count") == "192 of 192"
    assert opened.run("document.getElementById('next').disabled")
    opened.page.keyboard.press("Home")
    assert text_of(opened, "#count") == "1 of 192"
    assert opened.run("document.getElementById('slider').value") == "0"

    # Lines and their arrays are picked by mouse and keys.
    accesses = s08.main.accesses
    lines = {(one.array, one.operation): one.line for one in accesses}
    loads, bias, stores = lines["S_F", "load"], lines["bias", "load"], lines["output", "store"]
    after = min(one.line for one in accesses if one.line > loads)
    opened.page.click(f"#source li[data-line$=':{loads}'] .line")
    assert f"Line {loads}, warp 0 of block (0, 0, 0): load of S_F" in text_of(opened, "#what")
    assert f"{loads}" in text_of(opened, "#source li.current .number")
    opened.page.click("h2")  # so that the arrow keys are the page's
    opened.page.keyboard.press("ArrowDown")
    assert text_of(opened, "#what").startswith(f"Line {after}")
    opened.page.keyboard.press("ArrowUp")
    assert text_of(opened, "#what").startswith(f"Line {loads}")
    opened.run(f"document.querySelector('#source li[data-line$=\":{bias}\"] .line').focus()")
    opened.page.keyboard.press("Enter")
    assert text_of(opened, "#what").startswith(f"Line {bias}")
    assert "read 8 different bytes of bias: 1 sector" in text_of(opened, "#sentence")
    opened.page.click(f"#source li[data-line$=':{stores}'] .access")
    assert text_of(opened, "#what").startswith(f"Line {stores}")
    assert number_of(opened, "#source .access[aria-pressed=true]") == 1
    assert number_of(opened, "#memory .sector") == 16

    # The whole block, from the same request on.
    request = text_of(opened, "#what")
    opened.page.click("#scope button")
    assert text_of(opened, "#count").endswith(f"of {len(s08.main.requests)}")
    assert text_of(opened, "#what") == request
    opened.page.keyboard.press("p")
    assert text_of(opened, "#play") == "Pause"
    opened.page.click("#play")
    assert text_of(opened, "#play") == "Play"

    # Pointing at a lane lights it and says what it wants.
    opened.page.hover("#lanes .cell:nth-child(6)")
    assert text_of(opened, "#hover").startswith("lane 5 wants output[")
    assert number_of(opened, "#lanes .on") == 1
    assert number_of(opened, "#memory .on") == 4
    opened.page.hover("h1")
    assert number_of(opened, ".on") == 0

    # Folds, theme, launches.
    assert number_of(opened, "#as-table td") == 0
    opened.page.click("#as-table summary")
    opened.wait("document.querySelectorAll('#as-table tbody tr').length === 32")
    assert opened.run("document.getElementById('how').open")
    opened.page.click("#how summary")
    assert not opened.run("document.getElementById('how').open")
    background = "getComputedStyle(document.body).backgroundColor"
    light = opened.run(background)
    opened.page.click("#theme")
    assert opened.run("document.documentElement.dataset.theme") == "dark"
    assert opened.run(background) != light
    opened.page.click("#theme")
    assert opened.run(background) == light
    opened.page.click("#launches button")
    assert text_of(opened, "#launches [aria-pressed=true]") == "1. pack_filter"
    assert "def pack_filter" in text_of(opened, "#source")
    assert text_of(opened, "#footprints").count("packed") == 1


def test_a_page_fits_a_phone_and_has_the_colours_that_a_person_prefers(shown, chromium, s08):
    chromium.window(390, 800, dark=True)
    opened = shown(s08)
    assert opened.run("document.documentElement.scrollWidth") <= 390
    assert not opened.run("document.getElementById('how').open")
    assert opened.run("document.documentElement.dataset.theme") == "dark"
    chromium.window(1280, 900)
    opened.wait("document.documentElement.dataset.theme === 'light'")


def test_playing_steps_on_by_itself_and_stops_at_the_end(shown):
    opened = shown(screenshots.textbook("copy"))
    assert text_of(opened, "#count") == "1 of 4"
    opened.page.click("#play")
    assert text_of(opened, "#play") == "Pause"
    opened.wait("document.getElementById('play').textContent === 'Play'")
    assert text_of(opened, "#count") == "4 of 4"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("copy", "32 lanes read 128 different bytes of source: 4 sectors, the fewest possible;"),
        ("strided_copy", "source: 32 sectors, 4 would do; 1,024 bytes move."),
        ("offset_copy", "5 sectors, 4 would do; they begin 4 bytes into a sector; 160 bytes move."),
        ("transpose_shared", "32 wavefronts, 1 would do; up to 32 different words of one bank are"),
        ("interleaved_reduction", "2 wavefronts, 1 would do; up to 2 different words of one bank"),
        ("histogram", "; up to 3 lanes at one element."),
    ],
)
def test_a_request_in_plain_words(shown, name, said):
    assert said in text_of(shown(screenshots.textbook(name)), "#sentence")


def test_a_wrong_kernel_is_marked(shown, wrong):
    opened = shown(wrong)
    assert "out of bounds" in text_of(opened, "#findings")
    assert "out of bounds" in text_of(opened, "#source li[data-line] .finding")
    assert number_of(opened, "#source .file") == 1  # all its lines are in the one source


def test_what_a_kernel_says_is_shown_as_it_is(shown):
    made = awkward_trace()
    opened = shown(made)
    assert text_of(opened, "h1") == made.title
    assert '</script><script>alert("&lt;")</script> <!--' in text_of(opened, "#source")


BY_THE_PAGE = """
JSON.stringify(trace.launches.map(prepared).flatMap((launch) => launch.requests.map(unpacked))
.map((one) => {
  const {lanes, offsets, addresses, width, operation} = one, bytes = bytesWanted(offsets, width);
  return one.array.space === 'global'
    ? [sectorsOf(lanes, addresses, width).length, 0, fewestSectors(bytes), lanes, offsets]
    : [0, wavefrontsOf(lanes, addresses, width, operation === 'load').length,
       fewestWavefronts(bytes), lanes, offsets];
}))
"""


def test_the_page_s_rules_are_the_simulator_s(shown, s08):
    """Sectors, wavefronts and the fewest of each, of requests of every kind."""
    launches = tuple(launch for made in (s08, *of_all_kinds()) for launch in made.launches)
    found = iter(json.loads(shown(Trace("all", launches)).run(BY_THE_PAGE)))
    for launch in launches:
        fewest = 0
        for one in launch.requests:
            sectors, wavefronts, least, lanes, offsets = next(found)
            assert (sectors, wavefronts) == (one.sectors, one.wavefronts)
            assert (lanes, offsets) == ([*one.lanes], [*one.offsets])
            fewest += least
        if launch.grid == (1, 1, 1):  # of one block the sums are those of its requests
            assert fewest == launch.total("fewest_sectors") + launch.total("fewest_wavefronts")
    assert next(found, None) is None
    assert len({one.width for launch in launches for one in launch.requests}) > 2


def test_a_page_with_the_most_requests_is_quick(shown, large):
    opened = shown(large)
    opened.page.click("#scope button")
    assert text_of(opened, "#count").endswith("of 20,000")
    milliseconds = opened.run(
        "(() => { const start = performance.now();"
        "for (let i = 0; i < 20; i++) go(1000 * i); return (performance.now() - start) / 20; })()"
    )
    assert milliseconds < 50  # a few; a machine under test is slow
    assert number_of(opened, "*") < 3_000


@cuda.jit
def copies_strided(a, b):
    staged = cuda.shared.array((2, 16), int8)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    staged[i, j] = a[i, j]
    cuda.syncthreads()
    b[i, j] = staged[i, j]


def test_elements_are_named_as_they_lie(shown):
    """Strided arrays by their strides; what a bank gives by all elements of its word."""
    a = np.arange(64, dtype=np.int8).reshape(16, 4).T[::-2]
    made = trace(copies_strided, 1, (16, 2), a, np.zeros((2, 16), np.int8))
    opened = shown(made)
    named = opened.run(
        "state.launch.requests.filter((one) => one.array.name === 'a').map(unpacked)"
        ".flatMap((one) => one.offsets.map((at) => elementsAt(one.array, at)))"
    )
    assert named == [f"a[{lane // 16}, {lane % 16}]" for lane in range(32)]
    array = "state.launch.arrays.find((one) => one.name === 'a')"
    assert opened.run(f"elementsAt({array}, 1)") == "a gap in a"
    assert opened.run(f"elementsAt({array}, -1)") == "outside of a"
    opened.run(
        "pick(null, null, state.launch.requests.findIndex((one) =>"
        " one.array.name === 'staged' && one.operation === 'load'))"
    )
    hover = opened.run("document.querySelector('#memory .cell').dataset.hover")
    word = "staged[0, 0]\N{EN DASH}[0, 3]"
    assert hover == f"wavefront 1: bank 0 gives {word} to lanes 0\N{EN DASH}3"
