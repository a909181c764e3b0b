"""A program's device, managed, mapped and pinned arrays, and the copies between them.

Device arrays are those of Numba's own simulator. :class:`Copies` notifies the streams of copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, SupportsIndex

import numba.cuda
import numpy as np
from numba.cuda import simulator as numbas
from numba.cuda.simulator.cudadrv import devicearray
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numpy.lib.stride_tricks import as_strided
from numpy.typing import ArrayLike, DTypeLike

from convlab.simulation.host.not_simulated import OF_AN_ARRAY, functions
from convlab.simulation.host.pinned import PinnedArray, PinnedMemory, plain
from convlab.simulation.host.streams import Streams
from convlab.simulation.host.watched_arrays import WatchedArray
from convlab.simulation.memory.host_memory import is_dense, owner_of
from convlab.simulation.memory.touched import Touched
from convlab.simulation.memory.unwritten_arrays import UnwrittenArrays
from convlab.simulation.numbers.scalars import poison
from convlab.simulation.rules.finding_words import MANAGED, MAPPED
from convlab.simulation.rules.findings import NotSimulated

_COPY = "a copy to the device"
ShapeLike = SupportsIndex | Sequence[SupportsIndex]
Strides = ShapeLike | None
MemoryOrder = Literal["C", "F"]


class UnifiedArray(WatchedArray):
    """A managed or mapped array: memory that the host and kernels share, so that launches do not
    copy it. ``of_memory`` is the memory's name in findings."""

    __cuda_ndarray__ = True
    __cuda_array_interface__ = property(lambda self: interface_of(self))
    of_memory = MANAGED

    def __array_finalize__(self, source: object) -> None:
        super().__array_finalize__(source)
        self.of_memory = getattr(source, "of_memory", MANAGED)

    def copy_to_host(self, ary: np.ndarray | None = None, stream: object = 0) -> np.ndarray:
        """Wait for all launches, and return a copy in the host's memory."""
        numba.cuda.synchronize()
        copied: np.ndarray = FakeCUDAArray(np.asarray(self)).copy_to_host(ary, stream)
        return copied

    def copy_to_device(self, ary: object, stream: object = 0) -> None:
        """Wait for all launches, and fill the array from another."""
        numba.cuda.synchronize()
        FakeCUDAArray(np.asarray(self)).copy_to_device(ary, stream)

    def bind(self, stream: object = 0) -> UnifiedArray:
        """Return the array itself, as Numba's arrays do with a stream bound."""
        return self

    def split(self, section: int, stream: object = 0) -> list[UnifiedArray]:
        """Return parts of ``section`` elements each."""
        return [self[begin : begin + section] for begin in range(0, len(self), section)]


for _name, _refusal in functions("array", OF_AN_ARRAY).items():
    setattr(UnifiedArray, _name, _refusal)


def device_array(
    shape: ShapeLike,
    dtype: DTypeLike = np.float64,
    strides: Strides = None,
    order: MemoryOrder = "C",
    stream: object = 0,
) -> FakeCUDAArray:
    """Return memory that nothing has written: NaN and the largest integers, never zeros by
    chance."""
    made = np.ndarray(shape, dtype, strides=strides, order=order)
    fill_with_poison(made)
    return FakeCUDAArray(made, stream)


def unified_array(
    shape: ShapeLike, dtype: DTypeLike, strides: Strides, order: MemoryOrder, of_memory: str
) -> UnifiedArray:
    """Return new memory for a managed or mapped array. Raises ``NotSimulated`` for strides that
    leave gaps, which NumPy does not allocate."""
    if strides is not None:
        steps = (strides,) if isinstance(strides, SupportsIndex) else strides
        asked = as_strided(np.empty(shape, dtype), strides=[int(step) for step in steps])
        if not is_dense(asked):
            raise NotSimulated(
                f"{of_memory} with strides={strides} is not simulated: "
                "its elements overlap or leave gaps"
            )
    return UnifiedArray(shape, dtype, strides=strides, order=order)


def fill_with_poison(made: np.ndarray) -> None:
    """Fill memory that nothing has written with numbers that nobody takes for right."""
    if made.dtype.kind in "iufc":
        made[...] = poison(made.dtype)


def is_cuda_array(value: object) -> bool:
    """Return whether the value is a device array, or another library's."""
    return hasattr(value, "__cuda_ndarray__") or hasattr(value, "__cuda_array_interface__")


def interface_of(array: object) -> dict[str, object]:
    """Return ``__cuda_array_interface__``. It has an entry for the host's array, by which the
    simulator recognises its own arrays."""
    host = np.asarray(getattr(array, "_ary", array))
    found = host.__array_interface__
    shown = {key: found[key] for key in ("shape", "strides", "typestr", "data")}
    return shown | {"version": 3, "stream": None, "host": host}


def as_cuda_array(value: object, sync: bool = True) -> FakeCUDAArray:
    """Return the device array that a value is, or shows as ``__cuda_array_interface__``."""
    if hasattr(value, "__cuda_ndarray__"):
        return value
    host = getattr(value, "__cuda_array_interface__", {}).get("host")
    if host is None:
        kind = type(value).__name__
        raise NotSimulated(
            f"as_cuda_array of a {kind}, which is another library's, is not simulated"
        )
    return FakeCUDAArray(host)


class Copies:
    """The functions of ``numba.cuda`` and the methods of device arrays that copy between host and
    device. They notify the streams."""

    def __init__(self, streams: Streams, unwritten: UnwrittenArrays) -> None:
        self._streams, self._unwritten = streams, unwritten
        # Numba's own, because these names are patched.
        self._check = devicearray.check_array_compatibility
        self._fill = FakeCUDAArray.copy_to_device
        self._get, self._put = FakeCUDAArray.__getitem__, FakeCUDAArray.__setitem__

    def functions(self) -> dict[str, Any]:
        """Return the functions by name."""
        return {
            "device_array": self.device_array,
            "device_array_like": self.device_array_like,
            "to_device": self.to_device,
            "managed_array": self.managed_array,
            "mapped": self.mapped,
            "mapped_array": self.mapped_array,
            "mapped_array_like": self.mapped_array_like,
            "pinned": self._streams.pinned,
            "pinned_array": self.pinned_array,
            "pinned_array_like": self.pinned_array_like,
        }

    def methods(self) -> dict[str, Any]:
        """Return the methods of device arrays by name, and those that refuse."""

        def copy_to_host(
            array: FakeCUDAArray, ary: np.ndarray | None = None, stream: object = 0
        ) -> np.ndarray:
            return self.copy_to_host(array, ary, stream)

        def copy_to_device(array: FakeCUDAArray, ary: object, stream: object = 0) -> None:
            self.copy_to_device(array, ary, stream)

        return functions("array", OF_AN_ARRAY) | {
            "copy_to_host": copy_to_host,
            "copy_to_device": copy_to_device,
            "__getitem__": lambda array, index: self.get(array, index),
            "__setitem__": lambda array, index, value: self.put(array, index, value),
            "getitem": lambda array, item, stream=0: self.get(_in_stream(array, stream), item),
            "setitem": lambda array, key, value, stream=0: self.put(
                _in_stream(array, stream), key, value
            ),
            "squeeze": lambda array, axis=None, stream=0: FakeCUDAArray(
                array._ary.squeeze(axis), stream or array.stream
            ),
        }

    def device_array(
        self,
        shape: ShapeLike,
        dtype: DTypeLike = np.float64,
        strides: Strides = None,
        order: MemoryOrder = "C",
        stream: object = 0,
    ) -> FakeCUDAArray:
        """Return a device array as ``cuda.device_array`` does."""
        made = device_array(shape, dtype, strides, order, stream)
        self._unwritten.add(made._ary)
        return made

    def device_array_like(self, ary: Any, stream: object = 0) -> FakeCUDAArray:
        """Return a device array with the shape, type and strides of an array."""
        like = numbas.device_array_like(plain(ary))
        return self.device_array(like.shape, like.dtype, like.strides, stream=stream)

    def interface(self, array: FakeCUDAArray) -> dict[str, object]:
        """Return ``__cuda_array_interface__``, by which other code may write to the array."""
        self._unwritten.forget([np.asarray(array._ary)])
        return interface_of(array)

    def to_device(
        self,
        array: ArrayLike,
        stream: object = 0,
        copy: bool = True,
        to: FakeCUDAArray | None = None,
    ) -> FakeCUDAArray:
        """Copy as ``cuda.to_device`` does."""
        if to is not None:
            if copy:
                to.copy_to_device(array, stream)
            return to
        if is_cuda_array(array):
            return as_cuda_array(array)
        host = plain(np.asarray(array))
        self._streams.device_reads(host)
        made = numbas.to_device(host, stream)
        made.stream = stream
        if copy:
            self._note(made._ary, stream, host)
        else:
            fill_with_poison(made._ary)
            self._unwritten.add(owner_of(made._ary))
        return made

    def copy_to_host(
        self, array: FakeCUDAArray, ary: np.ndarray | None, stream: object
    ) -> np.ndarray:
        """Copy a device array to ``ary``, or to a new array."""
        if ary is None:
            ary = np.empty_like(array._ary)
        else:
            self._check(array, ary)
        self._streams.copied(stream or array.stream, plain(ary), array._ary)
        return ary

    def copy_to_device(self, array: FakeCUDAArray, ary: object, stream: object) -> None:
        """Copy ``ary`` to a device array."""
        source = plain(ary)
        if isinstance(source, np.ndarray):
            self._streams.device_reads(source)
        records = is_cuda_array(source) and array._ary.dtype.names is not None
        if records:  # which Numba's simulator would read from a device array as plain bytes
            self._check(array, source)
            np.copyto(array._ary, source._ary)
        else:
            self._fill(array, source, stream)
        self._note(array._ary, stream or array.stream, source)

    def get(self, array: FakeCUDAArray, index: object) -> object:
        """Return ``array[index]``; one number is copied to the host."""
        found: object = self._get(array, index)
        if isinstance(found, np.generic) and isinstance(array._ary, np.ndarray):
            self._streams.copied(array.stream, np.empty_like(found), _part(array._ary, index))
        return found

    def put(self, array: FakeCUDAArray, index: object, value: object) -> None:
        """Assign ``array[index] = value``."""
        source = plain(value)
        self._put(array, index, source)
        if isinstance(array._ary, np.ndarray):
            self._note(_part(array._ary, index), array.stream, source, "an assignment")

    def pinned_array(
        self,
        shape: ShapeLike,
        dtype: DTypeLike = np.float64,
        strides: Strides = None,
        order: MemoryOrder = "C",
    ) -> np.ndarray:
        """Return host memory to which copies in a stream are asynchronous."""
        memory = PinnedMemory(shape, dtype, strides=strides, order=order)
        made: PinnedArray = memory.view(PinnedArray)
        made.watcher = self._streams
        return made

    def pinned_array_like(self, array: object) -> np.ndarray:
        """Return pinned memory with the shape, type and strides of an array."""
        like = numbas.pinned_array_like(plain(array))
        return self.pinned_array(like.shape, like.dtype, like.strides)

    def managed_array(
        self,
        shape: ShapeLike,
        dtype: DTypeLike = np.float64,
        strides: Strides = None,
        order: MemoryOrder = "C",
        **options: object,
    ) -> UnifiedArray:
        """Return an array as ``cuda.managed_array`` does."""
        return self._watch(unified_array(shape, dtype, strides, order, MANAGED), MANAGED)

    def mapped_array(
        self,
        shape: ShapeLike,
        dtype: DTypeLike = np.float64,
        strides: Strides = None,
        order: MemoryOrder = "C",
        **options: object,
    ) -> UnifiedArray:
        """Return an array as ``cuda.mapped_array`` does."""
        return self._watch(unified_array(shape, dtype, strides, order, MAPPED), MAPPED)

    def mapped_array_like(self, array: np.ndarray, **options: object) -> UnifiedArray:
        """Return mapped memory with the shape and type of an array."""
        return self.mapped_array(array.shape, array.dtype)

    @contextmanager
    def mapped(
        self, *arrays: np.ndarray, **options: object
    ) -> Iterator[UnifiedArray | list[UnifiedArray]]:
        """Inside, kernels and the host share these arrays; at its end the host waits."""
        seen = [self._watch(array.view(UnifiedArray), MAPPED) for array in arrays]
        yield seen[0] if len(seen) == 1 else seen
        self._streams.host_waits()

    def _watch(self, made: UnifiedArray, of_memory: str) -> UnifiedArray:
        made.watcher, made.of_memory = self._streams, of_memory
        return made

    def _note(self, device: np.ndarray, stream: object, source: object, what: str = _COPY) -> None:
        """Note a copy or assignment. The host waits for it if it is in no stream."""
        touched = Touched()
        touched.whole(device, writes=True)
        is_on_device = is_cuda_array(source)
        source = getattr(source, "_ary", source)
        if is_on_device and isinstance(source, np.ndarray):
            self._unwritten.copied(device, source)
        else:
            self._unwritten.wrote(device)
        host = source if isinstance(source, np.ndarray) else None
        if host is not None:
            touched.whole(host, writes=False)
        operation = self._streams.issue(stream, what, touched)
        if host is not None:
            self._streams.reads(operation, host)
        if not stream:
            self._streams.host_waits()


def _in_stream(array: FakeCUDAArray, stream: object) -> FakeCUDAArray:
    return array.bind(stream) if stream else array


def _part(array: np.ndarray, index: Any) -> np.ndarray:
    """Return the elements at an index as a view, even if it is one element."""
    entries = index if isinstance(index, tuple) else (index,)
    whole = isinstance(index, str) or any(one is ... for one in entries)
    found: np.ndarray = array[index if whole else (*entries, ...)]
    return found
