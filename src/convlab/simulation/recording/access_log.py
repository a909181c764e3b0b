"""The access log of a launch, in execution order: two integers for each access.

An entry is an address and a site. Addresses are of the simulator's own making: shared memory from 0
on, then every global array at addresses of its own, with the same distances as in real memory. A
site is the address of the instruction, ``id(code) + offset``, plus 1 for a store: since Python 3.11
the instructions lie two bytes apart inside the code object, so each gets its own number at little
cost. Entries of atomics, of async copies and of wide accesses have negative sites, which also hold
the kind and the number of elements: :meth:`AccessLog.add`. If bytes are accessed as elements of
another size than their array's, through ``view`` or as fields of a record, the address carries that
size: :meth:`AccessLog.sized`. ``marks`` has the thread of each access: four numbers for each switch
to a thread, in one list, because tuples by the million would take longer to keep and to read. If
requests of warps are counted, ``paths`` has the path of each entry: threads access memory less
often than they begin iterations of loops, so noting paths at iterations would take longer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

GLOBAL = 1 << 20  # where the addresses of global memory begin; shared memory has less than this
READ, WRITE, ATOMIC = 0, 1, 2
# Flags of these: WIDE, in columns, for the elements of a wide access after its first; ISSUED where
# an async copy is issued and LANDED where it lands; LANDED also to reads by a warpgroup's tensor
# cores, which are not a thread's and so not a request; SETS to an atomic that only writes and to
# an access that all threads see at once.
WIDE, ISSUED, LANDED, SETS = 4, 8, 16, 32
EXCHANGE = ATOMIC + SETS
WARP = 32
WORD = 4  # bytes of a float32, of which all wide accesses are
SIZE_SHIFT = 40  # the bits of an address in the log from here on are the size of its element
NAME_SHIFT = 56  # and from here on the number of an array in dynamic shared memory
MOST_NAMES = 127
ITERATION_BITS = 32  # the lower bits of a path, which count the iterations of its innermost loop


@dataclass(frozen=True)
class Span:
    """The addresses of an array: ``start`` and ``end`` in bytes."""

    name: str
    start: int
    end: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    dtype: np.dtype

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    def split(self, address: int) -> tuple[tuple[int, ...], int]:
        """Return the index of the element at the address, or of the element before, and the bytes
        from that element's first byte to the address."""
        index = [0] * len(self.shape)
        rest = address - self.start
        for axis in sorted(range(len(index)), key=lambda axis: -abs(self.strides[axis])):
            step, last = abs(self.strides[axis]), self.shape[axis] - 1
            at = max(0, min(rest // step, last)) if step else 0
            index[axis] = at if self.strides[axis] >= 0 else last - at
            rest -= at * step
        return tuple(index), rest


@dataclass(frozen=True)
class DynamicArray:
    """An array in dynamic shared memory: its name, the id of the code that makes it, and the bytes
    of an element."""

    name: str
    code: int
    itemsize: int

    def element(self, address: int) -> str:
        """Return the name of the element there: ``S[3]``."""
        return f"{self.name}[{address // self.itemsize}]"


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the bytes from an element to the next along each axis, in C order."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class LoggedAccess(NamedTuple):
    """One access of a launch."""

    address: int
    site: int
    kind: int  # READ, WRITE or ATOMIC, its last two bits, plus WIDE, ISSUED, LANDED and SETS
    thread: int  # number in the launch
    block: int  # number in the launch
    warp: int  # block * 32 + the warp of the block
    phase: int  # barriers of the block before, counted on through the launch
    epoch: int  # barriers of the warp before
    path: int
    position: float  # in the launch
    # The number that a WRITE stores; for an ATOMIC that is not an update, its verb.
    value: object = None
    size: int = 0  # bytes


class Accesses(NamedTuple):
    """Accesses as columns: arrays of equal length, each as in :class:`LoggedAccess`."""

    address: np.ndarray
    site: np.ndarray
    kind: np.ndarray
    thread: np.ndarray
    block: np.ndarray
    warp: np.ndarray
    phase: np.ndarray
    epoch: np.ndarray
    path: np.ndarray
    position: np.ndarray
    value: np.ndarray
    size: np.ndarray

    @property
    def of_products(self) -> np.ndarray:
        """The mask of reads by a warpgroup's tensor cores."""
        return np.asarray((self.kind & 3 == READ) & (self.kind & LANDED != 0))

    def take(self, chosen: np.ndarray) -> Accesses:
        """Return the accesses at these positions, or those for which this mask is true."""
        return Accesses(*(column[chosen] for column in self))

    def rows(self, indices: np.ndarray | slice) -> Iterator[LoggedAccess]:
        """Give the accesses at these positions, each with a ``kind`` of two bits."""
        for row in zip(*(column[indices].tolist() for column in self), strict=True):
            access = LoggedAccess(*row)
            yield access._replace(kind=access.kind & 3)


def joined(parts: Sequence[Accesses]) -> Accesses:
    """Return the accesses of all parts, in their order."""
    return Accesses(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class LaunchClock:
    """The thread of a launch that runs, and the time in the launch."""

    def __init__(self, log: AccessLog | None, block_size: int) -> None:
        self.log, self.block_size = log, block_size
        self.thread = self.block_number = 0  # numbers in the block and in the grid
        self.first = 0  # the number in the launch of the block's first thread
        self.phase = 0  # barriers of blocks so far
        self.epochs: dict[int, int] = defaultdict(int)  # by thread of the launch

    @property
    def number(self) -> int:
        """The number in the launch of the thread that runs."""
        return self.first + self.thread

    @property
    def position(self) -> int:
        """The position of the next access in the launch."""
        return 0 if self.log is None else self.log.start + len(self.log.addresses)

    def access(self, kind: int, address: int = 0, site: int = 0) -> LoggedAccess:
        """Return an access of the running thread that is not in the log: its position is half-way
        between the last access and the next."""
        return LoggedAccess(
            address=address,
            site=site,
            kind=kind,
            thread=self.number,
            block=self.block_number,
            warp=self.block_number * WARP + self.thread // WARP,
            phase=self.phase,
            epoch=self.epochs[self.number],
            path=0,
            position=self.position - 0.5,
        )


@dataclass
class AccessLog:
    """The accesses of a launch since the log was last cleared; ``start`` is the number of those
    before. If it ``keeps_paths``, ``path`` is the path of the running thread."""

    block_size: int
    keeps_paths: bool = False
    path: int = 0
    start: int = 0
    addresses: list[int] = field(default_factory=list)
    sites: list[int] = field(default_factory=list)
    values: list[object] = field(default_factory=list)  # of the stores, in their order
    # Four numbers for each switch to a thread: first entry, thread, phase, epoch.
    marks: list[int] = field(default_factory=list)
    paths: list[int] = field(default_factory=list)  # of each entry; empty if not kept
    spans: list[Span] = field(default_factory=list)
    mixed: bool = False  # elements of several sizes share bytes
    dynamic: list[DynamicArray] = field(default_factory=list)  # of a block, in the same bytes
    dynamic_bytes: int = 0
    names: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    _columns: Accesses | None = None

    def add(
        self, address: int, site: int, kind: int, count: int = 1, values: Sequence[object] = ()
    ) -> None:
        """Add an entry of any kind, of ``count`` elements; ``values`` are those of a store. Arrays
        write usual loads and stores themselves, to be quick."""
        self.addresses.append(address)
        if self.keeps_paths:
            self.paths.append(self.path)
        self.sites.append(-(site << 13 | count << 6 | kind))
        if values:
            self.values.extend(values)

    def seen_by_all(self) -> None:
        """Note that all threads see the last access at once, like an atomic."""
        site = self.sites[-1]
        entry = -site if site < 0 else (site & ~1) << 13 | 1 << 6 | site & 1
        self.sites[-1] = -(entry | SETS)

    def sized(self, address: int, size: int) -> int:
        """Return an address for elements of ``size`` bytes in an array of another element size."""
        self.mixed = True
        named = address >> NAME_SHIFT << NAME_SHIFT
        return named + address % (1 << SIZE_SHIFT) + (size << SIZE_SHIFT)

    def named(self, array: DynamicArray) -> int:
        """Return the tag that the addresses of this array carry, by which the name is known through
        which dynamic shared memory is accessed."""
        self.dynamic.append(array)
        return min(len(self.dynamic) - 1, MOST_NAMES) << NAME_SHIFT

    def sizes(self, addresses: np.ndarray) -> np.ndarray:
        """Return the bytes of each access; takes the sizes out of the addresses."""
        if len({span.itemsize for span in self.spans}) == 1 and not self.mixed:
            return np.full(len(addresses), self.spans[0].itemsize)
        sizes = addresses >> SIZE_SHIFT
        addresses &= (1 << SIZE_SHIFT) - 1
        for span in self.spans:  # the first of several: others have sized addresses
            inside = (sizes == 0) & (addresses >= span.start) & (addresses < span.end)
            sizes[inside] = span.itemsize
        return sizes

    def clear(self) -> None:
        """Forget the accesses; the spans stay."""
        self.start += len(self.addresses)
        for column in (self.addresses, self.sites, self.values, self.marks, self.paths):
            column.clear()
        self._columns = None

    def forget_half_an_entry(self) -> None:
        """Keep only whole entries, after Ctrl-C in the middle of one."""
        self._cut(len(self.sites))
        try:
            self.columns()
        except ValueError:  # a store without its value
            self._cut(len(self.sites) - 1)

    def _cut(self, entries: int) -> None:
        """Forget the entries from that number on."""
        del self.addresses[entries:], self.sites[entries:], self.paths[entries:]
        self.marks[::4] = [min(first, entries) for first in self.marks[::4]]

    def columns(self) -> Accesses:
        """Return the entries as arrays, which callers share: the same ones until ``clear``."""
        if self._columns is not None:
            return self._columns
        sites = _array(self.sites)
        kinds, counts = (sites & 1).astype(np.int8), np.ones(len(sites), np.int64)
        special = np.flatnonzero(sites < 0)
        raw = -sites[special]
        sites &= ~1
        kinds[special], counts[special], sites[special] = raw & 63, raw >> 6 & 127, raw >> 13
        first, thread, phase, epoch = _array(self.marks).reshape(-1, 4).T
        block, of_block = np.divmod(thread, self.block_size)
        warp = block * WARP + of_block // WARP
        entries = np.diff(first, append=len(sites))  # of each mark
        where = (np.repeat(of, entries) for of in (thread, block, warp, phase, epoch))
        path = _array(self.paths) if self.keeps_paths else np.zeros(len(sites), np.int64)
        position = np.arange(self.start, self.start + len(sites))
        columns: list[np.ndarray] = [_array(self.addresses), sites, kinds, *where, path, position]
        if len(special):
            columns = [np.repeat(column, counts) for column in columns]
            number = within(counts)
            columns[0] += WORD * number
            columns[2][number > 0] |= WIDE
        if len(self.dynamic) > 1:  # the number of the array of each access
            self.names = columns[0] >> NAME_SHIFT
            columns[0] &= (1 << NAME_SHIFT) - 1
        size = self.sizes(columns[0])
        value = np.full(len(columns[0]), None)
        value[columns[2] & 3 == WRITE] = np.fromiter(self.values, object, len(self.values))
        self._columns = Accesses._make([*columns, value, size])
        return self._columns

    def span_at(self, address: int) -> Span:
        """Return the span of the array that holds the address. Of several views it is the last,
        preferably one with an element that begins there."""
        around = [span for span in reversed(self.spans) if span.start <= address < span.end]
        return next((s for s in around if s.split(address)[1] < s.itemsize), around[0])


def within(sizes: np.ndarray) -> np.ndarray:
    """Return 0, 1, ... below each of the sizes, one after the other."""
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray(np.arange(len(first)) - first)


def _array(numbers: list[int]) -> np.ndarray:
    return np.fromiter(numbers, np.int64, len(numbers))
