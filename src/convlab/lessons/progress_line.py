"""The line that says how far a long check is: "problem 3 of 16: several images"."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TextIO
from uuid import uuid4

QUIET_SECONDS = 2.0  # a check that takes no longer needs no line


class ProgressLine:
    """One line, which each next step replaces: in a notebook as an output of the cell, where the
    check's feedback replaces it at last, and on a terminal as a line of standard error."""

    def __init__(self, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._shown_from = monotonic() + quiet_seconds
        self._terminal: TextIO | None = None
        self.within = ""  # begins every step, such as "make_kernel: "
        self.display_id = ""  # of the notebook's output; empty if there is none

    def step(self, name: str, number: int, count: int) -> None:
        """Say which problem comes next."""
        if monotonic() < self._shown_from:
            return
        text = f"{self.within}problem {number} of {count}: {name} ..."
        if _in_notebook():
            self._show(text)
        elif sys.stderr.isatty():
            self._terminal = sys.stderr
            self._terminal.write(f"\r\x1b[K{text}")
            self._terminal.flush()

    def end(self) -> None:
        """Clear the line on a terminal. A notebook's is replaced by the feedback."""
        if self._terminal is not None:
            self._terminal.write("\r\x1b[K")
            self._terminal.flush()

    def _show(self, text: str) -> None:
        from IPython.display import display

        update = bool(self.display_id)
        self.display_id = self.display_id or uuid4().hex
        display({"text/plain": text}, raw=True, display_id=self.display_id, update=update)


def _in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, which can replace what it has shown."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


_lines: list[ProgressLine] = []  # that of the check at work


@contextmanager
def progress_line() -> Iterator[ProgressLine]:
    """Show one line while a check runs; checks that it calls use the same line."""
    if _lines:
        yield _lines[-1]
        return
    _lines.append(line := ProgressLine())
    try:
        yield line
    finally:
        _lines.pop()
        line.end()


@contextmanager
def within(part: str) -> Iterator[None]:
    """Name the part whose problems are tried, if a check is at work."""
    if not _lines:
        yield
        return
    line, before = _lines[-1], _lines[-1].within
    line.within = f"{part}: "
    try:
        yield
    finally:
        line.within = before


def say_progress(name: str, number: int, count: int) -> None:
    """Say which problem comes next, if a check is at work."""
    if _lines:
        _lines[-1].step(name, number, count)
