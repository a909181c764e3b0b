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
        r0 = block // (ACROSS * DOWN) % GROUPS * B_Z
        i = block // (ACROSS * DOWN * GROUPS)
        o_h, o_w, r = h0 + y, w0 + x, r0 + z

        for u0 in range(0, H_f, U):
            for v0 in range(0, W_f, V):
                stage_field(input, S, i, r0, h0, w0, u0, v0, t)  # load
                cuda.syncthreads()  # nobody computes before all have fetched

                if o_h < H_o and o_w < W_o and r < C_i:
                    for j in range(C_o):  # compute
                        partial = float32(0)
                        for u in range(min(U, H_f - u0)):
                            for v in range(min(V, W_f - v0)):
                                pixel = S[z, y * s_h + u * d_h, x * s_w + v * d_w]
                                partial += pixel * weight[j, r, u0 + u, v0 + v]
                        cuda.atomic.add(output, ((i * C_o + j) * H_o + o_h) * W_o + o_w, partial)
                cuda.syncthreads()  # nobody fetches the next part over what others still read

    return cin_parallel


def prepare(problem: ConvProblem, tile: None = None) -> Program:
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
