"""s11: the full im2win convolution. s09's techniques on the im2win tensor, and tuned.

Source: im2win paper (000), Algorithm 3. The rounds are s09's; the idea is in ``fetch`` and
``put``. The input is now fetched by fours like the filter, because in :mod:`im2win_tensor` every
window is one run of memory that starts at a multiple of 16 bytes. A thread's next elements are K_B
further on: of s09's divisions and bounds checks at most two comparisons a run are left, neither
where slices divide a window and threads the runs, and with dilation in width a division by a
constant. A run of four elements of one window goes to four rows of the slice in shared memory, one
element each.

Tuning is mostly in data: the tile is chosen for the problem (:mod:`im2win_tiles`), the filter is
packed block by block. In code, the steps of k are written out as calls with constants, warps are
4 x 8 threads (both :mod:`unrolled_product`), the first slice is fetched before the loop, and
``issue_loads`` keeps the others' loads before the arithmetic.

``microkernel=False``, ``vectorized=False`` and ``prefetch=False`` leave a technique out
(:mod:`s11_ablation`).
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, gpu_only, issue_loads, load4, store4
from convlab.kernels import ablation
from convlab.kernels.gemm import RUN, make_multiply, make_write
from convlab.kernels.im2win_layout import (
    group_size,
    make_first,
    pack_launch,
    packed_buffer,
    transform_launch,
    windows_buffer,
)
from convlab.kernels.s11_tiles import best_tile, candidates
from convlab.kernels.unrolled_product import make_compute, make_place, make_read
from convlab.problem import ConvProblem
from convlab.stage import MODEL_TILE, Flat, Launch, Program, Stage, Tile, Tiles, blocks_for


def skew_of(tile: Tile) -> int:
    """How many numbers a row of the input slice is longer than the tile is wide, so that a warp's
    column-wise puts spread over the banks, and runs of four can still be read at once. (Without a
    micro-kernel nobody reads such.) Slices of 8 terms are then put in one pass, of 16 in two, of 32
    in four: runs begin four rows apart, and four rows are an odd multiple of 16 numbers long."""
    return 4 if tile.M_T * tile.N_T > 1 else 1


def make_fetch(problem: ConvProblem, tile: Tile) -> Any:
    """Lines 3-4 and 14-15, first half: a slice from global memory to registers, by fours, run f of
    the thread to row f of ``fetched_F[F_RUNS, 4]`` and ``fetched_I[I_RUNS, 4]``. The filter's lies
    there as it will in shared memory."""
    p = problem
    d_w, G = p.d_w, group_size(p)
    K_W = p.W_f * G
    M_B, N_B, K_B, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.threads
    F_ALL, I_ALL, K_RUNS = K_B * M_B // RUN, K_B * N_B // RUN, K_B // RUN  # runs of four
    F_RUNS, I_RUNS = blocks_for(F_ALL, THREADS), blocks_for(I_ALL, THREADS)
    F_EVEN, I_EVEN, K_EVEN = F_ALL % THREADS == 0, I_ALL % THREADS == 0, K_W % K_B == 0

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I):
        for f in range(F_RUNS):
            e = t + f * THREADS
            if F_EVEN or e < F_ALL:
                run = load4(packed, first_F + slice_ * (K_B * M_B) + f * (THREADS * RUN))
                fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3] = run
        for f in range(I_RUNS):
            e = t + f * THREADS
            k = slice_ * K_B + e % K_RUNS * RUN
            run = (float32(0), float32(0), float32(0), float32(0))
            if (K_EVEN or k < K_W) and (I_EVEN or e < I_ALL):
                # d_w - 1 is 0 without dilation, and the term gone. (What has no run would not be
                # put; asking for it would only load in vain.)
                run = load4(windows, first_I[f] + k + k // G * G * (d_w - 1))
            fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = run

    return fetch


def make_put(tile: Tile) -> Any:
    """Lines 3-4 and 14-15, second half: from registers to shared memory, rows from k0 on of
    ``S_F[2 * K_B, M_B]`` and ``S_I[2 * K_B, PITCH]``, each row after the other."""
    M_B, N_B, K_B, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.threads
    F_ALL, I_ALL, K_RUNS = K_B * M_B // RUN, K_B * N_B // RUN, K_B // RUN
    F_RUNS, I_RUNS = blocks_for(F_ALL, THREADS), blocks_for(I_ALL, THREADS)
    F_EVEN, I_EVEN, PITCH = F_ALL % THREADS == 0, I_ALL % THREADS == 0, N_B + skew_of(tile)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def put(fetched_F, fetched_I, t, k0, S_F, S_I):
        for f in range(F_RUNS):
            e = t + f * THREADS
            if F_EVEN or e < F_ALL:
                run = (fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3])
                store4(S_F, k0 * M_B + e * RUN, run)
        for f in range(I_RUNS):
            e = t + f * THREADS
            if I_EVEN or e < I_ALL:
                for c in range(RUN):
                    S_I[(k0 + e % K_RUNS * RUN + c) * PITCH + e // K_RUNS] = fetched_I[f, c]

    return put


def make_kernel(
    problem: ConvProblem, tile: Tile, fetch: Any, put: Any, read: Any, write: Any, TOGETHER: int
) -> Any:
    """The kernel with the problem's shapes and the tile as constants; ``TOGETHER`` numbers that a
    thread reads from a row of a slice are neighbours."""
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, PITCH = tile.threads, N_B + skew_of(tile)
    F_SLICES, I_SLICES, O_SHAPE = 2 * K_B * M_B, 2 * K_B * PITCH, (M_T, N_T)
    _, K_P, _ = packed_buffer(problem, tile).shape
    SLICES = K_P // K_B
    F_RUNS, I_RUNS = (blocks_for(K_B * wide // RUN, THREADS) for wide in (M_B, N_B))
    F_FETCHED, I_FETCHED = (F_RUNS, RUN), (I_RUNS, RUN)
    first, place = make_first(problem, tile, K_P), make_place(tile)
    compute, multiply = make_compute(tile, read), make_multiply(tile)

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def im2win_full(windows, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)  # line 2
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)  # line 1
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
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
        at_F, at_I = uint32(ty * TOGETHER), uint32(tx * TOGETHER)  # this thread's part of it
        fetch(windows, packed, first_F, first_I, t, 0, fetched_F, fetched_I)  # lines 3-4
        put(fetched_F, fetched_I, t, k0, S_F, S_I)
        cuda.syncthreads()  # line 5: nobody reads it before all have filled it
        read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 6-7
        for slice_ in range(int32(1), int32(SLICES + 1)):  # line 8: slice_ is the next one
            if slice_ < SLICES:
                fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I)
                issue_loads()  # now, before the arithmetic: the compiler would rather wait
            compute(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)  # lines 9-12
            if slice_ < SLICES:
                k0 = uint32(K_B - k0)  # the other buffer's turn
                at_F = uint32(k0 * M_B + ty * TOGETHER)
                at_I = uint32(k0 * PITCH + tx * TOGETHER)
                put(fetched_F, fetched_I, t, k0, S_F, S_I)  # lines 14-15
                cuda.syncthreads()  # line 16
                read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 17-18
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
    """As every stage's; the switches leave a technique out. Without the micro-kernel the tile is
    :func:`ablation.one_output_a_thread`'s instead. Raises ``ValueError`` for a tile that does
    not suit the kernel."""
    by_runs = vectorized and microkernel
    check_tile(tile, by_runs)
    if not microkernel:
        tile = ablation.one_output_a_thread(tile)
    skew, buffers = skew_of(tile), 2 if prefetch else 1
    tile.require_shared_memory(buffers * tile.K_B * (tile.M_B + tile.N_B + skew))
    fetch = make_fetch(problem, tile) if vectorized else ablation.make_fetch(problem, tile)
    put = make_put(tile) if vectorized else ablation.make_put(tile, skew)
    read = make_read(tile, skew) if by_runs else ablation.make_read(tile, skew)
    write = make_write(problem, tile) if by_runs else ablation.make_write(problem, tile)
    parts = (fetch, put, read, write, RUN if by_runs else 1)
    if not prefetch:
        kernel = ablation.make_kernel_without_prefetch(problem, tile, *parts, skew)
    elif not microkernel:
        kernel = ablation.make_kernel_without_microkernel(problem, tile, *parts, skew)
    else:
        kernel = make_kernel(problem, tile, *parts)
    main = Launch(
        kernel,
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B)),
        block=(tile.threads,),
        arguments=(Flat("windows"), Flat("packed"), "bias", Flat("output")),
    )
    return Program(
        (windows_buffer(problem), packed_buffer(problem, tile)),
        (transform_launch(problem, tile.N_B), pack_launch(problem, tile, tile.N_B), main),
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
    __name__,
    title="Full im2win: double-buffered micro-kernel on the im2win tensor",
    source="im2win paper (000), Algorithm 3",
    builds_on=("s09_double_buffer", "s10_im2win"),
    prepare=prepare,
    tiles=Tiles(
        production=best_tile,
        tiny=Tile(M_B=16, N_B=8, K_B=8, M_T=4, N_T=4),
        model=MODEL_TILE,
        candidates=candidates,
    ),
    vectorized=True,
)
