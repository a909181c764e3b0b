"""Depth last: the im2col kernels of CUDA IM2COL Kernels Design (003), for every depth.

The tensor holds the channels of a pixel side by side (NHWC), padded with zeros to a depth pitch of
4, 8, 12 or 16; deeper pixels are taken in slices of 16, each its own tensor. A pixel's channels
are then one to four float4s. The im2col matrix is ``columns[(u * W_f + v) * C_i + r, n]``: pixels
are neighbours. So a warp loads 32 pixels, whole sectors at a time, a block transposes them in
shared memory, and each row of 128 pixels is stored by 128-bit stores.

Pitch 4 is the document's own design: 128 x 2 threads, a float4 each, and shared memory of
8 x (128 + 4), two groups of four rows. Pitches 8, 12 and 16 keep the block and give a thread 2, 3
and 4 float4s, and so a group 8, 12 and 16 rows. Two things have to hold for each: the 32 float4s
that a warp fetches at a time are 16 whole sectors, and the numbers of its scalar stores lie in 32
banks. If neighbouring lanes hold the float4s of a pixel, their rows have to start in different
banks, so SKEW separates them. With three float4s per pixel no start avoids the conflict, because 32
consecutive float4s have nine numbers for eight banks. In that case a warp takes the sectors of
every pair of pixels in another order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cuda, float32, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, index_type, load4, store4
from convlab.ladder.im2col.im2col_gemm import pitch
from convlab.ladder.stage import Buffer, Flat, Launch, blocks_for
from convlab.problems.problem import ConvProblem

WARP, GROUPS, WARPS = 32, 2, 4  # a block is two groups of four warps
DEEPEST = 16  # the largest depth pitch: deeper tensors are taken in slices of this depth
PAD = 4  # between rows in shared memory, as in the document
SKEW = {1: 0, 2: 0, 3: 4, 4: 8}  # elements between every four rows, by float4s per pixel
TO_DEPTH_LAST_THREADS = 128


class Slices(NamedTuple):
    """Equal slices of the depth: how many, from which channel on, how deep."""

    number: int
    first: int
    pitch: int


def depth_slices(depth: int) -> list[Slices]:
    """The whole slices together, then the rest."""
    whole, rest = divmod(depth, DEEPEST)
    padded = blocks_for(rest, FLOAT4) * FLOAT4
    slices = [Slices(whole, 0, DEEPEST), Slices(1, whole * DEEPEST, padded)]
    return [one for one in slices if one.number and one.pitch]


def buffer(problem: ConvProblem) -> Buffer:
    """The tensor's memory: slice after slice, in each of them pixel after pixel."""
    pixels = problem.N_i * problem.H_i * problem.W_i
    depth = sum(slices.number * slices.pitch for slices in depth_slices(problem.C_i))
    return Buffer("depth_last", (pixels * depth,))


def transform_launches(problem: ConvProblem) -> list[Launch]:
    """The input, whose channels are outermost, written depth last."""
    across = blocks_for(problem.N_i * problem.H_i * problem.W_i, TO_DEPTH_LAST_THREADS)
    threads, arguments = (TO_DEPTH_LAST_THREADS,), (Flat("input"), "depth_last")
    return [
        Launch(make_to_depth_last(problem, one, across), (across * one.number,), threads, arguments)
        for one in depth_slices(problem.C_i)
    ]


def make_to_depth_last(problem: ConvProblem, slices: Slices, ACROSS: int) -> Any:
    """The kernel: a thread for each pixel and slice, zeros for channels that do not exist."""
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

        i, pixel = q // IMAGE, q % IMAGE
        for c in range(0, PITCH, FLOAT4):
            r = FIRST + slice_ * DEEPEST + c
            at = (i * C_i + r) * IMAGE + pixel
            w = z = y = float32(0)
            if r + 3 < C_i:
                w = input[at + 3 * IMAGE]
            if r + 2 < C_i:
                z = input[at + 2 * IMAGE]
            if r + 1 < C_i:
                y = input[at + IMAGE]
            store4(depth_last, START + (slice_ * PIXELS + q) * PITCH + c, (input[at], y, z, w))

    return to_depth_last


def im2col_launches(problem: ConvProblem, lanes: int = WARP) -> list[Launch]:
    """The im2col kernels: one for whole slices and one for the rest.

    A block writes 2 x 4 * ``lanes`` columns of the rows of a slice and filter row. ``lanes`` is the
    number of a warp's lanes, fewer only when a simulator runs tiny tiles.
    """
    tiles = blocks_for(pitch(problem.N), GROUPS * WARPS * lanes)
    return [
        Launch(
            make_im2col(problem, slices, lanes),
            grid=(tiles * problem.H_f * slices.number,),
            block=(WARPS * lanes, GROUPS),
            arguments=("depth_last", Flat("columns")),
        )
        for slices in depth_slices(problem.C_i)
    ]


def make_float4_of(QUADS: int, LANES: int) -> Any:
    """Return the float4 of a warp's QUADS * LANES that a lane fetches in step f: float4 c of
    pixel q has the number q * QUADS + c. The float4s of each step are whole sectors. ``odd`` says
    that the warp's first pixel begins in the middle of a sector."""

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def in_turn(f, lane, odd):
        return uint32(f * LANES + lane)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def three_a_pixel(f, lane, odd):
        # A pair of pixels is three sectors of two float4s. Step f takes sector f of a pair, or
        # sector 2 - f if the second bit of the pair's number is set. So each step has eight float4s
        # of every fourth pixel, which are in eight banks. A pair begins where a sector begins.
        pair = lane // 2
        sector = f + pair // 2 % 2 * (2 - 2 * f)
        return uint32((pair * 6 + sector * 2 + lane % 2 + odd * 3) % (3 * LANES))

    return three_a_pixel if QUADS == 3 else in_turn


def make_im2col(problem: ConvProblem, slices: Slices, LANES: int) -> Any:
    """The kernel for slices of one depth pitch, with the problem's shapes as constants."""
    p = problem
    N, WIDTH, PIXELS = p.N, pitch(p.N), p.H_o * p.W_o
    N_i, C_i, H_i, W_i = p.input_shape
    H_f, W_f, W_o = p.H_f, p.W_f, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    FIRST, PITCH = slices.first, slices.pitch
    START, SLICE = FIRST * N_i * H_i * W_i, N_i * H_i * W_i * PITCH
    QUADS, COLUMNS = PITCH // FLOAT4, WARPS * LANES
    ROW = COLUMNS + PAD
    QUAD = FLOAT4 * ROW + SKEW[QUADS]  # the four rows of a float4 of channels
    SHARED, FETCHED = GROUPS * QUADS * QUAD, (QUADS, FLOAT4)
    TILES = blocks_for(WIDTH, GROUPS * COLUMNS)
    INDEX = index_type(TILES * GROUPS * COLUMNS)
    AHEAD = QUADS != 3  # with three, index arithmetic limits the speed, not the latency of loads
    float4_of = make_float4_of(QUADS, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(depth_last, fetched, first, lane, odd, u, v, slice_):
        for f in range(QUADS):
            e = float4_of(f, lane, odd)
            n = INDEX(first + e // QUADS)
            i, pixel = n // PIXELS, INDEX(n % PIXELS)
            i_h = pixel // W_o * s_h + u * d_h - p_h
            i_w = pixel % W_o * s_w + v * d_w - p_w
            x = y = z = w = float32(0)  # outside the image is padding
            if n < N and 0 <= i_h < H_i and 0 <= i_w < W_i:
                at = ((i * H_i + i_h) * W_i + i_w) * PITCH + e % QUADS * FLOAT4
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
        seen = (first // PIXELS * H_i + pixel // W_o * s_h) * W_i + pixel % W_o * s_w
        seen += (u * d_h - p_h) * W_i - p_w

        if AHEAD:
            fetch(depth_last, fetched, first, lane, seen & 1, u, 0, slice_)
        for v in range(W_f):
            odd = (seen + v * d_w) & 1
            if not AHEAD:
                fetch(depth_last, fetched, first, lane, odd, u, v, slice_)
            for f in range(QUADS):  # transpose
                e = float4_of(f, lane, odd)
                at = rows + e % QUADS * QUAD + warp * LANES + e // QUADS
                for c in range(FLOAT4):
                    S[at + c * ROW] = fetched[f, c]
            cuda.syncthreads()  # nobody reads a row before all have filled it

            if AHEAD and v + 1 < W_f:  # load the next filter column while this one is written
                odd = (seen + (v + 1) * d_w) & 1
                fetch(depth_last, fetched, first, lane, odd, u, v + 1, slice_)
            column = n0 + lane * FLOAT4
            for f in range(QUADS):  # write: a warp takes one row of each float4
                r = FIRST + slice_ * DEEPEST + f * FLOAT4 + warp
                if r < C_i and column < WIDTH:
                    values = load4(S, rows + f * QUAD + warp * ROW + lane * FLOAT4)
                    store4(columns, ((u * W_f + v) * C_i + r) * WIDTH + column, values)
            cuda.syncthreads()  # nobody fills the rows again before all have emptied them

    return im2col_by_runs
