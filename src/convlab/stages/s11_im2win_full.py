"""s11: the full im2win convolution. s09's techniques on the im2win tensor, and tuned.

Source: im2win paper (000), Algorithm 3. The rounds are s09's; the idea is in ``fetch`` and
``put``. The input is now fetched by float4 like the filter, because every window is contiguous in
the im2win tensor (:mod:`im2win_layout`) and starts at a multiple of 16 bytes. A thread's next
elements are K_B further on: s09's divisions and bounds checks shrink to at most two comparisons
per float4, and to a division by a constant where the width is dilated. The four elements of a
float4 go to four rows of the slice in shared memory.

The rest is tuning: a tile for each problem (:mod:`tile_heuristic`), the filter packed block by
block, steps of k written out as calls with constants, warps of 4 x 8 threads, a prologue that
fetches the first slice, and ``issue_loads``, which keeps the other loads before the arithmetic.

``microkernel=False``, ``vectorized=False`` and ``prefetch=False`` leave a technique out
(:mod:`ablation`).
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, issue_loads, load4, store4
from convlab.kernels import ablation
from convlab.kernels.im2win_layout import (
    group_size,
    make_first,
    pack_launch,
    packed_buffer,
    transform_launch,
    windows_buffer,
)
from convlab.kernels.microkernel_tile import MODEL_TILE
from convlab.kernels.tile_heuristic import S11
from convlab.problem import ConvProblem
from convlab.stage import Flat, Launch, Program, Stage, Tile, Tiles, blocks_for

WARP_ROWS, WARP_COLUMNS = 4, 8  # threads of a warp along M and N


def skew_of(tile: Tile) -> int:
    """Padding of a row of the input slice, so that a warp's column-wise stores spread over the
    banks while float4 loads stay aligned (without a micro-kernel there are none). Stores of slices
    of 8 terms are then free of bank conflicts, of 16 are two-way, of 32 four-way: float4s begin
    four rows apart, and four rows are an odd multiple of 16 elements long."""
    return 4 if tile.M_T * tile.N_T > 1 else 1


def make_fetch(problem: ConvProblem, tile: Tile) -> Any:
    """Lines 3-4 and 14-15, first half: a slice from global memory to registers, float4 f of
    the thread to row f of ``fetched_F[F_RUNS, 4]`` and ``fetched_I[I_RUNS, 4]``. The filter's lies
    there as it will in shared memory."""
    p = problem
    d_w, G = p.d_w, group_size(p)
    K_W = p.W_f * G
    M_B, N_B, K_B, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.threads
    F_ALL, I_ALL, K_RUNS = K_B * M_B // FLOAT4, K_B * N_B // FLOAT4, K_B // FLOAT4  # float4s
    F_RUNS, I_RUNS = blocks_for(F_ALL, THREADS), blocks_for(I_ALL, THREADS)
    F_EVEN, I_EVEN, K_EVEN = F_ALL % THREADS == 0, I_ALL % THREADS == 0, K_W % K_B == 0

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I):
        for f in range(F_RUNS):
            e = t + f * THREADS
            if F_EVEN or e < F_ALL:
                run = load4(packed, first_F + slice_ * (K_B * M_B) + f * (THREADS * FLOAT4))
                fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3] = run
        for f in range(I_RUNS):
            e = t + f * THREADS
            k = slice_ * K_B + e % K_RUNS * FLOAT4
            run = (float32(0), float32(0), float32(0), float32(0))
            if (K_EVEN or k < K_W) and (I_EVEN or e < I_ALL):
                # Without dilation d_w - 1 is 0, and the compiler drops the term.
                run = load4(windows, first_I[f] + k + k // G * G * (d_w - 1))
            fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = run

    return fetch


def make_put(tile: Tile) -> Any:
    """Lines 3-4 and 14-15, second half: from registers to shared memory, rows from k0 on of
    ``S_F[2 * K_B, M_B]`` and ``S_I[2 * K_B, PITCH]``, each row after the other."""
    M_B, N_B, K_B, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.threads
    F_ALL, I_ALL, K_RUNS = K_B * M_B // FLOAT4, K_B * N_B // FLOAT4, K_B // FLOAT4
    F_RUNS, I_RUNS = blocks_for(F_ALL, THREADS), blocks_for(I_ALL, THREADS)
    F_EVEN, I_EVEN, PITCH = F_ALL % THREADS == 0, I_ALL % THREADS == 0, N_B + skew_of(tile)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def put(fetched_F, fetched_I, t, k0, S_F, S_I):
        for f in range(F_RUNS):
            e = t + f * THREADS
            if F_EVEN or e < F_ALL:
                run = (fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3])
                store4(S_F, k0 * M_B + e * FLOAT4, run)
        for f in range(I_RUNS):
            e = t + f * THREADS
            if I_EVEN or e < I_ALL:
                for c in range(FLOAT4):
                    S_I[(k0 + e % K_RUNS * FLOAT4 + c) * PITCH + e // K_RUNS] = fetched_I[f, c]

    return put


def make_place(tile: Tile) -> Any:
    """``place(t)``: the thread's row and column. A warp is 4 x 8 threads where the tile has them,
    lane by lane (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), ...: lanes l and l ^ 1 read the same float4
    of S_I, lanes l and l ^ 2 the same of S_F, so both reads take four wavefronts instead of six."""
    COLUMNS = tile.columns
    BY_WARPS = tile.rows % WARP_ROWS == tile.columns % WARP_COLUMNS == 0
    ACROSS = max(1, COLUMNS // WARP_COLUMNS)  # warps along N

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def place(t):
        if BY_WARPS:
            warp, lane = t // 32, t % 32
            ty = warp // ACROSS * WARP_ROWS + lane // 16 * 2 + lane % 2
            tx = warp % ACROSS * WARP_COLUMNS + lane % 16 // 2
        else:
            ty, tx = t // COLUMNS, t % COLUMNS
        return uint32(ty), uint32(tx)

    return place


def make_read(tile: Tile) -> Any:
    """``read``: step k of a slice from shared memory to registers, by float4; ``at_F`` and ``at_I``
    are where the thread's own part of the slice begins."""
    M_B, M_T, N_T, ROWS, COLUMNS = tile.M_B, tile.M_T, tile.N_T, tile.rows, tile.columns
    PITCH = tile.N_B + skew_of(tile)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, at_F, at_I, k, R_F, R_I):
        for i in range(0, M_T, FLOAT4):
            run = load4(S_F, at_F + (k * M_B + i * ROWS))
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = run
        for j in range(0, N_T, FLOAT4):
            run = load4(S_I, at_I + (k * PITCH + j * COLUMNS))
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = run

    return read


def make_multiply(tile: Tile) -> Any:
    """A step's outer product, as in s07."""
    M_T, N_T = tile.M_T, tile.N_T

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    return multiply


def make_compute(tile: Tile, read: Any) -> Any:
    """All steps of a slice but the last product: read step k + 1 while step k is multiplied. Each
    step is a call with its own k, a constant, because the compiler does not unroll a loop of this
    size. Step K_B - 1 ends up in R_F0 and R_I0 for an odd K_B, in R_F1 and R_I1 otherwise."""
    multiply = make_multiply(tile)

    def steps_from(k: int) -> Any:
        if k == tile.K_B - 1:

            @cuda.jit(device=True, **gpu_only(forceinline=True))
            def nothing(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
                pass

            return nothing
        following = steps_from(k + 1)

        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def step(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
            read(S_F, S_I, at_F, at_I, k + 1, R_F1, R_I1)
            multiply(R_F0, R_I0, R_O)
            following(S_F, S_I, at_F, at_I, R_F1, R_I1, R_F0, R_I0, R_O)

        return step

    return steps_from(0)


def make_write(problem: ConvProblem, tile: Tile) -> Any:
    """A thread's outputs, registers to global memory: by float4 where none crosses into the next
    image, else scalar."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T, ROWS, COLUMNS = tile.M_T, tile.N_T, tile.rows, tile.columns
    WHOLE_RUNS = PIXELS % FLOAT4 == 0
    STEP = FLOAT4 if WHOLE_RUNS else 1

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def write(R_O, bias, output, m0, n0, ty, tx):
        for j in range(0, N_T, FLOAT4):
            for c in range(0, FLOAT4, STEP):
                n = n0 + tx * FLOAT4 + j * COLUMNS + c
                if n < N:
                    i_n, pixel = n // PIXELS, n % PIXELS
                    for i in range(M_T):
                        m = m0 + ty * FLOAT4 + i // FLOAT4 * FLOAT4 * ROWS + i % FLOAT4
                        if m < M:
                            at, b = (i_n * M + m) * PIXELS + pixel, bias[m]
                            if WHOLE_RUNS:
                                x, y, z, w = R_O[i, j], R_O[i, j + 1], R_O[i, j + 2], R_O[i, j + 3]
                                store4(output, at, (x + b, y + b, z + b, w + b))
                            else:
                                output[at] = R_O[i, j + c] + b

    return write


def make_kernel(
    problem: ConvProblem, tile: Tile, fetch: Any, put: Any, read: Any, write: Any, VECTOR: int
) -> Any:
    """The kernel with the problem's shapes and the tile as constants; ``VECTOR`` numbers that a
    thread reads from a row of a slice are neighbours."""
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, PITCH = tile.threads, N_B + skew_of(tile)
    F_SLICES, I_SLICES, O_SHAPE = 2 * K_B * M_B, 2 * K_B * PITCH, (M_T, N_T)
    _, K_P, _ = packed_buffer(problem, tile).shape
    SLICES = K_P // K_B
    F_RUNS, I_RUNS = (blocks_for(K_B * wide // FLOAT4, THREADS) for wide in (M_B, N_B))
    F_FETCHED, I_FETCHED = (F_RUNS, FLOAT4), (I_RUNS, FLOAT4)
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
        at_F, at_I = uint32(ty * VECTOR), uint32(tx * VECTOR)  # this thread's part of it
        fetch(windows, packed, first_F, first_I, t, 0, fetched_F, fetched_I)  # lines 3-4
        put(fetched_F, fetched_I, t, k0, S_F, S_I)
        cuda.syncthreads()  # line 5: all threads have filled the slice
        read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 6-7
        for slice_ in range(int32(1), int32(SLICES + 1)):  # line 8: slice_ is the next one
            if slice_ < SLICES:
                fetch(windows, packed, first_F, first_I, t, slice_, fetched_F, fetched_I)
                issue_loads()  # now, before the arithmetic: the compiler would rather wait
            compute(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)  # lines 9-12
            if slice_ < SLICES:
                k0 = uint32(K_B - k0)  # the other buffer's turn
                at_F = uint32(k0 * M_B + ty * VECTOR)
                at_I = uint32(k0 * PITCH + tx * VECTOR)
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
    by_float4 = vectorized and microkernel
    check_tile(tile, by_float4)
    if not microkernel:
        tile = ablation.one_output_a_thread(tile)
    skew, buffers = skew_of(tile), 2 if prefetch else 1
    tile.require_shared_memory(buffers * tile.K_B * (tile.M_B + tile.N_B + skew))
    fetch = make_fetch(problem, tile) if vectorized else ablation.make_fetch(problem, tile)
    put = make_put(tile) if vectorized else ablation.make_put(tile, skew)
    read = make_read(tile) if by_float4 else ablation.make_read(tile, skew)
    write = make_write(problem, tile) if by_float4 else ablation.make_write(problem, tile)
    parts = (fetch, put, read, write, FLOAT4 if by_float4 else 1)
    if prefetch and microkernel:
        kernel = make_kernel(problem, tile, *parts)
    else:
        place = make_place(tile) if not prefetch else ablation.make_row_major(tile)
        kernel = ablation.make_kernel(problem, tile, place, *parts, skew, buffers)
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


def check_tile(tile: Tile, by_float4: bool) -> None:
    """Raise ``ValueError`` for a tile that does not suit the kernel."""
    tile.require(
        tile.M_B % FLOAT4 == tile.N_B % FLOAT4 == tile.K_B % FLOAT4 == 0,
        "M_B, N_B and K_B must be multiples of 4, because four numbers are fetched at a time",
    )
    tile.require(
        not by_float4 or tile.M_T % FLOAT4 == tile.N_T % FLOAT4 == 0,
        "M_T and N_T must be multiples of 4, because four numbers move at a time",
    )


STAGE = Stage(
    __name__,
    title="Full im2win: double-buffered micro-kernel on the im2win tensor",
    source="im2win paper (000), Algorithm 3",
    builds_on=("s09_double_buffer", "s10_im2win"),
    prepare=prepare,
    tiles=Tiles(
        production=S11.best_tile,
        tiny=Tile(M_B=16, N_B=8, K_B=8, M_T=4, N_T=4),
        model=MODEL_TILE,
        candidates=S11.candidates,
    ),
    vectorized=True,
)
