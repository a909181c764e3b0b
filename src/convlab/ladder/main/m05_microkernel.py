"""m05: the micro-kernel. An M_T x N_T outer product in registers.

Source: im2win paper (000), section 3.3 ("Micro-kernel"). A thread now computes a small matrix of
outputs. For each k it reads M_T numbers of the filter and N_T of the input into registers and
multiplies each with each: M_T + N_T reads from shared memory for M_T * N_T multiply-adds (16 for
64), so that shared memory alone no longer limits the speed.
"""

from numba import cuda, float32, uint32

from convlab.device import gpu_only
from convlab.ladder.stage import Kernel, Program, Stage, Tile, Tiles, tile_program
from convlab.problems.problem import ConvProblem


def make_kernel(problem: ConvProblem, tile: Tile) -> Kernel:
    """Return the kernel whose threads add M_T x N_T outer products to sums in registers."""
    p = problem
    M, N, K = p.M, p.N, p.K
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    F_SLICE, I_SLICE, O_SHAPE = (M_B, K_B), (K_B, N_B), (M_T, N_T)

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, 1)))
    def microkernel(input, weight, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32)
        S_I = cuda.shared.array(I_SLICE, float32)
        R_F = cuda.local.array(M_T, float32)
        R_I = cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
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
        for k0 in range(0, K, K_B):
            for e in range(t, M_B * K_B, THREADS):  # load
                row, k = m0 + e // K_B, k0 + e % K_B
                value = float32(0)
                if row < M and k < K:
                    value = weight[row * K + k]
                S_F[e // K_B, e % K_B] = value
            for e in range(t // N_B, K_B, THREADS // N_B):
                k = uint32(k0 + e)
                i_c = k // (H_f * W_f)
                i_h = o_h * s_h + k % (H_f * W_f) // W_f * d_h - p_h
                i_w = o_w * s_w + k % W_f * d_w - p_w
                pixel = float32(0)
                if k < K and 0 <= i_h < H_i and 0 <= i_w < W_i:
                    pixel = input[i_n, i_c, i_h, i_w]
                S_I[e, column] = pixel
            cuda.syncthreads()  # all have fetched before any computes

            for k in range(K_B):  # compute
                for i in range(M_T):
                    R_F[i] = S_F[ty + i * ROWS, k]
                for j in range(N_T):
                    R_I[j] = S_I[k, tx + j * COLUMNS]
                for i in range(M_T):
                    for j in range(N_T):
                        R_O[i, j] += R_F[i] * R_I[j]
            cuda.syncthreads()  # all have read this slice before any overwrites it

        for j in range(N_T):
            n = n0 + tx + j * COLUMNS
            i_n = n // (H_o * W_o)
            o_h = n % (H_o * W_o) // W_o
            o_w = n % W_o
            for i in range(M_T):
                m = m0 + ty + i * ROWS
                if m < M and n < N:
                    output[i_n, m, o_h, o_w] = R_O[i, j] + bias[m]

    return microkernel


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """Return the program: one launch with M_B / M_T x N_B / N_T threads in a block."""
    tile.require(
        tile.threads % tile.N_B == 0,
        "its threads must be a multiple of N_B, because each fetches from one window",
    )
    tile.require_shared_memory(tile.K_B * (tile.M_B + tile.N_B))
    return tile_program(problem, tile, make_kernel(problem, tile), flat=("weight",))


STAGE = Stage(
    __name__,
    title="Micro-kernel: an outer product in registers",
    source="im2win paper (000), 3.3",
    builds_on=("m04_block_tiling",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=8, N_B=8, K_B=4, M_T=2, N_T=4)),
)
