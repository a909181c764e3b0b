"""im2col: every window of the input written out as a matrix, and a GEMM on it.

``columns[k, n] = input[i_n, i_c, i_h, i_w]`` with ``n = (i_n * H_o + o_h) * W_o + o_w``,
``k = (i_c * H_f + f_h) * W_f + f_w``, ``i_h = o_h * s_h + f_h * d_h - p_h`` and i_w likewise: a row
for each term of the sums, a column for each output pixel. It is about H_f * W_f / (s_h * s_w) times
as large as the input, so the images of a batch may go through in slices (:mod:`batch_slices`). Rows
are padded to a multiple of eight columns, 32 bytes, so that float4s are aligned and each row begins
where a sector begins.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from numba import cuda, float32, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, index_type, load4, store4
from convlab.ladder.layouts.filter_layout import require_float4
from convlab.ladder.stage import Buffer, Flat, Launch, Tile, blocks_for
from convlab.problems.problem import ConvProblem

THREADS = 256


def pitch(columns: int) -> int:
    """Elements from one row of the matrix to the next: a multiple of eight."""
    return blocks_for(columns, 8) * 8


def columns_buffer(problem: ConvProblem) -> Buffer:
    """The matrix's memory."""
    return Buffer("columns", (problem.K, pitch(problem.N)))


def im2col_launch(problem: ConvProblem, by_image: bool = False) -> Launch:
    """The plain im2col kernel, a thread for each element of the matrix.

    With ``by_image`` it writes a matrix for each image, one after the other and with no padding,
    instead of one matrix for all images.
    """
    width = problem.N if by_image else pitch(problem.N)
    kernel = make_im2col(problem, width, by_image)
    grid = (blocks_for(problem.K * width, THREADS),)
    return Launch(kernel, grid, (THREADS,), ("input", Flat("columns")))


def make_im2col(problem: ConvProblem, WIDTH: int, BY_IMAGE: bool) -> Any:
    """The kernel with the problem's shapes as constants."""
    p = problem
    N, K, PIXELS = p.N, p.K, p.H_o * p.W_o
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, W_o = p.H_f, p.W_f, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    INDEX = index_type(K * WIDTH + THREADS)

    @cuda.jit
    def im2col(input, columns):
        e = INDEX(uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x))
        k, n = uint32(e // WIDTH), e % WIDTH
        if k >= K:
            return

        i_n, pixel = n // PIXELS, INDEX(n % PIXELS)
        i_c, f_h, f_w = k // (H_f * W_f), k % (H_f * W_f) // W_f, k % W_f
        i_h = pixel // W_o * s_h + f_h * d_h - p_h
        i_w = pixel % W_o * s_w + f_w * d_w - p_w
        value = float32(0)  # outside the image is padding, beyond the last window nothing
        if n < N and 0 <= i_h < H_i and 0 <= i_w < W_i:
            value = input[i_n, i_c, i_h, i_w]
        if BY_IMAGE:
            columns[(i_n * K + k) * PIXELS + pixel] = value
        else:
            columns[e] = value

    return im2col


def product_launch(problem: ConvProblem, tile: Tile) -> Launch:
    """The filter matrix times the im2col matrix, written as an output tensor. Stages m03 to m08
    show how to make a GEMM fast. Raises ``ValueError`` for a tile that does not suit."""
    require_float4(tile)
    tile.require_shared_memory(tile.K_B * (tile.M_B + tile.N_B))
    return Launch(
        make_product(problem, tile),
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B)),
        block=(tile.threads,),
        arguments=(Flat("columns"), Flat("packed"), "bias", Flat("output")),
    )


@lru_cache(maxsize=32)  # one kernel for all stages
def make_product(problem: ConvProblem, tile: Tile) -> Any:
    """m06's kernel, except that the right-hand side is a matrix in memory, so this matrix is also
    loaded as float4s and without divisions."""
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
            cuda.syncthreads()  # all have fetched before any computes

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
            cuda.syncthreads()  # all have read this slice before any overwrites it

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
