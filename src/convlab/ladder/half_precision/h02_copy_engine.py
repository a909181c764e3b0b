"""h02: the copy engine. One thread asks, and the hardware walks the windows.

Source: ours, beyond the paper. In h01 every thread finds its windows, tests them against the edges
and starts its copies, a third of all instructions. Hopper's copy engine does that by itself
(:mod:`convlab.device.copy_engine`). A call names the first window of the block, the place (u, v) of
the filter and the first channel, and brings one panel, 128 windows x 64 channels. NVIDIA calls this
mode of the engine im2col. It is im2win in silicon: the paper's order of windows, without a tensor
and without an instruction per element.

The engine finds stride, padding, dilation and the tensor's sizes in a tensor map, which the host
makes (:mod:`convlab.device.tensor_maps`; the driver's flags for the swizzle and for zeros outside
the image are in ``running/engines/tensor_maps.py``). The filter's map interleaves the rows as h01
does: it has five axes, k, e (2), g (4), j (4) and the group of 32 channels, the innermost first.
The engine stores a box in that order, so the numbers of e, g and j come to row ``8 * j + 2 * g +
e`` of a panel. The strides of the axes make that channel ``8 * g + 2 * j + e``. For example, row 9
is e = 1, g = 0, j = 1, which is channel 3.

Who waits for whom: the copies of a slice arrive at barrier ``full[pipe]``, which all threads wait
for. Its *phase*, one use of the barrier, ends when thread 0 has arrived, by ``expect_bytes``, and
all bytes that it announced have landed (:mod:`convlab.device.shared_barriers`). ``parity`` names
the phase: 0 for the first DEPTH slices, 1 for the next DEPTH slices, then 0 again. No
``fence_shared`` is needed as in h01, because the copy engine and ``wgmma`` both access shared
memory by the asynchronous proxy. Before thread 0 lets the engine overwrite a slice,
``cuda.syncthreads`` tells it that the product of that slice has ended for both warpgroups.

The difference to h01 is long (over 150 lines), because nothing that finds, tests and copies windows
in h01 is left, and the maps take its place.
"""

from __future__ import annotations

from numba import cuda, float32, int32, uint16, uint32, uint64

from convlab.device import BoxMap, WindowMap, gpu_only
from convlab.device.copy_engine import copy_box, copy_windows
from convlab.device.shared_barriers import (
    expect_bytes,
    fence_barriers,
    init_barrier,
    wait_barrier,
)
from convlab.device.sixteen_bits import EIGHT
from convlab.device.swizzled_products import PANEL_ROW_BYTES, panel_start, wait_products
from convlab.ladder.half_precision.h01_panels import (
    HOPPER,
    START_PRODUCT,
    TERMS,
    WARPGROUP,
    first_of_lane,
    make_epilogue,
    make_residual,
    make_zero,
    pipeline_depth,
    production_tile,
    require_panels,
    shared_bytes,
)
from convlab.ladder.half_precision.panel_format import FORMATS
from convlab.ladder.stage import (
    RESIDUAL,
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


def make_copy_slice(
    problem: ConvProblem, tile: Tile, place_numbers: int | None = None
) -> tuple[DeviceFunction, DeviceFunction]:
    """Return two device functions, ``first_window`` and ``copy_slice``.

    ``first_window(n0)`` returns the image, row and column where window n0 begins. By
    ``copy_slice(windows, filter, window, m0, u, v, chunk, S, at, full, i)`` one thread asks for a
    slice: a chunk of the channels at a place (u, v) of the filter, of the windows from ``window``
    on and the output channels from m0 on. The copies arrive at ``full[i]``. ``first_window`` is
    called once a tile. It divides 32-bit numbers, so there are less than 2**32 windows. In the
    filter the numbers of the next place begin ``place_numbers`` after those of a place: C_i, unless
    the filter is a padded copy.
    """
    p = problem
    C_i, W_f, PIXELS, W_o = p.C_i, p.W_f, p.H_o * p.W_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    TERMS, INTERLEAVED = FORMATS[p.dtype].terms, FORMATS[p.dtype].interleaved
    PLACE_NUMBERS = place_numbers or C_i
    FILTER_BEGIN = tile.N_B * TERMS  # numbers of the windows' panel, before the filter's
    SLICE_BYTES = (tile.M_B + tile.N_B) * PANEL_ROW_BYTES

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def first_window(n0):
        image, pixel = uint32(n0) // uint32(PIXELS), uint32(n0) % uint32(PIXELS)
        row, column = pixel // uint32(W_o), pixel % uint32(W_o)
        return int32(image), int32(row * s_h) - int32(p_h), int32(column * s_w) - int32(p_w)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def copy_slice(windows, filter, window, m0, u, v, chunk, S, at, full, i):
        image, y, x = window
        r = int32(chunk * TERMS)
        k = int32((u * W_f + v) * PLACE_NUMBERS) + r
        expect_bytes(full, i, SLICE_BYTES)
        copy_windows(S, at, windows, r, x, y, image, v * d_w, u * d_h, full, i)
        copy_box(S, at + FILTER_BEGIN, filter, (k, 0, 0, 0, m0 // INTERLEAVED), full, i)

    return first_window, copy_slice


def terms_of_last_chunk(problem: ConvProblem) -> int:
    """Return the terms of a place's last slice: all of a row, 64 of 16 bits, or what remains of the
    channels.

    Of 80 channels the second chunk has 16. For the other 48 terms the panel of windows holds zeros,
    but the filter's panel holds the next place's numbers, perhaps infinite, because its k axis
    joins places and channels. So only 16 terms are multiplied. h01's copies fill both with zeros.
    """
    return (problem.C_i - 1) % FORMATS[problem.dtype].terms + 1


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool, *, residual: bool = False) -> Kernel:
    """Return the kernel of the tensor maps ``windows`` and ``filter`` of 16-bit tensors, channels
    last; sums are float32, ``bias`` and ``output`` have the input's type. ``residual`` is as in
    h01."""
    M_B, N_B, THREADS = tile.M_B, tile.N_B, tile.threads
    DEPTH, BLOCKS = pipeline_depth(tile), 2
    CHUNKS, W_f, PLACES = blocks_for(problem.C_i, TERMS), problem.W_f, problem.H_f * problem.W_f
    SLICES, LAST_TERMS = CHUNKS * PLACES, terms_of_last_chunk(problem)
    SLICES_PER_FILTER_ROW = W_f * CHUNKS
    # Numbers, as in h01: of a slice, of its windows, and of 64 windows.
    SLICE, FILTER_BEGIN, WINDOWS_64 = (M_B + N_B) * TERMS, N_B * TERMS, 64 * TERMS
    SUMS, PROLOGUE = M_B // 2, min(DEPTH, SLICES)
    WITH_RESIDUAL, ADDENDS = residual, SUMS // 2  # a lane's elements of R
    first_window, copy_slice = make_copy_slice(problem, tile)
    epilogue = make_epilogue(problem, tile, relu)
    fetch_residual, add_residual = make_residual(problem, tile)
    zero, start_product = make_zero(SUMS), START_PRODUCT[problem.dtype]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def ask(windows, filter, window, m0, slice_, S, at, full, pipe):
        u, rest = slice_ // uint32(SLICES_PER_FILTER_ROW), slice_ % uint32(SLICES_PER_FILTER_ROW)
        v, chunk = rest // uint32(CHUNKS), rest % uint32(CHUNKS)
        copy_slice(windows, filter, window, m0, u, v, chunk, S, at, full, pipe)

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def copy_engine(windows, filter, bias, output, residual=None):
        S = cuda.shared.array(0, uint16)  # dynamic: DEPTH slices, each windows, then filter
        full = cuda.shared.array(DEPTH, uint64)
        D = cuda.local.array(SUMS, float32)
        t = uint32(cuda.threadIdx.x)
        m0, n0 = uint32(cuda.blockIdx.y) * M_B, uint32(cuda.blockIdx.x) * N_B
        begin = panel_start(S)
        if t == 0:
            for i in range(DEPTH):
                init_barrier(full, i, 1)  # one thread arrives: thread 0, by expect_bytes
            fence_barriers()
        cuda.syncthreads()
        window = first_window(n0)
        if t == 0:
            for i in range(PROLOGUE):
                ask(windows, filter, window, m0, uint32(i), S, begin + i * SLICE, full, i)
        zero(D)

        my_windows = t // WARPGROUP * WINDOWS_64  # where this warpgroup's 64 windows begin
        pipe, before, parity, slice_ = uint32(0), uint32(0), uint32(0), uint32(0)
        for _ in range(PLACES):
            for chunk in range(CHUNKS):
                wait_barrier(full, pipe, parity)
                at = begin + pipe * SLICE
                # A: 64 windows; B: M_B channels, the instruction's N; D: windows x channels
                if LAST_TERMS == TERMS or chunk < CHUNKS - 1:
                    start_product(D, 0, S, at + my_windows, at + FILTER_BEGIN, M_B, TERMS)
                else:
                    start_product(D, 0, S, at + my_windows, at + FILTER_BEGIN, M_B, LAST_TERMS)
                wait_products(D, SUMS, 1)  # this warpgroup's product of the slice before has ended
                if slice_ > 0:  # the first slice has none before it, so no buffer is free
                    cuda.syncthreads()  # now it has ended for both warpgroups
                    next_ = slice_ + uint32(DEPTH - 1)  # DEPTH after the slice that has ended
                    if t == 0 and next_ < SLICES:
                        free = begin + before * SLICE
                        ask(windows, filter, window, m0, next_, S, free, full, before)
                slice_ += uint32(1)
                before, pipe = pipe, pipe + uint32(1)
                if pipe == DEPTH:
                    pipe, parity = uint32(0), parity ^ uint32(1)
        if WITH_RESIDUAL:
            R = cuda.local.array(ADDENDS, uint32)
            m_t, n_t = first_of_lane(m0, n0, t)
            fetch_residual(R, 0, residual, m_t, n_t)
        wait_products(D, SUMS, 0)
        if WITH_RESIDUAL:
            add_residual(D, R, 0)

        warp, lane = t // 32, t % 32
        epilogue(D, 0, bias, output, m0 + lane % 4 * EIGHT, n0 + warp * 16 + lane // 4)

    return copy_engine


def filter_map(problem: ConvProblem, tile: Tile, K: int, of: str = "weight") -> BoxMap:
    """Return the map of the filter, or of a copy with K numbers for each output channel, by the
    axes k, e, g, j and group of interleaved channels."""
    format = FORMATS[problem.dtype]
    neighbours, interleaved = format.neighbours, format.interleaved
    return BoxMap(
        of,
        extents=(K, 2, 4, neighbours // 2, problem.M // interleaved),
        strides=(K, neighbours * K, 2 * K, interleaved * K),
        box=(format.terms, 2, 4, neighbours // 2, tile.M_B // interleaved),
        dtype=problem.dtype,
    )


def tensor_maps(problem: ConvProblem, tile: Tile) -> tuple[WindowMap, BoxMap]:
    """Return the maps of the input, a panel of windows at a time, and of the filter. Raises
    ``ValueError`` for what the engine cannot walk, and for windows that :func:`make_copy_slice`
    cannot count."""
    if problem.N >= 2**32:
        rule = "a stage of the copy engine takes less than 2**32"
        raise ValueError(f"problem is {problem}: it has {problem.N:,} windows, and {rule}")
    p = problem
    (top, bottom), (left, right) = p.padding
    windows = WindowMap(
        "input",
        shape=p.input_shape,
        kernel=p.kernel_size,
        stride=p.stride,
        padding=(top, left),
        padding_after=(bottom, right),
        dilation=p.dilation,
        channels=FORMATS[p.dtype].terms,
        pixels=tile.N_B,
        dtype=p.dtype,
    )
    return windows, filter_map(problem, tile, problem.K)


def prepare(
    problem: ConvProblem, tile: Tile, relu: bool = False, residual: bool = False
) -> Program:
    """``residual`` adds a tensor to the sums; ``relu`` replaces negative results by zero."""
    require_panels(tile)
    added = (Flat(RESIDUAL),) if residual else ()
    launch = Launch(
        make_kernel(problem, tile, relu, residual=residual),
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B)),
        block=(tile.threads,),
        arguments=(*tensor_maps(problem, tile), "bias", Flat("output"), *added),
        shared_bytes=shared_bytes(tile, pipeline_depth(tile)),
    )
    return Program((), (launch,), tile)


STAGE = Stage(
    __name__,
    title="Copy engine: the hardware walks the windows",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("h01_panels",),
    prepare=prepare,
    tiles=Tiles(
        tiny=Tile(32, 128, 64, 8, 2),
        model=Tile(64, 128, 64, 16, 2),
        production=production_tile,
    ),
    requires=HOPPER,
    dtypes=("float16", "bfloat16"),
    channels_last=True,
    channel_multiples=(16, 32),  # C_i: terms of one wgmma; C_o: interleaved channels
)
