"""Windows copied straight from the input, asynchronously, and the epilogue that stores outputs.

From s11d on copies replace the im2win tensor. Neighbouring threads fetch the same element of
neighbouring windows, so each row of a slice is read along a row of the input; for padding the
copies leave zeros. With no tensor to lay out, the order of a window's K elements is free: channels
in groups, for each group the filter's places (u, v) row by row, for each place the channels of the
group. If K_B divides C_i, a group has K_B channels, and a slice is one place of one group, looked
up once for all its elements. If not (three input channels), a group is one channel, and every
element is looked up. Either way successive slices read almost the same rows, which are still in L1.

The epilogue, from s11e on, adds the bias to a thread's sums, and stores them or, with split-K, adds
them to what is there. Where the outputs of an image are a multiple of four, a thread's windows are
neighbours and four outputs are one 128-bit store. Elsewhere, and with split-K, stores are scalar,
and windows are interleaved across the lanes of a warp: the lanes' stores touch neighbours, where
they would touch four sectors of memory and write a quarter of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from convlab.device import FLOAT4, copy_async, copy_async4, gpu_only, store4
from convlab.problem import ConvProblem
from convlab.stage import Buffer, Flat, Launch, Program, Tile, blocks_for

WARP = 32
TABLE_BYTES = 48 * 1024  # of the 64 KiB of constant memory; beyond it, places are computed
BANK_SHIFT = 8  # banks from one row to the next: lanes of four rows read without bank conflicts
INFINITY = np.float32(np.inf)
CLEARING = 256  # threads of a block that clears
FLOAT4_STEP = 4  # with mma, what COLUMNS is without: a lane's next float4 is 4 float4s on


def fetching_columns(tile: Tile) -> tuple[int, int]:
    """How many columns of a slice the block's threads fetch at a time, and how often they do."""
    at_a_time = min(tile.N_B, tile.threads)
    return at_a_time, tile.N_B // at_a_time


def check_tile(tile: Tile) -> None:
    """Raise ``ValueError`` where the threads are neither a multiple nor a divisor of N_B."""
    whole = tile.threads % tile.N_B == 0 or tile.N_B % tile.threads == 0
    rule = "its threads must be a multiple or a divisor of N_B, because each fetches whole columns"
    tile.require(whole, rule)


def channel_group(problem: ConvProblem, tile: Tile) -> int:
    """Channels of a group."""
    return tile.K_B if problem.C_i % tile.K_B == 0 else 1


def make_locate(problem: ConvProblem, tile: Tile) -> Any:
    """``locate(at)``: how far the first channel of place ``at`` is from its window's first element,
    in rows, in columns and in memory. Places are counted through all groups."""
    p = problem
    GROUP, H_f, W_f = channel_group(p, tile), p.H_f, p.W_f
    d_h, d_w, ROW, CHANNELS = p.d_h, p.d_w, p.W_i, GROUP * p.H_i * p.W_i

    def computed(at: Any) -> Any:
        group, u, v = at // (H_f * W_f), at // W_f % H_f, at % W_f
        return u * d_h, v * d_w, group * CHANNELS + u * d_h * ROW + v * d_w

    in_line = cuda.jit(device=True, **gpu_only(forceinline=True))
    places = range(padded_terms(problem, tile) // GROUP)
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
    problem: ConvProblem,
    tile: Tile,
    padding: int = 0,
    lanes: int = 1,
    rotation: int = 0,
    parts: int = 1,
) -> Any:
    """``fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I)``: starts to copy a slice
    to stage ``pipe`` of the pipeline, by :func:`make_fetch_filter` and :func:`make_fetch_windows`.
    """
    fetch_filter = make_fetch_filter(problem, tile, parts)
    fetch_windows = make_fetch_windows(problem, tile, padding, lanes, rotation)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I):
        fetch_filter(packed, slice_, pipe, t, S_F)
        fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)

    return fetch


def make_fetch_filter(problem: ConvProblem, tile: Tile, parts: int) -> Any:
    """A slice of the packed filter, which has the same order in global and in shared memory:
    ``parts`` numbers for each of the filter's."""
    WIDTH, K_B, THREADS = parts * tile.M_B, tile.K_B, tile.threads
    K_P = padded_terms(problem, tile)
    RUNS = blocks_for(K_B * WIDTH // FLOAT4, THREADS)
    EVEN = K_B * WIDTH // FLOAT4 % THREADS == 0

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
    """``column(window)``: where a window of the block lies in a slice's rows, interleaved across
    ``LANES`` lanes; ``window_at(column)``: the first of the four windows that lie there, of which
    each next one is ``LANES`` further. A lane reads four columns with one load: across 1 lane,
    these are four neighbours; across 8, a lane has every eighth of 32 windows, and the lanes' are
    neighbours."""
    ALL = FLOAT4 * LANES

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def column(window):
        return window // ALL * ALL + window % LANES * FLOAT4 + window % ALL // LANES

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def window_at(column):
        return column // ALL * ALL + column % ALL // FLOAT4

    return column, window_at


def make_windows_of_thread(problem: ConvProblem, tile: Tile, by_llvm: bool = False) -> Any:
    """``windows_of_thread(n0, t, first, i_h, i_w)``: where the windows begin that a thread fetches
    from: in memory, in rows, in columns. Past the last window it is the last one again, whose
    results are not written. Numba inlines it, or with ``by_llvm`` LLVM: that allocates registers in
    another way, and with the other one s12e spills on Conv8 and s13 on Conv3."""
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

    return windows_of_thread


def make_fetch_windows(
    problem: ConvProblem, tile: Tile, padding: int = 0, lanes: int = 1, rotation: int = 0
) -> Any:
    """A slice of N_B windows, from the input. ``first``, ``i_h`` and ``i_w`` are those of
    :func:`make_windows_of_thread`. In shared memory windows are interleaved across ``lanes``, a
    row ends with ``padding`` unused elements, and row k is rotated by ``rotation * (k % 4)``,
    where K_B is a multiple of 4."""
    p = problem
    K, H_i, W_i, PLANE = p.K, p.H_i, p.W_i, p.H_i * p.W_i
    PITCH, N_B, K_B = tile.N_B + padding, tile.N_B, tile.K_B
    AT_A_TIME, TIMES = fetching_columns(tile)
    STEP = tile.threads // AT_A_TIME  # rows of the slice that are fetched at a time
    TURNS, EVEN = blocks_for(K_B, STEP), K_B % STEP == 0
    ALL_INSIDE, TAIL = p.padding == ((0, 0), (0, 0)), K % K_B != 0
    locate, (column, _) = make_locate(problem, tile), make_interleave(lanes)
    index = int32 if p.N_i * p.C_i * p.H_i * p.W_i < 2**31 else int64  # the shorter is quicker

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
            near = column(t % AT_A_TIME) + c * AT_A_TIME
            target = (pipe * K_B + k0) * PITCH + near
            for f in range(TURNS):
                if EVEN or k0 + f * STEP < K_B:
                    at = target + f * STEP * PITCH + rotated(k0 + f * STEP, near)
                    copy_async(S_I, at, input, source + f * STEP * PLANE, valid)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def place_by_place(input, slice_, pipe, t, first, i_h, i_w, S_I):
        # Where all threads fetch one row, saying so lets the compiler look it up once a warp.
        k0 = int64(0) if STEP == 1 else int64(t // AT_A_TIME)
        near = column(t % AT_A_TIME)
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

    return one_place if channel_group(p, tile) == K_B else place_by_place


def padding_or_rotation(tile: Tile) -> tuple[int, int]:
    """The padding after a row of windows, or where two slices with it do not fit beside a filter of
    two parts, by how much each row is rotated instead: both move the next row by BANK_SHIFT."""
    fits = tile.fits(2 * tile.K_B * (2 * tile.M_B + tile.N_B + BANK_SHIFT))
    return (BANK_SHIFT, 0) if fits else (0, BANK_SHIFT)


def padded_terms(problem: ConvProblem, tile: Tile) -> int:
    """K up to whole slices."""
    return blocks_for(problem.K, tile.K_B) * tile.K_B


def pack_filter(problem: ConvProblem, tile: Tile) -> Program:
    """The filter's re-ordering, square by square: for every row of blocks one matrix, so that a
    slice of it is one piece of memory."""
    row_blocks, K_P = blocks_for(problem.M, tile.M_B), padded_terms(problem, tile)
    M_P, side = row_blocks * tile.M_B, min(WARP, tile.M_B)  # less only for a simulator's tiny tiles
    launch = Launch(
        make_pack_filter(problem, tile, K_P, M_P, side),
        grid=(blocks_for(K_P, side) * blocks_for(M_P, side),),  # along y there may be too many
        block=(side, side // 4),
        arguments=(Flat("weight"), Flat("packed")),
    )
    return Program((Buffer("packed", (row_blocks, K_P, tile.M_B)),), (launch,))


def make_pack_filter(problem: ConvProblem, tile: Tile, K_P: int, M_P: int, SIDE: int) -> Any:
    """The filter in the same order, packed[m // M_B, k, m % M_B], zeros beyond K and M. A row of
    the filter lies along k, a row of the result along m: squares go through shared memory, so that
    both are read and written along their rows."""
    p = problem
    M, K, PLACES, M_B = p.M, p.K, p.H_f * p.W_f, tile.M_B
    GROUP = channel_group(p, tile)
    SQUARE, STEP = (SIDE, SIDE + 1), SIDE // 4  # a column lies in as many banks as a row
    SQUARES = blocks_for(K_P, SIDE)  # along k

    @cuda.jit(**gpu_only(launch_bounds=SIDE * STEP))
    def pack_filter(weight, packed):
        square = cuda.shared.array(SQUARE, float32)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        block = uint32(cuda.blockIdx.x)
        e0, m0 = uint32(block % SQUARES) * SIDE, uint32(block // SQUARES) * SIDE
        for y in range(0, SIDE, STEP):
            e, m = e0 + tx, m0 + y + ty
            value = float32(0)
            if e < K and m < M:
                value = weight[m * K + e]
            square[y + ty, tx] = value
        cuda.syncthreads()  # all threads have filled the square
        for y in range(0, SIDE, STEP):
            e, m = e0 + y + ty, m0 + tx
            if e < K_P and m < M_P:
                k = e
                if e < K:
                    r, place = e // PLACES, e % PLACES
                    k = (r // GROUP * PLACES + place) * GROUP + r % GROUP
                packed[(m // M_B * K_P + k) * M_B + m % M_B] = square[tx, y + ty]

    return pack_filter


def make_filter_number(problem: ConvProblem, tile: Tile) -> Any:
    """``filter_number(packed, m, e)``: what was ``weight[m, e]``, e through channels and places."""
    M_B, K_P = tile.M_B, padded_terms(problem, tile)
    GROUP, PLACES = channel_group(problem, tile), problem.H_f * problem.W_f

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(packed, m, e):
        r, place = e // PLACES, e % PLACES
        k = (r // GROUP * PLACES + place) * GROUP + r % GROUP
        return packed[(int64(m // M_B) * K_P + k) * M_B + m % M_B]

    return filter_number


def interleaved_lanes(problem: ConvProblem, lanes: int) -> int:
    """Across how many lanes windows are interleaved: a warp's along N, where stores are scalar."""
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
    problem: ConvProblem, tile: Tile, relu: bool, row_of: Any, COLUMNS: int, LANES: int
) -> Any:
    """``write(R_O, bias, output, m0, n0)``: a thread's outputs, from its first channel and window
    on. Channel i is ``row_of(i)`` further; float4s lie ``4 * COLUMNS`` windows
    apart; within a float4, windows are ``LANES`` apart. Returns whether some sum is not finite.

    Scalar stores go channel after channel: the next store of the same lanes writes the rest of
    their sectors. Indices are unsigned, which removes Numba's wraparound for negative indices."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T = tile.M_T, tile.N_T
    ALIGNED = PIXELS % FLOAT4 == 0  # no float4 crosses into the next image
    WHOLE_ROWS, WHOLE_COLUMNS = M % tile.M_B == 0, N % tile.N_B == 0
    STEP = FLOAT4 if ALIGNED else 1
    finish = make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def write(R_O, bias, output, m0, n0):
        broken = False
        first = cuda.local.array(FLOAT4, uint64)
        for j in range(0, N_T, FLOAT4):
            if not WHOLE_COLUMNS and n0 + j * COLUMNS >= N:
                continue
            for c in range(0, FLOAT4, STEP):
                n = n0 + j * COLUMNS + c * LANES
                first[c] = uint64((n // PIXELS * M + m0) * PIXELS + n % PIXELS)
            for i in range(M_T):
                row = row_of(i)
                if WHOLE_ROWS or m0 + row < M:
                    b = bias[m0 + row]
                    for c in range(0, FLOAT4, STEP):
                        if WHOLE_COLUMNS or ALIGNED or n0 + j * COLUMNS + c * LANES < N:
                            at = first[c] + uint64(row * PIXELS)
                            if ALIGNED:
                                x, y = finish(R_O[i, j], b), finish(R_O[i, j + 1], b)
                                z, w = finish(R_O[i, j + 2], b), finish(R_O[i, j + 3], b)
                                store4(output, at, (x, y, z, w))
                            else:
                                output[at] = finish(R_O[i, j + c], b)
                            for e in range(c, c + STEP):
                                broken |= not abs(R_O[i, j + e]) < INFINITY
        return broken

    return write


def make_add(problem: ConvProblem, tile: Tile, row_of: Any, LANES: int) -> Any:
    """``write`` of a split-K block, which has only a part of each sum: atomic additions. Only
    ``blockIdx.z == 0`` adds the bias."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T, COLUMNS = tile.M_T, tile.N_T, tile.columns
    WHOLE_ROWS, WHOLE_COLUMNS = M % tile.M_B == 0, N % tile.N_B == 0

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def add(R_O, bias, output, m0, n0):
        for j in range(0, N_T, FLOAT4):
            for c in range(FLOAT4):
                n = n0 + j * COLUMNS + c * LANES
                if WHOLE_COLUMNS or n < N:
                    i_n, pixel = n // PIXELS, n % PIXELS
                    for i in range(M_T):
                        m = m0 + row_of(i)
                        if WHOLE_ROWS or m < M:
                            at, b = (i_n * M + m) * PIXELS + pixel, bias[m]
                            b = b if cuda.blockIdx.z == 0 else float32(0)
                            cuda.atomic.add(output, at, R_O[i, j + c] + b)

    return add


def clear_launch(problem: ConvProblem) -> Launch:
    """Makes ``output`` zeros, for split-K's additions."""
    elements = problem.M * problem.N

    @cuda.jit(**gpu_only(launch_bounds=CLEARING))
    def clear(output):
        at = int64(cuda.blockIdx.x) * CLEARING + cuda.threadIdx.x
        if at < elements:
            output[at] = float32(0)

    return Launch(clear, (blocks_for(elements, CLEARING),), (CLEARING,), (Flat("output"),))
