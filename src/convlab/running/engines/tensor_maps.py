"""Tensor maps in the GPU's memory, where kernels find them.

A map holds the address of its array, so a plan that is called with another array needs another map.
Each map is encoded by the driver once for an address, and copied to 128 bytes of its own, which
never change and are never freed: CUDA graphs that refer to them stay right.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from cuda.bindings import driver

from convlab.device import BoxMap, WindowMap
from convlab.device.tensor_maps import BFLOAT16, FLOAT16, FLOAT32, ITEM_BYTES, TensorMap
from convlab.running.engines.driver import LaunchRefused, driver_result

NUMBERS = 16  # uint64 of a map, as the kernel gets it
MAP_BYTES = 8 * NUMBERS
PAGE_MAPS = 256  # that are allocated together
PAGE_BYTES = PAGE_MAPS * MAP_BYTES


def encoded(tensor_map: TensorMap, address: int) -> np.ndarray:
    """Return the map of an array at that address as the copy engine reads it: 16 uint64. Raises
    ``LaunchRefused`` if the driver refuses it."""
    kinds, swizzles = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    kind = {
        FLOAT16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        BFLOAT16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        FLOAT32: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    }[tensor_map.dtype]
    modes = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if isinstance(tensor_map, BoxMap):
        made = driver.cuTensorMapEncodeTiled(
            kind, len(tensor_map.extents), address, _numbers(tensor_map.extents),
            _bytes(tensor_map.strides, tensor_map), _small_numbers(tensor_map.box),
            _small_numbers((1,) * len(tensor_map.box)), *modes,
        )  # fmt: skip
    else:
        made = _encoded_windows(tensor_map, kind, address, modes)
    return np.array([int(number) for number in _result(made, tensor_map).opaque], np.uint64)


def _encoded_windows(
    windows: WindowMap, kind: object, address: int, modes: tuple[object, ...]
) -> tuple[Any, ...]:
    """Return the driver's answer to the encoding of windows; its axes are C, W, H and N."""
    _, H, W, C = windows.shape
    images, rows, pixels, channels = windows.pixel_shape
    (lower_h, lower_w), (upper_h, upper_w) = windows.lower, windows.upper
    step_h, step_w = windows.stride
    extents, strides = (channels, pixels, rows, images), (C, W * C, H * W * C)
    answer: tuple[Any, ...] = driver.cuTensorMapEncodeIm2col(
        kind, 4, address, _numbers(extents), _bytes(strides, windows),
        [lower_w, lower_h], [upper_w, upper_h], windows.channels, windows.pixels,
        _small_numbers((1, step_w, step_h, 1)), *modes,
    )  # fmt: skip
    return answer


def _numbers(numbers: tuple[int, ...]) -> list[object]:
    return [driver.cuuint64_t(number) for number in numbers]


def _small_numbers(numbers: tuple[int, ...]) -> list[object]:
    return [driver.cuuint32_t(number) for number in numbers]


def _bytes(strides: tuple[int, ...], tensor_map: TensorMap) -> list[object]:
    return _numbers(tuple(stride * ITEM_BYTES[tensor_map.dtype] for stride in strides))


def _result(answer: tuple[Any, ...], tensor_map: TensorMap) -> Any:
    """Return what a call of the driver gives. Raises ``LaunchRefused`` with the name of the map's
    array."""
    try:
        return driver_result(answer)
    except LaunchRefused as error:
        raise LaunchRefused(f"the tensor map of {tensor_map.of}: {error}") from None


class _Key(NamedTuple):
    """A map of an array at an address, in a context by its number among all there ever were."""

    context: int
    tensor_map: TensorMap
    address: int


class DeviceMaps:
    """The maps in the memory of this process's GPUs. Its methods need a context, and a thread whose
    capture mode is relaxed, because they allocate memory and copy to it."""

    def __init__(self) -> None:
        self._addresses: dict[_Key, int] = {}
        self._free: dict[int, tuple[int, int]] = {}  # by context: the next address, and how many
        self._streams: dict[int, driver.CUstream] = {}
        self._lock = Lock()

    def known(self, context: int, tensor_map: TensorMap, address: int) -> int | None:
        """Return where the map of an array at that address lies; None if it is not there yet."""
        return self._addresses.get(_Key(context, tensor_map, address))

    def upload(self, context: int, tensor_map: TensorMap, address: int) -> int:
        """Return where the map of an array at that address lies; copy it there at first."""
        key = _Key(context, tensor_map, address)
        with self._lock:
            if key not in self._addresses:
                numbers = encoded(tensor_map, address)
                copied_to = self._new_address(context, tensor_map)
                stream = self._stream(context, tensor_map)
                data = numbers.ctypes.data
                copied = driver.cuMemcpyHtoDAsync(copied_to, data, MAP_BYTES, stream)
                _result(copied, tensor_map)
                _result(driver.cuStreamSynchronize(stream), tensor_map)
                self._addresses[key] = copied_to
            return self._addresses[key]

    def _new_address(self, context: int, tensor_map: TensorMap) -> int:
        """Return the address of 128 bytes that no map has."""
        new, left = self._free.get(context, (0, 0))
        if not left:
            new, left = int(_result(driver.cuMemAlloc(PAGE_BYTES), tensor_map)), PAGE_MAPS
        self._free[context] = new + MAP_BYTES, left - 1
        return new

    def _stream(self, context: int, tensor_map: TensorMap) -> driver.CUstream:
        """Return a stream that no other work waits for."""
        if context not in self._streams:
            apart = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._streams[context] = _result(driver.cuStreamCreate(apart), tensor_map)
        return self._streams[context]


device_maps = DeviceMaps()
