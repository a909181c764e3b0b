"""s08: vectorised access. Four numbers an instruction: 128-bit loads and stores.

Source: seed 000, section 3.3 ("Vectorized load/store"). A thread takes its rows and columns in
runs of four, so that one instruction moves four numbers between shared memory and registers. Two
things must lie in memory as they are read for that: the filter slice is turned round (K_B x M_B,
so that four rows are neighbours), and the filter itself is packed that way once, by a small
kernel, with zeros to the next full tile, so that it is also fetched by fours and without checks.
The input is still fetched one by one: in NCHW a window's pixels begin at any address. That is
what the im2win tensor will mend (s11).
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, uint32

from convlab.device import codegen, load4, store4
from convlab.problem import ConvProblem
from convlab.stages.base import Buffer, Launch, Program, Stage, blocks_for
from convlab.stages.tiles import Tile, microkernel_tile


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


def make_kernel(problem: ConvProblem, tile: Tile) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    p = problem
    M, N, K = p.M, p.N, p.K
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    F_SLICE, I_SLICE, O_SHAPE = (K_B, M_B), (K_B, N_B), (M_T, N_T)
    M_RUNS = M_B // 4
    # Four columns lie together in the output where no run of four crosses into the next image.
    O_RUN = 4 if H_o * W_o % 4 == 0 else 1

    @cuda.jit(**codegen(launch_bounds=THREADS))
    def vectorized(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32, alignment=16)
        S_I = cuda.shared.array(I_SLICE, float32, alignment=16)
        R_F = cuda.local.array(M_T, float32)
        R_I = cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # The window this thread fetches from: column t % N_B of the tile. Past the last one, fetch
        # that again; its results are not written.
        column = t % N_B
        window = min(n0 + column, N - 1)
        i_n = window // (H_o * W_o)
        o_h = window % (H_o * W_o) // W_o
        o_w = window % W_o

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for k0 in range(0, K, K_B):
            for e in range(t, K_B * M_RUNS, THREADS):  # load
                k, row = e // M_RUNS, e % M_RUNS * 4
                store4(S_F, (k, row), load4(packed, (k0 + k, m0 + row)))
            for e in range(t // N_B, K_B, THREADS // N_B):
                k = uint32(k0 + e)
                i_c = k // (H_f * W_f)
                i_h = o_h * s_h + k % (H_f * W_f) // W_f * d_h - p_h
                i_w = o_w * s_w + k % W_f * d_w - p_w
                value = float32(0)
                if k < K and 0 <= i_h < H_i and 0 <= i_w < W_i:
                    value = input[i_n, i_c, i_h, i_w]
                S_I[e, column] = value
            cuda.syncthreads()  # nobody computes before all have fetched

            for k in range(K_B):  # compute
                for i in range(0, M_T, 4):
                    run = load4(S_F, (k, ty * 4 + i * ROWS))
                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = run
                for j in range(0, N_T, 4):
                    run = load4(S_I, (k, tx * 4 + j * COLUMNS))
                    R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = run
                for i in range(M_T):
                    for j in range(N_T):
                        R_O[i, j] += R_F[i] * R_I[j]
            cuda.syncthreads()  # nobody fetches the next slice over what others still read

        for j in range(0, N_T, 4):
            for c in range(0, 4, O_RUN):
                n = n0 + tx * 4 + j * COLUMNS + c
                if n < N:
                    i_n, pixel = n // (H_o * W_o), n % (H_o * W_o)
                    for i in range(M_T):
                        m = m0 + ty * 4 + i // 4 * 4 * ROWS + i % 4
                        if m < M:
                            at, b = (i_n * M + m) * (H_o * W_o) + pixel, bias[m]
                            if O_RUN == 4:
                                x, y, z, w = R_O[i, j], R_O[i, j + 1], R_O[i, j + 2], R_O[i, j + 3]
                                store4(output, at, (x + b, y + b, z + b, w + b))
                            else:
                                output[at] = R_O[i, j + c] + b

    return vectorized


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    check_tile(tile)
    M_P = blocks_for(problem.M, tile.M_B) * tile.M_B
    K_P = blocks_for(problem.K, tile.K_B) * tile.K_B
    pack = Launch(
        make_pack_filter(problem, K_P, M_P, tile.threads),
        grid=(blocks_for(K_P * M_P, tile.threads),),
        block=(tile.threads,),
        arguments=("weight.flat", "packed"),
    )
    multiply = Launch(
        make_kernel(problem, tile),
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B)),
        block=(tile.threads,),
        arguments=("input", "packed", "bias", "output.flat"),
    )
    return Program(buffers=(Buffer("packed", (K_P, M_P)),), launches=(pack, multiply))


def check_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that runs of four do not fit."""
    tile.require(
        tile.M_T % 4 == 0 and tile.N_T % 4 == 0,
        "M_T and N_T must be multiples of 4, because four numbers move at a time",
    )
    tile.require(
        tile.threads % tile.N_B == 0,
        "its threads must be a multiple of N_B, because each fetches from one window",
    )


STAGE = Stage(
    name="s08_vectorized",
    title="Vectorised access: 128-bit loads and stores",
    source="000, 3.3",
    builds_on=("s07_microkernel",),
    module=__name__,
    prepare=prepare,
    production_tile=microkernel_tile,
    tiny_tile=Tile(M_B=16, N_B=8, K_B=4, M_T=4, N_T=4),
    vectorized=True,
)
