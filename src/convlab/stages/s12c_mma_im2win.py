"""s12c: asynchronous copies bring the slices. The tensor cores multiply what s11d's copies fetch.

Source: ours, beyond the paper. Half of s12b's instructions compute where a window's elements are
and move the elements through registers. :mod:`window_copies` looks up most places once for all
elements of a slice, and copies the elements to shared memory without registers in between.
"""

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, mma_3xtf32
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.kernels import window_copies
from convlab.kernels.filter_layout import make_filter_number, pack_in_order
from convlab.kernels.tf32x3 import MMA_K, make_epilogue, require_warp_tiles
from convlab.problem import ConvProblem
from convlab.stage import Kernel, Program, Requirement, Stage, Tile, Tiles, blocks_for, tile_program

LANES_M, LANES_N = 8, 4  # lanes of a warp along M and N, as the sums are spread over them
PADDING = 1  # after a row of windows: the 32 numbers of a fragment lie in 32 banks


def make_kernel(problem: ConvProblem, tile: Tile) -> Kernel:
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, WARP_M, WARP_N = tile.threads, LANES_M * tile.M_T, LANES_N * tile.N_T
    F_PITCH, I_PITCH, O_SHAPE = M_B, N_B + PADDING, (M_T, N_T)
    F_SLICE, I_SLICE, WARPS_N = K_B * F_PITCH, K_B * I_PITCH, N_B // WARP_N
    SLICES = blocks_for(problem.K, K_B)
    fetch = window_copies.make_fetch(problem, tile, PADDING, lanes=1)
    windows_of_thread, TIMES = window_copies.make_windows_of_thread(problem, tile)
    filter_number = make_filter_number(problem, tile)
    epilogue = make_epilogue(problem, tile, False, filter_number, LANES_M, LANES=1)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(S_F, S_I, at_F, at_I, k, R_O):
        """Adds the products of terms k to k + 7."""
        for i in range(0, M_T, 2):
            m, below = at_F + k * F_PITCH + i * LANES_M, at_F + (k + 4) * F_PITCH + i * LANES_M
            f = (S_F[m], S_F[m + LANES_M], S_F[below], S_F[below + LANES_M])
            for j in range(N_T // 2):
                n, left = at_I + j // 4 * 32 + j % 4, j // 4 * 8 + j % 4
                part = mma_3xtf32(f, (S_I[n + k * I_PITCH], S_I[n + (k + 4) * I_PITCH]))
                R_O[i, left] += part[0]
                R_O[i, left + FLOAT4] += part[1]
                R_O[i + 1, left] += part[2]
                R_O[i + 1, left + FLOAT4] += part[3]

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, 1)))
    def mma_im2win(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICE, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        first = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        warp, lane = t // 32, t % 32
        group_id, thread_in_group = lane // 4, lane % 4  # PTX: groupID, threadID_in_group
        ty, tx = warp // WARPS_N * WARP_M + group_id, warp % WARPS_N * WARP_N
        # Even columns of four instructions are float4s 0 to 3 of their 32 windows, odd ones 4 to 7.
        at_F = thread_in_group * F_PITCH + ty
        at_I = thread_in_group * I_PITCH + tx + (group_id // 2 + group_id % 2 * 4) * FLOAT4
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        windows_of_thread(n0, t, first, i_h, i_w)
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for slice_ in range(SLICES):
            fetch(input, packed, first, i_h, i_w, t, slice_, 0, S_F, S_I)
            commit_copies()
            wait_copies(0)
            cuda.syncthreads()  # nobody computes before all have fetched

            for k in range(0, K_B, MMA_K):  # compute
                multiply(S_F, S_I, at_F, at_I, k, R_O)
            cuda.syncthreads()  # nobody fetches the next slice over what others still read

        epilogue(R_O, input, packed, bias, output, m0 + ty, n0 + tx + thread_in_group * FLOAT4)

    return mma_im2win


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    require_warp_tiles(tile, LANES_M, LANES_N)
    window_copies.check_tile(tile)
    tile.require_shared_memory(tile.K_B * (tile.M_B + tile.N_B + PADDING))
    return tile_program(problem, tile, make_kernel(problem, tile), pack_in_order(problem, tile))


STAGE = Stage(
    __name__,
    title="Windows in im2win's order, copied asynchronously",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("s12b_mma",),
    prepare=prepare,
    tiles=Tiles(Tile(32, 32, 8, 2, 8), model=Tile(32, 64, 16, 4, 8)),
    precision="3xtf32",
    requires=Requirement((8, 0), "asynchronous copies"),
)
