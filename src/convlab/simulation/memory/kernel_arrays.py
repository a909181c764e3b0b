"""Operations of every array that a kernel sees: views, parts, wide accesses.

The methods here are for accesses that are unusual or wrong. The usual ones have code that
:mod:`convlab.simulation.memory.launch_memory` writes out for each kind of array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Protocol

import numpy as np

from convlab.simulation.memory.index_checks import ArrayReport, Index, IndexChecks
from convlab.simulation.memory.numpy_functions import METHODS, NumpyFunctions
from convlab.simulation.recording.access_log import SIZE_SHIFT, AccessLog
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.findings import NotSimulated

CountedNumber = Callable[[object], object]  # makes a number that counts the operations on it


class ArrayMemory(Protocol):
    """The memory of a launch, as its arrays use it."""

    log: AccessLog | None
    report: ArrayReport

    def number(self, dtype: np.dtype) -> CountedNumber | None:
        """Return what loads of that type are passed through; None for nothing."""

    def local(self, values: np.ndarray) -> KernelArray:
        """Return a local array that holds a copy of these values."""

    def view(self, host: np.ndarray, name: str, base: int, alignment: int) -> KernelArray:
        """Return a view whose first element has the simulated address ``base``."""


class KernelArray(IndexChecks, NumpyFunctions):
    """An array as a kernel sees it. ``wide`` tells whether float4 accesses take it."""

    __slots__ = ("memory", "name")
    memory: ArrayMemory
    dtype: np.dtype
    wide: bool

    # Each kind of array has these three.

    def derived(self, change: Callable[[np.ndarray], np.ndarray], name: str = "") -> KernelArray:
        """Return the view that ``change`` makes of the host's array. Without a ``name`` it keeps
        this array's name."""
        raise NotImplementedError

    def load(self, at: Index, count: int, site: int) -> list[object]:
        """Load ``count`` neighbours from a checked index on."""
        raise NotImplementedError

    def store(self, at: Index, values: tuple[object, ...], site: int) -> None:
        """Store neighbours from a checked index on, rounded or wrapped to the array's type."""
        raise NotImplementedError

    @property
    def on_finding(self) -> ArrayReport:
        """The function that notes a finding about the array."""
        return self.memory.report

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Callable[..., object]:
        """Return a reduction such as ``sum``. Refuses attributes that only NumPy's arrays have."""
        if name in METHODS:
            return partial(self._reduced, getattr(np, name), 1)
        if not name.startswith("__") and hasattr(np.ndarray, name):
            raise NotSimulated(f"{self.name}.{name} is not simulated")
        raise AttributeError(f"{self.name} is an array, which has no {name}")

    def __getitem__(self, index: object) -> object:
        return self.part(index, site_of(1))

    def __setitem__(self, index: object, value: object) -> None:
        self.store_part(index, value, site_of(1))

    def __iter__(self) -> Iterator[object]:
        for row in range(len(self)):
            yield self.part(row, site_of(1))  # the caller is the line that takes the next row

    # Views, as NumPy has them.

    T = property(lambda self: self.derived(np.transpose))
    flat = property(lambda self: self.reshape(-1))
    ctypes = property(lambda self: SimpleNamespace(data=self.base % (1 << SIZE_SHIFT)))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)

    def transpose(self, *axes: int) -> KernelArray:
        """Return a view with its axes exchanged."""
        return self.derived(lambda host: host.transpose(*axes))

    def reshape(self, *shape: int) -> KernelArray:
        """Return a view of another shape."""
        return self.derived(lambda host: host.reshape(*shape))

    def ravel(self) -> KernelArray:
        """Return a view with one dimension."""
        return self.reshape(-1)

    def copy(self) -> KernelArray:
        """Return a local array of the thread with the same elements."""
        return self.memory.local(self.elements(site_of(1)))

    def elements(self, site: int) -> np.ndarray:
        """Return all elements, each loaded by the thread that runs."""
        loaded = [self.load(at, 1, site)[0] for at in np.ndindex(*self.shape)]
        return np.array(loaded, self.dtype).reshape(self.shape)

    def fill(self, value: object) -> None:
        """Store a value in all elements."""
        self.store_part(..., value, site_of(1))

    def loaded(self, value: object) -> object:
        """Return a loaded number, which counts operations if the launch counts them."""
        number = self.memory.number(self.dtype)
        return value if number is None else number(value)

    def part(self, index: object, site: int) -> object:
        """Return an element by an unusual index, or a view: ``a[2:]``, ``a[row]`` of a matrix."""
        entries = self.whole_index(index)
        if self.is_partial(entries):
            return self.cut(entries, site)
        return self.load(self.check(entries, site), 1, site)[0]

    def store_part(self, index: object, value: object, site: int) -> None:
        """Store by an unusual index, or an unusual value: an integer that wraps, a float that is
        cut."""
        entries = self.whole_index(index)
        if not self.is_partial(entries):
            self.store(self.check(entries, site), (value,), site)
            return
        row = self.cut(entries, site)
        if isinstance(value, list):
            raise TypeError("float() argument must be a number, not 'list': a kernel has no lists")
        if isinstance(value, KernelArray):
            value = value.elements(site)
        given = np.asarray(value)
        try:
            values = np.broadcast_to(given, row.shape)
        except ValueError:
            raise ValueError(
                f"an array of shape {given.shape} stored in one of shape {row.shape}, a part of "
                f"{self.name}: the shapes must agree"
            ) from None
        plain = values.dtype.kind in "fiubc"
        for at in np.ndindex(*row.shape):
            row.store(at, (values[at].item() if plain else values[at],), site)

    def cut(self, entries: tuple[object, ...], site: int) -> KernelArray:
        """Return the view at some integers and slices."""
        checked = self.check_slices(entries, site)
        return self.derived(
            lambda host: host[checked],
            name=f"{self.name}[{', '.join(map(_as_written, checked))}]",
        )

    # Wide accesses: of a float4, and the two ends of an asynchronous copy.

    def load_run(self, index: object, count: int, depth: int = 2) -> tuple[object, ...]:
        """Load ``count`` neighbours by one wide access. The kernel's line is ``depth`` calls
        above."""
        site = site_of(depth)
        return tuple(self.load(self.check_run(index, count, site), count, site))

    def store_run(self, index: object, values: tuple[object, ...], depth: int = 2) -> None:
        """Store neighbours by one wide access. The kernel's line is ``depth`` calls above."""
        site = site_of(depth)
        self.store(self.check_run(index, len(values), site), values, site)

    def element(self, at: Index) -> int:
        """Return the number of an element in C order; the array is C-contiguous."""
        return (self.address(at) - self.base) // self.dtype.itemsize

    def first_of_run(self, index: object, count: int, site: int) -> int:
        """Return the number, in C order, of a wide access's first element, after all checks."""
        return self.element(self.check_run(index, count, site))

    def check_run(self, index: object, count: int, site: int) -> Index:
        """Return the index of a wide access's first element, after all checks."""
        if not self.wide:
            raise TypeError(
                f"{self.name} is not a C-contiguous array of float32: wide accesses and "
                "asynchronous copies take only those"
            )
        at = self.check(index, site)
        if count > 1:
            self.check((*at[:-1], at[-1] + count - 1), site)
        self.check_aligned(at, self.dtype.itemsize * count, site)
        return at


def view_of(change: Callable[[np.ndarray], np.ndarray], host: np.ndarray, name: str) -> np.ndarray:
    """Return ``change(host)``. Raises ``TypeError`` if it is a copy instead of a view."""
    part = change(host)
    if part.size and not np.may_share_memory(part, host):
        raise TypeError(f"{name} is not contiguous: a kernel cannot take its elements as one row")
    return part


def _as_written(entry: int | slice) -> str:
    """Return an index or a slice as a kernel writes it: ``1:``, ``::2``."""
    if not isinstance(entry, slice):
        return str(entry)
    begin, end, step = ("" if n is None else str(n) for n in (entry.start, entry.stop, entry.step))
    return f"{begin}:{end}:{step}" if step else f"{begin}:{end}"
