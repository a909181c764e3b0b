"""g03: gradients by warpgroups. The weight's gradient shares its pixels among all SMs.

Source: ours, beyond the paper. g02 computes dL/dweight as a convolution. An element of it is a sum
over all pixels of all images, so g02 first copies both tensors to other layouts, and then has few
outputs. Conv7 has 1,728 elements, each a sum over 1.6 million pixels. Here

    dL/dweight[m, n] = sum over pixels k of  dL/doutput[m, k] * input[n, k]

is a product of matrices whose rows lie in memory as the tensors are: pixels are neighbours in
both. n counts channels and filter taps, and input[n, k] is the number that tap n reads at pixel k.

- No layout transforms: a block copies its slice of 16 pixels from the input, as m13 does, and loads
  those of dL/doutput into registers. It splits these numbers itself (t03 says why) and stores both
  parts to shared memory in the layout that ``wgmma`` reads.
- A sum in two steps: blocks along z share the pixels (split-K) and store parts of the sums. A
  second launch adds the parts, always in the same order.

Any terms of a slice may be a lane's, if both operands agree. Here a lane has four neighbours, terms
4 * thread_in_group to 4 * thread_in_group + 3. So one float4 holds its terms of a row, and a row
needs no padding: eight lanes read two whole rows. dL/dinput is g02's convolution through t06.
"""

# The file has over 400 lines, because both kernels, their device functions and the model that
# chooses tile and splits stand here in the order in which they are read.

from __future__ import annotations

from numba import cuda, float32, int32, int64, types, uint32

from convlab.device import BYTES_16, FLOAT4, copy_async, gpu_only, load4, split_tf32
from convlab.device.intrinsics import commit_copies, wait_copies
from convlab.device.tensor_core import fence_shared, finish_product, start_product
from convlab.ladder.gradients.g02_exchanged_roles import STAGE as BY_FLOATS
from convlab.ladder.gradients.g02_exchanged_roles import through
from convlab.ladder.main.m14_epilogue import INFINITY
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
)
from convlab.ladder.tensor_cores.t04_swapped_operands import DEPTH
from convlab.ladder.tensor_cores.t06_split_k import STAGE as BY_WARPGROUPS
from convlab.ladder.tile_heuristic import H200_SMS
from convlab.problems.gradient import Gradient

assert DEPTH == 2, "the kernel fills the pipeline's other buffer, 1 - pipe"

SLICE = 16  # pixels of a slice: K_B, a row of the input's slice in shared memory
LANES_N = 8  # lanes of a warp along the taps
FEWEST_SLICES = 8  # slices of a block: fewer would spend their time on beginning and ending
ADDING_THREADS = 256

# Prices on an H200, fitted to the times of 18 layers by tests/tools/warpgroup_tiles.py.
SLICE_NS = {  # nanoseconds that an SM needs for a slice of one block, by M_B and N_B
    (32, 64): 270.0,
    (32, 128): 415.0,
    (64, 64): 385.0,
    (64, 128): 610.0,
    (96, 64): 500.0,
    (96, 128): 770.0,
    (128, 64): 640.0,
}
SCALAR_ROW_NS = 3.0  # additional for each channel whose pixels are loaded one at a time
BEGIN_AND_END = 4  # a block's beginning and end take as long as so many slices
PART_NS = 0.0027  # nanoseconds to write and to read a number of ``parts``
REGISTERS = 112  # of a thread beside its sums
INPUT_GRADIENT = through(BY_WARPGROUPS)


def make_locate(gradient: Gradient) -> DeviceFunction:
    """Return ``locate(k)``, which returns for pixel k of all images its image, and the row and the
    column in the output."""
    p = gradient.problem
    PIXELS, W_o = p.H_o * p.W_o, p.W_o

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def locate(k):
        pixel = k % PIXELS
        return k // PIXELS, pixel // W_o, pixel % W_o

    return locate


def index_of(gradient: Gradient) -> types.Integer:
    """Return the type of indices of the input: 32-bit arithmetic is faster."""
    p = gradient.problem
    return int32 if p.N_i * p.C_i * p.H_i * p.W_i < 2**31 else int64


def make_fetch_taps(gradient: Gradient, tile: Tile) -> tuple[DeviceFunction, DeviceFunction]:
    """Return ``find_taps(n0, t, OFFSET, DOWN, ACROSS)`` and ``fetch_taps(input, k0, at, t, OFFSET,
    DOWN, ACROSS, S_I)``.

    The first stores where the block's taps read, from the start of a window: in memory, in rows and
    in columns. The second starts to copy the numbers that the taps read at pixels k0 to k0 + 15, to
    ``S_I[at + tap * 16 + pixel]``. Sixteen neighbouring threads copy sixteen pixels of one tap.
    """
    p = gradient.problem
    C_i, H_i, W_i, H_f, W_f = p.C_i, p.H_i, p.W_i, p.H_f, p.W_f
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    TAPS, K, N_B, ROWS = C_i * H_f * W_f, p.N, tile.N_B, tile.threads // SLICE
    ALL_INSIDE, TAIL, TIMES = p.padding == ((0, 0), (0, 0)), K % SLICE != 0, N_B // ROWS
    index = index_of(gradient)
    locate = make_locate(gradient)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def find_taps(n0, t, OFFSET, DOWN, ACROSS):
        if t < N_B:
            # A thread past the last tap repeats it, and nothing stores its sums.
            n = min(n0 + t, TAPS - 1)
            r, u, v = n // (H_f * W_f), n // W_f % H_f, n % W_f
            OFFSET[t] = index((index(r) * H_i + u * d_h) * W_i + v * d_w)
            DOWN[t], ACROSS[t] = int32(u * d_h), int32(v * d_w)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fetch_taps(input, k0, at, t, OFFSET, DOWN, ACROSS, S_I):
        offsets = cuda.local.array(TIMES, index)
        inside = cuda.local.array(TIMES, int32)  # 0 or 1
        k, row = uint32(k0 + t % SLICE), t // SLICE
        i_n, o_h, o_w = locate(k)
        i_h, i_w = int32(o_h * s_h - p_h), int32(o_w * s_w - p_w)
        first = index((index(i_n) * (C_i * H_i) + i_h) * W_i + i_w)
        there = not TAIL or k < K
        for j in range(TIMES):  # before the copies: a load between them would wait for them
            n = row + j * ROWS
            offsets[j], inside[j] = index(first + OFFSET[n]), int32(there)
            if not ALL_INSIDE:
                h, w = int32(i_h + DOWN[n]), int32(i_w + ACROSS[n])
                inside[j] = int32(there and 0 <= h < H_i and 0 <= w < W_i)
        target = at + int32(row * SLICE + t % SLICE)
        for j in range(TIMES):
            copy_async(S_I, target + j * (ROWS * SLICE), input, offsets[j], inside[j] != 0)

    return find_taps, fetch_taps


def make_load_and_store(gradient: Gradient, tile: Tile) -> tuple[DeviceFunction, DeviceFunction]:
    """Return ``load(of_output, m0, k0, t, R)``, which loads a thread's numbers of dL/doutput at
    pixels k0 to k0 + 15, and ``store(R, at, t, S_F)``, which splits them and stores both parts.

    A thread has terms 4 * (t % 4) to 4 * (t % 4) + 3 of every 32nd channel, and q counts them from
    0. They are stored as core matrices ``[q // 2, part, q % 2, channel, t % 4]``, so that they are
    the terms of the lanes with the same ``thread_in_group``.
    """
    p = gradient.problem
    M, M_B, K = p.C_o, tile.M_B, p.N
    PIXELS = p.H_o * p.W_o
    TIMES, STEP = blocks_for(M_B, tile.threads // 4), tile.threads // 4
    ALIGNED = PIXELS % FLOAT4 == 0  # four pixels are of one image, and at a multiple of 16 bytes

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def load(of_output, m0, k0, t, R):
        k = uint32(k0 + t % 4 * FLOAT4)
        i_n, pixel = k // PIXELS, k % PIXELS
        for j in range(TIMES):
            m = m0 + t // 4 + j * STEP
            R[j, 0], R[j, 1], R[j, 2], R[j, 3] = float32(0), float32(0), float32(0), float32(0)
            if t // 4 + j * STEP < M_B and m < M:
                at = (int64(i_n) * M + m) * PIXELS + pixel
                if ALIGNED:
                    if k < K:
                        R[j, 0], R[j, 1], R[j, 2], R[j, 3] = load4(of_output, at)
                else:
                    for q in range(FLOAT4):
                        if k + q < K:  # the next image's first pixel is M - 1 rows further
                            images = int64((pixel + q) // PIXELS)
                            R[j, q] = of_output[at + q + images * ((M - 1) * PIXELS)]

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def store(R, at, t, S_F):
        for j in range(TIMES):
            channel = t // 4 + j * STEP
            if channel < M_B:
                for q in range(FLOAT4):
                    large, small = split_tf32(R[j, q])
                    target = at + (q // 2 * 4 + q % 2) * (4 * M_B) + channel * 4 + t % 4
                    S_F[target], S_F[target + 8 * M_B] = large, small

    return load, store


def make_kernel(gradient: Gradient, tile: Tile, splits: int) -> Kernel:
    """Return the kernel that stores the parts ``[split, m, n]`` of dL/dweight's sums."""
    p = gradient.problem
    M, TAPS = p.C_o, p.C_i * p.H_f * p.W_f
    M_B, N_B, M_T, N_T = tile.M_B, tile.N_B, tile.M_T, tile.N_T
    THREADS, BLOCKS, O_SHAPE = tile.threads, tile.resident_blocks(REGISTERS), (M_T, N_T)
    SLICES = blocks_for(p.N, SLICE)
    SHARE = blocks_for(SLICES, splits)  # slices of a block
    F_SLICE, I_SLICE = SLICE * 2 * M_B, SLICE * N_B  # numbers; F: dL/doutput, both parts
    F_SLICES, I_SLICES = DEPTH * F_SLICE, DEPTH * I_SLICE
    R_SHAPE, X_SHAPE = (blocks_for(M_B, THREADS // 4), FLOAT4), (FLOAT4, N_T)
    D_SHAPE, L_SHAPE = M_B // 2, 2 * FLOAT4
    index = index_of(gradient)
    find_taps, fetch_taps = make_fetch_taps(gradient, tile)
    load, store = make_load_and_store(gradient, tile)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_I, at, X):
        for j in range(N_T):  # taps group_id and group_id + 8 of the warp; if N_T is 4, 16 more
            X[0, j], X[1, j], X[2, j], X[3, j] = load4(S_I, at + j * (LANES_N * SLICE))

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def split(X, j0, L, T):
        for q in range(FLOAT4):
            for e in range(2):
                L[2 * q + e], T[2 * q + e] = split_tf32(X[q, j0 + e])

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def add(D, j0, R_O):
        for i in range(0, M_T, 2):  # D: channels i and i + 1 of tap j0, then of j0 + 1
            R_O[i, j0] += D[2 * i]
            R_O[i + 1, j0] += D[2 * i + 1]
            R_O[i, j0 + 1] += D[2 * i + 2]
            R_O[i + 1, j0 + 1] += D[2 * i + 3]

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, BLOCKS)))
    def shared_pixels(input, of_output, parts):
        S_F = cuda.shared.array(F_SLICES, float32, alignment=BYTES_16)
        S_I = cuda.shared.array(I_SLICES, float32, alignment=BYTES_16)
        OFFSET = cuda.shared.array(N_B, index)
        DOWN, ACROSS = cuda.shared.array(N_B, int32), cuda.shared.array(N_B, int32)
        R_O, R = cuda.local.array(O_SHAPE, float32), cuda.local.array(R_SHAPE, float32)
        X, D = cuda.local.array(X_SHAPE, float32), cuda.local.array(D_SHAPE, float32)
        L, T = cuda.local.array(L_SHAPE, float32), cuda.local.array(L_SHAPE, float32)
        next_L, next_T = cuda.local.array(L_SHAPE, float32), cuda.local.array(L_SHAPE, float32)
        t = uint32(cuda.threadIdx.x)
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B
        begin = int32(cuda.blockIdx.z) * SHARE
        end = min(begin + SHARE, SLICES)

        # A lane has rows group_id and group_id + 8 of each product: two or four taps, eight apart.
        warp, lane = t // 32, t % 32
        group_id, thread_in_group = lane // 4, lane % 4  # PTX: groupID, threadID_in_group
        tap = warp * (N_T * LANES_N) + group_id
        at_I = tap * SLICE + thread_in_group * FLOAT4

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        find_taps(n0, t, OFFSET, DOWN, ACROSS)
        load(of_output, m0, begin * SLICE, t, R)
        cuda.syncthreads()  # all taps are found
        fetch_taps(input, begin * SLICE, 0, t, OFFSET, DOWN, ACROSS, S_I)
        commit_copies()
        store(R, 0, t, S_F)
        if begin + 1 < end:
            load(of_output, m0, (begin + 1) * SLICE, t, R)
        pipe = 0
        for slice_ in range(begin, end):
            wait_copies(0)  # this thread's copies of the slice have landed;
            fence_shared()  # the tensor cores see what it copied and stored;
            cuda.syncthreads()  # also all threads'; the previous slice may be overwritten
            if slice_ + 1 < end:
                at = (1 - pipe) * I_SLICE
                fetch_taps(input, (slice_ + 1) * SLICE, at, t, OFFSET, DOWN, ACROSS, S_I)
            commit_copies()
            read(S_I, at_I + pipe * I_SLICE, X)
            split(X, 0, L, T)
            start_product(D, L, T, S_F, pipe * F_SLICE, M_B)
            # While the tensor cores multiply, store the next slice of dL/doutput, which is in R,
            # and load the slice after it.
            if slice_ + 1 < end:
                store(R, (1 - pipe) * F_SLICE, t, S_F)
            if slice_ + 2 < end:
                load(of_output, m0, (slice_ + 2) * SLICE, t, R)
            if N_T == 4:
                split(X, 2, next_L, next_T)
            finish_product(D, M_B)
            add(D, 0, R_O)
            if N_T == 4:
                start_product(D, next_L, next_T, S_F, pipe * F_SLICE, M_B)
                finish_product(D, M_B)
                add(D, 2, R_O)
            pipe = 1 - pipe

        for j in range(N_T):
            n = n0 + tap + j * LANES_N
            if n < TAPS:
                for i in range(M_T):
                    m = m0 + i // 2 * 8 + 2 * thread_in_group + i % 2
                    if m < M:
                        parts[(int64(cuda.blockIdx.z) * M + m) * TAPS + n] = R_O[i, j]

    return shared_pixels


def make_add_parts(gradient: Gradient, splits: int) -> tuple[Kernel, int]:
    """Return the kernel that adds the parts of each sum, and the sums of a block.

    Up to eight threads share the parts of a sum; each adds every eighth one, and the first adds
    what they have. A sum that is not finite is computed again term by term, because an infinity
    has no small part (t01).
    """
    p = gradient.problem
    C_i, H_i, W_i, H_f, W_f = p.C_i, p.H_i, p.W_i, p.H_f, p.W_f
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M, TAPS, PIXELS, K = p.C_o, C_i * H_f * W_f, p.H_o * p.W_o, p.N
    SUMS = M * TAPS
    SHARERS = min(8, 1 << (splits - 1).bit_length())
    COLUMNS = ADDING_THREADS // SHARERS
    locate = make_locate(gradient)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def once_more(input, of_output, e):
        m, n = e // TAPS, e % TAPS
        r, u, v = n // (H_f * W_f), n // W_f % H_f, n % W_f
        total = float32(0)
        for k in range(K):
            i_n, o_h, o_w = locate(uint32(k))
            i_h, i_w = int32(o_h * s_h + u * d_h) - p_h, int32(o_w * s_w + v * d_w) - p_w
            number = float32(0)  # outside the image is padding
            if 0 <= i_h < H_i and 0 <= i_w < W_i:
                number = input[((int64(i_n) * C_i + r) * H_i + i_h) * W_i + i_w]
            total += number * of_output[(int64(i_n) * M + m) * PIXELS + uint32(k) % PIXELS]
        return total

    @cuda.jit(**gpu_only(launch_bounds=ADDING_THREADS))
    def add_parts(parts, input, of_output, output):
        S = cuda.shared.array((SHARERS, COLUMNS), float32)
        t = uint32(cuda.threadIdx.x)
        row, column = t // COLUMNS, t % COLUMNS
        e = uint32(cuda.blockIdx.x) * COLUMNS + column
        total = float32(0)
        if e < SUMS:
            for z in range(row, splits, SHARERS):
                total += parts[int64(z) * SUMS + e]
        S[row, column] = total
        cuda.syncthreads()  # all threads have added their parts
        if row == 0 and e < SUMS:
            total = S[0, column]
            for other in range(1, SHARERS):
                total += S[other, column]
            if not abs(total) < INFINITY:
                total = once_more(input, of_output, e)
            output[e] = total

    return add_parts, COLUMNS


def require_tile_of_taps(gradient: Gradient, tile: Tile) -> None:
    """Raise ``ValueError`` for a tile that four warps side by side cannot share: each lane has two
    or four taps and a quarter of the channels. Sums of more than 128 channels spill."""
    tile.require(tile.N_T in (2, 4), "N_T must be 2 or 4, a lane's taps of one or two products")
    whole = tile.N_B == 32 * tile.N_T and tile.K_B == SLICE and tile.threads == 128
    tile.require(whole, "N_B must be 32 * N_T, K_B 16 and M_T M_B / 4, the tile of a warpgroup")
    tile.require(tile.M_B % 8 == 0, "M_B must be a multiple of 8, the columns of a core matrix")
    tile.require(tile.M_B <= 128, "M_B must be at most 128")
    of_taps = tile.N_B * (2 + index_of(gradient).bitwidth // 32)  # OFFSET, DOWN and ACROSS
    tile.require_shared_memory(DEPTH * SLICE * (2 * tile.M_B + tile.N_B) + of_taps)


def estimated_ns(gradient: Gradient, tile: Tile, sm_count: int = H200_SMS) -> float:
    """Return the estimated nanoseconds of dL/dweight. SMs multiply their blocks' slices in rounds
    of as many blocks as are resident; all parts are written and read once."""
    p = gradient.problem
    splits = splits_of(gradient, tile, sm_count)
    taps, slices = p.C_i * p.H_f * p.W_f, blocks_for(p.N, SLICE)
    blocks = blocks_for(p.C_o, tile.M_B) * blocks_for(taps, tile.N_B) * splits
    busiest, resident = blocks_for(blocks, sm_count), tile.resident_blocks(REGISTERS)
    if busiest > resident:  # the last round takes as long as the others
        busiest = blocks_for(busiest, resident) * resident
    of_slice = SLICE_NS[tile.M_B, tile.N_B]
    if p.H_o * p.W_o % FLOAT4:
        of_slice += SCALAR_ROW_NS * tile.M_B
    share = blocks_for(slices, splits) + BEGIN_AND_END
    return busiest * share * of_slice + splits * p.C_o * taps * PART_NS


def tile_of(gradient: Gradient, sm_count: int = H200_SMS) -> Tile:
    """Return the tile of dL/dinput's convolution, or for dL/dweight the one with the least
    :func:`estimated_ns`."""
    if gradient.of == "input" or gradient.groups > 1:
        stage = INPUT_GRADIENT if gradient.groups == 1 else BY_FLOATS
        assert stage.tiles is not None
        assert stage.tiles.production is not None
        return stage.tiles.production(gradient, sm_count)
    tiles = [Tile(M_B, N_B, SLICE, M_B // 4, N_B // (4 * LANES_N)) for M_B, N_B in SLICE_NS]
    return min(tiles, key=lambda tile: estimated_ns(gradient, tile, sm_count))


def splits_of(gradient: Gradient, tile: Tile, sm_count: int = H200_SMS) -> int:
    """Return how many blocks share each sum: as many as are resident at a time, but each has at
    least FEWEST_SLICES slices."""
    p = gradient.problem
    tiles = blocks_for(p.C_o, tile.M_B) * blocks_for(p.C_i * p.H_f * p.W_f, tile.N_B)
    slices = blocks_for(p.N, SLICE)
    wanted = max(1, sm_count * tile.resident_blocks(REGISTERS) // tiles)
    most = max(1, slices // FEWEST_SLICES)
    return blocks_for(slices, blocks_for(slices, min(wanted, most)))  # so that each has slices


def prepare(
    gradient: Gradient, tile: Tile | None = None, splits: int = 0, sm_count: int = H200_SMS
) -> Program:
    """Return the program of either gradient; ``splits`` blocks share each sum of dL/dweight, 0 for
    as many as fill a GPU of ``sm_count`` SMs."""
    if gradient.groups > 1:
        return BY_FLOATS.prepare(gradient, None, sm_count=sm_count)
    tile = tile or tile_of(gradient, sm_count)
    if gradient.of == "input":
        return INPUT_GRADIENT.prepare(gradient, tile, sm_count=sm_count)
    require_tile_of_taps(gradient, tile)
    p, slices = gradient.problem, blocks_for(gradient.problem.N, SLICE)
    splits = splits or splits_of(gradient, tile, sm_count)
    splits = blocks_for(slices, blocks_for(slices, splits))
    sums = p.C_o * p.C_i * p.H_f * p.W_f
    input, of_output, parts = Flat("input"), Flat("weight"), "parts"
    grid = blocks_for(sums // p.C_o, tile.N_B), blocks_for(p.C_o, tile.M_B), splits
    kernel = make_kernel(gradient, tile, splits)
    adding, columns = make_add_parts(gradient, splits)
    launches = (
        Launch(kernel, grid, (tile.threads,), (input, of_output, parts)),
        Launch(
            adding,
            (blocks_for(sums, columns),),
            (ADDING_THREADS,),
            (parts, input, of_output, Flat("output")),
        ),
    )
    return Program((Buffer(parts, (splits * sums,)),), launches, tile)


STAGE = Stage(
    __name__,
    title="Gradients by warpgroups: blocks share the pixels, tensors are read where they lie",
    source="im2win paper (000), by the chain rule, by tensor cores; ours",
    builds_on=("g02_exchanged_roles", "t06_split_k"),
    prepare=prepare,
    tiles=Tiles(
        tiny=Tile(8, 128, SLICE, 2, 4), model=Tile(32, 128, SLICE, 8, 4), production=tile_of
    ),
    precision="3xtf32",
    requires=Requirement((9, 0), "its tensor cores' own instruction, wgmma", exact=True),
    atomic_additions=lambda gradient: 0,
    grouped=True,
)
