"""A wrong kernel for each kind of finding, and the same kernel mended: the site runs them all.

What is wrong with a kernel is told by the :class:`Example` below it, which the site prints beside
its source; so kernels have no docstrings here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, uint32

from convlab.device import (
    commit_copies,
    copy_async,
    fence_shared,
    finish_product,
    load4,
    start_product,
    wait_copies,
)

ALL = 0xFFFFFFFF
EXAMPLES: list[Example] = []


@dataclass(frozen=True)
class Example:
    """A kind of finding: what goes wrong, the wrong kernel and the mended one, their launch."""

    kind: str
    story: str
    mended_by: str
    wrong: Any
    mended: Any
    grid: int
    block: int
    arguments: Callable[[], list[Any]]


def _numbers(*sizes: int) -> Callable[[], list[Any]]:
    return lambda: [np.arange(size, dtype=np.float32) for size in sizes]


@cuda.jit
def doubled(a, b):
    i = cuda.grid(1)
    b[i] = 2 * a[i]


@cuda.jit
def doubled_mended(a, b):
    i = cuda.grid(1)
    if i < b.size:
        b[i] = 2 * a[i]


EXAMPLES.append(Example(
    "out of bounds",
    "40 numbers and blocks of 32 threads: the second block has 24 threads too many. On a GPU they "
    "write to whatever lies behind the array, and most often nothing seems to happen.",
    "A thread asks whether its number is one of the array's.",
    doubled, doubled_mended, 2, 32, _numbers(40, 40),
))  # fmt: skip


@cuda.jit
def every_four(a, b):
    i = cuda.grid(1)
    b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3] = load4(a, i)


@cuda.jit
def every_four_mended(a, b):
    i = cuda.grid(1)
    b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3] = load4(a, 4 * i)


EXAMPLES.append(Example(
    "misaligned",
    "One 128-bit load takes four numbers, and its address must be a multiple of 16 bytes. The "
    "index here counts fours, the array counts numbers. A GPU ends the program with an error that "
    "names no line.",
    "The index is a multiple of four.",
    every_four, every_four_mended, 1, 8, _numbers(32, 32),
))  # fmt: skip


@cuda.jit
def sums_of_rows(a, b):
    i = cuda.grid(1)
    totals = cuda.local.array(1, float32)
    for k in range(4):
        totals[0] += a[4 * i + k]
    b[i] = totals[0]


@cuda.jit
def sums_of_rows_mended(a, b):
    i = cuda.grid(1)
    totals = cuda.local.array(1, float32)
    totals[0] = float32(0)
    for k in range(4):
        totals[0] += a[4 * i + k]
    b[i] = totals[0]


EXAMPLES.append(Example(
    "uninitialised",
    "Local and shared memory begin with what the kernel before left there. On Numba's simulator "
    "they begin with zeros, so that this kernel passes every test there.",
    "The sum begins at zero.",
    sums_of_rows, sums_of_rows_mended, 1, 8, _numbers(32, 8),
))  # fmt: skip


@cuda.jit
def reversed_block(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    staged[i] = a[i]
    b[i] = staged[63 - i]


@cuda.jit
def reversed_block_mended(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    staged[i] = a[i]
    cuda.syncthreads()
    b[i] = staged[63 - i]


EXAMPLES.append(Example(
    "shared race",
    "Each thread reads what another one has written, and nobody waits. With two warps the answer "
    "depends on which comes first.",
    "A barrier between writing and reading.",
    reversed_block, reversed_block_mended, 1, 64, _numbers(64, 64),
))  # fmt: skip


@cuda.jit
def staged_copy(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    copy_async(staged, i, a, i, True)
    commit_copies()
    cuda.syncthreads()
    b[i] = staged[63 - i]


@cuda.jit
def staged_copy_mended(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    copy_async(staged, i, a, i, True)
    commit_copies()
    wait_copies(0)
    cuda.syncthreads()
    b[i] = staged[63 - i]


EXAMPLES.append(Example(
    "copy in flight",
    "An asynchronous copy goes on while the thread does. A barrier waits for threads, not for "
    "copies.",
    "Each thread waits for its own copies, then all wait for each other.",
    staged_copy, staged_copy_mended, 1, 64, _numbers(64, 64),
))  # fmt: skip


@cuda.jit
def sums_of_columns(a, b):
    S = cuda.shared.array(256, float32, alignment=16)
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    for k in range(8):
        L[k], T[k] = float32(1), float32(0)
    S[i], S[i + 128] = a[i], a[i + 128]
    cuda.syncthreads()
    start_product(D, L, T, S, 0, 8)
    finish_product(D, 8)
    b[i] = D[0]


@cuda.jit
def sums_of_columns_mended(a, b):
    S = cuda.shared.array(256, float32, alignment=16)
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    for k in range(8):
        L[k], T[k] = float32(1), float32(0)
    S[i], S[i + 128] = a[i], a[i + 128]
    fence_shared()
    cuda.syncthreads()
    start_product(D, L, T, S, 0, 8)
    finish_product(D, 8)
    b[i] = D[0]


EXAMPLES.append(Example(
    "not fenced",
    "Four warps multiply a matrix of ones by one in shared memory. Tensor cores read that by "
    "themselves, another way than threads do: a barrier alone does not make them see what was "
    "stored.",
    "Each thread fences what it has stored, then all wait for each other.",
    sums_of_columns, sums_of_columns_mended, 1, 128, _numbers(256, 128),
))  # fmt: skip


@cuda.jit
def sum_of_all(a, b):
    i = cuda.grid(1)
    b[0] += a[i]


@cuda.jit
def sum_of_all_mended(a, b):
    i = cuda.grid(1)
    cuda.atomic.add(b, 0, a[i])


EXAMPLES.append(Example(
    "global race",
    "Adding is reading, adding and writing. Two threads that read before either writes add only "
    "one of their numbers. No barrier helps across blocks.",
    "An atomic addition; better still one a block, after a reduction in shared memory.",
    sum_of_all, sum_of_all_mended, 2, 32, _numbers(64, 1),
))  # fmt: skip


@cuda.jit
def shifted(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < a.size:
        staged[i] = a[i]
        cuda.syncthreads()
        b[i] = staged[(i + 1) % a.size]


@cuda.jit
def shifted_mended(a, b):
    staged = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < a.size:
        staged[i] = a[i]
    cuda.syncthreads()
    if i < a.size:
        b[i] = staged[(i + 1) % a.size]


EXAMPLES.append(Example(
    "barrier divergence",
    "64 threads, 40 numbers: 24 threads never come to the barrier at which the others wait. A GPU "
    "may hang, or let them through.",
    "The barrier stands outside the branch, where all threads pass.",
    shifted, shifted_mended, 1, 64, _numbers(40, 40),
))  # fmt: skip


@cuda.jit
def sum_of_pairs(a, b):
    i = cuda.threadIdx.x
    if i % 2 == 0:
        b[i // 2] = a[i] + cuda.shfl_down_sync(ALL, a[i], 1)


@cuda.jit
def sum_of_pairs_mended(a, b):
    i = cuda.threadIdx.x
    neighbour = cuda.shfl_down_sync(ALL, a[i], 1)
    if i % 2 == 0:
        b[i // 2] = a[i] + neighbour


EXAMPLES.append(Example(
    "inactive lane",
    "A shuffle hands numbers from lane to lane of a warp. Its mask says that all 32 come, but half "
    "of them never do: what is read from them is anything.",
    "All lanes shuffle, half of them use what they got.",
    sum_of_pairs, sum_of_pairs_mended, 1, 32, _numbers(32, 16),
))  # fmt: skip


@cuda.jit
def left_neighbour(a, b):
    i = uint32(cuda.grid(1))
    b[i] = a[uint32(i - 1)]


@cuda.jit
def left_neighbour_mended(a, b):
    i = uint32(cuda.grid(1))
    if i > 0:
        b[i] = a[uint32(i - 1)]


EXAMPLES.append(Example(
    "wraps around",
    "Unsigned numbers make kernels faster, and know nothing below zero: the first thread's index "
    "becomes 4,294,967,295.",
    "Compare before subtracting.",
    left_neighbour, left_neighbour_mended, 1, 32, _numbers(32, 32),
))  # fmt: skip


@cuda.jit
def share_of_each(a, b):
    i = cuda.grid(1)
    b[i] = a[i] / a[0]


@cuda.jit
def share_of_each_mended(a, b):
    i = cuda.grid(1)
    if a[0] != 0:
        b[i] = a[i] / a[0]


EXAMPLES.append(Example(
    "division by zero",
    "Python raises an error, a GPU goes on with infinity or NaN, which is then found far from "
    "here, if at all.",
    "Guard the division.",
    share_of_each, share_of_each_mended, 1, 32, _numbers(32, 32),
))  # fmt: skip
