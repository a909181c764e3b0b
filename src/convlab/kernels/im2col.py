"""The im2col matrix: every window of the input written out.

``columns[k, n] = input[i, r, m * s_h + u * d_h - p_h, o * s_w + v * d_w - p_w]`` with
``n = (i * H_o + m) * W_o + o`` and ``k = (r * H_f + u) * W_f + v``: a row for each term of the
sums, a column for each output pixel. It is about H_f * W_f / (s_h * s_w) times as large as the
input. Rows are padded to a multiple of eight columns, 32 bytes, so that float4s are aligned and
each row begins with a sector of its own.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int64, uint32

from convlab.problem import ConvProblem
from convlab.stage import Buffer, Flat, Launch, blocks_for

THREADS = 256
LARGEST_32_BIT = 2**32 - 1


def pitch(columns: int) -> int:
    """Elements from one row of the matrix to the next: a multiple of eight."""
    return blocks_for(columns, 8) * 8


def index_type(largest: int) -> Any:
    """The type for numbers up to ``largest``: 32 bits where they suffice, which divide faster."""
    return uint32 if largest <= LARGEST_32_BIT else int64


def columns_buffer(problem: ConvProblem) -> Buffer:
    """The matrix's memory."""
    return Buffer("columns", (problem.K, pitch(problem.N)))


def im2col_launch(problem: ConvProblem, by_image: bool = False) -> Launch:
    """The plain im2col kernel, a thread for each element of the matrix.

    ``by_image`` writes a matrix for each image, one after the other and with no padding, instead of
    one whose rows go through all images.
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

        i, pixel = n // PIXELS, INDEX(n % PIXELS)
        r, u, v = k // (H_f * W_f), k % (H_f * W_f) // W_f, k % W_f
        i_h = pixel // W_o * s_h + u * d_h - p_h
        i_w = pixel % W_o * s_w + v * d_w - p_w
        value = float32(0)  # outside the image is padding, beyond the last window nothing
        if n < N and 0 <= i_h < H_i and 0 <= i_w < W_i:
            value = input[i, r, i_h, i_w]
        if BY_IMAGE:
            columns[(i * K + k) * PIXELS + pixel] = value
        else:
            columns[e] = value

    return im2col
