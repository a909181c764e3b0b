"""The values that threads read by atomics: who polls, and who reads too early."""

from __future__ import annotations

from convlab.simulation.rules.atomic_records import AtomicRead, Element

MOST_PATIENCE = 50_000  # times that all threads together poll in vain before others go first


class Polls:
    """Repeated reads. A thread polls ``patience`` times in vain before others run, once."""

    def __init__(self, patience: int) -> None:
        self.values: dict[AtomicRead, object] = {}  # the last value
        self.in_vain: dict[AtomicRead, int] = {}  # how many times in a row it was the one before
        self._patience, self._left = patience, MOST_PATIENCE
        self._impatient: set[int] = set()  # threads that have polled with all their patience

    def read(self, key: AtomicRead, value: object) -> bool:
        """Note a value. Returns whether the thread polls, so that others go first."""
        in_vain = 0
        if key in self.values:
            in_vain = self.in_vain.get(key, 0) + 1 if self.values[key] == value else 0
            self.in_vain[key] = in_vain
        self.values[key] = value
        if key.thread in self._impatient or self._left <= 0:
            return in_vain > 0
        self._left -= in_vain > 0
        if in_vain > self._patience:
            self._impatient.add(key.thread)
            return True
        return False

    def succeeded(self, key: AtomicRead) -> None:
        """Note that the thread changed the element: it has not polled in vain."""
        if key in self.values:
            self.in_vain[key] = 0


class EarlyReads:
    """The first read of each element, if no atomic had changed it before. A thread read the element
    too early if another thread changes it later; ``values`` has what it read."""

    def __init__(self) -> None:
        self.values: dict[AtomicRead, object] = {}
        self._first: dict[Element, AtomicRead | None] = {}

    def read(self, element: Element, key: AtomicRead) -> None:
        """Note a read."""
        self._first.setdefault(element, key)

    def change(self, element: Element, thread: int, values: dict[AtomicRead, object]) -> None:
        """Note that a thread changes the element; ``values`` are those that were read last."""
        first = self._first.get(element)
        if first is not None and first.thread != thread:
            self.values[first] = values[first]
        self._first[element] = None
