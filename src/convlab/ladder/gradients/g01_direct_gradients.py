"""g01: gradients by their definition. One thread sums one element of dL/dinput or dL/dweight.

Source: the chain rule on im2win paper (000), Equation 1. Threads gather, as in m01: the thread of
an element finds the outputs that used the element, so no two threads add to the same element.
"""

from numba import cuda, float32, uint32

from convlab.ladder.stage import Kernel, Launch, Program, Stage, blocks_for
from convlab.problems.gradient import Gradient

THREADS = 256


def make_input_kernel(gradient: Gradient) -> Kernel:
    p = gradient.problem
    N_i, C_i, H_i, W_i = p.input_shape
    C_g, M_g, H_f, W_f, H_o, W_o = C_i // p.groups, p.C_o // p.groups, p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w

    @cuda.jit
    def input_gradient(of_output, weight, of_input):
        thread = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        i_w = thread % W_i
        i_h = thread // W_i % H_i
        r = thread // (W_i * H_i) % C_i
        i = thread // (W_i * H_i * C_i)
        if i >= N_i:
            return
        first = r // C_g * M_g  # the first filter that sees channel r

        total = float32(0)
        for u in range(H_f):
            for v in range(W_f):
                # The output whose window has this pixel under tap (u, v), in pixels of the input.
                at_h = i_h + p_h - u * d_h
                at_w = i_w + p_w - v * d_w
                if at_h >= 0 and at_w >= 0 and at_h % s_h == 0 and at_w % s_w == 0:
                    m = at_h // s_h
                    n = at_w // s_w
                    if m < H_o and n < W_o:
                        for j in range(M_g):
                            of_pixel = of_output[i, first + j, m, n]
                            total += of_pixel * weight[first + j, r % C_g, u, v]

        of_input[i, r, i_h, i_w] = total

    return input_gradient


def make_weight_kernel(gradient: Gradient) -> Kernel:
    p = gradient.problem
    N_i, C_i, H_i, W_i = p.input_shape
    C_g, M_g, H_f, W_f, H_o, W_o = C_i // p.groups, p.C_o // p.groups, p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    C_o = p.C_o

    @cuda.jit
    def weight_gradient(input, of_output, of_weight):
        thread = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        v = thread % W_f
        u = thread // W_f % H_f
        r = thread // (W_f * H_f) % C_g
        j = thread // (W_f * H_f * C_g)
        if j >= C_o:
            return
        channel = j // M_g * C_g + r

        total = float32(0)
        for i in range(N_i):
            for m in range(H_o):
                for n in range(W_o):
                    i_h = m * s_h + u * d_h - p_h
                    i_w = n * s_w + v * d_w - p_w
                    if 0 <= i_h < H_i and 0 <= i_w < W_i:
                        total += input[i, channel, i_h, i_w] * of_output[i, j, m, n]

        of_weight[j, r, u, v] = total

    return weight_gradient


def prepare(gradient: Gradient, tile: None = None) -> Program:
    make_kernel = make_input_kernel if gradient.of == "input" else make_weight_kernel
    N, C, H, W = gradient.output_shape
    grid = (blocks_for(N * C * H * W, THREADS),)
    arguments = ("input", "weight", "output")
    return Program((), (Launch(make_kernel(gradient), grid, (THREADS,), arguments),))


STAGE = Stage(
    __name__,
    title="Gradients: one thread per element of an input or a filter",
    source="im2win paper (000), 2.2, Equation 1, by the chain rule",
    builds_on=("m01_direct",),
    prepare=prepare,
    grouped=True,
)
