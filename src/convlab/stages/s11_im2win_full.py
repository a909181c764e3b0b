"""s11: the full im2win convolution. s09's techniques on the im2win tensor.

Source: seed 000, Algorithm 3. Two things change from s09:

- The filter and the input are both fetched by fours. s10's tensor keeps channels outermost, where
  windows start at any address; here they go innermost: windows[i, m, k, u * C_i + r] with
  groups of G = H_f * C_i elements per column, rounded up to a multiple of four with zeros. All
  K_W = W_f * G elements of a window are then neighbours and start at a multiple of 16 bytes.
- No index arithmetic and no bounds checks are left in the loop: a thread's next elements are K_B
  further on. (With dilation in width, the columns of a window are d_w groups apart.)

``microkernel=False``, ``vectorized=False`` and ``prefetch=False`` leave a technique out: the
ablation of Figure 4 (section 4.4).
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int64, uint32

from convlab.device import codegen, load4, store4
from convlab.problem import ConvProblem
from convlab.stages.base import Buffer, Launch, Program, Stage, blocks_for
from convlab.stages.s10_im2win import window_columns
from convlab.stages.tiles import Tile, microkernel_tile

SKEW = 4  # extra columns of the input slice, so that a warp's column-wise stores hit 32 banks


def group_size(problem: ConvProblem) -> int:
    """G: elements per column of the im2win tensor, a multiple of four."""
    return blocks_for(problem.H_f * problem.C_i, 4) * 4


def make_transform(problem: ConvProblem, SQUARE: int) -> Any:
    """windows[i * H_o + m, k, u * C_i + r] = input[i, r, m * s_h + u * d_h, k], zeros elsewhere.

    Columns k are neighbours in the input, groups in the result: both sides stay coalesced by
    going through shared memory in squares, filled row by row and emptied column by column.
    """
    ROWS = SQUARE // 4  # a thread moves four elements of each square
    p = problem
    _, C_i, H_i, W_i = p.input_shape
    H_f, H_o, W_w, G = p.H_f, p.H_o, window_columns(p), group_size(p)
    s_h, p_h, p_w, d_h = p.s_h, p.p_h, p.p_w, p.d_h
    SQUARE_SHAPE = (SQUARE, SQUARE + 1)  # one more, so that columns hit 32 banks too

    @cuda.jit(**codegen(launch_bounds=SQUARE * ROWS))
    def im2win_transform(input, windows):
        square = cuda.shared.array(SQUARE_SHAPE, float32)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        row = uint32(cuda.blockIdx.x)
        k0 = uint32(cuda.blockIdx.y) * SQUARE
        i, m = row // H_o, row % H_o
        for g0 in range(0, G, SQUARE):
            for y in range(0, SQUARE, ROWS):
                g = g0 + y + ty
                u, r = g // C_i, g % C_i
                i_h = m * s_h + u * d_h - p_h
                i_w = k0 + tx - p_w
                value = float32(0)
                if u < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:
                    value = input[i, r, i_h, i_w]
                square[y + ty, tx] = value
            cuda.syncthreads()
            for y in range(0, SQUARE, ROWS):
                if k0 + y + ty < W_w and g0 + tx < G:
                    windows[row, k0 + y + ty, g0 + tx] = square[tx, y + ty]
            cuda.syncthreads()

    return im2win_transform


def make_pack_filter(problem: ConvProblem, K_P: int, M_P: int, THREADS: int) -> Any:
    """packed[(v * H_f + u) * C_i + r, j] = weight[j, r, u, v] with s08's zeros and G's."""
    p = problem
    M, C_i, H_f, W_f, G = p.M, p.C_i, p.H_f, p.W_f, group_size(p)

    @cuda.jit
    def pack_filter(weight, packed):
        e = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        k, j = e // M_P, e % M_P
        if k < K_P:
            v, u, r = k // G, k % G // C_i, k % G % C_i
            value = float32(0)
            if v < W_f and u < H_f and j < M:
                value = weight[j, r, u, v]
            packed[k, j] = value

    return pack_filter


def make_kernel(problem: ConvProblem, tile: Tile, vectorized: bool, prefetch: bool) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    p = problem
    M, N = p.M, p.N
    W_f, H_o, W_o, s_w, d_w = p.W_f, p.H_o, p.W_o, p.s_w, p.d_w
    W_w, G = window_columns(p), group_size(p)
    K_W = W_f * G
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    F_SLICES, I_SLICES, O_SHAPE = (2, K_B, M_B), (2, K_B, N_B + SKEW), (M_T, N_T)
    M_P, M_RUNS, K_RUNS = blocks_for(M, M_B) * M_B, M_B // 4, K_B // 4
    F_RUN = 4 if vectorized and M_T % 4 == 0 else 1  # rows and columns that a thread has in a row
    I_RUN = 4 if vectorized and N_T % 4 == 0 else 1
    O_RUN = I_RUN if H_o * W_o % 4 == 0 else 1  # or a run would cross into the next image
    SLICES = blocks_for(K_W, K_B)
    F_FETCHES = blocks_for(K_B * M_RUNS, THREADS)
    I_FETCHES = blocks_for(N_B * K_RUNS, THREADS)
    F_FETCHED, I_FETCHED = (F_FETCHES, 4), (I_FETCHES, 4)

    @cuda.jit(device=True, **codegen(forceinline=True))
    def take(array, at, fetched, f):
        if vectorized:
            fetched[f, 0], fetched[f, 1], fetched[f, 2], fetched[f, 3] = load4(array, at)
        else:
            for c in range(4):
                fetched[f, c] = array[at + c]

    @cuda.jit(device=True, **codegen(forceinline=True))
    def fetch(windows, packed, first, m0, t, slice, fetched_F, fetched_I):
        """Lines 3-4 and 14-15: global memory to registers."""
        for f in range(F_FETCHES):
            e = t + f * THREADS
            if e < K_B * M_RUNS:
                at = (slice * K_B + e // M_RUNS) * M_P + m0 + e % M_RUNS * 4
                take(packed, at, fetched_F, f)
        for f in range(I_FETCHES):
            e = t + f * THREADS
            k = slice * K_B + e % K_RUNS * 4
            for c in range(4):
                fetched_I[f, c] = float32(0)
            if k < K_W and e < N_B * K_RUNS:
                take(windows, first[f] + k + k // G * G * (d_w - 1), fetched_I, f)

    @cuda.jit(device=True, **codegen(forceinline=True))
    def put(fetched_F, fetched_I, t, S_F, S_I, buffer):
        """Lines 3-4 and 14-15 again: registers to shared memory."""
        for f in range(F_FETCHES):
            e = t + f * THREADS
            if e < K_B * M_RUNS:
                k, row = e // M_RUNS, e % M_RUNS * 4
                if vectorized:
                    run = (fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3])
                    store4(S_F, (buffer, k, row), run)
                else:
                    for c in range(4):
                        S_F[buffer, k, row + c] = fetched_F[f, c]
        for f in range(I_FETCHES):
            e = t + f * THREADS
            if e < N_B * K_RUNS:
                for c in range(4):
                    S_I[buffer, e % K_RUNS * 4 + c, e // K_RUNS] = fetched_I[f, c]

    @cuda.jit(device=True, **codegen(forceinline=True))
    def read(S_F, S_I, buffer, k, ty, tx, R_F, R_I):
        """Lines 6-7, 10-11 and 17-18: shared memory to registers."""
        for i in range(0, M_T, F_RUN):
            if F_RUN == 4:
                run = load4(S_F, (buffer, k, ty * 4 + i * ROWS))
                R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = run
            else:
                R_F[i] = S_F[buffer, k, ty + i * ROWS]
        for j in range(0, N_T, I_RUN):
            if I_RUN == 4:
                run = load4(S_I, (buffer, k, tx * 4 + j * COLUMNS))
                R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = run
            else:
                R_I[j] = S_I[buffer, k, tx + j * COLUMNS]

    @cuda.jit(device=True, **codegen(forceinline=True))
    def multiply(R_F, R_I, R_O):
        """Lines 12 and 19: the micro-kernel."""
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    @cuda.jit(**codegen(launch_bounds=THREADS))
    def im2win_full(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=16)  # line 2
        S_I = cuda.shared.array(I_SLICES, float32, alignment=16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)  # line 1
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_FETCHED, float32)
        first = cuda.local.array(I_FETCHES, int64)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # Where the windows begin that this thread fetches from. Past the last one, fetch that
        # again; its results are not written.
        for f in range(I_FETCHES):
            window = min(n0 + (t + f * THREADS) // K_RUNS, N - 1)
            first[f] = (window // W_o * W_w + window % W_o * s_w) * G

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        if prefetch:
            buffer = 1
            for slice in range(SLICES + 1):
                if slice < SLICES:
                    fetch(windows, packed, first, m0, t, slice, fetched_F, fetched_I)
                if slice > 0:
                    for k in range(0, K_B - 2, 2):  # lines 9-12
                        read(S_F, S_I, buffer, k + 1, ty, tx, R_F1, R_I1)
                        multiply(R_F0, R_I0, R_O)
                        read(S_F, S_I, buffer, k + 2, ty, tx, R_F0, R_I0)
                        multiply(R_F1, R_I1, R_O)
                    read(S_F, S_I, buffer, K_B - 1, ty, tx, R_F1, R_I1)
                    multiply(R_F0, R_I0, R_O)
                if slice < SLICES:
                    buffer = 1 - buffer
                    put(fetched_F, fetched_I, t, S_F, S_I, buffer)
                    cuda.syncthreads()  # lines 5 and 16
                    read(S_F, S_I, buffer, 0, ty, tx, R_F0, R_I0)
                if slice > 0:
                    multiply(R_F1, R_I1, R_O)  # line 19
        else:
            for slice in range(SLICES):
                fetch(windows, packed, first, m0, t, slice, fetched_F, fetched_I)
                put(fetched_F, fetched_I, t, S_F, S_I, 0)
                cuda.syncthreads()
                for k in range(K_B):
                    read(S_F, S_I, 0, k, ty, tx, R_F0, R_I0)
                    multiply(R_F0, R_I0, R_O)
                cuda.syncthreads()

        for j in range(0, N_T, I_RUN):  # write: line 20
            for c in range(0, I_RUN, O_RUN):
                n = n0 + tx * I_RUN + j * COLUMNS + c
                if n < N:
                    i_n, pixel = n // (H_o * W_o), n % (H_o * W_o)
                    for i in range(M_T):
                        m = m0 + ty * F_RUN + i // F_RUN * F_RUN * ROWS + i % F_RUN
                        if m < M:
                            at, b = (i_n * M + m) * (H_o * W_o) + pixel, bias[m]
                            if O_RUN == 4:
                                x, y, z, w = R_O[i, j], R_O[i, j + 1], R_O[i, j + 2], R_O[i, j + 3]
                                store4(output, at, (x + b, y + b, z + b, w + b))
                            else:
                                output[at] = R_O[i, j + c] + b

    return im2win_full


def prepare(
    problem: ConvProblem,
    tile: Tile,
    microkernel: bool = True,
    vectorized: bool = True,
    prefetch: bool = True,
) -> Program:
    """As every stage's; the switches leave a technique out."""
    if not microkernel:  # s05's shape: one output a thread, 32 x 32 x 32 at production size
        tile = Tile(min(tile.M_B, 32), min(tile.N_B, 32), tile.K_B * 4)
    check_tile(tile, vectorized and microkernel)
    p = problem
    K_P = blocks_for(p.W_f * group_size(p), tile.K_B) * tile.K_B
    M_P = blocks_for(p.M, tile.M_B) * tile.M_B
    columns = window_columns(p)
    square = min(tile.N_B, 32)  # a warp wide; narrower only where a simulator runs tiny tiles
    transform = Launch(
        make_transform(p, square),
        grid=(p.N_i * p.H_o, blocks_for(columns, square)),
        block=(square, square // 4),
        arguments=("input", "windows"),
    )
    pack = Launch(
        make_pack_filter(p, K_P, M_P, tile.threads),
        grid=(blocks_for(K_P * M_P, tile.threads),),
        block=(tile.threads,),
        arguments=("weight", "packed"),
    )
    multiply = Launch(
        make_kernel(p, tile, vectorized, prefetch),
        grid=(blocks_for(p.N, tile.N_B), blocks_for(p.M, tile.M_B)),
        block=(tile.threads,),
        arguments=("windows.flat", "packed.flat", "bias", "output.flat"),
    )
    return Program(
        buffers=(
            Buffer("windows", (p.N_i * p.H_o, columns, group_size(p))),
            Buffer("packed", (K_P, M_P)),
        ),
        launches=(transform, pack, multiply),
    )


def check_tile(tile: Tile, runs_of_four: bool) -> None:
    """Raise ``ValueError`` for a tile that does not suit the kernel."""
    tile.require(
        tile.M_B % 4 == tile.N_B % 4 == tile.K_B % 4 == 0,
        "M_B, N_B and K_B must be multiples of 4, because four numbers are fetched at a time",
    )
    tile.require(
        not runs_of_four or tile.M_T % 4 == tile.N_T % 4 == 0,
        "M_T and N_T must be multiples of 4, because four numbers move at a time",
    )


STAGE = Stage(
    name="s11_im2win_full",
    title="Full im2win: double-buffered micro-kernel on the im2win tensor",
    source="000, Algorithm 3",
    builds_on=("s09_double_buffer", "s10_im2win"),
    module=__name__,
    prepare=prepare,
    production_tile=microkernel_tile,
    tiny_tile=Tile(M_B=16, N_B=8, K_B=8, M_T=4, N_T=4),
    vectorized=True,
    switches=("microkernel", "vectorized", "prefetch"),
)
