"""s13c: the tile of a warpgroup. Each of four warps has 32 windows and all channels.

Source: ours, beyond the paper. Each of the four warps loads the whole slice of the filter; in s14
the tensor cores read it. With 128 channels shared memory has no room for padding, so rows are
rotated instead.
"""

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, mma_tf32, split_tf32
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.kernels import split_filter, tf32x3, window_copies
from convlab.problem import ConvProblem
from convlab.stage import Kernel, Program, Requirement, Stage, Tile, Tiles, blocks_for, tile_program

LANES_M, LANES_N = 4, 8  # lanes of a warp along M and N, as the sums are spread over them
MMA_K = tf32x3.MMA_K  # terms that an instruction multiplies


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Kernel:
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, tile.resident_blocks(96), (M_T, N_T)
    PADDING, ROTATION = window_copies.padding_or_rotation(tile)
    SLICES, DEPTH = blocks_for(problem.K, K_B), tile.pipeline_depth(K_B * (2 * M_B + N_B + PADDING))
    PITCH, IN_FLIGHT = N_B + PADDING, DEPTH - 2
    F_SLICE, I_SLICE = K_B * 2 * M_B, K_B * PITCH
    F_SLICES, I_SLICES = DEPTH * F_SLICE, DEPTH * I_SLICE
    CHAIN = K_B // MMA_K  # steps that are added before the sums round
    I_SHAPE, F_SHAPE = (N_T // 2, 4 * CHAIN), (CHAIN, 2)
    LANES = window_copies.interleaved_lanes(problem, LANES_N)
    fetch_slice = window_copies.make_fetch(problem, tile, PADDING, LANES, ROTATION, parts=2)
    windows_of_thread, TIMES = window_copies.make_windows_of_thread(problem, tile)
    _, window_at = window_copies.make_interleave(LANES)
    filter_number = split_filter.make_filter_number(problem, tile, split_filter.core_matrices(tile))
    epilogue = tf32x3.make_epilogue(problem, tile, relu, filter_number, LANES_M, LANES)

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
        """Adds the products of a slice. ``L_`` are large parts, ``T_`` (tails) are small parts. The
        lane's own numbers begin at ``at_F`` and ``at_I``."""
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

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I):
        if slice_ < SLICES:
            fetch_slice(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I)
        commit_copies()  # also an empty commit group, because wait_copies counts them

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def warpgroup_tile(input, packed, bias, output):
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
        for pipe in range(DEPTH - 1):
            fetch(input, packed, first, i_h, i_w, t, pipe, pipe, S_F, S_I)
        pipe = 0
        for slice_ in range(SLICES):
            wait_copies(IN_FLIGHT)  # for this thread's part of the slice,
            cuda.syncthreads()  # then for all threads'; the previous slice may be overwritten
            free = pipe - 1 if pipe > 0 else DEPTH - 1
            fetch(input, packed, first, i_h, i_w, t, slice_ + DEPTH - 1, free, S_F, S_I)
            multiply(S_F, S_I, at_F + pipe * F_SLICE, at_I + pipe * I_SLICE, R_O)
            pipe = pipe + 1 if pipe + 1 < DEPTH else 0

        m_t, n_t = m0 + thread_in_group, n0 + window_at(column)
        epilogue(R_O, input, packed, bias, output, m_t, n_t)  # recomputes sums that are not finite

    return warpgroup_tile


def prepare(problem: ConvProblem, tile: Tile, relu: bool = False) -> Program:
    """``relu`` replaces negative results by zero."""
    tf32x3.require_warpgroup_tile(tile)
    kernel = make_kernel(problem, tile, relu)
    return tile_program(
        problem,
        tile,
        kernel,
        split_filter.pack_filter(problem, tile, split_filter.core_matrices(tile)),
    )


STAGE = Stage(
    __name__,
    title="A warpgroup's tile: four warps side by side have 128 windows",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("s13b_swapped_operands",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(8, 128, 16, 2, 4), model=Tile(32, 128, 16, 8, 4), heuristic="s14"),
    precision="3xtf32",
    requires=Requirement((8, 0), "asynchronous copies"),
)
