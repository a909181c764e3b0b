"""Pinned memory: host memory to which copies are asynchronous in a stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from convlab.simulation.host.watched_arrays import WatchedArray


class PinnedMemory(np.ndarray):
    """Host memory to which copies are asynchronous. A program has views of it. Arrays that NumPy
    makes from those, as ``np.empty_like`` does, are not pinned."""


class PinnedArray(WatchedArray):
    """A view of pinned memory."""


def plain(value: Any) -> Any:
    """Return pinned memory as a plain array, which notifies nobody; anything else as it is."""
    return value.view(np.ndarray) if isinstance(value, PinnedArray) else value
