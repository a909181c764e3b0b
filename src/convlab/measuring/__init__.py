"""Measuring: systems on layers, each output checked, then timed; results, reports and pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table, empty without rows; its first ``left`` columns hold words, not numbers."""
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    lines = [
        f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in row)} |\n"
        for row in (head, rule, *rows)
    ]
    return "".join(lines) if len(lines) > 2 else ""
