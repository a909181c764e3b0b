"""c01, "CUDA naive": input channels in parallel, from global memory, with atomic additions.

Source: Accelerating 2D Convolutions on GPU (001), section 3.1: the mapping of
:mod:`c02_receptive_field` without shared memory. A thread owns an output pixel and one *input*
channel, and loops over all output channels. It computes only that channel's part of each output, so
it adds the part atomically. C_i threads add to each output, in no fixed order: the rounding of the
sum differs from run to run, always within the oracle's bound.

The stage wins if m01 has too few outputs to fill a GPU and there are few input channels. It loses
with more input channels, because additions to one address take turns. GPUs flush denormals to zero
in atomic additions, so the check of the output allows this error (``atomic_additions``).
"""

from numba import cuda, float32, uint32

from convlab.device import gpu_only
from convlab.ladder.channels.receptive_field import (
    Field,
    channel_parallel_field,
    channel_parallel_program,
)
from convlab.ladder.stage import Kernel, Program, Stage, blocks_for
from convlab.problems.problem import ConvProblem


def make_kernel(problem: ConvProblem, field: Field) -> Kernel:
    """The kernel with the problem's shapes and the block's region as constants."""
    p = problem
    _, C_i, H_i, W_i = p.input_shape
    C_o, H_f, W_f, H_o, W_o = p.C_o, p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    B_Z, B_Y, B_X = field.B_Z, field.B_Y, field.B_X
    DOWN, ACROSS = field.regions(problem)
    GROUPS = blocks_for(C_i, B_Z)

    @cuda.jit(**gpu_only(launch_bounds=B_Z * B_Y * B_X))
    def cin_naive(input, weight, output):
        x, y, z = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), uint32(cuda.threadIdx.z)
        block = uint32(cuda.blockIdx.x)
        o_w = block % ACROSS * B_X + x
        o_h = block // ACROSS % DOWN * B_Y + y
        i_c = block // (ACROSS * DOWN) % GROUPS * B_Z + z
        i_n = block // (ACROSS * DOWN * GROUPS)
        if o_h >= H_o or o_w >= W_o or i_c >= C_i:
            return

        for o_c in range(C_o):
            partial = float32(0)
            for f_h in range(H_f):
                for f_w in range(W_f):
                    i_h = o_h * s_h + f_h * d_h - p_h
                    i_w = o_w * s_w + f_w * d_w - p_w
                    pixel = float32(0)  # outside the image is padding
                    if 0 <= i_h < H_i and 0 <= i_w < W_i:
                        pixel = input[i_n, i_c, i_h, i_w]
                    partial += pixel * weight[o_c, i_c, f_h, f_w]
            cuda.atomic.add(output, ((i_n * C_o + o_c) * H_o + o_h) * W_o + o_w, partial)

    return cin_naive


def prepare(problem: ConvProblem, tile: None = None) -> Program:
    """Return the program: zeros in ``output``, then the kernel that adds to them. There is no
    tile."""
    field = channel_parallel_field(problem)
    return channel_parallel_program(problem, field, make_kernel(problem, field))


STAGE = Stage(
    __name__,
    title="CUDA naive: input channels in parallel, added atomically",
    source="Accelerating 2D Convolutions on GPU (001), 3.1",
    builds_on=("m01_direct",),
    prepare=prepare,
    atomic_additions=lambda problem: problem.C_i,
)
