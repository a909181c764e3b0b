"""The order of a program's operations: which may run at the same time, and which then conflict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np

from convlab.simulation.memory.touched import Touched, common
from convlab.simulation.rules.finding_words import STREAM_RACE
from convlab.simulation.rules.findings import Finding

DEFAULT = 0  # the number of the default stream
Clock = dict[int, int]  # the number of operations of each stream that are over
_LIBRARIES = tuple(
    f"{Path(module.__file__ or '').parent}/"
    for module in (sys.modules["convlab"], sys.modules["numba"], sys.modules["numba.cuda"], np)
)


@dataclass(eq=False)
class Operation:
    """A launch or a copy in a stream: what it is, the line that issued it, its place in the
    stream and the bytes that it touches."""

    what: str
    file: str
    line: int
    stream: int
    count: int
    touched: Touched


class StreamOrder:
    """The order in which a GPU runs the operations of all streams, as far as it is fixed.

    ``on_finding`` receives the conflicts of operations that no order separates. ``host`` counts the
    operations that the host knows to be over.
    """

    def __init__(self, on_finding: Callable[[Finding], None]) -> None:
        self._on_finding = on_finding
        self.host: Clock = {}
        self._issued: Clock = {}
        self._waits: dict[int, Clock] = {}  # by stream: operations that its next one waits for
        self._default: Clock = {}  # those that all wait for, since the default stream's last one
        self._open: list[Operation] = []  # those that later operations may run beside

    def issue(self, stream: object, what: str, touched: Touched) -> Operation:
        """Note an operation that has just run here. Report its conflicts with the operations that
        may run at the same time on a GPU."""
        number, before = number_of(stream), self.reached(stream)
        count = self._issued[number] = self._issued.get(number, 0) + 1
        after = self._waits[number] = before | {number: count}
        file, line = program_line()
        operation = Operation(what, file, line, number, count, touched)
        for other in not_over(self._open, before):
            self._compare(other, operation)
        if number == DEFAULT:  # later operations wait for this one, and so for those before it
            self._default, self._open = after, []
            return operation
        # In a loop only the last such operation counts: to wait for it is to wait for all.
        self._open = [
            one
            for one in self._open
            if one.stream != number or one.what != what or not one.touched.is_same(touched)
        ]
        self._open.append(operation)
        return operation

    def reached(self, stream: object) -> Clock:
        """Return the operations that are over when all operations of a stream so far are."""
        number = number_of(stream)
        if number == DEFAULT:
            return {**self._issued}
        return _merged(self._waits.get(number, {}), self._default, self.host)

    def wait(self, stream: object, clock: Clock) -> None:
        """Let the stream's next operation wait for the operations of a clock."""
        number = number_of(stream)
        self._waits[number] = _merged(self._waits.get(number, {}), clock)

    def host_waits(self, clock: Clock | None) -> None:
        """Note that the host has waited for the operations of a clock, or for all."""
        self.host = _merged(self.host, self._issued if clock is None else clock)
        self._open = not_over(self._open, self.host)

    def _compare(self, other: Operation, one: Operation) -> None:
        """Report bytes that one operation writes and the other one touches."""
        mine, its = one.touched, other.touched
        for does, some, did, others in (
            ("writes", mine.writes, "writes", its.writes + its.updates),
            ("reads", mine.reads, "writes", its.writes + its.updates),
            ("writes", mine.writes + mine.updates, "reads", its.reads),
            ("updates", mine.updates, "writes", its.writes),
        ):
            if (address := common(some, others)) is not None:
                array = mine.name(address) or its.name(address) or "an array"
                what = f"{one.what} {does} {array}, which {other.what} {did} in another stream: "
                what += "neither an event nor a synchronisation orders the two"
                self._on_finding(conflict_finding(one, other, what))
                return


def conflict_finding(one: Operation, other: Operation, what: str) -> Finding:
    """Return the finding at the line of one operation that names the line of the other."""
    return Finding(STREAM_RACE, one.what, one.file, one.line, what, other.line, other.file)


def number_of(stream: object) -> int:
    """Return a stream's number. Handles of other libraries have the default stream's."""
    return getattr(stream, "number", DEFAULT)


def not_over(operations: Iterable[Operation], clock: Clock) -> list[Operation]:
    """Return the operations that are not over by this clock."""
    return [one for one in operations if one.count > clock.get(one.stream, 0)]


def _merged(*clocks: Clock) -> Clock:
    merged: Clock = {}
    for clock in clocks:
        for number, count in clock.items():
            merged[number] = max(count, merged.get(number, 0))
    return merged


def program_frame() -> FrameType:
    """Return the frame of the program that runs now, outside of convlab, Numba and NumPy."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return frame


def program_line() -> tuple[str, int]:
    """Return the file and line of the program that runs now, of :func:`program_frame`."""
    frame = program_frame()
    return frame.f_code.co_filename, frame.f_lineno
