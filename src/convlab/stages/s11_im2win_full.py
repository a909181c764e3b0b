"""s11: the full im2win convolution. s09's techniques on the im2win tensor.

Source: im2win paper (000), Algorithm 3. The loop is s09's; what changes is ``fetch`` and ``put``.
The input is now fetched by fours like the filter, because in :mod:`im2win_tensor` every window is
one run of memory that starts at a multiple of 16 bytes. A thread's next elements are K_B further
on: of s09's divisions and bounds checks, one comparison a run is left. A run of four elements of
one window goes to four rows of the slice in shared memory, one element each.

``microkernel=False``, ``vectorized=False`` and ``prefetch=False`` leave a technique out
(:mod:`s11_ablation`).
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int64, uint32

from convlab.device import BYTES_16, gpu_only, load4, store4
from convlab.problem import ConvProblem
from convlab.stages import s11_ablation
from convlab.stages.base import Buffer, Flat, Launch, Program, Stage, blocks_for
from convlab.stages.im2win_tensor import (
    group_size,
    pack_launch,
    transform_launch,
    windows_buffer,
)
from convlab.stages.s08_vectorized import RUN, make_multiply, make_read, make_write
from convlab.stages.s10_im2win import window_columns
from convlab.stages.tiles import MODEL_TILE, Tile, microkernel_tile

SKEW = s11_ablation.SKEW


def make_fetch(problem: ConvProblem, tile: Tile) -> Any:
    """Lines 3-4 and 14-15, first half: a slice from global memory to registers, by fours."""
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
                run = load4(packed, (slice_ * K_B + e // M_RUNS) * M_P + m0 + e % M_RUNS * RUN)
                fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3] = run
        for f in range(I_RUNS):
            e = t + f * THREADS
            k = slice_ * K_B + e % K_RUNS * RUN
            run = (float32(0), float32(0), float32(0), float32(0))
            if k < K_W and e < N_B * K_RUNS:  # d_w - 1 is 0 without dilation, and the term gone
                run = load4(windows, first[f] + k + k // G * G * (d_w - 1))
            fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = run

    return fetch


def make_put(tile: Tile) -> Any:
    """Lines 3-4 and 14-15, second half: from registers to shared memory, rows from k0 on."""
    M_B, N_B, K_B, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.threads
    M_RUNS, K_RUNS = M_B // RUN, K_B // RUN
    F_RUNS, I_RUNS = blocks_for(K_B * M_RUNS, THREADS), blocks_for(N_B * K_RUNS, THREADS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def put(fetched_F, fetched_I, t, k0, S_F, S_I):
        for f in range(F_RUNS):
            e = t + f * THREADS
            if e < K_B * M_RUNS:
                run = (fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3])
                store4(S_F, (k0 + e // M_RUNS, e % M_RUNS * RUN), run)
        for f in range(I_RUNS):
            e = t + f * THREADS
            if e < N_B * K_RUNS:
                for c in range(RUN):
                    S_I[k0 + e % K_RUNS * RUN + c, e // K_RUNS] = fetched_I[f, c]

    return put


def make_kernel(
    problem: ConvProblem, tile: Tile, fetch: Any, put: Any, read: Any, write: Any
) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    p = problem
    N = p.N
    W_o, s_w, W_w, G = p.W_o, p.s_w, window_columns(p), group_size(p)
    K_W = p.W_f * G
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, COLUMNS = tile.threads, tile.columns
    F_SLICES, I_SLICES, O_SHAPE = (2 * K_B, M_B), (2 * K_B, N_B + SKEW), (M_T, N_T)
    K_RUNS = K_B // RUN
    SLICES = blocks_for(K_W, K_B)
    F_RUNS, I_RUNS = blocks_for(K_B * M_B // RUN, THREADS), blocks_for(N_B * K_RUNS, THREADS)
    F_FETCHED, I_FETCHED = (F_RUNS, RUN), (I_RUNS, RUN)
    multiply = make_multiply(tile)

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def im2win_full(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)  # line 2
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)  # line 1
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        fetched_F = cuda.local.array(F_FETCHED, float32)
        fetched_I = cuda.local.array(I_FETCHED, float32)
        first = cuda.local.array(I_RUNS, int64)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # Where the windows begin that this thread fetches from. Past the last one, fetch that
        # again; its results are not written.
        for f in range(I_RUNS):
            window = min(n0 + (t + f * THREADS) // K_RUNS, N - 1)
            first[f] = (window // W_o * W_w + window % W_o * s_w) * G

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        k0 = K_B  # where in shared memory the slice begins that is computed: 0 or K_B
        for slice_ in range(SLICES + 1):  # line 8
            if slice_ < SLICES:
                fetch(windows, packed, first, m0, t, slice_, fetched_F, fetched_I)
            if slice_ > 0:
                for k in range(0, K_B - 2, 2):  # lines 9-12: read a step ahead
                    read(S_F, S_I, k0 + k + 1, ty, tx, R_F1, R_I1)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, k0 + k + 2, ty, tx, R_F0, R_I0)
                    multiply(R_F1, R_I1, R_O)
                read(S_F, S_I, k0 + K_B - 1, ty, tx, R_F1, R_I1)
                multiply(R_F0, R_I0, R_O)
            if slice_ < SLICES:
                k0 = uint32(K_B - k0)  # the other buffer's turn; uint32, since never negative
                put(fetched_F, fetched_I, t, k0, S_F, S_I)
                cuda.syncthreads()  # lines 5 and 16: nobody reads it before all have filled it
                read(S_F, S_I, k0, ty, tx, R_F0, R_I0)  # lines 6-7 and 17-18
            if slice_ > 0:
                multiply(R_F1, R_I1, R_O)  # line 19: the last step, while line 18 reads

        write(R_O, bias, output, m0, n0, ty, tx)  # line 20

    return im2win_full


def prepare(
    problem: ConvProblem,
    tile: Tile,
    microkernel: bool = True,
    vectorized: bool = True,
    prefetch: bool = True,
) -> Program:
    """As every stage's; the switches leave a technique out."""
    if not microkernel:
        tile = s11_ablation.one_output_a_thread(tile)
    by_runs = vectorized and microkernel
    check_tile(tile, by_runs)
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B + SKEW))
    fetch = make_fetch(problem, tile) if vectorized else s11_ablation.make_fetch(problem, tile)
    put = make_put(tile) if vectorized else s11_ablation.make_put(tile)
    read = make_read(tile) if by_runs else s11_ablation.make_read(tile)
    write = make_write(problem, tile) if by_runs else s11_ablation.make_write(problem, tile)
    if not prefetch:
        kernel = s11_ablation.make_kernel_without_prefetch(problem, tile, fetch, put, read, write)
    elif not microkernel:
        kernel = s11_ablation.make_kernel_without_microkernel(problem, tile, fetch, put, write)
    else:
        kernel = make_kernel(problem, tile, fetch, put, read, write)
    M_P = blocks_for(problem.M, tile.M_B) * tile.M_B
    K_P = blocks_for(problem.W_f * group_size(problem), tile.K_B) * tile.K_B
    main = Launch(
        kernel,
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B)),
        block=(tile.threads,),
        arguments=(Flat("windows"), Flat("packed"), "bias", Flat("output")),
    )
    return Program(
        (windows_buffer(problem), Buffer("packed", (K_P, M_P))),
        (
            transform_launch(problem, tile.N_B),
            pack_launch(problem, K_P, M_P, tile.N_B),
            main,
        ),
        tile,
    )


def check_tile(tile: Tile, by_runs: bool) -> None:
    """Raise ``ValueError`` for a tile that does not suit the kernel."""
    tile.require(
        tile.M_B % RUN == tile.N_B % RUN == tile.K_B % RUN == 0,
        "M_B, N_B and K_B must be multiples of 4, because four numbers are fetched at a time",
    )
    tile.require(
        not by_runs or tile.M_T % RUN == tile.N_T % RUN == 0,
        "M_T and N_T must be multiples of 4, because four numbers move at a time",
    )


STAGE = Stage(
    name="s11_im2win_full",
    title="Full im2win: double-buffered micro-kernel on the im2win tensor",
    source="im2win paper (000), Algorithm 3",
    builds_on=("s09_double_buffer", "s10_im2win"),
    module=__name__,
    prepare=prepare,
    production_tile=microkernel_tile,
    tiny_tile=Tile(M_B=16, N_B=8, K_B=8, M_T=4, N_T=4),
    model_tile=MODEL_TILE,
    vectorized=True,
    switches=("microkernel", "vectorized", "prefetch"),
)
