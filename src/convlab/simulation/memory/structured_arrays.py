"""Structured arrays and their records, as a kernel sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.host_memory import bytes_of
from convlab.simulation.memory.index_checks import Index
from convlab.simulation.memory.kernel_arrays import KernelArray
from convlab.simulation.recording.instructions import site_of


class RecordArray:
    """A structured array. Its elements are :class:`Record`; ``a.x`` and ``a["x"]`` are the array of
    a field. Apart from the attributes of NumPy's arrays, all names begin with an underscore,
    because any other name may be a field's.

    ``whole`` has the same elements as bytes without fields: it knows shape, bounds and memory.
    """

    __slots__ = ("_fields", "_whole", "dtype")

    def __init__(self, whole: KernelArray, dtype: np.dtype) -> None:
        self._whole, self.dtype = whole, dtype
        self._fields: dict[str, KernelArray | RecordArray] = {}

    shape = property(lambda self: self._whole.shape)
    strides = property(lambda self: self._whole.strides)
    ndim = property(lambda self: self._whole.ndim)
    size = property(lambda self: self._whole.size)
    itemsize = property(lambda self: self._whole.itemsize)
    nbytes = property(lambda self: self._whole.nbytes)
    ctypes = property(lambda self: self._whole.ctypes)
    T = property(lambda self: RecordArray(self._whole.T, self.dtype))

    def reshape(self, *shape: int) -> RecordArray:
        """Return a view of another shape."""
        return RecordArray(self._whole.reshape(*shape), self.dtype)

    def view(self, dtype: object) -> KernelArray:
        """Return the same bytes as numbers of another type."""
        assert isinstance(self._whole, CheckedArray)
        return self._whole.view(dtype)

    def __len__(self) -> int:
        return len(self._whole)

    def __iter__(self) -> Iterator[RecordArray | Record]:
        for row in range(len(self)):
            yield self._part(row, site_of(1))

    def __getattr__(self, name: str) -> KernelArray | RecordArray:
        return self._field(name)

    def __getitem__(self, index: object) -> object:
        return self._field(index) if isinstance(index, str) else self._part(index, site_of(1))

    def __setitem__(self, index: object, value: object) -> None:
        self._store_part(index, value, site_of(1))

    def _field(self, name: str) -> KernelArray | RecordArray:
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

    def _part(self, index: object, site: int) -> RecordArray | Record:
        entries = self._whole.whole_index(index)
        if self._whole.is_partial(entries):
            return RecordArray(self._whole.cut(entries, site), self.dtype)
        return Record(self, self._whole.check(entries, site))

    def _store_part(self, index: object, value: object, site: int) -> None:
        part = self._part(index, site)
        if isinstance(part, Record):
            part._assign(value, site)
            return
        for at in np.ndindex(*part.shape):
            one = value._part(at, site) if isinstance(value, RecordArray) else value
            Record(part, at)._assign(one, site)


class Record:
    """A reference to an element of a structured array, as in Numba."""

    __slots__ = ("_array", "_at")
    _array: RecordArray
    _at: Index

    def __init__(self, array: RecordArray, at: Index) -> None:
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_at", at)

    def __getattr__(self, name: str | int) -> object:
        return self._load(name, site_of(1))

    def __setattr__(self, name: str | int, value: object) -> None:
        self._store(name, value, site_of(1))

    __getitem__, __setitem__ = __getattr__, __setattr__

    def _field(self, name: str | int) -> KernelArray | RecordArray:
        """Return the array of a field; a kernel may name the field by its number too."""
        dtype = self._array.dtype
        name = name if isinstance(name, str) else (dtype.names or ())[name]
        field = self._array._field(name)
        assert dtype.fields is not None
        kind, offset = dtype.fields[name][:2]
        if kind.base.names is None and offset % kind.base.alignment:
            raise TypeError(f"{field.name} of type {kind.base} is not aligned, which Numba refuses")
        return field

    def _load(self, name: str | int, site: int) -> object:
        field = self._field(name)
        part = field._part if isinstance(field, RecordArray) else field.part
        return part(self._at, site)

    def _store(self, name: str | int, value: object, site: int) -> None:
        field = self._field(name)
        store = field._store_part if isinstance(field, RecordArray) else field.store_part
        store(self._at, value, site)

    def _assign(self, value: Any, site: int) -> None:
        """Store all fields of another record: one of a kernel's, or a constant of NumPy's."""
        for name in self._array.dtype.names or ():
            one = value._load(name, site) if isinstance(value, Record) else value[name]
            self._store(name, one, site)
