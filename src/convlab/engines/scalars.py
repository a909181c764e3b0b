"""What numbers, ``math`` and ``numpy`` mean in a simulated kernel.

Registers hold Python numbers: float64 and integers of any size, because NumPy's scalars cost three
times as much. A store rounds or wraps to its array's type, and so does a cast: float32 results are
those of a GPU whose registers have spare digits, a little better than the real one's, never worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types as numba_types
from numba.cuda import types as cuda_types

NUMBERS = (
    numba_types.Number, cuda_types.Number, numba_types.Boolean, cuda_types.Boolean
)  # fmt: skip
CHECKED = ("uint32", "uint64")  # indices: a number below zero is a mistake, not 4294967295


class WrapsAround(ArithmeticError):
    """``uint32`` of a number below zero."""


def cast(name: str) -> Callable[[Any], Any]:
    """The number type of that name as a function of a number; ``.dtype`` is NumPy's."""
    if name not in _CASTS:
        dtype = np.dtype(name)
        _CASTS[name] = _cast(dtype)
        _CASTS[name].dtype = dtype  # type: ignore[attr-defined]
    return _CASTS[name]


_CASTS: dict[str, Callable[[Any], Any]] = {}


def _cast(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    if dtype == np.float64:
        return float_of
    if dtype == np.float32:
        cell: Any = memoryview(bytearray(4)).cast("f")  # storing rounds, with no warning

        def float32(value: Any = 0) -> float:
            cell[0] = float(value)
            rounded: float = cell[0]
            return rounded

        return float32
    if dtype.kind == "b":
        return lambda value=False: bool(value)  # type: ignore[misc]
    if dtype.kind in "iu":
        return _integer(dtype)

    def rounded(value: Any = 0) -> Any:
        with np.errstate(all="ignore"):
            return dtype.type(value).item()

    return rounded


def float_of(value: Any = 0.0) -> float:
    """``float64(value)``: what Python's own numbers are."""
    return float(value)


def _integer(dtype: np.dtype[Any]) -> Callable[[Any], int]:
    limits = np.iinfo(dtype)
    low, high, span = int(limits.min), int(limits.max), 1 << limits.bits
    checked = dtype.name in CHECKED

    def integer(value: Any = 0) -> int:
        number = int(value)
        if low <= number <= high:
            return number
        if checked and number < 0:
            raise WrapsAround(f"{dtype.name}({number}) is {number % span} on a GPU")
        return wrapped(number, low, span)

    return integer


def wrapped(value: int, low: int, span: int) -> int:
    """The integer that is left of ``value`` in a type with ``span`` values from ``low`` on."""
    return (value - low) % span + low


def meaning(value: Any) -> Any:
    """What a global of a kernel means when simulated; None: whatever it is."""
    if isinstance(value, NUMBERS):
        return cast("bool" if value.name in ("bool", "boolean") else value.name)
    if isinstance(value, type) and issubclass(value, np.generic):
        return cast(np.dtype(value).name)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ufunc):
        return _quiet(value)
    if callable(value) and getattr(value, "__module__", None) == "math":
        return _safe(value)
    return None


def _safe(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``math`` that gives NaN or infinity where Python raises."""

    def safe(*values: Any) -> Any:
        try:
            return function(*values)
        except OverflowError:
            return math.inf
        except ValueError:
            name, first = function.__name__, values[0]
            if first == {"log": 0, "log2": 0, "log10": 0, "log1p": -1}.get(name):
                return -math.inf
            return math.nan

    return safe


def _quiet(function: np.ufunc) -> Callable[..., Any]:
    def quiet(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*values).item()

    return quiet
