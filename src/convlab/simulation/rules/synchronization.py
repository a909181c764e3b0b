"""The fences, barriers and atomics by which the threads of a launch order their accesses."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from convlab.simulation.recording.access_log import Accesses, LoggedAccess
from convlab.simulation.rules.thread_clocks import ThreadClocks


@dataclass
class Synchronization:
    """The synchronization of a launch so far.

    ``swaps`` are the positions of the atomics that are a ``cas``, ``grid_barriers`` those of the
    barriers of the grid: others add to them as the launch runs. ``clocks`` are the orders that
    barriers in shared memory make, if the kernel has any. Fences and barriers of a part of a warp
    are noted here, the latter for one piece of the log.
    """

    swaps: Set[int]
    grid_barriers: Sequence[int]
    clocks: ThreadClocks | None
    fences: list[LoggedAccess] = field(default_factory=list, init=False)  # with strict checks
    # Barriers of a part of a warp in the piece of the log that is looked at: position, threads.
    _warp_barriers: list[tuple[int, Set[int]]] = field(default_factory=list, init=False)

    def note_fence(self, fence: LoggedAccess) -> None:
        """Note a fence of the thread that runs."""
        self.fences.append(fence)

    def note_warp_barrier(self, position: int, threads: Set[int]) -> None:
        """Note a barrier of a part of a warp at a position in the log, with the threads that met
        there, by their numbers in the launch."""
        self._warp_barriers.append((position, threads))

    def end_piece(self) -> None:
        """Forget the barriers of parts of warps in the piece of the log, which has been looked
        at."""
        self._warp_barriers.clear()

    def met(self, first: LoggedAccess, second: LoggedAccess) -> bool:
        """Return whether both lanes passed a barrier of a part of their warp between the two
        accesses."""
        return any(
            first.position < position <= second.position and {first.thread, second.thread} <= met
            for position, met in self._warp_barriers
        )

    def grid_barriers_before(self, accesses: Accesses) -> np.ndarray:
        """Return the number of barriers of the grid before each access."""
        return np.searchsorted(self.grid_barriers, accesses.position, "right")
