"""What the simulators have in common: arrays are NumPy's, in the host's memory."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from convlab.engines.base import Start
from convlab.stage import LibraryCall, Program


class OnTheHost:
    """An engine's methods for memory, where memory is the host's and nothing runs beside it."""

    is_gpu = False

    def free_bytes(self) -> int | None:
        """All memory there is: how much of it is free changes by the minute."""
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):  # not every system tells
            return None

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """NaN: what nobody writes must not look right."""
        return np.full(shape, np.nan, np.float32)

    def to_device(self, host: np.ndarray) -> np.ndarray:
        """A float32 copy."""
        return np.array(host, np.float32, order="C")

    def to_host(self, array: np.ndarray) -> np.ndarray:
        """A copy."""
        return array.copy()

    def why_no_library(self) -> str | None:
        """None: NumPy is always here."""
        return None

    def build_library_call(self, call: LibraryCall) -> Start:
        """The call made ready: NumPy does it, which says nothing when numbers overflow."""

        def start(arrays: list[np.ndarray], stream: Any = None) -> None:
            with np.errstate(all="ignore"):
                call.function(np, *arrays)

        return start

    def prepack(self, program: Program, shapes: object, held: object) -> None:
        """None: starting costs nothing beside running."""

    def capability(self) -> None:
        """None: what no GPU has is simulated too."""

    def sm_count(self) -> int | None:
        """None: blocks run one after the other."""
        return None

    def peak_flops(self, precision: str = "fp32") -> float | None:
        """None: a simulator is never timed."""
        return None

    def synchronize(self) -> None:
        """Every launch has ended when it returns."""
