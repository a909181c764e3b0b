"""m04: block tiling. The tile grows larger than the block: several outputs a thread.

Source: im2win paper (000), section 3.3 ("Tiling"). A larger tile needs fewer loads from global
memory per multiply-add, but a block has at most 1,024 threads: so each thread computes M_T outputs
of one column. It reads a number of the input slice once for all of them, which also lowers the
traffic of shared memory: M_T + 1 reads for M_T multiply-adds where m03 needs 2 * M_T.
"""

from numba import cuda, float32, uint32

from convlab.device import gpu_only
from convlab.ladder.stage import Kernel, Program, Stage, Tile, Tiles, tile_program
from convlab.problems.problem import ConvProblem


def make_kernel(problem: ConvProblem, tile: Tile) -> Kernel:
    """Return the kernel whose threads compute M_T x N_T outputs each of a block's M_B x N_B."""
    p = problem
    M, N, K = p.M, p.N, p.K
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_B, N_B, K_B, M_T, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.threads
    ROWS = tile.rows
    F_SLICE, I_SLICE = (M_B, K_B), (K_B, N_B)

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, 1)))
    def block_tiling(input, weight, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32)
        S_I = cuda.shared.array(I_SLICE, float32)
        R_O = cuda.local.array(M_T, float32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // N_B, t % N_B
        m0 = uint32(cuda.blockIdx.y) * M_B
        n = uint32(cuda.blockIdx.x) * N_B + tx

        window = min(n, N - 1)  # threads past the last window load it again and write nothing
        i_n = window // (H_o * W_o)
        o_h = window % (H_o * W_o) // W_o
        o_w = window % W_o

        for i in range(M_T):
            R_O[i] = float32(0)
        for k0 in range(0, K, K_B):
            for e in range(t, M_B * K_B, THREADS):  # load
                row, k = m0 + e // K_B, k0 + e % K_B
                value = float32(0)
                if row < M and k < K:
                    value = weight[row * K + k]
                S_F[e // K_B, e % K_B] = value
            for e in range(ty, K_B, ROWS):
                k = uint32(k0 + e)
                i_c = k // (H_f * W_f)
                i_h = o_h * s_h + k % (H_f * W_f) // W_f * d_h - p_h
                i_w = o_w * s_w + k % W_f * d_w - p_w
                pixel = float32(0)
                if k < K and 0 <= i_h < H_i and 0 <= i_w < W_i:
                    pixel = input[i_n, i_c, i_h, i_w]
                S_I[e, tx] = pixel
            cuda.syncthreads()  # all have fetched before any computes

            for k in range(K_B):  # compute
                value = S_I[k, tx]
                for i in range(M_T):
                    R_O[i] += S_F[ty + i * ROWS, k] * value
            cuda.syncthreads()  # all have read this slice before any overwrites it

        for i in range(M_T):
            m = m0 + ty + i * ROWS
            if m < M and n < N:
                output[i_n, m, o_h, o_w] = R_O[i] + bias[m]

    return block_tiling


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """Return the program: one launch with M_B / M_T x N_B / N_T threads in a block."""
    tile.require(tile.N_T == 1, "m04 computes one column of outputs a thread: N_T = 1")
    tile.require_shared_memory(tile.K_B * (tile.M_B + tile.N_B))
    return tile_program(problem, tile, make_kernel(problem, tile), flat=("weight",))


STAGE = Stage(
    __name__,
    title="Block tiling: tiles larger than the block, several outputs a thread",
    source="im2win paper (000), 3.3",
    builds_on=("m03_shared_memory",),
    prepare=prepare,
    tiles=Tiles(
        production=lambda problem: Tile(M_B=64, N_B=64, K_B=16, M_T=16),
        tiny=Tile(M_B=8, N_B=4, K_B=4, M_T=2),
        model=Tile(M_B=32, N_B=32, K_B=8, M_T=4),
    ),
)
