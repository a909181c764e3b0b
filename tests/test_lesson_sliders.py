"""Pictures that a slider moves, on any page and in notebooks; pictures on dark pages."""

from __future__ import annotations

import re
import sys
from itertools import product
from unittest.mock import Mock
from xml.etree import ElementTree

import build_notebooks
import numpy as np
import pytest
from nbformat import v4
from numba import cuda

from convlab import ConvProblem, lessons, trace
from convlab.lessons import pictures, sliders
from convlab.lessons.pictures import COLOURS, DARK, INK, NOBODY, RIGHT, WRONG, Grid

pytestmark = pytest.mark.same_in_cudasim

SVG = "{http://www.w3.org/2000/svg}"


def request(stride: int) -> pictures.Picture:
    @cuda.jit
    def take(a, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a[stride * i]

    a, out = np.arange(256, dtype=np.float32), np.zeros(32, np.float32)
    return lessons.one_request(trace(take, 1, 32, a, out).main, "a")


@pytest.fixture
def strides() -> sliders.Slider:
    return lessons.slider(request, stride=(1, 2, 8))


def test_a_slider_has_the_picture_of_each_value(strides):
    assert re.findall(r"lie in (\d+) sectors", strides.alt) == ["4", "8", "32"]
    html = strides.html()
    assert html.count("<figure") == html.count("<img") == 3
    assert html.count("display:none") == 2
    assert "<code>out[i] = a[stride * i]</code>" in html
    assert html.count("Four neighbouring lanes have one colour") == 1


@pytest.mark.slow
def test_moving_the_slider_shows_the_picture_of_its_value(strides, chromium, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(f'<meta charset="utf-8">{strides.html()}', encoding="utf-8")
    chromium.window(390, 800)
    chromium.open(page)
    shown = (
        "[...document.querySelectorAll('figure')].filter(one => one.offsetHeight)"
        ".map(one => one.dataset.value)"
    )
    assert chromium.run(shown) == ["1"]
    chromium.page.focus("input")
    for key, value in (("ArrowRight", "2"), ("End", "8"), ("ArrowLeft", "2")):
        chromium.page.keyboard.press(key)
        assert chromium.run(shown) == [value]
        assert chromium.run("document.querySelector('output').value") == value
    assert chromium.errors == []
    assert [one for one in chromium.asked_for if not one.startswith("file:")] == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "settings are none: there must be one"),
        ({"a": (1, 2), "b": (1, 2)}, "settings are a, b: there must be one"),
        ({"stride": (1,)}, r"stride is \(1,\): it must have two values or more"),
    ],
)
def test_a_slider_needs_one_setting_with_values(settings, said):
    with pytest.raises(ValueError, match=said):
        lessons.slider(request, **settings)


def test_with_ipywidgets_the_notebook_s_slider_moves_the_same_pictures(strides):
    pytest.importorskip("ipywidgets")
    slider, shown = strides.widget().children
    assert shown.value.startswith(strides.figures()[0])
    slider.value = "8"
    assert shown.value.startswith(strides.figures()[2])


@pytest.mark.slow
def test_a_stored_notebook_has_the_slider_that_needs_no_kernel(tmp_path):
    draw = "lambda n: lines([1, n], {'a': [1, n]}, 'title', 'caption')"
    code = f"from convlab.lessons import lines, slider\nslider({draw}, n=(2, 3))"
    made = v4.new_notebook(cells=[v4.new_code_cell(code)])
    build_notebooks.execute(made, tmp_path)
    (output,) = made.cells[0].outputs
    assert set(output.data) == {"text/html", "text/plain"}
    assert output.data["text/html"].count("<figure") == 2


def test_a_notebook_explains_a_legend_in_the_first_cell_that_needs_it(monkeypatch):
    shell = Mock(user_ns={"In": [""]})
    monkeypatch.setitem(sys.modules, "IPython", Mock(get_ipython=lambda: shell))
    monkeypatch.setattr(pictures, "_explained", {})
    said = []
    for cell in ("first", "second", "first"):  # which runs again
        shell.user_ns["In"].append(cell)
        said.append("Four neighbouring lanes" in pictures.explanation(request(1)))
    assert said == [True, False, True]


# Colours


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""
    bright = []
    for colour in (one, other):
        parts = np.array([int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        bright.append(float(linear @ (0.2126, 0.7152, 0.0722)) + 0.05)
    return max(bright) / min(bright)


def test_words_can_be_read_on_every_colour_light_and_dark():
    boxes = (*COLOURS, NOBODY, RIGHT, WRONG, pictures.PAPER)
    for box, dark in product(boxes, (False, True)):
        ink = DARK[INK] if dark else INK
        assert contrast(ink, DARK[box] if dark else box) >= 4.5, (box, dark)
    assert len(set(DARK.values())) == len(DARK)


@pytest.mark.parametrize("kind", ["grid", "bars", "moving"])
def test_pictures_are_dark_on_dark_pages(kind, chromium, tmp_path):
    grid = Grid()
    grid.cell(0, 0, COLOURS[0], "1", wide=20, high=9)
    picture = {
        "grid": lambda: grid.finished("a box"),
        "bars": lambda: pictures.bars({"t": {"a": 1, "b": 2}}, "c"),
        "moving": lambda: lessons.slices_in_buffers(m06=lessons.event_log("m06")),
    }[kind]()
    page = tmp_path / "page.html"
    page.write_text(f'<body style="margin:0">{picture.html}</body>', encoding="utf-8")
    corner = (
        "(async () => { const image = document.images[0]; await image.decode();"
        "const canvas = document.createElement('canvas'); const draw = canvas.getContext('2d');"
        "draw.drawImage(image, 0, 0); return [...draw.getImageData(2, 2, 1, 1).data]; })()"
    )
    for dark in (False, True):
        chromium.window(900, 800, dark=dark)
        chromium.open(page)
        paper = DARK[pictures.PAPER] if dark else pictures.PAPER
        assert chromium.run(corner)[:3] == [int(paper[n : n + 2], 16) for n in (1, 3, 5)]


# How a picture is read


def test_a_coalesced_request_is_read_like_lines_of_a_text():
    drawn = ElementTree.fromstring(request(1).data)
    lanes = [
        (float(text.get("y")), float(text.get("x")), int(text.text))
        for text in drawn.iter(f"{SVG}text")
        if text.text.isdigit()
    ]
    assert [lane for *_, lane in sorted(lanes)] == list(range(32))


def test_a_padded_image_s_windows_are_drawn_at_full_size():
    problem = ConvProblem(1, 1, 3, 4, out_channels=2, kernel_size=3, padding=1)
    picture = lessons.im2col_beside_im2win(problem, window=5)
    box = re.search(rb'd="M[\d. -]*h([\d.]+)v', picture.data)
    assert float(box[1]) == 30  # pixels, as in pictures of small images
    assert picture.width <= 740
