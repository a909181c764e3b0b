"""t05: warpgroups. Four warps multiply together, and the tensor cores read the filter themselves.

Source: ours, beyond the paper. With ``mma`` an H200's tensor cores reach 315 TFLOP/s in TF32, with
``wgmma`` (:mod:`convlab.device.tensor_core`; compute capability 9.0 only) 535. A product is windows
x channels: A holds windows, in registers, and B is the filter. A block multiplies its 128 windows
in two halves: a thread splits its last two windows during the product of its first two windows.

As in t01, each number is the sum of a large and a small TF32 number, so a product with float32's
accuracy is three products (3xTF32); t03 splits each number once. ``D`` holds the sums of one
product in the layout that ``wgmma`` fixes (:mod:`convlab.device.tensor_core`).

The difference to t04 is long (over 150 lines), because the product is written for a warpgroup. The
rest is t04's.
"""

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, split_tf32
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.device.tensor_core import fence_shared, finish_product, start_product
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
from convlab.ladder.tensor_cores.t01_mma import make_epilogue
from convlab.ladder.tensor_cores.t03_split_once import make_filter_number, pack_filter
from convlab.ladder.tensor_cores.t04_swapped_operands import (
    DEPTH,
    LANES_M,
    LANES_N,
    core_matrices,
    padding_or_rotation,
    require_warpgroup_tile,
)
from convlab.problems.problem import ConvProblem

assert DEPTH == 2, "the kernel fills the pipeline's other stage, 1 - pipe"


def make_multiply(tile: Tile) -> DeviceFunction:
    """``multiply(S_F, S_I, at_F, at_I, R_O)``: adds the products of a slice of 16 terms.
    The filter begins at ``at_F``, the lane's terms of its windows at ``at_I``. A group's four lanes
    share four windows: each reads their terms thread_in_group, + 4, ... into ``X``. ``L`` holds the
    large parts of two windows, ``T`` (tails) the small parts. All warps read the whole filter."""
    PITCH = tile.N_B + padding_or_rotation(tile)[0]
    M_B, M_T, K_4 = tile.M_B, tile.M_T, tile.K_B // 4  # K_4: terms of a lane
    X_SHAPE, D_SHAPE = (K_4, FLOAT4), M_B // 2  # D: a lane's part of 64 windows x M_B
    L_SHAPE = 2 * K_4

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_I, at, X):
        for k in range(K_4):  # term thread_in_group + 4 * k of the slice
            X[k, 0], X[k, 1], X[k, 2], X[k, 3] = load4(S_I, at + 4 * k * PITCH)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def split(X, j0, L, T):
        for k in range(K_4):
            for e in range(2):
                L[2 * k + e], T[2 * k + e] = split_tf32(X[k, j0 + e])

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def add(D, j0, R_O):
        for i in range(0, M_T, 2):  # D: channels i and i + 1 of window j0, then of j0 + 1
            R_O[i, j0] += D[2 * i]
            R_O[i + 1, j0] += D[2 * i + 1]
            R_O[i, j0 + 1] += D[2 * i + 2]
            R_O[i + 1, j0 + 1] += D[2 * i + 3]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(S_F, S_I, at_F, at_I, R_O):
        X, D = cuda.local.array(X_SHAPE, float32), cuda.local.array(D_SHAPE, float32)
        L, T = cuda.local.array(L_SHAPE, float32), cuda.local.array(L_SHAPE, float32)
        next_L, next_T = cuda.local.array(L_SHAPE, float32), cuda.local.array(L_SHAPE, float32)
        read(S_I, at_I, X)
        split(X, 0, L, T)
        start_product(D, L, T, S_F, at_F, M_B)
        split(X, 2, next_L, next_T)  # while the tensor cores read L and T
        finish_product(D, M_B)
        add(D, 0, R_O)
        start_product(D, next_L, next_T, S_F, at_F, M_B)
        finish_product(D, M_B)
        add(D, 2, R_O)

    return multiply


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Kernel:
    """Return the kernel whose warpgroups multiply windows in registers by the filter in shared
    memory."""
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, tile.resident_blocks(96), (M_T, N_T)
    PADDING, ROTATION = padding_or_rotation(tile)
    SLICES, PITCH = blocks_for(problem.K, K_B), N_B + PADDING
    AT_FIRST = SLICES if SLICES <= DEPTH else DEPTH - 1  # fetched before the loop: all, if they fit
    F_SLICE, I_SLICE = K_B * 2 * M_B, K_B * PITCH  # F: core_matrices, both parts
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
        commit_copies()  # past the last slice the group is empty, and waiting for it costs nothing

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

        windows_of_thread(n0, t, first, i_h, i_w)

        # A lane holds rows group_id and group_id + 8 of A in each of two products. Any window may
        # be any row of A, so a lane's four windows are neighbours in shared memory, and one load
        # reads them: two are its rows in the first product, two its rows in the second product.
        warp, lane = t // 32, t % 32
        group_id, thread_in_group = lane // 4, lane % 4  # PTX: groupID, threadID_in_group
        column = warp * LANES_N * FLOAT4 + group_id * FLOAT4
        at_I = thread_in_group * PITCH + (column + thread_in_group * ROTATION) % N_B

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for pipe in range(AT_FIRST):
            fetch(input, packed, first, i_h, i_w, t, pipe, pipe, S_F, S_I)
        pipe = 0
        for slice_ in range(SLICES):
            wait_copies(0)  # this thread's copies of the slice have landed;
            fence_shared()  # and the tensor cores see them;
            cuda.syncthreads()  # also all threads' copies; the previous slice may be overwritten
            if SLICES > AT_FIRST:
                fetch(input, packed, first, i_h, i_w, t, slice_ + 1, 1 - pipe, S_F, S_I)
            multiply(S_F, S_I, pipe * F_SLICE, at_I + pipe * I_SLICE, R_O)
            pipe = 1 - pipe

        m_t, n_t = m0 + thread_in_group, n0 + window_at(column)
        epilogue(R_O, input, packed, bias, output, m_t, n_t)  # recomputes sums that are not finite

    return warpgroups


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
    title="Warpgroups: four warps multiply, from shared memory",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("t04_swapped_operands",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(8, 128, 16, 2, 4), model=Tile(32, 128, 16, 8, 4), heuristic="t05"),
    vectorized=True,
    precision="3xtf32",
    requires=Requirement((9, 0), "its tensor cores' own instruction, wgmma", exact=True),
)
