"""What a simulated launch did to memory, in the order in which it did: two integers an access.

An entry is an address and a site. Addresses are of the simulator's own making: shared memory from 0
on, then every global array at addresses of its own, with the same distances as in real memory. A
site is the address of the instruction, ``id(code) + offset``, plus 1 for a store: since Python 3.11
the instructions lie two bytes apart inside the code object, so each gets its own number at little
cost. Entries of atomics, of async copies and of wide accesses have negative sites, which hold the
kind and how many elements too: :meth:`AccessLog.add`. Which thread it was stands in ``marks``, once
for each time that a thread is switched to, and on which path in ``path_marks``. Both are numbers in
a row: tuples by the million would take longer to keep and to read.
"""

from __future__ import annotations

import dis
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np

GLOBAL = 1 << 20  # where the addresses of global memory begin; shared memory has less than this
READ, WRITE, ATOMIC = 0, 1, 2
# Added to these: WIDE, in columns, for what a wide access touches after its first element, ISSUED
# and LANDED where an async copy writes and where it lands, LANDED too to what a warpgroup's tensor
# cores read, which is no thread's and so no request, SETS to an atomic that only writes.
WIDE, ISSUED, LANDED, SETS = 4, 8, 16, 32
EXCHANGE = ATOMIC + SETS
WARP = 32
WORD = 4  # bytes of a float32, of which all wide accesses are


@dataclass(frozen=True)
class Span:
    """Where an array lies: ``start`` and ``end`` are addresses in bytes. Elements lie in C order
    unless ``strides`` says otherwise."""

    name: str
    start: int
    end: int
    shape: tuple[int, ...]
    itemsize: int
    strides: tuple[int, ...] | None = None
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))

    def index(self, address: int) -> tuple[int, ...]:
        """Which element that is, or the one before."""
        return self._split(address)[0]

    def has_element(self, address: int) -> bool:
        """Whether one lies there, and not in a gap between two."""
        return 0 <= self._split(address)[1] < self.itemsize

    def _split(self, address: int) -> tuple[tuple[int, ...], int]:
        """An element's index and how many bytes after its first one the address is."""
        strides = self.strides or c_strides(self.shape, self.itemsize)
        index = [0] * len(self.shape)
        rest = address - self.start
        for axis in sorted(range(len(index)), key=lambda axis: -abs(strides[axis])):
            step, last = abs(strides[axis]), self.shape[axis] - 1
            at = max(0, min(rest // step, last)) if step else 0
            index[axis] = at if strides[axis] >= 0 else last - at
            rest -= at * step
        return tuple(index), rest


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Bytes from an element to the next along each axis, the last running first."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Access(NamedTuple):
    """One access of a launch. ``kind`` is READ, WRITE or ATOMIC, which are its last two bits, plus
    WIDE, ISSUED, LANDED and SETS; ``value`` is what a WRITE stores, else None."""

    address: int
    site: int
    kind: int
    thread: int
    block: int
    warp: int
    phase: int
    epoch: int
    path: int
    position: int
    value: Any


class Accesses(NamedTuple):
    """Accesses as columns: arrays of equal length."""

    address: np.ndarray
    site: np.ndarray
    kind: np.ndarray
    thread: np.ndarray
    block: np.ndarray
    warp: np.ndarray  # of the launch: block * 32 + warp of the block
    phase: np.ndarray
    epoch: np.ndarray
    path: np.ndarray
    position: np.ndarray
    value: np.ndarray

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
    """The accesses of several logs."""
    return Accesses(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@dataclass
class AccessLog:
    """The accesses of a launch since it was last cleared; ``start`` came before."""

    block_size: int
    start: int = 0
    addresses: list[int] = field(default_factory=list)
    sites: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)  # of the stores, in their order
    # First entry, thread, phase, epoch, over and over: the phase counts barriers of the block, the
    # epoch those of the thread's warp, both on through the launch.
    marks: list[int] = field(default_factory=list)
    path_marks: list[int] = field(default_factory=list)  # first entry, path; empty if not kept
    spans: list[Span] = field(default_factory=list)
    _columns: Accesses | None = None
    _columns_of: int = 0  # so many entries

    @property
    def position(self) -> int:
        """The next access's in the launch."""
        return self.start + len(self.addresses)

    def add(self, address: int, site: int, kind: int, count: int = 1) -> None:
        """An entry of any kind, of ``count`` elements; the values of a store are the caller's to
        add. Arrays write usual loads and stores themselves, to be quick."""
        self.addresses.append(address)
        self.sites.append(-(site << 13 | count << 6 | kind))

    def clear(self) -> None:
        """Forget the accesses; the spans stay."""
        self.start = self.position
        for column in (self.addresses, self.sites, self.values, self.marks, self.path_marks):
            column.clear()
        self._columns = None

    def columns(self) -> Accesses:
        """The entries as read-only arrays, which several callers share."""
        if self._columns is None or self._columns_of != len(self.sites):
            self._columns, self._columns_of = self._made_columns(), len(self.sites)
            for column in self._columns:
                column.flags.writeable = False
        return self._columns

    def _made_columns(self) -> Accesses:
        sites = _array(self.sites)
        kinds, counts = (sites & 1).astype(np.int8), np.ones(len(sites), np.int64)
        special = np.flatnonzero(sites < 0)
        raw = -sites[special]
        sites &= ~1
        kinds[special], counts[special], sites[special] = raw & 63, raw >> 6 & 127, raw >> 13
        thread, phase, epoch = _spread(self.marks, 4, len(sites))
        block, within = np.divmod(thread, self.block_size)
        (path,) = _spread(self.path_marks or [0, 0], 2, len(sites))
        position = np.arange(self.start, self.position)
        columns: list[np.ndarray] = [
            _array(self.addresses), sites, kinds, thread, block, block * WARP + within // WARP,
            phase, epoch, path, position,
        ]  # fmt: skip
        if len(special):
            columns = [np.repeat(column, counts) for column in columns]
            within = np.arange(len(columns[0])) - np.repeat(np.cumsum(counts) - counts, counts)
            columns[0] += WORD * within
            columns[2][within > 0] |= WIDE
        value = np.full(len(columns[0]), None)
        value[columns[2] & 3 == WRITE] = np.fromiter(self.values, object, len(self.values))
        return Accesses._make([*columns, value])

    def span_at(self, address: int) -> Span:
        """The array that holds the address. Of several views it is the last, preferably one with an
        element there."""
        around = [span for span in reversed(self.spans) if span.start <= address < span.end]
        return next((span for span in around if span.has_element(address)), around[0])


def _array(numbers: list[int]) -> np.ndarray:
    return np.fromiter(numbers, np.int64, len(numbers))


def _spread(rows: list[int], width: int, entries: int) -> Iterator[np.ndarray]:
    """For each of ``entries`` what the row that begins at it or before says: its columns but the
    first, where the row begins. Rows have ``width`` numbers."""
    first, *columns = _array(rows).reshape(-1, width).T
    lengths = np.diff(first, append=entries)
    return (np.repeat(column, lengths) for column in columns)


class Sites:
    """Finds source lines and names for the sites of some functions."""

    def __init__(self, codes: Iterable[CodeType]) -> None:
        self._codes = {id(code): code for code in codes}

    def line(self, site: int) -> tuple[str, int]:
        """File and line."""
        if (code := self._code(site)) is None:
            return "?", 0
        return code.co_filename, line_at(code, site - id(code))

    def knows(self, code: CodeType) -> bool:
        """Whether sites in this code are found."""
        return id(code) in self._codes

    def one_each(self, sites: np.ndarray) -> np.ndarray:
        """The sites with one number for each instruction: see :func:`instruction`."""
        known, inverse = np.unique(sites, return_inverse=True)
        return np.array([self._one(int(site)) for site in known], np.int64)[inverse]

    def _one(self, site: int) -> int:
        code = self._code(site)
        return site if code is None else id(code) + instruction(code, site - id(code))

    def _code(self, site: int) -> CodeType | None:
        return self._codes.get(max((i for i in self._codes if i <= site), default=0))


@cache
def _lines(code: CodeType) -> dict[int, int]:
    starts: dict[int, int] = {}
    for begin, end, line in code.co_lines():
        starts.update(dict.fromkeys(range(begin, end, 2), line or code.co_firstlineno))
    return starts


def line_at(code: CodeType, offset: int) -> int:
    """The source line of an instruction."""
    return _lines(code).get(offset, code.co_firstlineno)


def instruction(code: CodeType, offset: int) -> int:
    """The offset that stands for an instruction. It has several: where Python has specialised it,
    calls come from its cache entries, and a ``while`` has its condition twice."""
    found = _by_id.get(id(code))
    if found is None:
        found = _by_id[id(code)] = _instructions(code)
        finalize(code, _by_id.pop, id(code), None)
    return found[offset]


_by_id: dict[int, dict[int, int]] = {}  # asked at every wide access; hashing code takes long


@cache
def _instructions(code: CodeType) -> dict[int, int]:
    first: dict[object, int] = {}
    stands_for: dict[int, int] = {}
    steps = list(dis.get_instructions(code))
    ends = [step.offset for step in steps[1:]] + [len(code.co_code)]
    for step, end in zip(steps, ends, strict=True):
        where = (step.positions, step.opname) if step.positions else step.offset
        one = first.setdefault(where, step.offset)
        stands_for.update(dict.fromkeys(range(step.offset, end), one))
    return stands_for


def site_of(depth: int) -> int:
    """The site in the function ``depth`` calls above the caller."""
    frame = sys._getframe(depth + 1)
    code, offset = frame.f_code, frame.f_lasti
    found = _by_id.get(id(code))  # `instruction`, written out
    return id(code) + (instruction(code, offset) if found is None else found[offset])


@cache
def assigned_name(code: CodeType, offset: int) -> str:
    """The variable that the result of the call at ``offset`` goes to: of the calls of ``.array``
    on that line the n-th goes to the n-th name that the line assigns to."""
    line = line_at(code, offset)
    here = [i for i in dis.get_instructions(code) if line_at(code, i.offset) == line]
    before = [i for i in here if i.offset < offset and i.argval in ("array", "array_like")]
    stores = [i for i in here if i.opname in ("STORE_FAST", "STORE_DEREF", "STORE_NAME")]
    # In the order of the source: the compiler swaps stores to spare swaps.
    stores.sort(key=lambda i: (i.positions and i.positions.col_offset) or 0)
    names = [i.argval for i in stores]
    ordinal = len(before) - 1
    return str(names[ordinal]) if 0 <= ordinal < len(names) else "an array without a name"
