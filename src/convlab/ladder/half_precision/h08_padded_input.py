"""h08: any number of input channels. A kernel pads the pixels, and the copy engine does the rest.

Source: ours, beyond the paper; cuDNN's ``nhwcAddPaddingKernel`` does the same. The copy engine
fetches pixels that begin at multiples of 16 bytes, and one ``wgmma`` multiplies 16 terms of 16
bits. So h02, h03, h06 and h07 take only multiples of 16 input channels. A pixel of 53 channels has
106 bytes. Such layers go to h04, whose threads gather the windows number by number: each number as
often as windows read it, nine times for a filter of 3 x 3.

Here a kernel first copies the input and appends zeros to each pixel, up to a number of channels
that the engine takes: each number is gathered once. The copy is written once and read as often as
the input would be, mostly from the L2 cache. For 32 images of 56 x 56 pixels with 53 channels, that
is 11 + 13 MB of traffic beside 5 GFLOP for a filter of 3 x 3. For stems of 3 channels it does not
pay: of 16 padded channels 13 are zeros, so the input grows five times, and a slice of 64 terms has
3 numbers.

- **The padded copy.** A thread writes 16 bytes, neighbouring threads neighbouring pieces. A pixel
  begins at any number, so what a thread needs is not at a multiple of 16 bytes. So it loads the two
  aligned pieces of 16 bytes that hold its eight numbers, and shifts them. Neighbouring threads load
  the same pieces, the second time from the L1 cache.
- **Zeros meet zeros.** The filter's rows are padded too, along C_i and C_o. So a padded term is
  zero times zero, and no infinity of a neighbouring pixel or place becomes NaN.
- **Whole slices.** The engine takes twice as long for a slice that reaches past the channels, and
  half as long again where pixels do not begin at lines of 128 bytes. So an estimate chooses the
  number of padded channels: the next that the products take, or whole slices, such as 64 for 37.
- **No copy where none is worth it.** With whole 16 bytes in a pixel, such as 24 channels of 16
  bits, the engine can read the input as it is, and adds the zeros of the last slice itself. Then
  only the filter is padded, which is small, unless whole slices save more than a copy costs.

The rest is h07. What stands here is for any :mod:`convlab.ladder.half_precision.panel_format`,
because h09 does the same in TF32.

The difference to h07 is long (over 150 lines), because h07's program is not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from numba import cuda, int32, int64, uint32

from convlab.device import BoxMap, WindowMap, gpu_only
from convlab.device.panel_products import PANEL_ROW_BYTES
from convlab.device.sixteen_bits import EIGHT, shifted_pair
from convlab.ladder.half_precision import h01_panels as h01
from convlab.ladder.half_precision import h05_tf32_panels as h05
from convlab.ladder.half_precision import h06_window_rows as h06
from convlab.ladder.half_precision import h07_any_channels as h07
from convlab.ladder.half_precision.h02_copy_engine import tensor_maps
from convlab.ladder.half_precision.h03_warp_specialization import (
    H100_SMS,
    STORE_BYTES,
    THREADS,
    estimated_clocks,
    make_kernel,
    require_consumer_tile,
)
from convlab.ladder.half_precision.panel_format import BYTES_16, FORMATS, PAD_THREADS
from convlab.ladder.stage import (
    Buffer,
    DeviceFunction,
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

STEP_BYTES = 32  # of the terms of one wgmma: 16 of 16 bits, 8 of TF32
# How many times as long as for a whole slice the copy engine takes for one that reaches past the
# channels, and for one whose pixels do not begin at lines of 128 bytes. From h03's and h06's times
# on an H100, with 16, 48 and 96 channels.
PARTIAL, UNALIGNED = 2.0, 1.5
COPY_CLOCKS = 4000  # a launch more
WORTH = 0.8  # of the estimate without a copy: as much as the estimate errs
MOST_PIECES = 2**31  # of 16 bytes in a padded tensor: cuda.grid counts them as int32


class Pixels(NamedTuple):
    """The pixels that the copy engine reads: those of a padded copy or of the input. ``channels``
    are those of the filter's places, as many as a copied pixel has."""

    are_copied: bool
    channels: int


def with_channels(problem: ConvProblem, channels: int) -> ConvProblem:
    """Return the problem with so many input channels, and as many output channels as the filter's
    tensor map interleaves."""
    interleaved = FORMATS[problem.dtype].interleaved
    return replace(
        problem,
        in_channels=channels,
        out_channels=blocks_for(problem.M, interleaved) * interleaved,
    )


def computed_from(problem: ConvProblem, pixels: Pixels) -> ConvProblem:
    """Return the problem that h03's kernel computes from these pixels: by rows of windows as in
    h06, where there are any, else by places. Rows are runs of whole pixels."""
    whole = with_channels(problem, pixels.channels)
    are_whole = pixels.are_copied or pixels.channels == problem.C_i
    return h06.of_rows(whole) if are_whole and h06.has_rows(whole) else whole


def clocks_of(problem: ConvProblem, pixels: Pixels) -> float:
    """Estimate the time of the copy and of the kernel in clocks of an H100."""
    format = FORMATS[problem.dtype]
    computed = computed_from(problem, pixels)
    tile = h07.fastest_tile(problem, computed, H100_SMS)
    pixel_bytes = format.nbytes * (pixels.channels if pixels.are_copied else problem.C_i)
    whole, rest = divmod(computed.C_i, format.terms)
    of_whole = whole if pixel_bytes % PANEL_ROW_BYTES == 0 else whole * UNALIGNED
    slices = blocks_for(computed.C_i, format.terms)
    slowdown = (of_whole + (PARTIAL if rest else 0)) / slices
    kernel = estimated_clocks(computed, tile, slowdown=slowdown)
    if not pixels.are_copied:
        return kernel
    moved = problem.N_i * problem.H_i * problem.W_i * (problem.C_i * format.nbytes + pixel_bytes)
    return kernel + COPY_CLOCKS + moved / (H100_SMS * STORE_BYTES)


@lru_cache(maxsize=256)
def pixels_of(problem: ConvProblem) -> Pixels:
    """Return the pixels for which the estimate is the least: of the next number of channels that
    the products take, or of whole slices. They are copied where the engine cannot read the input's,
    or where whole slices are worth it."""
    format = FORMATS[problem.dtype]
    step = STEP_BYTES // format.nbytes
    next_, whole = (blocks_for(problem.C_i, n) * n for n in (step, format.terms))
    estimate = partial(clocks_of, problem)
    if problem.C_i * format.nbytes % BYTES_16 != 0:
        return min(Pixels(True, next_), Pixels(True, whole), key=estimate)
    as_it_is, copy = Pixels(False, next_), Pixels(True, whole)
    if problem.C_i == whole or estimate(copy) > WORTH * estimate(as_it_is):
        return as_it_is
    return copy


def whole_problem(problem: ConvProblem) -> ConvProblem:
    """Return the problem with the numbers of channels that the filter is padded to."""
    return with_channels(problem, pixels_of(problem).channels)


def is_copied(problem: ConvProblem) -> bool:
    """Return whether the input is copied."""
    return pixels_of(problem).are_copied


def computed_problem(problem: ConvProblem) -> ConvProblem:
    """Return the problem that h03's kernel computes."""
    return computed_from(problem, pixels_of(problem))


def maps_of(problem: ConvProblem, tile: Tile) -> tuple[WindowMap, BoxMap]:
    """Return the maps of the windows and of the padded filter."""
    whole = whole_problem(problem)
    if is_copied(problem) or problem.C_i == whole.C_i:
        _, windows, filter = h06.computed_and_maps(whole, tile)
    else:
        windows, filter = tensor_maps(whole, tile)
        windows = replace(windows, shape=problem.input_shape)  # past its channels there are zeros
    if is_copied(problem):
        windows = replace(windows, of="padded_input")
    if is_filter_copied(problem):
        filter = replace(filter, of="padded_weight")
    return windows, filter


def is_filter_copied(problem: ConvProblem) -> bool:
    """Return whether the filter is copied: some of its channels are padded."""
    whole = whole_problem(problem)
    return (problem.C_i, problem.M) != (whole.C_i, whole.M)


def make_piece(dtype: str, CHANNELS: int, NUMBERS: int) -> DeviceFunction:
    """Return ``piece(numbers, first, count)``, which loads 16 bytes of a row of so many channels,
    from ``numbers[first]`` on: zeros from its ``count``-th number on. ``NUMBERS`` are all numbers
    of the array, which no load leaves."""
    format = FORMATS[dtype]
    NEIGHBOURS, WORD, load_16_bytes = format.neighbours, format.word, format.load_16_bytes

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def aligned(numbers, first, count):  # a row is whole pieces
        if count > 0:
            return load_16_bytes(numbers, first)
        return WORD(0), WORD(0), WORD(0), WORD(0)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def number(numbers, first, j, count):
        return WORD(numbers[first + j]) if j < count else WORD(0)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def four_floats(numbers, first, count):
        x, y = number(numbers, first, 0, count), number(numbers, first, 1, count)
        z, w = number(numbers, first, 2, count), number(numbers, first, 3, count)
        return x, y, z, w

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def two_halves(numbers, first, j, count):
        low, high = number(numbers, first, j, count), number(numbers, first, j + 1, count)
        return uint32(low | high << uint32(16))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def kept(word, j, count):  # the numbers j and j + 1 of those that count
        low = uint32(word & uint32(0xFFFF)) if j < count else uint32(0)
        return word if j + 1 < count else low

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def eight_halves(numbers, first, count):
        if count <= 0:
            return WORD(0), WORD(0), WORD(0), WORD(0)
        part = int32(first % EIGHT)
        at = first - part
        if at + 2 * EIGHT > NUMBERS:  # at the array's end
            w0, w1 = two_halves(numbers, first, 0, count), two_halves(numbers, first, 2, count)
            w2, w3 = two_halves(numbers, first, 4, count), two_halves(numbers, first, 6, count)
            return w0, w1, w2, w3
        w0, w1, w2, w3 = load_16_bytes(numbers, at)
        w4, w5, w6, w7 = load_16_bytes(numbers, at + EIGHT)
        if part & 4:  # the first number is the fifth or a later one: two words on
            w0, w1, w2, w3, w4, w5 = w2, w3, w4, w5, w6, w7
        if part & 2:
            w0, w1, w2, w3, w4 = w1, w2, w3, w4, w5
        bits = uint32((part & 1) * 16)
        w0, w1 = shifted_pair(w0, w1, bits), shifted_pair(w1, w2, bits)
        w2, w3 = shifted_pair(w2, w3, bits), shifted_pair(w3, w4, bits)
        return kept(w0, 0, count), kept(w1, 2, count), kept(w2, 4, count), kept(w3, 6, count)

    if CHANNELS % NEIGHBOURS == 0:
        return aligned
    return four_floats if dtype == "float32" else eight_halves


def pieces_of(dtype: str, channels: int, padded: int, rows: int) -> int:
    """Return how many pieces of 16 bytes ``rows`` rows of ``padded`` channels have. Raises
    ``ValueError`` for 32 GiB or more."""
    pieces = rows * (padded // FORMATS[dtype].neighbours)
    if pieces >= MOST_PIECES:
        rule = f"a padded tensor must have less than {MOST_PIECES * BYTES_16:,} bytes"
        raise ValueError(
            f"in_channels is {channels}: {rows:,} rows of {padded} are too many: {rule}"
        )
    return pieces


def make_pad(dtype: str, CHANNELS: int, PADDED: int, ROWS: int, VALID: int) -> Kernel:
    """Return the kernel that copies ``VALID`` rows of so many channels, 16 bytes a thread, as
    ``ROWS`` rows of ``PADDED`` channels, and fills what is added with zeros. A row is a pixel of
    the input, or a place of a channel's filter. Raises ``ValueError`` for 32 GiB or more."""
    format = FORMATS[dtype]
    NEIGHBOURS, store_16_bytes = format.neighbours, format.store_16_bytes
    PIECES = PADDED // NEIGHBOURS  # of a row
    TOTAL = pieces_of(dtype, CHANNELS, PADDED, ROWS)
    piece = make_piece(dtype, CHANNELS, VALID * CHANNELS)

    @cuda.jit
    def pad_channels(numbers, padded):
        i = uint32(cuda.grid(1))
        if i < TOTAL:
            row, r = i // uint32(PIECES), int32(i % uint32(PIECES)) * NEIGHBOURS
            count = int32(min(NEIGHBOURS, CHANNELS - r) if row < VALID else 0)
            four = piece(numbers, int64(row) * CHANNELS + r, count)
            store_16_bytes(padded, int64(i) * NEIGHBOURS, four)

    return pad_channels


class Padded(NamedTuple):
    """A tensor ``of`` the problem whose copy has padded channels. The copy has ``rows`` rows, of
    which ``valid`` come from the tensor, and is written in ``pieces`` of 16 bytes."""

    of: str
    rows: int
    valid: int
    pieces: int


def padded_tensors(problem: ConvProblem) -> list[Padded]:
    """Return the tensors that are copied: none where nothing is padded. Raises ``ValueError`` for
    a copy that is too large."""
    p, whole = problem, whole_problem(problem)
    places, pixels = p.H_f * p.W_f, p.N_i * p.H_i * p.W_i
    sizes = []
    if is_filter_copied(p):
        sizes.append(("weight", whole.M * places, p.M * places))
    if is_copied(p):
        sizes.append(("input", pixels, pixels))
    return [
        Padded(of, rows, valid, pieces_of(p.dtype, p.C_i, whole.C_i, rows))
        for of, rows, valid in sizes
    ]


def padding_steps(problem: ConvProblem) -> tuple[tuple[Buffer, ...], tuple[Launch, ...]]:
    """Return the padded copies, and the launches that write them: none where nothing is padded."""
    p, whole = problem, whole_problem(problem)
    buffers, launches = [], []
    for of, rows, valid, pieces in padded_tensors(p):
        buffers.append(Buffer(f"padded_{of}", (rows * whole.C_i,), p.number_type.in_kernels))
        launches.append(
            Launch(
                make_pad(p.dtype, p.C_i, whole.C_i, rows, valid),
                grid=(blocks_for(pieces, PAD_THREADS),),
                block=(PAD_THREADS,),
                arguments=(Flat(of), f"padded_{of}"),
            )
        )
    return tuple(buffers), tuple(launches)


def production_tile(problem: ConvProblem, sm_count: int = H100_SMS) -> Tile:
    """Return the tile with the shortest time by h03's estimate, with all channels in a block
    where outputs leave through shared memory."""
    return h07.fastest_tile(problem, computed_problem(problem), sm_count)


def prepare(
    problem: ConvProblem, tile: Tile, relu: bool = False, sm_count: int = H100_SMS
) -> Program:
    """``relu`` replaces negative results by zero. There is one block per SM of a GPU with
    ``sm_count`` SMs, and no more than there are tiles."""
    require_consumer_tile(tile, FORMATS[problem.dtype].terms)
    depth = h07.depth_of(problem, tile)
    computed = computed_problem(problem)
    windows, filter = maps_of(problem, tile)
    made = h05.make_epilogue if problem.dtype == "float32" else h01.make_epilogue
    if h07.is_staged(problem, tile.M_B):
        made = partial(h07.make_staged_epilogue, depth=depth)

    def epilogue_of(_: ConvProblem, tile: Tile, relu: bool) -> Callable[..., None]:
        return made(problem, tile, relu)  # of as many channels as the output has

    buffers, pads = padding_steps(problem)
    tiles = blocks_for(computed.M, tile.M_B) * blocks_for(computed.N, tile.N_B)
    launch = Launch(
        make_kernel(computed, tile, relu, make_epilogue=epilogue_of, depth=depth),
        grid=(min(tiles, sm_count),),
        block=(THREADS,),
        arguments=(windows, filter, "bias", Flat("output")),
        shared_bytes=h01.shared_bytes(tile, depth) + h07.staged_bytes(problem, tile),
    )
    return Program(buffers, (*pads, launch), tile)


@lru_cache(maxsize=256)
def why_not_walked(problem: ConvProblem) -> str | None:
    """Return why the stage does not take a problem, None if it does: the copy engine cannot walk
    its windows, or a padded copy is too large. The tile plays no part."""
    K_B = FORMATS[problem.dtype].terms
    try:
        maps_of(problem, Tile(32, 64, K_B, 8, 2))
        padded_tensors(problem)
    except ValueError as error:
        return str(error)
    return None


STAGE = Stage(
    __name__,
    title="Any input channels: padded pixels",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("h07_any_channels",),
    prepare=prepare,
    tiles=Tiles(
        tiny=Tile(32, 64, 64, 8, 2),
        model=Tile(64, 64, 64, 16, 2),
        production=production_tile,
    ),
    requires=h01.HOPPER,
    dtypes=("float16", "bfloat16"),
    channels_last=True,
    limit=why_not_walked,
)
