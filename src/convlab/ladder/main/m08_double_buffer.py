"""m08: double buffering. Slices and operands have two buffers: one is read, the other is filled.

Source: im2win paper (000), section 3.3 ("Double buffer and prefetching") and Algorithm 3. With two
buffers in shared memory, one barrier per slice is enough: at the previous round's barrier, all
threads had read the buffer that this round fills. With two register buffers, a thread reads
step k + 1 before it multiplies step k. Comments name lines of Algorithm 3 (see docs/ladder.md).
(The paper's lines 14-15 load the next slice after the multiplication. Here the loads are issued
before it, so the multiplication hides their latency.) On Conv9 the gain over m07 is 1.00: m07
hides that latency already, and the barrier that m08 saves costs little there.

    round 0        load 0   (lines 3-7: the prologue)         store 0   barrier
    round 1        load 1   multiply 0 except its last step   store 1   barrier   last step of 0
    ...
    round SLICES            multiply the last slice except its last step       its last step
"""

from numba import cuda, float32, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, store4
from convlab.ladder.layouts.filter_layout import pack_filter, require_float4
from convlab.ladder.stage import Kernel, Program, Stage, Tile, Tiles, blocks_for, tile_program
from convlab.problems.problem import ConvProblem


def make_kernel(problem: ConvProblem, tile: Tile) -> Kernel:
    """Return the kernel with two buffers for slices in shared memory and for operands in
    registers."""
    p = problem
    M, N, K = p.M, p.N, p.K
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    F_SLICES, I_SLICES, O_SHAPE = (2 * K_B, M_B), (2 * K_B, N_B), (M_T, N_T)  # stacked by rows
    M_4, M_P = M_B // FLOAT4, blocks_for(M, M_B) * M_B  # float4s in a row of the slice; padded M
    ALIGNED = H_o * W_o % FLOAT4 == 0  # no float4 of outputs crosses into the next image
    STEP = FLOAT4 if ALIGNED else 1
    SLICES, I_ROWS = blocks_for(K, K_B), THREADS // N_B  # I_ROWS: rows loaded at a time
    F_FETCHED = (K_B * M_4 // THREADS, FLOAT4)  # a thread's part of the next slice
    I_FETCHED = K_B // I_ROWS

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
    def double_buffer(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)  # line 2
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)  # line 1
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_FETCHED, float32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # The window this thread loads from: column t % N_B of the tile.
        # Past the last window it loads the last one again; that column is not written.
        column = t % N_B
        window = min(n0 + column, N - 1)
        i_n = window // (H_o * W_o)
        o_h = window % (H_o * W_o) // W_o
        o_w = window % W_o

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        row0 = K_B  # where the slice's buffer begins, 0 or K_B; flipped before slice 0 is stored
        for slice_ in range(SLICES + 1):  # line 8
            if slice_ < SLICES:  # lines 3-4 and 14-15, first half: global memory to registers
                for f in range(F_FETCHED[0]):
                    e = t + f * THREADS
                    four = load4(packed, (slice_ * K_B + e // M_4) * M_P + m0 + e % M_4 * FLOAT4)
                    fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3] = four
                for f in range(I_FETCHED):
                    k = uint32(slice_ * K_B + t // N_B + f * I_ROWS)
                    i_c = k // (H_f * W_f)
                    i_h = o_h * s_h + k % (H_f * W_f) // W_f * d_h - p_h
                    i_w = o_w * s_w + k % W_f * d_w - p_w
                    pixel = float32(0)
                    if k < K and 0 <= i_h < H_i and 0 <= i_w < W_i:
                        pixel = input[i_n, i_c, i_h, i_w]
                    fetched_I[f] = pixel
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
                for f in range(I_FETCHED):
                    S_I[row0 + t // N_B + f * I_ROWS, column] = fetched_I[f]
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

    return double_buffer


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """Return the program: the packed filter, then the convolution."""
    require_float4(tile)
    tile.require(tile.K_B % 2 == 0, "K_B must be even, because two register buffers alternate")
    tile.require(
        tile.K_B * tile.M_B % (FLOAT4 * tile.threads) == tile.K_B * tile.N_B % tile.threads == 0,
        "its threads must share K_B x M_B / 4 float4s and K_B x N_B pixels evenly, because each "
        "keeps what it loads in registers of its own",
    )
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B))
    kernel = make_kernel(problem, tile)
    return tile_program(
        problem, tile, kernel, pack_filter(problem, tile), flat=("packed", "output")
    )


STAGE = Stage(
    __name__,
    title="Double buffering: two buffers, one barrier for each slice",
    source="im2win paper (000), 3.3, Algorithm 3",
    builds_on=("m07_prefetch",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=8, K_B=4, M_T=4, N_T=4)),
    vectorized=True,
)
