"""Emulations: what the simulators run in place of an intrinsic, as plain Python.

:func:`together` is for emulations that need a whole warp: Numba's simulator runs each lane as a
thread of the operating system and knows no warps. The strict simulator has warps of its own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from convlab.device.products import WARP

_EMULATIONS: dict[int, tuple[object, Callable[..., Any]]] = {}


def register_emulations(*pairs: tuple[object, Callable[..., Any]]) -> None:
    """For each pair, ``emulation_of(intrinsic)`` is the emulation from now on."""
    for intrinsic, emulation in pairs:
        # The intrinsic is kept, so that no other object gets its id.
        _EMULATIONS[id(intrinsic)] = intrinsic, emulation


def emulation_of(value: object) -> Callable[..., Any] | None:
    """The plain-Python emulation of an intrinsic; None for anything else."""
    known = _EMULATIONS.get(id(value))
    return None if known is None else known[1]


# A lane that has ended looks like one that has not begun. So when all present lanes wait, they wait
# this long for others to begin, and then give up.
PATIENCE_SECONDS = 2.0
_POLL_SECONDS = 0.05

_changed = threading.Condition()


class _Meeting:
    """The lanes of a warp that have come to one call, once."""

    def __init__(self) -> None:
        self.threads: list[Any] = []
        self.brought: dict[int, Any] = {}
        self.results: Mapping[int, Any] | None = None


def together(
    name: str, brought: Any, compute: Callable[[dict[int, Any]], Mapping[int, Any]]
) -> Any:
    """What ``compute`` of what all 32 lanes brought gives to this one. Call it in the function
    that the kernel calls: the kernel's line is the place where lanes meet.

    Raises RuntimeError outside a kernel, and where a lane of the warp does not come to the same
    call: it does not exist, has ended, or waits elsewhere.
    """
    thread: Any = threading.current_thread()
    manager = _manager_of(thread)
    if manager is None:
        raise RuntimeError(f"{name} is computed by the 32 lanes of a warp, so only in a kernel")
    warp, lane = divmod(thread.thread_id, WARP)
    x, y, z = manager._block_dim
    if x * y * z < (warp + 1) * WARP:
        raise RuntimeError(f"{name} needs whole warps, but the block has {x * y * z} threads")
    caller = sys._getframe(2)
    call = warp, caller.f_code, caller.f_lasti
    with _changed:
        meetings, waiting = vars(manager).setdefault("convlab_meetings", ({}, set()))
        meeting: _Meeting = meetings.setdefault(call, _Meeting())
        meeting.threads.append(thread)
        meeting.brought[lane] = brought
        waiting.add(thread)
        if len(meeting.brought) < WARP:
            _wait(name, thread, meeting, waiting)
        else:
            del meetings[call]  # the next time that they come is another
            waiting.difference_update(meeting.threads)
            meeting.results = compute(meeting.brought)
            _changed.notify_all()
    assert meeting.results is not None
    return meeting.results[lane]


def _wait(name: str, thread: Any, meeting: _Meeting, waiting: set[Any]) -> None:
    """Until all have come, or it is clear that they never will."""
    idle, known = 0.0, 0
    while meeting.results is None:
        _changed.wait(_POLL_SECONDS)
        if thread.abort:  # another thread raised
            raise RuntimeError(f"{name}: the launch was stopped")
        living: list[Any] = [
            one for one in threading.enumerate() if _manager_of(one) is _manager_of(thread)
        ]
        wait = all(one in waiting or bool(one.syncthreads_blocked) for one in living)
        stuck = len(living) == known and wait
        idle, known = idle + _POLL_SECONDS if stuck else 0.0, len(living)
        if meeting.results is None and idle > PATIENCE_SECONDS:
            absent = [lane for lane in range(WARP) if lane not in meeting.brought]
            raise RuntimeError(f"{name} needs the whole warp, but lanes {absent} do not come to it")


def _manager_of(thread: Any) -> Any:
    return getattr(thread, "_manager", None)
