"""``cuda.shared``, ``cuda.local`` and ``cuda.const`` in compiled kernels."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.base import BaseContext
from numba.core.extending import (
    intrinsic,
)

from convlab.simulation.compiled.arrays import (
    CELL_BYTES,
    I64,
    LOCAL,
    SHARED,
    WIDE_BYTES,
    CompiledArray,
    entries_of,
    made,
    number,
)
from convlab.simulation.compiled.context import (
    CELLS,
    DYNAMIC_BYTES,
    DYNAMIC_SITE,
    LOCAL_BYTES,
    OFFSETS,
    SERIAL,
    SHARED_END,
    SHARED_LIMIT,
    SITE,
    WORD,
    load64,
    load_own,
    load_word,
    set_word,
    store64,
    store_word,
    word,
)
from convlab.simulation.compiled.context import (
    LOCAL as LOCAL_MEMORY,
)
from convlab.simulation.compiled.context import (
    SHARED as SHARED_MEMORY,
)
from convlab.simulation.compiled.names import CUDA, StandIn
from convlab.simulation.compiled.runtime import call, shared_code
from convlab.simulation.compiled.suspects import NO_ROOM, TWO_NAMES, give_up

CUDA.shared, CUDA.local = StandIn("cuda.shared"), StandIn("cuda.local")
CUDA.const = StandIn("cuda.const")
# Bytes of a thread's local arrays with their cells: half of what CUDA allows, because a block of
# 1,024 threads reserves a quarter of a gigabyte of address space for them.
LOCAL_LIMIT = 256 << 10


@shared_code("int64(int64, int64)")
def shared_offset(nbytes: int, alignment: int) -> int:
    """Return the byte at which the array of the running site begins in shared memory. An array has
    one offset for the whole launch."""
    address = word(OFFSETS) + word(SITE) * WORD
    if load64(address) == 0:
        begin = -(-word(SHARED_END) // alignment) * alignment
        set_word(SHARED_END, begin + nbytes)
        if begin + nbytes > word(SHARED_LIMIT):
            give_up(NO_ROOM)
        store64(address, begin + 1)
    return load64(address) - 1


@shared_code("int64()")
def dynamic_offset() -> int:
    """Return the byte at which dynamic shared memory begins. Two calls that request it may be two
    names of the same bytes, which only the other engine checks."""
    if word(DYNAMIC_SITE) == 0:
        set_word(DYNAMIC_SITE, word(SITE))
    elif word(DYNAMIC_SITE) != word(SITE):
        give_up(TWO_NAMES)
    return 0


@shared_code("int64(int64)")
def local_offset(nbytes: int) -> int:
    """Return the byte at which the array of the running site begins in a thread's local memory."""
    address = word(OFFSETS) + word(SITE) * WORD
    if load64(address) == 0:
        begin = word(LOCAL_BYTES)
        set_word(LOCAL_BYTES, begin + -(-nbytes // 16) * 16)
        if word(LOCAL_BYTES) > LOCAL_LIMIT:
            give_up(NO_ROOM)
        store64(address, begin + 1)
    return load64(address) - 1


def _element_type(kind: types.Type) -> types.Type | None:
    """Return the type of elements that an argument names, if it is one of plain numbers."""
    named = getattr(kind, "instance_type", None) or getattr(kind, "dtype", None)
    return named if isinstance(named, types.Number | types.Boolean) else None


def _array_type(
    shape: types.Type, dtype: types.Type, alignment: types.Type | None, space: str
) -> CompiledArray | None:
    element = _element_type(dtype)
    aligned = getattr(alignment, "literal_value", 1) % WIDE_BYTES == 0
    wide = space == SHARED and element == types.float32 and aligned
    integers = all(isinstance(one, types.Integer) for one in entries_of(shape))
    if element is None or not integers:
        return None
    return CompiledArray(element, len(entries_of(shape)), space, wide=wide)


def _sizes(context: BaseContext, builder, kind: types.Type, shape: ir.Value) -> list[ir.Value]:
    entries = [shape]
    if isinstance(kind, types.BaseTuple):
        entries = cgutils.unpack_tuple(builder, shape, len(kind))
    kinds = entries_of(kind)
    return [
        context.cast(builder, entry, one, types.int64)
        for entry, one in zip(entries, kinds, strict=True)
    ]


def _strides(builder: ir.IRBuilder, sizes: list[ir.Value], itemsize: int) -> list[ir.Value]:
    """Return the strides of a contiguous array, and the bytes that it has."""
    strides = [number(itemsize)]
    for size in reversed(sizes):
        strides.insert(0, builder.mul(strides[0], size))
    return strides


def _shared_array(typing, shape, dtype, alignment=None):
    kind = _array_type(shape, dtype, alignment, SHARED)
    if kind is None:
        return None
    by = number(getattr(alignment, "literal_value", None) or kind.itemsize)

    def generate(context, builder, types_, arguments):
        sizes = _sizes(context, builder, types_.args[0], arguments[0])
        nbytes, *strides = _strides(builder, sizes, kind.itemsize)
        dynamic = builder.icmp_signed("==", nbytes, number(0))
        with builder.if_else(dynamic) as (then, otherwise):
            with then:
                nothing = call(builder, "dynamic_offset", gives=I64)
                there = builder.sdiv(load_word(builder, DYNAMIC_BYTES), number(kind.itemsize))
                end_of_dynamic = builder.block
            with otherwise:
                begin = call(builder, "shared_offset", nbytes, by, gives=I64)
                end_of_static = builder.block
        offset, first = builder.phi(I64), builder.phi(I64)
        offset.add_incoming(nothing, end_of_dynamic)
        offset.add_incoming(begin, end_of_static)
        first.add_incoming(there, end_of_dynamic)
        first.add_incoming(sizes[0], end_of_static)
        cells = builder.mul(offset, number(CELL_BYTES[SHARED]))
        return made(
            context,
            builder,
            kind,
            data=builder.add(load_word(builder, SHARED_MEMORY), offset),
            cells=builder.add(load_word(builder, CELLS), cells),
            serial=number(0),
            shape=[first, *sizes[1:]],
            strides=strides,
        )

    given = types.Omitted(None) if alignment is None else alignment
    return kind(shape, dtype, given), generate


def _local_array(typing, shape, dtype, alignment=None):
    kind = _array_type(shape, dtype, alignment, LOCAL)
    if kind is None:
        return None

    def generate(context, builder, types_, arguments):
        sizes = _sizes(context, builder, types_.args[0], arguments[0])
        nbytes, *strides = _strides(builder, sizes, kind.itemsize)
        whole = builder.mul(builder.sdiv(builder.add(nbytes, number(15)), number(16)), number(16))
        elements = builder.sdiv(nbytes, number(kind.itemsize))
        with_cells = builder.add(whole, builder.mul(elements, number(WORD)))
        offset = call(builder, "local_offset", with_cells, gives=I64)
        data = builder.add(load_own(builder, LOCAL_MEMORY), offset)
        serial = builder.add(load_word(builder, SERIAL), number(1))
        store_word(builder, SERIAL, serial)
        return made(
            context,
            builder,
            kind,
            data=data,
            cells=builder.add(data, whole),
            serial=serial,
            shape=sizes,
            strides=strides,
        )

    given = types.Omitted(None) if alignment is None else alignment
    return kind(shape, dtype, given), generate


CUDA.shared.array = intrinsic(prefer_literal=True)(_shared_array)
CUDA.local.array = intrinsic(prefer_literal=True)(_local_array)


@intrinsic
def _array_like(typing, array):
    if not isinstance(array, CompiledArray):
        return None

    def generate(context, builder, types_, arguments):
        return arguments[0]

    return array(array), generate


CUDA.const.array_like = _array_like
