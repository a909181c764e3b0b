"""s09: double buffering. The next slice is on its way while this one is multiplied.

Source: im2win paper (000), section 3.3 ("Double buffer and prefetching") and Algorithm 3. Every
buffer exists twice, in shared memory and in registers: one is computed from while the other is
filled. Shared memory is asked for the operands of step k + 1 before those of step k are used, and
global memory for the next slice before this one is multiplied. (The paper asks for it after the
inner loop, line 13, where only one step is left to hide behind; here the whole slice is.) One
barrier a slice is left of s08's two:

    round 0        fetch 0                                  put 0   barrier
    round 1        fetch 1   multiply 0 but its last step   put 1   barrier   last step of 0
    round 2        fetch 2   multiply 1 but its last step   put 2   barrier   last step of 1
    ...
    round SLICES             multiply the last slice                          its last step

Round 0 is the prologue of Algorithm 3 (lines 3-7), which has nothing to overlap with.
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
from convlab.stages.s08_vectorized import (
    RUN,
    check_tile,
    make_multiply,
    make_pack_filter,
    make_read,
    make_write,
)


def make_kernel(problem: ConvProblem, tile: Tile) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    p = problem
    N, K = p.N, p.K
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, COLUMNS = tile.threads, tile.columns
    F_SLICES, I_SLICES, O_SHAPE = (2 * K_B, M_B), (2 * K_B, N_B), (M_T, N_T)  # one below the other
    M_RUNS, M_P = M_B // RUN, blocks_for(p.M, M_B) * M_B
    SLICES = blocks_for(K, K_B)
    F_RUNS = K_B * M_RUNS // THREADS  # runs of the filter slice that a thread fetches
    I_ROWS = THREADS // N_B  # rows of the input slice that the threads fetch at a time
    I_PIXELS = K_B // I_ROWS
    F_FETCHED = (F_RUNS, RUN)
    read, multiply, write = make_read(tile), make_multiply(tile), make_write(problem, tile)

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
        window = min(n0 + t % N_B, N - 1)
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

        write(R_O, bias, output, m0, n0, ty, tx)  # line 20

    return double_buffer


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """The stage made ready for a problem: what to allocate and what to launch."""
    check_tile(tile)
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
