"""What numbers, ``math`` and ``numpy`` mean in a simulated kernel.

Registers hold Python numbers: float64 and integers of any size, because NumPy's scalars cost three
times as much. A store rounds or wraps to its array's type, and so does a cast: float32 results are
those of a GPU whose registers have spare digits, a little better than the real one's, never worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
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


def cast(name: str) -> Callable[..., Any]:
    """The number type of that name as a function of a number; ``.dtype`` is NumPy's."""
    if name not in _CASTS:
        dtype = np.dtype(name)
        kept = keeper(dtype)
        _CASTS[name] = _checked(kept, dtype) if name in CHECKED else kept
        _CASTS[name].dtype = dtype  # type: ignore[attr-defined]
    return _CASTS[name]


_CASTS: dict[str, Callable[..., Any]] = {}


@cache
def keeper(dtype: np.dtype[Any]) -> Callable[..., Any]:
    """What a number becomes in a register or an array of that type: rounded, cut, wrapped."""
    if dtype.kind in "iu":
        return _integer(dtype)
    if dtype.kind == "b":
        return lambda value=False: bool(value)
    if dtype == np.float64:
        return float_of
    if dtype == np.float32:
        cell: Any = memoryview(bytearray(4)).cast("f")  # storing rounds, with no warning

        def float32(value: Any = 0) -> float:
            try:
                cell[0] = value
            except TypeError:
                cell[0] = float_of(value)
            rounded: float = cell[0]
            return rounded

        return float32

    def rounded(value: Any = 0) -> Any:
        with np.errstate(all="ignore"):
            return dtype.type(value if dtype.kind == "c" else float_of(value)).item()

    return rounded


def float_of(value: Any = 0.0) -> float:
    """``float64(value)``: what Python's own numbers are. Of a negative number Python's power with
    a fraction is complex, a GPU's NaN."""
    return math.nan if isinstance(value, complex) else float(value)


def _integer(dtype: np.dtype[Any]) -> Callable[..., int]:
    """Integers wrap. For floats that do not fit C has no rule; Numba emits ``cvt.rzi``, which takes
    the nearest that does. It has none of 8 bits: there it is one of 16, of which 8 are kept. NaN
    becomes zero, from and to 64 bits the number with the highest bit alone."""
    limits = np.iinfo(dtype)
    low, high, span = int(limits.min), int(limits.max), 1 << limits.bits
    through = np.iinfo(f"{dtype.kind}{max(dtype.itemsize, 2)}")
    lowest, highest = int(through.min), int(through.max)
    of_nan = wrapped(1 << 63, low, span) if limits.bits == 64 else 0

    def integer(value: Any = 0) -> int:
        try:
            number = int(value)
        except (OverflowError, ValueError, TypeError):  # infinite, NaN, complex
            value = float_of(value)
            number = of_nan if value != value else lowest if value < 0 else highest
        if low <= number <= high:
            return number
        if isinstance(value, float):
            number = min(max(number, lowest), highest)
        return wrapped(number, low, span)

    return integer


def _checked(kept: Callable[..., int], dtype: np.dtype[Any]) -> Callable[..., int]:
    high = int(np.iinfo(dtype).max)

    def casting(value: Any = 0) -> int:
        if value.__class__ is int and 0 <= value <= high:
            return value
        number = kept(value)
        if value <= -1:
            raise WrapsAround(f"{dtype.name}({value}) is {number} on a GPU")
        return number

    return casting


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
    """A function of ``math`` that gives NaN or infinity where Python raises: NumPy's answer where
    it has the function."""
    of_numpy = getattr(np, _NUMPYS_NAME.get(function.__name__, function.__name__), None)

    def safe(*values: Any) -> Any:
        try:
            return function(*values)
        except (OverflowError, ValueError) as error:
            if isinstance(of_numpy, np.ufunc) and function.__name__ != "remainder":
                with np.errstate(all="ignore"):
                    return of_numpy(*map(float, values)).item()
            pole = function.__name__ == "lgamma" or values[0] == 0
            return math.inf if isinstance(error, OverflowError) or pole else math.nan

    return safe


_NUMPYS_NAME = {
    "pow": "power",
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
}  # of functions that NumPy has by another name


def _quiet(function: np.ufunc) -> Callable[..., Any]:
    def quiet(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*values).item()

    return quiet


def power(base: Any, exponent: Any) -> Any:
    """``base ** exponent`` of floats as a GPU has it: NaN and infinity where Python refuses."""
    with np.errstate(all="ignore"):
        return float(np.power(float(base), float(exponent)))


def largest(first: Any, *others: Any) -> Any:
    """``max`` in a kernel, which passes over NaN."""
    if not others:
        first, *others = first
    for other in others:
        first = first if first >= other or other != other else other
    return first


def smallest(first: Any, *others: Any) -> Any:
    """``min`` in a kernel, which passes over NaN."""
    if not others:
        first, *others = first
    for other in others:
        first = first if first <= other or other != other else other
    return first


# What some of Python's own names mean in a kernel.
BUILTINS = {"int": cast("int64"), "float": cast("float64"), "max": largest, "min": smallest}
