"""Where the lessons and the measured results are: in the checkout, else in the package."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
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
    return _folder("lessons", "notebooks")


def results() -> Path:
    """The folder of the measurements, ``docs/results``. Raises as :func:`notebooks`."""
    return _folder("docs/results", "results")


def _folder(name: str, packed: str) -> Path:
    found = CHECKOUT / name if in_checkout() else PACKAGE / packed
    if not found.is_dir():
        raise FileNotFoundError(f"there is no folder {str(found)!r}: install convlab again")
    return found


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


OUT_OF_THE_FOLDER = re.compile(r"\[([^\]]*)\]\((?:\.\./)+((?:docs|src)/[^)\s]*)\)")


def copies(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every notebook: where it goes below ``folder``, and its content.

    Links to convlab's documentation and source lead to the checkout; where there is none, as in an
    installed package, or it is on another drive, their words are left.
    """
    there = notebooks()
    for source in sorted(there.glob("*.ipynb")) + sorted(there.glob("solutions/*.ipynb")):
        target = folder / source.relative_to(there)
        link = r"\1"
        if in_checkout():
            with suppress(ValueError):
                root = Path(os.path.relpath(CHECKOUT, target.parent)).as_posix()
                root = json.dumps(root)[1:-1].replace("\\", r"\\")
                link = rf"[\1]({root}/\2)"
        yield target, OUT_OF_THE_FOLDER.sub(link, source.read_text(encoding="utf-8")).encode()
