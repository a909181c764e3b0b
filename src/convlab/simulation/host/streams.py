"""Which operations of a program's streams may run at the same time, and what they then do wrong.

The simulator runs launches and copies at once, in the program's order. On a GPU an operation waits
only for those before it in its stream, for events that its stream waits for, and for the default
stream, which waits for all other streams as they wait for it. The host knows that an operation is
over once the host has synchronised. If nothing orders two operations, and one writes bytes that the
other touches, that is a finding. The host sees what is copied to pinned memory, or stored in
managed memory, only after it has waited for that copy or launch. It is a finding too if the host
reads pinned memory before that, or writes to it while a copy may still read or fill it. A write is
known by what the memory holds afterwards, since not every array tells of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from convlab.simulation.host.pinned import PinnedMemory
from convlab.simulation.memory.host_memory import owner_of, start_of
from convlab.simulation.memory.touched import Touched, common
from convlab.simulation.rules.findings import Finding
from convlab.simulation.rules.remedies import STREAM_RACE
from convlab.support.values import integer

DEFAULT = 0  # the number of the default stream
_DEFAULT_HANDLES = (0, 1, 2)  # CUDA's: none, the legacy default stream, that of a thread
_OF_OTHERS = tuple(
    f"{Path(module.__file__ or '').parent}/"
    for module in (sys.modules["convlab"], sys.modules["numba"], sys.modules["numba.cuda"])
)
Clock = dict[int, int]  # how many operations of each stream are over


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
    before: np.ndarray  # what was there when the operation began
    is_managed: bool = False
    is_told: bool = False  # that the host has read it too early


@dataclass(eq=False)
class _Reading:
    """Host memory that an operation may read until it is over, and what it holds."""

    operation: _Operation
    source: np.ndarray
    values: np.ndarray


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
        self._reading: list[_Reading] = []
        self._pinned: list[np.ndarray] = []  # by ``cuda.pinned``, for some time

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
            operation = _Operation(what, *program_line(), number, count, touched)
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
            self._look_for_writes()
            reading = _not_over([one.operation for one in self._reading], self._host)
            self._reading = [one for one in self._reading if one.operation in reading]
            self._open = _not_over(self._open, self._host)
            waiting = _not_over([one.operation for one in self._late], self._host)
            self._arrive(one for one in self._late if one.operation not in waiting)

    def copied(self, stream: Any, target: np.ndarray, values: np.ndarray) -> None:
        """A copy to host memory: the host waits for it unless that is pinned."""
        touched, is_pinned = Touched(), self.is_pinned(target)
        touched.whole(values, writes=False)
        if is_pinned:
            touched.whole(target, writes=True)
        with self.lock:
            operation = self.issue(stream, "copy_to_host", touched)
            if is_pinned and operation.stream != DEFAULT:
                self._late.append(_Late(operation, target, values.copy(), target.copy("K")))
            else:
                self.host_waits(self.reached(stream))
                np.copyto(target, values)

    def is_pinned(self, host: np.ndarray) -> bool:
        """Whether copies to and from this memory are asynchronous."""
        return isinstance(owner_of(host), PinnedMemory) or any(
            np.may_share_memory(one, host) for one in self._pinned
        )

    @contextmanager
    def pinned(self, *arrays: np.ndarray) -> Iterator[None]:
        """``cuda.pinned``: inside, the memory of these arrays is pinned."""
        self._pinned += arrays
        try:
            yield
        finally:
            kept = [one for one in self._pinned if not any(one is array for array in arrays)]
            self._pinned = kept

    def reads(self, operation: _Operation, host: np.ndarray) -> None:
        """The operation may read this host memory until it is over, if it is pinned. In a loop only
        the last such operation counts: those before it are over then."""
        if operation.stream == DEFAULT or not self.is_pinned(host):
            return
        with self.lock:
            self._look_for_writes(host)
            same = operation.stream, _layout(host)
            others = [
                one for one in self._reading if (one.operation.stream, _layout(one.source)) != same
            ]
            self._reading = [*others, _Reading(operation, host, host.copy("K"))]

    def host_reads(self, memory: np.ndarray) -> None:
        """The host reads pinned memory: not before it has waited for a copy to it. A program that
        reads it again finds what is copied, so that none polls for ever."""
        if not self._late:
            return
        with self.lock:
            late = [one for one in self._late if _share(one.target, memory)]
            self._arrive([one for one in late if one.is_told])
            for one in late:
                if not one.is_told and not one.is_managed:
                    one.is_told = True
                    what = "the host reads pinned memory that copy_to_host may not have filled yet"
                    self._find_of_host(one.operation, f"{what}: it has not waited for that copy")

    def host_wrote(self, memory: np.ndarray) -> None:
        """The host has written to pinned memory."""
        if self._late or self._reading:
            with self.lock:
                self._look_for_writes(memory)

    def _look_for_writes(self, memory: np.ndarray | None = None) -> None:
        """Find what the host has written to memory that a copy still uses."""
        using: list[_Reading | _Late] = [*self._reading]
        using += [one for one in self._late if not one.is_managed]
        for one in using:
            host, kept = _uses(one)
            if memory is not None and not np.may_share_memory(host, memory):
                continue
            if (_bytes(host) != _bytes(kept)).any():
                np.copyto(kept, host)
                does = "read" if isinstance(one, _Reading) else "fill"
                what = f"the host writes to pinned memory while {one.operation.what} may still"
                self._find_of_host(one.operation, f"{what} {does} it: it has not waited for that")

    def _find_of_host(self, operation: _Operation, what: str) -> None:
        """Note what the host does where the program is; at its end, what the operation is."""
        file, line = program_line()
        if file == contextlib.__file__:  # the program is over
            file, line = operation.file, operation.line
        other = operation.line, operation.file
        self._tell(Finding(STREAM_RACE, operation.what, file, line, what, *other))

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
            self._late.append(_Late(operation, array, array.copy("K"), before, is_managed=True))
            array[...] = before

    def _arrive(self, some: Iterable[_Late]) -> None:
        arriving = [*some]
        self._late = [one for one in self._late if one not in arriving]
        for one in arriving:
            if one.is_managed:
                self._arrive_managed(one, *map(_bytes, (one.target, one.values, one.before)))
                continue
            np.copyto(one.target, one.values)
            using: list[_Reading | _Late] = [*self._reading, *arriving, *self._late]
            for other in using:  # what has arrived is no write of the host's
                host, kept = _uses(other)
                is_managed = isinstance(other, _Late) and other.is_managed
                if not is_managed and np.may_share_memory(host, one.target):
                    np.copyto(kept, host)

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


def _uses(one: _Reading | _Late) -> tuple[np.ndarray, np.ndarray]:
    """The host memory that an operation uses, and what it held when that was last looked at."""
    return (one.source, one.values) if isinstance(one, _Reading) else (one.target, one.before)


def _layout(host: np.ndarray) -> tuple[Any, ...]:
    return start_of(host), host.shape, host.strides, host.dtype


def _share(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two views have a byte in common."""
    mine, its = Touched(), Touched()
    mine.whole(one, writes=False)
    its.whole(other, writes=False)
    return common(mine.reads, its.reads) is not None


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


def program_line() -> tuple[str, int]:
    """The file and line where the program is."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OF_OTHERS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
