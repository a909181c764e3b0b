"""The GEMM of s03's stages: the filter matrix times the im2col matrix, both in memory.

How a GEMM is made fast is the ladder's subject from s05 to s09. This is s08's kernel with one
difference: its right-hand side is a matrix in memory, so that it too is loaded as float4s and
without a division.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, uint32

from convlab.device import BYTES_16, gpu_only, load4, store4
from convlab.kernels.filter_layout import FLOAT4, require_float4
from convlab.kernels.im2col import pitch
from convlab.problem import ConvProblem
from convlab.stage import Argument, Flat, Launch, Tile, blocks_for


def product_launch(problem: ConvProblem, tile: Tile, output: Argument) -> Launch:
    """The product, written as an output tensor. Raises ``ValueError`` for an unsuited tile."""
    require_float4(tile)
    tile.require_shared_memory(tile.K_B * (tile.M_B + tile.N_B))
    return Launch(
        make_product(problem, tile),
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B)),
        block=(tile.threads,),
        arguments=(Flat("columns"), Flat("packed"), "bias", output),
    )


def make_product(problem: ConvProblem, tile: Tile) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    M, N, K, PITCH = problem.M, problem.N, problem.K, pitch(problem.N)
    PIXELS = problem.H_o * problem.W_o
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    F_SLICE, I_SLICE, O_SHAPE = (K_B, M_B), (K_B, N_B), (M_T, N_T)
    M_4, N_4, M_P = M_B // FLOAT4, N_B // FLOAT4, blocks_for(M, M_B) * M_B
    ALIGNED = PIXELS % FLOAT4 == 0  # no float4 of outputs crosses into the next image
    STEP = FLOAT4 if ALIGNED else 1

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
            for e in range(t, K_B * M_4, THREADS):  # load
                k, row = e // M_4, e % M_4 * FLOAT4
                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))
            for e in range(t, K_B * N_4, THREADS):
                k, column = e // N_4, e % N_4 * FLOAT4
                four = (float32(0), float32(0), float32(0), float32(0))
                if k0 + k < K and n0 + column < PITCH:
                    four = load4(columns, (k0 + k) * PITCH + n0 + column)
                store4(S_I, (k, column), four)
            cuda.syncthreads()  # nobody computes before all have fetched

            for k in range(K_B):  # compute
                for i in range(0, M_T, FLOAT4):
                    four = load4(S_F, (k, ty * FLOAT4 + i * ROWS))
                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four
                for j in range(0, N_T, FLOAT4):
                    four = load4(S_I, (k, tx * FLOAT4 + j * COLUMNS))
                    R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four
                for i in range(M_T):
                    for j in range(N_T):
                        R_O[i, j] += R_F[i] * R_I[j]
            cuda.syncthreads()  # nobody fetches the next slice over what others still read

        for j in range(0, N_T, FLOAT4):
            for c in range(0, FLOAT4, STEP):
                n = n0 + tx * FLOAT4 + j * COLUMNS + c
                if n < N:
                    i_n, o_p = n // PIXELS, n % PIXELS
                    for i in range(M_T):
                        m = m0 + ty * FLOAT4 + i // FLOAT4 * FLOAT4 * ROWS + i % FLOAT4
                        if m < M:
                            at, b = (i_n * M + m) * PIXELS + o_p, bias[m]
                            if ALIGNED:
                                x, y, z, w = R_O[i, j], R_O[i, j + 1], R_O[i, j + 2], R_O[i, j + 3]
                                store4(output, at, (x + b, y + b, z + b, w + b))
                            else:
                                output[at] = R_O[i, j + c] + b

    return matrix_product
