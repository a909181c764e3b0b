"""``cuda.shared`` and ``cuda.local`` of a simulated kernel."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from convlab.simulation.access_log import Span, assigned_name, c_strides
from convlab.simulation.checked_array import (
    Array,
    CheckedArray,
    Memory,
    check,
    checked,
    show,
    whole_index,
)
from convlab.simulation.findings import NotSimulated
from convlab.simulation.indexing import indexed_class
from convlab.simulation.scalars import converted, poison, poisoned, quick

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
        sizes, dynamic = sizes_of(shape), len(self._dynamic)
        if sizes == (0,):
            count = dynamic // dtype.itemsize
            host = self._dynamic[: count * dtype.itemsize].view(dtype)
            base, alignment = 0, 16
        else:
            host = poisoned(sizes, dtype)
            alignment = alignment or dtype.itemsize
            base = -(-self._end // alignment) * alignment
            self._end = base + host.nbytes
            static = self._end - self._begin
            if static > STATIC_BYTES:
                raise MemoryError(
                    f"{static} bytes of shared arrays: a block has at most {STATIC_BYTES}, more "
                    "only as dynamic shared memory"
                )
            if self._end > BLOCK_BYTES:
                raise MemoryError(
                    f"{self._end} bytes of shared memory, {dynamic} of them dynamic: a block has "
                    f"at most {BLOCK_BYTES}"
                )
        if self._memory.log is not None:
            end = base + host.nbytes
            self._memory.log.spans.append(
                Span(name, base, end, host.shape, dtype.itemsize, None, dtype)
            )
        array = checked(host, name, base, self._memory, alignment)
        if sizes != (0,):
            self._static.append(array)
        return array

    def new_block(self) -> None:
        """Forget everything that the last block wrote."""
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


# A thread's own arrays stand for registers, and kernels touch them most. So their code is written
# out for each shape, as for the others: :mod:`convlab.simulation.indexing`.


class LocalArray(Array):
    """A thread's own array; elements that it has not written are None."""

    __slots__ = ("cells",)
    base = 0

    def __init__(self, name: str, memory: Memory) -> None:
        self.name, self.memory = name, memory
        self.cells: list[Any] = [None] * math.prod(self.shape)

    @property
    def size(self) -> int:
        return len(self.cells)

    def cell_at(self, index: Any, site: int) -> int:
        """Which cell that is, after all checks."""
        entries = whole_index(self, index)
        if any(isinstance(entry, slice) for entry in entries) or len(entries) < self.ndim:
            raise NotSimulated(
                f"{show(self.name, entries)}: views of local arrays are not simulated"
            )
        return self.address(check(self, entries, site)) // self.dtype.itemsize

    def part(self, index: Any, site: int) -> Any:
        """The element, or a finding and a poisoned value where it was never written."""
        return self._value(self.cell_at(index, site), site)

    def _value(self, cell: int, site: int) -> Any:
        value = self.cells[cell]
        if value is None:
            at = tuple(int(i) for i in np.unravel_index(cell, self.shape))
            what = f"{show(self.name, at)} is read before anything is written to it"
            self.memory.report("uninitialised", what, site, self, at)
            value = poison(self.dtype).item()
        number = self.memory.number(self.dtype)
        return value if number is None else number(value)

    def store_part(self, index: Any, value: Any, site: int) -> None:
        """Write one element, rounded or wrapped to the array's type."""
        self.cells[self.cell_at(index, site)] = converted(value, self.dtype)

    def update(self, index: Any, function: Any, site: int, kind: int = 0) -> Any:
        """Raises :class:`NotSimulated`, always."""
        raise NotSimulated(f"an atomic on {self.name}: a GPU has none for local memory")

    def load_wide(self, index: Any, count: int, site: int) -> tuple[Any, ...]:
        first = self.first_of_run(index, count, site)
        return tuple([self._value(cell, site) for cell in range(first, first + count)])

    def store_wide(self, index: Any, values: tuple[Any, ...], site: int) -> None:
        first = self.first_of_run(index, len(values), site)
        self.cells[first : first + len(values)] = [converted(v, self.dtype) for v in values]


def local_class(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    number: Callable[[Any], Any] | None,
    alignment: int | None,
) -> Any:
    """The class of local arrays of that shape; sizes are written into its code. ``number`` is what
    loads are handed through, if anything."""
    strides = c_strides(shape, dtype.itemsize)
    steps = enumerate(c_strides(shape, 1))
    cell = " + ".join(f"i{axis} * {n}" if n > 1 else f"i{axis}" for axis, n in steps)
    made, _ = indexed_class(
        LocalArray, len(shape), " and ".join(f"0 <= i{axis} < {n}" for axis, n in enumerate(shape)),
        f"self.cells[{cell}]",
        f"if value is not None: return {'value' if number is None else 'number(value)'}",
        f"CELL[0] = value; self.cells[{cell}] = CELL[0]; return", "",
        {"CELL": quick(np.zeros(1, dtype)), "number": number},
    )  # fmt: skip
    made.shape, made.strides, made.dtype, made.wide = shape, strides, dtype, dtype == np.float32
    made.alignment = alignment or dtype.itemsize
    return made
