"""Kernels whose products have the matrix on the left in registers: right ones, and wrong ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, uint16, uint32

from convlab.device import (
    BYTES_16,
    fence_shared,
    load_pair,
    shifted_pair,
    start_product_bf16_registers,
    start_product_f16_registers,
    swizzled_piece,
    sync_threads_of,
    wait_products,
)
from kernels.cases import Case
from kernels.copy_engine import BFLOAT16, BYTES_1024, FLOAT16, bits_of, numbers_of

F = np.float32
TERMS, N_B, GROUPS = 64, 16, 2
START_OF = {FLOAT16: start_product_f16_registers, BFLOAT16: start_product_bf16_registers}


@cache
def make_multiply(dtype: str, terms: int) -> Any:
    """``multiply(a, b, c)``: ``c = a @ b.T`` for two warpgroups of 64 rows each and two panels,
    of whose terms the first ``terms`` count. Rows of ``a`` begin at odd numbers."""
    start = START_OF[dtype]
    SUMS, PANEL, PITCH, WORDS = N_B // 2, N_B * TERMS, 2 * TERMS + 1, terms // 4
    A_ROWS, B_PANELS = GROUPS * 64 * PITCH + 1, 2 * PANEL

    @cuda.jit
    def multiply(a, b, c):
        S = cuda.shared.array(B_PANELS, uint16, alignment=BYTES_1024)
        R = cuda.shared.array(A_ROWS, uint16, alignment=BYTES_16)
        D = cuda.local.array(SUMS, float32)
        A, next_A = cuda.local.array(16, uint32), cuda.local.array(16, uint32)
        t = cuda.threadIdx.x
        group, row = t // 128, t // 32 * 16 + t % 32 // 4
        for i in range(t, B_PANELS, GROUPS * 128):
            panel, n, k = i // PANEL, i // TERMS % N_B, i % TERMS
            S[panel * PANEL + swizzled_piece(n, k // 8) * 8 + k % 8] = b[n, panel * TERMS + k]
        fence_shared()
        cuda.syncthreads()
        for i in range(t % 128, 64 * PITCH, 128):
            R[group * 64 * PITCH + i] = a[group * 64 + i // PITCH, i % PITCH]
        sync_threads_of(1 + group, 128)
        for j in range(SUMS):
            D[j] = float32(0)
        for word in range(WORDS):
            k = word // 4 * 16 + word % 4 // 2 * 8 + t % 4 * 2 + 1
            at = (row + word % 2 * 8) * PITCH + k
            low, high = load_pair(R, at - at % 2), load_pair(R, at - at % 2 + 2)
            A[word] = shifted_pair(low, high, uint32(at % 2 * 16))
        start(D, 0, A, S, 0, N_B, terms)
        for word in range(WORDS):
            k = TERMS + word // 4 * 16 + word % 4 // 2 * 8 + t % 4 * 2 + 1
            at = (row + word % 2 * 8) * PITCH + k
            next_A[word] = uint32(R[at]) | uint32(R[at + 1]) << uint32(16)
        start(D, 0, next_A, S, PANEL, N_B, terms)
        wait_products(D, SUMS, 1)
        for word in range(WORDS):
            A[word] = uint32(0)
        start(D, 0, A, S, 0, N_B, terms)
        wait_products(D, SUMS, 0)
        for j in range(SUMS):
            c[row + j // 2 % 2 * 8, j // 4 * 8 + t % 4 * 2 + j % 2] = D[j]

    return multiply


def arguments_of(dtype: str) -> list[Any]:
    """Return random matrices of 16 bits, and where the product goes."""
    random = np.random.default_rng(51)
    a = bits_of(random.standard_normal((GROUPS * 64, 2 * TERMS + 1)), dtype)
    b = bits_of(random.standard_normal((N_B, 2 * TERMS)), dtype)
    return [a, b, np.zeros((GROUPS * 64, N_B), F)]


def product_of(arguments: list[Any], dtype: str, terms: int) -> Any:
    """Return the product of the first terms of each panel in float64."""
    a, b, _ = arguments
    some = np.arange(2 * TERMS) % TERMS < terms
    return numbers_of(a[:, 1:], dtype)[:, some] @ numbers_of(b, dtype)[:, some].T


# One warpgroup, one panel, with constants in place: what mistakes are made of.


def registers(a, b, c):  # type: ignore[no-untyped-def]
    S = cuda.shared.array(512, uint16, alignment=BYTES_1024)
    D = cuda.local.array(4, float32)
    A, next_A = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
    t = cuda.threadIdx.x
    for i in range(t, 512, 128):
        S[i] = b[i]
    fence_shared()
    cuda.syncthreads()
    for j in range(4):
        D[j] = float32(0)
        A[j], next_A[j] = a[t, j], a[t, 4 + j]
    start_product_f16_registers(D, 0, A, S, 0, 8, 16)
    start_product_f16_registers(D, 0, next_A, S, 0, 8, 16)
    wait_products(D, 4, 1)
    A[0] = uint32(0)
    wait_products(D, 4, 0)
    cuda.syncthreads()
    S[t] = uint16(0)
    for j in range(4):
        c[t, j] = D[j]


def _arguments() -> list[Any]:
    random = np.random.default_rng(52)
    words = bits_of(random.standard_normal((128, 16)), FLOAT16).view(np.uint32)
    return [words, bits_of(random.standard_normal(512), FLOAT16), np.zeros((128, 4), F)]


def _result(arguments: list[Any]) -> Any:
    words, b, _ = arguments
    thread = np.arange(128)
    row, lane = thread // 32 * 16 + thread % 32 // 4, thread % 4
    left = np.zeros((2, 64, 16))
    for product in range(2):
        for word in range(4):
            pairs = numbers_of(words[:, product * 4 + word].copy().view(np.uint16), FLOAT16)
            for e in range(2):
                column = lane * 2 + e + word // 2 * 8
                left[product, row + word % 2 * 8, column] = pairs.reshape(-1, 2)[:, e]
    n, k = np.divmod(np.arange(8 * 16), 16)
    right = numbers_of(b, FLOAT16)[n * 64 + (k // 8 ^ n % 8) * 8 + k % 8].reshape(8, 16)
    sums = left.sum(0) @ right.T
    return np.stack([sums[row + j // 2 * 8, lane * 2 + j % 2] for j in range(4)], 1)


REGISTERS = Case(
    cuda.jit(registers), block=128, arguments=_arguments, result=_result, capability=(9, 0)
)
START = "start_product_f16_registers(D, 0, A, S, 0, 8, 16)"
WAIT = "wait_products(D, 4, 0)"
WRONG = [
    REGISTERS.mistaken(
        "sums_read_before_the_wait", "uninitialised", "c[t, j] = D[j]", {WAIT: "pass"}
    ),
    REGISTERS.mistaken(
        "panel_overwritten_in_flight", "shared race", "S[t] = uint16(0)", {WAIT: "pass"},
        {"arguments": _arguments},
    ),
    REGISTERS.mistaken(
        "a_thread_stays_away", "inactive lane", "start_product_f16_registers",
        {START: ("if t != 77:", f"    {START}")},
    ),
    REGISTERS.mistaken(
        "panel_at_any_place", "misaligned", "start_product_f16_registers",
        {"S = cuda.shared.array(512, uint16, alignment=BYTES_1024)":
         "S = cuda.shared.array(1024, uint16, alignment=BYTES_1024)",
         START: "start_product_f16_registers(D, 0, A, S, 8, 8, 16)"},
    ),
    REGISTERS.mistaken(
        "a_half_of_A", "uninitialised", "start_product_f16_registers",
        {"A[j], next_A[j] = a[t, j], a[t, 4 + j]":
         ("if j < 2:", "    A[j] = a[t, j]", "next_A[j] = a[t, 4 + j]")},
    ),
    REGISTERS.mistaken(
        "not_fenced", "not fenced", "start_product_f16_registers", {"fence_shared()": "pass"}
    ),
]  # fmt: skip
