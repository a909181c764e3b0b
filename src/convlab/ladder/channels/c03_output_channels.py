"""c03, C_out-parallel: a block owns one output channel of its region and needs no atomics.

Source: Accelerating 2D Convolutions on GPU (001), section 2.3 and Algorithm 2. A thread owns an
output again, so no addition is atomic, but the thread needs every input channel. The channels go
through shared memory a few at a time, and the block of every output channel loads them all again.
(Algorithm 2 adds each step's part to the result in global memory; here the sum stays in a register
until it is complete.)

The stage wins with large images and filters, because every filter element uses each loaded pixel.
It loses with many input channels, because each costs loads and barriers, and with many output
channels, because their blocks load the same field again.
"""

from numba import cuda, float32, uint32

from convlab.device import gpu_only
from convlab.ladder.channels.receptive_field import Field, field_for, make_stage_field
from convlab.ladder.stage import Kernel, Launch, Program, Stage
from convlab.problems.problem import ConvProblem

MOST_CHANNELS = 8  # staged at a time: 11 KiB for a 3 x 3 filter, so several blocks fit


def make_kernel(problem: ConvProblem, field: Field) -> Kernel:
    """The kernel with the problem's shapes and the block's region and field as constants."""
    p = problem
    C_i, C_o, H_f, W_f, H_o, W_o = p.C_i, p.C_o, p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, d_h, d_w = p.s_h, p.s_w, p.d_h, p.d_w
    B_Z, B_Y, B_X, U, V = field.B_Z, field.B_Y, field.B_X, field.U, field.V
    DOWN, ACROSS = field.regions(problem)
    FIELD, THREADS = field.shape, B_Y * B_X
    stage_field = make_stage_field(problem, field, THREADS)

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def cout_parallel(input, weight, bias, output):
        S = cuda.shared.array(FIELD, float32)
        x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        t = uint32(y * B_X + x)
        block = uint32(cuda.blockIdx.x)  # blocks that fetch the same field are neighbours
        o_c = block % C_o
        w0 = block // C_o % ACROSS * B_X
        h0 = block // (C_o * ACROSS) % DOWN * B_Y
        i_n = block // (C_o * ACROSS * DOWN)
        o_h, o_w = h0 + y, w0 + x

        total = float32(0)
        for i_c0 in range(0, C_i, B_Z):
            for f_h0 in range(0, H_f, U):
                for f_w0 in range(0, W_f, V):
                    stage_field(input, S, i_n, i_c0, h0, w0, f_h0, f_w0, t)  # load
                    cuda.syncthreads()  # all have fetched before any computes

                    for z in range(min(B_Z, C_i - i_c0)):  # compute
                        for f_h in range(min(U, H_f - f_h0)):
                            for f_w in range(min(V, W_f - f_w0)):
                                pixel = S[z, y * s_h + f_h * d_h, x * s_w + f_w * d_w]
                                total += pixel * weight[o_c, i_c0 + z, f_h0 + f_h, f_w0 + f_w]
                    cuda.syncthreads()  # all have read this one before any overwrites it

        if o_h < H_o and o_w < W_o:
            output[i_n, o_c, o_h, o_w] = total + bias[o_c]

    return cout_parallel


def prepare(problem: ConvProblem, tile: None = None) -> Program:
    """Return the program: one launch with a block for each output channel of a region. There is no
    tile."""
    field = field_for(problem, MOST_CHANNELS)
    down, across = field.regions(problem)
    launch = Launch(
        make_kernel(problem, field),
        grid=(across * down * problem.C_o * problem.N_i,),
        block=(field.B_X, field.B_Y),
        arguments=("input", "weight", "bias", "output"),
    )
    return Program((), (launch,))


STAGE = Stage(
    __name__,
    title="C_out-parallel: channels through shared memory, no atomics",
    source="Accelerating 2D Convolutions on GPU (001), 2.3, Algorithm 2",
    builds_on=("c02_receptive_field",),
    prepare=prepare,
)
