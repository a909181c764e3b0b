"""m15: split-K and slices of any depth. Few outputs fill all SMs, and short sums waste little.

Source: ours, beyond the paper. Two kinds of problems leave a GPU idle in m14:

- Few outputs, as of one image, have too few tiles for all SMs. With split-K, blocks along z share a
  tile's slices: ``output`` begins as zeros, and each block adds its part atomically, in no fixed
  order. Two parts add up to the same in either order; three parts or more may differ in the last
  bits. ``tile_heuristic.splits_for`` chooses how many blocks share a tile; ``split_k=False`` keeps
  one.
- A short sum is rounded up to whole slices: three channels and a 3 x 3 filter make K = 27, which is
  three slices of 9 or four of 8. Here K_B may be any number. After an odd number of steps the two
  register buffers have exchanged their roles, so each turn of the loop multiplies two slices.

The two are one step, because both decide which slices a block multiplies and so change the same
loop: split-K gives it a begin and an end, and K_B says how many turns lie between them. A share of
the slices may be odd in number, as a whole sum's may be.

The difference to m14 is long (over 150 lines), because split-K needs an epilogue of its own and the
second slice of a turn repeats the first. On Conv9 the stage is slightly slower than m14, whose
slices suit that layer already: the step buys speed for small problems.
"""

from __future__ import annotations

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, unrolled
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.ladder.layouts import output_fill
from convlab.ladder.layouts.filter_layout import pack_in_order
from convlab.ladder.main.m11_warp_tiling import LANES_N, divides_into_warps, make_warp_tile
from convlab.ladder.main.m13_window_copies import make_windows_of_thread, require_whole_columns
from convlab.ladder.main.m14_epilogue import (
    interleaved_lanes,
    make_fetch,
    make_interleave,
    make_write,
)
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
from convlab.problems.problem import ConvProblem


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool = False, splits: int = 1) -> Kernel:
    """Return the kernel that computes whole sums, or with ``splits`` > 1 adds its part of each sum
    to the output."""
    M, N, PIXELS = problem.M, problem.N, problem.H_o * problem.W_o
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    BY_WARPS = divides_into_warps(ROWS, COLUMNS)
    row_and_column = make_warp_tile(ROWS, COLUMNS)
    PITCH = N_B  # of the input slice: neighbouring threads copy neighbouring windows
    DEPTH = tile.pipeline_depth(K_B * (M_B + PITCH))  # slices in shared memory
    IN_FLIGHT = DEPTH - 2  # commit groups that may be in flight when the next slice is needed
    F_SLICES, I_SLICES, O_SHAPE = DEPTH * K_B * M_B, DEPTH * K_B * PITCH, (M_T, N_T)
    SLICES, BLOCKS = blocks_for(problem.K, K_B), tile.resident_blocks(64)
    SHARE = blocks_for(SLICES, splits)  # slices of a block
    WHOLE_ROWS, WHOLE_COLUMNS = M % M_B == 0, N % N_B == 0
    ODD = K_B % 2 == 1  # then each slice exchanges the register buffers' roles
    LANES = interleaved_lanes(problem, LANES_N if BY_WARPS else 1)
    if splits > 1 and BY_WARPS:  # split-K adds scalars, so it always interleaves
        LANES = LANES_N
    column_of, window_at = make_interleave(LANES)
    fetch = make_fetch(problem, tile, column_of=column_of)
    windows_of_thread, TIMES = make_windows_of_thread(problem, tile)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(i):
        """The distance from a thread's first channel to its channel i."""
        return i // FLOAT4 * FLOAT4 * ROWS + i % FLOAT4

    write = make_write(problem, tile, relu=relu, row_of=row_of, FLOAT4_STEP=COLUMNS, LANES=LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def add(R_O, bias, output, m_t, n_t):
        """Split-K's epilogue: a block adds its part of each sum in M x N, block 0 also the bias."""
        for j in range(0, N_T, FLOAT4):
            for c in range(FLOAT4):
                n = n_t + j * COLUMNS + c * LANES
                if WHOLE_COLUMNS or n < N:
                    i_n, pixel = n // PIXELS, n % PIXELS
                    for i in range(M_T):
                        m = m_t + row_of(i)
                        if WHOLE_ROWS or m < M:
                            at, b = (i_n * M + m) * PIXELS + pixel, bias[m]
                            b = b if cuda.blockIdx.z == 0 else float32(0)
                            cuda.atomic.add(output, at, R_O[i, j + c] + b)

    epilogue = add if splits > 1 else write  # with split-K partial sums are added

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

    pairs_of_steps = unrolled(two_steps, range(0, K_B - 2, 2))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def steps(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
        """All steps of a slice but the last one, which line 19 multiplies: from R_F1 and R_I1 if
        K_B is even, from R_F0 and R_I0 if it is odd."""
        pairs_of_steps(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)
        if not ODD:
            read(S_F, S_I, at_F, at_I, K_B - 1, R_F1, R_I1)
            multiply(R_F0, R_I0, R_O)

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def split_k(input, packed, bias, output):
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

        begin, end = 0, SLICES
        if splits > 1:
            begin = int32(cuda.blockIdx.z) * SHARE
            end = min(begin + SHARE, SLICES)
        windows_of_thread(n0, t, first, i_h, i_w)
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        pipe = uint32(0)  # the stage of the pipeline that holds the slice to multiply
        at_F, at_I = uint32(ty * FLOAT4), uint32(tx * FLOAT4)  # this thread's part of it
        for early in range(DEPTH - 1):  # lines 3-4
            if begin + early < end:
                fetch(input, packed, first, i_h, i_w, t, begin + early, early, S_F, S_I)
            commit_copies()
        wait_copies(IN_FLIGHT)
        cuda.syncthreads()  # line 5: all threads have filled the slice
        read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 6-7
        for slice_ in range(begin + 1, end + 1, 2 if ODD else 1):  # line 8: multiplies slice_ - 1
            free = pipe - 1 if pipe > 0 else DEPTH - 1  # all had read it by the last barrier
            if slice_ + IN_FLIGHT < end:
                fetch(input, packed, first, i_h, i_w, t, slice_ + IN_FLIGHT, free, S_F, S_I)
            commit_copies()  # a commit group per slice, at last empty ones: IN_FLIGHT counts slices
            steps(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)  # lines 9-12
            if slice_ < end:
                pipe = uint32(pipe + 1 if pipe + 1 < DEPTH else 0)
                at_F = uint32(pipe * (K_B * M_B) + ty * FLOAT4)
                at_I = uint32(pipe * (K_B * PITCH) + tx * FLOAT4)
                wait_copies(IN_FLIGHT)  # lines 14-15
                cuda.syncthreads()  # line 16: all have filled the next slice and have read this one
                if ODD:  # the last step is in R_F0 and R_I0, so the next slice begins in the others
                    read(S_F, S_I, at_F, at_I, 0, R_F1, R_I1)
                else:
                    read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 17-18
            if ODD:
                multiply(R_F0, R_I0, R_O)
            else:
                multiply(R_F1, R_I1, R_O)  # line 19: the last step, while line 18 reads
            if ODD and slice_ < end:  # the same for slice_, with R_F0 and R_F1 exchanged
                free = pipe - 1 if pipe > 0 else DEPTH - 1
                if slice_ + 1 + IN_FLIGHT < end:
                    fetch(input, packed, first, i_h, i_w, t, slice_ + 1 + IN_FLIGHT, free, S_F, S_I)
                commit_copies()
                steps(S_F, S_I, at_F, at_I, R_F1, R_I1, R_F0, R_I0, R_O)
                if slice_ + 1 < end:
                    pipe = uint32(pipe + 1 if pipe + 1 < DEPTH else 0)
                    at_F = uint32(pipe * (K_B * M_B) + ty * FLOAT4)
                    at_I = uint32(pipe * (K_B * PITCH) + tx * FLOAT4)
                    wait_copies(IN_FLIGHT)
                    cuda.syncthreads()
                    read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)
                multiply(R_F1, R_I1, R_O)

        epilogue(R_O, bias, output, m0 + ty * FLOAT4, n0 + window_at(tx * FLOAT4))  # line 20

    return split_k


def prepare(
    problem: ConvProblem,
    tile: Tile,
    relu: bool = False,
    split_k: bool = True,
    splits: int = 1,
) -> Program:
    """Return the program in which ``splits`` blocks share each sum (split-K).

    ``relu`` replaces negative results by zero. Raises ``ValueError`` if ``splits`` is above 1 with
    ``relu`` or ``split_k=False``.
    """
    tile.require_float4s("M_T", "N_T")
    require_whole_columns(tile)
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B))
    if splits > 1 and (relu or not split_k):
        raise ValueError(f"splits is {splits}: with relu=True or split_k=False it must be 1")
    slices = blocks_for(problem.K, tile.K_B)
    splits = blocks_for(slices, blocks_for(slices, splits))  # so that each block has slices
    kernel = make_kernel(problem, tile, relu, splits)
    before = pack_in_order(problem, tile)
    if splits > 1:
        before = Program(before.buffers, (*before.launches, output_fill.zeros_launch(problem)))
    return tile_program(problem, tile, kernel, before, splits=(splits,))


STAGE = Stage(
    __name__,
    title="Split-K, and slices of any depth, for few outputs and short sums",
    source="im2win paper (000), Algorithm 3, without its tensor; ours",
    builds_on=("m14_epilogue",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=32, K_B=4, M_T=4, N_T=4), heuristic="m15"),
    vectorized=True,
    requires=Requirement((8, 0), "asynchronous copies"),
)
