"""Messages by atomics alone: a datum, then a flag, and no fence between.

An atomic of Numba's is relaxed: it orders nothing but the accesses to its own element. A thread
that changes a datum by an atomic and then a flag by another one, and calls no fence between, lets
others see the flag first. The simulator runs one instruction after the other, and so does not show
it; a thread that waits for the flag and then reads the datum by an atomic is noted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from convlab.simulation.rules.atomic_records import AtomicRead, Element

LATEST = 8  # elements changed by a thread that are kept


class UnfencedDatum(NamedTuple):
    """A datum that its thread changed without a fence before it changed a flag."""

    thread: int
    flag: str


class Messages:
    """The messages of a launch, which ``matter`` if its threads may wait. ``unordered`` has a
    sentence for each site that reads a datum which may come later than its flag."""

    def __init__(self) -> None:
        self.matter = False
        self.unordered: dict[int, str] = {}
        # The elements that a thread has changed since its last fence; what a change of an element
        # tells; what a thread has learned by waiting.
        self._unfenced: dict[int, dict[Element, None]] = defaultdict(dict)
        self._told: dict[Element, dict[Element, UnfencedDatum]] = {}
        self._learned: dict[int, dict[Element, UnfencedDatum]] = defaultdict(dict)

    def change(self, key: AtomicRead, element: Element) -> None:
        """Note that a thread changes an element."""
        mine = self._unfenced[key.thread]
        told = UnfencedDatum(key.thread, key.element)
        if data := [datum for datum in mine if datum != element]:
            self._told[element] = dict.fromkeys(data, told)
        elif element in self._told:
            del self._told[element]
        mine.pop(element, None)
        mine[element] = None
        if len(mine) > LATEST:
            del mine[next(iter(mine))]

    def read(self, key: AtomicRead, element: Element, polls: bool) -> None:
        """Note that a thread uses what it reads of an element; it ``polls`` if it waits there."""
        if polls and element in self._told:
            self._learned[key.thread].update(self._told[element])
        told = self._learned[key.thread].get(element) if key.thread in self._learned else None
        if told is not None and told.thread != key.thread and not polls:
            self.unordered.setdefault(
                key.site,
                f"a thread reads {key.element} after it has waited for {told.flag}, and the thread "
                f"that changes both calls no fence between, so the new {told.flag} may be seen "
                f"before the new {key.element}: put cuda.threadfence() between the two changes, "
                "and another one after the wait",
            )

    def fence(self, thread: int) -> None:
        """Note that a thread calls a fence."""
        self._unfenced.pop(thread, None)

    def end_block(self, threads: range) -> None:
        """Forget the threads of a block that has ended."""
        for thread in threads:
            self._unfenced.pop(thread, None)
            self._learned.pop(thread, None)
