"""s09: double buffering. The threads fetch the next slice while they multiply this one.

Source: im2win paper (000), section 3.3 ("Double buffer and prefetching") and Algorithm 3. Every
buffer exists twice, in shared memory and in registers: threads compute from one and fill the other.
They read step k + 1 from shared memory before they multiply step k, and load the next slice from
global memory before they multiply this one. (The paper loads it after the inner loop, line 13,
where only one step is left to hide the latency.) One of s08's two barriers per slice remains:

    round 0        fetch 0                                  put 0   barrier
    round 1        fetch 1   multiply 0 but its last step   put 1   barrier   last step of 0
    round SLICES             multiply the last slice                          its last step

Round 0 is the prologue (lines 3-7), which has nothing to overlap with.
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
    F_SLICES, I_SLICES, O_SHAPE = (2 * K_B, M_B), (2 * K_B, N_B), (M_T, N_T)  # one below the other
    M_RUNS, M_P = M_B // RUN, blocks_for(M, M_B) * M_B
    PIXELS = H_o * W_o
    WHOLE_RUNS = PIXELS % RUN == 0  # then no float4 crosses into the next image
    STEP = RUN if WHOLE_RUNS else 1
    SLICES = blocks_for(K, K_B)
    F_RUNS = K_B * M_RUNS // THREADS  # runs of the filter slice that a thread fetches
    I_ROWS = THREADS // N_B  # rows of the input slice that the threads fetch at a time
    I_PIXELS = K_B // I_ROWS
    F_FETCHED = (F_RUNS, RUN)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, k, ty, tx, R_F, R_I):
        for i in range(0, M_T, RUN):
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = load4(S_F, (k, ty * RUN + i * ROWS))
        for j in range(0, N_T, RUN):
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = load4(S_I, (k, tx * RUN + j * COLUMNS))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, i_n, o_h, o_w, m0, t, slice_, fetched_F, fetched_I):
        """Lines 3-4 and 14-15, first half: a slice from global memory to registers."""
        for f in range(F_RUNS):
            e = t + f * THREADS
            run = load4(packed, (slice_ * K_B + e // M_RUNS) * M_P + m0 + e % M_RUNS * RUN)
            fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3] = run
        for f in range(I_PIXELS):
            k = uint32(slice_ * K_B + t // N_B + f * I_ROWS)
            i_c = k // (H_f * W_f)
            i_h = o_h * s_h + k % (H_f * W_f) // W_f * d_h - p_h
            i_w = o_w * s_w + k % W_f * d_w - p_w
            pixel = float32(0)
            if k < K and 0 <= i_h < H_i and 0 <= i_w < W_i:
                pixel = input[i_n, i_c, i_h, i_w]
            fetched_I[f] = pixel

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def put(fetched_F, fetched_I, t, k0, S_F, S_I):
        """Lines 3-4 and 14-15, second half: from registers to shared memory, rows from k0 on."""
        for f in range(F_RUNS):
            e = t + f * THREADS
            run = (fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3])
            store4(S_F, (k0 + e // M_RUNS, e % M_RUNS * RUN), run)
        for f in range(I_PIXELS):
            S_I[k0 + t // N_B + f * I_ROWS, t % N_B] = fetched_I[f]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def double_buffer(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)  # line 2
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)  # line 1
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_PIXELS, float32)
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
        k0 = K_B  # where in shared memory the slice begins that is computed: 0 or K_B
        for slice_ in range(SLICES + 1):  # line 8
            if slice_ < SLICES:
                fetch(input, packed, i_n, o_h, o_w, m0, t, slice_, fetched_F, fetched_I)
            if slice_ > 0:
                for k in range(0, K_B - 2, 2):  # lines 9-12: read a step ahead
                    read(S_F, S_I, k0 + k + 1, ty, tx, R_F1, R_I1)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, k0 + k + 2, ty, tx, R_F0, R_I0)
                    multiply(R_F1, R_I1, R_O)
                read(S_F, S_I, k0 + K_B - 1, ty, tx, R_F1, R_I1)
                multiply(R_F0, R_I0, R_O)
            if slice_ < SLICES:
                k0 = uint32(K_B - k0)  # the other buffer's turn; uint32, since never negative
                put(fetched_F, fetched_I, t, k0, S_F, S_I)
                cuda.syncthreads()  # lines 5 and 16: nobody reads it before all have filled it
                read(S_F, S_I, k0, ty, tx, R_F0, R_I0)  # lines 6-7 and 17-18
            if slice_ > 0:
                multiply(R_F1, R_I1, R_O)  # line 19: the last step, while line 18 reads

        for j in range(0, N_T, RUN):  # line 20
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

    return double_buffer


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
    tile.require(tile.K_B % 2 == 0, "K_B must be even, because two register buffers take turns")
    tile.require(
        tile.K_B * tile.M_B % (RUN * tile.threads) == tile.K_B * tile.N_B % tile.threads == 0,
        "its threads must share K_B x M_B / 4 runs and K_B x N_B pixels evenly, because each keeps "
        "what it fetches in registers of its own",
    )
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B))
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
    title="Double buffering: the next slice is fetched while this one is multiplied",
    source="im2win paper (000), 3.3, Algorithm 3",
    builds_on=("s08_vectorized",),
    prepare=prepare,
    tiles=Tiles(
        production=microkernel_tile, tiny=Tile(M_B=16, N_B=8, K_B=4, M_T=4, N_T=4), model=MODEL_TILE
    ),
    vectorized=True,
)
