"""Engine ``simulator``: what a launch is given, and what is refused before it begins or by line."""

from __future__ import annotations

import gc
import weakref
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from kernels.cases import kernel_function
from numba import cuda, float32, int32  # noqa: F401  for kernels

from convlab.device import load4  # noqa: F401  for kernels
from convlab.engines.simulator import Simulator
from convlab.simulation.findings import NotSimulated, SimulationError

SIM = Simulator()
F = np.float32
TABLE = np.ones(4, F)


def read_only() -> np.ndarray:
    array = np.zeros(4, F)
    array.flags.writeable = False
    return array


@cuda.jit
def one(b):
    b[0] = 1


@pytest.mark.parametrize(
    ("grid", "block", "what"),
    [
        ((0, 1), 32, r"grid \(0, 1, 1\) has 0 along x: 1 to 2147483647 are allowed"),
        (-1, 32, "has -1 along x"),
        ((1, 65536), 1, "has 65536 along y: 1 to 65535 are allowed"),
        (1, (1, 1, 65), "has 65 along z: 1 to 64 are allowed"),
        (1, (33, 32), "are 1056 threads: a block has 1 to 1024"),
        ((1, 1, 1, 9), 1, "grid is .* one to three sizes"),
    ],
    ids=str,
)
def test_shapes_that_cuda_does_not_launch(grid: Any, block: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        SIM.launch(one, grid, block, np.zeros(1, F))


@pytest.mark.parametrize(
    ("arguments", "error", "what"),
    [
        ([[1.0]], TypeError, "b is a list: a kernel takes numbers, arrays and tuples"),
        ([(1, "two")], TypeError, r"b\[1\] is a str"),
        ([], TypeError, "one: missing a required argument: 'b'"),
        ([1, 2], TypeError, "one: too many positional arguments"),
        ([np.zeros(1, ">f4")], NotSimulated, "b is an array of >f4"),
        ([np.zeros(1, np.longdouble)], NotSimulated, "b is an array of .*, which is not simul"),
    ],
    ids=["list", "str in a tuple", "too few", "too many", "byte order", "longdouble"],
)
def test_arguments_that_are_refused(arguments: list, error: type, what: str) -> None:
    with pytest.raises(error, match=what):
        SIM.launch(one, 1, 1, *arguments)


def test_a_plain_function_is_no_kernel() -> None:
    with pytest.raises(TypeError, match=r"is no kernel: it needs @cuda.jit"):
        SIM.launch(one.py_func, 1, 1, np.zeros(1))


Pair = namedtuple("Pair", "first second")


@cuda.jit
def takes_a_tuple(pair, k):
    pair[1][k] = pair.first[k] + 1


def test_arrays_in_tuples_are_checked() -> None:
    pair = Pair(np.zeros(4, F), np.zeros(4, F))
    SIM.launch(takes_a_tuple, 1, 1, pair, 3)
    assert pair.second.tolist() == [0, 0, 0, 1]
    with pytest.raises(SimulationError, match=r"pair\[0\]\[4\] is outside shape \(4,\)"):
        SIM.launch(takes_a_tuple, 1, 1, pair, 4)


def of(*lines: str) -> Any:
    """A kernel of ``b`` with these lines, the first of which is line 2."""
    return cuda.jit(kernel_function("kernel", "b", [*lines], read_only))


def staged(size: int) -> Any:
    return of(f"S = cuda.shared.array({size}, float32)", "S[0] = b[0]")


LOAD4 = of("load4(b, 0)")
LOCAL_ATOMIC = of("S = cuda.local.array(1, int32)", "S[0] = 0", "cuda.atomic.add(S, 0, 1)")


@pytest.mark.parametrize(
    ("kernel", "line", "argument", "error", "what"),
    [
        (of("b[0] = 1"), 2, read_only(), TypeError, "b is read-only"),
        (of("TABLE[0] = 3"), 2, np.zeros(1, F), TypeError, "a constant array is read-only"),
        (LOAD4, 2, np.zeros(4), TypeError, "b is not a C-contiguous array of float32"),
        (LOAD4, 2, np.zeros(16, F)[::4], TypeError, "b is not a C-contiguous array of float32"),
        (staged(12289), 2, np.zeros(1), MemoryError, "49156 bytes of shared arrays.* 49152"),
        (LOCAL_ATOMIC, 4, np.zeros(1), NotSimulated, "an atomic on S: a GPU has none"),
        (of("b.sum()"), 2, np.zeros(4), NotSimulated, "b.sum is not simulated"),
        (of("b[:2] = b[:3]"), 2, np.zeros(4), NotSimulated, r"shape \(3,\) stored in one .*\(2,"),
    ],
)
def test_what_a_kernel_cannot_do(
    kernel: Any, line: int, argument: Any, error: type, what: str
) -> None:
    with pytest.raises(error, match=what) as caught:
        SIM.launch(kernel, 1, 1, argument)
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"<kernel>:{line}" in said
    assert (TABLE == 1).all()


def test_shared_memory_has_an_end() -> None:
    rest = (227 - 48) * 1024
    SIM.launch(staged(12288), 1, 1, np.zeros(1, F), shared_bytes=rest)
    with pytest.raises(MemoryError, match=rf"{rest + 1} of them dynamic: .* at most 232448"):
        SIM.launch(staged(12288), 1, 1, np.zeros(1, F), shared_bytes=rest + 1)
    with pytest.raises(ValueError, match="shared_bytes is 232449: a block has 0 to 232448"):
        SIM.launch(one, 1, 1, np.zeros(1, F), shared_bytes=227 * 1024 + 1)


@cuda.jit
def race_then_error(b):
    staged = cuda.shared.array(2, float32)
    staged[0] = cuda.threadIdx.x
    cuda.syncthreads()
    b[0.5] = staged[0]


def test_findings_come_before_what_the_kernel_raised() -> None:
    with pytest.raises(SimulationError, match=r"shared race.* staged\[0\]") as caught:
        SIM.launch(race_then_error, 1, 4, np.zeros(4, F))
    assert isinstance(caught.value.__cause__, TypeError)


@cuda.jit
def writes_one_place(a, b):
    a[0, 1] = cuda.threadIdx.x


def test_elements_of_arrays_with_strides_have_their_names() -> None:
    whole = np.zeros((3, 4), F)
    for a, b in ((whole.T, whole[:0]), (whole[::-1], whole[:0]), (whole[:, ::2], whole[:, 1::2])):
        with pytest.raises(SimulationError, match=r"a\[0, 1\] is written") as caught:
            SIM.launch(writes_one_place, 1, 4, a, b)
        assert caught.value.findings[0].index == (0, 1)


def test_addresses_follow_the_arguments() -> None:
    from convlab.simulation.access_log import GLOBAL
    from convlab.simulation.simulated_launch import addresses

    arrays = [np.zeros(70_000, F) for _ in range(4)]
    for order in (arrays, arrays[::-1]):
        starts = addresses(order)
        placed = [starts[id(array)] - GLOBAL for array in order]
        assert placed == sorted(placed)
        assert placed[0] == 0
        assert all(place % 256 == 0 for place in placed)
    part = arrays[1][5:]
    starts = addresses([part, arrays[0], arrays[1]])
    assert starts[id(part)] - starts[id(arrays[1])] == 20


class Array(np.ndarray):
    """An array that can be watched."""


def test_nothing_of_a_launch_outlives_it() -> None:
    array = np.zeros(4, F).view(Array)
    watched = weakref.ref(array)
    gc.disable()
    try:
        SIM.launch(one, 1, 1, array)
        del array
        assert watched() is None
    finally:
        gc.enable()
