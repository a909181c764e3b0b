"""Collects the findings of a launch: puts into words what the rules of the log have found.

The sentence of a race is in :mod:`convlab.simulation.rules.race_sentences`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from convlab.simulation.recording.access_log import (
    ATOMIC,
    GLOBAL,
    LANDED,
    READ,
    WRITE,
    AccessLog,
    LaunchClock,
)
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.conflicts import Conflict
from convlab.simulation.rules.coordinates import Coordinates, coordinates_of
from convlab.simulation.rules.dynamic_memory import Aliased
from convlab.simulation.rules.finding_words import (
    ALIASED,
    BLOCKS_TOO,
    BLOCKS_TOO_OF_COOPERATIVE,
    IN_A_CALL,
    NO_BARRIER,
    NO_ORDER,
    NOT_FILLED,
    SAME_WARP,
)
from convlab.simulation.rules.findings import (
    ALWAYS,
    FATAL,
    Finding,
    FindingKey,
    Stop,
    error_of,
    reaches_past_end,
)
from convlab.simulation.rules.parted_threads import PartedThreads, words_and_cause
from convlab.simulation.rules.race_sentences import DOES, RaceSentences
from convlab.simulation.rules.remedies import names_barrier

_DONE = {READ: "read", WRITE: "written", ATOMIC: "updated"}
_BY_PRODUCT = READ + LANDED
RaceLines = tuple[frozenset[tuple[str, int]], str]  # with the name of the array


class Named(Protocol):
    """An array of a kernel, as far as a finding names it."""

    @property
    def name(self) -> str:
        """The array's name in the kernel."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""


class Reports:
    """The findings of one launch: one for each kind, array and pair of lines; two where a line's
    index is negative in some threads and past the end in others."""

    def __init__(
        self,
        kernel: str,
        grid: Coordinates,
        block_shape: Coordinates,
        strict: bool,
        clock: LaunchClock,
    ) -> None:
        self.sites = Sites(())
        self.order = ""  # in words, where it is not the usual one
        self.seed: int | None = None  # of the order, if it is a seeded one
        # Returns the words about a narrow counter of the loop at a site.
        self.counter_at: Callable[[int], str] = lambda site: ""
        self.syncs_warps = False  # whether the kernel calls syncwarp
        self.syncs_grid = False  # whether the kernel waits for the whole grid
        self._kernel, self._strict, self._clock = kernel, strict, clock
        self._grid, self._block_shape = grid, block_shape
        self._found: dict[FindingKey, Finding] = {}
        self._parted = PartedThreads()
        self._sentences: RaceSentences | None = None
        # The lines and arrays of races between threads of a block, and of those between blocks that
        # nothing orders.
        self._within: set[RaceLines] = set()
        self._across: set[RaceLines] = set()

    def add(
        self,
        kind: str,
        what: str,
        site: int,
        thread: int | None,
        other: int | None = None,
        *,
        ends: bool = False,
        block: Coordinates | None = None,
        array: str | None = None,
        index: tuple[int, ...] | None = None,
        shape: tuple[int, ...] | None = None,
        other_line: int | None = None,
        other_file: str | None = None,
        callers: Sequence[int] = (),
        iterations: Sequence[int] = (),
    ) -> None:
        """Note a finding of the thread with that number, in its block or in the launch.

        ``thread`` is None if the launch cannot begin. ``other`` is the other site, unless its file
        and line are given. ``block`` is the one that runs, if it is not given. A finding that
        ``ends`` the launch is noted without strict checks too. ``callers`` are the site of a
        barrier and those of the calls that lead to it, ``iterations`` those of the loops around it.
        """
        if not (self._strict or ends or kind in ALWAYS):
            return
        file, line = self.sites.line(site)
        second = (None, None) if other is None else self.sites.line(other)
        # A negative index and one past the end have causes of their own, in one line too.
        key = kind, file, line, *second, array, reaches_past_end(index, shape)
        if (known := self._found.get(key)) is not None:
            if SAME_WARP not in known.what or SAME_WARP in what:
                self._found[key] = replace(known, count=known.count + 1)
                return
        if kind == "barrier divergence":
            what, cause = words_and_cause(
                sites=self.sites,
                what=what,
                site=site,
                other=other,
                callers=callers or [site],
                iterations=iterations,
            )
            first = self._parted.note_barrier(key, cause, line)
            if first != key:  # what parts the threads here has parted them at another barrier
                self._found[first] = replace(self._found[first], count=self._found[first].count + 1)
                return
        if kind == "endless loop" and (counter := self.counter_at(site)):
            what += f": {counter}"
        if called := self.sites.called_from(site):
            what += f"{IN_A_CALL}{called}"
        if thread is not None and block is None:
            block = self.block(self._clock.block_number)
        self._found[key] = Finding(
            kind=kind,
            kernel=self._kernel,
            file=file,
            line=line,
            what=what,
            other_line=second[1] if other_line is None else other_line,
            other_file=second[0] if other_file is None else other_file,
            block=block,
            thread=None if thread is None else self.thread(thread),
            array=array,
            index=index,
            shape=shape,
            count=1 if known is None else known.count + 1,
        )

    def of_array(
        self,
        kind: str,
        what: str,
        site: int,
        array: Named,
        index: tuple[int, ...] | None,
        goes_on: bool = False,
    ) -> None:
        """Note a finding of the thread that runs, and end the launch if it must."""
        self.add(
            kind,
            what,
            site,
            self._clock.thread,
            array=array.name,
            index=index,
            shape=tuple(array.shape),
        )
        if kind in FATAL and not goes_on:
            raise Stop

    def conflict(self, conflict: Conflict, log: AccessLog) -> None:
        """Note a race, an uninitialised read, or an access to the target of a copy in flight."""
        kind, first, second, _ = conflict
        shown = second or first
        span = log.span_at(first.address)
        index, _ = span.split(first.address)
        element = f"{span.name}[{', '.join(map(str, index))}]"
        who = f"thread {self.thread(first.thread)}"
        if second is None:
            what = f"{element} is read before anything in this block wrote to it"
            if first.address >= GLOBAL:
                what = f"{element} {NOT_FILLED}"
        elif kind == "not fenced":
            what = f"{who}, which wrote it, has not fenced it"
            what = f"{element} is read by tensor cores, but {what}"
        elif kind == "copy in flight":
            what = f"{element} is {_DONE[second.kind]} while {who}'s copy to it is in flight"
        elif first.kind == _BY_PRODUCT:
            what = f"{element} is {_DONE[second.kind]} while tensor cores may read it: no barrier"
            what += " after finish_product lies between"
        elif second.kind == _BY_PRODUCT:
            what = f"{who} {DOES[first.kind]} {element} and tensor cores read it, {NO_BARRIER}"
        else:
            what = self._sentences_of(log).sentence(conflict, element) + self.order
            lines = frozenset((self.sites.line(first.site), self.sites.line(second.site)))
            if first.block == second.block:
                self._within.add((lines, span.name))
            elif NO_ORDER in what:  # else something else helps both
                self._across.add((lines, span.name))
        self.add(
            kind,
            what,
            shown.site,
            shown.thread,
            None if second is None else first.site,
            block=self.block(shown.block),
            array=span.name,
            index=index,
            shape=span.shape,
        )

    def _sentences_of(self, log: AccessLog) -> RaceSentences:
        """Return the sentences about races of the log: the same object until the log is cleared."""
        known = self._sentences
        if known is None or known.columns is not log.columns():
            known = self._sentences = RaceSentences(
                sites=self.sites,
                log=log,
                grid=self._grid,
                block_shape=self._block_shape,
                syncs_warps=self.syncs_warps,
                syncs_grid=self.syncs_grid,
            )
        return known

    def _with_other_blocks(self, one: Finding) -> Finding:
        """Return a race within a block whose remedy is a barrier with the words that it races
        between blocks too, if it does: then the barrier is not enough."""
        lines = frozenset(((one.file, one.line), (one.other_file or "", one.other_line or 0)))
        key = lines, one.array or ""
        if key not in self._within & self._across or not names_barrier(one.kind, one.what):
            return one
        too = BLOCKS_TOO_OF_COOPERATIVE if self.syncs_grid else BLOCKS_TOO
        return replace(one, what=f"{one.what}, {too}")

    def aliased(self, found: Aliased) -> None:
        """Note that dynamic shared memory is read through another name than it was written by."""
        read, write = found.read, found.write
        who = f"thread {self.thread(write.thread)}"
        what = f"{found.element} is what {who} has written as {found.other}: every"
        what += " cuda.shared.array(0, ...) is the same memory, from its first byte on"
        self.add(
            ALIASED,
            what,
            read.site,
            read.thread,
            write.site,
            block=self.block(read.block),
            array=found.element.split("[")[0],
        )

    def block(self, number: int) -> Coordinates:
        """The coordinates of the block with that number."""
        return coordinates_of(number, self._grid)

    def thread(self, number: int) -> Coordinates:
        """The coordinates of a thread by its number, in its block or in the launch."""
        x, y, z = self._block_shape
        return coordinates_of(number % (x * y * z), self._block_shape)

    def raise_any(self, ended: bool) -> None:
        """Raise ``SimulationError`` if there are findings; ``ended`` if they ended the launch."""
        if not self._found:
            return
        for key, later in self._parted.take_later():
            one = self._found[key]
            self._found[key] = replace(one, what=f"{one.what}, {later}")
        every = map(self._with_other_blocks, self._found.values())
        found = tuple(sorted(every, key=lambda f: (f.line, f.kind)))
        if self.seed is not None:
            told = f", seen in the order of seed {self.seed}"
            found = tuple(replace(one, what=one.what + told) for one in found)
        raise error_of(found, ended)
