"""What the driver knows arrays and streams by: addresses and handles, whichever library's they are.

Numba's own conversion of an argument takes 5 to 20 us; reading an address takes less than one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

_readers: dict[type, Callable[[Any], int]] = {}


def address_of(array: Any) -> int:
    """Where an array begins in the GPU's memory: Numba's, PyTorch's, CuPy's, or anybody's that has
    ``__cuda_array_interface__``.

    Raises ``TypeError`` for one that is not there, such as NumPy's.
    """
    kind = type(array)
    reader = _readers.get(kind)
    if reader is None:
        reader = _readers[kind] = _reader_for(array)
    return reader(array)


def _reader_for(array: Any) -> Callable[[Any], int]:
    """How arrays of this one's type are asked, the quickest way that they have."""
    if hasattr(array, "device_ctypes_pointer"):
        return lambda numbas: int(numbas.device_ctypes_pointer.value)
    if hasattr(array, "data_ptr") and hasattr(array, "is_cuda"):
        return _address_of_tensor
    if hasattr(array, "__cuda_array_interface__"):
        if hasattr(getattr(array, "data", None), "ptr"):
            return lambda cupys: int(cupys.data.ptr)
        return lambda other: int(other.__cuda_array_interface__["data"][0])
    raise _not_there(array)


def _address_of_tensor(tensor: Any) -> int:
    if not tensor.is_cuda:
        raise _not_there(tensor)
    return int(tensor.data_ptr())


def _not_there(array: Any) -> TypeError:
    return TypeError(
        f"an array is a {type(array).__name__} in the host's memory: a plan on a GPU takes arrays "
        "in the GPU's"
    )


def check_aligned(name: str, address: int) -> None:
    """Raise ``ValueError`` naming the array unless it begins where 128-bit accesses may: a GPU that
    is asked for four numbers anywhere else ends the context, with all that is in it."""
    if address % 16:
        raise ValueError(
            f"{name} is a device array that starts at address {address:#x}: it must start at a "
            "multiple of 16 bytes, because stages move four numbers at a time"
        )


def stream_handle(stream: Any) -> int:
    """A stream's number: Numba's, cuda.core's or anybody's that has ``__cuda_stream__``, such a
    number itself, or None for the default stream, which is 0.

    Raises ``TypeError`` for anything else.
    """
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise TypeError(
        f"stream is {stream!r}: it must be None, a stream's handle or an object that has "
        "__cuda_stream__, such as numba.cuda.stream()"
    )


def cupy_stream(cupy: Any, handle: int) -> AbstractContextManager[Any]:
    """CuPy's work inside the ``with`` goes to the stream of that number; ``cupy`` is the module."""
    chosen: AbstractContextManager[Any]
    if hasattr(cupy.cuda.Stream, "from_external"):
        chosen = cupy.cuda.Stream.from_external(_Stream(handle))
    else:  # before CuPy 14
        chosen = cupy.cuda.ExternalStream(handle)
    return chosen


class _Stream:
    """A stream in CUDA's protocol for exchanging them."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle  # version of the protocol, and the stream
