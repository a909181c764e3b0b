"""``cuda.shared`` and ``cuda.local`` of a simulated kernel."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from convlab.engines.access_log import GLOBAL, Span, assigned_name
from convlab.engines.checked_array import CheckedArray, Memory, checked, poisoned
from convlab.engines.local_array import local_class


class Shared:
    """``cuda.shared``: an array for each call in the code, poisoned for every block."""

    def __init__(self, memory: Memory, dynamic_bytes: int) -> None:
        self._memory, self._dynamic_bytes = memory, dynamic_bytes
        self._arrays: dict[int, CheckedArray] = {}
        self._end = (dynamic_bytes + 15) // 16 * 16  # the dynamic part comes first
        self._dynamic = np.zeros(dynamic_bytes, np.uint8)

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> CheckedArray:
        frame = sys._getframe(1)
        site = id(frame.f_code) + frame.f_lasti
        known = self._arrays.get(site)
        if known is None:
            name = assigned_name(frame.f_code, frame.f_lasti)
            known = self._arrays[site] = self._new(name, shape, dtype_of(dtype), alignment)
        return known

    def _new(
        self, name: str, shape: Any, dtype: np.dtype[Any], alignment: int | None
    ) -> CheckedArray:
        sizes = sizes_of(shape)
        if sizes == (0,):
            count = self._dynamic_bytes // dtype.itemsize
            host = self._dynamic[: count * dtype.itemsize].view(dtype)
            host[:] = poisoned((count,), dtype)
            base, alignment = 0, 16
        else:
            host = poisoned(sizes, dtype)
            alignment = alignment or dtype.itemsize
            base = -(-self._end // alignment) * alignment
            self._end = base + host.nbytes
        if self._end >= GLOBAL:
            raise MemoryError(f"{self._end} bytes of shared memory: a block has 227 KiB at most")
        if self._memory.log is not None:
            end = base + host.nbytes
            self._memory.log.spans.append(Span(name, base, end, host.shape, dtype.itemsize))
        return checked(host, name, base, self._memory, alignment)

    def new_block(self) -> None:
        """Nothing is left of what the last block wrote."""
        for array in self._arrays.values():
            array.host[...] = poisoned((), array.dtype)


class Local:
    """``cuda.local``: a new array for each call."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._made: dict[int, tuple[Any, str]] = {}

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        frame = sys._getframe(1)
        site = id(frame.f_code) + frame.f_lasti
        made = self._made.get(site)
        if made is None:
            kept = dtype_of(dtype)
            kind = local_class(sizes_of(shape), kept, self._memory.number(kept))
            made = self._made[site] = kind, assigned_name(frame.f_code, frame.f_lasti)
        kind, name = made
        return kind(name, self._memory)


def sizes_of(shape: Any) -> tuple[int, ...]:
    """A shape as Numba takes it, a number or several, as a tuple."""
    return tuple(int(n) for n in shape) if isinstance(shape, tuple | list) else (int(shape),)


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """NumPy's type for what a kernel names: a cast, a Numba type, anything of NumPy's."""
    found: np.dtype[Any] = np.dtype(getattr(dtype, "dtype", dtype))
    return found
