"""Tensor maps as a launch's arguments: what the driver is asked to encode, and where maps lie."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from numba import cuda
from pretended_driver import PROBLEM, RELAXED, SHAPES, arrays_at, prepared, pretended_driver

from convlab.device import BoundMap, BoxMap, WindowMap
from convlab.ladder.stage import Flat, Launch, Program
from convlab.running.engines import launching, tensor_maps
from convlab.running.engines.driver import LaunchRefused
from convlab.running.engines.kernels import argument_types
from convlab.running.launch_arguments import arguments_of

WINDOWS = WindowMap(
    "input", shape=(3, 9, 7, 64), kernel=(3, 2), stride=(2, 1), padding=(1, 0),
    dilation=(1, 2), channels=64, pixels=32, dtype="bfloat16", padding_after=(0, 1),
)  # fmt: skip
BOX = BoxMap("weight", (192, 6), (256,), (32, 6), "float32")


@cuda.jit
def takes_maps(windows, filter, output):
    output[0] = 0


PROGRAM = Program((), (Launch(takes_maps, (2,), (32,), (WINDOWS, BOX, Flat("output"))),))
fake = pytest.fixture(pretended_driver)
pytestmark = pytest.mark.same_in_cudasim


class MapDriver:
    """CUDA's driver, as far as maps go: keeps what it is asked."""

    def __init__(self, launches: Any) -> None:
        self.launches = launches
        self.boxes: list[Any] = []
        self.windows: list[Any] = []
        self.pages = 0
        self.copies: list[tuple[int, list[int]]] = []
        self.error = driver.CUresult.CUDA_SUCCESS

    def __getattr__(self, name: str) -> Any:
        return getattr(driver, name)  # its types

    def _made(self) -> Any:
        number = len(self.boxes) + len(self.windows)
        return self.error, SimpleNamespace(opaque=[driver.cuuint64_t(number)] * 16)

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> Any:
        self.boxes.append(arguments)
        return self._made()

    def cuTensorMapEncodeIm2col(self, *arguments: Any) -> Any:
        self.windows.append(arguments)
        return self._made()

    def _unsafe(self) -> None:
        assert self.launches.mode == RELAXED, "that ends a capture"

    def cuMemAlloc(self, nbytes: int) -> Any:
        self._unsafe()
        assert nbytes == tensor_maps.PAGE_BYTES
        self.pages += 1
        return self.error, 0x7000_0000 * self.pages

    def cuStreamCreate(self, flags: Any) -> Any:
        self._unsafe()
        assert flags == driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return self.error, 5

    def cuMemcpyHtoDAsync(self, place: int, data: int, nbytes: int, stream: int) -> Any:
        self._unsafe()
        assert (nbytes, stream) == (128, 5)
        numbers = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint64 * 16).from_address(data))
        self.copies.append((place, numbers.tolist()))
        return (self.error,)

    def cuStreamSynchronize(self, stream: int) -> Any:
        self._unsafe()
        return (self.error,)


@pytest.fixture
def maps(fake, monkeypatch):
    made = MapDriver(fake)
    monkeypatch.setattr(tensor_maps, "driver", made)
    monkeypatch.setattr(launching, "device_maps", tensor_maps.DeviceMaps())
    return made


def _plain(numbers: Any) -> list[int]:
    return [int(number) for number in numbers]


def test_windows_are_encoded_as_the_driver_takes_them(maps) -> None:
    np.testing.assert_array_equal(tensor_maps.encoded(WINDOWS, 0x4000), np.ones(16, np.uint64))
    kind, rank, address, extents, strides, lower, upper, channels, pixels, steps, *modes = (
        maps.windows[0]
    )
    assert kind == driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
    assert (rank, address, channels, pixels) == (4, 0x4000, 64, 32)
    assert _plain(extents) == [64, 7, 9, 3]  # C, W, H, N
    assert _plain(strides) == [128, 7 * 128, 9 * 7 * 128]
    assert (lower, upper) == ([0, -1], [1 - 2, 0 - 2])
    assert _plain(steps) == [1, 1, 2, 1]
    assert modes[1] == driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B


def test_boxes_are_encoded_as_the_driver_takes_them(maps) -> None:
    tensor_maps.encoded(BOX, 0x4000)
    kind, rank, address, extents, strides, box, steps, *_ = maps.boxes[0]
    assert kind == driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32
    assert (rank, address) == (2, 0x4000)
    assert (_plain(extents), _plain(strides)) == ([192, 6], [1024])
    assert (_plain(box), _plain(steps)) == ([32, 6], [1, 1])


def test_a_map_that_the_driver_refuses_is_named(maps) -> None:
    maps.error = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchRefused, match=r"the tensor map of weight: .*INVALID_VALUE"):
        tensor_maps.encoded(BOX, 0x4001)


def test_a_kernel_gets_16_uint64_for_a_map() -> None:
    kinds = argument_types(PROGRAM.launches[0], PROGRAM)
    assert [(str(kind.dtype), kind.ndim) for kind in kinds] == [
        ("uint64", 1), ("uint64", 1), ("float32", 1),
    ]  # fmt: skip


def test_a_simulator_gets_the_map_with_its_array() -> None:
    numbers = {
        "input": np.zeros(WINDOWS.shape, np.uint16),
        "weight": np.zeros((6, 256), np.float32),
    }
    windows, box, _ = arguments_of(PROGRAM.launches[0], numbers | {"output": np.zeros(4)})
    assert isinstance(windows, BoundMap)
    assert windows.array is numbers["input"]
    assert box.map is BOX


def test_a_plan_s_maps_move_with_its_arrays(fake, maps) -> None:
    packed = prepared(fake, PROGRAM, {})[0]
    first, second = (arrays_at(base) for base in (0x10_0000, 0x90_0000))
    for arrays in (first, second, first):
        packed(*(arrays[name] for name in SHAPES))
    handed = [launch["values"] for launch in fake.launches]
    # numba-cuda's record of an array: the fifth number is the address, here of a map.
    windows = [values[4] for values in handed]
    boxes = [values[7 + 4] for values in handed]
    assert windows == [0x7000_0000 + 128 * n for n in (0, 2, 0)]
    assert boxes == [0x7000_0000 + 128 * n for n in (1, 3, 1)]
    assert [place for place, _ in maps.copies] == [0x7000_0000 + 128 * n for n in range(4)]
    assert [values[:4] for values in handed] == [[0, 0, 16, 8]] * 3
    assert [int(arguments[2]) for arguments in maps.windows] == [0x10_0000, 0x90_0000]
    assert PROBLEM.input_shape == SHAPES["input"]


def test_pages_of_maps_are_full_before_the_next(fake, maps) -> None:
    for number in range(tensor_maps.PAGE_MAPS + 1):
        launching.map_address(BOX, 0x1000 * number)
    assert maps.pages == 2
    assert len({place for place, _ in maps.copies}) == tensor_maps.PAGE_MAPS + 1
    assert launching.map_address(BOX, 0) == 0x7000_0000


def test_pixels_of_a_run_overlap() -> None:
    """Two images of 4 x 7 pixels with 16 channels, whose pixels stand for three neighbours."""
    windows = WindowMap(
        "input", shape=(2, 4, 7, 16), kernel=(2, 1), stride=(1, 2), padding=(1, 0),
        dilation=(2, 1), channels=64, pixels=6, run=3,
    )  # fmt: skip
    assert windows.windows == (4, 3)
    assert windows.pixel_shape == (2, 4, 5, 48)
    array = np.arange(2 * 4 * 7 * 16).reshape(2, 4, 7, 16)
    places = windows.places(0, 0, 1, 1, 0, 0)
    for number, (row, column) in enumerate(((1, 0), (1, 2), (1, 4), (2, 0), (2, 2), (2, 4))):
        run = array[1, row, column : column + 3].reshape(-1)
        np.testing.assert_array_equal(places[number], [*run, *[-1] * 16])
    above = windows.places(32, 2, -1, 0, 0, 0)
    assert (above[:2] == -1).all()  # padding along H
    np.testing.assert_array_equal(above[2], [*array[0, 0, 2:3].reshape(-1), *[-1] * 48])
    for run in (0, 8):
        with pytest.raises(ValueError, match=f"^run is {run}: it must be from 1 to 7, a row$"):
            replace(windows, run=run)


def test_the_driver_is_asked_for_pixels_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def encode(*arguments: Any) -> Any:
        asked.append(arguments)
        made = SimpleNamespace(opaque=[driver.cuuint64_t(0)] * 16)
        return driver.CUresult.CUDA_SUCCESS, made

    monkeypatch.setattr(tensor_maps.driver, "cuTensorMapEncodeIm2col", encode)
    tensor_maps.encoded(replace(WINDOWS, kernel=(3, 1), dilation=(1, 1), run=2), 0x1000)
    extents, strides = ([int(number) for number in asked[0][place]] for place in (3, 4))
    assert extents == [128, 6, 9, 3]
    assert strides == [2 * 64, 2 * 7 * 64, 2 * 9 * 7 * 64]
