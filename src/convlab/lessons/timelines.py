"""Timelines of a thread: when it requests numbers, gets them, multiplies, and waits.

An event log lists what one thread of the first block does, instruction by instruction, on the
strict simulator. It has no times. It shows how much a thread does between a load and the use of its
value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from convlab.ladder import Launch, Tile
from convlab.lessons.exercises import PICTURE_SECONDS, ready_for
from convlab.lessons.feedback import ANSWER, AS_FEW, COUNTS, Feedback, Mistake, Row
from convlab.lessons.limits import Stopped, graded, running
from convlab.lessons.pictures import COLOURS, FAINT, INK, PAPER, Grid, Picture, joined
from convlab.lessons.stage_checks import check
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.simulation.launch import RecordedLaunch, SimulatedLaunch
from convlab.simulation.recording.access_log import GLOBAL, ISSUED, LANDED, WIDE, WRITE
from convlab.simulation.rules.coordinates import three
from convlab.simulation.rules.memory_traffic import Requests

ASK, ARRIVE, READ, MULTIPLY, BARRIER = "ask", "arrive", "read", "multiply", "barrier"
# One block, one warp, four slices of K_B = 8 without remainders: what an event log is kept of.
SMALL = ConvProblem(1, 8, 5, 9, 16, 2)
SMALL_TILE = Tile(M_B=16, N_B=32, K_B=8, M_T=4, N_T=4)
AFTER = ("bias", "output")  # what a kernel touches once its sums are complete
ACROSS = 24.5  # boxes that the longest timeline takes
RACE = "shared race"
BELOW = "what thread 0 does, first to last"


@dataclass
class EventLog:
    """The events of one thread, in order, on ``slices`` of ``steps`` terms each.

    Each event has one of the words above, and its address in shared memory or 0. A multiplication
    and the addition after it are one event.
    """

    slices: int
    steps: int
    what: np.ndarray
    address: np.ndarray

    def times(self, what: str) -> np.ndarray:
        """Return the positions of the events of a kind."""
        return np.flatnonzero(self.what == what)

    def by_slice(self, what: str) -> np.ndarray:
        """Return the positions of the events of a kind, a row for each slice."""
        times = self.times(what)
        each = len(times) // self.slices
        return times[: self.slices * each].reshape(self.slices, each)

    def flights(self) -> list[tuple[int, int]]:
        """Return for each slice the positions of its first request and of its last arrival."""
        asked, came = self.by_slice(ASK)[:, 0], self.by_slice(ARRIVE)[:, -1]
        return list(zip(asked.tolist(), came.tolist(), strict=True))

    def buffers(self) -> int:
        """Return how many places in shared memory slices are stored to."""
        came = self.by_slice(ARRIVE)
        return len(np.unique(self.address[came[:, 0]])) if came.size else 0

    def meanwhile(self) -> float:
        """Return the mean number of multiplications between a number's request and its arrival.

        The first slice does not count, because there is nothing to multiply while it arrives.
        """
        done, asked, came = self.times(MULTIPLY), self.by_slice(ASK)[1:], self.by_slice(ARRIVE)[1:]
        if not asked.size:
            return 0.0
        numbers, arrivals = asked.shape[1], came.shape[1]
        # One request for four numbers brings four.
        came = came[:, np.arange(1, numbers + 1) * arrivals // numbers - 1]
        return float(np.mean(np.searchsorted(done, came) - np.searchsorted(done, asked)))

    def steps_ahead(self) -> float:
        """Return how many steps before their multiplication operands are read, on average."""
        reads, done = self.times(READ), self.times(MULTIPLY)
        total = self.slices * self.steps
        wanted = np.arange(len(reads)) * total // len(reads)
        return float(np.mean(wanted - np.searchsorted(done, reads) * total // len(done)))


class _EventRecorder(Counter[int]):
    """A recorder of a launch (:class:`convlab.simulation.launch.Recorder`) that notes the number of
    accesses before each of thread 0's barriers and operations. It sees operations because it counts
    them in the launch's place."""

    loads_of: Mapping[tuple[str, int], int] = {}

    def __init__(self, main: Launch, arrays: list[Any]) -> None:
        super().__init__()
        self.barriers: list[int] = []
        self.operations: list[int] = []
        self.columns: Any = None
        self.launch = SimulatedLaunch(
            main.kernel,
            grid=three(main.grid, "grid"),
            block=three(main.block, "block"),
            arguments=tuple(arrays),
            strict=False,
            recorder=self,
        )
        assert self.launch.arithmetic is not None
        assert self.launch.log is not None
        self.launch.arithmetic.operations = self
        self.log = self.launch.log
        self.after = [span for span in self.log.spans if span.name in AFTER]
        self.launch.run()

    def barrier(self, site: int, threads: int) -> None:
        if self.launch.clock.block_number == 0:
            self.barriers.append(len(self.log.addresses))

    def __setitem__(self, site: int, count: int) -> None:
        if (self.launch.clock.block_number, self.launch.clock.thread) == (0, 0):
            self.operations.append(len(self.log.addresses))
        super().__setitem__(site, count)

    def look(self, launch: RecordedLaunch, requests: Requests) -> None:
        if self.columns is None:
            self.columns = self.log.columns()

    def end(self, launch: RecordedLaunch, operations: Mapping[int, int]) -> None:
        """End the recording: nothing more is noted."""


def event_log(stage: str, made: Any = None) -> EventLog:
    """Return the events of thread 0 of a stage's main kernel on a small problem of four slices.

    ``made`` is a learner's function in the place of the stage's, as for
    :func:`convlab.lessons.traced`.
    """
    with running(seconds=PICTURE_SECONDS):
        main, arrays = ready_for(made, stage, SMALL, SMALL_TILE, random_tensors(SMALL, 0))
        recorder = _EventRecorder(main, arrays)
    columns = recorder.columns
    found: list[tuple[float, str, int]] = [(at - 0.5, BARRIER, 0) for at in recorder.barriers]
    # A product and the addition that follows it are two operations, one instruction.
    found += [(at - 0.25, MULTIPLY, 0) for at in recorder.operations[::2]]
    copies = bool((columns.kind & ISSUED != 0).any())
    end = len(columns.address)
    for at in np.flatnonzero((columns.thread == 0) & (columns.kind & WIDE == 0)).tolist():
        address, kind = int(columns.address[at]), int(columns.kind[at])
        at = int(columns.position[at])
        if any(span.start <= address < span.end for span in recorder.after):
            end = at
            break
        if address < GLOBAL and not kind & ISSUED:
            arrives = kind & LANDED or kind & 3 == WRITE
            found.append((at, ARRIVE if arrives else READ, address))
        elif address < GLOBAL or not copies:
            found.append((at, ASK, address if address < GLOBAL else 0))
    found = sorted(one for one in found if one[0] < end)
    _, what, addresses = map(np.array, zip(*found, strict=True))
    return EventLog(SMALL.K // SMALL_TILE.K_B, SMALL_TILE.K_B, what, addresses)


def timeline(**logs: EventLog) -> Picture:
    """Draw event logs below each other.

    They show when each slice is in flight, when the thread multiplies it, and where the thread
    waits at barriers.
    """
    event = ACROSS / max(len(one.what) for one in logs.values())
    grid, told = Grid(0.25), []
    for place, (name, one) in enumerate(logs.items()):
        top = place * 5.0
        grid.note(-4.5, top, name, 11, weight="bold")
        for row, text in enumerate(("slice is in flight", "slice is multiplied"), 1):
            grid.note(-0.3, top + row * 1.2, text, 7.5, ha="right")
        barriers = (event * (one.times(BARRIER) + 0.5)).tolist()
        flights, work = one.flights(), one.by_slice(MULTIPLY)
        overlap = any(came > later for (_, came), (later, _) in pairwise(flights))
        for number, (flight, worked) in enumerate(zip(flights, work, strict=True)):
            high, level = (0.5, number % 2 * 0.5) if overlap else (1, 0)
            bars = [(*flight, top + 0.7 + level, high)]
            bars += [(worked[0], worked[-1], top + 1.9, 1)] if len(worked) else []
            for first, last, y, high in bars:
                start, end = event * first, event * (last + 1)
                grid.cell(start, y, COLOURS[number % len(COLOURS)], wide=end - start, high=high)
                # The number, in the middle of the longest piece that barriers leave of the bar.
                ends = [start, *(line for line in barriers if start < line < end), end]
                left, right = max(pairwise(ends), key=lambda piece: round(piece[1] - piece[0], 2))
                grid.note((left + right) / 2, y + high / 2, str(number), 8, ha="center")
        for line in barriers:
            grid.cell(line - 0.04, top + 0.5, INK, wide=0.08, high=2.6, edge=INK)
        grid.cell(0, top + 3.1, FAINT, wide=event * len(one.what), high=0.03, edge=FAINT)
        told.append(
            f"{name} does {one.meanwhile():.0f} multiply-adds between a request and the use of its "
            f"data, and waits at {len(barriers)} barriers"
        )
    grid.note(0, 5.0 * len(logs) - 1.3, BELOW, 8, colour=FAINT)
    caption = f"""What thread 0 does, as the simulator ran it: a box with a number is a slice, a
        black line a barrier. A slice is in flight from its request until it lies in shared memory.
        {"; ".join(told)}. The picture has no seconds: on a GPU a load has a latency of several
        hundred cycles."""
    return grid.finished(f"Timelines of thread 0. {'; '.join(told)}.", caption)


def pipeline_stages(one: EventLog) -> Picture:
    """Draw the slice in each stage of the pipeline over time.

    Raises ``ValueError`` unless the event log's slices come by asynchronous copies.
    """
    firsts = one.address[one.by_slice(ASK)[:, 0]].tolist()
    places = sorted(set(firsts))
    if len(places) < 2:
        raise ValueError("the event log has no asynchronous copies into several stages")
    event = ACROSS / len(one.what)
    grid, told = Grid(0.27), []
    flights, work = one.flights(), one.by_slice(MULTIPLY)
    for number, (asked, came) in enumerate(flights):
        stage, colour = places.index(firsts[number]), COLOURS[number % len(COLOURS)]
        first, last = work[number][[0, -1]].tolist()
        of_flight, of_work = (event * (came + 1 - asked), event * (last + 1 - first))
        grid.cell(event * asked, 1.3 * stage, PAPER, wide=of_flight, hatched=True, edge=colour)
        grid.cell(event * first, 1.3 * stage, colour, str(number), wide=of_work, size=8)
        told.append(f"slice {number} comes into stage {stage}")
    for place in range(len(places)):
        grid.note(-0.3, place * 1.3 + 0.5, f"stage {place}", 8, ha="right")
    grid.note(0, 1.3 * len(places) + 0.3, BELOW, 8, colour=FAINT)
    done = one.times(MULTIPLY)
    flying = np.array([(asked <= done) & (done <= came) for asked, came in flights[1:]])
    caption = f"""Each line is a stage of the pipeline in shared memory. In a hatched box a slice is
        in flight into the stage; in a coloured box with its number the thread multiplies it. Slices
        in flight while others are multiplied: at most {flying.sum(axis=0).max()}."""
    return grid.finished(f"The stages of the pipeline: {'; '.join(told)}", caption)


@graded
def check_prefetch(made: Any, stage: str, **options: Any) -> Feedback:
    """Check a kernel as :func:`convlab.lessons.check` does, and how much it does during loads."""
    found = check(made, stage, **options)
    if not found.passed:
        return _with_buffers(found, made, stage)
    yours, ours = event_log(stage, made), event_log(stage)
    pairs = {
        "multiply-adds while a slice is in flight": (yours.meanwhile(), ours.meanwhile()),
        "steps read ahead": (yours.steps_ahead(), ours.steps_ahead()),
    }
    rows = [
        Row(unit, round(mine, 2), round(least, 2), mine >= least / AS_FEW)
        for unit, (mine, least) in pairs.items()
    ]
    found = replace(found, rows=(*found.rows, *rows))
    few = [row for row in rows if not row.ok]
    if not few:
        return found
    told = " and ".join(f"{row.yours:.3g} {row.unit} (the stage: {row.target:.3g})" for row in few)
    what = f"Only {told}: the thread waits for data that it has just requested."
    name = getattr(made, "__name__", "make_kernel")
    shows = f"timeline(ours=event_log({stage!r}), yours=event_log({stage!r}, {name}))"
    mistake = Mistake(COUNTS, what, advice=f"The picture shows it: {shows}.")
    headline = "Right, but not there yet: the thread waits where it could multiply."
    return replace(found, headline=headline, mistakes=(mistake,))


def _with_buffers(found: Feedback, made: Any, stage: str) -> Feedback:
    """Return the feedback on a kernel with a race. If its slices lie in fewer buffers than the
    stage's, this is told instead of a missing barrier, unless barriers are missing, too."""
    reasons = set(found.reasons)
    if RACE not in reasons or not reasons <= {RACE, ANSWER}:
        return found
    try:
        yours, ours = event_log(stage, made), event_log(stage)
    except Stopped:  # it cannot run on this problem: the feedback says enough
        return found
    waits, wanted = (len(one.times(BARRIER)) for one in (yours, ours))
    if not 0 < yours.buffers() < ours.buffers() or waits < wanted:
        return found
    only = "the same buffer" if yours.buffers() == 1 else f"{yours.buffers()} buffers"
    advice = joined(f"""The barriers are enough for {ours.buffers()} buffers, but all slices are
        stored to {only} of shared memory: each slice is stored over one that other threads still
        multiply. Let the place that a slice is stored to change from slice to slice.""")
    mistakes = tuple(
        replace(one, advice=advice) if one.reason == RACE else one for one in found.mistakes
    )
    return replace(found, mistakes=mistakes)
