"""Which operations of a program's streams may run at the same time, and what they then do wrong.

The simulator runs launches and copies at once, in the program's order. On a GPU an operation waits
only for those before it in its stream, for events that its stream waits for, and for the default
stream, which waits for all other streams as they wait for it. The host knows that an operation is
over once the host has synchronised. If nothing orders two operations, and one writes bytes that the
other touches, that is a finding. The host sees what is copied to pinned memory, or stored in
managed memory, only after it has waited for that copy or launch.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from convlab.simulation.access_log import ATOMIC, READ, WRITE, Accesses
from convlab.simulation.arrays import CheckedArray, owner_of, start_of
from convlab.simulation.findings import STREAM_RACE, Finding

DEFAULT = 0  # the number of the default stream
_OF_OTHERS = tuple(
    f"{Path(module.__file__ or '').parent}/"
    for module in (sys.modules["convlab"], sys.modules["numba"], sys.modules["numba.cuda"])
)
Clock = dict[int, int]  # how many operations of each stream are over


class PinnedMemory(np.ndarray):
    """Host memory to which copies are asynchronous. A program has plain views of it: what NumPy
    makes from those, as ``np.empty_like`` does, is not pinned."""


class Stream:
    """A stream of ``numba.cuda``."""

    def __init__(self, streams: Streams, number: int) -> None:
        self._streams, self.number = streams, number

    def synchronize(self) -> None:
        self._streams.host_waits(self._streams.reached(self))

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        yield self
        self.synchronize()


class Event:
    """An event of ``numba.cuda``. It takes no times."""

    def __init__(self, streams: Streams, timing: bool = True) -> None:
        self._streams, self._clock = streams, Clock()

    def record(self, stream: Any = DEFAULT) -> None:
        self._clock = self._streams.reached(stream)

    def wait(self, stream: Any = DEFAULT) -> None:
        self._streams.wait(stream, self._clock)

    def synchronize(self) -> None:
        self._streams.host_waits(self._clock)

    def query(self) -> bool:
        self.synchronize()
        return True

    def elapsed_time(self, event: Event) -> float:
        return -1.0


Bytes = np.ndarray | range  # addresses of elements on the host, or all from one to another


@dataclass
class Touched:
    """What an operation reads and writes, and the arrays that hold it, by name: these stay alive,
    so that no other array gets their addresses."""

    hosts: list[tuple[str, np.ndarray]] = field(default_factory=list)
    reads: list[Bytes] = field(default_factory=list)
    writes: list[Bytes] = field(default_factory=list)
    updates: list[Bytes] = field(default_factory=list)  # by atomics

    def whole(self, host: np.ndarray, writes: bool) -> None:
        """A copy of all elements."""
        at: Bytes = range(*byte_bounds(host))
        if not (host.flags.c_contiguous or host.flags.f_contiguous):
            steps = map(operator.mul, map(np.arange, host.shape), host.strides)
            at = np.sort(start_of(host) + reduce(np.add.outer, steps).ravel())
        self.hosts.append(("", host))
        (self.writes if writes else self.reads).append(at)

    def look(self, accesses: Accesses, arrays: Iterable[CheckedArray]) -> None:
        """What a kernel has done to its arrays."""
        for array in arrays:
            low, high = byte_bounds(array.host)
            there = accesses.address + (start_of(array.host) - array.place)
            inside, kind = (there >= low) & (there < high), accesses.kind & 3
            self.hosts.append((array.name, array.host))
            self.reads.append(np.unique(there[inside & (kind == READ)]))
            self.writes.append(np.unique(there[inside & (kind == WRITE)]))
            self.updates.append(np.unique(there[inside & (kind == ATOMIC)]))

    def is_same(self, other: Touched) -> bool:
        """Whether the other operation has touched the same bytes in the same way."""
        ways = ((self.reads, other.reads), (self.writes, other.writes))
        return all(
            len(mine) == len(its) and all(map(_equal, mine, its))
            for mine, its in (*ways, (self.updates, other.updates))
        )

    def name(self, address: int) -> str:
        for name, host in self.hosts:
            low, high = byte_bounds(host)
            if name and low <= address < high:
                return name
        return ""


def _equal(one: Bytes, other: Bytes) -> bool:
    if isinstance(one, range) or isinstance(other, range):
        return type(one) is type(other) and bool(one == other)
    return np.array_equal(one, other)


def _common(some: Iterable[Bytes], others: Sequence[Bytes]) -> int | None:
    """An address that is in one of the first and in one of the second."""
    for one, other in itertools.product(some, others):
        if not len(one) or not len(other) or one[-1] < other[0] or other[-1] < one[0]:
            continue
        first, second = (other, one) if isinstance(one, range) else (one, other)
        if not isinstance(second, range):
            found = np.intersect1d(first, second)
        elif isinstance(first, range):
            found = np.arange(max(first.start, second.start), min(first.stop, second.stop))[:1]
        else:
            found = first[(first >= second.start) & (first < second.stop)]
        if found.size:
            return int(found[0])
    return None


@dataclass(eq=False)
class _Operation:
    what: str
    file: str
    line: int
    stream: int
    count: int
    touched: Touched


@dataclass(eq=False)
class _Late:
    """Host memory that holds new values when an operation is over."""

    operation: _Operation
    target: np.ndarray
    values: np.ndarray
    before: np.ndarray | None = None  # of managed memory: what the kernel found there


class Streams:
    """The streams of a program; ``tell`` hears of findings. Threads hold the ``lock`` in turn."""

    def __init__(self, tell: Callable[[Finding], None]) -> None:
        self._tell, self.lock = tell, RLock()
        self._issued: Clock = {}
        self._waits: dict[int, Clock] = {}  # by stream: what its next operation waits for
        self._default: Clock = {}  # and what any does, since the last one of the default stream
        self._host: Clock = {}  # what the host knows to be over
        self._open: list[_Operation] = []
        self._late: list[_Late] = []
        self._streams = 0

    def stream(self) -> Stream:
        self._streams += 1
        return Stream(self, self._streams)

    def issue(self, stream: Any, what: str, touched: Touched) -> _Operation:
        """Note an operation that has just run here, and what it and others do at the same time."""
        with self.lock:
            return self._issue(number_of(stream), self.reached(stream), what, touched)

    def _issue(self, number: int, before: Clock, what: str, touched: Touched) -> _Operation:
        count = self._issued[number] = self._issued.get(number, 0) + 1
        after = before | {number: count}
        self._waits[number] = after
        if number == DEFAULT:
            self._default = after
        operation = _Operation(what, *_line(), number, count, touched)
        for other in _not_over(self._open, before):
            self._compare(other, operation)
        if number == DEFAULT:  # later operations wait for this one, and so for those before it
            self._open.clear()
        else:  # of a program's loop only the last launch counts: what waits for it waits for all
            self._open = [
                one
                for one in self._open
                if one.stream != number or one.what != what or not one.touched.is_same(touched)
            ]
            self._open.append(operation)
        return operation

    def reached(self, stream: Any) -> Clock:
        """What is over when all operations of a stream so far are."""
        number = number_of(stream)
        if number == DEFAULT:
            return {**self._issued}
        return _merged(self._waits.get(number, {}), self._default, self._host)

    def wait(self, stream: Any, clock: Clock) -> None:
        number = number_of(stream)
        self._waits[number] = _merged(self._waits.get(number, {}), clock)

    def host_waits(self, clock: Clock | None = None) -> None:
        """The host has waited for these operations, or for all."""
        with self.lock:
            self._host = _merged(self._host, self._issued if clock is None else clock)
            self._open = _not_over(self._open, self._host)
            waiting = _not_over([one.operation for one in self._late], self._host)
            self._arrive(one for one in self._late if one.operation not in waiting)

    def copied(self, stream: Any, target: np.ndarray, values: np.ndarray) -> None:
        """A copy to host memory: the host waits for it unless that is pinned."""
        touched, is_pinned = Touched(), isinstance(owner_of(target), PinnedMemory)
        touched.whole(values, writes=False)
        if is_pinned:
            touched.whole(target, writes=True)
        with self.lock:
            operation = self.issue(stream, "copy_to_host", touched)
            if is_pinned and operation.stream != DEFAULT:
                self._late.append(_Late(operation, target, values.copy()))
            else:
                self.host_waits(self.reached(stream))
                np.copyto(target, values)

    def device_reads(self, host: np.ndarray) -> None:
        """The next operation finds in host memory what those before it have stored there."""
        with self.lock:
            self._arrive(one for one in self._late if np.may_share_memory(one.target, host))

    def device_sees(self, arrays: Iterable[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Managed arrays as the next kernel finds them, each with a copy."""
        shared = [array for array in arrays if array.flags.writeable]
        for array in shared:
            self.device_reads(array)
        return [(array, array.copy("K")) for array in shared]

    def hide(self, operation: _Operation, seen: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """The host has to wait for what the kernel has stored in managed arrays."""
        for array, before in seen:
            self._late.append(_Late(operation, array, array.copy("K"), before))
            array[...] = before

    def _arrive(self, some: Iterable[_Late]) -> None:
        arriving = [*some]
        self._late = [one for one in self._late if one not in arriving]
        for one in arriving:
            if one.before is None:
                np.copyto(one.target, one.values)
            else:
                self._arrive_managed(one, *map(_bytes, (one.target, one.values, one.before)))

    def _arrive_managed(self, late: _Late, *bytes_: np.ndarray) -> None:
        """What the host has written elsewhere meanwhile stays."""
        target, values, before = bytes_
        by_host = np.flatnonzero((target != before).any(axis=1)) * late.target.itemsize
        done = late.operation.touched
        touched = done.reads + done.writes + done.updates
        np.copyto(target, values, where=values != before)
        if _common([start_of(late.target) + by_host], touched) is not None:
            what = f"the host writes to managed memory while {late.operation.what} may use it: it"
            what += " has not waited for that launch"
            self._find(late.operation, late.operation, what)

    def _compare(self, other: _Operation, one: _Operation) -> None:
        mine, its = one.touched, other.touched
        for does, some, did, others in (
            ("writes", mine.writes, "writes", its.writes + its.updates),
            ("reads", mine.reads, "writes", its.writes + its.updates),
            ("writes", mine.writes + mine.updates, "reads", its.reads),
            ("updates", mine.updates, "writes", its.writes),
        ):
            if (address := _common(some, others)) is not None:
                array = mine.name(address) or its.name(address) or "an array"
                what = f"{one.what} {does} {array}, which {other.what} {did} in another stream: "
                what += "neither an event nor a synchronisation orders the two"
                self._find(one, other, what)
                return

    def _find(self, one: _Operation, other: _Operation, what: str) -> None:
        self._tell(Finding(STREAM_RACE, one.what, one.file, one.line, what, other.line, other.file))


def number_of(stream: Any) -> int:
    """The default stream has number 0, as have handles of other libraries."""
    return getattr(stream, "number", DEFAULT)


def _not_over(operations: Iterable[_Operation], clock: Clock) -> list[_Operation]:
    return [one for one in operations if one.count > clock.get(one.stream, 0)]


def _bytes(memory: np.ndarray) -> np.ndarray:
    """A row of bytes for each element, in the order of their addresses."""
    return memory.ravel("K").view(np.uint8).reshape(memory.size, memory.itemsize)


def _merged(*clocks: Clock) -> Clock:
    merged: Clock = {}
    for clock in clocks:
        for number, count in clock.items():
            merged[number] = max(count, merged.get(number, 0))
    return merged


def _line() -> tuple[str, int]:
    """Where the program is."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OF_OTHERS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
