"""c02, C_in-parallel: a block's receptive field in shared memory, convolved with all filters.

Source: Accelerating 2D Convolutions on GPU (001), sections 2.2 and 3.3 (its Algorithm 1). The
mapping is :mod:`c01_input_channels`'s: a thread for each output pixel and input channel, a loop
over all output channels. But the block loads the receptive field of its pixels once, halo included,
and reads it from shared memory for every filter: H_f * W_f * C_o times.

The stage wins with large images and filters and few channels. It loses with many input channels,
because their partial sums go to the same addresses, and with many output channels, because each
costs a thread one more atomic addition.
"""

from numba import cuda, float32, uint32

from convlab.device import gpu_only
from convlab.ladder.channels.receptive_field import (
    Field,
    channel_parallel_field,
    channel_parallel_program,
    make_stage_field,
)
from convlab.ladder.stage import Kernel, Program, Stage, blocks_for
from convlab.problems.problem import ConvProblem


def make_kernel(problem: ConvProblem, field: Field) -> Kernel:
    """The kernel with the problem's shapes and the block's region and field as constants."""
    p = problem
    C_i, C_o, H_f, W_f, H_o, W_o = p.C_i, p.C_o, p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, d_h, d_w = p.s_h, p.s_w, p.d_h, p.d_w
    B_Z, B_Y, B_X, U, V = field.B_Z, field.B_Y, field.B_X, field.U, field.V
    DOWN, ACROSS = field.regions(problem)
    GROUPS = blocks_for(C_i, B_Z)
    FIELD, THREADS = field.shape, B_Z * B_Y * B_X
    stage_field = make_stage_field(problem, field, THREADS)

    @cuda.jit(**gpu_only(launch_bounds=THREADS))
    def cin_parallel(input, weight, output):
        S = cuda.shared.array(FIELD, float32)
        x, y, z = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), uint32(cuda.threadIdx.z)
        t = uint32((z * B_Y + y) * B_X + x)
        block = uint32(cuda.blockIdx.x)
        w0 = block % ACROSS * B_X
        h0 = block // ACROSS % DOWN * B_Y
        i_c0 = block // (ACROSS * DOWN) % GROUPS * B_Z
        i_n = block // (ACROSS * DOWN * GROUPS)
        o_h, o_w, i_c = h0 + y, w0 + x, i_c0 + z

        for f_h0 in range(0, H_f, U):
            for f_w0 in range(0, W_f, V):
                stage_field(input, S, i_n, i_c0, h0, w0, f_h0, f_w0, t)  # load
                cuda.syncthreads()  # all have fetched before any computes

                if o_h < H_o and o_w < W_o and i_c < C_i:
                    for o_c in range(C_o):  # compute
                        partial = float32(0)
                        for f_h in range(min(U, H_f - f_h0)):
                            for f_w in range(min(V, W_f - f_w0)):
                                pixel = S[z, y * s_h + f_h * d_h, x * s_w + f_w * d_w]
                                partial += pixel * weight[o_c, i_c, f_h0 + f_h, f_w0 + f_w]
                        cuda.atomic.add(
                            output, ((i_n * C_o + o_c) * H_o + o_h) * W_o + o_w, partial
                        )
                cuda.syncthreads()  # all have read this part before any overwrites it

    return cin_parallel


def prepare(problem: ConvProblem, tile: None = None) -> Program:
    """Return the program: zeros in ``output``, then the kernel that adds to them. There is no
    tile."""
    field = channel_parallel_field(problem)
    return channel_parallel_program(problem, field, make_kernel(problem, field))


STAGE = Stage(
    __name__,
    title="C_in-parallel: the receptive field shared by all filters, added atomically",
    source="Accelerating 2D Convolutions on GPU (001), 2.2, Algorithm 1",
    builds_on=("c01_input_channels",),
    prepare=prepare,
    atomic_additions=lambda problem: problem.C_i * channel_parallel_field(problem).parts(problem),
)
