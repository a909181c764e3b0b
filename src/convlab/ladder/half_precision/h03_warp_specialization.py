"""h03: warps with roles. One warp asks for copies, two warpgroups multiply in turn, blocks stay.

Source: ours, beyond the paper; roles of warps and tiles in turn ("ping-pong") as in NVIDIA's
CUTLASS, "Efficient GEMM in CUDA". In h02 all threads meet at a barrier for every slice, and nothing
hides the stores at the end of a block. Here

- **a producer** asks for slice after slice, as soon as a stage of the pipeline is empty;
- **two warpgroups, the consumers,** have a tile each. One multiplies while the other stores the
  outputs of its last tile, so the tensor cores always have a product;
- **a block stays** (the kernel is *persistent*): one for each SM computes all tiles in turn, and
  the producer goes on to the next tile's slices before the last tile's outputs are stored;
- **registers** go where the sums are: the producer's warpgroup gives most of its own away.

Who waits for whom. The slices of a block, through all its tiles, go round the pipeline: each is
known by its stage ``pipe`` and by the ``parity`` of the round, 0 in the first, 1 in the second, 0
in the third. Three kinds of barriers have a phase a round, or a tile:

- ``full[stage]``: ends when the copies of the round have landed. The consumer waits for it.
- ``empty[stage]``: ends when the consumer's four warps have arrived, because their product of the
  round has ended. The producer waits for it before it asks for the next round's copies, so for
  the other parity; before the first round that is the phase before the first one, which counts as
  ended.
- ``turn[group]``: ends when the other warpgroup has started the last product of its tile.

Without turns a consumer would wait for a round of ``full`` that is more than one phase away, and
parity could not tell which.

The step changes over 150 lines, because each role is a loop over all tiles of its own, and a model
chooses among many more tiles.
"""

from __future__ import annotations

from collections.abc import Callable

from numba import cuda, float32, uint16, uint32, uint64

from convlab.device import gpu_only, unrolled
from convlab.device.shared_barriers import (
    arrive_barrier,
    fence_barriers,
    init_barrier,
    wait_barrier,
)
from convlab.device.sixteen_bits import EIGHT
from convlab.device.swizzled_products import (
    PANEL_BYTES,
    panel_start,
    wait_products,
)
from convlab.device.warp_roles import give_registers, take_registers
from convlab.ladder.half_precision.h01_panels import (
    HOPPER,
    START_PRODUCT,
    TERMS,
    make_epilogue,
    make_zero,
    require_product_tile,
    shared_bytes,
)
from convlab.ladder.half_precision.h02_copy_engine import (
    make_copy_slice,
    tensor_maps,
    terms_of_last_chunk,
)
from convlab.ladder.stage import (
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

WARPGROUP = 128
THREADS = 3 * WARPGROUP  # two consumers, and a producer, of which one thread asks for copies
WARPS = 4  # of a consumer


def pipeline_depth(tile: Tile) -> int:
    """Return how many slices shared memory holds, of up to eight: of an SM's 256 KB we leave some
    50 for the L1 cache, which the bias comes from and the outputs go through."""
    return max(2, min(8, 208 * 1024 // ((tile.M_B + tile.N_B) * PANEL_BYTES)))


def require_consumer_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that a warpgroup cannot compute with the registers it has."""
    require_product_tile(tile)
    whole = tile.N_B in (64, 128, 256) and tile.threads == WARPGROUP
    tile.require(whole, "N_B must be 64, 128 or 256 and N_T N_B / 32: a warpgroup has a tile")
    tile.require(tile.M_T * tile.N_T <= 128, "M_T * N_T must be at most 128, the sums of a thread")


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Kernel:
    M_B, N_B, DEPTH = tile.M_B, tile.N_B, pipeline_depth(tile)
    CHUNKS, H_f, W_f = blocks_for(problem.C_i, TERMS), problem.H_f, problem.W_f
    SLICES, LAST_TERMS = H_f * W_f * CHUNKS, terms_of_last_chunk(problem)
    PIPE, I_PANEL, A_PANEL = (M_B + N_B) * TERMS, N_B * TERMS, 64 * TERMS
    PRODUCTS, SUMS_EACH = N_B // 64, M_B // 2  # of 64 windows each
    SUMS = PRODUCTS * SUMS_EACH
    TILES_M, TILES_N = blocks_for(problem.M, M_B), blocks_for(problem.N, N_B)
    TILES = TILES_M * TILES_N
    SKIPPED, ROUNDS = SLICES % DEPTH, SLICES // DEPTH % 2  # of the other consumer's tile
    OUTER = H_f * W_f if LAST_TERMS < TERMS else 1
    INNER = CHUNKS - 1 if LAST_TERMS < TERMS else SLICES
    first_window, copy_slice = make_copy_slice(problem, tile)
    epilogue = make_epilogue(problem, tile, relu)
    zero, start_product = make_zero(SUMS), START_PRODUCT[problem.dtype]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def corner(tile):
        """The first channel and the first window of a tile."""
        return tile % TILES_M * M_B, tile // TILES_M * N_B

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def after(pipe, parity, slices, rounds):
        """The place in the pipeline so many slices and whole rounds later."""
        pipe, parity = pipe + slices, parity ^ rounds
        if pipe >= uint32(DEPTH):
            pipe, parity = pipe - uint32(DEPTH), parity ^ uint32(1)
        return pipe, parity

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def produce(windows, filter, S, begin, full, empty):
        pipe, parity = uint32(0), uint32(0)
        for tile in range(cuda.blockIdx.x, TILES, cuda.gridDim.x):
            m0, n0 = corner(uint32(tile))
            window = first_window(n0)
            for u in range(H_f):
                for v in range(W_f):
                    for chunk in range(CHUNKS):
                        wait_barrier(empty, pipe, parity ^ uint32(1))
                        at = begin + pipe * uint32(PIPE)
                        copy_slice(windows, filter, window, m0, u, v, chunk, S, at, full, pipe)
                        pipe, parity = after(pipe, parity, uint32(1), uint32(0))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def start_whole(i, D, S, at):
        start_product(D, i * SUMS_EACH, S, at + i * A_PANEL, at + I_PANEL, M_B, TERMS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def start_last(i, D, S, at):
        start_product(D, i * SUMS_EACH, S, at + i * A_PANEL, at + I_PANEL, M_B, LAST_TERMS)

    def make_multiply_slice(start_products: Callable[..., None]) -> DeviceFunction:
        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def multiply_slice(D, S, begin, before, pipe, parity, full, empty, lane):
            wait_barrier(full, pipe, parity)
            start_products(D, S, begin + pipe * uint32(PIPE))
            wait_products(D, SUMS, PRODUCTS)  # those of the slice before have ended
            if lane == 0 and before < uint32(DEPTH):
                arrive_barrier(empty, before)
            return after(pipe, parity, uint32(1), uint32(0))

        return multiply_slice

    multiply_whole = make_multiply_slice(unrolled(start_whole, range(PRODUCTS)))
    multiply_last = make_multiply_slice(unrolled(start_last, range(PRODUCTS)))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply_tile(D, S, begin, pipe, parity, full, empty, lane):
        before = uint32(DEPTH)  # the stage of the slice before, once there is one
        for _ in range(OUTER):
            for _ in range(INNER):
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

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, 1)))
    def warp_specialization(windows, filter, bias, output):
        S = cuda.shared.array(0, uint16)  # dynamic: DEPTH slices, each windows, then filter
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

        group = t // WARPGROUP
        if group == 2:
            give_registers(40)
            if t % WARPGROUP == 0:
                produce(windows, filter, S, begin, full, empty)
        else:
            take_registers(232)
            D = cuda.local.array(SUMS, float32)
            lane, warp = t % 32, t % WARPGROUP // 32
            pipe, parity, my_turn = uint32(0), uint32(0), uint32(1)
            if group == 1:  # begins with the second tile
                pipe, parity = after(pipe, parity, uint32(SKIPPED), uint32(ROUNDS))
                my_turn = uint32(0)
            first = cuda.blockIdx.x + group * cuda.gridDim.x
            for tile in range(first, TILES, 2 * cuda.gridDim.x):
                m0, n0 = corner(uint32(tile))
                zero(D)
                wait_barrier(turn, group, my_turn)
                last, pipe, parity = multiply_tile(D, S, begin, pipe, parity, full, empty, lane)
                if lane == 0:
                    arrive_barrier(turn, 1 - group)
                wait_products(D, SUMS, 0)
                if lane == 0:
                    arrive_barrier(empty, last)
                store_products(D, bias, output, m0 + lane % 4 * EIGHT, n0 + warp * 16 + lane // 4)
                pipe, parity = after(pipe, parity, uint32(SKIPPED), uint32(ROUNDS))
                my_turn = my_turn ^ uint32(1)

    return warp_specialization


SHAPES = ((32, 256), (64, 64), (64, 256), (128, 64), (64, 128), (256, 64), (128, 128))  # M_B, N_B
H100_SMS = 132
# Measured on an H100, in a clock of an SM: the copy engine's bytes, the tensor cores'
# multiply-adds of 16 bits, and an SM's share of the memory's bandwidth.
FILL_BYTES, MULTIPLY_ADDS, STORE_BYTES = 56, 2048, 13
BEGIN = 2000  # clocks until a block's first copies have landed


def estimated_clocks(problem: ConvProblem, tile: Tile) -> float:
    """Estimate the time of a problem in clocks.

    A slice takes as long as the copy engine needs to fill it, or the tensor cores to multiply it. A
    tile takes its slices' time, or that of its outputs' stores, which the other consumer's slices
    hide. Nothing hides the last tile's stores.
    """
    tiles = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    slices = problem.H_f * problem.W_f * blocks_for(problem.C_i, TERMS)
    multiply = tile.M_B * tile.N_B * 64 / MULTIPLY_ADDS
    fill = (tile.M_B + tile.N_B) * PANEL_BYTES / FILL_BYTES
    stores = tile.M_B * tile.N_B * problem.number_type.nbytes / STORE_BYTES
    of_a_tile = max(slices * max(multiply, fill), stores)
    return BEGIN + blocks_for(tiles, H100_SMS) * of_a_tile + stores


def production_tile(problem: ConvProblem) -> Tile:
    """Return the tile that the estimate takes the least time for."""
    tiles = [Tile(M_B, N_B, 64, M_B // 4, N_B // 32) for M_B, N_B in SHAPES]
    fitting = [tile for tile in tiles if max(32, problem.M) >= tile.M_B]
    return min(fitting, key=lambda tile: estimated_clocks(problem, tile))


def prepare(problem: ConvProblem, tile: Tile, relu: bool = False) -> Program:
    """``relu`` replaces negative results by zero."""
    require_consumer_tile(tile)
    tiles = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    launch = Launch(
        make_kernel(problem, tile, relu),
        grid=(min(tiles, H100_SMS),),
        block=(THREADS,),
        arguments=(*tensor_maps(problem, tile), "bias", Flat("output")),
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
    dtypes=("bfloat16", "float16"),
    channels_last=True,
    channel_multiples=(16, 32),  # as h02
)
