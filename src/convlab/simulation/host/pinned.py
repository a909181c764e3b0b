"""Pinned memory as a program has it: an array that tells when the host reads or writes it.

Copies between pinned memory and the device are asynchronous in a stream, so the host must wait
before it touches the memory. A plain array would not say that it is touched. What NumPy makes of a
:class:`PinnedArray` is a plain array, or a view of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np


class Watcher(Protocol):
    """Hears which host memory the program touches."""

    def host_reads(self, memory: np.ndarray) -> None: ...

    def host_wrote(self, memory: np.ndarray) -> None: ...


class PinnedMemory(np.ndarray):
    """Host memory to which copies are asynchronous. A program has views of it: what NumPy makes
    from those, as ``np.empty_like`` does, is not pinned."""


# What NumPy's functions do not read: they look at shapes, or make views.
_LOOKS = {
    *("shape", "ndim", "size", "empty_like", "zeros_like", "ones_like", "full_like", "result_type"),
    *("may_share_memory", "shares_memory", "reshape", "ravel", "transpose", "moveaxis", "swapaxes"),
    *("squeeze", "expand_dims", "broadcast_to", "atleast_1d", "atleast_2d", "atleast_3d", "split"),
    *("array_split", "iscomplexobj", "isrealobj", "can_cast", "common_type", "min_scalar_type"),
}
_FILLS = {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis"}  # the first one


class PinnedArray(np.ndarray):
    """A view of pinned memory, whose watcher hears of reads and writes."""

    watcher: Watcher | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.watcher = getattr(source, "watcher", None)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if not isinstance(found, np.ndarray):
            self._read(index)
        elif not np.may_share_memory(found, self):
            self._read()
            return plain(found)
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        plain(self)[index] = plain(value)
        self._wrote()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
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
        self, function: Callable[..., Any], types: Any, given: Any, how: Any
    ) -> Any:
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

    def _read(self, index: Any = ()) -> None:
        if self.watcher is not None:
            entries = index if isinstance(index, tuple) else (index,)
            part = plain(self)[(*entries, ...)] if not isinstance(index, str) else plain(self)
            self.watcher.host_reads(part)

    def _wrote(self) -> None:
        if self.watcher is not None:
            self.watcher.host_wrote(plain(self))


def _reading(name: str) -> Callable[..., Any]:
    def method(self: PinnedArray, *given: Any, **how: Any) -> Any:
        self._read()
        return getattr(plain(self), name)(*_all_plain(given), **_all_plain(how))

    return method


def _writing(name: str) -> Callable[..., Any]:
    def method(self: PinnedArray, *given: Any, **how: Any) -> Any:
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
    """The same memory as a plain array, which tells nobody; anything else as it is."""
    return value.view(np.ndarray) if isinstance(value, PinnedArray) else value


def _pinned(value: Any) -> Iterator[PinnedArray]:
    """The pinned arrays in what a function is given."""
    if isinstance(value, PinnedArray):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _pinned(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _pinned(one)


def _all_plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_all_plain, value))
    if isinstance(value, dict):
        return {key: _all_plain(one) for key, one in value.items()}
    return plain(value)
