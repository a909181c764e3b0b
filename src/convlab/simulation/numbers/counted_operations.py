"""Floating-point numbers that count the operations on them, for traces.

Each addition, subtraction, multiplication, division, remainder, power and function of ``math`` or
NumPy counts one, ``fma`` two, if at least one number came from memory, a cast or an argument. A
tensor core's multiply-adds count two each. Comparisons, negation and copies are not arithmetic.
"""

from __future__ import annotations

import operator
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from convlab.simulation.numbers.math_functions import fma, power
from convlab.simulation.numbers.scalars import divided

OPERATIONS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


class Arithmetic:
    """The number of operations of a launch at each instruction of its kernel."""

    def __init__(self) -> None:
        self.operations: Counter[int] = Counter()
        # The ids of the kernel's code. Operations in other code count at the call of that code.
        self.codes: set[int] = set()
        self.number: type[float] = self._number_class()

    def count(self, operations: int = 1) -> None:
        """Count operations at the innermost frame of the kernel."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and id(frame.f_code) not in self.codes:
            frame = frame.f_back
        if frame is not None:
            self.operations[id(frame.f_code) + frame.f_lasti] += operations

    def counted(self, value: object) -> object:
        """Return a result. If it is a floating-point number, operations on it are counted."""
        return self.number(value) if isinstance(value, float) else value

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of ``math`` or NumPy that counts one operation if an argument is a
        counted number."""

        def called(*values: object) -> object:
            if any(isinstance(value, self.number) for value in values):
                self.count()
            return self.counted(function(*values))

        return called

    def cast(self, cast: Callable[..., Any]) -> Callable[..., Any]:
        """Return a type such as ``float32`` whose numbers count; a cast is no operation."""

        def casting(value: object = 0) -> float:
            return self.number(cast(value))

        casting.dtype = getattr(cast, "dtype", None)  # type: ignore[attr-defined]
        return casting

    def fma(self, a: float, b: float, c: float) -> object:
        """Compute ``cuda.fma``: two operations, rounded to float64."""
        self.count(2)
        return self.counted(fma(a, b, c))

    def _number_class(self) -> type[float]:
        codes, getframe, arithmetic = self.codes, sys._getframe, self

        def counting(plain: Callable[[float, Any], Any]) -> Callable[[float, object], object]:
            def operation(self: float, other: object) -> object:
                result = plain(self, other)
                if result is NotImplemented:
                    return result
                # Every operation of every thread runs this code, so `count` is written out.
                frame: FrameType | None = getframe(1)
                while frame is not None:
                    code = id(frame.f_code)
                    if code in codes:
                        arithmetic.operations[code + frame.f_lasti] += 1
                        break
                    frame = frame.f_back
                return number(result)

            return operation

        def copying(plain: Callable[[float], float]) -> Callable[[float], float]:
            return lambda self: number(plain(float(self)))

        names: dict[str, object] = {"__slots__": ()}
        # float's own methods, which take numbers of this class as they are, and return
        # NotImplemented for anything that is not a number
        plain = {f"__{r}{name}__" for name in OPERATIONS for r in ("", "r")}
        names |= {name: counting(getattr(float, name)) for name in plain}
        names["__truediv__"] = counting(_of_numbers(divided))
        names["__pow__"] = counting(_of_numbers(power))
        names["__rpow__"] = counting(_of_numbers(lambda exponent, base: power(base, exponent)))
        names |= {f"__{name}__": copying(getattr(operator, name)) for name in ("neg", "pos", "abs")}
        number: type[float] = type("CountedFloat", (float,), names)
        return number


def _of_numbers(function: Callable[[float, float], float]) -> Callable[[float, Any], Any]:
    """Return the function as a method of a number. It returns NotImplemented for anything that is
    not a number."""

    def method(number: float, other: Any) -> Any:
        if not isinstance(other, (float, int)):  # a tuple is faster than a union here
            return NotImplemented
        return function(number, other)

    return method
