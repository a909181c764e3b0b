"""Tensor cores that multiply the matrices of a warp or a warpgroup.

Tensor cores read a warpgroup's matrix on the right at some time between the line that starts a
product and the line that waits for it, and all four warps read all of it. So a write there is a
race unless a barrier lies between, even a write by the warpgroup's own threads: a thread knows only
that its own warp's part is done. A writer must also fence its writes, before the barrier that lets
tensor cores read. The log has the matrix as read where the product starts, and counts no request
for that read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    WRITE,
    Accesses,
    AccessLog,
    LaunchClock,
    LoggedAccess,
    joined,
)
from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.conflicts import Conflict
from convlab.simulation.threads.async_copies import is_shared
from convlab.simulation.threads.simulated_cuda import ALL_LANES, SimulatedCuda
from convlab.simulation.threads.waiting import (
    ALL_THREADS,
    MMA,
    ONE_PRODUCT,
    PRODUCT,
    PRODUCT_DONE,
    WaitingCall,
)

# A multiply-add is two operations; each lane has its part of the warp's.
OPERATIONS_OF_A_LANE = 2 * products.MULTIPLY_ADDS // WARP
# Of a warpgroup's product: three, or one, for each half of its terms.
INSTRUCTIONS = {PRODUCT: 6, ONE_PRODUCT: 2}
SIXTEEN = 16  # bytes, at a multiple of which the matrix on the right begins


@dataclass
class Product:
    """A product of a warpgroup: it reads the bytes from ``began.address`` to ``end``. ``began`` is
    the start by the last thread that came, ``last_phase`` the phase in which it was finished."""

    began: LoggedAccess
    end: int
    last_phase: float = math.inf


class UnderWay(NamedTuple):
    """A product that a thread has started and not finished: where its result goes."""

    target: LocalArray
    result: list[float]
    product: Product


NONE = Accesses(*(np.empty(0, np.int64) for _ in Accesses._fields))


class TensorCores:
    """The tensor cores of a launch: products of the threads of a warp or a warpgroup. ``on_fence``
    hears of fences."""

    def __init__(
        self,
        cuda: SimulatedCuda,
        clock: LaunchClock,
        arithmetic: Arithmetic | None,
        on_fence: Callable[[], None],
    ) -> None:
        self.used = False  # whether the kernel starts products of a warpgroup
        self._on_fence = on_fence
        self._cuda, self._clock, self._arithmetic = cuda, clock, arithmetic
        # By the thread's number in the launch and the id of the target; and, by block, warpgroup
        # and site, the products for which threads still come.
        self._under_way: dict[tuple[int, int], UnderWay] = {}
        self._coming: dict[tuple[int, int, int], Product] = {}
        # For the analysis of the log: the products in it, fences, and each last write to an address
        # in the pieces of the log before.
        self._all: list[Product] = []
        self._fences: list[LoggedAccess] = []
        self._written = NONE
        self.intrinsics: dict[object, Callable[..., object]] = {
            device.to_tf32: arithmetic.cast(products.rounded_to_tf32) if arithmetic else _to_tf32,
            device.mma_tf32: self.mma_tf32,
            device.fence_shared: self.fence,
            device.start_product: self.start,
            device.start_one_product: self.start_one,
            device.finish_product: self.finish,
        }

    def end_block(self) -> None:
        """Note that the products which the block's threads have not finished end in this phase, and
        forget them."""
        first, size, number = self._clock.first, self._clock.block_size, self._clock.block_number
        for key in [one for one in self._under_way if first <= one[0] < first + size]:
            self._under_way.pop(key).product.last_phase = self._clock.phase
        for coming in [one for one in self._coming if one[0] == number]:
            del self._coming[coming]

    # The intrinsics that a kernel calls.

    def mma_tf32(self, a: Sequence[float], b: Sequence[float], c: Sequence[float]) -> object:
        """``mma_tf32``: return this lane's four numbers of the product, once all 32 have come."""
        call = WaitingCall(MMA, site_of(1), products.checked_fragments(a, b, c), ALL_LANES)
        if self._arithmetic is None:
            return self._cuda.hub(call)
        self._arithmetic.count(OPERATIONS_OF_A_LANE)
        numbers = self._cuda.hub(call)
        assert isinstance(numbers, tuple)
        return tuple(map(self._arithmetic.counted, numbers))

    def fence(self) -> None:
        """``fence_shared``: note the fence of the thread."""
        self._on_fence()
        if self._clock.log is not None:
            self._fences.append(self._clock.access(WRITE))

    def start(
        self, D: LocalArray, L: LocalArray, T: LocalArray, S: CheckedArray, at: int, N: int
    ) -> None:
        """``start_product``: start the product once all 128 threads have come. No thread may write
        to ``D`` until the product is finished. Raises ``ValueError`` if threads read different
        matrices."""
        site = site_of(1)
        _check_product(PRODUCT, D, {"L": L, "T": T}, S, N)
        if L is T:
            raise ValueError("start_product: L and T are one array, but must be two")
        key, product, right = self._begun(PRODUCT, site, D, S, at, 2 * TERMS * N)
        brought = _registers(L, 8, site), _registers(T, 8, site), right
        self._meet(WaitingCall(PRODUCT, site, brought, ALL_THREADS), key, product, D, N)

    def start_one(self, D: LocalArray, A: LocalArray, S: CheckedArray, at: int, N: int) -> None:
        """``start_one_product``: start to add the product to ``D``, as ``start`` does."""
        site = site_of(1)
        _check_product(ONE_PRODUCT, D, {"A": A}, S, N)
        key, product, right = self._begun(ONE_PRODUCT, site, D, S, at, TERMS * N)
        brought = _registers(A, 8, site), right, _registers(D, N // 2, site)
        self._meet(WaitingCall(ONE_PRODUCT, site, brought, ALL_THREADS), key, product, D, N)

    def _begun(
        self, name: str, site: int, D: LocalArray, S: CheckedArray, at: int, count: int
    ) -> tuple[tuple[int, int, int], Product, np.ndarray]:
        """Note that the tensor cores read ``count`` numbers of B for this thread's product, and
        return the key of the call, the warpgroup's product and the numbers."""
        in_block = self._clock.thread
        if (self._clock.number, id(D)) in self._under_way:
            raise RuntimeError(f"{name}: the product before was not finished for {D.name}")
        S.check(at, site)
        S.check(at + count - 1, site)
        S.check_aligned((at,), SIXTEEN, site)
        address = S.first_address + at * S.itemsize
        began = self._clock.access(READ + LANDED, address, site)
        if self._clock.log is not None:
            share = count // WARPGROUP
            first = address + in_block % WARPGROUP * share * S.itemsize
            self._clock.log.add(S.tag + first, site, READ + LANDED, share)
        key = self._clock.block_number, in_block // WARPGROUP, site
        product = self._product_of_all(name, key, Product(began, address + count * S.itemsize))
        return key, product, S.host[at : at + count].copy()

    def _meet(
        self,
        call: WaitingCall,
        key: tuple[int, int, int],
        product: Product,
        D: LocalArray,
        N: int,
    ) -> None:
        """Wait for the other threads of the warpgroup; the product is then under way."""
        if self._arithmetic is not None:
            multiply_adds = INSTRUCTIONS[call.kind] * products.ROWS * TERMS // 2 * N // WARP
            self._arithmetic.count(2 * multiply_adds)
        result = self._cuda.hub(call)
        assert isinstance(result, list)
        if self._coming.get(key) is product:  # the next thread that comes starts another product
            del self._coming[key]
        D.cells[: N // 2] = [None] * (N // 2)
        self._under_way[self._clock.number, id(D)] = UnderWay(D, result, product)

    def _product_of_all(self, name: str, key: tuple[int, int, int], mine: Product) -> Product:
        """Return the warpgroup's product, which the first thread that comes makes. Raises
        ``ValueError`` if this thread reads another matrix."""
        product = self._coming.setdefault(key, mine)
        if product is mine:
            self._all.append(mine)
        begins = mine.began.address - product.began.address
        ends = mine.end - product.end
        if begins or ends:
            raise ValueError(
                f"{name}: all threads of a warpgroup multiply by the same part of S, but "
                f"this one's begins {begins} bytes after another's and ends {ends} after it"
            )
        product.began = mine.began
        return product

    def finish(self, D: LocalArray, N: int) -> None:
        """``finish_product``: wait for the product, and store it in ``D``. Raises ``RuntimeError``
        if none was started for ``D``."""
        site, name = site_of(1), getattr(D, "name", D)
        known = self._under_way.pop((self._clock.number, id(D)), None)
        if known is None or len(known.result) != N // 2:
            raise RuntimeError(f"finish_product: no product of {N} columns was started for {name}")
        if any(cell is not None for cell in D.cells[: N // 2]):
            raise RuntimeError(f"finish_product: {name} was written to before it was finished")
        self._cuda.hub(WaitingCall(PRODUCT_DONE, site, None, ALL_THREADS))
        D.cells[: N // 2] = known.result
        known.product.last_phase = self._clock.phase

    # Writes to matrices that tensor cores read, and writes that were not fenced.

    def look(self, log: AccessLog, whole: bool) -> Iterator[Conflict]:
        """Find conflicts of products with the accesses in the log. ``whole`` if the last block has
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
        """Find writes to a matrix while tensor cores may read it."""
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
        """Find reads by tensor cores without a fence of the writer between its write and the last
        barrier before the read. Accesses are in the order of addresses, then of time."""
        is_read = near.kind & 3 == READ
        last = np.maximum.accumulate(np.where(is_read, -1, np.arange(len(is_read))))
        reads = np.flatnonzero(is_read & (last >= 0))
        # An uninitialised read, or one with no barrier between, is a finding of its own.
        one, other = near.take(last[reads]), near.take(reads)
        chosen = (one.address == other.address) & (one.block == other.block)
        chosen &= one.phase < other.phase
        one, other = one.take(chosen), other.take(chosen)
        # The number of the writer's fences before the write, and before the barrier.
        size = 1 + max(self._clock.position, self._clock.phase)
        fences = sorted((f.thread, f.position, f.phase) for f in self._fences)
        who, position, phase = np.array(fences).reshape(-1, 3).T
        writer = one.thread * size
        before = np.searchsorted(who * size + position, writer + one.position, "right")
        in_time = np.searchsorted(who * size + phase, writer + other.phase, "left")
        late = np.flatnonzero(in_time <= before)
        for write, read in zip(one.rows(late), other.rows(late), strict=True):
            yield Conflict("not fenced", write, read)


def _to_tf32(value: float) -> float:
    """Round a number to TF32; registers hold Python's numbers."""
    return float(products.rounded_to_tf32(value))


def _check_product(
    name: str, D: LocalArray, left: dict[str, LocalArray], S: CheckedArray, N: int
) -> None:
    """Raise ``TypeError`` or ``ValueError`` for arguments that a GPU does not check."""
    products.check_width(N)
    sizes = {"D": (D, N // 2)} | {part: (array, 8) for part, array in left.items()}
    for part, (array, least) in sizes.items():
        fits = isinstance(array, LocalArray) and array.ndim == 1 and array.size >= least
        if not fits or array.dtype != np.float32:
            raise TypeError(f"{name}: {part} must be a local array of {least} float32")
    if not is_shared(S):
        raise TypeError(f"{name}: {getattr(S, 'name', S)} must be a shared array")
    if not S.wide or S.ndim != 1:
        raise TypeError(f"{name}: {S.name} must have one dimension of float32")


def _registers(array: LocalArray, count: int, site: int) -> list[float]:
    """Return the first numbers of an array that a thread has in registers."""
    numbers = array.cells[:count]
    if None in numbers:
        numbers = [array.part(n, site) for n in range(count)]
    return [float(number) for number in numbers]
