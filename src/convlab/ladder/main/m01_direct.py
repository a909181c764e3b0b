"""m01: direct convolution. Seven loops; the four outer ones become threads.

Source: im2win paper (000), section 2.2 and Equation 1. Every thread owns one element of the output
and runs the three inner loops over channels and filter. Each multiply-add reads two numbers from
global memory and keeps neither: the next thread reads almost the same numbers again.
"""

from numba import cuda, float32, uint32

from convlab.ladder.stage import Kernel, Launch, Program, Stage, blocks_for
from convlab.problems.problem import ConvProblem

THREADS = 256


def make_kernel(problem: ConvProblem) -> Kernel:
    """The kernel with the problem's shapes as constants, which makes its divisions cheap."""
    p = problem
    N_i, C_i, H_i, W_i = p.input_shape
    C_o, H_f, W_f, H_o, W_o = p.C_o, p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w

    @cuda.jit
    def direct(input, weight, bias, output):
        # The four outer loops: thread number -> image i_n, output channel o_c, row o_h, column o_w.
        # Columns are innermost, so neighbouring threads read and write neighbouring addresses.
        thread = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        o_w = thread % W_o
        o_h = thread // W_o % H_o
        o_c = thread // (W_o * H_o) % C_o
        i_n = thread // (W_o * H_o * C_o)
        if i_n >= N_i:
            return

        total = float32(0)
        for i_c in range(C_i):
            for f_h in range(H_f):
                for f_w in range(W_f):
                    i_h = o_h * s_h + f_h * d_h - p_h
                    i_w = o_w * s_w + f_w * d_w - p_w
                    pixel = float32(0)  # outside the image is padding
                    if 0 <= i_h < H_i and 0 <= i_w < W_i:
                        pixel = input[i_n, i_c, i_h, i_w]
                    total += pixel * weight[o_c, i_c, f_h, f_w]

        output[i_n, o_c, o_h, o_w] = total + bias[o_c]

    return direct


def prepare(problem: ConvProblem, tile: None = None) -> Program:
    """Return the program: one launch with a thread for each output. There is no tile."""
    outputs = problem.M * problem.N
    launch = Launch(
        make_kernel(problem),
        grid=(blocks_for(outputs, THREADS),),
        block=(THREADS,),
        arguments=("input", "weight", "bias", "output"),
    )
    return Program((), (launch,))


STAGE = Stage(
    __name__,
    title="Direct convolution: seven loops, one thread per output",
    source="im2win paper (000), 2.2, Equation 1",
    builds_on=(),
    prepare=prepare,
)
