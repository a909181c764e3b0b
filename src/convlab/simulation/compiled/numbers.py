"""Numbers of compiled kernels, where a CPU computes otherwise than a GPU.

On a GPU a float beyond an integer's range becomes the nearest integer. NaN becomes 0, and in 64
bits the number with only the highest bit. ``max`` and ``min`` of a NaN and a number are the number.
``floor``, ``ceil`` and ``trunc`` give floats. Functions of float32 numbers round once
(:mod:`convlab.simulation.compiled.rounded_once`).
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.cpu import CPUContext
from numba.core.extending import intrinsic

from convlab.simulation.compiled.rounded_once import implementation, of_c_library

# Functions that Numba has compiled for a context's own use, such as a power by multiplications.
_internal_functions: dict[object, object] = {}


class GpuNumbers(CPUContext):
    """The context that generates code for a CPU, with numbers as a GPU has them."""

    @classmethod
    def of(cls, context: CPUContext) -> GpuNumbers:
        """Return such a context for a context of Numba's. It shares no compiled function with
        Numba's own, where these functions compute otherwise."""
        made = context.subtarget()  # a copy
        made.__class__ = cls
        made.cached_internal_func = _internal_functions
        return made

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """Return what generates a call of a function with such a signature."""
        sig = sig.as_function()
        key = fn.get_impl_key(sig) if isinstance(fn, types.Callable) else fn
        found = implementation(self, key, sig)
        return super().get_function(fn, sig, _firstcall) if found is None else found

    def cast(self, builder, value, from_type, to_type):
        """Return the value cast to another type: floats to integers saturate, as on a GPU."""
        whole = isinstance(to_type, types.Integer) and not isinstance(to_type, types.IntegerLiteral)
        if not isinstance(from_type, types.Float) or not whole:
            return super().cast(builder, value, from_type, to_type)
        width = max(16, to_type.bitwidth)  # a GPU has no conversion to 8 bits: it keeps 8 of 16
        target = ir.IntType(width)
        name = f"llvm.fpto{'s' if to_type.signed else 'u'}i.sat.i{width}"
        name += ".f64" if from_type.bitwidth == 64 else ".f32"
        known = builder.module.globals.get(name)
        kind = ir.FunctionType(target, [value.type])
        function = ir.Function(builder.module, kind, name) if known is None else known
        whole_number = builder.call(function, [value])
        if width == 64:
            is_nan = builder.fcmp_unordered("uno", value, value)
            whole_number = builder.select(is_nan, target(1 << 63), whole_number)
        if to_type.bitwidth == width:
            return whole_number
        return builder.trunc(whole_number, self.get_value_type(to_type))


def _better(built_in: Callable[..., object], compare: Callable[..., object]):
    """Return ``max`` or ``min`` of two numbers; NaN beside a number is left out."""

    @intrinsic
    def better(typing, one, two=None):
        if not isinstance(two, types.Number | types.Boolean):
            return None
        kind = typing.unify_types(types.unliteral(one), types.unliteral(two))
        if not isinstance(kind, types.Integer | types.Float | types.Boolean):
            return None

        def generate(context, builder, types_, arguments):
            first, second = (
                context.cast(builder, value, given, kind)
                for value, given in zip(arguments, types_.args, strict=True)
            )
            signature = types.boolean(kind, kind)
            takes = context.get_function(compare, signature)(builder, (second, first))
            if isinstance(kind, types.Float):
                takes = builder.or_(takes, builder.fcmp_unordered("uno", first, first))
            return builder.select(takes, second, first)

        return kind(one, two), generate

    return better


def _rounded(name: str):
    """Return a function that rounds a number to a whole one, which stays a float."""

    @intrinsic
    def rounded(typing, value):
        given = types.unliteral(value)
        if not isinstance(given, types.Integer | types.Float):
            return None
        kind = given if isinstance(given, types.Float) else types.float64

        def generate(context, builder, types_, arguments):
            number = context.cast(builder, arguments[0], types_.args[0], kind)
            symbol = f"llvm.{name}.f{kind.bitwidth}"
            known = builder.module.globals.get(symbol)
            signature = ir.FunctionType(number.type, [number.type])
            function = ir.Function(builder.module, signature, symbol) if known is None else known
            return builder.call(function, [number])

        return kind(value), generate

    return rounded


@intrinsic
def _to_even(typing, value):
    """Return a float rounded to a whole number, as an integer; the even one of two as near."""
    kind = types.unliteral(value)
    if not isinstance(kind, types.Float):
        return None

    def generate(context, builder, types_, arguments):
        symbol = f"llvm.rint.f{kind.bitwidth}"
        known = builder.module.globals.get(symbol)
        signature = ir.FunctionType(arguments[0].type, [arguments[0].type])
        function = ir.Function(builder.module, signature, symbol) if known is None else known
        return context.cast(builder, builder.call(function, arguments), kind, types.int64)

    return types.int64(value), generate


@intrinsic
def _whole(typing, value):
    """Return ``int(value)``: a float is cut."""
    given = types.unliteral(value)
    if not isinstance(given, types.Integer | types.Float | types.Boolean):
        return None
    kind = given if isinstance(given, types.Integer) else types.int64

    def generate(context, builder, types_, arguments):
        return context.cast(builder, arguments[0], types_.args[0], kind)

    return kind(value), generate


def _float_of(*given: types.Type) -> types.Float | None:
    """Return the type in which a GPU computes ``math``'s functions of two such numbers; None unless
    they are numbers."""
    kinds = {*map(types.unliteral, given)}
    if not all(isinstance(kind, types.Integer | types.Float | types.Boolean) for kind in kinds):
        return None
    is_single = all(
        kind == types.float32 or (not isinstance(kind, types.Float) and kind.bitwidth < 32)
        for kind in kinds
    )
    return types.float32 if is_single else types.float64


def _of_two(name: str, exponent: types.Type | None = None):
    """Return a function of two floats that the C library computes as float64. A second argument of
    the type ``exponent`` leaves a float32 a float32."""

    @intrinsic
    def function(typing, one, two):
        of_exponent = exponent is not None and types.unliteral(two) == exponent
        kind = _float_of(one) if of_exponent else _float_of(one, two)
        if kind is None:
            return None

        def generate(context, builder, types_, arguments):
            wide = [
                context.cast(builder, value, given, types.float64)
                for value, given in zip(arguments, types_.args, strict=True)
            ]
            found = of_c_library(name)(builder, wide)
            return context.cast(builder, found, types.float64, kind)

        return kind(one, two), generate

    return function


@intrinsic
def _modf(typing, value):
    """Return the part of a float behind its point, and the one before it."""
    kind = types.unliteral(value)
    if not isinstance(kind, types.Float):
        return None

    def generate(context, builder, types_, arguments):
        (number,) = arguments
        module, float_type = builder.module, number.type
        whole = builder.call(module.declare_intrinsic("llvm.trunc", [float_type]), [number])
        size = builder.call(module.declare_intrinsic("llvm.fabs", [float_type]), [number])
        infinite = builder.fcmp_ordered("==", size, float_type(math.inf))
        part = builder.select(infinite, float_type(0.0), builder.fsub(number, whole))
        signature = ir.FunctionType(float_type, [float_type] * 2)
        sign = module.declare_intrinsic("llvm.copysign", [float_type], signature)
        signed = builder.call(sign, [part, number])
        return context.make_tuple(builder, types_.return_type, [signed, whole])

    return types.UniTuple(kind, 2)(value), generate


# What stands in for a function of Python's in compiled code, by the function's id.
AS_ON_A_GPU = {
    id(builtins.max): _better(builtins.max, operator.gt),
    id(builtins.min): _better(builtins.min, operator.lt),
    id(builtins.round): _to_even,
    id(builtins.int): _whole,
    id(math.floor): _rounded("floor"),
    id(math.ceil): _rounded("ceil"),
    id(math.trunc): _rounded("trunc"),
    id(math.fmod): _of_two("fmod"),
    id(math.remainder): _of_two("remainder"),
    id(math.modf): _modf,
    id(math.pow): _of_two("pow", exponent=types.int32),
}
