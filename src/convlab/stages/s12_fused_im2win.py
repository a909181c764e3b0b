"""s12: im2win without its tensor. Each block makes the window-ordered slices in shared memory.

Source: ours, beyond the paper. s11 writes the im2win tensor to global memory and reads it again:
a pass over memory, and a workspace of several times the input. The kernel only ever reads K_B rows
of N_B windows at a time, so here each block copies just that slice from the input
(:mod:`window_copies`). What is computed and in which order is Algorithm 3's.

Where there are few outputs, as with one image, the blocks along z share the slices of each sum
(split-K): ``output`` begins as zeros, and every block adds its part atomically. The order of the
additions is not fixed, so with three parts or more the last bits may differ from call to call;
``whole_sums=True`` never splits.

The epilogue adds the bias and, with ``relu=True``, replaces negative numbers by zero.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, commit_copies, gpu_only, load4, wait_copies
from convlab.kernels import window_copies
from convlab.kernels.epilogue import interleaved_lanes, make_add, make_write
from convlab.kernels.tile_heuristic import H200_SMS, S12
from convlab.problem import ConvProblem
from convlab.stage import (
    SHARED_BYTES,
    Buffer,
    Flat,
    Launch,
    Program,
    Requirement,
    Stage,
    Tile,
    Tiles,
    blocks_for,
)

CLEARING = 256  # threads of a block that clears
LANES_M, LANES_N = 4, 8  # lanes of a warp along M and N


def pipeline_depth(tile: Tile) -> int:
    """Slices in shared memory: one to multiply and two in flight, or one where three do not fit."""
    return 3 if 3 * 4 * tile.K_B * (tile.M_B + tile.N_B) <= SHARED_BYTES else 2


def lanes_of(problem: ConvProblem, tile: Tile, splits: int) -> int:
    """Across how many lanes windows are interleaved: a warp's along N, where there are warps."""
    by_warps = tile.rows % LANES_M == tile.columns % LANES_N == 0
    lanes = LANES_N if by_warps else 1
    return lanes if splits > 1 else interleaved_lanes(problem, lanes)


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool = False, splits: int = 1) -> Any:
    """The kernel with all sizes as constants."""
    p = problem
    N, C_i, H_i, W_i, H_o, W_o = p.N, p.C_i, p.H_i, p.W_i, p.H_o, p.W_o
    s_h, s_w, p_h, p_w = p.s_h, p.s_w, p.p_h, p.p_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, ROWS, COLUMNS = tile.threads, tile.rows, tile.columns
    BY_WARPS, WARPS_N = ROWS % LANES_M == COLUMNS % LANES_N == 0, max(1, COLUMNS // LANES_N)
    SLICES, DEPTH, BLOCKS = blocks_for(p.K, K_B), pipeline_depth(tile), S12.resident_blocks(tile)
    F_SLICES, I_SLICES, O_SHAPE = DEPTH * K_B * M_B, DEPTH * K_B * N_B, (M_T, N_T)
    IN_FLIGHT, ODD = DEPTH - 2, K_B % 2 == 1
    AT_A_TIME, TIMES = window_copies.fetching_columns(tile)
    SHARE = blocks_for(SLICES, splits)  # of a block, in slices
    TURNS = 2 if ODD else 1  # slices until the registers have the same roles again
    LANES = lanes_of(problem, tile, splits)
    fetch_filter = window_copies.make_fetch_filter(tile, SLICES * K_B)
    fetch_windows = window_copies.make_fetch_windows(problem, tile, lanes=LANES)
    window_at = window_copies.make_window_at(LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(i):
        """How far channel i of a thread is from its first one."""
        return i // FLOAT4 * FLOAT4 * ROWS + i % FLOAT4

    write = make_write(problem, tile, relu, row_of, COLUMNS, LANES)
    if splits > 1:
        write = make_add(problem, tile, row_of, LANES)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, at_F, at_I, k, R_F, R_I):
        """Row k of the slices that begin at at_F and at_I, shared memory to registers."""
        for i in range(0, M_T, FLOAT4):
            four = load4(S_F, at_F + (k * M_B + i * ROWS))
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four
        for j in range(0, N_T, FLOAT4):
            four = load4(S_I, at_I + (k * N_B + j * COLUMNS))
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(R_F, R_I, R_O):
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] += R_F[i] * R_I[j]

    def steps_from(k: int) -> Any:
        """Lines 9-12 from step k on: read one step ahead. Each step is a call with a constant k.
        The last step ends up in R_F0 and R_I0 for an odd K_B, in R_F1 and R_I1 otherwise."""
        following = steps_from(k + 1) if k + 1 < K_B else None

        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def step(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
            if following is not None:
                read(S_F, S_I, at_F, at_I, k + 1, R_F1, R_I1)
                multiply(R_F0, R_I0, R_O)
                following(S_F, S_I, at_F, at_I, R_F1, R_I1, R_F0, R_I0, R_O)

        return step

    steps = steps_from(0)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(slice_, end, pipe, input, packed, t, first, i_h, i_w, S_F, S_I):
        if slice_ < end:
            fetch_filter(packed, slice_, pipe, t, S_F)
            fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)
        commit_copies()  # even an empty group: wait_copies counts groups

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def wait_for(slice_, end, pipe, ty, tx, S_F, S_I, R_F, R_I):
        wait_copies(IN_FLIGHT)  # this thread's copies of the slice have landed;
        cuda.syncthreads()  # so have all threads'; the buffer before it may be filled again
        if slice_ < end:
            read(
                S_F,
                S_I,
                pipe * (K_B * M_B) + ty * FLOAT4,
                pipe * (K_B * N_B) + tx * FLOAT4,
                0,
                R_F,
                R_I,
            )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply_slice(
        slice_, end, pipe, input, packed, t, ty, tx, first, i_h, i_w,
        S_F, S_I, R_F0, R_I0, R_F1, R_I1, R_O,
    ):  # fmt: skip
        before = pipe - 1 if pipe > 0 else DEPTH - 1  # its slice is done, so it can be filled
        after = pipe + 1 if pipe + 1 < DEPTH else 0
        fetch(slice_ + DEPTH - 1, end, before, input, packed, t, first, i_h, i_w, S_F, S_I)
        at_F, at_I = pipe * (K_B * M_B) + ty * FLOAT4, pipe * (K_B * N_B) + tx * FLOAT4
        steps(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O)
        if ODD:
            wait_for(slice_ + 1, end, after, ty, tx, S_F, S_I, R_F1, R_I1)
            multiply(R_F0, R_I0, R_O)
        else:
            wait_for(slice_ + 1, end, after, ty, tx, S_F, S_I, R_F0, R_I0)
            multiply(R_F1, R_I1, R_O)
        return after

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_and_column(t):
        """The thread's place in the tile. A warp is 4 x 8: lanes (0, 0), (1, 0), (0, 1), ..."""
        if BY_WARPS:
            warp, lane = t // 32, t % 32
            ty = warp // WARPS_N * LANES_M + lane // 16 * 2 + lane % 2
            tx = warp % WARPS_N * LANES_N + lane % 16 // 2
        else:
            ty, tx = t // COLUMNS, t % COLUMNS
        return uint32(ty), uint32(tx)

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def fused_im2win(input, packed, bias, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_F0, R_F1 = cuda.local.array(M_T, float32), cuda.local.array(M_T, float32)
        R_I0, R_I1 = cuda.local.array(N_T, float32), cuda.local.array(N_T, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        first = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = row_and_column(t)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # Where the windows begin that this thread fetches from. Past the last one, fetch that
        # again; its results are not written.
        for c in range(TIMES):
            window = min(n0 + t % AT_A_TIME + c * AT_A_TIME, N - 1)
            i_n, pixel = window // (H_o * W_o), window % (H_o * W_o)
            i_h[c] = pixel // W_o * s_h - p_h
            i_w[c] = pixel % W_o * s_w - p_w
            first[c] = int64(i_n) * (C_i * H_i * W_i) + i_h[c] * W_i + i_w[c]

        begin, end = 0, SLICES
        if splits > 1:
            begin = int32(cuda.blockIdx.z) * SHARE
            end = min(begin + SHARE, SLICES)
        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for pipe in range(DEPTH - 1):
            fetch(begin + pipe, end, pipe, input, packed, t, first, i_h, i_w, S_F, S_I)
        pipe = 0
        wait_for(begin, end, pipe, ty, tx, S_F, S_I, R_F0, R_I0)
        for slice_ in range(begin, end, TURNS):
            pipe = multiply_slice(
                slice_, end, pipe, input, packed, t, ty, tx, first, i_h, i_w,
                S_F, S_I, R_F0, R_I0, R_F1, R_I1, R_O,
            )  # fmt: skip
            if TURNS == 2 and slice_ + 1 < end:
                pipe = multiply_slice(
                    slice_ + 1, end, pipe, input, packed, t, ty, tx, first, i_h, i_w,
                    S_F, S_I, R_F1, R_I1, R_F0, R_I0, R_O,
                )  # fmt: skip

        write(R_O, bias, output, m0 + ty * FLOAT4, n0 + window_at(tx * FLOAT4))

    return fused_im2win


def make_clear(elements: int) -> Any:
    """``output`` as zeros, for sums that are added to it."""

    @cuda.jit(**gpu_only(launch_bounds=CLEARING))
    def clear(output):
        at = int64(cuda.blockIdx.x) * CLEARING + cuda.threadIdx.x
        if at < elements:
            output[at] = float32(0)

    return clear


def prepare(
    problem: ConvProblem,
    tile: Tile,
    relu: bool = False,
    whole_sums: bool = False,
    splits: int | None = None,
    sm_count: int = H200_SMS,
) -> Program:
    """As every stage's; ``relu`` replaces negative results by zero. ``splits`` is the number
    of blocks that share each sum. By default the model chooses it for a GPU of so many SMs, or it
    is 1 with ``whole_sums`` and with ``relu``, which needs whole sums. Raises ``ValueError`` for
    ``relu`` with more splits than one."""
    check_tile(tile)
    if relu and splits is not None and splits > 1:
        raise ValueError(
            f"splits is {splits}: with relu it must be 1, because relu needs whole sums"
        )
    if splits is None:
        splits = 1 if relu or whole_sums else S12.best_splits(problem, tile, sm_count)
    slices = blocks_for(problem.K, tile.K_B)
    splits = blocks_for(slices, blocks_for(slices, splits))  # so that each has some
    M_P = blocks_for(problem.M, tile.M_B) * tile.M_B
    K_P = blocks_for(problem.K, tile.K_B) * tile.K_B
    pack = window_copies.pack_launch(problem, tile, K_P, M_P)
    main = Launch(
        make_kernel(problem, tile, relu, splits),
        grid=(blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B), splits),
        block=(tile.threads,),
        arguments=(Flat("input"), Flat("packed"), "bias", Flat("output")),
    )
    elements = problem.M * problem.N
    clear = Launch(
        make_clear(elements), (blocks_for(elements, CLEARING),), (CLEARING,), (Flat("output"),)
    )
    launches = (pack, main) if splits == 1 else (pack, clear, main)
    return Program((Buffer("packed", (M_P // tile.M_B, K_P, tile.M_B)),), launches, tile)


def check_tile(tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that does not suit the kernel."""
    tile.require(
        tile.M_T % FLOAT4 == tile.N_T % FLOAT4 == 0,
        "M_T and N_T must be multiples of 4, because four numbers move at a time",
    )
    window_copies.check_tile(tile)
    tile.require_shared_memory(2 * tile.K_B * (tile.M_B + tile.N_B))


STAGE = Stage(
    __name__,
    title="Fused im2win: the windows are made in shared memory",
    source="im2win paper (000), Algorithm 3, without its tensor; ours",
    builds_on=("s11b_multistage",),
    prepare=prepare,
    tiles=Tiles(
        production=S12.best_tile,
        tiny=Tile(M_B=16, N_B=32, K_B=4, M_T=4, N_T=4),
        model=Tile(M_B=32, N_B=64, K_B=16, M_T=4, N_T=4),
        candidates=S12.candidates,
    ),
    vectorized=True,
    requires=Requirement((8, 0), "asynchronous copies"),
    atomic_additions=S12.most_splits,
)
