"""Files of measurements: written by what runs on a GPU, shown as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convlab.files import write_whole

INTERRUPTED = 130  # what shells give for Ctrl-C


def write_results(file: Path, document: dict[str, Any]) -> None:
    """Write the results whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, (json.dumps(document, indent=1) + "\n").encode())


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, or nothing where there are no rows; words stand in its first ``left``
    columns, numbers in the others."""
    if not rows:
        return ""
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    return "".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in row)} |\n"
        for row in (head, rule, *rows)
    )
