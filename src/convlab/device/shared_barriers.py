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

A *phase* is one use of a barrier. It ends when all arrivals and all expected bytes are there, and
the next one begins. Phases are counted from 0, and a wait names the parity of the phase that it
waits for: 0 for the first, 1 for the second, 0 for the third. If that phase ended before the wait,
the wait returns at once. A wait can distinguish only the running phase and the one before it. A
thread that waits for the phase two before the running one waits for the running one instead,
perhaps for ever. A thread that waits for the phase after the running one returns at once, because
the phase before the running one has the same parity. Before the first phase has ended, a wait for
parity 1 returns at once. ``arrive_barrier`` arrives without copies. After a wait a thread sees what
the copies stored, and what threads stored before they arrived.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". Compute
capability 9.0 (``expect_bytes`` and the parity waits).
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from convlab.device import ptx
from convlab.device.code_generation import (
    EMULATED,
    Operands,
    assembly,
    element_pointer,
    statement,
)
from convlab.device.emulations import register_emulations, wait_until

if TYPE_CHECKING:
    from numba.cuda.target import CUDATargetContext
    from numba.cuda.typing.templates import Signature


# For Numba's simulator: a barrier is its 64 bits, as on a GPU. They hold the parity of the phase
# that goes on, the arrivals that it awaits, those of each phase, and the bytes that it awaits;
# copies land where they are started. Threads of the operating system change barriers in turns.

MOST_ARRIVALS = MOST_BYTES = 2**20 - 1  # of a phase
_NO_BYTES = 2**21  # stands for no bytes in the upper bits of a barrier
_turn = Lock()


@dataclass
class _State:
    """The state of a barrier."""

    arrivals: int  # of each phase
    pending: int  # arrivals
    expected: int = 0  # bytes; below zero if copies have landed before they are expected
    parity: int = 0

    @classmethod
    def of(cls, word: int) -> _State:
        """Return the state that a barrier's 64 bits hold."""
        return cls(
            arrivals=word >> 1 & MOST_ARRIVALS,
            pending=word >> 21 & MOST_ARRIVALS,
            expected=(word >> 41) - _NO_BYTES,
            parity=word & 1,
        )

    def word(self) -> int:
        """Return the state as 64 bits, in a new phase if this one has ended."""
        if self.pending == 0 == self.expected:
            self.pending, self.parity = self.arrivals, 1 - self.parity
        return (
            self.parity
            | self.arrivals << 1
            | self.pending << 21
            | (self.expected + _NO_BYTES) << 41
        )


def change_barrier(name: str, barriers: Any, i: int, arrivals: int, nbytes: int) -> None:
    """Let so many threads arrive at ``barriers[i]`` and let the phase await so many more bytes.
    Raises ``RuntimeError`` for a barrier that was not initialised, or awaits fewer arrivals."""
    words = getattr(barriers, "memory", barriers)
    with _turn:
        state = _State.of(int(words[i]))
        if not state.arrivals or state.arrivals < state.pending:
            raise RuntimeError(f"{name}: barrier {i} is not initialised")
        if state.pending < arrivals:
            raise RuntimeError(f"{name}: barrier {i} awaits no more arrivals in this phase")
        state.pending -= arrivals
        state.expected += nbytes
        words[i] = state.word()


def check_arrivals(arrivals: int) -> None:
    """Raise ``ValueError`` for a number of arrivals that a phase cannot have."""
    if not 1 <= arrivals <= MOST_ARRIVALS:
        raise ValueError(
            f"init_barrier: arrivals is {arrivals}: it must be from 1 to {MOST_ARRIVALS:,}"
        )


def check_bytes(count: int) -> None:
    """Raise ``ValueError`` for a number of bytes that a phase cannot await."""
    if not 0 <= count <= MOST_BYTES:
        raise ValueError(f"expect_bytes: count is {count}: it must be from 0 to {MOST_BYTES:,}")


def check_parity(parity: int) -> None:
    """Raise ``ValueError`` unless it is 0 or 1."""
    if parity not in (0, 1):
        raise ValueError(f"wait_barrier: parity is {parity}: it must be 0 or 1")


def _emulated_init_barrier(barriers: Any, i: int, arrivals: int) -> None:
    check_arrivals(int(arrivals))
    words = getattr(barriers, "memory", barriers)
    with _turn:
        words[i] = _State(int(arrivals), int(arrivals)).word()


def _emulated_fence_barriers() -> None: ...


def _emulated_expect_bytes(barriers: Any, i: int, count: int) -> None:
    check_bytes(int(count))
    change_barrier("expect_bytes", barriers, i, 1, int(count))


def _emulated_arrive_barrier(barriers: Any, i: int) -> None:
    change_barrier("arrive_barrier", barriers, i, 1, 0)


def _emulated_wait_barrier(barriers: Any, i: int, parity: int) -> None:
    check_parity(int(parity))
    words = getattr(barriers, "memory", barriers)
    wait_until("wait_barrier", lambda: int(words[i]) & 1 != parity)


if EMULATED:
    init_barrier, fence_barriers = _emulated_init_barrier, _emulated_fence_barriers
    expect_bytes, arrive_barrier = _emulated_expect_bytes, _emulated_arrive_barrier
    wait_barrier = _emulated_wait_barrier
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
        return _at_barrier("init_barrier", ptx.INIT_BARRIER, barriers, i, arrivals)

    @intrinsic
    def fence_barriers(typing_context):  # type: ignore[no-untyped-def]
        """Make this thread's new barriers visible to the copy engine."""
        return types.void(), statement(ptx.FENCE_BARRIERS)

    @intrinsic
    def expect_bytes(typing_context, barriers, i, count):  # type: ignore[no-untyped-def]
        """Arrive, and let the phase await so many more bytes of copies."""
        return _at_barrier("expect_bytes", ptx.EXPECT_BYTES, barriers, i, count)

    @intrinsic
    def arrive_barrier(typing_context, barriers, i):  # type: ignore[no-untyped-def]
        """Arrive at ``barriers[i]`` and go on."""
        return _at_barrier("arrive_barrier", ptx.ARRIVE_BARRIER, barriers, i)

    @intrinsic
    def wait_barrier(typing_context, barriers, i, parity):  # type: ignore[no-untyped-def]
        """Wait until the phase of that parity, 0 or 1, has ended at ``barriers[i]``."""
        return _at_barrier("wait_barrier", ptx.WAIT_BARRIER, barriers, i, parity)


register_emulations(
    (init_barrier, _emulated_init_barrier),
    (fence_barriers, _emulated_fence_barriers),
    (expect_bytes, _emulated_expect_bytes),
    (arrive_barrier, _emulated_arrive_barrier),
    (wait_barrier, _emulated_wait_barrier),
)
