"""What goes on while threads do: async copies, and tensor cores that read shared memory.

A copy is a write that happens at some time between the line that asks for it and the wait. So the
log has it as a write at both ends, which is what races with other threads' accesses are found by;
accesses in between are found here.

Tensor cores read a warpgroup's matrix on the right at some time between the line that starts a
product and the line that waits for it, and all four warps read all of it. So a write there is a
race unless a barrier lies between, even a write by the warpgroup's own threads: a thread knows only
that its own warp's part is done. A writer must also fence what it wrote, before the barrier that
lets tensor cores read. The log has the matrix as read where the product starts, and counts no
request for that read.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from convlab import device
from convlab.device import products
from convlab.device.products import TERMS, WARP, WARPGROUP
from convlab.simulation.memory.checked_arrays import CheckedArray
from convlab.simulation.memory.local_arrays import LocalArray
from convlab.simulation.numbers.counted_operations import Arithmetic
from convlab.simulation.recording.access_log import (
    GLOBAL,
    ISSUED,
    LANDED,
    READ,
    WORD,
    WRITE,
    Access,
    Accesses,
    AccessLog,
    Clock,
    joined,
    within,
)
from convlab.simulation.recording.sites import site_of
from convlab.simulation.rules.races import Conflict, same
from convlab.simulation.threads.greenlets import MMA, PRODUCT, PRODUCT_DONE, Request
from convlab.simulation.threads.simulated_cuda import ALL_LANES, SimulatedCuda

ALL_THREADS = (1 << WARPGROUP) - 1
# A multiply-add is two operations; each lane has its part of the warp's.
OPERATIONS_OF_A_LANE = 2 * products.MULTIPLY_ADDS // WARP
INSTRUCTIONS = 6  # of a warpgroup's product: three for each half of its terms
SIXTEEN = 16  # bytes, at a multiple of which the matrix on the right begins


@dataclass(slots=True, eq=False)
class Copy:
    """One copy of one or several neighbours, to those of ``target`` from ``first`` on. ``issued``
    and ``landed`` are positions in the log: the first accesses that come after."""

    target: CheckedArray
    first: int
    values: list[float]
    site: int
    thread: int
    issued: int
    landed: float = math.inf


class AsyncCopies:
    """The async copies of a launch, which are kept for :meth:`look` if ``strict``."""

    def __init__(self, clock: Clock, strict: bool) -> None:
        self._clock, self._log, self._strict = clock, clock.log, strict
        # By thread its commit groups; the last one is still open.
        self._groups: dict[int, list[list[Copy]]] = defaultdict(lambda: [[]])
        self._checked: set[tuple[Any, Any]] = set()  # pairs of arrays
        self._all: list[Copy] = []  # of which something is in what the log holds
        self.intrinsics: dict[Any, Callable[..., Any]] = {
            device.copy_async: partial(self._copy, 1),
            device.copy_async4: partial(self._copy, 4),
            device.commit_copies: self.commit,
            device.wait_copies: self.wait,
        }

    def end_block(self) -> None:
        """Copies that the block's threads did not wait for do not concern other blocks."""
        first, size = self._clock.first, self._clock.block_size
        for thread in [one for one in self._groups if first <= one < first + size]:
            for copy in chain(*self._groups.pop(thread)):
                copy.landed = self._clock.position

    # What a kernel calls.

    def commit(self) -> None:
        """``commit_copies``: this thread's copies since the last one become a commit group."""
        self._groups[self._clock.number].append([])

    def wait(self, groups: int) -> None:
        """``wait_copies``: land the oldest of the thread's commit groups until ``groups`` are left.

        Raises ``ValueError`` for a number below zero.
        """
        if groups < 0:
            raise ValueError(f"wait_copies({groups}): a number of groups is not below zero")
        site, mine, log = site_of(1), self._groups[self._clock.number], self._log
        while len(mine) - 1 > groups:
            for copy in mine.pop(0):
                values, flat = copy.values, copy.target.linear
                if log is not None:
                    copy.landed = self._clock.position
                    address = copy.target.place + WORD * copy.first
                    log.add(copy.target.tag + address, site, WRITE + LANDED, len(values), values)
                for n, value in enumerate(values, copy.first):
                    flat[n] = value

    def _copy(self, count: int, target: Any, index: Any, source: Any, at: Any, valid: Any) -> None:
        """``copy_async`` of one float32, or ``copy_async4`` of four neighbours; zeros where they
        are not ``valid``."""
        frame = sys._getframe(1)
        site = id(frame.f_code) + frame.f_lasti
        if (target, source) not in self._checked:
            _check_copy(target, source)
            self._checked.add((target, source))
        first = target.first_of_run(index, count, site)
        values = [0.0] * count
        log, clock = self._log, self._clock
        if valid:
            far = source.first_of_run(at, count, site)
            values = source.linear[far : far + count].tolist()
            if log is not None:
                log.add(source.place + WORD * far, site, READ, count)
        if log is not None:
            at = target.tag + target.place + WORD * first
            log.add(at, site, WRITE + ISSUED, count, values)
        thread = clock.first + clock.thread  # `number`, written out
        copy = Copy(target, first, values, site, thread, clock.position)
        if self._strict:
            self._all.append(copy)
        self._groups[thread][-1].append(copy)

    # What was too early.

    def look(self, log: AccessLog, whole: bool) -> Iterator[Conflict]:
        """The accesses in the log to what is in flight. ``whole`` if the last block has ended.
        Storing what the copy brings is none."""
        if not self._all:
            return
        columns, start, end = log.columns(), log.start, len(log.addresses)
        time = columns.position - start
        landing = (columns.kind & LANDED != 0) & (columns.kind & 3 == WRITE)
        indices = np.flatnonzero((columns.address < GLOBAL) & ~landing)
        indices = indices[np.argsort(columns.address[indices], kind="stable")]
        copies, counts = self._all, np.array([len(copy.values) for copy in self._all])
        which = np.repeat(np.arange(len(copies)), counts)
        word = within(counts)
        begin = np.array([copy.target.place + WORD * copy.first for copy in copies])
        address = begin[which] + WORD * word
        issued = np.array([copy.issued for copy in copies])[which] - start
        landed = np.array([copy.landed for copy in copies])[which] - start
        # One number for address and time, by which both are sorted.
        key = columns.address[indices] * (end + 1) + time[indices]
        first = np.searchsorted(key, address * (end + 1) + np.clip(issued, 0, end))
        last = np.searchsorted(key, address * (end + 1) + np.clip(landed, 0, end).astype(np.int64))
        for found in np.flatnonzero(first < last).tolist():
            copy, n = copies[which[found]], word[found]
            writer = {"thread": copy.thread, "block": copy.thread // log.block_size}
            writer |= {"kind": WRITE, "site": copy.site, "position": copy.issued}
            for access in columns.rows(indices[first[found] : last[found]]):
                if access.block != writer["block"]:
                    continue
                if access.kind != WRITE or not same(access.value, copy.values[n]):
                    yield Conflict("copy in flight", access._replace(**writer), access)
        self._all = [] if whole else [copy for copy in copies if copy.landed == math.inf]


@dataclass
class Product:
    """One of a warpgroup's: the bytes that it reads from ``began.address`` to ``end``, where, by
    whom and when it was started, and the phase in which it was finished."""

    began: Access  # by the last one to come
    end: int
    last_phase: float = math.inf


NONE = Accesses(*(np.empty(0, np.int64) for _ in Accesses._fields))


class TensorCores:
    """Tensor cores in a launch: what a warp's or a warpgroup's threads multiply together."""

    def __init__(self, cuda: SimulatedCuda, clock: Clock, arithmetic: Arithmetic | None) -> None:
        self.used = False  # by a warpgroup
        self._cuda, self._clock, self._arithmetic = cuda, clock, arithmetic
        # By the thread's number in the launch and the array that it goes to; and, by warpgroup and
        # site, whose threads still come.
        self._under_way: dict[tuple[int, int], tuple[Any, list[float], Product]] = {}
        self._coming: dict[tuple[int, int, int], Product] = {}
        # For looking at the log: products in what it holds; fences; who wrote last, in what it held
        # of the block before.
        self._all: list[Product] = []
        self._fences: list[Access] = []
        self._written = NONE
        # Registers hold Python's numbers.
        cast: Any = arithmetic.cast if arithmetic else lambda f: lambda value: float(f(value))
        self.intrinsics: dict[Any, Callable[..., Any]] = {
            device.to_tf32: cast(products.rounded_to_tf32),
            device.mma_tf32: self.mma,
            device.fence_shared: self.fence,
            device.start_product: self.start,
            device.finish_product: self.finish,
        }

    def end_block(self) -> None:
        """Products of the block do not concern other blocks."""
        first, size, number = self._clock.first, self._clock.block_size, self._clock.block_number
        for key in [one for one in self._under_way if first <= one[0] < first + size]:
            self._under_way.pop(key)[-1].last_phase = self._clock.phase
        for coming in [one for one in self._coming if one[0] == number]:
            del self._coming[coming]

    # What a kernel calls.

    def mma(self, a: Any, b: Any, c: Any) -> Any:
        """``mma_tf32``: this lane's four numbers of the product, once all 32 have come."""
        request = Request(MMA, site_of(1), products.checked_fragments(a, b, c), ALL_LANES)
        if self._arithmetic is None:
            return self._cuda.hub(request)
        self._arithmetic.count(OPERATIONS_OF_A_LANE)
        return tuple(map(self._arithmetic.counted, self._cuda.hub(request)))

    def fence(self) -> None:
        """``fence_shared``."""
        if self._clock.log is not None:
            self._fences.append(self._clock.access(WRITE))

    def start(self, D: Any, L: Any, T: Any, S: Any, at: Any, N: int) -> None:
        """``start_product``: once all 128 have come, the product is under way. No thread has
        written to ``D`` until the product is finished. ``ValueError`` where threads read different
        matrices."""
        _check_product(D, L, T, S, N)
        site, count, in_block = site_of(1), 2 * TERMS * N, self._clock.thread
        if (self._clock.number, id(D)) in self._under_way:
            raise RuntimeError(f"start_product: the product before was not finished for {D.name}")
        S.check(at, site)
        S.check(at + count - 1, site)
        S.check_aligned((at,), SIXTEEN, site)
        address = S.place + at * S.itemsize
        began = self._clock.access(READ + LANDED, address, site)
        brought = _registers(L, site), _registers(T, site), S.host[at : at + count].copy()
        if self._clock.log is not None:
            share = count // WARPGROUP
            mine = address + in_block % WARPGROUP * share * S.itemsize
            self._clock.log.add(S.tag + mine, site, READ + LANDED, share)
        if self._arithmetic is not None:
            self._arithmetic.count(2 * INSTRUCTIONS * products.ROWS * TERMS // 2 * N // WARP)
        # The warpgroup's product: the first thread that has come makes it.
        key = self._clock.block_number, in_block // WARPGROUP, site
        mine = Product(began, address + count * S.itemsize)
        product = self._coming.setdefault(key, mine)
        if product is mine:
            self._all.append(mine)
        begins, ends = address - product.began.address, mine.end - product.end
        if begins or ends:
            raise ValueError(
                "start_product: all threads of a warpgroup multiply by the same part of S, but "
                f"this one's begins {begins} bytes after another's and ends {ends} after it"
            )
        product.began = began
        result = self._cuda.hub(Request(PRODUCT, site, brought, ALL_THREADS))
        if self._coming.get(key) is product:  # a thread that comes from here on starts the next one
            del self._coming[key]
        D.cells[: N // 2] = [None] * (N // 2)
        self._under_way[self._clock.number, id(D)] = D, result, product

    def finish(self, D: Any, N: int) -> None:
        """``finish_product``. Raises ``RuntimeError`` where none was started for ``D``."""
        site, name = site_of(1), getattr(D, "name", D)
        known = self._under_way.pop((self._clock.number, id(D)), None)
        if known is None or len(known[1]) != N // 2:
            raise RuntimeError(f"finish_product: no product of {N} columns was started for {name}")
        if any(cell is not None for cell in D.cells[: N // 2]):
            raise RuntimeError(f"finish_product: {name} was written to before it was finished")
        self._cuda.hub(Request(PRODUCT_DONE, site, None, ALL_THREADS))
        _, D.cells[: N // 2], product = known
        product.last_phase = self._clock.phase

    # Writes to what tensor cores read, and writes that were not fenced.

    def look(self, log: AccessLog, whole: bool) -> Iterator[Conflict]:
        """Conflicts of products with the accesses in the log. ``whole`` if the last block has
        ended."""
        if not self.used:
            return
        columns = log.columns()
        of_interest = columns.of_products | (columns.kind & 3 != READ)
        near = columns.take((columns.address < GLOBAL) & of_interest)
        yield from self._races(near.take(near.kind & 3 != READ))
        landed = near.take(near.kind & ISSUED == 0)  # an async copy writes when it lands
        near = joined([self._written, landed])
        near = near.take(np.lexsort((near.position, near.address)))
        yield from self._not_fenced(near)
        if whole:
            self._all.clear()
            self._fences.clear()
            self._written = NONE
        else:
            now = self._clock.phase
            self._all = [product for product in self._all if product.last_phase >= now]
            writes = near.take(near.kind & 3 != READ)
            self._written = writes.take(np.diff(writes.address, append=-1) != 0)

    def _races(self, writes: Accesses) -> Iterator[Conflict]:
        for product in self._all:
            began = product.began
            inside = (began.address <= writes.address) & (writes.address < product.end)
            phases = (began.phase <= writes.phase) & (writes.phase <= product.last_phase)
            phases &= writes.block == began.block
            for write in writes.rows(np.flatnonzero(inside & phases)):
                read = began._replace(address=write.address)
                before = write.position < began.position
                yield Conflict("shared race", *((write, read) if before else (read, write)))

    def _not_fenced(self, near: Accesses) -> Iterator[Conflict]:
        """Reads of what its writer did not fence between that and the last barrier before.
        Entries are in the order of their addresses, those of an address in the order of time."""
        is_read = near.kind & 3 == READ
        last = np.maximum.accumulate(np.where(is_read, -1, np.arange(len(is_read))))
        reads = np.flatnonzero(is_read & (last >= 0))
        # An uninitialised read, or one with no barrier between, is a finding of its own.
        one, other = near.take(last[reads]), near.take(reads)
        chosen = (one.address == other.address) & (one.block == other.block)
        chosen &= one.phase < other.phase
        one, other = one.take(chosen), other.take(chosen)
        # Of the writer's fences: how many came before the write, how many before the barrier.
        size = 1 + max(self._clock.position, self._clock.phase)
        fences = sorted((f.thread, f.position, f.phase) for f in self._fences)
        who, position, phase = np.array(fences).reshape(-1, 3).T
        writer = one.thread * size
        before = np.searchsorted(who * size + position, writer + one.position, "right")
        in_time = np.searchsorted(who * size + phase, writer + other.phase, "left")
        late = np.flatnonzero(in_time <= before)
        for write, read in zip(one.rows(late), other.rows(late), strict=True):
            yield Conflict("not fenced", write, read)


# What a GPU does not check.


def _check_copy(target: Any, source: Any) -> None:
    if not _is_shared(target):
        raise TypeError(f"{target.name}: an async copy goes to shared memory, which that is not")
    if not isinstance(source, CheckedArray) or source.place < GLOBAL:
        raise TypeError(f"{source.name}: an async copy comes from global memory, which that is not")


def _check_product(D: Any, L: Any, T: Any, S: Any, N: int) -> None:
    products.check_width(N)
    for name, array, least in (("D", D, N // 2), ("L", L, 8), ("T", T, 8)):
        fits = isinstance(array, LocalArray) and array.ndim == 1 and array.size >= least
        if not fits or array.dtype != np.float32:
            raise TypeError(f"start_product: {name} must be a local array of {least} float32")
    if L is T:
        raise ValueError("start_product: L and T are one array, but must be two")
    if not _is_shared(S):
        raise TypeError(f"start_product: {getattr(S, 'name', S)} must be a shared array")
    if not S.wide or S.ndim != 1:
        raise TypeError(f"start_product: {S.name} must have one dimension of float32")


def _is_shared(array: Any) -> bool:
    """Constant arrays lie low like shared ones, but are read-only."""
    return isinstance(array, CheckedArray) and array.place < GLOBAL and array.host.flags.writeable


def _registers(array: LocalArray, site: int) -> list[float]:
    numbers = array.cells[:8]
    if None in numbers:
        numbers = [array.part(n, site) for n in range(8)]
    return [float(number) for number in numbers]
