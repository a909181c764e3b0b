"""Engine ``cudasim``: Numba's own CUDA simulator, its threads run as greenlets.

It works in a process with or without ``NUMBA_ENABLE_CUDASIM=1``: a copy of the kernel's Python
function runs with the simulator's ``cuda``, its threads as greenlets, always in the same order.
Stricter than Numba's: indices out of bounds or negative raise, as do stores to a kernel's sources;
shared and local memory start as NaN in every block, each call of ``shared.array`` is an array of
its own, and ``alignment`` is accepted. All use of the simulator's internals is in this file and in
``device/emulations.py``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from greenlet import getcurrent
from numba.cuda.simulator import kernelapi

from convlab.device import BoundMap
from convlab.device.emulations import meet_some, meeting_by
from convlab.ladder.stage import READ_ONLY, Launch
from convlab.running.engines import Engine, Stream
from convlab.simulation.language.python_body import python_body
from convlab.simulation.numbers.scalars import poison
from convlab.simulation.rules.coordinates import coordinates_of, three
from convlab.simulation.rules.memory_traffic import Counts
from convlab.simulation.threads.greenlets import Block
from convlab.simulation.threads.simulated_cuda import SimulatedCuda
from convlab.simulation.threads.waiting import ThreadRunner, WaitingCall

DeclaredShape = int | tuple[int, ...]  # of an array that a kernel declares
Index = int | slice | tuple[int | slice, ...]
SEVERAL = (tuple, slice)  # the types of an index that is not one number
Number = Any  # NumPy's, or a row of a few: a kernel computes with it


class CudaSim(Engine):
    """Numba's simulator. Arrays are plain NumPy arrays; a launch returns when it has ended."""

    name = "cudasim"
    device = "Numba's CUDA simulator on the CPU"

    def run(self, launch: Launch, arrays: Sequence[np.ndarray], stream: Stream = None) -> None:
        """Run one launch to its end; what a kernel raises comes out as it was raised."""
        grid, block = three(launch.grid, "grid"), three(launch.block, "block")
        names = map(str, launch.arguments or [""] * len(arrays))
        counts = self._counts or Counts()
        arguments = tuple(
            array if isinstance(array, BoundMap) else _Array(array, name, counts, array.itemsize)
            for array, name in zip(arrays, names, strict=True)
        )
        cuda = _SimulatedCuda(grid, block, counts, launch.shared_bytes)
        body = python_body(launch.kernel, cuda)

        def thread(*arguments: Any) -> None:
            # A GPU says nothing when numbers overflow or become NaN. Each greenlet has a setting.
            with np.errstate(all="ignore"):
                body(*arguments)

        indices = [coordinates_of(number, block) for number in range(math.prod(block))]
        idle: list[ThreadRunner] = []
        with meeting_by(cuda.meet):
            for number, position in enumerate(np.ndindex(*grid)):
                if self.on_block is not None:
                    self.on_block(launch.name, number, math.prod(grid))
                cuda.blockIdx = kernelapi.Dim3(*position)
                cuda.shared.new_block()
                running = Block(
                    body=thread,
                    arguments=arguments,
                    indices=indices,
                    enter=cuda.enter,
                    on_barrier=cuda.on_barrier,
                    # No warp has a barrier of its own in Numba's simulator.
                    on_warp_barrier=lambda threads, whole: None,
                    complain=_complain,
                    idle=idle,
                )
                try:
                    while running.run() and running.waiting:
                        pass
                    if running.waiting:
                        raise RuntimeError(
                            f"{launch.name} cannot go on: {len(running.waiting)} threads of block "
                            f"{position} wait for others that never come"
                        )
                finally:
                    running.let_go()


def _complain(kind: str, what: str, *_: object, **more: object) -> None:
    """Raise where a tensor core lacks a lane; the strict simulator alone has other findings."""
    if kind == "inactive lane":
        raise RuntimeError(what)


class _Array:
    """An array as a kernel sees it: strict bounds, and every access counted unless it is local. Of
    global memory, an element counts as ``nbytes``; of shared memory as none."""

    def __init__(
        self, memory: np.ndarray, name: str, counts: Counts | None = None, nbytes: int = 0
    ) -> None:
        self.memory, self.shape, self.dtype = memory, memory.shape, memory.dtype
        self.ndim, self.size = memory.ndim, memory.size
        self._name, self._counts, self._nbytes = name, counts, nbytes
        self._is_read_only = name in READ_ONLY
        self._is_line = memory.ndim == 1

    def __len__(self) -> int:
        return int(self.shape[0])

    # Every access of every thread runs these two, so they do nothing twice, and call nothing for
    # one element of an array of one dimension, as most accesses are.

    def __getitem__(self, index: Index) -> Number:
        if self._is_line and not isinstance(index, SEVERAL) and 0 <= index < self.size:
            elements = 1
        else:
            elements = self._elements(index)
        counts = self._counts
        if counts is not None:
            if self._nbytes:
                counts.global_loads += 1
                counts.global_bytes += self._nbytes * elements
            else:
                counts.shared_loads += 1
        return self.memory[index]

    def __setitem__(self, index: Index, value: Number) -> None:
        if self._is_read_only:
            raise IndexError(f"the kernel writes to {self._name}[{index}], which is not its output")
        if self._is_line and not isinstance(index, SEVERAL) and 0 <= index < self.size:
            elements = 1
        else:
            elements = self._elements(index)
        counts = self._counts
        if counts is not None:
            if self._nbytes:
                counts.global_stores += 1
                counts.global_bytes += self._nbytes * elements
            else:
                counts.shared_stores += 1
        self.memory[index] = value

    def _elements(self, index: Index) -> int:
        """Return the number of elements of an access. Raises ``IndexError`` for an index outside
        the array."""
        entries = index if isinstance(index, tuple) else (index,)
        if len(entries) != self.ndim:
            raise IndexError(f"{len(entries)} indices for {self._name} of shape {self.shape}")
        elements = 1
        for entry, extent in zip(entries, self.shape):  # noqa: B905, both have that length
            if isinstance(entry, slice):  # the four lanes of a 128-bit access
                elements = entry.stop - entry.start
                if not 0 <= entry.start <= entry.stop <= extent:
                    raise self._outside(index)
            elif not 0 <= entry < extent:
                raise self._outside(index)
        return elements

    def _outside(self, index: Index) -> IndexError:
        return IndexError(f"index {index} is outside {self._name} of shape {self.shape}")


def _poisoned(shape: DeclaredShape, dtype: npt.DTypeLike) -> np.ndarray:
    return np.full(shape, poison(np.dtype(dtype)), dtype)


def _local_array(
    shape: DeclaredShape, dtype: npt.DTypeLike, alignment: int | None = None
) -> _Array:
    return _Array(_poisoned(shape, dtype), "a local array")


class _Shared:
    """``cuda.shared``: one array per call in the code and block."""

    def __init__(self, counts: Counts, dynamic_bytes: int) -> None:
        self._counts = counts
        self.arrays: dict[tuple[CodeType, int], _Array] = {}
        self._dynamic = np.empty(dynamic_bytes, np.uint8)

    def new_block(self) -> None:
        """Forget everything that the last block wrote."""
        self.arrays.clear()
        self._dynamic.fill(0xFF)  # bytes that make NaN of a float

    def array(
        self, shape: DeclaredShape, dtype: npt.DTypeLike, alignment: int | None = None
    ) -> _Array:
        caller = sys._getframe(1)
        call = caller.f_code, caller.f_lasti
        if call not in self.arrays:
            memory = self._whole(dtype) if shape in (0, (0,)) else _poisoned(shape, dtype)
            self.arrays[call] = _Array(memory, "a shared array", self._counts)
        return self.arrays[call]

    def _whole(self, dtype: npt.DTypeLike) -> np.ndarray:
        """Return the dynamic part as an array of that type."""
        nbytes = np.dtype(dtype).itemsize
        return self._dynamic[: len(self._dynamic) // nbytes * nbytes].view(dtype)


class _Atomic(kernelapi.FakeCUDAAtomic):  # type: ignore[misc]
    """``cuda.atomic``, whose ``add`` is counted as one load and one store; Numba's loads twice."""

    def add(self, array: _Array, index: Index, value: Number) -> Number:
        old = array[index]
        array[index] = old + value
        return old


class _SimulatedCuda(kernelapi.FakeCUDAModule):  # type: ignore[misc]
    """The module ``cuda`` of a simulated kernel, for one thread after the other."""

    threadIdx = blockIdx = laneid = None  # Numba's ask the operating system's thread
    syncthreads_count = SimulatedCuda.syncthreads_count
    syncthreads_and = SimulatedCuda.syncthreads_and
    syncthreads_or = SimulatedCuda.syncthreads_or

    def __init__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        counts: Counts,
        dynamic_bytes: int,
    ) -> None:
        super().__init__(grid, block, 0)
        self._shared, self._atomic = _Shared(counts, dynamic_bytes), _Atomic()
        self._local = SimpleNamespace(array=_local_array)
        self._counts, self._threads, self._warp = counts, math.prod(block), 0
        self.hub = self.syncthreads = getcurrent().switch

    def syncwarp(self) -> None:
        """Wait for the other threads of the warp, for which Numba's simulator has no call."""
        threads = min(self.warpsize, self._threads - self._warp * self.warpsize)
        meet_some(-1 - self._warp, threads)  # numbers that no barrier of a kernel has

    def enter(self, number: int, index: tuple[int, int, int]) -> None:
        """Make this the ``cuda`` of that thread until the next call."""
        self.threadIdx, self.laneid = kernelapi.Dim3(*index), number % self.warpsize
        self._warp = number // self.warpsize

    def on_barrier(self, threads: int, site: int) -> None:
        """Count the barrier once for each thread that has waited there."""
        self._counts.barriers += threads

    def meet(self, name: str, site: int, brought: Any) -> Any:
        """Return what an intrinsic of a whole warp or warpgroup gives to this thread."""
        call = WaitingCall(name, site, brought)
        call.mask = (1 << call.together) - 1
        return self.hub(call)
