"""m14: an epilogue that adds the bias, applies ReLU and stores whole sectors.

Source: ours, beyond the paper. The number of outputs per image decides how a warp stores:

- If it is a multiple of four, a thread's windows are neighbours, and it stores float4s.
- If not, stores are scalar. m13's thread stores four neighbours one after the other, so a store of
  eight lanes touches four sectors and writes a quarter of each. Here the windows of a warp are
  interleaved across its lanes, so that the lanes' stores touch neighbours.

With ``relu=True`` negative results become zero. On Conv9, whose stores are float4s, the stage is as
fast as m13; it gains where stores are scalar.

The difference to m13 is long (over 150 lines), because the copies that m13 explains stay there and
the epilogue with its order of windows is here. Later stages import it from here.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, store4, unrolled
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.ladder.layouts.filter_layout import pack_in_order
from convlab.ladder.main.m11_warp_tiling import LANES_N, divides_into_warps, make_warp_tile
from convlab.ladder.main.m13_window_copies import (
    make_fetch_filter,
    make_fetch_windows,
    make_windows_of_thread,
    require_whole_columns,
)
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
from convlab.problems.problem import ConvProblem

INFINITY = np.float32(np.inf)


def make_interleave(LANES: int) -> tuple[DeviceFunction, DeviceFunction]:
    """Return ``column_of(window)`` and ``window_at(column)``.

    The first is the column of a slice that holds a window of the block. The second is the first of
    the four windows in four columns, which a lane reads with one load; each next window is
    ``LANES`` further. LANES = 1: four neighbours. LANES = 8: columns 4 to 7 are windows 1, 9, 17
    and 25, so eight lanes store neighbours. Steps by multiples of ALL are the same in both: the
    columns that are fetched at a time, and ``4 * FLOAT4_STEP`` if a thread has several float4s.
    """
    ALL = FLOAT4 * LANES

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def column_of(window):
        return window // ALL * ALL + window % LANES * FLOAT4 + window % ALL // LANES

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def window_at(column):
        return column // ALL * ALL + column % ALL // FLOAT4

    return column_of, window_at


def interleaved_lanes(problem: ConvProblem, lanes: int) -> int:
    """Return across how many lanes windows are interleaved: ``lanes`` if stores are scalar, else
    1."""
    return 1 if problem.H_o * problem.W_o % FLOAT4 == 0 else lanes


def make_fetch(
    problem: ConvProblem,
    tile: Tile,
    *,
    padding: int = 0,
    column_of: DeviceFunction,
    rotation: int = 0,
    parts: int = 1,
) -> DeviceFunction:
    """Return ``fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I)``, which starts to
    copy a slice of the filter and of the windows to stage ``pipe`` of the pipeline, as m13 does.

    ``first``, ``i_h``, ``i_w`` are what ``windows_of_thread`` found. ``parts`` is explained by
    :func:`make_fetch_filter`, the other arguments by :func:`make_fetch_windows`.
    """
    fetch_filter = make_fetch_filter(tile, tile.whole_slices(problem.K), parts)
    fetch_windows = make_fetch_windows(
        problem, tile, padding=padding, column_of=column_of, rotation=rotation
    )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I):
        fetch_filter(packed, slice_, pipe, t, S_F)
        fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)

    return fetch


def make_finish(relu: bool) -> DeviceFunction:
    """Return ``finish(value, b)``: a sum with its bias; ``relu`` replaces negative numbers by zero
    and keeps NaN, as PyTorch does."""

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def finish(value, b):
        value += b
        return float32(0) if relu and value < float32(0) else value

    return finish


def make_write(
    problem: ConvProblem,
    tile: Tile,
    *,
    relu: bool,
    row_of: DeviceFunction,
    FLOAT4_STEP: int,
    LANES: int,
) -> DeviceFunction:
    """Return ``write(R_O, bias, output, m_t, n_t)``, which stores a thread's outputs, from its
    first channel m_t and window n_t on, and returns whether some sum is not finite.

    Channel i is ``row_of(i)`` further; float4s lie ``4 * FLOAT4_STEP`` windows apart, a float4's
    windows ``LANES``. Tensor cores need a fix-up of sums that are not finite (t01). Scalar stores
    go channel after channel, so the next store of the same lanes goes to the same sectors. Unsigned
    indices have no wraparound for negative ones.
    """
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_T, N_T = tile.M_T, tile.N_T
    ALIGNED = PIXELS % FLOAT4 == 0  # no float4 crosses into the next image
    WHOLE_ROWS, WHOLE_COLUMNS = M % tile.M_B == 0, N % tile.N_B == 0
    STEP = FLOAT4 if ALIGNED else 1
    finish = make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def write(R_O, bias, output, m_t, n_t):
        not_finite = False
        starts = cuda.local.array(FLOAT4, uint64)
        for j in range(0, N_T, FLOAT4):
            if not WHOLE_COLUMNS and n_t + j * FLOAT4_STEP >= N:
                continue
            for c in range(0, FLOAT4, STEP):
                n = n_t + j * FLOAT4_STEP + c * LANES
                starts[c] = uint64((n // PIXELS * M + m_t) * PIXELS + n % PIXELS)
            for i in range(M_T):
                row = row_of(i)
                if WHOLE_ROWS or m_t + row < M:
                    b = bias[m_t + row]
                    for c in range(0, FLOAT4, STEP):
                        if WHOLE_COLUMNS or ALIGNED or n_t + j * FLOAT4_STEP + c * LANES < N:
                            at = starts[c] + uint64(row * PIXELS)
                            if ALIGNED:
                                x, y = finish(R_O[i, j], b), finish(R_O[i, j + 1], b)
                                z, w = finish(R_O[i, j + 2], b), finish(R_O[i, j + 3], b)
                                store4(output, at, (x, y, z, w))
                            else:
                                output[at] = finish(R_O[i, j + c], b)
                            for e in range(c, c + STEP):
                                not_finite |= not abs(R_O[i, j + e]) < INFINITY
        return not_finite

    return write


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool = False) -> Kernel:
    """Return the kernel whose epilogue adds the bias, applies ReLU if asked, and stores whole
    sectors."""
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    row_and_column = make_warp_tile(ROWS, COLUMNS)
    PITCH = N_B  # of the input slice: neighbouring threads copy neighbouring windows
    DEPTH = tile.pipeline_depth(K_B * (M_B + PITCH))  # slices in shared memory
    IN_FLIGHT = DEPTH - 2  # commit groups that may be in flight when the next slice is needed
    F_SLICES, I_SLICES, O_SHAPE = DEPTH * K_B * M_B, DEPTH * K_B * PITCH, (M_T, N_T)
    SLICES = blocks_for(problem.K, K_B)
    LANES = interleaved_lanes(problem, LANES_N if divides_into_warps(ROWS, COLUMNS) else 1)
    column_of, window_at = make_interleave(LANES)
    fetch = make_fetch(problem, tile, column_of=column_of)
    windows_of_thread, TIMES = make_windows_of_thread(problem, tile)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(i):
        """The distance from a thread's first channel to its channel i."""
        return i // FLOAT4 * FLOAT4 * ROWS + i % FLOAT4

    epilogue = make_write(problem, tile, relu=relu, row_of=row_of, FLOAT4_STEP=COLUMNS, LANES=LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, at_F, at_I, k, R_F, R_I):
        """Row k of the slices that begin at at_F and at_I, shared memory to registers."""
        for i in range(0, M_T, FLOAT4):
            four = load4(S_F, at_F + (k * M_B + i * ROWS))
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four
        for j in range(0, N_T, FLOAT4):
            four = load4(S_I, at_I + (k * PITCH + j * COLUMNS))
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def two_steps(k, S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
        """Lines 9-12 for rows k and k + 1, each while the next row is read. k is a constant."""
        read(S_F, S_I, at_F, at_I, k + 1, R_F1, R_I1)
        multiply(R_F0, R_I0, R_O)
        read(S_F, S_I, at_F, at_I, k + 2, R_F0, R_I0)
        multiply(R_F1, R_I1, R_O)

    steps = unrolled(two_steps, range(0, K_B - 2, 2))

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def fused_epilogue(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)  # line 2
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)  # line 1
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        first = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = row_and_column(t)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        windows_of_thread(n0, t, first, i_h, i_w)
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        pipe = uint32(0)  # the stage of the pipeline that holds the slice to multiply
        at_F, at_I = uint32(ty * FLOAT4), uint32(tx * FLOAT4)  # this thread's part of it
        for early in range(DEPTH - 1):  # lines 3-4
            if early < SLICES:
                fetch(input, packed, first, i_h, i_w, t, early, early, S_F, S_I)
            commit_copies()
        wait_copies(IN_FLIGHT)
        cuda.syncthreads()  # line 5: all threads have filled the slice
        read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 6-7
        for slice_ in range(int32(1), int32(SLICES + 1)):  # line 8: multiplies slice_ - 1
            free = pipe - 1 if pipe > 0 else DEPTH - 1  # all had read it by the last barrier
            if slice_ + IN_FLIGHT < SLICES:
                fetch(input, packed, first, i_h, i_w, t, slice_ + IN_FLIGHT, free, S_F, S_I)
            commit_copies()  # a commit group per slice, at last empty ones: IN_FLIGHT counts slices
            steps(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)  # lines 9-12
            read(S_F, S_I, at_F, at_I, K_B - 1, R_F1, R_I1)
            multiply(R_F0, R_I0, R_O)
            if slice_ < SLICES:
                pipe = uint32(pipe + 1 if pipe + 1 < DEPTH else 0)
                at_F = uint32(pipe * (K_B * M_B) + ty * FLOAT4)
                at_I = uint32(pipe * (K_B * PITCH) + tx * FLOAT4)
                wait_copies(IN_FLIGHT)  # lines 14-15
                cuda.syncthreads()  # line 16: all have filled the next slice and have read this one
                read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 17-18
            multiply(R_F1, R_I1, R_O)  # line 19: the last step, while line 18 reads

        epilogue(R_O, bias, output, m0 + ty * FLOAT4, n0 + window_at(tx * FLOAT4))  # line 20

    return fused_epilogue


def prepare(problem: ConvProblem, tile: Tile, relu: bool = False) -> Program:
    """``relu`` replaces negative results by zero."""
    tile.require_float4s("M_T", "N_T", "K_B")
    require_whole_columns(tile)
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B))
    kernel = make_kernel(problem, tile, relu)
    return tile_program(problem, tile, kernel, pack_in_order(problem, tile))


STAGE = Stage(
    __name__,
    title="Epilogue: bias and ReLU, and stores of whole sectors",
    source="im2win paper (000), Algorithm 3, without its tensor; ours",
    builds_on=("m13_window_copies",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=32, K_B=4, M_T=4, N_T=4), heuristic="m13"),
    vectorized=True,
    requires=Requirement((8, 0), "asynchronous copies"),
)
