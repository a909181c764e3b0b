"""Asynchronous copies to shared memory, which go on while threads do.

A copy is a write at some time between the line that issues it and the wait. So the log has it as a
write at both ends, by which races with other threads' accesses are found; accesses in between are
found here.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from convlab import device
from convlab.device.sixteen_bits import EIGHT
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.sixteen_bits import (
    first_of_eight,
    load_eight,
    log_words,
    words_of,
)
from convlab.simulation.recording.access_log import (
    GLOBAL,
    ISSUED,
    LANDED,
    READ,
    WORD,
    WRITE,
    AccessLog,
    LaunchClock,
    LoggedAccess,
    within,
)
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.conflicts import Conflict, same_value


@dataclass(slots=True, eq=False)
class Copy:
    """A copy of one or several neighbours, to those of ``target`` from ``first`` on. ``values`` are
    the words that arrive at ``address``. ``issued`` and ``landed`` are positions in the log, of the
    next access."""

    target: CheckedArray
    first: int
    address: int
    numbers: list[float]
    values: list[float]
    site: int
    thread: int
    issued: int
    landed: float = math.inf


class AsyncCopies:
    """The asynchronous copies of a launch, which are kept for :meth:`look` if ``strict``."""

    def __init__(self, clock: LaunchClock, strict: bool) -> None:
        self._clock, self._log, self._strict = clock, clock.log, strict
        # The commit groups of each thread; the last one is still open.
        self._groups: dict[int, list[list[Copy]]] = defaultdict(lambda: [[]])
        self._checked: set[tuple[CheckedArray, CheckedArray]] = set()
        self._all: list[Copy] = []  # those that were in flight since the log was cleared
        self.intrinsics: dict[object, Callable[..., object]] = {
            device.copy_async: partial(self._copy, 1),
            device.copy_async4: partial(self._copy, 4),
            device.copy_async8: self.copy_eight,
            device.commit_copies: self.commit,
            device.wait_copies: self.wait,
        }

    def end_block(self) -> None:
        """Let the copies that the block's threads did not wait for land now."""
        first, size = self._clock.first, self._clock.block_size
        for thread in [one for one in self._groups if first <= one < first + size]:
            for copy in chain(*self._groups.pop(thread)):
                copy.landed = self._clock.position

    # The intrinsics that a kernel calls.

    def commit(self) -> None:
        """``commit_copies``: make a commit group of the thread's copies since the last one."""
        self._groups[self._clock.number].append([])

    def wait(self, groups: int) -> None:
        """``wait_copies``: land the oldest of the thread's commit groups until ``groups`` are left.

        Raises ``ValueError`` for a number below zero.
        """
        if groups < 0:
            raise ValueError(f"wait_copies({groups}): groups must be at least 0")
        site, mine, log = site_of(1), self._groups[self._clock.number], self._log
        while len(mine) - 1 > groups:
            for copy in mine.pop(0):
                values, target = copy.values, copy.target
                if log is not None:
                    copy.landed = self._clock.position
                    address = target.tag + copy.address
                    if target.itemsize != WORD:
                        address = log.sized(address, WORD)
                    log.add(address, site, WRITE + LANDED, len(values), values)
                for n, value in enumerate(copy.numbers, copy.first):
                    target.linear[n] = value

    def _copy(
        self,
        count: int,
        target: CheckedArray,
        index: object,
        source: CheckedArray,
        source_index: object,
        valid: object,
    ) -> None:
        """``copy_async`` of one float32, or ``copy_async4`` of four neighbours; zeros unless
        ``valid``."""
        frame = sys._getframe(1)
        site = id(frame.f_code) + frame.f_lasti
        if (target, source) not in self._checked:
            _check_copy(target, source)
            self._checked.add((target, source))
        first = target.first_of_run(index, count, site)
        values = [0.0] * count
        log, clock = self._log, self._clock
        if valid:
            far = source.first_of_run(source_index, count, site)
            values = source.linear[far : far + count].tolist()
            if log is not None:
                log.add(source.first_address + WORD * far, site, READ, count)
        if log is not None:
            address = target.tag + target.first_address + WORD * first
            log.add(address, site, WRITE + ISSUED, count, values)
        thread = clock.first + clock.thread  # `number`, written out
        address = target.first_address + WORD * first
        self._begin(Copy(target, first, address, values, values, site, thread, clock.position))

    def copy_eight(
        self,
        target: CheckedArray,
        index: object,
        source: CheckedArray,
        source_index: object,
        valid: object,
    ) -> None:
        """``copy_async8``: copy eight 16-bit numbers; zeros unless ``valid``."""
        site, name = site_of(1), "copy_async8"
        if (target, source) not in self._checked:
            _check_copy(target, source)
            self._checked.add((target, source))
        first = first_of_eight(name, target, index, site)
        numbers = load_eight(name, source, source_index, site) if valid else [0] * EIGHT
        words = words_of(numbers)
        log_words(target, first, site, WRITE + ISSUED, words)
        copy = Copy(
            target=target,
            first=first,
            address=target.first_address + first * target.itemsize,
            numbers=[*numbers],
            values=[*words],
            site=site,
            thread=self._clock.number,
            issued=self._clock.position,
        )
        self._begin(copy)

    def _begin(self, copy: Copy) -> None:
        """Add a copy to the open group of its thread."""
        if self._strict:
            self._all.append(copy)
        self._groups[copy.thread][-1].append(copy)

    # Accesses that are too early.

    def look(self, log: AccessLog, whole: bool) -> Iterator[Conflict]:
        """Find the accesses in the log to the targets of copies in flight. ``whole`` if the last
        block has ended. A store of the number that the copy brings is not a conflict."""
        if not self._all:
            return
        columns, start, end = log.columns(), log.start, len(log.addresses)
        time = columns.position - start
        landing = (columns.kind & LANDED != 0) & (columns.kind & 3 == WRITE)
        indices = np.flatnonzero((columns.address < GLOBAL) & ~landing)
        indices = indices[np.argsort(columns.address[indices], kind="stable")]
        copies, counts = self._all, np.array([len(copy.values) for copy in self._all])
        which = np.repeat(np.arange(len(copies)), counts)
        word = within(counts)
        begin = np.array([copy.address for copy in copies])
        address = begin[which] + WORD * word
        issued = np.array([copy.issued for copy in copies])[which] - start
        landed = np.array([copy.landed for copy in copies])[which] - start
        # One number holds address and time, to sort by both.
        key = columns.address[indices] * (end + 1) + time[indices]
        first = np.searchsorted(key, address * (end + 1) + np.clip(issued, 0, end))
        last = np.searchsorted(key, address * (end + 1) + np.clip(landed, 0, end).astype(np.int64))
        for found in np.flatnonzero(first < last).tolist():
            copy, n = copies[which[found]], word[found]
            block = copy.thread // log.block_size
            for access in columns.rows(indices[first[found] : last[found]]):
                if access.block != block:
                    continue
                if access.kind != WRITE or not same_value(access.value, copy.values[n]):
                    yield Conflict("copy in flight", _issued(copy, access, block), access)
        self._all = [] if whole else [copy for copy in copies if copy.landed == math.inf]


def _issued(copy: Copy, access: LoggedAccess, block: int) -> LoggedAccess:
    """Return the write of a copy at the address of an access, where the copy is issued."""
    return access._replace(
        kind=WRITE, site=copy.site, thread=copy.thread, block=block, position=copy.issued
    )


def _check_copy(target: CheckedArray, source: CheckedArray) -> None:
    """Raise ``TypeError`` for a copy between other memories, which a GPU does not check."""
    if not is_shared(target):
        raise TypeError(f"{target.name} is not in shared memory, to which an async copy goes")
    if not isinstance(source, CheckedArray) or source.first_address < GLOBAL:
        raise TypeError(f"{source.name} is not in global memory, from which an async copy comes")


def is_shared(array: object) -> bool:
    """Return whether the array is in shared memory. Constant arrays have low addresses too, but are
    read-only."""
    return (
        isinstance(array, CheckedArray)
        and array.first_address < GLOBAL
        and array.host.flags.writeable
    )
