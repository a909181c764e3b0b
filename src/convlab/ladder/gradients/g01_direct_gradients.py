"""g01: gradients by their definition. One thread sums one element of dL/dinput or dL/dweight.

Source: the chain rule on im2win paper (000), Equation 1. Threads gather, as in m01: the thread of
an element finds the outputs that used the element, so no two threads add to the same element.
"""

from numba import cuda, float32, uint32

from convlab.ladder.stage import Kernel, Launch, Program, Stage, blocks_for
from convlab.problems.gradient import Gradient

THREADS = 256


def make_input_kernel(gradient: Gradient) -> Kernel:
    """Return the kernel that computes dL/dinput ``[N_i, C_i, H_i, W_i]`` in float32, one element by
    each thread, from dL/doutput and the filter."""
    p = gradient.problem
    N_i, C_i, H_i, W_i = p.input_shape
    C_g, M_g, H_f, W_f, H_o, W_o = C_i // p.groups, p.C_o // p.groups, p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w

    @cuda.jit
    def input_gradient(of_output, weight, of_input):
        thread = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        i_w = thread % W_i
        i_h = thread // W_i % H_i
        i_c = thread // (W_i * H_i) % C_i
        i_n = thread // (W_i * H_i * C_i)
        if i_n >= N_i:
            return
        first = i_c // C_g * M_g  # the first filter that sees channel i_c

        total = float32(0)
        for f_h in range(H_f):
            for f_w in range(W_f):
                # The output whose window has this pixel under tap (f_h, f_w), counted in the input.
                at_h = i_h + p_h - f_h * d_h
                at_w = i_w + p_w - f_w * d_w
                if at_h >= 0 and at_w >= 0 and at_h % s_h == 0 and at_w % s_w == 0:
                    o_h = at_h // s_h
                    o_w = at_w // s_w
                    if o_h < H_o and o_w < W_o:
                        for o_c in range(M_g):
                            of_pixel = of_output[i_n, first + o_c, o_h, o_w]
                            total += of_pixel * weight[first + o_c, i_c % C_g, f_h, f_w]

        of_input[i_n, i_c, i_h, i_w] = total

    return input_gradient


def make_weight_kernel(gradient: Gradient) -> Kernel:
    """Return the kernel that computes dL/dweight ``[C_o, C_i / groups, H_f, W_f]`` in float32, one
    element by each thread, from the input and dL/doutput."""
    p = gradient.problem
    N_i, C_i, H_i, W_i = p.input_shape
    C_g, M_g, H_f, W_f, H_o, W_o = C_i // p.groups, p.C_o // p.groups, p.H_f, p.W_f, p.H_o, p.W_o
    s_h, s_w, p_h, p_w, d_h, d_w = p.s_h, p.s_w, p.p_h, p.p_w, p.d_h, p.d_w
    C_o = p.C_o

    @cuda.jit
    def weight_gradient(input, of_output, of_weight):
        thread = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        f_w = thread % W_f
        f_h = thread // W_f % H_f
        i_c = thread // (W_f * H_f) % C_g
        o_c = thread // (W_f * H_f * C_g)
        if o_c >= C_o:
            return
        channel = o_c // M_g * C_g + i_c

        total = float32(0)
        for i_n in range(N_i):
            for o_h in range(H_o):
                for o_w in range(W_o):
                    i_h = o_h * s_h + f_h * d_h - p_h
                    i_w = o_w * s_w + f_w * d_w - p_w
                    if 0 <= i_h < H_i and 0 <= i_w < W_i:
                        total += input[i_n, channel, i_h, i_w] * of_output[i_n, o_c, o_h, o_w]

        of_weight[o_c, i_c, f_h, f_w] = total

    return weight_gradient


def prepare(gradient: Gradient, tile: None = None) -> Program:
    """Return the program of the gradient: one launch with a thread for each element."""
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
