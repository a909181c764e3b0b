"""m11 with a technique left out: what Figure 4 of the im2win paper (000, section 4.4) compares.

``convlab.plan(problem, "ablation", prefetch=False)`` runs it. With all three switches on, this is
m11's kernel, so it is not a stage of the ladder.

- no micro-kernel: one output a thread, so no register is used twice;
- no vectorised access: every access is scalar (the paper leaves out only the float4 reads from
  shared memory);
- no prefetch: one buffer, which is filled and then read, with no load in flight meanwhile.
"""

from __future__ import annotations

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, issue_loads, load4, store4, unrolled
from convlab.ladder.layouts.im2win_layout import group_size, layout_transforms, window_columns
from convlab.ladder.stage import Kernel, Program, Stage, Tile, Tiles, blocks_for, tile_program
from convlab.problems.problem import ConvProblem

LANES_M, LANES_N = 4, 8  # lanes of a warp along M and N, as in m11


def one_output_a_thread(tile: Tile) -> Tile:
    """The tile without a micro-kernel: m03's 32 x 32 x 32 at production size."""
    return Tile(min(tile.M_B, 32), min(tile.N_B, 32), min(4 * tile.K_B, 32))


def make_kernel(
    problem: ConvProblem, tile: Tile, MICROKERNEL: bool, VECTORIZED: bool, PREFETCH: bool
) -> Kernel:
    """m11's kernel with the techniques as constants."""
    p = problem
    M, N, W_o, PIXELS = p.M, p.N, p.W_o, p.H_o * p.W_o
    s_w, d_w, W_w, G = p.s_w, p.d_w, window_columns(p), group_size(p)
    K_W = p.W_f * G
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    BY_WARPS = MICROKERNEL and ROWS % LANES_M == COLUMNS % LANES_N == 0
    WARPS_N = max(1, COLUMNS // LANES_N)
    PITCH, BUFFERS = N_B + (FLOAT4 if MICROKERNEL else 1), 2 if PREFETCH else 1
    FIRST = 1 if PREFETCH else 0  # the first slice that the loop fetches
    AHEAD = MICROKERNEL and PREFETCH  # operands are read a step before they are used
    VECTOR = FLOAT4 if MICROKERNEL and VECTORIZED else 1  # neighbours that a thread computes
    ALIGNED = PIXELS % VECTOR == 0
    STEP = VECTOR if ALIGNED else 1
    F_SLICES, I_SLICES, O_SHAPE = BUFFERS * K_B * M_B, BUFFERS * K_B * PITCH, (M_T, N_T)
    K_4, K_P = K_B // FLOAT4, blocks_for(K_W, K_B) * K_B
    SLICES, F_ALL, I_ALL = K_P // K_B, K_B * M_B // FLOAT4, N_B * K_4
    F_FLOAT4S, I_FLOAT4S = blocks_for(F_ALL, THREADS), blocks_for(I_ALL, THREADS)
    F_FETCHED, I_FETCHED = (F_FLOAT4S, FLOAT4), (I_FLOAT4S, FLOAT4)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def load(array, at, fetched, f):
        if VECTORIZED:
            fetched[f, 0], fetched[f, 1], fetched[f, 2], fetched[f, 3] = load4(array, at)
        else:
            for c in range(FLOAT4):
                fetched[f, c] = array[at + c]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I):
        for f in range(F_FLOAT4S):
            if t + f * THREADS < F_ALL:
                at = first_F + slice_ * (K_B * M_B) + f * (THREADS * FLOAT4)
                load(packed, at, fetched_F, f)
        for f in range(I_FLOAT4S):
            e = t + f * THREADS
            term = slice_ * K_B + e % K_4 * FLOAT4
            for c in range(FLOAT4):
                fetched_I[f, c] = float32(0)
            if term < K_W and e < I_ALL:
                load(windows, first_I[f] + term + term // G * G * (d_w - 1), fetched_I, f)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store(fetched_F, fetched_I, t, row0, S_F, S_I):
        for f in range(F_FLOAT4S):
            e = t + f * THREADS
            if e < F_ALL:
                if VECTORIZED:
                    four = (fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3])
                    store4(S_F, row0 * M_B + e * FLOAT4, four)
                else:
                    for c in range(FLOAT4):
                        S_F[uint32(row0 * M_B + e * FLOAT4 + c)] = fetched_F[f, c]
        for f in range(I_FLOAT4S):
            e = t + f * THREADS
            if e < I_ALL:
                for c in range(FLOAT4):
                    at = uint32((row0 + e % K_4 * FLOAT4 + c) * PITCH + e // K_4)
                    S_I[at] = fetched_I[f, c]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_row(S, at, row, apart, R):
        for i in range(0, len(R), VECTOR):
            if VECTOR == FLOAT4:
                R[i], R[i + 1], R[i + 2], R[i + 3] = load4(S, at + (row + i * apart))
            else:
                R[i] = S[at + (row + i * apart)]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, at_F, at_I, k, R_F, R_I):
        read_row(S_F, at_F, k * M_B, ROWS, R_F)
        read_row(S_I, at_I, k * PITCH, COLUMNS, R_I)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def two_steps(k, S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
        read(S_F, S_I, at_F, at_I, k + 1, R_F1, R_I1)
        multiply(R_F0, R_I0, R_O)
        read(S_F, S_I, at_F, at_I, k + 2, R_F0, R_I0)
        multiply(R_F1, R_I1, R_O)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def one_step(k, S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
        read(S_F, S_I, at_F, at_I, k, R_F0, R_I0)
        multiply(R_F0, R_I0, R_O)

    if AHEAD:
        steps = unrolled(two_steps, range(0, K_B - 2, 2))
    else:
        steps = unrolled(one_step, range(K_B))

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def warp_tiling(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_FETCHED, float32)
        first_I = cuda.local.array(I_FLOAT4S, int64)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        if BY_WARPS:
            warp, lane = t // 32, t % 32
            ty = warp // WARPS_N * LANES_M + lane // 16 * 2 + lane % 2
            tx = warp % WARPS_N * LANES_N + lane % 16 // 2
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B
        for f in range(I_FLOAT4S):
            window = min(n0 + (t + f * THREADS) // K_4, N - 1)
            first_I[f] = (window // W_o * W_w + window % W_o * s_w) * G
        first_F = int64(m0) * K_P + t * FLOAT4

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        row0 = uint32(0)
        at_F, at_I = uint32(ty * VECTOR), uint32(tx * VECTOR)
        if PREFETCH:
            fetch(windows, packed, first_F, first_I, t, 0, fetched_F, fetched_I)
            store(fetched_F, fetched_I, t, row0, S_F, S_I)
            cuda.syncthreads()  # all threads have filled the slice
        if AHEAD:
            read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)
        for slice_ in range(int32(FIRST), int32(SLICES + FIRST)):
            if not PREFETCH or slice_ < SLICES:
                fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I)
                if AHEAD:
                    issue_loads()
            if not PREFETCH:
                store(fetched_F, fetched_I, t, row0, S_F, S_I)
                cuda.syncthreads()  # all threads have filled the slice
            steps(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)
            if AHEAD:
                read(S_F, S_I, at_F, at_I, K_B - 1, R_F1, R_I1)
                multiply(R_F0, R_I0, R_O)
            if not PREFETCH:
                cuda.syncthreads()  # all threads have read the slice
            elif slice_ < SLICES:
                row0 = uint32(K_B - row0)  # the other buffer's turn
                at_F, at_I = uint32(row0 * M_B + ty * VECTOR), uint32(row0 * PITCH + tx * VECTOR)
                store(fetched_F, fetched_I, t, row0, S_F, S_I)
                cuda.syncthreads()  # all threads have filled the slice
                if AHEAD:
                    read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)
            if AHEAD:
                multiply(R_F1, R_I1, R_O)

        for j in range(0, N_T, VECTOR):
            for c in range(0, VECTOR, STEP):
                n = n0 + tx * VECTOR + j * COLUMNS + c
                if n < N:
                    i_n, pixel = n // PIXELS, n % PIXELS
                    for i in range(M_T):
                        m = m0 + ty * VECTOR + i // VECTOR * VECTOR * ROWS + i % VECTOR
                        if m < M:
                            at, b = (i_n * M + m) * PIXELS + pixel, bias[m]
                            if STEP == FLOAT4:
                                x, y, z, w = R_O[i, j], R_O[i, j + 1], R_O[i, j + 2], R_O[i, j + 3]
                                store4(output, at, (x + b, y + b, z + b, w + b))
                            else:
                                output[at] = R_O[i, j + c] + b

    return warp_tiling


def prepare(
    problem: ConvProblem,
    tile: Tile,
    microkernel: bool = True,
    vectorized: bool = True,
    prefetch: bool = True,
) -> Program:
    """m11's program; each switch leaves a technique out. Without the micro-kernel the tile is
    :func:`one_output_a_thread`'s instead."""
    tile.require_float4s("M_B", "N_B", "K_B")
    if vectorized and microkernel:
        tile.require_float4s("M_T", "N_T")
    if not microkernel:
        tile = one_output_a_thread(tile)
    tile.require_shared_memory((1 + prefetch) * tile.K_B * (tile.M_B + tile.N_B + FLOAT4))
    kernel = make_kernel(problem, tile, microkernel, vectorized, prefetch)
    return tile_program(problem, tile, kernel, layout_transforms(problem, tile))


ABLATION = Stage(
    __name__,
    title="m11 with a technique left out",
    source="im2win paper (000), 4.4, Figure 4",
    builds_on=("m10_im2win_vectorized",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=8, K_B=8, M_T=4, N_T=4), heuristic="m11"),
    vectorized=True,
)
