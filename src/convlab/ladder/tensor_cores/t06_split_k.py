"""t06: split-K on warpgroups. Several blocks share a tile's sums, so that few tiles fill all SMs.

Source: ours, beyond the paper; the last block's sum is that of CUDA's sample threadFenceReduction.
Few outputs (a late layer, a single image) have fewer tiles than a GPU has SMs. As in m15, blocks
along z share a tile's slices. m15 adds the parts atomically, in no fixed order. Here each block
stores its part of the sums to ``parts`` and counts itself in ``counts``. The block that arrives
last adds all parts, in the order of z:

- The outputs are the same in every call, and ReLU is allowed, because one block has whole sums.
- Sums that are not finite are computed again as in t05, because one block has the whole output.
- The additions need no second launch, and no pass over the output that begins it with zeros.

``tile_heuristic.splits_for`` chooses how many blocks share a tile; with one, as with
``split_k=False``, the stage is t05.

The difference to t05 is long (over 150 lines), because it is a whole kernel of which only the share
of the slices and the join are new: the product is t05's, imported.
"""

from __future__ import annotations

from numba import cuda, float32, int32, int64, uint32

from convlab.device import BYTES_16, FLOAT4, gpu_only, load4, store4
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.device.tensor_core import fence_shared
from convlab.ladder.layouts.output_fill import zeros_of
from convlab.ladder.main.m13_window_copies import make_windows_of_thread
from convlab.ladder.main.m14_epilogue import interleaved_lanes, make_fetch, make_interleave
from convlab.ladder.stage import (
    Buffer,
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
from convlab.ladder.tensor_cores import t05_warpgroups
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

assert DEPTH == 2, "the kernel fills the pipeline's other buffer, 1 - pipe"


def make_join(tile: Tile, tiles_n: int, splits: int) -> DeviceFunction:
    """Return ``join(R_O, parts, counts, t)``, which stores a block's part of its tile's sums. In
    the block that arrives last it returns True, with the whole sums in R_O.

    ``parts`` is ``[tile, split, row of R_O, thread, column of R_O]``, so that a warp stores and
    loads neighbouring float4s; N_T is 4. ``counts`` has for each tile the number of blocks that
    have stored their part. The last block sets it back to 0 for the next call. ``tiles_n`` is the
    number of tiles along N.
    """
    M_T, ROW = tile.M_T, FLOAT4 * tile.threads
    PART = M_T * ROW

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def join(R_O, parts, counts, t):
        tile_index = uint32(cuda.blockIdx.y) * tiles_n + uint32(cuda.blockIdx.x)
        first = int64(tile_index) * (splits * PART) + t * FLOAT4
        own = first + int64(cuda.blockIdx.z) * PART
        for i in range(M_T):
            store4(parts, own + i * ROW, (R_O[i, 0], R_O[i, 1], R_O[i, 2], R_O[i, 3]))
        cuda.threadfence()  # other blocks see this thread's part before the count;
        cuda.syncthreads()  # so they also see the parts of all threads of this block
        last = int32(0)
        if t == 0 and cuda.atomic.add(counts, tile_index, float32(1)) == float32(splits - 1):
            last = int32(1)
        if cuda.syncthreads_or(last) == 0:
            return False
        cuda.threadfence()  # the parts are read after the count that says that all are there
        for z in range(splits):
            for i in range(M_T):
                a, b, c, d = load4(parts, first + z * PART + i * ROW)
                before = z > 0
                R_O[i, 0] = R_O[i, 0] + a if before else a
                R_O[i, 1] = R_O[i, 1] + b if before else b
                R_O[i, 2] = R_O[i, 2] + c if before else c
                R_O[i, 3] = R_O[i, 3] + d if before else d
        if t == 0:
            counts[tile_index] = float32(0)
        return True

    return join


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool, splits: int) -> Kernel:
    """Return the kernel of which ``splits`` blocks share a tile's sums through ``parts`` and
    ``counts`` in global memory."""
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, tile.resident_blocks(96), (M_T, N_T)
    PADDING, ROTATION = padding_or_rotation(tile)
    SLICES, PITCH = blocks_for(problem.K, K_B), N_B + PADDING
    SHARE = blocks_for(SLICES, splits)  # slices of a block
    AT_FIRST = SHARE if SHARE <= DEPTH else DEPTH - 1  # slices fetched before the loop
    F_SLICE, I_SLICE = K_B * 2 * M_B, K_B * PITCH  # numbers; F: both parts, as core matrices
    F_SLICES, I_SLICES = DEPTH * F_SLICE, DEPTH * I_SLICE
    LANES = interleaved_lanes(problem, LANES_N)
    column_of, window_at = make_interleave(LANES)
    fetch_slice = make_fetch(
        problem, tile, padding=PADDING, column_of=column_of, rotation=ROTATION, parts=2
    )
    windows_of_thread, TIMES = make_windows_of_thread(problem, tile)
    multiply = t05_warpgroups.make_multiply(tile)
    join = make_join(tile, blocks_for(problem.N, N_B), splits)
    filter_number = make_filter_number(problem, tile, core_matrices(tile))
    epilogue = make_epilogue(
        problem, tile, relu=relu, filter_number=filter_number, LANES_M=LANES_M, LANES=LANES
    )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, end, pipe, S_F, S_I):
        if slice_ < end:
            fetch_slice(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I)
        commit_copies()  # past the last slice the group is empty, and waiting for it costs nothing

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def split_warpgroups(input, packed, bias, parts, counts, output):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        R_O = cuda.local.array(O_SHAPE, float32)
        first = cuda.local.array(TIMES, int64)
        i_h, i_w = cuda.local.array(TIMES, int32), cuda.local.array(TIMES, int32)
        t = uint32(cuda.threadIdx.x)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B
        begin = int32(cuda.blockIdx.z) * SHARE
        end = min(begin + SHARE, SLICES)

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
            fetch(input, packed, first, i_h, i_w, t, begin + pipe, end, pipe, S_F, S_I)
        pipe = 0
        for slice_ in range(begin, end):
            wait_copies(0)  # this thread's copies of the slice have landed;
            fence_shared()  # and the tensor cores see them;
            cuda.syncthreads()  # also all threads' copies; the previous slice may be overwritten
            if SHARE > AT_FIRST:
                fetch(input, packed, first, i_h, i_w, t, slice_ + 1, end, 1 - pipe, S_F, S_I)
            multiply(S_F, S_I, pipe * F_SLICE, at_I + pipe * I_SLICE, R_O)
            pipe = 1 - pipe

        if join(R_O, parts, counts, t):
            m_t, n_t = m0 + thread_in_group, n0 + window_at(column)
            epilogue(R_O, input, packed, bias, output, m_t, n_t)  # recomputes non-finite sums

    return split_warpgroups


def prepare(
    problem: ConvProblem,
    tile: Tile,
    relu: bool = False,
    split_k: bool = True,
    splits: int = 1,
) -> Program:
    """Return the program in which ``splits`` blocks share each sum (split-K).

    ``relu`` replaces negative results by zero. Raises ``ValueError`` if ``splits`` is above 1 with
    ``split_k=False``.
    """
    if splits > 1 and not split_k:
        raise ValueError(f"splits is {splits}: with split_k=False it must be 1")
    slices = blocks_for(problem.K, tile.K_B)
    splits = blocks_for(slices, blocks_for(slices, splits))  # so that each block has slices
    if splits == 1:
        return t05_warpgroups.prepare(problem, tile, relu)
    require_warpgroup_tile(tile)
    tiles = blocks_for(problem.M, tile.M_B) * blocks_for(problem.N, tile.N_B)
    counts = Buffer("counts", (tiles,))
    parts = Buffer("parts", (tiles * splits * tile.M_B * tile.N_B,))
    kernel = make_kernel(problem, tile, relu, splits)
    packed = pack_filter(problem, tile, core_matrices(tile))
    before = Program(
        (*packed.buffers, counts, parts),
        (*packed.launches, zeros_of(counts.name, tiles)),
    )
    return tile_program(problem, tile, kernel, before, splits=(splits,))


STAGE = Stage(
    __name__,
    title="Split-K: the last block of a tile adds the parts of its sums",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("t05_warpgroups",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(8, 128, 16, 2, 4), model=Tile(32, 128, 16, 8, 4), heuristic="t06"),
    vectorized=True,
    precision="3xtf32",
    requires=Requirement((9, 0), "its tensor cores' own instruction, wgmma", exact=True),
)
