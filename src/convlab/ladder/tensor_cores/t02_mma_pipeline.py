"""t02: window copies in a multistage pipeline feed the tensor cores.

Source: ours, beyond the paper; m13's copies, m12's pipeline and m14's epilogue. Half of t01's
instructions compute where a window's elements are and move the elements through registers, and its
warps wait for every slice. The window copies look up most places once for all elements of a slice
and write to shared memory by themselves, while the warps multiply.

One barrier per slice is enough: when the threads pass it, all have multiplied the previous slice,
so the previous slice's stage of the pipeline is free.

The difference to t01 and m14 is long (over 150 lines), because t01's loads of its own and the
fix-up that it explains go, and the main route's copies, pipeline and epilogue come.
"""

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, mma_3xtf32
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.ladder.layouts.filter_layout import make_filter_number, pack_in_order
from convlab.ladder.main.m13_window_copies import make_windows_of_thread, require_whole_columns
from convlab.ladder.main.m14_epilogue import interleaved_lanes, make_fetch, make_interleave
from convlab.ladder.stage import (
    Kernel,
    Program,
    Requirement,
    Stage,
    Tile,
    Tiles,
    blocks_for,
    tile_program,
)
from convlab.ladder.tensor_cores.t01_mma import (
    LANES_M,
    LANES_N,
    MMA_K,
    make_epilogue,
    require_warp_tiles,
)
from convlab.problems.problem import ConvProblem

PADDING = 1  # after a row of windows: the 32 numbers of a fragment lie in 32 banks


def slice_elements(tile: Tile) -> int:
    """Elements of a slice in shared memory."""
    return tile.K_B * (tile.M_B + tile.N_B + PADDING)


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Kernel:
    """Return the kernel whose warps multiply slices that asynchronous copies bring to a pipeline in
    shared memory."""
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, WARP_M, WARP_N = tile.threads, LANES_M * tile.M_T, LANES_N * tile.N_T
    SLICES, DEPTH = blocks_for(problem.K, K_B), tile.pipeline_depth(slice_elements(tile))
    PITCH, IN_FLIGHT, O_SHAPE = N_B + PADDING, DEPTH - 2, (M_T, N_T)
    F_SLICE, I_SLICE = K_B * M_B, K_B * PITCH
    F_SLICES, I_SLICES = DEPTH * F_SLICE, DEPTH * I_SLICE
    WARPS_N = N_B // WARP_N  # warps along N
    LANES = interleaved_lanes(problem, LANES_N)
    column_of, window_at = make_interleave(LANES)
    fetch_slice = make_fetch(problem, tile, padding=PADDING, column_of=column_of)
    windows_of_thread, TIMES = make_windows_of_thread(problem, tile)
    filter_number = make_filter_number(problem, tile)
    epilogue = make_epilogue(
        problem, tile, relu=relu, filter_number=filter_number, LANES_M=LANES_M, LANES=LANES
    )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(S_F, S_I, at_F, at_I, k, R_O):
        """Adds the products of terms k to k + 7."""
        for i in range(0, M_T, 2):
            m, below = at_F + k * M_B + i * LANES_M, at_F + (k + 4) * M_B + i * LANES_M
            f = (S_F[m], S_F[m + LANES_M], S_F[below], S_F[below + LANES_M])
            for j in range(N_T // 2):
                n, left = at_I + j // 4 * 32 + j % 4, j // 4 * 8 + j % 4
                part = mma_3xtf32(f, (S_I[n + k * PITCH], S_I[n + (k + 4) * PITCH]))
                R_O[i, left] += part[0]
                R_O[i, left + FLOAT4] += part[1]
                R_O[i + 1, left] += part[2]
                R_O[i + 1, left + FLOAT4] += part[3]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I):
        if uint32(slice_) < SLICES:
            fetch_slice(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I)
        commit_copies()  # also an empty commit group, because wait_copies counts them

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, 1)))
    def mma_pipeline(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32)
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
            for k in range(0, K_B, MMA_K):
                multiply(S_F, S_I, at_F + pipe * F_SLICE, at_I + pipe * I_SLICE, k, R_O)
            pipe = pipe + 1 if pipe + 1 < DEPTH else 0

        epilogue(R_O, input, packed, bias, output, m0 + row, n0 + window_at(column))

    return mma_pipeline


def prepare(problem: ConvProblem, tile: Tile, relu: bool = False) -> Program:
    """``relu`` replaces negative results by zero."""
    require_warp_tiles(tile, LANES_M, LANES_N)
    require_whole_columns(tile)
    tile.require_shared_memory(2 * slice_elements(tile))
    kernel = make_kernel(problem, tile, relu)
    return tile_program(problem, tile, kernel, pack_in_order(problem, tile))


STAGE = Stage(
    __name__,
    title="Window copies in a multistage pipeline feed the tensor cores",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("t01_mma", "m14_epilogue"),
    prepare=prepare,
    tiles=Tiles(Tile(32, 32, 8, 2, 8), model=Tile(32, 64, 16, 4, 8)),
    precision="3xtf32",
    requires=Requirement((8, 0), "asynchronous copies"),
)
