"""s08: vectorised access. One instruction moves four numbers: 128-bit loads and stores.

Source: im2win paper (000), section 3.3 ("Vectorized load/store"). A thread owns rows and columns in
groups of four and reads each group from shared memory as one float4. The four numbers must be
neighbours in memory, so the filter is transposed (K x M) once by a layout transform, which also
adds zeros up to whole tiles: the main kernel loads it by float4 without bounds checks. The input is
still loaded by scalars, because in NCHW a window begins at any address (s11 changes that).
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, uint32

from convlab.device import BYTES_16, gpu_only, load4, store4
from convlab.problem import ConvProblem
from convlab.stage import (
    MODEL_TILE,
    Buffer,
    Flat,
    Launch,
    Program,
    Stage,
    Tile,
    Tiles,
    blocks_for,
    microkernel_tile,
)

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
    M_RUNS, M_P = M_B // RUN, blocks_for(M, M_B) * M_B
    PIXELS = H_o * W_o
    WHOLE_RUNS = PIXELS % RUN == 0  # then no float4 crosses into the next image
    STEP = RUN if WHOLE_RUNS else 1

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, k, ty, tx, R_F, R_I):
        for i in range(0, M_T, RUN):
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = load4(S_F, (k, ty * RUN + i * ROWS))
        for j in range(0, N_T, RUN):
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = load4(S_I, (k, tx * RUN + j * COLUMNS))

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def vectorized(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICE, float32, alignment=BYTES_16)
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
                k, row = e // M_RUNS, e % M_RUNS * RUN
                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))
            for e in range(t // N_B, K_B, THREADS // N_B):
                k = uint32(k0 + e)
                i_c = k // (H_f * W_f)
                i_h = o_h * s_h + k % (H_f * W_f) // W_f * d_h - p_h
                i_w = o_w * s_w + k % W_f * d_w - p_w
                pixel = float32(0)
                if k < K and 0 <= i_h < H_i and 0 <= i_w < W_i:
                    pixel = input[i_n, i_c, i_h, i_w]
                S_I[e, column] = pixel
            cuda.syncthreads()  # nobody computes before all have fetched

            for k in range(K_B):  # compute
                read(S_F, S_I, k, ty, tx, R_F, R_I)
                for i in range(M_T):
                    for j in range(N_T):
                        R_O[i, j] += R_F[i] * R_I[j]
            cuda.syncthreads()  # nobody fetches the next slice over what others still read

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

    return vectorized


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """The stage made ready for a problem: what to allocate and what to launch."""
    tile.require(
        tile.M_T % RUN == 0 and tile.N_T % RUN == 0,
        "M_T and N_T must be multiples of 4, because a float4 holds four numbers",
    )
    tile.require(
        tile.threads % tile.N_B == 0,
        "its threads must be a multiple of N_B, because each fetches from one window",
    )
    tile.require_shared_memory(tile.K_B * (tile.M_B + tile.N_B))
    M_P = blocks_for(problem.M, tile.M_B) * tile.M_B
    K_P = blocks_for(problem.K, tile.K_B) * tile.K_B
    pack = Launch(
        make_pack_filter(problem, K_P, M_P, tile.threads),
        grid=(blocks_for(K_P * M_P, tile.threads),),
        block=(tile.threads,),
        arguments=(Flat("weight"), "packed"),
    )
    main = Launch(
        make_kernel(problem, tile),
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B)),
        block=(tile.threads,),
        arguments=("input", Flat("packed"), "bias", Flat("output")),
    )
    return Program((Buffer("packed", (K_P, M_P)),), (pack, main), tile)


STAGE = Stage(
    __name__,
    title="Vectorised access: 128-bit loads and stores",
    source="im2win paper (000), 3.3",
    builds_on=("s07_microkernel",),
    prepare=prepare,
    tiles=Tiles(
        production=microkernel_tile, tiny=Tile(M_B=16, N_B=8, K_B=4, M_T=4, N_T=4), model=MODEL_TILE
    ),
    vectorized=True,
)
