"""The checks of threads that meet.

They find threads that wait at another barrier or have ended, and lanes that never come, or that the
mask does not name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from convlab.device.products import WARP
from convlab.simulation.rules.finding_words import (
    OTHER_ITERATION,
    RETURNED_IN,
    WHOLE_WARP,
    WHOLE_WARPGROUP,
)
from convlab.simulation.threads.meeting import Meeting
from convlab.simulation.threads.waiting import (
    MMA,
    OF_A_WARPGROUP,
    CallPath,
    Thread,
)
from convlab.simulation.threads.warp_calls import lane_names
from convlab.support.code_places import file_said


class Complain(Protocol):
    """Notes a finding of the thread of the block with that number."""

    def __call__(
        self,
        kind: str,
        what: str,
        site: int,
        thread: int,
        other: int | None = None,
        *,
        callers: Sequence[int] = (),
        iterations: Sequence[int] = (),
        other_line: int | None = None,
        other_file: str | None = None,
    ) -> None: ...


class MeetingChecks:
    """The checks of a block of ``size`` threads, whose kernel is in ``file``."""

    def __init__(self, size: int, file: str, complain: Complain) -> None:
        self._size, self._file, self._complain = size, file, complain

    def barrier(self, threads: list[Thread], returned: Mapping[int, int]) -> None:
        """Complain of threads that wait elsewhere, or that have ended. ``returned`` has the line of
        the ``return`` that ended a thread."""
        kind, path = "barrier divergence", threads[0].call_path()
        other = next((t for t in threads if t.call_path() != path), None)
        if other is not None:
            what, site, its_site = _apart(path, other.call_path())
            self._complain(kind, what, site, other.number, its_site)
        elif ended := self._size - len(threads):
            what = f"{ended} of {self._size} threads ended before this barrier"
            first = min({*range(self._size)} - {thread.number for thread in threads})
            site = threads[0].waits_at().site
            line = returned.get(first)
            if line is not None:
                what += f"{RETURNED_IN}line {line} of {file_said(self._file)}"
            self._complain(
                kind,
                what,
                site,
                first,
                callers=path.sites,
                iterations=path.loops,
                other_line=line,
                other_file=None if line is None else self._file,
            )

    def call(self, meeting: Meeting) -> None:
        """Complain of lanes that a mask names and that never come, and of those that come unnamed.

        Lanes that have ended are excused from ``syncwarp``, as by CUDA; not from calls that read
        their numbers. A tensor core also needs those that a small block does not have.
        """
        threads, mask, present, living = meeting
        if mask is None:
            return
        first, kind, site = threads[0].number, meeting.call.kind, meeting.call.site
        there = (1 << min(self._size - first // WARP * WARP, WARP)) - 1
        if kind == "syncwarp":
            there = living
        elif kind == MMA or kind in OF_A_WARPGROUP:
            there = mask
        if absent := mask & there & ~present:
            what = f"{kind} names {lane_names(absent)} in its mask, which never come to it"
            if kind == MMA:
                what = f"{MMA} {WHOLE_WARP} but {lane_names(absent)} never come to it"
            if kind in OF_A_WARPGROUP:
                who = lane_names(absent).replace("lane", "thread")
                what = f"{kind} {WHOLE_WARPGROUP} but its {who} never come to it"
            self._complain("inactive lane", what, site, first)
        if strangers := present & ~mask:
            what = f"{kind} is called by {lane_names(strangers)}, which its mask does not name"
            outside = next(t.number for t in threads if strangers >> t.number % WARP & 1)
            self._complain("inactive lane", what, site, outside)


def _apart(one: CallPath, other: CallPath) -> tuple[str, int, int]:
    """Say in which way two threads wait at different barriers; return a site of each too."""
    if one.sites == other.sites:
        loops = zip(one.loops, other.loops, strict=True)
        first, second = next(two for two in loops if len({*two}) > 1)
        what = f"this barrier in iterations {first} and {second} {OTHER_ITERATION}"
        return f"threads of one block wait at {what}", one.sites[0], one.sites[0]
    if one.sites[0] != other.sites[0]:
        what = "threads of one block wait at two different barriers"
        return what, one.sites[0], other.sites[0]
    callers = zip(one.sites[::-1], other.sites[::-1], strict=False)
    mine, its = next(two for two in callers if len({*two}) > 1)
    return "threads of one block wait at one barrier in two calls of its function", mine, its
