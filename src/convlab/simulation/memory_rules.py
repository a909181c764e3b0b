"""What memory does for one request of a warp: sectors of global memory, wavefronts of shared.

A request is one memory instruction of one warp: up to 32 lanes, each with an address.

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

from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

SECTOR_BYTES = 32
WORD_BYTES, BANKS = 4, 32
WARP = 32
PASS_BYTES = WORD_BYTES * BANKS


def changes(*keys: np.ndarray) -> np.ndarray:
    """Where any of the sorted keys is another than before."""
    new = np.zeros(len(keys[0]), bool)
    new[:1] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return new


def _sorted(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order that sorts by the first key, then the next, and where different ones begin."""
    order = np.lexsort(keys[::-1])
    return order, np.flatnonzero(changes(*(key[order] for key in keys)))


def _unique(*keys: np.ndarray) -> tuple[np.ndarray, ...]:
    """The different combinations, sorted."""
    order, starts = _sorted(*keys)
    return tuple(key[order[starts]] for key in keys)


def sectors(request: np.ndarray, address: np.ndarray, width: np.ndarray, total: int) -> np.ndarray:
    """How many sectors each of ``total`` requests takes. The first three have an entry a lane:
    which request, from which address on, how many bytes."""
    first, last = address // SECTOR_BYTES, (address + width - 1) // SECTOR_BYTES
    straddle = last > first
    which = np.concatenate([request, request[straddle]])
    which, _ = _unique(which, np.concatenate([first, last[straddle]]))
    return np.bincount(which, minlength=total)


def fewest_sectors(bytes_wanted: np.ndarray) -> np.ndarray:
    """How many would do, were the different bytes that each request wants neighbours."""
    return -(-bytes_wanted // SECTOR_BYTES)


def bytes_wanted(
    request: np.ndarray, address: np.ndarray, width: np.ndarray, total: int
) -> np.ndarray:
    """The number of different bytes that each request accesses; bytes of several lanes count
    once."""
    order, starts = _sorted(request, address)
    one = order[starts]
    return np.bincount(request[one], width[one], minlength=total).astype(np.int64)


def wavefronts(
    request: np.ndarray,
    address: np.ndarray,
    width: np.ndarray,
    lane: np.ndarray,
    loads: np.ndarray,
    total: int,
) -> np.ndarray:
    """How many wavefronts each of ``total`` requests takes. ``loads`` has an entry a request, the
    other arrays an entry a lane."""
    lanes_at_once = np.where(width <= 4, 32, np.where(width <= 8, 16, 8))
    twice = (width > 4) & (loads & _in_pairs(request, address, lane, total))[request]
    lanes_at_once = np.where(twice, 2 * lanes_at_once, lanes_at_once)
    group = request * 4 + lane // lanes_at_once
    words = -(-width // WORD_BYTES)
    which = np.repeat(group, words)
    starts = np.repeat(np.cumsum(words) - words, words)
    word = np.repeat(address // WORD_BYTES, words) + np.arange(len(which)) - starts
    which, word = _unique(which, word)
    bank = which * BANKS + word % BANKS
    in_bank = np.bincount(bank, minlength=4 * total * BANKS).reshape(total, 4, BANKS)
    return np.asarray(in_bank.max(axis=2).sum(axis=1))


def _in_pairs(request: np.ndarray, address: np.ndarray, lane: np.ndarray, total: int) -> np.ndarray:
    """Whether all lanes of a request want what lane ^ 1 wants, or all what lane ^ 2 wants."""
    nobody = -1
    wanted = np.full((total, WARP), nobody, np.int64)
    wanted[request, lane] = address
    found = np.zeros(total, bool)
    for step in (1, 2):
        other = wanted[:, np.arange(WARP) ^ step]
        found |= ((wanted == other) | (wanted == nobody) | (other == nobody)).all(axis=1)
    return found


def fewest_wavefronts(bytes_wanted: np.ndarray) -> np.ndarray:
    """How many would do without conflicts, were the different bytes wanted neighbours."""
    return -(-bytes_wanted // PASS_BYTES)


def contention(request: np.ndarray, address: np.ndarray, total: int) -> np.ndarray:
    """The most lanes of each request at one address: atomics there go one after the other."""
    order, starts = _sorted(request, address)
    most = np.zeros(total, np.int64)
    np.maximum.at(most, request[order[starts]], np.diff(starts, append=len(order)))
    return most


@dataclass
class Counts:
    """What kernels did. Loads, stores, barriers and ``global_bytes`` are counted per thread: one
    access is one instruction, 32 or 128 bits wide; one barrier is one thread arriving at
    ``syncthreads``. The rest is counted per request, a memory instruction of a whole warp: 32-byte
    sectors of global memory, wavefronts of shared memory; None from an engine that knows no warps.
    """

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
        sums: Any = (None if one is None or two is None else one + two for one, two in both)
        return Counts(*sums)

    def add_requests(self, far: int, sectors: int, near: int, wavefronts: int) -> None:
        """Count requests for global memory and their sectors, for shared memory and theirs."""
        self.global_requests = (self.global_requests or 0) + far
        self.global_sectors = (self.global_sectors or 0) + sectors
        self.shared_requests = (self.shared_requests or 0) + near
        self.shared_wavefronts = (self.shared_wavefronts or 0) + wavefronts

    def as_dict(self, flops: int) -> dict[str, float | None]:
        """The counts and what follows from them: ``flops_per_byte``, the problem's arithmetic over
        the bytes that threads ask of global memory; ``sectors_per_request``,
        ``wavefronts_per_request``; and ``bytes_per_flop``, the bytes of the sectors that global
        memory moves, over the arithmetic. None where there is nothing to divide by.
        """
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
