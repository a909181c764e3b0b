"""What a kernel calls of ``cuda.fp16``, ``libdevice`` and the vector types: functions of numbers,
which take and give what registers of the simulator hold."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba.cuda.libdevicefuncs import functions as SIGNATURES
from numba.cuda.stubs import _vector_type_stubs

from convlab.simulation.findings import NotSimulated
from convlab.simulation.scalars import cast, keeper, larger, safe, smaller

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


# libdevice. Numba's table says what each function takes and gives; a name's stem what it computes.
# Names of float32 end in f. Rounding other than to the nearest is known for conversions alone.


def _bits(give: str, take: str) -> Callable[[Any], Any]:
    """The bits of a number of one format of :mod:`struct` as one of another."""
    return lambda value: struct.unpack(give, struct.pack(take, value))[0]


def _up(bits: int) -> Callable[[Any], int]:
    """An integer without its sign."""
    return lambda value: int(value) & ((1 << bits) - 1)


def _unsigned(function: Callable[..., Any], bits: int = 32) -> Callable[..., Any]:
    return lambda *values: function(*map(_up(bits), values))


def _round(value: float) -> float:
    """To the nearest, halves away from zero."""
    return math.copysign(math.floor(abs(value) + 0.5), value) if abs(value) < 2**52 else value


def _double(high: int, low: int) -> float:
    return float(_bits("<d", "<Q")(_up(32)(high) << 32 | _up(32)(low)))


_ROUNDINGS = {"rd": np.floor, "rn": np.rint, "ru": np.ceil, "rz": np.trunc}
_STEMS: dict[str, Callable[..., Any]] = {
    **{name: safe(getattr(math, name)) for name in dir(math) if f"__nv_{name}" in SIGNATURES},
    **{"ceil": np.ceil, "floor": np.floor, "trunc": np.trunc, "rint": np.rint},
    **{"nearbyint": np.rint, "llrint": np.rint, "round": _round, "llround": _round},
    **{"abs": abs, "llabs": abs, "tgamma": safe(math.gamma), "scalbn": safe(math.ldexp)},
    **{
        "powi": safe(math.pow),
        "exp10": lambda x: np.power(10.0, x),
        "fma": lambda x, y, z: x * y + z,
    },
    **{"rsqrt": lambda x: 1 / np.sqrt(x), "rcbrt": lambda x: 1 / np.cbrt(x), "rcp": np.reciprocal},
    **{"sinpi": lambda x: np.sin(np.pi * np.remainder(x, 2))},
    **{"cospi": lambda x: np.cos(np.pi * np.remainder(x, 2))},
    **{"sincos": lambda x: (np.sin(x), np.cos(x)), "frexp": math.frexp},
    **{"modf": lambda x: np.modf(x), "logb": lambda x: np.frexp(x)[1] - 1},
    **{"ilogb": lambda x: np.frexp(x)[1] - 1, "fdividef": np.divide, "fdivide": np.divide},
    **{name: larger for name in ("fmax", "max", "llmax")},
    **{name: smaller for name in ("fmin", "min", "llmin")},
    **{"umax": _unsigned(max), "umin": _unsigned(min)},
    **{"ullmax": _unsigned(max, 64), "ullmin": _unsigned(min, 64)},
    **{"fdim": lambda x, y: max(x - y, 0.0), "saturate": lambda x: min(max(x, 0.0), 1.0)},
    **{"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "finite": np.isfinite},
    **{"signbit": np.signbit, "add": operator.add, "sub": operator.sub, "mul": operator.mul},
    **{"div": np.divide, "float_as_int": _bits("<i", "<f"), "int_as_float": _bits("<f", "<i")},
    **{"double_as_longlong": _bits("<q", "<d"), "longlong_as_double": _bits("<d", "<q")},
    **{"double2hiint": lambda d: _bits("<q", "<d")(d) >> 32, "double2loint": _bits("<q", "<d")},
    **{"hiloint2double": _double, "popc": _unsigned(int.bit_count)},
    **{"popcll": _unsigned(int.bit_count, 64)},
    **{"clz": _unsigned(lambda x: 32 - x.bit_length())},
    **{"clzll": _unsigned(lambda x: 64 - x.bit_length(), 64)},
    **{"brev": _unsigned(lambda x: int(f"{x:032b}"[::-1], 2))},
    **{"brevll": _unsigned(lambda x: int(f"{x:064b}"[::-1], 2), 64)},
    **{"ffs": lambda x: (x & -x).bit_length(), "ffsll": lambda x: (x & -x).bit_length()},
    **{"mulhi": lambda x, y: x * y >> 32, "mul64hi": lambda x, y: x * y >> 64},
    **{"umulhi": _unsigned(lambda x, y: x * y >> 32)},
    **{"umul64hi": _unsigned(lambda x, y: x * y >> 64, 64)},
    **{"mul24": lambda x, y: ((x << 8) * (y << 8)) >> 16, "umul24": _unsigned(operator.mul, 24)},
    **{"hadd": lambda x, y: x + y >> 1, "rhadd": lambda x, y: x + y + 1 >> 1},
    **{
        "uhadd": _unsigned(lambda x, y: x + y >> 1),
        "urhadd": _unsigned(lambda x, y: x + y + 1 >> 1),
    },
    **{"sad": lambda x, y, z: abs(x - y) + z, "usad": _unsigned(lambda x, y, z: abs(x - y) + z)},
}


def _computed(name: str) -> Callable[..., Any] | None:
    """What a function of libdevice does, apart from the types."""
    if name in _STEMS:
        return _STEMS[name]
    stem, _, rounding = name.rpartition("_")
    if rounding in _ROUNDINGS and "2" in stem:  # a conversion
        gives = stem.split("2")[1]
        if gives in ("int", "uint", "ll", "ull"):
            return _ROUNDINGS[rounding]
        return operator.pos if rounding == "rn" else None
    if rounding == "rn":
        return _STEMS.get(stem.removesuffix("f")) or _STEMS.get(stem[1:])
    stem = name.removeprefix("fast_")
    return _STEMS.get(stem.removesuffix("f")) or _STEMS.get(stem.removesuffix("d"))


@cache
def of_libdevice(name: str) -> Callable[..., Any] | None:
    """``libdevice.name``."""
    function, signature = _computed(name), SIGNATURES.get(f"__nv_{name}")
    if function is None or signature is None:
        return None
    returned, arguments = signature
    takes = [keeper(np.dtype(one.ty.name)) for one in arguments if not one.is_ptr]
    results = [one.ty for one in arguments if one.is_ptr]
    if returned.name != "none":
        results.insert(0, returned)
    unsigned = "2uint" in name or "2ull" in name  # which Numba's table calls signed
    gives = [keeper(np.dtype("u" * unsigned + one.name)) for one in results]

    def called(*values: Any) -> Any:
        given = [take(value) for take, value in zip(takes, values, strict=True)]
        with np.errstate(all="ignore"):
            result = function(*given)
        if len(gives) == 1:
            return gives[0](result)
        return tuple(give(one) for give, one in zip(gives, result, strict=True))

    return called
