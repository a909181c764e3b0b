"""m02: implicit GEMM. The im2col matrix product with its indices computed on the fly.

Source: im2win paper (000), Algorithm 1. The kernel multiplies the M x K filter matrix by the K x N
matrix of unrolled windows without building that matrix: it finds each element in the input. Three
loops replace m01's seven. The arithmetic and the memory accesses stay the same and the divisions
are extra. The gain is the shape of a GEMM, which the next stages make fast.
"""

from numba import cuda, float32, uint32

from convlab.ladder.stage import Flat, Kernel, Launch, Program, Stage, blocks_for
from convlab.problems.problem import ConvProblem

# n is along x: neighbour threads access neighbour pixels, and only x allows over 65,535 blocks.
BLOCK_M, BLOCK_N = 8, 32


def make_kernel(problem: ConvProblem) -> Kernel:
    """Return the kernel of the product of the M x K filter and the K x N im2col matrix, which is
    never stored. All tensors are float32."""
    p = problem
    M, N, K = p.M, p.N, p.K
    _, _, H_i, W_i = p.input_shape
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w

    @cuda.jit
    def implicit_gemm(input, weight, bias, output):
        n = uint32(cuda.blockIdx.x) * BLOCK_N + uint32(cuda.threadIdx.x)
        m = uint32(cuda.blockIdx.y) * BLOCK_M + uint32(cuda.threadIdx.y)
        if m >= M or n >= N:
            return

        i_n = n // (H_o * W_o)  # lines 2-6: which output is row m, column n of the product?
        o_h = n % (H_o * W_o) // W_o
        o_w = n % W_o

        total = float32(0)
        for term in range(K):
            k = uint32(term)  # 32-bit divisions cost a third of 64-bit ones
            i_c = k // (H_f * W_f)  # lines 8-13: which terms are number k of its sum?
            f_h = k % (H_f * W_f) // W_f
            f_w = k % W_f
            i_h = o_h * s_h + f_h * d_h - p_h
            i_w = o_w * s_w + f_w * d_w - p_w
            pixel = float32(0)
            if 0 <= i_h < H_i and 0 <= i_w < W_i:
                pixel = input[i_n, i_c, i_h, i_w]
            total += pixel * weight[m * K + k]  # line 14: row m, column k of the M x K matrix

        output[i_n, m, o_h, o_w] = total + bias[m]

    return implicit_gemm


def prepare(problem: ConvProblem, tile: None = None) -> Program:
    """Return the program: one launch with a thread for each element of the M x N product. There is
    no tile."""
    launch = Launch(
        make_kernel(problem),
        grid=(blocks_for(problem.N, BLOCK_N), blocks_for(problem.M, BLOCK_M)),
        block=(BLOCK_N, BLOCK_M),
        arguments=("input", Flat("weight"), "bias", "output"),
    )
    return Program((), (launch,))


STAGE = Stage(
    __name__,
    title="Implicit GEMM: three loops, indices computed on the fly",
    source="im2win paper (000), Algorithm 1",
    builds_on=("m01_direct",),
    prepare=prepare,
)
