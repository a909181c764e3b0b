"""im2col: every window of the input written out as a matrix, a GEMM on it, and a batch in slices.

``columns[k, n] = input[i, r, m * s_h + u * d_h - p_h, o * s_w + v * d_w - p_w]`` with
``n = (i * H_o + m) * W_o + o`` and ``k = (r * H_f + u) * W_f + v``: a row for each term of the
sums, a column for each output pixel. It is about H_f * W_f / (s_h * s_w) times as large as the
input, so the images of a batch may go through in slices. Rows are padded to a multiple of eight
columns, 32 bytes: float4s are aligned, and each row begins with a sector of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from numba import cuda, float32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, store4
from convlab.kernels.filter_layout import require_float4
from convlab.problem import ConvProblem
from convlab.stage import Argument, Buffer, Flat, Images, Launch, Program, Step, Tile, blocks_for

THREADS = 256
LARGEST_32_BIT = 2**32 - 1
PARTS_OF_A_BATCH = ("input", "output")


def pitch(columns: int) -> int:
    """Elements from one row of the matrix to the next: a multiple of eight."""
    return blocks_for(columns, 8) * 8


def index_type(largest: int) -> Any:
    """The type for numbers up to ``largest``: 32 bits where they suffice, which divide faster."""
    return uint32 if largest <= LARGEST_32_BIT else int64


def columns_buffer(problem: ConvProblem) -> Buffer:
    """The matrix's memory."""
    return Buffer("columns", (problem.K, pitch(problem.N)))


def im2col_launch(problem: ConvProblem, by_image: bool = False) -> Launch:
    """The plain im2col kernel, a thread for each element of the matrix.

    ``by_image`` writes a matrix for each image, one after the other and with no padding, instead of
    one whose rows go through all images.
    """
    width = problem.N if by_image else pitch(problem.N)
    kernel = make_im2col(problem, width, by_image)
    grid = (blocks_for(problem.K * width, THREADS),)
    return Launch(kernel, grid, (THREADS,), ("input", Flat("columns")))


def make_im2col(problem: ConvProblem, WIDTH: int, BY_IMAGE: bool) -> Any:
    """The kernel with the problem's shapes as constants."""
    p = problem
    N, K, PIXELS = p.N, p.K, p.H_o * p.W_o
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, W_o = p.H_f, p.W_f, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    INDEX = index_type(K * WIDTH + THREADS)

    @cuda.jit
    def im2col(input, columns):
        e = INDEX(uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x))
        k, n = uint32(e // WIDTH), e % WIDTH
        if k >= K:
            return

        i, pixel = n // PIXELS, INDEX(n % PIXELS)
        r, u, v = k // (H_f * W_f), k % (H_f * W_f) // W_f, k % W_f
        i_h = pixel // W_o * s_h + u * d_h - p_h
        i_w = pixel % W_o * s_w + v * d_w - p_w
        value = float32(0)  # outside the image is padding, beyond the last window nothing
        if n < N and 0 <= i_h < H_i and 0 <= i_w < W_i:
            value = input[i, r, i_h, i_w]
        if BY_IMAGE:
            columns[(i * K + k) * PIXELS + pixel] = value
        else:
            columns[e] = value

    return im2col


def product_launch(problem: ConvProblem, tile: Tile) -> Launch:
    """The filter matrix times the im2col matrix, written as an output tensor. How to make a GEMM
    fast is the ladder's subject from s05 to s09. Raises ``ValueError`` for an unsuited tile."""
    require_float4(tile)
    tile.require_shared_memory(tile.K_B * (tile.M_B + tile.N_B))
    return Launch(
        make_product(problem, tile),
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B)),
        block=(tile.threads,),
        arguments=(Flat("columns"), Flat("packed"), "bias", Flat("output")),
    )


def make_product(problem: ConvProblem, tile: Tile) -> Any:
    """s08's kernel, except that its right-hand side is a matrix in memory, so that it too is loaded
    as float4s and without a division."""
    M, N, K, PITCH = problem.M, problem.N, problem.K, pitch(problem.N)
    PIXELS = problem.H_o * problem.W_o
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    F_SLICE, I_SLICE, O_SHAPE = (K_B, M_B), (K_B, N_B), (M_T, N_T)
    M_4, N_4, M_P = M_B // FLOAT4, N_B // FLOAT4, blocks_for(M, M_B) * M_B
    ALIGNED = PIXELS % FLOAT4 == 0  # no float4 of outputs crosses into the next image
    STEP = FLOAT4 if ALIGNED else 1

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def matrix_product(columns, packed, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICE, float32, alignment=BYTES_16)
        R_F = cuda.local.array(M_T, float32)
        R_I = cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // COLUMNS, t % COLUMNS
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for k0 in range(0, K, K_B):
            for e in range(t, K_B * M_4, THREADS):  # load
                k, row = e // M_4, e % M_4 * FLOAT4
                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))
            for e in range(t, K_B * N_4, THREADS):
                k, column = e // N_4, e % N_4 * FLOAT4
                four = (float32(0), float32(0), float32(0), float32(0))
                if k0 + k < K and n0 + column < PITCH:
                    four = load4(columns, (k0 + k) * PITCH + n0 + column)
                store4(S_I, (k, column), four)
            cuda.syncthreads()  # nobody computes before all have fetched

            for k in range(K_B):  # compute
                for i in range(0, M_T, FLOAT4):
                    four = load4(S_F, (k, ty * FLOAT4 + i * ROWS))
                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four
                for j in range(0, N_T, FLOAT4):
                    four = load4(S_I, (k, tx * FLOAT4 + j * COLUMNS))
                    R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four
                for i in range(M_T):
                    for j in range(N_T):
                        R_O[i, j] += R_F[i] * R_I[j]
            cuda.syncthreads()  # nobody fetches the next slice over what others still read

        for j in range(0, N_T, FLOAT4):
            for c in range(0, FLOAT4, STEP):
                n = n0 + tx * FLOAT4 + j * COLUMNS + c
                if n < N:
                    i_n, o_p = n // PIXELS, n % PIXELS
                    for i in range(M_T):
                        m = m0 + ty * FLOAT4 + i // FLOAT4 * FLOAT4 * ROWS + i % FLOAT4
                        if m < M:
                            at, b = (i_n * M + m) * PIXELS + o_p, bias[m]
                            if ALIGNED:
                                x, y, z, w = R_O[i, j], R_O[i, j + 1], R_O[i, j + 2], R_O[i, j + 3]
                                store4(output, at, (x + b, y + b, z + b, w + b))
                            else:
                                output[at] = R_O[i, j + c] + b

    return matrix_product


def in_slices(
    problem: ConvProblem,
    buffers: Callable[[ConvProblem], tuple[Buffer, ...]],
    steps: Callable[[ConvProblem], list[Step]],
    workspace_limit: int | None = None,
    images: int | None = None,
) -> Program:
    """The batch in slices of so many images, or of as many as the limit in bytes allows; the last
    slice holds the remainder. ``buffers`` and ``steps`` take the problem of a slice: the memory of
    a whole one serves all, and slices of as many images share their kernels.

    Raises ``ValueError`` with the sizes when one image takes more than the limit.
    """
    images = images or most_images(problem, buffers, workspace_limit)
    starts = range(0, problem.N_i, images)
    slices = [(start, min(start + images, problem.N_i)) for start in starts]
    made = {n: steps(replace(problem, batch=n)) for n in {stop - start for start, stop in slices}}
    launches = [
        replace(step, arguments=tuple(_images_of(name, *slice_) for name in step.arguments))
        if len(slices) > 1
        else step
        for slice_ in slices
        for step in made[slice_[1] - slice_[0]]
    ]
    return Program(buffers(replace(problem, batch=min(images, problem.N_i))), tuple(launches))


def most_images(
    problem: ConvProblem,
    buffers: Callable[[ConvProblem], tuple[Buffer, ...]],
    workspace_limit: int | None,
) -> int:
    """How many images a workspace of so many bytes serves. Raises as :func:`in_slices`."""

    def nbytes(images: int) -> int:
        return sum(buffer.nbytes for buffer in buffers(replace(problem, batch=images)))

    if workspace_limit is None:
        return problem.N_i
    if nbytes(1) > workspace_limit:
        raise ValueError(
            f"workspace_limit is {workspace_limit}: one image alone takes {nbytes(1)} bytes, so it "
            "must be at least that"
        )
    return bisect_right(range(1, problem.N_i + 1), workspace_limit, key=nbytes)


def _images_of(argument: Argument, start: int, stop: int) -> Argument:
    if str(argument) not in PARTS_OF_A_BATCH:
        return argument
    part = Images(str(argument), start, stop)
    return Flat(part) if isinstance(argument, Flat) else part


# Depth last: the kernels of CUDA IM2COL Kernels Design (003), for every depth.
#
# The tensor holds the channels of a pixel side by side (NHWC), padded with zeros to a depth pitch
# of 4, 8, 12 or 16; deeper ones are taken in slices of 16, each a tensor of its own. A pixel's
# channels are then one to four float4s. The im2col matrix is ``columns[(u * W_f + v) * C_i + r,
# n]``: pixels are neighbours. So a warp loads 32 pixels, whole sectors at a time, a block
# transposes them in shared memory, and each row of 128 pixels is stored by 128-bit stores.
#
# Pitch 4 is the document's own design: 128 x 2 threads, a float4 each, and shared memory of
# 8 x (128 + 4), two groups of four rows. Pitches 8, 12 and 16 keep the block and give a thread 2, 3
# and 4 float4s, and so a group 8, 12 and 16 rows. Two things have to hold for each: the 32 float4s
# that a warp fetches at a time are 16 whole sectors, and the numbers of its scalar stores lie in 32
# banks. Where a pixel's float4s are neighbouring lanes, their rows have to start in other banks:
# SKEW sees to it. With three a pixel no start avoids the conflict, because 32 consecutive float4s
# have nine numbers for eight banks. There a warp takes the sectors of every pair of pixels in
# another order.

RUN = 4  # numbers that one instruction moves
WARP, GROUPS, WARPS = 32, 2, 4  # a block is two groups of four warps
DEEPEST = 16  # the largest depth pitch: deeper tensors go through in slices of it
PAD = 4  # between rows in shared memory, as in the document
SKEW = {1: 0, 2: 0, 3: 4, 4: 8}  # between every four rows, by float4s a pixel
TO_DEPTH_LAST_THREADS = 128


class Slices(NamedTuple):
    """Some slices of the depth that are alike: how many, from which channel on, how deep."""

    number: int
    first: int
    pitch: int


def depth_slices(depth: int) -> list[Slices]:
    """The whole slices together, then the rest."""
    whole, rest = divmod(depth, DEEPEST)
    slices = [Slices(whole, 0, DEEPEST)] if whole else []
    return slices + ([Slices(1, whole * DEEPEST, blocks_for(rest, RUN) * RUN)] if rest else [])


def depth_last_buffer(problem: ConvProblem) -> Buffer:
    """The tensor's memory: slice after slice, in each of them pixel after pixel."""
    pixels = problem.N_i * problem.H_i * problem.W_i
    depth = sum(slices.number * slices.pitch for slices in depth_slices(problem.C_i))
    return Buffer("depth_last", (pixels * depth,))


def to_depth_last_launches(problem: ConvProblem) -> list[Launch]:
    """The input, whose channels are outermost, written depth last."""
    across = blocks_for(problem.N_i * problem.H_i * problem.W_i, TO_DEPTH_LAST_THREADS)
    threads, arguments = (TO_DEPTH_LAST_THREADS,), (Flat("input"), "depth_last")
    return [
        Launch(make_to_depth_last(problem, one, across), (across * one.number,), threads, arguments)
        for one in depth_slices(problem.C_i)
    ]


def make_to_depth_last(problem: ConvProblem, slices: Slices, ACROSS: int) -> Any:
    """The kernel: a thread for each pixel and slice, zeros for channels that there are not."""
    C_i, IMAGE = problem.C_i, problem.H_i * problem.W_i
    PIXELS = problem.N_i * IMAGE
    FIRST, PITCH, START = slices.first, slices.pitch, slices.first * PIXELS
    INDEX = index_type(ACROSS * TO_DEPTH_LAST_THREADS)

    @cuda.jit
    def to_depth_last(input, depth_last):
        block = uint32(cuda.blockIdx.x)
        slice_ = block // ACROSS
        q = INDEX(block % ACROSS * TO_DEPTH_LAST_THREADS + uint32(cuda.threadIdx.x))
        if q >= PIXELS:
            return

        i, place = q // IMAGE, q % IMAGE
        for c in range(0, PITCH, RUN):
            r = FIRST + slice_ * DEEPEST + c
            at = (i * C_i + r) * IMAGE + place
            w = z = y = float32(0)
            if r + 3 < C_i:
                w = input[at + 3 * IMAGE]
            if r + 2 < C_i:
                z = input[at + 2 * IMAGE]
            if r + 1 < C_i:
                y = input[at + IMAGE]
            store4(depth_last, START + (slice_ * PIXELS + q) * PITCH + c, (input[at], y, z, w))

    return to_depth_last


def depth_last_im2col_launches(problem: ConvProblem, lanes: int = WARP) -> list[Launch]:
    """The im2col kernels: one for whole slices and one for the rest.

    A block writes 2 x 4 * ``lanes`` columns of the rows of a slice and filter row; ``lanes`` is a
    warp's, fewer only where a simulator runs tiny tiles.
    """
    tiles = blocks_for(pitch(problem.N), GROUPS * WARPS * lanes)
    return [
        Launch(
            make_depth_last_im2col(problem, slices, lanes),
            grid=(tiles * problem.H_f * slices.number,),
            block=(WARPS * lanes, GROUPS),
            arguments=("depth_last", Flat("columns")),
        )
        for slices in depth_slices(problem.C_i)
    ]


def make_run_of(QUADS: int, LANES: int) -> Any:
    """Which run a lane fetches in step f, of the QUADS * LANES runs of a warp's pixels: pixel q's
    run c is number q * QUADS + c. The runs of each step are whole sectors; ``odd`` says that the
    warp's first pixel begins amid one."""

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def run_in_turn(f, lane, odd):
        return uint32(f * LANES + lane)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def run_of_three(f, lane, odd):
        # A pair of pixels is three sectors of two runs. Step f takes sector f of every pair, or,
        # where the pair's number has its second bit, sector 2 - f: then each step has eight runs
        # of every fourth pixel, which are in eight banks. Pairs begin where sectors do.
        pair = lane // 2
        sector = f + pair // 2 % 2 * (2 - 2 * f)
        return uint32((pair * 6 + sector * 2 + lane % 2 + odd * 3) % (3 * LANES))

    return run_of_three if QUADS == 3 else run_in_turn


def make_depth_last_im2col(problem: ConvProblem, slices: Slices, LANES: int) -> Any:
    """The kernel for slices of one depth pitch, with the problem's shapes as constants."""
    p = problem
    N, WIDTH, PIXELS = p.N, pitch(p.N), p.H_o * p.W_o
    N_i, C_i, H_i, W_i = p.input_shape
    H_f, W_f, W_o = p.H_f, p.W_f, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    FIRST, PITCH = slices.first, slices.pitch
    START, SLICE = FIRST * N_i * H_i * W_i, N_i * H_i * W_i * PITCH
    QUADS, COLUMNS = PITCH // RUN, WARPS * LANES
    ROW = COLUMNS + PAD
    QUAD = RUN * ROW + SKEW[QUADS]  # the four rows of a run of channels
    SHARED, FETCHED = GROUPS * QUADS * QUAD, (QUADS, RUN)
    TILES = blocks_for(WIDTH, GROUPS * COLUMNS)
    INDEX = index_type(TILES * GROUPS * COLUMNS)
    AHEAD = QUADS != 3  # whose order of runs leaves the pace to index arithmetic, not to waiting
    run_of = make_run_of(QUADS, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(depth_last, fetched, first, lane, odd, u, v, slice_):
        for f in range(QUADS):
            run = run_of(f, lane, odd)
            n = INDEX(first + run // QUADS)
            i, pixel = n // PIXELS, INDEX(n % PIXELS)
            i_h = pixel // W_o * s_h + u * d_h - p_h
            i_w = pixel % W_o * s_w + v * d_w - p_w
            x = y = z = w = float32(0)  # outside the image is padding
            if n < N and 0 <= i_h < H_i and 0 <= i_w < W_i:
                at = ((i * H_i + i_h) * W_i + i_w) * PITCH + run % QUADS * RUN
                x, y, z, w = load4(depth_last, START + slice_ * SLICE + at)
            fetched[f, 0], fetched[f, 1], fetched[f, 2], fetched[f, 3] = x, y, z, w

    @cuda.jit(**gpu_only(launch_bounds=(GROUPS * COLUMNS, 4)))
    def im2col_by_runs(depth_last, columns):
        S = cuda.shared.array(SHARED, float32, alignment=BYTES_16)
        fetched = cuda.local.array(FETCHED, float32)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        warp, lane = tx // LANES, tx % LANES
        block = uint32(cuda.blockIdx.x)
        u = block // TILES % H_f
        slice_ = block // (TILES * H_f)
        n0 = INDEX((block % TILES * GROUPS + ty) * COLUMNS)  # the first column of the group
        rows = ty * (QUADS * QUAD)  # where the group's rows begin in shared memory
        first = n0 + warp * LANES  # the warp's first column, and the pixel it sees first
        pixel = INDEX(first % PIXELS)
        place = (first // PIXELS * H_i + pixel // W_o * s_h) * W_i + pixel % W_o * s_w
        place += (u * d_h - p_h) * W_i - p_w

        if AHEAD:
            fetch(depth_last, fetched, first, lane, place & 1, u, 0, slice_)
        for v in range(W_f):
            odd = (place + v * d_w) & 1
            if not AHEAD:
                fetch(depth_last, fetched, first, lane, odd, u, v, slice_)
            for f in range(QUADS):  # turn round
                run = run_of(f, lane, odd)
                at = rows + run % QUADS * QUAD + warp * LANES + run // QUADS
                for c in range(RUN):
                    S[at + c * ROW] = fetched[f, c]
            cuda.syncthreads()  # nobody reads a row before all have filled it

            if AHEAD and v + 1 < W_f:  # the next filter column comes while this one is written
                odd = (place + (v + 1) * d_w) & 1
                fetch(depth_last, fetched, first, lane, odd, u, v + 1, slice_)
            column = n0 + lane * RUN
            for f in range(QUADS):  # write: a warp takes a row of every run
                r = FIRST + slice_ * DEEPEST + f * RUN + warp
                if r < C_i and column < WIDTH:
                    values = load4(S, rows + f * QUAD + warp * ROW + lane * RUN)
                    store4(columns, ((u * W_f + v) * C_i + r) * WIDTH + column, values)
            cuda.syncthreads()  # nobody fills the rows again before all have emptied them

    return im2col_by_runs
