"""Kernels as numba-cuda's documentation writes them, without its comments: they must run."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, int32

from kernels.cases import Case, F, floats, row_and

TPB = 16


@cuda.jit
def increment_by_one(an_array):
    tx = cuda.threadIdx.x
    ty = cuda.blockIdx.x
    bw = cuda.blockDim.x
    pos = tx + ty * bw
    if pos < an_array.size:
        an_array[pos] += 1


@cuda.jit
def increment_a_2D_array(an_array):
    x, y = cuda.grid(2)
    if x < an_array.shape[0] and y < an_array.shape[1]:
        an_array[x, y] += 1


@cuda.jit
def vec_add(a, b, c):
    tid = cuda.grid(1)
    size = len(c)
    if tid < size:
        c[tid] = a[tid] + b[tid]


@cuda.jit
def matmul(A, B, C):
    i, j = cuda.grid(2)
    if i < C.shape[0] and j < C.shape[1]:
        tmp = 0.0
        for k in range(A.shape[1]):
            tmp += A[i, k] * B[k, j]
        C[i, j] = tmp


@cuda.jit
def fast_matmul(A, B, C):
    sA = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    sB = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    x, y = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    bpg = cuda.gridDim.x
    tmp = float32(0.0)
    for i in range(bpg):
        sA[ty, tx] = 0
        sB[ty, tx] = 0
        if y < A.shape[0] and (tx + i * TPB) < A.shape[1]:
            sA[ty, tx] = A[y, tx + i * TPB]
        if x < B.shape[1] and (ty + i * TPB) < B.shape[0]:
            sB[ty, tx] = B[ty + i * TPB, x]
        cuda.syncthreads()
        for j in range(TPB):
            tmp += sA[ty, j] * sB[j, tx]
        cuda.syncthreads()
    if y < C.shape[0] and x < C.shape[1]:
        C[y, x] = tmp


@cuda.jit
def array_sum(data):
    tid = cuda.threadIdx.x
    size = len(data)
    if tid < size:
        i = cuda.grid(1)
        shr = cuda.shared.array(64, int32)
        shr[tid] = data[i]
        cuda.syncthreads()
        s = 1
        while s < cuda.blockDim.x:
            if tid % (2 * s) == 0:
                shr[tid] += shr[tid + s]
            s *= 2
            cuda.syncthreads()
        if tid == 0:
            data[tid] = shr[tid]


@cuda.jit
def max_example(values, result):
    tid = cuda.threadIdx.x
    bid = cuda.blockIdx.x
    bdim = cuda.blockDim.x
    i = (bid * bdim) + tid
    cuda.atomic.max(result, 0, values[i])


@cuda.jit
def max_example_3d(result, values):
    i, j, k = cuda.grid(3)
    cuda.atomic.max(result, (0, 1, 2), values[i, j, k])


@cuda.jit(device=True)
def a_device_function(a, b):
    return a + b


@cuda.jit
def calls_a_device_function(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = a_device_function(x[i], math.sqrt(x[i]))


@cuda.jit
def dynamic_shared_memory(x):
    f32_arr = cuda.shared.array(0, dtype=np.float32)
    i = cuda.threadIdx.x
    f32_arr[i] = x[i]
    cuda.syncthreads()
    x[i] = f32_arr[cuda.blockDim.x - 1 - i]


@cuda.jit
def heat_step(k, buf_0, buf_1):
    i = cuda.grid(1)
    if i < len(buf_0):
        next_temp = buf_0[i]
        if i > 0 and i < len(buf_0) - 1:
            next_temp = buf_0[i] + k * (buf_0[i - 1] - (2 * buf_0[i]) + buf_0[i + 1])
        buf_1[i] = next_temp


def _heat(a: list) -> np.ndarray:
    x = a[1].copy()
    x[1:-1] += a[0] * (x[:-2] - 2 * x[1:-1] + x[2:])
    return x


DOCUMENTED = [
    Case(increment_by_one, 3, 32, floats(80), result=lambda a: a[0] + 1),
    Case(increment_a_2D_array, (2, 2), (4, 4), floats((7, 6)), result=lambda a: a[0] + 1),
    Case(vec_add, 2, 32, floats(50, 50, 50), result=lambda a: a[0] + a[1]),
    Case(matmul, (2, 2), (4, 4), floats((7, 5), (5, 8), (7, 8)), result=lambda a: a[0] @ a[1]),
    Case(fast_matmul, (2, 2), (16, 16), floats((23, 7), (7, 23), (23, 23)),
         result=lambda a: a[0] @ a[1]),
    Case(array_sum, 1, 64, lambda: [np.arange(64, dtype=np.int32)],
         result=lambda a: [2016, *range(1, 64)]),
    Case(max_example, 4, 16, row_and(np.zeros(1, F)), result=lambda a: [63]),
    Case(max_example_3d, (2, 2, 2), (2, 2, 2),
         lambda: [np.zeros((1, 2, 3), F), np.arange(64, dtype=F).reshape(4, 4, 4)],
         result=lambda a: a[1]),
    Case(calls_a_device_function, 2, 32, floats(50, 50), result=lambda a: a[0] + np.sqrt(a[0])),
    Case(dynamic_shared_memory, 1, 64, floats(64), result=lambda a: a[0][::-1], shared_bytes=256),
    Case(heat_step, 2, 32, lambda: [F(0.25), *floats(50, 50)()], result=_heat),
]  # fmt: skip
