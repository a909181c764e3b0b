"""Async copies of a simulated launch: each lands when its thread waits for it.

A copy is a write that happens at some time between the line that asks for it and the wait. So the
log has it as a write at both ends, which is what races with other threads' accesses are found by;
accesses in between are found here. Only kernels that use async copies come here.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from convlab import device
from convlab.simulation.access_log import (
    GLOBAL,
    ISSUED,
    LANDED,
    READ,
    WORD,
    WRITE,
    Access,
    AccessLog,
    site_of,
)
from convlab.simulation.checked_array import CheckedArray
from convlab.simulation.races import ENOUGH, Conflict, same


@dataclass(slots=True, eq=False)
class Copy:
    """One copy of one or several neighbours, to those of ``target`` from ``first`` on. ``issued``
    and ``landed`` are positions in the log: the first accesses that come after."""

    target: CheckedArray
    first: int
    values: list[float]
    site: int
    thread: int
    issued: int
    landed: float = math.inf


class AsyncCopies:
    """The async copies of a launch, which are kept for :meth:`look` if ``strict``. ``thread()`` is
    the running thread's number in the launch."""

    def __init__(self, log: AccessLog | None, strict: bool, thread: Callable[[], int]) -> None:
        self._log, self._strict, self._thread = log, strict, thread
        self._since_commit: dict[int, list[Copy]] = defaultdict(list)
        self._groups: dict[int, list[list[Copy]]] = defaultdict(list)
        self._checked: set[tuple[Any, Any]] = set()  # pairs of arrays
        self._all: list[Copy] = []  # of which something is in what the log holds
        self.intrinsics: dict[Any, Callable[..., Any]] = {
            device.copy_async: self.copy, device.copy_async4: self.copy4,
            device.commit_copies: self.commit, device.wait_copies: self.wait,
        }  # fmt: skip

    def new_block(self) -> None:
        """Copies that the last block's threads did not wait for do not concern this block."""
        for copy in chain(*self._since_commit.values(), *chain(*self._groups.values())):
            copy.landed = self._position()
        self._since_commit.clear()
        self._groups.clear()

    def let_go(self) -> None:
        """Forget the arrays: the launch is over."""
        self._since_commit.clear()
        self._groups.clear()
        self._all.clear()
        self._checked.clear()

    # What a kernel calls.

    def copy(self, target: Any, index: Any, source: Any, at: Any, valid: Any) -> None:
        """``copy_async``: one float32; zero where it is not ``valid``."""
        frame = sys._getframe(1)
        site = id(frame.f_code) + frame.f_lasti
        self._copy(1, target, index, source, at, valid, site)

    def copy4(self, target: Any, index: Any, source: Any, at: Any, valid: Any) -> None:
        """``copy_async4``: four neighbours."""
        frame = sys._getframe(1)
        site = id(frame.f_code) + frame.f_lasti
        self._copy(4, target, index, source, at, valid, site)

    def commit(self) -> None:
        """``commit_copies``: this thread's copies since the last one become a group."""
        number = self._thread()
        self._groups[number].append(self._since_commit.pop(number, []))

    def wait(self, groups: int) -> None:
        """``wait_copies``: land the thread's oldest groups until ``groups`` remain in flight.

        Raises ``ValueError`` for a number below zero.
        """
        if groups < 0:
            raise ValueError(f"wait_copies({groups}): a number of groups is not below zero")
        site, mine = site_of(1), self._groups[self._thread()]
        while len(mine) > groups:
            for copy in mine.pop(0):
                self._land(copy, site)

    def _copy(
        self, count: int, target: Any, index: Any, source: Any, at: Any, valid: Any, site: int
    ) -> None:
        if (target, source) not in self._checked:
            _check(target, source)
            self._checked.add((target, source))
        first = target.first_of_run(index, count, site)
        values = [0.0] * count
        log = self._log
        if valid:
            far = source.first_of_run(at, count, site)
            values = source.flat[far : far + count].tolist()
            if log is not None:
                log.add(source.base + WORD * far, site, READ, count)
        copy = Copy(target, first, values, site, self._thread(), 0)
        if log is not None:
            log.add(target.base + WORD * first, site, WRITE + ISSUED, count)
            log.values.extend(values)
            copy.issued = log.position
        if self._strict:
            self._all.append(copy)
        self._since_commit[copy.thread].append(copy)

    def _land(self, copy: Copy, site: int) -> None:
        values, flat = copy.values, copy.target.flat
        if (log := self._log) is not None:
            copy.landed = log.position
            log.add(copy.target.base + WORD * copy.first, site, WRITE + LANDED, len(values))
            log.values.extend(values)
        for n, value in enumerate(values, copy.first):
            flat[n] = value

    def _position(self) -> int:
        return 0 if self._log is None else self._log.position

    # What was too early.

    def look(self, log: AccessLog, whole: bool) -> Iterator[Conflict]:
        """The accesses in the log to what is in flight. ``whole`` if the last block has ended.
        Storing what the copy brings is none."""
        if not self._all:
            return
        columns, start, end = log.columns(), log.start, len(log.addresses)
        time = columns.position - start
        landing = (columns.kind & LANDED != 0) & (columns.kind & 3 == WRITE)
        indices = np.flatnonzero((columns.address < GLOBAL) & ~landing)
        indices = indices[np.argsort(columns.address[indices], kind="stable")]
        copies, counts = self._all, np.array([len(copy.values) for copy in self._all])
        which = np.repeat(np.arange(len(copies)), counts)
        word = np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
        begin = np.array([copy.target.base + WORD * copy.first for copy in copies])
        address = begin[which] + WORD * word
        issued = np.array([copy.issued for copy in copies])[which] - start
        landed = np.array([copy.landed for copy in copies])[which] - start
        # One number for address and time, by which both are sorted.
        key = columns.address[indices] * (end + 1) + time[indices]
        first = np.searchsorted(key, address * (end + 1) + np.clip(issued, 0, end))
        last = np.searchsorted(key, address * (end + 1) + np.clip(landed, 0, end).astype(np.int64))
        seen: Counter[tuple[int, int]] = Counter()
        for found in np.flatnonzero(first < last).tolist():
            copy, n = copies[which[found]], word[found]
            for access in columns.rows(indices[first[found] : last[found]]):
                sites = copy.site, access.site
                stores_it = access.kind == WRITE and same(access.value, copy.values[n])
                if seen[sites] == ENOUGH or stores_it:
                    continue
                seen[sites] += 1
                yield Conflict("copy in flight", _writing(copy, access, log.block_size), access)
        self._all = [] if whole else [copy for copy in self._all if copy.landed == math.inf]


def _writing(copy: Copy, access: Access, block_size: int) -> Access:
    """The copy's write of what the access is to."""
    return access._replace(
        site=copy.site, kind=WRITE, thread=copy.thread, block=copy.thread // block_size,
        position=copy.issued,
    )  # fmt: skip


def _check(target: Any, source: Any) -> None:
    """A GPU checks none of this. Constant arrays lie low like shared ones, but are read-only."""
    shared = isinstance(target, CheckedArray) and target.base < GLOBAL
    if not shared or not target.host.flags.writeable:
        raise TypeError(f"{target.name}: an async copy goes to shared memory, which that is not")
    if not isinstance(source, CheckedArray) or source.base < GLOBAL:
        raise TypeError(f"{source.name}: an async copy comes from global memory, which that is not")
