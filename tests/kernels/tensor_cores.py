"""Kernels that multiply by tensor cores, and what their results may be off by."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, uint32

from convlab.device import mma_tf32, split_tf32, to_tf32
from convlab.device.products import multiply_add

F32, F64 = np.float32, np.float64


@cuda.jit
def products(a, b, c, d):
    """``d[n] = a[n] @ b[n] + c[n]``, 16 x 8 by 8 x 8, a warp for each; nothing is rounded."""
    n, lane = cuda.blockIdx.x, cuda.threadIdx.x
    g, t = lane // 4, lane % 4
    x, y = 2 * t, 2 * t + 1
    left = a[n, g, t], a[n, g + 8, t], a[n, g, t + 4], a[n, g + 8, t + 4]
    right = b[n, t, g], b[n, t + 4, g]
    total = c[n, g, x], c[n, g, y], c[n, g + 8, x], c[n, g + 8, y]
    d[n, g, x], d[n, g, y], d[n, g + 8, x], d[n, g + 8, y] = mma_tf32(left, right, total)


@cuda.jit
def roundings(a, b):
    i = cuda.grid(1)
    if i < a.size:
        b[i] = to_tf32(a[i])


@cuda.jit
def splits(a, parts):
    i = cuda.grid(1)
    if i < a.size:
        parts[i, 0], parts[i, 1] = split_tf32(a[i])


# A matrix product as one would write it: blocks of 32 x 32 outputs and slices of 16 terms in shared
# memory, four warps with 16 x 16 outputs each. Rows are padded so that the 32 numbers of a
# fragment's load lie in 32 banks.
M_B, N_B, K_B = 32, 32, 16
THREADS = 128
PITCH_A, PITCH_B = K_B + 4, N_B + 8


@cuda.jit
def tf32_gemm(a, b, c):
    """``c = a @ b`` of any sizes, operands rounded to TF32, sums in float32."""
    S_A = cuda.shared.array((M_B, PITCH_A), float32)
    S_B = cuda.shared.array((K_B, PITCH_B), float32)
    sums = cuda.local.array((2, 4), float32)
    M, K, N = uint32(a.shape[0]), uint32(a.shape[1]), uint32(b.shape[1])
    m0, n0 = uint32(cuda.blockIdx.y * M_B), uint32(cuda.blockIdx.x * N_B)
    thread = uint32(cuda.threadIdx.x)
    warp, lane = uint32(thread // 32), uint32(thread % 32)
    g, t = uint32(lane // 4), uint32(lane % 4)
    row, column = uint32(warp // 2 * 16 + g), uint32(warp % 2 * 16)
    for j in range(2):
        for e in range(4):
            sums[j, e] = 0
    for k0 in range(0, K, K_B):
        for e in range(thread, M_B * K_B, THREADS):
            m, k = m0 + e // K_B, k0 + e % K_B
            S_A[e // K_B, e % K_B] = to_tf32(a[m, k]) if m < M and k < K else float32(0)
        for e in range(thread, K_B * N_B, THREADS):
            k, n = k0 + e // N_B, n0 + e % N_B
            S_B[e // N_B, e % N_B] = to_tf32(b[k, n]) if k < K and n < N else float32(0)
        cuda.syncthreads()  # the slices are there
        for k in range(0, K_B, 8):
            left = (
                S_A[row, k + t], S_A[row + 8, k + t],
                S_A[row, k + t + 4], S_A[row + 8, k + t + 4],
            )  # fmt: skip
            for j in range(2):
                n = column + 8 * j + g
                right = S_B[k + t, n], S_B[k + t + 4, n]
                total = sums[j, 0], sums[j, 1], sums[j, 2], sums[j, 3]
                total = mma_tf32(left, right, total)
                sums[j, 0], sums[j, 1], sums[j, 2], sums[j, 3] = total
        cuda.syncthreads()  # nobody fills them while others read
    for j in range(2):
        for e in range(4):
            m, n = m0 + row + e // 2 * 8, n0 + column + 8 * j + 2 * t + e % 2
            if m < M and n < N:
                c[m, n] = sums[j, e]


def gemm_shape(m: int, n: int) -> tuple[tuple[int, int], int]:
    """Grid and block."""
    return ((n + N_B - 1) // N_B, (m + M_B - 1) // M_B), THREADS


def cut(numbers: Any) -> Any:
    """Return the part of a float32 that a tensor core reads."""
    return (numbers.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def rounded(numbers: Any) -> Any:
    """The nearest numbers of TF32, by arithmetic: ties away from zero."""
    mantissa, exponent = np.frexp(numbers.astype(F64))
    nearest = np.sign(mantissa) * np.floor(np.abs(mantissa) * 2**11 + 0.5)
    return np.ldexp(nearest, exponent - 11)


def exact(a: Any, b: Any, c: Any) -> Any:
    """``a @ b + c`` of what a tensor core sees, in float64."""
    return cut(a).astype(F64) @ cut(b).astype(F64) + c.astype(F64)


def bound(a: Any, b: Any, c: Any) -> Any:
    """Return how far from that ``mma_tf32`` may be."""
    return 2.0**-20 * (np.abs(cut(a)).astype(F64) @ np.abs(cut(b)).astype(F64) + np.abs(c))


# Which parts of the filter's numbers meet which of the windows', in t03's order.
THREE_PRODUCTS = (("small", "large"), ("large", "small"), ("large", "large"))


@np.errstate(invalid="ignore", over="ignore")
def split_product(a: Any, b: Any, chain: int, products: Any = THREE_PRODUCTS) -> Any:
    """``a @ b`` of float32 as t03 computes it, to the bit: parts of ``8 * chain`` terms by tensor
    cores, added up by float32 additions."""
    step = 8 * chain
    more = -a.shape[1] % step  # zeros, up to whole steps
    left = dict(zip(("large", "small"), split(np.pad(a, ((0, 0), (0, more)))), strict=True))
    right = dict(zip(("large", "small"), split(np.pad(b, ((0, more), (0, 0)))), strict=True))
    total = np.zeros((len(a), b.shape[1]), F32)
    for k in range(0, a.shape[1], step):
        part = np.zeros_like(total)
        for at in range(k, k + step, 8):
            for of_a, of_b in products:
                part = multiply_add(left[of_a][:, at : at + 8], right[of_b][at : at + 8], part)
        total += part
    return total


def split(numbers: Any) -> tuple[Any, Any]:
    """Each number's two parts, by arithmetic."""
    large = rounded(numbers).astype(F32)
    return large, (numbers.astype(F64) - large.astype(F64)).astype(F32)


def random_products(count: int, seed: int, spread: int) -> list[Any]:
    return random_matrices(seed, spread, (count, 16, 8), (count, 8, 8), (count, 16, 8))


def random_matrices(seed: int, spread: int, *shapes: tuple[int, ...]) -> list[Any]:
    """Normal numbers times powers of two up to ``2**spread``, either way."""
    random, found = np.random.default_rng(seed), []
    for shape in shapes:
        powers = random.integers(-spread, spread, shape, endpoint=True)
        found.append(np.ldexp(random.standard_normal(shape), powers).astype(F32))
    return found
