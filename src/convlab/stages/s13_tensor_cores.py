"""s13: tensor cores. s12's slices, multiplied by warps instead of threads, to float32 accuracy.

Source: ours, beyond the paper. s12 comes close to all the multiply-adds that a GPU's ordinary units
can do. Tensor cores do more in less time, even if each product takes three of theirs: an H200's
reach 315 TFLOP/s with TF32, a third of which is 105, where ordinary float32 ends at 67.

One instruction, ``mma_tf32``, multiplies 16 channels x 8 terms by 8 terms x 8 windows, and the 32
lanes of a warp hold the three matrices together. It has two weaknesses, and the kernel makes up for
both as Ootomo and Yokota do ("Recovering single precision accuracy from Tensor Cores while
surpassing the FP32 theoretical peak performance", 2022):

- It multiplies TF32, which has 10 bits of mantissa where float32 has 23. Each number is split in
  two, and three of the four products are added::

      x * w  =  large_x * large_w + large_x * small_w + small_x * large_w   (+ small_x * small_w)

  The product left out is at most 2**-22 of the whole, and the small parts lose as much again with
  their last bit. Together that is eight times float32's rounding of one product, and far less than
  its rounding of a sum.
- It truncates where others round, at every addition. So it adds 16 terms at most, the small
  products of a step first, and begins again; ordinary additions, which round, add these parts.

The filter comes split and in the order in which lanes hold it: for every row of blocks, 8 terms and
16 channels the fragments of 32 lanes,
``packed[m // M_B, k // 8, m % M_B // 16, part, lane, number]``: a lane loads its four numbers as
one float4, with no bank conflict. A window's number is split once for all channels of the warp. The
order of the windows among the matrices' columns is free: a lane's four columns are neighbours in
shared memory, one load, and in the output, one store.

Below ``2**-113`` a number's small part is too small for TF32, and s13 less accurate than float32:
each such number may be off by ``2**-136``. An infinity has no small part, and a number next to the
largest rounds to one: their sums become NaN or infinite. A lane that finds such a sum computes it
again as s01 does, so s13's infinities and NaN are those of the other stages.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import (
    BYTES_16,
    FLOAT4,
    commit_copies,
    gpu_only,
    load4,
    mma_tf32,
    split_tf32,
    store4,
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
from convlab.kernels.tile_heuristic import S13
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

WARP = 32
WARP_ROWS, WARP_COLUMNS = 8, 4  # lanes of a warp along M and N, in what each has of the sums
MMA_M, MMA_K = 16, 8  # rows and columns of the filter's matrix in an instruction
FRAGMENTS = WARP * 4  # numbers of such a matrix
PADDING = 4  # elements after a row of windows: lanes of four rows read four groups of banks
PACKING_WARPS = 4  # of a block that packs


def slice_elements(tile: Tile) -> int:
    """Elements of one slice in shared memory: two for each of the filter's numbers."""
    return tile.K_B * (2 * tile.M_B + tile.N_B + PADDING)


def pipeline_depth(tile: Tile) -> int:
    """Slices in shared memory: one to multiply and two in flight, or one where three do not fit."""
    return 3 if 3 * 4 * slice_elements(tile) <= SHARED_BYTES else 2


def resident_blocks(tile: Tile) -> int:
    """Blocks that an SM's 65,536 registers shall hold: a thread keeps its M_T x N_T
    sums, and needs more for both parts of the terms it multiplies at a time, and for addresses."""
    more = 104 if chain(tile) == 1 else 120
    return max(1, 65536 // (tile.threads * (tile.M_T * tile.N_T + more)))


def pack_launch(problem: ConvProblem, tile: Tile) -> Launch:
    """The filter's splitting and re-ordering. A warp packs 16 channels of the output: 8 terms, or
    where slices are channels of one place, 8 channels of the input at every place of the filter,
    which are neighbours in memory."""
    row_blocks, K_P = blocks_for(problem.M, tile.M_B), blocks_for(problem.K, tile.K_B) * tile.K_B
    warps = row_blocks * tile.M_B // MMA_M
    return Launch(
        make_pack_filter(problem, tile, K_P, warps),
        grid=(K_P // MMA_K // packing_turns(problem, tile), blocks_for(warps, PACKING_WARPS)),
        block=(PACKING_WARPS * WARP,),
        arguments=(Flat("weight"), Flat("packed")),
    )


def make_pack_filter(problem: ConvProblem, tile: Tile, K_P: int, COUNT: int) -> Any:
    """The kernel. Zeros beyond K and M."""
    M_B, GROUP, TURNS = tile.M_B, group_size(problem, tile), packing_turns(problem, tile)
    STEPS = max(1, GROUP // MMA_K)  # of 8 channels, in a group
    element = make_split_number(problem, tile)

    @cuda.jit(**gpu_only(launch_bounds=PACKING_WARPS * WARP))
    def split_filter(weight, packed):
        lane = uint32(cuda.threadIdx.x) % WARP
        tile_ = uint32(cuda.blockIdx.y) * PACKING_WARPS + uint32(cuda.threadIdx.x) // WARP
        if tile_ >= COUNT:
            return
        m, x = tile_ * MMA_M + lane // 4, uint32(cuda.blockIdx.x)
        for turn in range(TURNS):
            step = (x // STEPS * TURNS + uint32(turn)) * STEPS + x % STEPS
            k = step * MMA_K + lane % 4
            large0, small0 = element(weight, m, k)
            large1, small1 = element(weight, m + 8, k)
            large2, small2 = element(weight, m, k + 4)
            large3, small3 = element(weight, m + 8, k + 4)
            row_block, within = tile_ * MMA_M // M_B, tile_ * MMA_M % M_B // MMA_M
            at = (int64(row_block) * K_P + step * MMA_K) * (2 * M_B)
            at += within * (2 * FRAGMENTS) + lane * 4
            store4(packed, at, (large0, large1, large2, large3))
            store4(packed, at + FRAGMENTS, (small0, small1, small2, small3))

    return split_filter


def make_filter_number(problem: ConvProblem, tile: Tile) -> Any:
    """``filter_number(packed, m, e)``: what was ``weight[m, e]``, e through channels and places."""
    M_B, K_P = tile.M_B, blocks_for(problem.K, tile.K_B) * tile.K_B
    GROUP, PLACES = group_size(problem, tile), problem.H_f * problem.W_f

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(packed, m, e):
        r, place = e // PLACES, e % PLACES
        k = (r // GROUP * PLACES + place) * GROUP + r % GROUP
        lane, number = m % 8 * 4 + k % 4, m // 8 % 2 + k // 4 % 2 * 2
        at = (int64(m // M_B) * K_P + k // MMA_K * MMA_K) * (2 * M_B)
        at += m % M_B // MMA_M * (2 * FRAGMENTS) + lane * 4 + number
        large, small = packed[at], packed[at + FRAGMENTS]
        return large + small if abs(large) < INFINITY else small

    return filter_number


def chain(tile: Tile) -> int:
    """Steps of 8 terms whose products the tensor cores add up before they begin again."""
    return 2 if tile.K_B % (2 * MMA_K) == 0 else 1


def make_place(tile: Tile) -> Any:
    """Which channel and which window of the block's are a warp's first."""
    ROWS, COLUMNS = WARP_ROWS * tile.M_T, WARP_COLUMNS * tile.N_T
    ACROSS = tile.N_B // COLUMNS  # warps along N

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def place(t):
        warp = t // 32
        return warp // ACROSS * ROWS, warp % ACROSS * COLUMNS

    return place


def make_multiply(tile: Tile) -> Any:
    """``multiply(S_F, S_I, at_F, at_I, k, R_O)``: adds the products of terms k to k + 7, or k + 15,
    of the slices, from where in shared memory the lane's own numbers begin. ``L_`` are
    large parts, ``T_`` small ones, their tails."""
    M_B, PITCH, M_T, N_T = tile.M_B, tile.N_B + PADDING, tile.M_T, tile.N_T
    CHAIN = chain(tile)
    I_SHAPE, F_SHAPE = (2 * CHAIN, N_T // 2), (CHAIN, 4)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_windows(S_I, at, L_I, T_I):
        for half in range(2 * CHAIN):  # of a step: rows t and t + 4 of its eight
            for j in range(0, N_T // 2, FLOAT4):
                x, y, z, w = load4(S_I, at + (4 * half * PITCH + j * WARP_ROWS))
                L_I[half, j], T_I[half, j] = split_tf32(x)
                L_I[half, j + 1], T_I[half, j + 1] = split_tf32(y)
                L_I[half, j + 2], T_I[half, j + 2] = split_tf32(z)
                L_I[half, j + 3], T_I[half, j + 3] = split_tf32(w)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_filter(S_F, at, L_F, T_F):
        for c in range(CHAIN):
            L_F[c, 0], L_F[c, 1], L_F[c, 2], L_F[c, 3] = load4(S_F, at + c * (2 * MMA_K * M_B))
            T_F[c, 0], T_F[c, 1], T_F[c, 2], T_F[c, 3] = load4(
                S_F, at + (c * (2 * MMA_K * M_B) + FRAGMENTS)
            )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(S_F, S_I, at_F, at_I, k, R_O):
        L_I, T_I = cuda.local.array(I_SHAPE, float32), cuda.local.array(I_SHAPE, float32)
        L_F, T_F = cuda.local.array(F_SHAPE, float32), cuda.local.array(F_SHAPE, float32)
        zero = float32(0)
        read_windows(S_I, at_I + k * PITCH, L_I, T_I)
        for i in range(0, M_T, 2):
            read_filter(S_F, at_F + (k * (2 * M_B) + i // 2 * (2 * FRAGMENTS)), L_F, T_F)
            for j in range(N_T // 2):
                part = (zero, zero, zero, zero)
                for c in range(CHAIN):
                    large_f = L_F[c, 0], L_F[c, 1], L_F[c, 2], L_F[c, 3]
                    small_f = T_F[c, 0], T_F[c, 1], T_F[c, 2], T_F[c, 3]
                    large_i = L_I[2 * c, j], L_I[2 * c + 1, j]
                    small_i = T_I[2 * c, j], T_I[2 * c + 1, j]
                    part = mma_tf32(small_f, large_i, part)
                    part = mma_tf32(large_f, small_i, part)
                    part = mma_tf32(large_f, large_i, part)
                # Column j of an even float4 of windows; part[1] and [3] belong to the odd one.
                left = j // FLOAT4 * (2 * FLOAT4) + j % FLOAT4
                R_O[i, left] += part[0]
                R_O[i, left + FLOAT4] += part[1]
                R_O[i + 1, left] += part[2]
                R_O[i + 1, left + FLOAT4] += part[3]

    return multiply


def make_compute(tile: Tile) -> Any:
    """All of a slice, its steps written out: each is a call with its own k, a constant."""
    multiply, STEP = make_multiply(tile), MMA_K * chain(tile)

    def steps_from(k: int) -> Any:
        if k == tile.K_B:

            @cuda.jit(device=True, **gpu_only(forceinline=True))
            def nothing(S_F, S_I, at_F, at_I, R_O):
                pass

            return nothing
        following = steps_from(k + STEP)

        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def step(S_F, S_I, at_F, at_I, R_O):
            multiply(S_F, S_I, at_F, at_I, k, R_O)
            following(S_F, S_I, at_F, at_I, R_O)

        return step

    return steps_from(0)


def make_row_of() -> Any:
    """``row_of(i)``: how far channel i of a lane is from its first one."""

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(i):
        return i * WARP_ROWS

    return row_of


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Any:
    """The kernel with the problem's shapes and the tile as constants."""
    p = problem
    N, C_i, H_i, W_i, H_o, W_o = p.N, p.C_i, p.H_i, p.W_i, p.H_o, p.W_o
    s_h, s_w, p_h, p_w = p.s_h, p.s_w, p.p_h, p.p_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, resident_blocks(tile), (M_T, N_T)
    SLICES, DEPTH = blocks_for(p.K, K_B), pipeline_depth(tile)
    PITCH, IN_FLIGHT = N_B + PADDING, DEPTH - 2
    F_SLICE, I_SLICE = K_B * 2 * M_B, K_B * PITCH
    F_SLICES, I_SLICES = DEPTH * F_SLICE, DEPTH * I_SLICE
    AT_A_TIME, TIMES = window_copies.fetching_columns(tile)
    fetch_filter = window_copies.make_fetch_filter(tile, SLICES * K_B, parts=2)
    LANES = interleaved_lanes(problem, WARP_COLUMNS)
    fetch_windows = window_copies.make_fetch_windows(problem, tile, PADDING, LANES)
    window_at = window_copies.make_window_at(LANES)
    place, compute = make_place(tile), make_compute(tile)
    filter_number = make_filter_number(problem, tile)
    write = make_write(problem, tile, relu, make_row_of(), WARP_GROUPS, LANES)
    fix_up = make_fix_up(problem, tile, relu, filter_number, WARP_ROWS, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(slice_, pipe, input, packed, t, first, i_h, i_w, S_F, S_I):
        if slice_ < SLICES:
            fetch_filter(packed, slice_, pipe, t, S_F)
            fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)
        commit_copies()  # even an empty group: wait_copies counts groups

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def tensor_cores(input, packed, bias, output):
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

        # What this lane holds of the warp's matrices. The instruction gives it row g of the filter,
        # column g of the windows, columns 2 * i and 2 * i + 1 of the sums, where i is its thread in
        # group. A column stands for a float4 of windows, even columns for float4s 0 to 3, odd ones
        # for 4 to 7: so the sums of threads 0 to 3 are neighbours in the output.
        row, column = place(t)
        lane = t % 32
        g, thread_in_group = lane // 4, lane % 4
        at_F = row * (2 * MMA_K) + lane * 4
        at_I = thread_in_group * PITCH + column + (g // 2 + g % 2 * 4) * FLOAT4

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for pipe in range(DEPTH - 1):
            fetch(pipe, pipe, input, packed, t, first, i_h, i_w, S_F, S_I)
        pipe = 0
        for slice_ in range(SLICES):
            wait_copies(IN_FLIGHT)  # for this thread's part of the slice,
            cuda.syncthreads()  # then for all threads'; its predecessor is free
            before = pipe - 1 if pipe > 0 else DEPTH - 1
            fetch(slice_ + DEPTH - 1, before, input, packed, t, first, i_h, i_w, S_F, S_I)
            compute(S_F, S_I, at_F + pipe * F_SLICE, at_I + pipe * I_SLICE, R_O)
            pipe = pipe + 1 if pipe + 1 < DEPTH else 0

        m0, n0 = m0 + row + g, n0 + window_at(column + thread_in_group * FLOAT4)
        if write(R_O, bias, output, m0, n0):
            fix_up(input, packed, bias, output, m0, n0)

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
    return Program((split_buffer(problem, tile),), (pack_launch(problem, tile), main), tile)


def check_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that does not suit the kernel."""
    tile.require(
        tile.M_T % 2 == tile.N_T % 8 == 0,
        "M_T must be a multiple of 2 and N_T of 8, because a warp multiplies 16 x 8 at a time and "
        "a thread reads windows by float4",
    )
    tile.require(
        tile.M_B % (WARP_ROWS * tile.M_T) == tile.N_B % (WARP_COLUMNS * tile.N_T) == 0,
        "M_B must be a multiple of 8 * M_T and N_B of 4 * N_T, because a warp has 8 x 4 threads",
    )
    tile.require(tile.K_B % MMA_K == 0, "K_B must be a multiple of 8, the terms of an instruction")
    window_copies.check_tile(tile)
    tile.require_shared_memory(2 * slice_elements(tile))


STAGE = Stage(
    __name__,
    title="Tensor cores: warps multiply, to float32 accuracy",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("s12_fused_im2win",),
    prepare=prepare,
    tiles=Tiles(
        production=S13.best_tile,
        tiny=Tile(M_B=16, N_B=32, K_B=8, M_T=2, N_T=8),
        model=Tile(M_B=32, N_B=64, K_B=16, M_T=4, N_T=8),
        candidates=S13.candidates,
    ),
    vectorized=True,
    precision="3xtf32",
    requires=Requirement((8, 0), "asynchronous copies"),
)
