"""Accesses of the host to pinned, managed and mapped memory that copies and launches still use.

A read of pinned memory is too early if a copy to it may not be over. A host may poll managed or
mapped memory instead, so there a read alone is not a mistake: a poll goes on until it sees the new
value. A read is a mistake if the launch changes what was read and the host does not read it again
at that place before it waits: then the program goes on with the old number here, and with the old
or the new one on a GPU.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CodeType
from typing import NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from convlab.simulation.host.stream_order import (
    Clock,
    Operation,
    conflict_finding,
    not_over,
    program_frame,
    program_line,
)
from convlab.simulation.memory.host_memory import is_dense, start_of
from convlab.simulation.memory.touched import Touched, common
from convlab.simulation.rules.finding_words import HOST_READS, HOST_WRITES, OF_PINNED, STREAM_RACE
from convlab.simulation.rules.findings import Finding

# The host sees what a launch stores after so many reads of the same at one place. So many take less
# than a tenth of a second, and a loop that only shows how far a launch is makes fewer.
POLLS = 1000
# Or after two reads with so many seconds between the first and the last one, because a poll that
# sleeps would need minutes for the reads above. The reads above take about as long without a sleep,
# and two of them a thousandth of that.
POLL_SECONDS = 0.05


class UnifiedMemory(NamedTuple):
    """Managed or mapped memory as a kernel finds it. ``of_memory`` is its name in findings."""

    memory: np.ndarray
    before: np.ndarray
    of_memory: str


class _Place(NamedTuple):
    """The instruction of the program at which the host reads, and its line."""

    code: CodeType
    instruction: int
    line: int


@dataclass
class _Reads:
    """The reads of the same at one place of the program."""

    first: float = field(default_factory=time.monotonic)  # when, in seconds
    count: int = 0

    def again(self) -> bool:
        """Count one more. Return whether the host polls, and has polled long enough."""
        self.count += 1
        waited = time.monotonic() - self.first
        return self.count >= POLLS or (self.count > 1 and waited > POLL_SECONDS)


@dataclass(eq=False)
class _Filling:
    """Host memory that holds new values once an operation is over. ``of_memory`` is its name in
    findings."""

    operation: Operation
    target: np.ndarray
    values: np.ndarray
    before: np.ndarray  # the contents when the operation began
    of_memory: str = OF_PINNED
    is_reported: bool = False  # that the host has read it too early
    # The host's reads of what changes, by its address and the place.
    reads: dict[int, dict[_Place, _Reads]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(_Reads))
    )

    @property
    def is_unified(self) -> bool:
        """True if kernels share the memory with the host."""
        return self.of_memory != OF_PINNED

    def changes(self, memory: np.ndarray) -> bool:
        """Return whether the operation changes what the host reads there now. It does not where the
        host has written meanwhile, which is a mistake of its own."""
        kept = self.target, self.before, self.values
        if not is_dense(self.target):
            differ = _changing(*map(_bytes, kept)).any(axis=-1)
            read = Touched()
            read.whole(memory, writes=False)
            return common(read.reads, [_addresses(self.target, differ)]) is not None
        first, last = byte_bounds(self.target)
        low, high = byte_bounds(memory)
        flat = [_flat_bytes(one) for one in kept]
        if is_dense(memory) or low < first or high > last:
            part = slice(max(low - first, 0), max(high - first, 0))
            return bool(_changing(*(one[part] for one in flat)).any())
        return bool(_changing(*(_as_laid_out(one, memory, first) for one in flat)).any())

    def read_early(self) -> _Place | None:
        """Return where the host has read what changes and has not polled it; None without such a
        place."""
        places = (
            place
            for by_place in self.reads.values()
            if all(
                reads.count == 1 for reads in by_place.values()
            )  # else it may give up a poll, or show a progress
            for place in by_place
        )
        return next(places, None)

    @property
    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """The memory, and its contents when the host's writes were last looked for."""
        return self.target, self.before


@dataclass(eq=False)
class _Reading:
    """Host memory that an operation may read until it is over, and its contents."""

    operation: Operation
    source: np.ndarray
    values: np.ndarray

    @property
    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """The memory, and its contents when the host's writes were last looked for."""
        return self.source, self.values


class HostAccesses:
    """Checks that the host waits before it reads or writes memory that operations use.

    A write is known by the contents of the memory afterwards, because not every array notifies
    the simulator. ``on_finding`` receives the findings.
    """

    def __init__(self, on_finding: Callable[[Finding], None]) -> None:
        self._on_finding = on_finding
        self._filling: list[_Filling] = []
        self._reading: list[_Reading] = []

    @property
    def has_any(self) -> bool:
        """True while copies that may not be over use pinned memory."""
        return bool(self._filling or self._reading)

    def fills(self, operation: Operation, target: np.ndarray, values: np.ndarray) -> None:
        """Note that a copy fills pinned memory with these values until it is over."""
        self._filling.append(_Filling(operation, target, values.copy(), target.copy("K")))

    def hide(self, operation: Operation, seen: list[UnifiedMemory]) -> None:
        """Hide a kernel's stores to unified memory from the host until it has waited for them."""
        for array, before, of_memory in seen:
            self._filling.append(_Filling(operation, array, array.copy("K"), before, of_memory))
            array[...] = before

    def reads(self, operation: Operation, host: np.ndarray) -> None:
        """Note that the operation may read pinned memory until it is over. In a loop only the last
        such operation counts: those before it are over then."""
        self.look_for_writes(host)
        same = operation.stream, _layout(host)
        others = [
            one for one in self._reading if (one.operation.stream, _layout(one.source)) != same
        ]
        self._reading = [*others, _Reading(operation, host, host.copy("K"))]

    def host_waited(self, clock: Clock) -> None:
        """Let the values of operations arrive that the host now knows to be over."""
        self.look_for_writes()
        reading = not_over([one.operation for one in self._reading], clock)
        self._reading = [one for one in self._reading if one.operation in reading]
        waiting = not_over([one.operation for one in self._filling], clock)
        self._arrive(one for one in self._filling if one.operation not in waiting)

    def host_reads(self, memory: np.ndarray) -> bool:
        """Report that the host reads pinned memory before it has waited for a copy to it. A program
        that reads it again gets the copied values, so that no program polls for ever. Reads of
        managed and mapped memory are noted. Return whether the host polls and waits by that."""
        if not memory.size:
            return False
        early = [one for one in self._filling if _share(one.target, memory)]
        self._arrive([one for one in early if one.is_reported])
        for one in early:
            if not one.is_reported and not one.is_unified:
                one.is_reported = True
                what = f"{HOST_READS} {OF_PINNED} that copy_to_host may not have filled yet"
                self._find_of_host(one.operation, f"{what}: it has not waited for that copy")
        frame = program_frame()
        place = _Place(frame.f_code, frame.f_lasti, frame.f_lineno)
        changing = [one for one in early if one.is_unified and one.changes(memory)]
        polls = [one.reads[start_of(memory)][place].again() for one in changing]
        return any(polls)

    def device_reads(self, host: np.ndarray) -> None:
        """Let values arrive that earlier operations have stored in memory that the next one
        reads."""
        self._arrive(one for one in self._filling if np.may_share_memory(one.target, host))

    def look_for_writes(self, memory: np.ndarray | None = None) -> None:
        """Report what the host has written to memory that a copy still uses."""
        using: list[_Reading | _Filling] = [*self._reading]
        using += [one for one in self._filling if not one.is_unified]
        for one in using:
            host, kept = one.seen
            if memory is not None and not np.may_share_memory(host, memory):
                continue
            if (_bytes(host) != _bytes(kept)).any():
                np.copyto(kept, host)
                does = "read" if isinstance(one, _Reading) else "fill"
                what = f"{HOST_WRITES} {OF_PINNED} while {one.operation.what} may still"
                self._find_of_host(one.operation, f"{what} {does} it: it has not waited for that")

    def _find_of_host(self, operation: Operation, what: str) -> None:
        """Report what the host does at the program's line, or at the operation's if the program is
        over."""
        file, line = program_line()
        if file == contextlib.__file__:  # the program is over
            file, line = operation.file, operation.line
        self._find(operation, file, line, what)

    def _find(self, operation: Operation, file: str, line: int, what: str) -> None:
        """Report what the host does in a line of the program to the operation's memory."""
        self._on_finding(
            Finding(STREAM_RACE, operation.what, file, line, what, operation.line, operation.file)
        )

    def _arrive(self, some: Iterable[_Filling]) -> None:
        """Store the new values in the host's memory."""
        arriving = [*some]
        self._filling = [one for one in self._filling if one not in arriving]
        for one in arriving:
            if one.is_unified:
                self._arrive_unified(one)
                continue
            np.copyto(one.target, one.values)
            using: list[_Reading | _Filling] = [*self._reading, *arriving, *self._filling]
            for other in using:  # arrived values are not writes of the host
                host, kept = other.seen
                is_unified = isinstance(other, _Filling) and other.is_unified
                if not is_unified and np.may_share_memory(host, one.target):
                    np.copyto(kept, host)

    def _arrive_unified(self, one: _Filling) -> None:
        """Store the bytes that a launch changes in unified memory. The host keeps what it has
        written elsewhere meanwhile."""
        target, values, before = _bytes(one.target), _bytes(one.values), _bytes(one.before)
        by_host = _addresses(one.target, (target != before).any(axis=-1))
        done = one.operation.touched
        touched = done.reads + done.writes + done.updates
        np.copyto(target, values, where=values != before)
        not_waited = "it has not waited for that launch"
        if (early := one.read_early()) is not None:
            what = (
                f"{HOST_READS} {one.of_memory} that {one.operation.what} may not have written yet"
            )
            file, line = early.code.co_filename, early.line
            self._find(one.operation, file, line, f"{what}: {not_waited}")
        if common([by_host], touched) is not None:
            what = f"{HOST_WRITES} {one.of_memory} while {one.operation.what} may use it"
            self._on_finding(
                conflict_finding(one.operation, one.operation, f"{what}: {not_waited}")
            )


def _layout(host: np.ndarray) -> tuple[int, tuple[int, ...], tuple[int, ...], np.dtype]:
    return start_of(host), host.shape, host.strides, host.dtype


def _share(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two views have a byte in common."""
    mine, its = Touched(), Touched()
    mine.whole(one, writes=False)
    its.whole(other, writes=False)
    return common(mine.reads, its.reads) is not None


def _bytes(memory: np.ndarray) -> np.ndarray:
    """Return a view of the elements, with a row of bytes for each."""
    return memory.view(np.ndarray)[..., np.newaxis].view(np.uint8)


def _flat_bytes(memory: np.ndarray) -> np.ndarray:
    """Return a view of dense memory as its bytes, in the order of their addresses."""
    return memory.view(np.ndarray).ravel("K").view(np.uint8)


def _as_laid_out(flat: np.ndarray, memory: np.ndarray, first: int) -> np.ndarray:
    """Return the bytes of ``flat`` that lie as ``memory`` lies in what begins at address
    ``first``."""
    shape, strides = (*memory.shape, memory.itemsize), (*memory.strides, 1)
    return np.ndarray(shape, np.uint8, flat, start_of(memory) - first, strides)


def _changing(now: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return which bytes change, without those that the host has overwritten."""
    found: np.ndarray = (after != before) & (now == before)
    return found


def _addresses(memory: np.ndarray, which: np.ndarray | np.bool) -> np.ndarray:
    """Return the addresses of the elements that ``which`` is true for, in order."""
    memory, which = np.atleast_1d(memory, which)
    found = np.nonzero(which)
    steps = (index * stride for index, stride in zip(found, memory.strides, strict=True))
    return np.sort(start_of(memory) + sum(steps, np.zeros(found[0].size, np.int64)))
