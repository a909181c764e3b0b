"""``cuda.shared`` and ``cuda.local`` of a simulated kernel."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from convlab.engines.access_log import Span, assigned_name
from convlab.engines.cells import poisoned
from convlab.engines.checked_array import CheckedArray, Memory, checked
from convlab.engines.local_array import local_class

STATIC_BYTES, BLOCK_BYTES = 48 << 10, 227 << 10  # what a block may have: by itself, with dynamic
NOBODY_WROTE = 0xFF  # bytes that make NaN of a float, -1 of an integer


class Shared:
    """``cuda.shared``: an array for each call in the code, poisoned for every block. A call that
    asks for another shape or type, as that of a device function may, makes another array."""

    def __init__(self, memory: Memory, dynamic_bytes: int) -> None:
        self._memory = memory
        self._arrays: dict[tuple[Any, ...], CheckedArray] = {}
        self._static: list[CheckedArray] = []
        if not 0 <= dynamic_bytes <= BLOCK_BYTES:
            raise ValueError(
                f"shared_bytes is {dynamic_bytes}: a block has 0 to {BLOCK_BYTES} bytes of shared "
                "memory"
            )
        self._begin = self._end = -(-dynamic_bytes // 16) * 16  # the dynamic part comes first
        self._dynamic = np.zeros(dynamic_bytes, np.uint8)

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> CheckedArray:
        """This block's array of the call that asks; ``shape`` 0 is the dynamic part.

        Raises ``MemoryError`` where a block has not so much.
        """
        frame = sys._getframe(1)
        call = id(frame.f_code) + frame.f_lasti, shape, dtype, alignment
        known = self._arrays.get(call)
        if known is None:
            name = assigned_name(frame.f_code, frame.f_lasti)
            known = self._arrays[call] = self._new(name, shape, dtype_of(dtype), alignment)
        return known

    def _new(
        self, name: str, shape: Any, dtype: np.dtype[Any], alignment: int | None
    ) -> CheckedArray:
        sizes = sizes_of(shape)
        if sizes == (0,):
            count = len(self._dynamic) // dtype.itemsize
            host = self._dynamic[: count * dtype.itemsize].view(dtype)
            base, alignment = 0, 16
        else:
            host = poisoned(sizes, dtype)
            alignment = alignment or dtype.itemsize
            base = -(-self._end // alignment) * alignment
            self._end = base + host.nbytes
            self._check_size()
        if self._memory.log is not None:
            end = base + host.nbytes
            self._memory.log.spans.append(
                Span(name, base, end, host.shape, dtype.itemsize, None, dtype)
            )
        array = checked(host, name, base, self._memory, alignment)
        if sizes != (0,):
            self._static.append(array)
        return array

    def _check_size(self) -> None:
        static = self._end - self._begin
        if static > STATIC_BYTES:
            raise MemoryError(
                f"{static} bytes of shared arrays: a block has at most {STATIC_BYTES}, more only "
                "as dynamic shared memory"
            )
        if self._end > BLOCK_BYTES:
            raise MemoryError(
                f"{self._end} bytes of shared memory, {len(self._dynamic)} of them dynamic: a "
                f"block has at most {BLOCK_BYTES}"
            )

    def new_block(self) -> None:
        """Nothing is left of what the last block wrote."""
        self._dynamic.fill(NOBODY_WROTE)
        for array in self._static:
            array.host[...] = poisoned((), array.dtype)

    def let_go(self) -> None:
        """Forget the arrays: the launch is over."""
        self._arrays.clear()
        self._static.clear()


class Local:
    """``cuda.local``: a new array for each call."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._made: dict[tuple[Any, ...], tuple[Any, str]] = {}

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        """A new array of the thread that asks."""
        frame = sys._getframe(1)
        call = id(frame.f_code) + frame.f_lasti, shape, dtype, alignment
        made = self._made.get(call)
        if made is None:
            kept = dtype_of(dtype)
            kind = local_class(sizes_of(shape), kept, self._memory.number(kept), alignment)
            made = self._made[call] = kind, assigned_name(frame.f_code, frame.f_lasti)
        kind, name = made
        return kind(name, self._memory)


def sizes_of(shape: Any) -> tuple[int, ...]:
    """A shape as Numba takes it, a number or several, as a tuple."""
    return tuple(int(n) for n in shape) if isinstance(shape, tuple | list) else (int(shape),)


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """NumPy's type for what a kernel names: a cast, a Numba type, anything of NumPy's."""
    found: np.dtype[Any] = np.dtype(getattr(dtype, "dtype", dtype))
    return found
