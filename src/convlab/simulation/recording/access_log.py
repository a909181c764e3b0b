"""What a simulated launch did to memory, in the order in which it did: two integers an access.

An entry is an address and a site. Addresses are of the simulator's own making: shared memory from 0
on, then every global array at addresses of its own, with the same distances as in real memory. A
site is the address of the instruction, ``id(code) + offset``, plus 1 for a store: since Python 3.11
the instructions lie two bytes apart inside the code object, so each gets its own number at little
cost. Entries of atomics, of async copies and of wide accesses have negative sites, which hold the
kind and how many elements too: :meth:`AccessLog.add`. Where bytes are seen as elements of another
size than their array's, as through ``view`` or as fields of a record, the address carries that
size: :meth:`AccessLog.sized`. Which thread it was stands in ``marks``, once for each time that a
thread is switched to, as numbers in a row: tuples by the million would take longer to keep and to
read. Where requests of warps are asked for, ``paths`` has the path of each entry: threads access
memory less often than they begin iterations of loops, so noting it there would take longer.
"""

from __future__ import annotations

import builtins
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from convlab.simulation.recording.sites import is_iterated, site_of

GLOBAL = 1 << 20  # where the addresses of global memory begin; shared memory has less than this
READ, WRITE, ATOMIC = 0, 1, 2
# Added to these: WIDE, in columns, for what a wide access touches after its first element, ISSUED
# and LANDED where an async copy writes and where it lands, LANDED too to what a warpgroup's tensor
# cores read, which is no thread's and so no request, SETS to an atomic that only writes and to what
# all threads see at once.
WIDE, ISSUED, LANDED, SETS = 4, 8, 16, 32
EXCHANGE = ATOMIC + SETS
WARP = 32
WORD = 4  # bytes of a float32, of which all wide accesses are
SIZE_SHIFT = 40  # the bits of an address in the log above these are the bytes of its element
NAME_SHIFT = 56  # and above these the number of the array, of arrays in dynamic shared memory
MOST_NAMES = 127
ITERATION_BITS = 32  # the lower bits of a path, which count the iterations of its innermost loop


@dataclass(frozen=True)
class Span:
    """Where an array lies: ``start`` and ``end`` are addresses in bytes."""

    name: str
    start: int
    end: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    dtype: np.dtype[Any]

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def split(self, address: int) -> tuple[tuple[int, ...], int]:
        """The index of the element there, or of the one before, and how many bytes after its first
        one the address is."""
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
    """An array in dynamic shared memory: its name, the id of the code that asks for it, and how
    many bytes an element has."""

    name: str
    code: int
    itemsize: int

    def element(self, address: int) -> str:
        return f"{self.name}[{address // self.itemsize}]"


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Bytes from an element to the next along each axis, the last running first."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Access(NamedTuple):
    """One access of a launch."""

    address: int
    site: int
    kind: int  # READ, WRITE or ATOMIC, its last two bits, plus WIDE, ISSUED, LANDED and SETS
    thread: int  # of the launch, as the block and the warp: block * 32 + warp of the block
    block: int
    warp: int
    phase: int  # barriers of the block before, counted on through the launch
    epoch: int  # the same of the warp
    path: int
    position: float  # in the launch
    value: Any = None  # what a WRITE stores; what an ATOMIC does, in words, if it is no update
    size: int = 0  # bytes


class Accesses(NamedTuple):
    """Accesses as columns: arrays of equal length, each as in :class:`Access`."""

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
        """Which are reads by a warpgroup's tensor cores."""
        return np.asarray((self.kind & 3 == READ) & (self.kind & LANDED != 0))

    def take(self, chosen: np.ndarray) -> Accesses:
        """The accesses at these positions, or where this mask is true."""
        return Accesses(*(column[chosen] for column in self))

    def rows(self, indices: Any) -> Iterator[Access]:
        """The accesses at these positions, one by one, with a ``kind`` of two bits."""
        for row in zip(*(column[indices].tolist() for column in self), strict=True):
            access = Access(*row)
            yield access._replace(kind=access.kind & 3)


def joined(parts: Sequence[Accesses]) -> Accesses:
    """The accesses of all parts, in their order."""
    return Accesses(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Clock:
    """Which thread of a launch runs, and when."""

    def __init__(self, log: AccessLog | None, block_size: int) -> None:
        self.log, self.block_size = log, block_size
        self.thread = self.block_number = 0  # of the block, of the grid
        self.first = 0  # thread of the block, in the launch
        self.phase = 0
        self.epochs: dict[int, int] = defaultdict(int)  # by thread of the launch

    @property
    def number(self) -> int:
        """The number in the launch of the thread that runs."""
        return self.first + self.thread

    @property
    def position(self) -> int:
        """The next access's in the launch."""
        return 0 if self.log is None else self.log.start + len(self.log.addresses)

    def access(self, kind: int, address: int = 0, site: int = 0) -> Access:
        """What the running thread does now, half-way between the access before and the next."""
        block, epoch = self.block_number, self.epochs[self.number]
        warp = block * WARP + self.thread // WARP
        when = self.phase, epoch, 0, self.position - 0.5
        return Access(address, site, kind, self.number, block, warp, *when)


@dataclass
class AccessLog:
    """The accesses of a launch since it was last cleared; ``start`` came before. If it
    ``keeps_paths``, ``path`` is that of the running thread."""

    block_size: int
    keeps_paths: bool = False
    path: int = 0
    start: int = 0
    addresses: list[int] = field(default_factory=list)
    sites: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)  # of the stores, in their order
    # First entry, thread, phase, epoch, over and over.
    marks: list[int] = field(default_factory=list)
    paths: list[int] = field(default_factory=list)  # of each entry; empty if not kept
    spans: list[Span] = field(default_factory=list)
    mixed: bool = False  # elements of several sizes share bytes
    dynamic: list[DynamicArray] = field(default_factory=list)  # of a block, all in the same bytes
    dynamic_bytes: int = 0
    names: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    _columns: Accesses | None = None

    def add(
        self, address: int, site: int, kind: int, count: int = 1, values: Sequence[Any] = ()
    ) -> None:
        """An entry of any kind, of ``count`` elements; ``values`` are those of a store. Arrays
        write usual loads and stores themselves, to be quick."""
        self.addresses.append(address)
        if self.keeps_paths:
            self.paths.append(self.path)
        self.sites.append(-(site << 13 | count << 6 | kind))
        if values:
            self.values.extend(values)

    def seen_by_all(self) -> None:
        """Note that the last access is as good as an atomic one."""
        site = self.sites[-1]
        entry = -site if site < 0 else (site & ~1) << 13 | 1 << 6 | site & 1
        self.sites[-1] = -(entry | SETS)

    def sized(self, address: int, size: int) -> int:
        """The address for elements of ``size`` bytes in an array that has others."""
        self.mixed = True
        named = address >> NAME_SHIFT << NAME_SHIFT
        return named + address % (1 << SIZE_SHIFT) + (size << SIZE_SHIFT)

    def named(self, array: DynamicArray) -> int:
        """What the addresses of this array carry besides, so that it is known by which name dynamic
        shared memory is accessed."""
        self.dynamic.append(array)
        return min(len(self.dynamic) - 1, MOST_NAMES) << NAME_SHIFT

    def sizes(self, addresses: np.ndarray) -> np.ndarray:
        """How many bytes each access touches; takes the sizes out of the addresses."""
        if len({span.itemsize for span in self.spans}) == 1 and not self.mixed:
            return np.full(len(addresses), self.spans[0].itemsize)
        sizes = addresses >> SIZE_SHIFT
        addresses &= (1 << SIZE_SHIFT) - 1
        for span in self.spans:  # of several the first: later ones that differ have sized addresses
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
        """Have only whole entries, after Ctrl-C in the middle of one."""
        self._cut(len(self.sites))
        try:
            self.columns()
        except ValueError:  # a store without its value
            self._cut(len(self.sites) - 1)

    def _cut(self, entries: int) -> None:
        """Forget the entries from there on."""
        del self.addresses[entries:], self.sites[entries:], self.paths[entries:]
        self.marks[::4] = [min(first, entries) for first in self.marks[::4]]

    def columns(self) -> Accesses:
        """The entries as arrays, which several callers share: the same ones until ``clear``."""
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
        if len(self.dynamic) > 1:  # by number, which of them an access was to
            self.names = columns[0] >> NAME_SHIFT
            columns[0] &= (1 << NAME_SHIFT) - 1
        size = self.sizes(columns[0])
        value = np.full(len(columns[0]), None)
        value[columns[2] & 3 == WRITE] = np.fromiter(self.values, object, len(self.values))
        self._columns = Accesses._make([*columns, value, size])
        return self._columns

    def span_at(self, address: int) -> Span:
        """The array that holds the address. Of several views it is the last, preferably one with an
        element there."""
        around = [span for span in reversed(self.spans) if span.start <= address < span.end]
        return next((s for s in around if s.split(address)[1] < s.itemsize), around[0])


def within(sizes: np.ndarray) -> np.ndarray:
    """0, 1, ... below each of the sizes, one after the other."""
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray(np.arange(len(first)) - first)


def _array(numbers: list[int]) -> np.ndarray:
    return np.fromiter(numbers, np.int64, len(numbers))


# A GPU runs the lanes of a warp together: lanes that are in the same iteration of the same loops,
# in the same calls, execute an instruction at once, and wait for each other after a branch. A path
# is the number of such a position. Two lanes with equal paths are in equal iterations of all loops
# around them, so that one lane's third iteration is not taken for another's second. Each loop or
# call on a path has a multiple of 2**32, to which a loop adds the iteration.


class EndlessLoop(RuntimeError):
    """A loop that goes on when all iterations are used up: its site, its line of the source, and
    how many iterations it has had in one thread."""

    def __init__(self, site: int, iterations: int) -> None:
        super().__init__(site, iterations)
        self.site, self.iterations, self.code = site, iterations, ""

    def __str__(self) -> str:
        return f"the loop `{self.code}` does not end: a thread is in iteration {self.iterations:,}"


class Loops:
    """Counts the iterations of all loops, by all threads of any launches: ``left`` may be run.
    More of them are an error, or a finding if it ``finds``."""

    def __init__(self, left: int = 1 << 62, finds: bool = False) -> None:
        self.left, self.limit, self.finds = left, left, finds
        self._running: dict[int, list[int]] = {}  # site and iterations, by the list's id

    def range(self, *bounds: Any) -> Loop:
        """The ``range`` of a kernel whose loops are counted."""
        return Loop(self, site_of(1), builtins.range(*bounds))

    def endless(self, steps: Iterable[int], site: int) -> Loop:
        """Return the iterable of a ``while`` loop, which
        :mod:`convlab.simulation.language.rewritten_code` compiles as a ``for`` loop."""
        return Loop(self, site, steps)

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What calls a device function."""
        return function

    def run(self, site: int, steps: Iterable[int]) -> Iterator[int]:
        """The steps of one loop of one thread. Where none is left, the loop at fault is the one
        with the most iterations: it may be around the one that is here."""
        turn = [site, 0]
        self._running[id(turn)] = turn
        try:
            for step in steps:
                turn[1] += 1
                self.left -= 1
                if self.left < 0:
                    raise EndlessLoop(*max(self._running.values(), key=lambda turn: turn[1]))
                yield step
        finally:  # after `break` and `return` too
            del self._running[id(turn)]


class Paths(Loops):
    """The paths of a launch's threads. ``log.path`` is that of the running one; ``loops`` counts
    iterations, if it is given."""

    def __init__(self, log: AccessLog, loops: Loops | None) -> None:
        self._loops = loops
        self._log = log
        log.keeps_paths = True
        self._thread = 0
        self._of: dict[int, int] = defaultdict(int)  # by thread of the launch
        numbers = itertools.count(1 << ITERATION_BITS, 1 << ITERATION_BITS)
        # By the path outside and the site of a loop or call: where its own paths begin.
        self._inner: dict[tuple[int, int], int] = defaultdict(lambda: next(numbers))
        # The same by all sites that an instruction has; one of them stands for all in `_inner`
        # (:func:`~convlab.simulation.recording.sites.instruction`), but to find it takes time.
        self._known: dict[tuple[int, int], int] = {}

    def enter(self, thread: int) -> None:
        """Another thread runs from here on."""
        self._of[self._thread] = self._log.path
        self._thread = thread
        self._log.path = self._of[thread]

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A device function that knows where it was called."""
        log, inner, known, getframe = self._log, self._inner, self._known, sys._getframe

        def called(*arguments: Any) -> Any:
            outer, frame = log.path, getframe(1)
            here = outer, id(frame.f_code) + frame.f_lasti
            try:
                log.path = known[here]
            except KeyError:
                log.path = known[here] = inner[outer, site_of(1)]
            try:
                return function(*arguments)
            finally:
                log.path = outer

        return called

    def range(self, *bounds: Any) -> Any:
        """The ``range`` of a kernel: its noted steps at once where a ``for`` runs through it."""
        frame = sys._getframe(1)
        here = self._log.path, id(frame.f_code) + frame.f_lasti
        steps = builtins.range(*bounds)
        if (first := self._known.get(here)) is None:
            site = site_of(1)
            if self._loops is not None or not is_iterated(frame.f_code, frame.f_lasti):
                return Loop(self, site, steps)
            first = self._known[here] = self._inner[self._log.path, site]
        return self._noted(first, steps)

    def run(self, site: int, steps: Iterable[int]) -> Iterator[int]:
        """The steps of one loop of one thread, whose iterations are noted."""
        counted = steps if self._loops is None else self._loops.run(site, steps)
        return self._noted(self._inner[self._log.path, site], counted)

    def _noted(self, first: int, steps: Iterable[int]) -> Iterator[int]:
        """The steps, each on a path of its own from ``first`` on."""
        log = self._log
        outer = log.path
        try:
            # Every iteration of every thread comes by here, so nothing else is done.
            for log.path, step in enumerate(steps, first):
                yield step
        finally:  # after `break` and `return` too
            log.path = outer


class Loop:
    """A ``range`` whose iterations are noted."""

    __slots__ = ("_loops", "_site", "_steps")

    def __init__(self, loops: Loops, site: int, steps: Any) -> None:
        self._loops, self._site, self._steps = loops, site, steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> int:
        return int(self._steps[index])

    def __iter__(self) -> Iterator[int]:
        return self._loops.run(self._site, self._steps)
