"""The types of the numbers in a convolution's tensors: float32, float16 and bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from convlab.support.values import shown

Floats = NDArray[Any]  # float64, or one of the types below; NumPy has no annotation for bfloat16


class Rounding(NamedTuple):
    """The powers of two by which :func:`rounded` rounds to one type. Computing them takes longer
    than a rounding, so a loop over many numbers is given them."""

    splitter: float  # Dekker's, which leaves the first bits of a number
    coarse: float  # a number added to this one becomes a multiple of the type's smallest number
    least_normal: float


@dataclass(frozen=True)
class NumberType:
    """A floating-point type. ``bits`` are those of the significand, ``least`` is the exponent of
    its smallest normal number, and ``most`` the first power of two that is too large."""

    name: str
    numpy: np.dtype[Any]
    bits: int
    least: int
    most: int

    @property
    def nbytes(self) -> int:
        """The bytes of a number."""
        return int(self.numpy.itemsize)

    @property
    def in_kernels(self) -> str:
        """The type as which kernels get the numbers: Numba computes with float32 only, so it gets
        the bits of 16-bit numbers as uint16."""
        return "uint16" if self.nbytes == 2 else self.name

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return 2.0**self.most - 2.0 ** (self.most - self.bits)

    @property
    def overflow(self) -> float:
        """The least number that is rounded to infinity."""
        return 2.0**self.most - 2.0 ** (self.most - self.bits - 1)

    @property
    def rounding(self) -> Rounding:
        """The way in which float64 numbers are rounded to this type."""
        return Rounding(
            splitter=2.0 ** (53 - self.bits) + 1,
            coarse=1.5 * 2.0 ** (52 + self.least - self.bits + 1),
            least_normal=2.0**self.least,
        )


FLOAT32 = NumberType("float32", np.dtype(np.float32), bits=24, least=-126, most=128)
FLOAT16 = NumberType("float16", np.dtype(np.float16), bits=11, least=-14, most=16)
BFLOAT16 = NumberType("bfloat16", np.dtype(ml_dtypes.bfloat16), bits=8, least=-126, most=128)
NUMBER_TYPES = {one.name: one for one in (FLOAT32, FLOAT16, BFLOAT16)}
DTYPES = tuple(NUMBER_TYPES)
_16_BITS = (FLOAT16.numpy, BFLOAT16.numpy)


def number_type(dtype: object) -> NumberType:
    """Return the type of that name. Raises ``TypeError`` unless it is a string, ``ValueError`` for
    any other name."""
    if not isinstance(dtype, str):
        raise TypeError(f"dtype is {shown(dtype)}: it must be a name, such as 'bfloat16'")
    if dtype not in NUMBER_TYPES:
        raise ValueError(f"dtype is {shown(dtype)}: it must be one of {', '.join(DTYPES)}")
    return NUMBER_TYPES[dtype]


def as_floats(array: Floats) -> Floats:
    """Return 16-bit numbers as float32, which holds them exactly, and other arrays as they are."""
    return array.astype(np.float32) if array.dtype in _16_BITS else array


def as_in_kernels(array: Floats) -> NDArray[Any]:
    """Return the same memory as kernels get it: 16-bit numbers as uint16."""
    return array.view(np.uint16) if array.dtype in _16_BITS else array


def rounded(numbers: Any, to: Rounding, where: Callable[..., Any] = np.where) -> Any:
    """Return float64 numbers, or one, rounded to a type: to the nearest, and below its smallest
    normal number to multiples of its smallest number. Nothing overflows. ``where`` may be a
    compiled function for one number: ``np.where`` makes an array in compiled code too."""
    # Dekker's splitting leaves the first bits of a sum of a number and a multiple of it.
    multiple = numbers * to.splitter
    normal = multiple - (multiple - numbers)
    denormal = (numbers + to.coarse) - to.coarse
    return where(np.abs(numbers) < to.least_normal, denormal, normal)
