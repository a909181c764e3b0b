"""Indices of arrays in compiled kernels: elements, rows, and views by slices."""

from __future__ import annotations

import operator

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.base import BaseContext
from numba.core.extending import (
    intrinsic,
    lower_builtin,
)
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, Signature, infer_global
from numba.cpython import slicing

from convlab.simulation.compiled.arrays import (
    CONSTANT,
    GLOBAL,
    SHARED,
    CompiledArray,
    Parts,
    cell_of,
    element_offset,
    entries_of,
    index_of,
    is_known,
    load,
    made,
    number,
    store,
)
from convlab.simulation.compiled.runtime import call

Axis = types.Type | None  # the type of an axis's index; None for a whole axis


def _axes(array: CompiledArray, index: types.Type) -> list[Axis] | None:
    """Return the index of each axis, if these are integers and slices; None for other indices."""
    entries: list[types.Type] = entries_of(index)
    dots = [one for one in entries if isinstance(one, types.EllipsisType)]
    rest = array.ndim - len(entries) + len(dots)
    if rest < 0 or len(dots) > 1:
        return None
    axes: list[Axis] = []
    for one in entries if dots else [*entries, types.ellipsis]:
        if isinstance(one, types.EllipsisType):
            axes += [None] * rest
        elif isinstance(one, types.Integer | types.SliceType):
            axes.append(one)
        else:
            return None
    return axes


def _plain(index: types.Type) -> types.Type:
    """Return the type of an index without the values of constants."""
    if isinstance(index, types.BaseTuple):
        return types.BaseTuple.from_types([_plain(one) for one in index.types])
    return types.unliteral(index) if isinstance(index, types.SliceType) else index


def _view_type(array: CompiledArray, axes: list[Axis]) -> CompiledArray:
    """Return the type of a view by slices."""
    kept = [one for one in axes if not isinstance(one, types.Integer)]
    steps = isinstance(axes[-1], types.SliceType) and axes[-1].has_step
    compact = array.compact and not steps and not isinstance(axes[-1], types.Integer)
    return CompiledArray(array.dtype, len(kept), array.space, compact=compact)


def _view(
    context: BaseContext,
    builder: ir.IRBuilder,
    kind: CompiledArray,
    parts: Parts,
    index: types.Type,
    value: ir.Value,
) -> ir.Value:
    """Return a view by slices. Bounds beyond the end count as the end, as in Python."""
    entries = [value]
    if isinstance(index, types.BaseTuple):
        entries = cgutils.unpack_tuple(builder, value, len(index))
    given = [
        entry
        for entry, one in zip(entries, entries_of(index), strict=True)
        if not isinstance(one, types.EllipsisType)
    ]
    offset, shape, strides = number(0), [], []
    for axis, one in enumerate(_axes(parts.kind, index) or ()):
        size, stride = parts.shape[axis], parts.strides[axis]
        if isinstance(one, types.Integer):
            at = index_of(context, builder, parts, axis, one, given.pop(0))
            offset = builder.add(offset, builder.mul(at, stride))
            continue
        if one is not None:
            part = context.make_helper(builder, one, given.pop(0))
            slicing.guard_invalid_slice(context, builder, one, part)
            slicing.fix_slice(builder, part, size)
            offset = builder.add(offset, builder.mul(part.start, stride))
            size = slicing.get_slice_length(builder, part)
            stride = slicing.fix_stride(builder, part, stride)
        shape.append(size)
        strides.append(stride)
    return made(
        context,
        builder,
        kind,
        data=builder.add(parts.data, offset),
        cells=cell_of(builder, parts, offset),
        serial=parts.serial,
        shape=shape,
        strides=strides,
    )


@infer_global(operator.getitem)
class GetItem(AbstractTemplate):
    """The type of what an index of integers and slices selects."""

    def generic(self, arguments: tuple[types.Type, ...], named: object) -> Signature | None:
        """Return the types of a load; None for an index or array that is not known here."""
        array, index = arguments
        if is_known(array, index):
            rest = array.ndim - len(entries_of(index))
            return signature(array.part(rest) if rest else array.dtype, array, index)
        if not isinstance(array, CompiledArray):
            return None
        axes = _axes(array, index)
        return None if axes is None else signature(_view_type(array, axes), array, _plain(index))


@lower_builtin(operator.getitem, CompiledArray, types.Any)
def _getitem(context, builder, types_, arguments):
    kind, index = types_.args
    parts = Parts(context, builder, kind, arguments[0])
    if not is_known(kind, index):
        return _view(context, builder, types_.return_type, parts, index, arguments[1])
    offset = element_offset(context, builder, parts, index, arguments[1])
    first = len(entries_of(index))
    if first == kind.ndim:
        return load(context, builder, parts, offset)
    return made(
        context,
        builder,
        types_.return_type,
        data=builder.add(parts.data, offset),
        cells=cell_of(builder, parts, offset),
        serial=parts.serial,
        shape=parts.shape[first:],
        strides=parts.strides[first:],
    )


@intrinsic(prefer_literal=True)
def guess(typing, array, index, site):
    """Read an element by a plain read that an atomic of the thread may check, at the site that has
    this number."""
    whole = is_known(array, index) and len(entries_of(index)) == array.ndim
    known = whole and array.space in (GLOBAL, SHARED)
    if not known:
        gives = typing.resolve_function_type(operator.getitem, (array, index), {})
        if gives is None:
            return None

    def generate(context, builder, types_, arguments):
        if not known:
            inner = gives.return_type(array, index)
            return context.get_function(operator.getitem, inner)(builder, arguments[:2])
        parts = Parts(context, builder, array, arguments[0])
        offset = element_offset(context, builder, parts, index, arguments[1])
        at = number(site.literal_value)
        call(builder, f"guess_{array.space}", cell_of(builder, parts, offset), at)
        return load(context, builder, parts, offset, checked=False)

    return (array.dtype if known else gives.return_type)(array, index, site), generate


@infer_global(operator.setitem)
class SetItem(AbstractTemplate):
    """The types of a store of one element."""

    def generic(self, arguments: tuple[types.Type, ...], named: object) -> Signature | None:
        """Return the types of a store; None for an index, array or value that is not known here."""
        array, index, value = arguments
        if not is_known(array, index) or array.space == CONSTANT:
            return None
        if len(entries_of(index)) < array.ndim or not self.context.can_convert(value, array.dtype):
            return None
        return signature(types.none, array, index, array.dtype)


@lower_builtin(operator.setitem, CompiledArray, types.Any, types.Any)
def _setitem(context, builder, types_, arguments):
    kind, index, value = types_.args
    parts = Parts(context, builder, kind, arguments[0])
    offset = element_offset(context, builder, parts, index, arguments[1])
    store(context, builder, parts, offset, context.cast(builder, arguments[2], value, kind.dtype))
    return context.get_dummy_value()
