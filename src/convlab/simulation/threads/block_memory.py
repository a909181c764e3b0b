"""The memory of blocks and threads: ``cuda.shared``, ``cuda.local`` and ``cuda.const``."""

from __future__ import annotations

import math
import sys
from types import FrameType
from typing import NamedTuple

import numpy as np

from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.index_checks import IndexChecks
from convlab.simulation.memory.kernel_arrays import KernelArray
from convlab.simulation.memory.launch_memory import Memory, local_class
from convlab.simulation.memory.local_arrays import LocalArray
from convlab.simulation.memory.structured_arrays import RecordArray
from convlab.simulation.numbers.scalars import dtype_of, poison
from convlab.simulation.recording.access_log import SIZE_SHIFT, DynamicArray
from convlab.simulation.recording.instructions import assigned_name
from convlab.simulation.rules.finding_words import (
    OF_CONSTANT,
    OF_LOCAL,
    OF_SHARED,
    OF_SHARED_ARRAYS,
)
from convlab.simulation.rules.launch_checks import BLOCK_BYTES, check_dynamic

STATIC_BYTES = 48 << 10  # of shared memory that a block may have without the dynamic part
LOCAL_BYTES, CONSTANT_BYTES = 512 << 10, 64 << 10  # of a thread, of a kernel
NOBODY_WROTE = 0xFF  # bytes that make NaN of a float, -1 of an integer

SharedContents = tuple[bytes, list[bytes]]  # of the dynamic part, of the other arrays
# A call in the code, by its site, with its shape, dtype and alignment.
ArrayCall = tuple[int, object, object, object]


class NoRoom(MemoryError):
    """A kernel asks for more shared, local or constant memory than a GPU has."""


class RequestedArray(NamedTuple):
    """An array as a call in the code requests it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    alignment: int | None


class Shared:
    """``cuda.shared``: an array for each call in the code, poisoned for every block. A call with
    another shape or type, as in a device function, makes another array."""

    def __init__(self, memory: Memory, dynamic_bytes: int) -> None:
        self._memory = memory
        self._arrays: dict[ArrayCall, KernelArray | RecordArray] = {}
        self._static: list[np.ndarray] = []
        dynamic_bytes = check_dynamic(dynamic_bytes)
        self._begin = self._end = -(-dynamic_bytes // 16) * 16  # the dynamic part comes first
        self._dynamic = np.zeros(dynamic_bytes, np.uint8)

    @property
    def nbytes(self) -> int:
        """The bytes that a block uses, as far as its arrays have been requested."""
        return self._end

    @property
    def dynamic_bytes(self) -> int:
        """The bytes of dynamic shared memory."""
        return len(self._dynamic)

    def is_dynamic(self, array: IndexChecks) -> bool:
        """Return whether it lies in the dynamic part, or would, if that were not empty."""
        base = getattr(array, "base", self._begin) % (1 << SIZE_SHIFT)
        return base < self._begin or (base == 0 == self._begin and array.shape == (0,))

    def array(
        self, shape: object, dtype: object, alignment: object = None
    ) -> KernelArray | RecordArray:
        """Return this block's array of the call in the kernel; ``shape`` 0 is the dynamic part.

        Raises :class:`NoRoom` if a block has less memory.
        """
        frame = sys._getframe(1)
        call = id(frame.f_code) + frame.f_lasti, shape, dtype, alignment
        if (known := self._arrays.get(call)) is None:
            requested = _requested(frame, shape, dtype, alignment)
            known = self._arrays[call] = self._new(requested, id(frame.f_code))
        return known

    def _new(self, requested: RequestedArray, code: int) -> KernelArray | RecordArray:
        name, shape, dtype, alignment = requested
        dynamic = len(self._dynamic)
        if shape == (0,):
            host = self._dynamic[: dynamic // dtype.itemsize * dtype.itemsize].view(dtype)
            tag, log = 0, self._memory.log
            if log is not None:
                tag = log.named(DynamicArray(name, code, dtype.itemsize))
                log.dynamic_bytes = dynamic
            return self._memory.array(host, name, 0, max(16, alignment or 16), tag)
        host = np.full(shape, poison(dtype), dtype)
        self._static.append(host)
        alignment = alignment or (dtype.itemsize if dtype.names is None else dtype.alignment)
        base = -(-self._end // alignment) * alignment
        self._end = base + host.nbytes
        if (static := self._end - self._begin) > STATIC_BYTES:
            raise NoRoom(
                f"{static} {OF_SHARED_ARRAYS}: a block has at most {STATIC_BYTES}, more only "
                "as dynamic shared memory"
            )
        if self._end > BLOCK_BYTES:
            raise NoRoom(
                f"{self._end} {OF_SHARED}, {dynamic} of them dynamic: a block has at "
                f"most {BLOCK_BYTES}"
            )
        return self._memory.array(host, name, base, alignment)

    def new_block(self) -> None:
        """Forget everything that the last block wrote."""
        for host in self._static:
            host[...] = poison(host.dtype)
        self._dynamic.fill(NOBODY_WROTE)  # after the arrays that are views of it

    def contents(self) -> SharedContents:
        """Return a copy of the shared memory, to be saved before another block runs."""
        return self._dynamic.tobytes(), [host.tobytes() for host in self._static]

    def restore(self, saved: SharedContents) -> None:
        """Write back the ``contents`` that were saved."""
        self.new_block()
        dynamic, arrays = saved
        for host, data in zip(self._static, arrays, strict=False):  # others may have made more
            host[...] = np.frombuffer(data, host.dtype).reshape(host.shape)
        self._dynamic[...] = np.frombuffer(dynamic, np.uint8)


class Local:
    """``cuda.local``: a new array for each call."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._made: dict[ArrayCall, tuple[type[LocalArray], str]] = {}

    def array(
        self, shape: object, dtype: object, alignment: object = None
    ) -> KernelArray | RecordArray:
        """Return a new array of the thread. Raises :class:`NoRoom` if a thread has less memory."""
        frame = sys._getframe(1)
        call = id(frame.f_code) + frame.f_lasti, shape, dtype, alignment
        if (made := self._made.get(call)) is None:
            name, sizes, kept, align = _requested(frame, shape, dtype, alignment)
            if (nbytes := math.prod(sizes) * kept.itemsize) > LOCAL_BYTES:
                raise NoRoom(f"{nbytes} {OF_LOCAL} for {name}: a thread has at most {LOCAL_BYTES}")
            if kept.names is not None:  # in memory, where fields can be views
                host = np.full(sizes, poison(kept))
                return Memory(None, self._memory.report).array(host, name, 0)
            kind = local_class(sizes, kept, self._memory.number(kept), align)
            made = self._made[call] = kind, name
        return made[0](made[1], self._memory)


class Constant:
    """``cuda.const``: arrays that the compiler puts in constant memory."""

    @staticmethod
    def array_like(array: CheckedArray) -> CheckedArray:
        """Return the array itself. Raises :class:`NoRoom` if a kernel has less memory."""
        if (nbytes := math.prod(array.shape) * array.dtype.itemsize) > CONSTANT_BYTES:
            raise NoRoom(
                f"{nbytes} {OF_CONSTANT} for {array.name}: a kernel has at most {CONSTANT_BYTES}"
            )
        return array


def _requested(frame: FrameType, shape: object, dtype: object, alignment: object) -> RequestedArray:
    """Return the array that a call in the frame requests. Raises what Numba's compiler raises for
    an alignment that it refuses."""
    if alignment is not None:
        if not isinstance(alignment, int):
            raise TypeError(f"alignment is {alignment!r}: it must be a constant integer")
        if alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"Alignment must be a positive power of two, not {alignment}")
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    name = assigned_name(frame.f_code, frame.f_lasti)
    return RequestedArray(name, tuple(map(int, sizes)), dtype_of(dtype), alignment)
