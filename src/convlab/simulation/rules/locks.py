"""Attempts to take a lock: whether a thread went on without it."""

from __future__ import annotations

from typing import NamedTuple

from convlab.simulation.recording.access_log import GLOBAL
from convlab.simulation.rules.atomic_records import AtomicRead, AtomicTarget, ThreadElement


class FailedSwap(NamedTuple):
    """A failed ``cas``: the value that it expected at an index of an array."""

    array: AtomicTarget
    at: object
    expected: object
    key: AtomicRead


class LockAttempts:
    """Failed ``cas`` by thread and element. A thread went on without the lock if its last ``cas``
    failed and the element has the expected value at the end: the lock is free."""

    def __init__(self) -> None:
        self.without_lock: list[FailedSwap] = []
        self._failed: dict[ThreadElement, FailedSwap] = {}

    def fail(self, here: ThreadElement, swap: FailedSwap) -> None:
        """Note a failed ``cas``."""
        self._failed[here] = swap

    def succeed(self, here: ThreadElement) -> None:
        """Note a ``cas`` that stored its value."""
        self._failed.pop(here, None)

    def end_block(self, block: int, block_size: int) -> None:
        """Look at the locks in the shared memory of the block that ends."""
        for here, one in [*self._failed.items()]:
            if one.array.first_address < GLOBAL and one.key.thread // block_size == block:
                self._settle(self._failed.pop(here))

    def settle(self) -> None:
        """Look at the locks in global memory, as the launch leaves them."""
        while self._failed:
            self._settle(self._failed.popitem()[1])

    def _settle(self, one: FailedSwap) -> None:
        at = one.array.check(one.array.whole_index(one.at), one.key.site)
        if one.array.host[at] == one.expected:
            self.without_lock.append(one)
