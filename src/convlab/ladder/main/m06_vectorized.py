"""m06: vectorised access. A 128-bit load or store moves four numbers, a float4.

Source: im2win paper (000), section 3.3 ("Vectorized load/store"). A thread's rows and columns are
float4s, so that one instruction moves four numbers between shared memory and registers. For this,
the filter slice in shared memory is transposed (K_B x M_B: four rows are neighbours). A layout
transform transposes the whole filter once and adds zeros up to whole tiles, so that the filter is
also loaded as float4s and without bounds checks. Loads of the input stay scalar, because in NCHW a
window's pixels begin at any address. In the im2win tensor they are aligned (m10).
"""

from numba import cuda, float32, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, store4
from convlab.ladder.layouts.filter_layout import pack_filter, require_float4
from convlab.ladder.stage import Kernel, Program, Stage, Tile, Tiles, blocks_for, tile_program
from convlab.problems.problem import ConvProblem


def make_kernel(problem: ConvProblem, tile: Tile) -> Kernel:
    """Return the kernel that moves float4s: of the packed filter ``[K, M]``, of shared memory and
    of the output."""
    p = problem
    M, N, K = p.M, p.N, p.K
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    F_SLICE, I_SLICE, O_SHAPE = (K_B, M_B), (K_B, N_B), (M_T, N_T)
    M_4, M_P = M_B // FLOAT4, blocks_for(M, M_B) * M_B  # float4s in a row of the slice; padded M
    ALIGNED = H_o * W_o % FLOAT4 == 0  # no float4 of outputs crosses into the next image
    STEP = FLOAT4 if ALIGNED else 1

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
            for e in range(t, K_B * M_4, THREADS):  # load
                k, row = e // M_4, e % M_4 * FLOAT4
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
            cuda.syncthreads()  # all have fetched before any computes

            for k in range(K_B):  # compute
                for i in range(0, M_T, FLOAT4):
                    four = load4(S_F, (k, ty * FLOAT4 + i * ROWS))
                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four
                for j in range(0, N_T, FLOAT4):
                    four = load4(S_I, (k, tx * FLOAT4 + j * COLUMNS))
                    R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four
                for i in range(M_T):
                    for j in range(N_T):
                        R_O[i, j] += R_F[i] * R_I[j]
            cuda.syncthreads()  # all have read this slice before any overwrites it

        for j in range(0, N_T, FLOAT4):
            for c in range(0, FLOAT4, STEP):
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

    return vectorized


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """Return the program: the packed filter, then the convolution."""
    require_float4(tile)
    tile.require_shared_memory(tile.K_B * (tile.M_B + tile.N_B))
    kernel = make_kernel(problem, tile)
    return tile_program(
        problem, tile, kernel, pack_filter(problem, tile), flat=("packed", "output")
    )


STAGE = Stage(
    __name__,
    title="Vectorised access: 128-bit loads and stores",
    source="im2win paper (000), 3.3",
    builds_on=("m05_microkernel",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=8, K_B=4, M_T=4, N_T=4)),
    vectorized=True,
)
