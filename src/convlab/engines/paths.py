"""Where in its loops and calls a simulated thread is, as one number.

A GPU runs the lanes of a warp together: lanes that are in the same iteration of the same loops, in
the same calls, execute an instruction at once, and wait for each other after a branch. A path is
the number of such a place. Equal paths of two lanes mean equal iterations of all loops around them,
so that one lane's third turn is not taken for another's second.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

from convlab.engines.access_log import AccessLog, site_of

CALL = -1  # in place of an iteration's number


class Paths:
    """The paths of a block's threads. ``log`` hears where in it that of the running one changes."""

    def __init__(self, threads: int, log: AccessLog) -> None:
        self.now = 0
        self.running = 0
        self._addresses, self._turns = log.addresses, log.turns
        self._of = [0] * threads
        self._known: dict[tuple[int, int, int], int] = {}

    def new_block(self) -> None:
        """All threads are where the kernel begins."""
        self._of = [0] * len(self._of)
        self.now = self.running = 0

    def enter(self, thread: int) -> int:
        """Another thread runs from here on; its path."""
        self._of[self.running] = self.now
        self.running = thread
        self.to(self._of[thread])
        return self.now

    def to(self, path: int) -> None:
        """The running thread is there from here on."""
        self.now = path
        self._turns.extend((len(self._addresses), path))

    def inner(self, outer: int, site: int, turn: int) -> int:
        """The path one step further in: a turn of the loop there, or the call."""
        known, place = self._known, (outer, site, turn)
        return known[place] if place in known else known.setdefault(place, len(known) + 1)

    def range(self, *bounds: Any) -> Loop:
        """What ``range`` is in a kernel whose paths are kept."""
        return Loop(self, site_of(1), builtins.range(*bounds))

    def while_loop(self, number: int) -> WhileLoop:
        """The counter of a loop that is entered; ``number`` is the loop's in its function."""
        return WhileLoop(self, site_of(1) + number)

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A device function that knows where it was called."""

        def called(*arguments: Any) -> Any:
            outer = self.now
            self.to(self.inner(outer, site_of(1), CALL))
            try:
                return function(*arguments)
            finally:
                self.to(outer)

        return called


class WhileLoop:
    """A ``while`` that notes its turns (:mod:`convlab.engines.while_loops`)."""

    __slots__ = ("_outer", "_paths", "_site", "_turns")

    def __init__(self, paths: Paths, site: int) -> None:
        self._paths, self._site, self._outer, self._turns = paths, site, paths.now, 0

    def turn(self) -> None:
        """Another one begins."""
        paths = self._paths
        paths.to(paths.inner(self._outer, self._site, self._turns))
        self._turns += 1

    def end(self) -> None:
        """The loop is left, by its condition or by ``break``."""
        self._paths.to(self._outer)


class Loop:
    """A ``range`` that notes its turns."""

    __slots__ = ("_paths", "_site", "_steps")

    def __init__(self, paths: Paths, site: int, steps: builtins.range) -> None:
        self._paths, self._site, self._steps = paths, site, steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, place: int) -> int:
        return self._steps[place]

    def __iter__(self) -> Iterator[int]:
        paths, site = self._paths, self._site
        outer = paths.now
        # Every turn of every thread comes by here: `to` and `inner`, written out.
        known, note, addresses = paths._known, paths._turns.extend, paths._addresses
        try:
            for turn, step in enumerate(self._steps):
                place = outer, site, turn
                path = known[place] if place in known else paths.inner(outer, site, turn)
                paths.now = path
                note((len(addresses), path))
                yield step
        finally:  # after `break` and `return` too
            paths.to(outer)
