"""t04: operands swapped, as wgmma has them. Windows are the left matrix, the filter is the right.

Source: ours, beyond the paper. On Conv9 the stage is slower than t03. It buys the shape of Hopper's
``wgmma``, which t05 puts in the place of ``mma``, and it changes everything else first:

- The left matrix is in registers, and the right matrix comes from shared memory, as core matrices
  (``core_matrices``). The tile is that of four warps, a warpgroup: each has 32 windows and all
  channels. Here each warp loads the whole slice of the filter; in t05 the tensor cores read it.
- With 128 channels shared memory has no room for padding, so rows are rotated instead
  (``padding_or_rotation``).
- A slice is one chain of 16 terms, and shared memory holds two slices: one is multiplied, one is
  in flight. If all slices fit, all are fetched before the loop.

The difference to t03 is long (over 150 lines), because the order of the operands decides every
layout: of the filter, of the slices and of a thread's sums. What t03 explains and t05 shares is
imported.
"""

from __future__ import annotations

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, mma_tf32, split_tf32
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.ladder.main.m13_window_copies import make_windows_of_thread
from convlab.ladder.main.m14_epilogue import interleaved_lanes, make_fetch, make_interleave
from convlab.ladder.stage import (
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
from convlab.ladder.tensor_cores.t01_mma import MMA_K, make_epilogue, require_warp_tiles
from convlab.ladder.tensor_cores.t03_split_once import Layout, make_filter_number, pack_filter
from convlab.problems.problem import ConvProblem

LANES_M, LANES_N = 4, 8  # lanes of a warp along M and N, as the sums are spread over them
DEPTH = 2  # slices in shared memory: one is multiplied, one is in flight


def core_matrices(tile: Tile) -> Layout:
    """Return the layout of the filter as core matrices, 8 columns of 4 terms each:
    ``[k // 8, part, k // 4 % 2, column, k % 4]``.

    In order, the columns are channels 0, 4, 1, 5, 2, 6, 3 and 7 of eight: a lane, whose sums are
    columns 2 * thread_in_group and one more, has channels thread_in_group, + 4, + 8, ..., evenly
    spaced.
    """
    return Layout(m1=8, m4=4, m8=32, m16=64, k1=1, k4=4 * tile.M_B, small=8 * tile.M_B)


def padding_or_rotation(tile: Tile) -> tuple[int, int]:
    """Return the padding after a row of windows and the rotation of each row, one of them 0.

    Rows are rotated if two slices with padding do not fit beside a filter of two parts. Either
    moves the next row by 8 banks, so that lanes of four rows read without bank conflicts.
    """
    return (8, 0) if tile.fits(2 * tile.K_B * (2 * tile.M_B + tile.N_B + 8)) else (0, 8)


def require_warpgroup_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that four warps side by side cannot share: each has all
    channels of 32 windows. With more than 128 channels sums spill and two slices do not fit."""
    require_warp_tiles(tile, LANES_M=4, LANES_N=8)
    tile.require(tile.N_T == 4, "N_T must be 4, because a warp multiplies four columns a lane")
    whole = tile.N_B == 128 and tile.K_B == 16 and tile.threads == 128
    tile.require(whole, "N_B must be 128, K_B 16 and M_T M_B / 4, the tile of a warpgroup")
    tile.require(tile.M_B <= 128, "M_B must be at most 128")


def make_multiply(tile: Tile) -> DeviceFunction:
    """Return ``multiply(S_F, S_I, at_F, at_I, R_O)``, which adds the products of a slice of 16
    terms.

    The lane's own numbers begin at ``at_F`` and ``at_I``. ``L_`` are large parts, ``T_`` (tails)
    are small parts.
    """
    PITCH = tile.N_B + padding_or_rotation(tile)[0]
    M_B, M_T = tile.M_B, tile.M_T
    N_T, CHAIN = tile.N_T, tile.K_B // MMA_K
    I_SHAPE, F_SHAPE = (N_T // 2, 4 * CHAIN), (CHAIN, 2)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_windows(S_I, at, L_I, T_I):
        for half in range(2 * CHAIN):  # of a step: rows thread_in_group and + 4
            x, y, z, w = load4(S_I, at + 4 * half * PITCH)
            L_I[0, 2 * half], T_I[0, 2 * half] = split_tf32(x)
            L_I[0, 2 * half + 1], T_I[0, 2 * half + 1] = split_tf32(y)
            L_I[1, 2 * half], T_I[1, 2 * half] = split_tf32(z)
            L_I[1, 2 * half + 1], T_I[1, 2 * half + 1] = split_tf32(w)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_filter(S_F, at, i, L_F, T_F):
        for c in range(CHAIN):
            for n in range(2):  # terms thread_in_group, + 4 of column group_id
                of_step = at + ((c * MMA_K + n * 2) * (2 * M_B) + i // 2 * 32)
                L_F[c, n], T_F[c, n] = S_F[of_step], S_F[of_step + MMA_K * M_B]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(S_F, S_I, at_F, at_I, R_O):
        L_I, T_I = cuda.local.array(I_SHAPE, float32), cuda.local.array(I_SHAPE, float32)
        L_F, T_F = cuda.local.array(F_SHAPE, float32), cuda.local.array(F_SHAPE, float32)
        zero = float32(0)
        read_windows(S_I, at_I, L_I, T_I)
        for i in range(0, M_T, 2):
            read_filter(S_F, at_F, i, L_F, T_F)
            for j in range(N_T // 2):
                part = (zero, zero, zero, zero)
                for c in range(CHAIN):
                    large_f, small_f = (L_F[c, 0], L_F[c, 1]), (T_F[c, 0], T_F[c, 1])
                    n = 4 * c  # rows group_id, + 8 of term thread_in_group, then of + 4
                    large_i = L_I[j, n], L_I[j, n + 1], L_I[j, n + 2], L_I[j, n + 3]
                    small_i = T_I[j, n], T_I[j, n + 1], T_I[j, n + 2], T_I[j, n + 3]
                    part = mma_tf32(small_i, large_f, part)
                    part = mma_tf32(large_i, small_f, part)
                    part = mma_tf32(large_i, large_f, part)
                R_O[i, 2 * j] += part[0]
                R_O[i + 1, 2 * j] += part[1]
                R_O[i, 2 * j + 1] += part[2]
                R_O[i + 1, 2 * j + 1] += part[3]

    return multiply


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Kernel:
    """Return the kernel with the windows as the left matrix of each product and the filter as the
    right."""
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, tile.resident_blocks(96), (M_T, N_T)
    PADDING, ROTATION = padding_or_rotation(tile)
    SLICES, PITCH = blocks_for(problem.K, K_B), N_B + PADDING
    AT_FIRST = SLICES if SLICES <= DEPTH else DEPTH - 1  # fetched before the loop: all, if they fit
    F_SLICE, I_SLICE = K_B * 2 * M_B, K_B * PITCH
    F_SLICES, I_SLICES = DEPTH * F_SLICE, DEPTH * I_SLICE
    LANES = interleaved_lanes(problem, LANES_N)
    column_of, window_at = make_interleave(LANES)
    fetch_slice = make_fetch(
        problem, tile, padding=PADDING, column_of=column_of, rotation=ROTATION, parts=2
    )
    windows_of_thread, TIMES = make_windows_of_thread(problem, tile)
    multiply = make_multiply(tile)
    filter_number = make_filter_number(problem, tile, core_matrices(tile))
    epilogue = make_epilogue(
        problem, tile, relu=relu, filter_number=filter_number, LANES_M=LANES_M, LANES=LANES
    )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I):
        if slice_ < SLICES:
            fetch_slice(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I)
        commit_copies()  # at the end an empty commit group, as in t02; wait_copies(0) needs none

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def swapped_operands(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_O = cuda.local.array(O_SHAPE, float32)
        first = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        windows_of_thread(n0, t, first, i_h, i_w)

        # A lane holds rows group_id and group_id + 8 of A in each of two products. Any window may
        # be any row of A, so a lane's four windows are neighbours in shared memory, and one load
        # reads them: two are its rows in the first product, two its rows in the second product.
        warp, lane = t // 32, t % 32
        group_id, thread_in_group = lane // 4, lane % 4  # PTX: groupID, threadID_in_group
        column = warp * LANES_N * FLOAT4 + group_id * FLOAT4
        at_F = lane
        at_I = thread_in_group * PITCH + (column + thread_in_group * ROTATION) % N_B

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for pipe in range(AT_FIRST):
            fetch(input, packed, first, i_h, i_w, t, pipe, pipe, S_F, S_I)
        pipe = 0
        for slice_ in range(SLICES):
            wait_copies(0)  # this thread's copies of the slice have landed;
            cuda.syncthreads()  # also all threads' copies; the previous slice may be overwritten
            if SLICES > AT_FIRST:
                fetch(input, packed, first, i_h, i_w, t, slice_ + 1, 1 - pipe, S_F, S_I)
            multiply(S_F, S_I, at_F + pipe * F_SLICE, at_I + pipe * I_SLICE, R_O)
            pipe = 1 - pipe

        m_t, n_t = m0 + thread_in_group, n0 + window_at(column)
        epilogue(R_O, input, packed, bias, output, m_t, n_t)  # recomputes sums that are not finite

    return swapped_operands


def prepare(problem: ConvProblem, tile: Tile, relu: bool = False) -> Program:
    """``relu`` replaces negative results by zero."""
    require_warpgroup_tile(tile)
    kernel = make_kernel(problem, tile, relu)
    return tile_program(
        problem,
        tile,
        kernel,
        pack_filter(problem, tile, core_matrices(tile)),
    )


STAGE = Stage(
    __name__,
    title="Operands swapped: windows left, the filter right, a warpgroup's tile",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("t03_split_once",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(8, 128, 16, 2, 4), model=Tile(32, 128, 16, 8, 4), heuristic="t05"),
    precision="3xtf32",
    requires=Requirement((8, 0), "asynchronous copies"),
)
