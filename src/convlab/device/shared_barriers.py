"""Barriers in shared memory (``mbarrier``), at which threads and copies arrive, one phase a time.

``barriers`` is a shared array of uint64, each number of it a barrier::

    if thread == 0:
        init_barrier(barriers, 0, 1)  # a phase of barrier 0 ends when 1 thread has arrived
        fence_barriers()  # the copy engine sees it, too
    cuda.syncthreads()
    ...
    if thread == 0:
        expect_bytes(barriers, 0, 4096)  # arrive; the phase also awaits so many copied bytes
        copy_box(S, 0, tensor_map, (0, 0), barriers, 0)  # 4096 bytes, which arrive as they land
    wait_barrier(barriers, 0, 0)  # until the phase of parity 0, the first one, has ended

Phases are counted from 0, and a wait names the parity of the phase that it waits for: 0 for the
first, 1 for the second, 0 for the third. If that phase ended before the wait, the wait returns at
once. So a thread must never be a whole phase behind: a wait for the parity of the phase before the
last one would take the last one for it, and wait for ever or not at all. ``arrive_barrier`` arrives
without copies. After a wait a thread sees what the copies stored, and what threads stored before
they arrived.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". Compute
capability 9.0 (``expect_bytes`` and the parity waits).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from convlab.device.code_generation import (
    EMULATED,
    Operands,
    assembly,
    element_pointer,
    statement,
)

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext
    from numba.cuda.typing.templates import Signature


def _not_yet(*arguments: Any) -> None:
    raise NotImplementedError


if EMULATED:
    init_barrier = fence_barriers = expect_bytes = arrive_barrier = wait_barrier = _not_yet
else:
    from llvmlite import ir
    from numba.core.errors import TypingError
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    _I32 = ir.IntType(32)
    _SHARED = 3  # NVVM's address space

    def barrier_address(
        context: CUDATargetContext,
        builder: ir.IRBuilder,
        kinds: tuple[types.Type, types.Type],
        values: Operands,
    ) -> ir.Value:
        """Return the address of ``barriers[i]`` in shared memory."""
        element = element_pointer(context, builder, kinds, values)
        near = builder.addrspacecast(element, ir.PointerType(element.type.pointee, _SHARED))
        return builder.ptrtoint(near, _I32)

    def check_barriers(name: str, barriers: types.Type) -> None:
        """Raise ``TypingError`` unless they are an array of uint64 with one dimension."""
        right = isinstance(barriers, types.Array) and barriers.dtype == types.uint64
        if not right or barriers.ndim != 1:
            wanted = "an array of uint64 with one dimension"
            raise TypingError(f"{name}: barriers is {barriers}, but must be {wanted}")

    def _at_barrier(name: str, text: str, *given: types.Type) -> Any:
        """Return signature and code of an intrinsic on a barrier, perhaps with a number."""
        barriers, i, *numbers = given
        check_barriers(name, barriers)

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            kinds = signature.args
            address = barrier_address(context, builder, kinds[:2], args[:2])
            more = [
                context.cast(builder, value, kind, types.uint32)
                for value, kind in zip(args[2:], kinds[2:], strict=True)
            ]
            assembly(builder, text, ",".join(["r"] * (1 + len(more))), [address, *more])
            return context.get_dummy_value()

        return types.void(barriers, i, *numbers), generate

    @intrinsic
    def init_barrier(typing_context, barriers, i, arrivals):  # type: ignore[no-untyped-def]
        """Begin the first phase of ``barriers[i]``: each ends after that many arrivals."""
        text = "mbarrier.init.shared::cta.b64 [$0], $1;"
        return _at_barrier("init_barrier", text, barriers, i, arrivals)

    @intrinsic
    def fence_barriers(typing_context):  # type: ignore[no-untyped-def]
        """Make this thread's new barriers visible to the copy engine."""
        text = "fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;"
        return types.void(), statement(text)

    @intrinsic
    def expect_bytes(typing_context, barriers, i, count):  # type: ignore[no-untyped-def]
        """Arrive, and let the phase await so many more bytes of copies."""
        text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
        return _at_barrier("expect_bytes", text, barriers, i, count)

    @intrinsic
    def arrive_barrier(typing_context, barriers, i):  # type: ignore[no-untyped-def]
        """Arrive at ``barriers[i]`` and go on."""
        return _at_barrier(
            "arrive_barrier", "mbarrier.arrive.shared::cta.b64 _, [$0];", barriers, i
        )

    @intrinsic
    def wait_barrier(typing_context, barriers, i, parity):  # type: ignore[no-untyped-def]
        """Wait until the phase of that parity, 0 or 1, has ended at ``barriers[i]``."""
        text = """{
            .reg .pred ended;
            again_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 ended, [$0], $1;
            @!ended bra again_${:uid};
            }"""
        return _at_barrier("wait_barrier", text, barriers, i, parity)
