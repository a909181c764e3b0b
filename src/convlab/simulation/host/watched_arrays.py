"""Arrays that notify a watcher when the host reads or writes them.

Pinned, managed and mapped memory is used by launches and copies while the host goes on, so the host
must wait before it touches the memory. A plain array would notify nobody. NumPy's functions return
views of the same kind where they return views of a :class:`WatchedArray`, and plain arrays
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from convlab.simulation.rules.launch_checks import like


class Watcher(Protocol):
    """Receives the host memory that the program touches."""

    def host_reads(self, memory: np.ndarray) -> None:
        """Receive memory that the host reads."""

    def host_wrote(self, memory: np.ndarray) -> None:
        """Receive memory that the host has written."""


# NumPy's functions that read no elements.
_LOOKS = {
    *("shape", "ndim", "size", "empty_like", "zeros_like", "ones_like", "full_like", "result_type"),
    *("may_share_memory", "shares_memory", "iscomplexobj", "isrealobj", "can_cast", "common_type"),
    "min_scalar_type",
}
# Those that make views, and read all elements where they must copy.
_VIEWS = {
    *("reshape", "ravel", "transpose", "moveaxis", "swapaxes", "squeeze", "expand_dims", "split"),
    *("broadcast_to", "atleast_1d", "atleast_2d", "atleast_3d", "array_split", "hsplit", "vsplit"),
    *("dsplit", "rollaxis", "flip", "fliplr", "flipud", "rot90", "diagonal", "matrix_transpose"),
    *("broadcast_arrays", "permute_dims"),
}
_FILLS = {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"}  # the first one


class WatchedArray(np.ndarray):
    """A view of memory whose watcher is notified when the host reads or writes it."""

    watcher: Watcher | None = None

    def __array_finalize__(self, source: object) -> None:
        self.watcher = getattr(source, "watcher", None)

    def __getitem__(self, index: Any) -> Any:  # as ndarray's
        for one in _watched(index):
            one._read()
        found = super().__getitem__(index)
        if not isinstance(found, np.ndarray):
            self._read(index)
        elif not _has_view(found, self):
            self._read()
            return _plain(found)
        return found

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __setitem__(self, index: Any, value: object) -> None:
        if isinstance(value, WatchedArray) and not np.may_share_memory(value, self):
            value._read()
        for one in _watched(index):
            one._read()
        _plain(self)[_all_plain(index)] = _plain(value)
        self._wrote()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> object:
        out = kwargs.get("out", ())
        for one in _watched((inputs, kwargs.get("where"))):
            one._read()
        result = getattr(ufunc, method)(*map(_plain, inputs), **_all_plain(kwargs))
        written = (*out, *inputs[:1]) if method == "at" else out
        for one in written:
            if isinstance(one, WatchedArray):
                one._wrote()
        return out[0] if len(out) == 1 else out or result

    def __array_function__(
        self,
        function: Callable[..., object],
        types: object,
        given: Any,
        how: Mapping[str, Any],
    ) -> object:
        name = function.__name__
        mine = [*_watched((given, how))]
        target = mine[:1] if name in _FILLS and given and given[0] is mine[0] else []
        target += [*_watched(how.get("out"))]
        if name in _VIEWS:
            result = function(*_all_plain(given), **_all_plain(how))
            for one in mine:
                if not _has_view(result, one):
                    one._read()
            return _rewatched(result, mine)
        if name not in _LOOKS:
            for one in mine:
                if not any(one is other for other in target):
                    one._read()
        result = function(*_all_plain(given), **_all_plain(how))
        for one in target:
            one._wrote()
        return result

    def _read(self, index: object = ()) -> None:
        """Notify the watcher that the host reads the elements at an index, or all."""
        if self.watcher is not None:
            entries = index if isinstance(index, tuple) else (index,)
            part = _plain(self)[(*entries, ...)] if not isinstance(index, str) else _plain(self)
            self.watcher.host_reads(part)

    def _wrote(self) -> None:
        """Notify the watcher that the host has written to the memory."""
        if self.watcher is not None:
            self.watcher.host_wrote(_plain(self))


def _reading(name: str) -> Callable[..., object]:
    """Return a method of NumPy's arrays that reads the elements."""

    def method(self: WatchedArray, *given: object, **how: object) -> object:
        self._read()
        return getattr(_plain(self), name)(*_all_plain(given), **_all_plain(how))

    return method


def _writing(name: str) -> Callable[..., object]:
    """Return a method of NumPy's arrays that writes the elements."""

    def method(self: WatchedArray, *given: object, **how: object) -> object:
        result = getattr(_plain(self), name)(*_all_plain(given), **_all_plain(how))
        self._wrote()
        return result

    return method


for _name in (
    *("copy", "astype", "tolist", "tobytes", "item", "dot", "flatten", "repeat", "take", "round"),
    *("compress", "choose", "trace", "tofile", "dump", "dumps", "argmax", "argmin", "argsort"),
    *("nonzero", "searchsorted", "cumsum", "cumprod", "sum", "prod", "mean", "var", "std"),
    *("min", "max", "all", "any", "clip", "__contains__", "__bool__", "__int__", "__float__"),
    *("__complex__", "__index__", "__repr__", "__str__", "__format__", "__copy__", "__deepcopy__"),
    *("__reduce__", "__reduce_ex__"),
):
    setattr(WatchedArray, _name, _reading(_name))
for _name in ("fill", "sort", "partition", "put", "setfield"):
    setattr(WatchedArray, _name, _writing(_name))


def _plain(value: Any) -> Any:
    """Return a watched array as a plain one, which notifies nobody; anything else as it is."""
    return value.view(np.ndarray) if isinstance(value, WatchedArray) else value


def _watched(value: object) -> Iterator[WatchedArray]:
    """Yield the watched arrays in an argument of a function."""
    if isinstance(value, WatchedArray):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _watched(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _watched(one)


def _has_view(result: object, array: WatchedArray) -> bool:
    """Return whether a result is a view of the array, or contains one. Any array of no elements
    counts as a view: to make it reads nothing."""
    if isinstance(result, tuple | list):
        return any(_has_view(one, array) for one in result)
    if not isinstance(result, np.ndarray):
        return False
    return not result.size or np.may_share_memory(result, array)


def _rewatched(result: Any, arrays: list[WatchedArray]) -> Any:
    """Return a function's result with watched views for plain views of the arrays."""
    if isinstance(result, tuple):
        return like(result, (_rewatched(one, arrays) for one in result))
    if isinstance(result, list):
        return [_rewatched(one, arrays) for one in result]
    for array in arrays:
        if _has_view(result, array):
            view = result.view(type(array))
            view.__array_finalize__(array)
            return view
    return result


def _viewing(name: str) -> Callable[..., object]:
    """Return a method of NumPy's arrays that returns a view, or reads the elements to copy them."""

    def method(self: WatchedArray, *given: object, **how: object) -> object:
        result = getattr(_plain(self), name)(*given, **how)
        if not _has_view(result, self):
            self._read()
        return _rewatched(result, [self])

    return method


for _name in ("reshape", "ravel"):
    setattr(WatchedArray, _name, _viewing(_name))


def _all_plain(value: Any) -> Any:
    """Return the value with plain arrays for watched ones, in containers too."""
    if isinstance(value, tuple | list):
        plain = map(_all_plain, value)
        return like(value, plain) if isinstance(value, tuple) else [*plain]
    if isinstance(value, dict):
        return {key: _all_plain(one) for key, one in value.items()}
    return _plain(value)
