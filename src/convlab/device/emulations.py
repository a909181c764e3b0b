"""Emulations: plain Python that simulators run in place of an intrinsic.

:func:`together` is for emulations that need a whole warp, because Numba's simulator runs each lane
as a thread of the operating system and knows no warps. convlab's engines have warps of their own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    name: str, brought: Part, compute: Callable[[dict[int, Part]], Mapping[int, ResultT]]
) -> ResultT:
    """Return this lane's part of the result of ``compute`` on what all 32 lanes brought.

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
        raise RuntimeError(f"{name} is computed by the 32 lanes of a warp, so only in a kernel")
    warp, lane = divmod(thread.thread_id, WARP)
    call = warp, caller.f_code, caller.f_lasti
    with _change:
        meetings = vars(manager).setdefault("convlab_meetings", {})
        meeting: _Meeting = meetings.setdefault(call, _Meeting())
        meeting.brought[lane] = brought
        if len(meeting.brought) == WARP:
            del meetings[call]  # the next time that the lanes come is another meeting
            meeting.results = compute(meeting.brought)
            meeting.over.set()
    if not meeting.over.wait(LANE_TIMEOUT_SECONDS):
        absent = [lane for lane in range(WARP) if lane not in meeting.brought]
        raise RuntimeError(f"{name} needs the whole warp, but lanes {absent} do not come to it")
    result: ResultT = meeting.results[lane]
    return result
