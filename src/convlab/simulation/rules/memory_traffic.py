"""From accesses of threads to requests of warps, and what memory does for a request.

A request is one memory instruction that the lanes of a warp execute together, each with an address.
Lanes belong together when they are at the same instruction on the same path (:class:`Paths` of
:mod:`convlab.simulation.recording.loops`) between the same barriers, for the same time there:
this count tells the iterations of a loop over anything but ``range`` apart, and those of a
``while`` in a function without source.

- Global memory moves in sectors of 32 bytes that begin at multiples of 32. A request takes as many
  as its lanes touch, however few bytes of each they want (CUDA C++ Best Practices Guide,
  "Coalesced Access to Global Memory").
- Shared memory has 32 banks, each four bytes wide: word w lies in bank w % 32. In one wavefront a
  bank gives one word, to as many lanes as want it (CUDA C++ Programming Guide, "Shared Memory").
  Lanes of up to 4 bytes are served together; of 8 bytes, first lanes 0-15, then 16-31; of 16 bytes,
  a quarter of the warp at a time. Loads of 8 and 16 bytes are served twice as many lanes at a time
  where each lane wants the same as its neighbour (lane ^ 1), or each the same as the next but one
  (lane ^ 2). NVIDIA documents none of the last two sentences; they are what the counters of an
  H200 showed for every one of 415 patterns (docs/notes/measurements.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from typing import cast

import numpy as np

from convlab.simulation.recording.access_log import (
    ATOMIC,
    GLOBAL,
    ISSUED,
    ITERATION_BITS,
    LANDED,
    READ,
    WIDE,
    WRITE,
    Accesses,
    AccessLog,
    within,
)
from convlab.simulation.recording.access_log import (
    WARP as WARP,  # tracing and lessons have it from here
)
from convlab.simulation.recording.sites import Sites

SECTOR_BYTES = 32
WORD_BYTES, BANKS = 4, 32
WAVEFRONT_BYTES = WORD_BYTES * BANKS
KEY_BITS = 63  # of an int64 that is not negative


def changes(*keys: np.ndarray) -> np.ndarray:
    """Return the mask of the entries that differ from the entry before in any of the sorted
    keys."""
    new = np.zeros(len(keys[0]), bool)
    new[:1] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return new


def packed(*keys: np.ndarray) -> list[np.ndarray]:
    """Return fewer keys that sort as these integers do, because sorting takes time for each key.
    Neighbours share an integer as long as their ranges fit in it."""
    if not len(keys[0]):
        return list(keys)
    shared: list[np.ndarray] = []
    room = 0  # bits that the last one of them has left
    for key in keys:
        offset = key.astype(np.int64) - int(key.min())
        bits = int(offset.max()).bit_length()
        if shared and bits <= room:
            shared[-1] = shared[-1] << bits | offset
        else:
            shared.append(offset)
            room = KEY_BITS
        room -= bits
    return shared


def _sorted(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order that sorts by the first key, then the next, and the positions where
    different entries begin."""
    fewer = packed(*keys)
    order = np.lexsort(fewer[::-1])
    return order, np.flatnonzero(changes(*(key[order] for key in fewer)))


@dataclass(frozen=True)
class Requests:
    """The requests of some blocks, in the order in which they began.

    Four columns have an entry for each request: its ``site``, its ``kind`` (READ, WRITE or ATOMIC),
    its ``span``, the index of its array in the log's spans, and its ``warp``. The others have an
    entry for each lane: ``request`` is the number of the lane's request, in ascending order.
    """

    site: np.ndarray
    kind: np.ndarray
    span: np.ndarray
    warp: np.ndarray  # of the launch: block * 32 + warp of the block
    request: np.ndarray
    lane: np.ndarray
    address: np.ndarray
    width: np.ndarray  # bytes

    def __len__(self) -> int:
        return len(self.site)

    # All that follows has an entry a request: where its lanes begin, whether it is for global
    # memory, bytes a lane, lanes that take part, bytes of all lanes together.
    starts = cached_property(lambda r: np.searchsorted(r.request, np.arange(len(r))))
    is_global = cached_property(lambda r: r.address[r.starts] >= GLOBAL)
    widest = cached_property(lambda r: r.width[r.starts])
    lanes = cached_property(lambda r: np.bincount(r.request, minlength=len(r)))
    bytes_asked = cached_property(
        lambda r: np.bincount(r.request, r.width, minlength=len(r)).astype(np.int64)
    )

    @cached_property
    def bytes_wanted(self) -> np.ndarray:
        """The different bytes that each request accesses; bytes of several lanes count once."""
        order, starts = _sorted(self.request, self.address)
        one = order[starts]
        wanted = np.bincount(self.request[one], self.width[one], minlength=len(self))
        return wanted.astype(np.int64)

    @cached_property
    def sectors(self) -> np.ndarray:
        """The sectors of global memory of each request; 0 for requests for shared memory."""
        first = self.address // SECTOR_BYTES
        last = (self.address + self.width - 1) // SECTOR_BYTES
        straddle = last > first
        which = np.concatenate([self.request, self.request[straddle]])
        order, starts = _sorted(which, np.concatenate([first, last[straddle]]))
        found = np.bincount(which[order[starts]], minlength=len(self))
        return np.where(self.is_global, found, 0)

    @property
    def fewest_sectors(self) -> np.ndarray:
        """The sectors that each request would need if its bytes were neighbours; 0 for shared
        memory."""
        return np.where(self.is_global, -(-self.bytes_wanted // SECTOR_BYTES), 0)

    @cached_property
    def wavefronts(self) -> np.ndarray:
        """The wavefronts of shared memory of each request; 0 for requests for global memory."""
        near = ~self.is_global[self.request]
        lanes = (self.request, self.address, self.width, self.lane)
        request, address, width, lane = (column[near] for column in lanes)
        lanes_at_once = np.where(width <= 4, 32, np.where(width <= 8, 16, 8))
        pairs = (self.kind == READ) & _in_pairs(request, address, lane, len(self))
        lanes_at_once[(width > 4) & pairs[request]] *= 2
        group = request * 4 + lane // lanes_at_once
        words = -(-width // WORD_BYTES)
        which = np.repeat(group, words)
        word = np.repeat(address // WORD_BYTES, words) + within(words)
        order, starts = _sorted(which, word)
        bank = (which * BANKS + word % BANKS)[order[starts]]
        in_bank = np.bincount(bank, minlength=4 * len(self) * BANKS).reshape(len(self), 4, BANKS)
        return np.asarray(in_bank.max(axis=2).sum(axis=1))

    @property
    def fewest_wavefronts(self) -> np.ndarray:
        """The wavefronts that each request would need without bank conflicts, if its bytes were
        neighbours; 0 for global memory."""
        return np.where(self.is_global, 0, -(-self.bytes_wanted // WAVEFRONT_BYTES))

    @property
    def contention(self) -> np.ndarray:
        """The most lanes of each atomic request at one address, which access it one after the
        other; 0 for other requests."""
        order, starts = _sorted(self.request, self.address)
        most = np.zeros(len(self), np.int64)
        np.maximum.at(most, self.request[order[starts]], np.diff(starts, append=len(order)))
        return np.where(self.kind == ATOMIC, most, 0)


def _in_pairs(request: np.ndarray, address: np.ndarray, lane: np.ndarray, total: int) -> np.ndarray:
    """Return the mask of the requests in which each lane wants the same as lane ^ 1, or each the
    same as lane ^ 2."""
    nobody = -1
    wanted = np.full((total, WARP), nobody, np.int64)
    wanted[request, lane] = address
    found = np.zeros(total, bool)
    for step in (1, 2):
        other = wanted[:, np.arange(WARP) ^ step]
        found |= ((wanted == other) | (wanted == nobody) | (other == nobody)).all(axis=1)
    return found


def requests_of(log: AccessLog, sites: Sites, loads_of: Mapping[tuple[str, int], int]) -> Requests:
    """Return the requests that a log of whole blocks holds.

    ``loads_of`` has the width in bytes of a load from shared memory in the machine code, by file
    and line, as far as it is known: narrower loads of neighbours are then merged.
    """
    columns = log.columns()
    landed = columns.kind & LANDED != 0
    if landed.any():  # an async copy stores, as a request, where it is asked for
        columns = columns.take(~landed)
    begins = np.flatnonzero(columns.kind & WIDE == 0)
    elements = np.diff(begins, append=len(columns.kind))
    accesses = columns.take(begins) if len(begins) < len(columns.kind) else columns
    # An async copy loads and stores at one site: the store has a number of its own here, since
    # lanes that load nothing store too.
    one_each = sites.one_each(accesses.site) + (accesses.kind & ISSUED != 0)
    accesses = accesses._replace(site=one_each)
    span = np.zeros(len(begins), np.int64)
    for number, one in enumerate(log.spans):  # of views of the same memory the last one has it
        span[(accesses.address >= one.start) & (accesses.address < one.end)] = number
    width = elements * accesses.size
    if loads_of:
        keep, width = _merged(accesses, width, sites, loads_of)
        accesses, span, width = accesses.take(keep), span[keep], width[keep]
    warp, lane = accesses.warp, (accesses.thread - accesses.block * log.block_size) % WARP

    order, starts = _lanes_together(accesses, lane)
    begin = np.minimum.reduceat(order, starts) if len(order) else order
    by_begin = np.argsort(begin)
    first = begin[by_begin]
    lanes = np.diff(starts, append=len(order))[by_begin]
    by_request = order[np.repeat(starts[by_begin], lanes) + within(lanes)]
    request = np.repeat(np.arange(len(first)), lanes)
    kind = accesses.kind[first] & 3
    site = accesses.site[first] - (accesses.kind[first] & ISSUED != 0)
    of_lanes = (column[by_request] for column in (lane, accesses.address, width))
    return Requests(site, kind, span[first], warp[first], request, *of_lanes)


def _lanes_together(accesses: Accesses, lane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order that puts the lanes of each request next to each other, in ascending order,
    and the positions where requests begin in it."""
    _, site = np.unique(accesses.site, return_inverse=True)
    loop, iteration = accesses.path >> ITERATION_BITS, accesses.path % (1 << ITERATION_BITS)
    together = accesses.warp, accesses.phase, accesses.epoch, loop, iteration, site
    order = np.lexsort(packed(*together, lane)[::-1])
    lane = lane[order]
    new = changes(*(key[order] for key in packed(*together)))
    # How often a thread has been at the same instruction, on the same path, before.
    position, new_lane = np.arange(len(order)), changes(lane) | new
    time = position - np.maximum.accumulate(np.where(new_lane, position, 0))
    if time.any():
        group = np.cumsum(new)
        again = np.lexsort(packed(group, time, lane)[::-1])
        order, new = order[again], changes(group[again], time[again])
    return order, np.flatnonzero(new)


def _merged(
    accesses: Accesses, width: np.ndarray, sites: Sites, loads_of: Mapping[tuple[str, int], int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return loads from shared memory as the compiler merged them: the accesses that remain, and
    all widths. If a thread reads neighbours at one site between two barriers, only the first read
    remains, as wide as all of them."""
    width = width.copy()
    near = (accesses.kind == READ) & (accesses.address < GLOBAL)
    keep = np.ones(len(width), bool)
    for site in np.unique(accesses.site[near]).tolist():
        here = np.flatnonzero(near & (accesses.site == site))
        wide, narrow = loads_of.get(sites.line(site), 0), int(width[here[0]])
        if wide <= narrow:
            continue
        run, offset = np.divmod(accesses.address[here], wide)
        keys = accesses.thread[here], accesses.phase[here], run
        order = np.lexsort((offset, *keys))
        which = np.cumsum(changes(*(key[order] for key in keys))) - 1
        parts = wide // narrow
        read = np.bincount(which * parts + offset[order] // narrow, minlength=parts)
        read = np.append(read, np.zeros(-len(read) % parts, np.int64)).reshape(-1, parts)
        if (read == read[:, :1]).all():  # all of each run, equally often
            keep[here[offset > 0]] = False
            width[here] = wide
    return keep, width


@dataclass
class Counts:
    """The work of kernels. Loads, stores, barriers and ``global_bytes`` are counted for each
    thread: one access is one instruction, 32 or 128 bits wide; one barrier is one thread arriving
    at ``syncthreads``. The rest is counted for each request, a memory instruction of a whole warp:
    32-byte sectors of global memory, wavefronts of shared memory; None from an engine without
    warps."""

    global_loads: int = 0
    global_stores: int = 0
    shared_loads: int = 0
    shared_stores: int = 0
    barriers: int = 0
    global_bytes: int = 0
    global_requests: int | None = None
    global_sectors: int | None = None
    shared_requests: int | None = None
    shared_wavefronts: int | None = None

    def __add__(self, other: Counts) -> Counts:
        both = zip(astuple(self), astuple(other), strict=True)
        sums = [None if one is None or two is None else one + two for one, two in both]
        return Counts(*cast("list[int]", sums))

    def add(self, requests: Requests) -> None:
        """Count the requests of some blocks."""
        far, lanes = requests.is_global, requests.lanes
        loads, stores = requests.kind != WRITE, requests.kind != READ  # an atomic is both
        self.global_loads += int(lanes[loads & far].sum())
        self.global_stores += int(lanes[stores & far].sum())
        self.shared_loads += int(lanes[loads & ~far].sum())
        self.shared_stores += int(lanes[stores & ~far].sum())
        asked = requests.bytes_asked
        self.global_bytes += int(asked[loads & far].sum() + asked[stores & far].sum())
        self.global_requests = (self.global_requests or 0) + int(far.sum())
        self.global_sectors = (self.global_sectors or 0) + int(requests.sectors.sum())
        self.shared_requests = (self.shared_requests or 0) + int((~far).sum())
        self.shared_wavefronts = (self.shared_wavefronts or 0) + int(requests.wavefronts.sum())

    def as_dict(self, flops: int) -> dict[str, float | None]:
        """Return the counts and the ratios of them: ``flops_per_byte``, the problem's arithmetic
        over the bytes that threads request from global memory; ``sectors_per_request``,
        ``wavefronts_per_request``; and ``bytes_per_flop``, the bytes of the sectors that global
        memory moves, over the arithmetic. None where a divisor is 0."""
        moved = None if self.global_sectors is None else SECTOR_BYTES * self.global_sectors
        return {
            **asdict(self),
            "flops_per_byte": flops / self.global_bytes if self.global_bytes else 0.0,
            "sectors_per_request": _ratio(self.global_sectors, self.global_requests),
            "wavefronts_per_request": _ratio(self.shared_wavefronts, self.shared_requests),
            "bytes_per_flop": _ratio(moved, flops),
        }


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if whole and part is not None else None
