"""The accesses to global memory that are kept until a launch ends, to compare its blocks."""

from __future__ import annotations

from functools import partial

import numpy as np

from convlab.simulation.recording.access_log import ATOMIC, READ, WRITE, Accesses, joined
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.circumstances import wait_for_others
from convlab.simulation.rules.memory_traffic import changes
from convlab.simulation.rules.retries import update_at
from convlab.simulation.rules.synchronization import Synchronization


class KeptAccesses:
    """The accesses to global memory that may be part of a conflict between blocks."""

    def __init__(self, sites: Sites, synchronization: Synchronization) -> None:
        self._sites, self._synchronization = sites, synchronization
        self._kept: list[Accesses] = []

    def together(self) -> Accesses | None:
        """Return all that have been kept; None if there is nothing."""
        return joined(self._kept) if self._kept else None

    def add(self, accesses: Accesses, far: np.ndarray) -> None:
        """Keep one access per block, kind and global address: the first. With fences, or if threads
        wait for others, keep one of each thread from an atomic, fence or barrier to the next, and
        all atomics, because any of them may communicate with another block."""
        address = accesses.address
        low = int(address[far].min())
        width = int(address[far].max()) - low + 1
        grid_barriers = self._synchronization.grid_barriers_before(accesses)
        among = grid_barriers * (int(accesses.block.max()) + 1) + accesses.block
        update = partial(update_at, self._sites)
        tells = bool(self._synchronization.fences) or wait_for_others(accesses.take(far), update)
        if tells:
            among = self._segments(accesses)
        for kind in (READ, WRITE, ATOMIC):
            chosen = far[accesses.kind[far] == kind]
            if kind != ATOMIC or not tells:
                each = among[chosen] * width + address[chosen] - low
                chosen = chosen[np.unique(each, return_index=True)[1]]
            self._kept.append(accesses.take(chosen))

    def _segments(self, accesses: Accesses) -> np.ndarray:
        """Return a number for each stretch of a thread between its atomics, fences and barriers."""
        count = len(accesses.position)
        first = accesses.position[0]
        fences = [one for one in self._synchronization.fences if one.position > first - 1]
        thread, position, phase, epoch = (
            np.append(getattr(accesses, name), [getattr(one, name) for one in fences])
            for name in ("thread", "position", "phase", "epoch")
        )
        tells = np.append(accesses.kind == ATOMIC, np.ones(len(fences), bool))
        order = np.lexsort((position, thread))
        segment = np.empty(len(order), np.int64)
        new = changes(thread[order], phase[order], epoch[order]) | tells[order]
        segment[order] = np.cumsum(new)
        return segment[:count]
