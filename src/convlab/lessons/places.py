"""Where the lessons and the measured results are: in the checkout, else in the package."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE.parents[2]


def in_checkout() -> bool:
    """Whether convlab runs from a checkout of its repository."""
    return (CHECKOUT / "lessons/source").is_dir()


def notebooks() -> Path:
    """The folder of the learners' notebooks, which has ``solutions`` in it.

    Raises ``FileNotFoundError`` where the installation holds none.
    """
    return _folder(CHECKOUT / "lessons", PACKAGE / "notebooks")


def results() -> Path:
    """The folder of the measurements, ``docs/results``. Raises as :func:`notebooks`."""
    return _folder(CHECKOUT / "docs/results", PACKAGE / "results")


def result(name: str) -> dict[str, Any]:
    """A file of these measurements by its name without ending, as the command wrote it."""
    file = results() / f"{name}.json"
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def require_measured(kind: str, name: str, measured: Iterable[str]) -> None:
    """Raise ``ValueError`` naming what was measured where ``name``, a stage or layer or the like,
    was not."""
    there = list(measured)
    if name not in there:
        raise ValueError(f"{kind} is {name!r}: measured were {', '.join(there)}")


def _folder(here: Path, packed: Path) -> Path:
    found = here if in_checkout() else packed
    if not found.is_dir():
        raise FileNotFoundError(f"there is no folder {str(found)!r}: install convlab again")
    return found


OUT_OF_THE_FOLDER = re.compile(r"\[([^\]]*)\]\((?:\.\./)+((?:docs|src)/[^)\s]*)\)")


def copies(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every notebook: where it goes below ``folder``, and its content.

    Links to convlab's documentation and source lead to the checkout; where there is none, as in an
    installed package, their words are left.
    """
    there = notebooks()
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
    if not in_checkout():
        return words
    try:
        root = Path(os.path.relpath(CHECKOUT, folder)).as_posix()
    except ValueError:  # on another drive
        return words
    return f"[{words}]({root}/{target})"
