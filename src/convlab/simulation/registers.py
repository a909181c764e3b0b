"""What the rewritten arithmetic of a typed kernel calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convlab.simulation.scalars import keeper, power

ROUNDING = "_rounding_"  # an array whose element rounds to float32


def _shifted(value: int, count: int) -> int:
    """``value << count``: no bit is left of 64, however large the count."""
    return value << count if 0 <= count < 64 else 0


def _leading_zeros(bits: int) -> Callable[[int], int]:
    return lambda value: bits - (value & (1 << bits) - 1).bit_length()


def _ones(bits: int) -> Callable[[int], int]:
    return lambda value: (value & (1 << bits) - 1).bit_count()


def _reversed(bits: int) -> Callable[[int], int]:
    return lambda value: int(f"{value & (1 << bits) - 1:0{bits}b}"[::-1], 2)


def _first_set(bits: int) -> Callable[[int], int]:
    return lambda value: (value & -value & (1 << bits) - 1).bit_length()


OF_BITS = {"clz": _leading_zeros, "popc": _ones, "brev": _reversed, "ffs": _first_set}
GLOBALS: dict[str, Any] = {
    ROUNDING: memoryview(bytearray(4)).cast("f"),
    "_float_": float,
    "_power_": power,
    "_shifted_": _shifted,
    **{f"_{name}_": keeper(np.dtype(name)) for name in ("float16", "float32")},
    **{f"_{u}int{n}_": keeper(np.dtype(f"{u}int{n}")) for u in ("", "u") for n in (8, 16, 32, 64)},
    **{f"_{name}{n}_": of(n) for name, of in OF_BITS.items() for n in (8, 16, 32, 64)},
}
