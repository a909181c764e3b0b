"""Which operations of a program's streams may run at the same time, and what they then do wrong.

The simulator runs launches and copies at once, in the program's order. On a GPU an operation waits
only for those before it in its stream, for events that its stream waits for, and for the default
stream, which waits for all other streams as they wait for it. The host knows that an operation is
over once the host has synchronised. If nothing orders two operations, and one writes bytes that the
other touches, that is a finding. The host sees what is copied to pinned memory, or stored in
managed memory, only after it has waited for that copy or launch.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from convlab.arguments import integer
from convlab.simulation.arrays import owner_of, start_of
from convlab.simulation.findings import STREAM_RACE, Finding
from convlab.simulation.touched import Touched, common

DEFAULT = 0  # the number of the default stream
_DEFAULT_HANDLES = (0, 1, 2)  # CUDA's: none, the legacy default stream, that of a thread
_OF_OTHERS = tuple(
    f"{Path(module.__file__ or '').parent}/"
    for module in (sys.modules["convlab"], sys.modules["numba"], sys.modules["numba.cuda"])
)
Clock = dict[int, int]  # how many operations of each stream are over


class PinnedMemory(np.ndarray):
    """Host memory to which copies are asynchronous. A program has plain views of it: what NumPy
    makes from those, as ``np.empty_like`` does, is not pinned."""


class Handle(int):
    """The number of a stream, as ``stream.handle`` and ``stream.handle.value``."""

    value = property(int)


class Stream:
    """A stream of ``numba.cuda``."""

    def __init__(self, streams: Streams, number: int) -> None:
        self._streams, self.number = streams, number

    handle = property(Handle)  # Numba's is one of the driver

    def __int__(self) -> int:
        return self.number

    def synchronize(self) -> None:
        self._streams.host_waits(self._streams.reached(self))

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        yield self
        self.synchronize()

    def add_callback(self, callback: Callable[[Stream, int, Any], Any], arg: Any = None) -> None:
        """Call it now: all operations of the stream have run. What waits for the callback has
        waited for them, so they are known to be over."""
        self.synchronize()
        try:
            callback(self, 0, arg)
        except Exception as error:  # as Numba does, whose driver thread has nobody to tell
            warnings.warn(f"Exception in stream callback: {error}", stacklevel=2)

    def async_done(self) -> asyncio.Future[Stream]:
        """An awaitable whose result is the stream, when its operations so far are over."""
        future: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self.add_callback(lambda *_: future.set_result(self))
        return future


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
        self._streams = max(_DEFAULT_HANDLES)
        self._external: dict[int, Stream] = {}  # by the handle that the program gave

    def stream(self) -> Stream:
        self._streams += 1
        return Stream(self, self._streams)

    def external_stream(self, ptr: int) -> Stream:
        """The stream with this handle: one of the program's, a default one, or another library's,
        which gets a number of its own."""
        handle = integer("ptr", ptr, at_least=0)
        if handle in _DEFAULT_HANDLES:
            return Stream(self, DEFAULT)
        if handle in self._external:
            return self._external[handle]
        own = handle <= self._streams
        self._external[handle] = Stream(self, handle) if own else self.stream()
        return self._external[handle]

    def issue(self, stream: Any, what: str, touched: Touched) -> _Operation:
        """Note an operation that has just run here, and what it and others do at the same time."""
        with self.lock:
            number, before = number_of(stream), self.reached(stream)
            count = self._issued[number] = self._issued.get(number, 0) + 1
            after = self._waits[number] = before | {number: count}
            operation = _Operation(what, *_line(), number, count, touched)
            for other in _not_over(self._open, before):
                self._compare(other, operation)
            if number == DEFAULT:  # later operations wait for this one, and so for those before it
                self._default, self._open = after, []
                return operation
            # In a loop only the last such operation counts: what waits for it waits for them all.
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
        """Keeps what the host has written to other elements meanwhile."""
        target, values, before = bytes_
        by_host = np.flatnonzero((target != before).any(axis=1)) * late.target.itemsize
        done = late.operation.touched
        touched = done.reads + done.writes + done.updates
        np.copyto(target, values, where=values != before)
        if common([start_of(late.target) + by_host], touched) is not None:
            what = f"the host writes to managed memory while {late.operation.what} may use it: it"
            self._find(late.operation, late.operation, f"{what} has not waited for that launch")

    def _compare(self, other: _Operation, one: _Operation) -> None:
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
