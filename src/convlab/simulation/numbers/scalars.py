"""What numbers, ``math`` and ``numpy`` mean in a simulated kernel.

Registers hold Python numbers: float64 and integers of any size, because NumPy's scalars cost three
times as much. A store rounds or wraps to its array's type, and so does a cast: float32 results are
those of a GPU whose registers have spare digits, a little better than the real one's, never worse.
"""

from __future__ import annotations

import math
import operator
import sys
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
from numba.core import types as numba_types
from numba.cuda import types as cuda_types
from numba.cuda.np.numpy_support import as_dtype

from convlab.simulation.numbers.bfloat16 import TYPE_NAMES, BFloat16
from convlab.simulation.recording.sites import site_of

NUMBERS = (
    *(numba_types.Number, numba_types.Boolean),
    *(cuda_types.Number, cuda_types.Boolean),
)
CHECKED = ("uint32", "uint64")  # indices: a number below zero is a mistake, not 4294967295


class WrapsAround(ArithmeticError):
    """``uint32`` of a number below zero."""


@cache
def cast(name: str, checked: bool = True) -> Callable[..., Any]:
    """The number type of that name as a function of a number; ``.dtype`` is NumPy's. Unless
    ``checked``, numbers below zero wrap in unsigned types."""
    dtype = np.dtype(name)
    made: Any = keeper(dtype)
    if checked and name in CHECKED:
        made = _checked(made, dtype)
    made.dtype = dtype
    return made  # type: ignore[no-any-return]


@cache
def keeper(dtype: np.dtype[Any]) -> Callable[..., Any]:
    """What a number becomes in a register or an array of that type: rounded, cut, wrapped."""
    if dtype.kind in "iu":
        return _integer(dtype)
    if dtype.name == "bfloat16":
        return BFloat16
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
    the nearest that does. It has no 8-bit conversion: it converts to 16 bits and keeps 8. NaN
    becomes zero, from and to 64 bits the number with the highest bit alone."""
    limits = np.iinfo(dtype)
    low, high, span = int(limits.min), int(limits.max), 1 << limits.bits
    through = np.iinfo(f"{dtype.kind}{max(dtype.itemsize, 2)}")
    lowest, highest = int(through.min), int(through.max)
    of_nan = ((1 << 63) - low) % span + low if limits.bits == 64 else 0

    def integer(value: Any = 0) -> int:
        if value.__class__ is int and low <= value <= high:
            return int(value)
        try:
            number = int(value)
        except (OverflowError, ValueError, TypeError):  # infinite, NaN, complex
            value = float_of(value)
            number = of_nan if value != value else lowest if value < 0 else highest
        if low <= number <= high:
            return number
        if isinstance(value, float):
            number = min(max(number, lowest), highest)
        return (number - low) % span + low

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


def meaning(value: Any) -> Any:
    """What a global of a kernel means when simulated; None: whatever it is."""
    if getattr(value, "name", None) in TYPE_NAMES:
        return BFloat16
    if isinstance(value, NUMBERS):
        return cast("bool" if value.name in ("bool", "boolean") else value.name)
    if isinstance(value, numba_types.Type | cuda_types.Type):
        return value  # of a record, perhaps
    if isinstance(value, type) and issubclass(value, Enum | BaseException):
        return value
    if getattr(value, "__name__", None) == "literal_unroll":  # of a tuple: runs through it
        return lambda entries: entries
    if value in (np.datetime64, np.timedelta64):
        return _made_outside(value)
    if isinstance(value, type) and issubclass(value, np.generic):
        return cast(np.dtype(value).name)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ufunc):
        return _quiet(value)
    if callable(value) and getattr(value, "__module__", None) == "math":
        return safe(value)
    return None


def _made_outside(kind: type) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise TypeError(
            f"np.{kind.__name__}(...) in a kernel: Numba compiles only dates made before"
        )

    return refuse


def safe(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``math`` that gives NaN or infinity where Python raises: NumPy's answer where
    it has the function."""
    name = function.__name__
    of_numpy = getattr(np, name, None)

    def safe(*values: Any) -> Any:
        try:
            result = function(*values)
            return BFloat16(result) if values[0].__class__ is BFloat16 else result
        except (OverflowError, ValueError) as error:
            if isinstance(of_numpy, np.ufunc) and name != "remainder":
                return _quiet(of_numpy)(*map(float, values))
            pole = name == "lgamma" or (name == "gamma" and values[0] == 0)
            return math.inf if isinstance(error, OverflowError) or pole else math.nan

    return safe


def _quiet(function: np.ufunc) -> Callable[..., Any]:
    def quiet(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            result = function(*values)
        return result.item() if isinstance(result, np.generic) else result

    return quiet


def divided(dividend: float, divisor: Any) -> Any:
    """``dividend / divisor`` of floats as a GPU has it: by zero infinity or NaN."""
    divisor = float(divisor)  # not a counted number, whose division this is
    return float(dividend) / (divisor or Zero(divisor))


def power(base: Any, exponent: Any) -> Any:
    """``base ** exponent`` of floats as a GPU has it: NaN and infinity where Python refuses."""
    with np.errstate(all="ignore"):
        return float(np.power(float(base), float(exponent)))


class Zero(float):
    """A divisor of zero, which makes infinity or NaN of what is divided by it, as on a GPU."""

    def __rtruediv__(self, other: Any) -> Any:
        return _quiet(np.divide)(float(other), float(self))

    def __rfloordiv__(self, other: Any) -> Any:
        return _quiet(np.floor_divide)(float(other), float(self))

    def __rmod__(self, other: Any) -> Any:
        return math.nan


def by_zero(divisor: Any) -> Any:
    """What a kernel divides by, instead of ``divisor``, which is zero or false."""
    return Zero(divisor) if isinstance(divisor, int | float) else divisor


def _extreme(better: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    """``max`` or ``min`` in a kernel, which passes over NaN."""

    def extreme(first: Any, *others: Any) -> Any:
        if not others:
            site = site_of(1)  # the kernel's: here is no line of its
            if hasattr(first, "part"):
                first = [first.part(row, site) for row in range(len(first))]
            first, others = first[0], first[1:]
        for other in others:
            first = first if better(first, other) or other != other else other
        return first

    return extreme


def _printed(item: Any) -> str:
    """An item of ``print`` as a GPU's printf shows it."""
    if isinstance(item, tuple):
        inner = ", ".join(map(_printed, item))
        return f"({inner},)" if len(item) == 1 else f"({inner})"
    if isinstance(item, complex):
        raise NotImplementedError("printing unimplemented for values of type complex128")
    return f"{item:f}" if isinstance(item, float) else str(item)


larger, smaller = _extreme(operator.ge), _extreme(operator.le)
# What some of Python's own names mean in a kernel.
BUILTINS = {
    "int": cast("int64"),
    "float": cast("float64"),
    "max": larger,
    "min": smaller,
    "print": lambda *items: print(*map(_printed, items)),
}


class _Items:
    """Element access for types that memoryview does not read, such as float16 and complex."""

    def __init__(self, host: np.ndarray) -> None:
        self._host = host

    def __getitem__(self, index: Any) -> Any:
        value = self._host[index]
        if self._host.dtype.name == "bfloat16":
            return BFloat16(value)
        return value if value.dtype.kind in "Mm" else value.item()

    def __setitem__(self, index: Any, value: Any) -> None:
        with np.errstate(all="ignore"):
            self._host[index] = value

    def release(self) -> None:
        """Let the array go, as a memoryview does."""
        del self._host


def dtype_of(kind: Any) -> np.dtype[Any]:
    """NumPy's type for what a kernel names: a cast, a Numba type, anything of NumPy's."""
    if getattr(kind, "name", None) in TYPE_NAMES:
        kind = BFloat16
    is_type = isinstance(kind, numba_types.Type | cuda_types.Type)
    dtype: np.dtype[Any] = np.dtype(as_dtype(kind) if is_type else getattr(kind, "dtype", kind))
    return dtype


def quick(host: np.ndarray) -> Any:
    """The array with quick access to single elements: a memoryview gives Python numbers."""
    usual = host.dtype.kind in "fiub" and host.dtype.char != "e" and host.dtype.isnative
    if usual and host.size and host.flags.aligned:
        return memoryview(host)  # type: ignore[arg-type]
    return _Items(host)


def poison(dtype: np.dtype[Any]) -> Any:
    """What memory of this type holds before anybody wrote it: NaN, or the largest integer, which no
    right kernel uses."""
    if dtype.kind in "SUV":
        return np.frombuffer(b"\xff" * dtype.itemsize, f"V{dtype.itemsize}").view(dtype)[0]
    return dtype.type(np.iinfo(dtype).max if dtype.kind in "iu" else np.nan)


def converted(value: Any, dtype: np.dtype[Any]) -> Any:
    """The value as an array of that type keeps it."""
    return value if dtype.kind in "cSUMmV" else keeper(dtype)(value)


# Floating-point numbers that count what is computed with them, for traces. Each addition,
# subtraction, multiplication, division, remainder, power and function of ``math`` or NumPy counts
# one, ``fma`` two, where at least one number came from memory, a cast or an argument; a tensor
# core's multiply-adds count two each. Comparisons, negation and copies are not arithmetic.


OPERATIONS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


class Arithmetic:
    """Counts the operations of a launch by the instruction of the kernel where they stand."""

    def __init__(self) -> None:
        self.operations: Counter[int] = Counter()
        # By id the kernel's code: what is computed elsewhere belongs to the call there.
        self.codes: set[int] = set()
        self.number: Any = self._number_class()

    def count(self, operations: int = 1) -> None:
        """Note operations of the innermost frame of the kernel."""
        frame: Any = sys._getframe(1)
        while frame is not None and id(frame.f_code) not in self.codes:
            frame = frame.f_back
        if frame is not None:
            self.operations[id(frame.f_code) + frame.f_lasti] += operations

    def counted(self, value: Any) -> Any:
        """A result, counted from here on if it is a floating-point number."""
        return self.number(value) if isinstance(value, float) else value

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of ``math`` or NumPy: one operation where it is given a counted number."""

        def called(*values: Any) -> Any:
            if any(isinstance(value, self.number) for value in values):
                self.count()
            return self.counted(function(*values))

        return called

    def cast(self, cast: Callable[..., Any]) -> Callable[..., Any]:
        """``float32`` and its like: no operation."""

        def casting(value: Any = 0) -> Any:
            return self.number(cast(value))

        casting.dtype = getattr(cast, "dtype", None)  # type: ignore[attr-defined]
        return casting

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """``cuda.fma``: two operations; rounded as Python's float64."""
        self.count(2)
        return self.counted(float(a) * float(b) + float(c))

    def _number_class(self) -> Any:
        codes, getframe, arithmetic = self.codes, sys._getframe, self

        def counting(plain: Callable[[float, float], Any]) -> Callable[[float, Any], Any]:
            def operation(self: float, other: Any) -> Any:
                if not isinstance(other, (float, int)):  # made once, which a union is not
                    return NotImplemented
                # Every operation of every thread runs this code: `count`, written out.
                frame: Any = getframe(1)
                while frame is not None and id(frame.f_code) not in codes:
                    frame = frame.f_back
                if frame is not None:
                    arithmetic.operations[id(frame.f_code) + frame.f_lasti] += 1
                return number(plain(self, other))

            return operation

        def copying(plain: Callable[[float], float]) -> Callable[[float], Any]:
            return lambda self: number(plain(float(self)))

        names: dict[str, Any] = {"__slots__": ()}
        # float's own, which take numbers of this class as they are
        plain = {f"__{r}{name}__" for name in OPERATIONS for r in ("", "r")}
        names |= {name: counting(getattr(float, name)) for name in plain}
        names["__truediv__"] = counting(divided)
        names["__pow__"] = counting(power)
        names["__rpow__"] = counting(lambda exponent, base: power(base, exponent))
        names |= {f"__{name}__": copying(getattr(operator, name)) for name in ("neg", "pos", "abs")}
        number: Any = type("CountedFloat", (float,), names)
        return number
