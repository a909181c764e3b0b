"""bfloat16: the number, and the functions of ``numba.cuda.bf16``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from convlab.simulation.rounding import DIRECTIONS, rounded

TYPE_NAMES = "__nv_bfloat16", "nv_bfloat16", "bfloat16"


def _operation(name: str) -> Callable[..., Any]:
    plain = getattr(np.float64, name)

    def operation(self: Any, other: Any) -> Any:
        with np.errstate(all="ignore"):
            result = float(plain(np.float64(self), float(other)))
        return BFloat16(result) if isinstance(other, BFloat16) else result

    return operation


class _ArrayType:
    """NumPy's type for arrays of bfloat16, which NumPy itself has not."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        try:
            return np.dtype(import_module("ml_dtypes").bfloat16)
        except ImportError:
            why = "an array of bfloat16 needs ml_dtypes, which is not installed"
            raise ImportError(why) from None


class BFloat16(float):
    """A number of eight significant bits. Arithmetic of two of them is rounded to a third."""

    __slots__ = ()
    dtype = _ArrayType()

    def __new__(cls, value: Any = 0, direction: str = "rn") -> BFloat16:
        exact = value if isinstance(value, int) else float(value)
        return super().__new__(cls, rounded(exact, "bfloat16", direction))

    def __neg__(self) -> BFloat16:
        return BFloat16(-float(self))

    def __abs__(self) -> BFloat16:
        return BFloat16(abs(float(self)))

    def __pos__(self) -> BFloat16:
        return self


for _name in ("add", "sub", "mul", "truediv"):
    setattr(BFloat16, f"__{_name}__", _operation(f"__{_name}__"))

_UNARY: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("trunc", "ceil", "floor", "rint", "sqrt", "log")},
    **{name: getattr(np, name) for name in ("log2", "log10", "cos", "sin", "exp", "exp2", "tanh")},
    **{"tanh_approx": np.tanh, "exp10": lambda x: np.power(10.0, x), "abs": abs},
    **{"rsqrt": lambda x: 1 / np.sqrt(x), "rcp": np.reciprocal, "neg": operator.neg},
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv},
    **{"fma": lambda x, y, z: x * y + z, "max": np.fmax, "min": np.fmin},
    **{"max_nan": np.maximum, "min_nan": np.minimum},
}
_AFTERWARDS: dict[str, Callable[[Any], Any]] = {
    "sat": lambda value: np.nan_to_num(value).clip(0, 1),
    "relu": lambda value: np.maximum(value, 0),
    "rn": lambda value: value,
}
_TESTS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{"isnan": np.isnan, "isinf": lambda x: int(np.isinf(x))},
}
_INTEGERS = {"char": 8, "short": 16, "int": 32, "ll": 64}


def _integer_type(name: str) -> np.dtype[Any] | None:
    """Of ``ushort`` and of ``uint16`` uint16."""
    if re.fullmatch(r"u?int(8|16|32|64)", name):
        return np.dtype(name)
    bits = _INTEGERS.get(name.removeprefix("u"))
    return None if bits is None else np.dtype(f"{'u' * name.startswith('u')}int{bits}")


def _of_numbers(function: Callable[..., Any], gives: Callable[[Any], Any]) -> Callable[..., Any]:
    def called(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            return gives(function(*map(np.float64, values)))

    return called


def _conversion(takes: str, gives: str, direction: str) -> Callable[..., Any] | None:
    """From or to bfloat16, rounded in that direction."""
    if gives == "bfloat16":
        return lambda value: BFloat16(value, direction)
    if gives in ("float", "float32"):
        return float
    if (kind := _integer_type(gives)) is None:
        return None
    low, high = (int(end) for end in (np.iinfo(kind).min, np.iinfo(kind).max))

    def integer(value: float) -> int:
        if value != value:
            return 0
        return min(max(low, DIRECTIONS[direction](np.clip(value, -1e30, 1e30))), high)

    return integer


def _cast_of_bits(takes: str, gives: str) -> Callable[..., Any]:
    kind = _integer_type(gives if takes == "bfloat16" else takes)
    assert kind is not None
    if takes == "bfloat16":
        return lambda value: int((np.float32(value).view(np.uint32) >> 16).astype(kind))
    return lambda bits: BFloat16((np.uint32(bits & 0xFFFF) << np.uint32(16)).view(np.float32))


@cache
def of_bfloat16(name: str) -> Any:
    """``numba.cuda.bf16.name``, and the type; None for what is not known."""
    if name in TYPE_NAMES:
        return BFloat16
    if found := re.fullmatch(r"(\w+?)_as_(\w+)", name):
        return _cast_of_bits(*found.groups())
    if found := re.fullmatch(r"(bfloat16|\w+?)(?:2|_to_)([a-z]\w*?)(?:_(r[nzdu]))?", name):
        return _conversion(found[1], found[2], found[3] or "rn")
    stem, _, after = name[1:].rpartition("_") if name.startswith("h") else ("", "", "")
    whole = name[1:]
    if whole in _UNARY or whole in _ARITHMETIC:
        return _of_numbers({**_UNARY, **_ARITHMETIC}[whole], BFloat16)
    if stem in _ARITHMETIC and after in _AFTERWARDS:
        return _of_numbers(_ARITHMETIC[stem], lambda value: BFloat16(_AFTERWARDS[after](value)))
    if whole in _TESTS:
        return _of_numbers(_TESTS[whole], lambda value: value if whole == "isinf" else bool(value))
    if whole[:-1] in _TESTS and whole.endswith("u"):  # true of NaN too
        test = _TESTS[whole[:-1]]
        return _of_numbers(lambda x, y: x != x or y != y or test(x, y), bool)
    return None
