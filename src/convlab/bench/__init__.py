"""Measuring: systems on layers, each output checked, then timed; results, reports and pages."""

from __future__ import annotations

from collections.abc import Sequence


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
