"""Runs a launch in a second order where threads learn from atomics how far others are, and with
other numbers where a lane reads from one that does not take part, which matters only if it is used.
A third run makes ``activemask`` name fewer lanes after a branch: a GPU need not rejoin them there.

Many right kernels leave something else in another order: a compacted array is permuted, the sum of
floats rounded otherwise, the first of several threads wins. So an order matters only if the arrays
hold other numbers afterwards, wherever they lie, and a thread has asked by an atomic without
waiting for the answer: it has read what others had not written yet, polled too few times, or not
got a lock that was free again later. The arrays asked about do not count: only atomics change them
while threads ask, as in a shortest path that the host repeats until nothing changes.

But an update of such an array may be lost: a thread reads an element, another one changes it, and
the first one's ``cas`` fails and is not tried again, or its ``exch`` overwrites the change. That is
so if the element becomes one number with all threads one after the other, from the first to the
last and from the last to the first, and another number if they interleave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from convlab.simulation.recording.access_log import GLOBAL, SIZE_SHIFT, WARP, EndlessLoop
from convlab.simulation.recording.sites import ignores_result, instruction
from convlab.simulation.rules.findings import SimulationError
from convlab.simulation.rules.retries import Retry, Update, update_of

Launch = Any  # a simulated_launch.SimulatedLaunch
PATIENCE = 1024  # times that a thread polls in vain before it lets others go first, at first
MOST_PATIENCE = 50_000  # of all threads
PARTED = "the result depends on which lanes activemask names, and lanes"
TOLERANCE = 1e-5  # of the largest number: sums of floats in another order
Key = tuple[int, int, str, Any]  # thread of the launch, site, array, index


class Order(NamedTuple):
    """In which order blocks and threads run: ``backwards``, from the last to the first. With
    ``slow`` 0 the even warps let others go first at each atomic, with 1 the odd ones, counted from
    the block's number on. A thread polls ``patience`` times in vain before others run, once."""

    backwards: bool = False
    slow: tuple[int, ...] = ()
    patience: int = 0
    late: bool = False  # a block begins when those before it have gone on several times
    undefined: int = 0  # with 1 an undefined number is a very large one, with -1 a very small one
    beyond: int = 0  # with 1 or -1 what a shuffle reads from beyond the warp is not one's own
    parted: bool = False  # ``activemask`` names the even lanes to the even ones, the odd to the odd

    @property
    def gives_way(self) -> bool:
        """Whether a block lets others go on where its threads could go on themselves."""
        return self.backwards or bool(self.slow)


USUAL = Order()


class Try(NamedTuple):
    """A failed ``cas``: what it expected at an index of an array."""

    array: Any
    index: Any
    expected: Any
    key: Key


class Lost(NamedTuple):
    """An update that may be lost: what its thread had read, at which address, and what it did."""

    read: Any
    address: int
    key: Key
    did: str


class Asked:
    """What the threads of a launch have asked by atomics that change nothing."""

    def __init__(self, clock: Any, order: Order) -> None:
        self._clock, self._order = clock, order
        self.answers: dict[Key, Any] = {}  # the last one
        self._impatient: set[int] = set()  # threads that have polled for so long
        self._left = MOST_PATIENCE
        self.polled: dict[Key, int] = {}  # how often in a row the last answer was the one before
        self._guess: dict[tuple[int, str, Any], int] = {}  # the site of the last answer
        self.guesses: set[int] = set()  # sites of answers that a ``cas`` in a loop checks
        self._failed: dict[tuple[int, str, Any], Try] = {}
        self.without_lock: list[Try] = []  # threads that went on without a lock that others freed
        # By the element the first one who asked, if no atomic had changed it before.
        self._first: dict[tuple[int, str, Any], Key | None] = {}
        self.early: dict[Key, Any] = {}  # the answers to those of which others change the element
        self.takes = False  # whether a thread uses what it has exchanged
        self.ranks = False  # or any number that it has changed by an atomic: the place in a queue
        self.swaps: set[int] = set()  # the position of each ``cas``
        self.checks: set[int] = set()  # and of each atomic for which a guess is good enough
        # By thread, array and index what its last atomic there read or left, and its position; by
        # element the position of the last ``cas`` that put a value there.
        self._last: dict[tuple[int, str, Any], tuple[Any, int]] = {}
        self._put: dict[tuple[int, str, Any], dict[Any, int]] = defaultdict(dict)
        self.lost: dict[tuple[int, int], Lost] = {}  # by thread and site what came too late
        self._updates: dict[tuple[int, int], Update] = {}  # by id of the code, offset

    @property
    def gives_way(self) -> bool:
        """Whether the thread that runs lets others go first after each atomic."""
        clock = self._clock
        return (clock.block_number + clock.thread // WARP) % 2 in self._order.slow

    def read(self, array: Any, index: Any, site: int, answer: Any, frame: FrameType) -> bool:
        """Note that an atomic changed nothing; whether its thread polls, so others may go first."""
        if ignores_result(frame.f_code, site - id(frame.f_code)):
            return False
        number = self._clock.number
        key = number, site, array.name, index
        self._last[number, array.name, index] = answer, self._clock.position
        in_vain = 0
        if key in self.answers:
            in_vain = self.polled.get(key, 0) + 1 if self.answers[key] == answer else 0
            self.polled[key] = in_vain
        self.answers[key] = answer
        self._guess[number, array.name, index] = site
        self._first.setdefault(self._where(array, index), key)
        if number in self._impatient or self._left <= 0:
            return in_vain > 0
        self._left -= in_vain > 0
        if in_vain > self._order.patience:
            self._impatient.add(number)
            return True
        return False

    def change(
        self,
        array: Any,
        index: Any,
        site: int,
        old: Any,
        new: Any,
        frame: FrameType,
        takes: bool,
    ) -> None:
        """Note that an atomic changed something: its thread has not polled in vain, and who asked
        before was early. One that ``takes`` puts a number that does not depend on the old one."""
        number, where = self._clock.number, self._where(array, index)
        if (key := (number, site, array.name, index)) in self.answers:
            self.polled[key] = 0
        ignored = ignores_result(frame.f_code, site - id(frame.f_code))
        if not ignored:
            self.takes, self.ranks = self.takes or takes, True
        here = number, array.name, index
        if takes and ignored and self._last.get(here, (old, 0))[0] != old:
            if self._update(frame).computed:
                self._lose(array, key, self._last[here][0], "this exch overwrites the change")
        if here in self._last:
            self._last[here] = new, self._clock.position
        first = self._first.get(where)
        if first is not None and first[0] != number:
            self.early[first] = self.answers[first]
        self._first[where] = None

    def _where(self, array: Any, index: Any) -> tuple[int, str, Any]:
        return self._clock.block_number if array.place < GLOBAL else -1, array.name, index

    def check(self) -> None:
        """Note that the last access was an atomic that a stale number before it does no harm."""
        self.checks.add(self._clock.position - 1)

    def swap(
        self,
        array: Any,
        index: Any,
        site: int,
        expected: Any,
        old: Any,
        new: Any,
        frame: FrameType,
    ) -> None:
        """Note a ``cas``, the last access, which puts ``new`` if ``old`` is as expected."""
        self.swaps.add(self._clock.position - 1)
        number, where = self._clock.number, self._where(array, index)
        here, key = (number, array.name, index), (number, site, array.name, index)
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
            self._put[where][new] = self._clock.position
            self._failed.pop(here, None)
            if update.retry != Retry.NEVER:
                self.lost.pop((number, site), None)
            return
        self._failed[here] = Try(array, index, expected, key)
        helped = update.walks or self._put[where].get(new, 0) > since
        if read == expected and update.retry != Retry.UNTIL_DONE:
            if update.computed or not helped:
                what = "this cas, which fails then, is not tried again"
                self._lose(array, key, expected, what)

    def _lose(self, array: Any, key: Key, read: Any, did: str) -> None:
        number, site, _, index = key
        at = array.check(array.whole_index(index), site)
        self.lost[number, site] = Lost(read, array.address(at) % (1 << SIZE_SHIFT), key, did)

    def _update(self, frame: FrameType | None) -> Update:
        """What the text says of the atomic that this frame calls, or its callers' text."""
        found = Update()
        while frame is not None:
            code, offset = frame.f_code, frame.f_lasti
            if self._clock.sites.knows(code):
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
        for name, one in [*self._failed.items()]:
            if one.array.place < GLOBAL and one.key[0] // self._clock.block_size == (
                self._clock.block_number
            ):
                self._settle(self._failed.pop(name))

    def settle(self) -> None:
        """Look at the locks in global memory, as the launch leaves them."""
        while self._failed:
            self._settle(self._failed.popitem()[1])

    def _settle(self, one: Try) -> None:
        if one.array.host[one.index] == one.expected:
            self.without_lock.append(one)


def run_in_orders(launch: Launch, again: Callable[[Order], Launch]) -> None:
    """Run it, and if threads tell each other something run it again in other orders; ``again``
    makes a launch. Where there are fences or locks, and where threads ask how far others are, some
    or all of them let others go first at each atomic; where they poll, they do so a little longer
    before others run. A lane that has read from one that does not take part gets other numbers.

    The arguments become what the last run from the last thread to the first makes of them, or else
    the first run: a program that relies on the order in which threads arrive sees another."""
    if not (launch.strict and (launch.may_tell or launch.shuffles or launch.parts)):
        launch.run()
        return
    arrays = [array for array in launch.global_arrays() if array.host.flags.writeable]
    names, hosts = [array.name for array in arrays], [array.host for array in arrays]
    before = [host.copy() for host in hosts]
    launch.run()
    launch.asked.settle()
    asked, tells = launch.asked, bool(launch.fenced or launch.asked.swaps)
    orders = [Order(True, (0, 1))] * tells
    orders += [Order(True, patience=PATIENCE)] * bool(asked.answers)
    orders += [Order(True)] * (asked.ranks and not orders)
    orders += [Order(slow=(0,)), Order(slow=(1,)), Order(slow=(0, 1), late=True)] * (
        tells or bool(asked.answers) or asked.takes
    )
    orders += [Order(patience=PATIENCE)] * bool(asked.polled)
    orders += [Order(undefined=1), Order(undefined=-1)] * bool(launch.lanes.undefined_at)
    orders += [Order(parted=True)] * (launch.parts is not None)
    again_at_all = bool(orders) or launch.lanes.stored
    kept = after = [host.copy() for host in hosts] if again_at_all else []

    def run_again(order: Order) -> tuple[Launch, list[np.ndarray]]:
        """The launch in that order, and what it leaves in the arrays; these keep what they had."""
        _fill(hosts, before)
        try:
            other = again(order)
            other.reports.order = ", seen in another order of the threads"
            other.run()
            other.asked.settle()
            return other, [host.copy() for host in hosts]
        finally:
            _fill(hosts, kept)

    backwards: list[np.ndarray] | None = None  # what is left by one thread after the other
    interleaved = []  # runs that may have lost updates
    for order in orders:
        other, found = run_again(order)
        if order.undefined and _difference(names, after, found, before, set()):
            _report_undefined(launch, other)
        chaotic = {key[2] for key in (*asked.answers, *other.asked.answers)}
        outcome = _difference(names, after, found, before, chaotic)
        if outcome and order.parted:
            what = f"{PARTED} that have parted may not be named: {outcome}"
            other.reports.add("depends on order", what, launch.parts, 0)
            other.reports.raise_any(ended=False)
        elif outcome:
            _report(launch, other, outcome)
        if order.backwards:
            kept = found
            _fill(hosts, kept)
            if not order.slow:
                backwards = found
        if order.slow and other.asked.lost:
            interleaved.append((other, found))
    if interleaved and backwards is None:
        _, backwards = run_again(Order(True))
    for other, found in interleaved:
        assert backwards is not None
        _report_lost(other, names, after, backwards, found)
    if launch.lanes.stored:
        _note_own_numbers(
            launch, lambda order: _difference(names, after, run_again(order)[1], before, set())
        )


def _report_lost(
    other: Launch,
    names: list[str],
    forwards: list[np.ndarray],
    backwards: list[np.ndarray],
    interleaved: list[np.ndarray],
) -> None:
    """Raise ``SimulationError`` if the run ``other``, which left the numbers ``interleaved``, has
    lost an update: if its element becomes the same in both orders of one thread after the other,
    and not in this one."""
    for lost in other.asked.lost.values():
        span = other.log.span_at(lost.address)
        if lost.address < GLOBAL or span.name not in names:
            continue
        (index, _), which = span.split(lost.address), names.index(span.name)
        first, last, now = (run[which][index] for run in (forwards, backwards, interleaved))
        scale = _largest(forwards[which])
        if not _alike(first, last, scale) or _alike(first, now, scale):
            continue
        number, site, _, _ = lost.key
        element = _element((number, site, span.name, index))
        what = f"a thread reads {lost.read} from {element}, another thread changes it, and"
        what += f" {lost.did}: {element} becomes {first}, and {now} in another order"
        block = other.reports.block(number // other.block_size)
        other.reports.add("depends on order", what, site, number, block=block)
        other.reports.raise_any(ended=False)


def _alike(one: Any, two: Any, scale: float) -> bool:
    """Whether two numbers are the same, or would be but for the order of a sum."""
    if getattr(one, "dtype", np.dtype(object)).kind in "fc":
        return bool(np.isclose(one, two, 0, scale * TOLERANCE, equal_nan=True))
    return bool(one == two)


def _report(launch: Launch, other: Launch, outcome: str) -> None:
    """Raise ``SimulationError`` if threads did not wait for what the outcome depends on."""
    if (evidence := _evidence(launch, other)) is not None:
        what, (number, site, _, _) = evidence
        block = other.reports.block(number // other.block_size)
        what = f"{what}: {outcome}"
        other.reports.add("depends on order", what, site, number, block=block)
        other.reports.raise_any(ended=False)


def _report_undefined(launch: Launch, other: Launch) -> None:
    """Raise ``SimulationError`` for what lanes read from those that do not take part."""
    for site, (what, number) in launch.lanes.undefined_at.items():
        block = other.reports.block(number // other.block_size)
        other.reports.add("inactive lane", what, site, number % other.block_size, block=block)
    other.reports.raise_any(ended=False)


def _note_own_numbers(launch: Launch, outcome: Callable[[Order], str]) -> None:
    """Note that what the launch leaves depends on numbers which lanes have got from beyond the
    warp: on larger ones and on smaller ones, for to the largest of a warp smaller ones do not
    matter. ``outcome`` runs it in an order and says what is different then."""
    where = ""
    for sign in (1, -1):
        try:
            found = outcome(Order(beyond=sign))
        except (SimulationError, EndlessLoop):  # it goes another way
            found = "the course of the launch"
        if not found:
            return
        where = found.split(" becomes ")[0]
    for site, kind in launch.lanes.beyond_at.items():
        launch.notes.append(
            f"{launch.kernel}, {launch.sites.where(site)}: {kind} gives a lane whose source is "
            f"beyond the warp its own number, and {where} depends on that: after a sum of a warp "
            "only one lane has the whole sum"
        )


def _evidence(launch: Launch, other: Launch) -> tuple[str, Key] | None:
    """What a thread did not wait for, in words, and where."""
    for failed in (*other.asked.without_lock, *launch.asked.without_lock):
        said = f"a thread goes on without the lock {_element(failed.key)}"
        return f"{said}, which another thread frees later", failed.key
    one, two = launch.asked, other.asked
    guesses = one.guesses | two.guesses
    waits = guesses.union(key[1] for asked in (one, two) for key in asked.polled)
    for asked in two, one:
        for key, in_vain in asked.polled.items():
            if in_vain and key[1] not in guesses:
                said = f"a thread gives up polling {_element(key)}"
                return f"{said}, which another thread changes later", key
    for key, answer in one.answers.items():
        if key[1] not in waits and two.answers.get(key, answer) != answer:
            said = f"a thread reads {answer} or {two.answers[key]} from {_element(key)}"
            return f"{said}, and the kernel does not wait for the threads that change it", key
    for key, answer in (one.early | two.early).items():
        if key[1] not in waits:
            said = f"a thread reads {answer} from {_element(key)}"
            return f"{said} before another thread changes it, and does not wait for that", key
    return None


def _element(key: Key) -> str:
    _, _, name, index = key
    return f"{name}[{', '.join(map(str, index)) if isinstance(index, tuple) else index}]"


def _difference(
    names: list[str],
    one: list[np.ndarray],
    two: list[np.ndarray],
    before: list[np.ndarray],
    beside: set[str],
) -> str:
    """Which numbers the two orders leave, if they are not the same ones, wherever they lie, in
    arrays other than those ``beside``."""
    scale = max((_largest(host) for host in (*one, *two, *before)), default=0.0)
    for name, a, b in zip(names, one, two, strict=True):
        if name in beside:
            continue
        for first, second in zip(_parts(a), _parts(b), strict=True):
            some, others = np.sort(first, axis=None), np.sort(second, axis=None)
            if some.dtype.kind in "fc":
                close = np.isclose(some, others, 0, scale * TOLERANCE, equal_nan=True)
            else:
                close = some == others
            if not close.all():
                at = tuple(np.argwhere(first != second)[0].tolist())
                where = f"{name}[{', '.join(map(str, at))}]"
                return f"{where} becomes {first[at]}, and {second[at]} in another order"
    return ""


def _parts(host: np.ndarray) -> Iterator[np.ndarray]:
    """The array, or the fields of records."""
    if host.dtype.names is None:
        yield host
    for name in host.dtype.names or ():
        yield from _parts(host[name])


def _largest(host: np.ndarray) -> float:
    floats = [part[np.isfinite(part)] for part in _parts(host) if part.dtype.kind in "fc"]
    return max((float(np.abs(part).max()) for part in floats if part.size), default=0.0)


def _fill(hosts: list[np.ndarray], values: list[np.ndarray]) -> None:
    for host, kept in zip(hosts, values, strict=True):
        host[...] = kept
