"""Tensor maps: what Hopper's copy engine has to know of a tensor before it copies parts of it.

A stage describes its maps, and gives them to a launch as arguments::

    filter_map = BoxMap("packed", extents=(K, C_o), strides=(K,), box=(64, 128))
    image_map = WindowMap(
        "input", shape=(N, H, W, C), kernel=(3, 3), stride=(1, 1), padding=(1, 1),
        dilation=(1, 1), channels=64, pixels=128,
    )

On a GPU the kernel gets an array of 16 uint64, which the driver encodes for the array's address. On
a simulator it gets a :class:`BoundMap`, the map with the array. Both are what
``copy_box`` and ``copy_windows`` (:mod:`convlab.device.copy_engine`) take.

A copy brings rows of 128 bytes with a panel's swizzle
(:mod:`convlab.device.swizzled_products`), so the innermost extent of a box is 64 numbers of 16 bits
or 32 of float32.

Source: CUDA Driver API, ``cuTensorMapEncodeTiled`` and ``cuTensorMapEncodeIm2col``, whose rules the
records check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from convlab.device.panel_products import PANEL_ROW_BYTES

FLOAT16, BFLOAT16, FLOAT32 = "float16", "bfloat16", "float32"
ITEM_BYTES = {FLOAT16: 2, BFLOAT16: 2, FLOAT32: 4}
MOST_AXES = 5  # of a box
MOST_EXTENT = 2**32  # of a tensor, along one axis
MOST_OF_A_BOX = 256  # along one axis
MOST_STRIDE_BYTES = 2**40
STRIDE_BYTES = 16  # at a multiple of which each row of a tensor begins
MOST_STEP = 8  # of the windows' stride
MOST_PIXELS = 1024  # of one copy of windows
MOST_OFFSET = 255  # of a place (u, v) from the window's corner
CORNERS = range(-128, 128)  # where the bounding box of the windows may begin and end

Two = tuple[int, int]


def _check(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value}: {rule}")


def _check_dtype(dtype: str) -> None:
    _check(dtype in ITEM_BYTES, "dtype", repr(dtype), f"it must be one of {', '.join(ITEM_BYTES)}")


def _check_row(name: str, numbers: int, dtype: str) -> None:
    """Raise ``ValueError`` unless so many numbers are a row of a panel."""
    row = PANEL_ROW_BYTES // ITEM_BYTES[dtype]
    rule = f"it must be {row} of {dtype}, because a panel's rows have {PANEL_ROW_BYTES} bytes"
    _check(numbers == row, name, numbers, rule)


def _check_extents(name: str, extents: tuple[int, ...]) -> None:
    rule = f"each must be from 1 to {MOST_EXTENT:,}"
    _check(all(1 <= extent <= MOST_EXTENT for extent in extents), name, extents, rule)


def _check_strides(name: str, strides: tuple[int, ...], dtype: str) -> None:
    """Raise ``ValueError`` for distances, in numbers, that the copy engine does not have."""
    whole = all(
        stride * ITEM_BYTES[dtype] % STRIDE_BYTES == 0
        and 0 < stride * ITEM_BYTES[dtype] < MOST_STRIDE_BYTES
        for stride in strides
    )
    rule = f"each must be a multiple of {STRIDE_BYTES} bytes, below 2**40"
    _check(whole, f"{name} of {dtype}", strides, rule)


@dataclass(frozen=True)
class BoxMap:
    """Boxes of a tensor, named ``of``, along one to five axes, the innermost first.

    ``strides`` are the distances in numbers along all axes after the innermost one, whose numbers
    are neighbours; ``box`` is what one copy brings. Raises ``ValueError`` for what the driver would
    refuse.
    """

    of: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    dtype: str = FLOAT16

    def __str__(self) -> str:
        return self.of

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)
        axes = len(self.extents)
        _check(1 <= axes <= MOST_AXES, "extents", self.extents, "a box has 1 to 5 axes")
        _check(len(self.box) == axes, "box", self.box, f"it must have {axes} axes")
        rule = f"it must have {axes - 1} axes, all after the innermost"
        _check(len(self.strides) == axes - 1, "strides", self.strides, rule)
        _check_extents("extents", self.extents)
        _check_strides("strides", self.strides, self.dtype)
        rule = f"each extent must be from 1 to {MOST_OF_A_BOX}"
        _check(all(1 <= extent <= MOST_OF_A_BOX for extent in self.box), "box", self.box, rule)
        _check_row("box[0]", self.box[0], self.dtype)

    @property
    def rows(self) -> int:
        """The rows of a panel that one copy brings."""
        return math.prod(self.box[1:])

    @property
    def nbytes(self) -> int:
        """The bytes that one copy brings, for ``expect_bytes``."""
        return PANEL_ROW_BYTES * self.rows

    @property
    def numbers(self) -> int:
        """The least numbers that the array has."""
        steps = zip(self.extents[1:], self.strides, strict=True)
        return self.extents[0] + sum((extent - 1) * stride for extent, stride in steps)

    def places(self, corner: tuple[int, ...]) -> np.ndarray:
        """Return where the box's numbers lie in the array, a row of them for each row of the panel;
        -1 outside the tensor."""
        place = np.zeros(self.box[::-1], np.int64)
        inside = np.ones(self.box[::-1], bool)
        described = zip(self.extents, (1, *self.strides), self.box, corner, strict=True)
        for axis, (extent, stride, size, first) in enumerate(described):
            along = (first + np.arange(size)).reshape(-1, *[1] * axis)
            place = place + along * stride
            inside &= (along >= 0) & (along < extent)
        return np.where(inside, place, -1).reshape(self.rows, self.box[0])


@dataclass(frozen=True)
class WindowMap:
    """Windows of images (N, H, W, C), channels last, named ``of``.

    One copy brings one place (u, v), ``channels`` numbers, of ``pixels`` windows. ``kernel``,
    ``stride``, ``padding`` and ``dilation`` are along H, then along W; ``padding_after`` is that at
    the bottom and on the right, if another.

    With a ``run`` of more than one pixel, a pixel stands for itself and its neighbours on the
    right: it has ``run * C`` channels, and a row has ``W - run + 1`` pixels. Neighbouring pixels
    overlap, and no number is stored twice. Raises ``ValueError`` for what the driver would refuse.
    """

    of: str
    shape: tuple[int, int, int, int]
    kernel: Two
    stride: Two
    padding: Two
    dilation: Two
    channels: int
    pixels: int
    dtype: str = FLOAT16
    padding_after: Two | None = None
    run: int = 1

    def __str__(self) -> str:
        return self.of

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)
        _check_extents("shape", self.shape)
        *_, width, channels = self.shape
        _check_strides("channels of a pixel", (channels,), self.dtype)
        _check_strides("numbers of an image", (self.shape[1] * width * channels,), self.dtype)
        _check_row("channels", self.channels, self.dtype)
        _check(1 <= self.run <= width, "run", self.run, f"it must be from 1 to {width}, a row")
        rule = f"it must be from 1 to {MOST_PIXELS}"
        _check(1 <= self.pixels <= MOST_PIXELS, "pixels", self.pixels, rule)
        for name, two, least in (
            ("kernel", self.kernel, 1), ("stride", self.stride, 1),
            ("padding", self.padding, 0), ("dilation", self.dilation, 1),
            ("padding_after", self.padding_after or self.padding, 0),
        ):  # fmt: skip
            _check(min(two) >= least, name, two, f"each must be at least {least}")
        rule = f"each must be at most {MOST_STEP}"
        _check(max(self.stride) <= MOST_STEP, "stride", self.stride, rule)
        for corners in (self.lower, self.upper):
            whole = all(corner in CORNERS for corner in corners)
            rule = f"each must be from {CORNERS[0]} to {CORNERS[-1]}: less padding, or a smaller"
            _check(whole, "a corner of the windows' box", corners, f"{rule} or less dilated kernel")
        reach = tuple((k - 1) * d for k, d in zip(self.kernel, self.dilation, strict=True))
        rule = f"each must be at most {MOST_OFFSET}"
        _check(max(reach) <= MOST_OFFSET, "the offset of a window's last element", reach, rule)
        _check(min(self.windows) >= 1, "windows along H and W", self.windows, "there must be one")

    @property
    def lower(self) -> Two:
        """The first corner of a window, along H and W."""
        return -self.padding[0], -self.padding[1]

    @property
    def upper(self) -> Two:
        """The last corner that a window may have, from the image's last pixel on."""
        after = self.padding_after or self.padding
        height, width = (
            pad - (size - 1) * step
            for pad, size, step in zip(after, self.kernel, self.dilation, strict=True)
        )
        return height, width

    @property
    def pixel_shape(self) -> tuple[int, int, int, int]:
        """The images, rows, pixels of a row and channels, of pixels that stand for a run."""
        images, height, width, channels = self.shape
        return images, height, width - self.run + 1, self.run * channels

    @property
    def windows(self) -> Two:
        """The number of windows along H and along W."""
        height, width = (
            (extent - 1 + upper - lower) // step + 1
            for extent, lower, upper, step in zip(
                self.pixel_shape[1:3], self.lower, self.upper, self.stride, strict=True
            )
        )
        return height, width

    @property
    def rows(self) -> int:
        """The rows of a panel that one copy brings."""
        return self.pixels

    @property
    def nbytes(self) -> int:
        """The bytes that one copy brings, for ``expect_bytes``."""
        return PANEL_ROW_BYTES * self.pixels

    @property
    def numbers(self) -> int:
        """The numbers that the array has."""
        return math.prod(self.shape)

    def places(self, c: int, w: int, h: int, n: int, offset_w: int, offset_h: int) -> np.ndarray:
        """Return where the copied numbers lie in the array, a row of them for each window; -1
        outside the tensor."""
        images, height, width, channels = self.pixel_shape
        row_numbers = self.shape[2] * self.shape[3]
        step_h, step_w = self.stride
        last_h, last_w = height - 1 + self.upper[0], width - 1 + self.upper[1]
        corners = np.empty((self.pixels, 3), np.int64)  # image, row and column of each
        for number in range(self.pixels):
            corners[number] = n, h, w
            w += step_w
            if w > last_w:  # on to the next row of windows, and to the next image
                w, h = self.lower[1], h + step_h
                if h > last_h:
                    h, n = self.lower[0], n + 1
        image, row, column = corners.T[:, :, None]
        row, column, channel = row + offset_h, column + offset_w, c + np.arange(self.channels)
        inside = (image >= 0) & (image < images) & (row >= 0) & (row < height)
        inside = inside & (column >= 0) & (column < width) & (channel >= 0) & (channel < channels)
        place = (image * height + row) * row_numbers + column * self.shape[3] + channel
        return np.where(inside, place, -1)


TensorMap = BoxMap | WindowMap


@dataclass(frozen=True, eq=False)
class BoundMap:
    """A tensor map with the array that it describes: what a kernel gets on a simulator.

    The array is C-contiguous. Raises ``ValueError`` if it has other numbers than the map. On a GPU
    it is any library's device array, of which nothing is checked.
    """

    map: TensorMap
    array: Any

    def __post_init__(self) -> None:
        array, wanted = self.array, ITEM_BYTES[self.map.dtype]
        if not isinstance(array, np.ndarray):
            return
        if array.itemsize != wanted:
            raise ValueError(
                f"{self.map.of} has numbers of {array.itemsize} bytes, but its map is of "
                f"{self.map.dtype}, which has {wanted}"
            )
        if array.size < self.map.numbers:
            raise ValueError(
                f"{self.map.of} has {array.size} numbers, but its map describes {self.map.numbers}"
            )

    def rows_at(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers at these places, zeros at -1, as rows of bytes."""
        bits = np.dtype(f"u{self.array.itemsize}")
        flat = np.ascontiguousarray(self.array).view(bits).reshape(-1)
        numbers = np.where(places < 0, bits.type(0), flat[places])
        return np.asarray(numbers.view(np.uint8).reshape(len(places), PANEL_ROW_BYTES))


def box_of(tensor_map: object, corner: tuple[int, ...]) -> np.ndarray:
    """Return the places of a box for ``copy_box``. Raises ``TypeError`` for other arguments."""
    if not isinstance(tensor_map, BoundMap) or not isinstance(tensor_map.map, BoxMap):
        raise TypeError(f"copy_box: tensor_map is {_said(tensor_map)}, but must be a BoxMap's")
    axes = len(tensor_map.map.extents)
    if not isinstance(corner, tuple) or len(corner) != axes:
        raise TypeError(f"copy_box: corner is {corner}, but must be a tuple of {axes} integers")
    return tensor_map.map.places(tuple(map(int, corner)))


def windows_of(
    tensor_map: object, c: int, w: int, h: int, n: int, offset_w: int, offset_h: int
) -> np.ndarray:
    """Return the places of windows for ``copy_windows``. Raises ``TypeError`` for another map,
    ``ValueError`` for an offset that the instruction does not have."""
    if not isinstance(tensor_map, BoundMap) or not isinstance(tensor_map.map, WindowMap):
        what = _said(tensor_map)
        raise TypeError(f"copy_windows: tensor_map is {what}, but must be a WindowMap's")
    offsets = int(offset_w), int(offset_h)
    if not all(0 <= offset <= MOST_OFFSET for offset in offsets):
        raise ValueError(
            f"copy_windows: offset_w and offset_h are {offsets}: each must be from 0 to "
            f"{MOST_OFFSET}"
        )
    return tensor_map.map.places(int(c), int(w), int(h), int(n), *offsets)


def _said(tensor_map: object) -> str:
    kind = tensor_map.map if isinstance(tensor_map, BoundMap) else tensor_map
    return f"a {type(kind).__name__}"
