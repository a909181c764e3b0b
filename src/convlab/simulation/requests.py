"""From accesses of threads to requests of warps: the memory traffic of a launch.

A request is one memory instruction that the lanes of a warp execute together. Lanes belong
together when they are at the same instruction on the same path (:mod:`convlab.simulation.paths`)
between the same barriers, for the same time there: this count tells the iterations of a loop over
anything but ``range`` apart, and those of a ``while`` in a function without source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from convlab.simulation import memory_rules
from convlab.simulation.access_log import (
    ATOMIC,
    GLOBAL,
    ISSUED,
    LANDED,
    READ,
    WIDE,
    Accesses,
    AccessLog,
    Sites,
)  # fmt: skip
from convlab.simulation.memory_rules import WARP, Counts, changes


@dataclass(frozen=True)
class Requests:
    """The requests of some blocks, in the order in which they began.

    Three columns have an entry a request: its ``site``, its ``kind`` (READ, WRITE or ATOMIC) and
    its ``span``, the index of its array in the log's spans. The others have an entry a lane:
    ``request`` says whose, in ascending order.
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

    # Columns with an entry a request: where its lanes begin, whether it is for global memory, bytes
    # a lane, lanes that take part, bytes of all lanes together, the different ones among them.
    starts = cached_property(lambda r: np.searchsorted(r.request, np.arange(len(r))))
    is_global = cached_property(lambda r: r.address[r.starts] >= GLOBAL)
    widest = cached_property(lambda r: r.width[r.starts])
    lanes = cached_property(lambda r: np.bincount(r.request, minlength=len(r)))
    bytes_asked = cached_property(
        lambda r: np.bincount(r.request, r.width, minlength=len(r)).astype(np.int64)
    )
    bytes_wanted = cached_property(
        lambda r: memory_rules.bytes_wanted(r.request, r.address, r.width, len(r))
    )

    @cached_property
    def sectors(self) -> np.ndarray:
        """Sectors of global memory; 0 for requests for shared memory."""
        found = memory_rules.sectors(self.request, self.address, self.width, len(self))
        return np.where(self.is_global, found, 0)

    @property
    def fewest_sectors(self) -> np.ndarray:
        """Sectors that would hold the bytes wanted; 0 for requests for shared memory."""
        return np.where(self.is_global, memory_rules.fewest_sectors(self.bytes_wanted), 0)

    @cached_property
    def wavefronts(self) -> np.ndarray:
        """Wavefronts of shared memory; 0 for requests for global memory."""
        near = ~self.is_global[self.request]
        request, address, width, lane = (
            column[near] for column in (self.request, self.address, self.width, self.lane)
        )
        loads = self.kind == READ
        return memory_rules.wavefronts(request, address, width, lane, loads, len(self))

    @property
    def fewest_wavefronts(self) -> np.ndarray:
        """Wavefronts that the bytes wanted take at least; 0 for requests for global memory."""
        return np.where(self.is_global, 0, memory_rules.fewest_wavefronts(self.bytes_wanted))

    @property
    def contention(self) -> np.ndarray:
        """The most lanes at one address, for atomics; 0 for other requests."""
        found = memory_rules.contention(self.request, self.address, len(self))
        return np.where(self.kind == ATOMIC, found, 0)


def requests_of(
    log: AccessLog,
    sites: Sites,
    loads_of: Mapping[tuple[str, int], int] | None = None,
) -> Requests:
    """The requests that a log of whole blocks holds.

    ``loads_of`` says how many bytes a load from shared memory at a line (file and number) is wide
    in the machine code, where that is known: narrower loads of neighbours are then merged.
    """
    columns = log.columns()
    landed = columns.kind & LANDED != 0
    if landed.any():  # an async copy stores, as a request, where it is asked for
        columns = columns.take(~landed)
    begins = np.flatnonzero(columns.kind & WIDE == 0)
    elements = np.diff(begins, append=len(columns.kind))
    accesses = columns.take(begins)
    # An async copy loads and stores at one site: the store has a number of its own here, since
    # lanes that load nothing store too.
    one_each = sites.one_each(accesses.site) + (accesses.kind & ISSUED != 0)
    accesses = accesses._replace(site=one_each)
    span = np.zeros(len(begins), np.int64)
    for number, one in enumerate(log.spans):  # of views of the same memory the last one has it
        span[(accesses.address >= one.start) & (accesses.address < one.end)] = number
    sizes = np.array([one.itemsize for one in log.spans], np.int64)
    width = elements * sizes[span] if len(sizes) else elements
    if loads_of:
        accesses, span, width = _merged(accesses, span, width, sites, loads_of)
    warp, lane = accesses.warp, (accesses.thread - accesses.block * log.block_size) % WARP

    together = (accesses.site, accesses.path, accesses.epoch, accesses.phase)
    position = np.arange(len(width))
    order = np.lexsort((position, *together, accesses.thread))
    time = np.empty(len(width), np.int64)
    time[order] = _place_in_run(*(key[order] for key in (*together, accesses.thread)))

    order = np.lexsort((lane, time, *together, warp))
    new = changes(*(key[order] for key in (time, *together, warp)))
    begin = np.minimum.reduceat(position[order], np.flatnonzero(new)) if len(order) else position
    rank = np.empty(len(begin), np.int64)
    rank[np.argsort(begin)] = np.arange(len(begin))
    request = np.empty(len(width), np.int64)
    request[order] = rank[np.cumsum(new) - 1]

    first = np.sort(begin)
    by_request = np.lexsort((lane, request))
    kind = accesses.kind[first] & 3
    site = accesses.site[first] - (accesses.kind[first] & ISSUED != 0)
    return Requests(
        site, kind, span[first], warp[first],
        request[by_request], lane[by_request], accesses.address[by_request], width[by_request],
    )  # fmt: skip


def _merged(
    accesses: Accesses,
    span: np.ndarray,
    width: np.ndarray,
    sites: Sites,
    loads_of: Mapping[tuple[str, int], int],
) -> tuple[Accesses, np.ndarray, np.ndarray]:
    """Loads from shared memory as the compiler merged them: where a thread reads neighbours at one
    site between two barriers, only the first read remains, as wide as all of them."""
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
    return accesses.take(keep), span[keep], width[keep]


def tally(requests: Requests, counts: Counts) -> None:
    """Add what the requests are to the counts."""
    reads, writes = requests.kind == READ, requests.kind != READ
    reads |= requests.kind == ATOMIC  # does both
    far, lanes = requests.is_global, requests.lanes
    counts.global_loads += int(lanes[reads & far].sum())
    counts.global_stores += int(lanes[writes & far].sum())
    counts.shared_loads += int(lanes[reads & ~far].sum())
    counts.shared_stores += int(lanes[writes & ~far].sum())
    asked = requests.bytes_asked
    counts.global_bytes += int(asked[reads & far].sum() + asked[writes & far].sum())
    counts.add_requests(
        int(far.sum()),
        int(requests.sectors.sum()),
        int((~far).sum()),
        int(requests.wavefronts.sum()),
    )


def _place_in_run(*keys: np.ndarray) -> np.ndarray:
    """0, 1, 2, ... along each run of equal keys."""
    indices = np.arange(len(keys[0]))
    new = changes(*keys)
    return indices - np.maximum.accumulate(np.where(new, indices, 0))
