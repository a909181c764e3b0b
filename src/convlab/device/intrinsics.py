"""Intrinsics of memory access: 128-bit loads and stores, and asynchronous copies.

``load4(array, index)`` and ``store4(array, index, values)`` become LDG/LDS.E.128 and
STG/STS.E.128; accesses to float32x4 arrays and views do not. The index is an integer for a 1-D
array or a tuple for an n-D array. Counted in elements, it must be a multiple of 4, and the array
must start at a multiple of 16 bytes (whole Numba device arrays do, and shared arrays with
``alignment=BYTES_16``). A GPU checks neither: a misaligned address stops the kernel, and an address
out of bounds reads other data. The emulations check both.

    x = load4(a, i)  # for the next slice
    issue_loads()  # the load is issued here
    ...  # much arithmetic that needs no x
    store4(shared, j, x)

A load has a latency of several hundred cycles, which the arithmetic hides. But a load in flight
occupies registers. Probably to save registers, the compiler moves loads down into the arithmetic.
``issue_loads`` keeps the loads where they are written.

Asynchronous copies (``cp.async``) go from global to shared memory without registers::

    copy_async4(staged, i, a, first + i, first + i < a.size)  # four float32; copy_async: one
    commit_copies()  # closes a commit group: the copies since the last one
    wait_copies(0)  # until no more than 0 of this thread's commit groups are in flight
    cuda.syncthreads()  # until all threads have waited for theirs

A copy has landed only when the thread that started it has waited for it. Until then no thread may
access its target or start another copy to the target, and other threads need a barrier after the
wait. If ``valid`` is false, the copy writes zeros and does not read global memory, so an edge needs
no branch. ``wait_copies`` takes a literal or a constant of the kernel. It waits for commit groups
in their order, and never for a copy in no group. Target and source are C-contiguous float32 arrays,
in shared and in global memory; a GPU does not check this. For both indices, ``copy_async4`` has the
rules of ``load4``. Asynchronous copies need compute capability 8.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.typing.templates import Signature

from convlab.device.code_generation import (
    EMULATED,
    Generate,
    Operands,
    assembly,
    element_pointer,
    is_float32_c_array,
    statement,
)
from convlab.device.emulations import register_emulations
from convlab.device.products import Float

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext

# Memory access

Four = tuple[Float, Float, Float, Float]
ElementIndex = int | tuple[int, ...]


class EmulatedArray(Protocol):
    """An array of a simulator, as emulations use it."""

    shape: tuple[int, ...]

    def __getitem__(self, index: Any, /) -> Any: ...

    def __setitem__(self, index: Any, value: Any, /) -> None: ...


# ``alignment=BYTES_16`` of shared arrays that have 128-bit accesses, ``BYTES_1024`` of those that
# have panels (:mod:`convlab.device.swizzled_products`). Numba's simulator, where it runs kernels by
# itself, refuses any ``alignment`` but None; convlab's engines do not.
ENGINE_CONSTANTS = {"BYTES_16": 16, "BYTES_1024": 1024}
FLOAT4 = 4  # elements of a 128-bit access
BYTES_16 = None if EMULATED else ENGINE_CONSTANTS["BYTES_16"]
BYTES_1024 = None if EMULATED else ENGINE_CONSTANTS["BYTES_1024"]


def emulated_load4(array: EmulatedArray, index: ElementIndex) -> Four:
    """Emulate ``load4`` in plain Python: return the four values, as the array has them.

    Raises ``IndexError`` for an index that is not a multiple of 4 or reaches outside the array.
    """
    # The strict simulator's arrays check wide accesses themselves. The type is looked at, because
    # arrays of Numba's own simulator raise IndexError for a missing attribute.
    if hasattr(type(array), "load_run"):
        run: Four = array.load_run(index, 4)  # type: ignore[attr-defined]
        return run
    x, y, z, w = array[_float4_slice(array, index)]
    return x, y, z, w


def emulated_store4(array: EmulatedArray, index: ElementIndex, values: Four) -> None:
    """Emulate ``store4`` in plain Python. Raises as :func:`emulated_load4`."""
    if hasattr(type(array), "store_run"):
        array.store_run(index, values)  # type: ignore[attr-defined]
        return
    array[_float4_slice(array, index)] = values


def _float4_slice(array: EmulatedArray, index: ElementIndex) -> slice | tuple[int | slice, ...]:
    """Return ``index`` with its last entry widened to the slice that one access touches."""
    *rows, first = index if isinstance(index, tuple) else (index,)
    first = int(first)
    if first % 4:
        raise IndexError(
            f"128-bit access at index {index}: the last index must be a multiple of 4, because the "
            "address must be a multiple of 16 bytes"
        )
    *_, extent = array.shape  # not shape[-1], which Numba's simulator refuses
    if not 0 <= first <= extent - 4:
        raise IndexError(
            f"128-bit access at index {index} reaches outside an array of shape {array.shape}"
        )
    run = slice(first, first + 4)
    return (*rows, run) if rows else run


def _emulated_issue_loads() -> None:
    """Do nothing: a simulator loads where the load is written."""


# No correct kernel can tell a copy that lands at once from a copy that lands later. On convlab's
# strict simulator, copies land when they are waited for.


def _emulated_copy_async(
    target: EmulatedArray, index: ElementIndex, source: EmulatedArray, at: ElementIndex, valid: bool
) -> None:
    target[index] = source[at] if valid else 0.0


def _emulated_copy_async4(
    target: EmulatedArray, index: ElementIndex, source: EmulatedArray, at: ElementIndex, valid: bool
) -> None:
    emulated_store4(target, index, emulated_load4(source, at) if valid else (0.0, 0.0, 0.0, 0.0))


def _emulated_commit_copies() -> None: ...


def _emulated_wait_copies(groups: int) -> None: ...


if EMULATED:
    load4, store4, issue_loads = emulated_load4, emulated_store4, _emulated_issue_loads
    copy_async, copy_async4 = _emulated_copy_async, _emulated_copy_async4
    commit_copies, wait_copies = _emulated_commit_copies, _emulated_wait_copies
else:
    from numba.cuda.extending import intrinsic

    _FOUR_FLOATS = ir.VectorType(ir.FloatType(), 4)
    _LANES = [ir.Constant(ir.IntType(32), lane) for lane in range(4)]

    def _address(
        context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
    ) -> ir.Value:
        """Return a pointer to ``array[index]`` as four floats."""
        element = element_pointer(context, builder, signature.args[:2], args[:2])
        return builder.bitcast(element, ir.PointerType(_FOUR_FLOATS, element.type.addrspace))

    @intrinsic
    def load4(typing_context, array, index):  # type: ignore[no-untyped-def]
        """Load ``(a[i], a[i + 1], a[i + 2], a[i + 3])`` by one 16-byte load."""
        if not is_float32_c_array(array):
            return None
        four = types.UniTuple(types.float32, 4)

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            vector = builder.load(_address(context, builder, signature, args))
            vector.align = 16
            lanes = [builder.extract_element(vector, lane) for lane in _LANES]
            return context.make_tuple(builder, four, lanes)

        return four(array, index), generate

    @intrinsic
    def store4(typing_context, array, index, values):  # type: ignore[no-untyped-def]
        """Store ``a[i], ..., a[i + 3] = values`` by one 16-byte store; values: four float32."""
        if not is_float32_c_array(array) or values != types.UniTuple(types.float32, 4):
            return None

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            vector = ir.Constant(_FOUR_FLOATS, ir.Undefined)
            for lane in range(4):
                value = builder.extract_value(args[2], lane)
                vector = builder.insert_element(vector, value, _LANES[lane])
            store = builder.store(vector, _address(context, builder, signature, args))
            store.align = 16
            return context.get_dummy_value()

        return types.void(array, index, values), generate

    # The strict simulator runs this function itself, and so finds lanes that do not come to it.
    @cuda.jit(device=True, forceinline=True)
    def issue_loads():  # type: ignore[no-untyped-def]
        """Keeps the compiler from moving loads that are written before it to after it.

        It is a barrier of the warp (``bar.warp.sync``), which costs nothing if the warp's lanes are
        together. Every lane of the warp that has not ended has to come to it.
        """
        cuda.syncwarp()

    _GLOBAL, _SHARED = 1, 3  # NVVM's address spaces
    _I32, _I64 = ir.IntType(32), ir.IntType(64)

    def _in_space(
        builder: ir.IRBuilder, pointer: ir.Value, space: int, integer: ir.IntType
    ) -> ir.Value:
        """Return a pointer as PTX takes it: an integer, in one kind of memory."""
        near = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, space))
        return builder.ptrtoint(near, integer)

    def _copy(signature: Signature, cache: str, count: int) -> tuple[Signature, Generate] | None:
        """Return the signature and code of a copy of that many floats. ``cg`` bypasses the L1
        cache and takes only 16 bytes; ``ca`` also takes 4 or 8."""
        target, _, source, _, _ = signature.args
        if not (is_float32_c_array(target) and is_float32_c_array(source)):
            return None
        width = 4 * count
        text = f"cp.async.{cache}.shared.global [$0], [$1], {width}, $2;"

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            kinds = signature.args
            to = element_pointer(context, builder, kinds[0:2], args[0:2])
            start = element_pointer(context, builder, kinds[2:4], args[2:4])
            valid = context.cast(builder, args[4], kinds[4], types.boolean)
            # Bytes that are read; the rest of the width is filled with zeros.
            read = builder.select(valid, ir.Constant(_I32, width), ir.Constant(_I32, 0))
            near = _in_space(builder, to, _SHARED, _I32)
            far = _in_space(builder, start, _GLOBAL, _I64)
            assembly(builder, text, "r,l,r", (near, far, read))
            return context.get_dummy_value()

        return signature, generate

    @intrinsic
    def copy_async(typing_context, target, index, source, at, valid):  # type: ignore[no-untyped-def]
        """Copy ``target[index] = source[at] if valid else 0``, at the latest when the thread
        waits."""
        return _copy(types.void(target, index, source, at, valid), "ca", 1)

    @intrinsic
    def copy_async4(typing_context, target, index, source, at, valid):  # type: ignore[no-untyped-def]
        """Copy four neighbours by one 16-byte copy, with the same rules."""
        return _copy(types.void(target, index, source, at, valid), "cg", 4)

    @intrinsic
    def commit_copies(typing_context):  # type: ignore[no-untyped-def]
        """Make a commit group of the copies that this thread has started since its last one."""
        return types.void(), statement("cp.async.commit_group;")

    @intrinsic
    def wait_copies(typing_context, groups):  # type: ignore[no-untyped-def]
        """Wait until no more than that many of this thread's groups are in flight."""
        if not isinstance(groups, types.IntegerLiteral) or groups.literal_value < 0:
            return None  # part of the instruction: it cannot come from a register
        return types.void(groups), statement(f"cp.async.wait_group {groups.literal_value};")


register_emulations(
    (load4, emulated_load4),
    (store4, emulated_store4),
    (issue_loads, _emulated_issue_loads),
    (copy_async, _emulated_copy_async),
    (copy_async4, _emulated_copy_async4),
    (commit_copies, _emulated_commit_copies),
    (wait_copies, _emulated_wait_copies),
)
