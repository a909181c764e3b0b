"""Engine ``cudasim``: Numba's own CUDA simulator, one operating-system thread per CUDA thread.

Slow (some thousand multiply-adds a second where there are barriers) but there wherever Numba is.
It works in a process with or without ``NUMBA_ENABLE_CUDASIM=1``: the simulator's thread blocks run
a copy of the kernel's Python function (:mod:`convlab.engines.python_body`). Stricter than Numba's
in four points: indices out of bounds or negative raise, shared and local memory start as NaN in
every block, each call of ``shared.array`` is an array of its own, and ``alignment`` is accepted.
All use of the simulator's internals is in this file.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
from numba.cuda.simulator import kernelapi
from numba.cuda.simulator.kernel import BlockManager

from convlab.engines.base import Counts
from convlab.engines.python_body import python_body
from convlab.stages.base import Launch, Program


class CudaSim:
    """Numba's simulator. Arrays are plain NumPy arrays; a launch returns when it has ended."""

    name = "cudasim"
    is_gpu = False
    device = "Numba's CUDA simulator on the CPU"

    def __init__(self) -> None:
        self._tally: _Tally | None = None

    def free_bytes(self) -> int | None:
        try:  # all there is: how much of it is free changes by the minute
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):  # not every system tells
            return None

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.empty(shape, np.float32)

    def to_device(self, host: np.ndarray) -> np.ndarray:
        return np.array(host, np.float32, order="C")

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def build(self, program: Program) -> None:
        pass  # there is nothing to compile

    def run(self, launch: Launch, arrays: list[np.ndarray], stream: Any = None) -> None:
        tally = self._tally or _Tally()
        grid, block = (_three(size) for size in (launch.grid, launch.block))
        arguments = [_Array(array, tally.global_access) for array in arrays]
        with _eager_thread_switches():
            for position in np.ndindex(*grid):
                cuda = _SimulatedCuda(grid, block, tally)
                body = _without_warnings(python_body(launch.kernel, cuda))
                BlockManager(body, grid, block, False).run(position, *arguments)

    def peak_flops(self) -> float | None:
        return None

    def synchronize(self) -> None:
        pass

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        counts, self._tally = Counts(), _Tally()
        try:
            yield counts
        finally:
            self._tally.store(counts)
            self._tally = None


def _three(size: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*size, 1, 1)[:3]
    return x, y, z


@contextmanager
def _eager_thread_switches() -> Iterator[None]:
    """Numba's simulator polls its threads in a loop; let it not hold the interpreter for long."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _without_warnings(body: Callable[..., None]) -> Callable[..., None]:
    """A GPU says nothing when numbers overflow or become NaN. NumPy's setting is each thread's."""

    def quiet(*arguments: Any) -> None:
        with np.errstate(all="ignore"):
            body(*arguments)

    return quiet


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

    def __init__(self, memory: np.ndarray, counter: _Counter | None) -> None:
        self.memory, self.shape, self._counter = memory, memory.shape, counter
        self.dtype, self.ndim, self.size = memory.dtype, memory.ndim, memory.size

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        elements = self._check(index)
        if self._counter is not None:
            self._counter.load(elements)
        return self.memory[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        elements = self._check(index)
        if self._counter is not None:
            self._counter.store(elements)
        self.memory[index] = value

    def _check(self, index: Any) -> int:
        """How many elements the access touches; IndexError where a GPU would go astray."""
        entries = index if isinstance(index, tuple) else (index,)
        if len(entries) != self.ndim:
            raise IndexError(f"{len(entries)} indices for an array of shape {self.shape}")
        elements = 1
        for entry, extent in zip(entries, self.shape, strict=True):
            if isinstance(entry, slice):  # the four lanes of a 128-bit access, checked there
                elements = entry.stop - entry.start
            elif not 0 <= entry < extent:
                raise IndexError(f"index {index} is outside an array of shape {self.shape}")
        return elements


class _Memory:
    """``cuda.shared`` or ``cuda.local``: arrays that start as NaN.

    Shared arrays are one per place in the code and block; local ones one per call.
    """

    def __init__(self, counter: _Counter | None, *, shared: bool) -> None:
        self._counter, self._shared = counter, shared
        self._arrays: dict[tuple[Any, int], _Array] = {}
        self._lock = threading.Lock()

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> _Array:
        if not self._shared:
            return self._new(shape, dtype)
        caller = sys._getframe(1)
        place = caller.f_code, caller.f_lasti
        with self._lock:
            if place not in self._arrays:
                self._arrays[place] = self._new(shape, dtype)
            return self._arrays[place]

    def _new(self, shape: Any, dtype: Any) -> _Array:
        kind = np.dtype(dtype)
        poison = np.nan if kind.kind == "f" else np.iinfo(kind).max
        return _Array(np.full(shape, poison, kind), self._counter)


class _SimulatedCuda(kernelapi.FakeCUDAModule):  # type: ignore[misc]
    """What ``cuda`` means inside a simulated kernel, for one block."""

    def __init__(self, grid: tuple[int, ...], block: tuple[int, ...], tally: _Tally) -> None:
        super().__init__(grid, block, 0)
        self._shared = _Memory(tally.shared_access, shared=True)
        self._local = _Memory(None, shared=False)
        self._barriers = tally.barriers

    def syncthreads(self) -> None:
        next(self._barriers)
        super().syncthreads()
