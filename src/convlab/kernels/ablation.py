"""s11 with a technique left out: what Figure 4 of the im2win paper (000, section 4.4) compares.

Not a stage: s11's kernel takes these parts instead of its own where a switch is off.

- no micro-kernel: one output a thread, so that nothing is used twice from a register (and no
  ``issue_loads``);
- no vectorised access: every fetch, put, read and write moves one number (the paper leaves out the
  reads from shared memory only);
- no prefetch: one buffer, filled and then computed from, with nothing under way meanwhile.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only
from convlab.kernels.im2win_layout import group_size, make_first, packed_buffer
from convlab.problem import ConvProblem
from convlab.stage import Tile, blocks_for


def one_output_a_thread(tile: Tile) -> Tile:
    """The tile without a micro-kernel: s05's 32 x 32 x 32 at production size."""
    return Tile(min(tile.M_B, 32), min(tile.N_B, 32), min(4 * tile.K_B, 32))


def make_fetch(problem: ConvProblem, tile: Tile) -> Any:
    """s11's fetch, one number at a time."""
    p = problem
    d_w, G = p.d_w, group_size(p)
    K_W = p.W_f * G
    M_B, N_B, K_B, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.threads
    F_ALL, I_ALL, K_RUNS = K_B * M_B // FLOAT4, K_B * N_B // FLOAT4, K_B // FLOAT4
    F_RUNS, I_RUNS = blocks_for(F_ALL, THREADS), blocks_for(I_ALL, THREADS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I):
        for f in range(F_RUNS):
            e = t + f * THREADS
            if e < F_ALL:
                at = first_F + slice_ * (K_B * M_B) + f * (THREADS * FLOAT4)
                for c in range(FLOAT4):
                    fetched_F[f, c] = packed[at + c]
        for f in range(I_RUNS):
            e = t + f * THREADS
            k = slice_ * K_B + e % K_RUNS * FLOAT4
            for c in range(FLOAT4):
                fetched_I[f, c] = float32(0)
                if k < K_W and e < I_ALL:
                    fetched_I[f, c] = windows[first_I[f] + k + k // G * G * (d_w - 1) + c]

    return fetch


def make_put(tile: Tile, skew: int) -> Any:
    """s11's put, one number at a time."""
    M_B, N_B, K_B, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.threads
    F_ALL, I_ALL, K_RUNS = K_B * M_B // FLOAT4, K_B * N_B // FLOAT4, K_B // FLOAT4
    F_RUNS, I_RUNS = blocks_for(F_ALL, THREADS), blocks_for(I_ALL, THREADS)
    PITCH = N_B + skew

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def put(fetched_F, fetched_I, t, k0, S_F, S_I):
        for f in range(F_RUNS):
            e = t + f * THREADS
            if e < F_ALL:
                for c in range(FLOAT4):
                    S_F[uint32(k0 * M_B + e * FLOAT4 + c)] = fetched_F[f, c]
        for f in range(I_RUNS):
            e = t + f * THREADS
            if e < I_ALL:
                for c in range(FLOAT4):
                    at = uint32((k0 + e % K_RUNS * FLOAT4 + c) * PITCH + e // K_RUNS)
                    S_I[at] = fetched_I[f, c]

    return put


def make_read(tile: Tile, skew: int) -> Any:
    """s07's reads: a thread's rows and columns are ROWS and COLUMNS apart."""
    M_B, M_T, N_T, ROWS, COLUMNS = tile.M_B, tile.M_T, tile.N_T, tile.rows, tile.columns
    PITCH = tile.N_B + skew

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, at_F, at_I, k, R_F, R_I):
        for i in range(M_T):
            R_F[i] = S_F[at_F + (k * M_B + i * ROWS)]
        for j in range(N_T):
            R_I[j] = S_I[at_I + (k * PITCH + j * COLUMNS)]

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


def make_steps(tile: Tile, read: Any) -> Any:
    """A slice's product, each step written out as s11's are, but read when it is multiplied."""
    M_T, N_T = tile.M_T, tile.N_T

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    def steps_from(k: int) -> Any:
        following = steps_from(k + 1) if k + 1 < tile.K_B else None

        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def step(S_F, S_I, at_F, at_I, R_F, R_I, R_O):
            read(S_F, S_I, at_F, at_I, k, R_F, R_I)
            multiply(R_F, R_I, R_O)
            if following is not None:
                following(S_F, S_I, at_F, at_I, R_F, R_I, R_O)

        return step

    return steps_from(0)


def make_row_major(tile: Tile) -> Any:
    """``place(t)``, s05's: threads row by row."""
    COLUMNS = tile.columns

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def place(t):
        return t // COLUMNS, t % COLUMNS

    return place


def make_kernel(
    problem: ConvProblem,
    tile: Tile,
    place: Any,
    fetch: Any,
    put: Any,
    read: Any,
    write: Any,
    VECTOR: int,
    skew: int,
    BUFFERS: int,
) -> Any:
    """s11's kernel without reading a step ahead, which belongs to the micro-kernel. With two
    buffers it fetches the next slice meanwhile; with one it has s08's loop: fill, wait, compute,
    wait."""
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, PITCH, O_SHAPE = tile.threads, N_B + skew, (M_T, N_T)
    F_SLICES, I_SLICES = BUFFERS * K_B * M_B, BUFFERS * K_B * PITCH
    _, K_P, _ = packed_buffer(problem, tile).shape
    SLICES = K_P // K_B
    F_RUNS, I_RUNS = (blocks_for(K_B * wide // FLOAT4, THREADS) for wide in (M_B, N_B))
    F_FETCHED, I_FETCHED = (F_RUNS, FLOAT4), (I_RUNS, FLOAT4)
    first, steps = make_first(problem, tile, K_P), make_steps(tile, read)

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def im2win_full(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F, R_I = cuda.local.array(M_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_FETCHED, float32)
        first_I = cuda.local.array(I_RUNS, int64)
        t = uint32(cuda.threadIdx.x)
        ty, tx = place(t)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        first_F = first(t, m0, n0, first_I)
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        k0 = uint32(0)  # where in shared memory the slice begins that is computed: 0 or K_B
        fetch(windows, packed, first_F, first_I, t, 0, fetched_F, fetched_I)
        put(fetched_F, fetched_I, t, k0, S_F, S_I)
        cuda.syncthreads()  # all threads have filled the slice
        for slice_ in range(int32(1), int32(SLICES + 1)):  # slice_ is the next one
            if BUFFERS == 2 and slice_ < SLICES:
                fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I)
            at_F = uint32(k0 * M_B + ty * VECTOR)
            at_I = uint32(k0 * PITCH + tx * VECTOR)
            steps(S_F, S_I, at_F, at_I, R_F, R_I, R_O)
            if slice_ < SLICES:
                if BUFFERS == 2:
                    k0 = uint32(K_B - k0)  # the other buffer's turn
                else:
                    cuda.syncthreads()  # all threads have read the slice
                    fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I)
                put(fetched_F, fetched_I, t, k0, S_F, S_I)
                cuda.syncthreads()  # all threads have filled the slice

        write(R_O, bias, output, m0, n0, ty, tx)

    return im2win_full
