"""Records of atomics: what a thread read or tried to change, at which element."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np


class AtomicTarget(Protocol):
    """An array as atomics see it. ``first_address`` is its address in simulated memory."""

    @property
    def name(self) -> str:
        """The array's name in the kernel."""

    @property
    def first_address(self) -> int:
        """The simulated address of the first element."""

    @property
    def host(self) -> np.ndarray:
        """The array's numbers."""

    def whole_index(self, index: object) -> tuple[object, ...]:
        """Return an index as a tuple with an entry for each dimension."""

    def check(self, index: object, site: int) -> tuple[int, ...]:
        """Return a checked index; report one that is outside."""

    def address(self, index: tuple[int, ...]) -> int:
        """Return the simulated address of an element."""


class AtomicRead(NamedTuple):
    """A read of an element at a site by a thread, by its number in the launch."""

    thread: int
    site: int
    array: str
    at: object  # the index, as the kernel gives it

    @property
    def element(self) -> str:
        """The element as the kernel writes it: ``flags[3]``."""
        index = ", ".join(map(str, self.at)) if isinstance(self.at, tuple) else str(self.at)
        return f"{self.array}[{index}]"


ThreadElement = tuple[int, str, object]  # thread of the launch, array, index
Element = tuple[int, str, object]  # block for shared memory, else -1; array, index
