"""Two launches of one small block, which lesson 00b animates: a tile with its halo, a reduction."""

from __future__ import annotations

import numpy as np
from numba import cuda, float32

from convlab.tracing import LaunchTrace, trace

THREADS = 8
WITH_HALO = THREADS + 2


@cuda.jit
def sum_of_three(a, out):
    """Store in ``out[t]``, float32 ``[8]``, the sum of ``a[t]`` to ``a[t + 2]``, through shared
    memory."""
    tile = cuda.shared.array(WITH_HALO, float32)
    t = cuda.threadIdx.x
    tile[t + 1] = a[t + 1]
    if t == 0:
        tile[0] = a[0]
    if t == THREADS - 1:
        tile[THREADS + 1] = a[THREADS + 1]
    cuda.syncthreads()
    out[t] = tile[t] + tile[t + 1] + tile[t + 2]


@cuda.jit
def sum_by_halves(a, out):
    """Store in ``out[0]`` the sum of ``a``, float32 ``[8]``: in each round half of the threads
    add."""
    part = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    part[t] = a[t]
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            part[t] += part[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[0] = part[0]


def halo() -> LaunchTrace:
    """Return the trace of a block that adds each number and its two neighbours.

    The array ``a`` has one number more at each end than the block has threads.
    """
    return trace(sum_of_three, 1, THREADS, _numbers(WITH_HALO), np.zeros(THREADS, np.float32)).main


def reduction() -> LaunchTrace:
    """Return the trace of a block that adds up its numbers by halves."""
    return trace(sum_by_halves, 1, THREADS, _numbers(THREADS), np.zeros(1, np.float32)).main


def _numbers(count: int) -> np.ndarray:
    return np.arange(1, count + 1, dtype=np.float32)
