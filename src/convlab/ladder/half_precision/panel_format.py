"""The constants, the product and the accesses of a panel by the type of its numbers, for the stages
whose panels the copy engine fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import cuda, float32, uint16, uint32

from convlab.device import gpu_only, load4, store4
from convlab.device.sixteen_bits import (
    load_pairs,
    pair_bf16,
    pair_f16,
    store_pairs,
    widen_bf16,
    widen_f16,
)
from convlab.device.swizzled_products import (
    PANEL_ROW_BYTES,
    start_product_bf16,
    start_product_f16,
    start_product_tf32,
)

LANES = 4  # neighbouring lanes, which have the columns of a product among them
BYTES_16 = 16  # that a lane stores at a time
PAD_THREADS = 256  # of a block of a kernel that copies a tensor and appends zeros


@cuda.jit(device=True, **gpu_only(forceinline=True))
def rounded_f16(value):
    """Return the bits of a float32 that is rounded to float16. Only ``pair`` rounds."""
    return uint16(pair_f16(value, value) & uint32(0xFFFF))


@cuda.jit(device=True, **gpu_only(forceinline=True))
def rounded_bf16(value):
    """Return the bits of a float32 that is rounded to bfloat16."""
    return uint16(pair_bf16(value, value) & uint32(0xFFFF))


@cuda.jit(device=True, **gpu_only(forceinline=True))
def as_it_is(value):
    """Return a float32, which is neither rounded nor widened."""
    return value


@dataclass(frozen=True)
class PanelFormat:
    """A type of numbers in panels: the bytes of a number, Numba's type of it in kernels, the
    product of two panels, how a number becomes a float32 and a float32 a number, and a load and a
    store of 16 bytes, which take and give four of ``word``."""

    nbytes: int
    in_kernels: object
    start_product: Callable[..., None]
    widen: Callable[..., object]
    rounded: Callable[..., object]
    load_16_bytes: Callable[..., tuple[Any, ...]]
    store_16_bytes: Callable[..., None]
    word: Callable[..., object]

    @property
    def terms(self) -> int:
        """The terms of a slice: the numbers of a row of 128 bytes."""
        return PANEL_ROW_BYTES // self.nbytes

    @property
    def neighbours(self) -> int:
        """The neighbouring channels of a lane, which it stores by 16 bytes."""
        return BYTES_16 // self.nbytes

    @property
    def interleaved(self) -> int:
        """The channels whose rows are interleaved: those of four lanes."""
        return LANES * self.neighbours


FORMATS = {
    "float16": PanelFormat(
        nbytes=2,
        in_kernels=uint16,
        start_product=start_product_f16,
        widen=widen_f16,
        rounded=rounded_f16,
        load_16_bytes=load_pairs,
        store_16_bytes=store_pairs,
        word=uint32,
    ),
    "bfloat16": PanelFormat(
        nbytes=2,
        in_kernels=uint16,
        start_product=start_product_bf16,
        widen=widen_bf16,
        rounded=rounded_bf16,
        load_16_bytes=load_pairs,
        store_16_bytes=store_pairs,
        word=uint32,
    ),
    "float32": PanelFormat(
        nbytes=4,
        in_kernels=float32,
        start_product=start_product_tf32,
        widen=as_it_is,
        rounded=as_it_is,
        load_16_bytes=load4,
        store_16_bytes=store4,
        word=float32,
    ),
}
