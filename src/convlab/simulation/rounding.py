"""Numbers rounded to formats of fewer bits, in any direction, from their exact values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

# Bits of the significand, the exponents of the least normal number and of the first power of two
# that is too large.
FORMATS = {
    "bfloat16": (8, -126, 128),
    "float16": (11, -14, 16),
    "float32": (24, -126, 128),
    "float64": (53, -1022, 1024),
}
DIRECTIONS: dict[str, Callable[[Any], int]] = {
    "rn": round,  # to the nearest; of two as near to the even one
    "rz": math.trunc,
    "rd": math.floor,
    "ru": math.ceil,
}


def rounded(value: float | Fraction, kind: str, direction: str = "rn") -> float:
    """The number as the format ``kind`` keeps it: of ``FORMATS`` and ``DIRECTIONS``."""
    if value == 0 or (isinstance(value, float) and not math.isfinite(value)):
        return float(value)
    bits, least, most = FORMATS[kind]
    scaled: Any
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


def _root(value: Fraction) -> Fraction:
    """The square root with 200 bits, the last of which says whether more follow."""
    shift = 200 + value.denominator.bit_length()
    whole = (value.numerator << 2 * shift) // value.denominator
    root = math.isqrt(whole)
    inexact = root * root != whole
    return Fraction(2 * root + inexact, 2 << shift)


EXACTLY: dict[str, Callable[..., Any]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv},
    **{"rcp": lambda x: 1 / x, "fma": lambda x, y, z: x * y + z, "sqrt": _root},
}
