"""``python -m convlab.site`` builds the site from a checkout of convlab: it writes to ``build/``
alone, and it keeps unchanged pages, which makes a second build quick."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE, DOCTREES, SITE = "build/site-source", "build/site-doctrees", "build/site"
CHECKOUT = ("docs/conf.py", "docs/README.md", "src/convlab/stages")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site; returns the exit code: 2 where it cannot be built here."""
    parser = argparse.ArgumentParser(prog="python -m convlab.site", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="convlab's source folder")
    root = parser.parse_args(arguments).root.resolve()
    missing = [name for name in CHECKOUT if not (root / name).exists()]
    if missing:
        print(f"convlab: there is no {missing[0]} in {root}: run this in convlab's source folder",
              file=sys.stderr)  # fmt: skip
        return 2
    try:
        return build(root)
    except ImportError as error:
        print(f"convlab: {error.name} is missing, and the site needs it: run make site",
              file=sys.stderr)  # fmt: skip
        return 2


def build(root: Path) -> int:
    """Collect what Sphinx reads, and run Sphinx; returns 0, or 1 where Sphinx warns of anything,
    such as a link that leads nowhere."""
    from sphinx.cmd.build import main as sphinx

    from convlab.site.pages import collect

    if collect(root, root / SOURCE):
        shutil.rmtree(root / SITE, ignore_errors=True)
        shutil.rmtree(root / DOCTREES, ignore_errors=True)
    failed = sphinx([
        "-b", "html", "-c", str(root / "docs"), "-d", str(root / DOCTREES),
        "-W", "--keep-going", "-n", "-q", "-j", "2", str(root / SOURCE), str(root / SITE),
    ])  # fmt: skip
    if not failed:
        print(f"open {root / SITE / 'index.html'} with a browser")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
