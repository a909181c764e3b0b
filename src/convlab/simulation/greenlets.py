"""Runs the threads of a block as greenlets: each on its own until it waits for others.

Deterministic: threads run in order of their number, and a round ends when all wait or are done.
Then the threads whose call is complete continue. A warp's call is complete when all lanes that its
mask names and that still live have come to the same instruction; a block's barrier when all living
threads have come to one. A call that can never be complete is a finding; its threads then continue
without the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from greenlet import greenlet

from convlab.device.products import warp_mma, warp_product
from convlab.simulation.access_log import WARP
from convlab.simulation.findings import Coordinates
from convlab.simulation.simulated_cuda import MMA, PRODUCT, PRODUCT_DONE, Request

Complain = Callable[..., None]  # kind, what, site, thread, perhaps another site


@dataclass(slots=True, eq=False)
class Thread:
    """A CUDA thread: its number in the block, its index in the block, and what it waits for."""

    number: int
    index: Coordinates
    greenlet: Any
    request: Any = None
    result: tuple[Any, ...] = ()

    @property
    def lane(self) -> int:
        """The thread's number in its warp, 0 to 31."""
        return self.number % WARP

    def waits_for(self) -> Request:
        """The request; that of a plain ``syncthreads()`` is made from where the thread stands."""
        if not isinstance(self.request, Request):
            frame = self.greenlet.gr_frame
            self.request = Request("syncthreads", id(frame.f_code) + frame.f_lasti)
        return self.request


class Block:
    """The threads of one block. ``enter(number, index)`` is called before each switch to one.

    ``on_barrier(threads, site)`` hears how many threads each barrier lets go on and where it is,
    ``on_warp_barrier`` which ones, and whether those are all of their warp that live.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        arguments: tuple[Any, ...],
        indices: Iterable[Coordinates],
        enter: Callable[[int, Coordinates], None],
        on_barrier: Callable[[int, int], None],
        on_warp_barrier: Callable[[list[int], bool], None],
        complain: Complain | None,
    ) -> None:
        self._enter, self._complain = enter, complain
        self.on_barrier, self.on_warp_barrier = on_barrier, on_warp_barrier
        self._threads = [
            Thread(number, index, greenlet(body)) for number, index in enumerate(indices)
        ]
        self._size = len(self._threads)
        self._arguments = arguments

    def run(self) -> None:
        """Run all threads to their end."""
        for thread in self._threads:
            thread.result = self._arguments
        ready: list[Thread] = self._threads
        waiting: list[Thread] = []
        enter = self._enter
        while ready:
            plain = not waiting
            for thread in ready:
                enter(thread.number, thread.index)
                thread.request = thread.greenlet.switch(*thread.result)
                if not thread.greenlet.dead:
                    waiting.append(thread)
                    if thread.request != ():
                        plain = False
            if plain and waiting and self._all_at_one(waiting):
                site = waiting[0].waits_for().site
                ready, waiting = waiting, []
                for thread in ready:
                    thread.result = ()
                self.on_barrier(len(ready), site)
            else:
                ready, waiting = self._who_goes_on(waiting)

    def _all_at_one(self, waiting: list[Thread]) -> bool:
        """Whether threads that all wait at a plain barrier may pass: the usual case, made quick."""
        if self._complain is None:
            return True
        if len(waiting) < self._size:
            return False
        first = waiting[0].greenlet.gr_frame
        code, offset = first.f_code, first.f_lasti
        for thread in waiting:
            frame = thread.greenlet.gr_frame
            if frame.f_lasti != offset or frame.f_code is not code:
                return False
        return True

    def _who_goes_on(self, waiting: list[Thread]) -> tuple[list[Thread], list[Thread]]:
        """The threads that may continue, with their results, and the threads that still wait."""
        if not waiting:
            return [], []
        waiting.sort(key=lambda thread: thread.number)
        going: list[Thread] = []
        at_barrier: list[Thread] = []
        calls: dict[tuple[Any, ...], list[Thread]] = defaultdict(list)
        for thread in waiting:
            request = thread.waits_for()
            if request.kind == "yield":
                thread.result = (None,)
                going.append(thread)
            elif request.kind.startswith("syncthreads"):
                at_barrier.append(thread)
            else:
                size = request.together
                key = size, thread.number // size, request.kind, request.site, request.mask
                calls[key].append(thread)
        for (size, which, _, _, mask), threads in calls.items():
            present = living = _bits_of(threads, size)
            if len(threads) < size:
                living = _bits_of([t for t in waiting if t.number // size == which], size)
            if mask is None or not mask & living & ~present:
                going += self._call(threads, mask, present, living)
        if not going and calls:  # they wait for lanes that will never come
            (size, which, _, _, mask), threads = next(iter(calls.items()))
            living = _bits_of([t for t in waiting if t.number // size == which], size)
            going = self._call(threads, mask, _bits_of(threads, size), living)
        if not going:
            going = self._barrier(at_barrier)
        gone = {thread.number for thread in going}
        going.sort(key=lambda thread: thread.number)
        return going, [thread for thread in waiting if thread.number not in gone]

    def _barrier(self, threads: list[Thread]) -> list[Thread]:
        kind = threads[0].request.kind
        if self._complain is not None:
            self._check_barrier(threads)
        values = [bool(thread.request.value) for thread in threads]
        result = {"count": sum(values), "and": all(values), "or": any(values)}
        for thread in threads:
            thread.result = (int(result.get(kind.removeprefix("syncthreads_"), 0)),)
        self.on_barrier(len(threads), threads[0].request.site)
        return threads

    def _check_barrier(self, threads: list[Thread]) -> None:
        assert self._complain is not None
        first = threads[0].request
        other = next((t for t in threads if t.request.site != first.site), None)
        if other is not None:
            what = "threads of one block wait at two different barriers"
            where = other.number, other.request.site
            self._complain("barrier divergence", what, first.site, *where)
        elif len(threads) < self._size:
            ended = self._size - len(threads)
            what = f"{ended} of {self._size} threads ended before this barrier"
            gone = {thread.number for thread in threads}
            one = next(number for number in range(self._size) if number not in gone)
            self._complain("barrier divergence", what, first.site, one)

    def _call(
        self, threads: list[Thread], mask: int | None, bits: int, living: int
    ) -> list[Thread]:
        """Carry out what the lanes of a warp, or the threads of a warpgroup, asked for together."""
        request = threads[0].request
        kind, size = request.kind, request.together
        present = {thread.number % size: thread for thread in threads}
        brought = {lane: thread.request.value for lane, thread in present.items()}
        if mask is not None and self._complain is not None:
            self._check_call(threads, mask, bits, living)
        if kind == "syncwarp":
            self.on_warp_barrier([thread.number for thread in threads], bits == living)
        if kind.startswith("shfl"):
            results = {lane: self._shuffled(thread, present) for lane, thread in present.items()}
        else:
            results = CALLS[kind](brought)
        for lane, thread in present.items():
            thread.result = (results[lane],)
        return threads

    def _check_call(self, threads: list[Thread], mask: int, present: int, living: int) -> None:
        """Lanes that have ended are excused from ``syncwarp``, as by CUDA; not from what reads
        their numbers. A tensor core needs those too that a small block does not have."""
        assert self._complain is not None
        first, request = threads[0], threads[0].request
        there = (1 << min(self._size - first.number // WARP * WARP, WARP)) - 1
        if request.kind == "syncwarp":
            there = living
        if request.kind in (MMA, PRODUCT, PRODUCT_DONE):
            there = mask
        if absent := mask & there & ~present:
            what = f"{request.kind} names {_lanes(absent)} in its mask, which never come to it"
            if request.kind == MMA:
                what = f"{MMA} needs the whole warp, but {_lanes(absent)} never come to it"
            if request.kind in (PRODUCT, PRODUCT_DONE):
                who = _lanes(absent).replace("lane", "thread")
                what = f"{request.kind} needs the whole warpgroup, but its {who} never come to it"
            self._complain("inactive lane", what, request.site, first.number)
        if strangers := present & ~mask:
            what = f"{request.kind} is called by {_lanes(strangers)}, which its mask does not name"
            outside = next(thread for thread in threads if strangers >> thread.lane & 1)
            self._complain("inactive lane", what, request.site, outside.number)

    def _shuffled(self, thread: Thread, present: dict[int, Thread]) -> Any:
        value, source = thread.request.value
        if source < 0:  # beyond the warp's end: one's own
            return value
        if source not in present:
            if self._complain is not None:
                what = f"{thread.request.kind} reads lane {source}, which does not take part"
                site = thread.request.site
                self._complain("inactive lane", what, site, thread.number)
            return value
        return present[source].request.value[0]


def _product(brought: dict[int, Any]) -> dict[int, Any]:
    """What the tensor cores give to the threads of a warpgroup, each warp by itself."""
    results: dict[int, Any] = {}
    for first in range(0, 4 * WARP, WARP):
        lanes = {lane: brought[first + lane] for lane in range(WARP) if first + lane in brought}
        if lanes:
            results |= {first + lane: numbers for lane, numbers in warp_product(lanes).items()}
    return results


def _same_for_all(compute: Callable[[dict[int, Any]], Any]) -> Callable[..., dict[int, Any]]:
    return lambda brought: dict.fromkeys(brought, compute(brought))


def _bits_of(threads: list[Thread], size: int) -> int:
    """A bit for each of these threads of one warp, or of one warpgroup: ``size`` has all of it."""
    if len(threads) == size:
        return (1 << size) - 1
    return _bits(thread.number % size for thread in threads)


def _bits(lanes: Iterable[int]) -> int:
    return sum(1 << lane for lane in lanes)


def _equal(brought: dict[int, Any]) -> bool:
    return len(set(brought.values())) == 1


# What each lane gets of what all of them bring, by the name of the call.
CALLS: dict[str, Callable[[dict[int, Any]], dict[int, Any]]] = {
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
    MMA: lambda brought: warp_mma(brought),
    PRODUCT: _product,
    PRODUCT_DONE: dict.fromkeys,
}


def _lanes(mask: int) -> str:
    """``lanes 16-31``, ``lane 3``."""
    lanes = [lane for lane in range(mask.bit_length()) if mask >> lane & 1]
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    if lanes == list(range(lanes[0], lanes[-1] + 1)):
        return f"lanes {lanes[0]}-{lanes[-1]}"
    return f"lanes {', '.join(map(str, lanes))}"
