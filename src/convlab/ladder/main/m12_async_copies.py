"""m12: asynchronous copies in a multistage pipeline. Two slices are in flight past the registers.

Source: ours, beyond the paper; CUTLASS has it, for GPUs from compute capability 8.0 on. In m11 the
next slice occupies registers until it is stored. Here ``copy_async`` writes to shared memory by
itself while the threads multiply, so more than one slice can be in flight: with three slices in
shared memory (``DEPTH``), a slice has the arithmetic of two others to arrive. A copy cannot
transpose a float4, so the filter is copied by float4, but windows are copied as scalars.

A thread's copies since the last ``commit_copies()`` are one commit group, and ``wait_copies(n)``
waits until at most n groups are in flight. A thread makes one group per slice, and empty groups
after the last slice, so that the count stays right.

The difference to m11 is long (over 150 lines), because the copies replace m11's registers in
flight, both halves of every load, and the pipeline replaces its two buffers.
"""

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, store4, unrolled
from convlab.device.intrinsics import commit_copies, copy_async, copy_async4, wait_copies
from convlab.ladder.layouts.im2win_layout import group_size, layout_transforms, window_columns
from convlab.ladder.main.m11_warp_tiling import PADDING, make_warp_tile
from convlab.ladder.stage import (
    Kernel,
    Program,
    Requirement,
    Stage,
    Tile,
    Tiles,
    blocks_for,
    tile_program,
)
from convlab.problems.problem import ConvProblem


def make_kernel(problem: ConvProblem, tile: Tile) -> Kernel:
    """Return the kernel that copies slices asynchronously to a pipeline of stages in shared
    memory."""
    p = problem
    M, N, H_o, W_o = p.M, p.N, p.H_o, p.W_o
    s_w, d_w, W_w, G = p.s_w, p.d_w, window_columns(p), group_size(p)
    K_W = p.W_f * G  # elements of a window
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    row_and_column = make_warp_tile(ROWS, COLUMNS)
    PITCH = N_B + PADDING  # of the input slice
    DEPTH = tile.pipeline_depth(K_B * (M_B + PITCH))  # slices in shared memory
    IN_FLIGHT = DEPTH - 2  # commit groups that may be in flight when the next slice is needed
    F_SLICES, I_SLICES, O_SHAPE = DEPTH * K_B * M_B, DEPTH * K_B * PITCH, (M_T, N_T)
    K_P = blocks_for(K_W, K_B) * K_B  # padded K_W
    ALIGNED = H_o * W_o % FLOAT4 == 0  # no float4 of outputs crosses into the next image
    STEP = FLOAT4 if ALIGNED else 1
    SLICES = K_P // K_B
    F_ALL, WINDOWS = K_B * M_B // FLOAT4, THREADS // K_B  # float4s; windows fetched at a time
    F_COPIES, I_COPIES = blocks_for(F_ALL, THREADS), blocks_for(N_B, WINDOWS)  # per thread
    F_EVEN, I_EVEN, K_EVEN = F_ALL % THREADS == 0, N_B % WINDOWS == 0, K_W % K_B == 0

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(windows, packed, first_F, first_I, t, slice_, pipe, S_F, S_I):
        """Start to copy a slice to stage ``pipe`` of the pipeline."""
        for f in range(F_COPIES):
            e = t + f * THREADS
            if F_EVEN or e < F_ALL:
                source = first_F + slice_ * (K_B * M_B) + f * (THREADS * FLOAT4)
                copy_async4(S_F, pipe * (K_B * M_B) + e * FLOAT4, packed, source, True)
        term = slice_ * K_B + t % K_B
        target = (pipe * K_B + t % K_B) * PITCH + t // K_B
        for f in range(I_COPIES):
            if I_EVEN or t // K_B + f * WINDOWS < N_B:
                # With dilation the columns of a window are d_w column groups apart.
                source = first_I[f] + term + term // G * G * (d_w - 1)
                copy_async(S_I, target + f * WINDOWS, windows, source, K_EVEN or term < K_W)

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
    def async_copies(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)  # line 2
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)  # line 1
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        first_I = cuda.local.array(I_COPIES, int64)
        t = uint32(cuda.threadIdx.x)
        ty, tx = row_and_column(t)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # Where the windows begin that this thread loads from.
        # Past the last window it loads the last one again; that column is not written.
        for f in range(I_COPIES):
            window = min(n0 + t // K_B + f * WINDOWS, N - 1)
            first_I[f] = (window // W_o * W_w + window % W_o * s_w) * G
        first_F = int64(m0) * K_P + t * FLOAT4

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        pipe = uint32(0)  # the stage of the pipeline that holds the slice to multiply
        at_F, at_I = uint32(ty * FLOAT4), uint32(tx * FLOAT4)  # this thread's part of it
        for early in range(DEPTH - 1):  # lines 3-4
            if early < SLICES:
                fetch(windows, packed, first_F, first_I, t, early, early, S_F, S_I)
            commit_copies()
        wait_copies(IN_FLIGHT)
        cuda.syncthreads()  # line 5: all threads have filled the slice
        read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 6-7
        for slice_ in range(int32(1), int32(SLICES + 1)):  # line 8: multiplies slice_ - 1
            free = pipe - 1 if pipe > 0 else DEPTH - 1  # all threads have multiplied its slice
            if slice_ + IN_FLIGHT < SLICES:
                fetch(windows, packed, first_F, first_I, t, slice_ + IN_FLIGHT, free, S_F, S_I)
            commit_copies()  # a commit group per slice, at last empty ones: IN_FLIGHT counts slices
            steps(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)  # lines 9-12
            read(S_F, S_I, at_F, at_I, K_B - 1, R_F1, R_I1)
            multiply(R_F0, R_I0, R_O)
            if slice_ < SLICES:
                pipe = uint32(pipe + 1 if pipe + 1 < DEPTH else 0)
                at_F = uint32(pipe * (K_B * M_B) + ty * FLOAT4)
                at_I = uint32(pipe * (K_B * PITCH) + tx * FLOAT4)
                wait_copies(IN_FLIGHT)  # lines 14-15
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

    return async_copies


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """Return the program: the im2win tensor and the packed filter, then the convolution."""
    tile.require_float4s("M_T", "N_T", "K_B")
    tile.require(
        tile.threads % tile.K_B == 0,
        "its threads must be a multiple of K_B, because each copies one term of its windows",
    )
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B + PADDING))
    kernel = make_kernel(problem, tile)
    return tile_program(problem, tile, kernel, layout_transforms(problem, tile))


STAGE = Stage(
    __name__,
    title="Asynchronous copies: a multistage pipeline past the registers",
    source="im2win paper (000), Algorithm 3; ours",
    builds_on=("m11_warp_tiling",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=8, K_B=8, M_T=4, N_T=4), heuristic="m11"),
    vectorized=True,
    requires=Requirement((8, 0), "asynchronous copies"),
)
