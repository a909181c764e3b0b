"""The im2win tensor with channels innermost, as s11 reads it, and the filter packed to match.

s10's tensor keeps channels outermost, where windows start at any address. Here they go innermost:
``windows[i * H_o + m, k, u * C_i + r] = input[i, r, m * s_h + u * d_h - p_h, k - p_w]``, groups of
``G = H_f * C_i`` elements per column, rounded up to a multiple of four with zeros. All
``K_W = W_f * G`` elements of a window are then neighbours and start at a multiple of 16 bytes.
(With dilation in width, the columns of a window are d_w groups apart.)
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, uint32

from convlab.device import gpu_only
from convlab.problem import ConvProblem
from convlab.stages.base import Buffer, Launch, blocks_for
from convlab.stages.s10_im2win import window_columns

WARP = 32


def group_size(problem: ConvProblem) -> int:
    """G: elements per column of the im2win tensor, a multiple of four."""
    return blocks_for(problem.H_f * problem.C_i, 4) * 4


def windows_buffer(problem: ConvProblem) -> Buffer:
    """The tensor's memory: rows of the output x columns of the padded input x G."""
    rows = problem.N_i * problem.H_o
    return Buffer("windows", (rows, window_columns(problem), group_size(problem)))


def transform_launch(problem: ConvProblem, side: int) -> Launch:
    """The transform, square by square of at most ``side`` columns and elements of their groups."""
    side = min(side, WARP)  # narrower only where a simulator runs tiny tiles
    squares = problem.N_i * problem.H_o * blocks_for(window_columns(problem), side)
    return Launch(
        make_transform(problem, side),
        grid=(squares,),
        block=(side, side // 4),
        arguments=("input", "windows"),
    )


def make_transform(problem: ConvProblem, SIDE: int) -> Any:
    """Columns k are neighbours in the input, groups in the result. Both sides stay coalesced by
    going through shared memory in squares, filled row by row and emptied column by column."""
    p = problem
    _, C_i, H_i, W_i = p.input_shape
    H_f, H_o, W_w, G = p.H_f, p.H_o, window_columns(p), group_size(p)
    s_h, p_h, p_w, d_h = p.s_h, p.p_h, p.p_w, p.d_h
    SQUARE = (SIDE, SIDE + 1)  # one more, so that a column too lies in 32 banks
    ACROSS = blocks_for(W_w, SIDE)  # squares across a row
    STEP = SIDE // 4  # a thread moves four elements of each square

    @cuda.jit(**gpu_only(launch_bounds=SIDE * STEP))
    def im2win_transform(input, windows):
        square = cuda.shared.array(SQUARE, float32)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        image_row = uint32(cuda.blockIdx.x) // ACROSS
        k0 = uint32(cuda.blockIdx.x) % ACROSS * SIDE
        i, m = image_row // H_o, image_row % H_o
        for g0 in range(0, G, SIDE):
            for y in range(0, SIDE, STEP):
                g = uint32(g0 + y + ty)
                u, r = g // C_i, g % C_i
                i_h = m * s_h + u * d_h - p_h
                i_w = k0 + tx - p_w
                pixel = float32(0)
                if u < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:
                    pixel = input[i, r, i_h, i_w]
                square[y + ty, tx] = pixel
            cuda.syncthreads()  # nobody empties the square before all have filled it
            for y in range(0, SIDE, STEP):
                if k0 + y + ty < W_w and g0 + tx < G:
                    windows[image_row, k0 + y + ty, g0 + tx] = square[tx, y + ty]
            cuda.syncthreads()  # nobody fills it again before all have emptied it

    return im2win_transform


def make_pack_filter(problem: ConvProblem, K_P: int, M_P: int, THREADS: int) -> Any:
    """s08's packed filter in window order: packed[(v * H_f + u) * C_i + r, m], with G's zeros."""
    p = problem
    M, C_i, H_f, W_f, G = p.M, p.C_i, p.H_f, p.W_f, group_size(p)

    @cuda.jit
    def pack_filter(weight, packed):
        e = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        k, m = e // M_P, e % M_P
        if k < K_P:
            v, u, r = k // G, k % G // C_i, k % G % C_i
            value = float32(0)
            if v < W_f and u < H_f and m < M:
                value = weight[m, r, u, v]
            packed[k, m] = value

    return pack_filter
