"""The threads of a launch that wait, and for what, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import cast

import numpy as np

from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.recording.access_log import WRITE, AccessLog
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.finding_words import AT_NUMBER, NO_NEW_NUMBERS, STALE_CAS
from convlab.simulation.rules.reports import Reports
from convlab.simulation.rules.stuck_loops import stuck_loop
from convlab.simulation.threads.greenlets import Block
from convlab.simulation.threads.snapshots import frames_of_kernel
from convlab.simulation.threads.waiting import AWAITING, NUMBERED_BARRIER, YIELD, WaitingCall


@dataclass
class Wait:
    """Threads that wait for the same at one line: the first of them, and their number."""

    block: int
    thread: int
    site: int
    line: str  # with its file
    kind: str
    who: str
    polled: str
    stores: bool
    awaits: str = ""  # what it waits for, if not at a call for others
    stuck: str = ""  # the variables that take no new numbers, if it waits for nobody
    count: int = 0

    def __str__(self) -> str:
        who = self.who + (f" and {self.count - 1:,} more" if self.count > 1 else "")
        s = "" if self.count > 1 else "s"
        if self.stuck:
            return f"{who} repeat{s} the loop in {self.line} for ever: {self.stuck}"
        if self.stores:
            return f"{who} store{s} in {self.polled} in {self.line}"
        if self.kind == YIELD:
            return f"{who} poll{s} {self.polled or 'memory'} in {self.line}"
        if self.awaits:
            return f"{who} wait{s} in {self.line} for {self.awaits}"
        if self.kind.startswith("syncthreads"):
            return f"{who} wait{s} at the barrier in {self.line}"
        return f"{who} wait{s} at {self.kind} in {self.line} for other lanes"


def waits_of(
    blocks: Iterable[Block],
    log: AccessLog | None,
    reports: Reports,
    arrays: Sequence[CheckedArray],
) -> list[Wait]:
    """Return what the threads of these blocks wait for: threads that wait for the same at one line
    together."""
    found: dict[tuple[str, str, str], Wait] = {}
    last = {} if log is None else _last_accesses(log)
    for block in blocks:
        for thread in block.waiting:
            frame = next(frames_of_kernel(thread.worker.gr_frame, reports.sites), None)
            if frame is None:  # it runs
                continue
            site = id(frame.f_code) + frame.f_lasti
            call = thread.waits_at()
            line, kind = reports.sites.where(site), call.kind
            polled, stores = "", False
            awaits = str(call.value) if kind in AWAITING else ""
            if kind == NUMBERED_BARRIER:
                awaits = _numbered(call, block)
            number = block.number * block.size + thread.number
            stuck = said_of_stuck_loop(frame, site, reports.sites) if kind == YIELD else ""
            if kind == YIELD and log is not None and number in last and not stuck:
                address, access = last[number]
                polled, stores = _element(log, address, arrays), access & 3 == WRITE
            wait = Wait(
                block=block.number,
                thread=thread.number,
                site=site,
                line=line,
                kind=kind,
                who=f"thread {thread.index} of block {reports.block(block.number)}",
                polled=polled,
                stores=stores,
                awaits=awaits,
                stuck=stuck,
            )
            found.setdefault((line, kind, polled or awaits), wait).count += 1
    return list(found.values())


def said_of_stuck_loop(frame: FrameType, site: int, sites: Sites) -> str:
    """Say which variables of the loop around a site take no new numbers, if it waits for nobody;
    else empty."""
    code = frame.f_code
    of_kernel = sites.is_of_kernel(site)
    found = stuck_loop(code, code.co_filename, sites.line(site)[1], of_kernel)
    values = frame.f_locals
    said = [f"{name} ({values[name]})" for name in found.names if name in values]
    if not said:
        return ""
    if found.by_cas:
        return f"{said[0]}, which {STALE_CAS}"
    *early, last = said
    return (
        f"{', '.join(early)} and {last} take {NO_NEW_NUMBERS}"
        if early
        else (f"{last} takes {NO_NEW_NUMBERS}")
    )


def _numbered(call: WaitingCall, block: Block) -> str:
    """Say which barrier with a number a thread waits at, and how many others do."""
    calls = [thread.waits_at() for thread in block.waiting]
    here = sum(one.kind == NUMBERED_BARRIER and one.value == call.value for one in calls)
    number, threads = cast("tuple[int, int]", call.value)
    return f"{threads} threads at barrier {number} {AT_NUMBER}, to which {here} have come"


def _last_accesses(log: AccessLog) -> dict[int, tuple[int, int]]:
    """Return the address and the kind of each thread's last access."""
    columns = log.columns()
    threads, back = np.unique(columns.thread[::-1], return_index=True)
    last = columns.take(len(columns.thread) - 1 - back)
    entries = zip(last.address.tolist(), last.kind.tolist(), strict=True)
    return dict(zip(threads.tolist(), entries, strict=True))


def _element(log: AccessLog, address: int, arrays: Sequence[CheckedArray]) -> str:
    """Return the name of the element at an address, with its value if it is in global memory."""
    span = log.span_at(address)
    index, _ = span.split(address)
    shown = f"{span.name}[{', '.join(map(str, index))}]"
    for array in arrays:
        if array.name == span.name and array.shape == span.shape:
            shown += f" (it stays {array.host[index]})"
    return shown
