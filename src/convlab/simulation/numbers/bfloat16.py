"""Rounding of numbers to formats of fewer bits, in any direction, and numbers of bfloat16.

The scalars of ml_dtypes are no replacement: that library rounds a float64 twice, to float32 and
then to bfloat16, which is wrong next to a tie; it rounds only to the nearest; and its scalars are
not Python's floats, which registers hold. Arrays have its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np

TYPE_NAMES = "__nv_bfloat16", "nv_bfloat16", "bfloat16"
# Bits of the significand, the exponents of the least normal number and of the first power of two
# that is too large.
FORMATS = {
    "bfloat16": (8, -126, 128),
    "float16": (11, -14, 16),
    "float32": (24, -126, 128),
    "float64": (53, -1022, 1024),
}
DIRECTIONS: dict[str, Callable[[float | Fraction], int]] = {
    "rn": round,  # to the nearest, ties to even
    "rz": math.trunc,
    "rd": math.floor,
    "ru": math.ceil,
}


def rounded(value: float | Fraction, kind: str, direction: str = "rn") -> float:
    """Return the number as the format ``kind`` of ``FORMATS`` keeps it, rounded in a direction of
    ``DIRECTIONS``."""
    if value == 0 or (isinstance(value, float) and not math.isfinite(value)):
        return float(value)
    bits, least, most = FORMATS[kind]
    scaled: float | Fraction
    if isinstance(value, float):
        shift = bits - max(math.frexp(value)[1], least + 1)
        scaled = math.ldexp(value, shift)
    else:
        value = Fraction(value)
        exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
        exponent += abs(value) >= Fraction(2) ** exponent
        shift = bits - max(exponent, least + 1)
        scaled = value * Fraction(2) ** shift
    whole = DIRECTIONS[direction](scaled)
    result = Fraction(abs(whole)) / Fraction(2) ** shift
    if result >= 2**most:
        outward = {"rn": True, "rz": False, "rd": value < 0, "ru": value > 0}[direction]
        largest = 2**most - 2 ** (most - bits)
        return math.copysign(math.inf if outward else float(largest), value)
    return math.copysign(float(result), value)


def _operation(name: str) -> Callable[[float, float], float]:
    """Return an operator of bfloat16. Two numbers of bfloat16 give a third."""
    plain = getattr(np.float64, name)

    def operation(self: float, other: float) -> float:
        with np.errstate(all="ignore"):
            result = float(plain(np.float64(self), float(other)))
        return BFloat16(result) if isinstance(other, BFloat16) else result

    return operation


class _ArrayType:
    """The type of NumPy's arrays of bfloat16, which comes from ml_dtypes."""

    def __get__(self, instance: object, owner: type) -> np.dtype:
        try:
            found: np.dtype = np.dtype(import_module("ml_dtypes").bfloat16)
        except ImportError:
            why = "an array of bfloat16 needs ml_dtypes, which is not installed"
            raise ImportError(why) from None
        return found


class BFloat16(float):
    """A number with eight significant bits. Arithmetic on two of them rounds to eight bits."""

    __slots__ = ()
    dtype = _ArrayType()

    def __new__(cls, value: Any = 0, direction: str = "rn") -> BFloat16:
        exact = value if isinstance(value, int) else float(value)
        return super().__new__(cls, rounded(exact, "bfloat16", direction))

    def __neg__(self) -> BFloat16:
        return BFloat16(-float(self))

    def __abs__(self) -> BFloat16:
        return BFloat16(abs(float(self)))

    def __pos__(self) -> BFloat16:
        return self


for _name in ("add", "sub", "mul", "truediv"):
    setattr(BFloat16, f"__{_name}__", _operation(f"__{_name}__"))
