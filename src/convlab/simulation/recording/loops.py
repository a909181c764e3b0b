"""Iterations of loops: paths, by which lanes of a warp are known to run together, and limits.

A GPU runs the lanes of a warp together: lanes that are in the same iteration of the same loops, in
the same calls, execute an instruction at once, and wait for each other after a branch. A path is
the number of such a position. Two lanes with equal paths are in equal iterations of all loops
around them, so that one lane's third iteration is not taken for another's second. Each loop or call
on a path has a multiple of 2**32, to which a loop adds the iteration.
"""

from __future__ import annotations

import builtins
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from convlab.simulation.recording.access_log import ITERATION_BITS, AccessLog
from convlab.simulation.recording.instructions import iterated_site, site_of

ResultT = TypeVar("ResultT")
UNLIMITED = 1 << 62  # iterations: no kernel runs as many


class EndlessLoop(RuntimeError):
    """A loop that goes on when all iterations are used up: its site, its line of the source, and
    how many iterations it has had in one thread."""

    def __init__(self, site: int, iterations: int) -> None:
        super().__init__(site, iterations)
        self.site, self.iterations, self.code = site, iterations, ""

    def __str__(self) -> str:
        return f"the loop `{self.code}` does not end: a thread is in iteration {self.iterations:,}"


class Loops:
    """Counts the iterations of all loops, by all threads of any launches. ``left`` may be run. When
    these are used up, ``more`` is called with the number of iterations that it has added so far,
    and returns how many may be run in addition, zero where no more may. An iteration too many is an
    error, or a finding if it ``finds``."""

    def __init__(
        self,
        left: int = UNLIMITED,
        finds: bool = False,
        more: Callable[[int], int] | None = None,
        added: int = 0,
    ) -> None:
        self.left, self.limit, self.finds = left, left, finds
        self._more, self._added = more, added
        self._running: dict[int, list[int]] = {}  # site and iterations, by the list's id

    def afresh(self, finds: bool | None = None) -> Loops:
        """Return a count of its own of the iterations that are left here now. Too many are a
        finding there if it ``finds``, by default as here."""
        return Loops(
            self.left,
            finds=self.finds if finds is None else finds,
            more=self._more,
            added=self._added,
        )

    def range(self, *bounds: int) -> Loop | Iterator[int]:
        """The ``range`` of a kernel whose loops are counted: an iterator where a ``for`` runs
        through it."""
        site, iterated = iterated_site(sys._getframe(1))
        steps = builtins.range(*bounds)
        return self.run(site, steps) if iterated else Loop(self, site, steps)

    def endless(self, steps: Iterable[int], site: int) -> Loop:
        """The steps of a ``while`` loop, which
        :mod:`convlab.simulation.language.rewritten_code` compiles as a ``for`` loop."""
        return Loop(self, site, steps)

    def call(self, function: Callable[..., ResultT]) -> Callable[..., ResultT]:
        """Return the function that a kernel calls for a device function."""
        return function

    def run(self, site: int, steps: Iterable[int]) -> Iterator[int]:
        """Give the steps of one loop of one thread. When none is left, the loop at fault is the one
        with the most iterations, which may be a loop around this one."""
        turn = [site, 0]
        self._running[id(turn)] = turn
        try:
            for step in steps:
                turn[1] += 1
                self.left -= 1
                if self.left < 0 and not self._extended():
                    raise EndlessLoop(*max(self._running.values(), key=lambda turn: turn[1]))
                yield step
        finally:  # after `break` and `return` too
            del self._running[id(turn)]

    def _extended(self) -> bool:
        """Add the iterations that ``more`` returns. Return True if the one that has just begun may
        be run."""
        if self._more is not None:
            more = self._more(self._added)
            self._added += more
            self.left += more
            self.limit += more
        return self.left >= 0


class Paths(Loops):
    """The paths of a launch's threads. ``log.path`` is the path of the thread that runs; ``loops``
    counts iterations, if it is given."""

    def __init__(self, log: AccessLog, loops: Loops | None) -> None:
        self._loops = loops
        self._log = log
        log.keeps_paths = True
        self._thread = 0
        self._of: dict[int, int] = defaultdict(int)  # by thread of the launch
        numbers = itertools.count(1 << ITERATION_BITS, 1 << ITERATION_BITS)
        # The first path of a loop or call, by the path around it and its site.
        self._inner: dict[tuple[int, int], int] = defaultdict(lambda: next(numbers))
        # The same by all sites of an instruction. In `_inner` one of them stands for all, which
        # takes time to find (:func:`~convlab.simulation.recording.instructions.instruction`).
        self._known: dict[tuple[int, int], int] = {}  # of calls
        self._loops_at: dict[tuple[int, int], tuple[int, int]] = {}  # of loops, with that one site

    def enter(self, thread: int) -> None:
        """Switch to the path of a thread, which runs from here on."""
        self._of[self._thread] = self._log.path
        self._thread = thread
        self._log.path = self._of[thread]

    def call(self, function: Callable[..., ResultT]) -> Callable[..., ResultT]:
        """Return the device function on a path of its own for each place that calls it."""
        log, inner, known, getframe = self._log, self._inner, self._known, sys._getframe

        def called(*arguments: object) -> ResultT:
            outer, frame = log.path, getframe(1)
            here = outer, id(frame.f_code) + frame.f_lasti
            try:
                log.path = known[here]
            except KeyError:
                log.path = known[here] = inner[outer, site_of(1)]
            try:
                return function(*arguments)
            finally:
                log.path = outer

        return called

    def range(self, *bounds: int) -> Loop | Iterator[int]:
        """The ``range`` of a kernel: an iterator where a ``for`` runs through it."""
        frame = sys._getframe(1)
        here = self._log.path, id(frame.f_code) + frame.f_lasti
        steps = builtins.range(*bounds)
        if (known := self._loops_at.get(here)) is None:
            site, iterated = iterated_site(frame)
            if not iterated:
                return Loop(self, site, steps)
            known = self._loops_at[here] = self._inner[self._log.path, site], site
        return self._noted(*known, steps)

    def run(self, site: int, steps: Iterable[int]) -> Iterator[int]:
        """Give the steps of one loop of one thread, and note its iterations."""
        return self._noted(self._inner[self._log.path, site], site, steps)

    def _noted(self, first: int, site: int, steps: Iterable[int]) -> Iterator[int]:
        """Give the steps of the loop at a site, each on a path of its own; ``first`` is the first
        one's."""
        log = self._log
        outer = log.path
        counted = steps if self._loops is None else self._loops.run(site, steps)
        try:
            # Every iteration of every thread runs this code, so it does nothing else.
            for log.path, step in enumerate(counted, first):
                yield step
        finally:  # after `break` and `return` too
            log.path = outer


class Loop:
    """A ``range`` whose iterations are noted."""

    __slots__ = ("_loops", "_site", "_steps")

    def __init__(self, loops: Loops, site: int, steps: Iterable[int]) -> None:
        self._loops, self._site, self._steps = loops, site, steps

    def __len__(self) -> int:
        return len(self._range())

    def __getitem__(self, index: int) -> int:
        return self._range()[index]

    def __iter__(self) -> Iterator[int]:
        return self._loops.run(self._site, self._steps)

    def _range(self) -> builtins.range:
        assert isinstance(self._steps, builtins.range)  # an endless loop is only iterated
        return self._steps
