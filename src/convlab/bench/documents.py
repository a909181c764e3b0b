"""Marked sections of the documentation, made from files of results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = "docs/results"
VERSIONS = ("numba-cuda", "numpy", "torch")
Maker = Callable[[str], str]


def read_json(file: Path) -> Any:
    """The document in a file. Raises ``ValueError`` naming a file that holds no JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error


def filled(text: str, makers: Mapping[str, Maker]) -> str:
    """The text with each known section (``<!-- NAME:begin -->`` to ``<!-- NAME:end -->``) made
    anew. A maker gets the text that stands there now. A section that is not there is left out.

    Raises ``ValueError`` for a section that begins more than once or does not end.
    """
    for name, make in makers.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if not text.count(begin.strip()) and not text.count(end):
            continue
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"section {name!r} must begin and end once, each on its own line")
        head, rest = text.split(begin)
        old, tail = rest.split(end)
        text = f"{head}{begin}{make(old)}{end}{tail}"
    return text


def sections_of(text: str) -> list[str]:
    """The names of the sections that a page has."""
    return re.findall(r"^<!-- ([\w-]+):begin -->$", text, re.MULTILINE)


def source(file: str, environment: Mapping[str, Any] | None, command: str) -> str:
    """The line below a table: the command that wrote its file, when, and with which versions."""
    known = environment or {}
    packages = known.get("packages") or {}
    when = [str(known.get("date") or "")[:10]]
    when += [f"{name} {packages[name]}" for name in VERSIONS if packages.get(name)]
    words = ", ".join(filter(None, when))
    typed = known.get("command") or command
    return f"`{typed}`{f' ({words})' if words else ''}: [{file}](results/{file}).\n"
