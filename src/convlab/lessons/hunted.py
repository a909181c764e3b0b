"""Device functions that the find-the-bug tasks call.

The kernel of such a task is often that of an exercise in the same notebook. Where its lines would
show the exercise's answer, it calls a function of this file instead.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32

from convlab.device.intrinsics import wait_copies
from convlab.ladder import Tile
from convlab.ladder.main.m11_warp_tiling import PADDING
from convlab.lessons.parts import solved
from convlab.problems.problem import ConvProblem


def row_pitch(tile: Tile) -> int:
    """Return the length of a row of m11's slice of the windows in shared memory."""
    return tile.N_B + PADDING


def make_load_slices(problem: ConvProblem, tile: Tile) -> Any:
    """Make the function that loads both slices of m03, the windows' slice transposed, and waits.

    ``S_I[tx, e]`` is term ``k0 + e`` of the tile's window ``tx``.
    """
    p = problem
    K, N_B, K_B, ROWS = p.K, tile.N_B, tile.K_B, tile.rows
    _, _, H_i, W_i = p.input_shape
    H_f, W_f = p.H_f, p.W_f
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    load_filter = solved("m03", "load_filter", problem, tile)

    @cuda.jit(device=True)
    def load_slices(input, weight, i_n, o_h, o_w, m0, k0, t, S_F, S_I):
        load_filter(weight, m0, k0, t, S_F)
        ty, tx = t // N_B, t % N_B
        for e in range(ty, K_B, ROWS):
            k = k0 + e
            i_c = k // (H_f * W_f)
            i_h = o_h * s_h + k % (H_f * W_f) // W_f * d_h - p_h
            i_w = o_w * s_w + k % W_f * d_w - p_w
            pixel = float32(0)
            if k < K and 0 <= i_h < H_i and 0 <= i_w < W_i:
                pixel = input[i_n, i_c, i_h, i_w]
            S_I[tx, e] = pixel
        cuda.syncthreads()

    return load_slices


def make_add_up(tile: Tile) -> Any:
    """Make the function that adds a slice's products to a sum and waits; ``S_I`` is transposed."""
    K_B = tile.K_B

    @cuda.jit(device=True)
    def add_up(S_F, S_I, ty, tx, total):
        for k in range(K_B):
            total += S_F[ty, k] * S_I[tx, k]
        cuda.syncthreads()
        return total

    return add_up


@cuda.jit(device=True)
def add_products(S_F, S_I, row, column, total):
    """Return ``total`` plus the products of a row of ``S_F`` and a column of ``S_I``."""
    for k in range(S_I.shape[0]):
        total += S_F[row, k] * S_I[k, column]
    return total


def make_wait(in_flight: int) -> Any:
    """Make the function that waits until at most so many groups of copies are in flight.

    It waits for the copies of this thread, then at a barrier for all threads of the block.
    """

    @cuda.jit(device=True)
    def wait():
        wait_copies(in_flight)
        cuda.syncthreads()

    return wait


@cuda.jit(device=True)
def numbers_of_a(A, lane):
    """Return the lane's four numbers of ``A``, with zeros for the rows that ``A`` does not have."""
    row, column = lane // 4, lane % 4
    zero = float32(0)
    upper, lower = row < A.shape[0], row + 8 < A.shape[0]
    a0 = A[row, column] if upper else zero
    a1 = A[row + 8, column] if lower else zero
    a2 = A[row, column + 4] if upper else zero
    a3 = A[row + 8, column + 4] if lower else zero
    return a0, a1, a2, a3


@cuda.jit(device=True)
def numbers_of_b(B, lane):
    """Return the lane's two numbers of ``B``."""
    return B[lane % 4, lane // 4], B[lane % 4 + 4, lane // 4]


@cuda.jit(device=True)
def store_sums(C, lane, d):
    """Store the lane's four sums to the rows that ``C`` has."""
    row, column = lane // 4, lane % 4 * 2
    if row < C.shape[0]:
        C[row, column], C[row, column + 1] = d[0], d[1]
    if row + 8 < C.shape[0]:
        C[row + 8, column], C[row + 8, column + 1] = d[2], d[3]
