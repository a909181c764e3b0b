"""A program's device arrays that nothing has written yet, or not all of."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided

from convlab.simulation.memory.host_memory import owner_of, start_of
from convlab.simulation.rules.unwritten import Masks


class UnwrittenArrays:
    """Knows which bytes of device arrays nothing has written: no copy, no assignment, no launch."""

    def __init__(self, masks: Masks | None = None) -> None:
        self._masks = dict(masks or {})

    def add(self, host: np.ndarray) -> None:
        """Note a new array, which owns its memory."""
        low, high = byte_bounds(host)
        if host.size:
            self._masks[low] = np.ones(high - low, bool)
            weakref.finalize(host, self._masks.pop, low, None)

    def of(self, hosts: Iterable[np.ndarray]) -> dict[int, np.ndarray]:
        """Return the masks of these arrays' memory, for a launch to change."""
        if not self._masks:
            return {}
        lows = {byte_bounds(owner_of(host))[0] for host in hosts}
        return {low: self._masks[low].copy() for low in lows if low in self._masks}

    def wrote(self, part: np.ndarray) -> None:
        """Note that all of these elements have been written."""
        low = byte_bounds(owner_of(part))[0]
        if low not in self._masks or not part.size:
            return
        self._bytes_of(part, low)[...] = False
        self._drop(low)

    def copied(self, part: np.ndarray, source: np.ndarray) -> None:
        """Note that these elements have been copied from ``source``. A byte that nothing has
        written in ``source`` counts as unwritten in the copy too. If the types differ, each element
        counts as a whole."""
        low, source_low = byte_bounds(owner_of(part))[0], byte_bounds(owner_of(source))[0]
        unwritten = np.zeros((*source.shape, 1), bool)
        if source_low in self._masks and source.size:
            unwritten = self._bytes_of(source, source_low).copy()  # both may be parts of one array
            if source.dtype != part.dtype:
                unwritten = np.logical_or.reduce(unwritten, axis=-1, keepdims=True)
        self.wrote(part)
        if not unwritten.any() or not part.size:
            return
        if low not in self._masks:
            self.add(owner_of(part))
            self._masks[low][...] = False
        if source.size == part.size:  # they may differ in axes of length 1
            unwritten = unwritten.reshape(*part.shape, -1)
        self._bytes_of(part, low)[...] |= unwritten

    def _bytes_of(self, part: np.ndarray, low: int) -> np.ndarray:
        """Return a view of the mask for these elements, with one more axis for the bytes of each.
        ``low`` is the first address of the array that the mask is for."""
        shape, strides = (*part.shape, part.itemsize), (*part.strides, 1)
        return as_strided(self._masks[low][start_of(part) - low :], shape, strides)

    def keep(self, masks: Masks) -> None:
        """Note what a launch has left unwritten."""
        for low, mask in masks.items():
            if low in self._masks:
                self._masks[low] &= mask
                self._drop(low)

    def forget(self, hosts: Iterable[np.ndarray]) -> None:
        """Take these arrays for written, because nobody can say what has written to them."""
        for host in hosts:
            self._masks.pop(byte_bounds(owner_of(host))[0], None)

    def _drop(self, low: int) -> None:
        """Forget an array that is wholly written."""
        if not self._masks[low].any():
            del self._masks[low]
