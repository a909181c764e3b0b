"""The notebooks as they are copied to somebody's folder: links lead where the rest is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from convlab.lessons import places

OUT_OF_THE_FOLDER = re.compile(r"\[([^\]]*)\]\((?:\.\./)+((?:docs|src)/[^)\s]*)\)")


def copies(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every notebook: where it goes below ``folder``, and its content.

    Links to convlab's documentation and source lead to the checkout; where there is none, as in an
    installed package, their words are left.
    """
    there = places.notebooks()
    for source in sorted(there.glob("*.ipynb")) + sorted(there.glob("solutions/*.ipynb")):
        target = folder / source.relative_to(there)
        yield target, _relinked(source.read_text(encoding="utf-8"), target.parent).encode()


def _relinked(text: str, folder: Path) -> str:
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            whole = "".join(cell["source"])
            cell["source"] = OUT_OF_THE_FOLDER.sub(
                lambda link: _link(link, folder), whole
            ).splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _link(link: re.Match[str], folder: Path) -> str:
    words, target = link.groups()
    if not places.in_checkout():
        return words
    try:
        root = Path(os.path.relpath(places.CHECKOUT, folder)).as_posix()
    except ValueError:  # on another drive
        return words
    return f"[{words}]({root}/{target})"
