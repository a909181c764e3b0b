"""m13: no im2win tensor. Each block copies the windows of its slices from the input.

Source: ours, beyond the paper. m11 writes the im2win tensor to global memory and reads it again: a
pass over memory, and a workspace of several times the input. The kernel only ever reads K_B rows of
N_B windows at a time, so here each block copies just that slice, in im2win's order.

Neighbouring threads fetch the same element of neighbouring windows, so each row of a slice is read
along a row of the input; for padding the copies write zeros. A window's K elements have this order:
channel groups; in one, the filter's places (u, v) row by row; at a place, the group's channels. If
K_B divides C_i, a channel group has K_B channels, and a slice is one place of one channel group,
which is looked up once for all its elements. If not (three input channels), it is one channel, and
every element is looked up. Successive slices read almost the same rows, which are still in L1.

The difference to m12 is long (over 150 lines), because the copies find every window in the input by
themselves: the layout transform did it before. Later stages import the copies from here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from convlab.device import (
    BYTES_16,
    FLOAT4,
    copy_async,
    copy_async4,
    gpu_only,
    load4,
    store4,
    unrolled,
)
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.ladder.layouts.filter_layout import pack_in_order
from convlab.ladder.main.m11_warp_tiling import make_warp_tile
from convlab.ladder.stage import (
    DeviceFunction,
    Kernel,
    Program,
    Requirement,
    Stage,
    Tile,
    Tiles,
    blocks_for,
    tile_program,
)
from convlab.problems.problem import ConvProblem

TABLE_BYTES = 48 * 1024  # of the 64 KiB of constant memory; beyond it, places are computed


def require_whole_columns(tile: Tile) -> None:
    """Raise ``ValueError`` where the threads are neither a multiple nor a divisor of N_B."""
    whole = tile.threads % tile.N_B == 0 or tile.N_B % tile.threads == 0
    rule = "its threads must be a multiple or a divisor of N_B, because each fetches whole columns"
    tile.require(whole, rule)


def fetching_columns(tile: Tile) -> tuple[int, int]:
    """Return how many columns of a slice the threads fetch at a time, and how often they do."""
    at_a_time = min(tile.N_B, tile.threads)
    return at_a_time, tile.N_B // at_a_time


def make_locate(problem: ConvProblem, tile: Tile) -> DeviceFunction:
    """Return ``locate(at)``: how far the first channel of place ``at`` is from its window's first
    element, in rows, in columns and in memory. Places are counted through all groups."""
    p = problem
    GROUP, H_f, W_f = tile.channel_group(p), p.H_f, p.W_f
    d_h, d_w, ROW, CHANNELS = p.d_h, p.d_w, p.W_i, GROUP * p.H_i * p.W_i

    def computed(at: Any) -> Any:
        group, u, v = at // (H_f * W_f), at // W_f % H_f, at % W_f
        return u * d_h, v * d_w, group * CHANNELS + u * d_h * ROW + v * d_w

    in_line = cuda.jit(device=True, **gpu_only(forceinline=True))
    places = range(tile.whole_slices(problem.K) // GROUP)
    if 12 * len(places) > TABLE_BYTES:
        return in_line(computed)
    tables = np.array([computed(at) for at in places]).T
    if tables.max() >= 2**31:
        return in_line(computed)
    DOWN, ACROSS, OFFSETS = map(np.ascontiguousarray, tables.astype(np.int32))

    @in_line
    def looked_up(at):
        down, across = cuda.const.array_like(DOWN), cuda.const.array_like(ACROSS)
        offsets = cuda.const.array_like(OFFSETS)
        return down[at], across[at], offsets[at]

    return looked_up


def make_windows_of_thread(problem: ConvProblem, tile: Tile) -> tuple[DeviceFunction, int]:
    """Return ``windows_of_thread(n0, t, first, i_h, i_w)`` and how many windows a thread has.

    The function finds where the thread's windows begin in memory, and their rows and columns. Past
    the last window a thread has the last one, whose results are not written. Numba inlines it: if
    LLVM did, t03 would spill on Conv3.
    """
    p = problem
    N, C_i, H_i, W_i, H_o, W_o = p.N, p.C_i, p.H_i, p.W_i, p.H_o, p.W_o
    s_h, s_w, p_h, p_w = p.s_h, p.s_w, p.p_h, p.p_w
    AT_A_TIME, TIMES = fetching_columns(tile)

    @cuda.jit(device=True, **gpu_only(inline="always"))
    def windows_of_thread(n0, t, first, i_h, i_w):
        for c in range(TIMES):
            window = min(n0 + t % AT_A_TIME + c * AT_A_TIME, N - 1)
            i_n, pixel = window // (H_o * W_o), window % (H_o * W_o)
            i_h[c] = pixel // W_o * s_h - p_h
            i_w[c] = pixel % W_o * s_w - p_w
            first[c] = int64(i_n) * (C_i * H_i * W_i) + i_h[c] * W_i + i_w[c]

    return windows_of_thread, TIMES


def make_fetch_filter(tile: Tile, K_P: int, parts: int = 1) -> DeviceFunction:
    """Return ``fetch_filter(packed, slice_, pipe, t, S_F)``, which starts to copy a slice of the
    packed filter to stage ``pipe`` of the pipeline.

    ``packed`` has ``parts`` numbers for each number of the filter, from t03 on two.
    """
    WIDTH, K_B, THREADS = parts * tile.M_B, tile.K_B, tile.threads
    TIMES, EVEN = blocks_for(K_B * WIDTH // FLOAT4, THREADS), K_B * WIDTH // FLOAT4 % THREADS == 0

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_filter(packed, slice_, pipe, t, S_F):
        source = (int64(cuda.blockIdx.y) * K_P + slice_ * K_B) * WIDTH + t * FLOAT4
        target = pipe * (K_B * WIDTH) + t * FLOAT4
        for f in range(TIMES):
            e = f * THREADS * FLOAT4
            if EVEN or (t + f * THREADS) * FLOAT4 < K_B * WIDTH:
                copy_async4(S_F, target + e, packed, source + e, True)

    return fetch_filter


def make_fetch_windows(
    problem: ConvProblem,
    tile: Tile,
    *,
    padding: int = 0,
    column_of: DeviceFunction | None = None,
    rotation: int = 0,
) -> DeviceFunction:
    """Return ``fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)``, which starts to copy
    a slice of N_B windows from the input to stage ``pipe`` of the pipeline.

    Later stages choose the place of a number in shared memory: a row ends with ``padding`` unused
    elements, ``column_of(window)`` is the column of a window (m14; None: windows are in order),
    and row k is rotated by ``rotation * (k % 4)`` columns, with K_B a multiple of 4 (t04).
    """
    p = problem
    K, H_i, W_i, PLANE = p.K, p.H_i, p.W_i, p.H_i * p.W_i
    PITCH, N_B, K_B = tile.N_B + padding, tile.N_B, tile.K_B
    AT_A_TIME, TIMES = fetching_columns(tile)
    STEP = tile.threads // AT_A_TIME  # rows of the slice that are fetched at a time
    TURNS, EVEN = blocks_for(K_B, STEP), K_B % STEP == 0
    ALL_INSIDE, TAIL = p.padding == ((0, 0), (0, 0)), K % K_B != 0
    locate = make_locate(problem, tile)
    index = int32 if p.N_i * p.C_i * p.H_i * p.W_i < 2**31 else int64  # 32-bit arithmetic is faster

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def in_order(window):
        return window

    column_of = column_of or in_order

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def inside(i_h, i_w):
        return ALL_INSIDE or (0 <= int32(i_h) < H_i and 0 <= int32(i_w) < W_i)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def rotated(k, column):  # by how much
        return int64((column + uint32(k) % 4 * rotation) % N_B) - column if rotation else int64(0)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def one_place(input, slice_, pipe, t, first, i_h, i_w, S_I):
        k0 = int64(t // AT_A_TIME)
        down, across, offset = locate(uint32(slice_))
        for c in range(TIMES):
            valid = inside(i_h[c] + down, i_w[c] + across)
            source = first[c] + offset + k0 * PLANE
            near = column_of(t % AT_A_TIME) + c * AT_A_TIME
            target = (pipe * K_B + k0) * PITCH + near
            for f in range(TURNS):
                if EVEN or k0 + f * STEP < K_B:
                    at = target + f * STEP * PITCH + rotated(k0 + f * STEP, near)
                    copy_async(S_I, at, input, source + f * STEP * PLANE, valid)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def place_by_place(input, slice_, pipe, t, first, i_h, i_w, S_I):
        # If all threads fetch one row, the constant 0 lets the compiler look it up once per warp.
        k0 = int64(0) if STEP == 1 else int64(t // AT_A_TIME)
        near = column_of(t % AT_A_TIME)
        target = (pipe * K_B + k0) * PITCH + near
        for f in range(TURNS):
            if EVEN or k0 + f * STEP < K_B:
                k = uint32(slice_ * K_B + k0) + uint32(f * STEP)
                down, across, offset = locate(k)
                for c in range(TIMES):
                    valid = inside(i_h[c] + down, i_w[c] + across)
                    if TAIL:
                        valid = valid and k < K
                    at = target + f * STEP * PITCH + c * AT_A_TIME
                    at += rotated(k, near + c * AT_A_TIME)
                    copy_async(S_I, at, input, index(first[c] + offset), valid)

    return one_place if tile.channel_group(p) == K_B else place_by_place


def make_kernel(problem: ConvProblem, tile: Tile) -> Kernel:
    """Return the kernel that copies the windows of its slices from the input itself."""
    p = problem
    M, N, H_o, W_o = p.M, p.N, p.H_o, p.W_o
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    row_and_column = make_warp_tile(ROWS, COLUMNS)
    PITCH = N_B  # of the input slice: neighbouring threads copy neighbouring windows
    DEPTH = tile.pipeline_depth(K_B * (M_B + PITCH))  # slices in shared memory
    IN_FLIGHT = DEPTH - 2  # commit groups that may be in flight when the next slice is needed
    F_SLICES, I_SLICES, O_SHAPE = DEPTH * K_B * M_B, DEPTH * K_B * PITCH, (M_T, N_T)
    ALIGNED = H_o * W_o % FLOAT4 == 0  # no float4 of outputs crosses into the next image
    STEP = FLOAT4 if ALIGNED else 1
    SLICES = blocks_for(p.K, K_B)
    fetch_filter = make_fetch_filter(tile, SLICES * K_B)
    fetch_windows = make_fetch_windows(problem, tile)
    windows_of_thread, TIMES = make_windows_of_thread(problem, tile)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I):
        """Start to copy a slice to stage ``pipe`` of the pipeline."""
        fetch_filter(packed, slice_, pipe, t, S_F)
        fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, at_F, at_I, k, R_F, R_I):
        """Row k of the slices that begin at at_F and at_I, shared memory to registers."""
        for i in range(0, M_T, FLOAT4):
            four = load4(S_F, at_F + (k * M_B + i * ROWS))
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four
        for j in range(0, N_T, FLOAT4):
            four = load4(S_I, at_I + (k * PITCH + j * COLUMNS))
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def two_steps(k, S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
        """Lines 9-12 for rows k and k + 1, each while the next row is read. k is a constant."""
        read(S_F, S_I, at_F, at_I, k + 1, R_F1, R_I1)
        multiply(R_F0, R_I0, R_O)
        read(S_F, S_I, at_F, at_I, k + 2, R_F0, R_I0)
        multiply(R_F1, R_I1, R_O)

    steps = unrolled(two_steps, range(0, K_B - 2, 2))

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def copied_windows(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)  # line 2
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)  # line 1
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        first = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = row_and_column(t)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        windows_of_thread(n0, t, first, i_h, i_w)
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        pipe = uint32(0)  # the stage of the pipeline that holds the slice to multiply
        at_F, at_I = uint32(ty * FLOAT4), uint32(tx * FLOAT4)  # this thread's part of it
        for early in range(DEPTH - 1):  # lines 3-4
            if early < SLICES:
                fetch(input, packed, first, i_h, i_w, t, early, early, S_F, S_I)
            commit_copies()
        wait_copies(IN_FLIGHT)
        cuda.syncthreads()  # line 5: all threads have filled the slice
        read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 6-7
        for slice_ in range(int32(1), int32(SLICES + 1)):  # line 8: multiplies slice_ - 1
            free = pipe - 1 if pipe > 0 else DEPTH - 1  # all had read it by the last barrier
            if slice_ + IN_FLIGHT < SLICES:
                fetch(input, packed, first, i_h, i_w, t, slice_ + IN_FLIGHT, free, S_F, S_I)
            commit_copies()  # a commit group per slice, at last empty ones: IN_FLIGHT counts slices
            steps(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)  # lines 9-12
            read(S_F, S_I, at_F, at_I, K_B - 1, R_F1, R_I1)
            multiply(R_F0, R_I0, R_O)
            if slice_ < SLICES:
                pipe = uint32(pipe + 1 if pipe + 1 < DEPTH else 0)
                at_F = uint32(pipe * (K_B * M_B) + ty * FLOAT4)
                at_I = uint32(pipe * (K_B * PITCH) + tx * FLOAT4)
                wait_copies(IN_FLIGHT)  # lines 14-15
                cuda.syncthreads()  # line 16: all have filled the next slice and have read this one
                read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 17-18
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

    return copied_windows


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """Return the program: the packed filter, then the convolution."""
    tile.require_float4s("M_T", "N_T", "K_B")
    require_whole_columns(tile)
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B))
    return tile_program(problem, tile, make_kernel(problem, tile), pack_in_order(problem, tile))


STAGE = Stage(
    __name__,
    title="Windows copied from the input: no im2win tensor",
    source="im2win paper (000), Algorithm 3, without its tensor; ours",
    builds_on=("m12_async_copies",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=32, K_B=4, M_T=4, N_T=4), heuristic="m13"),
    vectorized=True,
    requires=Requirement((8, 0), "asynchronous copies"),
)
