"""The meaning of numbers, ``math`` and ``numpy`` in a simulated kernel.

Registers hold Python numbers: float64 and integers of any size, because NumPy's scalars cost three
times as much. A store rounds or wraps to its array's type, and so does a cast. So float32 results
are those of a GPU whose registers have spare digits: a little better than the real ones, never
worse.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, Never, Protocol, SupportsFloat, SupportsIndex

import numpy as np
from numba.core import types as numba_types
from numba.cuda import types as cuda_types
from numba.cuda.np.numpy_support import as_dtype

from convlab.simulation.numbers.bfloat16 import TYPE_NAMES, BFloat16
from convlab.simulation.numbers.math_functions import of_numpy, power, quiet, safe
from convlab.simulation.recording.instructions import site_of

NUMBERS = (
    *(numba_types.Number, numba_types.Boolean),
    *(cuda_types.Number, cuda_types.Boolean),
)
CHECKED = ("uint32", "uint64")  # indices: a number below zero is a mistake, not 4294967295
Number = int | float | complex  # a register's


class Cast(Protocol):
    """A number type that a kernel calls, such as ``float32``."""

    dtype: np.dtype

    def __call__(self, value: object = 0, /) -> Any: ...


class Elements(Protocol):
    """Fast access to single elements of an array: a memoryview, or what replaces it."""

    def __getitem__(self, index: Any, /) -> Any: ...

    def __setitem__(self, index: Any, value: Any, /) -> None: ...

    def release(self) -> None:
        """Let go of the array's memory."""


class WrapsAround(ArithmeticError):
    """A kernel casts a number below zero to ``uint32`` or ``uint64``."""


@cache
def cast(name: str, checked: bool = True) -> Cast:
    """Return the number type of that name, a function of a number. Unless ``checked``, numbers
    below zero wrap in unsigned types."""
    dtype = np.dtype(name)
    made: Any = keeper(dtype)  # a function, which gets an attribute
    if checked and name in CHECKED:
        made = _checked(made, dtype)
    made.dtype = dtype
    found: Cast = made
    return found


@cache
def keeper(dtype: np.dtype) -> Callable[..., Any]:
    """Return the function that rounds, cuts or wraps a number to a register or an array of that
    type."""
    if dtype.kind in "iu":
        return _integer(dtype)
    if dtype.name == "bfloat16":
        return BFloat16
    if dtype.kind == "b":
        return lambda value=False: bool(value)
    if dtype == np.float64:
        return float_of
    if dtype == np.float32:
        cell = memoryview(bytearray(4)).cast("f")  # storing rounds, with no warning

        def float32(value: Number = 0) -> float:
            try:
                cell[0] = value  # type: ignore[assignment]  # a complex number raises TypeError
            except TypeError:
                cell[0] = float_of(value)
            return cell[0]

        return float32

    def rounded(value: Number = 0) -> object:
        with np.errstate(all="ignore"):
            return dtype.type(value if dtype.kind == "c" else float_of(value)).item()

    return rounded


def float_of(value: complex | SupportsFloat | SupportsIndex = 0.0) -> float:
    """Return ``float64(value)``. Complex numbers become NaN: Python's power of a negative number
    is complex where a GPU's is NaN."""
    return math.nan if isinstance(value, complex) else float(value)


def _integer(dtype: np.dtype) -> Callable[..., int]:
    """Return the function that converts to an integer type.

    Integers wrap. C has no rule for floats that do not fit. Numba emits ``cvt.rzi``, which takes
    the nearest integer that fits. It has no 8-bit conversion: it converts to 16 bits and keeps 8.
    NaN becomes zero; from 64 bits and to 64 bits it becomes the number with only the highest bit.
    """
    limits = np.iinfo(dtype)
    low, high, span = int(limits.min), int(limits.max), 1 << limits.bits
    through = np.iinfo(f"{dtype.kind}{max(dtype.itemsize, 2)}")
    lowest, highest = int(through.min), int(through.max)
    of_nan = ((1 << 63) - low) % span + low if limits.bits == 64 else 0

    def integer(value: Number = 0) -> int:
        if value.__class__ is int and low <= value <= high:
            return int(value)
        try:
            number = int(value)  # type: ignore[arg-type]  # a complex number raises TypeError
        except (OverflowError, ValueError, TypeError):  # infinite, NaN, complex
            value = float_of(value)
            number = of_nan if value != value else lowest if value < 0 else highest
        if low <= number <= high:
            return number
        if isinstance(value, float):
            number = min(max(number, lowest), highest)
        return (number - low) % span + low

    return integer


def _checked(kept: Callable[..., int], dtype: np.dtype) -> Callable[..., int]:
    high = int(np.iinfo(dtype).max)

    def casting(value: Any = 0) -> int:  # any type of number
        if value.__class__ is int and 0 <= value <= high:
            return int(value)
        number = kept(value)
        if value <= -1:
            raise WrapsAround(f"{dtype.name}({value}) is {number} on a GPU")
        return number

    return casting


def meaning(value: Any) -> Any:
    """Return what replaces a kernel's global in a simulation; None if nothing does."""
    if getattr(value, "name", None) in TYPE_NAMES:
        return BFloat16
    if isinstance(value, NUMBERS):
        return cast("bool" if value.name in ("bool", "boolean") else value.name)
    if isinstance(value, numba_types.Type | cuda_types.Type):
        return value  # of a record, perhaps
    if isinstance(value, type) and issubclass(value, Enum | BaseException):
        return value
    if getattr(value, "__name__", None) == "literal_unroll":  # iterates over a tuple
        return lambda entries: entries
    if value in (np.datetime64, np.timedelta64):
        return _refused_date(value)
    if isinstance(value, type) and issubclass(value, np.generic):
        return cast(np.dtype(value).name)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ufunc):
        return of_numpy(value)
    if callable(value) and getattr(value, "__module__", None) == "math":
        return safe(value)
    return None


def _refused_date(kind: type) -> Callable[..., Never]:
    def refuse(*_: object) -> Never:
        raise TypeError(
            f"np.{kind.__name__}(...) in a kernel: Numba compiles only dates that exist before "
            "the launch"
        )

    return refuse


def divided(dividend: float, divisor: float) -> float:
    """Return ``dividend / divisor`` of floats as a GPU does: infinity or NaN for a divisor of
    zero."""
    divisor = float(divisor)  # not a counted number, whose division this is
    return float(dividend) / (divisor or Zero(divisor))


class Zero(float):
    """A divisor of zero: quotients are infinity or NaN, as on a GPU."""

    def __rtruediv__(self, other: float) -> float:
        return float(quiet(np.divide)(float(other), float(self)))

    def __rfloordiv__(self, other: float) -> float:
        return float(quiet(np.floor_divide)(float(other), float(self)))

    def __rmod__(self, other: float) -> float:
        return math.nan


def by_zero(divisor: object) -> object:
    """Return what a kernel divides by instead of ``divisor``, which is zero or false."""
    return Zero(divisor) if isinstance(divisor, int | float) else divisor


def _extreme(better: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    """Return ``max`` or ``min`` as a kernel computes it: NaN is passed over."""

    def extreme(first: Any, *others: Any) -> Any:
        if not others:
            site = site_of(1)  # the kernel's line
            if hasattr(first, "part"):
                first = [first.part(row, site) for row in range(len(first))]
            first, others = first[0], first[1:]
        for other in others:
            first = first if better(first, other) or other != other else other
        return first

    return extreme


def _rounded(value: Any, digits: int | None = None) -> Any:
    """Return ``round(value)``, which is an integer: the nearest of 64 bits for a large float."""
    if digits is not None:
        return round(value, digits)
    if isinstance(value, float) and not abs(value) < 2.0**62:
        return keeper(np.dtype(np.int64))(value)
    return round(value)


def _divmod(dividend: Any, divisor: Any) -> Any:
    """Return ``divmod`` of numbers. A float may be divided by zero, as on a GPU."""
    if isinstance(dividend, float) or isinstance(divisor, float):
        divisor = divisor or Zero(float(divisor))
        return dividend // divisor, dividend % divisor
    return divmod(dividend, divisor)


def _pow(base: Any, exponent: Any) -> Any:
    """Return ``pow(base, exponent)`` of numbers; of floats as a GPU does."""
    real = isinstance(base, int | float) and isinstance(exponent, int | float)
    if real and (isinstance(base, float) or isinstance(exponent, float)):
        return power(base, exponent)
    return pow(base, exponent)


def _printed(item: object) -> str:
    """Return an argument of ``print`` as a GPU's printf shows it."""
    if isinstance(item, tuple):
        inner = ", ".join(map(_printed, item))
        return f"({inner},)" if len(item) == 1 else f"({inner})"
    if isinstance(item, complex):
        raise NotImplementedError("printing unimplemented for values of type complex128")
    return f"{item:f}" if isinstance(item, float) else str(item)


larger, smaller = _extreme(operator.ge), _extreme(operator.le)
# The meanings of some of Python's own names in a kernel.
BUILTINS: dict[str, Callable[..., Any]] = {
    "int": cast("int64"),
    "float": cast("float64"),
    "max": larger,
    "min": smaller,
    "round": _rounded,
    "divmod": _divmod,
    "pow": _pow,
    "print": lambda *items: print(*map(_printed, items)),
}


class _Items:
    """Element access for types that a memoryview does not read, such as float16 and complex."""

    def __init__(self, host: np.ndarray) -> None:
        self._host = host

    def __getitem__(self, index: Any, /) -> object:
        value = self._host[index]
        if self._host.dtype.name == "bfloat16":
            return BFloat16(value)
        return value if value.dtype.kind in "Mm" else value.item()

    def __setitem__(self, index: Any, value: object, /) -> None:
        with np.errstate(all="ignore"):
            self._host[index] = value

    def release(self) -> None:
        """Release the array, as a memoryview does."""
        del self._host


def dtype_of(kind: Any) -> np.dtype:
    """Return NumPy's type for the type that a kernel names: a cast, Numba's or NumPy's type."""
    if getattr(kind, "name", None) in TYPE_NAMES:
        kind = BFloat16
    is_type = isinstance(kind, numba_types.Type | cuda_types.Type)
    found: np.dtype = np.dtype(as_dtype(kind) if is_type else getattr(kind, "dtype", kind))
    return found


def quick(host: np.ndarray) -> Elements:
    """Return fast access to the array's elements: a memoryview, which gives Python numbers, if it
    reads the type."""
    usual = host.dtype.kind in "fiub" and host.dtype.char != "e" and host.dtype.isnative
    if usual and host.size and host.flags.aligned:
        return memoryview(host)  # type: ignore[arg-type]
    return _Items(host)


def poison(dtype: np.dtype) -> np.generic:
    """Return the value of memory that nothing has written: NaN or the largest integer. No correct
    kernel uses it."""
    if dtype.kind in "SUV":
        ones = np.frombuffer(b"\xff" * dtype.itemsize, f"V{dtype.itemsize}")
        found: np.generic = ones.view(dtype)[0]
    else:
        found = dtype.type(np.iinfo(dtype).max if dtype.kind in "iu" else np.nan)
    return found


def converted(value: object, dtype: np.dtype) -> object:
    """Return the value as an array of that type keeps it."""
    return value if dtype.kind in "cSUMmV" else keeper(dtype)(value)
