"""Runs the threads of a block as greenlets: each on its own until it waits for others.

Deterministic: threads run in order of their number, and a round ends when all wait or are done.
Then the threads whose call is complete continue. A warp's call is complete when all lanes that its
mask names and that still live have come to the same instruction; a block's barrier when all living
threads have come to one. A call that can never be complete is a finding; its threads then continue
without the others. Threads that poll, or have failed to get a lock, let the others go first; a
block in which nothing else happens lets other blocks go on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from greenlet import greenlet

from convlab.device.products import WARP, WARPGROUP, warp_mma, warp_product
from convlab.simulation.recording.sites import in_two_arms
from convlab.simulation.rules.coordinates import Coordinates
from convlab.simulation.rules.orders import USUAL, Order
from convlab.simulation.rules.shuffles import Shuffles

Place = tuple[tuple[int, ...], tuple[int, ...]]
Complain = Callable[..., None]  # kind, what, site, thread, perhaps another site
MMA = "mma_tf32"  # the request of the lanes of a warp
# The requests of the threads of a warpgroup.
PRODUCT, PRODUCT_DONE = "start_product", "finish_product"
YIELD = "yield"  # the request of a thread that lets others go first; its value is what it polls
GRID_BARRIER = "syncthreads of the grid"
PATIENCE = 2  # rounds in which all only poll, before other blocks go on


@dataclass(slots=True, eq=False)
class Request:
    """What a thread waits for. A plain ``syncthreads()`` is no request but an empty switch."""

    kind: str
    site: int
    value: Any = None
    mask: int | None = None

    @property
    def together(self) -> int:
        """How many consecutive threads meet: those of a warp or of a warpgroup."""
        return WARPGROUP if self.kind in (PRODUCT, PRODUCT_DONE) else WARP


@dataclass(slots=True, eq=False)
class Thread:
    """A CUDA thread that waits: its number in the block, its index in the block, and for what."""

    number: int
    index: Coordinates
    greenlet: Any
    request: Any
    result: tuple[Any, ...] = ()

    def waits_for(self) -> Request:
        """The request; that of a plain ``syncthreads()`` is made from where the thread stands."""
        if not isinstance(self.request, Request):
            frame = self.greenlet.gr_frame
            self.request = Request("syncthreads", id(frame.f_code) + frame.f_lasti)
        return self.request

    def place(self) -> Place:
        """Where it waits: the instructions, the innermost first and then its callers', and the
        iterations of the loops around it, the outermost first."""
        sites = [self.waits_for().site]
        frame = self.greenlet.gr_frame
        while frame is not None:
            sites.append(id(frame.f_code) + frame.f_lasti)
            frame = frame.f_back
        return tuple(sites), tuple(self.greenlet.loops)


class Worker(greenlet):  # type: ignore[misc]
    """Runs threads one after the other; ``loops`` are the iterations that its thread is in."""

    loops: list[int]


class Block:
    """The threads of one block. ``enter(number, index)`` is called before each switch to one.

    ``on_barrier(threads, site)`` hears how many threads each barrier lets go on and where it is,
    ``on_warp_barrier`` which ones, and whether those are all of their warp that live. If the
    ``order`` gives way, the block lets others go on whenever one of its threads yields, and then
    reverses its threads. ``deep`` says whether threads may wait in what the body calls.
    ``lanes`` know what a lane gets from one that does not take part, or from beyond the warp.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        arguments: tuple[Any, ...],
        indices: Sequence[Coordinates],
        enter: Callable[[int, Coordinates], None],
        on_barrier: Callable[[int, int], None],
        on_warp_barrier: Callable[[list[int], bool], None],
        complain: Complain | None,
        lanes: Shuffles | None = None,
        number: int = 0,
        order: Order = USUAL,
        deep: bool = True,
    ) -> None:
        self.number, self._body, self._arguments = number, body, arguments
        self._deep, self._parted = deep, order.parted
        self._enter, self._complain, self._lanes = enter, complain, lanes
        self.on_barrier, self.on_warp_barrier = on_barrier, on_warp_barrier
        self.size, self._backwards, self._gives_way = len(indices), order.backwards, order.gives_way
        threads = list(enumerate(indices))
        self._fresh = iter(threads[::-1] if order.backwards else threads)
        self._begun = False
        self._now = threads[0]  # the thread that has begun last
        self.waiting: list[Thread] = []
        self.returned: dict[int, int] = {}  # the line of the ``return`` that ended a thread
        self.polls = 0  # how often threads have done nothing but poll
        self.kept: Any = None  # of its state while other blocks run
        self.at_grid_barrier = self.released = False  # all its threads; from there

    def run(self) -> bool:
        """Run until all threads have ended, or all that are left only poll; then ``waiting`` has
        them. Says whether a thread did anything else."""
        further, rounds = self._start(), 0
        if self._gives_way:  # a round at most for each run
            self._backwards ^= not further  # the one that came first is then the last
            rounds = PATIENCE if further and any(map(_yields, self.waiting)) else PATIENCE - 1
        enter = self._enter
        while self.waiting and rounds < PATIENCE:
            ready, waiting = self._who_goes_on()
            moved = False
            for thread in ready:
                enter(thread.number, thread.index)
                polled = _yields(thread)
                thread.request = thread.greenlet.switch(*thread.result)
                if thread.greenlet.dead:
                    moved = True
                    continue
                waiting.append(thread)
                if polled and _yields(thread):
                    self.polls += 1
                else:
                    moved = True
            self.waiting = waiting
            further |= moved
            lets_go = self._gives_way and any(map(_yields, waiting))
            rounds = rounds + 1 if lets_go or not moved else 0
        return further

    def _start(self) -> bool:
        """Let each thread run until it waits for the first time; whether any had to begin. One
        greenlet runs thread after thread while they end; the next one begins where one waits."""
        if self._begun:
            return False
        self._begun = True
        while True:
            worker = Worker(self._work)
            worker.loops = []
            request = worker.switch()
            if worker.dead:
                return True
            self.waiting.append(Thread(*self._now, worker, request))

    def _work(self) -> None:
        enter, body, arguments = self._enter, self._body, self._arguments
        for number, index in self._fresh:
            self._now = number, index
            enter(number, index)
            if (line := body(*arguments)) is not None:
                self.returned[number] = line

    def _all_at_one(self, waiting: list[Thread]) -> bool:
        """Whether all threads wait at one plain barrier: the usual case, made quick."""
        first = waiting[0].greenlet.gr_frame
        code, offset = first.f_code, first.f_lasti
        checked, loops = self._complain is not None, waiting[0].greenlet.loops
        place = waiting[0].place() if checked and self._deep else None
        for thread in waiting:
            if thread.request.__class__ is Request:
                return False
            if checked:
                frame = thread.greenlet.gr_frame
                if frame.f_lasti != offset or frame.f_code is not code:
                    return False
                if thread.greenlet.loops != loops or (place and thread.place() != place):
                    return False
        return len(waiting) == self.size or not checked

    def _who_goes_on(self) -> tuple[list[Thread], list[Thread]]:
        """The threads that may continue, with their results, and the threads that still wait."""
        waiting = self.waiting
        if self._all_at_one(waiting):
            site = waiting[0].waits_for().site
            for thread in waiting:
                thread.result = ()
            self.on_barrier(len(waiting), site)
            return waiting, []
        waiting.sort(key=lambda thread: thread.number, reverse=self._backwards)
        going: list[Thread] = []
        at_barrier: list[Thread] = []
        calls: dict[tuple[Any, ...], list[Thread]] = defaultdict(list)
        for thread in waiting:
            request = thread.waits_for()
            if request.kind == YIELD:
                thread.result = (None,)
                going.append(thread)
            elif request.kind.startswith("syncthreads"):
                at_barrier.append(thread)
            else:
                size = request.together
                place = thread.place() if self._deep else (request.site, *thread.greenlet.loops)
                if self._parted and request.kind == "activemask":
                    place = place, thread.number % 2
                key = size, thread.number // size, request.kind, place, request.mask
                calls[key].append(thread)
        incomplete = []
        for (size, which, _, _, mask), threads in calls.items():
            present = living = (1 << size) - 1
            if len(threads) < size:
                present = _bits(t.number % size for t in threads)
                living = _bits(t.number % size for t in waiting if t.number // size == which)
            if mask is None or not mask & living & ~present:
                going += self._call(threads, mask, present, living)
            else:
                incomplete.append((threads, mask, present, living))
        if not going and incomplete:  # they wait for lanes that will never come
            going = self._call(*_met_in_two_arms(incomplete) or incomplete[0])
        if not going and at_barrier:
            going = self._barrier(at_barrier)
        gone = {thread.number for thread in going}
        going.sort(key=lambda thread: thread.number, reverse=self._backwards)
        return going, [thread for thread in waiting if thread.number not in gone]

    def _barrier(self, threads: list[Thread]) -> list[Thread]:
        kind, site = threads[0].request.kind, threads[0].request.site
        self.at_grid_barrier = {thread.request.kind for thread in threads} == {GRID_BARRIER}
        if self.at_grid_barrier and not self.released:
            return []
        self.at_grid_barrier = self.released = False
        if self._complain is not None:
            place = threads[0].place()
            other = next((t for t in threads if t.place() != place), None)
            if other is not None:
                what, *sites = _apart(place, other.place())
                self._complain("barrier divergence", what, sites[0], other.number, sites[1])
            elif ended := self.size - len(threads):
                what = f"{ended} of {self.size} threads ended before this barrier"
                first = min({*range(self.size)} - {thread.number for thread in threads})
                more: dict[str, Any] = dict(zip(("callers", "iterations"), place, strict=True))
                if (line := self.returned.get(first)) is not None:
                    file = self._body.__code__.co_filename
                    what += f", this one returned in line {line} of {Path(file).name}"
                    more |= {"other_line": line, "other_file": file}
                self._complain("barrier divergence", what, site, first, **more)
        values = [bool(thread.request.value) for thread in threads]
        result = {"count": sum(values), "and": all(values), "or": any(values)}
        for thread in threads:
            thread.result = (int(result.get(kind.removeprefix("syncthreads_"), 0)),)
        self.on_barrier(len(threads), site)
        return threads

    def _call(
        self, threads: list[Thread], mask: int | None, bits: int, living: int
    ) -> list[Thread]:
        """Carry out what the lanes of a warp, or the threads of a warpgroup, asked for together."""
        request = threads[0].request
        kind, size = request.kind, request.together
        present = {thread.number % size: thread for thread in threads}
        brought = {lane: thread.request.value for lane, thread in present.items()}
        if mask is not None and self._complain is not None:
            self._check_call(self._complain, threads, mask, bits, living)
        if kind == "syncwarp":
            self.on_warp_barrier([thread.number for thread in threads], bits == living)
        if kind.startswith("shfl"):
            results = {lane: self._shuffled(thread, present) for lane, thread in present.items()}
            if self._lanes is not None:
                pairs = ((present.get(t.request.value[1]), t) for t in threads)
                self._lanes.pass_on((one.number, other.number) for one, other in pairs if one)
        else:
            results = CALLS[kind](brought)
        for lane, thread in present.items():
            thread.result = (results[lane],)
        return threads

    def _check_call(
        self, complain: Complain, threads: list[Thread], mask: int, present: int, living: int
    ) -> None:
        """Lanes that have ended are excused from ``syncwarp``, as by CUDA; not from what reads
        their numbers. A tensor core needs those too that a small block does not have."""
        first, kind, site = threads[0].number, threads[0].request.kind, threads[0].request.site
        there = (1 << min(self.size - first // WARP * WARP, WARP)) - 1
        there = {"syncwarp": living, MMA: mask, PRODUCT: mask, PRODUCT_DONE: mask}.get(kind, there)
        if absent := mask & there & ~present:
            what = f"{kind} names {_lanes(absent)} in its mask, which never come to it"
            if kind == MMA:
                what = f"{MMA} needs the whole warp, but {_lanes(absent)} never come to it"
            if kind in (PRODUCT, PRODUCT_DONE):
                who = _lanes(absent).replace("lane", "thread")
                what = f"{kind} needs the whole warpgroup, but its {who} never come to it"
            complain("inactive lane", what, site, first)
        if strangers := present & ~mask:
            what = f"{kind} is called by {_lanes(strangers)}, which its mask does not name"
            outside = next(t.number for t in threads if strangers >> t.number % WARP & 1)
            complain("inactive lane", what, site, outside)

    def _shuffled(self, thread: Thread, present: dict[int, Thread]) -> Any:
        value, source = thread.request.value
        if source in present:
            return present[source].request.value[0]
        if self._lanes is None:
            return value
        if 0 <= source < WARP:  # beyond the warp: one's own
            what = f"{thread.request.kind} reads lane {source}, which does not take part"
            return self._lanes.undefined(value, what, thread.request.site, thread.number)
        return self._lanes.beyond(value, thread.request.kind, thread.request.site, thread.number)


Incomplete = tuple[list[Thread], int | None, int, int]  # lanes, mask, those present, living ones


def _met_in_two_arms(incomplete: list[Incomplete]) -> Incomplete | None:
    """Two ``syncwarp`` of a warp, one in each arm of an ``if``, are one barrier since compute
    capability 7.0, if together they have all lanes of the mask."""
    for one, other in combinations(incomplete, 2):
        (lanes, mask, present, living), (others, its_mask, its_present, _) = one, other
        requests = lanes[0].request, others[0].request
        if (
            {request.kind for request in requests} == {"syncwarp"}
            and lanes[0].number // WARP == others[0].number // WARP
            and mask == its_mask
            and not (mask or 0) & living & ~(present | its_present)
            and in_two_arms(*(request.site for request in requests))
        ):
            return lanes + others, mask, present | its_present, living
    return None


def _apart(one: Place, other: Place) -> tuple[str, int, int]:
    """What parts two threads that wait at barriers, and a site of each."""
    (sites, loops), (other_sites, other_loops) = one, other
    if sites == other_sites:
        first, second = next(two for two in zip(loops, other_loops, strict=True) if len({*two}) > 1)
        what = f"this barrier in iterations {first} and {second} of a loop around it"
        return f"threads of one block wait at {what}", sites[0], sites[0]
    if sites[0] != other_sites[0]:
        return "threads of one block wait at two different barriers", sites[0], other_sites[0]
    callers = zip(sites[::-1], other_sites[::-1], strict=False)
    mine, its = next(two for two in callers if len({*two}) > 1)
    return "threads of one block wait at one barrier in two calls of its function", mine, its


Brought = dict[int, Any]  # what each lane brings to a call


def _product(brought: Brought) -> Brought:
    """What the tensor cores give to the threads of a warpgroup, each warp by itself."""
    results: Brought = {}
    for first in range(0, WARPGROUP, WARP):
        lanes = {lane: brought[first + lane] for lane in range(WARP) if first + lane in brought}
        if lanes:
            results |= {first + lane: numbers for lane, numbers in warp_product(lanes).items()}
    return results


def _same_for_all(compute: Callable[[Brought], Any]) -> Callable[[Brought], Brought]:
    return lambda brought: dict.fromkeys(brought, compute(brought))


def _yields(thread: Thread) -> bool:
    request = thread.request
    return request.__class__ is Request and request.kind == YIELD


def _bits(lanes: Iterable[int]) -> int:
    return sum(1 << lane for lane in lanes)


def _equal(brought: Brought) -> bool:
    return len(set(brought.values())) == 1


# What each lane gets of what all of them bring, by the name of the call.
CALLS: dict[str, Callable[[Brought], Brought]] = {
    "syncwarp": dict.fromkeys,
    "activemask": _same_for_all(_bits),
    "ballot_sync": _same_for_all(lambda b: _bits(lane for lane in b if b[lane])),
    "all_sync": _same_for_all(lambda b: all(b.values())),
    "any_sync": _same_for_all(lambda b: any(b.values())),
    "eq_sync": _same_for_all(_equal),
    "match_all_sync": _same_for_all(lambda b: (_bits(b), True) if _equal(b) else (0, False)),
    "match_any_sync": lambda b: {
        lane: _bits(other for other in b if b[other] == value) for lane, value in b.items()
    },
    MMA: lambda b: warp_mma(b),
    PRODUCT: _product,
    PRODUCT_DONE: dict.fromkeys,
}


def _lanes(mask: int) -> str:
    """``lanes 16-31``, ``lane 3``."""
    lanes = [lane for lane in range(mask.bit_length()) if mask >> lane & 1]
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    if len(lanes) == lanes[-1] + 1 - lanes[0]:
        return f"lanes {lanes[0]}-{lanes[-1]}"
    return f"lanes {', '.join(map(str, lanes))}"
