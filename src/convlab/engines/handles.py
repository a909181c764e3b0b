"""What the driver knows arrays and streams by: addresses and handles, whichever library's they are.

Numba's own conversion of an argument takes 5 to 20 us; reading an address takes less than one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

from convlab.engines.base import EngineUnavailable, Start
from convlab.stage import LibraryCall

_readers: dict[type, Callable[[Any], int]] = {}


def address_of(array: Any) -> int:
    """Where an array of any library with ``__cuda_array_interface__`` begins in the GPU's memory.

    Raises ``TypeError`` for one that is not there, such as NumPy's.
    """
    kind = type(array)
    if kind not in _readers:
        _readers[kind] = _reader_for(array)
    return _readers[kind](array)


def _reader_for(array: Any) -> Callable[[Any], int]:
    """The fastest way to read the address of an array of this type."""
    if hasattr(array, "device_ctypes_pointer"):
        return lambda numbas: int(numbas.device_ctypes_pointer.value)
    if hasattr(array, "data_ptr") and hasattr(array, "is_cuda"):
        return _address_of_tensor
    if not hasattr(array, "__cuda_array_interface__"):
        raise _not_there(array)
    if hasattr(getattr(array, "data", None), "ptr"):
        return lambda cupys: int(cupys.data.ptr)
    return lambda other: int(other.__cuda_array_interface__["data"][0])


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


# The array library for a stage's library calls is PyTorch or CuPy; kernels need neither. Arrays are
# passed without a copy, on the kernels' stream, so that one graph can capture both. PyTorch
# multiplies in float32 here even where its user allows TF32; CuPy does so unless the environment
# says ``CUPY_TF32=1``.


def build_library_call(call: LibraryCall) -> Start:
    """The call made ready: a function of Numba device arrays and a stream.

    Raises :class:`EngineUnavailable` where neither library is here.
    """
    name = _name()
    if name is None:
        raise EngineUnavailable(f"{call.name} is a library's work: {why_no_library()}")
    library, convert, on_stream = _ADAPTERS[name]()

    def start(arrays: list[Any], stream: Any = None) -> None:
        with on_stream(stream_handle(stream)):
            call.function(library, *map(convert, arrays))

    return start


def why_no_library() -> str | None:
    """Why no library can do it, in one sentence; None when one can."""
    if _name() is not None:
        return None
    return "neither PyTorch nor CuPy that can use the GPU is installed here; install one"


@cache
def _name() -> str | None:
    for name in _ADAPTERS:
        try:
            if import_module(name).cuda.is_available():
                return name
        except Exception:  # a broken installation raises what it likes, and is as good as none
            continue
    return None


Adapter = tuple[Any, Callable[[Any], Any], Callable[[int], AbstractContextManager[Any]]]


def _torch() -> Adapter:
    import torch
    from numba import cuda

    device = torch.device("cuda", cuda.get_current_device().id)
    torch.mm(*torch.ones(2, 1, 1, device=device))  # sets cuBLAS up, which a capture must not

    @contextmanager
    def on_stream(handle: int) -> Iterator[None]:
        stream = torch.cuda.default_stream(device)
        if handle:  # PyTorch takes 0 for "any new stream", not for CUDA's default one
            stream = torch.cuda.ExternalStream(handle, device)
        with torch.cuda.stream(stream), in_float32(torch.backends.cuda.matmul):
            yield

    return torch, lambda array: torch.as_tensor(array, device=device), on_stream


@contextmanager
def in_float32(matmul: Any) -> Iterator[None]:
    """PyTorch's matrix products in float32, by ``torch.backends.cuda.matmul``; then as before."""
    # From PyTorch 2.9 on the old name raises where somebody has used the new one.
    new = hasattr(matmul, "fp32_precision")
    name = "fp32_precision" if new else "allow_tf32"
    before = getattr(matmul, name)
    setattr(matmul, name, "ieee" if new else False)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def _cupy() -> Adapter:
    import cupy

    cupy.matmul(*cupy.ones((2, 1, 1), "f4"))  # sets cuBLAS up, which a capture must not

    return cupy, cupy.asarray, partial(cupy_stream, cupy)


_ADAPTERS: dict[str, Callable[[], Adapter]] = {"torch": _torch, "cupy": _cupy}
