"""Two launches of one small block, which lesson 00b animates: a tile with its halo, a reduction."""

from __future__ import annotations

import numpy as np
from numba import cuda, float32

from convlab.tracing import LaunchTrace, trace

THREADS = 8
WITH_HALO = THREADS + 2


@cuda.jit
def sum_of_three(a, out):
    """Store in ``out[i]`` the sum of ``a[i - 1]`` to ``a[i + 1]``, through shared memory.

    The first and the last block do nothing, so no neighbour is missing.
    """
    tile = cuda.shared.array(WITH_HALO, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if cuda.blockIdx.x == 0 or cuda.blockIdx.x == cuda.gridDim.x - 1:
        return
    tile[t + 1] = a[i]
    if t == 0:
        tile[0] = a[i - 1]
    if t == THREADS - 1:
        tile[THREADS + 1] = a[i + 1]
    cuda.syncthreads()
    out[i] = tile[t] + tile[t + 1] + tile[t + 2]


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
    """Return the trace of a block, the second of three, that adds each number and its two
    neighbours."""
    a = _numbers(3 * THREADS)
    return trace(sum_of_three, 3, THREADS, a, np.zeros_like(a), block_shown=1).main


def reduction() -> LaunchTrace:
    """Return the trace of a block that adds up its numbers by halves."""
    return trace(sum_by_halves, 1, THREADS, _numbers(THREADS), np.zeros(1, np.float32)).main


def _numbers(count: int) -> np.ndarray:
    return np.arange(1, count + 1, dtype=np.float32)
