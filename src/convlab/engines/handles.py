"""What the driver knows arrays and streams by: addresses and handles, whichever library's they are.

Numba's own conversion of an argument takes 5 to 20 us; reading an address takes less than one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

_readers: dict[type, Callable[[Any], int | None]] = {}


def address_of(array: Any) -> int:
    """Where an array of any library with ``__cuda_array_interface__`` begins in the GPU's memory.

    Raises ``TypeError`` for one that is not there, such as NumPy's.
    """
    kind = type(array)
    if kind not in _readers:
        _readers[kind] = _reader_for(array)
    address = _readers[kind](array)
    if address is None:
        raise TypeError(
            f"an array is a {kind.__name__} in the host's memory: a plan on a GPU takes arrays in "
            "the GPU's"
        )
    return address


def _reader_for(array: Any) -> Callable[[Any], int | None]:
    """The fastest way to read the address of an array of this type; None for one on the host."""
    if hasattr(array, "device_ctypes_pointer"):
        return lambda numbas: int(numbas.device_ctypes_pointer.value)
    if hasattr(array, "data_ptr") and hasattr(array, "is_cuda"):
        return lambda tensor: int(tensor.data_ptr()) if tensor.is_cuda else None
    if not hasattr(array, "__cuda_array_interface__"):
        return lambda host: None
    if hasattr(getattr(array, "data", None), "ptr"):
        return lambda cupys: int(cupys.data.ptr)
    return lambda other: int(other.__cuda_array_interface__["data"][0])


def check_aligned(name: str, address: int) -> None:
    """Raise ``ValueError`` naming the array unless it begins at a multiple of 16 bytes: a
    misaligned 128-bit access ends the GPU's context, with all that is in it."""
    if address % 16:
        raise ValueError(
            f"{name} is a device array that starts at address {address:#x}: it must start at a "
            "multiple of 16 bytes, because stages move four numbers at a time"
        )


def stream_handle(stream: Any) -> int:
    """The handle of a stream of any library with ``__cuda_stream__``, of a handle, or of None, the
    default stream: 0. Raises ``TypeError`` for anything else."""
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
    """CuPy's work inside the ``with`` goes to the stream of that handle; ``cupy`` is the module."""
    if not hasattr(cupy.cuda.Stream, "from_external"):  # before CuPy 14
        return cupy.cuda.ExternalStream(handle)  # type: ignore[no-any-return]
    return cupy.cuda.Stream.from_external(_Stream(handle))  # type: ignore[no-any-return]


class _Stream:
    """A stream in CUDA's protocol for exchanging them."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle  # version of the protocol, and the stream
