"""Arrays in global, shared and constant memory: every access is checked and logged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convlab.simulation.memory.host_memory import is_wide, start_of
from convlab.simulation.memory.index_checks import Index
from convlab.simulation.memory.kernel_arrays import ArrayMemory, KernelArray, view_of
from convlab.simulation.numbers.scalars import converted, dtype_of, quick
from convlab.simulation.recording.access_log import ATOMIC, NAME_SHIFT, READ, SIZE_SHIFT, WRITE
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.finding_words import OFF_ITS_SIZE


class CheckedArray(KernelArray):
    """A global, shared or constant array, or a view of one. ``base`` is its first address."""

    __slots__ = (
        *("alignment", "base", "data", "dtype", "host", "linear", "shape", "strides", "wide"),
    )

    def __init__(
        self, host: np.ndarray, name: str, base: int, memory: ArrayMemory, alignment: int = 256
    ) -> None:
        self.host, self.name, self.base, self.memory = host, name, base, memory
        self.alignment = alignment
        self.shape, self.strides = host.shape, host.strides
        self.dtype = host.dtype
        self.data, self.linear = quick(host), quick(host.reshape(-1))  # the same memory if wide
        self.wide = is_wide(host)

    # The first address without the size that :meth:`AccessLog.sized` adds, and without the tag.
    first_address = property(lambda self: self.base % (1 << SIZE_SHIFT))
    # The tag that :meth:`AccessLog.named` adds.
    tag = property(lambda self: self.base >> NAME_SHIFT << NAME_SHIFT)
    real = property(lambda self: self.derived(np.real))
    imag = property(lambda self: self.derived(np.imag))

    def view(self, dtype: object) -> KernelArray:
        """Return the same bytes as numbers of another type."""
        return self.derived(lambda host: host.view(dtype_of(dtype)))

    def __array__(self, *arguments: object, **options: object) -> np.ndarray:
        """Refuse NumPy's operations on a whole array, which no kernel has."""
        raise TypeError(f"{self.name} is an array of a kernel, which no operation of NumPy takes")

    def derived(self, change: Callable[[np.ndarray], np.ndarray], name: str = "") -> KernelArray:
        """Return a view of the array: ``change`` returns that view of the host's array."""
        part = view_of(change, self.host, self.name)
        offset = start_of(part) - start_of(self.host) if part.size else 0
        base, log, size = self.base + offset, self.memory.log, part.dtype.itemsize
        if size != self.dtype.itemsize and log is not None:
            base = log.sized(base, size)
        return self.memory.view(part, name or self.name, base, self.alignment)

    def load(self, at: Index, count: int, site: int) -> list[object]:
        """Return neighbours from a checked index on, and log that they are read."""
        self._log(at, site, READ, count)
        if count == 1:
            return [self.loaded(self.data[at])]
        first = self.element(at)
        return [self.loaded(value) for value in self.linear[first : first + count].tolist()]

    def store(self, at: Index, values: tuple[object, ...], site: int) -> None:
        """Store neighbours from a checked index on, and log that they are written."""
        self.check_writeable()
        kept = [converted(value, self.dtype) for value in values]
        self._log(at, site, WRITE, len(kept), kept)
        if len(kept) == 1:
            self.data[at] = kept[0]
        else:
            for n, value in enumerate(kept, self.element(at)):
                self.linear[n] = value

    def update(
        self, index: object, function: Callable[[Any], object], site: int, kind: int = ATOMIC
    ) -> object:
        """Replace an element by ``function`` of it, as an atomic does; return the old element."""
        self.check_writeable()
        at = self.check(self.whole_index(index), site)
        old = self.loaded(self.data[at])
        self.data[at] = converted(function(old), self.dtype)
        self._log(at, site, kind)
        return old

    def check_writeable(self) -> None:
        """Raise ``TypeError`` if no kernel may store in this array."""
        if not self.host.flags.writeable:
            raise TypeError(f"{self.name} is read-only: a kernel cannot store in it")

    def _log(
        self, at: Index, site: int, kind: int, count: int = 1, values: Sequence[object] = ()
    ) -> None:
        if (log := self.memory.log) is not None:
            log.add(self.address(at), site, kind, count, values)


class MisalignedArray(CheckedArray):
    """An array whose elements are not all at multiples of their size. Packed records load and
    store such elements byte by byte, by ``part`` and ``store_part``."""

    __slots__ = ()

    def __getitem__(self, index: object) -> object:
        self._check_element_aligned(index, site_of(1))
        return self.part(index, site_of(1))

    def __setitem__(self, index: object, value: object) -> None:
        self._check_element_aligned(index, site_of(1))
        self.store_part(index, value, site_of(1))

    def update(
        self, index: object, function: Callable[[Any], object], site: int, kind: int = ATOMIC
    ) -> object:
        """Replace an element as an atomic does, after a check that it is aligned."""
        self._check_element_aligned(index, site)
        return super().update(index, function, site, kind)

    def _check_element_aligned(self, index: object, site: int) -> None:
        entries = self.whole_index(index)
        if not self.is_partial(entries):
            width = self.dtype.alignment
            if self.address(at := self.check(entries, site)) % width:
                what = f"{self.show(at)} {OFF_ITS_SIZE}, {width} bytes"
                self.memory.report("misaligned", what, site, self, at)
