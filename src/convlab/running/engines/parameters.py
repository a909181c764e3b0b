"""The parameters of a kernel as the driver reads them, by either compiler's convention."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

from convlab.running.engines.cubin import Layout

# Of an array, by numba-cuda-mlir: 0.6.0 reads a larger uint32 index as a negative one.
MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class ArrayParameters:
    """The parameters that a kernel takes for one C-contiguous array, eight bytes each: some
    numbers, ``addresses`` times the array's address, and more numbers."""

    before: tuple[int, ...]
    addresses: int
    after: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.before) + self.addresses + len(self.after)

    def at(self, address: int) -> list[int]:
        """Return the parameters of an array that begins at that address."""
        return [*self.before, *[address] * self.addresses, *self.after]


def array_parameters(layout: Layout, shape: Sequence[int], item_bytes: int = 4) -> ArrayParameters:
    """Return the parameters of an array of that shape, of elements of so many bytes. Raises
    ``ValueError`` for an array that is too large for kernels of that layout.

    numba-cuda passes its record of an array: the addresses of two owners, which are null, the
    number of elements and the size of one, the address, the extents, and the strides in bytes.
    numba-cuda-mlir passes MLIR's descriptor of a memref: the address twice, an offset, the extents,
    and the strides in elements.
    """
    elements = math.prod(shape)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if layout == "numba":
        in_bytes = (item_bytes * stride for stride in strides)
        return ArrayParameters((0, 0, elements, item_bytes), 1, (*shape, *in_bytes))
    if elements > MOST_ELEMENTS:
        raise ValueError(
            f"an array has {elements:,} elements: kernels of numba-cuda-mlir take at most "
            f"{MOST_ELEMENTS:,}, because they read a larger uint32 index as a negative one"
        )
    return ArrayParameters((), 2, (0, *shape, *strides))


class ParameterMemory:
    """A launch's parameters as the driver reads them: ``address`` is that of an array of pointers,
    one to each of ``values``."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values = (ctypes.c_uint64 * len(values))(*values)
        first = ctypes.addressof(self.values)
        places = range(first, first + 8 * len(values), 8)
        self._pointers = (ctypes.c_void_p * len(values))(*places)
        self.address = ctypes.addressof(self._pointers)
