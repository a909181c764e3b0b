"""Monitor a GPU by nvidia-smi: its clocks, and whether other processes use it.

No setting is changed. A query is started and its answer is read later, so that the query does not
delay the work that is timed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

IDLE_PERCENT = 5  # of the time: a desktop's own drawing stays below
MEMORY_PERCENT = 10  # of all memory, held by others
SETTLED_PERCENT = 2.0  # a spread of times up to this needs no mark in a table
FIELDS = (
    "clocks.sm", "clocks.mem", "clocks.max.sm", "utilization.gpu", "memory.used", "memory.total",
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """What nvidia-smi said at one moment: MHz, percent, MiB; None where it does not know."""

    sm: int | None = None
    memory: int | None = None
    max_sm: int | None = None
    utilisation: int | None = None
    used_mib: int | None = None
    total_mib: int | None = None


class Query:
    """A query to nvidia-smi that is already running."""

    def __init__(self, options: Sequence[str]) -> None:
        command = ["nvidia-smi", *options, "--format=csv,noheader,nounits"]
        self._process: subprocess.Popen[str] | None
        try:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            self._process = None

    def lines(self) -> list[str] | None:
        """The answer; None where there is none."""
        if self._process is None:
            return None
        try:
            text, _ = self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return None
        return None if self._process.returncode else text.splitlines()


def look(gpu: str | None) -> Callable[[], Look]:
    """Ask how the GPU of that UUID is; call what is returned for the answer."""
    asked = Query([f"--query-gpu={','.join(FIELDS)}", *_of(gpu)])
    return lambda: _look(asked.lines())


def processes(gpu: str | None) -> Callable[[], tuple[int, ...] | None]:
    """Ask which processes compute on it, ours among them, by their numbers; None where nobody
    knows. In a container they may be the numbers outside of it."""
    asked = Query(["--query-compute-apps=pid", *_of(gpu)])

    def numbers() -> tuple[int, ...] | None:
        lines = asked.lines()
        if lines is None:
            return None
        return tuple(int(line) for line in lines if line.strip().isdecimal())

    return numbers


def newcomers(seen: Sequence[int] | None, expected: Sequence[int] | None, own: int) -> int | None:
    """How many of the processes ``seen`` on a GPU are not ``expected`` there; None where nobody
    knows. ``own`` is one that computes there and is expected.

    Where it is seen under its own number the others are, too, and numbers are compared. Where only
    other numbers are seen, those outside of a container, they are counted. Where none is seen, not
    even ``own``, nothing can be.
    """
    if not seen or expected is None:
        return None
    if own in seen:
        return len(set(seen) - set(expected))
    return max(0, len(seen) - len(expected))


def _of(gpu: str | None) -> list[str]:
    return [f"--id={gpu}"] if gpu else []


def _look(lines: Sequence[str] | None) -> Look:
    answers = (lines[0] if lines else "").split(", ")
    if len(answers) != len(FIELDS):
        return Look()
    return Look(*(int(answer) if answer.strip().isdecimal() else None for answer in answers))


def why_busy(seen: Look) -> str | None:
    """Why a GPU on which we do nothing yet is no place to measure, in one sentence; None when it
    is one."""
    if seen.utilisation is not None and seen.utilisation > IDLE_PERCENT:
        return f"other processes keep the GPU busy {seen.utilisation} % of the time"
    if seen.used_mib is not None and seen.total_mib:
        if 100 * seen.used_mib > MEMORY_PERCENT * seen.total_mib:
            return (
                f"other processes hold {seen.used_mib / 1024:.1f} of the GPU's "
                f"{seen.total_mib / 1024:.0f} GiB"
            )
    return None
