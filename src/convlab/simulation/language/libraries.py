"""Functions of ``cuda.fp16``, ``cuda.bf16`` and the vector types, for the simulator's registers."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Never

import numpy as np
from numba.cuda.stubs import _vector_type_stubs

from convlab.simulation.numbers.bfloat16 import DIRECTIONS, TYPE_NAMES, BFloat16
from convlab.simulation.numbers.scalars import cast, keeper
from convlab.simulation.rules.findings import NotSimulated

Function = Callable[..., Any]  # of numbers in registers
# Functions of float64, whose results are rounded to the narrow type. In the libraries their names
# begin with h.
FUNCTIONS: dict[str, Function] = {
    **{name: getattr(np, name) for name in ("trunc", "ceil", "floor", "rint", "sqrt", "log")},
    **{name: getattr(np, name) for name in ("log2", "log10", "cos", "sin", "exp", "exp2", "tanh")},
    **{"tanh_approx": np.tanh, "exp10": lambda x: np.power(10.0, x), "abs": abs},
    **{"rsqrt": lambda x: 1 / np.sqrt(x), "rcp": np.reciprocal, "neg": operator.neg},
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": np.divide},
    **{"fma": lambda x, y, z: x * y + z, "max": np.fmax, "min": np.fmin},
    **{"max_nan": np.maximum, "min_nan": np.minimum},
}
COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
# The suffixes of functions such as ``hadd_sat``, which change the result.
_AFTERWARDS: dict[str, Function] = {
    "sat": lambda value: np.nan_to_num(value).clip(0, 1),
    "relu": lambda value: np.maximum(value, 0),
    "rn": lambda value: value,
}


class Library:
    """A module of functions. ``find(name)`` returns one, or None if it is not known."""

    def __init__(self, name: str, find: Callable[[str], object | None]) -> None:
        self._name, self._find = name, find

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self._find(name)
        if found is None:
            raise NotSimulated(f"{self._name}.{name} is not simulated")
        return found


def _of_numbers(function: Function, gives: Function, takes: Function = float) -> Function:
    """Return ``gives(function(...))`` of float64 numbers, which ``takes`` makes of arguments."""

    def called(*values: object) -> object:
        with np.errstate(all="ignore"):
            return gives(function(*(np.float64(takes(value)) for value in values)))

    return called


@cache
def half(name: str) -> Function | None:
    """Return ``cuda.fp16.name``; None if it is not known."""
    kept, whole = keeper(np.dtype("float16")), name[1:] if name.startswith("h") else ""
    if whole in COMPARISONS:
        return _of_numbers(COMPARISONS[whole], bool, kept)
    return _of_numbers(FUNCTIONS[whole], kept, kept) if whole in FUNCTIONS else None


_BITS = {"char": 8, "short": 16, "int": 32, "ll": 64, **{f"int{n}": n for n in (8, 16, 32, 64)}}
# NumPy's types by their names: ``ushort`` and ``uint16`` are both uint16.
_INTEGERS = {f"{u}{name}": np.dtype(f"{u}int{n}") for name, n in _BITS.items() for u in ("", "u")}


def _conversion(gives: str, direction: str) -> Function | None:
    """Return a conversion from or to bfloat16, rounded in that direction; None if it is not
    known."""
    if gives == "bfloat16":
        return lambda value: BFloat16(value, direction)
    if gives in ("float", "float32"):
        return float
    if gives not in _INTEGERS:
        return None
    limits = np.iinfo(_INTEGERS[gives])
    low, high = int(limits.min), int(limits.max)

    def integer(value: float) -> int:
        if value != value:
            return 0
        return min(max(low, DIRECTIONS[direction](np.clip(value, -1e30, 1e30))), high)

    return integer


def _cast_of_bits(takes: str, gives: str) -> Function:
    """Return a function that reads the bits of a number as a number of another type."""
    if takes == "bfloat16":
        kind = _INTEGERS[gives]
        return lambda value: int((np.float32(value).view(np.uint32) >> 16).astype(kind))
    return lambda bits: BFloat16((np.uint32(bits & 0xFFFF) << np.uint32(16)).view(np.float32))


@cache
def of_bfloat16(name: str) -> Function | None:
    """Return ``numba.cuda.bf16.name``, a function or the type; None if it is not known."""
    if name in TYPE_NAMES:
        return BFloat16
    if found := re.fullmatch(r"(\w+?)_as_(\w+)", name):
        return _cast_of_bits(*found.groups())
    if found := re.fullmatch(r"\w+?(?:2|_to_)([a-z]\w*?)(?:_(r[nzdu]))?", name):
        return _conversion(found[1], found[2] or "rn")
    whole = name[1:] if name.startswith("h") else ""
    stem, _, after = whole.rpartition("_")
    if stem in FUNCTIONS and after in _AFTERWARDS:
        return _of_numbers(FUNCTIONS[stem], lambda value: BFloat16(_AFTERWARDS[after](value)))
    if whole in FUNCTIONS:
        return _of_numbers(FUNCTIONS[whole], BFloat16)
    if whole in COMPARISONS:
        return _of_numbers(COMPARISONS[whole], bool)
    if whole[:-1] in COMPARISONS and whole.endswith("u"):  # true of NaN too
        test = COMPARISONS[whole[:-1]]
        return _of_numbers(lambda x, y: x != x or y != y or test(x, y), bool)
    return {"hisnan": _of_numbers(np.isnan, bool), "hisinf": _of_numbers(np.isinf, int)}.get(name)


class Vector:
    """A value of a vector type, with the components ``x``, ``y``, ``z``, ``w``."""

    __slots__ = ("_kind", "w", "x", "y", "z")

    def __init__(self, kind: str, values: list[object]) -> None:
        self._kind = kind
        for name, value in zip("xyzw", values, strict=False):
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Never:  # called for missing components
        raise AttributeError(f"{self._kind} has no {name}")


@cache
def vector_types() -> dict[str, Callable[..., Vector]]:
    """Return the vector types by name: ``float32x4``, ``float4`` and the others."""
    made: dict[str, Callable[..., Vector]] = {}
    for stub in _vector_type_stubs:
        function = _vector_type(stub.__name__)
        made |= dict.fromkeys((stub.__name__, *stub.aliases), function)
    return made


def _vector_type(name: str) -> Callable[..., Vector]:
    count = int(name[-1])
    kept = cast(name[:-2])

    def vector(*parts: object) -> Vector:
        values: list[object] = []
        for part in parts:
            if isinstance(part, Vector):
                values += [getattr(part, n) for n in "xyzw" if hasattr(part, n)]
            else:
                values.append(part)
        if len(values) != count:
            raise TypeError(f"{name} is made of {count} numbers, not of {len(values)}")
        return Vector(name, list(map(kept, values)))

    return vector
