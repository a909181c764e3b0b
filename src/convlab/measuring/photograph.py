"""A photograph through the ladder, and the picture that shows what came out.

Each output channel is a filter everybody knows, so that a person sees whether a stage is right.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from convlab.problems.problem import ConvProblem
from convlab.support.installing import how_to_install
from convlab.support.whole_files import check_is_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from convlab.measuring.ladder_run import StageResult
    from convlab.running.engines import Engine

# What each makes of brightness. The first three sum to 1: flat areas stay; the others to 0.
FILTERS: dict[str, list[list[float]]] = {
    "blur": [[1 / 16, 2 / 16, 1 / 16], [2 / 16, 4 / 16, 2 / 16], [1 / 16, 2 / 16, 1 / 16]],
    "sharpen": [[0, -0.5, 0], [-0.5, 3, -0.5], [0, -0.5, 0]],
    "emboss": [[-1, -0.5, 0], [-0.5, 1, 0.5], [0, 0.5, 1]],
    "horizontal edges": [[-1, -2, -1], [0, 0, 0], [1, 2, 1]],
    "vertical edges": [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]],
    "Laplacian": [[0, 1, 0], [1, -4, 1], [0, 1, 0]],
}
SIGNED = ("horizontal edges", "vertical edges", "Laplacian")  # drawn in red and blue around 0
BRIGHTNESS = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601)

GPU_PIXELS = 512 * 512
SIMULATOR_SECONDS = 90  # for the whole ladder
STAGES_A_ROW = 9
GOOD, BAD, GOOD_BOX, BAD_BOX = "#1a7f37", "#cf222e", "#e4f0e7", "#f9e5e7"
# The head in Matplotlib's sample photograph (left, top, right, bottom), so that it can still be
# recognised in the few pixels that a simulator can do.
HOPPER_HEAD = (118, 4, 408, 344)

MOST_ELONGATED = 20  # one side to the other: what can still be drawn


class PlotsMissing(RuntimeError):
    """Matplotlib, Jinja or markdown-it is not installed; the message says what to do."""


@contextmanager
def plots_needed(what: str, target: str = "make report") -> Iterator[None]:
    """Turn an import that fails into :class:`PlotsMissing`; ``what`` needs it."""
    try:
        yield
    except ImportError as error:
        install = how_to_install("plots", target)
        raise PlotsMissing(f"{what} needs more ({error}): run {install}") from error


def pixels_for(engine: Engine) -> int:
    """Return the largest number of pixels: on a simulator, few enough for SIMULATOR_SECONDS."""
    from convlab.ladder import LADDER
    from convlab.measuring.ladder_run import estimated_seconds

    sample = np.zeros((3, 32, 32), np.float32)
    seconds = estimated_seconds(problem_for(sample), LADDER, engine)
    return GPU_PIXELS if seconds is None else int(32 * 32 * SIMULATOR_SECONDS / seconds)


def load(path: Path | None, pixels: int) -> np.ndarray:
    """A picture as float32 [3, height, width] from 0 to 1, scaled down to about ``pixels``; without
    a path Matplotlib's sample photograph of Grace Hopper (public domain). Raises ``ValueError`` for
    a file that is not a picture, :class:`PlotsMissing`."""
    with plots_needed("--image", "make ladder"):
        from matplotlib import cbook
        from PIL import Image, ImageOps
    file = path or Path(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))
    try:
        check_is_file(file)
        with Image.open(file) as opened:
            picture = _as_rgb(ImageOps.exif_transpose(opened))
    except Exception as error:  # Pillow raises a dozen types for files it cannot read
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ValueError(f"image {str(file)!r} cannot be read: {reason}") from error
    if path is None:
        picture = picture.crop(HOPPER_HEAD)
    if max(picture.size) > MOST_ELONGATED * min(picture.size):
        raise ValueError(
            f"image {str(file)!r} is {picture.width} x {picture.height} pixels: one side must be "
            f"at most {MOST_ELONGATED} times the other"
        )
    scale = min(1.0, (pixels / (picture.width * picture.height)) ** 0.5)
    size = max(1, int(picture.width * scale)), max(1, int(picture.height * scale))
    small = picture.resize(size, Image.Resampling.LANCZOS)
    return np.ascontiguousarray(np.asarray(small, np.float32).transpose(2, 0, 1) / 255)


def _as_rgb(picture: Any) -> Any:
    """The picture with 8-bit colours: deep greyscales over their range, alpha over white."""
    from PIL import Image

    if picture.mode.startswith(("I", "F")):
        values = np.nan_to_num(np.asarray(picture, np.float64))
        low, high = (0, 65535) if picture.mode.startswith("I;16") else (values.min(), values.max())
        grey = (values - low) / ((high - low) or 1) * 255
        picture = Image.fromarray(grey.round().astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")


def problem_for(picture: np.ndarray) -> ConvProblem:
    """The filter bank on one picture; the output is as large as the picture."""
    channels, height, width = picture.shape
    return ConvProblem(1, channels, height, width, len(FILTERS), kernel_size=3, padding="same")


def tensors_for(picture: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input, weight and bias of :func:`problem_for`'s problem."""
    weight = np.einsum("c,fuv->fcuv", BRIGHTNESS, list(FILTERS.values())).astype(np.float32)
    return picture[None], weight, np.zeros(len(FILTERS), np.float32)


def draw(*shown: Any) -> bytes:
    """Return the picture of :func:`draw_figure` as a PNG."""
    png = io.BytesIO()
    draw_figure(*shown).savefig(png, format="png")
    return png.getvalue()


def draw_figure(
    picture: np.ndarray,
    maps: np.ndarray | None,
    owner: StageResult | None,
    results: Sequence[StageResult],
    device: str,
) -> Figure:
    """The picture, ``maps`` ([filters, height, width], the output of the stage whose result is
    ``owner``; None if no stage gave any) and below them the result of every stage's check."""
    from matplotlib.figure import Figure

    rows = -(-len(results) // STAGES_A_ROW)
    figure = Figure(figsize=(11, 6.9 + 0.75 * rows), dpi=130, facecolor="white")
    figure.set_layout_engine("constrained", h_pad=0.06, w_pad=0.06)
    # Matplotlib's own annotations cannot tell one subfigure from an array of them.
    top, bottom = cast(Any, figure.subfigures(2, 1, height_ratios=(5.9, 0.6 + 0.75 * rows)))
    left, right = top.subfigures(1, 2, width_ratios=(1, 1.8))
    _, height, width = picture.shape
    title = f"the picture, {width} x {height} pixels"
    _show(left.subplots(), title, picture.transpose(1, 2, 0))
    if maps is not None and owner is not None:
        title = f"the maps of {owner.stage.name}: {owner.status}"
        right.suptitle(title, fontsize=11, color="black" if owner.ok else BAD)
        for axes, name, values in zip(right.subplots(2, 3).flat, FILTERS, maps, strict=True):
            _show(axes, name, values)
    _draw_results(bottom.subplots(), results)
    agreed = sum(result.ok for result in results)
    title = f"One picture, {len(FILTERS)} filters, {len(results)} stages: {agreed} of them right"
    figure.suptitle(title, fontsize=15, fontweight="bold")
    figure.supxlabel(
        "Every element of every map is checked against a float64 reference. error / bound is the "
        "largest error as a part of what float32 rounding\nallows: up to 1 is right. Lower row: "
        "red is above zero, blue below; the frames come from the zeros around the picture.\n"
        f"Computed on {device}.",
        fontsize=9,
        color="dimgrey",
    )
    return figure


def _show(axes: Axes, title: str, image: np.ndarray) -> None:
    colours, low, high = "gray", 0.0, 1.0
    if title in SIGNED:  # red above 0, blue below
        sizes = np.abs(image[np.isfinite(image)])
        high = max(1e-6, float(np.percentile(sizes, 99))) if sizes.size else 1.0
        colours, low = "RdBu_r", -high
    axes.imshow(image, interpolation="nearest", cmap=colours, vmin=low, vmax=high)
    axes.set_title(title, fontsize=11)
    axes.set_axis_off()


def _draw_results(axes: Axes, results: Sequence[StageResult]) -> None:
    """One box a stage: its name, the result of its check and how large its error is."""
    from matplotlib.transforms import Bbox

    columns = min(len(results), STAGES_A_ROW)
    rows, wide = -(-len(results) // columns), columns / STAGES_A_ROW
    middle = Bbox.from_bounds(0.5 - wide / 2, 0, wide, 1)
    boxes = axes.table([[""] * columns] * rows, cellLoc="center", bbox=middle)
    boxes.auto_set_font_size(False)
    for box in boxes.get_celld().values():
        box.set(edgecolor="white", linewidth=5, visible=False)
    for number, result in enumerate(results):
        box, ratio = boxes[divmod(number, columns)], result.error_over_bound
        name = result.stage.name.replace("_", "\n", 1).replace("_", " ")
        said = "" if ratio is None else f"\nerror / bound {ratio:.2g}"
        box.set(facecolor=GOOD_BOX if result.ok else BAD_BOX, visible=True)
        colour = GOOD if result.ok else BAD
        box.get_text().set(text=f"{name}\n{result.status}{said}", color=colour, fontsize=7)
    axes.set_axis_off()
