"""s13: tensor cores. s12's slices, multiplied by warps instead of threads, to float32 accuracy.

Source: ours, beyond the paper; the accuracy is Ootomo and Yokota's (:mod:`warp_product`). s12
comes close to all the multiply-adds that a GPU's ordinary units can do. Tensor cores do more of
them in less time, even if each product takes three: an H200's reach 315 TFLOP/s with TF32, a third
of which is 105, where ordinary float32 ends at 67.

The slices arrive as in s12, in a ring, by asynchronous copies; the filter comes in the order and
the form in which a warp's lanes multiply it (:mod:`filter_fragments`). What is new is who
multiplies: the 32 lanes of a warp hold a matrix together, and no lane can do anything alone.

Below ``2**-113`` a number's small part is too small for TF32, and s13 less accurate than float32:
each such number may be off by ``2**-136``.

An infinity has no small part, and a number next to the largest rounds to one: there, sums become
NaN or infinite. A lane that finds such a sum computes it again as s01 does. So whatever the others
make of infinities and NaN, s13 makes it too; it only takes long where there are many.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, commit_copies, gpu_only, wait_copies
from convlab.kernels import window_copies
from convlab.kernels.filter_fragments import (
    TERMS,
    make_filter_number,
    pack_launch,
    packed_buffer,
)
from convlab.kernels.s13_tiles import best_tile, candidates
from convlab.kernels.tile_heuristic import H200_SMS
from convlab.kernels.warp_epilogue import lanes_of, make_mend, make_write
from convlab.kernels.warp_product import (
    GAP,
    WARP_COLUMNS,
    WARP_ROWS,
    chain,
    make_compute,
    make_place,
)
from convlab.problem import ConvProblem
from convlab.stage import (
    SHARED_BYTES,
    Flat,
    Launch,
    Program,
    Requirement,
    Stage,
    Tile,
    Tiles,
    blocks_for,
)
from convlab.stages.s08_vectorized import RUN

MEMBERS = 4  # lanes of a warp along N


def slot_elements(tile: Tile) -> int:
    """Elements of one slice in shared memory: two for each of the filter's numbers."""
    return tile.K_B * (2 * tile.M_B + tile.N_B + GAP)


def ring_slots(tile: Tile) -> int:
    """Slices in shared memory: the one computed and two on their way, or one where three do not
    fit."""
    return 3 if 3 * 4 * slot_elements(tile) <= SHARED_BYTES else 2


def blocks_at_once(tile: Tile) -> int:
    """Blocks that a multiprocessor's 65,536 registers shall hold: a thread keeps its M_T x N_T
    sums, and needs more for both parts of the terms it multiplies at a time, and for addresses."""
    more = 104 if chain(tile) == 1 else 120
    return max(1, 65536 // (tile.threads * (tile.M_T * tile.N_T + more)))


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    p = problem
    N, C_i, H_i, W_i, H_o, W_o = p.N, p.C_i, p.H_i, p.W_i, p.H_o, p.W_o
    s_h, s_w, p_h, p_w = p.s_h, p.s_w, p.p_h, p.p_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, blocks_at_once(tile), (M_T, N_T)
    SLICES, SLOTS = blocks_for(p.K, K_B), ring_slots(tile)
    PITCH, IN_FLIGHT = N_B + GAP, SLOTS - 2
    F_SLOT, I_SLOT = K_B * 2 * M_B, K_B * PITCH
    F_RING, I_RING = SLOTS * F_SLOT, SLOTS * I_SLOT
    AT_A_TIME, TIMES = window_copies.fetching_columns(tile)
    fetch_filter = window_copies.make_fetch_filter(tile, SLICES * K_B, parts=2)
    LANES = lanes_of(problem, MEMBERS)
    fetch_windows = window_copies.make_fetch_windows(problem, tile, GAP, LANES)
    window_at = window_copies.make_window_at(LANES)
    place, compute = make_place(tile), make_compute(tile)
    filter_number = make_filter_number(problem, tile)
    write = make_write(problem, tile, relu, WARP_ROWS, LANES)
    mend = make_mend(problem, tile, relu, filter_number, WARP_ROWS, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(slice_, slot, input, packed, t, first, i_h, i_w, S_F, S_I):
        if slice_ < SLICES:
            fetch_filter(packed, slice_, slot, t, S_F)
            fetch_windows(input, slice_, slot, t, first, i_h, i_w, S_I)
        commit_copies()  # a group even of nothing: groups are waited for by their number

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def tensor_cores(input, packed, bias, output):
        S_F = cuda.shared.array(F_RING, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_RING, float32, alignment=BYTES_16)
        R_O = cuda.local.array(O_SHAPE, float32)
        first = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # Where the windows begin that this thread fetches from, as in s12.
        for c in range(TIMES):
            window = min(n0 + t % AT_A_TIME + c * AT_A_TIME, N - 1)
            i_n, pixel = window // (H_o * W_o), window % (H_o * W_o)
            i_h[c] = pixel // W_o * s_h - p_h
            i_w[c] = pixel % W_o * s_w - p_w
            first[c] = int64(i_n) * (C_i * H_i * W_i) + i_h[c] * W_i + i_w[c]

        # What this lane holds of the warp's matrices. The instruction gives it row g of the filter,
        # column g of the windows, columns 2 * member and 2 * member + 1 of the sums. A column
        # stands for a run of four windows, even ones for runs 0 to 3, odd ones for runs 4 to 7: so
        # the sums of members 0 to 3 are neighbours in the output.
        row, column = place(t)
        lane = t % 32
        g, member = lane // 4, lane % 4
        at_F = row * (2 * TERMS) + lane * 4
        at_I = member * PITCH + column + (g // 2 + g % 2 * 4) * RUN

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for slot in range(SLOTS - 1):
            fetch(slot, slot, input, packed, t, first, i_h, i_w, S_F, S_I)
        slot = 0
        for slice_ in range(SLICES):
            wait_copies(IN_FLIGHT)  # for this thread's part of the slice,
            cuda.syncthreads()  # and everybody's; and nobody reads the slice before it any more
            before = slot - 1 if slot > 0 else SLOTS - 1
            fetch(slice_ + SLOTS - 1, before, input, packed, t, first, i_h, i_w, S_F, S_I)
            compute(S_F, S_I, at_F + slot * F_SLOT, at_I + slot * I_SLOT, R_O)
            slot = slot + 1 if slot + 1 < SLOTS else 0

        m0, n0 = m0 + row + g, n0 + window_at(column + member * RUN)
        if write(R_O, bias, output, m0, n0):
            mend(input, packed, bias, output, m0, n0)

    return tensor_cores


def prepare(problem: ConvProblem, tile: Tile, relu: bool = False) -> Program:
    """As every stage's; ``relu`` replaces negative results by zero."""
    check_tile(tile)
    main = Launch(
        make_kernel(problem, tile, relu),
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B)),
        block=(tile.threads,),
        arguments=(Flat("input"), Flat("packed"), "bias", Flat("output")),
    )
    return Program((packed_buffer(problem, tile),), (pack_launch(problem, tile), main), tile)


def production_tile(problem: ConvProblem, sm_count: int = H200_SMS, relu: bool = False) -> Tile:
    """The model's tile, the same with ``relu``: here sums are whole either way."""
    return best_tile(problem, sm_count)


def check_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that does not suit the kernel."""
    tile.require(
        tile.M_T % 2 == tile.N_T % 8 == 0,
        "M_T must be a multiple of 2 and N_T of 8, because a warp multiplies 16 x 8 at a time and "
        "a thread's windows come by fours",
    )
    tile.require(
        tile.M_B % (WARP_ROWS * tile.M_T) == tile.N_B % (WARP_COLUMNS * tile.N_T) == 0,
        "M_B must be a multiple of 8 * M_T and N_B of 4 * N_T, because a warp has 8 x 4 threads",
    )
    tile.require(tile.K_B % TERMS == 0, "K_B must be a multiple of 8, the terms of an instruction")
    window_copies.check_tile(tile)
    tile.require_shared_memory(2 * slot_elements(tile))


STAGE = Stage(
    __name__,
    title="Tensor cores: warps multiply, to float32 accuracy",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("s12_fused_im2win",),
    prepare=prepare,
    tiles=Tiles(
        production=production_tile,
        tiny=Tile(M_B=16, N_B=32, K_B=8, M_T=2, N_T=8),
        model=Tile(M_B=32, N_B=64, K_B=16, M_T=4, N_T=8),
        candidates=candidates,
    ),
    vectorized=True,
    precision="3xtf32",
    requires=Requirement((8, 0), "asynchronous copies"),
)
