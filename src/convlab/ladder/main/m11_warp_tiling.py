"""m11: warp tiles and unrolled steps. The main loop now does little but multiply and add.

Source: im2win paper (000), Algorithm 3; the warp tile is CUTLASS's name. Three changes to m10's
loop, of which each alone gains little, make Algorithm 3 complete:

- A warp is 4 x 8 threads of the tile (``make_warp_tile``), not 2 x 16. With 8 x 8 sums per
  thread a float4 load of m10 takes 2 wavefronts from S_F and 4 from S_I, here 2 from each.
- The steps of a slice are unrolled, because the compiler does not unroll m10's long loop over k:
  addresses are constant offsets from the start of a thread's part of a slice, without a counter.
- A prologue fetches the first slice, so that the loop has few conditions, and ``issue_loads`` keeps
  the loads of the next slice before the arithmetic: the compiler would move them behind it.

The heuristic (:mod:`tile_heuristic`) chooses a tile for each problem, so from here on the threads
need not share the float4s of a slice evenly. The difference to m10 is long (over 150 lines),
because flat indices of shared memory, which make the addresses constant, replace m10's pairs of
indices everywhere.
"""

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, issue_loads, load4, store4, unrolled
from convlab.ladder.layouts.im2win_layout import group_size, layout_transforms, window_columns
from convlab.ladder.stage import (
    DeviceFunction,
    Kernel,
    Program,
    Stage,
    Tile,
    Tiles,
    blocks_for,
    tile_program,
)
from convlab.problems.problem import ConvProblem

PADDING = 4  # makes a row of the input slice an odd number of float4s, which stay aligned
LANES_M, LANES_N = 4, 8  # lanes of a warp along M and N


def divides_into_warps(ROWS: int, COLUMNS: int) -> bool:
    """Return whether ROWS x COLUMNS threads are whole warps of 4 x 8 threads."""
    return ROWS % LANES_M == COLUMNS % LANES_N == 0


def make_warp_tile(ROWS: int, COLUMNS: int) -> DeviceFunction:
    """Return ``row_and_column(t)``, the place of thread t among ROWS x COLUMNS threads.

    A warp is 4 x 8 threads if they divide into such warps, in the order (0, 0), (1, 0), (0, 1),
    (1, 1), (0, 2), ...: lanes l and l ^ 1 then read the same float4 of S_I, and lanes l and l ^ 2
    the same float4 of S_F, so that each load takes 2 wavefronts.
    """
    BY_WARPS, WARPS_N = divides_into_warps(ROWS, COLUMNS), max(1, COLUMNS // LANES_N)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_and_column(t):
        if BY_WARPS:
            warp, lane = t // 32, t % 32
            ty = warp // WARPS_N * LANES_M + lane // 16 * 2 + lane % 2
            tx = warp % WARPS_N * LANES_N + lane % 16 // 2
        else:
            ty, tx = t // COLUMNS, t % COLUMNS
        return uint32(ty), uint32(tx)

    return row_and_column


def make_kernel(problem: ConvProblem, tile: Tile) -> Kernel:
    """Return the kernel whose warps compute tiles, with all steps of a slice unrolled."""
    p = problem
    M, N, H_o, W_o = p.M, p.N, p.H_o, p.W_o
    s_w, d_w, W_w, G = p.s_w, p.d_w, window_columns(p), group_size(p)
    K_W = p.W_f * G  # elements of a window
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    row_and_column = make_warp_tile(ROWS, COLUMNS)
    PITCH = N_B + PADDING  # of the input slice
    F_SLICES, I_SLICES, O_SHAPE = 2 * K_B * M_B, 2 * K_B * PITCH, (M_T, N_T)
    K_4 = K_B // FLOAT4  # float4s of a window in a slice
    K_P = blocks_for(K_W, K_B) * K_B  # padded K_W
    ALIGNED = H_o * W_o % FLOAT4 == 0  # no float4 of outputs crosses into the next image
    STEP = FLOAT4 if ALIGNED else 1
    SLICES = K_P // K_B
    F_ALL, I_ALL = K_B * M_B // FLOAT4, N_B * K_4  # float4s of a slice
    F_FETCHED = (blocks_for(F_ALL, THREADS), FLOAT4)  # a thread's part of the next slice
    I_FLOAT4S = blocks_for(I_ALL, THREADS)
    I_FETCHED = (I_FLOAT4S, FLOAT4)
    F_EVEN, I_EVEN, K_EVEN = F_ALL % THREADS == 0, I_ALL % THREADS == 0, K_W % K_B == 0

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I):
        """A slice, global memory to registers."""
        for f in range(F_FETCHED[0]):
            if F_EVEN or t + f * THREADS < F_ALL:
                four = load4(packed, first_F + slice_ * (K_B * M_B) + f * (THREADS * FLOAT4))
                fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3] = four
        for f in range(I_FLOAT4S):
            e = t + f * THREADS
            term = slice_ * K_B + e % K_4 * FLOAT4
            four = (float32(0), float32(0), float32(0), float32(0))
            if (K_EVEN or term < K_W) and (I_EVEN or e < I_ALL):
                # With dilation the columns of a window are d_w column groups apart.
                four = load4(windows, first_I[f] + term + term // G * G * (d_w - 1))
            fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = four

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store(fetched_F, fetched_I, t, row0, S_F, S_I):
        """A slice, registers to shared memory, from row row0 on."""
        for f in range(F_FETCHED[0]):
            e = t + f * THREADS
            if F_EVEN or e < F_ALL:
                four = (fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3])
                store4(S_F, row0 * M_B + e * FLOAT4, four)
        for f in range(I_FLOAT4S):  # four terms of a window: one for each of four rows
            e = t + f * THREADS
            if I_EVEN or e < I_ALL:
                for c in range(FLOAT4):
                    S_I[(row0 + e % K_4 * FLOAT4 + c) * PITCH + e // K_4] = fetched_I[f, c]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, at_F, at_I, k, R_F, R_I):
        """Row k of the slices that begin at at_F and at_I, shared memory to registers."""
        for i in range(0, M_T, FLOAT4):
            four = load4(S_F, at_F + (k * M_B + i * ROWS))
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four
        for j in range(0, N_T, FLOAT4):
            four = load4(S_I, at_I + (k * PITCH + j * COLUMNS))
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def two_steps(k, S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
        """Lines 9-12 for rows k and k + 1, each while the next row is read. k is a constant."""
        read(S_F, S_I, at_F, at_I, k + 1, R_F1, R_I1)
        multiply(R_F0, R_I0, R_O)
        read(S_F, S_I, at_F, at_I, k + 2, R_F0, R_I0)
        multiply(R_F1, R_I1, R_O)

    steps = unrolled(two_steps, range(0, K_B - 2, 2))

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def warp_tiling(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)  # line 2
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)  # line 1
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_FETCHED, float32)
        first_I = cuda.local.array(I_FLOAT4S, int64)
        t = uint32(cuda.threadIdx.x)
        ty, tx = row_and_column(t)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # Where the windows begin that this thread loads from.
        # Past the last window it loads the last one again; that column is not written.
        for f in range(I_FLOAT4S):
            window = min(n0 + (t + f * THREADS) // K_4, N - 1)
            first_I[f] = (window // W_o * W_w + window % W_o * s_w) * G
        first_F = int64(m0) * K_P + t * FLOAT4

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        row0 = uint32(0)  # row of shared memory where the slice to multiply begins: 0 or K_B
        at_F, at_I = uint32(ty * FLOAT4), uint32(tx * FLOAT4)  # this thread's part of it
        fetch(windows, packed, first_F, first_I, t, 0, fetched_F, fetched_I)  # lines 3-4
        store(fetched_F, fetched_I, t, row0, S_F, S_I)
        cuda.syncthreads()  # line 5: all threads have filled the slice
        read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 6-7
        for slice_ in range(int32(1), int32(SLICES + 1)):  # line 8: multiplies slice_ - 1
            if slice_ < SLICES:
                fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I)
                issue_loads()  # before the arithmetic: the compiler would move them behind it
            steps(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)  # lines 9-12
            read(S_F, S_I, at_F, at_I, K_B - 1, R_F1, R_I1)
            multiply(R_F0, R_I0, R_O)
            if slice_ < SLICES:
                row0 = uint32(K_B - row0)  # the other buffer's turn
                at_F = uint32(row0 * M_B + ty * FLOAT4)
                at_I = uint32(row0 * PITCH + tx * FLOAT4)
                store(fetched_F, fetched_I, t, row0, S_F, S_I)  # lines 14-15
                cuda.syncthreads()  # line 16: all have filled the next slice and have read this one
                read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 17-18
            multiply(R_F1, R_I1, R_O)  # line 19: the last step, while line 18 reads

        for j in range(0, N_T, FLOAT4):  # line 20
            for c in range(0, FLOAT4, STEP):  # STEP = 1: scalar stores, window by window
                n = n0 + tx * FLOAT4 + j * COLUMNS + c
                if n < N:
                    i_n, o_p = n // (H_o * W_o), n % (H_o * W_o)
                    for i in range(M_T):
                        m = m0 + ty * FLOAT4 + i // FLOAT4 * FLOAT4 * ROWS + i % FLOAT4
                        if m < M:
                            at, b = (i_n * M + m) * (H_o * W_o) + o_p, bias[m]
                            if ALIGNED:
                                x, y, z, w = R_O[i, j], R_O[i, j + 1], R_O[i, j + 2], R_O[i, j + 3]
                                store4(output, at, (x + b, y + b, z + b, w + b))
                            else:
                                output[at] = R_O[i, j + c] + b

    return warp_tiling


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """Return the program: the im2win tensor and the packed filter, then the convolution."""
    tile.require_float4s("M_T", "N_T", "K_B")
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B + PADDING))
    kernel = make_kernel(problem, tile)
    return tile_program(problem, tile, kernel, layout_transforms(problem, tile))


STAGE = Stage(
    __name__,
    title="Warp tiles and unrolled steps: the whole of Algorithm 3",
    source="im2win paper (000), Algorithm 3",
    builds_on=("m10_im2win_vectorized",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=8, K_B=8, M_T=4, N_T=4), heuristic="m11"),
    vectorized=True,
)
