"""s09: double buffering. The next slice is on its way while this one is multiplied.

Source: seed 000, section 3.3 ("Double buffer and prefetching") and Algorithm 3. Every buffer
exists twice, in shared memory and in registers: one is computed from while the other is filled.
Global memory is asked for slice k + 1 before slice k is multiplied, and shared memory for the
operands of step k + 1 before those of step k are used, so that neither is waited for. One barrier
a slice is left of s08's two.

The prologue of Algorithm 3 (lines 3-7: slice 0 has nothing to overlap with) is round 0 of the
loop here, which only fetches; the last round only computes.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, uint32

from convlab.device import codegen, load4, store4
from convlab.problem import ConvProblem
from convlab.stages.base import Buffer, Launch, Program, Stage, blocks_for
from convlab.stages.s08_vectorized import check_tile, make_pack_filter
from convlab.stages.tiles import Tile, microkernel_tile


def make_kernel(problem: ConvProblem, tile: Tile) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    p = problem
    M, N, K = p.M, p.N, p.K
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    F_SLICES, I_SLICES, O_SHAPE = (2, K_B, M_B), (2, K_B, N_B), (M_T, N_T)
    M_RUNS = M_B // 4
    # Four columns lie together in the output where no run of four crosses into the next image.
    O_RUN = 4 if H_o * W_o % 4 == 0 else 1
    SLICES = blocks_for(K, K_B)
    F_FETCHES = blocks_for(K_B * M_RUNS, THREADS)  # runs of the filter slice that a thread fetches
    I_FETCHES = blocks_for(K_B * N_B, THREADS)
    F_FETCHED = (F_FETCHES, 4)

    @cuda.jit(device=True, **codegen(forceinline=True))
    def read(S_F, S_I, buffer, k, ty, tx, R_F, R_I):
        for i in range(0, M_T, 4):
            run = load4(S_F, (buffer, k, ty * 4 + i * ROWS))
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = run
        for j in range(0, N_T, 4):
            run = load4(S_I, (buffer, k, tx * 4 + j * COLUMNS))
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = run

    @cuda.jit(device=True, **codegen(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    @cuda.jit(**codegen(launch_bounds=THREADS))
    def double_buffer(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_FETCHES, float32)
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
        buffer = 1
        for slice in range(SLICES + 1):
            if slice < SLICES:  # load the next slice: lines 3-4 and 14-15
                for f in range(F_FETCHES):
                    e = t + f * THREADS
                    if e < K_B * M_RUNS:
                        k, row = slice * K_B + e // M_RUNS, m0 + e % M_RUNS * 4
                        run = load4(packed, (k, row))
                        fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3] = run
                for f in range(I_FETCHES):
                    k = uint32(slice * K_B + t // N_B + f * (THREADS // N_B))
                    i_c = k // (H_f * W_f)
                    i_h = o_h * s_h + k % (H_f * W_f) // W_f * d_h - p_h
                    i_w = o_w * s_w + k % W_f * d_w - p_w
                    value = float32(0)
                    if k < K and 0 <= i_h < H_i and 0 <= i_w < W_i:
                        value = input[i_n, i_c, i_h, i_w]
                    fetched_I[f] = value

            if slice > 0:  # compute: lines 9-12, all but the last step of this slice
                for k in range(0, K_B - 2, 2):
                    read(S_F, S_I, buffer, k + 1, ty, tx, R_F1, R_I1)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, buffer, k + 2, ty, tx, R_F0, R_I0)
                    multiply(R_F1, R_I1, R_O)
                read(S_F, S_I, buffer, K_B - 1, ty, tx, R_F1, R_I1)
                multiply(R_F0, R_I0, R_O)

            if slice < SLICES:  # the other buffer's turn: lines 5-7 and 16-18
                buffer = 1 - buffer
                for f in range(F_FETCHES):
                    e = t + f * THREADS
                    if e < K_B * M_RUNS:
                        run = (fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3])
                        store4(S_F, (buffer, e // M_RUNS, e % M_RUNS * 4), run)
                for f in range(I_FETCHES):
                    k = t // N_B + f * (THREADS // N_B)
                    if k < K_B:
                        S_I[buffer, k, column] = fetched_I[f]
                cuda.syncthreads()  # nobody reads this buffer before all have filled it
                read(S_F, S_I, buffer, 0, ty, tx, R_F0, R_I0)

            if slice > 0:
                multiply(R_F1, R_I1, R_O)  # line 19: the last step, while line 18 reads

        for j in range(0, N_T, 4):  # write: line 20
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

    return double_buffer


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    check_tile(tile)
    tile.require(tile.K_B % 2 == 0, "K_B must be even, because two register buffers take turns")
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


STAGE = Stage(
    name="s09_double_buffer",
    title="Double buffering: the next slice is fetched while this one is multiplied",
    source="000, 3.3, Algorithm 3",
    builds_on=("s08_vectorized",),
    module=__name__,
    prepare=prepare,
    production_tile=microkernel_tile,
    tiny_tile=Tile(M_B=16, N_B=8, K_B=4, M_T=4, N_T=4),
    vectorized=True,
)
