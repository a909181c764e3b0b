"""The im2win tensor with channels innermost, for m10 to m12, and the filter packed to match.

m09's tensor keeps channels outermost, so windows start at any address. Here channels are innermost:
``windows[i_n * H_o + o_h, k, f_h * C_i + i_c]`` is the pixel of image i_n and channel i_c in row
``o_h * s_h + f_h * d_h - p_h`` and column ``k - p_w``. A column is a column group (here: group) of
``G = H_f * C_i`` elements, rounded up to a multiple of four with zeros. All ``K_W = W_f * G``
elements of a window are then neighbours and start at a multiple of 16 bytes. (With dilation in
width, the columns of a window are d_w groups apart.)

The transform computes nothing, so the time of a copy of equally many bytes is its lower bound.
Neighbours in the input are far apart in the tensor, so each kernel fills a tile of shared memory
line by line and empties it column by column, by float4 on both sides if the addresses allow it. A
line is one element longer than its columns; this odd length spreads a column over 32 banks too. A
pixel is in H_f rows of windows, but no kernel reads it H_f times from global memory:

- Many channels (:func:`make_transform_by_pixels`): the lines of a tile are channels, its columns
  pixels of an image, and each pixel's channels are written to every group that the pixel is in.
- Few channels (:func:`make_transform_by_groups`): the channels of a pixel would be less than a
  sector. So the lines are all channels of the input rows under a band of output rows, and whole
  groups are written, one after the other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from numba import cuda, float32, uint32

from convlab.device import FLOAT4, gpu_only, index_type, load4, store4
from convlab.ladder.stage import (
    Buffer,
    DeviceFunction,
    Flat,
    Kernel,
    Launch,
    Program,
    Tile,
    blocks_for,
)
from convlab.problems.problem import ConvProblem

WARP = 32
FETCHED = 16  # elements that a thread loads before it stores the first
BLOCKS = 5  # of 256 threads, resident on an SM
MANY_CHANNELS = 24  # with so many, three quarters of a tile's lines hold channels
TILE_ELEMENTS = (4096, 8192, 12288)  # of a tile of few channels; the last is all of 48 KiB
MODEST_READS = 1.25


def window_columns(problem: ConvProblem) -> int:
    """W_w: columns of the padded input that the windows of one output row cover."""
    return (problem.W_o - 1) * problem.s_w + problem.window_shape[1]


def group_size(problem: ConvProblem) -> int:
    """G: elements per column of the im2win tensor, a multiple of four."""
    return blocks_for(problem.H_f * problem.C_i, FLOAT4) * FLOAT4


def make_fill(
    place: DeviceFunction, LINES: int, COLUMNS: int, BY_FLOAT4: bool, SIDE: int
) -> DeviceFunction:
    """``fill(source, tile, origin, t)``: a block's threads fetch LINES x COLUMNS elements.

    ``place(origin, line, column)`` returns whether ``source`` has the element (it is zero
    otherwise), and the element's index in ``source``. ``origin`` is what ``place`` has to know of
    the block. Lines begin COLUMNS + 1 elements apart in ``tile``. ``t`` is one of the block's
    SIDE * SIDE / 4 threads. A warp takes 32 columns of one line at a time, or, by float4, 32
    columns of four lines: eight float4s of each line, whose elements then go to 32 banks.
    """
    WARPS, PITCH = SIDE // FLOAT4, COLUMNS + 1
    NUMBERS = LINES_AT_A_TIME = FLOAT4 if BY_FLOAT4 else 1  # numbers per thread, lines per warp
    RUNS = SIDE // NUMBERS  # lanes along a line
    DOWN = blocks_for(LINES, LINES_AT_A_TIME)
    UNITS = DOWN * blocks_for(COLUMNS, SIDE)
    STEPS = blocks_for(UNITS, WARPS)
    ROUNDS = blocks_for(STEPS * NUMBERS, FETCHED)
    AT_ONCE = blocks_for(STEPS, ROUNDS)
    SHAPE = (AT_ONCE, NUMBERS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fill(source, tile, origin, t):
        fetched = cuda.local.array(SHAPE, float32)
        warp, lane = t // SIDE, t % SIDE
        for first in range(0, STEPS, AT_ONCE):
            for f in range(AT_ONCE):
                unit = uint32((first + f) * WARPS + warp)
                line = uint32(unit % DOWN * LINES_AT_A_TIME + lane // RUNS)
                column = uint32(unit // DOWN * SIDE + lane % RUNS * NUMBERS)
                there, at = place(origin, line, column)
                there = there and column < COLUMNS
                if BY_FLOAT4:
                    run = (float32(0), float32(0), float32(0), float32(0))
                    if there:
                        run = load4(source, at)
                    fetched[f, 0], fetched[f, 1], fetched[f, 2], fetched[f, 3] = run
                else:
                    number = float32(0)
                    if there:
                        number = source[at]
                    fetched[f, 0] = number
            for f in range(AT_ONCE):
                unit = uint32((first + f) * WARPS + warp)
                line = uint32(unit % DOWN * LINES_AT_A_TIME + lane // RUNS)
                column = uint32(unit // DOWN * SIDE + lane % RUNS * NUMBERS)
                if line < LINES and column < COLUMNS:
                    for c in range(NUMBERS):
                        tile[line * PITCH + column + c] = fetched[f, c]

    return fill


@lru_cache(maxsize=32)  # one kernel for all stages
def layout_transforms(problem: ConvProblem, tile: Tile) -> Program:
    """The launches before the main kernel. They make the im2win tensor ``windows`` (rows of the
    output x columns of the padded input x G) and the re-ordered filter ``packed``, one matrix for
    every row of blocks, so that a slice is one piece of memory. The side of a transform's block is
    a warp's lanes, fewer only when a simulator runs tiny tiles."""
    p, side, row_blocks = problem, min(tile.N_B, WARP), blocks_for(problem.M, tile.M_B)
    K_P = blocks_for(p.W_f * group_size(p), tile.K_B) * tile.K_B
    windows = Buffer("windows", (p.N_i * p.H_o, window_columns(p), group_size(p)))
    packed = Buffer("packed", (row_blocks, K_P, tile.M_B))
    many_channels = p.C_i % FLOAT4 == 0 and p.C_i >= min(MANY_CHANNELS, side)
    transform = by_pixels_launch(p, side) if many_channels else by_groups_launch(p, side)
    pack = Launch(
        make_pack_filter(p, K_P, row_blocks * tile.M_B, tile.M_B, side),
        grid=(blocks_for(K_P, side) * blocks_for(row_blocks * tile.M_B, side),),
        block=(side * (side // FLOAT4),),
        arguments=(Flat("weight"), Flat("packed")),
    )
    return Program((windows, packed), (transform, pack))


def require_even_loads(tile: Tile) -> None:
    """Raise ``ValueError`` where the threads do not share the float4s of a slice evenly."""
    at_a_time = FLOAT4 * tile.threads
    tile.require(
        tile.K_B * tile.M_B % at_a_time == tile.K_B * tile.N_B % at_a_time == 0,
        "its threads must share K_B x M_B / 4 and K_B x N_B / 4 float4s evenly, because each "
        "keeps what it loads in registers of its own",
    )


def by_pixels_launch(problem: ConvProblem, side: int) -> Launch:
    """The transform of many channels, ``side`` of them per block."""
    rows, width = pixel_grid(problem)
    columns = 2 * side
    blocks = problem.N_i * blocks_for(rows * width, columns) * blocks_for(problem.C_i, side)
    kernel, threads = make_transform_by_pixels(problem, columns, side), side * (side // FLOAT4)
    return Launch(kernel, (blocks,), (threads,), (Flat("input"), Flat("windows")))


def pixel_grid(problem: ConvProblem) -> tuple[int, int]:
    """The number of rows that windows reach, and the width of a row. Without padding it is the
    input's width, so rows are neighbours in memory; otherwise it is the windows' width, which
    includes the zeros around the image."""
    p = problem
    rows = (p.H_o - 1) * p.s_h + p.window_shape[0]
    return rows, window_columns(p) if p.padded_shape != (p.H_i, p.W_i) else p.W_i


def make_transform_by_pixels(problem: ConvProblem, COLUMNS: int, SIDE: int) -> Kernel:
    """Each pixel is read once and written to one group for each row of windows that sees it."""
    p = problem
    _, C_i, H_i, W_i = p.input_shape
    H_f, H_o, W_w, G = p.H_f, p.H_o, window_columns(p), group_size(p)
    s_h, p_h, p_w, d_h = p.s_h, p.p_h, p.p_w, p.d_h
    PLANE, PADDED = H_i * W_i, p.padded_shape != (H_i, W_i)
    ROWS, WIDTH = pixel_grid(p)
    PITCH, QUADS, THREADS = COLUMNS + 1, SIDE // FLOAT4, SIDE * (SIDE // FLOAT4)
    TILE = SIDE * PITCH
    CHUNKS, SLICES = blocks_for(ROWS * WIDTH, COLUMNS), blocks_for(C_i, SIDE)
    INDEX = index_type(ROWS * WIDTH + COLUMNS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def place(origin, line, column):
        start, p0, r0 = origin  # the number of the image's first pixel of the first channel
        r, pixel = uint32(r0 + line), INDEX(p0 + column)
        there = r < C_i and pixel < ROWS * WIDTH
        if PADDED:
            i_h, i_w = pixel // WIDTH - p_h, pixel % WIDTH - p_w
            there = there and 0 <= i_h < H_i and 0 <= i_w < W_i
            return there, start + r * PLANE + i_h * W_i + i_w
        return there, start + r * PLANE + pixel

    fill = make_fill(place, SIDE, COLUMNS, not PADDED and PLANE % FLOAT4 == 0, SIDE)

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def im2win_transform_by_pixels(input, windows):
        tile = cuda.shared.array(TILE, float32)
        t = uint32(cuda.threadIdx.x)
        block = uint32(cuda.blockIdx.x)
        r0 = uint32(block % SLICES * SIDE)
        p0 = INDEX(block // SLICES % CHUNKS * COLUMNS)
        i = uint32(block // (SLICES * CHUNKS))
        fill(input, tile, (i * C_i * PLANE, p0, r0), t)
        cuda.syncthreads()  # all threads have filled the tile

        line = t % QUADS * FLOAT4
        for f in range(0, COLUMNS, SIDE):
            column = t // QUADS + f
            pixel = INDEX(p0 + column)
            row, k = uint32(pixel // WIDTH), uint32(pixel % WIDTH)
            if r0 + line < C_i and row < ROWS and k < W_w:
                at = line * PITCH + column
                run = (tile[at], tile[at + PITCH], tile[at + 2 * PITCH], tile[at + 3 * PITCH])
                for u in range(H_f):
                    if row >= u * d_h and (row - u * d_h) % s_h == 0:
                        m = uint32(row - u * d_h) // s_h
                        if m < H_o:
                            group = (i * H_o + m) * W_w + k
                            store4(windows, group * G + u * C_i + r0 + line, run)

    return im2win_transform_by_pixels


class Band(NamedTuple):
    """The part of the tensor in one tile of few channels.

    A tile holds the groups of some output rows, on so many lines and columns. If ``whole``, the
    lines are all channels of the input rows under the output rows; otherwise the tile holds a part
    of one row's groups, because whole groups do not fit.
    """

    rows: int
    lines: int
    columns: int
    whole: bool

    def reads(self, problem: ConvProblem) -> float:
        """Return the input rows that the band reads for each row beyond the band before it."""
        p = problem
        read = (self.rows - 1) * p.s_h + p.window_shape[0] if self.whole else p.H_f
        return read / (self.rows * min(p.s_h, p.H_f))


def band_for(problem: ConvProblem, side: int) -> Band:
    """The smallest tile that reads few rows twice, because many small tiles overlap best. If there
    is none, the tile that reads least."""
    bands = [_band_in(problem, size * side * side // WARP**2, side) for size in TILE_ELEMENTS]
    modest = [band for band in bands if band.reads(problem) <= MODEST_READS]
    return (modest or [min(bands, key=lambda band: band.reads(problem))])[0]


def _band_in(problem: ConvProblem, elements: int, side: int) -> Band:
    p = problem
    W_w, window_lines = window_columns(p), p.window_shape[0] * p.C_i
    columns = blocks_for(blocks_for(W_w, blocks_for(W_w, side)), FLOAT4) * FLOAT4
    lines = elements // (columns + 1) // FLOAT4 * FLOAT4
    if window_lines > lines:
        return Band(1, min(lines, group_size(p)), columns, whole=False)
    rows = min(1 + (lines - window_lines) // (p.s_h * p.C_i), p.H_o)
    return Band(rows, (rows - 1) * p.s_h * p.C_i + window_lines, columns, whole=True)


def by_groups_launch(problem: ConvProblem, side: int) -> Launch:
    """The transform of few channels, one band of output rows per block."""
    band = band_for(problem, side)
    chunks = blocks_for(window_columns(problem), band.columns)
    parts = 1 if band.whole else blocks_for(group_size(problem), band.lines)
    blocks = problem.N_i * blocks_for(problem.H_o, band.rows) * chunks * parts
    kernel, threads = make_transform_by_groups(problem, band, side), side * (side // FLOAT4)
    return Launch(kernel, (blocks,), (threads,), (Flat("input"), Flat("windows")))


def make_transform_by_groups(problem: ConvProblem, band: Band, SIDE: int) -> Kernel:
    """Line ``(b * s_h + u * d_h) * C_i + r`` of a whole tile is in the groups of the band's row b;
    line g of a partial tile is element g of the tile's part of a group."""
    p = problem
    _, C_i, H_i, W_i = p.input_shape
    H_f, H_o, W_w, G = p.H_f, p.H_o, window_columns(p), group_size(p)
    s_h, p_h, p_w, d_h = p.s_h, p.p_h, p.p_w, p.d_h
    BAND, LINES, COLUMNS, WHOLE = band
    PITCH, THREADS = COLUMNS + 1, SIDE * (SIDE // FLOAT4)
    ROW_STEP = 1 if WHOLE else d_h  # input rows from one set of C_i lines to the next
    SPREAD = (d_h - 1) * C_i if WHOLE else 0  # lines between those of one filter row and the next
    PART, ELEMENTS = G if WHOLE else LINES, H_f * C_i  # of a group; the others are zeros
    TILE, QUADS = LINES * PITCH, PART // FLOAT4
    STORES = BAND * COLUMNS * QUADS
    INDEX = index_type(C_i * H_i * W_i)  # within an image
    BANDS, CHUNKS, PARTS = blocks_for(H_o, BAND), blocks_for(W_w, COLUMNS), blocks_for(G, PART)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def place(origin, line, column):
        start, m0, k0, g0 = origin
        element = uint32(g0 + line)
        row, r = element // C_i, element % C_i
        i_h, i_w = m0 * s_h + row * ROW_STEP - p_h, k0 + column - p_w
        there = 0 <= i_h < H_i and 0 <= i_w < W_i
        at = INDEX(0)
        if there:
            at = INDEX((r * H_i + i_h) * W_i + i_w)
        return there, start + at

    fill = make_fill(place, LINES, COLUMNS, W_i % FLOAT4 == 0 and p_w % FLOAT4 == 0, SIDE)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(tile, b, k, g0, g):
        if ELEMENTS < G and g >= ELEMENTS:
            return float32(0)
        line = b * (s_h * C_i) + g - g0 + g // C_i * SPREAD
        return tile[line * PITCH + k]

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def im2win_transform_by_groups(input, windows):
        tile = cuda.shared.array(TILE, float32)
        t = uint32(cuda.threadIdx.x)
        block = uint32(cuda.blockIdx.x)
        g0 = uint32(block % PARTS * PART)
        k0 = uint32(block // PARTS % CHUNKS * COLUMNS)
        m0 = uint32(block // (PARTS * CHUNKS) % BANDS * BAND)
        i = uint32(block // (PARTS * CHUNKS * BANDS))
        fill(input, tile, (i * C_i * H_i * W_i, m0, k0, g0), t)
        cuda.syncthreads()  # all threads have filled the tile

        for e in range(t, STORES, THREADS):
            quad, place_ = uint32(e) % QUADS, uint32(e) // QUADS
            k, b = place_ % COLUMNS, place_ // COLUMNS
            g = uint32(g0 + quad * FLOAT4)
            if m0 + b < H_o and k0 + k < W_w and g < G:
                run = (
                    read(tile, b, k, g0, g),
                    read(tile, b, k, g0, g + 1),
                    read(tile, b, k, g0, g + 2),
                    read(tile, b, k, g0, g + 3),
                )
                group = (i * H_o + m0 + b) * W_w + k0 + k
                store4(windows, group * G + g, run)

    return im2win_transform_by_groups


def make_pack_filter(problem: ConvProblem, K_P: int, M_P: int, M_B: int, SIDE: int) -> Kernel:
    """packed[m // M_B, v * G + u * C_i + r, m % M_B] = weight[m, r, u, v], with zeros in the other
    rows."""
    p = problem
    M, C_i, H_f, W_f, K, G = p.M, p.C_i, p.H_f, p.W_f, p.K, group_size(p)
    ELEMENTS = H_f * C_i  # of a group; the other TAIL are zeros
    TAIL = G - ELEMENTS
    PITCH, QUADS, THREADS = SIDE + 1, SIDE // FLOAT4, SIDE * (SIDE // FLOAT4)
    TILE, SQUARES = SIDE * PITCH, blocks_for(M_P, SIDE)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def place(origin, line, column):
        m0, e0 = origin
        m, e = m0 + line, e0 + column
        return m < M and e < K, m * K + e

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(e):
        """The row of element e of a filter. From e = K on, it is a row of zeros."""
        if e < K:
            r, u, v = e // (H_f * W_f), e // W_f % H_f, e % W_f
            return uint32(v * G + u * C_i + r)
        if TAIL > 0 and e < W_f * G:
            return uint32((e - K) // TAIL * G + ELEMENTS + (e - K) % TAIL)
        return e

    fill = make_fill(place, SIDE, SIDE, K % FLOAT4 == 0, SIDE)

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def pack_filter_by_squares(weight, packed):
        tile = cuda.shared.array(TILE, float32)
        t = uint32(cuda.threadIdx.x)
        block = uint32(cuda.blockIdx.x)
        m0 = uint32(block % SQUARES * SIDE)
        e0 = uint32(block // SQUARES * SIDE)
        fill(weight, tile, (m0, e0), t)
        cuda.syncthreads()  # all threads have filled the tile

        line, column = t % QUADS * FLOAT4, t // QUADS
        if e0 + column < K_P and m0 + line < M_P:
            at = line * PITCH + column
            run = (tile[at], tile[at + PITCH], tile[at + 2 * PITCH], tile[at + 3 * PITCH])
            m = m0 + line
            row = m // M_B * K_P + row_of(uint32(e0 + column))
            store4(packed, row * M_B + m % M_B, run)

    return pack_filter_by_squares
