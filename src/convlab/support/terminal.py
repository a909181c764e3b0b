"""The way to a terminal: what convlab prints for people goes through here.

Names of files, systems, devices, kernels and arrays, lines of source and messages of libraries are
strangers' text. A terminal obeys the control characters in it: they move the cursor, set its title,
hide lines or turn the direction of writing. Here each of them becomes visible instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from convlab.support.values import visible


class Terminal(Console):
    """Rich's console whose text is only text: no control characters, and no markup such as
    ``[bold]`` or ``:smile:`` in it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of what is shown, their text made visible. Segments that control the
        terminal are Rich's own, of a progress bar."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
