"""Arrays as a simulated kernel sees them: strict bounds, every access in the log.

The methods here are for what is unusual or wrong: other accesses have code that is written out for
each kind of array, by :mod:`convlab.simulation.memory`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from convlab.simulation.access_log import ATOMIC, READ, WRITE, site_of
from convlab.simulation.findings import NotSimulated
from convlab.simulation.scalars import converted, poison, quick


def integer(value: Any) -> int:
    """An index as a Python integer; ``TypeError`` for what is none."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"index {value!r} is no integer")
    return int(value.__index__())


def start_of(host: np.ndarray) -> int:
    """The real address of an array's first element."""
    return int(host.__array_interface__["data"][0])


def is_wide(host: np.ndarray) -> bool:
    return bool(host.dtype == np.float32 and host.flags.c_contiguous)


class Array:
    """What arrays of a kernel have in common. ``wide`` says whether wide accesses take it."""

    __slots__ = ("memory", "name")
    memory: Any  # the launch's convlab.simulation.memory.Memory
    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    base: int
    alignment: int
    dtype: np.dtype[Any]
    wide: bool
    # What differs, for indices that are checked: the part at some integers and slices; the
    # neighbours from an element on, and storing there, rounded or wrapped to the array's type.
    view: Callable[[tuple[Any, ...], int], Any]  # the last argument is the site
    load: Callable[[tuple[int, ...], int, int], list[Any]]
    store: Callable[[tuple[int, ...], tuple[Any, ...], int], None]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        """Of what a simulated array lacks; NumPy's arrays may have it."""
        if not name.startswith("__") and hasattr(np.ndarray, name):
            raise NotSimulated(f"{self.name}.{name} is not simulated")
        raise AttributeError(f"{self.name} is an array, which has no {name}")

    def __iter__(self) -> Iterator[Any]:
        for row in range(len(self)):
            yield self.part(row, site_of(1))  # whoever asks for the next one stands there

    def show(self, index: tuple[Any, ...]) -> str:
        """An element as the kernel writes it: ``S_F[3, 1]``."""
        return f"{self.name}[{', '.join(map(str, index))}]"

    def address(self, index: tuple[int, ...]) -> int:
        """Where the element is, in bytes of simulated memory; the index is not checked."""
        return self.base + sum(i * s for i, s in zip(index, self.strides, strict=True))

    def loaded(self, value: Any) -> Any:
        number = self.memory.number(self.dtype)
        return value if number is None else number(value)

    def whole_index(self, index: Any) -> tuple[Any, ...]:
        """Any index as a tuple, in which slices stand for ``...``."""
        entries = index if isinstance(index, tuple) else (index,)
        given = sum(entry is not Ellipsis for entry in entries)
        if len(entries) - given > 1 or given > self.ndim:
            raise IndexError(f"{len(entries)} indices for {self.name} of shape {self.shape}")
        if given < len(entries):
            axis = next(n for n, entry in enumerate(entries) if entry is Ellipsis)
            filling = (slice(None),) * (self.ndim - given)
            entries = entries[:axis] + filling + entries[axis + 1 :]
        return entries

    def check(self, index: Any, site: int) -> tuple[int, ...]:
        """An element's index as a tuple; reports one that is out of bounds."""
        entries = index if isinstance(index, tuple) else (index,)
        entries = tuple(integer(entry) for entry in entries)
        if len(entries) != self.ndim:
            raise IndexError(f"{len(entries)} indices for {self.name} of shape {self.shape}")
        if not all(0 <= i < n for i, n in zip(entries, self.shape, strict=True)):
            self.report_outside(entries, site, entries)
        return entries

    def report_outside(
        self, shown: tuple[Any, ...], site: int, index: tuple[int, ...] | None
    ) -> None:
        what = f"{self.show(shown)} is outside shape {self.shape}"
        self.memory.report("out of bounds", what, site, self, index)

    def check_aligned(self, index: tuple[int, ...], width: int, site: int) -> None:
        """Report what is not at a multiple of ``width`` bytes, or only by chance."""
        away = self.address(index) % width
        if away or self.alignment % width:
            chance = "not at a multiple" if away else "only by chance at a multiple"
            what = f"{self.show(index)} is {chance} of {width} bytes"
            self.memory.report("misaligned", what, site, self, index)

    def part(self, index: Any, site: int) -> Any:
        """An element by an unusual index, or a view: ``a[2:]``, ``a[row]`` of a matrix."""
        entries = self.whole_index(index)
        if self._is_partial(entries):
            return self.view(entries, site)
        return self.load(self.check(entries, site), 1, site)[0]

    def store_part(self, index: Any, value: Any, site: int) -> None:
        """A store whose value or index is unusual: an integer that wraps, a float to be cut."""
        entries = self.whole_index(index)
        if not self._is_partial(entries):
            self.store(self.check(entries, site), (value,), site)
            return
        row = self.view(entries, site)
        if isinstance(value, Array):
            raise NotSimulated(
                f"an array of shape {value.shape} stored in one of shape {row.shape}, a part of "
                f"{self.name}, is not simulated"
            )
        for at in np.ndindex(*row.shape):
            row.store_part(at, value, site)

    def _is_partial(self, entries: tuple[Any, ...]) -> bool:
        return len(entries) < self.ndim or any(isinstance(entry, slice) for entry in entries)

    def load_run(self, index: Any, count: int, depth: int = 2) -> tuple[Any, ...]:
        """``count`` neighbours by one wide load of the function ``depth`` calls above."""
        site = site_of(depth)
        return tuple(self.load(self.check_run(index, count, site), count, site))

    def store_run(self, index: Any, values: tuple[Any, ...], depth: int = 2) -> None:
        site = site_of(depth)
        self.store(self.check_run(index, len(values), site), values, site)

    def element(self, at: tuple[int, ...]) -> int:
        """The number of an element in C order, of a C-contiguous array."""
        return (self.address(at) - self.base) // self.dtype.itemsize

    def first_of_run(self, index: Any, count: int, site: int) -> int:
        """The element that a wide access begins at, in C order, after all checks."""
        return self.element(self.check_run(index, count, site))

    def check_run(self, index: Any, count: int, site: int) -> tuple[int, ...]:
        """Where a wide access begins, after all checks."""
        if not self.wide:
            raise TypeError(
                f"{self.name} is not a C-contiguous array of float32, which alone have wide "
                "accesses and async copies"
            )
        at = self.check(index, site)
        self.check((*at[:-1], at[-1] + count - 1), site)
        self.check_aligned(at, self.dtype.itemsize * count, site)
        return at


class CheckedArray(Array):
    """A global, shared or constant array, or a view of one. ``base`` is its first address."""

    __slots__ = (
        *("alignment", "base", "data", "dtype", "flat", "host", "itemsize", "shape"),
        *("strides", "wide"),
    )

    def __init__(
        self, host: np.ndarray, name: str, base: int, memory: Any, alignment: int = 256
    ) -> None:
        self.host, self.name, self.base, self.memory = host, name, base, memory
        self.alignment = alignment
        self.shape, self.strides = host.shape, host.strides
        self.dtype, self.itemsize = host.dtype, host.itemsize
        self.data, self.flat = quick(host), quick(host.reshape(-1))  # the same memory if wide
        self.wide = is_wide(host)

    @property
    def nbytes(self) -> int:
        return self.host.nbytes

    @property
    def T(self) -> Any:
        return self._view(self.host.T)

    def __array__(self, *how: Any, **more: Any) -> np.ndarray:
        """NumPy calls this to work on a whole array, which no kernel can."""
        raise TypeError("no operation of NumPy takes an 'Array' of a kernel")

    def view(self, entries: tuple[Any, ...], site: int) -> Any:
        for entry, extent in zip(entries, self.shape, strict=False):
            if not isinstance(entry, slice) and not 0 <= integer(entry) < extent:
                self.report_outside(entries, site, None)
        return self._view(self.host[entries])

    def _view(self, part: np.ndarray) -> Any:
        offset = start_of(part) - start_of(self.host) if part.size else 0
        kind = self.memory.view_class(part.ndim, part.dtype)
        return kind(part, self.name, self.base + offset, self.memory, self.alignment)

    def load(self, at: tuple[int, ...], count: int, site: int) -> list[Any]:
        self._log(at, site, READ, count)
        if count == 1:
            return [self.loaded(self.data[_key(at)])]
        first = self.element(at)
        return [self.loaded(value) for value in self.flat[first : first + count].tolist()]

    def store(self, at: tuple[int, ...], values: tuple[Any, ...], site: int) -> None:
        self.check_writeable()
        kept = [converted(value, self.dtype) for value in values]
        self._log(at, site, WRITE, len(kept), kept)
        if len(kept) == 1:
            self.data[_key(at)] = kept[0]
        else:
            for n, value in enumerate(kept, self.element(at)):
                self.flat[n] = value

    def update(
        self, index: Any, function: Callable[[Any], Any], site: int, kind: int = ATOMIC
    ) -> Any:
        self.check_writeable()
        at = self.check(self.whole_index(index), site)
        old = self.loaded(self.data[_key(at)])
        self.data[_key(at)] = converted(function(old), self.dtype)
        self._log(at, site, kind)
        return old

    def check_writeable(self) -> None:
        if not self.host.flags.writeable:
            raise TypeError(f"{self.name} is read-only: a kernel cannot store in it")

    def _log(
        self, at: tuple[int, ...], site: int, kind: int, count: int = 1, values: Sequence[Any] = ()
    ) -> None:
        if (log := self.memory.log) is not None:
            log.add(self.address(at), site, kind, count, values)


def _key(at: tuple[int, ...]) -> Any:
    """An index as memoryviews take it."""
    return at[0] if len(at) == 1 else at


class LocalArray(Array):
    """A thread's own array, which stands for registers; elements that it has not written are
    None."""

    __slots__ = ("cells",)
    base = 0

    def __init__(self, name: str, memory: Any) -> None:
        self.name, self.memory = name, memory
        self.cells: list[Any] = [None] * self.size

    def view(self, entries: tuple[Any, ...], site: int) -> Any:
        raise NotSimulated(f"{self.show(entries)}: views of local arrays are not simulated")

    def load(self, at: tuple[int, ...], count: int, site: int) -> list[Any]:
        first = self.element(at)
        values = self.cells[first : first + count]
        for n, value in enumerate(values):
            if value is None:  # found, and poisoned
                where = tuple(int(i) for i in np.unravel_index(first + n, self.shape))
                what = f"{self.show(where)} is read before anything is written to it"
                self.memory.report("uninitialised", what, site, self, where)
                values[n] = poison(self.dtype).item()
        return [self.loaded(value) for value in values]

    def store(self, at: tuple[int, ...], values: tuple[Any, ...], site: int) -> None:
        first = self.element(at)
        self.cells[first : first + len(values)] = [converted(v, self.dtype) for v in values]

    def update(self, index: Any, function: Any, site: int, kind: int = 0) -> Any:
        raise NotSimulated(f"an atomic on {self.name}: a GPU has none for local memory")
