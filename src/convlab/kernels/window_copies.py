"""Windows copied straight from the input, asynchronously, and the epilogue that stores outputs.

From s11d on, copies replace the im2win tensor. Neighbouring threads fetch the same element of
neighbouring windows, so each row of a slice is read along a row of the input; for padding the
copies write zeros. A window's K elements have this order: channel groups; in one, the filter's
places (u, v) row by row; at a place, the group's channels. If K_B divides C_i, a channel group has
K_B channels, and a slice is one place of one channel group, which is looked up once for all its
elements. If not (three input channels), it is one channel, and every element is looked up.
Successive slices read almost the same rows, which are still in L1.

From s11e on, the epilogue stores float4s if the number of outputs per image is a multiple of four,
because a thread's windows are then neighbours. Otherwise stores are scalar, and windows are
interleaved across the lanes of a warp, so that the lanes' stores touch neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from convlab.device import FLOAT4, copy_async, copy_async4, gpu_only, store4
from convlab.problem import ConvProblem
from convlab.stage import Tile, blocks_for

TABLE_BYTES = 48 * 1024  # of the 64 KiB of constant memory; beyond it, places are computed
INFINITY = np.float32(np.inf)


def fetching_columns(tile: Tile) -> tuple[int, int]:
    """How many columns of a slice the block's threads fetch at a time, and how often they do."""
    at_a_time = min(tile.N_B, tile.threads)
    return at_a_time, tile.N_B // at_a_time


def check_tile(tile: Tile) -> None:
    """Raise ``ValueError`` where the threads are neither a multiple nor a divisor of N_B."""
    whole = tile.threads % tile.N_B == 0 or tile.N_B % tile.threads == 0
    rule = "its threads must be a multiple or a divisor of N_B, because each fetches whole columns"
    tile.require(whole, rule)


def make_locate(problem: ConvProblem, tile: Tile) -> Any:
    """``locate(at)``: how far the first channel of place ``at`` is from its window's first element,
    in rows, in columns and in memory. Places are counted through all groups."""
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


def make_fetch(
    problem: ConvProblem, tile: Tile, padding: int, lanes: int, rotation: int = 0, parts: int = 1
) -> Any:
    """``fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I)``: starts to copy a slice
    to stage ``pipe`` of the pipeline. ``first``, ``i_h``, ``i_w``: see make_windows_of_thread;
    ``padding``, ``lanes``, ``rotation``: make_fetch_windows; ``parts``: make_fetch_filter."""
    fetch_filter = make_fetch_filter(tile, tile.whole_slices(problem.K), parts)
    fetch_windows = make_fetch_windows(problem, tile, padding, lanes, rotation)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I):
        fetch_filter(packed, slice_, pipe, t, S_F)
        fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)

    return fetch


def make_fetch_filter(tile: Tile, K_P: int, parts: int = 1) -> Any:
    """Fetches a slice of the packed filter: ``parts`` numbers for each number of the filter."""
    WIDTH, K_B, THREADS = parts * tile.M_B, tile.K_B, tile.threads
    RUNS, EVEN = blocks_for(K_B * WIDTH // FLOAT4, THREADS), K_B * WIDTH // FLOAT4 % THREADS == 0

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_filter(packed, slice_, pipe, t, S_F):
        source = (int64(cuda.blockIdx.y) * K_P + slice_ * K_B) * WIDTH + t * FLOAT4
        target = pipe * (K_B * WIDTH) + t * FLOAT4
        for f in range(RUNS):
            e = f * THREADS * FLOAT4
            if EVEN or (t + f * THREADS) * FLOAT4 < K_B * WIDTH:
                copy_async4(S_F, target + e, packed, source + e, True)

    return fetch_filter


def make_interleave(LANES: int) -> tuple[Any, Any]:
    """``column_of(window)``, where a window of the block lies in a slice's rows, and
    ``window_at(column)``, the first of the four windows there; each next window is ``LANES``
    further. A lane reads four columns with one load. LANES = 1: four neighbours. LANES = 8: columns
    4 to 7 are windows 1, 9, 17 and 25, so eight lanes store neighbours. Steps by multiples of ALL
    are the same in both: AT_A_TIME is one, and 4 * FLOAT4_STEP if a thread has several float4s."""
    ALL = FLOAT4 * LANES

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def column_of(window):
        return window // ALL * ALL + window % LANES * FLOAT4 + window % ALL // LANES

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def window_at(column):
        return column // ALL * ALL + column % ALL // FLOAT4

    return column_of, window_at


def make_windows_of_thread(
    problem: ConvProblem, tile: Tile, by_llvm: bool = False
) -> tuple[Any, int]:
    """``windows_of_thread(n0, t, first, i_h, i_w)`` finds where a thread's windows begin in memory,
    their rows and columns; past the last window, the last one, whose results are not written. Also
    their number. With ``by_llvm`` LLVM inlines it: else s12e spills on Conv8, s13 on Conv3."""
    p = problem
    N, C_i, H_i, W_i, H_o, W_o = p.N, p.C_i, p.H_i, p.W_i, p.H_o, p.W_o
    s_h, s_w, p_h, p_w = p.s_h, p.s_w, p.p_h, p.p_w
    AT_A_TIME, TIMES = fetching_columns(tile)
    inlined = gpu_only(forceinline=True) if by_llvm else gpu_only(inline="always")

    @cuda.jit(device=True, **inlined)
    def windows_of_thread(n0, t, first, i_h, i_w):
        for c in range(TIMES):
            window = min(n0 + t % AT_A_TIME + c * AT_A_TIME, N - 1)
            i_n, pixel = window // (H_o * W_o), window % (H_o * W_o)
            i_h[c] = pixel // W_o * s_h - p_h
            i_w[c] = pixel % W_o * s_w - p_w
            first[c] = int64(i_n) * (C_i * H_i * W_i) + i_h[c] * W_i + i_w[c]

    return windows_of_thread, TIMES


def make_fetch_windows(
    problem: ConvProblem, tile: Tile, padding: int = 0, lanes: int = 1, rotation: int = 0
) -> Any:
    """Fetches a slice of N_B windows from the input. In shared memory the windows are interleaved
    across ``lanes``, a row ends with ``padding`` unused elements, and row k is rotated by
    ``rotation * (k % 4)``; K_B is then a multiple of 4."""
    p = problem
    K, H_i, W_i, PLANE = p.K, p.H_i, p.W_i, p.H_i * p.W_i
    PITCH, N_B, K_B = tile.N_B + padding, tile.N_B, tile.K_B
    AT_A_TIME, TIMES = fetching_columns(tile)
    STEP = tile.threads // AT_A_TIME  # rows of the slice that are fetched at a time
    TURNS, EVEN = blocks_for(K_B, STEP), K_B % STEP == 0
    ALL_INSIDE, TAIL = p.padding == ((0, 0), (0, 0)), K % K_B != 0
    locate, (column_of, _) = make_locate(problem, tile), make_interleave(lanes)
    index = int32 if p.N_i * p.C_i * p.H_i * p.W_i < 2**31 else int64  # 32-bit arithmetic is faster

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


def padding_or_rotation(tile: Tile) -> tuple[int, int]:
    """The padding after a row of windows and the rotation of each row, one of them 0. Rows are
    rotated if two slices with padding do not fit beside a filter of two parts. Either moves the
    next row by 8 banks, so that lanes of four rows read without bank conflicts."""
    return (8, 0) if tile.fits(2 * tile.K_B * (2 * tile.M_B + tile.N_B + 8)) else (0, 8)


def interleaved_lanes(problem: ConvProblem, lanes: int) -> int:
    """Across how many lanes windows are interleaved: ``lanes`` if stores are scalar, else 1."""
    return 1 if problem.H_o * problem.W_o % FLOAT4 == 0 else lanes


def make_finish(relu: bool) -> Any:
    """``finish(value, b)``: a sum with its bias; ``relu`` replaces negative numbers by zero and
    keeps NaN, as PyTorch does."""

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def finish(value, b):
        value += b
        return float32(0) if relu and value < float32(0) else value

    return finish


def make_write(
    problem: ConvProblem, tile: Tile, relu: bool, row_of: Any, FLOAT4_STEP: int, LANES: int
) -> Any:
    """``write(R_O, bias, output, m_t, n_t)`` stores a thread's outputs, from its first channel m_t
    and window n_t on. Channel i is ``row_of(i)`` further; float4s lie ``4 * FLOAT4_STEP`` windows
    apart, a float4's windows ``LANES``. Returns whether some sum is not finite, for the fix-up of
    s12b to s14. Scalar stores go channel after channel, so the next store of the same lanes goes to
    the same sectors. Unsigned indices have no wraparound for negative ones."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T = tile.M_T, tile.N_T
    ALIGNED = PIXELS % FLOAT4 == 0  # no float4 crosses into the next image
    WHOLE_ROWS, WHOLE_COLUMNS = M % tile.M_B == 0, N % tile.N_B == 0
    STEP = FLOAT4 if ALIGNED else 1
    finish = make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def write(R_O, bias, output, m_t, n_t):
        not_finite = False
        starts = cuda.local.array(FLOAT4, uint64)
        for j in range(0, N_T, FLOAT4):
            if not WHOLE_COLUMNS and n_t + j * FLOAT4_STEP >= N:
                continue
            for c in range(0, FLOAT4, STEP):
                n = n_t + j * FLOAT4_STEP + c * LANES
                starts[c] = uint64((n // PIXELS * M + m_t) * PIXELS + n % PIXELS)
            for i in range(M_T):
                row = row_of(i)
                if WHOLE_ROWS or m_t + row < M:
                    b = bias[m_t + row]
                    for c in range(0, FLOAT4, STEP):
                        if WHOLE_COLUMNS or ALIGNED or n_t + j * FLOAT4_STEP + c * LANES < N:
                            at = starts[c] + uint64(row * PIXELS)
                            if ALIGNED:
                                x, y = finish(R_O[i, j], b), finish(R_O[i, j + 1], b)
                                z, w = finish(R_O[i, j + 2], b), finish(R_O[i, j + 3], b)
                                store4(output, at, (x, y, z, w))
                            else:
                                output[at] = finish(R_O[i, j + c], b)
                            for e in range(c, c + STEP):
                                not_finite |= not abs(R_O[i, j + e]) < INFINITY
        return not_finite

    return write
