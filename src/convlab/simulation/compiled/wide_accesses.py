"""The float4 accesses of :mod:`convlab.device` in compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.base import BaseContext
from numba.core.extending import intrinsic

from convlab.device import emulation_of, issue_loads, load4, store4
from convlab.simulation.compiled.arrays import (
    WIDE_BYTES,
    Parts,
    element_offset,
    entries_of,
    is_known,
    load,
    number,
    store,
)
from convlab.simulation.compiled.runtime import call
from convlab.simulation.compiled.suspects import MISALIGNED, OUTSIDE

FOUR = 4


def _takes(array: types.Type, index: types.Type) -> bool:
    return is_known(array, index) and array.wide and len(entries_of(index)) == array.ndim


def _offsets(
    context: BaseContext, builder: ir.IRBuilder, parts: Parts, kind: types.Type, index: ir.Value
) -> Iterator[ir.Value]:
    """Give the byte offsets of the four elements of an access, after its checks."""
    first = element_offset(context, builder, parts, kind, index)
    entry = index
    if isinstance(kind, types.BaseTuple):
        entry = cgutils.unpack_tuple(builder, index, len(kind))[-1]
    at = context.cast(builder, entry, entries_of(kind)[-1], types.int64)
    last = builder.add(at, number(FOUR - 1))
    with builder.if_then(builder.icmp_unsigned(">=", last, parts.shape[-1]), likely=False):
        call(builder, "give_up", number(OUTSIDE))
    address = builder.add(parts.data, first)
    rest = builder.and_(address, number(WIDE_BYTES - 1))
    with builder.if_then(builder.icmp_signed("!=", rest, number(0)), likely=False):
        call(builder, "give_up", number(MISALIGNED))
    for element in range(FOUR):
        yield builder.add(first, number(element * parts.kind.itemsize))


@intrinsic
def _load4(typing, array, index):
    if not _takes(array, index):
        return None
    four = types.UniTuple(types.float32, FOUR)

    def generate(context, builder, types_, arguments):
        parts = Parts(context, builder, array, arguments[0])
        offsets = _offsets(context, builder, parts, index, arguments[1])
        values = [load(context, builder, parts, offset) for offset in offsets]
        return cgutils.pack_array(builder, values)

    return four(array, index), generate


@intrinsic
def _store4(typing, array, index, values):
    if not _takes(array, index) or not isinstance(values, types.BaseTuple) or len(values) != FOUR:
        return None

    def generate(context, builder, types_, arguments):
        parts = Parts(context, builder, array, arguments[0])
        offsets = _offsets(context, builder, parts, index, arguments[1])
        four = cgutils.unpack_tuple(builder, arguments[2], FOUR)
        for offset, value, kind in zip(offsets, four, values.types, strict=True):
            store(
                context, builder, parts, offset, context.cast(builder, value, kind, types.float32)
            )
        return context.get_dummy_value()

    return types.none(array, index, values), generate


@intrinsic
def _issue_loads(typing):
    def generate(context, builder, types_, arguments):
        return context.get_dummy_value()

    return types.none(), generate


# What runs in place of an intrinsic, by the intrinsic's emulation.
INTRINSICS = {
    emulation_of(intrinsic): compiled
    for intrinsic, compiled in ((load4, _load4), (store4, _store4), (issue_loads, _issue_loads))
}
