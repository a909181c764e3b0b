"""m10: the im2win tensor by float4. m08's kernel reads m09's tensor with channels innermost.

Source: im2win paper (000), section 3.3 ("Vectorized load/store"); the layout is ours. m08 fetches
scalars, with divisions and bounds checks for each. In :mod:`im2win_layout` a window's elements are
neighbours and start at a multiple of 16 bytes, so a float4 is loaded and goes to four rows of S_I.
"""

from numba import cuda, float32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, store4
from convlab.ladder.layouts.im2win_layout import (
    group_size,
    layout_transforms,
    require_even_loads,
    window_columns,
)
from convlab.ladder.stage import Kernel, Program, Stage, Tile, Tiles, blocks_for, tile_program
from convlab.problems.problem import ConvProblem

PADDING = 4  # makes a row of the input slice an odd number of float4s, which stay aligned


def make_kernel(problem: ConvProblem, tile: Tile) -> Kernel:
    """Return the kernel that reads float4s of the im2win tensor, channels innermost, and of the
    packed filter."""
    p = problem
    M, N, H_o, W_o = p.M, p.N, p.H_o, p.W_o
    s_w, d_w, W_w, G = p.s_w, p.d_w, window_columns(p), group_size(p)
    K_W = p.W_f * G  # elements of a window
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    F_SLICES, I_SLICES, O_SHAPE = (2 * K_B, M_B), (2 * K_B, N_B + PADDING), (M_T, N_T)
    M_4, K_4 = M_B // FLOAT4, K_B // FLOAT4  # float4s in a row of S_F; in a window of a slice
    ALIGNED = H_o * W_o % FLOAT4 == 0  # no float4 of outputs crosses into the next image
    STEP = FLOAT4 if ALIGNED else 1
    SLICES, I_FLOAT4S = blocks_for(K_W, K_B), N_B * K_4 // THREADS
    F_FETCHED = (K_B * M_4 // THREADS, FLOAT4)  # a thread's part of the next slice
    I_FETCHED = (I_FLOAT4S, FLOAT4)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, row, ty, tx, R_F, R_I):
        """A row of the slices, shared memory to registers."""
        for i in range(0, M_T, FLOAT4):
            four = load4(S_F, (row, ty * FLOAT4 + i * ROWS))
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four
        for j in range(0, N_T, FLOAT4):
            four = load4(S_I, (row, tx * FLOAT4 + j * COLUMNS))
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def im2win_vectorized(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)  # line 2
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)  # line 1
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_FETCHED, float32)
        first_I = cuda.local.array(I_FLOAT4S, int64)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # Where the windows begin that this thread loads from.
        # Past the last window it loads the last one again; that column is not written.
        for f in range(I_FLOAT4S):
            window = min(n0 + (t + f * THREADS) // K_4, N - 1)
            first_I[f] = (window // W_o * W_w + window % W_o * s_w) * G

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        row0 = K_B  # where the slice's buffer begins, 0 or K_B; flipped before slice 0 is stored
        for slice_ in range(SLICES + 1):  # line 8
            if slice_ < SLICES:  # lines 3-4 and 14-15, first half: global memory to registers
                for f in range(F_FETCHED[0]):
                    e = t + f * THREADS
                    four = load4(packed, K_B * (int64(m0) * SLICES + slice_ * M_B) + e * FLOAT4)
                    fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3] = four
                for f in range(I_FLOAT4S):
                    term = slice_ * K_B + (t + f * THREADS) % K_4 * FLOAT4
                    four = (float32(0), float32(0), float32(0), float32(0))
                    if term < K_W:  # with dilation a window's columns are d_w column groups apart
                        four = load4(windows, first_I[f] + term + term // G * G * (d_w - 1))
                    fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = four
            if slice_ > 0:
                for k in range(0, K_B - 2, 2):  # lines 9-12: read one step ahead
                    read(S_F, S_I, row0 + k + 1, ty, tx, R_F1, R_I1)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, row0 + k + 2, ty, tx, R_F0, R_I0)
                    multiply(R_F1, R_I1, R_O)
                read(S_F, S_I, row0 + K_B - 1, ty, tx, R_F1, R_I1)
                multiply(R_F0, R_I0, R_O)
            if slice_ < SLICES:  # lines 3-4 and 14-15, second half: to the buffer that is free
                row0 = uint32(K_B - row0)  # uint32, since never negative
                for f in range(F_FETCHED[0]):
                    e = t + f * THREADS
                    four = (fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3])
                    store4(S_F, (row0 + e // M_4, e % M_4 * FLOAT4), four)
                for f in range(I_FLOAT4S):  # four terms of a window: one for each of four rows
                    e = t + f * THREADS
                    for c in range(FLOAT4):
                        S_I[row0 + e % K_4 * FLOAT4 + c, e // K_4] = fetched_I[f, c]
                cuda.syncthreads()  # lines 5 and 16: all have filled it, and have read the other
                read(S_F, S_I, row0, ty, tx, R_F0, R_I0)  # lines 6-7 and 17-18
            if slice_ > 0:
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

    return im2win_vectorized


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """Return the program: the im2win tensor and the packed filter, then the convolution."""
    tile.require_float4s("M_T", "N_T", "K_B")
    require_even_loads(tile)
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B + PADDING))
    kernel = make_kernel(problem, tile)
    return tile_program(problem, tile, kernel, layout_transforms(problem, tile))


STAGE = Stage(
    __name__,
    title="im2win by float4: windows are contiguous and aligned",
    source="im2win paper (000), 3.3, Algorithm 3",
    builds_on=("m08_double_buffer",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=8, K_B=8, M_T=4, N_T=4)),
    vectorized=True,
)
