"""Pinned memory: an array that notifies a watcher when the host reads or writes it.

Copies between pinned memory and the device are asynchronous in a stream, so the host must wait
before it touches the memory. A plain array would notify nobody. NumPy's functions make plain arrays
of a :class:`PinnedArray`, or views of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np


class Watcher(Protocol):
    """Receives the host memory that the program touches."""

    def host_reads(self, memory: np.ndarray) -> None:
        """Receive memory that the host reads."""

    def host_wrote(self, memory: np.ndarray) -> None:
        """Receive memory that the host has written."""


class PinnedMemory(np.ndarray):
    """Host memory to which copies are asynchronous. A program has views of it. Arrays that NumPy
    makes from those, as ``np.empty_like`` does, are not pinned."""


# NumPy's functions that read no elements: they look at shapes, or make views.
_LOOKS = {
    *("shape", "ndim", "size", "empty_like", "zeros_like", "ones_like", "full_like", "result_type"),
    *("may_share_memory", "shares_memory", "reshape", "ravel", "transpose", "moveaxis", "swapaxes"),
    *("squeeze", "expand_dims", "broadcast_to", "atleast_1d", "atleast_2d", "atleast_3d", "split"),
    *("array_split", "iscomplexobj", "isrealobj", "can_cast", "common_type", "min_scalar_type"),
}
_FILLS = {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"}  # the first one


class PinnedArray(np.ndarray):
    """A view of pinned memory, whose watcher is notified of reads and writes."""

    watcher: Watcher | None = None

    def __array_finalize__(self, source: object) -> None:
        self.watcher = getattr(source, "watcher", None)

    def __getitem__(self, index: Any) -> Any:  # as ndarray's
        found = super().__getitem__(index)
        if not isinstance(found, np.ndarray):
            self._read(index)
        elif not np.may_share_memory(found, self):
            self._read()
            return plain(found)
        return found

    def __setitem__(self, index: Any, value: object) -> None:
        plain(self)[index] = plain(value)
        self._wrote()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> object:
        out = kwargs.get("out", ())
        for one in inputs:
            if isinstance(one, PinnedArray):
                one._read()
        result = getattr(ufunc, method)(*map(plain, inputs), **_all_plain(kwargs))
        written = (*out, *inputs[:1]) if method == "at" else out
        for one in written:
            if isinstance(one, PinnedArray):
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
        mine = [*_pinned((given, how))]
        target = mine[:1] if name in _FILLS and given and given[0] is mine[0] else []
        target += [*_pinned(how.get("out"))]
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
            part = plain(self)[(*entries, ...)] if not isinstance(index, str) else plain(self)
            self.watcher.host_reads(part)

    def _wrote(self) -> None:
        """Notify the watcher that the host has written to the memory."""
        if self.watcher is not None:
            self.watcher.host_wrote(plain(self))


def _reading(name: str) -> Callable[..., object]:
    """Return a method of NumPy's arrays that reads the elements."""

    def method(self: PinnedArray, *given: object, **how: object) -> object:
        self._read()
        return getattr(plain(self), name)(*_all_plain(given), **_all_plain(how))

    return method


def _writing(name: str) -> Callable[..., object]:
    """Return a method of NumPy's arrays that writes the elements."""

    def method(self: PinnedArray, *given: object, **how: object) -> object:
        result = getattr(plain(self), name)(*_all_plain(given), **_all_plain(how))
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
    setattr(PinnedArray, _name, _reading(_name))
for _name in ("fill", "sort", "partition", "put", "setfield"):
    setattr(PinnedArray, _name, _writing(_name))


def plain(value: Any) -> Any:
    """Return pinned memory as a plain array, which notifies nobody; anything else as it is."""
    return value.view(np.ndarray) if isinstance(value, PinnedArray) else value


def _pinned(value: object) -> Iterator[PinnedArray]:
    """Yield the pinned arrays in an argument of a function."""
    if isinstance(value, PinnedArray):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _pinned(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _pinned(one)


def _all_plain(value: Any) -> Any:
    """Return the value with plain arrays for pinned ones, in containers too."""
    if isinstance(value, tuple | list):
        return type(value)(map(_all_plain, value))
    if isinstance(value, dict):
        return {key: _all_plain(one) for key, one in value.items()}
    return plain(value)
