"""s14: warpgroups. s13's products by Hopper's own instruction: four warps multiply together, and
the tensor cores read the filter from shared memory by themselves.

Source: ours, beyond the paper; the accuracy is Ootomo and Yokota's (:mod:`warp_product`). With
``mma``, s13's instruction, an H200's tensor cores reach 315 TFLOP/s in TF32; all of 535 take
``wgmma`` (:mod:`convlab.device.warpgroup`), which only compute capability 9.0 has.

A block is one warpgroup and computes 128 windows, 64 at a time: their numbers are in registers,
split in two there, as s13 does. The slices arrive as in s13; the filter comes in the order in
which tensor cores read it (:mod:`filter_cores`). A slice is 16 terms: what tensor cores add up
before the sum goes to the others by ordinary additions, for the same reason as in s13.

While the tensor cores multiply one half, the threads split the other. While they add, the tensor
cores work for another block: two or three share a multiprocessor, so that nobody has to begin the
next slice's product before this one's is done.

What is not finite, and what is below ``2**-113``, is as in s13.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import (
    BYTES_16,
    commit_copies,
    fence_shared,
    finish_product,
    gpu_only,
    load4,
    split_tf32,
    start_product,
    wait_copies,
)
from convlab.kernels import window_copies
from convlab.kernels.filter_cores import COLUMNS, make_filter_number, pack_launch
from convlab.kernels.filter_fragments import packed_buffer
from convlab.kernels.s14_tiles import (
    TERMS,
    WINDOWS,
    best_tile,
    blocks_at_once,
    candidates,
)
from convlab.kernels.tile_heuristic import H200_SMS
from convlab.kernels.warp_epilogue import lanes_of, make_mend, make_write
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

SLOTS = 2  # slices in shared memory: the one computed and the one on its way
SKEW = 8  # elements from one row's banks to the next one's: lanes of four rows read four runs
GROUPS, MEMBERS = 8, 4  # lanes of a warp along N and M: a lane's channels are four apart
MOST_CHANNELS = 128  # of a block: with more, sums leave the registers


def slot_elements(tile: Tile, gap: int) -> int:
    """Elements of one slice in shared memory: two for each of the filter's numbers, and for each
    row of windows a gap."""
    return tile.K_B * (2 * tile.M_B + tile.N_B + gap)


def skewed_by(tile: Tile) -> tuple[int, int]:
    """The gap after a row of windows, which moves the next one by as many banks; or where there is
    no room for gaps, 0, and by how much each row is turned instead."""
    return (SKEW, 0) if 4 * SLOTS * slot_elements(tile, SKEW) <= SHARED_BYTES else (0, SKEW)


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    p = problem
    N, C_i, H_i, W_i, H_o, W_o = p.N, p.C_i, p.H_i, p.W_i, p.H_o, p.W_o
    s_h, s_w, p_h, p_w = p.s_h, p.s_w, p.p_h, p.p_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, blocks_at_once(tile), (M_T, N_T)
    GAP, TURN = skewed_by(tile)
    SLICES, PITCH = blocks_for(p.K, K_B), N_B + GAP
    AT_FIRST = SLICES if SLICES <= SLOTS else 1  # slices asked for: where two are all, both
    F_SLOT, I_SLOT = K_B * 2 * M_B, K_B * PITCH
    F_RING, I_RING = SLOTS * F_SLOT, SLOTS * I_SLOT
    AT_A_TIME, TIMES = window_copies.fetching_columns(tile)
    fetch_filter = window_copies.make_fetch_filter(tile, SLICES * K_B, parts=2)
    LANES = lanes_of(problem, GROUPS)
    fetch_windows = window_copies.make_fetch_windows(problem, tile, GAP, LANES, TURN)
    window_at, compute = window_copies.make_window_at(LANES), make_compute(tile)
    filter_number = make_filter_number(problem, tile)
    write = make_write(problem, tile, relu, MEMBERS, LANES)
    mend = make_mend(problem, tile, relu, filter_number, MEMBERS, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(slice_, slot, input, packed, t, first, i_h, i_w, S_F, S_I):
        if slice_ < SLICES:
            fetch_filter(packed, slice_, slot, t, S_F)
            fetch_windows(input, slice_, slot, t, first, i_h, i_w, S_I)
            commit_copies()

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def warpgroups(input, packed, bias, output):
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

        # What this lane holds of the warp's matrices. The instruction gives it rows g and g + 8 of
        # the windows, twice. Which window is which row is free: its four are neighbours in shared
        # memory, one load.
        warp, lane = t // 32, t % 32
        g, member = lane // 4, lane % 4
        column = (warp * GROUPS + g) * RUN
        at_I = member * PITCH + (column + member * TURN) % N_B

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for slot in range(AT_FIRST):
            fetch(slot, slot, input, packed, t, first, i_h, i_w, S_F, S_I)
        slot = 0
        for slice_ in range(SLICES):
            wait_copies(0)  # for this thread's part of the slice,
            fence_shared()  # which the tensor cores will read,
            cuda.syncthreads()  # and everybody's; and nobody reads the slice before it any more
            if SLICES > AT_FIRST:
                fetch(slice_ + 1, 1 - slot, input, packed, t, first, i_h, i_w, S_F, S_I)
            compute(S_F, S_I, slot * F_SLOT, at_I + slot * I_SLOT, R_O)
            slot = 1 - slot

        m0, n0 = m0 + member, n0 + window_at(column)
        if write(R_O, bias, output, m0, n0):
            mend(input, packed, bias, output, m0, n0)

    return warpgroups


def make_compute(tile: Tile) -> Any:
    """``compute(S_F, S_I, at_F, at_I, R_O)``: adds the products of a slice, from where its filter
    begins in the ring and where this lane's windows do."""
    M_B, M_T = tile.M_B, tile.M_T
    PITCH = tile.N_B + skewed_by(tile)[0]
    D_SHAPE, X_SHAPE = M_B // 2, (TERMS // 4, RUN)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_I, at, X):
        for row in range(TERMS // 4):  # of the slice: every fourth, from this member's own
            X[row, 0], X[row, 1], X[row, 2], X[row, 3] = load4(S_I, at + 4 * row * PITCH)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def split(X, first, L, T):
        for row in range(TERMS // 4):
            for e in range(2):
                L[2 * row + e], T[2 * row + e] = split_tf32(X[row, first + e])

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def add(D, R_O, first):
        for i in range(0, M_T, 2):
            for e in range(2):  # rows g and g + 8: a window and the lane's next
                R_O[i, first + e] += D[2 * i + 2 * e]
                R_O[i + 1, first + e] += D[2 * i + 2 * e + 1]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def compute(S_F, S_I, at_F, at_I, R_O):
        X, D = cuda.local.array(X_SHAPE, float32), cuda.local.array(D_SHAPE, float32)
        L, T = cuda.local.array(8, float32), cuda.local.array(8, float32)
        next_L, next_T = cuda.local.array(8, float32), cuda.local.array(8, float32)
        read(S_I, at_I, X)
        split(X, 0, L, T)
        start_product(D, L, T, S_F, at_F, M_B)
        split(X, 2, next_L, next_T)
        finish_product(D, M_B)
        add(D, R_O, 0)
        start_product(D, next_L, next_T, S_F, at_F, M_B)
        finish_product(D, M_B)
        add(D, R_O, 2)

    return compute


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
        tile.N_B == WINDOWS and tile.K_B == TERMS,
        f"N_B must be {WINDOWS} and K_B {TERMS}: what a warpgroup computes, and multiplies at a "
        "time",
    )
    tile.require(
        tile.M_B % COLUMNS == 0 and tile.M_B <= MOST_CHANNELS,
        f"M_B must be a multiple of 8 and at most {MOST_CHANNELS}, as wide as a product may be",
    )
    tile.require(
        tile.M_T * MEMBERS == tile.M_B and tile.N_T == RUN,
        "M_T must be M_B / 4 and N_T 4, because the instruction deals sums to the threads so",
    )


STAGE = Stage(
    __name__,
    title="Warpgroups: four warps multiply, from shared memory",
    source="im2win paper (000), Algorithm 3, by Hopper's tensor cores; ours",
    builds_on=("s13_tensor_cores",),
    prepare=prepare,
    tiles=Tiles(
        production=production_tile,
        tiny=Tile(M_B=8, N_B=128, K_B=16, M_T=2, N_T=4),
        model=Tile(M_B=32, N_B=128, K_B=16, M_T=8, N_T=4),
        candidates=candidates,
    ),
    vectorized=True,
    precision="3xtf32",
    requires=Requirement((9, 0), "its tensor cores' own instruction, wgmma", exact=True),
)
