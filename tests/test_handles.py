"""What the driver knows arrays and streams by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from numba.cuda.core import config

from convlab.engines import handles
from convlab.engines.handles import address_of, stream_handle

if config.ENABLE_CUDASIM:
    pytest.skip("Numba runs as its CUDA simulator: it has no launch", allow_module_level=True)

from pretended_driver import device_array


class Tensor:
    """As much of PyTorch's tensor as is asked."""

    def __init__(self, is_cuda: bool = True) -> None:
        self.is_cuda = is_cuda

    def data_ptr(self) -> int:
        return 0xABC0


class Interface:
    """Somebody's array on a GPU; CuPy's has ``data.ptr`` beside it."""

    __cuda_array_interface__ = {"data": (0xABC0, False), "shape": (1,), "version": 3}  # noqa: RUF012


class CuPys(Interface):
    data = SimpleNamespace(ptr=0xABC0)


@pytest.mark.parametrize("array", [device_array((1,), 0xABC0), Tensor(), Interface(), CuPys()])
def test_where_an_array_lies(array: Any) -> None:
    assert address_of(array) == 0xABC0
    assert address_of(array) == 0xABC0  # by the reader that is kept


@pytest.mark.parametrize("array", [np.ones(3, np.float32), Tensor(is_cuda=False), [1.0], None])
def test_what_is_not_on_a_gpu_is_refused(array: Any) -> None:
    name = type(array).__name__
    for _ in range(2):
        with pytest.raises(TypeError, match=f"^an array is a {name} in the host's memory: a plan"):
            address_of(array)


def test_a_tensor_that_moves_is_looked_at_again() -> None:
    assert address_of(Tensor()) == 0xABC0
    with pytest.raises(TypeError):
        address_of(Tensor(is_cuda=False))
    assert Tensor in handles._readers


class Stream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0x55


def test_a_stream_by_any_name() -> None:
    from numba import cuda

    numbas = cuda.cudadrv.driver.Stream(driver.CUstream(0x55))
    default = cuda.cudadrv.driver.Stream(driver.CUstream(0))
    for stream, handle in ((None, 0), (0, 0), (0x55, 0x55), (Stream(), 0x55), (numbas, 0x55)):
        assert stream_handle(stream) == handle
    assert stream_handle(default) == 0
    with pytest.raises(TypeError, match=r"^stream is 'fast': it must be None, a stream's handle"):
        stream_handle("fast")
