"""im2win in its plainest whole form: what lesson 11 asks for from an empty cell.

The tensor is m11's, with channels innermost, and so is the packed filter; every kernel is as short
as it can be with tiles in shared memory, sums in registers, and float4 loads from global memory.
:func:`whole_im2win` makes a ``Program`` of three such functions, which is checked as a stage.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numba import cuda, float32, uint32

from convlab.checking.loading import is_kernel, title_of
from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, store4
from convlab.ladder.layouts.im2win_layout import group_size, window_columns
from convlab.ladder.stage import Buffer, Flat, Launch, Program, Tile, blocks_for, tile_program
from convlab.problems.problem import ConvProblem
from convlab.support.values import shown

# What the kernel of an im2win program can be given, by these names.
GIVEN = ("windows", "packed", "bias", "output", "input", "weight")
BLOCK = 128  # threads of a layout transform's block


def windows_buffer(problem: ConvProblem) -> Buffer:
    """Return the im2win tensor: output rows of all images, columns, and G numbers for each."""
    p = problem
    return Buffer("windows", (p.N_i * p.H_o, window_columns(p), group_size(p)))


def packed_buffer(problem: ConvProblem, tile: Tile) -> Buffer:
    """Return the packed filter: a matrix of whole slices for every M_B output channels."""
    K_P = tile.whole_slices(problem.W_f * group_size(problem))
    return Buffer("packed", (blocks_for(problem.M, tile.M_B), K_P, tile.M_B))


def make_transform(problem: ConvProblem) -> Any:
    """Make the layout transform of the input: a thread for each number of the im2win tensor."""
    p = problem
    N_i, C_i, H_i, W_i = p.input_shape
    H_f, H_o, W_w, G = p.H_f, p.H_o, window_columns(p), group_size(p)
    s_h, p_h, p_w, d_h = p.s_h, p.p_h, p.p_w, p.d_h
    NUMBERS = N_i * H_o * W_w * G

    @cuda.jit
    def transform(input, windows):
        e = cuda.grid(1)
        if e < NUMBERS:
            row, column, place = e // (G * W_w), e // G % W_w, e % G
            i_n, o_h = row // H_o, row % H_o
            f_h, i_c = place // C_i, place % C_i
            i_h = o_h * s_h + f_h * d_h - p_h
            i_w = column - p_w
            value = float32(0)
            if f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:
                value = input[i_n, i_c, i_h, i_w]
            windows[e] = value

    return transform


def make_packing(problem: ConvProblem, tile: Tile) -> Any:
    """Make the layout transform of the filter: a thread for each number of the packed filter."""
    p, M_B, G = problem, tile.M_B, group_size(problem)
    M, C_i, H_f, W_f = p.M, p.C_i, p.H_f, p.W_f
    K_P = tile.whole_slices(W_f * G)
    NUMBERS = blocks_for(M, M_B) * K_P * M_B

    @cuda.jit
    def packing(weight, packed):
        e = cuda.grid(1)
        if e < NUMBERS:
            o_c = e // (K_P * M_B) * M_B + e % M_B
            term = e // M_B % K_P
            f_w, place = term // G, term % G
            f_h, i_c = place // C_i, place % C_i
            value = float32(0)
            if o_c < M and f_h < H_f and f_w < W_f:
                value = weight[o_c, i_c, f_h, f_w]
            packed[e] = value

    return packing


def make_kernel(problem: ConvProblem, tile: Tile) -> Any:
    """Make the kernel that convolves: M_B x N_B outputs per block, M_T x N_T per thread."""
    p = problem
    M, N, H_o, W_o, W_w, G = p.M, p.N, p.H_o, p.W_o, window_columns(p), group_size(p)
    s_w, d_w, K_W = p.s_w, p.d_w, p.W_f * G
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    F_SLICE, I_SLICE, O_SHAPE = (K_B, M_B), (K_B, N_B), (M_T, N_T)
    K_P, M_4, K_4 = tile.whole_slices(K_W), M_B // FLOAT4, K_B // FLOAT4

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def im2win(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICE, float32)
        R_F, R_I = cuda.local.array(M_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        m0, n0 = uint32(cuda.blockIdx.y) * M_B, uint32(cuda.blockIdx.x) * N_B
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for k0 in range(0, K_P, K_B):
            for e in range(t, K_B * M_4, THREADS):
                k, row = e // M_4, e % M_4 * FLOAT4
                store4(S_F, (k, row), load4(packed, m0 * K_P + (k0 + k) * M_B + row))
            for e in range(t, N_B * K_4, THREADS):
                k, column = e % K_4 * FLOAT4, e // K_4
                n = min(n0 + column, N - 1)
                four = (float32(0), float32(0), float32(0), float32(0))
                if k0 + k < K_W:
                    group = n // W_o * W_w + n % W_o * s_w + (k0 + k) // G * d_w
                    four = load4(windows, group * G + (k0 + k) % G)
                S_I[k, column], S_I[k + 1, column] = four[0], four[1]
                S_I[k + 2, column], S_I[k + 3, column] = four[2], four[3]
            cuda.syncthreads()
            for k in range(K_B):
                for i in range(M_T):
                    R_F[i] = S_F[k, ty + i * ROWS]
                for j in range(N_T):
                    R_I[j] = S_I[k, tx + j * COLUMNS]
                for i in range(M_T):
                    for j in range(N_T):
                        R_O[i, j] += R_F[i] * R_I[j]
            cuda.syncthreads()
        for j in range(N_T):
            n = n0 + tx + j * COLUMNS
            for i in range(M_T):
                m = m0 + ty + i * ROWS
                if m < M and n < N:
                    at = (n // (H_o * W_o) * M + m) * (H_o * W_o) + n % (H_o * W_o)
                    output[at] = R_O[i, j] + bias[m]

    return im2win


def check_parameters(maker: Callable[..., Any], made: Any) -> None:
    """Raise ``ValueError`` unless a maker has returned a kernel whose parameters have the names of
    what they are given."""
    if not is_kernel(made):
        raise ValueError(f"{title_of(maker)} returned {shown(made)}: it must return a kernel")
    names = [*inspect.signature(made.py_func).parameters]
    if unknown := [name for name in names if name not in GIVEN]:
        rule = f"each must be one of {', '.join(GIVEN)}, because arguments are given by name"
        raise ValueError(f"{title_of(made)} has a parameter {unknown[0]}: {rule}")


def whole_im2win(
    transform: Callable[..., Any], packing: Callable[..., Any], kernel: Callable[..., Any]
) -> Callable[[ConvProblem, Tile], Program]:
    """Return a function that makes a ``Program`` of three functions like those of this module.

    Checks and timers take it as a stage's ``prepare``.
    """

    def prepare(problem: ConvProblem, tile: Tile) -> Program:
        windows, packed = windows_buffer(problem), packed_buffer(problem, tile)
        before = (
            layout_launch(transform(problem), "input", windows),
            layout_launch(packing(problem, tile), "weight", packed),
        )
        made = kernel(problem, tile)
        check_parameters(kernel, made)
        return tile_program(problem, tile, made, Program((windows, packed), before))

    prepare.__wrapped__ = kernel  # type: ignore[attr-defined]  # whose cell all three are in
    prepare.remade = lambda other: whole_im2win(transform, packing, other)  # type: ignore[attr-defined]
    return prepare


def layout_launch(kernel: Any, source: str, target: Buffer) -> Launch:
    """Return the launch of a layout transform: a thread for each number of its target."""
    blocks = blocks_for(target.nbytes // 4, BLOCK)
    return Launch(kernel, (blocks,), (BLOCK,), (source, Flat(target.name)))
