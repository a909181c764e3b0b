"""Roles of warps: register counts of a warpgroup, and barriers of some of a block's threads.

A kernel whose warpgroups do different work gives each what it needs::

    if warpgroup == PRODUCER:
        give_registers(40)  # this warpgroup keeps 40 a thread
        ...                 # copies
    else:
        take_registers(232)
        ...                 # multiplies

Both take a constant, a multiple of 8 from 24 to 256, and all warps of a warpgroup have to come to
the call. The kernel needs ``launch_bounds=(threads, 1)``, because registers are given back only to
the block. ``take_registers`` waits until enough are free. Neither changes what a kernel computes.

``sync_threads_of(number, threads)`` is a barrier of ``threads`` threads, whole warps, among those
that come to it with that number, from 1 to 15 (0 is ``cuda.syncthreads``); ``threads`` is a
constant.

Source: PTX ISA, ``setmaxnreg`` (compute capability 9.0 only) and ``barrier``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from convlab.device.code_generation import EMULATED, Operands, assembly, statement
from convlab.device.emulations import meet_some, register_emulations
from convlab.device.products import WARP

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext
    from numba.cuda.typing.templates import Signature

MOST_THREADS = 1024  # of a block


def check_registers(name: str, count: int) -> None:
    """Raise ``ValueError`` for a number of registers that the instruction does not have."""
    if count % 8 or not 24 <= count <= 256:
        raise ValueError(f"{name}: count is {count}: it must be a multiple of 8 from 24 to 256")


def check_sync(number: int, threads: int) -> None:
    """Raise ``ValueError`` for a barrier's number, or a number of threads, that does not exist."""
    if not 1 <= number <= 15:
        raise ValueError(f"sync_threads_of: number is {number}: it must be from 1 to 15")
    if threads % WARP or not WARP <= threads <= MOST_THREADS:
        raise ValueError(
            f"sync_threads_of: threads is {threads}: it must be a multiple of {WARP}, up to "
            f"{MOST_THREADS}"
        )


def _emulated_give_registers(count: int) -> None:
    check_registers("give_registers", count)


def _emulated_take_registers(count: int) -> None:
    check_registers("take_registers", count)


def _emulated_sync_threads_of(number: int, threads: int) -> None:
    check_sync(number, threads)
    meet_some(number, threads)


if EMULATED:
    give_registers, take_registers = _emulated_give_registers, _emulated_take_registers
    sync_threads_of = _emulated_sync_threads_of
else:
    from llvmlite import ir
    from numba.core.errors import TypingError
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    def _set_registers(name: str, action: str, count: types.Type) -> Any:
        """Return signature and code of a change of the warpgroup's registers."""
        if not isinstance(count, types.IntegerLiteral):
            raise TypingError(f"{name}: count is {count}, but must be a constant of the kernel's")
        number = count.literal_value
        try:
            check_registers(name, number)
        except ValueError as error:
            raise TypingError(str(error)) from None
        return types.void(count), statement(f"setmaxnreg.{action}.sync.aligned.u32 {number};")

    @intrinsic
    def give_registers(typing_context, count):  # type: ignore[no-untyped-def]
        """Keep ``count`` registers a thread, and give the rest back to the block."""
        return _set_registers("give_registers", "dec", count)

    @intrinsic
    def take_registers(typing_context, count):  # type: ignore[no-untyped-def]
        """Have ``count`` registers a thread, once the block has as many free."""
        return _set_registers("take_registers", "inc", count)

    @intrinsic
    def sync_threads_of(typing_context, number, threads):  # type: ignore[no-untyped-def]
        """Wait for ``threads`` threads at barrier ``number``."""
        if not isinstance(threads, types.IntegerLiteral):
            must = "must be a constant of the kernel's"
            raise TypingError(f"sync_threads_of: threads is {threads}, but {must}")
        known = number.literal_value if isinstance(number, types.IntegerLiteral) else 1
        try:
            check_sync(known, threads.literal_value)
        except ValueError as error:
            raise TypingError(str(error)) from None
        text = f"bar.sync $0, {threads.literal_value};"

        def generate(
            context: CUDATargetContext, builder: ir.IRBuilder, signature: Signature, args: Operands
        ) -> ir.Value:
            barrier = context.cast(builder, args[0], signature.args[0], types.uint32)
            assembly(builder, text, "r", [barrier], convergent=True)
            return context.get_dummy_value()

        return types.void(number, threads), generate


register_emulations(
    (give_registers, _emulated_give_registers),
    (take_registers, _emulated_take_registers),
    (sync_threads_of, _emulated_sync_threads_of),
)
