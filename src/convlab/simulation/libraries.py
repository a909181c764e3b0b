"""What a kernel calls of ``cuda.fp16`` and the vector types: functions of numbers, which
take and give what registers of the simulator hold."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba.cuda.stubs import _vector_type_stubs

from convlab.simulation.findings import NotSimulated
from convlab.simulation.scalars import cast, keeper, larger, smaller

# float16: each result is rounded.
_HALF_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{"hadd": operator.add, "hsub": operator.sub, "hmul": operator.mul, "hneg": operator.neg},
    **{"habs": abs, "hfma": lambda a, b, c: a * b + c, "hdiv": np.divide, "hrcp": np.reciprocal},
    **{f"h{name}": getattr(np, name) for name in ("sin", "cos", "tanh", "log", "log2", "log10")},
    **{f"h{name}": getattr(np, name) for name in ("exp", "exp2", "sqrt", "ceil", "floor", "trunc")},
    **{"hexp10": lambda a: np.power(10.0, a), "hrsqrt": lambda a: 1 / np.sqrt(a), "hrint": np.rint},
    **{"hmax": larger, "hmin": smaller, "htanh_approx": np.tanh},
}
_COMPARED = ("eq", "ne", "ge", "gt", "le", "lt")
_HALF_COMPARISONS = {f"h{name}": getattr(operator, name) for name in _COMPARED}


class Library:
    """A module of functions, found by ``find(name)``, which gives None for those not known."""

    def __init__(self, name: str, find: Callable[[str], Any]) -> None:
        self._name, self._find = name, find

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self._find(name)
        if found is None:
            raise NotSimulated(f"{self._name}.{name} is not simulated")
        return found


def _rounded(function: Callable[..., Any], *kinds: str) -> Callable[..., Any]:
    """The function of numbers cast to the first kinds, its result cast to the last."""
    *takes, gives = (keeper(np.dtype(kind)) for kind in kinds)

    def rounded(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            given = [take(value) for take, value in zip(takes, values, strict=True)]
            return gives(function(*map(np.float64, given)))

    return rounded


@cache
def half(name: str) -> Callable[..., Any] | None:
    """``cuda.fp16.name``."""
    if name in _HALF_COMPARISONS:
        return _rounded(_HALF_COMPARISONS[name], "float16", "float16", "bool")
    function = _HALF_ARITHMETIC.get(name)
    if function is None:
        return None
    two = name in ("hadd", "hsub", "hmul", "hdiv", "hmax", "hmin")
    return _rounded(function, *["float16"] * (4 if name == "hfma" else 3 if two else 2))


class Vector:
    """A value of a vector type: ``x``, ``y``, ``z``, ``w``."""

    __slots__ = ("_kind", "w", "x", "y", "z")

    def __init__(self, kind: str, values: list[Any]) -> None:
        self._kind = kind
        for name, value in zip("xyzw", values, strict=False):
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:  # what it lacks
        raise AttributeError(f"{self._kind} has no {name}")


@cache
def vector_types() -> dict[str, Callable[..., Any]]:
    """``float32x4``, ``float4`` and the others, by name."""
    made: dict[str, Callable[..., Any]] = {}
    for stub in _vector_type_stubs:
        function = _vector_type(stub.__name__)
        made |= dict.fromkeys((stub.__name__, *stub.aliases), function)
    return made


def _vector_type(name: str) -> Callable[..., Any]:
    count = int(name[-1])
    kept = cast(name[:-2])

    def vector(*parts: Any) -> Vector:
        values: list[Any] = []
        for part in parts:
            whole = isinstance(part, Vector)
            values += [getattr(part, n) for n in "xyzw" if hasattr(part, n)] if whole else [part]
        if len(values) != count:
            raise TypeError(f"{name} is made of {count} numbers, not of {len(values)}")
        return Vector(name, list(map(kept, values)))

    return vector
