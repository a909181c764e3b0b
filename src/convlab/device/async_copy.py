"""Copies from global to shared memory that land later, while the thread goes on (``cp.async``).

    copy_async4(staged, i, a, first + i, first + i < a.size)  # four float32; copy_async: one
    commit_copies()  # closes a group: what was asked for since the last one
    wait_copies(0)  # until no more than 0 of this thread's groups are in flight
    cuda.syncthreads()  # until all threads have waited for theirs

A copy does not pass through registers, so a thread can fetch the next tile while it works on this
one. The copy lands when the thread that started it waits. Until then no thread may access its
target, and other threads need a barrier after that wait. Where ``valid`` is false zeros land and
global memory is left alone, so that an edge needs no branch. ``wait_copies`` takes a literal or a
constant of the kernel's: groups are waited for in their order, and copies in no group never.

Target and source are C-contiguous float32 arrays; the target must be shared memory and the source
global, which a GPU does not check. ``copy_async4`` needs what ``load4`` needs of both indices:
multiples of 4, and ``alignment=BYTES_16`` on the shared array. Needs compute capability 8.0.
"""

from __future__ import annotations

from typing import Any

from numba.cuda.core import config

from convlab.device.intrinsics import (
    assembly,
    element_pointer,
    is_float32_c_array,
    register_emulations,
    statement,
)
from convlab.device.vector import emulated_load4, emulated_store4

# A copy that lands at once is one that no right kernel can tell from a later one. Where convlab's
# strict simulator runs a kernel, copies land when they are waited for.


def _emulated_copy_async(target: Any, index: Any, source: Any, at: Any, valid: Any) -> None:
    target[index] = source[at] if valid else 0.0


def _emulated_copy_async4(target: Any, index: Any, source: Any, at: Any, valid: Any) -> None:
    emulated_store4(target, index, emulated_load4(source, at) if valid else (0.0, 0.0, 0.0, 0.0))


def _emulated_commit_copies() -> None: ...


def _emulated_wait_copies(groups: int) -> None: ...


if config.ENABLE_CUDASIM:
    copy_async, copy_async4 = _emulated_copy_async, _emulated_copy_async4
    commit_copies, wait_copies = _emulated_commit_copies, _emulated_wait_copies
else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    _GLOBAL, _SHARED = 1, 3  # NVVM's address spaces
    _I32, _I64 = ir.IntType(32), ir.IntType(64)

    def _in_space(builder: Any, pointer: Any, space: int, integer: Any) -> Any:
        """A pointer as PTX wants it: an integer, of one kind of memory."""
        near = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, space))
        return builder.ptrtoint(near, integer)

    def _copy(signature: Any, cache: str, count: int) -> Any:
        """The signature and code of a copy of that many floats. ``cg`` bypasses the L1
        cache and takes only 16 bytes; ``ca`` also takes 4 or 8."""
        target, _, source, _, _ = signature.args
        if not (is_float32_c_array(target) and is_float32_c_array(source)):
            return None
        width = 4 * count
        text = f"cp.async.{cache}.shared.global [$0], [$1], {width}, $2;"

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
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
        """``target[index] = source[at] if valid else 0``, some time before it is waited for."""
        return _copy(types.void(target, index, source, at, valid), "ca", 1)

    @intrinsic
    def copy_async4(typing_context, target, index, source, at, valid):  # type: ignore[no-untyped-def]
        """Copy four neighbours by one 16-byte copy, with the same rules."""
        return _copy(types.void(target, index, source, at, valid), "cg", 4)

    @intrinsic
    def commit_copies(typing_context):  # type: ignore[no-untyped-def]
        """Makes a group of this thread's copies that are in none yet."""
        return types.void(), statement("cp.async.commit_group;")

    @intrinsic
    def wait_copies(typing_context, groups):  # type: ignore[no-untyped-def]
        """Waits until no more than that many of this thread's groups are in flight."""
        if not isinstance(groups, types.IntegerLiteral) or groups.literal_value < 0:
            return None  # part of the instruction: it cannot come from a register
        return types.void(groups), statement(f"cp.async.wait_group {groups.literal_value};")


register_emulations(
    (copy_async, _emulated_copy_async),
    (copy_async4, _emulated_copy_async4),
    (commit_copies, _emulated_commit_copies),
    (wait_copies, _emulated_wait_copies),
)
