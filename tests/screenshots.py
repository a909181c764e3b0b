"""The pictures of the viewer in the documentation: ``python tests/screenshots.py``.

Each is what a headless Chromium shows of a page, after some clicks.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from browser import Browser, BrowserMissing

from convlab.bench.textbook import CASES
from convlab.tracing import Trace, trace, trace_stage, write_page

FOLDER = Path("docs/images")


@dataclass(frozen=True)
class Picture:
    """A file, what is on the page, the window, and a script that picks what is shown."""

    file: str
    trace: Callable[[], Trace]
    height: int
    pick: str = ""
    dark: bool = False


def textbook(name: str) -> Trace:
    """The trace of one of the textbook's kernels."""
    (case,) = (case for case in CASES if case.name == name)
    return trace(case.kernel, case.grid, case.block, *case.arguments())


PICTURES = (
    Picture("trace_s05.png", lambda: trace_stage("s05"), 880, "go(1)"),
    Picture("trace_conflict.png", lambda: textbook("transpose_shared"), 880, "go(5)", dark=True),
)


def take(picture: Picture, browser: Browser, folder: Path) -> bytes:
    """The picture as PNG; the page is written to ``folder``."""
    file = folder / "page.html"
    write_page(picture.trace(), file)
    browser.window(1280, picture.height, dark=picture.dark)
    browser.open(file)
    browser.run(f"document.getElementById('how').open = false; {picture.pick}")
    return small(browser.screenshot())


def small(png: bytes) -> bytes:
    """The same picture with 256 colours, a third of the bytes."""
    from PIL import Image

    made = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        fewer = picture.convert("RGB").quantize(
            256, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE
        )
        fewer.save(made, "PNG", optimize=True)
    return made.getvalue()


def main() -> int:
    """Take them all; returns the exit code."""
    try:
        with Browser() as browser, tempfile.TemporaryDirectory() as folder:
            for picture in PICTURES:
                (FOLDER / picture.file).write_bytes(take(picture, browser, Path(folder)))
                print(f"wrote {FOLDER / picture.file}")
    except BrowserMissing as error:
        print(f"convlab: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
