"""The functions of ``math`` and NumPy as a kernel calls them: they return NaN or infinity where
Python raises an error."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from convlab.simulation.numbers.bfloat16 import BFloat16


def _of_c_library() -> dict[str, Callable[..., float]]:
    """Return the C library's functions that ``math`` has not or computes by itself, as functions of
    floats, by their names in Python. Machine code calls them too, so results are the same. Where
    the process does not name the C library's functions, as on Windows, there are none."""
    names = {"gamma": ("tgamma", 1), "lgamma": ("lgamma", 1), "hypot": ("hypot", 2)}
    names |= {"pow": ("pow", 2), "fma": ("fma", 3)}
    found: dict[str, Callable[..., float]] = {}
    try:
        library = ctypes.CDLL(None)
        for python, (name, count) in names.items():
            function = getattr(library, name)
            function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double] * count
            found[python] = function
    except (OSError, TypeError, AttributeError):
        return {}
    return found


C_LIBRARY = _of_c_library()
_ROUND = math.floor, math.ceil, math.trunc
_WHOLE = 2**53  # larger floats are whole numbers


def quiet(function: np.ufunc) -> Callable[..., Any]:
    """Return a ufunc that gives Python's numbers and no warnings."""

    def quiet(*values: object) -> object:
        with np.errstate(all="ignore"):
            result = function(*values)
        return result.item() if isinstance(result, np.generic) else result

    return quiet


def power(base: float, exponent: float) -> float:
    """Return ``base ** exponent`` of floats as a GPU does: NaN or infinity where Python raises an
    error."""
    if "pow" in C_LIBRARY:
        return C_LIBRARY["pow"](float(base), float(exponent))
    with np.errstate(all="ignore"):
        return float(np.power(float(base), float(exponent)))


def fma(a: float, b: float, c: float) -> float:
    """Return ``a * b + c`` of floats, rounded once to float64."""
    if "fma" in C_LIBRARY:
        return C_LIBRARY["fma"](float(a), float(b), float(c))
    return float(a) * float(b) + float(c)


def safe(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of ``math`` that returns NaN or infinity where Python raises an error.
    NumPy's result is taken if it has the function."""
    if function in _ROUND:
        return _rounding(function)
    name = function.__name__
    compute: Callable[..., Any] = C_LIBRARY.get(name, function)
    numpys = None if name in ("ldexp", "remainder") else getattr(np, name, None)

    def safe(*values: float) -> object:
        try:
            result = compute(*values)
            return BFloat16(result) if values[0].__class__ is BFloat16 else result
        except (OverflowError, ValueError) as error:
            if isinstance(numpys, np.ufunc):
                return quiet(numpys)(*map(float, values))
            if name == "ldexp":
                return math.copysign(math.inf, values[0])
            pole = name == "lgamma" or (name == "gamma" and values[0] == 0)
            return math.inf if isinstance(error, OverflowError) or pole else math.nan

    return safe


def _rounding(function: Callable[[float], int]) -> Callable[[float], object]:
    """Return ``floor``, ``ceil`` or ``trunc``, which keeps the sign of a zero, infinity and NaN."""

    def rounding(value: float) -> object:
        try:
            found = function(value)
        except (OverflowError, ValueError):
            return value
        if value.__class__ is BFloat16:
            return BFloat16(found)
        if found > _WHOLE or found < -_WHOLE:
            return value
        return found or (-0.0 if math.copysign(1.0, value) < 0 else found)

    return rounding


_NAMES_IN_MATH = {
    **{"arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh"},
    **{"arctan": "atan", "arctan2": "atan2", "arctanh": "atanh"},
    **{name: name for name in ("cos", "cosh", "log", "log10", "log2", "sin", "sinh")},
    **{name: name for name in ("tan", "tanh")},
}


def of_numpy(function: np.ufunc) -> Callable[..., Any]:
    """Return a ufunc as a kernel calls it. Of a number it gives the result of ``math``, because
    NumPy's depends on the CPU."""
    of_arrays = quiet(function)
    if (name := _NAMES_IN_MATH.get(function.__name__)) is None:
        return of_arrays
    of_numbers = safe(getattr(math, name))

    def either(*values: object) -> object:
        numbers = all(isinstance(value, int | float) for value in values)
        return of_numbers(*values) if numbers else of_arrays(*values)

    return either
