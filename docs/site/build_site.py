"""``python docs/site/build_site.py`` (``make site``) builds the site: it writes to ``build/``
alone, and it keeps unchanged pages, which makes a second build quick."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build"
SITE = BUILD / "site"


def build() -> int:
    """Collect what Sphinx reads, and run Sphinx; returns 0, or 1 where Sphinx warns of anything,
    such as a link that leads nowhere."""
    from site_pages import collect
    from sphinx.cmd.build import main as sphinx

    source, doctrees = BUILD / "site-source", BUILD / "site-doctrees"
    if collect(source):
        shutil.rmtree(SITE, ignore_errors=True)
        shutil.rmtree(doctrees, ignore_errors=True)
    failed = sphinx([
        "-b", "html", "-c", str(HERE), "-d", str(doctrees),
        "-W", "--keep-going", "-n", "-q", "-j", "2", str(source), str(SITE),
    ])  # fmt: skip
    if not failed:
        print(f"open {SITE / 'index.html'} with a browser")
    return int(bool(failed))


if __name__ == "__main__":
    try:
        sys.exit(build())
    except ImportError as error:
        print(f"convlab: {error.name} is missing, and the site needs it: run make site",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)
