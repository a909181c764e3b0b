"""Which array library does a stage's library calls on a GPU: PyTorch or CuPy, where one is here.

Neither is a dependency: kernels need none. Arrays are handed over as they lie in memory
(``__cuda_array_interface__``), and the calls go to the stream that kernels go to, so that they can
be captured in a graph with them. PyTorch multiplies in float32 here, as kernels do, even where its
user lets it take TF32 elsewhere; CuPy does so unless the environment says ``CUPY_TF32=1``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

from convlab.engines.base import EngineUnavailable, Start
from convlab.engines.handles import cupy_stream, stream_handle
from convlab.stage import LibraryCall


def build(call: LibraryCall) -> Start:
    """The call made ready: a function of Numba device arrays and a stream.

    Raises :class:`EngineUnavailable` where neither library is here.
    """
    name = _name()
    if name is None:
        raise EngineUnavailable(f"{call.name} is a library's work: {why_none()}")
    library, convert, on_stream = _ADAPTERS[name]()

    def start(arrays: list[Any], stream: Any = None) -> None:
        with on_stream(stream_handle(stream)):
            call.function(library, *map(convert, arrays))

    return start


def why_none() -> str | None:
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
        # PyTorch takes the handle 0 for "any new stream", not for CUDA's default one.
        stream = (
            torch.cuda.ExternalStream(handle, device)
            if handle
            else torch.cuda.default_stream(device)
        )
        with torch.cuda.stream(stream), in_float32(torch.backends.cuda.matmul):
            yield

    return torch, lambda array: torch.as_tensor(array, device=device), on_stream


@contextmanager
def in_float32(matmul: Any) -> Iterator[None]:
    """PyTorch's matrix products in float32, by ``torch.backends.cuda.matmul``; then as before."""
    # From PyTorch 2.9 on the old name raises where somebody has used the new one.
    name, float32 = (
        ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    )
    before = getattr(matmul, name)
    setattr(matmul, name, float32)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def _cupy() -> Adapter:
    import cupy

    cupy.matmul(*cupy.ones((2, 1, 1), "f4"))  # sets cuBLAS up, which a capture must not

    return cupy, cupy.asarray, partial(cupy_stream, cupy)


_ADAPTERS: dict[str, Callable[[], Adapter]] = {"torch": _torch, "cupy": _cupy}
