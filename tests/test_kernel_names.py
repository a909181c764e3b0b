"""Engine ``simulator``: what the names in a kernel stand for, however it came by them."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda.core import config

from convlab.engines.simulator import Simulator
from convlab.simulation.findings import NotSimulated

SIM = Simulator()
F = np.float32
BYTES_16 = 32  # not convlab's
imports = pytest.mark.skipif(
    config.ENABLE_CUDASIM, reason="these names are there in a running kernel only"
)
if config.ENABLE_CUDASIM:
    bar = laneid = libdevice = shared = shfl_down_sync = syncthreads = None
else:
    from numba.cuda import laneid, libdevice, shared, shfl_down_sync, syncthreads
    from numba.cuda import syncthreads as bar


@cuda.jit
def imported(a, b):
    staged = shared.array(64, float32)
    i = cuda.threadIdx.x
    staged[i] = a[i]
    syncthreads()
    b[i] = staged[63 - i]


@cuda.jit
def imported_as(a, b):
    staged = shared.array(64, float32)
    i = cuda.threadIdx.x
    staged[i] = a[i]
    bar()
    b[i] = staged[63 - i]


@cuda.jit
def imported_shuffle(a):
    i = cuda.threadIdx.x
    a[i] = shfl_down_sync(0xFFFFFFFF, a[i], 1)


@cuda.jit
def imported_lane(a):
    a[cuda.threadIdx.x] = laneid + 1


@cuda.jit
def from_libdevice(a):
    a[0] = libdevice.sqrtf(a[0])


@imports
@pytest.mark.parametrize(
    ("kernel", "what"),
    [(imported_lane, "write cuda.laneid"), (from_libdevice, "libdevice.sqrtf is not simulated")],
    ids=["laneid", "libdevice"],
)
def test_a_name_that_is_not_known_is_refused_with_its_line(kernel, what: str) -> None:
    line = kernel.py_func.__code__.co_firstlineno + 2
    with pytest.raises(NotSimulated, match=rf"{what}, .*:{line}"):
        SIM.launch(kernel, 1, 1, np.zeros(1))


def device_functions(size: int):
    @cuda.jit(device=True)
    def summed(x):
        own = cuda.local.array(size, float32)
        for k in range(size):
            own[k] = x
        total = float32(0)
        for k in range(size):
            total += own[k]
        return total

    @cuda.jit(device=True)
    def tile():
        return cuda.shared.array(size, float32)

    return summed, tile


(sum_of_2, tile_of_2), (sum_of_4, tile_of_4) = device_functions(2), device_functions(4)


@cuda.jit
def from_a_factory(b):
    two, four = tile_of_2(), tile_of_4()
    for k in range(4):
        four[k] = k
    two[1] = 7
    b[0], b[1], b[2], b[3] = sum_of_2(1.0), sum_of_4(1.0), two[1], four[1]


@cuda.jit(device=True)
def through_its_type(x, value):
    own = cuda.local.array(1, x.dtype)
    own[0] = value
    return own[0]


@cuda.jit
def two_types(a, b):
    b[0] = through_its_type(a, 7)
    b[1] = through_its_type(b, 1.5)


@cuda.jit(device=True)
def reversed_in_a_block(staged, i):
    cuda.syncthreads()
    return staged[31 - i]


helpers = ModuleType("helpers")
helpers.itself = helpers
helpers.reversed_in_a_block, helpers.SHIFT = reversed_in_a_block, 2
sys.modules["helpers"] = helpers


@cuda.jit
def from_a_module(a, b):
    staged = cuda.shared.array(32, float32)
    i = cuda.threadIdx.x
    staged[i] = a[i]
    b[i] = helpers.itself.reversed_in_a_block(staged, i) + helpers.SHIFT


def undecorated(i):
    return cuda.threadIdx.x + i


@cuda.jit
def calls_a_plain_function(b):
    b[undecorated(0)] = 1


def test_a_plain_function_is_refused() -> None:
    with pytest.raises(NotSimulated, match=r"undecorated is a plain function.*device=True"):
        SIM.launch(calls_a_plain_function, 1, 1, np.zeros(1))


@cuda.jit
def a_name_like_convlabs(b):
    b[0] = BYTES_16


ROW, HALF = np.arange(64, dtype=F), np.arange(32, dtype=F)
RESULTS = [
    pytest.param(imported, 64, [ROW, ROW * 0], ROW[::-1], marks=imports, id="syncthreads"),
    pytest.param(imported_as, 64, [ROW, ROW * 0], ROW[::-1], marks=imports, id="as bar"),
    pytest.param(imported_shuffle, 32, [HALF], [*range(1, 32), 31], marks=imports, id="shuffle"),
    pytest.param(from_a_factory, 1, [np.zeros(4, F)], [2, 4, 7, 1], id="device functions' arrays"),
    pytest.param(two_types, 1, [np.zeros(2, np.int32), np.zeros(2, F)], [7, 1.5], id="of types"),
    pytest.param(from_a_module, 32, [HALF, HALF * 0], HALF[::-1] + 2, id="from a module"),
    pytest.param(a_name_like_convlabs, 1, [np.zeros(1, np.int32)], [32], id="a constant's name"),
]


@pytest.mark.parametrize(("kernel", "threads", "arrays", "expected"), RESULTS)
def test_a_name_is_what_it_is_in_a_kernel(kernel, threads: int, arrays: list, expected) -> None:
    arrays = [array.copy() for array in arrays]
    SIM.launch(kernel, 1, threads, *arrays)
    np.testing.assert_array_equal(arrays[-1], expected)
