"""The functions that the rewritten arithmetic of a typed kernel calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convlab.simulation.numbers.math_functions import power as _float_power
from convlab.simulation.numbers.scalars import divided, keeper

ROUNDING = "_rounding_"  # an array whose element rounds to float32
NEXT_FLOAT32 = "_next_float32_"
OF_BITS = ("clz", "popc", "brev", "ffs")


def _shifted(value: int, count: int) -> int:
    """Return ``value << count``: all 64 bits are gone, however large the count."""
    return value << count if 0 <= count < 64 else 0


def _integer_power(name: str) -> Callable[[int, int], int]:
    """Return ``base ** exponent`` of integers as Numba computes it.

    Numba computes it in float64 unless the exponent has a literal's type, so results above 2**53
    are rounded. (libNVVM 13.5 does so; an older one, on an H100, left float64 out.) A negative
    exponent gives the integer part, and the highest bit for base zero.
    """
    kept, constant = keeper(np.dtype(name)), _constant_power(name)

    def power(base: int, exponent: int) -> int:
        if exponent < 0 and base not in (1, -1):
            return 0 if base else constant(base, exponent)
        if abs(exponent) > 0x10000:
            return int(kept(_float_power(base, exponent)))
        return int(kept(float(kept(pow(base, abs(exponent), 2**64)))))

    return power


def _constant_power(name: str) -> Callable[[int, int], int]:
    """Return ``base ** exponent`` for an exponent that is a constant: it is exact."""
    kept, lowest = keeper(np.dtype(name)), -(2**63)

    def power(base: int, exponent: int) -> int:
        found = int(kept(pow(base, abs(exponent), 2**64)))
        if exponent >= 0 or found in (1, -1):
            return found
        return 0 if found else int(kept(lowest))

    return power


def _power_of(name: str) -> Callable[[float, int], float]:
    """Return ``base ** exponent`` of a float and an integer as Numba computes it: by
    multiplications, each of which rounds to the float's type."""
    kept = keeper(np.dtype(name))

    def power(base: float, exponent: int) -> float:
        left, result, factor = abs(exponent), 1.0, float(base)
        if left > 0x10000:
            return float(kept(_float_power(factor, exponent)))
        while left:
            if left & 1:
                result = kept(result * factor)
            left >>= 1
            factor = kept(factor * factor)
        return float(kept(divided(1.0, result))) if exponent < 0 else result

    return power


def _next_float32(value: float, to: float) -> float:
    """Return ``nextafter`` of float32 numbers."""
    with np.errstate(all="ignore"):
        return float(np.nextafter(np.float32(value), np.float32(to)))


def of_bits(name: str, bits: int) -> Callable[[int], int]:
    """Return ``clz``, ``popc``, ``brev`` or ``ffs``, which counts from 1, for integers of that many
    bits."""
    mask = (1 << bits) - 1
    functions: dict[str, Callable[[int], int]] = {
        "clz": lambda value: bits - (value & mask).bit_length(),
        "popc": lambda value: (value & mask).bit_count(),
        "brev": lambda value: int(f"{value & mask:0{bits}b}"[::-1], 2),
        "ffs": lambda value: (value & -value & mask).bit_length(),
    }
    return functions[name]


GLOBALS: dict[str, object] = {
    ROUNDING: memoryview(bytearray(4)).cast("f"),
    "_float_": float,
    "_nearest_": lambda half: float(np.rint(half)),  # float16 to integer rounds, it does not cut
    "_power_": _float_power,
    **{f"_power_{name}_": _integer_power(name) for name in ("int64", "uint64")},
    **{f"_constant_power_{name}_": _constant_power(name) for name in ("int64", "uint64")},
    **{f"_power_{name}_": _power_of(name) for name in ("float16", "float32", "float64")},
    NEXT_FLOAT32: _next_float32,
    "_shifted_": _shifted,
    **{f"_{name}_": keeper(np.dtype(name)) for name in ("float16", "float32")},
    **{f"_{u}int{n}_": keeper(np.dtype(f"{u}int{n}")) for u in ("", "u") for n in (8, 16, 32, 64)},
    **{f"_{name}{n}_": of_bits(name, n) for name in OF_BITS for n in (8, 16, 32, 64)},
}
