"""Engine ``cudasim``: Numba's own CUDA simulator, one operating-system thread per CUDA thread.

Slow (some thousand multiply-adds a second where there are barriers) but there wherever Numba is. It
works in a process with or without ``NUMBA_ENABLE_CUDASIM=1``: the simulator's thread blocks run a
copy of the kernel's Python function (:mod:`convlab.simulation.python_body`). Stricter than Numba's:
indices out of bounds or negative raise, as do stores to a kernel's sources; shared and local memory
start as NaN in every block, each call of ``shared.array`` is an array of its own, and ``alignment``
is accepted. All use of the simulator's internals is in this file and in ``device/intrinsics.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from threading import Event, Lock
from typing import Any

import numpy as np
from numba.cuda.simulator import kernelapi
from numba.cuda.simulator.kernel import BlockManager, BlockThread, Dim3

from convlab.engines import Engine
from convlab.simulation.launch_arguments import three
from convlab.simulation.memory_rules import Counts
from convlab.simulation.python_body import python_body
from convlab.stage import SOURCES, Launch

Sizes = tuple[int, int, int]


class CudaSim(Engine):
    """Numba's simulator. Arrays are plain NumPy arrays; a launch returns when it has ended."""

    name = "cudasim"
    device = "Numba's CUDA simulator on the CPU"

    def run(self, launch: Launch, arrays: list[np.ndarray], stream: Any = None) -> None:
        """Run one launch to its end; what a kernel raises comes out as it was raised."""
        grid, block = three(launch.grid, "grid"), three(launch.block, "block")
        names = map(str, launch.arguments or [""] * len(arrays))
        counts = self._counts
        arguments = [_Array(a, name, counts, 4) for a, name in zip(arrays, names, strict=True)]
        cuda = _SimulatedCuda(grid, block, counts)
        body = partial(python_body(launch.kernel, cuda), *arguments)
        _Blocks(body, grid, block, cuda.shared.clear).run_all()


class _Blocks(BlockManager):  # type: ignore[misc]
    """A launch's blocks, one after the other.

    Numba starts threads for each block anew and polls them, which takes the interpreter from those
    that compute. Here a thread goes on to the next block, and the last to arrive at a barrier opens
    it.
    """

    def __init__(
        self, body: Callable[[], None], grid: Sizes, block: Sizes, new_block: Callable[[], None]
    ) -> None:
        super().__init__(body, grid, block, False)
        self.positions = list(np.ndindex(*grid))
        self._new_block = new_block
        self._threads = [_Thread(self, index) for index in np.ndindex(*block)]
        self._change = Lock()  # of what follows
        self._waiting: list[_Thread] = []  # at a barrier
        self._done: list[_Thread] = []  # with the block
        self._to_come = len(self.positions)
        self._raised: BaseException | None = None
        self._over = Event()

    def run_all(self) -> None:
        """Run them to their end; raises what the first thread that raised did (Numba makes a new
        exception of it, which does not work for every type)."""
        try:
            for thread in self._threads:
                thread.start()
            while not self._over.wait(1):  # Ctrl-C does not get through on all systems
                pass
            if self._raised is not None:
                raise self._raised
            for thread in self._threads:
                thread.join()
        finally:
            self.stop(None)
            # These know the launch and so its arrays; threads, which know each other, live on.
            self._raised = self._f = None

    def arrive(self, thread: _Thread, *, done: bool) -> None:
        """The thread waits at a barrier or has done its part of the block, and goes on once every
        thread has arrived at either."""
        with self._change:
            if thread.abort:
                return
            (self._done if done else self._waiting).append(thread)
            if len(self._waiting) + len(self._done) == len(self._threads):
                self._open()
        thread.gate.acquire()

    def _open(self) -> None:
        going, self._waiting = self._waiting, []
        if not going:
            going, self._done = self._done, []
            self.block_state[...] = False
            self._new_block()
            self._to_come -= 1
            if not self._to_come:
                self._over.set()
        for thread in going:
            thread.syncthreads_blocked = False
            thread.gate.release()

    def stop(self, error: BaseException | None) -> None:
        """A thread raised, or the launch is over: release those that wait, as no other thread
        will."""
        with self._change:
            if not self._threads[0].abort:
                self._raised = error
            for thread in self._threads:
                thread.abort = True
            for thread in [*self._waiting, *self._done]:
                thread.gate.release()
            self._waiting, self._done = [], []
            self._over.set()


class _Thread(BlockThread):  # type: ignore[misc]
    """Numba's, but it goes through all blocks and says itself where it is."""

    def __init__(self, blocks: _Blocks, index: tuple[int, ...]) -> None:
        super().__init__(None, blocks, (0, 0, 0), index, False)
        self.gate = Lock()
        self.gate.acquire()

    def run(self) -> None:
        try:
            # A GPU says nothing when numbers overflow or become NaN. The setting is each thread's.
            with np.errstate(all="ignore"):
                for position in self._manager.positions:
                    if self.abort:
                        break
                    self.blockIdx = Dim3(*position)
                    self._manager._f()
                    self._manager.arrive(self, done=True)
        except BaseException as error:
            self._manager.stop(error)

    def syncthreads(self) -> None:
        self.syncthreads_blocked = True
        self._manager.arrive(self, done=False)
        if self.abort:
            raise RuntimeError("the launch was stopped")


_counting = Lock()


def _count(counts: Counts | None, name: str, global_bytes: int = 0) -> None:
    """Many threads add to one launch's counts."""
    if counts is not None:
        with _counting:
            setattr(counts, name, getattr(counts, name) + 1)
            counts.global_bytes += global_bytes


class _Array:
    """An array as a kernel sees it: strict bounds, and every access counted unless it is local. Of
    global memory, an element counts as ``nbytes``; of shared memory as none."""

    def __init__(
        self, memory: np.ndarray, name: str, counts: Counts | None = None, nbytes: int = 0
    ) -> None:
        self.memory, self.shape, self.dtype = memory, memory.shape, memory.dtype
        self.ndim, self.size = memory.ndim, memory.size
        self._name, self._counts, self._nbytes = name, counts, nbytes

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        self._access("loads", index)
        return self.memory[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._name in SOURCES:
            raise IndexError(f"the kernel writes to {self._name}[{index}], which is not its output")
        self._access("stores", index)
        self.memory[index] = value

    def _access(self, access: str, index: Any) -> None:
        """Count it; IndexError where a GPU would go astray."""
        entries = index if isinstance(index, tuple) else (index,)
        if len(entries) != self.ndim:
            raise IndexError(f"{len(entries)} indices for {self._name} of shape {self.shape}")
        elements = 1
        for entry, extent in zip(entries, self.shape, strict=True):
            if isinstance(entry, slice):  # the four lanes of a 128-bit access
                elements = entry.stop - entry.start
                inside = 0 <= entry.start <= entry.stop <= extent
            else:
                inside = 0 <= entry < extent
            if not inside:
                raise IndexError(f"index {index} is outside {self._name} of shape {self.shape}")
        memory = "global" if self._nbytes else "shared"
        _count(self._counts, f"{memory}_{access}", self._nbytes * elements)


def _poisoned(shape: Any, dtype: Any) -> np.ndarray:
    kind = np.dtype(dtype)
    return np.full(shape, np.nan if kind.kind == "f" else np.iinfo(kind).max, kind)


class _Local:
    """``cuda.local``."""

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> _Array:
        return _Array(_poisoned(shape, dtype), "a local array")


class _Shared:
    """``cuda.shared``: one array per call in the code and block."""

    def __init__(self, counts: Counts | None) -> None:
        self._counts = counts
        self._arrays: dict[tuple[Any, int], _Array] = {}
        self._change = Lock()
        self.clear = self._arrays.clear  # when another block begins

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> _Array:
        caller = sys._getframe(1)
        call = caller.f_code, caller.f_lasti
        with self._change:
            if call not in self._arrays:
                memory = _poisoned(shape, dtype)
                self._arrays[call] = _Array(memory, "a shared array", self._counts)
            return self._arrays[call]


class _Atomic(kernelapi.FakeCUDAAtomic):  # type: ignore[misc]
    """``cuda.atomic``, whose ``add`` is counted as one load and one store; Numba's loads twice."""

    def add(self, array: Any, index: Any, value: Any) -> Any:
        with kernelapi.addlock:
            old = array[index]
            array[index] = old + value
        return old


class _SimulatedCuda(kernelapi.FakeCUDAModule):  # type: ignore[misc]
    """What ``cuda`` means inside a simulated kernel, for one block after the other."""

    def __init__(self, grid: Sizes, block: Sizes, counts: Counts | None) -> None:
        super().__init__(grid, block, 0)
        self._shared, self._local, self._atomic = _Shared(counts), _Local(), _Atomic()
        self._counts = counts

    def syncthreads(self) -> None:
        _count(self._counts, "barriers")
        super().syncthreads()
