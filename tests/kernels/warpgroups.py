"""Kernels that multiply by warpgroups, and what they must give, by whole matrices."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, uint32

from convlab.device import (  # noqa: F401  for edits
    BYTES_16,
    commit_copies,
    copy_async,
    fence_shared,
    finish_product,
    split_tf32,
    start_one_product,
    start_product,
    to_tf32,
    wait_copies,
)
from convlab.device.products import multiply_add
from kernels.tensor_cores import F32, random_matrices, split

ROWS, TERMS, WARPGROUP = 64, 16, 128


@cache
def make_products(N: int, GROUPS: int = 1) -> Any:
    """``products(a, b, d)``: ``d[n] = a[n] @ b[n]``, 64 x 16 by 16 x N, a warpgroup for each and
    ``GROUPS`` of them in a block. Each puts its matrix on the right into shared memory itself."""
    SIZE, COUNT = 2 * TERMS * N, N // 2
    ALL = GROUPS * SIZE

    @cuda.jit
    def products(a, b, d):
        S = cuda.shared.array(ALL, float32, alignment=BYTES_16)
        D = cuda.local.array(COUNT, float32)
        L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
        group, t = uint32(cuda.threadIdx.x // WARPGROUP), uint32(cuda.threadIdx.x % WARPGROUP)
        n, first = uint32(cuda.blockIdx.x * GROUPS + group), uint32(group * SIZE)
        for e in range(t, TERMS * N, WARPGROUP):
            k, column = e // N, e % N
            at = first + k // 8 * (16 * N) + k // 4 % 2 * (4 * N) + column * 4 + k % 4
            S[at], S[at + 8 * N] = split_tf32(b[n, k, column])
        row, member = t // 32 * 16 + t % 32 // 4, t % 4
        for e in range(8):
            L[e], T[e] = split_tf32(a[n, row + e % 2 * 8, member + e // 2 * 4])
        fence_shared()
        cuda.syncthreads()
        start_product(D, L, T, S, first, N)
        finish_product(D, N)
        for j in range(N // 8):
            for e in range(4):
                d[n, row + e // 2 * 8, 8 * j + 2 * member + e % 2] = D[4 * j + e]

    return products


# Which parts of A and B the six instructions multiply, and from which term on, in their order.
SIX_PRODUCTS = (
    ("small", "large", 0), ("large", "small", 0),
    ("small", "large", 8), ("large", "small", 8),
    ("large", "large", 0), ("large", "large", 8),
)  # fmt: skip


@np.errstate(invalid="ignore", over="ignore")
def multiplied(a: Any, b: Any, products: Any = SIX_PRODUCTS) -> Any:
    """``a @ b`` as a warpgroup computes it, to the bit."""
    left = dict(zip(("large", "small"), split(a), strict=True))
    right = dict(zip(("large", "small"), split(b), strict=True))
    total = np.zeros((len(a), b.shape[1]), F32)
    for of_a, of_b, k in products:
        total = multiply_add(left[of_a][:, k : k + 8], right[of_b][k : k + 8], total)
    return total


@cache
def make_sums(N: int) -> Any:
    """``sums(a, b, d)``: ``d[n] += a[n] @ b[n]`` in TF32, 64 x 16 by 16 x N, a warpgroup for each.
    It adds the product twice, so that sums stay in ``D`` between two products."""
    SIZE, COUNT = TERMS * N, N // 2

    @cuda.jit
    def sums(a, b, d):
        S = cuda.shared.array(SIZE, float32, alignment=BYTES_16)
        D, A = cuda.local.array(COUNT, float32), cuda.local.array(8, float32)
        n, t = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        for e in range(t, SIZE, WARPGROUP):
            k, column = e // N, e % N
            S[k // 4 * (4 * N) + column * 4 + k % 4] = to_tf32(b[n, k, column])
        row, member = t // 32 * 16 + t % 32 // 4, t % 4
        for e in range(8):
            A[e] = to_tf32(a[n, row + e % 2 * 8, member + e // 2 * 4])
        for j in range(N // 8):
            for e in range(4):
                D[4 * j + e] = d[n, row + e // 2 * 8, 8 * j + 2 * member + e % 2]
        fence_shared()
        cuda.syncthreads()
        for _ in range(2):
            start_one_product(D, A, S, uint32(0), N)
            finish_product(D, N)
        for j in range(N // 8):
            for e in range(4):
                d[n, row + e // 2 * 8, 8 * j + 2 * member + e % 2] = D[4 * j + e]

    return sums


def summed(a: Any, b: Any, d: Any) -> Any:
    """``d + a @ b + a @ b`` as a warpgroup computes it, to the bit."""
    left, right = split(a)[0], split(b)[0]
    for k in (0, 8, 0, 8):
        d = multiply_add(left[:, k : k + 8], right[k : k + 8], d)
    return d


def random_pairs(count: int, N: int, seed: int, spread: int = 0) -> tuple[Any, Any]:
    """The matrices on the left and on the right."""
    return random_matrices(seed, spread, (count, ROWS, TERMS), (count, TERMS, N))


# For kernels whose products are not the point: A is the same everywhere, B is 256 numbers, N = 8
# columns, as they lie in shared memory.


@cuda.jit(device=True)
def fill(L, T):
    for k in range(8):
        L[k], T[k] = float32(1), float32(2)


def product_of_a_warpgroup(a, b):  # type: ignore[no-untyped-def]
    S = cuda.shared.array(256, float32, alignment=BYTES_16)
    L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
    D = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    fill(L, T)
    S[i], S[i + 128] = a[i], a[i + 128]
    fence_shared()
    cuda.syncthreads()
    start_product(D, L, T, S, 0, 8)
    finish_product(D, 8)
    b[i] = D[0]


# Its lines, for edits.
FENCE = "fence_shared()"
MATRIX = "S = cuda.shared.array(256, float32, alignment=BYTES_16)"
STORE = "S[i], S[i + 128] = a[i], a[i + 128]"
PAIR = "S[2 * i], S[2 * i + 1] = a[2 * i], a[2 * i + 1]"
START, FINISH = "start_product(D, L, T, S, 0, 8)", "finish_product(D, 8)"
RESULT = "b[i] = D[0]"


def first_sums(numbers: Any, of_large: int = 3, of_small: int = 1) -> Any:
    """``D[0]`` of the 128 threads then: how often B's large and its small parts count."""
    parts = numbers.reshape(2, 2, 2, 8, 4)  # terms // 8, part, terms // 4 % 2, column, term % 4
    large, small = (parts[:, part].sum((0, 1, 3)) for part in (0, 1))
    columns = of_large * large + of_small * small
    return columns[np.arange(WARPGROUP) % 4 * 2]
