"""The GEMM of s03's stages: the filter matrix times the im2col matrix, both in memory.

The ladder from s05 to s09 shows how to make a GEMM fast; this one is s08's kernel, except that it
loads its right-hand side by float4 and without divisions, because that is a matrix in memory too.
``make_multiply`` and ``make_write`` also serve the stages from s11 on.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, uint32

from convlab.device import BYTES_16, gpu_only, load4, store4
from convlab.kernels.im2col import pitch
from convlab.problem import ConvProblem
from convlab.stage import Argument, Buffer, Flat, Launch, Tile, blocks_for

RUN = 4  # numbers that one instruction moves


def make_pack_filter(problem: ConvProblem, K_P: int, M_P: int, THREADS: int) -> Any:
    """The kernel that writes the filter as a K_P x M_P matrix, zeros beyond K x M."""
    M, K = problem.M, problem.K

    @cuda.jit
    def pack_filter(weight, packed):
        e = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        k, m = e // M_P, e % M_P
        if k < K_P:
            value = float32(0)
            if k < K and m < M:
                value = weight[m * K + k]
            packed[k, m] = value

    return pack_filter


def make_read(tile: Tile) -> Any:
    """Row k of the slices, shared memory to registers: run i of a thread is ROWS runs further on
    than run i - 1, so that a warp's threads read neighbouring runs."""
    M_T, N_T, ROWS, COLUMNS = tile.M_T, tile.N_T, tile.rows, tile.columns

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, k, ty, tx, R_F, R_I):
        for i in range(0, M_T, RUN):
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = load4(S_F, (k, ty * RUN + i * ROWS))
        for j in range(0, N_T, RUN):
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = load4(S_I, (k, tx * RUN + j * COLUMNS))

    return read


def make_multiply(tile: Tile) -> Any:
    """s07's outer product."""
    M_T, N_T = tile.M_T, tile.N_T

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    return multiply


def make_write(problem: ConvProblem, tile: Tile) -> Any:
    """A thread's outputs, registers to global memory, by fours where four columns lie together:
    where no run of four crosses into the next image."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T, ROWS, COLUMNS = tile.M_T, tile.N_T, tile.rows, tile.columns
    WHOLE_RUNS = PIXELS % RUN == 0
    STEP = RUN if WHOLE_RUNS else 1

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def write(R_O, bias, output, m0, n0, ty, tx):
        for j in range(0, N_T, RUN):
            for c in range(0, RUN, STEP):
                n = n0 + tx * RUN + j * COLUMNS + c
                if n < N:
                    i_n, pixel = n // PIXELS, n % PIXELS
                    for i in range(M_T):
                        m = m0 + ty * RUN + i // RUN * RUN * ROWS + i % RUN
                        if m < M:
                            at, b = (i_n * M + m) * PIXELS + pixel, bias[m]
                            if WHOLE_RUNS:
                                x, y, z, w = R_O[i, j], R_O[i, j + 1], R_O[i, j + 2], R_O[i, j + 3]
                                store4(output, at, (x + b, y + b, z + b, w + b))
                            else:
                                output[at] = R_O[i, j + c] + b

    return write


def check_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that runs of four do not fit."""
    tile.require(
        tile.M_T % RUN == 0 and tile.N_T % RUN == 0,
        "M_T and N_T must be multiples of 4, because four numbers move at a time",
    )
    tile.require(
        tile.threads % tile.N_B == 0,
        "its threads must be a multiple of N_B, because each fetches from one window",
    )


def packed_buffer(problem: ConvProblem, tile: Tile) -> Buffer:
    """The filter as s08 packs it: K x M with zeros up to whole tiles."""
    K_P = blocks_for(problem.K, tile.K_B) * tile.K_B
    M_P = blocks_for(problem.M, tile.M_B) * tile.M_B
    return Buffer("packed", (K_P, M_P))


def pack_launch(
    problem: ConvProblem,
    tile: Tile,
    make: Any = make_pack_filter,
    weight: Argument = Flat("weight"),  # noqa: B008  (frozen)
) -> Launch:
    """The kernel that packs the filter, its rows in the order in which ``make`` takes them."""
    K_P, M_P = packed_buffer(problem, tile).shape
    kernel = make(problem, K_P, M_P, tile.threads)
    grid = (blocks_for(K_P * M_P, tile.threads),)
    return Launch(kernel, grid, (tile.threads,), (weight, "packed"))


def product_launch(problem: ConvProblem, tile: Tile, output: Argument) -> Launch:
    """The product, written as an output tensor. Raises ``ValueError`` for an unsuited tile."""
    check_tile(tile)
    tile.require_shared_memory(tile.K_B * (tile.M_B + tile.N_B))
    return Launch(
        make_product(problem, tile),
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B)),
        block=(tile.threads,),
        arguments=(Flat("columns"), Flat("packed"), "bias", output),
    )


def make_product(problem: ConvProblem, tile: Tile) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    K, PITCH = problem.K, pitch(problem.N)
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, COLUMNS = tile.threads, tile.columns
    F_SLICE, I_SLICE, O_SHAPE = (K_B, M_B), (K_B, N_B), (M_T, N_T)
    M_RUNS, N_RUNS, M_P = M_B // RUN, N_B // RUN, blocks_for(problem.M, M_B) * M_B
    read, multiply, write = make_read(tile), make_multiply(tile), make_write(problem, tile)

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def matrix_product(columns, packed, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICE, float32, alignment=BYTES_16)
        R_F = cuda.local.array(M_T, float32)
        R_I = cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for k0 in range(0, K, K_B):
            for e in range(t, K_B * M_RUNS, THREADS):  # load
                k, row = e // M_RUNS, e % M_RUNS * RUN
                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))
            for e in range(t, K_B * N_RUNS, THREADS):
                k, column = e // N_RUNS, e % N_RUNS * RUN
                run = (float32(0), float32(0), float32(0), float32(0))
                if k0 + k < K and n0 + column < PITCH:
                    run = load4(columns, (k0 + k) * PITCH + n0 + column)
                store4(S_I, (k, column), run)
            cuda.syncthreads()  # nobody computes before all have fetched

            for k in range(K_B):  # compute
                read(S_F, S_I, k, ty, tx, R_F, R_I)
                multiply(R_F, R_I, R_O)
            cuda.syncthreads()  # nobody fetches the next slice over what others still read

        write(R_O, bias, output, m0, n0, ty, tx)

    return matrix_product
