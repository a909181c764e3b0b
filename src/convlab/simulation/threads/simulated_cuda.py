"""``cuda`` in a simulated kernel: one object for a launch, set anew for each thread."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from types import SimpleNamespace

import numpy as np

from convlab.simulation.language.libdevice import of_libdevice
from convlab.simulation.language.libraries import Library, half, of_bfloat16, vector_types
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.kernel_arrays import KernelArray
from convlab.simulation.memory.launch_memory import Memory
from convlab.simulation.numbers.math_functions import fma
from convlab.simulation.numbers.registers import OF_BITS, of_bits
from convlab.simulation.numbers.scalars import cast, keeper
from convlab.simulation.recording.access_log import GLOBAL, WARP
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.coordinates import Coordinates
from convlab.simulation.rules.findings import NotSimulated
from convlab.simulation.threads.atomics import Atomics
from convlab.simulation.threads.block_memory import Constant, Local, Shared
from convlab.simulation.threads.waiting import GRID_BARRIER, YIELD, WaitingCall

ALL_LANES = (1 << WARP) - 1


@dataclass(slots=True)
class Dim3:
    """Coordinates or sizes along three axes, such as ``cuda.threadIdx``."""

    x: int = 0
    y: int = 0
    z: int = 0

    def __str__(self) -> str:
        return f"({self.x}, {self.y}, {self.z})"


def _barrier(kind: str) -> Callable[..., int]:
    """Return a barrier of the block that counts the threads whose predicate is true, or tests
    whether it is true for all of them, or for one."""
    return lambda self, predicate: int(self.hub(WaitingCall(kind, site_of(1), predicate)))


def _of_its_bits(name: str) -> staticmethod[[int], int]:
    """Return a function of an integer's bits, of which there are 32 unless it needs more."""
    short, long = of_bits(name, 32), of_bits(name, 64)
    return staticmethod(lambda value: (short if -(2**31) <= value < 2**32 else long)(value))


class SimulatedCuda:
    """``cuda`` in a kernel: its methods do what those of ``numba.cuda`` do.

    A thread waits by a switch to ``hub``, which returns the result of its call. ``on_fence``
    receives whether a fence is the whole GPU's.
    """

    warpsize = WARP

    def __init__(
        self,
        grid: Coordinates,
        block: Coordinates,
        memory: Memory,
        dynamic_bytes: int,
        hub: Callable[..., object],
        on_fence: Callable[[bool], None],
    ) -> None:
        self.threadIdx, self.blockIdx = Dim3(), Dim3()
        self.gridDim, self.blockDim = Dim3(*grid), Dim3(*block)
        self.laneid = 0
        self.shared, self.local, self.const = Shared(memory, dynamic_bytes), Local(memory), Constant
        self.atomic = Atomics(hub)
        self.hub = self.syncthreads = hub  # not a method: one call less for each barrier
        self.threadfence = self.threadfence_system = partial(on_fence, True)
        self.threadfence_block = partial(on_fence, False)
        grid_group = SimpleNamespace(sync=self._sync_grid)
        self.cg = Library("cuda.cg", {"this_grid": lambda: grid_group}.get)
        self.fp16, self.bf16 = Library("cuda.fp16", half), Library("cuda.bf16", of_bfloat16)
        self.libdevice = Library("libdevice", of_libdevice)
        # A float32 rounds to float64 first: docs/engines.md says what registers hold.
        self.fma: Callable[[float, float, float], object] = fma

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _NUMBERS:
            return cast(name)
        if name == "bfloat16":
            return self.bf16.bfloat16
        if name in vector_types():
            return vector_types()[name]
        known = [one for one in dir(self) if not one.startswith("_")]
        meant = "".join(f" (is cuda.{one} meant?)" for one in get_close_matches(name, known, 1))
        raise NotSimulated(f"cuda.{name} is not simulated{meant}")

    def grid(self, ndim: int) -> int | tuple[int, ...]:
        """Return the thread's index in the grid, along as many axes."""
        t, b, d = self.threadIdx, self.blockIdx, self.blockDim
        index = b.x * d.x + t.x, b.y * d.y + t.y, b.z * d.z + t.z
        return index[0] if ndim == 1 else index[:ndim]

    def gridsize(self, ndim: int) -> int | tuple[int, ...]:
        """Return the threads of the grid, along as many axes."""
        g, d = self.gridDim, self.blockDim
        sizes = g.x * d.x, g.y * d.y, g.z * d.z
        return sizes[0] if ndim == 1 else sizes[:ndim]

    def lanemask_lt(self) -> int:
        """Return the mask of the lanes before this one."""
        return (1 << self.laneid) - 1

    # Barriers of the block, and calls of a warp's lanes: more of them in _COLLECTIVES.

    syncthreads_count = _barrier("syncthreads_count")
    syncthreads_and = _barrier("syncthreads_and")
    syncthreads_or = _barrier("syncthreads_or")

    def _sync_grid(self) -> None:
        """``cuda.cg.this_grid().sync()``: a barrier of all threads of the grid."""
        self.hub(WaitingCall(GRID_BARRIER, site_of(1)))

    def syncwarp(self, mask: int = ALL_LANES) -> None:
        """Wait for the lanes of the mask."""
        self.hub(WaitingCall("syncwarp", site_of(1), None, int(mask) & ALL_LANES))

    def activemask(self) -> int:
        """Return the mask of the lanes that are at this call together."""
        mask = self.hub(WaitingCall("activemask", site_of(1)))
        assert isinstance(mask, int)
        return mask

    # Loads and stores that say which caches keep the element.

    @staticmethod
    def ldca(array: KernelArray, index: object) -> object:
        """Load an element."""
        return array.part(index, site_of(1))

    ldcs = ldlu = ldca

    @staticmethod
    def stcs(array: KernelArray, index: object, value: object) -> None:
        """Store an element."""
        array.store_part(index, value, site_of(1))

    stwb = stcs

    # Loads and stores past the caches that other threads do not see.

    def ldcg(self, array: KernelArray, index: object) -> object:
        """Load an element past the caches of the SM."""
        value: object = array.part(index, site_of(1))
        self._seen_by_all(array)
        return value

    def ldcv(self, array: CheckedArray, index: object) -> object:
        """Load an element past all caches; a thread that polls lets others go first."""
        site = site_of(1)
        value: object = array.part(index, site)
        if self._seen_by_all(array):
            history = self.atomic.history
            polls = history.read(array, index, site, value, sys._getframe(1))
            if polls or history.gives_way:
                self.hub(WaitingCall(YIELD, site))
        return value

    def stcg(self, array: KernelArray, index: object, value: object) -> None:
        """Store an element past the caches of the SM."""
        array.store_part(index, value, site_of(1))
        self._seen_by_all(array)

    stwt = stcg

    def _seen_by_all(self, array: KernelArray) -> bool:
        """Note that all threads see the last access, if it is to global memory."""
        far: bool = getattr(array, "first_address", 0) >= GLOBAL
        if far and array.memory.log is not None:
            array.memory.log.seen_by_all()
        return far

    def nanosleep(self, nanoseconds: int) -> None:
        """Let the block's other threads go on; nothing here takes time."""
        self.hub(WaitingCall(YIELD, site_of(1)))

    # Arithmetic.

    @staticmethod
    def selp(condition: object, yes: object, no: object) -> object:
        """Select one of two values."""
        return yes if condition else no

    clz, popc, brev, ffs = map(_of_its_bits, OF_BITS)
    cbrt = staticmethod(math.cbrt)


# The value that a lane brings to a call of its warp, from the arguments after the mask. A shuffle
# brings the number and the source lane; beyond the warp, the lane reads its own number.
Brings = Callable[..., object]
_VOTES = ("ballot_sync", "all_sync", "any_sync", "eq_sync")
_COLLECTIVES: dict[str, Brings] = {
    **dict.fromkeys(_VOTES, lambda lane, value: bool(value)),
    **dict.fromkeys(("match_any_sync", "match_all_sync"), lambda lane, value: value),
    "shfl_sync": lambda lane, value, other: (value, other % WARP),
    "shfl_up_sync": lambda lane, value, delta: (value, lane - delta),
    "shfl_down_sync": lambda lane, value, delta: (value, lane + delta),
    "shfl_xor_sync": lambda lane, value, bits: (value, (lane ^ bits) % WARP),
}
as_int32 = keeper(np.dtype(np.int32))  # the type that Numba has for masks of lanes


def _collective(kind: str, brings: Brings) -> Callable[..., object]:
    def call(self: SimulatedCuda, mask: int, *values: object) -> object:
        brought = brings(self.laneid, *values)
        result = self.hub(WaitingCall(kind, site_of(1), brought, int(mask) & ALL_LANES))
        if kind == "match_all_sync":
            assert isinstance(result, tuple)
            return as_int32(result[0]), result[1]
        return as_int32(result) if kind in ("ballot_sync", "match_any_sync") else result

    return call


for _kind_of_call, _brings in _COLLECTIVES.items():
    setattr(SimulatedCuda, _kind_of_call, _collective(_kind_of_call, _brings))

_NUMBERS = {
    *("float16", "float32", "float64", "complex64", "complex128", "intp", "uintp"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}
