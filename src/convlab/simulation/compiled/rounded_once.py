"""Functions of compiled kernels whose results are, bit for bit, those of the explaining engine.

That engine computes in float64 and rounds a float32's result once. Numba's functions of float32
numbers round on the way: of 2,048 values, ``tanh`` differed for 273. So machine code computes in
float64 too. Where Python's own function is not the C library's, both engines call the C library's
(:mod:`convlab.simulation.numbers.math_functions`).
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.base import BaseContext
from numba.core.cpu import CPUContext
from numba.core.typing import Signature
from numba.core.typing import signature as signature_of

# Called with an IR builder, the arguments and perhaps a place in the kernel's text.
Generate = Callable[..., ir.Value]

_POWERS = operator.pow, operator.ipow, builtins.pow
_NAMES = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "degrees", "erf"),
    *("erfc", "exp", "exp2", "expm1", "gamma", "hypot", "lgamma", "log", "log10", "log1p", "log2"),
    *("pow", "radians", "sin", "sinh", "tan", "tanh"),
)
_OF_NUMPY = (
    *("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "cos", "cosh"),
    *("deg2rad", "degrees", "log", "log10", "log2", "rad2deg", "radians", "sin", "sinh"),
    *("tan", "tanh"),
)
_OF_COMPLEX = operator.mul, operator.imul, operator.truediv, operator.itruediv
# Functions that compute float32 numbers as float64.
_WIDENED = {
    *(getattr(math, name) for name in _NAMES if hasattr(math, name)),
    *(getattr(np, name) for name in _OF_NUMPY),
    *(*_POWERS, operator.floordiv, operator.ifloordiv, operator.mod, operator.imod, divmod),
}
# Functions of float64 that the C library computes, by their names there. The compiler would replace
# calls of ``pow`` by other functions.
_OF_C_LIBRARY: dict[Any, str] = {
    **dict.fromkeys((*_POWERS, math.pow), "pow"),
    math.gamma: "tgamma",
    math.lgamma: "lgamma",
    math.hypot: "hypot",
}


class _Wider(NamedTuple):
    """A type of numbers, and the type in which machine code computes with them."""

    narrow: types.Type
    wide: types.Type

    def of(self, kind: types.Type) -> types.Type:
        """Return the type in which machine code computes instead of another type."""
        if isinstance(kind, types.UniTuple):
            return types.UniTuple(self.of(kind.dtype), kind.count)
        return self.wide if kind == self.narrow else kind


_FLOATS = _Wider(types.float32, types.float64)
_COMPLEX = _Wider(types.complex64, types.complex128)


def implementation(context: BaseContext, function: Any, signature: Signature) -> Generate | None:
    """Return what generates a call of a function with such a signature; None if Numba's own
    implementation computes what the other engine does."""
    arguments = signature.args
    if not _has_hash(function):
        return None
    if function in _OF_COMPLEX and signature.return_type == types.complex64:
        return _computed_as(_COMPLEX, context, function, signature)
    if function in _POWERS and isinstance(arguments[1], types.Integer):
        known = isinstance(arguments[0], types.Integer | types.Float)
        return _integer_power(context, function, signature) if known else None
    if function in _WIDENED and types.float32 in arguments:
        return _computed_as(_FLOATS, context, function, signature)
    if function in _OF_C_LIBRARY and {*arguments} == {types.float64}:
        return of_c_library(_OF_C_LIBRARY[function])
    return None


def _has_hash(function: Any) -> bool:
    try:
        hash(function)
    except TypeError:
        return False
    return True


def _computed_as(
    wider: _Wider, context: BaseContext, function: Any, signature: Signature
) -> Generate:
    """Return what computes with wider numbers, and rounds the result."""
    wide = signature_of(*map(wider.of, (signature.return_type, *signature.args)))
    compute = context.get_function(function, wide)

    def generate(builder: ir.IRBuilder, arguments: Any, loc: Any = None) -> ir.Value:
        given = [
            context.cast(builder, value, kind, other)
            for value, kind, other in zip(arguments, signature.args, wide.args, strict=True)
        ]
        result = compute(builder, given)
        return context.cast(builder, result, wide.return_type, signature.return_type)

    return generate


def _integer_power(context: BaseContext, function: Any, signature: Signature) -> Generate:
    """Return what raises a number to an integer power, by multiplications as on a GPU.

    A float's negative power is 1 by the positive one: Numba's own division would raise an exception
    for zero. An integer's power rounds to float64, unless the exponent is constant.
    """
    base, given = signature.args
    if isinstance(base, types.Integer):
        return _rounded_power(context, function, signature)
    exponent = types.unliteral(given)
    inner = signature_of(signature.return_type, base, exponent)
    compute = CPUContext.get_function(context, function, inner)

    def generate(builder: ir.IRBuilder, arguments: Any, loc: Any = None) -> ir.Value:
        number = context.cast(builder, arguments[1], given, exponent)
        if not exponent.signed:
            return compute(builder, (arguments[0], number))
        is_negative = builder.icmp_signed("<", number, number.type(0))
        positive = builder.select(is_negative, builder.neg(number), number)
        power = compute(builder, (arguments[0], positive))
        return builder.select(is_negative, builder.fdiv(power.type(1.0), power), power)

    return generate


def _rounded_power(context: BaseContext, function: Any, signature: Signature) -> Generate:
    compute, kind = CPUContext.get_function(context, function, signature), signature.return_type
    is_constant = isinstance(signature.args[1], types.IntegerLiteral)

    def generate(builder: ir.IRBuilder, arguments: Any, loc: Any = None) -> ir.Value:
        power = compute(builder, arguments)
        if is_constant:
            return power
        rounded = context.cast(builder, power, kind, types.float64)
        return context.cast(builder, rounded, types.float64, kind)

    return generate


def of_c_library(name: str) -> Generate:
    """Return what calls a function of the C library with float64 numbers."""

    def generate(builder: ir.IRBuilder, arguments: Any, loc: Any = None) -> ir.Value:
        double = ir.DoubleType()
        function = builder.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(double, [double] * len(arguments))
            function = ir.Function(builder.module, kind, name)
            function.attributes.add("nobuiltin")
        return builder.call(function, arguments)

    return generate
