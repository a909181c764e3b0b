"""Threads that wait: for what, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple, Protocol

from greenlet import greenlet

from convlab.device.products import WARP, WARPGROUP
from convlab.simulation.rules.coordinates import Coordinates

# The kinds of calls without a name in ``cuda``: of the lanes of a warp, of the threads of a
# warpgroup, of a thread that lets others go first, and of all threads of the grid.
MMA = "mma_tf32"
PRODUCT, ONE_PRODUCT = "start_product", "start_one_product"
PRODUCT_DONE = "finish_product"
YIELD = "yield"
GRID_BARRIER = "syncthreads of the grid"
# Calls of a warpgroup: products from panels of shared memory, and its registers.
START_F16, START_BF16 = "start_product_f16", "start_product_bf16"
START_TF32, PRODUCTS_DONE = "start_product_tf32", "wait_products"
GIVE_REGISTERS, TAKE_REGISTERS = "give_registers", "take_registers"
START_F16_REGISTERS = "start_product_f16_registers"
START_BF16_REGISTERS = "start_product_bf16_registers"
STARTS = (START_F16, START_BF16, START_TF32, START_F16_REGISTERS, START_BF16_REGISTERS)
OF_A_WARPGROUP = frozenset(
    (PRODUCT, ONE_PRODUCT, PRODUCT_DONE, *STARTS, PRODUCTS_DONE, GIVE_REGISTERS, TAKE_REGISTERS)
)
ALL_THREADS = (1 << WARPGROUP) - 1  # the mask of a whole warpgroup
# Waits for what other threads or copies do: for the phase of a barrier in shared memory, for free
# registers, and for so many threads at a barrier with a number.
PHASE, REGISTERS_FREE = "wait_barrier", "free registers"
NUMBERED_BARRIER = "sync_threads_of"
AWAITING = frozenset((PHASE, REGISTERS_FREE))  # the value of such a call is an `Awaited`


class Awaited(Protocol):
    """The event that a thread waits for; as a string, what is missing."""

    def over(self) -> bool:
        """Return whether the thread may go on."""


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call at which a thread waits. ``value`` is what the thread brings to it, and ``mask`` names
    the lanes that must come. A plain ``syncthreads()`` is not one but an empty switch."""

    kind: str
    site: int
    value: object = None
    mask: int | None = None

    @property
    def together(self) -> int:
        """The number of consecutive threads that meet: those of a warp or of a warpgroup."""
        return WARPGROUP if self.kind in OF_A_WARPGROUP else WARP


class CallPath(NamedTuple):
    """The calls in which a thread waits: the sites of the call and of its callers, the innermost
    first, and the iterations of the loops around it, the outermost first."""

    sites: tuple[int, ...]
    loops: tuple[int, ...]


class ThreadRunner(greenlet):  # type: ignore[misc]
    """A greenlet that runs threads one after the other. ``work`` runs those of a block; ``loops``
    are the iterations that its thread is in."""

    loops: list[int]
    work: Callable[[], None]


@dataclass(slots=True, eq=False)
class Thread:
    """A CUDA thread that waits: its number and its index in the block, and the call at which it
    waits. ``call`` is an empty tuple for a plain ``syncthreads()``."""

    number: int
    index: Coordinates
    worker: ThreadRunner
    call: object
    result: tuple[object, ...] = ()

    def waits_at(self) -> WaitingCall:
        """Return the call; that of a plain ``syncthreads()`` is made from the thread's frame."""
        call = self.call
        if type(call) is not WaitingCall:
            frame = self.worker.gr_frame
            self.call = call = WaitingCall("syncthreads", id(frame.f_code) + frame.f_lasti)
        return call

    def call_path(self) -> CallPath:
        """Return the calls and loops in which the thread waits."""
        sites = [self.waits_at().site]
        frame: FrameType | None = self.worker.gr_frame
        while frame is not None:  # the innermost first
            sites.append(id(frame.f_code) + frame.f_lasti)
            frame = frame.f_back
        return CallPath(tuple(sites), tuple(self.worker.loops))


def yields(thread: Thread) -> bool:
    """Return whether the thread only lets others go first."""
    call = thread.call
    return type(call) is WaitingCall and call.kind == YIELD
