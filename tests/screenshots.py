"""The pictures of the viewer in the documentation: ``python tests/screenshots.py``.

Each is what a headless Chromium shows of a page, after some clicks.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from browser import Browser, BrowserMissing
from kernels.textbook import CASES

from convlab.tracing import Trace, trace, trace_stage, write_page

FOLDER = Path("docs/images")


def textbook(name: str) -> Trace:
    """The trace of one of the textbook's kernels."""
    (case,) = (case for case in CASES if case.name == name)
    return trace(case.kernel, case.grid, case.block, *case.arguments())


# A file, what is on the page, whether it is dark, and the request that is shown.
PICTURES = (
    ("trace_m03.png", lambda: trace_stage("m03"), False, 1),
    ("trace_conflict.png", lambda: textbook("transpose_shared"), True, 5),
)


def main() -> int:
    """Take them all; returns the exit code."""
    from PIL import Image

    try:
        with Browser() as browser, tempfile.TemporaryDirectory() as folder:
            for name, traced, dark, request in PICTURES:
                page = Path(folder) / "page.html"
                write_page(traced(), page)
                browser.window(1280, 880, dark=dark)
                browser.open(page)
                browser.run(f"document.getElementById('how').open = false; go({request})")
                with Image.open(io.BytesIO(browser.page.screenshot())) as picture:
                    fewer = picture.convert("RGB").quantize(  # 256 colours, a third of the bytes
                        256, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE
                    )
                    fewer.save(FOLDER / name, optimize=True)
                print(f"wrote {FOLDER / name}")
    except BrowserMissing as error:
        print(f"convlab: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
