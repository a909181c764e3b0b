"""Grouped convolution: m01 with registers, each filter over its own group's channels.

``convlab.plan`` takes this stage for groups, because the ladder's stages compute one group.
A depthwise layer has as many groups as channels. Its sums have nine terms (3 x 3 filters), and each
input is used nine times, so a matrix product gains nothing. A thread computes one pixel of up to
``MOST_SUMS`` output channels of one group, and each input that it reads serves all of them.
"""

from numba import cuda, float32, uint32

from convlab.ladder.stage import Kernel, Launch, Program, Stage, blocks_for
from convlab.problems.problem import ConvProblem

THREADS = 256
MOST_SUMS = 8  # sums of a thread, in registers


def make_kernel(problem: ConvProblem, M_T: int) -> Kernel:
    """The kernel for ``M_T`` output channels a thread."""
    p = problem
    N, C_g, H_i, W_i = p.N, p.C_i // p.groups, p.H_i, p.W_i
    M_g, TILES, H_f, W_f, H_o, W_o = p.C_o // p.groups, p.C_o // M_T, p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w

    @cuda.jit
    def grouped(input, weight, bias, output):
        # Blocks of the same pixels come one after the other, so a group's inputs are in the cache.
        block = uint32(cuda.blockIdx.x)
        j = block % uint32(TILES) * uint32(M_T)  # the first output channel
        pixel = block // uint32(TILES) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        if pixel >= N:
            return
        o_w = pixel % uint32(W_o)
        o_h = pixel // uint32(W_o) % uint32(H_o)
        i = pixel // uint32(W_o * H_o)
        first = j // uint32(M_g) * uint32(C_g)  # the group's first input channel

        sums = cuda.local.array(M_T, float32)
        for c in range(M_T):
            sums[c] = float32(0)
        for r in range(C_g):
            for u in range(H_f):
                for v in range(W_f):
                    i_h = o_h * s_h + u * d_h - p_h
                    i_w = o_w * s_w + v * d_w - p_w
                    image_pixel = float32(0)  # outside the image is padding
                    if 0 <= i_h < H_i and 0 <= i_w < W_i:
                        image_pixel = input[i, first + r, i_h, i_w]
                    for c in range(M_T):
                        sums[c] += image_pixel * weight[j + c, r, u, v]
        for c in range(M_T):
            output[i, j + c, o_h, o_w] = sums[c] + bias[j + c]

    return grouped


def prepare(problem: ConvProblem, tile: None = None) -> Program:
    """One launch for all groups: each thread computes one pixel of several channels of a group."""
    of_group = problem.C_o // problem.groups
    M_T = max(size for size in range(1, MOST_SUMS + 1) if of_group % size == 0)
    blocks = blocks_for(problem.N, THREADS) * (problem.C_o // M_T)
    arguments = ("input", "weight", "bias", "output")
    return Program((), (Launch(make_kernel(problem, M_T), (blocks,), (THREADS,), arguments),))


GROUPED = Stage(
    __name__,
    title="Grouped convolution: one thread for a pixel of several output channels",
    source="im2win paper (000), 2.2, Equation 1, for each group",
    builds_on=("m01_direct",),
    prepare=prepare,
    grouped=True,
)
