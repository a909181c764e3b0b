"""Arrays as a simulated kernel sees them: strict bounds, every access in the log.

Data is read through memoryviews: those give Python numbers, round at stores, refuse indices beyond
the end and are faster than NumPy arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from convlab.simulation.access_log import ATOMIC, READ, WRITE, AccessLog, site_of
from convlab.simulation.findings import NotSimulated
from convlab.simulation.indexing import SITE, indexed_class, wide_methods
from convlab.simulation.scalars import converted, quick


def check(array: Any, index: Any, site: int) -> tuple[int, ...]:
    """An element's index as a tuple; reports one that is out of bounds."""
    entries = index if isinstance(index, tuple) else (index,)
    entries = tuple(integer(entry) for entry in entries)
    shape = array.shape
    if len(entries) != len(shape):
        raise IndexError(f"{len(entries)} indices for {array.name} of shape {shape}")
    if not all(0 <= i < n for i, n in zip(entries, shape, strict=True)):
        what = f"{show(array.name, entries)} is outside shape {shape}"
        array.memory.report("out of bounds", what, site, array, entries)
    return entries


def whole_index(array: Any, index: Any) -> tuple[Any, ...]:
    """Any index as a tuple, in which slices stand for ``...``."""
    entries = index if isinstance(index, tuple) else (index,)
    given = sum(entry is not Ellipsis for entry in entries)
    if len(entries) - given > 1 or given > len(array.shape):
        raise IndexError(f"{len(entries)} indices for {array.name} of shape {array.shape}")
    if given < len(entries):
        axis = next(n for n, entry in enumerate(entries) if entry is Ellipsis)
        filling = (slice(None),) * (len(array.shape) - given)
        entries = entries[:axis] + filling + entries[axis + 1 :]
    return entries


def integer(value: Any) -> int:
    """An index as a Python integer; ``TypeError`` for what is none."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"index {value!r} is no integer")
    return int(value.__index__())


def show(name: str, index: tuple[Any, ...]) -> str:
    """An element as the kernel writes it: ``S_F[3, 1]``."""
    return f"{name}[{', '.join(str(i) for i in index)}]"


Report = Callable[..., None]  # report(kind, what, site, array, index): raises where it must end


class Memory:
    """What arrays of one launch share: the log, if there is one, and where findings go."""

    def __init__(
        self, log: AccessLog | None, report: Report, number: Callable[[Any], Any] | None = None
    ) -> None:
        self.log, self.report = log, report
        self._number = number
        self._view_classes: dict[Any, Any] = {}
        self._forget: list[Callable[[], None]] = []  # of each class made for an array

    def number(self, dtype: np.dtype[Any]) -> Callable[[Any], Any] | None:
        """What loads of that type are handed through, to count what becomes of them."""
        return self._number if dtype.kind == "f" else None

    def view_class(self, ndim: int, dtype: np.dtype[Any]) -> Any:
        """The class of views: one for each number of dimensions and kind of number."""
        number = self.number(dtype)
        if (ndim, number) not in self._view_classes:
            self._view_classes[ndim, number] = self.array_class(ndim, number)
        return self._view_classes[ndim, number]

    def array_class(
        self,
        ndim: int,
        number: Callable[[Any], Any] | None,
        host: np.ndarray | None = None,
        base: int = 0,
        alignment: int = 1,
    ) -> Any:
        """A class of arrays. With ``host`` it is for that array alone, whose data, strides and
        address its methods close over; without, for views, which have them as attributes."""
        names: dict[str, Any] = {"getframe": sys._getframe, "number": number}
        if host is None:
            address, data, wide = "self.base", "self.data", False
            steps = [f"self.strides[{axis}]" for axis in range(ndim)]
        else:
            address, data = "BASE", "DATA"
            steps = [f"STEP{axis}" for axis in range(ndim)]
            wide = _is_wide(host) and base % 16 == alignment % 16 == 0 < min(ndim, host.size)
            names |= {"BASE": base, "DATA": quick(host), "FLAT": quick(host.reshape(-1))}
            names |= dict(zip(steps, host.strides, strict=True))
            names |= {f"SIZE{axis}": size for axis, size in enumerate(host.shape)}
        address += "".join(f" + i{axis} * {step}" for axis, step in enumerate(steps))
        read, written = "return value", "return"
        if self.log is not None:
            log = f"frame = getframe(1); log_address({address}); log_site({SITE}"
            read, written = f"{log}); {read}", f"{log} + 1); log_value(value); {written}"
            names["log_address"] = self.log.addresses.append
            names["log_site"] = self.log.sites.append
            names["log_value"] = self.log.values.append
            names["log_values"] = self.log.values.extend
        made, forget = indexed_class(
            CheckedArray, ndim, " and ".join(f"i{axis} >= 0" for axis in range(ndim)) or "True",
            f"number({data}[index])" if number else f"{data}[index]", read,
            f"{data}[index] = value; {written}",
            wide_methods(ndim, number is not None, self.log is not None) if wide else "", names,
        )  # fmt: skip
        self._forget.append(forget)
        return made

    def let_go(self) -> None:
        """Forget the arrays: their classes, which refer to themselves, refer to the data too."""
        for forget in self._forget:
            forget()


class Array:
    """What arrays of a kernel have in common. ``wide`` says whether wide accesses take it."""

    __slots__ = ("memory", "name")
    memory: Memory
    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    base: int
    alignment: int
    dtype: np.dtype[Any]
    wide: bool

    @property
    def ndim(self) -> int:
        return len(self.shape)

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

    def part(self, index: Any, site: int) -> Any:
        """An element by an unusual index, or a view."""
        raise NotImplementedError

    def address(self, index: tuple[int, ...]) -> int:
        """Where the element is, in bytes of simulated memory; the index is not checked."""
        return self.base + sum(i * s for i, s in zip(index, self.strides, strict=True))

    def load_run(self, index: Any, count: int) -> tuple[Any, ...]:
        """``count`` neighbours by one wide load."""
        return self.load_wide(index, count, site_of(2))

    def store_run(self, index: Any, values: tuple[Any, ...]) -> None:
        """The same number of neighbours by one wide store."""
        self.store_wide(index, values, site_of(2))

    def load_wide(self, index: Any, count: int, site: int) -> tuple[Any, ...]:
        """``load_run`` of the thread that stands at ``site``."""
        raise NotImplementedError

    def store_wide(self, index: Any, values: tuple[Any, ...], site: int) -> None:
        """``store_run`` of the thread that stands at ``site``."""
        raise NotImplementedError

    def first_of_run(self, index: Any, count: int, site: int) -> int:
        """The element that a wide access begins at, in C order, after all checks."""
        if not self.wide:
            raise TypeError(
                f"{self.name} is not a C-contiguous array of float32, which alone have wide "
                "accesses and async copies"
            )
        entries = index if isinstance(index, tuple) else (index,)
        at = check(self, entries, site)
        check(self, (*at[:-1], at[-1] + count - 1), site)
        address, width = self.address(at), self.dtype.itemsize * count
        if address % width or self.alignment % width:
            report_misaligned(self, at, address, width, site)
        return (address - self.base) // self.dtype.itemsize


def _is_wide(host: np.ndarray) -> bool:
    return bool(host.dtype == np.float32 and host.flags.c_contiguous)


def report_misaligned(
    array: Array, index: tuple[int, ...], address: int, width: int, site: int
) -> None:
    """Report what is not at a multiple of ``width`` bytes, or only by chance."""
    chance = "not at a multiple" if address % width else "only by chance at a multiple"
    what = f"{show(array.name, index)} is {chance} of {width} bytes"
    array.memory.report("misaligned", what, site, array, index)


class CheckedArray(Array):
    """A global, shared or constant array, or a view of one. ``base`` is its first address."""

    __slots__ = (
        "alignment",
        "base",
        "data",
        "dtype",
        "flat",
        "host",
        "itemsize",
        "shape",
        "strides",
        "wide",
    )

    def __init__(
        self, host: np.ndarray, name: str, base: int, memory: Memory, alignment: int = 256
    ) -> None:
        self.host, self.name, self.base, self.memory = host, name, base, memory
        self.alignment = alignment
        self.shape, self.strides = host.shape, host.strides
        self.dtype, self.itemsize = host.dtype, host.itemsize
        self.data, self.flat = quick(host), quick(host.reshape(-1))  # the same memory if wide
        self.wide = _is_wide(host)

    @property
    def size(self) -> int:
        return self.host.size

    @property
    def nbytes(self) -> int:
        return self.host.nbytes

    @property
    def T(self) -> Any:
        return self._view(self.host.T)

    def __array__(self, *how: Any, **more: Any) -> np.ndarray:
        """NumPy calls this to work on a whole array, which no kernel can."""
        raise TypeError("no operation of NumPy takes an 'Array' of a kernel")

    def part(self, index: Any, site: int) -> Any:
        """An element by an unusual index, or a view: ``a[2:]``, ``a[row]`` of a matrix."""
        entries = whole_index(self, index)
        if len(entries) == self.ndim and not any(isinstance(e, slice) for e in entries):
            at = check(self, entries, site)
            self._log(at, site, READ)
            return self.loaded(self.data[at[0] if len(at) == 1 else at])
        for entry, extent in zip(entries, self.shape, strict=False):
            if not isinstance(entry, slice) and not 0 <= integer(entry) < extent:
                what = f"{show(self.name, entries)} is outside shape {self.shape}"
                self.memory.report("out of bounds", what, site, self, None)
        return self._view(self.host[entries])

    def _view(self, part: np.ndarray) -> Any:
        offset = _start(part) - _start(self.host) if part.size else 0
        kind = self.memory.view_class(part.ndim, part.dtype)
        return kind(part, self.name, self.base + offset, self.memory, self.alignment)

    def store_part(self, index: Any, value: Any, site: int) -> None:
        """A store whose value or index is unusual: an integer that wraps, a float to be cut."""
        if not self.host.flags.writeable:
            raise TypeError(f"{self.name} is read-only: a kernel cannot store in it")
        entries = whole_index(self, index)
        if len(entries) < self.ndim or any(isinstance(entry, slice) for entry in entries):
            row = self.part(entries, site)
            indices = [*np.ndindex(*row.shape)]
            for at, one in zip(indices, self._values(value, row.shape, indices, site), strict=True):
                row.store_part(at, one, site)
            return
        at = check(self, entries, site)
        value = converted(value, self.dtype)
        self.data[at[0] if len(at) == 1 else at] = value
        self._log(at, site, WRITE, value)

    def _values(
        self, value: Any, shape: tuple[int, ...], indices: list[tuple[int, ...]], site: int
    ) -> list[Any]:
        """What ``a[row] = value`` stores: another array's elements, or the same everywhere."""
        if not hasattr(value, "shape"):
            return [value] * len(indices)
        if value.shape:
            raise NotSimulated(
                f"an array of shape {tuple(value.shape)} stored in one of shape {shape}, a part of "
                f"{self.name}, is not simulated"
            )
        return [value.part(at, site) for at in indices]

    def load_wide(self, index: Any, count: int, site: int) -> tuple[Any, ...]:
        first = self.first_of_run(index, count, site)
        if (log := self.memory.log) is not None:
            log.add(self.base + first * self.itemsize, site, READ, count)
        return tuple([self.loaded(value) for value in self.flat[first : first + count].tolist()])

    def store_wide(self, index: Any, values: tuple[Any, ...], site: int) -> None:
        if not self.host.flags.writeable:
            raise TypeError(f"{self.name} is read-only: a kernel cannot store in it")
        first = self.first_of_run(index, len(values), site)
        if (log := self.memory.log) is not None:
            log.add(self.base + first * self.itemsize, site, WRITE, len(values))
            log.values.extend(values)
        flat = self.flat
        for n, value in enumerate(values, first):
            flat[n] = value

    def update(
        self, index: Any, function: Callable[[Any], Any], site: int, kind: int = ATOMIC
    ) -> Any:
        """An atomic: store ``function(old)`` and return the old value."""
        if not self.host.flags.writeable:
            raise TypeError(f"{self.name} is read-only: a kernel cannot store in it")
        at = check(self, whole_index(self, index), site)
        key = at[0] if len(at) == 1 else at
        old = self.loaded(self.data[key])
        self.data[key] = converted(function(old), self.dtype)
        self._log(at, site, kind)
        return old

    def loaded(self, value: Any) -> Any:
        """What a load gives."""
        number = self.memory.number(self.dtype)
        return value if number is None else number(value)

    def _log(self, at: tuple[int, ...], site: int, kind: int, value: Any = None) -> None:
        if (log := self.memory.log) is not None:
            log.add(self.address(at), site, kind)
            if kind == WRITE:
                log.values.append(value)


def checked(
    host: np.ndarray, name: str, base: int, memory: Memory, alignment: int = 256
) -> CheckedArray:
    """The array as a simulated kernel sees it, with a class of its own: quickest to index."""
    number = memory.number(host.dtype)
    made = memory.array_class(host.ndim, number, host, base, alignment)
    array: CheckedArray = made(host, name, base, memory, alignment)
    return array


def _start(host: np.ndarray) -> int:
    return int(host.__array_interface__["data"][0])
