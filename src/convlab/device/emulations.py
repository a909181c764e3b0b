"""Emulations: plain Python that simulators run in place of an intrinsic.

:func:`together` is for emulations that need a whole warp, because Numba's simulator runs each lane
as a thread of the operating system and knows no warps. convlab's engines have warps of their own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, TypeVar

from convlab.device.products import WARP

Emulation = Callable[..., Any]
_EMULATIONS: dict[int, tuple[object, Emulation]] = {}


def register_emulations(*pairs: tuple[object, Emulation]) -> None:
    """Let ``emulation_of(intrinsic)`` return the emulation, for each pair of the two."""
    for intrinsic, emulation in pairs:
        # The intrinsic is kept, so that no other object gets its id.
        _EMULATIONS[id(intrinsic)] = intrinsic, emulation


def emulation_of(value: object) -> Emulation | None:
    """Return the plain-Python emulation of an intrinsic; None for anything else."""
    known = _EMULATIONS.get(id(value))
    return None if known is None else known[1]


LANE_TIMEOUT_SECONDS = 60.0  # that a lane of Numba's simulator waits: other lanes may have ended
Part = TypeVar("Part")
ResultT = TypeVar("ResultT")

_change = threading.Lock()
_here = threading.local()


@contextmanager
def meeting_by(meet: Callable[[str, int, object], object]) -> Iterator[None]:
    """Inside, :func:`together` calls ``meet(name, site, brought)`` in this thread."""
    _here.meet = meet
    try:
        yield
    finally:
        del _here.meet


class _Meeting:
    """One call of a warp: the lanes that have reached it, with what they bring."""

    def __init__(self) -> None:
        self.brought: dict[int, Any] = {}  # of a type that each call has for itself
        self.results: Mapping[int, Any] = {}
        self.over = threading.Event()


def together(
    name: str,
    brought: Part,
    compute: Callable[[dict[int, Part]], Mapping[int, ResultT]],
    size: int = WARP,
) -> ResultT:
    """Return this lane's part of the result of ``compute`` on what all 32 lanes brought, or all
    ``size`` threads.

    Call it in the function that the kernel calls, because lanes meet at the kernel's line.

    Raises RuntimeError outside a kernel, and if a lane of the warp does not come to the same call
    because the lane does not exist, has ended, or waits elsewhere.
    """
    caller = sys._getframe(2)
    if hasattr(_here, "meet"):
        met: ResultT = _here.meet(name, id(caller.f_code) + caller.f_lasti, brought)
        return met
    thread: Any = threading.current_thread()  # Numba's simulator gives its threads attributes
    manager = getattr(thread, "_manager", None)
    if manager is None:
        who = "the 32 lanes of a warp" if size == WARP else f"the {size} threads of a warpgroup"
        raise RuntimeError(f"{name} is computed by {who}, so only in a kernel")
    warp, lane = divmod(thread.thread_id, size)
    call = warp, caller.f_code, caller.f_lasti
    with _change:
        meetings = vars(manager).setdefault("convlab_meetings", {})
        meeting: _Meeting = meetings.setdefault(call, _Meeting())
        meeting.brought[lane] = brought
        if len(meeting.brought) == size:
            del meetings[call]  # the next time that the lanes come is another meeting
            meeting.results = compute(meeting.brought)
            meeting.over.set()
    if not meeting.over.wait(LANE_TIMEOUT_SECONDS):
        absent = [lane for lane in range(size) if lane not in meeting.brought]
        who = "warp, but lanes" if size == WARP else "warpgroup, but threads"
        raise RuntimeError(f"{name} needs the whole {who} {absent} do not come to it")
    result: ResultT = meeting.results[lane]
    return result


POLL = "yield"  # the name by which a thread that waits lets others go first


def wait_until(name: str, holds: Callable[[], bool]) -> None:
    """Let other threads run until ``holds()`` is true. Raises RuntimeError outside a kernel, and if
    it stays false in Numba's simulator."""
    if hasattr(_here, "meet"):
        while not holds():
            _here.meet(POLL, 0, None)
        return
    if not hasattr(threading.current_thread(), "_manager"):
        if not holds():
            raise RuntimeError(f"{name} waits for other threads, so only in a kernel")
        return
    end = monotonic() + LANE_TIMEOUT_SECONDS
    while not holds():
        if monotonic() > end:
            raise RuntimeError(f"{name} waits for what does not come")
        sleep(0.0005)


SOME_THREADS = "sync_threads_of"  # the name by which threads meet at a numbered barrier


class _NumberedBarrier:
    """A barrier of some threads of a block in Numba's simulator, until they have all come."""

    def __init__(self) -> None:
        self.came = 0
        self.over = threading.Event()


def meet_some(number: int, threads: int) -> None:
    """Wait until so many threads of the block have come to the barrier of that number. Raises
    RuntimeError outside a kernel, and if they do not come."""
    if hasattr(_here, "meet"):
        _here.meet(SOME_THREADS, number, (number, threads))
        return
    manager = getattr(threading.current_thread(), "_manager", None)
    if manager is None:
        raise RuntimeError(f"{SOME_THREADS} waits for other threads, so only in a kernel")
    with _change:
        barriers = vars(manager).setdefault("convlab_barriers", {})
        barrier: _NumberedBarrier = barriers.setdefault(number, _NumberedBarrier())
        barrier.came += 1
        if barrier.came == threads:
            del barriers[number]
            barrier.over.set()
    if not barrier.over.wait(LANE_TIMEOUT_SECONDS):
        raise RuntimeError(
            f"{SOME_THREADS}: barrier {number} waits for {threads} threads, but only "
            f"{barrier.came} come"
        )
