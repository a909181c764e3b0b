"""The history of atomics in a launch: values that threads read by them, and changes.

It shows which results depend on the order of threads: a thread reads a value before another one
changes it, or gives up polling, or goes on without a lock, or its update is lost.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from types import FrameType
from typing import NamedTuple, Protocol

import numpy as np

from convlab.simulation.recording.access_log import GLOBAL, SIZE_SHIFT, WARP, LaunchClock
from convlab.simulation.recording.sites import Sites, ignores_result, instruction
from convlab.simulation.rules.remedies import EXCH_OVERWRITES, NOT_RETRIED
from convlab.simulation.rules.retries import Retry, Update, update_of

MOST_PATIENCE = 50_000  # times that all threads together poll in vain before others go first


class AtomicTarget(Protocol):
    """An array as atomics see it. ``place`` is its address in simulated memory."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> int: ...

    @property
    def host(self) -> np.ndarray: ...

    def whole_index(self, index: object) -> tuple[object, ...]: ...

    def check(self, index: object, site: int) -> tuple[int, ...]: ...

    def address(self, index: tuple[int, ...]) -> int: ...


class AtomicRead(NamedTuple):
    """A read of an element at a site by a thread, by its number in the launch."""

    thread: int
    site: int
    array: str
    at: object  # the index, as the kernel gives it

    @property
    def element(self) -> str:
        """The element as the kernel writes it: ``flags[3]``."""
        index = ", ".join(map(str, self.at)) if isinstance(self.at, tuple) else str(self.at)
        return f"{self.array}[{index}]"


ThreadElement = tuple[int, str, object]  # thread of the launch, array, index
Element = tuple[int, str, object]  # block for shared memory, else -1; array, index


class FailedSwap(NamedTuple):
    """A failed ``cas``: the value that it expected at an index of an array."""

    array: AtomicTarget
    at: object
    expected: object
    key: AtomicRead


class LostUpdate(NamedTuple):
    """An update that may be lost: the value that its thread had read, and how the update fails, in
    words."""

    read: object
    address: int
    key: AtomicRead
    how: str


class AtomicHistory:
    """The atomics of a launch, of threads and of elements.

    With ``slow`` 0 the even warps let others go first at each atomic, with 1 the odd ones, counted
    from the block's number on. A thread polls ``patience`` times in vain before others run, once.
    If there are ``random`` numbers, they say who lets others go first.
    """

    def __init__(
        self,
        clock: LaunchClock,
        sites: Sites,
        slow: tuple[int, ...],
        patience: int,
        random: Random | None = None,
    ) -> None:
        self._random = random
        self._clock, self._sites, self._slow, self._patience = clock, sites, slow, patience
        self._updates: dict[tuple[int, int], Update] = {}  # by id of the code, offset

        # Reads: the last value, the times in a row that it was the one before, and the sites of
        # reads that a ``cas`` in a loop checks.
        self.values: dict[AtomicRead, object] = {}
        self.polled: dict[AtomicRead, int] = {}
        self.guesses: set[int] = set()
        self._guess: dict[ThreadElement, int] = {}  # the site of the last read
        self._impatient: set[int] = set()  # threads that have polled with all their patience
        self._left = MOST_PATIENCE
        # The first read of each element, if no atomic had changed it before, and the values of such
        # reads of elements that another thread changes.
        self._first: dict[Element, AtomicRead | None] = {}
        self.early: dict[AtomicRead, object] = {}

        # Changes: whether a thread uses a value that it has exchanged, or any value that it has
        # changed by an atomic, such as its place in a queue.
        self.takes = self.ranks = False
        # The value that a thread's last atomic read or left at an element, and its position; the
        # position of the last ``cas`` that stored a value in an element.
        self._last: dict[ThreadElement, tuple[object, int]] = {}
        self._put: dict[Element, dict[object, int]] = defaultdict(dict)

        # Positions of each ``cas``, and of each atomic for which a guess is good enough.
        self.swaps: set[int] = set()
        self.checks: set[int] = set()
        self._failed: dict[ThreadElement, FailedSwap] = {}
        # Of threads that went on without the lock, which is free at the end.
        self.without_lock: list[FailedSwap] = []
        self.lost: dict[tuple[int, int], LostUpdate] = {}  # by thread and site

    @property
    def gives_way(self) -> bool:
        """Return whether the thread that runs lets others go first after each atomic."""
        if self._random is not None:
            return self._random.random() < 0.5
        clock = self._clock
        return (clock.block_number + clock.thread // WARP) % 2 in self._slow

    def read(
        self, array: AtomicTarget, index: object, site: int, value: object, frame: FrameType
    ) -> bool:
        """Note that an atomic only read a value. Returns whether its thread polls, so that others
        go first."""
        if ignores_result(frame.f_code, site - id(frame.f_code)):
            return False
        number = self._clock.number
        key = AtomicRead(number, site, array.name, index)
        self._last[number, array.name, index] = value, self._clock.position
        in_vain = 0
        if key in self.values:
            in_vain = self.polled.get(key, 0) + 1 if self.values[key] == value else 0
            self.polled[key] = in_vain
        self.values[key] = value
        self._guess[number, array.name, index] = site
        self._first.setdefault(self._element(array, index), key)
        if number in self._impatient or self._left <= 0:
            return in_vain > 0
        self._left -= in_vain > 0
        if in_vain > self._patience:
            self._impatient.add(number)
            return True
        return False

    def change(
        self,
        array: AtomicTarget,
        index: object,
        site: int,
        old: object,
        new: object,
        frame: FrameType,
        takes: bool,
    ) -> None:
        """Note that an atomic changed a value: its thread has not polled in vain, and threads that
        read the element earlier read it too early. One that ``takes`` stores a value that does not
        depend on the old one."""
        number, element = self._clock.number, self._element(array, index)
        key = AtomicRead(number, site, array.name, index)
        if key in self.values:
            self.polled[key] = 0
        ignored = ignores_result(frame.f_code, site - id(frame.f_code))
        if not ignored:
            self.takes, self.ranks = self.takes or takes, True
        here = number, array.name, index
        if takes and ignored and self._last.get(here, (old, 0))[0] != old:
            if self._update(frame).computed:
                self._lose(array, key, self._last[here][0], EXCH_OVERWRITES)
        if here in self._last:
            self._last[here] = new, self._clock.position
        first = self._first.get(element)
        if first is not None and first.thread != number:
            self.early[first] = self.values[first]
        self._first[element] = None

    def _element(self, array: AtomicTarget, index: object) -> Element:
        return self._clock.block_number if array.place < GLOBAL else -1, array.name, index

    def check(self) -> None:
        """Note that the last access was an atomic to which an outdated value read before does no
        harm."""
        self.checks.add(self._clock.position - 1)

    def swap(
        self,
        array: AtomicTarget,
        index: object,
        site: int,
        expected: object,
        old: object,
        new: object,
        frame: FrameType,
    ) -> None:
        """Note a ``cas``, the last access, which stores ``new`` if ``old`` is as expected."""
        self.swaps.add(self._clock.position - 1)
        number, element = self._clock.number, self._element(array, index)
        here, key = (number, array.name, index), AtomicRead(number, site, array.name, index)
        guess, (read, since) = self._guess.pop(here, None), self._last.get(here, (None, 0))
        self._last[here] = old, self._clock.position
        update = self._update(frame)
        if update.retry >= Retry.LIMITED:
            self.check()
            if guess is not None:
                self.guesses.add(guess)
        if expected == new:  # it only reads
            return
        if old == expected:
            self._put[element][new] = self._clock.position
            self._failed.pop(here, None)
            if update.retry != Retry.NEVER:
                self.lost.pop((number, site), None)
            return
        self._failed[here] = FailedSwap(array, index, expected, key)
        helped = update.walks or self._put[element].get(new, 0) > since
        if read == expected and update.retry != Retry.UNTIL_DONE:
            if update.computed or not helped:
                what = f"this cas, which fails then, {NOT_RETRIED}"
                self._lose(array, key, expected, what)

    def _lose(self, array: AtomicTarget, key: AtomicRead, read: object, how: str) -> None:
        at = array.check(array.whole_index(key.at), key.site)
        address = array.address(at) % (1 << SIZE_SHIFT)
        self.lost[key.thread, key.site] = LostUpdate(read, address, key, how)

    def _update(self, frame: FrameType | None) -> Update:
        """Return the facts that the text of this frame and of its callers tells of its atomic."""
        found = Update()
        while frame is not None:
            code, offset = frame.f_code, frame.f_lasti
            if self._sites.knows(code):
                where = id(code), offset
                if (update := self._updates.get(where)) is None:
                    one = instruction(code, offset)
                    update = self._updates[where] = update_of(code, one, code.co_filename)
                computed, walks = found.computed or update.computed, found.walks or update.walks
                found = Update(update.retry, computed, walks)
                if update.retry != Retry.RETURNED:
                    return found
            frame = frame.f_back
        return found._replace(retry=Retry.NEVER)

    def end_block(self) -> None:
        """Look at the locks in the shared memory of the block that ends."""
        block, size = self._clock.block_number, self._clock.block_size
        for here, one in [*self._failed.items()]:
            if one.array.place < GLOBAL and one.key.thread // size == block:
                self._settle(self._failed.pop(here))

    def settle(self) -> None:
        """Look at the locks in global memory, as the launch leaves them."""
        while self._failed:
            self._settle(self._failed.popitem()[1])

    def _settle(self, one: FailedSwap) -> None:
        at = one.array.check(one.array.whole_index(one.at), one.key.site)
        if one.array.host[at] == one.expected:
            self.without_lock.append(one)
