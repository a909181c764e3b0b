"""t01: the tensor cores' instruction ``mma``. It replaces m05's micro-kernel, by whole warps.

Source: ours, beyond the paper. An H200's tensor cores reach 315 TFLOP/s with TF32, ordinary float32
arithmetic at most 67. One instruction multiplies 16 channels x 8 terms with 8 terms x 8 windows.
PTX fixes which lane holds which element; the kernel chooses the 8 windows, so that a lane's sums
are float4s of neighbours in the output.

Float32 accuracy needs care (3xTF32). The stages make up for two weaknesses of tensor cores as
Ootomo and Yokota do ("Recovering single precision accuracy from Tensor Cores while surpassing the
FP32 theoretical peak performance", 2022):

- They multiply TF32, which has 10 bits of mantissa where float32 has 23. Each number is split into
  a large part and a small part, and three of the four products are added::

      x * w  =  large_x * large_w + large_x * small_w + small_x * large_w   (+ small_x * small_w)

  The product left out is at most 2**-22 of the whole, and the last bit of the small parts loses as
  much again: eight times float32's rounding of one product, far less than its rounding of a sum.
- They truncate at every addition where other units round. So they add at most 16 terms, the small
  products first, and begin again at zero. Ordinary additions, which round, add the partial sums.

Below ``2**-113`` a number's small part is too small for TF32: each such number may be off by
``2**-136``. An infinity has no small part, and a number next to the largest rounds to infinity, so
their sums become NaN or infinite. The fix-up computes such a sum again as m01 does, so infinities
and NaN are those of the other stages. ``mma_3xtf32`` splits both operands and makes the products.

The difference to m05 is long (over 150 lines), because sums that are not finite need the fix-up.
Later stages import it from here.
"""

from __future__ import annotations

from numba import cuda, float32, int32, int64, uint32

from convlab.device import FLOAT4, gpu_only, mma_3xtf32
from convlab.ladder.main.m14_epilogue import INFINITY, make_finish, make_write
from convlab.ladder.stage import (
    DeviceFunction,
    Kernel,
    Program,
    Requirement,
    Stage,
    Tile,
    Tiles,
    tile_program,
)
from convlab.problems.problem import ConvProblem

MMA_K = 8  # terms that an instruction multiplies
FLOAT4_STEP = 4  # a lane has every fourth float4 of windows up to t03, and only one from t04 on
LANES_M, LANES_N = 8, 4  # lanes of a warp along M and N, as the sums are spread over them
F_PADDING, I_PADDING = 8, 1  # after a row: the 32 numbers of a fragment lie in 32 banks


def require_warp_tiles(tile: Tile, LANES_M: int, LANES_N: int) -> None:
    """Raise ``ValueError`` for a tile that ``mma`` does not divide: its matrices have 16 rows, 8
    columns and 8 terms, and a warp has LANES_M x LANES_N lanes along M and N."""
    whole = tile.M_T % 2 == tile.N_T % LANES_M == 0
    sizes = f"M_T must be a multiple of 2 and N_T of {LANES_M}"
    tile.require(whole, f"{sizes}, because a warp multiplies so many at a time")
    whole = tile.M_B % (LANES_M * tile.M_T) == tile.N_B % (LANES_N * tile.N_T) == 0
    sizes = f"M_B must be a multiple of {LANES_M} * M_T, N_B of {LANES_N} * N_T"
    tile.require(whole, f"{sizes}, the lanes of a warp")
    tile.require(tile.K_B % MMA_K == 0, "K_B must be a multiple of 8, the terms of an instruction")


def make_epilogue(
    problem: ConvProblem,
    tile: Tile,
    *,
    relu: bool,
    filter_number: DeviceFunction,
    LANES_M: int,
    LANES: int,
) -> DeviceFunction:
    """Return ``epilogue(R_O, input, packed, bias, output, m_t, n_t)``, which stores a lane's
    outputs, from its first channel m_t and window n_t on, and computes again those that are not
    finite.

    Channels lie ``LANES_M`` apart, a float4's windows ``LANES``.
    """
    fix_up = make_fix_up(
        problem, tile, relu=relu, filter_number=filter_number, LANES_M=LANES_M, LANES=LANES
    )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_of(i):
        return i * LANES_M

    write = make_write(
        problem, tile, relu=relu, row_of=row_of, FLOAT4_STEP=FLOAT4_STEP, LANES=LANES
    )

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def epilogue(R_O, input, packed, bias, output, m_t, n_t):
        if write(R_O, bias, output, m_t, n_t):
            fix_up(input, packed, bias, output, m_t, n_t)

    return epilogue


def make_fix_up(
    problem: ConvProblem,
    tile: Tile,
    *,
    relu: bool,
    filter_number: DeviceFunction,
    LANES_M: int,
    LANES: int,
) -> DeviceFunction:
    """Return ``fix_up(input, packed, bias, output, m_t, n_t)``, which computes again, as m01 does,
    the outputs of a lane that are not finite and, with ReLU, those that are zero, because minus
    infinity became zero too.

    The filter's numbers come from ``packed`` (``filter_number(packed, m, e)``), because ``weight``
    may have changed since it was packed.
    """
    p = problem
    M, N, PIXELS, K = p.M, p.N, p.H_o * p.W_o, p.K
    C_i, H_i, W_i, H_f, W_f, W_o = p.C_i, p.H_i, p.W_i, p.H_f, p.W_f, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_T, N_T = tile.M_T, tile.N_T
    finish = make_finish(relu)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def fix_up(input, packed, bias, output, m_t, n_t):
        for e in range(M_T * N_T):
            i, j = uint32(e) // N_T, uint32(e) % N_T
            m = m_t + i * LANES_M
            n = n_t + j // FLOAT4 * (FLOAT4 * FLOAT4_STEP) + j % FLOAT4 * LANES
            if m >= M or n >= N:
                continue
            i_n, pixel = n // PIXELS, n % PIXELS
            at = (i_n * M + m) * PIXELS + pixel
            zero = relu and output[at] == float32(0)  # ReLU also makes minus infinity zero
            if abs(output[at]) < INFINITY and not zero:
                continue
            total = float32(0)
            for k in range(K):
                r, u, v = uint32(k) // (H_f * W_f), uint32(k) // W_f % H_f, uint32(k) % W_f
                i_h = int32(pixel // W_o * s_h + u * d_h) - p_h
                i_w = int32(pixel % W_o * s_w + v * d_w) - p_w
                number = float32(0)  # outside the image is padding
                if 0 <= i_h < H_i and 0 <= i_w < W_i:
                    number = input[((int64(i_n) * C_i + r) * H_i + i_h) * W_i + i_w]
                total += number * filter_number(packed, m, uint32(k))
            output[at] = finish(total, bias[m])

    return fix_up


def make_kernel(problem: ConvProblem, tile: Tile) -> Kernel:
    """Return the kernel whose warps add 16 x 8 products of float32 numbers, each split into three
    TF32 products."""
    p = problem
    M, N, K = p.M, p.N, p.K
    _, C_i, H_i, W_i = p.input_shape
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    M_B, N_B, K_B, M_T, N_T = tile.M_B, tile.N_B, tile.K_B, tile.M_T, tile.N_T
    THREADS, WARP_M, WARP_N = tile.threads, LANES_M * tile.M_T, LANES_N * tile.N_T
    F_PITCH, I_PITCH, O_SHAPE = M_B + F_PADDING, N_B + I_PADDING, (M_T, N_T)
    F_SLICE, I_SLICE, WARPS_N = K_B * F_PITCH, K_B * I_PITCH, N_B // WARP_N

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def filter_number(weight, m, k):
        return weight[m * K + k]

    epilogue = make_epilogue(
        problem, tile, relu=False, filter_number=filter_number, LANES_M=LANES_M, LANES=1
    )

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
    def mma(input, weight, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32)
        S_I = cuda.shared.array(I_SLICE, float32)
        R_O = cuda.local.array(O_SHAPE, float32)
        t = uint32(cuda.threadIdx.x)
        warp, lane = t // 32, t % 32
        group_id, thread_in_group = lane // 4, lane % 4  # PTX: groupID, threadID_in_group
        ty, tx = warp // WARPS_N * WARP_M + group_id, warp % WARPS_N * WARP_N
        # Even columns of four instructions are float4s 0 to 3 of their 32 windows, odd ones 4 to 7.
        at_F = thread_in_group * F_PITCH + ty
        at_I = thread_in_group * I_PITCH + tx + (group_id // 2 + group_id % 2 * 4) * FLOAT4
        m0 = uint32(cuda.blockIdx.y) * M_B
        n0 = uint32(cuda.blockIdx.x) * N_B

        # The window this thread loads from: column t % N_B of the tile.
        # Past the last window it loads the last one again; that column is not written.
        column = t % N_B
        window = min(n0 + column, N - 1)
        i_n = window // (H_o * W_o)
        o_h = window % (H_o * W_o) // W_o
        o_w = window % W_o

        for i in range(M_T):
            for j in range(N_T):
                R_O[i, j] = float32(0)
        for k0 in range(0, K, K_B):
            for e in range(t, M_B * K_B, THREADS):  # load
                row, k = m0 + e // K_B, k0 + e % K_B
                value = float32(0)
                if row < M and k < K:
                    value = weight[row * K + k]
                S_F[e % K_B * F_PITCH + e // K_B] = value
            for e in range(t // N_B, K_B, THREADS // N_B):
                k = uint32(k0 + e)
                i_c = k // (H_f * W_f)
                i_h = o_h * s_h + k % (H_f * W_f) // W_f * d_h - p_h
                i_w = o_w * s_w + k % W_f * d_w - p_w
                pixel = float32(0)
                if k < K and 0 <= i_h < H_i and 0 <= i_w < W_i:
                    pixel = input[((i_n * C_i + i_c) * H_i + i_h) * W_i + i_w]
                S_I[e * I_PITCH + column] = pixel
            cuda.syncthreads()  # all have fetched before any computes

            for k in range(0, K_B, MMA_K):  # compute
                multiply(S_F, S_I, at_F, at_I, k, R_O)
            cuda.syncthreads()  # all have read this slice before any overwrites it

        epilogue(R_O, input, weight, bias, output, m0 + ty, n0 + tx + thread_in_group * FLOAT4)

    return mma


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """Return the program: one launch with the tile's warps in a block."""
    require_warp_tiles(tile, LANES_M, LANES_N)
    tile.require(
        tile.threads % tile.N_B == 0,
        "its threads must be a multiple of N_B, because each fetches from one window",
    )
    tile.require_shared_memory(tile.K_B * (tile.M_B + F_PADDING + tile.N_B + I_PADDING))
    return tile_program(problem, tile, make_kernel(problem, tile))


STAGE = Stage(
    __name__,
    title="mma: a warp multiplies by a tensor core, to float32 accuracy",
    source="im2win paper (000), Algorithm 3, by tensor cores; ours",
    builds_on=("m05_microkernel",),
    prepare=prepare,
    tiles=Tiles(Tile(32, 32, 8, 2, 8), model=Tile(32, 64, 16, 4, 8)),
    precision="3xtf32",
    requires=Requirement((8, 0), "TF32 tensor cores"),
)
