"""A program's device, managed, mapped and pinned arrays, and the copies between them.

Device arrays are those of Numba's own simulator; ``copies`` adds what the streams have to know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba.cuda
import numpy as np
from numba.cuda import simulator as numbas
from numba.cuda.simulator.cudadrv import devicearray
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

from convlab.simulation.host.not_simulated import OF_AN_ARRAY, functions
from convlab.simulation.host.pinned import PinnedArray, PinnedMemory, plain
from convlab.simulation.host.streams import Streams
from convlab.simulation.memory.touched import Touched
from convlab.simulation.numbers.scalars import poison
from convlab.simulation.rules.findings import NotSimulated

POLLS = 1000  # times that the host reads one managed element until it sees what a launch stores
_COPY = "a copy to the device"


class UnifiedArray(np.ndarray):
    """A managed or mapped array: memory that the host and kernels share, so that launches do not
    copy it."""

    __cuda_ndarray__ = True
    __cuda_array_interface__ = property(lambda self: interface_of(self))
    _polled: Any = None, 0  # the element that the host has read last, and how often in a row

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if isinstance(found, np.generic):
            last, times = self._polled
            self._polled = index, times + 1 if last == index else 1
            if times == POLLS:  # the host waits for what a launch stores there
                numba.cuda.synchronize()
                return super().__getitem__(index)
        return found

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        numba.cuda.synchronize()
        return FakeCUDAArray(np.asarray(self)).copy_to_host(ary, stream)

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        numba.cuda.synchronize()
        FakeCUDAArray(np.asarray(self)).copy_to_device(ary, stream)

    def bind(self, stream: Any = 0) -> UnifiedArray:
        return self

    def split(self, section: int, stream: Any = 0) -> list[UnifiedArray]:
        return [self[begin : begin + section] for begin in range(0, len(self), section)]


for _name, _refusal in functions("array", OF_AN_ARRAY).items():
    setattr(UnifiedArray, _name, _refusal)


def unified_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C", **options: Any
) -> UnifiedArray:
    """``cuda.managed_array`` and ``cuda.mapped_array``."""
    return UnifiedArray(shape, dtype, strides=strides, order=order)


def device_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C", stream: Any = 0
) -> Any:
    """Memory that nobody wrote: NaN and the largest integers, never zeros by chance."""
    made = np.ndarray(shape, dtype, strides=strides, order=order)
    if made.dtype.kind in "iufc":
        made[...] = poison(made.dtype)
    return FakeCUDAArray(made, stream)


def is_cuda_array(value: Any) -> bool:
    """Whether it is a device array, or another library's."""
    return hasattr(value, "__cuda_ndarray__") or hasattr(value, "__cuda_array_interface__")


def interface_of(array: Any) -> dict[str, Any]:
    """``__cuda_array_interface__``, which carries the array, so that it is known again."""
    host = np.asarray(getattr(array, "_ary", array))
    found = host.__array_interface__
    shown = {key: found[key] for key in ("shape", "strides", "typestr", "data")}
    return shown | {"version": 3, "stream": None, "host": host}


def as_cuda_array(value: Any, sync: bool = True) -> Any:
    """The device array that a value is, or shows as ``__cuda_array_interface__``."""
    if hasattr(value, "__cuda_ndarray__"):
        return value
    host = getattr(value, "__cuda_array_interface__", {}).get("host")
    if host is None:
        kind = type(value).__name__
        raise NotSimulated(
            f"as_cuda_array of a {kind}, which is another library's, is not simulated"
        )
    return FakeCUDAArray(host)


@contextmanager
def mapped(*arrays: np.ndarray, **options: Any) -> Iterator[Any]:
    """Inside, kernels and the host share these arrays; at its end the host waits."""
    seen = [array.view(UnifiedArray) for array in arrays]
    yield seen[0] if len(seen) == 1 else seen
    numba.cuda.synchronize()


def copies(streams: Streams) -> tuple[dict[str, Any], dict[str, Any]]:
    """``to_device`` and the like, and methods of device arrays."""
    check, fill = devicearray.check_array_compatibility, FakeCUDAArray.copy_to_device
    get, put = FakeCUDAArray.__getitem__, FakeCUDAArray.__setitem__

    def to_device(array: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:
        if to is not None:
            if copy:
                to.copy_to_device(array, stream)
            return to
        if is_cuda_array(array):
            return as_cuda_array(array)
        array = plain(np.asarray(array))
        streams.device_reads(array)
        made = numbas.to_device(array, stream, copy)
        made.stream = stream
        written(made._ary, stream, array)
        return made

    def written(device: np.ndarray, stream: Any, source: Any, what: str = _COPY) -> None:
        """Note a copy or assignment; in no stream the host waits for it."""
        touched = Touched()
        touched.whole(device, writes=True)
        source = getattr(source, "_ary", source)
        host = source if isinstance(source, np.ndarray) else None
        if host is not None:
            touched.whole(host, writes=False)
        operation = streams.issue(stream, what, touched)
        if host is not None:
            streams.reads(operation, host)
        if not stream:
            streams.host_waits()

    def copy_to_host(self: Any, ary: Any = None, stream: Any = 0) -> Any:
        if ary is None:
            ary = np.empty_like(self._ary)
        else:
            check(self, ary)
        streams.copied(stream or self.stream, plain(ary), self._ary)
        return ary

    def copy_to_device(self: Any, ary: Any, stream: Any = 0) -> None:
        ary = plain(ary)
        if isinstance(ary, np.ndarray):
            streams.device_reads(ary)
        fill(self, ary, stream)
        written(self._ary, stream or self.stream, ary)

    def getitem(self: Any, index: Any) -> Any:
        found = get(self, index)
        if isinstance(found, np.generic) and isinstance(self._ary, np.ndarray):  # one number
            streams.copied(self.stream, np.empty_like(found), _part(self._ary, index))
        return found

    def setitem(self: Any, index: Any, value: Any) -> None:
        value = plain(value)
        put(self, index, value)
        if isinstance(self._ary, np.ndarray):
            written(_part(self._ary, index), self.stream, value, "an assignment")

    def in_stream(array: Any, stream: Any) -> Any:
        return array.bind(stream) if stream else array

    def pinned_array(
        shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C"
    ) -> np.ndarray:
        """Host memory to which copies in a stream are asynchronous."""
        made = PinnedMemory(shape, dtype, strides=strides, order=order).view(PinnedArray)
        made.watcher = streams
        return made

    def pinned_array_like(array: Any) -> np.ndarray:
        like = numbas.pinned_array_like(plain(array))
        return pinned_array(like.shape, like.dtype, like.strides)

    names = {
        **{"to_device": to_device, "pinned": streams.pinned},
        **{"pinned_array": pinned_array, "pinned_array_like": pinned_array_like},
    }
    methods = {"copy_to_host": copy_to_host, "copy_to_device": copy_to_device}
    return names, methods | functions("array", OF_AN_ARRAY) | {
        "__getitem__": getitem,
        "__setitem__": setitem,
        "getitem": lambda self, item, stream=0: getitem(in_stream(self, stream), item),
        "setitem": lambda self, key, value, stream=0: setitem(in_stream(self, stream), key, value),
        "squeeze": lambda self, axis=None, stream=0: FakeCUDAArray(
            self._ary.squeeze(axis), stream or self.stream
        ),
    }


def _part(array: np.ndarray, index: Any) -> np.ndarray:
    """What an index means, as a view, also where that is one number."""
    entries = index if isinstance(index, tuple) else (index,)
    whole = isinstance(index, str) or any(one is ... for one in entries)
    found: np.ndarray = array[index if whole else (*entries, ...)]
    return found
