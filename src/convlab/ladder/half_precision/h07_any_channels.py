"""h07: any number of output channels. The filter is padded, and outputs that do not come in eights
leave through shared memory.

Source: ours, beyond the paper. h06's tensor map interleaves the filter's channels in groups of 32,
so their number must be a multiple of 32. Here a small kernel first copies the filter and appends
zeros. The rest depends on the number of channels:

- **A multiple of eight**: a lane's eight channels are stored or not, as in h01.
- **Any other, up to 256**: a window's channels begin at any byte, so no lane can store 16 bytes of
  one window. But a block has all channels, and 8 windows of them are neighbours in memory, 8 * C_o
  numbers from a multiple of 16 bytes on. So a warp rounds its outputs of 8 windows into shared
  memory, as they lie in the output, and stores them 16 bytes a lane, without regard to windows.
- **Any other above 256**: numbers are stored one by one, as in h01.

With a multiple of 32 channels it is h06.

The difference to h06 is long (over 150 lines), because h06's kernel is not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from numba import cuda, int64, uint32

from convlab.device import gpu_only, unrolled
from convlab.device.sixteen_bits import EIGHT, load_pairs, store_pairs
from convlab.device.swizzled_products import panel_start
from convlab.ladder.half_precision import h06_window_rows as h06
from convlab.ladder.half_precision.h01_panels import (
    HOPPER,
    INTERLEAVED,
    make_epilogue,
    shared_bytes,
)
from convlab.ladder.half_precision.h03_warp_specialization import (
    H100_SMS,
    THREADS,
    WARPS,
    estimated_clocks,
    make_kernel,
    pipeline_depth,
    require_consumer_tile,
    tiles_for,
)
from convlab.ladder.half_precision.panel_format import FORMATS, PAD_THREADS
from convlab.ladder.main.m14_epilogue import make_finish
from convlab.ladder.stage import (
    MOST_SHARED_BYTES,
    Buffer,
    Flat,
    Kernel,
    Launch,
    Program,
    Stage,
    Tile,
    Tiles,
    blocks_for,
)
from convlab.problems.problem import ConvProblem

MOST_CHANNELS = 256  # of a block
ROWS = 8  # windows that a warp has in shared memory at a time
CONSUMER_WARPS = 2 * WARPS
BARRIER_BYTES = 8


def padded(problem: ConvProblem) -> ConvProblem:
    """Return the problem with the next larger multiple of 32 output channels."""
    return replace(problem, out_channels=blocks_for(problem.M, INTERLEAVED) * INTERLEAVED)


def is_staged(problem: ConvProblem, M_B: int = MOST_CHANNELS) -> bool:
    """Return whether outputs leave through shared memory, if blocks have so many channels: their
    number is no multiple of those that a lane stores, and a block has all of them."""
    return problem.M % FORMATS[problem.dtype].neighbours != 0 and problem.M <= M_B


def staged_bytes(problem: ConvProblem, tile: Tile) -> int:
    """Return the bytes of shared memory for the outputs of the consumers' warps."""
    of_outputs = CONSUMER_WARPS * ROWS * problem.M * FORMATS[problem.dtype].nbytes
    return of_outputs if is_staged(problem, tile.M_B) else 0


def depth_of(problem: ConvProblem, tile: Tile) -> int:
    """Return how many slices shared memory holds beside the outputs."""
    most = pipeline_depth(tile)
    barriers = (2 * most + 2) * BARRIER_BYTES  # h03's: two for a slice, and two turns
    room = MOST_SHARED_BYTES - shared_bytes(tile, 0) - staged_bytes(problem, tile) - barriers
    of_slice = shared_bytes(tile, 1) - shared_bytes(tile, 0)
    return min(most, room // of_slice)


def make_pad(problem: ConvProblem) -> Kernel:
    """Return the kernel that copies the filter, eight numbers a thread, and appends zeros."""
    VALID, TOTAL = problem.M * problem.K // EIGHT, padded(problem).M * problem.K // EIGHT

    @cuda.jit
    def pad_filter(weight, filter):
        i = cuda.grid(1)
        if i < VALID:
            p0, p1, p2, p3 = load_pairs(weight, int64(i) * EIGHT)
            store_pairs(filter, int64(i) * EIGHT, (p0, p1, p2, p3))
        elif i < TOTAL:
            zero = uint32(0)
            store_pairs(filter, int64(i) * EIGHT, (zero, zero, zero, zero))

    return pad_filter


def make_staged_epilogue(
    problem: ConvProblem, tile: Tile, relu: bool, depth: int
) -> Callable[..., None]:
    """Return ``epilogue(D, first, bias, output, m_t, n_t)`` for a block that has all channels: it
    adds the bias to a lane's sums of one product, rounds them once to the outputs' type, and stores
    them by way of shared memory behind ``depth`` slices."""
    M, N = problem.M, problem.N
    format, finish = FORMATS[problem.dtype], make_finish(relu)
    NUMBER, widen, rounded = format.in_kernels, format.widen, format.rounded
    load_16_bytes, store_16_bytes = format.load_16_bytes, format.store_16_bytes
    NEIGHBOURS, INTERLEAVED = format.neighbours, format.interleaved  # eight and 32 of 16 bits
    BEHIND_SLICES = depth * (tile.M_B + tile.N_B) * format.terms
    OF_WARP, PAIRS, PARTS = ROWS * M, NEIGHBOURS // 2, tile.M_B // INTERLEAVED
    SUMS = 2 * NEIGHBOURS  # of a part: of two windows

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def put_part(q, D, at, bias, S, place, m_t):
        for j in range(PAIRS):
            for e in range(2):
                m = m_t + q * INTERLEAVED + 2 * j + e
                if m < M:
                    S[place + m] = rounded(finish(D[at + SUMS * q + 4 * j + e], widen(bias[m])))

    put_parts = unrolled(put_part, range(PARTS))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store_windows(row, D, first, bias, S, begin, output, lane, m_t, n_t):
        put_parts(D, first + 2 * row, bias, S, begin + lane // 4 * uint32(M), m_t)
        cuda.syncwarp()
        n = n_t - lane // 4 + 8 * row  # the first of the eight windows
        count = M * min(ROWS, N - n) if n < N else 0
        to = int64(n) * M
        for i in range(lane, count // NEIGHBOURS, 32):
            numbers = load_16_bytes(S, begin + i * NEIGHBOURS)
            store_16_bytes(output, to + i * NEIGHBOURS, numbers)
        for i in range(count // NEIGHBOURS * NEIGHBOURS + lane, count, 32):
            output[to + i] = S[begin + i]
        cuda.syncwarp()  # before the next eight windows take their place

    # Unrolled, because an array with a variable index is not in registers.
    store_both = unrolled(store_windows, range(2))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def epilogue(D, first, bias, output, m_t, n_t):
        S = cuda.shared.array(0, NUMBER)
        t = uint32(cuda.threadIdx.x)
        lane, begin = t % 32, panel_start(S) + BEHIND_SLICES + t // 32 * uint32(OF_WARP)
        store_both(D, first, bias, S, begin, output, lane, m_t, n_t)

    return epilogue


def fastest_tile(problem: ConvProblem, computed: ConvProblem, sm_count: int) -> Tile:
    """Return the tile with which h03's estimate takes the least time for what the kernel computes,
    with all channels in a block where the problem's outputs leave through shared memory."""
    least = problem.M if is_staged(problem) else 0
    tiles = [tile for tile in tiles_for(computed) if least <= tile.M_B]
    return min(tiles, key=lambda tile: estimated_clocks(computed, tile, sm_count))


def production_tile(problem: ConvProblem, sm_count: int = H100_SMS) -> Tile:
    """Return the tile that h03's estimate takes the least time for, with all channels in a block
    where outputs leave through shared memory."""
    if problem.M % INTERLEAVED == 0:
        return h06.production_tile(problem, sm_count)
    whole = padded(problem)
    by_rows = h06.of_rows(whole) if h06.has_rows(whole) else whole
    return fastest_tile(problem, by_rows, sm_count)


def prepare(
    problem: ConvProblem, tile: Tile, relu: bool = False, sm_count: int = H100_SMS
) -> Program:
    """``relu`` replaces negative results by zero. There is one block per SM of a GPU with
    ``sm_count`` SMs, and no more than there are tiles."""
    if problem.M % INTERLEAVED == 0:
        return h06.prepare(problem, tile, relu=relu, sm_count=sm_count)
    require_consumer_tile(tile)
    depth = depth_of(problem, tile)
    whole = padded(problem)
    computed, windows, filter = h06.computed_and_maps(whole, tile)
    made = make_epilogue
    if is_staged(problem, tile.M_B):
        made = partial(make_staged_epilogue, depth=depth)

    def epilogue_of(_: ConvProblem, tile: Tile, relu: bool) -> Callable[..., None]:
        return made(problem, tile, relu)  # of as many channels as the output has

    tiles = blocks_for(whole.M, tile.M_B) * blocks_for(whole.N, tile.N_B)
    numbers = whole.M * whole.K
    pad = Launch(
        make_pad(problem),
        grid=(blocks_for(numbers // EIGHT, PAD_THREADS),),
        block=(PAD_THREADS,),
        arguments=(Flat("weight"), "padded_filter"),
    )
    launch = Launch(
        make_kernel(computed, tile, relu, make_epilogue=epilogue_of, depth=depth),
        grid=(min(tiles, sm_count),),
        block=(THREADS,),
        arguments=(windows, replace(filter, of="padded_filter"), "bias", Flat("output")),
        shared_bytes=shared_bytes(tile, depth) + staged_bytes(problem, tile),
    )
    return Program((Buffer("padded_filter", (numbers,), "uint16"),), (pad, launch), tile)


STAGE = Stage(
    __name__,
    title="Any output channels: a padded filter, and outputs by way of shared memory",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("h06_window_rows",),
    prepare=prepare,
    tiles=Tiles(
        tiny=Tile(32, 64, 64, 8, 2),
        model=Tile(64, 64, 64, 16, 2),
        production=production_tile,
    ),
    requires=HOPPER,
    dtypes=("float16", "bfloat16"),
    channels_last=True,
    channel_multiples=(16, 1),  # C_i: terms of one wgmma
)
