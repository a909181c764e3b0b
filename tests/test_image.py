"""The picture through the ladder: what is loaded, what is asked of the stages, what is drawn."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest

from convlab.measuring import photograph as image
from convlab.problems.reference import reference
from convlab.running.engines import choose

pytestmark = pytest.mark.same_in_cudasim

PIL_Image = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")


@pytest.fixture
def gradient(tmp_path):
    """A picture 60 wide and 30 high that gets brighter to the right, and its file."""
    row = np.linspace(0, 255, 60, dtype=np.uint8)
    pixels = np.broadcast_to(row[None, :, None], (30, 60, 3))
    path = tmp_path / "gradient.png"
    PIL_Image.fromarray(np.ascontiguousarray(pixels)).save(path)
    return path


def test_pictures_are_scaled_down_and_never_up(gradient, tmp_path):
    photograph = image.load(None, pixels=500)  # which ships with matplotlib
    assert photograph.dtype == np.float32
    assert photograph.flags.c_contiguous
    assert 350 <= photograph[0].size <= 500
    assert 0 <= photograph.min() < photograph.max() <= 1
    for pixels, shape in ((10**6, (3, 30, 60)), (450, (3, 15, 30))):
        assert image.load(gradient, pixels).shape == shape
    few = image.pixels_for(choose("cudasim"))
    assert 100 < few < image.pixels_for(SimpleNamespace(name="gpu", is_gpu=True))
    PIL_Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (image.load(tmp_path / "clear.png", 100) == 1).all()  # transparent: white


def test_a_long_picture_keeps_to_its_pixels_and_a_longer_one_is_refused(tmp_path):
    path = tmp_path / "line.png"
    PIL_Image.new("L", (2000, 100), 255).save(path)
    picture = image.load(path, 500)
    assert picture.shape == (3, 5, 100)
    assert (picture == 1).all()
    PIL_Image.new("L", (2001, 100), 255).save(path)
    with pytest.raises(ValueError, match="is 2001 x 100 pixels: one side must be at most 20 times"):
        image.load(path, 500)


def test_deep_greyscales_keep_their_range(tmp_path):
    ramp = np.linspace(0, 1, 64)
    for name, pixels in (
        ("16.png", (ramp * 65535).astype(np.uint16)),
        ("32.tiff", (ramp * 2**30).astype(np.int32)),
        ("float.tiff", ramp.astype(np.float32)),
    ):
        PIL_Image.fromarray(np.tile(pixels, (8, 1))).save(tmp_path / name)
        picture = image.load(tmp_path / name, 10**6)
        assert np.abs(picture[0] - ramp).max() < 0.003, name


def test_what_is_not_a_picture_is_refused_with_its_name(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("no picture")
    truncated = tmp_path / "half.png"
    PIL_Image.new("L", (64, 64)).save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:60])
    for path in (text, truncated, tmp_path / "absent.png", tmp_path):
        with pytest.raises(ValueError, match=r"image '.*' cannot be read: ") as raised:
            image.load(path, 100)
        assert str(path) in str(raised.value)


def test_the_filters_do_what_their_names_say(gradient):
    picture = image.load(gradient, 10**6)
    problem = image.problem_for(picture)
    maps = dict(zip(image.FILTERS, reference(problem, *image.tensors_for(picture))[0], strict=True))
    assert problem.output_shape == (1, len(image.FILTERS), 30, 60)
    inside = np.s_[5:-5, 5:-5]
    step = 1 / 59
    brightness = picture[0][inside]
    np.testing.assert_allclose(maps["blur"][inside], brightness, atol=step)
    np.testing.assert_allclose(maps["sharpen"][inside], brightness, atol=4 * step)
    np.testing.assert_allclose(maps["vertical edges"][inside], 8 * step, atol=8 / 255)
    np.testing.assert_allclose(maps["horizontal edges"][inside], 0, atol=1e-6)
    np.testing.assert_allclose(maps["Laplacian"][inside], 0, atol=2 / 255)
    assert set(image.SIGNED) < set(image.FILTERS)


def made_results(stages: int, kind: str) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            stage=SimpleNamespace(name=f"s{number:02}_swapped_operands"),
            ok=kind == "right",
            status={"right": "OK", "nan": "WRONG", "none": "FAILED"}[kind],
            error_over_bound={"right": 2.6e6, "nan": np.inf, "none": None}[kind],
        )
        for number in range(stages)
    ]


@pytest.mark.parametrize(
    ("stages", "kind"), [(1, "right"), (9, "nan"), (12, "right"), (12, "none")]
)
def test_a_picture_says_what_came_out_and_nothing_leaves_its_box(gradient, stages, kind):
    from matplotlib.table import Table
    from matplotlib.text import Text

    picture = image.load(gradient, 200)
    shape = image.problem_for(picture).output_shape[1:]
    results = made_results(stages, kind)
    maps = None if kind == "none" else np.full(shape, np.nan if kind == "nan" else 0.5)
    shown = picture, maps, None if kind == "none" else results[0], results, "nothing at all"
    width, height = PIL_Image.open(io.BytesIO(image.draw(*shown))).size
    assert width > 1000
    assert height > 700
    figure = image.draw_figure(*shown)
    figure.savefig(io.BytesIO(), format="png")  # lays it out
    said = {text.get_text() for text in figure.findobj(Text)}
    assert (f"the maps of {results[0].stage.name}: {results[0].status}" in said) is (kind != "none")
    (table,) = figure.findobj(Table)
    boxes = [box for box in table.get_celld().values() if box.get_visible()]
    assert len(boxes) == stages
    for box, result in zip(boxes, results, strict=True):
        assert result.status in box.get_text().get_text()
        inside, around = box.get_text().get_window_extent(), box.get_window_extent()
        assert around.x0 <= inside.x0 < inside.x1 <= around.x1
        assert around.y0 <= inside.y0 < inside.y1 <= around.y1
