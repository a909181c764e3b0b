"""s12e: each number is split once, and a tensor core adds up 16 terms.

Source: ours, beyond the paper. In s12d a warp splits the windows again for every 16 channels, and
adds up 8 terms at a time. Here ``multiply`` first loads a step's windows by float4 and splits them,
then takes the channels. A chain of products ends after 16 terms; :mod:`tf32x3` says why.
"""

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, mma_tf32, split_tf32
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.kernels import window_copies
from convlab.kernels.filter_layout import make_filter_number, pack_in_order
from convlab.kernels.tf32x3 import MMA_K, make_epilogue, make_unrolled, require_warp_tiles
from convlab.problem import ConvProblem
from convlab.stage import Kernel, Program, Requirement, Stage, Tile, Tiles, blocks_for, tile_program

LANES_M, LANES_N = 8, 4  # lanes of a warp along M and N, as the sums are spread over them
PADDING = 4  # elements after a row of windows: lanes of four rows read four sets of banks


def slice_elements(tile: Tile) -> int:
    """Elements of a slice in shared memory."""
    return tile.K_B * (tile.M_B + tile.N_B + PADDING)


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Kernel:
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, tile.resident_blocks(88 + 2 * K_B), (M_T, N_T)
    SLICES, DEPTH = blocks_for(problem.K, K_B), tile.pipeline_depth(slice_elements(tile))
    PITCH, IN_FLIGHT = N_B + PADDING, DEPTH - 2
    F_SLICE, I_SLICE = K_B * M_B, K_B * PITCH
    F_SLICES, I_SLICES = DEPTH * F_SLICE, DEPTH * I_SLICE
    WARP_M, WARP_N = LANES_M * M_T, LANES_N * N_T
    WARPS_N = N_B // WARP_N  # warps along N
    CHAIN = 2 if K_B % (2 * MMA_K) == 0 else 1  # steps that are added before the sums round
    I_SHAPE, F_SHAPE = (2 * CHAIN, N_T // 2), (CHAIN, 4)
    LANES = window_copies.interleaved_lanes(problem, LANES_N)
    fetch_slice = window_copies.make_fetch(problem, tile, PADDING, LANES)
    windows_of_thread, TIMES = window_copies.make_windows_of_thread(problem, tile, by_llvm=True)
    _, window_at = window_copies.make_interleave(LANES)
    filter_number = make_filter_number(problem, tile)
    epilogue = make_epilogue(problem, tile, relu, filter_number, LANES_M, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_windows(S_I, at, L_I, T_I):
        for half in range(2 * CHAIN):  # rows thread_in_group, + 4, ... of a chain
            for j in range(0, N_T // 2, FLOAT4):
                x, y, z, w = load4(S_I, at + (4 * half * PITCH + j * LANES_M))
                L_I[half, j], T_I[half, j] = split_tf32(x)
                L_I[half, j + 1], T_I[half, j + 1] = split_tf32(y)
                L_I[half, j + 2], T_I[half, j + 2] = split_tf32(z)
                L_I[half, j + 3], T_I[half, j + 3] = split_tf32(w)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_filter(S_F, at, k, i, L_F, T_F):
        for c in range(CHAIN):
            for n in range(4):  # rows group_id, + 8 of terms thread_in_group, + 4
                one = S_F[at + ((k + c * MMA_K + n // 2 * 4) * M_B + (i + n % 2) * LANES_M)]
                L_F[c, n], T_F[c, n] = split_tf32(one)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(S_F, S_I, at_F, at_I, k, R_O):
        """Adds the products of terms k to k + 7, or k + 15. ``L_`` are large parts, ``T_`` (tails)
        are small parts. The lane's own numbers begin at ``at_F`` and ``at_I``."""
        L_I, T_I = cuda.local.array(I_SHAPE, float32), cuda.local.array(I_SHAPE, float32)
        L_F, T_F = cuda.local.array(F_SHAPE, float32), cuda.local.array(F_SHAPE, float32)
        zero = float32(0)
        read_windows(S_I, at_I + k * PITCH, L_I, T_I)
        for i in range(0, M_T, 2):
            read_filter(S_F, at_F, k, i, L_F, T_F)
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

    steps = make_unrolled(multiply, K_B, CHAIN * MMA_K)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I):
        if slice_ < SLICES:
            fetch_slice(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I)
        commit_copies()  # also an empty commit group, because wait_copies counts them

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def split_once(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_O = cuda.local.array(O_SHAPE, float32)
        first = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        windows_of_thread(n0, t, first, i_h, i_w)

        # What this lane holds of its warp's matrices: row group_id of the filter, column group_id
        # of the windows, columns 2 * thread_in_group and one more of the sums. A column stands for
        # a float4 of windows: even columns for float4s 0 to 3, odd columns for float4s 4 to 7. So
        # the sums of a group's threads 0 to 3 are neighbours in the output.
        warp, lane = t // 32, t % 32
        group_id, thread_in_group = lane // 4, lane % 4  # PTX: groupID, threadID_in_group
        row, column = warp // WARPS_N * WARP_M, warp % WARPS_N * WARP_N
        at_F = thread_in_group * M_B + row + group_id
        at_I = thread_in_group * PITCH + column + (group_id // 2 + group_id % 2 * 4) * FLOAT4
        row, column = row + group_id, column + thread_in_group * FLOAT4  # of this lane's sums

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for pipe in range(DEPTH - 1):
            fetch(input, packed, first, i_h, i_w, t, pipe, pipe, S_F, S_I)
        pipe = 0
        for slice_ in range(SLICES):
            wait_copies(IN_FLIGHT)  # for this thread's part of the slice,
            cuda.syncthreads()  # then for all threads'; the previous slice may be overwritten
            free = pipe - 1 if pipe > 0 else DEPTH - 1
            fetch(input, packed, first, i_h, i_w, t, slice_ + DEPTH - 1, free, S_F, S_I)
            steps(S_F, S_I, at_F + pipe * F_SLICE, at_I + pipe * I_SLICE, R_O)
            pipe = pipe + 1 if pipe + 1 < DEPTH else 0

        epilogue(R_O, input, packed, bias, output, m0 + row, n0 + window_at(column))

    return split_once


def prepare(problem: ConvProblem, tile: Tile, relu: bool = False) -> Program:
    """``relu`` replaces negative results by zero."""
    require_warp_tiles(tile, LANES_M, LANES_N)
    window_copies.check_tile(tile)
    tile.require_shared_memory(2 * slice_elements(tile))
    kernel = make_kernel(problem, tile, relu)
    return tile_program(problem, tile, kernel, pack_in_order(problem, tile))


STAGE = Stage(
    __name__,
    title="Operands split once, and sums of 16 terms by a tensor core",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("s12d_mma_pipeline",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(16, 32, 8, 2, 8), model=Tile(32, 64, 16, 4, 8), heuristic="s13"),
    precision="3xtf32",
    requires=Requirement((8, 0), "asynchronous copies"),
)
