"""``cuda``'s names in compiled kernels: what each reads or does.

``CUDA`` stands in for the module ``numba.cuda``. Its functions are intrinsics: each says its types
and generates its code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import ModuleType

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.base import BaseContext
from numba.core.extending import (
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
)
from numba.core.typing.templates import AttributeTemplate, infer_getattr

from convlab.simulation.compiled.arrays import (
    CELL_BYTES,
    GLOBAL,
    I64,
    LOCAL,
    SHARED,
    WIDE_BYTES,
    CompiledArray,
    Parts,
    cell_of,
    element_offset,
    entries_of,
    is_known,
    load,
    made,
    number,
    same_numbers,
    store,
)
from convlab.simulation.compiled.context import (
    BLOCK_X,
    CELLS,
    DYNAMIC_BYTES,
    DYNAMIC_SITE,
    GRID_X,
    LANE,
    LOCAL_BYTES,
    OFFSETS,
    RESULT,
    SERIAL,
    SHARED_END,
    SHARED_LIMIT,
    SITE,
    SIZE_X,
    STATE,
    THREAD_X,
    UNCHANGED,
    VALUE,
    WAITS_AT,
    WORD,
    load64,
    load_own,
    load_word,
    own,
    set_own,
    set_word,
    store64,
    store_own,
    store_word,
    word,
)
from convlab.simulation.compiled.context import (
    LOCAL as LOCAL_MEMORY,
)
from convlab.simulation.compiled.context import (
    SHARED as SHARED_MEMORY,
)
from convlab.simulation.compiled.refused import NotCompiled
from convlab.simulation.compiled.runtime import call, shared_code
from convlab.simulation.compiled.stacks import switch_out
from convlab.simulation.compiled.states import AND, BARRIER, COUNT, OR
from convlab.simulation.compiled.suspects import NO_ROOM, TWO_NAMES, give_up


class MissingName(NotCompiled, AttributeError):
    """The exception for a name that has no meaning in compiled code."""


class StandIn(ModuleType):
    """A module whose missing names are refused."""

    def __getattr__(self, name: str) -> object:
        raise MissingName(f"{self.__name__}.{name}")


CUDA = StandIn("cuda")  # stands in for ``numba.cuda``
CUDA.warpsize = 32
I32 = ir.IntType(32)


# Coordinates and sizes.


class Triple:
    """Three words, of the launch or of the running thread: ``cuda.threadIdx`` and the like."""

    def __init__(self, is_own: bool, first: int) -> None:
        self.is_own, self.first = is_own, first


class TripleType(types.Dummy):
    """The type of one of them: it says where its words are."""

    def __init__(self, triple: Triple) -> None:
        self.is_own, self.first = triple.is_own, triple.first
        super().__init__(f"triple({self.is_own}, {self.first})")


register_model(TripleType)(models.OpaqueModel)


@typeof_impl.register(Triple)
def _type_of_triple(value: Triple, context: object) -> TripleType:
    return TripleType(value)


@infer_getattr
class TripleAttributes(AttributeTemplate):
    """A coordinate has 32 bits."""

    key = TripleType

    def generic_resolve(self, kind: TripleType, name: str) -> types.Type | None:
        return types.int32 if name in "xyz" else None


@lower_getattr_generic(TripleType)
def _coordinate(context, builder, kind, value, name):
    read = load_own if kind.is_own else load_word
    return builder.trunc(read(builder, kind.first + "xyz".index(name)), I32)


CUDA.threadIdx, CUDA.blockIdx = Triple(True, THREAD_X), Triple(False, BLOCK_X)
CUDA.blockDim, CUDA.gridDim = Triple(False, SIZE_X), Triple(False, GRID_X)


@intrinsic
def lane(typing):
    """Return the lane of the running thread, for ``cuda.laneid``."""

    def generate(context, builder, types_, arguments):
        return builder.trunc(load_own(builder, LANE), I32)

    return types.int32(), generate


def _along_axes(along: Callable[[ir.IRBuilder, int], ir.Value]):
    """Return the intrinsic that gives as many numbers as its argument says."""

    @intrinsic(prefer_literal=True)
    def numbers(typing, ndim):
        axes = getattr(ndim, "literal_value", None)
        if axes not in (1, 2, 3):
            return None
        kind = types.int64 if axes == 1 else types.UniTuple(types.int64, axes)

        def generate(context, builder, types_, arguments):
            values = [along(builder, axis) for axis in range(axes)]
            return values[0] if axes == 1 else cgutils.pack_array(builder, values)

        return kind(ndim), generate

    return numbers


def _thread_along(builder: ir.IRBuilder, axis: int) -> ir.Value:
    before = builder.mul(load_word(builder, BLOCK_X + axis), load_word(builder, SIZE_X + axis))
    return builder.add(before, load_own(builder, THREAD_X + axis))


def _threads_along(builder: ir.IRBuilder, axis: int) -> ir.Value:
    return builder.mul(load_word(builder, GRID_X + axis), load_word(builder, SIZE_X + axis))


CUDA.grid, CUDA.gridsize = _along_axes(_thread_along), _along_axes(_threads_along)


# Arrays of a block and of a thread.

CUDA.shared, CUDA.local = StandIn("cuda.shared"), StandIn("cuda.local")
CUDA.const = StandIn("cuda.const")
# Bytes of a thread's local arrays with their cells: half of what CUDA allows, because a block of
# 1,024 threads reserves a quarter of a gigabyte of address space for them.
LOCAL_LIMIT = 256 << 10


@shared_code("int64(int64, int64)")
def shared_offset(nbytes: int, alignment: int) -> int:
    """Return the byte at which the array of the running site begins in shared memory. An array has
    one place for the whole launch."""
    place = word(OFFSETS) + word(SITE) * WORD
    if load64(place) == 0:
        begin = -(-word(SHARED_END) // alignment) * alignment
        set_word(SHARED_END, begin + nbytes)
        if begin + nbytes > word(SHARED_LIMIT):
            give_up(NO_ROOM)
        store64(place, begin + 1)
    return load64(place) - 1


@shared_code("int64()")
def dynamic_offset() -> int:
    """Return the byte at which dynamic shared memory begins. Two calls that request it may be two
    names of the same bytes, which only the other engine judges."""
    if word(DYNAMIC_SITE) == 0:
        set_word(DYNAMIC_SITE, word(SITE))
    elif word(DYNAMIC_SITE) != word(SITE):
        give_up(TWO_NAMES)
    return 0


@shared_code("int64(int64)")
def local_offset(nbytes: int) -> int:
    """Return the byte at which the array of the running site begins in a thread's local memory."""
    place = word(OFFSETS) + word(SITE) * WORD
    if load64(place) == 0:
        begin = word(LOCAL_BYTES)
        set_word(LOCAL_BYTES, begin + -(-nbytes // 16) * 16)
        if word(LOCAL_BYTES) > LOCAL_LIMIT:
            give_up(NO_ROOM)
        store64(place, begin + 1)
    return load64(place) - 1


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


# Barriers.


@shared_code("int64(int64)")
def wait(state: int) -> int:
    """Wait in a call for other threads; return its result."""
    set_own(WAITS_AT, word(SITE))
    set_own(STATE, state)
    switch_out()
    return own(RESULT)


@intrinsic
def _syncthreads(typing):
    def generate(context, builder, types_, arguments):
        store_own(builder, VALUE, number(0))
        call(builder, "wait", number(BARRIER), gives=I64)
        return context.get_dummy_value()

    return types.none(), generate


def _barrier_with(state: int):
    """Return the barrier that counts the threads whose predicate is true, or tests whether it is
    true for all of them, or for one."""

    @intrinsic
    def barrier(typing, predicate):
        def generate(context, builder, types_, arguments):
            (kind,) = types_.args
            true = context.cast(builder, arguments[0], kind, types.boolean)
            store_own(builder, VALUE, builder.zext(true, I64))
            return builder.trunc(call(builder, "wait", number(state), gives=I64), I32)

        return types.int32(predicate), generate

    return barrier


CUDA.syncthreads, CUDA.syncthreads_count = _syncthreads, _barrier_with(COUNT)
CUDA.syncthreads_and, CUDA.syncthreads_or = _barrier_with(AND), _barrier_with(OR)


# Atomics.

CUDA.atomic = StandIn("cuda.atomic")
# Computes the new element from the old one and a value; gets a function that computes with numbers.
NewElement = Callable[[Callable[..., ir.Value], ir.IRBuilder, ir.Value, ir.Value], ir.Value]


def _atomic(combine: NewElement):
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
            call(builder, f"update_{array.space}", cell_of(builder, parts, offset))
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
    setattr(CUDA.atomic, _name, _atomic(_combine))
