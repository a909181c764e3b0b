"""h01: panels. The tensor cores read 16-bit windows and filter from shared memory.

Source: ours, beyond the paper. Networks mostly run in float16 or bfloat16, with the channels of a
pixel as neighbours in memory: input [N_i, H_i, W_i, C_i], filter [C_o, H_f, W_f, C_i]. Products of
16-bit numbers are exact and their sums are float32, so nothing is split as in t05.

- **A slice is contiguous.** The K elements of a window are ordered (u, v, r): a slice of 64 is one
  place (u, v) of the filter and 64 channels, so 128 neighbouring bytes in the input and in the
  filter. Each thread copies 16 bytes at a time; a warp copies four whole rows.
- **Panels.** Both matrices of ``wgmma`` lie in shared memory, each as a *panel*: a matrix of rows
  of 128 bytes (64 terms) that begins at a multiple of 1,024 bytes. The 16-byte pieces of a row are
  swizzled (:mod:`convlab.device.swizzled_products`), so neither the copies nor the tensor cores
  have bank conflicts. No thread loads a number into registers: the threads only wait, fence and
  meet at a barrier.
- **The filter's rows are interleaved**, so that the outputs of a lane are neighbours in memory. In
  a product lane g of a group of four has columns ``8 * j + 2 * g + e``, for e = 0, 1 and all j. Any
  channel may be any column. So the copy stores channel ``8 * g + 2 * j + e`` of each 32 in row
  ``8 * j + 2 * g + e`` of the panel, with j from 0 to 3. Then lane g has channels 8 * g to 8 * g +
  7, whose outputs are one store of 16 bytes.
- **A residual**, a tensor like the output, can be added to the sums (``residual=True``). A lane
  loads it as it stores its outputs, and the loads are in flight during the last product.

The difference to t05 is long (over 150 lines), because layout, type and operands all differ from
t05's.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda, float32, int32, int64, uint16, uint32

from convlab.device import gpu_only, unrolled
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.device.sixteen_bits import (
    EIGHT,
    PAIRS,
    copy_async8,
    load_pairs,
    pair_bf16,
    pair_f16,
    store_pairs,
    widen_bf16,
    widen_f16,
)
from convlab.device.swizzled_products import (
    PANEL_ALIGNMENT,
    PANEL_ROW_BYTES,
    panel_start,
    start_product_bf16,
    start_product_f16,
    swizzled_piece,
    wait_products,
)
from convlab.device.tensor_core import fence_shared
from convlab.ladder.main.m14_epilogue import make_finish
from convlab.ladder.stage import (
    RESIDUAL,
    DeviceFunction,
    Kernel,
    Program,
    Requirement,
    Stage,
    Tile,
    Tiles,
    blocks_for,
    tile_program,
)
from convlab.problems.problem import ConvProblem

TERMS = 64  # terms of a slice: a row of 128 bytes
WARPGROUP = 128  # threads of a warpgroup
HALF_OF_AN_SM = 112 * 1024  # bytes of shared memory for each of two blocks
PIECES = TERMS // EIGHT  # 16-byte pieces of a row
INTERLEAVED = 32  # channels whose rows are interleaved
HOPPER = Requirement((9, 0), "its tensor cores' own instruction, wgmma", exact=True)
START_PRODUCT = {"float16": start_product_f16, "bfloat16": start_product_bf16}
PAIR = {"float16": pair_f16, "bfloat16": pair_bf16}
WIDEN = {"float16": widen_f16, "bfloat16": widen_bf16}


def require_panels(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that two warpgroups cannot share: each has 64 windows and all
    channels."""
    require_product_tile(tile)
    shares = tile.N_B == 128 and tile.N_T == 2
    tile.require(shares, "N_B must be 128 and N_T 2, because two warpgroups have 64 windows each")
    tile.require(tile.M_B <= 128, "M_B must be at most 128, so that two blocks share an SM")


def require_product_tile(tile: Tile, terms: int = TERMS) -> None:
    """Raise ``ValueError`` for a tile that no products of a warpgroup compute, with so many terms
    in a panel's row."""
    tile.require(terms == tile.K_B, f"K_B must be {terms}, a row of 128 bytes")
    whole = tile.M_B % INTERLEAVED == 0 and tile.M_B <= 256
    tile.require(whole, "M_B must be a multiple of 32 up to 256, the columns of a product")
    tile.require(4 * tile.M_T == tile.M_B, "M_T must be M_B / 4, a lane's columns of a product")


def shared_bytes(tile: Tile, depth: int) -> int:
    """Return the bytes of dynamic shared memory for so many slices, and 1,024 bytes to align the
    first panel."""
    return depth * (tile.M_B + tile.N_B) * PANEL_ROW_BYTES + PANEL_ALIGNMENT


def pipeline_depth(tile: Tile) -> int:
    """Return how many slices a block's half of an SM's shared memory holds, of up to four."""
    return min(4, HALF_OF_AN_SM // shared_bytes(tile, 1))


def make_fetch_slice(problem: ConvProblem, tile: Tile) -> DeviceFunction:
    """Return ``fetch_slice(input, weight, start, i_h, i_w, m0, t, slice_, S, at)``, which starts to
    copy a slice of the windows, then of the filter, to S from index ``at`` on.

    Thread t copies piece ``t % 8`` of rows ``t // 8``, + 32 and so on. ``start``, ``i_h`` and
    ``i_w`` say where its windows begin in the input; rows past the last window have ``i_h`` below
    all padding, so they are zeros as padding is.
    """
    p = problem
    C_i, C_o, H_i, W_i, H_f, W_f, d_h, d_w = p.C_i, p.C_o, p.H_i, p.W_i, p.H_f, p.W_f, p.d_h, p.d_w
    ROWS = tile.threads // PIECES  # rows that are copied at a time
    CHUNKS, PLACES = blocks_for(C_i, TERMS), H_f * W_f
    FILTER_BEGIN = tile.N_B * TERMS  # numbers of the windows' panel, before the filter's

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_windows(i, input, start, i_h, i_w, u, v, r, row, piece, S, at):
        y, x = i_h[i] + u * d_h, i_w[i] + v * d_w
        valid = 0 <= y < H_i and 0 <= x < W_i and r < C_i
        source = start[i] + (int64(u * d_h) * W_i + v * d_w) * C_i + r if valid else int64(0)
        copy_async8(S, at + swizzled_piece(row + i * ROWS, piece) * EIGHT, input, source, valid)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_filter(i, weight, m0, place, r, row, piece, S, at):
        n = row + i * ROWS
        j, g, e = n % 32 // 8, n % 8 // 2, n % 2
        m = m0 + n // INTERLEAVED * INTERLEAVED + 8 * g + 2 * j + e
        valid = m < C_o and r < C_i
        source = (int64(m) * PLACES + place) * C_i + r if valid else int64(0)
        copy_async8(S, at + swizzled_piece(n, piece) * EIGHT, weight, source, valid)

    fetch_all_windows = unrolled(fetch_windows, range(tile.N_B // ROWS))
    fetch_all_filter = unrolled(fetch_filter, range(tile.M_B // ROWS))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_slice(input, weight, start, i_h, i_w, m0, t, slice_, S, at):
        row, piece = t // PIECES, t % PIECES
        place = uint32(slice_) // CHUNKS
        u, v = int32(place // W_f), int32(place % W_f)
        r = int32(uint32(slice_) % CHUNKS * TERMS + piece * EIGHT)
        fetch_all_windows(input, start, i_h, i_w, u, v, r, row, piece, S, at)
        fetch_all_filter(weight, m0, place, r, row, piece, S, at + FILTER_BEGIN)

    return fetch_slice


def make_windows_of_thread(problem: ConvProblem, tile: Tile) -> DeviceFunction:
    """Return ``windows_of_thread(n0, t, start, i_h, i_w)``, which finds where the windows begin
    whose rows thread t copies: in the input, and on the image."""
    p = problem
    N, PIXELS, W_o, H_i, W_i, C_i = p.N, p.H_o * p.W_o, p.W_o, p.H_i, p.W_i, p.C_i
    s_h, s_w, p_h, p_w = p.s_h, p.s_w, p.p_h, p.p_w
    ROWS = tile.threads // PIECES
    TIMES = tile.N_B // ROWS
    NOWHERE = -(2**30)  # a row that no place of the filter moves into the image

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def windows_of_thread(n0, t, start, i_h, i_w):
        for i in range(TIMES):
            n = n0 + t // PIECES + i * ROWS
            image, pixel = n // PIXELS, n % PIXELS
            y, x = int32(pixel // W_o * s_h) - p_h, int32(pixel % W_o * s_w) - p_w
            start[i] = ((int64(image) * H_i + y) * W_i + x) * C_i
            i_h[i], i_w[i] = y if n < N else NOWHERE, x

    return windows_of_thread


def make_epilogue(problem: ConvProblem, tile: Tile, relu: bool) -> Callable[..., None]:
    """Return ``epilogue(D, first, bias, output, m_t, n_t)``, which adds the bias to a lane's sums
    of one product, from ``D[first]`` on, and stores them, rounded once: of windows n_t and
    n_t + 8, eight neighbouring channels of every 32 from m_t on."""
    M, N = problem.M, problem.N
    pair, widen, finish = PAIR[problem.dtype], WIDEN[problem.dtype], make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def rounded(D, at, biases):  # two neighbouring channels
        low = finish(D[at], widen(uint16(biases & uint32(0xFFFF))))
        return pair(low, finish(D[at + 1], widen(uint16(biases >> uint32(16)))))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store_eight(D, at, bias, output, m, n):  # 16 bytes: all of them there or none
        if m < M:
            b0, b1, b2, b3 = load_pairs(bias, m)
            for row in range(2):
                if n + 8 * row < N:
                    r = at + 2 * row
                    p0, p1 = rounded(D, r, b0), rounded(D, r + 4, b1)
                    p2, p3 = rounded(D, r + 8, b2), rounded(D, r + 12, b3)
                    store_pairs(output, int64(n + 8 * row) * M + m, (p0, p1, p2, p3))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store_scalars(D, at, bias, output, m, n):
        for row in range(2):
            for e in range(EIGHT):
                if n + 8 * row < N and m + e < M:
                    j = e // 2
                    value = finish(D[at + 4 * j + 2 * row + e % 2], widen(bias[m + e]))
                    # Only ``pair`` rounds; one half is kept.
                    output[int64(n + 8 * row) * M + m + e] = pair(value, value) & uint32(0xFFFF)

    store = store_eight if M % EIGHT == 0 else store_scalars

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store_part(q, D, first, bias, output, m_t, n_t):
        store(D, first + 16 * q, bias, output, m_t + q * INTERLEAVED, n_t)

    return unrolled(store_part, range(tile.M_B // INTERLEAVED))


@cuda.jit(device=True, **gpu_only(forceinline=True))
def first_of_lane(m0, n0, t):
    """Return the first channel and the first window of a lane's outputs, of a block whose first
    ones are m0 and n0."""
    warp, lane = t // 32, t % 32
    return m0 + lane % 4 * EIGHT, n0 + warp * 16 + lane // 4


def make_residual(
    problem: ConvProblem, tile: Tile
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return two device functions for the sums of one product from ``D[first]`` on, those that
    ``epilogue`` stores. ``fetch_residual(R, first, residual, m_t, n_t)`` loads the residual's
    numbers to R, two neighbouring channels in each element, by loads as wide as the stores.
    ``add_residual(D, R, first)`` adds them to the sums.

    They are two, so that the loads are in flight while the tensor cores work.
    """
    M, N, widen = problem.M, problem.N, WIDEN[problem.dtype]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_eight(R, at, residual, m, n):  # 16 bytes: all of them there or none
        for row in range(2):
            r = at + 4 * row
            if m < M and n + 8 * row < N:
                p0, p1, p2, p3 = load_pairs(residual, int64(n + 8 * row) * M + m)
                R[r], R[r + 1], R[r + 2], R[r + 3] = p0, p1, p2, p3
            else:
                for j in range(PAIRS):
                    R[r + j] = uint32(0)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def bits_of(residual, m, n):
        return uint32(residual[int64(n) * M + m]) if n < N and m < M else uint32(0)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_scalars(R, at, residual, m, n):
        for row in range(2):
            for j in range(PAIRS):
                low = bits_of(residual, m + 2 * j, n + 8 * row)
                high = bits_of(residual, m + 2 * j + 1, n + 8 * row)
                R[at + 4 * row + j] = low | high << uint32(16)

    fetch = fetch_eight if M % EIGHT == 0 else fetch_scalars

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_part(q, R, first, residual, m_t, n_t):
        fetch(R, first // 2 + 8 * q, residual, m_t + q * INTERLEAVED, n_t)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def add_part(q, D, R, first):
        for row in range(2):
            for j in range(PAIRS):
                d = first + 16 * q + 4 * j + 2 * row
                two = R[first // 2 + 8 * q + 4 * row + j]
                D[d] += widen(uint16(two & uint32(0xFFFF)))
                D[d + 1] += widen(uint16(two >> uint32(16)))

    parts = range(tile.M_B // INTERLEAVED)
    return unrolled(fetch_part, parts), unrolled(add_part, parts)


def make_zero(SUMS: int) -> Callable[..., None]:
    """Return ``zero(D)``, which sets all sums to zero. In parts, because the compiler does not
    unroll a loop of 128 steps, and an array with a variable index is not in registers."""
    PART = 16

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def zero_part(part, D):
        for i in range(PART):
            D[part * PART + i] = float32(0)

    return unrolled(zero_part, range(SUMS // PART))


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool, *, residual: bool = False) -> Kernel:
    """Return the kernel of ``input``, ``weight`` and ``bias`` in 16 bits, channels last; sums are
    float32, and ``output`` has the input's type and layout. With ``residual`` it takes and adds a
    tensor like the output; without, its last parameter keeps its default."""
    M_B, N_B, THREADS = tile.M_B, tile.N_B, tile.threads
    DEPTH, BLOCKS = pipeline_depth(tile), 2
    SLICES = problem.H_f * problem.W_f * blocks_for(problem.C_i, TERMS)
    SLICE = (M_B + N_B) * TERMS  # numbers of a slice, which fills one buffer of the pipeline
    FILTER_BEGIN = N_B * TERMS  # numbers of the windows' panel, before the filter's
    WINDOWS_64 = 64 * TERMS  # numbers of 64 windows, which a warpgroup multiplies
    SUMS, TIMES = M_B // 2, N_B * PIECES // THREADS
    WITH_RESIDUAL, ADDENDS = residual, SUMS // 2  # a lane's elements of R
    AHEAD = DEPTH - 1  # slices that are copied before the loop
    IN_FLIGHT = AHEAD - 1  # commit groups that may be pending when the next slice must have landed
    fetch_slice = make_fetch_slice(problem, tile)
    windows_of_thread = make_windows_of_thread(problem, tile)
    epilogue = make_epilogue(problem, tile, relu)
    fetch_residual, add_residual = make_residual(problem, tile)
    zero, start_product = make_zero(SUMS), START_PRODUCT[problem.dtype]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, weight, start, i_h, i_w, m0, t, slice_, S, at):
        if slice_ < SLICES:
            fetch_slice(input, weight, start, i_h, i_w, m0, t, slice_, S, at)
        commit_copies()  # past the last slice no copies: waiting for them costs nothing

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def panels(input, weight, bias, output, residual=None):
        S = cuda.shared.array(0, uint16)  # dynamic: DEPTH slices, each windows, then filter
        D = cuda.local.array(SUMS, float32)
        start = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        m0, n0 = uint32(cuda.blockIdx.y) * M_B, uint32(cuda.blockIdx.x) * N_B
        begin = panel_start(S)
        windows_of_thread(n0, t, start, i_h, i_w)
        zero(D)

        for slice_ in range(AHEAD):
            fetch(input, weight, start, i_h, i_w, m0, t, slice_, S, begin + slice_ * SLICE)
        warpgroup, pipe = t // WARPGROUP, uint32(0)
        for slice_ in range(SLICES):
            wait_copies(IN_FLIGHT)  # this thread's copies of the slice have landed;
            fence_shared()  # and the tensor cores see them;
            wait_products(D, SUMS, 0)  # the previous slice has been read;
            cuda.syncthreads()  # all that holds for all threads
            at = begin + pipe * SLICE
            # A: 64 windows; B: M_B channels, the instruction's N; D: windows x channels
            start_product(D, 0, S, at + warpgroup * WINDOWS_64, at + FILTER_BEGIN, M_B, TERMS)
            before = pipe - 1 if pipe > 0 else uint32(DEPTH - 1)  # the buffer that is free now
            fetch(input, weight, start, i_h, i_w, m0, t, slice_ + AHEAD, S, begin + before * SLICE)
            pipe = pipe + 1 if pipe + 1 < DEPTH else uint32(0)
        if WITH_RESIDUAL:
            R = cuda.local.array(ADDENDS, uint32)
            m_t, n_t = first_of_lane(m0, n0, t)
            fetch_residual(R, 0, residual, m_t, n_t)
        wait_products(D, SUMS, 0)
        if WITH_RESIDUAL:
            add_residual(D, R, 0)

        warp, lane = t // 32, t % 32
        m_t, n_t = m0 + lane % 4 * EIGHT, n0 + warp * 16 + lane // 4
        epilogue(D, 0, bias, output, m_t, n_t)

    return panels


def production_tile(problem: ConvProblem) -> Tile:
    """Return the tile for a GPU: 128 channels if there are more than 64, else the fewest."""
    M_B = next((M_B for M_B in (32, 64) if problem.M <= M_B), 128)
    return Tile(M_B, 128, TERMS, M_B // 4, 2)


def prepare(
    problem: ConvProblem, tile: Tile, relu: bool = False, residual: bool = False
) -> Program:
    """``residual`` adds a tensor to the sums; ``relu`` replaces negative results by zero."""
    require_panels(tile)
    kernel = make_kernel(problem, tile, relu, residual=residual)
    shared = shared_bytes(tile, pipeline_depth(tile))
    added = (RESIDUAL,) if residual else ()
    return tile_program(problem, tile, kernel, shared_bytes=shared, optional=added)


STAGE = Stage(
    __name__,
    title="Panels: 16 bits, channels last, both matrices from swizzled shared memory",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("t05_warpgroups",),
    prepare=prepare,
    tiles=Tiles(
        tiny=Tile(32, 128, 64, 8, 2),
        model=Tile(64, 128, 64, 16, 2),
        production=production_tile,
    ),
    requires=HOPPER,
    dtypes=("float16", "bfloat16"),
    channels_last=True,
    channel_multiples=(EIGHT, 1),  # a copy moves eight neighbouring channels
)
