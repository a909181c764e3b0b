"""Engine ``simulator``: names in a kernel stand for what they are on a GPU, and so do numbers."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import numpy as np
import pytest
from numba import cuda, float32, int8, int32, int64, uint8, uint32
from numba.cuda.core import config

from convlab.running.engines.simulator import Simulator
from convlab.simulation.rules.findings import NotSimulated, SimulationError

SIM = Simulator()
NAN = math.nan


def run(kernel, *arrays: np.ndarray) -> list:
    SIM.launch(kernel, 1, 1, *arrays)
    return arrays[-1].tolist()


TABLE = np.array([1.0, 2.0])
ENTRY = np.float32(0.5)


@cuda.jit(device=True)
def of_a_default(k, table=TABLE, entry=ENTRY):
    return table[k] + TABLE[k] + entry


@cuda.jit
def defaults(b):
    b[0] = of_a_default(1)


@pytest.mark.parametrize("typed", [True, False])
def test_a_default_stays_as_it_was_compiled(typed) -> None:
    """As a global does: both are part of the machine code."""
    b, before = np.zeros(1), TABLE.copy()
    kernel = cuda.jit(defaults.py_func)
    try:
        Simulator(typed=typed).launch(kernel, 1, 1, b)
        TABLE[:] = 9
        Simulator(typed=typed).launch(kernel, 1, 1, b)
    finally:
        TABLE[:] = before
    assert b[0] == 4.5


@cuda.jit
def largest_and_smallest(b):
    n = float32(NAN)
    b[0], b[1], b[2], b[3] = max(n, 1.0), max(1.0, n), min(n, 1.0), min(2.0, 1.0, n)
    b[4] = max(3, 5, 4)


@cuda.jit
def atomics_and_nan(b):
    cuda.atomic.max(b, 0, NAN)
    cuda.atomic.min(b, 1, NAN)
    cuda.atomic.max(b, 2, 3.0)
    cuda.atomic.nanmax(b, 3, 3.0)
    cuda.atomic.nanmin(b, 4, NAN)


@cuda.jit
def atomics_on_unsigned(b):
    cuda.atomic.cas(b, 0, -1, 5)
    cuda.atomic.max(b, 1, -1)


@cuda.jit
def casts(a, b):
    b[0], b[1], b[2], b[3], b[4] = int32(a[0]), int8(a[0]), uint8(a[0]), int64(a[0]), int(a[0])


@cuda.jit
def stores(a, b, narrow):
    b[0] = a[0]
    narrow[0] = a[0]


# As `cvt.rzi` does; 8 bits are the lower half of 16.
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3.9, [3, 3, 3, 3, 3]),
        (-3.9, [-3, -3, 0, -3, -3]),
        (3e9, [2**31 - 1, -1, 255, 3 * 10**9, 3 * 10**9]),
        (300.0, [300, 44, 44, 300, 300]),
        (NAN, [0, 0, 0, -(2**63), -(2**63)]),
        (math.inf, [2**31 - 1, -1, 255, 2**63 - 1, 2**63 - 1]),
        (-math.inf, [-(2**31), 0, 0, -(2**63), -(2**63)]),
    ],
)
def test_floats_that_are_cut_to_integers(value: float, expected: list) -> None:
    assert run(casts, np.array([value]), np.zeros(5, np.int64)) == expected
    wide, narrow = np.zeros(1, np.int32), np.zeros(1, np.int8)
    run(stores, np.array([value]), wide, narrow)
    assert [wide[0], narrow[0]] == expected[:2]


@cuda.jit
def powers(a, b):
    b[0] = a[0] ** (1 / 3)
    b[1] = float32(a[0] ** 0.5)
    b[2] = math.pow(a[0], 1 / 3)
    b[3] = math.pow(10.0, 400.0)


@cuda.jit
def power_that_overflows(a):
    a[0] = a[0] ** 400.0


@cuda.jit
def poles(b):
    b[0], b[1], b[2] = math.pow(0.0, -1.0), math.sinh(-1000.0), math.atanh(1.0)
    b[3], b[4], b[5] = math.lgamma(0.0), math.pow(-10.0, 401.0), math.log1p(-1.0)
    b[6], b[7], b[8] = math.fmod(1.0, 0.0), math.sin(math.inf), math.exp(1000.0)


inf = math.inf
NUMBERS = [
    (largest_and_smallest, [np.zeros(5)], [1, 1, 1, 1, 5]),  # they pass over NaN
    (atomics_and_nan, [np.array([1, 1, NAN, NAN, 1], np.float32)], [1, 1, NAN, 3, 1]),
    (atomics_on_unsigned, [np.array([2**32 - 1, 0], np.uint32)], [5, 2**32 - 1]),
    (powers, [np.array([-8.0]), np.zeros(4)], [NAN, NAN, NAN, inf]),
    (poles, [np.zeros(9)], [inf, -inf, inf, inf, -inf, -inf, NAN, NAN, inf]),
]


@pytest.mark.parametrize(("kernel", "arrays", "expected"), NUMBERS)
def test_numbers_become_what_a_gpu_makes_of_them(kernel, arrays: list, expected: list) -> None:
    np.testing.assert_array_equal(run(kernel, *(array.copy() for array in arrays)), expected)


@cuda.jit
def below_zero(a):
    a[0] = uint32(a[0])


def test_unsigned_numbers_below_zero_are_found() -> None:
    for value, becomes in ((-1, 4294967295), (-1.5, 0)):
        with pytest.raises(SimulationError, match=rf"uint32\({value}.*\) is {becomes} on a GPU"):
            run(below_zero, np.array([value]))
    assert run(below_zero, np.array([-0.5])) == [0]


# Names, however a kernel came by them.

F = np.float32
BYTES_16 = 32  # not convlab's
imports = pytest.mark.skipif(
    config.ENABLE_CUDASIM, reason="these names are there in a running kernel only"
)
if config.ENABLE_CUDASIM:
    bar = laneid = libdevice = shared = shfl_down_sync = None
else:
    from numba.cuda import laneid, shared, shfl_down_sync
    from numba.cuda import syncthreads as bar


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


REFUSED = [
    pytest.param(power_that_overflows, "write math.pow, ", id="a power that overflows"),
    pytest.param(imported_lane, "write cuda.laneid, ", marks=imports, id="an unknown name"),
    pytest.param(calls_a_plain_function, "is a plain function.*device=True", id="f"),
]


@pytest.mark.parametrize(("kernel", "says"), REFUSED)
def test_what_is_not_simulated_is_refused_with_its_line(kernel, says: str) -> None:
    line = kernel.py_func.__code__.co_firstlineno + 2
    with pytest.raises(NotSimulated, match=rf"{says}.*:{line}"):
        run(kernel, np.array([10.0]))


@cuda.jit
def a_name_like_convlabs(b):
    b[0] = BYTES_16


ROW, HALF = np.arange(64, dtype=F), np.arange(32, dtype=F)
NAMES = [
    pytest.param(imported_as, 64, [ROW, ROW * 0], ROW[::-1], marks=imports, id="as bar"),
    pytest.param(imported_shuffle, 32, [HALF], [*range(1, 32), 31], marks=imports, id="shuffle"),
    pytest.param(from_a_factory, 1, [np.zeros(4, F)], [2, 4, 7, 1], id="device functions' arrays"),
    pytest.param(two_types, 1, [np.zeros(2, np.int32), np.zeros(2, F)], [7, 1.5], id="of types"),
    pytest.param(from_a_module, 32, [HALF, HALF * 0], HALF[::-1] + 2, id="from a module"),
    pytest.param(a_name_like_convlabs, 1, [np.zeros(1, np.int32)], [32], id="a constant's name"),
]


@pytest.mark.parametrize(("kernel", "threads", "arrays", "expected"), NAMES)
def test_a_name_is_what_it_is_in_a_kernel(kernel, threads: int, arrays: list, expected) -> None:
    arrays = [array.copy() for array in arrays]
    SIM.launch(kernel, 1, threads, *arrays)
    np.testing.assert_array_equal(arrays[-1], expected)
