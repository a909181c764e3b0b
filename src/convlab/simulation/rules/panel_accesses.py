"""Accesses of the copy engine and of tensor cores to panels of shared memory, and conflicts of
these with each other and with accesses of threads.

The copy engine writes a panel at some time between the line that starts the copy and the wait for
the phase of its barrier; tensor cores read theirs between the start of a product and the wait for
it. So such an access has begun after all that its threads knew at the start, and it has ended for
each thread that knows of its end (:mod:`convlab.simulation.rules.thread_clocks`). Two accesses to
a byte conflict if one writes and neither is known to come before the other.

Accesses of the engine and of tensor cores are checked among themselves as they begin; those of
threads when the log is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from convlab.simulation.recording.access_log import (
    GLOBAL,
    ISSUED,
    READ,
    Accesses,
    AccessLog,
    joined,
)
from convlab.simulation.rules.memory_traffic import changes
from convlab.simulation.rules.panel_access import PanelAccess
from convlab.simulation.rules.panel_reports import PanelReports
from convlab.simulation.rules.reports import Reports
from convlab.simulation.rules.thread_clocks import (
    NEVER,
    BlockClocks,
    ThreadClocks,
    time_of,
)

ENOUGH = 20  # accesses of a thread that are reported for one panel; more are the same mistake again


class PanelAccesses:
    """The accesses to panels of a launch's blocks. Without ``reports`` nothing is checked."""

    def __init__(
        self, clocks: ThreadClocks, log: AccessLog | None, reports: Reports | None
    ) -> None:
        self._clocks = clocks
        self._reports: PanelReports | None = None
        if reports is not None and log is not None:
            self._reports = PanelReports(reports, log)
        self._all: list[PanelAccess] = []
        # Of each block those that no later write to all of their bytes follows.
        self._live: dict[int, list[PanelAccess]] = {}
        # Of each block the time of the first write to each byte: by any, and by copies alone.
        self._written: dict[int, np.ndarray] = {}
        self._copied: dict[int, np.ndarray] = {}
        self._kept: Accesses | None = None  # last writes of threads, in pieces of the log before

    def add(self, access: PanelAccess) -> None:
        """Note an access that begins now, and check it against those before."""
        if self._reports is None:
            return
        live = self._live.setdefault(access.block, [])
        self._live[access.block] = kept = [access]
        for before in live:
            apart = before.end <= access.first or access.end <= before.first
            if apart:
                kept.append(before)
                continue
            if before.writes:
                access.since = max(access.since, before.time)
            both = before.writes or access.writes
            if both and not before.has_ended_for(access.begin):
                self._reports.at_one_time(before, access)
            if access.writes:
                before.until = min(before.until, access.time)
            covered = access.first <= before.first and before.end <= access.end
            if not (access.writes and covered):
                kept.append(before)
        self._all.append(access)
        if access.writes:
            for times in self._written, self._copied:
                _note(times, access.block, access.first, access.end, access.time)

    # What threads do to panels.

    def look(self, log: AccessLog, whole: bool) -> None:
        """Check the accesses in the log against those to panels. ``whole`` if the last block has
        ended."""
        if self._reports is not None and self._clocks.used:
            self._look(self._reports, log)
        if whole:
            for part in self._all, self._live, self._written, self._copied:
                part.clear()
            self._kept = None
            self._clocks.forget()

    def _look(self, reports: PanelReports, log: AccessLog) -> None:
        columns = log.columns()
        near = columns.take(np.flatnonzero(columns.address < GLOBAL))
        self._note_writes(near)
        if self._kept is not None:
            near = joined([self._kept, near])
        near = near.take(np.argsort(near.address, kind="stable"))
        widest = int(near.size.max(initial=1))
        begin = int(time_of(log.start - 1))  # of this piece of the log
        times, ends = time_of(near.position), near.address + near.size
        changing = near.kind & 3 != READ
        for access in self._all:
            low = int(np.searchsorted(near.address, access.first - widest + 1))
            here = slice(low, int(np.searchsorted(near.address, access.end)))
            chosen = (ends[here] > access.first) & (near.block[here] == access.block)
            chosen &= (times[here] >= access.since) & (times[here] <= access.until)
            if access.time < begin:  # what was before has been looked at
                chosen &= times[here] > begin
            if not access.writes:
                chosen &= changing[here]
            some = low + np.flatnonzero(chosen)
            clocks = self._clocks.of_block(access.block)
            if clocks is not None and len(some):
                self._against_threads(reports, access, near.take(some), clocks)
            if access.time > begin and not access.writes:
                self._uninitialised(reports, access)
        self._all = [access for access in self._all if access.until == math.inf]
        writes = near.take(np.flatnonzero(changing))
        order = np.lexsort((writes.position, writes.address, writes.block))
        writes = writes.take(order)
        self._kept = writes.take(changes(writes.address[::-1], writes.block[::-1])[::-1])

    def _against_threads(
        self,
        reports: PanelReports,
        access: PanelAccess,
        some: Accesses,
        clocks: BlockClocks,
    ) -> None:
        """Check accesses of threads to the bytes of a panel's access: those between its ``since``
        and its ``until``, and for one that reads only those that change a byte."""
        times, thread = time_of(some.position), some.thread % clocks.size
        before = times < access.time
        known = np.zeros(len(times), bool)
        known[before] = access.begin[thread[before]] >= times[before]
        after = np.flatnonzero(~before)
        for one, which in of_each(thread[after]):
            its = after[which]
            known[its] = times[its] >= clocks.knows_from(one, access.entry, access.number)
        for found in some.rows(np.flatnonzero(~known)[:ENOUGH]):
            came_before = int(time_of(found.position)) < access.time
            reports.beside_thread(access, found, came_before=came_before)
        # A write that is known, but has not been fenced, may come later for the other proxy.
        writes = before & known & (some.kind & 3 != READ) & (some.kind & ISSUED == 0)
        late = np.flatnonzero(writes)
        late = late[~self._fenced(some.thread[late], times[late], access.begin[thread[late]])]
        for found in some.rows(late[:ENOUGH]):
            reports.not_fenced(access, found)

    def _fenced(self, thread: np.ndarray, time: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return which threads have called ``fence_shared`` after these writes, and before what is
        known of them."""
        found = np.zeros(len(thread), bool)
        for one, its in of_each(thread):
            fences = self._clocks.fences_of(one)
            found[its] = fences[np.searchsorted(fences, time[its], "right")] <= known[its]
        return found

    # What nobody has written.

    def _note_writes(self, near: Accesses) -> None:
        """Note the first write of threads to each byte of shared memory."""
        writes = near.take(np.flatnonzero(near.kind & 3 != READ))
        for block in np.unique(writes.block).tolist():
            its = writes.take(np.flatnonzero(writes.block == block))
            end = int((its.address + its.size).max())
            _note(self._written, block, end, end, 0)
            times = time_of(its.position)
            for byte in range(int(its.size.max())):
                some = np.flatnonzero(its.size > byte)
                np.minimum.at(self._written[block], its.address[some] + byte, times[some])

    def _uninitialised(self, reports: PanelReports, access: PanelAccess) -> None:
        """Report a read of tensor cores of what nobody has written."""
        known = self._written.get(access.block, np.empty(0, np.int64))
        times = np.full(access.end - access.first, NEVER)
        there = known[access.first : access.end]
        times[: len(there)] = there
        late = np.flatnonzero(times > access.time)
        if len(late):
            reports.uninitialised(access, access.first + int(late[0]))

    def copied(self, reads: Accesses) -> np.ndarray:
        """Return which of these reads are of what the engine has been told to copy before."""
        found = np.zeros(len(reads.address), bool)
        times = time_of(reads.position)
        for block, since in self._copied.items():
            inside = (reads.block == block) & (reads.address < len(since))
            its = np.flatnonzero(inside)
            found[its] = since[reads.address[its]] <= times[its]
        return found


def of_each(threads: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each thread with the positions where it stands."""
    order = np.argsort(threads, kind="stable")
    ordered = threads[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1)).tolist()
    for begin, end in pairwise([*begins, len(order)]):
        yield int(ordered[begin]), order[begin:end]


def _note(times: dict[int, np.ndarray], block: int, first: int, end: int, time: int) -> None:
    """Note a write at a time to these bytes of a block's shared memory."""
    known = times.get(block)
    if known is None or len(known) < end:
        longer = np.full(end, NEVER)
        if known is not None:
            longer[: len(known)] = known
        times[block] = known = longer
    np.minimum(known[first:end], time, out=known[first:end])
