"""The constants and the product of a panel by the type of its numbers, for the stages whose panels
the copy engine fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numba import float32, uint16

from convlab.device.swizzled_products import (
    PANEL_ROW_BYTES,
    start_product_bf16,
    start_product_f16,
    start_product_tf32,
)

LANES = 4  # neighbouring lanes, which have the columns of a product among them
BYTES_16 = 16  # that a lane stores at a time


@dataclass(frozen=True)
class PanelFormat:
    """A type of numbers in panels: the bytes of a number, Numba's type of it in kernels, and the
    product of two panels."""

    nbytes: int
    in_kernels: object
    start_product: Callable[..., None]

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
    "float16": PanelFormat(nbytes=2, in_kernels=uint16, start_product=start_product_f16),
    "bfloat16": PanelFormat(nbytes=2, in_kernels=uint16, start_product=start_product_bf16),
    "float32": PanelFormat(nbytes=4, in_kernels=float32, start_product=start_product_tf32),
}
