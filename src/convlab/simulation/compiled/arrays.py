"""Arrays in compiled kernels: a type of Numba's whose accesses are checked.

An array has its data, its elements' cells of shadow memory, sizes and strides. The cells of an
array lie one after the other as its elements do, so a view has its own cells too. Local memory is
a thread's own: a cell there is one word, which holds the serial number of the array that has
written the element.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.base import BaseContext
from numba.core.datamodel import StructModel
from numba.core.extending import (
    make_attribute_wrapper,
    overload,
    overload_attribute,
    register_model,
    typeof_impl,
)
from numba.core.imputils import lower_constant
from numba.np.numpy_support import from_dtype

from convlab.simulation.compiled.cells import CELL
from convlab.simulation.compiled.context import WORD
from convlab.simulation.compiled.runtime import call
from convlab.simulation.compiled.suspects import NEGATIVE_ALONG, OUTSIDE, UNWRITTEN

GLOBAL, SHARED, LOCAL, CONSTANT = "global", "shared", "local", "constant"
CELL_BYTES = {GLOBAL: CELL, SHARED: CELL, LOCAL: WORD, CONSTANT: 0}
I64 = ir.IntType(64)
WIDE_BYTES = 16  # of a float4


def number(value: int) -> ir.Constant:
    """Return a word with that value."""
    return ir.Constant(I64, value)


class CompiledArray(types.Type):
    """The type of an array in a memory space. ``compact`` if its last axis has the stride of its
    elements, which makes accesses quicker; ``wide`` if float4 accesses may take it."""

    def __init__(
        self,
        dtype: types.Type,
        ndim: int,
        space: str,
        *,
        compact: bool = True,
        wide: bool = False,
    ) -> None:
        self.dtype, self.ndim, self.space = dtype, ndim, space
        self.compact, self.wide = compact, wide
        super().__init__(f"checked({dtype}, {ndim}, {space}, {compact}, {wide})")

    @property
    def key(self) -> tuple[object, ...]:
        """The fields by which Numba tells two types apart."""
        return self.dtype, self.ndim, self.space, self.compact, self.wide

    @property
    def itemsize(self) -> int:
        """The bytes of an element in memory."""
        return 1 if isinstance(self.dtype, types.Boolean) else self.dtype.bitwidth // 8

    def part(self, ndim: int) -> CompiledArray:
        """Return the type of the last axes."""
        return CompiledArray(
            self.dtype, ndim, self.space, compact=self.compact, wide=self.wide and ndim > 0
        )


@register_model(CompiledArray)
class CompiledArrayModel(StructModel):
    """The members of an array: addresses and numbers of bytes or elements."""

    def __init__(self, manager, kind: CompiledArray) -> None:
        sizes = types.UniTuple(types.int64, kind.ndim)
        members = [
            ("data", types.int64),
            ("cells", types.int64),
            ("serial", types.int64),
            ("shape", sizes),
            ("strides", sizes),
        ]
        super().__init__(manager, kind, members)


for _name in "shape", "strides":
    make_attribute_wrapper(CompiledArray, _name, _name)


@overload_attribute(CompiledArray, "size")
def _size(array):
    def size(array):
        product = 1
        for extent in array.shape:
            product *= extent
        return product

    return size


@overload_attribute(CompiledArray, "ndim")
def _ndim(array):
    ndim = array.ndim
    return lambda array: ndim


@overload_attribute(CompiledArray, "itemsize")
def _itemsize(array):
    itemsize = array.itemsize
    return lambda array: itemsize


@overload_attribute(CompiledArray, "nbytes")
def _nbytes(array):
    itemsize = array.itemsize
    return lambda array: array.size * itemsize


@overload(len)
def _len(array):
    return (lambda array: array.shape[0]) if isinstance(array, CompiledArray) else None


class Parts:
    """The members of an array's value while code is generated."""

    def __init__(self, context: BaseContext, builder, kind: CompiledArray, value: ir.Value) -> None:
        proxy = cgutils.create_struct_proxy(kind)(context, builder, value)
        self.kind, self.data, self.cells = kind, proxy.data, proxy.cells
        self.serial = proxy.serial
        self.shape = cgutils.unpack_tuple(builder, proxy.shape, kind.ndim)
        self.strides = cgutils.unpack_tuple(builder, proxy.strides, kind.ndim)


def made(
    context: BaseContext,
    builder: ir.IRBuilder,
    kind: CompiledArray,
    *,
    data: ir.Value,
    cells: ir.Value,
    serial: ir.Value,
    shape: Sequence[ir.Value],
    strides: Sequence[ir.Value],
) -> ir.Value:
    """Return the value of an array with these members."""
    proxy = cgutils.create_struct_proxy(kind)(context, builder)
    proxy.data, proxy.cells, proxy.serial = data, cells, serial
    proxy.shape = cgutils.pack_array(builder, shape, I64)
    proxy.strides = cgutils.pack_array(builder, strides, I64)
    return proxy._getvalue()


# Arrays that are compiled into a kernel.


class CompiledConstant:
    """An array in constant memory: a value from outside a kernel."""

    def __init__(self, host: np.ndarray) -> None:
        self.host = np.ascontiguousarray(host)


@typeof_impl.register(CompiledConstant)
def _type_of_constant(value: CompiledConstant, context: object) -> CompiledArray:
    return CompiledArray(from_dtype(value.host.dtype), value.host.ndim, CONSTANT)


@lower_constant(CompiledArray)
def _constant(context, builder, kind, value):
    host = value.host
    # Its bytes are a part of the machine code, which another process may load.
    content = ir.Constant(ir.ArrayType(ir.IntType(8), host.nbytes), bytearray(host.tobytes()))
    data = cgutils.global_constant(builder, "convlab_constant", content)
    data.align = WIDE_BYTES
    return made(
        context,
        builder,
        kind,
        data=builder.ptrtoint(data, I64),
        cells=number(0),
        serial=number(0),
        shape=[number(size) for size in host.shape],
        strides=[number(stride) for stride in host.strides],
    )


# Indices.


def entries_of(index: types.Type) -> list[types.Type]:
    """Return the types of an index's entries."""
    return [*index.types] if isinstance(index, types.BaseTuple) else [index]


def is_known(array: types.Type, index: types.Type) -> bool:
    """Return whether an index of integers selects an element or a part of an array."""
    entries = entries_of(index)
    integers = all(isinstance(one, types.Integer) for one in entries)
    return isinstance(array, CompiledArray) and integers and len(entries) <= array.ndim


def element_offset(
    context: BaseContext, builder: ir.IRBuilder, parts: Parts, kind: types.Type, index: ir.Value
) -> ir.Value:
    """Return the byte offset of what an index selects, after its checks. An index beyond the end
    ends the run; a negative one is suspect."""
    kinds = entries_of(kind)
    entries = [index]
    if isinstance(kind, types.BaseTuple):
        entries = cgutils.unpack_tuple(builder, index, len(kinds))
    offset = number(0)
    for axis, (entry, one) in enumerate(zip(entries, kinds, strict=True)):
        at = index_of(context, builder, parts, axis, one, entry)
        stride = parts.strides[axis]
        if parts.kind.compact and axis == parts.kind.ndim - 1:
            stride = number(parts.kind.itemsize)
        offset = builder.add(offset, builder.mul(at, stride))
    return offset


def index_of(
    context: BaseContext,
    builder: ir.IRBuilder,
    parts: Parts,
    axis: int,
    kind: types.Type,
    index: ir.Value,
) -> ir.Value:
    """Return an index along an axis, counted from the first element, after its checks."""
    wide = context.cast(builder, index, kind, types.int64)
    return _checked(builder, wide, parts.shape[axis], axis, _counts_from_end(kind))


def _counts_from_end(kind: types.Type) -> bool:
    """Return whether the index is written as a negative number."""
    return isinstance(kind, types.IntegerLiteral) and kind.literal_value < 0


def _checked(
    builder: ir.IRBuilder, at: ir.Value, size: ir.Value, axis: int, on_purpose: bool
) -> ir.Value:
    """Return the index of an element along an axis, counted from the first, after its checks."""
    before = builder.block
    with builder.if_then(builder.icmp_unsigned(">=", at, size), likely=False):
        wrapped = builder.add(at, size)
        inside = builder.icmp_unsigned("<", wrapped, size)
        with builder.if_else(inside, likely=True) as (then, otherwise):
            with then:
                if not on_purpose:
                    call(builder, "suspect", number(NEGATIVE_ALONG + axis), number(0))
            with otherwise:
                call(builder, "give_up", number(OUTSIDE))
        last = builder.block
    chosen = builder.phi(I64)
    chosen.add_incoming(at, before)
    chosen.add_incoming(wrapped, last)
    return chosen


# Elements.


def cell_of(builder: ir.IRBuilder, parts: Parts, offset: ir.Value) -> ir.Value:
    """Return the address of the cell of the element at a byte offset."""
    element = builder.sdiv(offset, number(parts.kind.itemsize))
    return builder.add(parts.cells, builder.mul(element, number(CELL_BYTES[parts.kind.space])))


def load(
    context: BaseContext,
    builder: ir.IRBuilder,
    parts: Parts,
    offset: ir.Value,
    checked: bool = True,
) -> ir.Value:
    """Return the element at a byte offset, after its check."""
    if checked:
        check_read(builder, parts, offset)
    return context.unpack_value(
        builder, parts.kind.dtype, _pointer(context, builder, parts, offset)
    )


def check_read(builder: ir.IRBuilder, parts: Parts, offset: ir.Value) -> None:
    """Generate the check of a load."""
    space = parts.kind.space
    if space == LOCAL:
        pointer = builder.inttoptr(cell_of(builder, parts, offset), I64.as_pointer())
        unwritten = builder.icmp_signed("!=", builder.load(pointer), parts.serial)
        with builder.if_then(unwritten, likely=False):
            call(builder, "suspect", number(UNWRITTEN), number(0))
    elif space != CONSTANT:
        call(builder, f"read_{space}", cell_of(builder, parts, offset))


def store(
    context: BaseContext,
    builder: ir.IRBuilder,
    parts: Parts,
    offset: ir.Value,
    value: ir.Value,
    checked: bool = True,
) -> None:
    """Store a value, which has the type of the array's elements, at a byte offset."""
    kind, pointer = parts.kind, _pointer(context, builder, parts, offset)
    if kind.space == LOCAL:
        cell = builder.inttoptr(cell_of(builder, parts, offset), I64.as_pointer())
        builder.store(parts.serial, cell)
    elif checked:
        before = context.unpack_value(builder, kind.dtype, pointer)
        same = builder.zext(same_numbers(builder, kind.dtype, before, value), I64)
        call(builder, f"write_{kind.space}", cell_of(builder, parts, offset), same)
    context.pack_value(builder, kind.dtype, value, pointer)


def same_numbers(builder: ir.IRBuilder, kind: types.Type, one: ir.Value, two: ir.Value) -> ir.Value:
    """Return whether two numbers are the same; NaN is the same as NaN."""
    if isinstance(kind, types.Float):
        both_nan = builder.and_(
            builder.fcmp_unordered("uno", one, one), builder.fcmp_unordered("uno", two, two)
        )
        return builder.or_(builder.fcmp_ordered("==", one, two), both_nan)
    if isinstance(kind, types.Complex):
        parts = [cgutils.unpack_tuple(builder, value, 2) for value in (one, two)]
        equal = [
            same_numbers(builder, kind.underlying_float, *two_parts)
            for two_parts in zip(*parts, strict=True)
        ]
        return builder.and_(*equal)
    return builder.icmp_signed("==", one, two)


def _pointer(context: BaseContext, builder, parts: Parts, offset: ir.Value) -> ir.Value:
    kind = context.data_model_manager[parts.kind.dtype].get_data_type()
    return builder.inttoptr(builder.add(parts.data, offset), kind.as_pointer())
