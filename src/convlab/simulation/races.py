"""Which accesses of a log conflict: races and uninitialised reads.

Two accesses to one address race when at least one writes, not both are atomic, different threads
make them and nothing orders them. A block's barrier orders its threads, a warp barrier the lanes of
a warp; nothing orders two blocks but a fence and an atomic before, and the same atomic after.
Stores of one and the same value by several threads are no race: flags are set like that.

Only what may be part of a conflict is sorted: a sieve, which is a small table of hashes, lets
through the accesses to an element that is also written in the same phase, and few others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from convlab.simulation.access_log import ATOMIC, GLOBAL, READ, WRITE, AccessLog
from convlab.simulation.accesses import Access, Accesses, Conflict, Fence, Groups, Messages
from convlab.simulation.scalars import converted

SIEVE = 1 << 18
TABLE = 8_000_000  # what is numbered beyond this is sorted, not put in a table
ENOUGH = 500  # conflicts of the same lines; more are the same mistake again


class Race:
    """Analyses a launch's log piece by piece: whole blocks, or whole phases of one."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.fences: list[Fence] = []
        self.warp_barriers: list[tuple[int, set[int]]] = []  # of parts of warps: position, threads
        self.position = 0  # of the log's first entry in the launch
        self._kept: list[Accesses] = []  # to global memory: one of a kind for each block
        self._written = np.empty(0, np.int64)  # of shared memory, by what went before of the block
        self._log = AccessLog()

    def analyse(self, log: AccessLog, whole: bool = True) -> Iterator[Conflict]:
        """Conflicts within the blocks that the log holds; ``whole`` if the last one has ended."""
        columns = log.columns()
        self._log = log
        if len(columns.address):
            accesses = Accesses(columns, log.values, self.position, self.block_size)
            self.position += len(columns.address)
            shared = columns.address < GLOBAL
            if shared.any():
                yield from self._uninitialised(accesses, np.flatnonzero(shared))
                self._remember(accesses, shared & accesses.sets)
            yield from self._within_blocks(accesses)
            if not shared.all():
                self._keep(accesses, np.flatnonzero(~shared))
        self.warp_barriers.clear()
        if whole:
            self._written = self._written[:0]

    def finish(self) -> Iterator[Conflict]:
        """Conflicts between blocks."""
        if not self._kept:
            return
        accesses = Accesses.joined(self._kept)
        address, kind = accesses.columns.address, accesses.columns.kind
        some = np.flatnonzero(np.isin(address, address[kind != READ]))
        order = some[np.argsort(address[some], kind="stable")]
        yield from self._conflicts(accesses, Groups(accesses, order, address), "block")

    def _uninitialised(self, accesses: Accesses, shared: np.ndarray) -> Iterator[Conflict]:
        """Reads of shared memory before the block's first write there. Where another thread writes
        in the same phase there is a race, which says more."""
        address = accesses.columns.address[shared]
        block = accesses.block[shared] - accesses.block[0]
        key = block * (int(address.max()) + 1) + address
        if key.max() > TABLE:
            key = np.unique(key, return_inverse=True)[1]
        never = len(accesses.block)
        first_write = np.full(int(key.max()) + 1, never, np.int32)
        writes = np.flatnonzero(accesses.sets[shared])[::-1]  # backwards: the first one stays
        first_write[key[writes]] = shared[writes]
        if len(self._written):
            first_write[key[(block == 0) & np.isin(address, self._written)]] = -1
        first = first_write[key]
        early, first = shared[first > shared], first[first > shared]
        last = np.minimum(first, never - 1)
        thread, phase = accesses.columns.thread, accesses.columns.phase
        race = (thread[last] != thread[early]) & (phase[last] == phase[early]) & (first < never)
        early = early[~race]
        sites = accesses.columns.site[early]
        for site in np.unique(sites):
            for access in accesses.at(early[sites == site][:ENOUGH]):
                yield Conflict("uninitialised", access, None)

    def _remember(self, accesses: Accesses, writes: np.ndarray) -> None:
        """Where the last block has written: it may go on in the next piece."""
        block = accesses.block
        written = np.unique(accesses.columns.address[writes & (block == block[-1])])
        if block[0] == block[-1]:  # the one that went on
            written = np.union1d(written, self._written)
        self._written = written

    def _within_blocks(self, accesses: Accesses) -> Iterator[Conflict]:
        """Between warps of one phase, and between lanes of a warp with no warp barrier between."""
        columns, warp = accesses.columns, accesses.warp
        changed = columns.kind != READ
        hashes = (columns.address + columns.phase * 0x9E3779B1) & (SIEVE - 1)
        written = np.zeros(SIEVE, bool)
        written[hashes[changed]] = True
        # What a warpgroup's tensor cores read no thread reads: simulation/tensor_cores.py looks at
        # that.
        some = np.flatnonzero(written[hashes] & ~self._log.columns().of_products)
        for scope, keys in (
            ("warp", (columns.phase, columns.address)),
            ("thread", (warp, columns.epoch, columns.phase, columns.address)),
        ):
            order = some[np.lexsort([key[some] for key in keys])]
            yield from self._conflicts(accesses, Groups(accesses, order, *keys), scope)

    def _keep(self, accesses: Accesses, far: np.ndarray) -> None:
        """Of each block's accesses of a kind to a global address keep one: the last write, since a
        fence may come after it, and the first read or atomic. Where there are fences keep one of
        each thread, and all atomics: any of them may tell another block something."""
        address = accesses.columns.address
        entity = accesses.columns.thread if self.fences else accesses.block
        low = int(address[far].min())
        width = int(address[far].max()) - low + 1
        for kind in (READ, WRITE, ATOMIC):
            chosen = far[accesses.columns.kind[far] == kind]
            if not len(chosen):
                continue
            if kind == WRITE:
                chosen = chosen[::-1]
            each = (entity[chosen] - entity.min()) * width + address[chosen] - low
            every = kind == ATOMIC and self.fences
            self._kept.append(accesses.take(chosen if every else chosen[_firsts(each)]))

    def _conflicts(self, accesses: Accesses, groups: Groups, scope: str) -> Iterator[Conflict]:
        """The first of each group, if there is one; of the same lines no more than enough."""
        entity = accesses.columns.thread if scope == "thread" else getattr(accesses, scope)
        messages = self._messages(accesses)
        seen: Counter[tuple[int, int]] = Counter()
        for indices, sites in groups.in_conflict(entity):
            if seen[sites] < ENOUGH:
                for conflict in self._first([*accesses.at(indices)], scope, messages):
                    seen[sites] += 1
                    yield conflict

    def _messages(self, accesses: Accesses) -> Messages:
        """What fences and atomics say; with no fence atomics say nothing beyond themselves."""
        atomics = np.flatnonzero(accesses.columns.kind == ATOMIC)
        return Messages(self.fences, accesses.at(atomics) if self.fences else ())

    def _first(self, accesses: list[Access], scope: str, messages: Messages) -> Iterator[Conflict]:
        """The first pair that races, if any does."""
        pairs = _flag_and_others(accesses) if self._is_flag(accesses) else _neighbours(accesses)
        for first, second in pairs:
            if getattr(first, scope) == getattr(second, scope) or messages.told(first, second):
                continue
            if scope == "thread" and self._met(first, second):
                continue
            yield Conflict(
                "shared race" if first.address < GLOBAL else "global race", first, second
            )
            return

    def _is_flag(self, accesses: list[Access]) -> bool:
        """Whether all writes store the same, as the array keeps it."""
        values = [access.value for access in accesses if access.kind == WRITE]
        if all(same(value, values[0]) for value in values):
            return bool(values)
        dtype = self._log.span_at(accesses[0].address).dtype
        kept = [converted(value, dtype) for value in values]
        return all(same(value, kept[0]) for value in kept)

    def _met(self, first: Access, second: Access) -> bool:
        """Whether both lanes came to a barrier of a part of their warp between."""
        return any(
            first.position < position <= second.position and {first.thread, second.thread} <= met
            for position, met in self.warp_barriers
        )


def _flag_and_others(accesses: list[Access]) -> Iterator[tuple[Access, Access]]:
    """Pairs that may race where all writes store the same: each with all that is no write, and
    reads with atomics."""
    for one in accesses:
        for other in accesses:
            if one.kind != READ and other.kind != WRITE and one.kind != other.kind:
                yield (one, other) if one.position < other.position else (other, one)


def _neighbours(accesses: list[Access]) -> Iterator[tuple[Access, Access]]:
    """Pairs that may race, as few as say it all: what is in order with the last write is so with
    those before."""
    since: dict[int, list[Access]] = {READ: [], WRITE: [], ATOMIC: []}
    for second in accesses:
        for kind, earlier in since.items():
            if kind != second.kind or kind == WRITE:
                yield from ((first, second) for first in earlier)
        if second.kind == WRITE:
            since = {READ: [], WRITE: [], ATOMIC: []}
        since[second.kind].append(second)


def _firsts(key: np.ndarray) -> np.ndarray:
    """Where each different number stands first."""
    size = int(key.max()) + 1
    if size > TABLE:
        return np.unique(key, return_index=True)[1]
    first = np.empty(size, np.int32)
    indices = np.arange(len(key), dtype=np.int32)
    first[key[::-1]] = indices[::-1]
    return np.flatnonzero(first[key] == indices)


def same(one: Any, other: Any) -> bool:
    """Whether two stores leave the same: NaN, which is not itself, is as good as another."""
    return bool(one == other) or (one != one and other != other)
