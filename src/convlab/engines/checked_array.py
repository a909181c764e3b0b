"""Arrays as a simulated kernel sees them: strict bounds, every access in the log.

Element access is the innermost loop of all, so its code is written out for each number of
dimensions (and each shape of a local array), and data is read through memoryviews: those give
Python numbers, round at stores, refuse indices beyond the end and are faster than NumPy arrays.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import lt, mul
from types import CodeType
from typing import Any

import numpy as np

from convlab.engines.access_log import ATOMIC, READ, WRITE, AccessLog, site_of
from convlab.engines.scalars import wrapped

Report = Callable[..., None]  # report(kind, what, site, array, index): raises where it must end


class Memory:
    """What arrays of one launch share: the log, if there is one, and where findings go."""

    def __init__(
        self, log: AccessLog | None, report: Report, number: Callable[[Any], Any] | None = None
    ) -> None:
        self.log, self.report = log, report
        self._number = number
        self._view_classes: dict[Any, Any] = {}

    def number(self, dtype: np.dtype[Any]) -> Callable[[Any], Any] | None:
        """What loads of that type are handed through, to count what becomes of them."""
        return self._number if dtype.kind == "f" else None

    def view_class(self, ndim: int, dtype: np.dtype[Any]) -> Any:
        """The class of views: one for each number of dimensions and kind of number."""
        number = self.number(dtype)
        if (ndim, number) not in self._view_classes:
            self._view_classes[ndim, number] = _array_class(ndim, self.log, number)
        return self._view_classes[ndim, number]


class CheckedArray:
    """A global, shared or constant array, or a view of one. ``base`` is its first address."""

    __slots__ = ("alignment", "base", "data", "host", "memory", "name", "strides")

    def __init__(
        self, host: np.ndarray, name: str, base: int, memory: Memory, alignment: int = 256
    ) -> None:
        self.host, self.name, self.base, self.memory = host, name, base, memory
        self.alignment = alignment
        self.strides = host.strides
        self.data = quick(host)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    @property
    def size(self) -> int:
        return self.host.size

    @property
    def ndim(self) -> int:
        return self.host.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.host.dtype

    @property
    def itemsize(self) -> int:
        return self.host.itemsize

    def __len__(self) -> int:
        return len(self.host)

    def address(self, index: tuple[int, ...]) -> int:
        return self.base + sum(i * s for i, s in zip(index, self.strides, strict=True))

    def check(self, index: Any, site: int) -> tuple[int, ...]:
        """The index as a tuple; reports one that is out of bounds."""
        entries = index if isinstance(index, tuple) else (index,)
        entries = tuple(integer(entry) for entry in entries)
        shape = self.shape
        if len(entries) != len(shape):
            raise IndexError(f"{len(entries)} indices for {self.name} of shape {shape}")
        if not all(0 <= i < n for i, n in zip(entries, shape, strict=True)):
            self.memory.report(
                "out of bounds", f"{show(self.name, entries)} is outside shape {shape}",
                site, self, entries,
            )  # fmt: skip
        return entries

    def part(self, index: Any, site: int) -> Any:
        """An element by an unusual index, or a view: ``a[2:]``, ``a[row]`` of a matrix."""
        entries = index if isinstance(index, tuple) else (index,)
        if len(entries) > self.ndim:
            raise IndexError(f"{len(entries)} indices for {self.name} of shape {self.shape}")
        if len(entries) == self.ndim and not any(isinstance(e, slice) for e in entries):
            at = self.check(index, site)
            self._log(at, site, READ)
            return self.loaded(self.data[at[0] if len(at) == 1 else at])
        for entry, extent in zip(entries, self.shape, strict=False):
            if not isinstance(entry, slice) and not 0 <= integer(entry) < extent:
                what = f"{show(self.name, entries)} is outside shape {self.shape}"
                self.memory.report("out of bounds", what, site, self, None)
        part = self.host[entries]
        offset = _start(part) - _start(self.host) if part.size else 0
        view: CheckedArray = self.memory.view_class(part.ndim, part.dtype)(
            part, self.name, self.base + offset, self.memory, self.alignment
        )
        return view

    def store_part(self, index: Any, value: Any, site: int) -> None:
        """A store whose value or index is unusual: an integer that wraps, a float to be cut."""
        entries = index if isinstance(index, tuple) else (index,)
        if len(entries) < self.ndim or any(isinstance(entry, slice) for entry in entries):
            row = self.part(index, site)  # a[row] = 0 fills it
            for at in np.ndindex(*row.shape):
                row.store_part(at, value, site)
            return
        at = self.check(index, site)
        value = converted(value, self.dtype)
        self.data[at[0] if len(at) == 1 else at] = value
        self._log(at, site, WRITE, value)

    def load_run(self, index: Any, count: int) -> tuple[Any, ...]:
        """``count`` neighbours by one wide load."""
        site = site_of(2)
        address, keys = self._run(index, count, site)
        if (log := self.memory.log) is not None:
            log.add_run(address, self.itemsize, count, site, READ)
        data = self.data
        if self.memory.number(self.dtype) is not None:
            return tuple([self.loaded(data[key]) for key in keys])
        return tuple([data[key] for key in keys])

    def store_run(self, index: Any, values: tuple[Any, ...]) -> None:
        """The same number of neighbours by one wide store."""
        site = site_of(2)
        address, keys = self._run(index, len(values), site)
        if (log := self.memory.log) is not None:
            log.add_run(address, self.itemsize, len(values), site, WRITE)
            log.values.extend(values)
        for key, value in zip(keys, values, strict=True):
            self.data[key] = value

    def _run(self, index: Any, count: int, site: int) -> tuple[int, Sequence[Any]]:
        """The first address of a wide access and the indices that it touches, all checked."""
        keys: Sequence[Any]
        if isinstance(index, tuple):
            *rows, first = index
            keys = [(*rows, first + lane) for lane in range(count)]
            ends, inside = (*rows, first + count - 1), min(index) >= 0
            address = self.base + sum(map(mul, index, self.strides))
        else:
            keys = range(index, index + count)
            ends, inside = (index + count - 1,), index >= 0
            address = self.base + index * self.strides[0]
        if not (inside and len(ends) == self.ndim and all(map(lt, ends, self.shape))):
            self.check(keys[0], site)
            self.check(keys[-1], site)
        width = count * self.itemsize
        if address % width or self.alignment % width:
            at = index if isinstance(index, tuple) else (index,)
            chance = "not at a multiple" if address % width else "only by chance at a multiple"
            what = f"{show(self.name, at)} is {chance} of {width} bytes"
            self.memory.report("misaligned", what, site, self, at)
        return address, keys

    def update(self, index: Any, function: Callable[[Any], Any], site: int) -> Any:
        """An atomic: store ``function(old)`` and return the old value."""
        at = self.check(index, site)
        key = at[0] if len(at) == 1 else at
        old = self.data[key]
        self.data[key] = converted(function(old), self.dtype)
        self._log(at, site, ATOMIC)
        return self.loaded(old)

    def loaded(self, value: Any) -> Any:
        """What a load gives."""
        number = self.memory.number(self.dtype)
        return value if number is None else number(value)

    def _log(self, at: tuple[int, ...], site: int, kind: int, value: Any = None) -> None:
        if self.memory.log is not None:
            self.memory.log.add(self.address(at), site, kind, value)


def checked(
    host: np.ndarray, name: str, base: int, memory: Memory, alignment: int = 256
) -> CheckedArray:
    """The array as a simulated kernel sees it, with a class of its own: quickest to index."""
    fixed = base, host.strides
    made = _array_class(host.ndim, memory.log, memory.number(host.dtype), fixed, quick(host))
    array: CheckedArray = made(host, name, base, memory, alignment)
    return array


# With {fixed} places and data are constants of the class; without, for views, attributes.
_TEMPLATE = """
class Array(CheckedArray):
    __slots__ = ()

    def __getitem__(self, index):
        try:
            {names} = index
            if {inside}:
                value = {load}
                {log_read}
                return value
        except (IndexError, TypeError, ValueError):
            pass
        return self.part(index, site_of(1))

    def __setitem__(self, index, value):
        try:
            {names} = index
            if {inside}:
                {data}[index] = value
                {log_write}
                return
        except (IndexError, TypeError, ValueError):
            pass
        self.store_part(index, value, site_of(1))
"""


def _array_class(
    ndim: int,
    log: AccessLog | None,
    number: Callable[[Any], Any] | None,
    fixed: tuple[int, tuple[int, ...]] | None = None,
    data: Any = None,
) -> Any:
    names: dict[str, Any] = {
        "CheckedArray": CheckedArray, "getframe": sys._getframe, "site_of": site_of, "DATA": data,
        "number": number,
    }  # fmt: skip
    if log is not None:
        names["log_address"] = log.addresses.append
        names["log_site"] = log.sites.append
        names["log_value"] = log.values.append
    exec(_array_code(ndim, log is not None, number is not None, fixed), names)
    return names["Array"]


@lru_cache(maxsize=1000)
def _array_code(
    ndim: int, logged: bool, counted: bool, fixed: tuple[int, tuple[int, ...]] | None
) -> CodeType:
    letters = [f"i{axis}" for axis in range(ndim)]
    base: object = "self.base"
    strides: Sequence[object] = [f"self.strides[{axis}]" for axis in range(ndim)]
    if fixed is not None:
        base, strides = fixed
    address = " + ".join(
        [str(base), *(f"{i} * {n}" for i, n in zip(letters, strides, strict=True))]
    )
    log = f"frame = getframe(1); log_address({address}); log_site(id(frame.f_code) + frame.f_lasti"
    data = "self.data" if fixed is None else "DATA"
    source = _TEMPLATE.format(
        names=letters[0] if ndim == 1 else f"[{', '.join(letters)}]",
        inside=" and ".join(f"{i} >= 0" for i in letters) or "True",
        data=data,
        load=f"number({data}[index])" if counted else f"{data}[index]",
        log_read=f"{log})" if logged else "pass",
        log_write=f"{log} + 1); log_value(value)" if logged else "pass",
    )
    return compile(source, "<array>", "exec")


class _Items:
    """Element access for types that memoryview does not read, such as float16 and complex."""

    def __init__(self, host: np.ndarray) -> None:
        self._host = host

    def __getitem__(self, index: Any) -> Any:
        return self._host.item(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        with np.errstate(all="ignore"):
            self._host[index] = value


def quick(host: np.ndarray) -> Any:
    """The array with quick access to single elements: a memoryview gives Python numbers."""
    if host.dtype.kind in "fiub" and host.dtype.char != "e" and host.size and host.dtype.isnative:
        return memoryview(host)  # type: ignore[arg-type]
    return _Items(host)


def poisoned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that nobody wrote: NaN, or the largest integer, which no right kernel uses."""
    return np.full(shape, poison(dtype), dtype)


def poison(dtype: np.dtype[Any]) -> Any:
    """What memory of this type holds before anybody wrote it."""
    return dtype.type(np.iinfo(dtype).max if dtype.kind in "iu" else np.nan)


def converted(value: Any, dtype: np.dtype[Any]) -> Any:
    """The value as an array of that type keeps it, by C's rules: cut, rounded, wrapped."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if isinstance(value, float) and not math.isfinite(value):
            return int(limits.min)
        return wrapped(int(value), int(limits.min), 1 << limits.bits)
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return float(dtype.type(float(value)))
    return value


def integer(value: Any) -> int:
    """An index as a Python integer; ``TypeError`` for what is none."""
    if isinstance(value, float):
        raise TypeError(f"index {value} is a float: it must be an integer")
    return int(value.__index__())


def _start(host: np.ndarray) -> int:
    return int(host.__array_interface__["data"][0])


def show(name: str, index: tuple[Any, ...]) -> str:
    """An element as the kernel writes it: ``S_F[3, 1]``."""
    return f"{name}[{', '.join(str(i) for i in index)}]"
