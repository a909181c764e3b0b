"""s11 with a technique left out: what Figure 4 of the im2win paper (000, section 4.4) compares.

Not a stage: s11's kernel takes these parts instead of its own where a switch is off.

- no micro-kernel: one output a thread, so that nothing is used twice from a register;
- no vectorised access: every fetch, put, read and write moves one number (the paper leaves out the
  reads from shared memory only);
- no prefetch: one buffer, filled and then computed from, with nothing under way meanwhile.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int64, uint32

from convlab.device import BYTES_16, gpu_only
from convlab.problem import ConvProblem
from convlab.stages.base import blocks_for
from convlab.stages.im2win_tensor import group_size
from convlab.stages.s08_vectorized import RUN, make_multiply
from convlab.stages.s10_im2win import window_columns
from convlab.stages.tiles import Tile

# Columns added to the input slice, so that a warp's column-wise puts hit 32 banks: with slices of
# eight, as s11's are, and with the 32 of the tile that goes without a micro-kernel.
SKEW = 4
SKEW_OF_32 = 1


def one_output_a_thread(tile: Tile) -> Tile:
    """The tile without a micro-kernel: s05's 32 x 32 x 32 at production size."""
    return Tile(min(tile.M_B, 32), min(tile.N_B, 32), 4 * tile.K_B)


def make_fetch(problem: ConvProblem, tile: Tile) -> Any:
    """s11's fetch, one number at a time."""
    p = problem
    d_w, G = p.d_w, group_size(p)
    K_W = p.W_f * G
    M_B, N_B, K_B, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.threads
    M_RUNS, K_RUNS, M_P = M_B // RUN, K_B // RUN, blocks_for(p.M, M_B) * M_B
    F_RUNS, I_RUNS = blocks_for(K_B * M_RUNS, THREADS), blocks_for(N_B * K_RUNS, THREADS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(windows, packed, first, m0, t, slice_, fetched_F, fetched_I):
        for f in range(F_RUNS):
            e = t + f * THREADS
            if e < K_B * M_RUNS:
                for c in range(RUN):
                    at = (slice_ * K_B + e // M_RUNS) * M_P + m0 + e % M_RUNS * RUN + c
                    fetched_F[f, c] = packed[at]
        for f in range(I_RUNS):
            e = t + f * THREADS
            k = slice_ * K_B + e % K_RUNS * RUN
            for c in range(RUN):
                fetched_I[f, c] = float32(0)
                if k < K_W and e < N_B * K_RUNS:
                    fetched_I[f, c] = windows[first[f] + k + k // G * G * (d_w - 1) + c]

    return fetch


def make_put(tile: Tile) -> Any:
    """s11's put, one number at a time."""
    M_B, N_B, K_B, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.threads
    M_RUNS, K_RUNS = M_B // RUN, K_B // RUN
    F_RUNS, I_RUNS = blocks_for(K_B * M_RUNS, THREADS), blocks_for(N_B * K_RUNS, THREADS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def put(fetched_F, fetched_I, t, k0, S_F, S_I):
        for f in range(F_RUNS):
            e = t + f * THREADS
            if e < K_B * M_RUNS:
                for c in range(RUN):
                    S_F[k0 + e // M_RUNS, e % M_RUNS * RUN + c] = fetched_F[f, c]
        for f in range(I_RUNS):
            e = t + f * THREADS
            if e < N_B * K_RUNS:
                for c in range(RUN):
                    S_I[k0 + e % K_RUNS * RUN + c, e // K_RUNS] = fetched_I[f, c]

    return put


def make_read(tile: Tile) -> Any:
    """s07's reads: a thread's rows and columns are ROWS and COLUMNS apart."""
    M_T, N_T, ROWS, COLUMNS = tile.M_T, tile.N_T, tile.rows, tile.columns

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, k, ty, tx, R_F, R_I):
        for i in range(M_T):
            R_F[i] = S_F[k, ty + i * ROWS]
        for j in range(N_T):
            R_I[j] = S_I[k, tx + j * COLUMNS]

    return read


def make_write(problem: ConvProblem, tile: Tile) -> Any:
    """s07's writes."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T, ROWS, COLUMNS = tile.M_T, tile.N_T, tile.rows, tile.columns

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def write(R_O, bias, output, m0, n0, ty, tx):
        for j in range(N_T):
            n = n0 + tx + j * COLUMNS
            if n < N:
                i_n, pixel = n // PIXELS, n % PIXELS
                for i in range(M_T):
                    m = m0 + ty + i * ROWS
                    if m < M:
                        output[(i_n * M + m) * PIXELS + pixel] = R_O[i, j] + bias[m]

    return write


def make_kernel_without_prefetch(
    problem: ConvProblem, tile: Tile, fetch: Any, put: Any, read: Any, write: Any
) -> Any:
    """s11's kernel with s08's loop: fill, wait, compute, wait."""
    p = problem
    N = p.N
    W_o, s_w, W_w, G = p.W_o, p.s_w, window_columns(p), group_size(p)
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, COLUMNS = tile.threads, tile.columns
    F_SLICE, I_SLICE, O_SHAPE = (K_B, M_B), (K_B, N_B + SKEW), (M_T, N_T)
    K_RUNS = K_B // RUN
    SLICES = blocks_for(p.W_f * G, K_B)
    F_RUNS, I_RUNS = blocks_for(K_B * M_B // RUN, THREADS), blocks_for(N_B * K_RUNS, THREADS)
    F_FETCHED, I_FETCHED = (F_RUNS, RUN), (I_RUNS, RUN)
    multiply = make_multiply(tile)

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def im2win_full(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICE, float32, alignment=BYTES_16)
        R_F, R_I = cuda.local.array(M_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_FETCHED, float32)
        first = cuda.local.array(I_RUNS, int64)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        for f in range(I_RUNS):
            window = min(n0 + (t + f * THREADS) // K_RUNS, N - 1)
            first[f] = (window // W_o * W_w + window % W_o * s_w) * G

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for slice_ in range(SLICES):
            fetch(windows, packed, first, m0, t, slice_, fetched_F, fetched_I)
            put(fetched_F, fetched_I, t, 0, S_F, S_I)
            cuda.syncthreads()  # nobody computes before all have fetched
            for k in range(K_B):
                read(S_F, S_I, k, ty, tx, R_F, R_I)
                multiply(R_F, R_I, R_O)
            cuda.syncthreads()  # nobody fetches the next slice over what others still read

        write(R_O, bias, output, m0, n0, ty, tx)

    return im2win_full


def make_kernel_without_microkernel(
    problem: ConvProblem, tile: Tile, fetch: Any, put: Any, write: Any
) -> Any:
    """s11's kernel with s05's loop: one sum a thread, two reads from shared memory for each term.
    The next slice is fetched meanwhile, but no term is read ahead: that belongs to the
    micro-kernel."""
    p = problem
    N = p.N
    W_o, s_w, W_w, G = p.W_o, p.s_w, window_columns(p), group_size(p)
    M_B, N_B, K_B = tile.M_B, tile.N_B, tile.K_B
    THREADS, COLUMNS = tile.threads, tile.columns
    F_SLICES, I_SLICES = (2 * K_B, M_B), (2 * K_B, N_B + SKEW_OF_32)
    K_RUNS = K_B // RUN
    SLICES = blocks_for(p.W_f * G, K_B)
    F_RUNS, I_RUNS = blocks_for(K_B * M_B // RUN, THREADS), blocks_for(N_B * K_RUNS, THREADS)
    F_FETCHED, I_FETCHED = (F_RUNS, RUN), (I_RUNS, RUN)

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def im2win_full(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_O = cuda.local.array((1, 1), float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_FETCHED, float32)
        first = cuda.local.array(I_RUNS, int64)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        for f in range(I_RUNS):
            window = min(n0 + (t + f * THREADS) // K_RUNS, N - 1)
            first[f] = (window // W_o * W_w + window % W_o * s_w) * G

        R_O[0, 0] = float32(0)
        k0 = uint32(K_B)  # where in shared memory the slice begins that is computed: 0 or K_B
        for slice_ in range(SLICES + 1):
            if slice_ < SLICES:
                fetch(windows, packed, first, m0, t, slice_, fetched_F, fetched_I)
            if slice_ > 0:
                for k in range(K_B):
                    R_O[0, 0] += S_F[k0 + k, ty] * S_I[k0 + k, tx]
            if slice_ < SLICES:
                k0 = uint32(K_B - k0)  # the other buffer's turn
                put(fetched_F, fetched_I, t, k0, S_F, S_I)
                cuda.syncthreads()  # nobody reads it before all have filled it

        write(R_O, bias, output, m0, n0, ty, tx)

    return im2win_full
