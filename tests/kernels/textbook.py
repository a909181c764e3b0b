"""Small kernels that every CUDA course has, to see on them what a trace says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32

from kernels.cases import Case

SIDE = 64  # of the matrices
TILE, ROWS = 32, 8
TALL, PADDED = (TILE, TILE), (TILE, TILE + 1)
THREADS = 128
BINS = 16


@cuda.jit
def copy(source, target):  # type: ignore[no-untyped-def]
    """Neighbouring threads copy neighbouring numbers."""
    i = cuda.grid(1)
    if i < target.size:
        target[i] = source[i]


@cuda.jit
def strided_copy(source, target):  # type: ignore[no-untyped-def]
    """Neighbouring threads read numbers that lie eight apart: a sector for each."""
    i = cuda.grid(1)
    if i < target.size:
        target[i] = source[8 * i]


@cuda.jit
def offset_copy(source, target):  # type: ignore[no-untyped-def]
    """Neighbours, from the second number on: a warp's 128 bytes reach into a fifth sector."""
    i = cuda.grid(1)
    if i < target.size:
        target[i] = source[i + 1]


@cuda.jit
def transpose(source, target):  # type: ignore[no-untyped-def]
    """Reads rows, writes columns: a sector for each number written."""
    x, y = cuda.grid(2)
    if y < source.shape[0] and x < source.shape[1]:
        target[x, y] = source[y, x]


@cuda.jit
def transpose_shared(source, target):  # type: ignore[no-untyped-def]
    """Through shared memory: rows on both sides; reading its columns, 32 lanes want one bank."""
    tile = cuda.shared.array(TALL, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    x0, y0 = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    for row in range(0, TILE, ROWS):
        tile[y + row, x] = source[y0 + y + row, x0 + x]
    cuda.syncthreads()
    for row in range(0, TILE, ROWS):
        target[x0 + y + row, y0 + x] = tile[x, y + row]


@cuda.jit
def transpose_padded(source, target):  # type: ignore[no-untyped-def]
    """A transpose with rows of 33 numbers: a column lies in 32 different banks."""
    tile = cuda.shared.array(PADDED, float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    x0, y0 = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    for row in range(0, TILE, ROWS):
        tile[y + row, x] = source[y0 + y + row, x0 + x]
    cuda.syncthreads()
    for row in range(0, TILE, ROWS):
        target[x0 + y + row, y0 + x] = tile[x, y + row]


@cuda.jit
def reduction(values, sums):  # type: ignore[no-untyped-def]
    """Each block's sum, by halves through shared memory."""
    partial = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    partial[t] = values[i] if i < values.size else float32(0)
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = partial[0]


@cuda.jit
def interleaved_reduction(values, sums):  # type: ignore[no-untyped-def]
    """A reduction with partners that move apart: more and more lanes access the same bank."""
    partial = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    partial[t] = values[i] if i < values.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < THREADS:
        left = 2 * step * t
        if left < THREADS:
            partial[left] += partial[left + step]
        cuda.syncthreads()
        step *= 2
    if t == 0:
        sums[cuda.blockIdx.x] = partial[0]


@cuda.jit
def histogram(values, counts):  # type: ignore[no-untyped-def]
    """Atomics: lanes with the same bin wait for each other."""
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(counts, values[i] % BINS, int32(1))


def case(kernel: Any, grid: tuple[int, ...], block: tuple[int, ...], *arrays: np.ndarray) -> Case:
    """A kernel and its launch; every launch gets new copies of the arrays."""
    return Case(kernel, grid, block, lambda: [array.copy() for array in arrays])


SIZE = 1000  # not a multiple of a block
LINE, THREAD = (-(-SIZE // THREADS),), (THREADS,)
NUMBERS, RESULT = np.arange(8 * SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)
SQUARE, PART = (SIDE // TILE, SIDE // TILE), (TILE, ROWS)
MATRICES = NUMBERS[: SIDE**2].reshape(SIDE, SIDE), np.zeros((SIDE, SIDE), np.float32)
SUMMED = NUMBERS[:SIZE], np.zeros(LINE, np.float32)
COUNTED = (np.arange(SIZE, dtype=np.int32) * 7) // 3, np.zeros(BINS, np.int32)
CASES = (
    case(copy, LINE, THREAD, NUMBERS[:SIZE], RESULT),
    case(strided_copy, LINE, THREAD, NUMBERS, RESULT),
    case(offset_copy, LINE, THREAD, NUMBERS[: SIZE + 1], RESULT),
    case(transpose, (SIDE // TILE, SIDE // ROWS), PART, *MATRICES),
    case(transpose_shared, SQUARE, PART, *MATRICES),
    case(transpose_padded, SQUARE, PART, *MATRICES),
    case(reduction, LINE, THREAD, *SUMMED),
    case(interleaved_reduction, LINE, THREAD, *SUMMED),
    case(histogram, LINE, THREAD, *COUNTED),
)
