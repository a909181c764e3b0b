"""t07: one product instead of three. Each number is rounded to TF32 once, and the sums stay in the
tensor cores' registers.

Source: ours, beyond the paper. t05 multiplies three times for float32's accuracy. Many networks do
not need it: PyTorch allows TF32 in convolutions unless its user forbids it. A number of TF32 has 11
significant bits, so an output is off by up to ``2**-10`` of ``sum |x||w|`` (docs/checking.md).

What changes against t05:

- The filter has one part, half as many bytes. So three slices fit in shared memory instead of two,
  and two are in flight while one is multiplied.
- ``start_one_product`` adds to ``D``, so that the sums of all slices stay there. t05 has the tensor
  cores compute the product of each slice alone, and its threads add it to sums in other registers.
  The reason is that a tensor core cuts what it adds (``2**-21`` of it): too much for float32, but
  less than TF32 loses anyway.
- A thread starts the products of both halves of its windows, in ``D`` and in ``E``, and waits once.

The difference to t05 is long (over 150 lines), because the filter's layout and the pipeline follow
the one part. The filter is rounded before the launch, the windows after they are read. A number of
the filter that TF32 would round to infinity becomes TF32's largest number, which is as near as
other numbers are to theirs. A window's becomes infinity, and the fix-up computes such an output
again (t01).
"""

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, store4, to_tf32
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.device.tensor_core import fence_shared, finish_product, start_one_product
from convlab.ladder.main.m13_window_copies import make_windows_of_thread
from convlab.ladder.main.m14_epilogue import interleaved_lanes, make_fetch, make_interleave
from convlab.ladder.stage import (
    Buffer,
    DeviceFunction,
    Flat,
    Kernel,
    Launch,
    Program,
    Requirement,
    Stage,
    Tile,
    Tiles,
    blocks_for,
    tile_program,
)
from convlab.ladder.tensor_cores.t01_mma import make_epilogue
from convlab.ladder.tensor_cores.t04_swapped_operands import (
    LANES_M,
    LANES_N,
    require_warpgroup_tile,
)
from convlab.problems.problem import ConvProblem

INFINITY = float("inf")
LARGEST_TF32 = 2.0**128 - 2.0**117
PACKING_THREADS = 128
DEPTH = 3  # slices in shared memory: one is multiplied, two are in flight
# Row k of the windows begins k % 4 * 8 numbers later, so lanes of four rows read without conflicts.
ROTATION = 8


def make_address(problem: ConvProblem, tile: Tile) -> DeviceFunction:
    """Return ``address(m, k)``: where in ``packed`` a number of the filter is, as core matrices
    ``[k // 8, k // 4 % 2, column, k % 4]``. The columns are channels in t04's order."""
    M_B, K_P = tile.M_B, tile.whole_slices(problem.K)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def address(m, k):
        at = (int64(m // M_B) * K_P + k // 8 * 8) * M_B + k // 4 % 2 * (4 * M_B) + k % 4
        m %= M_B
        return at + (m // 8 * 8 + m % 4 * 2 + m // 4 % 2) * 4

    return address


def round_filter(problem: ConvProblem, tile: Tile) -> Program:
    """Return the layout transform that stores the filter at ``packed[address(m, k)]``, rounded to
    TF32, with zeros beyond K and M so that tiles are whole."""
    M, K, K_P = problem.M, problem.K, tile.whole_slices(problem.K)
    M_P, PLACES = tile.M_B * blocks_for(M, tile.M_B), problem.H_f * problem.W_f
    GROUP, QUARTERS = tile.channel_group(problem), M_P * K_P // FLOAT4
    address = make_address(problem, tile)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def number(weight, m, k):
        if m >= M or k >= K:
            return float32(0)
        group, place, channel = k // (GROUP * PLACES), k // GROUP % PLACES, k % GROUP
        value = weight[m * K + (group * GROUP + channel) * PLACES + place]
        rounded = to_tf32(value)
        if abs(rounded) == INFINITY and abs(value) < INFINITY:
            return float32(-LARGEST_TF32) if value < float32(0) else float32(LARGEST_TF32)
        return rounded

    @cuda.jit(**gpu_only(launch_bounds=PACKING_THREADS))
    def round_to_tf32(weight, packed):
        e = uint32(cuda.blockIdx.x) * PACKING_THREADS + uint32(cuda.threadIdx.x)
        if e >= QUARTERS:
            return
        m, k = e % M_P, e // M_P * FLOAT4
        numbers = (
            number(weight, m, k), number(weight, m, k + 1),
            number(weight, m, k + 2), number(weight, m, k + 3),
        )  # fmt: skip
        store4(packed, address(m, k), numbers)

    blocks, arguments = (blocks_for(QUARTERS, PACKING_THREADS),), (Flat("weight"), Flat("packed"))
    launch = Launch(round_to_tf32, blocks, (PACKING_THREADS,), arguments)
    return Program((Buffer("packed", (M_P // tile.M_B, K_P, tile.M_B)),), (launch,))


def make_multiply(tile: Tile) -> DeviceFunction:
    """Return ``multiply(S_F, S_I, at_F, at_I, D, E)``, which adds the products of a slice of 16
    terms: of a thread's first two windows to ``D``, of its last two to ``E``.

    The filter begins at ``at_F``, the lane's terms of its windows at ``at_I``, as in t05.
    """
    M_B, N_B, K_4 = tile.M_B, tile.N_B, tile.K_B // 4  # K_4: terms of a lane
    X_SHAPE, A_SHAPE = (K_4, FLOAT4), 2 * K_4

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_I, at, X):
        for k in range(K_4):  # term thread_in_group + 4 * k of the slice
            X[k, 0], X[k, 1], X[k, 2], X[k, 3] = load4(S_I, at + 4 * k * N_B)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def round_two(X, j0, A):
        for k in range(K_4):
            for e in range(2):
                A[2 * k + e] = to_tf32(X[k, j0 + e])

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(S_F, S_I, at_F, at_I, D, E):
        X = cuda.local.array(X_SHAPE, float32)
        A, B = cuda.local.array(A_SHAPE, float32), cuda.local.array(A_SHAPE, float32)
        read(S_I, at_I, X)
        round_two(X, 0, A)
        start_one_product(D, A, S_F, at_F, M_B)
        round_two(X, 2, B)  # while the tensor cores read A
        start_one_product(E, B, S_F, at_F, M_B)
        finish_product(D, M_B)
        finish_product(E, M_B)

    return multiply


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Kernel:
    """Return the kernel whose warpgroups add one TF32 product for each pair of numbers, which are
    rounded once."""
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, tile.resident_blocks(96), (M_T, N_T)
    SLICES, D_SHAPE = blocks_for(problem.K, K_B), M_B // 2
    IN_FLIGHT = DEPTH - 2  # commit groups that may be pending when the next slice must have landed
    F_SLICE, I_SLICE = K_B * M_B, K_B * N_B
    F_SLICES, I_SLICES = DEPTH * F_SLICE, DEPTH * I_SLICE
    GROUP, PLACES = tile.channel_group(problem), problem.H_f * problem.W_f
    LANES = interleaved_lanes(problem, LANES_N)
    column_of, window_at = make_interleave(LANES)
    fetch_slice = make_fetch(problem, tile, column_of=column_of, rotation=ROTATION)
    windows_of_thread, TIMES = make_windows_of_thread(problem, tile)
    multiply, address = make_multiply(tile), make_address(problem, tile)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(packed, m, e):
        r, place = e // PLACES, e % PLACES
        return packed[address(m, (r // GROUP * PLACES + place) * GROUP + r % GROUP)]

    epilogue = make_epilogue(
        problem, tile, relu=relu, filter_number=filter_number, LANES_M=LANES_M, LANES=LANES
    )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I):
        if slice_ < SLICES:
            fetch_slice(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I)
        commit_copies()  # also an empty commit group, because wait_copies counts them

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def take(D, j0, R_O):
        for i in range(0, M_T, 2):  # D: channels i and i + 1 of window j0, then of j0 + 1
            R_O[i, j0], R_O[i + 1, j0] = D[2 * i], D[2 * i + 1]
            R_O[i, j0 + 1], R_O[i + 1, j0 + 1] = D[2 * i + 2], D[2 * i + 3]

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def one_product(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        D, E = cuda.local.array(D_SHAPE, float32), cuda.local.array(D_SHAPE, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        first = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        windows_of_thread(n0, t, first, i_h, i_w)

        # As in t05, a lane's four windows are neighbours in shared memory: two are its rows in the
        # first product, two its rows in the second product.
        warp, lane = t // 32, t % 32
        group_id, thread_in_group = lane // 4, lane % 4  # PTX: groupID, threadID_in_group
        column = warp * LANES_N * FLOAT4 + group_id * FLOAT4
        at_I = thread_in_group * N_B + (column + thread_in_group * ROTATION) % N_B

        for e in range(D_SHAPE):
            D[e], E[e] = float32(0), float32(0)
        for pipe in range(DEPTH - 1):
            fetch(input, packed, first, i_h, i_w, t, pipe, pipe, S_F, S_I)
        pipe = 0
        for slice_ in range(SLICES):
            wait_copies(IN_FLIGHT)  # this thread's copies of the slice have landed;
            fence_shared()  # and the tensor cores see them;
            cuda.syncthreads()  # also all threads' copies; the previous slice may be overwritten
            free = pipe - 1 if pipe > 0 else DEPTH - 1  # the buffer of the previous slice
            fetch(input, packed, first, i_h, i_w, t, slice_ + DEPTH - 1, free, S_F, S_I)
            multiply(S_F, S_I, pipe * F_SLICE, at_I + pipe * I_SLICE, D, E)
            pipe = pipe + 1 if pipe + 1 < DEPTH else 0

        take(D, 0, R_O)
        take(E, 2, R_O)
        m_t, n_t = m0 + thread_in_group, n0 + window_at(column)
        epilogue(R_O, input, packed, bias, output, m_t, n_t)  # recomputes sums that are not finite

    return one_product


def prepare(problem: ConvProblem, tile: Tile, relu: bool = False) -> Program:
    """``relu`` replaces negative results by zero."""
    require_warpgroup_tile(tile)
    kernel = make_kernel(problem, tile, relu)
    return tile_program(problem, tile, kernel, round_filter(problem, tile))


STAGE = Stage(
    __name__,
    title="One product of TF32 instead of three",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("t05_warpgroups",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(8, 128, 16, 2, 4), model=Tile(32, 128, 16, 8, 4), heuristic="t05"),
    vectorized=True,
    precision="tf32",
    requires=Requirement((9, 0), "its tensor cores' own instruction, wgmma", exact=True),
)
