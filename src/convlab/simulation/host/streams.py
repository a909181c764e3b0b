"""The streams and events of a program, and findings about operations that nothing orders.

The simulator runs launches and copies at once, in the program's order. On a GPU an operation waits
only for those before it in its stream, for events that its stream waits for, and for the default
stream, which waits for all other streams as they wait for it. The host knows that an operation is
over once the host has synchronised. If nothing orders two operations, and one writes bytes that the
other touches, that is a finding (``stream_order``). The host sees what is copied to pinned memory,
or stored in managed or mapped memory, only after it has waited for that copy or launch. It is a
finding too if the host reads such memory before that, or writes to it while an operation may still
use it (``host_accesses``).
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import TypeVar

import numpy as np

from convlab.simulation.host.host_accesses import HostAccesses, UnifiedMemory
from convlab.simulation.host.pinned import PinnedMemory
from convlab.simulation.host.stream_order import DEFAULT, Clock, Operation, StreamOrder
from convlab.simulation.memory.host_memory import owner_of
from convlab.simulation.memory.touched import Touched
from convlab.simulation.rules.findings import Finding
from convlab.support.values import integer

# CUDA's handles of default streams.
_DEFAULT_HANDLES = (0, 1)  # no handle, and the legacy default stream
_PER_THREAD = 2  # the default stream of the host thread that uses the handle
Argument = TypeVar("Argument")


class Handle(int):
    """The number of a stream, as ``stream.handle`` and ``stream.handle.value``."""

    value = property(int)


class Stream:
    """A stream of ``numba.cuda``."""

    def __init__(self, streams: Streams, number: int) -> None:
        self._streams, self.number = streams, number

    handle = property(Handle)  # Numba's handle is the driver's

    def __int__(self) -> int:
        return self.number

    def synchronize(self) -> None:
        """Wait for the stream's operations so far."""
        self._streams.host_waits(self._streams.reached(self))

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Return a context that gives the stream, and waits for its operations at the end."""
        yield self
        self.synchronize()

    def add_callback(
        self,
        callback: Callable[[Stream, int, Argument | None], object],
        arg: Argument | None = None,
    ) -> None:
        """Call the callback now, because all operations of the stream have run. A program that
        waits for the callback has waited for them, so they are known to be over."""
        self.synchronize()
        try:
            callback(self, 0, arg)
        except Exception as error:  # Numba's driver thread warns too
            warnings.warn(f"Exception in stream callback: {error}", stacklevel=2)

    def async_done(self) -> asyncio.Future[Stream]:
        """Return an awaitable whose result is the stream, once its operations so far are over."""
        future: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self.add_callback(lambda *_: future.set_result(self))
        return future


class Event:
    """An event of ``numba.cuda``. It does not measure time."""

    def __init__(self, streams: Streams, timing: bool = True) -> None:
        self._streams, self._clock = streams, Clock()

    def record(self, stream: object = DEFAULT) -> None:
        """Record the event after the stream's operations so far."""
        self._clock = self._streams.reached(stream)

    def wait(self, stream: object = DEFAULT) -> None:
        """Let the stream's later operations wait for the event."""
        self._streams.wait(stream, self._clock)

    def synchronize(self) -> None:
        """Let the host wait for the event."""
        self._streams.host_waits(self._clock)

    def query(self) -> bool:
        """Wait for the event, and return True."""
        self.synchronize()
        return True

    def elapsed_time(self, event: Event) -> float:
        """Return -1, because events do not measure time here."""
        return -1.0


class Streams:
    """The streams of a program. ``on_finding`` receives findings. The program's threads take turns
    by the ``lock``."""

    def __init__(self, on_finding: Callable[[Finding], None]) -> None:
        self.lock = RLock()
        self._order, self._host = StreamOrder(on_finding), HostAccesses(on_finding)
        self._last_number = _PER_THREAD
        self._of_threads: dict[int, Stream] = {}  # default streams, by the id of the host thread
        self._external: dict[int, Stream] = {}  # by the handle that the program gave
        self._pinned: list[np.ndarray] = []  # pinned by ``cuda.pinned``, for some time

    def stream(self) -> Stream:
        """Return a new stream."""
        self._last_number += 1
        return Stream(self, self._last_number)

    def per_thread_stream(self) -> Stream:
        """Return the default stream of the calling host thread. It and the legacy default stream
        wait for each other; it waits for no other stream."""
        with self.lock:
            thread = get_ident()
            if thread not in self._of_threads:
                first = not self._of_threads  # has CUDA's number; others need one of their own
                self._of_threads[thread] = Stream(self, _PER_THREAD) if first else self.stream()
            return self._of_threads[thread]

    def external_stream(self, ptr: int) -> Stream:
        """Return the stream with this handle: the program's, a default one, or another library's,
        which gets a number of its own."""
        handle = integer("ptr", ptr, at_least=0)
        if handle in _DEFAULT_HANDLES:
            return Stream(self, DEFAULT)
        if handle == _PER_THREAD:
            return self.per_thread_stream()
        if handle not in self._external:
            own = handle <= self._last_number
            self._external[handle] = Stream(self, handle) if own else self.stream()
        return self._external[handle]

    def issue(self, stream: object, what: str, touched: Touched) -> Operation:
        """Note an operation that has just run here, and report its conflicts."""
        with self.lock:
            return self._order.issue(stream, what, touched)

    def reached(self, stream: object) -> Clock:
        """Return the operations that are over when all operations of a stream so far are."""
        return self._order.reached(stream)

    def wait(self, stream: object, clock: Clock) -> None:
        """Let the stream's next operation wait for the operations of a clock."""
        self._order.wait(stream, clock)

    def host_waits(self, clock: Clock | None = None) -> None:
        """Note that the host has waited for the operations of a clock, or for all."""
        with self.lock:
            self._order.host_waits(clock)
            self._host.host_waited(self._order.host)

    def copied(self, stream: object, target: np.ndarray, values: np.ndarray) -> None:
        """Note a copy to host memory. The host waits for it unless the memory is pinned."""
        touched, is_pinned = Touched(), self.is_pinned(target)
        touched.whole(values, writes=False)
        if is_pinned:
            touched.whole(target, writes=True)
        with self.lock:
            operation = self.issue(stream, "copy_to_host", touched)
            if is_pinned and operation.stream != DEFAULT:
                self._host.fills(operation, target, values)
            else:
                self.host_waits(self.reached(stream))
                np.copyto(target, values)

    def is_pinned(self, host: np.ndarray) -> bool:
        """Return whether copies to and from this memory are asynchronous."""
        return isinstance(owner_of(host), PinnedMemory) or any(
            np.may_share_memory(one, host) for one in self._pinned
        )

    @contextmanager
    def pinned(self, *arrays: np.ndarray) -> Iterator[None]:
        """Pin the memory of these arrays inside, as ``cuda.pinned`` does."""
        self._pinned += arrays
        try:
            yield
        finally:
            kept = [one for one in self._pinned if not any(one is array for array in arrays)]
            self._pinned = kept

    def reads(self, operation: Operation, host: np.ndarray) -> None:
        """Note that the operation may read this host memory until it is over, if it is pinned."""
        if operation.stream != DEFAULT and self.is_pinned(host):
            with self.lock:
                self._host.reads(operation, host)

    def host_reads(self, memory: np.ndarray) -> None:
        """Report that the host reads memory too early, if it does. A poll ends by waiting."""
        if self._host.has_any:
            with self.lock:
                if self._host.host_reads(memory):
                    self.host_waits()

    def host_wrote(self, memory: np.ndarray) -> None:
        """Report that the host writes to pinned memory too early, if it does."""
        if self._host.has_any:
            with self.lock:
                self._host.look_for_writes(memory)

    def device_reads(self, host: np.ndarray) -> None:
        """Let the next operation find what those before it have stored in host memory."""
        with self.lock:
            self._host.device_reads(host)

    def device_sees(self, arrays: Iterable[tuple[np.ndarray, str]]) -> list[UnifiedMemory]:
        """Return managed and mapped memory, each with its name, as the next kernel finds it."""
        shared = [(array, of_memory) for array, of_memory in arrays if array.flags.writeable]
        for array, _ in shared:
            self.device_reads(array)
        return [UnifiedMemory(array, array.copy("K"), of_memory) for array, of_memory in shared]

    def hide(self, operation: Operation, seen: list[UnifiedMemory]) -> None:
        """Hide a kernel's stores to unified memory from the host until it has waited for them."""
        self._host.hide(operation, seen)
