"""The bytes that an operation of a stream reads and writes, and the bytes that two have in
common."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from numpy.lib.array_utils import byte_bounds

from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.host_memory import start_of
from convlab.simulation.recording.access_log import ATOMIC, READ, WRITE, Accesses

Bytes = np.ndarray | range  # addresses of elements on the host, or all from one to another


@dataclass
class Touched:
    """The bytes that an operation reads and writes, and the arrays that hold them, by name. The
    arrays stay alive, so that no other array gets their addresses."""

    hosts: list[tuple[str, np.ndarray]] = field(default_factory=list)
    reads: list[Bytes] = field(default_factory=list)
    writes: list[Bytes] = field(default_factory=list)
    updates: list[Bytes] = field(default_factory=list)  # by atomics

    def whole(self, host: np.ndarray, writes: bool) -> None:
        """Note a copy to or from the whole array."""
        at: Bytes = range(*byte_bounds(host))
        if not (host.flags.c_contiguous or host.flags.f_contiguous):
            steps = map(operator.mul, map(np.arange, host.shape), host.strides)
            at = np.sort(start_of(host) + reduce(np.add.outer, steps).ravel())
        self.hosts.append(("", host))
        (self.writes if writes else self.reads).append(at)

    def look(self, accesses: Accesses, arrays: Iterable[CheckedArray]) -> None:
        """Note what a kernel has done to its arrays."""
        for array in arrays:
            low, high = byte_bounds(array.host)
            there = accesses.address + (start_of(array.host) - array.first_address)
            inside, kind = (there >= low) & (there < high), accesses.kind & 3
            ways = (np.unique(there[inside & (kind == way)]) for way in (READ, WRITE, ATOMIC))
            self.elements(array.name, array.host, *ways)

    def elements(
        self, name: str, host: np.ndarray, reads: Bytes, writes: Bytes, updates: Bytes
    ) -> None:
        """Note which elements of an array a kernel has read, written and updated."""
        self.hosts.append((name, host))
        self.reads.append(reads)
        self.writes.append(writes)
        self.updates.append(updates)

    def clear(self) -> None:
        """Forget what an operation has touched that begins anew."""
        for kept in self.hosts, self.reads, self.writes, self.updates:
            kept.clear()

    def is_same(self, other: Touched) -> bool:
        """Return whether the other operation has touched the same bytes in the same way."""
        ways = ((self.reads, other.reads), (self.writes, other.writes))
        return all(
            len(mine) == len(its) and all(map(_equal, mine, its))
            for mine, its in (*ways, (self.updates, other.updates))
        )

    def name(self, address: int) -> str:
        """Return the name of the array at an address; empty if it has none."""
        for name, host in self.hosts:
            low, high = byte_bounds(host)
            if name and low <= address < high:
                return name
        return ""


def _equal(one: Bytes, other: Bytes) -> bool:
    if isinstance(one, range) or isinstance(other, range):
        return type(one) is type(other) and bool(one == other)
    return np.array_equal(one, other)


def common(some: Iterable[Bytes], others: Sequence[Bytes]) -> int | None:
    """Return an address that ``some`` and ``others`` have in common; None without one."""
    for one, other in itertools.product(some, others):
        if not len(one) or not len(other) or one[-1] < other[0] or other[-1] < one[0]:
            continue
        first, second = (other, one) if isinstance(one, range) else (one, other)
        if not isinstance(second, range):
            found = np.intersect1d(first, second)
        elif isinstance(first, range):
            found = np.arange(max(first.start, second.start), min(first.stop, second.stop))[:1]
        else:
            found = first[(first >= second.start) & (first < second.stop)]
        if found.size:
            return int(found[0])
    return None
