"""Functions of ``libdevice``, for the simulator's registers.

Numba's table has the types of each function's arguments and results. The stem of a name tells what
it computes. Names for float32 end in f.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from importlib import import_module
from statistics import NormalDist
from typing import Any

import numpy as np
from numba.cuda.libdevicefuncs import functions as SIGNATURES

from convlab.simulation.language.libraries import Function
from convlab.simulation.numbers.bfloat16 import DIRECTIONS, rounded
from convlab.simulation.numbers.math_functions import safe
from convlab.simulation.numbers.registers import OF_BITS, of_bits
from convlab.simulation.numbers.scalars import keeper, larger, smaller
from convlab.simulation.rules.findings import NotSimulated


def _bits(give: str, take: str) -> Function:
    """Return a function that reads the bits of a number in one format of :mod:`struct` as a number
    in another."""
    return lambda value: struct.unpack(give, struct.pack(take, value))[0]


def _up(bits: int) -> Callable[[Any], int]:
    """Return a function that reads an integer as unsigned."""
    return lambda value: int(value) & ((1 << bits) - 1)


def _unsigned(function: Function, bits: int = 32) -> Function:
    return lambda *values: function(*map(_up(bits), values))


def _round(value: float) -> float:
    """Round to the nearest, halves away from zero."""
    return math.copysign(math.floor(abs(value) + 0.5), value) if abs(value) < 2**52 else value


def _double(high: int, low: int) -> float:
    return float(_bits("<d", "<Q")(_up(32)(high) << 32 | _up(32)(low)))


def _byte_perm(x: int, y: int, selector: int) -> int:
    """Return four of the eight bytes of ``y`` and ``x``. Three bits of the selector choose each;
    the fourth bit spreads the byte's highest bit over it."""
    data = (_up(32)(y) << 32 | _up(32)(x)).to_bytes(8, "little")
    chosen = [selector >> 4 * n & 15 for n in range(4)]
    made = [255 * (data[one & 7] >> 7) if one & 8 else data[one & 7] for one in chosen]
    return int.from_bytes(made, "little")


def _remquo(x: float, y: float) -> tuple[float, int]:
    """Return the remainder, and the quotient's sign and last three bits."""
    if not math.isfinite(x) or math.isnan(y) or y == 0:
        return math.nan, 0
    rest = math.remainder(x, y)
    quotient = 0 if math.isinf(y) else int((Fraction(x) - Fraction(rest)) / Fraction(y))
    return rest, int(math.copysign(abs(quotient) % 8, quotient))


def _special(name: str) -> Function:
    """Return a function of SciPy's, which is imported when the function is called."""

    def special(*values: float) -> object:
        try:
            return getattr(import_module("scipy.special"), name)(*values)
        except ImportError:
            why = f"libdevice needs SciPy for {name}, which is not installed"
            raise NotSimulated(why) from None

    return special


def _root(value: Fraction) -> Fraction:
    """Return the square root with 200 bits. The last bit tells whether more bits follow."""
    shift = 200 + value.denominator.bit_length()
    whole = (value.numerator << 2 * shift) // value.denominator
    root = math.isqrt(whole)
    inexact = root * root != whole
    return Fraction(2 * root + inexact, 2 << shift)


_EXACTLY: dict[str, Function] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv},
    **{"rcp": lambda x: 1 / x, "fma": lambda x, y, z: x * y + z, "sqrt": _root},
}
_ROUNDINGS = {"rd": np.floor, "rn": np.rint, "ru": np.ceil, "rz": np.trunc}
_STEMS: dict[str, Function] = {
    **{name: safe(getattr(math, name)) for name in dir(math) if f"__nv_{name}" in SIGNATURES},
    **{"ceil": np.ceil, "floor": np.floor, "trunc": np.trunc, "rint": np.rint},
    **{"nearbyint": np.rint, "llrint": np.rint, "round": _round, "llround": _round},
    **{"abs": abs, "llabs": abs, "tgamma": safe(math.gamma), "scalbn": safe(math.ldexp)},
    **{"powi": safe(math.pow), "exp10": lambda x: np.power(10.0, x)},
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
    **{"signbit": np.signbit, "remquo": _remquo, "byte_perm": _byte_perm},
    **{"sincospi": lambda x: (_STEMS["sinpi"](x), _STEMS["cospi"](x))},
    **{"half2float": _bits("<e", "<h"), "float2half_rn": lambda x: np.float16(x).view(np.int16)},
    **{"normcdf": NormalDist().cdf, "normcdfinv": _special("ndtri")},
    **{name: _special(name) for name in ("erfcinv", "erfcx", "erfinv", "j0", "j1", "jn")},
    **{name: _special(name) for name in ("y0", "y1", "yn")},
    **{"float_as_int": _bits("<i", "<f"), "int_as_float": _bits("<f", "<i")},
    **{"double_as_longlong": _bits("<q", "<d"), "longlong_as_double": _bits("<d", "<q")},
    **{"double2hiint": lambda d: _bits("<q", "<d")(d) >> 32, "double2loint": _bits("<q", "<d")},
    **{"hiloint2double": _double, **{name: of_bits(name, 32) for name in OF_BITS}},
    **{f"{name}ll": of_bits(name, 64) for name in OF_BITS},
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


def _directed(stem: str, direction: str) -> Function | None:
    """Return an operation or a conversion that rounds once, in that direction."""
    if "2" in stem:
        gives = stem.split("2")[1]
        if gives in ("int", "uint", "ll", "ull"):
            return _ROUNDINGS[direction]
        kind = {"float": "float32", "double": "float64"}[gives]
        if stem.startswith("double"):
            return lambda value: rounded(value, kind, direction)
        sign: Callable[[Any], int] = int
        if stem.startswith("u"):
            sign = _up(64 if "ll" in stem else 32)
        return lambda value: rounded(sign(value), kind, direction)
    single = stem.startswith("f") != (stem == "fma")
    name = stem.removesuffix("f") if stem.startswith("fma") else stem[1:]
    if name not in _EXACTLY:
        return _STEMS.get(name)
    return _once(_EXACTLY[name], "float32" if single else "float64", direction)


def _once(function: Function, kind: str, direction: str) -> Function:
    """Return a function that computes exactly and rounds once."""

    def once(*values: float) -> object:
        numbers = [float(value) for value in values]
        try:
            exact = function(*map(Fraction, numbers))
        except (OverflowError, ValueError, ZeroDivisionError):  # infinite, NaN, by zero, a root
            exact = 0
        if exact:
            return rounded(exact, kind, direction)
        usual: Function = np.sqrt if function is _EXACTLY["sqrt"] else function
        return usual(*map(np.float64, numbers))

    return once


def _computed(name: str) -> Function | None:
    """Return what a function of libdevice computes, before results get their types."""
    if name in _STEMS:
        return _STEMS[name]
    if name in ("fma", "fmaf"):
        return _directed(name, "rn")
    stem, _, direction = name.rpartition("_")
    if direction in DIRECTIONS:
        return _directed(stem, direction)
    stem = name.removeprefix("fast_")
    return _STEMS.get(stem.removesuffix("f")) or _STEMS.get(stem.removesuffix("d"))


@cache
def of_libdevice(name: str) -> Function | None:
    """Return ``libdevice.name``; None if it is not known."""
    function, signature = _computed(name), SIGNATURES.get(f"__nv_{name}")
    if function is None or signature is None:
        return None
    returned, arguments = signature
    takes = [keeper(np.dtype(one.ty.name)) for one in arguments if not one.is_ptr]
    results = [one.ty for one in arguments if one.is_ptr]
    if returned.name != "none":
        results.insert(0, returned)
    # Numba's table calls these results signed.
    sign = "u" if "2uint" in name or "2ull" in name else ""
    gives = [keeper(np.dtype(sign + one.name)) for one in results]

    def called(*values: object) -> object:
        given = [take(value) for take, value in zip(takes, values, strict=True)]
        with np.errstate(all="ignore"):
            result = function(*given)
        if len(gives) == 1:
            return gives[0](result)
        return tuple(give(one) for give, one in zip(gives, result, strict=True))

    return called
