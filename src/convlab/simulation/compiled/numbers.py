"""Numbers of compiled kernels, where a CPU computes otherwise than a GPU.

On a GPU a float beyond an integer's range becomes the nearest integer, and NaN becomes 0. ``max``
and ``min`` of a NaN and a number are the number. ``floor``, ``ceil`` and ``trunc`` give floats.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.core.cpu import CPUContext
from numba.core.extending import intrinsic


class GpuNumbers(CPUContext):
    """The context that generates code for a CPU, with a GPU's casts."""

    def cast(self, builder, value, from_type, to_type):
        """Return the value cast to another type: floats to integers saturate, as on a GPU."""
        whole = isinstance(to_type, types.Integer) and not isinstance(to_type, types.IntegerLiteral)
        if not isinstance(from_type, types.Float) or not whole:
            return super().cast(builder, value, from_type, to_type)
        width = max(32, to_type.bitwidth)  # a GPU's narrow numbers are the low bits of wide ones
        target = ir.IntType(width)
        name = f"llvm.fpto{'s' if to_type.signed else 'u'}i.sat.i{width}"
        name += ".f64" if from_type.bitwidth == 64 else ".f32"
        known = builder.module.globals.get(name)
        kind = ir.FunctionType(target, [value.type])
        function = ir.Function(builder.module, kind, name) if known is None else known
        whole_number = builder.call(function, [value])
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


# What stands in for a function of Python's in compiled code, by the function's id.
AS_ON_A_GPU = {
    id(builtins.max): _better(builtins.max, operator.gt),
    id(builtins.min): _better(builtins.min, operator.lt),
    id(builtins.round): _to_even,
    id(math.floor): _rounded("floor"),
    id(math.ceil): _rounded("ceil"),
    id(math.trunc): _rounded("trunc"),
}
