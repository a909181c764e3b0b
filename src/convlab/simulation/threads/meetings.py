"""The meetings of a block's threads: at barriers and at calls of a warp or a warpgroup.

A warp's call is complete when all lanes that its mask names and that still live have come to the
same instruction; a block's barrier when all living threads have come to one. A call that can never
be complete is a finding; its threads then continue without the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import cast

from convlab.device.products import WARP
from convlab.simulation.recording.sites import in_two_arms
from convlab.simulation.rules.shuffles import Shuffles
from convlab.simulation.threads.meeting import Meeting
from convlab.simulation.threads.meeting_checks import Complain, MeetingChecks
from convlab.simulation.threads.waiting import (
    AWAITING,
    GRID_BARRIER,
    NUMBERED_BARRIER,
    YIELD,
    Awaited,
    Thread,
    WaitingCall,
)
from convlab.simulation.threads.warp_calls import CALLS, Lanes, bits


class Meetings:
    """Decides which threads of a block continue, and with which results.

    ``waits_in_calls`` if threads may wait in device functions; if ``parted``, ``activemask`` names
    even and odd lanes apart. Without ``complain`` nothing is checked, and without ``shuffles`` a
    lane that reads from nobody gets its own number.
    """

    def __init__(
        self,
        size: int,
        file: str,
        waits_in_calls: bool,
        parted: bool,
        on_barrier: Callable[[int, int], None],
        on_warp_barrier: Callable[[list[int], bool], None],
        complain: Complain | None,
        shuffles: Shuffles | None,
    ) -> None:
        self._size = size
        self._waits_in_calls, self._parted = waits_in_calls, parted
        self._on_barrier, self._on_warp_barrier = on_barrier, on_warp_barrier
        self._checks = None if complain is None else MeetingChecks(size, file, complain)
        self._shuffles = shuffles
        self.at_grid_barrier = False  # whether all threads of the block wait there
        self.released = False  # from the barrier of the grid
        self.returned: dict[int, int] = {}  # the line of the ``return`` that ended a thread

    def who_continues(
        self, waiting: list[Thread], ranks: Sequence[int]
    ) -> tuple[list[Thread], list[Thread]]:
        """Return the threads that continue, with their results, and those that still wait.
        ``ranks`` has each thread's rank in the order in which threads run."""
        if self._at_one_barrier(waiting):
            site = waiting[0].waits_at().site
            for thread in waiting:
                thread.result = ()
            self._on_barrier(len(waiting), site)
            return waiting, []
        waiting.sort(key=lambda thread: ranks[thread.number])
        going: list[Thread] = []
        at_barrier: list[Thread] = []
        at_calls: list[Thread] = []
        at_numbers: list[Thread] = []
        for_others: list[Thread] = []  # that wait for what others do, not at the same call
        for thread in waiting:
            call = thread.waits_at()
            kind = call.kind
            if kind == YIELD:
                thread.result = (None,)
                going.append(thread)
            elif kind in AWAITING:
                thread.result = (None,)
                (going if cast(Awaited, call.value).over() else for_others).append(thread)
            elif kind == NUMBERED_BARRIER:
                at_numbers.append(thread)
            else:
                (at_barrier if kind.startswith("syncthreads") else at_calls).append(thread)
        going += self._at_numbers(at_numbers)
        for_others += at_numbers
        incomplete: list[Meeting] = []
        for meeting in self._meetings(at_calls, waiting):
            mask, living, present = meeting.mask, meeting.living, meeting.present
            if mask is None or not mask & living & ~present:
                going += self._carry_out(meeting)
            else:
                incomplete.append(meeting)
        never = [one for one in incomplete if not _may_come(one, for_others)]
        if not going and never:  # they wait for lanes that will never come
            going = self._carry_out(_met_in_two_arms(never) or never[0])
        if not going and at_barrier and not for_others:
            going = self._barrier(at_barrier)
        gone = {thread.number for thread in going}
        going.sort(key=lambda thread: ranks[thread.number])
        return going, [thread for thread in waiting if thread.number not in gone]

    def _at_numbers(self, threads: list[Thread]) -> list[Thread]:
        """Return the threads that go on from barriers with numbers, to which enough have come."""
        going: list[Thread] = []
        by_call: dict[tuple[int, int], list[Thread]] = defaultdict(list)
        for thread in threads:
            by_call[cast("tuple[int, int]", thread.waits_at().value)].append(thread)
        for (_, count), those in by_call.items():
            if len(those) >= count:
                going += those[:count]
                for thread in those[:count]:
                    thread.result = (None,)
                self._on_warp_barrier([thread.number for thread in those[:count]], False)
        return going

    def _at_one_barrier(self, waiting: list[Thread]) -> bool:
        """Return whether all threads wait at one plain barrier: the usual case, made quick."""
        first = waiting[0].worker.gr_frame
        code, offset = first.f_code, first.f_lasti
        checked, loops = self._checks is not None, waiting[0].worker.loops
        path = waiting[0].call_path() if checked and self._waits_in_calls else None
        for thread in waiting:
            if type(thread.call) is WaitingCall:
                return False
            if checked:
                frame = thread.worker.gr_frame
                if frame.f_lasti != offset or frame.f_code is not code:
                    return False
                if thread.worker.loops != loops or (path and thread.call_path() != path):
                    return False
        return len(waiting) == self._size or not checked

    def _meetings(self, threads: list[Thread], waiting: list[Thread]) -> list[Meeting]:
        """Return the calls of the threads: those of a warp or a warpgroup that wait in the same
        calls for the same lanes make one."""
        calls: dict[tuple[object, ...], list[Thread]] = defaultdict(list)
        for thread in threads:
            call = thread.waits_at()
            kind, together = call.kind, call.together
            path: object
            if self._waits_in_calls:
                path = thread.call_path()
            else:
                path = call.site, *thread.worker.loops
            if self._parted and kind == "activemask":
                path = path, thread.number % 2
            calls[together, thread.number // together, kind, path, call.mask].append(thread)
        found = []
        for those in calls.values():
            call = those[0].waits_at()
            size, which = call.together, those[0].number // call.together
            present = living = (1 << size) - 1
            if len(those) < size:
                present = bits(t.number % size for t in those)
                living = bits(t.number % size for t in waiting if t.number // size == which)
            found.append(Meeting(those, call.mask, present, living))
        return found

    def _barrier(self, threads: list[Thread]) -> list[Thread]:
        calls = [thread.waits_at() for thread in threads]
        kind, site = calls[0].kind, calls[0].site
        self.at_grid_barrier = {call.kind for call in calls} == {GRID_BARRIER}
        if self.at_grid_barrier and not self.released:
            return []
        self.at_grid_barrier = self.released = False
        if self._checks is not None:
            self._checks.barrier(threads, self.returned)
        values = [bool(call.value) for call in calls]
        results = {"count": sum(values), "and": all(values), "or": any(values)}
        result = int(results.get(kind.removeprefix("syncthreads_"), 0))
        for thread in threads:
            thread.result = (result,)
        self._on_barrier(len(threads), site)
        return threads

    def _carry_out(self, meeting: Meeting) -> list[Thread]:
        """Carry out the call of a warp's lanes, or of a warpgroup's threads, with those present."""
        threads, call = meeting.threads, meeting.call
        present = {thread.number % call.together: thread for thread in threads}
        if self._checks is not None:
            self._checks.call(meeting)
        if call.kind == "syncwarp":
            numbers = [thread.number for thread in threads]
            self._on_warp_barrier(numbers, meeting.present == meeting.living)
        if call.kind.startswith("shfl"):
            results = self._shuffle(present)
        else:
            results = CALLS[call.kind]({n: t.waits_at().value for n, t in present.items()})
        for lane, thread in present.items():
            thread.result = (results[lane],)
        return threads

    def _shuffle(self, present: dict[int, Thread]) -> Lanes:
        """Return the number that each lane reads by a shuffle, to which it brings its own number
        and the lane that it reads."""
        calls = {lane: thread.waits_at() for lane, thread in present.items()}
        results: Lanes = {}
        readers: list[tuple[int, int]] = []  # numbers of the thread that is read and of its reader
        for lane, call in calls.items():
            assert isinstance(call.value, tuple)
            own, source = call.value
            if source in calls:
                its = calls[source].value
                assert isinstance(its, tuple)
                results[lane] = its[0]
                readers.append((present[source].number, present[lane].number))
            elif self._shuffles is None:
                results[lane] = own
            elif 0 <= source < WARP:
                what = f"{call.kind} reads lane {source}, which does not take part"
                number = present[lane].number
                results[lane] = self._shuffles.undefined(own, what, call.site, number)
            else:
                number = present[lane].number
                results[lane] = self._shuffles.beyond(own, call.kind, call.site, number)
        if self._shuffles is not None:
            self._shuffles.pass_on(readers)
        return results


def _may_come(meeting: Meeting, for_others: list[Thread]) -> bool:
    """Return whether a missing lane of a meeting waits for what others do, and may come later."""
    size, which = meeting.call.together, meeting.threads[0].number // meeting.call.together
    missing = (meeting.mask or 0) & meeting.living & ~meeting.present
    return any(
        thread.number // size == which and missing >> thread.number % size & 1
        for thread in for_others
    )


def _met_in_two_arms(incomplete: list[Meeting]) -> Meeting | None:
    """Return two ``syncwarp`` of a warp as one, if they stand in the two arms of an ``if`` and have
    all lanes of the mask together: since compute capability 7.0 they are one barrier."""
    for one, other in combinations(incomplete, 2):
        present = one.present | other.present
        if (
            one.call.kind == other.call.kind == "syncwarp"
            and one.threads[0].number // WARP == other.threads[0].number // WARP
            and one.mask == other.mask
            and not (one.mask or 0) & one.living & ~present
            and in_two_arms(one.call.site, other.call.site)
        ):
            return Meeting(one.threads + other.threads, one.mask, present, one.living)
    return None
