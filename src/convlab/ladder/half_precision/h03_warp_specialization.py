"""h03: warps with roles. One warp asks for copies, two warpgroups multiply in turn, blocks stay.

Source: ours, beyond the paper; roles of warps and tiles in turn ("ping-pong") as in NVIDIA's
CUTLASS, "Efficient GEMM in CUDA". In h02 all threads meet at a barrier for every slice, and only
another block of the SM can hide the stores at the end of a block. Here

- **a producer** asks for slice after slice, as soon as a buffer of the pipeline is empty;
- **two warpgroups, the consumers,** have a tile each. One multiplies while the other stores the
  outputs of the tile that it has just multiplied. So the tensor cores stay busy if the stores of a
  tile take less time than the products of the next one, and the copies keep up;
- **a block stays** (the kernel is *persistent*): there is one block per SM, which on a GPU of 132
  SMs computes every 132nd tile, and the producer goes on to the next tile's slices before the
  previous tile's outputs are stored;
- **registers** go where the sums are: the producer's warpgroup gives most of its own away. Those of
  a consumer also hold what it adds to the sums (``residual=True``), which it loads before it waits
  for its turn.

Who waits for whom. The slices of a block, through all its tiles, go round the pipeline. A slice is
named by its buffer ``pipe`` and by the ``parity`` of its round: 0 in the first round, 1 in the
second, 0 in the third. Rounds 0 and 2 have the same name. That suffices, because each wait is for
the running phase of a barrier or for the one before it (:mod:`convlab.device.shared_barriers`).
There are three kinds of barriers. ``full`` and ``empty`` have a phase a round; ``turn[c]`` has one
for each tile of consumer c:

- ``full[pipe]``: the phase ends when both copies of the round's slice have landed. All 128 threads
  of the consumer that has this tile wait for it.
- ``empty[pipe]``: the phase ends when the consumer's four warps have arrived, because their product
  of the round has ended: all four, because each reads the whole filter panel. Before it asks for
  the copies of a round, the producer waits for the phase of the round before, so for the other
  parity; in the first round this wait returns at once.
- ``turn[c]``: the phase ends when the other consumer has started the last product of its tile.

::

    round 0   producer: waits empty, parity 1 (returns at once), asks;    full's phase 0 ends
              consumer: waits full, parity 0, multiplies, arrives;        empty's phase 0 ends
    round 1   producer: waits empty, parity 0, asks;                      full's phase 1 ends
              consumer: waits full, parity 1, multiplies, arrives;        empty's phase 1 ends
    tile 0    consumer 0: waits turn[0], parity 1 (returns at once), multiplies, arrives at turn[1]
    tile 1    consumer 1: waits turn[1], parity 0, multiplies, arrives at turn[0]
    tile 2    consumer 0: waits turn[0], parity 0, multiplies, arrives at turn[1]

Here tile 0 is the block's first tile. Without turns a consumer could wait for the phase of ``full``
that comes after the running one. The phase before the running one has the same parity and has
ended, so the wait would return at once, and the consumer would multiply a panel that has not
landed.

The difference to h02 is long (over 150 lines), because each role has its own loop over the tiles,
and ``production_tile`` estimates which of ten tiles is the fastest.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda, float32, uint32, uint64

from convlab.device import gpu_only, unrolled
from convlab.device.shared_barriers import (
    arrive_barrier,
    fence_barriers,
    init_barrier,
    wait_barrier,
)
from convlab.device.swizzled_products import (
    PANEL_ROW_BYTES,
    panel_start,
    wait_products,
)
from convlab.device.warp_roles import give_registers, take_registers
from convlab.ladder.half_precision.h01_panels import (
    HOPPER,
    TERMS,
    WARPGROUP,
    make_epilogue,
    make_residual,
    make_zero,
    require_product_tile,
    shared_bytes,
)
from convlab.ladder.half_precision.h02_copy_engine import (
    make_copy_slice,
    tensor_maps,
    terms_of_last_chunk,
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

THREADS = 3 * WARPGROUP  # two consumers, and a producer, of which one thread asks for copies
PRODUCER = 2  # the producer's warpgroup
WARPS = 4  # warps of a consumer
# Registers a thread. 40 + 2 * 232 = 3 * 168, and 168 is what launch_bounds(384, 1) gives a thread.
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232
MOST_OF_AN_SM = 208 * 1024  # bytes of shared memory


def pipeline_depth(tile: Tile) -> int:
    """Return how many slices shared memory holds, at most eight: a choice, not a limit. The rest of
    an SM's 256 KB is its L1 cache, which the bias comes from and the outputs go through: with less
    than 40 KB of it, Conv8 took a tenth longer."""
    return min(8, MOST_OF_AN_SM // ((tile.M_B + tile.N_B) * PANEL_ROW_BYTES))


def require_consumer_tile(tile: Tile, terms: int = TERMS) -> None:
    """Raise ``ValueError`` for a tile that a warpgroup cannot compute with the registers it has."""
    require_product_tile(tile, terms)
    whole = tile.N_B in (64, 128, 256) and tile.threads == WARPGROUP
    tile.require(
        whole, "N_B must be 64, 128 or 256 and N_T must be N_B / 32: a warpgroup has a tile"
    )
    tile.require(tile.M_T * tile.N_T <= 128, "M_T * N_T must be at most 128, the sums of a thread")


@cuda.jit(device=True, **gpu_only(forceinline=True))
def adds_nothing(*arguments):
    """Stand for the functions of a residual in a kernel that has none and never calls them."""


NO_RESIDUAL = adds_nothing, adds_nothing


def make_kernel(
    problem: ConvProblem,
    tile: Tile,
    relu: bool,
    *,
    residual: bool = False,
    make_epilogue: Callable[[ConvProblem, Tile, bool], Callable[..., None]] = make_epilogue,
    depth: int | None = None,
    place_numbers: int | None = None,
) -> Kernel:
    """Return the kernel of the tensor maps ``windows`` and ``filter`` of 16-bit tensors, or of
    float32 (h05), channels last; sums are float32, ``bias`` and ``output`` have the input's type.

    With ``residual``, of 16 bits only, it takes and adds a tensor like the output; without, its
    last parameter keeps its default. ``make_epilogue(problem, tile, relu)`` makes the function that
    stores a lane's sums (h01). ``depth`` is the number of slices in shared memory, where it is not
    :func:`pipeline_depth`'s; ``place_numbers`` is as in h02's ``make_copy_slice``."""
    M_B, N_B, DEPTH = tile.M_B, tile.N_B, depth or pipeline_depth(tile)
    format = FORMATS[problem.dtype]
    TERMS, NEIGHBOURS, NUMBER = format.terms, format.neighbours, format.in_kernels
    CHUNKS, H_f, W_f = blocks_for(problem.C_i, TERMS), problem.H_f, problem.W_f
    SLICES, LAST_TERMS = H_f * W_f * CHUNKS, terms_of_last_chunk(problem)
    # Numbers, as in h01: of a slice, of its windows, and of 64 windows.
    SLICE, FILTER_BEGIN, WINDOWS_64 = (M_B + N_B) * TERMS, N_B * TERMS, 64 * TERMS
    PRODUCTS, SUMS_EACH = N_B // 64, M_B // 2  # PRODUCTS a slice, each of 64 windows
    SUMS = PRODUCTS * SUMS_EACH
    WITH_RESIDUAL, ADDENDS = residual, SUMS // 2  # a lane's elements of R
    TILES_M, TILES_N = blocks_for(problem.M, M_B), blocks_for(problem.N, N_B)
    TILES = TILES_M * TILES_N
    # To skip the other consumer's tile: so many buffers on, and the parity flips after an odd
    # number of whole rounds.
    SKIP_BUFFERS, SKIP_PARITY = SLICES % DEPTH, SLICES // DEPTH % 2
    # A place's last slice may have fewer terms: before each such slice are WHOLE slices, and this
    # TIMES times. Two loops, so that no slice is tested for its kind.
    WHOLE, TIMES = (CHUNKS - 1, H_f * W_f) if LAST_TERMS < TERMS else (SLICES, 1)
    first_window, copy_slice = make_copy_slice(problem, tile, place_numbers)
    epilogue = make_epilogue(problem, tile, relu)
    fetch_residual, add_residual = make_residual(problem, tile) if residual else NO_RESIDUAL
    zero, start_product = make_zero(SUMS), format.start_product

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def corner(tile_index):
        """Return the first channel and the first window of a tile."""
        return tile_index % TILES_M * M_B, tile_index // TILES_M * N_B

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def further(pipe, parity, buffers):
        """Return the buffer and parity so many buffers on, at most a round."""
        pipe += buffers
        if pipe >= uint32(DEPTH):
            return pipe - uint32(DEPTH), parity ^ uint32(1)
        return pipe, parity

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def skip_other_tile(pipe, parity):
        return further(pipe, parity ^ uint32(SKIP_PARITY), uint32(SKIP_BUFFERS))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def produce(windows, filter, S, begin, full, empty):
        pipe, parity = uint32(0), uint32(0)
        for tile_index in range(cuda.blockIdx.x, TILES, cuda.gridDim.x):
            m0, n0 = corner(uint32(tile_index))
            window = first_window(n0)
            for u in range(H_f):
                for v in range(W_f):
                    for chunk in range(CHUNKS):
                        wait_barrier(empty, pipe, parity ^ uint32(1))
                        at = begin + pipe * uint32(SLICE)
                        copy_slice(windows, filter, window, m0, u, v, chunk, S, at, full, pipe)
                        pipe, parity = further(pipe, parity, uint32(1))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def start_whole(i, D, S, at):
        start_product(D, i * SUMS_EACH, S, at + i * WINDOWS_64, at + FILTER_BEGIN, M_B, TERMS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def start_last(i, D, S, at):
        start_product(D, i * SUMS_EACH, S, at + i * WINDOWS_64, at + FILTER_BEGIN, M_B, LAST_TERMS)

    def make_multiply_slice(start_products: Callable[..., None]) -> DeviceFunction:
        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def multiply_slice(D, S, begin, before, pipe, parity, full, empty, lane):
            wait_barrier(full, pipe, parity)
            start_products(D, S, begin + pipe * uint32(SLICE))
            wait_products(D, SUMS, PRODUCTS)  # those of the slice before have ended
            if lane == 0 and before < uint32(DEPTH):
                arrive_barrier(empty, before)
            return further(pipe, parity, uint32(1))

        return multiply_slice

    multiply_whole = make_multiply_slice(unrolled(start_whole, range(PRODUCTS)))
    multiply_last = make_multiply_slice(unrolled(start_last, range(PRODUCTS)))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply_tile(D, S, begin, pipe, parity, full, empty, lane):
        before = uint32(DEPTH)  # the buffer of the slice before; DEPTH: there is none to hand back
        for _ in range(TIMES):
            for _ in range(WHOLE):
                now = pipe
                pipe, parity = multiply_whole(D, S, begin, before, pipe, parity, full, empty, lane)
                before = now
            if LAST_TERMS < TERMS:
                now = pipe
                pipe, parity = multiply_last(D, S, begin, before, pipe, parity, full, empty, lane)
                before = now
        return before, pipe, parity

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store_product(i, D, bias, output, m_t, n_t):
        epilogue(D, i * SUMS_EACH, bias, output, m_t, n_t + i * 64)

    store_products = unrolled(store_product, range(PRODUCTS))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_of_product(i, R, residual, m_t, n_t):
        fetch_residual(R, i * SUMS_EACH, residual, m_t, n_t + i * 64)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def add_to_product(i, D, R):
        add_residual(D, R, i * SUMS_EACH)

    fetch_of_products = unrolled(fetch_of_product, range(PRODUCTS))
    add_to_products = unrolled(add_to_product, range(PRODUCTS))

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, 1)))
    def warp_specialization(windows, filter, bias, output, residual=None):
        S = cuda.shared.array(0, NUMBER)  # dynamic: DEPTH slices, each windows, then filter
        full, empty = cuda.shared.array(DEPTH, uint64), cuda.shared.array(DEPTH, uint64)
        turn = cuda.shared.array(2, uint64)
        t = uint32(cuda.threadIdx.x)
        begin = panel_start(S)
        if t == 0:
            for i in range(DEPTH):
                init_barrier(full, i, 1)
                init_barrier(empty, i, WARPS)
            init_barrier(turn, 0, WARPS)
            init_barrier(turn, 1, WARPS)
            fence_barriers()
        cuda.syncthreads()

        warpgroup = t // WARPGROUP
        if warpgroup == PRODUCER:
            give_registers(PRODUCER_REGISTERS)
            if t % WARPGROUP == 0:
                produce(windows, filter, S, begin, full, empty)
        else:
            take_registers(CONSUMER_REGISTERS)
            D = cuda.local.array(SUMS, float32)
            lane, warp = t % 32, t % WARPGROUP // 32
            pipe, parity, my_turn = uint32(0), uint32(0), uint32(1)
            if warpgroup == 1:  # begins with the second tile
                pipe, parity = skip_other_tile(pipe, parity)
                my_turn = uint32(0)
            first_tile = cuda.blockIdx.x + warpgroup * cuda.gridDim.x
            for tile_index in range(first_tile, TILES, 2 * cuda.gridDim.x):
                m0, n0 = corner(uint32(tile_index))
                zero(D)
                if WITH_RESIDUAL:  # the loads are in flight while this tile is multiplied
                    R = cuda.local.array(ADDENDS, uint32)
                    m_t, n_t = m0 + lane % 4 * NEIGHBOURS, n0 + warp * 16 + lane // 4
                    fetch_of_products(R, residual, m_t, n_t)
                wait_barrier(turn, warpgroup, my_turn)
                last, pipe, parity = multiply_tile(D, S, begin, pipe, parity, full, empty, lane)
                if lane == 0:
                    arrive_barrier(turn, 1 - warpgroup)
                wait_products(D, SUMS, 0)
                if lane == 0:
                    arrive_barrier(empty, last)
                if WITH_RESIDUAL:
                    add_to_products(D, R)
                m_t, n_t = m0 + lane % 4 * NEIGHBOURS, n0 + warp * 16 + lane // 4
                store_products(D, bias, output, m_t, n_t)
                pipe, parity = skip_other_tile(pipe, parity)
                my_turn = my_turn ^ uint32(1)

    return warp_specialization


SHAPES = ((32, 256), (64, 64), (64, 256), (128, 64), (64, 128), (256, 64), (128, 128))  # M_B, N_B
# For numbers of channels such as 72, 96, 192 and 288, which blocks of 128 or 64 do not fill.
SHAPES_OF_96 = ((96, 64), (96, 128), (192, 64))
# An H200 has as many. With more SMs, some stay idle; with fewer, some compute two blocks, one after
# the other.
H100_SMS = 132
# Of an SM of an H100 in a clock: the copy engine's bytes, measured; the tensor cores' multiply-adds
# of 16 bits, their peak; and the bytes of memory's bandwidth that an SM has, measured.
FILL_BYTES, MULTIPLY_ADDS, STORE_BYTES = 56, 2048, 13
STARTUP_CLOCKS = 2000  # until a block's first copies have landed


def estimated_clocks(
    problem: ConvProblem, tile: Tile, sm_count: int = H100_SMS, slowdown: float = 1.0
) -> float:
    """Estimate the time of a problem in clocks, on a GPU of that many SMs. The copy engine takes
    ``slowdown`` times as long as for whole slices (h08).

    A slice takes as long as the copy engine needs to fill it, or the tensor cores to multiply it,
    whichever takes longer. A tile takes the longer of its slices and its stores, because the other
    consumer's slices run during the stores. Nothing hides the last tile's stores.
    """
    tiles = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    slices = problem.H_f * problem.W_f * blocks_for(problem.C_i, FORMATS[problem.dtype].terms)
    multiply = tile.M_B * tile.N_B * TERMS / MULTIPLY_ADDS  # of TF32 half as many terms and clocks
    fill = slowdown * (tile.M_B + tile.N_B) * PANEL_ROW_BYTES / FILL_BYTES
    stores = tile.M_B * tile.N_B * problem.number_type.nbytes / STORE_BYTES
    of_a_tile = max(slices * max(multiply, fill), stores)
    return STARTUP_CLOCKS + blocks_for(tiles, sm_count) * of_a_tile + stores


def tiles_for(problem: ConvProblem) -> list[Tile]:
    """Return the tiles from which the estimate chooses: no block is larger than the smallest that
    has all channels. For multiples of 128 channels blocks of 96 and 192 are left out, because the
    estimates differ by less than their error there."""
    terms = FORMATS[problem.dtype].terms
    shapes = SHAPES if problem.M % 128 == 0 else SHAPES + SHAPES_OF_96
    most = min((M_B for M_B, _ in shapes if M_B >= problem.M), default=problem.M)
    return [Tile(M_B, N_B, terms, M_B // 4, N_B // 32) for M_B, N_B in shapes if most >= M_B]


def production_tile(problem: ConvProblem, sm_count: int = H100_SMS) -> Tile:
    """Return the tile that the estimate takes the least time for."""
    return min(tiles_for(problem), key=lambda tile: estimated_clocks(problem, tile, sm_count))


def prepare(
    problem: ConvProblem,
    tile: Tile,
    relu: bool = False,
    residual: bool = False,
    sm_count: int = H100_SMS,
) -> Program:
    """``residual`` adds a tensor to the sums; ``relu`` replaces negative results by zero. There is
    one block per SM of a GPU with ``sm_count`` SMs, and no more than there are tiles."""
    require_consumer_tile(tile)
    tiles = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    added = (Flat(RESIDUAL),) if residual else ()
    launch = Launch(
        make_kernel(problem, tile, relu, residual=residual),
        grid=(min(tiles, sm_count),),
        block=(THREADS,),
        arguments=(*tensor_maps(problem, tile), "bias", Flat("output"), *added),
        shared_bytes=shared_bytes(tile, pipeline_depth(tile)),
    )
    return Program((), (launch,), tile)


STAGE = Stage(
    __name__,
    title="Warp specialization: a producer, and consumers that take turns",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("h02_copy_engine",),
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
