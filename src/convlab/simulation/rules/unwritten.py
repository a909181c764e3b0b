"""Global memory that nothing has written: device arrays, until a copy or a kernel fills them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from convlab.simulation.recording.access_log import Accesses

# By the host's address of an allocation's first byte: which of its bytes nothing has written.
Masks = Mapping[int, np.ndarray]


class UnwrittenMemory:
    """The bytes of a launch's global memory that nothing has written so far."""

    def __init__(self) -> None:
        self.masks: dict[int, np.ndarray] = {}
        self._first: dict[int, int] = {}  # the launch's address of an allocation's first byte

    def place(self, masks: Masks, distance: int) -> None:
        """Add allocations, whose addresses in the launch are by ``distance`` larger than the
        host's."""
        for low, mask in masks.items():
            if low not in self.masks:
                self.masks[low], self._first[low] = mask, low + distance

    def among(self, accesses: Accesses, some: np.ndarray) -> np.ndarray:
        """Return which of some accesses are to a byte that nothing has written."""
        found = []
        for mask, inside, at in self._inside(accesses, some):
            sizes, unwritten = accesses.size[inside], mask[at]
            for byte in range(1, int(sizes.max(initial=0))):  # the further bytes of each access
                longer = sizes > byte
                unwritten[longer] |= mask[at[longer] + byte]
            found.append(inside[unwritten])
        return np.sort(np.concatenate(found)) if found else some[:0]

    def write(self, accesses: Accesses, some: np.ndarray) -> None:
        """Note that some accesses write."""
        for mask, inside, at in self._inside(accesses, some):
            sizes = accesses.size[inside]
            for byte in range(int(sizes.max(initial=0))):
                mask[at[sizes > byte] + byte] = False

    def _inside(
        self, accesses: Accesses, some: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Give each mask, the accesses to its allocation, and where in it they begin."""
        for low, mask in self.masks.items():
            at = accesses.address[some] - self._first[low]
            inside = (at >= 0) & (at < len(mask))
            yield mask, some[inside], at[inside]
