"""Long work says how far it is: durations in words, lines on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from convlab.support.values import counted, visible

PROGRESS_SECONDS = 5.0  # at least, between two lines that say how far a launch is


def duration(seconds: float) -> str:
    """Seconds as people say them: "5 minutes"."""
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return counted(round(seconds), "second")


def progress() -> Callable[[str, int, int], None]:
    """A function to be called for each block that begins, with the kernel's name, the number of the
    block and how many there are: it says on standard error how far a long launch is."""
    begun = last = time.monotonic()

    def on_block(kernel: str, number: int, blocks: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > max(PROGRESS_SECONDS, (now - begun) / 20):
            last = now
            spent = duration(now - begun)
            say(f"{kernel}: block {number} of {blocks} after {spent}; Ctrl-C ends it")

    return on_block


def say(line: str) -> None:
    """Print a line on standard error, as the command does."""
    print("convlab:", visible(line).replace("\n", "\\n"), file=sys.stderr, flush=True)
