"""Monitor a GPU by nvidia-smi: its clocks, and whether other processes use it.

No setting changes. A query starts now and is read later, so that it does not delay timed work.
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


def _ask(query: str, gpu: str | None) -> Callable[[], list[str] | None]:
    """Start a query; call the result for the answer's lines, None where there is no answer."""
    command = ["nvidia-smi", query, *([f"--id={gpu}"] if gpu else [])]
    try:
        process = subprocess.Popen(
            [*command, "--format=csv,noheader,nounits"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
    except OSError:
        return lambda: None

    def lines() -> list[str] | None:
        try:
            text, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return None
        return None if process.returncode else text.splitlines()

    return lines


def look(gpu: str | None) -> Callable[[], Look]:
    """Ask for clocks and load of the GPU of that UUID; call the result for the answer."""
    asked = _ask(f"--query-gpu={','.join(FIELDS)}", gpu)
    return lambda: _look(asked())


def _look(lines: Sequence[str] | None) -> Look:
    values = (lines or [""])[0].split(", ")
    if len(values) != len(FIELDS):
        return Look()
    return Look(*(int(value) if value.strip().isdecimal() else None for value in values))


def processes(gpu: str | None) -> Callable[[], tuple[int, ...] | None]:
    """Ask which processes compute on it, ours included; call the result for their ids, None where
    they are unknown. In a container they may be the ids outside of it."""
    asked = _ask("--query-compute-apps=pid", gpu)

    def answer() -> tuple[int, ...] | None:
        if (lines := asked()) is None:
            return None
        return tuple(int(line) for line in lines if line.strip().isdecimal())

    return answer


def newcomers(seen: Sequence[int] | None, expected: Sequence[int] | None, own: int) -> int | None:
    """How many of the processes ``seen`` on a GPU are not ``expected`` there; None where that is
    unknown. ``own`` computes there and is expected.

    Ids are compared where ``own`` is seen under its own id. Otherwise they are ids outside of a
    container, and only their number is compared. Where none is seen, not even ``own``, nothing is.
    """
    if not seen or expected is None:
        return None
    if own in seen:
        return len(set(seen) - set(expected))
    return max(0, len(seen) - len(expected))


def why_busy(seen: Look) -> str | None:
    """Why a GPU on which we do nothing yet is too busy to measure, in one sentence; None when it is
    idle."""
    if (seen.utilisation or 0) > IDLE_PERCENT:
        return f"other processes keep the GPU busy {seen.utilisation} % of the time"
    if seen.used_mib and seen.total_mib and 100 * seen.used_mib > MEMORY_PERCENT * seen.total_mib:
        used, whole = seen.used_mib / 1024, seen.total_mib / 1024
        return f"other processes hold {used:.1f} of the GPU's {whole:.0f} GiB"
    return None
