"""t03: each number is split once, and a tensor core adds up 16 terms.

Source: ours, beyond the paper. ``mma_3xtf32`` splits its operands in two parts for every product: a
warp of t02 splits the windows again for every 16 channels, and each block splits the filter again.

- The windows are split in registers: ``multiply`` loads a step's windows by float4 and splits them,
  then takes the channels one after the other.
- The filter is split before the launch. ``packed`` holds both parts of each number in the fragments
  that ``mma`` fixes: ``[m // M_B, k // 8, m % M_B // 16, part, lane, number]``. A lane loads its
  four numbers as one float4, where t02's scalar loads have 4-way bank conflicts. In exchange the
  filter's traffic doubles.
- A chain of products ends after 16 terms, not 8, so that fewer ordinary additions are left. t01
  says why a chain must end at all.

The difference to t02 is long (over 150 lines), because the filter's new layout needs a transform of
its own and loads of its own. Later stages import the transform from here.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache

from numba import cuda, float32, int32, int64, uint32

from convlab.device import (
    BYTES_16,
    FLOAT4,
    gpu_only,
    load4,
    mma_tf32,
    split_tf32,
    store4,
    unrolled,
)
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.ladder.main.m13_window_copies import make_windows_of_thread, require_whole_columns
from convlab.ladder.main.m14_epilogue import (
    INFINITY,
    interleaved_lanes,
    make_fetch,
    make_interleave,
)
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
from convlab.ladder.tensor_cores.t01_mma import (
    LANES_M,
    LANES_N,
    MMA_K,
    make_epilogue,
    require_warp_tiles,
)
from convlab.problems.problem import ConvProblem

WARP = 32
PACKING_WARPS = 4  # of a block that packs; each packs 16 channels x 8 terms at a time, a step
PADDING = 4  # elements after a row of windows: lanes of four rows read four sets of banks
FRAGMENTS = 32 * 4  # numbers of 16 channels x 8 terms, as a warp's lanes hold them


@dataclass(frozen=True)
class Layout:
    """Positions of the numbers of 8 terms in the packed filter, in elements: a stride per digit
    of channel m (m % 4, m // 4 % 2, m // 8 % 2, m // 16) and of term k (k % 4, k // 4 % 2), and the
    distance from a large part to its small one."""

    m1: int
    m4: int
    m8: int
    m16: int
    k1: int
    k4: int
    small: int


def filter_layout(tile: Tile) -> Layout:
    """Fragments: m % 8 and k % 4 give the lane, m // 8 % 2 and k // 4 % 2 the number in it."""
    return Layout(m1=16, m4=64, m8=1, m16=2 * FRAGMENTS, k1=4, k4=2, small=FRAGMENTS)


def make_address(problem: ConvProblem, tile: Tile, layout: Layout) -> DeviceFunction:
    """Return ``address(m, k)``: where in ``packed`` the large part of a number is.

    The terms k are counted in the order of the slices.
    """
    M_B, K_P = tile.M_B, tile.whole_slices(problem.K)
    M1, M4, M8, M16, K1, K4, _ = astuple(layout)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def address(m, k):
        at = (int64(m // M_B) * K_P + k // 8 * 8) * (2 * M_B) + k % 4 * K1 + k // 4 % 2 * K4
        m %= M_B
        return at + m % 4 * M1 + m // 4 % 2 * M4 + m // 8 % 2 * M8 + m // 16 * M16

    return address


@lru_cache(maxsize=32)  # one kernel for all stages
def pack_filter(problem: ConvProblem, tile: Tile, layout: Layout) -> Program:
    """Whole tiles of ``packed[address(m, k)]`` and its small part, zeros beyond K and M. A number
    that TF32 cannot hold, an infinity or one next to the largest, has infinity as its large part
    and itself as its small one: nothing is lost."""
    M, K, K_P = problem.M, problem.K, tile.whole_slices(problem.K)
    row_blocks, PLACES = blocks_for(M, tile.M_B), problem.H_f * problem.W_f
    M_P, GROUP = row_blocks * tile.M_B, tile.channel_group(problem)
    # If a slice is channels of one place and the filter has several places, a block packs the same
    # 8 channels at each of them, because these are neighbours in memory; its warps take the steps
    # in turn. Otherwise a block packs one step, and each warp has other output channels.
    STEPS, GROUP_STEPS = PLACES if GROUP > 1 else 1, max(1, GROUP // 8)
    WARPS_M = PACKING_WARPS if STEPS == 1 else 1
    WARPS_K = PACKING_WARPS // WARPS_M
    BLOCKS_K = K_P // 8 // STEPS
    # The numbers have ranks in the order of the strides; each lane packs four neighbours by rank.
    digits, ranks, rank = ("m1", "m4", "m8", "k1", "k4"), {}, 1
    for name in sorted(digits, key=lambda name: getattr(layout, name)):
        ranks[name] = rank
        rank *= 4 if name in ("m1", "k1") else 2
    M1, M4, M8, K1, K4 = (ranks[name] for name in digits)
    _, D1, D2, D3 = (i // M1 % 4 + i // M4 % 2 * 4 + i // M8 % 2 * 8 for i in range(FLOAT4))
    _, E1, E2, E3 = (i // K1 % 4 + i // K4 % 2 * 4 for i in range(FLOAT4))
    SMALL, address = layout.small, make_address(problem, tile, layout)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def parts(weight, m, k):
        value = float32(0)
        if m < M and k < K:
            group, place, channel = k // (GROUP * PLACES), k // GROUP % PLACES, k % GROUP
            value = weight[m * K + (group * GROUP + channel) * PLACES + place]
        large, small = split_tf32(value)
        return large, small if abs(large) < INFINITY else value

    @cuda.jit(**gpu_only(launch_bounds=PACKING_WARPS * WARP))
    def split_filter(weight, packed):
        warp = uint32(cuda.threadIdx.x) // WARP
        rank = uint32(cuda.threadIdx.x) % WARP * FLOAT4
        x, y = uint32(cuda.blockIdx.x) % BLOCKS_K, uint32(cuda.blockIdx.x) // BLOCKS_K
        m = (y * WARPS_M + warp % WARPS_M) * 16
        m += rank // M1 % 4 + rank // M4 % 2 * 4 + rank // M8 % 2 * 8
        if m >= M_P:
            return
        for step in range(warp // WARPS_M, STEPS, WARPS_K):
            k = ((x // GROUP_STEPS * STEPS + uint32(step)) * GROUP_STEPS + x % GROUP_STEPS) * 8
            k += rank // K1 % 4 + rank // K4 % 2 * 4
            large0, small0 = parts(weight, m, k)
            large1, small1 = parts(weight, m + D1, k + E1)
            large2, small2 = parts(weight, m + D2, k + E2)
            large3, small3 = parts(weight, m + D3, k + E3)
            at = address(m, k)
            store4(packed, at, (large0, large1, large2, large3))
            store4(packed, at + SMALL, (small0, small1, small2, small3))

    # The grid has one dimension, because y may not hold so many blocks.
    grid = (BLOCKS_K * blocks_for(M_P, 16 * WARPS_M),)
    launch = Launch(split_filter, grid, (PACKING_WARPS * WARP,), (Flat("weight"), Flat("packed")))
    return Program((Buffer("packed", (row_blocks, K_P, 2 * tile.M_B)),), (launch,))


def make_filter_number(problem: ConvProblem, tile: Tile, layout: Layout) -> DeviceFunction:
    """Return ``filter_number(packed, m, e)``: what was ``weight[m, e]``, e through channels and
    places."""
    GROUP, PLACES = tile.channel_group(problem), problem.H_f * problem.W_f
    SMALL, address = layout.small, make_address(problem, tile, layout)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(packed, m, e):
        r, place = e // PLACES, e % PLACES
        at = address(m, (r // GROUP * PLACES + place) * GROUP + r % GROUP)
        large, small = packed[at], packed[at + SMALL]
        return large + small if abs(large) < INFINITY else small

    return filter_number


def slice_elements(tile: Tile) -> int:
    """Elements of a slice in shared memory."""
    return tile.K_B * (2 * tile.M_B + tile.N_B + PADDING)


def make_kernel(problem: ConvProblem, tile: Tile, relu: bool) -> Kernel:
    """Return the kernel that reads the filter ``packed`` as large and small parts, and splits each
    window's number once."""
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, tile.resident_blocks(88 + 2 * K_B), (M_T, N_T)
    SLICES, DEPTH = blocks_for(problem.K, K_B), tile.pipeline_depth(slice_elements(tile))
    PITCH, IN_FLIGHT = N_B + PADDING, DEPTH - 2
    F_SLICE, I_SLICE = K_B * 2 * M_B, K_B * PITCH
    F_SLICES, I_SLICES = DEPTH * F_SLICE, DEPTH * I_SLICE
    WARP_M, WARP_N = LANES_M * M_T, LANES_N * N_T
    WARPS_N = N_B // WARP_N  # warps along N
    CHAIN = 2 if K_B % (2 * MMA_K) == 0 else 1  # steps that are added before the sums round
    I_SHAPE, F_SHAPE = (2 * CHAIN, N_T // 2), (CHAIN, 4)
    LANES = interleaved_lanes(problem, LANES_N)
    column_of, window_at = make_interleave(LANES)
    fetch_slice = make_fetch(problem, tile, padding=PADDING, column_of=column_of, parts=2)
    windows_of_thread, TIMES = make_windows_of_thread(problem, tile)
    filter_number = make_filter_number(problem, tile, filter_layout(tile))
    epilogue = make_epilogue(
        problem, tile, relu=relu, filter_number=filter_number, LANES_M=LANES_M, LANES=LANES
    )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_windows(S_I, at, L_I, T_I):
        for half in range(2 * CHAIN):  # of a step: rows thread_in_group and + 4
            for j in range(0, N_T // 2, FLOAT4):
                x, y, z, w = load4(S_I, at + (4 * half * PITCH + j * LANES_M))
                L_I[half, j], T_I[half, j] = split_tf32(x)
                L_I[half, j + 1], T_I[half, j + 1] = split_tf32(y)
                L_I[half, j + 2], T_I[half, j + 2] = split_tf32(z)
                L_I[half, j + 3], T_I[half, j + 3] = split_tf32(w)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read_filter(S_F, at, k, i, L_F, T_F):
        at += k * (2 * M_B) + i // 2 * (2 * FRAGMENTS)
        for c in range(CHAIN):
            of_step = at + c * (2 * MMA_K * M_B)
            L_F[c, 0], L_F[c, 1], L_F[c, 2], L_F[c, 3] = load4(S_F, of_step)
            T_F[c, 0], T_F[c, 1], T_F[c, 2], T_F[c, 3] = load4(S_F, of_step + FRAGMENTS)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def multiply(k, S_F, S_I, at_F, at_I, R_O):
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

    steps = unrolled(multiply, range(0, K_B, CHAIN * MMA_K))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I):
        if slice_ < SLICES:
            fetch_slice(input, packed, first, i_h, i_w, t, slice_, pipe, S_F, S_I)
        commit_copies()  # also an empty commit group, because wait_copies counts them

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def tensor_cores(input, packed, bias, output):
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
        at_F = row * (2 * MMA_K) + lane * 4
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

    return tensor_cores


def prepare(problem: ConvProblem, tile: Tile, relu: bool = False) -> Program:
    """``relu`` replaces negative results by zero."""
    require_warp_tiles(tile, LANES_M, LANES_N)
    require_whole_columns(tile)
    tile.require_shared_memory(2 * slice_elements(tile))
    kernel = make_kernel(problem, tile, relu)
    return tile_program(problem, tile, kernel, pack_filter(problem, tile, filter_layout(tile)))


STAGE = Stage(
    __name__,
    title="Numbers split once: windows in registers, the filter before the launch",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("t02_mma_pipeline",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(16, 32, 8, 2, 8), model=Tile(32, 64, 16, 4, 8), heuristic="t03"),
    vectorized=True,
    precision="3xtf32",
    requires=Requirement((8, 0), "asynchronous copies"),
)
