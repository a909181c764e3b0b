"""Arrays of the stand-in for CuPy (``cupy_stand_in``): memory of the device, with which NumPy
computes."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Never

import numba.cuda
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from convlab.simulation.host.device_arrays import device_array, interface_of
from convlab.simulation.host.not_simulated import RefusedName, RefusedValue

METHODS = """
    all any argmax argmin argsort astype clip conj cumprod cumsum diagonal dot flatten max mean min
    nonzero prod ravel repeat reshape round searchsorted squeeze std sum swapaxes take trace
    transpose var view
"""
IN_PLACE = ("fill", "sort", "itemset", "put")
ATTRIBUTES = ("dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides", "flags")
PARTS = ("T", "real", "imag")


class MemoryPointer:
    """The memory of an array, as ``cupy.cuda.MemoryPointer``. ``ptr`` is its address."""

    def __init__(self, address: int) -> None:
        self.ptr = address

    def __int__(self) -> int:
        return self.ptr

    def __getattr__(self, name: str) -> Never:
        raise refused_value(f"cupy.cuda.MemoryPointer.{name}")


class ndarray(NDArrayOperatorsMixin):
    """An array of the stand-in, as ``cupy.ndarray``."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, shape: int | Sequence[int], dtype: Any = float, order: Any = "C", **more: Any
    ) -> None:
        if more:
            raise RefusedName(f"cupy.ndarray with {', '.join(more)} is not simulated")
        self._host = np.asarray(device_array(shape, dtype, order=order)._ary)

    __cuda_array_interface__ = property(lambda self: interface_of(self._host))
    data = property(lambda self: MemoryPointer(self._host.ctypes.data))

    def __array__(self, *arguments: object, **named: object) -> Never:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        if getattr(np, ufunc.__name__, None) is not ufunc:
            return NotImplemented
        return _called(getattr(ufunc, method), inputs, named)

    def __array_function__(
        self, function: Any, kinds: Iterable[type], arguments: Any, named: Any
    ) -> Any:
        """Call the function of this name in ``cupy``, as CuPy does when NumPy's gets an array of
        the device."""
        module: Any = sys.modules.get("cupy")
        for name in function.__module__.split(".")[1:]:
            module = vars(module).get(name)
        called = None if module is None else vars(module).get(function.__name__)
        known = all(issubclass(kind, ndarray | np.ndarray) for kind in kinds)
        return called(*arguments, **named) if called and known else NotImplemented

    def __getattr__(self, name: str) -> Never:
        raise refused_value(f"cupy.ndarray.{name}")

    def __getitem__(self, index: Any) -> Any:
        return _shown(self._host[_given(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._host[_given(index)] = _given(value)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __len__(self) -> int:
        return len(self._host)

    def __repr__(self) -> str:
        return repr(self._host)

    def __bool__(self) -> bool:
        return bool(self._host)

    def __int__(self) -> int:
        return int(self._host)

    def __float__(self) -> float:
        return float(self._host)

    def __complex__(self) -> complex:
        return complex(self._host)

    def __index__(self) -> int:
        return operator.index(self._host)

    def get(self, stream: object = None, order: Any = "C", out: Any = None, **more: Any) -> Any:
        """Return a copy in the host's memory, or fill ``out``."""
        launches_are_over(stream)
        if out is None:
            return np.array(self._host, order=order)
        out[...] = self._host
        return out

    def set(self, arr: Any, stream: object = None) -> None:
        """Fill the array from the host's memory."""
        self._host[...] = arr

    def item(self, *index: Any) -> Any:
        """Return one element as a number of Python."""
        return self._host.item(*index)

    def tolist(self) -> Any:
        """Return the elements as lists of Python's numbers."""
        return self._host.tolist()

    def copy(self, order: Any = "C") -> ndarray:
        """Return a copy of the array."""
        return _array(self._host.copy(order))


def _array(host: np.ndarray) -> ndarray:
    made = ndarray.__new__(ndarray)
    made._host = host
    return made


def _shown(result: Any) -> Any:
    """Return a result of NumPy's as CuPy has it: a number is an array of no dimension."""
    if isinstance(result, np.ndarray | np.generic):
        return _array(np.asarray(result))
    if isinstance(result, tuple | list):
        make = getattr(type(result), "_make", type(result))
        return make(map(_shown, result))
    return result


def _given(value: Any) -> Any:
    """Return an argument for NumPy. Raises ``TypeError`` for an array of the host."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError(f"Unsupported type {type(value)}")
    if type(value) in (tuple, list):
        return type(value)(map(_given, value))
    if isinstance(value, slice):
        return slice(*map(_given, (value.start, value.stop, value.step)))
    return value


def _called(function: Any, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    out = named.get("out")
    named = {name: _given(value) for name, value in named.items()}
    result = function(*map(_given, arguments), **named)
    if out is not None:
        return out[0] if isinstance(out, tuple) and len(out) == 1 else out
    return _shown(result)


def wrapped(function: Any, name: str) -> Callable[..., Any]:
    """Return NumPy's function as one of the stand-in's arrays, under that name."""

    def called(*arguments: Any, **named: Any) -> Any:
        return _called(function, arguments, named)

    called.__name__ = called.__qualname__ = name
    return called


def _method(name: str, gives: bool) -> Callable[..., Any]:
    def called(self: ndarray, *arguments: Any, **named: Any) -> Any:
        return _called(getattr(self._host, name), arguments, named) if gives else None

    def changed(self: ndarray, *arguments: Any, **named: Any) -> None:
        getattr(self._host, name)(*map(_given, arguments), **named)

    return called if gives else changed


def _part(name: str) -> Callable[[ndarray], ndarray]:
    return lambda self: _array(getattr(self._host, name))


for _name in METHODS.split():
    setattr(ndarray, _name, _method(_name, gives=True))
for _name in IN_PLACE:
    setattr(ndarray, _name, _method(_name, gives=False))
for _name in ATTRIBUTES:
    setattr(ndarray, _name, property(operator.attrgetter(f"_host.{_name}")))
for _name in PARTS:
    setattr(ndarray, _name, property(_part(_name)))


def asarray(a: Any, dtype: Any = None, order: Any = None, **more: Any) -> ndarray:
    """Return an array on the device; one of the host is copied."""
    if isinstance(a, ndarray) and dtype in (None, a.dtype):
        return a
    interface = getattr(a, "__cuda_array_interface__", None)
    if interface is not None and "host" in interface:  # an array of ``numba.cuda``, not copied
        return _array(np.asarray(interface["host"], dtype=dtype))
    return _array(np.array(_from_host(a), dtype=dtype, order=order or "C"))


def _from_host(a: Any) -> Any:
    if isinstance(a, ndarray):
        return a._host
    return [_from_host(one) for one in a] if isinstance(a, tuple | list) else a


def array(object: Any, dtype: Any = None, copy: bool = True, **more: Any) -> ndarray:
    """Return a new array on the device."""
    return _array(np.array(asarray(object, dtype)._host, ndmin=more.get("ndmin", 0)))


def asnumpy(a: Any, stream: object = None, order: Any = "C", out: Any = None, **more: Any) -> Any:
    """Return an array in the host's memory."""
    return asarray(a).get(stream, order, out)


def empty(shape: Any, dtype: Any = float, order: Any = "C") -> ndarray:
    """Return an array that nothing has written: NaN and the largest integers."""
    return ndarray(shape, dtype, order)


def empty_like(prototype: Any, dtype: Any = None, **more: Any) -> ndarray:
    """Return an array of the prototype's shape that nothing has written."""
    return ndarray(prototype.shape, dtype or prototype.dtype)


def launches_are_over(stream: object) -> None:
    """Wait as CuPy does before it copies to the host: for one stream, or for all work."""
    synchronize = getattr(stream, "synchronize", None)
    (synchronize or numba.cuda.synchronize)()


def refused_value(name: str) -> RefusedValue:
    """Return the error for a name that the stand-in for CuPy does not have."""
    return RefusedValue(f"convlab does not simulate {name}; it is not in the stand-in for CuPy")
