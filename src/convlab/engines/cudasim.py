"""Engine ``cudasim``: Numba's own CUDA simulator, one operating-system thread per CUDA thread.

Slow (some thousand multiply-adds a second where there are barriers) but there wherever Numba is. It
works in a process with or without ``NUMBA_ENABLE_CUDASIM=1``: the simulator's thread blocks run a
copy of the kernel's Python function (:mod:`convlab.simulation.python_body`). Stricter than Numba's:
indices out of bounds or negative raise, as do stores to a kernel's sources; shared and local memory
start as NaN in every block, each call of ``shared.array`` is an array of its own, and ``alignment``
is accepted. All use of the simulator's internals is in this file and in ``device/emulation.py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from threading import Lock
from typing import Any

import numpy as np
from numba.cuda.simulator import kernelapi
from numba.cuda.simulator.kernel import BlockManager, BlockThread, Dim3

from convlab.engines.base import OnTheHost
from convlab.simulation.launch_arguments import three
from convlab.simulation.memory_rules import Counts
from convlab.simulation.python_body import python_body
from convlab.stage import SOURCES, Launch


class CudaSim(OnTheHost):
    """Numba's simulator. Arrays are plain NumPy arrays; a launch returns when it has ended."""

    name = "cudasim"
    device = "Numba's CUDA simulator on the CPU"

    def __init__(self) -> None:
        self._tally: _Tally | None = None

    def run(self, launch: Launch, arrays: list[np.ndarray], stream: Any = None) -> None:
        """Run one launch to its end; what a kernel raises comes out as it was raised."""
        tally = self._tally or _Tally()
        grid, block = three(launch.grid, "grid"), three(launch.block, "block")
        arguments = [
            _Array(
                array, tally.global_access, read_only=str(argument) in SOURCES, what=str(argument)
            )
            for array, argument in zip(arrays, launch.arguments or [""] * len(arrays), strict=True)
        ]
        cuda = _SimulatedCuda(grid, block, tally)
        body = partial(python_body(launch.kernel, cuda), *arguments)
        _Blocks(body, grid, block, cuda.new_block).run_all()

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Count what kernels inside the ``with`` do; as they end, not before."""
        counts, tally, outer = Counts(), _Tally(), self._tally
        self._tally = tally
        try:
            yield counts
        finally:
            tally.store(counts)
            self._tally = outer


class _Blocks(BlockManager):  # type: ignore[misc]
    """A launch's blocks, one after the other, by Numba's rules for the threads of one.

    Numba starts threads for each block anew and polls them, which takes the interpreter from those
    that compute. Here a thread goes on to the next block; who comes last to a barrier opens it.
    """

    def __init__(
        self,
        body: Callable[[], None],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        new_block: Callable[[], None],
    ) -> None:
        super().__init__(body, grid, block, False)
        self.positions = list(np.ndindex(*grid))
        self._new_block = new_block
        self._threads = [
            _Thread(None, self, self.positions[0], index, False) for index in np.ndindex(*block)
        ]
        self._change = Lock()  # of what follows
        self._waiting: list[_Thread] = []  # at a barrier
        self._done: list[_Thread] = []  # with the block
        self._to_come = len(self.positions)
        self._raised: BaseException | None = None
        self._over = _shut_gate()

    def run_all(self) -> None:
        """Run them to their end; raises what the first thread that raised did.

        Numba makes a new exception of it, which does not work for every type.
        """
        try:
            for thread in self._threads:
                thread.start()
            while not self._over.acquire(timeout=1):  # Ctrl-C does not get through on all systems
                pass
            if self._raised is not None:
                raise self._raised
        except BaseException:
            self._let_go()
            raise
        for thread in self._threads:
            thread.join()
        self._f = None  # it has the arrays: threads and blocks, which know each other, live on

    def wait(self, thread: _Thread) -> None:
        """The thread is at a barrier."""
        with self._change:
            if thread.abort:
                return
            self._waiting.append(thread)
            self._open()
        thread.gate.acquire()

    def end(self, thread: _Thread) -> None:
        """The thread has done its part of the block."""
        with self._change:
            if thread.abort:
                return
            self._done.append(thread)
            self._open()
        thread.gate.acquire()

    def stop(self, thread: _Thread, error: BaseException) -> None:
        """The thread raised."""
        with self._change:
            if self._raised is None and not thread.abort:
                self._raised = error
                self._over.release()

    def _open(self) -> None:
        """Release the waiting threads if every thread has arrived or ended."""
        if len(self._waiting) + len(self._done) < len(self._threads):
            return
        if self._waiting:
            going, self._waiting = self._waiting, []
        else:
            going, self._done = self._done, []
            self._to_come -= 1
            self.block_state[...] = False
            self._new_block()
            if not self._to_come:
                self._over.release()
        for thread in going:
            thread.syncthreads_blocked = False
            thread.gate.release()

    def _let_go(self) -> None:
        """Release the waiting threads after Ctrl-C or an exception: no other thread will."""
        with self._change:
            for thread in self._threads:
                thread.abort = True
            for thread in [*self._waiting, *self._done]:
                thread.gate.release()
            self._waiting, self._done = [], []
            self._raised = None  # by its traceback it knows all this: it would keep itself alive


def _shut_gate() -> Lock:
    gate = Lock()
    gate.acquire()
    return gate


class _Thread(BlockThread):  # type: ignore[misc]
    """Numba's, but it goes through all blocks and says itself where it is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gate = _shut_gate()

    def run(self) -> None:
        try:
            # A GPU says nothing when numbers overflow or become NaN. The setting is each thread's.
            with np.errstate(all="ignore"):
                for position in self._manager.positions:
                    if self.abort:
                        break
                    self.blockIdx = Dim3(*position)
                    self._manager._f()
                    self._manager.end(self)
        except BaseException as error:
            self._manager.stop(self, error)

    def syncthreads(self) -> None:
        self.syncthreads_blocked = True
        self._manager.wait(self)
        if self.abort:
            raise RuntimeError("the launch was stopped")


class _Counter:
    """Loads, stores and bytes of one kind of memory; safe between threads without a lock."""

    def __init__(self) -> None:
        self._loads, self._stores, self._elements = count(), count(), count()

    def load(self, elements: int) -> None:
        next(self._loads)
        self._add(elements)

    def store(self, elements: int) -> None:
        next(self._stores)
        self._add(elements)

    def _add(self, elements: int) -> None:
        for _ in range(elements):
            next(self._elements)

    def totals(self) -> tuple[int, int, int]:
        """Loads, stores, bytes. Reading ends the counting: each ``next`` also counts."""
        return next(self._loads), next(self._stores), 4 * next(self._elements)


class _Tally:
    """The counters of one ``counting`` block."""

    def __init__(self) -> None:
        self.global_access, self.shared_access, self.barriers = _Counter(), _Counter(), count()

    def store(self, counts: Counts) -> None:
        counts.global_loads, counts.global_stores, counts.global_bytes = self.global_access.totals()
        counts.shared_loads, counts.shared_stores, _ = self.shared_access.totals()
        counts.barriers = next(self.barriers)


class _Array:
    """An array as a kernel sees it: strict bounds, counted accesses."""

    def __init__(
        self,
        memory: np.ndarray,
        counter: _Counter | None,
        *,
        what: str,
        read_only: bool = False,
    ) -> None:
        self.memory, self.shape, self._counter = memory, memory.shape, counter
        self.dtype, self.ndim, self.size = memory.dtype, memory.ndim, memory.size
        self._what, self._read_only = what, read_only

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        elements = self._check(index)
        if self._counter is not None:
            self._counter.load(elements)
        return self.memory[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._read_only:
            raise IndexError(f"the kernel writes to {self._what}[{index}], which is not its output")
        elements = self._check(index)
        if self._counter is not None:
            self._counter.store(elements)
        self.memory[index] = value

    def _check(self, index: Any) -> int:
        """How many elements the access touches; IndexError where a GPU would go astray."""
        entries = index if isinstance(index, tuple) else (index,)
        if len(entries) != self.ndim:
            raise IndexError(f"{len(entries)} indices for {self._what} of shape {self.shape}")
        elements = 1
        for entry, extent in zip(entries, self.shape, strict=True):
            if isinstance(entry, slice):  # the four lanes of a 128-bit access
                elements = entry.stop - entry.start
                inside = 0 <= entry.start <= entry.stop <= extent
            else:
                inside = 0 <= entry < extent
            if not inside:
                raise IndexError(f"index {index} is outside {self._what} of shape {self.shape}")
        return elements


class _Memory:
    """``cuda.shared`` or ``cuda.local``: arrays that start as NaN.

    Shared arrays are one per call in the code and block; local ones one per call.
    """

    def __init__(self, counter: _Counter | None, *, shared: bool) -> None:
        self._counter, self._shared = counter, shared
        self._arrays: dict[tuple[Any, int], _Array] = {}
        self._lock = threading.Lock()

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> _Array:
        if not self._shared:
            return self._new(shape, dtype)
        caller = sys._getframe(1)
        call = caller.f_code, caller.f_lasti
        with self._lock:
            if call not in self._arrays:
                self._arrays[call] = self._new(shape, dtype)
            return self._arrays[call]

    def clear(self) -> None:
        """Another block begins."""
        self._arrays.clear()

    def _new(self, shape: Any, dtype: Any) -> _Array:
        kind = np.dtype(dtype)
        poison = np.nan if kind.kind == "f" else np.iinfo(kind).max
        what = "a shared array" if self._shared else "a local array"
        return _Array(np.full(shape, poison, kind), self._counter, what=what)


class _Atomic(kernelapi.FakeCUDAAtomic):  # type: ignore[misc]
    """``cuda.atomic``, whose ``add`` is counted as one load and one store; Numba's loads twice."""

    def add(self, array: Any, index: Any, value: Any) -> Any:
        with kernelapi.addlock:
            old = array[index]
            array[index] = old + value
        return old


class _SimulatedCuda(kernelapi.FakeCUDAModule):  # type: ignore[misc]
    """What ``cuda`` means inside a simulated kernel, for one block after the other."""

    def __init__(self, grid: tuple[int, ...], block: tuple[int, ...], tally: _Tally) -> None:
        super().__init__(grid, block, 0)
        self._shared = _Memory(tally.shared_access, shared=True)
        self._local = _Memory(None, shared=False)
        self._atomic = _Atomic()
        self._barriers = tally.barriers

    def new_block(self) -> None:
        """The next block has shared memory of its own."""
        self._shared.clear()

    def syncthreads(self) -> None:
        next(self._barriers)
        super().syncthreads()
