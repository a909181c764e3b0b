"""h06: rows of windows. A copy brings terms of a whole filter row, not of one pixel.

Source: im2win paper (000), section 3.1: the numbers of a window's row are neighbours; ours. In h03
a slice has channels of one place (u, v). With 96 channels every second slice is half full, and the
copy engine is slow at such copies. But in channels last the W_f pixels of a window's row are
neighbours, W_f * C_i numbers, as in im2win's tensor. Here they are the channels of one pixel: the
tensor map says that a pixel has W_f * C_i channels, and that the next pixel begins C_i numbers
later (``run`` in :mod:`convlab.device.tensor_maps`). Neighbouring pixels overlap in memory, which
the copy engine does not mind, so nothing is stored twice: im2win's tensor without its memory.

For the kernel this is another convolution: W_f times as many channels, and a filter one pixel wide.
A filter in channels last already has its numbers in this order. So h03's kernel computes it. With
96 channels and a filter 5 pixels wide, a row has 480 terms: 8 slices instead of 10.

A slice of 128 bytes need not begin at a line of 128 bytes of memory, and where it does not, the
copy engine reads two lines for each row. The input stays where it is. The filter is read by many
blocks, so a small kernel copies it where that pays, and each of its slices begins at a line.

The pixels of a run must lie in the image and side by side. So where the problem has padding or
dilation along W, or where rows save no slices, each slice has one place as in h03.

The difference to h03 is long (over 150 lines), because h03's kernel is not repeated here.
"""

from __future__ import annotations

import math
from dataclasses import replace

from numba import cuda, int64, uint32

from convlab.device import BoxMap, WindowMap
from convlab.device.panel_products import PANEL_ROW_BYTES
from convlab.device.sixteen_bits import EIGHT, load_pairs, store_pairs
from convlab.ladder.half_precision import h03_warp_specialization as h03
from convlab.ladder.half_precision.h01_panels import HOPPER, shared_bytes
from convlab.ladder.half_precision.h02_copy_engine import filter_map, tensor_maps
from convlab.ladder.half_precision.panel_format import FORMATS, PAD_THREADS
from convlab.ladder.stage import (
    RESIDUAL,
    Buffer,
    Flat,
    Launch,
    Program,
    Stage,
    Tile,
    Tiles,
    blocks_for,
)
from convlab.problems.problem import ConvProblem

PAD_CLOCKS = 8000  # of the launch that copies the filter: 3 us by ncu, and what it delays


def of_rows(problem: ConvProblem) -> ConvProblem:
    """Return the convolution of a filter one pixel wide whose channels are those of a row of the
    problem's filter."""
    return replace(
        problem,
        in_channels=problem.W_f * problem.C_i,
        width=problem.W_i - problem.W_f + 1,
        kernel_size=(problem.H_f, 1),
        dilation=(problem.d_h, 1),
    )


def has_rows(problem: ConvProblem) -> bool:
    """Return whether the rows of the problem's windows are runs of the image, and a row of the
    filter has fewer slices than its places have one by one."""
    are_runs = problem.padding[1] == (0, 0) and problem.d_w == 1
    terms = FORMATS[problem.dtype].terms
    by_places = problem.W_f * blocks_for(problem.C_i, terms)
    return are_runs and blocks_for(problem.W_f * problem.C_i, terms) < by_places


def computed_and_maps(problem: ConvProblem, tile: Tile) -> tuple[ConvProblem, WindowMap, BoxMap]:
    """Return the problem that h03's kernel computes, by rows where there are any, and the maps of
    its windows and of the filter."""
    if not has_rows(problem):
        return problem, *tensor_maps(problem, tile)
    rows = of_rows(problem)
    windows, filter = tensor_maps(rows, tile)
    return rows, replace(windows, shape=problem.input_shape, run=problem.W_f), filter


def place_in_lines(computed: ConvProblem) -> int:
    """Return the numbers of a place of the filter, filled up to whole lines."""
    terms = FORMATS[computed.dtype].terms
    return blocks_for(computed.C_i, terms) * terms


def pads_filter(computed: ConvProblem, tile: Tile, sm_count: int) -> bool:
    """Return whether the filter is copied so that each slice begins at a line: if this saves the
    copy engine more clocks than it costs."""
    if computed.C_i == place_in_lines(computed):
        return False
    place_bytes = computed.C_i * FORMATS[computed.dtype].nbytes
    # Places begin at all multiples of this in a line, and where it is not 0, a row has two lines.
    step = math.gcd(place_bytes, PANEL_ROW_BYTES)
    more_lines = 1 - step / PANEL_ROW_BYTES  # of a row, in the mean
    slices = computed.H_f * computed.W_f * blocks_for(place_bytes, PANEL_ROW_BYTES)
    tiles = blocks_for(computed.M, tile.M_B) * blocks_for(computed.N, tile.N_B)
    rows = blocks_for(tiles, sm_count) * slices * tile.M_B  # of the filter, that an SM reads
    return rows * more_lines * PANEL_ROW_BYTES / h03.FILL_BYTES > PAD_CLOCKS


def pad(computed: ConvProblem) -> Launch:
    """Return the launch that copies the filter, 16 bytes a thread, and appends zeros to each place:
    ``weight`` of [C_o, H_f, W_f, C_i] to ``padded_filter`` of [C_o, H_f, W_f, whole lines]. h08's
    ``make_pad`` does so for any number of channels."""
    FROM, TO = computed.C_i // EIGHT, place_in_lines(computed) // EIGHT  # pieces of a place
    TOTAL = computed.M * computed.H_f * computed.W_f * TO

    @cuda.jit
    def pad_places(weight, padded_filter):
        i = cuda.grid(1)
        if i < TOTAL:
            place, piece = i // TO, i % TO
            if piece < FROM:
                p0, p1, p2, p3 = load_pairs(weight, (int64(place) * FROM + piece) * EIGHT)
                store_pairs(padded_filter, int64(i) * EIGHT, (p0, p1, p2, p3))
            else:
                zero = uint32(0)
                store_pairs(padded_filter, int64(i) * EIGHT, (zero, zero, zero, zero))

    grid = (blocks_for(TOTAL, PAD_THREADS),)
    return Launch(pad_places, grid, (PAD_THREADS,), (Flat("weight"), "padded_filter"))


def production_tile(problem: ConvProblem, sm_count: int = h03.H100_SMS) -> Tile:
    """Return the tile with the shortest time by h03's estimate."""
    return h03.production_tile(of_rows(problem) if has_rows(problem) else problem, sm_count)


def prepare(
    problem: ConvProblem,
    tile: Tile,
    relu: bool = False,
    residual: bool = False,
    sm_count: int = h03.H100_SMS,
) -> Program:
    """``residual`` adds a tensor to the sums; ``relu`` replaces negative results by zero. There is
    one block per SM of a GPU with ``sm_count`` SMs, and no more than there are tiles."""
    h03.require_consumer_tile(tile)
    computed, windows, filter = computed_and_maps(problem, tile)
    buffers: tuple[Buffer, ...] = ()
    before: tuple[Launch, ...] = ()
    place_numbers = None
    if pads_filter(computed, tile, sm_count):
        place_numbers = place_in_lines(computed)
        K = computed.H_f * computed.W_f * place_numbers
        filter = filter_map(computed, tile, K, of="padded_filter")
        buffers = (Buffer("padded_filter", (computed.M * K,), "uint16"),)
        before = (pad(computed),)
    tiles = blocks_for(computed.M, tile.M_B) * blocks_for(computed.N, tile.N_B)
    added = (Flat(RESIDUAL),) if residual else ()
    launch = Launch(
        h03.make_kernel(computed, tile, relu, residual=residual, place_numbers=place_numbers),
        grid=(min(tiles, sm_count),),
        block=(h03.THREADS,),
        arguments=(windows, filter, "bias", Flat("output"), *added),
        shared_bytes=shared_bytes(tile, h03.pipeline_depth(tile)),
    )
    return Program(buffers, (*before, launch), tile)


STAGE = Stage(
    __name__,
    title="Rows of windows: im2win's runs by the copy engine",
    source="im2win paper (000), section 3.1; ours",
    builds_on=("h03_warp_specialization",),
    prepare=prepare,
    tiles=Tiles(
        tiny=Tile(32, 64, 64, 8, 2),
        model=Tile(64, 64, 64, 16, 2),
        production=production_tile,
    ),
    requires=HOPPER,
    dtypes=("float16", "bfloat16"),
    channels_last=True,
    channel_multiples=(16, 32),  # as h02
)
