"""The fences, barriers and atomics by which the threads of a launch order their accesses."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from convlab.simulation.recording.access_log import Accesses, LoggedAccess
from convlab.simulation.rules.thread_clocks import ThreadClocks


@dataclass
class Synchronization:
    """The synchronization of a launch so far: all of it grows as the launch runs.

    ``swaps`` are the positions of the atomics that are a ``cas``, ``grid_barriers`` those of the
    barriers of the grid. ``clocks`` are the orders that barriers in shared memory make, if the
    kernel has any.
    """

    swaps: Set[int]
    grid_barriers: Sequence[int]
    clocks: ThreadClocks | None
    fenced: bool = False  # whether a thread has called a fence
    fences: list[LoggedAccess] = field(default_factory=list)
    # Barriers of a part of a warp in the piece of the log that is looked at: position, threads.
    warp_barriers: list[tuple[int, set[int]]] = field(default_factory=list)

    def met(self, first: LoggedAccess, second: LoggedAccess) -> bool:
        """Return whether both lanes passed a barrier of a part of their warp between the two
        accesses."""
        return any(
            first.position < position <= second.position and {first.thread, second.thread} <= met
            for position, met in self.warp_barriers
        )

    def grid_barriers_before(self, accesses: Accesses) -> np.ndarray:
        """Return the number of barriers of the grid before each access."""
        return np.searchsorted(self.grid_barriers, accesses.position, "right")
