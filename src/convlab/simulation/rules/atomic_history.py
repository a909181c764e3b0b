"""The history of atomics in a launch: values that threads read by them, and changes.

It shows which results depend on the order of threads: a thread reads a value before another one
changes it, or gives up polling (``polls.py``), or goes on without a lock (``locks.py``), or its
update is lost. In an update by two atomics the first one reads, and the second one has an operand
that is computed from that number, or is an ``exch`` that a test of that number decides. Such an
update loses what comes between the two. The first atomic of such an ``exch`` may also be of another
element.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from types import FrameType
from typing import NamedTuple

from convlab.simulation.recording.access_log import GLOBAL, SIZE_SHIFT, WARP, LaunchClock
from convlab.simulation.recording.instructions import ignores_result
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.atomic_records import (
    AtomicRead,
    AtomicTarget,
    Element,
    ThreadElement,
)
from convlab.simulation.rules.finding_words import (
    EXCH_OVERWRITES,
    EXCH_OVERWRITES_THAT,
    FROM_OLD_VALUE,
    NOT_RETRIED,
)
from convlab.simulation.rules.locks import FailedSwap, LockAttempts
from convlab.simulation.rules.messages import Messages
from convlab.simulation.rules.polls import EarlyReads, Polls
from convlab.simulation.rules.retries import Retry
from convlab.simulation.rules.running_updates import RunningUpdates


class LostUpdate(NamedTuple):
    """An update that may be lost: the value that its thread had read, and how the update fails, in
    words. ``follows`` is true if the result of an atomic of another element has decided the update;
    then there is no such value."""

    read: object
    address: int
    key: AtomicRead
    how: str
    follows: bool = False


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
        self._clock, self._slow = clock, slow
        self._updates = RunningUpdates(sites)

        self._polls, self._early_reads, self._locks = Polls(patience), EarlyReads(), LockAttempts()
        self.values, self.polled = self._polls.values, self._polls.in_vain
        self.early, self.without_lock = self._early_reads.values, self._locks.without_lock
        # Sites of atomic reads that a ``cas`` in a loop checks; those of plain reads are in
        # ``guessed_reads.py``.
        self.guesses: set[int] = set()
        # The site of a thread's last atomic read of an element, until a ``cas`` follows.
        self._guess: dict[ThreadElement, int] = {}

        # Changes: whether a thread uses a value that it has exchanged, or any value that it has
        # changed by an atomic, such as its place in a queue.
        self.takes = self.ranks = False
        # The value that a thread's last atomic read or left at an element, and its position.
        self._last: dict[ThreadElement, tuple[object, int]] = {}
        # The position of the last ``cas`` that stored a value in an element.
        self._put: dict[Element, dict[object, int]] = defaultdict(dict)

        # Updates by two atomics: whether the kernel's text has any, and whether a thread has made
        # one, by an operand that it computes or an ``exch`` that it decides on.
        self.pairs_matter = False
        self.computes = False
        # The value that a thread has left at an element by an atomic whose result it uses.
        self._left_there: dict[ThreadElement, object] = {}
        # The position of a thread's last atomic whose result it uses, and of an element's last
        # change, with the thread that changed it.
        self._decided_at: dict[int, int] = {}
        self._changed_at: dict[Element, tuple[int, int]] = {}

        self.messages = Messages()

        # Positions of each ``cas``, and of each atomic for which a guess is good enough.
        self.swaps: set[int] = set()
        self.checks: set[int] = set()
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
        number = self._clock.number
        key = AtomicRead(number, site, array.name, index)
        if ignores_result(frame.f_code, site - id(frame.f_code)):
            if self.pairs_matter:
                self._check_operand(array, key, value, frame)
            return False
        if self.pairs_matter:
            self._decided_at[number] = self._clock.position
        if self.messages.matter:
            self.messages.read(key, self._element(array, index), self._waits(frame))
        self._last[number, array.name, index] = value, self._clock.position
        self._guess[number, array.name, index] = site
        self._early_reads.read(self._element(array, index), key)
        return self._polls.read(key, value)

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
        self._polls.succeeded(key)
        ignored = ignores_result(frame.f_code, site - id(frame.f_code))
        if not ignored:
            self.takes, self.ranks = self.takes or takes, True
        here = number, array.name, index
        if self.pairs_matter:
            if ignored:
                self._check_operand(array, key, old, frame)
                self._check_decision(array, key, element, frame)
            else:
                self._left_there[here] = new
                self._decided_at[number] = self._clock.position
            self._changed_at[element] = self._clock.position, number
        if self.messages.matter:
            if not ignored:
                self.messages.read(key, element, polls=False)
            self.messages.change(key, element)
        if here in self._last:
            self._last[here] = new, self._clock.position
        self._early_reads.change(element, number, self.values)

    def _check_operand(
        self, array: AtomicTarget, key: AtomicRead, old: object, frame: FrameType
    ) -> None:
        """Note an update whose operand is computed from a value of the element that its thread has
        had before, or an ``exch`` that such a value decides: if the element has changed since, the
        change may be lost."""
        here = key.thread, key.array, key.at
        if here in self._last:
            known = self._last[here][0]
        elif here in self._left_there:
            known = self._left_there[here]
        else:
            return
        update = self._updates.at(frame)
        if update.computed:
            self.computes = True
            if known != old:
                is_exch = update.name == "exch"
                how = EXCH_OVERWRITES if is_exch else f"this {update.name} {FROM_OLD_VALUE}"
                self._lose(array, key, known, how)

    def _check_decision(
        self, array: AtomicTarget, key: AtomicRead, element: Element, frame: FrameType
    ) -> None:
        """Note an ``exch`` that the result of an atomic of another element has decided: if another
        thread has changed the element since, that change may be lost."""
        if key.thread not in self._decided_at or not self._updates.at(frame).follows:
            return
        self.computes = True
        changed_at, thread = self._changed_at.get(element, (-1, key.thread))
        if thread != key.thread and changed_at > self._decided_at[key.thread]:
            self._lose(array, key, None, EXCH_OVERWRITES_THAT, follows=True)

    def _element(self, array: AtomicTarget, index: object) -> Element:
        return self._clock.block_number if array.first_address < GLOBAL else -1, array.name, index

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
        update = self._updates.at(frame)
        if update.retry >= Retry.LIMITED:
            self.check()
            if guess is not None:
                self.guesses.add(guess)
        if expected == new:  # it only reads
            return
        if old == expected:
            if self.messages.matter:
                self.messages.read(key, element, self._waits(frame))
            self._put[element][new] = self._clock.position
            self._locks.succeed(here)
            if update.retry != Retry.NEVER:
                self.lost.pop((number, site), None)
            return
        self._locks.fail(here, FailedSwap(array, index, expected, key))
        helped = update.walks or self._put[element].get(new, 0) > since
        if read == expected and update.retry != Retry.UNTIL_DONE:
            if update.computed or not helped:
                what = f"this cas, which fails then, {NOT_RETRIED}"
                self._lose(array, key, expected, what)

    def _lose(
        self, array: AtomicTarget, key: AtomicRead, read: object, how: str, follows: bool = False
    ) -> None:
        at = array.check(array.whole_index(key.at), key.site)
        address = array.address(at) % (1 << SIZE_SHIFT)
        self.lost[key.thread, key.site] = LostUpdate(read, address, key, how, follows)

    def _waits(self, frame: FrameType) -> bool:
        """Return whether an atomic waits for a lock or flag, by its text."""
        update = self._updates.at(frame)
        return update.retry != Retry.NEVER and not update.computed

    def fence(self) -> None:
        """Note that the thread that runs has called a fence."""
        self.messages.fence(self._clock.number)

    def end_block(self) -> None:
        """Look at the locks in the shared memory of the block that ends."""
        block, size = self._clock.block_number, self._clock.block_size
        if self.messages.matter:
            self.messages.end_block(range(block * size, (block + 1) * size))
        self._locks.end_block(block, size)

    def settle(self) -> None:
        """Look at the locks in global memory, as the launch leaves them."""
        self._locks.settle()
