"""The calls of a warp's lanes in compiled kernels, and functions of a number's bits."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.core.extending import intrinsic

from convlab.simulation.compiled.arrays import I64, number
from convlab.simulation.compiled.context import (
    BEYOND,
    BEYOND_WARP,
    LANE,
    MASK,
    OTHER,
    VALUE,
    load_own,
    load_word,
    store_own,
    store_word,
)
from convlab.simulation.compiled.names import CUDA, I32
from convlab.simulation.compiled.runtime import call
from convlab.simulation.compiled.states import (
    ACTIVEMASK,
    ALL,
    ANY,
    BALLOT,
    EQ,
    MATCH_ALL,
    MATCH_ANY,
    SHUFFLE,
    SYNCWARP,
)

ALL_LANES = 0xFFFFFFFF
SHUFFLED = types.int32, types.int64, types.float32, types.float64


def _wait(builder: ir.IRBuilder, state: int, mask: ir.Value, value: ir.Value | None = None):
    """Generate a call in which a lane waits for those of a mask; return its result, a word."""
    store_own(builder, MASK, builder.and_(mask, number(ALL_LANES)))
    store_own(builder, VALUE, number(0) if value is None else value)
    return call(builder, "wait", number(state), gives=I64)


def _as_word(builder: ir.IRBuilder, kind: types.Type, value: ir.Value) -> ir.Value:
    """Return the bits of a number, as a word."""
    if isinstance(kind, types.Float):
        value = builder.bitcast(value, ir.IntType(kind.bitwidth))
    if isinstance(kind, types.Boolean) or value.type.width < 64:
        return builder.zext(value, I64)
    return value


def _of_word(builder: ir.IRBuilder, kind: types.Type, word: ir.Value) -> ir.Value:
    """Return the number whose bits a word holds."""
    bits = word if kind.bitwidth == 64 else builder.trunc(word, ir.IntType(kind.bitwidth))
    if isinstance(kind, types.Float):
        return builder.bitcast(bits, ir.FloatType() if kind.bitwidth == 32 else ir.DoubleType())
    return bits


@intrinsic
def _syncwarp(typing, mask=None):
    given = types.Omitted(None) if mask is None else mask
    named = isinstance(mask, types.Integer)

    def generate(context, builder, types_, arguments):
        lanes = number(ALL_LANES)
        if named:
            lanes = context.cast(builder, arguments[0], types_.args[0], types.int64)
        _wait(builder, SYNCWARP, lanes)
        return context.get_dummy_value()

    return types.none(given), generate


@intrinsic
def _activemask(typing):
    def generate(context, builder, types_, arguments):
        return builder.trunc(_wait(builder, ACTIVEMASK, number(0)), I32)

    return types.uint32(), generate


def _vote(state: int, gives: types.Type):
    @intrinsic
    def vote(typing, mask, predicate):
        def generate(context, builder, types_, arguments):
            lanes = context.cast(builder, arguments[0], types_.args[0], types.int64)
            true = context.cast(builder, arguments[1], types_.args[1], types.boolean)
            result = _wait(builder, state, lanes, builder.zext(true, I64))
            return builder.trunc(result, ir.IntType(1) if gives is types.boolean else I32)

        return gives(mask, predicate), generate

    return vote


@intrinsic
def _match_any(typing, mask, value):
    kind = types.unliteral(value)
    if kind not in SHUFFLED:
        return None

    def generate(context, builder, types_, arguments):
        lanes = context.cast(builder, arguments[0], types_.args[0], types.int64)
        word = _as_word(builder, kind, context.cast(builder, arguments[1], types_.args[1], kind))
        return builder.trunc(_wait(builder, MATCH_ANY, lanes, word), I32)

    return types.int32(mask, value), generate


@intrinsic
def _match_all(typing, mask, value):
    kind, gives = types.unliteral(value), types.Tuple((types.int32, types.boolean))
    if kind not in SHUFFLED:
        return None

    def generate(context, builder, types_, arguments):
        lanes = context.cast(builder, arguments[0], types_.args[0], types.int64)
        word = _as_word(builder, kind, context.cast(builder, arguments[1], types_.args[1], kind))
        mask = builder.trunc(_wait(builder, MATCH_ALL, lanes, word), I32)
        same = builder.icmp_signed("!=", mask, I32(0))
        return context.make_tuple(builder, gives, [mask, same])

    return gives(mask, value), generate


# Returns the lane that one reads from, by its own number and an argument.
Source = Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]


def _shuffle(source: Source):
    @intrinsic
    def shuffle(typing, mask, value, argument):
        kind = types.unliteral(value)
        if kind not in SHUFFLED:
            return None

        def generate(context, builder, types_, arguments):
            lanes = context.cast(builder, arguments[0], types_.args[0], types.int64)
            own = context.cast(builder, arguments[1], types_.args[1], kind)
            given = context.cast(builder, arguments[2], types_.args[2], types.int64)
            other = source(builder, load_own(builder, LANE), given)
            store_own(builder, OTHER, other)
            result = _wait(builder, SHUFFLE, lanes, _as_word(builder, kind, own))
            outside = builder.icmp_unsigned(">=", other, number(32))
            with builder.if_else(outside, likely=False) as (then, otherwise):
                with then:
                    store_word(builder, BEYOND_WARP, number(1))
                    changed = _beyond(context, builder, kind, own)
                    end_of_then = builder.block
                with otherwise:
                    read = _of_word(builder, kind, result)
                    end_of_otherwise = builder.block
            chosen = builder.phi(read.type)
            chosen.add_incoming(changed, end_of_then)
            chosen.add_incoming(read, end_of_otherwise)
            return chosen

        return kind(mask, value, argument), generate

    return shuffle


def _beyond(context, builder: ir.IRBuilder, kind: types.Type, own: ir.Value) -> ir.Value:
    """Return what a lane reads from beyond the warp: its own number, or with ``BEYOND`` 1 a larger
    one and with -1 a smaller one, which show whether that matters."""
    sign = load_word(builder, BEYOND)
    if isinstance(kind, types.Float):
        sign = builder.sitofp(sign, own.type)
        negative = builder.fcmp_ordered("<", own, own.type(0))
        size = builder.select(negative, builder.fneg(own), own)
        return builder.fadd(own, builder.fmul(sign, builder.fadd(size, own.type(1))))
    sign = sign if kind.bitwidth == 64 else builder.trunc(sign, own.type)
    negative = builder.icmp_signed("<", own, own.type(0))
    size = builder.select(negative, builder.neg(own), own)
    other = builder.add(own, builder.mul(sign, builder.add(size, own.type(1))))
    below = builder.and_(builder.not_(negative), builder.icmp_signed("<", other, own.type(0)))
    return builder.select(below, own.type(0), other)


CUDA.syncwarp, CUDA.activemask = _syncwarp, _activemask
CUDA.ballot_sync, CUDA.all_sync = _vote(BALLOT, types.int32), _vote(ALL, types.boolean)
CUDA.any_sync, CUDA.eq_sync = _vote(ANY, types.boolean), _vote(EQ, types.boolean)
CUDA.match_any_sync, CUDA.match_all_sync = _match_any, _match_all
CUDA.shfl_sync = _shuffle(lambda builder, lane, given: builder.and_(given, number(31)))
CUDA.shfl_up_sync = _shuffle(lambda builder, lane, given: builder.sub(lane, given))
CUDA.shfl_down_sync = _shuffle(lambda builder, lane, given: builder.add(lane, given))
CUDA.shfl_xor_sync = _shuffle(
    lambda builder, lane, given: builder.and_(builder.xor(lane, given), number(31))
)
