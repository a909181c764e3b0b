"""Findings, the mistakes of a kernel in plain words, and the errors that carry them."""

from __future__ import annotations

from dataclasses import dataclass

from convlab.simulation.rules.finding_words import IMPOSSIBLE
from convlab.simulation.rules.remedies import remedy_of
from convlab.support.code_places import file_said

FindingKey = tuple[object, ...]  # of a finding among those of a launch


@dataclass(frozen=True)
class Finding:
    """One mistake of a kernel. ``line`` of ``file`` is where it shows; ``other_line`` of
    ``other_file`` is the other side of a race or barrier.

    ``block`` and ``thread`` are the first that made it, ``count`` the number of times it was seen
    on these lines; array, index and shape are None if no array is concerned.
    """

    kind: str
    kernel: str
    file: str
    line: int
    what: str
    other_line: int | None = None
    other_file: str | None = None
    block: tuple[int, ...] | None = None
    thread: tuple[int, ...] | None = None
    array: str | None = None
    index: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    count: int = 1

    @property
    def past_end(self) -> bool:
        """True if the index reaches past the array's end, where a GPU has foreign memory."""
        return reaches_past_end(self.index, self.shape)

    @property
    def remedy(self) -> str:
        """The usual way to fix it."""
        return remedy_of(self.kind, self.what)

    def __str__(self) -> str:
        lines = f"line {self.line} of {file_said(self.file)}"
        if self.other_file not in (None, self.file):
            lines += f" and line {self.other_line} of {file_said(str(self.other_file))}"
        elif self.other_line not in (None, self.line):
            lines = f"lines {self.line} and {self.other_line} of {file_said(self.file)}"
        who = f" (block {self.block}, thread {self.thread})" if self.thread is not None else ""
        times = f" [{self.count} times]" if self.count > 1 else ""
        return f"{self.kind}, {self.kernel}, {lines}: {self.what}{who}{times}. {self.remedy}"


def reaches_past_end(index: tuple[int, ...] | None, shape: tuple[int, ...] | None) -> bool:
    """Return whether an index lies past the end of an array of that shape, along any axis."""
    if index is None or shape is None:
        return False
    return any(entry >= extent for entry, extent in zip(index, shape, strict=False))


class SimulationError(RuntimeError):
    """A kernel that a GPU would not run, or would run wrongly. The message lists the findings;
    ``ended`` says whether the launch stopped before its end."""

    def __init__(
        self, message: str, findings: tuple[Finding, ...] = (), ended: bool = True
    ) -> None:
        super().__init__(message)
        self.findings, self.ended = findings, ended


class NotSimulated(SimulationError):
    """The kernel uses a feature that the simulator lacks; the message names it and the line."""


class ImpossibleLaunch(SimulationError, ValueError, MemoryError):
    """A launch that CUDA refuses: its sizes, or the memory that its kernel asks for."""


class Stop(Exception):
    """Ends a launch whose kernel cannot go on; what is wrong is among the findings."""


FATAL = ("out of bounds", "misaligned")  # these end a launch
# Reported without strict checks too.
ALWAYS = (*FATAL, "deadlock", "endless loop", "wraps around", "division by zero", IMPOSSIBLE)


def error_of(found: tuple[Finding, ...], ended: bool) -> SimulationError:
    """Return the error with these findings."""
    kind = ImpossibleLaunch if any(one.kind == IMPOSSIBLE for one in found) else SimulationError
    message = "\n".join([f"kernel {found[0].kernel} is wrong:", *(f"- {f}" for f in found)])
    return kind(message, found, ended)


def impossible_launch(kernel: str, what: str, file: str, line: int) -> SimulationError:
    """Return the error of a launch, in that line of a program, whose sizes CUDA refuses."""
    return error_of((Finding(IMPOSSIBLE, kernel, file, line, what),), ended=True)
