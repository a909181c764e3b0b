"""Pieces of what verbs show: a progress bar, tables of text, and the colours of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from convlab.support.columns import Columns
from convlab.support.terminal import Terminal

BAD, GOOD, DOUBTFUL = "bold red", "green", "yellow"


@contextmanager
def progress(steps: Sequence[str], label: str | None = None) -> Iterator[Callable[[], None]]:
    """A bar on standard error that goes away; yields what to call after each step. ``label`` stands
    beside it where steps end in no known order, otherwise the name of the next step."""
    console = Terminal(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        refresh_per_second=4,
    ) as bar:
        shown = [*steps, "done"] if label is None else [label] * len(steps) + ["done"]
        upcoming = iter(shown)
        task = bar.add_task(next(upcoming), total=len(steps))
        yield lambda: bar.update(task, advance=1, description=next(upcoming))


Cell = Text | str | None


def table_of(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], words: int = 1, folded: Iterable[str] = ()
) -> Columns:
    """A table of ``words`` columns of text, then of numbers; ``-`` stands for None. Columns in
    ``folded`` have text too, which may take several lines."""
    cells = ([Text("-" if c is None else c) if not isinstance(c, Text) else c for c in row]
             for row in rows)  # fmt: skip
    return Columns(head, cells, words, folded)


def number(value: float | None, form: str) -> str | None:
    """Return the number in a format of :func:`format`; None stays None, a cell without a value."""
    return None if value is None else format(value, form)
