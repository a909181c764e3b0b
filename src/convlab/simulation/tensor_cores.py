"""Tensor cores of a simulated launch: what a warp's or a warpgroup's threads multiply together."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from convlab import device
from convlab.device.products import (
    MULTIPLY_ADDS,
    ROWS,
    TERMS,
    WARP,
    WARPGROUP,
    check_width,
    checked_fragments,
    rounded_to_tf32,
)
from convlab.simulation.access_log import (
    GLOBAL,
    ISSUED,
    LANDED,
    READ,
    Accesses,
    AccessLog,
    joined,
    site_of,
)
from convlab.simulation.block_memory import LocalArray
from convlab.simulation.checked_array import CheckedArray, check, report_misaligned
from convlab.simulation.races import ENOUGH, Conflict
from convlab.simulation.scalars import Arithmetic
from convlab.simulation.simulated_cuda import MMA, PRODUCT, PRODUCT_DONE, Request, SimulatedCuda

ALL_LANES, ALL_THREADS = (1 << WARP) - 1, (1 << WARPGROUP) - 1
# A multiply-add is two operations; each lane has its part of the warp's.
OPERATIONS_OF_A_LANE = 2 * MULTIPLY_ADDS // WARP
INSTRUCTIONS = 6  # of a warpgroup's product: three for each half of its terms
SIXTEEN = 16  # bytes, at a multiple of which the matrix on the right begins


class Now(NamedTuple):
    """The thread that runs, its number in the launch and in its block; the next access's position
    in the launch; how many barriers there were."""

    thread: int
    in_block: int
    position: int
    phase: int


@dataclass
class Product:
    """One of a warpgroup's: the bytes that it reads from ``address`` to ``end``, where, by whom and
    when it was started, and the phase in which it was finished."""

    address: int
    end: int
    site: int
    began: Now  # by the last one to come
    last_phase: float = math.inf


NONE = Accesses(*(np.empty(0, np.int64) for _ in Accesses._fields))


class TensorCores:
    """Tensor cores in a launch. ``now()`` tells which thread runs, and when.

    Tensor cores read a warpgroup's matrix on the right at some time between the line that starts a
    product and the line that waits for it, and all four warps read all of it. So a write there is a
    race unless a barrier lies between, even a write by the warpgroup's own threads: a thread knows
    only that its own warp's part is done. A writer must also fence what it wrote, before the
    barrier that lets tensor cores read. The log has the matrix as read where the product starts,
    and counts no request for that read.
    """

    def __init__(
        self,
        cuda: SimulatedCuda,
        log: AccessLog | None,
        arithmetic: Arithmetic | None,
        now: Callable[[], Now],
    ) -> None:
        self.used = False  # by a warpgroup
        self._cuda, self._log, self._arithmetic, self._now = cuda, log, arithmetic, now
        # By the thread's number in its block and the array that it goes to; and whose threads still
        # come.
        self._under_way: dict[tuple[int, int], tuple[Any, list[float], Product]] = {}
        self._coming: dict[tuple[int, int], Product] = {}
        # For looking at the log: products in what it holds; each thread's fences, as position and
        # phase; who wrote last, in what it held of the block before.
        self._all: list[Product] = []
        self._fences: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._written = NONE
        cast = _as_float if arithmetic is None else arithmetic.cast
        self.intrinsics: dict[Any, Callable[..., Any]] = {
            device.to_tf32: cast(rounded_to_tf32), device.mma_tf32: self.mma,
            device.fence_shared: self.fence, device.start_product: self.start,
            device.finish_product: self.finish,
        }  # fmt: skip

    def new_block(self) -> None:
        """Products of the last block do not concern this block."""
        for _, _, product in self._under_way.values():
            product.last_phase = self._now().phase
        self._under_way.clear()
        self._coming.clear()

    def let_go(self) -> None:
        """Forget the arrays: the launch is over."""
        self._under_way.clear()
        self._coming.clear()
        self._all.clear()

    # What a kernel calls.

    def mma(self, a: Any, b: Any, c: Any) -> Any:
        """``mma_tf32``: this lane's four numbers of the product, once all 32 have come."""
        request = Request(MMA, site_of(1), checked_fragments(a, b, c), ALL_LANES)
        if self._arithmetic is None:
            return self._cuda.hub(request)
        self._arithmetic.count(OPERATIONS_OF_A_LANE)
        return tuple(map(self._arithmetic.counted, self._cuda.hub(request)))

    def fence(self) -> None:
        """``fence_shared``."""
        if self._log is not None:
            now = self._now()
            self._fences[now.thread].append((now.position, now.phase))

    def start(self, D: Any, L: Any, T: Any, S: Any, at: Any, N: int) -> None:
        """``start_product``: once all 128 have come, the product is under way. No thread has
        written to ``D`` until the product is finished."""
        _check(D, L, T, S, N)
        site, count, now = site_of(1), 2 * TERMS * N, self._now()
        if (now.in_block, id(D)) in self._under_way:
            raise RuntimeError(f"start_product: the product before was not finished for {D.name}")
        check(S, (at,), site)
        check(S, (at + count - 1,), site)
        address = S.base + at * S.itemsize
        if address % SIXTEEN or S.alignment % SIXTEEN:
            report_misaligned(S, (at,), address, SIXTEEN, site)
        brought = _registers(L, site), _registers(T, site), S.host[at : at + count].copy()
        if self._log is not None:
            share = count // WARPGROUP
            mine = address + now.in_block % WARPGROUP * share * S.itemsize
            self._log.add(mine, site, READ + LANDED, share)
        if self._arithmetic is not None:
            self._arithmetic.count(2 * INSTRUCTIONS * ROWS * TERMS // 2 * N // WARP)
        key = now.in_block // WARPGROUP, site
        product = self._come(key, Product(address, address + count * S.itemsize, site, now))
        result = self._cuda.hub(Request(PRODUCT, site, brought, ALL_THREADS))
        if self._coming.get(key) is product:  # a thread that comes from here on starts the next one
            del self._coming[key]
        D.cells[: N // 2] = [None] * (N // 2)
        self._under_way[now.in_block, id(D)] = D, result, product

    def _come(self, key: tuple[int, int], mine: Product) -> Product:
        """The warpgroup's product that this thread has come to start: the first one's to come.

        Raises ``ValueError`` where that reads another matrix.
        """
        product = self._coming.setdefault(key, mine)
        if product is mine:
            self._all.append(mine)
        elif (product.address, product.end) != (mine.address, mine.end):
            raise ValueError(
                "start_product: all threads of a warpgroup multiply by the same part of S, but "
                f"this one's begins {mine.address - product.address} bytes after another's and "
                f"ends {mine.end - product.end} after it"
            )
        product.began = mine.began
        return product

    def finish(self, D: Any, N: int) -> None:
        """``finish_product``. Raises ``RuntimeError`` where none was started for ``D``."""
        site, name = site_of(1), getattr(D, "name", D)
        known = self._under_way.pop((self._now().in_block, id(D)), None)
        if known is None or len(known[1]) != N // 2:
            raise RuntimeError(f"finish_product: no product of {N} columns was started for {name}")
        if any(cell is not None for cell in D.cells[: N // 2]):
            raise RuntimeError(f"finish_product: {name} was written to before it was finished")
        self._cuda.hub(Request(PRODUCT_DONE, site, None, ALL_THREADS))
        _, D.cells[: N // 2], product = known
        product.last_phase = self._now().phase

    # Writes to what tensor cores read, and writes that were not fenced.

    def look(self, log: AccessLog, whole: bool) -> Iterator[Conflict]:
        """Conflicts of products with the accesses in the log. ``whole`` if the last block has
        ended."""
        if not self.used:
            return
        columns = log.columns()
        of_interest = columns.of_products | (columns.kind & 3 != READ)
        near = columns.take((columns.address < GLOBAL) & of_interest)
        yield from self._races(near.take(near.kind & 3 != READ), log.block_size)
        landed = near.take(near.kind & ISSUED == 0)  # an async copy writes when it lands
        near = joined([self._written, landed])
        near = near.take(np.lexsort((near.position, near.address)))
        yield from self._not_fenced(near)
        if whole:
            self._all.clear()
            self._fences.clear()
            self._written = NONE
        else:
            now = self._now().phase
            self._all = [product for product in self._all if product.last_phase >= now]
            writes = near.take(near.kind & 3 != READ)
            self._written = writes.take(np.diff(writes.address, append=-1) != 0)

    def _races(self, writes: Accesses, block_size: int) -> Iterator[Conflict]:
        """Writes to what a product may read just then, whoever's."""
        seen: Counter[tuple[int, int]] = Counter()
        for product in self._all:
            inside = (product.address <= writes.address) & (writes.address < product.end)
            phases = (product.began.phase <= writes.phase) & (writes.phase <= product.last_phase)
            for write in writes.rows(np.flatnonzero(inside & phases)):
                seen[product.site, write.site] += 1
                if seen[product.site, write.site] > ENOUGH:
                    continue
                thread, _, position, phase = product.began
                read = write._replace(
                    site=product.site, kind=READ + LANDED, thread=thread, phase=phase,
                    position=position, block=thread // block_size,
                )  # fmt: skip
                before = write.position < position
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
        fences = np.array(
            [(thread, *fence) for thread, made in sorted(self._fences.items()) for fence in made]
        ).reshape(-1, 3)
        # Of the writer's fences: how many came before the write, how many before the barrier.
        size = 1 + max(self._now().position, self._now().phase)
        who, position, phase = fences.T
        writer = one.thread * size
        before = np.searchsorted(who * size + position, writer + one.position, "right")
        in_time = np.searchsorted(who * size + phase, writer + other.phase, "left")
        late = np.flatnonzero(in_time <= before)
        seen: Counter[tuple[int, int]] = Counter()
        for write, read in zip(one.rows(late), other.rows(late), strict=True):
            seen[write.site, read.site] += 1
            if seen[write.site, read.site] <= ENOUGH:
                yield Conflict("not fenced", write, read)


def _as_float(function: Callable[..., Any]) -> Callable[..., float]:
    """Registers hold Python's numbers."""
    return lambda value: float(function(value))


def _registers(array: LocalArray, site: int) -> list[float]:
    """The eight numbers of A."""
    numbers = array.cells[:8]
    if None in numbers:
        numbers = [array.part(n, site) for n in range(8)]
    return [float(number) for number in numbers]


def _check(D: Any, L: Any, T: Any, S: Any, N: int) -> None:
    """A GPU checks none of this."""
    check_width(N)
    for name, array, least in (("D", D, N // 2), ("L", L, 8), ("T", T, 8)):
        fits = isinstance(array, LocalArray) and array.ndim == 1 and array.size >= least
        if not fits or array.dtype != np.float32:
            raise TypeError(f"start_product: {name} must be a local array of {least} float32")
    if L is T:
        raise ValueError("start_product: L and T are one array, but must be two")
    if not isinstance(S, CheckedArray) or S.base >= GLOBAL or not S.host.flags.writeable:
        raise TypeError(f"start_product: {getattr(S, 'name', S)} must be a shared array")
    if not S.wide or S.ndim != 1:
        raise TypeError(f"start_product: {S.name} must have one dimension of float32")
