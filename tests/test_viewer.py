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

from convlab import ConvProblem, Trace, open_trace, trace, trace_stage
from convlab.tracing import card, page, write_page

pytestmark = pytest.mark.same_in_cudasim


@pytest.fixture(scope="module")
def m06() -> Trace:
    return trace_stage("m06", ConvProblem(1, 4, 6, 16, 16, 3, padding=1))


@pytest.fixture(scope="module")
def wrong() -> Trace:
    """A kernel with a finding at its line."""
    case = next(case for case in WRONG if case.kind == "out of bounds")
    return trace(case.kernel, case.grid, case.block, *case.arguments())


def tags_of(text: str) -> list[str]:
    """The names of the elements that a browser finds in a text."""
    tags, parser = [], HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)
    parser.feed(text)
    return tags


def test_a_page_needs_nothing_else(m06):
    text = page(m06)
    assert re.findall(r'(?:src|href|srcset)="(.*?)"', text) == ["data:,", "#machine"]
    assert "default-src 'none'" in text
    assert not re.findall(r"https?://|@import|url\(", text)
    assert not re.findall(r"<!--\{\w+\}-->", text)


def test_a_page_is_not_much_larger_than_what_it_shows(m06):
    """20,000 requests, the most that a trace keeps, make a page of megabytes, not tens."""
    assert len(page(m06)) < 200_000
    assert len(page(with_most_requests(m06))) < 2_000_000


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


def test_a_card_shows_the_tables_and_stays_text(m06, wrong):
    assert m06._repr_html_() == card(m06)
    for words in ("pack_filter", "S_I: load", "wavefronts", "bytes an operation"):
        assert words in card(m06)
    assert {*tags_of(card(awkward_trace()))} == {"div", "pre", "span"}
    assert wrong.main.findings[0].what.split("<")[0] in card(wrong)


# In a browser.


@pytest.fixture
def shown(chromium, tmp_path):
    """A function that opens the page of a trace; afterwards nobody has complained of anything."""

    def show(made: Trace) -> Browser:
        write_page(made, tmp_path / "page.html")
        chromium.open(tmp_path / "page.html")
        return chromium

    yield show
    chromium.run("1")  # what was said until now is heard
    assert chromium.errors == []
    assert chromium.asked_for == []


def text_of(opened: Browser, selector: str) -> str:
    return opened.run(f"document.querySelector({json.dumps(selector)}).textContent")


def number_of(opened: Browser, selector: str) -> int:
    return opened.run(f"document.querySelectorAll({json.dumps(selector)}).length")


def walk(opened: Browser, *steps: tuple[str, str, str, str | int]) -> None:
    """Do each step, then look: a text is in the element's, a number is how many there are."""
    does = {"click": opened.page.click, "press": opened.page.keyboard.press,
            "hover": opened.page.hover, "focus": opened.page.focus}  # fmt: skip
    for action, target, selector, wanted in steps:
        does[action](target)
        if isinstance(wanted, int):
            assert number_of(opened, selector) == wanted, (action, target)
        else:
            assert wanted in text_of(opened, selector), (action, target)


@pytest.mark.slow
def test_every_control_does_what_it_says(shown, m06):
    """One test for all of them: opening a page takes longer than using it."""
    opened = shown(m06)
    assert text_of(opened, "h1") == "m06_vectorized"
    assert text_of(opened, "#launches [aria-pressed=true]") == "2. vectorized"
    said = "of S_I: 4 wavefronts, 2 would do; 8 lanes are served at a time."
    assert said in text_of(opened, "#sentence")
    assert number_of(opened, "#lanes .cell") == 32
    assert text_of(opened, "#count") == "1 of 192"
    first = text_of(opened, "#what")

    # Buttons, keys and the slider, which has the keys once it was clicked.
    walk(
        opened,
        ("click", "#next", "#count", "2 of 192"),
        ("press", "ArrowRight", "#count", "3 of 192"),
        ("press", "ArrowLeft", "#count", "2 of 192"),
        ("click", "#previous", "#what", first),
        ("click", "#slider", "#count", " of 192"),
    )
    assert int(text_of(opened, "#count").split()[0]) == pytest.approx(96, abs=3)
    walk(
        opened,
        ("press", "End", "#next:disabled", 1),
        ("press", "Home", "#previous:disabled", 1),
        ("press", "Home", "#count", "1 of 192"),
    )
    assert opened.run("document.getElementById('slider').value") == "0"

    # Lines and their arrays are picked by mouse and keys.
    accesses = m06.main.accesses
    lines = {(one.array, one.operation): one.line for one in accesses}
    loads, bias, stores = lines["S_F", "load"], lines["bias", "load"], lines["output", "store"]
    after = min(one.line for one in accesses if one.line > loads)
    line = "#source li[data-line$=':{}'] .line".format
    walk(
        opened,
        ("click", line(loads), "#what", f"Line {loads}, warp 0 of block (0, 0, 0): load of S_F"),
        ("click", "h2", "#source li.current .number", f"{loads}"),  # the arrow keys are the page's
        ("press", "ArrowDown", "#what", f"Line {after}"),
        ("press", "ArrowUp", "#what", f"Line {loads}"),
        ("focus", line(bias), "#what", f"Line {loads}"),
        ("press", "Enter", "#what", f"Line {bias}"),
        ("hover", "h1", "#sentence", "read 8 different bytes of bias: 1 sector"),
        ("click", f"#source li[data-line$=':{stores}'] .access", "#what", f"Line {stores}"),
        ("hover", "h1", "#source .access[aria-pressed=true]", 1),
        ("hover", "h1", "#memory .sector", 16),
        ("click", "#next", "#count", "2 of "),
    )

    # The whole block, from the same request on; a lane is lit and says what it wants.
    request = text_of(opened, "#what")
    walk(
        opened,
        ("click", "#scope button", "#count", f"of {len(m06.main.requests)}"),
        ("hover", "h1", "#what", request),
        ("press", "p", "#play", "Pause"),
        ("click", "#play", "#play", "Play"),
        ("hover", "#lanes .cell:nth-child(6)", "#hover", "lane 5 wants output["),
        ("hover", "#lanes .cell:nth-child(6)", "#lanes .on", 1),
        ("hover", "#lanes .cell:nth-child(6)", "#memory .on", 4),
        ("hover", "h1", ".on", 0),
        ("hover", "h1", "#as-table td", 0),
        ("click", "#how summary", "#how[open]", 0),
        ("click", "#as-table summary", "#as-table[open]", 1),
    )
    opened.wait("document.querySelectorAll('#as-table tbody tr').length === 32")

    background = "getComputedStyle(document.body).backgroundColor"
    light = opened.run(background)
    walk(opened, ("click", "#theme", "[data-theme=dark]", 1))
    assert opened.run(background) != light
    walk(opened, ("click", "#theme", "[data-theme=light]", 1))
    assert opened.run(background) == light
    walk(
        opened,
        ("click", "#launches button", "#launches [aria-pressed=true]", "1. pack_filter"),
        ("hover", "h1", "#source", "def pack_filter"),
        ("hover", "h1", "#footprints", "packed"),
    )


def test_a_page_fits_a_phone_and_has_the_colours_that_a_person_prefers(shown, chromium, m06):
    chromium.window(390, 800, dark=True)
    opened = shown(m06)
    assert opened.run("document.documentElement.scrollWidth") <= 390
    assert not opened.run("document.getElementById('how').open")
    assert opened.run("document.documentElement.dataset.theme") == "dark"
    chromium.window(1280, 900)
    opened.wait("document.documentElement.dataset.theme === 'light'")


@pytest.mark.slow
def test_playing_steps_on_by_itself_and_stops_at_the_end(shown):
    opened = shown(screenshots.textbook("copy"))
    walk(opened, ("click", "#play", "#play", "Pause"))
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


def test_what_a_trace_says_is_shown_as_it_is(shown, wrong, tmp_path):
    """Its source, and names of kernels, files and arrays in a saved trace, which may be anybody's;
    an image would be asked for."""
    made = awkward_trace()
    opened = shown(made)
    assert text_of(opened, "h1") == made.title
    assert '</script><script>alert("&lt;")</script> <!--' in text_of(opened, "#source")
    image, text = "\"'><img src=x onerror=alert()>", json.dumps(wrong.as_json())
    for name in {wrong.main.kernel, *wrong.main.source, *(one.name for one in wrong.main.arrays)}:
        text = text.replace(json.dumps(name), json.dumps(name + image))
    (tmp_path / "x.json").write_text(text.replace('"what": "', '"what": "<b>'))
    opened = shown(open_trace(tmp_path / "x.json"))
    for place in ("#totals", "#launches", "#source .file", "#source .access", "#arrays", "#what"):
        assert image in text_of(opened, place)
    assert "<b>" in text_of(opened, "#findings")
    assert number_of(opened, "img") == 0


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


def test_the_page_s_rules_are_the_simulator_s(shown, m06):
    """Sectors, wavefronts and the fewest of each, of requests of every kind."""
    launches = tuple(launch for made in (m06, *of_all_kinds()) for launch in made.launches)
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


@pytest.mark.slow
def test_a_page_with_the_most_requests_is_quick(shown, m06):
    opened = shown(with_most_requests(m06))
    walk(opened, ("click", "#scope button", "#count", "of 20,000"))
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
