"""``cuda``'s names in compiled kernels: what each reads or does.

``CUDA`` stands in for the module ``numba.cuda``. Its functions are intrinsics: each says its types
and generates its code.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.extending import (
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
)
from numba.core.typing.templates import AttributeTemplate, infer_getattr

from convlab.simulation.compiled.arrays import (
    I64,
    number,
)
from convlab.simulation.compiled.context import (
    BLOCK_X,
    GRID_X,
    LANE,
    RESULT,
    SITE,
    SIZE_X,
    STATE,
    THREAD_X,
    VALUE,
    WAITS_AT,
    load_own,
    load_word,
    own,
    set_own,
    store_own,
    word,
)
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.compiled.runtime import call, shared_code
from convlab.simulation.compiled.stacks import switch_out
from convlab.simulation.compiled.states import AND, BARRIER, COUNT, OR


class MissingName(NeedsGreenlets, AttributeError):
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
        """Return the type of ``x``, ``y`` and ``z``; None for other names."""
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
