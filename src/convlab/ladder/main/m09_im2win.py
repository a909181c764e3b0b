"""m09: im2win. A layout transform makes the elements of a window neighbours in memory.

Source: im2win paper (000), sections 3.1-3.2, Equation 2 and Algorithm 2. For each row o_h of the
output, the im2win tensor holds the H_f rows of the input under it, column by column: the H_f
elements of column k are neighbours, so a window is H_f * W_f neighbours. The next window begins
s_w * H_f elements later and overlaps this one. Rows that overlap are stored H_f / s_h times, but
columns once. The im2col matrix is far larger: it stores an element for each window that has it.

The kernel is m02's with other indices: it reads the im2win tensor from left to right, and padding
is zeros in memory, so the inner loop has no branch. (With dilation in width a window is W_f groups
of H_f neighbours.) On Conv9 it is slower than m02, because neighbouring threads read elements
s_w * H_f apart. It buys an order of memory in which m10 loads four elements at a time.
"""

from numba import cuda, float32, uint32

from convlab.ladder.stage import Buffer, Kernel, Launch, Program, Stage, blocks_for
from convlab.problems.problem import ConvProblem

# The paper's block is 32 x 32 with m along x; this block is m02's, for the same reasons.
BLOCK_M, BLOCK_N = 8, 32
TRANSFORM_THREADS = 256


def window_columns(problem: ConvProblem) -> int:
    """W_w: columns of the padded input that the windows of one output row cover."""
    return (problem.W_o - 1) * problem.s_w + problem.window_shape[1]


def make_transform(problem: ConvProblem) -> Kernel:
    """The kernel of Equation 2, with padding and dilation:
    windows[i_n, i_c, o_h, column * H_f + f_h] = input[i_n, i_c, i_h, i_w], 0 outside the image."""
    p = problem
    N_i, C_i, H_i, W_i = p.input_shape
    H_f, H_o, W_w = p.H_f, p.H_o, window_columns(p)
    s_h, p_h, p_w, d_h = p.s_h, p.p_h, p.p_w, p.d_h

    @cuda.jit
    def im2win_transform(input, windows):
        e = uint32(cuda.blockIdx.x) * TRANSFORM_THREADS + uint32(cuda.threadIdx.x)
        f_h = e % H_f
        column = e // H_f % W_w
        o_h = e // (H_f * W_w) % H_o
        i_c = e // (H_f * W_w * H_o) % C_i
        i_n = e // (H_f * W_w * H_o * C_i)
        if i_n < N_i:
            i_h = o_h * s_h + f_h * d_h - p_h
            i_w = column - p_w
            value = float32(0)
            if 0 <= i_h < H_i and 0 <= i_w < W_i:
                value = input[i_n, i_c, i_h, i_w]
            windows[i_n, i_c, o_h, column * H_f + f_h] = value

    return im2win_transform


def make_kernel(problem: ConvProblem) -> Kernel:
    """Return the kernel that convolves the im2win tensor ``windows``, one output by each thread, as
    Algorithm 1 does."""
    p = problem
    M, N, K = p.M, p.N, p.K
    H_f, W_f, H_o, W_o = p.H_f, p.W_f, p.H_o, p.W_o
    s_w, d_w = p.s_w, p.d_w

    @cuda.jit
    def im2win(windows, weight, bias, output):
        n = uint32(cuda.blockIdx.x) * BLOCK_N + uint32(cuda.threadIdx.x)  # line 1
        m = uint32(cuda.blockIdx.y) * BLOCK_M + uint32(cuda.threadIdx.y)
        if m >= M or n >= N:
            return

        i_n = n // (H_o * W_o)  # lines 2-4
        o_h = n % (H_o * W_o) // W_o
        o_w = n % W_o

        total = float32(0)
        for term in range(K):  # line 5
            k = uint32(term)  # 32-bit divisions cost a third of 64-bit ones
            i_c = k // (H_f * W_f)  # lines 6-9, in window order
            f_w = k % (H_f * W_f) // H_f
            f_h = k % H_f
            pixel = windows[i_n, i_c, o_h, (o_w * s_w + f_w * d_w) * H_f + f_h]
            total += pixel * weight[m, i_c, f_h, f_w]  # line 10

        output[i_n, m, o_h, o_w] = total + bias[m]

    return im2win


def prepare(problem: ConvProblem, tile: None = None) -> Program:
    """Return the program: the im2win tensor, then the convolution. There is no tile."""
    p = problem
    windows = Buffer("windows", (p.N_i, p.C_i, p.H_o, window_columns(p) * p.H_f))
    transform = Launch(
        make_transform(problem),
        grid=(blocks_for(windows.nbytes // 4, TRANSFORM_THREADS),),
        block=(TRANSFORM_THREADS,),
        arguments=("input", "windows"),
    )
    launch = Launch(
        make_kernel(problem),
        grid=(blocks_for(problem.N, BLOCK_N), blocks_for(problem.M, BLOCK_M)),
        block=(BLOCK_N, BLOCK_M),
        arguments=("windows", "weight", "bias", "output"),
    )
    return Program((windows,), (transform, launch))


STAGE = Stage(
    __name__,
    title="im2win: windows in memory order, then the plain kernel",
    source="im2win paper (000), 3.1-3.2, Equation 2, Algorithm 2",
    builds_on=("m02_implicit_gemm",),
    prepare=prepare,
)
