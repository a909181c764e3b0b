"""Runs a launch in other orders of its threads, to find results that depend on the order.

A launch is run again if threads learn from atomics how far others are. Another run gives other
numbers to a lane that reads from one that does not take part, which matters only if they are used;
another makes ``activemask`` name fewer lanes after a branch: a GPU need not rejoin them there.

Many right kernels leave something else in another order: a compacted array is permuted, the sum of
floats rounded otherwise, the first of several threads wins. So an order matters only if the arrays
hold other numbers afterwards, wherever they lie, and a thread has read a value by an atomic without
waiting: it has read what others had not written yet, polled too few times, or not got a lock that
was free again later. The arrays that atomics read do not count: only atomics change them while
threads read, as in a shortest path that the host repeats until nothing changes.

In a seeded order random numbers, which the seed repeats, say which block begins next, which warp
goes on first and which lets others go first at an atomic. A launch runs in such orders if the
caller asks for them. A result that differs there without a sign of a mistake is only noted.

But an update of such an array may be lost: a thread reads an element, another one changes it, and
the first one's ``cas`` fails and is not tried again, or its ``exch`` overwrites the change, or it
changes the element by an operand that it has computed from the old number. Or a thread decides by
the result of another element's atomic to ``exch`` a number, and overwrites that of a thread which
decided later. An update is lost if the element becomes one number with all threads one after the
other, from the first to the last and from the last to the first, and another number if they
interleave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple, Protocol

import numpy as np

from convlab.simulation.recording.access_log import GLOBAL, AccessLog, LaunchClock
from convlab.simulation.recording.loops import EndlessLoop
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.atomic_history import AtomicHistory
from convlab.simulation.rules.atomic_records import AtomicRead
from convlab.simulation.rules.finding_words import GIVES_UP, PARTED, WITHOUT_LOCK
from convlab.simulation.rules.findings import Finding, SimulationError
from convlab.simulation.rules.outcomes import Outcome, alike, difference
from convlab.simulation.rules.reports import Reports
from convlab.simulation.rules.shuffles import Shuffles
from convlab.simulation.rules.synchronization import Synchronization

PATIENCE = 1024  # times that a thread polls in vain before it lets others go first, at first
DEPENDS = "depends on order"  # the kind of most findings here


class Order(NamedTuple):
    """An order of blocks and threads: ``backwards``, from the last to the first. With ``slow`` 0
    the even warps let others go first at each atomic, with 1 the odd ones, counted from the block's
    number on. A thread polls ``patience`` times in vain before others run, once."""

    backwards: bool = False
    slow: tuple[int, ...] = ()
    patience: int = 0
    late: bool = False  # a block begins when those before it have gone on several times
    undefined: int = 0  # with 1 an undefined number is a very large one, with -1 a very small one
    undefined_at: int | None = None  # the only site where it is one, if not all sites
    beyond: int = 0  # with 1 or -1 a shuffle from beyond the warp does not give a lane its own
    parted: bool = False  # ``activemask`` names the even lanes to the even ones, the odd to the odd
    seed: int | None = None  # of the random numbers that order blocks and warps, if they do

    @classmethod
    def seeded(cls, seed: int) -> Order:
        """Return the order of a seed."""
        return cls(seed=seed, late=Random(seed).random() < 0.5)

    @property
    def gives_way(self) -> bool:
        """Return whether a block lets others go on where its threads could go on themselves."""
        return self.backwards or self.interleaves

    @property
    def interleaves(self) -> bool:
        """Return whether warps let others go first at atomics."""
        return bool(self.slow) or self.seed is not None

    def random(self, use: object) -> Random | None:
        """Return the random numbers for one use, such as a block's number; None without a seed."""
        return None if self.seed is None else Random(f"{self.seed}, {use}")

    def blocks(self, count: int) -> Sequence[int]:
        """Return the numbers of so many blocks in the order in which they begin."""
        if self.seed is not None:
            return Random(self.seed).sample(range(count), count)
        return range(count)[::-1] if self.backwards else range(count)


USUAL = Order()


class ComparedArray(Protocol):
    """An array among the arguments, with its numbers in ``host``."""

    name: str

    @property
    def host(self) -> np.ndarray:
        """The array's numbers."""


class KernelFacts(Protocol):
    """Facts from a kernel's text."""

    @property
    def communicates(self) -> bool:
        """True if threads communicate, so that the kernel is run in other orders."""

    @property
    def shuffles(self) -> bool:
        """True if the kernel calls a shuffle."""

    def parted_at(self) -> int | None:
        """Return the site of an ``activemask`` after a branch that may part a warp; None without
        one."""


class RepeatableLaunch(Protocol):
    """A launch that can be run once, and what is known of it then."""

    kernel: str
    strict: bool
    log: AccessLog | None
    clock: LaunchClock
    sites: Sites
    reports: Reports
    synchronization: Synchronization
    history: AtomicHistory
    shuffles: Shuffles
    notes: list[str]
    order_notes: list[str]

    @property
    def translation(self) -> KernelFacts:
        """The facts from the kernel's text."""

    def global_arrays(self) -> Iterator[ComparedArray]:
        """Give the arrays in global memory."""

    def run(self) -> None:
        """Run all blocks once."""


def run_in_orders(
    launch: RepeatableLaunch, again: Callable[[Order], RepeatableLaunch], seeds: Sequence[int] = ()
) -> None:
    """Run a launch, and run it again in other orders if threads communicate, and in those of the
    ``seeds``; ``again`` makes a launch in an order.

    The arguments become what the last run from the last thread to the first makes of them, or else
    the first run: a program that relies on the order in which threads arrive sees another.
    """
    facts = launch.translation
    depends = facts.communicates or facts.shuffles or facts.parted_at() is not None
    if launch.strict and (depends or seeds):
        _Reruns(launch, again, seeds).run()
    else:
        launch.run()


class _Reruns:
    """The runs of a launch, and what they leave in its arrays."""

    def __init__(
        self,
        launch: RepeatableLaunch,
        again: Callable[[Order], RepeatableLaunch],
        seeds: Sequence[int],
    ) -> None:
        self._launch, self._again, self._seeds = launch, again, seeds
        self._parted_at = launch.translation.parted_at()
        arrays = [array for array in launch.global_arrays() if array.host.flags.writeable]
        self._names, self._hosts = [one.name for one in arrays], [one.host for one in arrays]
        self._before = Outcome.of(self._names, self._hosts)
        self._forwards = self._kept = self._before

    def run(self) -> None:
        """Run the launch in all orders that may matter. Raises ``SimulationError`` if one does."""
        launch = self._launch
        launch.run()
        launch.history.settle()
        orders = [*self._orders(), *map(Order.seeded, self._seeds)]
        if not orders and not launch.shuffles.stored:
            return
        self._forwards = self._kept = Outcome.of(self._names, self._hosts)
        backwards: Outcome | None = None  # the outcome of one thread after the other
        interleaved: list[tuple[RepeatableLaunch, Outcome]] = []  # runs that may have lost updates
        for order in orders:
            other, found = self._run_again(order)
            self._check(order, other, found)
            if order.backwards:
                self._kept = found
                found.restore(self._hosts)
                if not order.slow:
                    backwards = found
            if order.interleaves and other.history.lost:
                interleaved.append((other, found))
        if interleaved:
            if backwards is None:
                _, backwards = self._run_again(Order(True))
            for other, found in interleaved:
                _report_lost(other, self._forwards, backwards, found)
        if launch.shuffles.stored:
            self._note_own_numbers()

    def _orders(self) -> Iterator[Order]:
        """Give the orders that may matter, by what the first run has done.

        With fences or locks, and where threads read how far others are, some or all of them let
        others go first at each atomic; where they poll, they do so longer before others run.
        """
        launch, history = self._launch, self._launch.history
        tells = bool(launch.synchronization.fences or history.swaps)
        if tells:
            yield Order(backwards=True, slow=(0, 1))
        if history.values:
            yield Order(backwards=True, patience=PATIENCE)
        if history.ranks and not tells and not history.values:
            yield Order(backwards=True)
        if tells or history.values or history.takes or history.computes:
            yield Order(slow=(0,))
            yield Order(slow=(1,))
            yield Order(slow=(0, 1), late=True)
        if history.polled:
            yield Order(patience=PATIENCE)
        if launch.shuffles.undefined_at:
            yield Order(undefined=1)
            yield Order(undefined=-1)
        if self._parted_at is not None:
            yield Order(parted=True)

    def _run_again(self, order: Order) -> tuple[RepeatableLaunch, Outcome]:
        """Return the launch in that order, and its outcome; the arrays keep their numbers."""
        self._before.restore(self._hosts)
        try:
            other = self._again(order)
            other.reports.seed = order.seed
            if order.seed is None:
                other.reports.order = ", seen in another order of the threads"
            other.run()
            other.history.settle()
            return other, Outcome.of(self._names, self._hosts)
        except Exception as error:
            if order.seed is not None:
                error.add_note(f"This launch ran in the order of seed {order.seed}.")
            of_all = order.undefined and order.undefined_at is None
            if of_all and isinstance(error, SimulationError) and error.findings:
                # The launch went well with the lanes' own numbers.
                self._report_undefined(order, error.findings[0])
            raise
        finally:
            self._kept.restore(self._hosts)

    def _difference(self, found: Outcome, beside: set[str]) -> str:
        return difference(self._forwards, found, self._before, beside)

    def _check(self, order: Order, other: RepeatableLaunch, found: Outcome) -> None:
        """Raise ``SimulationError`` if the outcome differs from the first run's by a mistake."""
        launch = self._launch
        if order.undefined and self._difference(found, set()):
            self._report_undefined(order)
        read = (*launch.history.values, *other.history.values)
        outcome = self._difference(found, beside={key.array for key in read})
        if outcome and order.parted:
            assert self._parted_at is not None
            what = f"{PARTED} that have parted may not be named: {outcome}"
            other.reports.add(DEPENDS, what, self._parted_at, 0)
            other.reports.raise_any(ended=False)
        elif outcome:
            _report(launch, other, outcome)
            if order.seed is not None:
                self._note_seed(order.seed, outcome)

    def _report_undefined(self, order: Order, after: Finding | None = None) -> None:
        """Raise ``SimulationError`` for what lanes read from those that do not take part, in the
        order that shows that it matters. ``after`` is the finding that this has caused: an index,
        perhaps."""
        launch = self._launch
        sites = [*launch.shuffles.undefined_at]
        shown: dict[int, Finding | None] = {sites[0]: after}
        if len(sites) > 1:
            shown = {}
            for site in sites:
                try:
                    _, found = self._run_again(order._replace(undefined_at=site))
                except SimulationError as error:
                    shown[site] = error.findings[0] if error.findings else None
                except EndlessLoop:
                    shown[site] = None
                else:
                    if self._difference(found, set()):
                        shown[site] = None
        # The findings of these runs are about numbers that no kernel has computed.
        if shown:
            launch.shuffles.report_undefined(launch.reports, shown)
        else:
            launch.shuffles.report_undefined_together(launch.reports, after)
        launch.reports.raise_any(ended=False)

    def _note_seed(self, seed: int, outcome: str) -> None:
        """Note a difference without a sign of a mistake, of the first seed that shows it."""
        if not self._launch.order_notes:
            self._launch.order_notes.append(
                f"{self._launch.kernel}: {outcome}, that of seed {seed}, which is right only if "
                "the program accepts both"
            )

    def _note_own_numbers(self) -> None:
        """Note that the outcome depends on numbers which lanes have got from beyond the warp: on
        larger ones and on smaller ones, for to the largest of a warp smaller ones do not matter."""
        launch, where = self._launch, ""
        for sign in (1, -1):
            try:
                _, found = self._run_again(Order(beyond=sign))
                outcome = self._difference(found, set())
            except (SimulationError, EndlessLoop):  # it takes another course
                outcome = "the course of the launch"
            if not outcome:
                return
            where = outcome.split(" becomes ")[0]
        for site, kind in launch.shuffles.beyond_at.items():
            launch.notes.append(
                f"{launch.kernel}, {launch.sites.where(site)}: {kind} gives a lane whose source is "
                f"beyond the warp its own number, and {where} depends on that: after a sum of a "
                "warp only one lane has the whole sum"
            )


def _report_lost(
    other: RepeatableLaunch, forwards: Outcome, backwards: Outcome, interleaved: Outcome
) -> None:
    """Raise ``SimulationError`` if the run ``other``, which left the numbers ``interleaved``, has
    lost an update: if its element becomes the same in both orders of one thread after the other,
    and not in this one."""
    assert other.log is not None
    for lost in other.history.lost.values():
        span = other.log.span_at(lost.address)
        if lost.address < GLOBAL or span.name not in forwards.names:
            continue
        index, _ = span.split(lost.address)
        runs = forwards, backwards, interleaved
        first, last, now = (run.element(span.name, index) for run in runs)
        scale = forwards.scale(span.name)
        if not alike(first, last, scale) or alike(first, now, scale):
            continue
        element = lost.key._replace(array=span.name, at=index).element
        if lost.follows:
            what = f"a thread decides by an atomic of another element to change {element}"
            what += ", another thread changes it first"
        else:
            what = f"a thread reads {lost.read} from {element}, another thread changes it"
        what += f", and {lost.how}: {element} becomes {first}, and {now} in another order"
        _add(other, what, lost.key)


def _report(launch: RepeatableLaunch, other: RepeatableLaunch, outcome: str) -> None:
    """Raise ``SimulationError`` if threads did not wait for what the outcome depends on."""
    if (evidence := _evidence(launch.history, other.history)) is not None:
        what, key = evidence
        _add(other, f"{what}: {outcome}", key)


def _add(other: RepeatableLaunch, what: str, key: AtomicRead) -> None:
    """Raise ``SimulationError`` with a finding of the thread that has read the element."""
    block = other.reports.block(key.thread // other.clock.block_size)
    other.reports.add(DEPENDS, what, key.site, key.thread, block=block)
    other.reports.raise_any(ended=False)


def _evidence(one: AtomicHistory, two: AtomicHistory) -> tuple[str, AtomicRead] | None:
    """Say what a thread did not wait for, and which read shows it."""
    for failed in (*two.without_lock, *one.without_lock):
        said = f"a thread {WITHOUT_LOCK} {failed.key.element}"
        return f"{said}, which another thread frees later", failed.key
    guesses = one.guesses | two.guesses
    waits = guesses.union(key.site for history in (one, two) for key in history.polled)
    for history in two, one:
        for key, in_vain in history.polled.items():
            if in_vain and key.site not in guesses:
                said = f"a thread {GIVES_UP} {key.element}"
                return f"{said}, which another thread changes later", key
    for key, value in one.values.items():
        if key.site not in waits and two.values.get(key, value) != value:
            said = f"a thread reads {value} or {two.values[key]} from {key.element}"
            return f"{said}, and the kernel does not wait for the threads that change it", key
    for key, value in (one.early | two.early).items():
        if key.site not in waits:
            said = f"a thread reads {value} from {key.element}"
            return f"{said} before another thread changes it, and does not wait for that", key
    return None
