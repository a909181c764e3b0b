"""s14: warpgroups. s13's products by Hopper's own instruction: four warps multiply together, and
the tensor cores read the filter from shared memory by themselves.

Source: ours, beyond the paper; the accuracy is s13's. With ``mma``, s13's instruction, an H200's
tensor cores reach 315 TFLOP/s in TF32; all of 535 take ``wgmma``
(:mod:`convlab.device.warpgroup`), which only compute capability 9.0 has.

A block is one warpgroup and computes 128 windows, 64 at a time: their numbers are in registers,
split in two there, as in s13. A slice is 16 terms, what the tensor cores add up before ordinary
additions take over, for the same reason as in s13. While the tensor cores multiply one half, the
threads split the other. While the threads add, the tensor cores work for another block: two or
three blocks share an SM.

The tensor cores read the filter as core matrices: 8 columns of 4 terms, 128 contiguous bytes. A
column is a channel of the output. For every row of blocks, for 8 terms at a time, the large parts
come before the small ones: ``packed[m // M_B, k // 8, part, k // 4 % 2, column, k % 4]``. The order
of the channels among the columns is free, and a lane gets two neighbouring columns: channel c of
eight is column ``2 * (c % 4) + c // 4``, so that a lane's channels are four apart all through.

What is not finite, and what is below ``2**-113``, is as in s13.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import (
    BYTES_16,
    FLOAT4,
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
from convlab.kernels.epilogue import (
    INFINITY,
    WARP_GROUPS,
    interleaved_lanes,
    make_fix_up,
    make_write,
)
from convlab.kernels.tile_heuristic import S14, WARPGROUP_K, WARPGROUP_N
from convlab.kernels.window_copies import group_size, make_split_number, packing_turns, split_buffer
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

DEPTH = 2  # slices in shared memory: the one computed and the one in flight
BANK_SHIFT = 8  # banks from one row to the next: lanes of four rows read without bank conflicts
GROUPS, GROUP_THREADS = 8, 4  # lanes of a warp along N and M: a lane's channels are four apart
WARP = 32
MMA_K, CORE_COLUMNS = 8, 8  # terms of an instruction; columns of a core matrix
PACKING_WARPS = 4  # of a block that packs
MOST_CHANNELS = 128  # of a block: with more, sums leave the registers


def slice_elements(tile: Tile, padding: int) -> int:
    """Elements of one slice in shared memory: two for each of the filter's numbers, and for each
    row of windows its padding."""
    return tile.K_B * (2 * tile.M_B + tile.N_B + padding)


def padding_or_rotation(tile: Tile) -> tuple[int, int]:
    """The padding after a row of windows, which moves the next row by as many banks; or where there
    is no room for padding, 0, and by how much each row is rotated instead."""
    return (
        (BANK_SHIFT, 0)
        if 4 * DEPTH * slice_elements(tile, BANK_SHIFT) <= SHARED_BYTES
        else (0, BANK_SHIFT)
    )


def pack_launch(problem: ConvProblem, tile: Tile) -> Launch:
    """The filter's splitting and re-ordering. A warp packs 8 channels of the output: 8 terms, or
    where slices are channels of one place, 8 channels of the input at every place of the filter."""
    row_blocks, K_P = blocks_for(problem.M, tile.M_B), blocks_for(problem.K, tile.K_B) * tile.K_B
    warps = row_blocks * tile.M_B // CORE_COLUMNS
    return Launch(
        make_pack_filter(problem, tile, K_P, warps),
        # All in a row: along y there may be too many.
        grid=(K_P // MMA_K // packing_turns(problem, tile) * blocks_for(warps, PACKING_WARPS),),
        block=(PACKING_WARPS * WARP,),
        arguments=(Flat("weight"), Flat("packed")),
    )


def make_pack_filter(problem: ConvProblem, tile: Tile, K_P: int, COUNT: int) -> Any:
    """The kernel. Zeros beyond K and M."""
    M_B, GROUP, TURNS = tile.M_B, group_size(problem, tile), packing_turns(problem, tile)
    STEPS = max(1, GROUP // MMA_K)  # of 8 channels, in a group
    ALONG_K = K_P // MMA_K // TURNS  # blocks
    split_number = make_split_number(problem, tile)

    @cuda.jit(**gpu_only(launch_bounds=PACKING_WARPS * WARP))
    def split_filter_to_cores(weight, packed):
        lane = uint32(cuda.threadIdx.x) % WARP
        x, y = uint32(cuda.blockIdx.x) % ALONG_K, uint32(cuda.blockIdx.x) // ALONG_K
        eight = y * PACKING_WARPS + uint32(cuda.threadIdx.x) // WARP
        if eight >= COUNT:
            return
        column, term = lane // 4, lane % 4  # so that lanes write neighbours
        m = eight * CORE_COLUMNS + column // 2 + column % 2 * 4
        row_block, first = eight * CORE_COLUMNS // M_B, eight * CORE_COLUMNS % M_B
        for turn in range(TURNS):
            step = (x // STEPS * TURNS + uint32(turn)) * STEPS + x % STEPS
            at = (int64(row_block) * K_P + step * MMA_K) * (2 * M_B) + first * 4 + lane
            for half in range(2):
                large, small = split_number(weight, m, step * MMA_K + half * 4 + term)
                packed[at + half * (4 * M_B)] = large
                packed[at + (2 + half) * (4 * M_B)] = small

    return split_filter_to_cores


def make_filter_number(problem: ConvProblem, tile: Tile) -> Any:
    """``filter_number(packed, m, e)``: what was ``weight[m, e]``, e through channels and places."""
    M_B, K_P = tile.M_B, blocks_for(problem.K, tile.K_B) * tile.K_B
    GROUP, PLACES = group_size(problem, tile), problem.H_f * problem.W_f

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(packed, m, e):
        r, place = e // PLACES, e % PLACES
        k = (r // GROUP * PLACES + place) * GROUP + r % GROUP
        column = m % M_B // CORE_COLUMNS * CORE_COLUMNS + m % 4 * 2 + m // 4 % 2
        at = (int64(m // M_B) * K_P + k // MMA_K * MMA_K) * (2 * M_B)
        at += k // 4 % 2 * (4 * M_B) + column * 4 + k % 4
        large, small = packed[at], packed[at + MMA_K * M_B]
        return large + small if abs(large) < INFINITY else small

    return filter_number


def make_row_of() -> Any:
    """``row_of(i)``: how far channel i of a lane is from its first one."""

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(i):
        return i * GROUP_THREADS

    return row_of


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    p = problem
    N, C_i, H_i, W_i, H_o, W_o = p.N, p.C_i, p.H_i, p.W_i, p.H_o, p.W_o
    s_h, s_w, p_h, p_w = p.s_h, p.s_w, p.p_h, p.p_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, S14.resident_blocks(tile), (M_T, N_T)
    PADDING, ROTATION = padding_or_rotation(tile)
    SLICES, PITCH = blocks_for(p.K, K_B), N_B + PADDING
    AT_FIRST = SLICES if SLICES <= DEPTH else 1  # slices asked for: where two are all, both
    F_SLICE, I_SLICE = K_B * 2 * M_B, K_B * PITCH
    F_SLICES, I_SLICES = DEPTH * F_SLICE, DEPTH * I_SLICE
    AT_A_TIME, TIMES = window_copies.fetching_columns(tile)
    fetch_filter = window_copies.make_fetch_filter(tile, SLICES * K_B, parts=2)
    LANES = interleaved_lanes(problem, GROUPS)
    fetch_windows = window_copies.make_fetch_windows(problem, tile, PADDING, LANES, ROTATION)
    window_at, compute = window_copies.make_window_at(LANES), make_compute(tile)
    filter_number = make_filter_number(problem, tile)
    write = make_write(problem, tile, relu, make_row_of(), WARP_GROUPS, LANES)
    fix_up = make_fix_up(problem, tile, relu, filter_number, GROUP_THREADS, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(slice_, pipe, input, packed, t, first, i_h, i_w, S_F, S_I):
        if slice_ < SLICES:
            fetch_filter(packed, slice_, pipe, t, S_F)
            fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)
            commit_copies()

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def warpgroups(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
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
        g, thread_in_group = lane // 4, lane % 4
        column = (warp * GROUPS + g) * FLOAT4
        at_I = thread_in_group * PITCH + (column + thread_in_group * ROTATION) % N_B

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for pipe in range(AT_FIRST):
            fetch(pipe, pipe, input, packed, t, first, i_h, i_w, S_F, S_I)
        pipe = 0
        for slice_ in range(SLICES):
            wait_copies(0)  # for this thread's part of the slice,
            fence_shared()  # which the tensor cores will read,
            cuda.syncthreads()  # then for all threads'; its predecessor is free
            if SLICES > AT_FIRST:
                fetch(slice_ + 1, 1 - pipe, input, packed, t, first, i_h, i_w, S_F, S_I)
            compute(S_F, S_I, pipe * F_SLICE, at_I + pipe * I_SLICE, R_O)
            pipe = 1 - pipe

        m0, n0 = m0 + thread_in_group, n0 + window_at(column)
        if write(R_O, bias, output, m0, n0):
            fix_up(input, packed, bias, output, m0, n0)

    return warpgroups


def make_compute(tile: Tile) -> Any:
    """``compute(S_F, S_I, at_F, at_I, R_O)``: adds the products of a slice, from where its filter
    begins in shared memory and where this lane's windows do."""
    M_B, M_T = tile.M_B, tile.M_T
    PITCH = tile.N_B + padding_or_rotation(tile)[0]
    D_SHAPE, X_SHAPE = M_B // 2, (WARPGROUP_K // 4, FLOAT4)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_I, at, X):
        for row in range(WARPGROUP_K // 4):  # of the slice: every fourth, from this thread's own
            X[row, 0], X[row, 1], X[row, 2], X[row, 3] = load4(S_I, at + 4 * row * PITCH)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def split(X, first, L, T):
        for row in range(WARPGROUP_K // 4):
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
    return Program((split_buffer(problem, tile),), (pack_launch(problem, tile), main), tile)


def check_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that does not suit the kernel."""
    tile.require(
        tile.N_B == WARPGROUP_N and tile.K_B == WARPGROUP_K,
        f"N_B must be {WARPGROUP_N} and K_B {WARPGROUP_K}: what a warpgroup computes, and "
        "multiplies at a time",
    )
    tile.require(
        tile.M_B % CORE_COLUMNS == 0 and tile.M_B <= MOST_CHANNELS,
        f"M_B must be a multiple of 8 and at most {MOST_CHANNELS}, as wide as a product may be",
    )
    tile.require(
        tile.M_T * GROUP_THREADS == tile.M_B and tile.N_T == FLOAT4,
        "M_T must be M_B / 4 and N_T 4, because the instruction fixes which thread holds which sum",
    )


STAGE = Stage(
    __name__,
    title="Warpgroups: four warps multiply, from shared memory",
    source="im2win paper (000), Algorithm 3, by Hopper's tensor cores; ours",
    builds_on=("s13_tensor_cores",),
    prepare=prepare,
    tiles=Tiles(
        production=S14.best_tile,
        tiny=Tile(M_B=8, N_B=128, K_B=16, M_T=2, N_T=4),
        model=Tile(M_B=32, N_B=128, K_B=16, M_T=8, N_T=4),
        candidates=S14.candidates,
    ),
    vectorized=True,
    precision="3xtf32",
    requires=Requirement((9, 0), "its tensor cores' own instruction, wgmma", exact=True),
)
