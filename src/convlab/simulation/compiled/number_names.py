"""``cuda``'s functions of a number's bits, and others without memory, in compiled kernels."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.core.extending import intrinsic

from convlab.simulation.compiled.context import (
    LANE,
    load_own,
)
from convlab.simulation.compiled.names import CUDA, I32


def _of_bits(compute: Callable[[ir.IRBuilder, ir.Value], ir.Value], gives: types.Type | None):
    """Return a function of an integer's bits, of which there are 32 or 64. It gives an integer of
    the type ``gives``, or of its argument's."""

    @intrinsic
    def function(typing, value):
        kind = types.unliteral(value)
        if not isinstance(kind, types.Integer) or kind.bitwidth not in (32, 64):
            return None

        def generate(context, builder, types_, arguments):
            result = compute(builder, context.cast(builder, arguments[0], types_.args[0], kind))
            narrow = gives is not None and result.type.width > gives.bitwidth
            return builder.trunc(result, ir.IntType(gives.bitwidth)) if narrow else result

        return (gives or kind)(value), generate

    return function


def _ffs(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    first = builder.cttz(value, ir.IntType(1)(0))
    none = builder.icmp_unsigned("==", value, value.type(0))
    return builder.select(none, value.type(0), builder.add(first, value.type(1)))


CUDA.popc = _of_bits(lambda builder, value: builder.ctpop(value), types.int32)
CUDA.clz = _of_bits(lambda builder, value: builder.ctlz(value, ir.IntType(1)(0)), types.int32)
CUDA.ffs = _of_bits(_ffs, types.uint32)


@intrinsic
def _brev(typing, value):
    kind = types.unliteral(value)
    if not isinstance(kind, types.Integer) or kind.bitwidth not in (32, 64):
        return None

    def generate(context, builder, types_, arguments):
        return builder.bitreverse(context.cast(builder, arguments[0], types_.args[0], kind))

    return (types.uint64 if kind.bitwidth == 64 else types.uint32)(value), generate


CUDA.brev = _brev


@intrinsic
def _fma(typing, a, b, c):
    kind = types.unliteral(a)
    if not isinstance(kind, types.Float) or {types.unliteral(b), types.unliteral(c)} != {kind}:
        return None

    def generate(context, builder, types_, arguments):
        return builder.fma(*arguments)

    return kind(a, b, c), generate


@intrinsic
def _selp(typing, condition, yes, no):
    if types.unliteral(yes) != types.unliteral(no):
        return None

    def generate(context, builder, types_, arguments):
        true = context.cast(builder, arguments[0], types_.args[0], types.boolean)
        kind = types.unliteral(yes)
        values = [
            context.cast(builder, value, one, kind)
            for value, one in zip(arguments[1:], types_.args[1:], strict=True)
        ]
        return builder.select(true, *values)

    return types.unliteral(yes)(condition, yes, no), generate


@intrinsic
def _lanemask_lt(typing):
    def generate(context, builder, types_, arguments):
        lane = builder.trunc(load_own(builder, LANE), I32)
        return builder.sub(builder.shl(I32(1), lane), I32(1))

    return types.uint32(), generate


CUDA.fma, CUDA.selp, CUDA.lanemask_lt = _fma, _selp, _lanemask_lt
