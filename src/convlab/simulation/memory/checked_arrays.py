"""Arrays as a simulated kernel sees them: strict bounds, every access in the log.

The methods here are for what is unusual or wrong: other accesses have code that is written out for
each kind of array, by :mod:`convlab.simulation.memory.memory_spaces`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from convlab.simulation.numbers.scalars import converted, dtype_of, poison, quick
from convlab.simulation.recording.access_log import ATOMIC, NAME_SHIFT, READ, SIZE_SHIFT, WRITE
from convlab.simulation.recording.sites import site_of
from convlab.simulation.rules.findings import NotSimulated
from convlab.simulation.rules.negative_indices import axes_from_end


def integer(value: Any) -> int:
    """An index as a Python integer; ``TypeError`` for what is none."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"index {value!r} is no integer")
    return int(value.__index__())


def start_of(host: np.ndarray) -> int:
    """The real address of an array's first element."""
    return int(host.__array_interface__["data"][0])


def owner_of(host: np.ndarray) -> np.ndarray:
    """The array whose memory this one is a view of."""
    while isinstance(host.base, np.ndarray):
        host = host.base
    return host


def is_wide(host: np.ndarray) -> bool:
    """Whether float4 accesses take this array: float32 in C order."""
    return bool(host.dtype == np.float32 and host.flags.c_contiguous)


# What Numba compiles of an array's methods and of NumPy's functions whose result needs no memory,
# apart from ufuncs.
METHODS = {"sum", "prod", "mean", "var", "std", "min", "max", "all", "any", "argmin", "argmax"}
FUNCTIONS = {"amin", "amax", "nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmin", "nanmax"}
FUNCTIONS |= {"count_nonzero", "median", "nanmedian", "searchsorted"}


class Array:
    """What arrays of a kernel have in common. ``wide`` says whether wide accesses take it."""

    __slots__ = ("memory", "name")
    memory: Any  # the launch's convlab.simulation.memory.memory_spaces.Memory
    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    base: int
    alignment: int
    dtype: np.dtype[Any]
    wide: bool
    # What differs: another view of the elements, made by a method of NumPy's arrays; and, for
    # indices that are checked, the neighbours from an element on, and storing there, rounded or
    # wrapped to the array's type. The last argument is the site.
    derived: Callable[..., Any]
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
        if name in METHODS:
            return partial(self._reduced, getattr(np, name), 1)
        if not name.startswith("__") and hasattr(np.ndarray, name):
            raise NotSimulated(f"{self.name}.{name} is not simulated")
        raise AttributeError(f"{self.name} is an array, which has no {name}")

    def __getitem__(self, index: Any) -> Any:
        return self.part(index, site_of(1))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.store_part(index, value, site_of(1))

    # Views, as NumPy has them.
    T = property(lambda self: self.derived(np.transpose))
    flat = property(lambda self: self.reshape(-1))
    ctypes = property(lambda self: SimpleNamespace(data=self.base % (1 << SIZE_SHIFT)))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)

    def transpose(self, *axes: Any) -> Any:
        return self.derived(lambda host: host.transpose(*axes))

    def reshape(self, *shape: Any) -> Any:
        return self.derived(lambda host: host.reshape(*shape))

    def ravel(self) -> Any:
        return self.reshape(-1)

    def copy(self) -> Any:
        """An array of the thread's own with the same elements."""
        return self.memory.local(self.elements(site_of(1)))

    def elements(self, site: int) -> np.ndarray:
        """All elements, each loaded by the running thread."""
        loaded = [self.load(at, 1, site)[0] for at in np.ndindex(*self.shape)]
        return np.array(loaded, self.dtype).reshape(self.shape)

    def fill(self, value: Any) -> None:
        self.store_part(..., value, site_of(1))

    def _reduced(self, function: Callable[..., Any], depth: int, *others: Any, **how: Any) -> Any:
        """One number of all elements, or a search among them, asked ``depth`` calls above."""
        if how or len(others) > (function is np.searchsorted):
            name = function.__name__
            raise NotSimulated(f"{name} of {self.name} with more than the array is not simulated")
        with np.errstate(all="ignore"):
            return function(self.elements(site_of(depth)), *others).item()

    def __array_function__(
        self, function: Callable[..., Any], types: Any, given: tuple[Any, ...], how: dict[str, Any]
    ) -> Any:
        """A function of NumPy other than a ufunc."""
        name = function.__name__
        if name not in METHODS | FUNCTIONS:
            raise NotSimulated(f"np.{name} of {self.name} is not simulated")
        return self._reduced(function, 2, *given[1:], **how)

    def __array_ufunc__(
        self, function: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **more: Any
    ) -> Any:
        """A function of NumPy on whole arrays: on each element, stored in ``out``. Without it the
        result would need memory, which a kernel cannot allocate."""
        if not out:
            raise TypeError(f"np.{function.__name__} makes an 'Array', and a kernel makes none")
        if method != "__call__" or more:
            what = f"np.{function.__name__} with {', '.join(more) or method}"
            raise NotSimulated(f"{what} on {self.name} is not simulated")
        site = site_of(2)
        # As arrays, scalars have types of their own in what NumPy promotes them to, as in Numba.
        given = [
            one.elements(site) if isinstance(one, Array) else np.asarray(one) for one in inputs
        ]
        results: Any = function(*given)
        results = results if isinstance(results, tuple) else (results,)
        for target, result in zip(out, results, strict=False):
            target.store_part(..., result, site)
        return out[0] if len(out) == 1 else out

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
        if any(entry < 0 for entry in entries):
            entries = self._from_end(entries, site)
        if all(0 <= i < n for i, n in zip(entries, self.shape, strict=True)):
            return entries
        taken = tuple(i + n * (i < 0) for i, n in zip(entries, self.shape, strict=True))
        wraps = all(0 <= i < n for i, n in zip(taken, self.shape, strict=True))
        self.report_outside(entries, site, entries, f": Numba takes {self.show(taken)}" * wraps)
        return taken  # as a signed index is on a GPU

    def _from_end(self, entries: tuple[Any, ...], site: int) -> tuple[Any, ...]:
        """The index without numbers below zero where the kernel's text counts from the end."""
        meant = axes_from_end(site)
        return tuple(
            entry + extent
            if axis in meant and not isinstance(entry, slice) and entry < 0
            else entry
            for axis, (entry, extent) in enumerate(zip(entries, self.shape, strict=False))
        )

    def report_outside(
        self, shown: tuple[Any, ...], site: int, index: tuple[int, ...] | None, taken: str = ""
    ) -> None:
        what = f"{self.show(shown)} is outside shape {self.shape}{taken}"
        self.memory.report("out of bounds", what, site, self, index, bool(taken))

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
        if self.is_partial(entries):
            return self.cut(entries, site)
        return self.load(self.check(entries, site), 1, site)[0]

    def store_part(self, index: Any, value: Any, site: int) -> None:
        """A store whose value or index is unusual: an integer that wraps, a float to be cut."""
        entries = self.whole_index(index)
        if not self.is_partial(entries):
            self.store(self.check(entries, site), (value,), site)
            return
        row = self.cut(entries, site)
        if isinstance(value, list):
            raise TypeError("float() argument must be a number, not 'list': a kernel has no lists")
        if isinstance(value, Array):
            value = value.elements(site)
        given = np.asarray(value)
        try:
            values = np.broadcast_to(given, row.shape)
        except ValueError:
            raise ValueError(
                f"an array of shape {given.shape} stored in one of shape {row.shape}, a part of "
                f"{self.name}: the shapes must agree"
            ) from None
        for at in np.ndindex(*row.shape):
            row.store(
                at, (values[at].item() if values.dtype.kind in "fiubc" else values[at],), site
            )

    def cut(self, entries: tuple[Any, ...], site: int) -> Any:
        """The part at some integers and slices."""
        entries = self._from_end(entries, site)
        for entry, extent in zip(entries, self.shape, strict=False):
            if not isinstance(entry, slice) and not 0 <= integer(entry) < extent:
                self.report_outside(entries, site, None)
        written = ", ".join(map(_as_written, entries))
        return self.derived(lambda host: host[entries], f"{self.name}[{written}]")

    def is_partial(self, entries: tuple[Any, ...]) -> bool:
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
        *("alignment", "base", "data", "dtype", "host", "linear", "shape", "strides", "wide"),
    )

    def __init__(
        self, host: np.ndarray, name: str, base: int, memory: Any, alignment: int = 256
    ) -> None:
        self.host, self.name, self.base, self.memory = host, name, base, memory
        self.alignment = alignment
        self.shape, self.strides = host.shape, host.strides
        self.dtype = host.dtype
        self.data, self.linear = quick(host), quick(host.reshape(-1))  # the same memory if wide
        self.wide = is_wide(host)

    # The first address without the size that :meth:`AccessLog.sized` adds, and without the tag.
    place = property(lambda self: self.base % (1 << SIZE_SHIFT))
    # What :meth:`AccessLog.named` adds.
    tag = property(lambda self: self.base >> NAME_SHIFT << NAME_SHIFT)
    real = property(lambda self: self.derived(np.real))
    imag = property(lambda self: self.derived(np.imag))

    def view(self, dtype: Any) -> Any:
        """The same bytes as numbers of another type."""
        return self.derived(lambda host: host.view(dtype_of(dtype)))

    def __array__(self, *how: Any, **more: Any) -> np.ndarray:
        """NumPy calls this to work on a whole array, which no kernel can."""
        raise TypeError("no operation of NumPy takes an 'Array' of a kernel")

    def derived(self, change: Callable[[np.ndarray], np.ndarray], name: str = "") -> Any:
        """The view that ``change`` makes, with a name of its own if it has one."""
        part = _view(change, self.host, self.name)
        offset = start_of(part) - start_of(self.host) if part.size else 0
        base, log, size = self.base + offset, self.memory.log, part.dtype.itemsize
        if size != self.dtype.itemsize and log is not None:
            base = log.sized(base, size)
        aligned = part.flags.aligned or part.dtype.kind not in "fiubc"
        kind = self.memory.view_class(part.ndim, part.dtype) if aligned else MisalignedArray
        return kind(part, name or self.name, base, self.memory, self.alignment)

    def load(self, at: tuple[int, ...], count: int, site: int) -> list[Any]:
        self._log(at, site, READ, count)
        if count == 1:
            return [self.loaded(self.data[at])]
        first = self.element(at)
        return [self.loaded(value) for value in self.linear[first : first + count].tolist()]

    def store(self, at: tuple[int, ...], values: tuple[Any, ...], site: int) -> None:
        self.check_writeable()
        kept = [converted(value, self.dtype) for value in values]
        self._log(at, site, WRITE, len(kept), kept)
        if len(kept) == 1:
            self.data[at] = kept[0]
        else:
            for n, value in enumerate(kept, self.element(at)):
                self.linear[n] = value

    def update(
        self, index: Any, function: Callable[[Any], Any], site: int, kind: int = ATOMIC
    ) -> Any:
        self.check_writeable()
        at = self.check(self.whole_index(index), site)
        old = self.loaded(self.data[at])
        self.data[at] = converted(function(old), self.dtype)
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


class MisalignedArray(CheckedArray):
    """An array whose elements are not all at multiples of their size. Records that are packed load
    and store such elements byte by byte, by ``part`` and ``store_part``."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        self._check_place(index, site_of(1))
        return self.part(index, site_of(1))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check_place(index, site_of(1))
        self.store_part(index, value, site_of(1))

    def update(
        self, index: Any, function: Callable[[Any], Any], site: int, kind: int = ATOMIC
    ) -> Any:
        self._check_place(index, site)
        return super().update(index, function, site, kind)

    def _check_place(self, index: Any, site: int) -> None:
        entries = self.whole_index(index)
        if not self.is_partial(entries):
            width = self.dtype.alignment
            if self.address(at := self.check(entries, site)) % width:
                what = f"{self.show(at)} is not at a multiple of its size, {width} bytes"
                self.memory.report("misaligned", what, site, self, at)


def _as_written(entry: Any) -> str:
    """An index or a slice as in a kernel: ``1:``, ``::2``."""
    if not isinstance(entry, slice):
        return str(entry)
    begin, end, step = ("" if n is None else str(n) for n in (entry.start, entry.stop, entry.step))
    return f"{begin}:{end}" + f":{step}" * bool(step)


def _view(change: Callable[[np.ndarray], np.ndarray], host: np.ndarray, name: str) -> np.ndarray:
    part = change(host)
    if part.size and not np.may_share_memory(part, host):
        raise TypeError(f"{name} is not contiguous: a kernel cannot take its elements as one row")
    return part


class LocalArray(Array):
    """A thread's own array, which stands for registers; elements that it has not written are
    None."""

    __slots__ = ("cells",)
    base = 0

    def __init__(self, name: str, memory: Any) -> None:
        self.name, self.memory = name, memory
        self.cells: list[Any] = [None] * self.size

    def derived(self, change: Callable[[np.ndarray], np.ndarray], name: str = "") -> Any:
        return LocalView(self, _view(change, self.numbers(), self.name))

    def numbers(self) -> np.ndarray:
        """Of each element the number of its cell."""
        return np.arange(self.size).reshape(self.shape)

    def load(self, at: tuple[int, ...], count: int, site: int) -> list[Any]:
        first = self.element(at)
        values = self.cells[first : first + count]
        for n, value in enumerate(values):
            if value is None:  # found, and poisoned
                where = (*at[:-1], at[-1] + n) if at else at
                what = f"{self.show(where)} is read before anything is written to it"
                self.memory.report("uninitialised", what, site, self, where)
                values[n] = poison(self.dtype).item()
        return [self.loaded(value) for value in values]

    def store(self, at: tuple[int, ...], values: tuple[Any, ...], site: int) -> None:
        first = self.element(at)
        self.cells[first : first + len(values)] = [converted(v, self.dtype) for v in values]

    def update(self, index: Any, function: Any, site: int, kind: int = 0) -> Any:
        raise NotSimulated(f"an atomic on {self.name}: a GPU has none for local memory")


class LocalView(LocalArray):
    """Some of a local array's elements, in any order."""

    __slots__ = ("_numbers", "alignment", "dtype", "shape", "strides", "wide")

    def __init__(self, of: LocalArray, numbers: np.ndarray) -> None:
        self.name, self.memory, self.cells, self._numbers = of.name, of.memory, of.cells, numbers
        self.dtype, self.shape, self.alignment = of.dtype, numbers.shape, of.alignment
        scale = of.dtype.itemsize, numbers.itemsize
        self.strides = tuple(step * scale[0] // scale[1] for step in numbers.strides)
        self.wide = False

    def numbers(self) -> np.ndarray:
        return self._numbers

    def element(self, at: tuple[int, ...]) -> int:
        return int(self._numbers[at])


class RecordArray:
    """A structured array. Its elements are :class:`Record`; ``a.x`` and ``a["x"]`` are the array of
    a field. What is no field's name begins with an underscore, apart from NumPy's attributes.

    ``whole`` has the same elements as bytes without fields: it knows shape, bounds and memory.
    """

    __slots__ = ("_fields", "_whole", "dtype")

    def __init__(self, whole: CheckedArray, dtype: np.dtype[Any]) -> None:
        self._whole, self.dtype = whole, dtype
        self._fields: dict[str, Any] = {}

    shape = property(lambda self: self._whole.shape)
    strides = property(lambda self: self._whole.strides)
    ndim = property(lambda self: self._whole.ndim)
    size = property(lambda self: self._whole.size)
    itemsize = property(lambda self: self._whole.itemsize)
    nbytes = property(lambda self: self._whole.nbytes)
    ctypes = property(lambda self: self._whole.ctypes)
    T = property(lambda self: RecordArray(self._whole.T, self.dtype))

    def reshape(self, *shape: Any) -> Any:
        return RecordArray(self._whole.reshape(*shape), self.dtype)

    def view(self, dtype: Any) -> Any:
        return self._whole.view(dtype)

    def __len__(self) -> int:
        return len(self._whole)

    def __iter__(self) -> Iterator[Any]:
        for row in range(len(self)):
            yield self._part(row, site_of(1))

    def __getattr__(self, name: str) -> Any:
        return self._field(name)

    def __getitem__(self, index: Any) -> Any:
        return self._field(index) if isinstance(index, str) else self._part(index, site_of(1))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._store_part(index, value, site_of(1))

    def _field(self, name: str) -> Any:
        if name not in self._fields:
            if name not in (self.dtype.names or ()):
                raise AttributeError(f"{self._whole.name} has no field {name}")
            kind, whole, full = self.dtype[name], self._whole, self.dtype

            def field(host: np.ndarray) -> np.ndarray:
                part = host.view(full)[name]
                return part if kind.base.names is None else part.view(bytes_of(kind.base))

            found = whole.derived(field, f"{whole.name}.{name}")
            nested = kind.base.names is not None
            self._fields[name] = RecordArray(found, kind.base) if nested else found
        return self._fields[name]

    def _part(self, index: Any, site: int) -> Any:
        entries = self._whole.whole_index(index)
        if self._whole.is_partial(entries):
            return RecordArray(self._whole.cut(entries, site), self.dtype)
        return Record(self, self._whole.check(entries, site))

    def _store_part(self, index: Any, value: Any, site: int) -> None:
        part = self._part(index, site)
        if isinstance(part, Record):
            part._assign(value, site)
            return
        for at in np.ndindex(*part.shape):
            one = value._part(at, site) if isinstance(value, RecordArray) else value
            Record(part, at)._assign(one, site)


class Record:
    """An element of a structured array: a reference to it, as in Numba."""

    __slots__ = ("_array", "_at")

    def __init__(self, array: RecordArray, at: tuple[int, ...]) -> None:
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_at", at)

    def __getattr__(self, name: str | int) -> Any:
        return self._load(name, site_of(1))

    def __setattr__(self, name: str | int, value: Any) -> None:
        self._store(name, value, site_of(1))

    __getitem__, __setitem__ = __getattr__, __setattr__

    def _field(self, name: str | int) -> Any:
        """The array of a field, which Numba lets a kernel name by its number too."""
        dtype = self._array.dtype
        name = name if isinstance(name, str) else (dtype.names or ())[name]
        field = self._array._field(name)
        kind, offset = (dtype.fields or {})[name][:2]
        if kind.base.names is None and offset % kind.base.alignment:
            raise TypeError(f"{field.name} of type {kind.base} is not aligned, which Numba refuses")
        return field

    def _load(self, name: str | int, site: int) -> Any:
        field = self._field(name)
        part = field._part if isinstance(field, RecordArray) else field.part
        return part(self._at, site)

    def _store(self, name: str | int, value: Any, site: int) -> None:
        field = self._field(name)
        store = field._store_part if isinstance(field, RecordArray) else field.store_part
        store(self._at, value, site)

    def _assign(self, value: Any, site: int) -> None:
        """Store all fields of another record, a kernel's or a constant of NumPy's."""
        for name in self._array.dtype.names or ():
            one = value._load(name, site) if isinstance(value, Record) else value[name]
            self._store(name, one, site)


def bytes_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The structured type without its fields."""
    return np.dtype((np.void, dtype.itemsize))
