"""h04: stems. With few input channels, the input's rows in shared memory are the windows already.

Source: im2win paper (000), its idea without its tensor; ours. In channels last, a window's numbers
of one filter row are neighbours: a *run* of W_f * C_i numbers. im2win stores each run once although
windows overlap. Here not even that is stored: the runs of neighbouring windows are a *span* of the
input's row, which is copied to shared memory as it is. So any number of channels will do, and any
width; h01 to h03 need channels in eights.

- **The filter stays** in shared memory, in swizzled panels of 64 terms (h01), for all warpgroups of
  a block. The block is persistent (h03). Each warpgroup takes 64 windows at a time and has two
  buffers of its own for slices of their rows: it multiplies one slice while the next one is copied,
  and waits for no other warpgroup.
- **A comes from registers.** A lane reads the terms of its two windows as words of two numbers. A
  run may begin at an odd number, in the middle of a word; then a lane shifts two words together.
- **The order of terms is free**, as long as both matrices have the same. A run is cut into one, two
  or four *strips*. Each of the four lanes of a group reads a strip of its own, and a step of 16
  terms is four numbers of each strip. So a lane's words are neighbours: where it shifts, it reads
  three words for two. For example, a window of 11 x 11 pixels of three channels has 11 runs of 33
  numbers. Each run is one strip, padded to 36 numbers. Four filter rows are nine steps, and the
  next nine steps are filter rows 4 to 7::

                 step 0           step 1           ...  step 8
      lane 0     row 0: 0 to 3    row 0: 4 to 7         row 0: 32, three masked
      lane 1     row 1: 0 to 3    row 1: 4 to 7         row 1: 32, three masked
      lane 2     row 2: 0 to 3    row 2: 4 to 7         row 2: 32, three masked
      lane 3     row 3: 0 to 3    row 3: 4 to 7         row 3: 32, three masked

- **A number outside the run never reaches A**, even where the filter is zero, because infinity
  times zero is NaN: the words at the end of a run are masked. Rows past the last filter row are
  copied as zeros. Columns past C_o are not stored.
- **Stores.** If C_o is a multiple of eight, channels are interleaved as in h01, and a lane stores
  16 bytes. If not, the four lanes of a group store neighbours.

The difference to h03 is long (over 150 lines), because nothing but the filter is copied as in h01.
"""

# The file has over 400 lines, because the device functions of the one kernel stand here in the
# order in which it calls them.

from __future__ import annotations

from numba import cuda, float32, int32, int64, uint16, uint32, uint64

from convlab.device import gpu_only, unrolled
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.device.register_products import (
    start_product_bf16_registers,
    start_product_f16_registers,
)
from convlab.device.sixteen_bits import (
    EIGHT,
    copy_async8,
    load_pair,
    load_pairs,
    shifted_pair,
    store_pairs,
)
from convlab.device.swizzled_products import panel_start, wait_products
from convlab.device.tensor_core import fence_shared
from convlab.device.warp_roles import sync_threads_of
from convlab.ladder.half_precision.h01_panels import HOPPER, INTERLEAVED, PAIR, TERMS, WIDEN
from convlab.ladder.half_precision.h03_warp_specialization import H100_SMS
from convlab.ladder.half_precision.stem_filter import STEP, make_pack
from convlab.ladder.half_precision.window_spans import (
    Spans,
    production_tile,
    spans_of,
    tile_of,
    warpgroups_of,
)
from convlab.ladder.main.m14_epilogue import make_finish
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

WARPGROUP = 128  # threads of a warpgroup
PACK_THREADS = 256  # threads of a block that packs the filter
WORDS = 16  # a lane's words of a panel of A: its quarter of 64 terms, of two windows
START_PRODUCT = {
    "float16": start_product_f16_registers,
    "bfloat16": start_product_bf16_registers,
}


def make_locate(problem: ConvProblem, spans: Spans) -> DeviceFunction:
    """Return ``locate(span)``, which returns where a span is. A span past the last one is the last
    one. The results, in their order:

    - ``output_row``: the row of its outputs, counted through all images;
    - ``column``: the column of its first output;
    - ``of_all``: the input row where its first window begins, counted through all images;
    - ``row``: the same row, counted in its image; below zero in the padding;
    - ``x``: the number of that row where its first window begins; below zero in the padding.
    """
    H_i, H_o, s_h, p_h = problem.H_i, problem.H_o, problem.s_h, problem.p_h
    NEXT_WINDOW, LEFT = spans.next, problem.p_w * problem.C_i
    PER_ROW, WIDTH, LAST = spans.per_output_row, spans.width, spans.total - 1

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def locate(span):
        span = min(uint32(span), uint32(LAST))
        output_row, column = uint32(span // PER_ROW), uint32(span % PER_ROW * WIDTH)
        row = int32(int32(output_row % H_o * s_h) - p_h)
        of_all = int32(int32(output_row // H_o * H_i) + row)
        return output_row, column, of_all, row, int32(int32(column * NEXT_WINDOW) - LEFT)

    return locate


def make_run_at(problem: ConvProblem, spans: Spans) -> DeviceFunction:
    """Return ``run_at(row)``, which returns where a window's run of a filter row begins: so many
    input rows below the window's first row, and so many numbers to the right of its first one."""
    ELEMENTS, d_h, NEXT_ELEMENT = spans.elements, problem.d_h, problem.d_w * problem.C_i

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def run_at(row):
        row = uint32(row)
        return int32(row // ELEMENTS * d_h), int32(row % ELEMENTS * NEXT_ELEMENT)

    return run_at


def make_fetch(problem: ConvProblem, spans: Spans) -> DeviceFunction:
    """Return ``fetch(input, tile_index, slice_, t, S, at)``, which starts to copy a slice of the
    rows of a tile (64 windows) to S from index ``at`` on; t is the thread of the warpgroup.

    A copy moves 16 bytes from a multiple of 16 bytes, so it may begin some numbers before the span.
    Zeros come from outside the image.
    """
    H_i, F_ROWS, ROW = problem.H_i, spans.filter_rows, spans.row
    TOTAL = problem.N_i * H_i * ROW
    PIECES, COUNT, PITCH, ROW_PITCH = spans.pieces, spans.count, spans.pitch, spans.row_pitch
    ROWS, OF_A_ROW = spans.rows, spans.count * spans.pieces
    PADDED = problem.padding != ((0, 0), (0, 0))
    # Whether some 16 bytes are partly zeros: at the ends of a row, or at the end of the input.
    PARTLY = (ROW if PADDED else TOTAL) % EIGHT != 0
    index = int32 if TOTAL < 2**30 else int64  # 32-bit arithmetic is faster
    locate, run_at = make_locate(problem, spans), make_run_at(problem, spans)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_piece(row, input, filter_row, of_all, i_h, x, piece, S, target):
        """16 bytes of a span of filter row ``row`` of the slice, which begins at ``filter_row``."""
        filter_row = uint32(filter_row + row)
        down, right = run_at(filter_row)
        begin = index(index(of_all + down) * index(ROW))  # of the input's row
        source = index(((begin + x + right) & index(-EIGHT)) + index(piece))
        first, end = (begin, index(begin + ROW)) if PADDED else (index(0), index(TOTAL))
        valid = filter_row < F_ROWS and 0 <= int32(i_h + down) < H_i
        whole = valid and first <= source and source <= index(end - EIGHT)
        target = uint32(target + row * ROW_PITCH)
        if PARTLY and valid and not whole and index(first - EIGHT) < source < end:
            for e in range(EIGHT):
                inside = first <= source + e < end
                S[target + uint32(e)] = input[source + e] if inside else uint16(0)
        else:
            # If not ``whole``, the copy's size is 0: it does not read the source, and stores zeros.
            copy_async8(S, target, input, source, whole)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, tile_index, slice_, t, S, at):
        n = uint32(t)
        while n < OF_A_ROW:
            span, piece = uint32(n // PIECES), uint32(n % PIECES * EIGHT)
            _, _, of_all, i_h, x = locate(tile_index * COUNT + span)
            target = uint32(at + span * PITCH + piece)
            for row in range(ROWS):
                fetch_piece(row, input, slice_ * ROWS, of_all, i_h, x, piece, S, target)
            n = uint32(n + WARPGROUP)

    return fetch


def make_multiply(problem: ConvProblem, spans: Spans, M_B: int) -> DeviceFunction:
    """Return ``multiply(S, strips_at, span_starts, filter_row, in_run, at_B, D)``, which adds the
    products of a slice to ``D``.

    The lane's first strip of window w lies in row ``filter_row``. It would begin at
    ``S[strips_at[w]]`` if the copy of its span began where the span begins. But a copy begins at a
    multiple of eight, so the strip lies up to seven numbers further. ``span_starts[w]`` is where
    the span of the first filter row begins in the input, modulo 8, from which the distance follows
    for all rows. ``in_run`` is how many numbers of the strip belong to the run.
    """
    FOURS, STEPS, RUN, STRIP = spans.fours, spans.steps, spans.run, spans.strip
    ODD, ALIGNED, PARTS = spans.may_be_odd, spans.alignment == EIGHT, spans.parts
    FEWEST_IN_RUN = max(0, RUN - (PARTS - 1) * STRIP)  # the fewest numbers of a run in any strip
    AT_A_TIME, ROW_MOD_8 = spans.rows_at_a_time, spans.row % EIGHT
    NEXT_STRIP = AT_A_TIME * spans.row_pitch  # numbers from a strip to the lane's next one
    SUMS, PANEL_NUMBERS, PANELS, LAST_TERMS = M_B // 2, M_B * TERMS, STEPS // 4, STEPS % 4 * STEP
    run_at, start_product = make_run_at(problem, spans), START_PRODUCT[problem.dtype]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def masked(pair, at, in_run):  # the numbers at and at + 1 of a strip
        left = int32((RUN if PARTS == 1 else int32(in_run)) - at)
        if at + 2 <= FEWEST_IN_RUN or left >= 2:
            return pair
        return pair & uint32(0xFFFF) if left == 1 else uint32(0)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_four(S, strip_at, span_start, filter_row, turn, at):
        """Four numbers of a lane's strip, as two pairs; it has a strip in each turn."""
        here = uint32(strip_at + turn * NEXT_STRIP)
        if not ALIGNED:
            down, right = run_at(filter_row + turn * AT_A_TIME)
            here = uint32(here + (int32(span_start + down * ROW_MOD_8 + right) & (EIGHT - 1)))
        if not ODD:
            return load_pair(S, uint32(here + at)), load_pair(S, uint32(here + (at + 2)))
        bits, here = uint32(here % 2 * 16), uint32(here // 2 * 2 + at)
        first, second = load_pair(S, here), load_pair(S, here + uint32(2))
        third = load_pair(S, here + uint32(4))
        return shifted_pair(first, second, bits), shifted_pair(second, third, bits)

    def make_panel(TERMS_HERE: int) -> DeviceFunction:
        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def multiply_panel(panel, S, strips_at, span_starts, filter_row, in_run, at_B, D, A):
            for n in range(TERMS_HERE // STEP):
                turn, at = (4 * panel + n) // FOURS, (4 * panel + n) % FOURS * 4
                for w in range(2):
                    first, second = read_four(S, strips_at[w], span_starts[w], filter_row, turn, at)
                    A[4 * n + w] = masked(first, at, in_run)
                    A[4 * n + 2 + w] = masked(second, at + 2, in_run)
            start_product(D, 0, A, S, uint32(at_B + panel * PANEL_NUMBERS), M_B, TERMS_HERE)
            wait_products(D, SUMS, 1)  # the product before has ended: its A is free

        made: DeviceFunction = multiply_panel
        return made

    whole, last = make_panel(TERMS), make_panel(LAST_TERMS or TERMS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply_two(panel, S, strips_at, span_starts, filter_row, in_run, at_B, D, A, next_A):
        whole(panel, S, strips_at, span_starts, filter_row, in_run, at_B, D, A)
        whole(panel + 1, S, strips_at, span_starts, filter_row, in_run, at_B, D, next_A)

    multiply_twos = unrolled(multiply_two, range(0, PANELS - 1, 2))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(S, strips_at, span_starts, filter_row, in_run, at_B, D):
        A, next_A = cuda.local.array(WORDS, uint32), cuda.local.array(WORDS, uint32)
        multiply_twos(S, strips_at, span_starts, filter_row, in_run, at_B, D, A, next_A)
        if PANELS % 2:
            whole(PANELS - 1, S, strips_at, span_starts, filter_row, in_run, at_B, D, A)
            if LAST_TERMS:
                last(PANELS, S, strips_at, span_starts, filter_row, in_run, at_B, D, next_A)
        elif LAST_TERMS:
            last(PANELS, S, strips_at, span_starts, filter_row, in_run, at_B, D, A)
        wait_products(D, SUMS, 0)

    return multiply


def output_index(problem: ConvProblem) -> DeviceFunction:
    """Return the type of indices of the output: 32-bit arithmetic is faster."""
    index: DeviceFunction = uint32 if problem.N * problem.C_o < 2**32 else uint64
    return index


def make_epilogue(problem: ConvProblem, M_B: int, relu: bool) -> DeviceFunction:
    """Return ``epilogue(D, bias, output, m0, thread_in_group, pixels, exist)``, which adds the bias
    to the sums of a lane's two windows, rounds them once, and stores them if the windows exist."""
    C_o, WHOLE = problem.C_o, problem.C_o % M_B == 0
    index = output_index(problem)
    pair, widen, finish = PAIR[problem.dtype], WIDEN[problem.dtype], make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def rounded(D, at, biases):  # two neighbouring channels
        low = finish(D[at], widen(uint16(biases & uint32(0xFFFF))))
        return pair(low, finish(D[at + 1], widen(uint16(biases >> uint32(16)))))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store_eights(D, bias, output, m0, thread_in_group, pixels, exist):
        for i in range(M_B // INTERLEAVED):
            m = uint32(m0 + thread_in_group * EIGHT + i * INTERLEAVED)
            if WHOLE or m < C_o:
                b0, b1, b2, b3 = load_pairs(bias, m)
                for w in range(2):
                    if exist[w]:
                        at = 16 * i + 2 * w
                        p0, p1 = rounded(D, at, b0), rounded(D, at + 4, b1)
                        p2, p3 = rounded(D, at + 8, b2), rounded(D, at + 12, b3)
                        store_pairs(output, index(pixels[w] * C_o + m), (p0, p1, p2, p3))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store_scalars(D, bias, output, m0, thread_in_group, pixels, exist):
        for i in range(M_B // 4):
            m = uint32(m0 + thread_in_group + 4 * i)
            if m < C_o:
                b = widen(bias[m])
                for w in range(2):
                    if exist[w]:
                        value = finish(D[i // 2 * 4 + i % 2 + 2 * w], b)
                        output[index(pixels[w] * C_o + m)] = pair(value, value) & uint32(0xFFFF)

    return store_eights if C_o % EIGHT == 0 else store_scalars


def make_kernel(problem: ConvProblem, tile: Tile, spans: Spans, relu: bool) -> Kernel:
    """Return the kernel of ``input`` in 16 bits, channels last, and the filter packed for these
    spans; ``bias`` and sums are float32, and ``output`` has the input's type."""
    M_B, WARPGROUPS, THREADS = tile.M_B, warpgroups_of(tile), tile.threads
    W_o, ROW_MOD_8, SUMS = problem.W_o, spans.row % EIGHT, M_B // 2
    FILTER, SLICES, TILES = spans.filter_numbers(M_B), spans.slices, spans.tiles
    F_SLICE, I_SLICE = spans.panels * M_B * TERMS, spans.slice_numbers
    COUNT, WIDTH, PITCH, ROW_PITCH = spans.count, spans.width, spans.pitch, spans.row_pitch
    PARTS, STRIP, RUN, NEXT_WINDOW = spans.parts, spans.strip, spans.run, spans.next
    ROWS, TOTAL, index = spans.rows, spans.total, output_index(problem)
    locate, fetch = make_locate(problem, spans), make_fetch(problem, spans)
    multiply = make_multiply(problem, spans, M_B)
    epilogue = make_epilogue(problem, M_B, relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def window(tile_index, row, thread_in_group):
        """Return, for the window of row ``row`` of A, where the lane's first strip lies in a slice,
        counted from the begin of its span; where the span begins in the input, modulo 8 (it may be
        any number with that remainder); the output pixel; and whether there is one."""
        span, column = uint32(row // WIDTH), uint32(row % WIDTH)
        output_row, first_column, of_all, _, x = locate(tile_index * COUNT + span)
        u, part = thread_in_group // PARTS, thread_in_group % PARTS
        # Past the row's end, the row's last window is read.
        column_read = min(column, uint32(W_o - 1 - first_column))
        strip_at = uint32(u * ROW_PITCH + span * PITCH + column_read * NEXT_WINDOW + part * STRIP)
        span_start = int32((of_all & (EIGHT - 1)) * ROW_MOD_8 + x)
        exists = uint32(tile_index * COUNT + span) < TOTAL and uint32(first_column + column) < W_o
        return strip_at, span_start, index(output_row * W_o + first_column + column), exists

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, 1)))
    def stem(input, packed, bias, output):
        S = cuda.shared.array(0, uint16)  # dynamic: the filter, then two slices a warpgroup
        D = cuda.local.array(SUMS, float32)
        t, block = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.y)
        warpgroup, t_in_warpgroup = t // WARPGROUP, t % WARPGROUP
        # PTX: groupID is t % 32 // 4, threadID_in_group is t % 4.
        row, thread_in_group = t_in_warpgroup // 32 * 16 + t % 32 // 4, t % 4
        in_run = int32(max(0, min(STRIP, RUN - int32(thread_in_group % PARTS * STRIP))))
        at_F = panel_start(S)
        at_I = uint32(at_F + FILTER + warpgroup * (2 * I_SLICE))

        i = uint32(t * EIGHT)
        while i < FILTER:
            copy_async8(S, uint32(at_F + i), packed, uint32(block * FILTER + i), True)
            i = uint32(i + THREADS * EIGHT)
        tile_index = uint32(cuda.blockIdx.x * WARPGROUPS + warpgroup)
        if tile_index < TILES:
            fetch(input, tile_index, 0, t_in_warpgroup, S, at_I)
        commit_copies()
        wait_copies(0)
        fence_shared()  # the tensor cores see the filter,
        cuda.syncthreads()  # all of it

        pipe = uint32(0)
        while tile_index < TILES:
            next_index = uint32(tile_index + cuda.gridDim.x * WARPGROUPS)
            strip_at, span_start, pixel, exists = window(tile_index, row, thread_in_group)
            strip_below, start_below, pixel_below, exists_below = window(
                tile_index, row + 8, thread_in_group
            )
            span_starts, pixels = (span_start, start_below), (pixel, pixel_below)
            for i in range(SUMS):
                D[i] = float32(0)
            for slice_ in range(SLICES):
                wait_copies(0)  # this thread's copies of the slice have landed;
                # All threads' copies of it, and all have read the other slice.
                sync_threads_of(1 + warpgroup, WARPGROUP)
                at, other = uint32(at_I + pipe * I_SLICE), uint32(at_I + (1 - pipe) * I_SLICE)
                soon, its_slice = (
                    (tile_index, slice_ + 1) if slice_ + 1 < SLICES else (next_index, 0)
                )
                if soon < TILES:
                    fetch(input, soon, its_slice, t_in_warpgroup, S, other)
                commit_copies()
                strips_at = uint32(strip_at + at), uint32(strip_below + at)
                filter_row = uint32(slice_ * ROWS + thread_in_group // PARTS)
                at_B = uint32(at_F + slice_ * F_SLICE)
                multiply(S, strips_at, span_starts, filter_row, in_run, at_B, D)
                pipe = uint32(1 - pipe)
            exist = exists, exists_below
            epilogue(D, bias, output, block * M_B, thread_in_group, pixels, exist)
            tile_index = next_index

    return stem


def require_stem(problem: ConvProblem, tile: Tile) -> Spans:
    """Return how windows are read. Raises ``ValueError`` for a tile that is not h04's, or with
    which nothing fits shared memory."""
    whole = tile.M_B % INTERLEAVED == 0 and tile.M_B <= 128
    tile.require(whole, "M_B must be 32, 64, 96 or 128, the columns of a product")
    right = tile == tile_of(tile.M_B, warpgroups_of(tile))
    tile.require(right, "N_B must be 64 a warpgroup, K_B 64, M_T M_B / 4 and N_T 2, a lane's sums")
    spans = spans_of(problem, tile)
    if spans is None:
        rule = "the filter of M_B channels and two slices of input rows must fit shared memory"
        raise ValueError(f"in_channels is {problem.C_i}, and the tile {tile}: {rule}")
    return spans


def why_too_large(problem: ConvProblem) -> str | None:
    """Return why shared memory cannot hold the filter of even 32 channels; None if it can."""
    if spans_of(problem, tile_of(INTERLEAVED, 1)) is not None:
        return None
    rule = "32 channels of the filter and two slices of input rows must fit shared memory"
    return (
        f"kernel_size is {problem.kernel_size} over {problem.C_i} in_channels: {rule} for stage "
        "h04_stem"
    )


def prepare(
    problem: ConvProblem, tile: Tile, relu: bool = False, sm_count: int = H100_SMS
) -> Program:
    """``relu`` replaces negative results by zero. There is about one block per SM of a GPU
    with ``sm_count`` SMs, and no more than there are tiles."""
    spans = require_stem(problem, tile)
    blocks = blocks_for(problem.C_o, tile.M_B)
    packed = Buffer("packed", (blocks * spans.filter_numbers(tile.M_B),), "uint16")
    pack = Launch(
        make_pack(problem, spans, tile.M_B),
        grid=(blocks_for(packed.shape[0], PACK_THREADS),),
        block=(PACK_THREADS,),
        arguments=(Flat("weight"), "packed"),
    )
    resident = max(1, sm_count // blocks)  # for each block of channels
    launch = Launch(
        make_kernel(problem, tile, spans, relu),
        grid=(min(resident, blocks_for(spans.tiles, warpgroups_of(tile))), blocks),
        block=(tile.threads,),
        arguments=(Flat("input"), "packed", "bias", Flat("output")),
        shared_bytes=spans.shared_bytes(tile),
    )
    return Program((packed,), (pack, launch), tile)


STAGE = Stage(
    __name__,
    title="Stems: windows read from rows of the input, whatever the channels",
    source="im2win paper (000), without its tensor, by tensor cores; ours",
    builds_on=("h03_warp_specialization",),
    prepare=prepare,
    tiles=Tiles(tiny=tile_of(32, 1), model=tile_of(64, 2), production=production_tile),
    requires=HOPPER,
    dtypes=("float16", "bfloat16"),
    channels_last=True,
    limit=why_too_large,
)
