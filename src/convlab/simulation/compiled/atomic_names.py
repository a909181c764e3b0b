"""``cuda.atomic`` in compiled kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable

from llvmlite import ir
from numba.core import types
from numba.core.extending import (
    intrinsic,
)

from convlab.simulation.compiled.arrays import (
    GLOBAL,
    SHARED,
    CompiledArray,
    Parts,
    cell_of,
    element_offset,
    entries_of,
    is_known,
    load,
    number,
    same_numbers,
    store,
)
from convlab.simulation.compiled.callees import CHECKING
from convlab.simulation.compiled.context import (
    UNCHANGED,
    store_word,
)
from convlab.simulation.compiled.names import CUDA, StandIn
from convlab.simulation.compiled.runtime import call

CUDA.atomic = StandIn("cuda.atomic")
# Computes the new element from the old one and a value; gets a function that computes with numbers.
NewElement = Callable[[Callable[..., ir.Value], ir.IRBuilder, ir.Value, ir.Value], ir.Value]


def _atomic(combine: NewElement, checks: bool):
    """Return the atomic that combines the old element with a value; if it ``checks``, an outdated
    plain read before it does no harm."""

    @intrinsic
    def atomic(typing, array, index, value):
        if not is_known(array, index) or array.space not in (GLOBAL, SHARED):
            return None
        if len(entries_of(index)) < array.ndim or not typing.can_convert(value, array.dtype):
            return None
        element = array.dtype

        def generate(context, builder, types_, arguments):
            parts = Parts(context, builder, array, arguments[0])
            offset = element_offset(context, builder, parts, index, arguments[1])
            cell = cell_of(builder, parts, offset)
            _note_atomic(builder, array, cell)
            if checks:
                call(builder, "confirm", cell)
            old = load(context, builder, parts, offset, checked=False)
            given = context.cast(builder, arguments[2], value, element)

            def compute(function, *values: ir.Value, gives: types.Type = element) -> ir.Value:
                kinds = gives(*[element] * len(values))
                return context.get_function(function, kinds)(builder, values)

            new = combine(compute, builder, old, given)
            with builder.if_then(same_numbers(builder, element, old, new), likely=False):
                store_word(builder, UNCHANGED, number(1))
            store(context, builder, parts, offset, new, checked=False)
            return old

        return element(array, index, value), generate

    return atomic


def _note_atomic(builder: ir.IRBuilder, array: CompiledArray, cell: ir.Value) -> None:
    """Generate the check of an atomic, and what it tells other blocks."""
    call(builder, f"update_{array.space}", cell)
    if array.space == GLOBAL:
        call(builder, "exchange_messages", cell)


def _by(function: Callable[..., object]) -> NewElement:
    return lambda compute, builder, old, value: compute(function, old, value)


def _chosen(better: Callable[..., object], instead_of_nan: bool) -> NewElement:
    """Return what keeps the better of two numbers. With a NaN the old number stays, as Numba's
    atomics have it, unless a number comes ``instead_of_nan``."""

    def combine(compute, builder, old, value):
        takes = compute(better, value, old, gives=types.boolean)
        if instead_of_nan:
            takes = builder.or_(takes, compute(operator.ne, old, old, gives=types.boolean))
        return builder.select(takes, value, old)

    return combine


def _inc(compute, builder, old, value):
    again = builder.icmp_unsigned(">=", old, value)
    return builder.select(again, ir.Constant(old.type, 0), builder.add(old, old.type(1)))


def _dec(compute, builder, old, value):
    none = builder.icmp_unsigned("==", old, old.type(0))
    again = builder.or_(none, builder.icmp_unsigned(">", old, value))
    return builder.select(again, value, builder.sub(old, old.type(1)))


for _name, _combine in {
    "add": _by(operator.add),
    "sub": _by(operator.sub),
    "and_": _by(operator.and_),
    "or_": _by(operator.or_),
    "xor": _by(operator.xor),
    "exch": lambda compute, builder, old, value: value,
    "inc": _inc,
    "dec": _dec,
    "max": _chosen(operator.gt, False),
    "min": _chosen(operator.lt, False),
    "nanmax": _chosen(operator.gt, True),
    "nanmin": _chosen(operator.lt, True),
}.items():
    setattr(CUDA.atomic, _name, _atomic(_combine, checks=_name in CHECKING))


def _swap(typing, array, index, expected, value):
    if not is_known(array, index) or array.space not in (GLOBAL, SHARED):
        return None
    element = array.dtype
    if len(entries_of(index)) < array.ndim or not isinstance(element, types.Integer):
        return None
    if not all(typing.can_convert(one, element) for one in (expected, value)):
        return None

    def generate(context, builder, types_, arguments):
        parts = Parts(context, builder, array, arguments[0])
        offset = element_offset(context, builder, parts, index, arguments[1])
        cell = cell_of(builder, parts, offset)
        call(builder, f"update_{array.space}", cell)
        call(builder, "confirm", cell)
        old = load(context, builder, parts, offset, checked=False)
        before = context.cast(builder, arguments[2], expected, element)
        after = context.cast(builder, arguments[3], value, element)
        as_expected = builder.icmp_signed("==", old, before)
        new = builder.select(as_expected, after, old)
        with builder.if_then(builder.icmp_signed("==", old, new), likely=False):
            store_word(builder, UNCHANGED, number(1))
        store(context, builder, parts, offset, new, checked=False)
        return old

    return element(array, index, expected, value), generate


CUDA.atomic.cas = intrinsic(_swap)
