"""Floating-point numbers that count what is computed with them, for traces.

Counted are additions, subtractions, multiplications, divisions, remainders, powers and functions of
``math`` and NumPy, one each, ``fma`` two, where at least one number came from memory, from a cast
or from an argument; a tensor core's multiply-adds are two each. Comparisons, negation and copies
are not arithmetic.
"""

from __future__ import annotations

import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from convlab.engines.scalars import power

OPERATIONS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


class Arithmetic:
    """Counts the operations of a launch by the place in the kernel where they stand."""

    def __init__(self) -> None:
        self.operations: Counter[int] = Counter()
        self._codes: set[int] = set()
        self.number: Any = self._number_class()

    def watch(self, codes: Iterable[CodeType]) -> None:
        """The code of the kernel: what is computed elsewhere belongs to the call there."""
        self._codes.update(map(id, codes))

    def count(self, operations: int = 1) -> None:
        """Note operations of the innermost frame of the kernel."""
        frame: Any = sys._getframe(1)
        while frame is not None and id(frame.f_code) not in self._codes:
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
        codes, getframe, arithmetic = self._codes, sys._getframe, self
        names: dict[str, Any] = {"__slots__": ()}

        def counting(plain: Callable[[float, float], Any]) -> Callable[[float, Any], Any]:
            def operation(self: float, other: Any) -> Any:
                if not isinstance(other, (float, int)):  # made once, which a union is not
                    return NotImplemented
                # Every operation of every thread comes by here: `count`, written out.
                frame: Any = getframe(1)
                while frame is not None and id(frame.f_code) not in codes:
                    frame = frame.f_back
                if frame is not None:
                    arithmetic.operations[id(frame.f_code) + frame.f_lasti] += 1
                return number(plain(self, other))

            return operation

        def reflected(plain: Callable[[float, float], Any]) -> Callable[[float, float], Any]:
            return lambda one, other: plain(other, one)

        for name in OPERATIONS:  # float's own, which take numbers of this class as they are
            plain = power if name == "pow" else getattr(float, f"__{name}__")
            other = reflected(plain) if name == "pow" else getattr(float, f"__r{name}__")
            names[f"__{name}__"], names[f"__r{name}__"] = counting(plain), counting(other)

        def copying(plain: Callable[[float], float]) -> Callable[[float], Any]:
            return lambda self: number(plain(float(self)))

        for name in ("neg", "pos", "abs"):
            names[f"__{name}__"] = copying(getattr(operator, name))
        number: Any = type("CountedFloat", (float,), names)
        return number
