"""s12: im2win without its tensor. The window-ordered slices are made in shared memory.

Source: ours, beyond the paper. s11 writes the im2win tensor to global memory and reads it again:
a pass over memory, and a workspace of several times the input. Its kernel only ever looks at K_B
rows of N_B windows at a time, so here each block makes just that slice, from the input
(:mod:`window_fetch`). The copies are asynchronous: they go to shared memory past the registers,
into a ring of slices, and the block waits for a slice only when it is that one's turn. What is
computed and in which order is Algorithm 3's; each step is written out (:mod:`unrolled_product`).

Where there are few outputs, as with one image, the blocks along z share the slices of each sum
(split K): ``output`` begins as zeros, and every block adds its part atomically. In which order is
the GPU's affair, so from three parts on the last bits may differ from call to call;
``whole_sums=True`` never splits.

The epilogue adds the bias and, with ``relu=True``, replaces what is negative by zero.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, commit_copies, gpu_only, wait_copies
from convlab.kernels import window_copies
from convlab.kernels.epilogue import lanes_of, make_add, make_row_of, make_write
from convlab.kernels.gemm import RUN, make_multiply
from convlab.kernels.tile_heuristic import (
    H200_SMS,
    best_splits,
    best_tile,
    candidates,
    most_splits,
)
from convlab.kernels.unrolled_product import (
    make_compute,
    make_place,
    make_read,
)
from convlab.problem import ConvProblem
from convlab.stage import (
    MODEL_TILE,
    SHARED_BYTES,
    Buffer,
    Flat,
    Launch,
    Program,
    Requirement,
    Stage,
    Tile,
    Tiles,
    blocks_for,
)

CLEARING = 256  # threads of a block that clears


def ring_slots(tile: Tile) -> int:
    """Slices in shared memory: the one computed and two on their way, or one where it is small."""
    return 3 if 3 * 4 * tile.K_B * (tile.M_B + tile.N_B) <= SHARED_BYTES else 2


def blocks_at_once(tile: Tile) -> int:
    """Blocks that a multiprocessor's 65,536 registers shall hold: a thread keeps its M_T x N_T
    sums, and needs about 64 more for what it multiplies and for addresses."""
    return max(1, 65536 // (tile.threads * (tile.M_T * tile.N_T + 64)))


def make_turn(problem: ConvProblem, tile: Tile, LANES: int) -> Any:
    """A turn of the loop over slices up to ``end`` (Algorithm 3, lines 8-18): ask for a slice to
    come, multiply this one, wait for the next. Its first step is in R_F0 and R_I0; the next
    slice's will be there too, or in R_F1 and R_I1 where K_B is odd."""
    M_B, N_B, K_B = tile.M_B, tile.N_B, tile.K_B
    SLICES, SLOTS = blocks_for(problem.K, K_B), ring_slots(tile)
    IN_FLIGHT, ODD = SLOTS - 2, K_B % 2 == 1
    read, multiply = make_read(tile), make_multiply(tile)
    compute = make_compute(tile, read)
    fetch_filter = window_copies.make_fetch_filter(tile, SLICES * K_B)
    fetch_windows = window_copies.make_fetch_windows(problem, tile, lanes=LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(slice_, end, slot, input, packed, t, first, i_h, i_w, S_F, S_I):
        if slice_ < end:
            fetch_filter(packed, slice_, slot, t, S_F)
            fetch_windows(input, slice_, slot, t, first, i_h, i_w, S_I)
        commit_copies()  # a group even of nothing: groups are waited for by their number

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def arrive(slice_, end, slot, ty, tx, S_F, S_I, R_F, R_I):
        wait_copies(IN_FLIGHT)  # for this thread's part of the slice,
        cuda.syncthreads()  # and for everybody's; and nobody reads the slice before it any more
        if slice_ < end:
            read(
                S_F, S_I, slot * (K_B * M_B) + ty * RUN, slot * (K_B * N_B) + tx * RUN, 0, R_F, R_I
            )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def turn(
        slice_, end, slot, input, packed, t, ty, tx, first, i_h, i_w,
        S_F, S_I, R_F0, R_I0, R_F1, R_I1, R_O,
    ):  # fmt: skip
        before = slot - 1 if slot > 0 else SLOTS - 1  # its slice is done, and its place free
        after = slot + 1 if slot + 1 < SLOTS else 0
        fetch(slice_ + SLOTS - 1, end, before, input, packed, t, first, i_h, i_w, S_F, S_I)
        at_F, at_I = slot * (K_B * M_B) + ty * RUN, slot * (K_B * N_B) + tx * RUN
        compute(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)
        if ODD:
            arrive(slice_ + 1, end, after, ty, tx, S_F, S_I, R_F1, R_I1)
            multiply(R_F0, R_I0, R_O)
        else:
            arrive(slice_ + 1, end, after, ty, tx, S_F, S_I, R_F0, R_I0)
            multiply(R_F1, R_I1, R_O)
        return after

    return fetch, arrive, turn


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool, splits: int) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    p = problem
    N, C_i, H_i, W_i, H_o, W_o = p.N, p.C_i, p.H_i, p.W_i, p.H_o, p.W_o
    s_h, s_w, p_h, p_w = p.s_h, p.s_w, p.p_h, p.p_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, blocks_at_once(tile), (M_T, N_T)
    SLICES, SLOTS = blocks_for(p.K, K_B), ring_slots(tile)
    F_RING, I_RING = SLOTS * K_B * M_B, SLOTS * K_B * N_B
    AT_A_TIME, TIMES = window_copies.fetching_columns(tile)
    SHARE = blocks_for(SLICES, splits)  # of a block, in slices
    TURNS = 2 if K_B % 2 else 1  # until the registers have the same roles again
    LANES, place, row_of = lanes_of(problem, tile, splits), make_place(tile), make_row_of(tile)
    window_at = window_copies.make_window_at(LANES)
    write = make_write(problem, tile, relu, row_of, tile.columns, LANES)
    if splits > 1:
        write = make_add(problem, tile, row_of, LANES)
    fetch, arrive, turn = make_turn(problem, tile, LANES)

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def fused_im2win(input, packed, bias, output):
        S_F = cuda.shared.array(F_RING, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_RING, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        first = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = place(t)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # Where the windows begin that this thread fetches from. Past the last one, fetch that
        # again; its results are not written.
        for c in range(TIMES):
            window = min(n0 + t % AT_A_TIME + c * AT_A_TIME, N - 1)
            i_n, pixel = window // (H_o * W_o), window % (H_o * W_o)
            i_h[c] = pixel // W_o * s_h - p_h
            i_w[c] = pixel % W_o * s_w - p_w
            first[c] = int64(i_n) * (C_i * H_i * W_i) + i_h[c] * W_i + i_w[c]

        begin, end = 0, SLICES
        if splits > 1:
            begin = int32(cuda.blockIdx.z) * SHARE
            end = min(begin + SHARE, SLICES)
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for slot in range(SLOTS - 1):
            fetch(begin + slot, end, slot, input, packed, t, first, i_h, i_w, S_F, S_I)
        slot = 0
        arrive(begin, end, slot, ty, tx, S_F, S_I, R_F0, R_I0)
        for slice_ in range(begin, end, TURNS):
            slot = turn(
                slice_, end, slot, input, packed, t, ty, tx, first, i_h, i_w,
                S_F, S_I, R_F0, R_I0, R_F1, R_I1, R_O,
            )  # fmt: skip
            if TURNS == 2 and slice_ + 1 < end:
                slot = turn(
                    slice_ + 1, end, slot, input, packed, t, ty, tx, first, i_h, i_w,
                    S_F, S_I, R_F1, R_I1, R_F0, R_I0, R_O,
                )  # fmt: skip

        write(R_O, bias, output, m0 + ty * RUN, n0 + window_at(tx * RUN))

    return fused_im2win


def make_clear(elements: int) -> Any:
    """``output`` as zeros, for sums that are added to it."""

    @cuda.jit(**gpu_only(launch_bounds=CLEARING))
    def clear(output):
        at = int64(cuda.blockIdx.x) * CLEARING + cuda.threadIdx.x
        if at < elements:
            output[at] = float32(0)

    return clear


def prepare(
    problem: ConvProblem,
    tile: Tile,
    relu: bool = False,
    whole_sums: bool = False,
    splits: int | None = None,
    sm_count: int = H200_SMS,
) -> Program:
    """As every stage's; ``relu`` replaces negative results by zero. ``splits`` is among how many
    blocks a sum is split: the model's choice for a GPU of so many SMs, but 1 with
    ``whole_sums`` and with ``relu``, which needs the sums."""
    check_tile(tile)
    if splits is None:
        splits = 1 if relu or whole_sums else best_splits(problem, tile, sm_count)
    slices = blocks_for(problem.K, tile.K_B)
    splits = blocks_for(slices, blocks_for(slices, splits))  # so that each has some
    M_P = blocks_for(problem.M, tile.M_B) * tile.M_B
    K_P = blocks_for(problem.K, tile.K_B) * tile.K_B
    pack = window_copies.pack_launch(problem, tile, K_P, M_P)
    main = Launch(
        make_kernel(problem, tile, relu, splits),
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B), splits),
        block=(tile.threads,),
        arguments=(Flat("input"), Flat("packed"), "bias", Flat("output")),
    )
    elements = problem.M * problem.N
    clear = Launch(
        make_clear(elements), (blocks_for(elements, CLEARING),), (CLEARING,), (Flat("output"),)
    )
    launches = (pack, main) if splits == 1 else (pack, clear, main)
    return Program((Buffer("packed", (M_P // tile.M_B, K_P, tile.M_B)),), launches, tile)


def production_tile(
    problem: ConvProblem,
    sm_count: int = H200_SMS,
    relu: bool = False,
    whole_sums: bool = False,
) -> Tile:
    """The model's tile; with either option the one for sums that are not split."""
    return best_tile(problem, sm_count, whole_sums=relu or whole_sums)


def check_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that does not suit the kernel."""
    tile.require(
        tile.M_T % RUN == tile.N_T % RUN == 0,
        "M_T and N_T must be multiples of 4, because four numbers move at a time",
    )
    window_copies.check_tile(tile)
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B))


STAGE = Stage(
    __name__,
    title="Fused im2win: the windows are made in shared memory",
    source="im2win paper (000), Algorithm 3, without its tensor; ours",
    builds_on=("s11_im2win_full",),
    prepare=prepare,
    tiles=Tiles(
        production=production_tile,
        tiny=Tile(M_B=16, N_B=32, K_B=4, M_T=4, N_T=4),
        model=MODEL_TILE,
        candidates=candidates,
    ),
    vectorized=True,
    requires=Requirement((8, 0), "asynchronous copies"),
    atomic_additions=most_splits,
)
