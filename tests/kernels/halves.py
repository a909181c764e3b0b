"""A direct convolution of 16-bit numbers, channels last, for what lies between tensors and stages.

Its kernel gets the bits of float16 or bfloat16 as uint16. The filter is copied to a buffer of
uint16, and the bias to dynamic shared memory.
"""

from __future__ import annotations

import math

from numba import cuda, float32, int32, uint16, uint32

from convlab.ladder.stage import Buffer, Flat, Launch, Program, Stage, blocks_for

THREADS = 32


def converters(kind):
    """Device functions that make float32 of a type's bits, and bits of float32, rounded once."""
    M, LARGEST = kind.bits - 1, (1 << (16 - kind.bits)) - 1  # bits of the fraction, last exponent
    HIDDEN, LEAST = 1 << M, kind.least

    @cuda.jit(device=True)
    def to_float(bits):
        exponent, fraction = int32(bits >> M & LARGEST), int32(bits & (HIDDEN - 1))
        if exponent == LARGEST:
            number = float32(math.inf) if fraction == 0 else float32(math.nan)
        elif exponent == 0:
            number = math.ldexp(float32(fraction), int(LEAST - M))
        else:
            number = math.ldexp(float32(fraction + HIDDEN), int(exponent - 1 + LEAST - M))
        return float32(-number if bits >> 15 else number)

    @cuda.jit(device=True)
    def to_bits(number):
        sign = 0
        if math.copysign(float32(1), number) < 0:
            sign = 1 << 15
        size = abs(number)
        if math.isnan(number):
            return uint16(LARGEST << M | 1)
        if math.isinf(number):
            return uint16(sign | LARGEST << M)
        exponent = int32(LEAST)
        if size >= math.ldexp(float32(1), int(LEAST)):
            exponent = int32(math.frexp(size)[1] - 1)
        scaled = math.ldexp(size, int(M - exponent))
        whole = int32(math.floor(scaled))
        rest = scaled - whole
        if rest > 0.5 or (rest == 0.5 and whole % 2 == 1):
            whole += 1
        # The hidden bit adds one to the exponent, and so does a fraction that is rounded up.
        bits = min(((exponent - LEAST) << M) + whole, LARGEST << M)
        return uint16(sign | bits)

    return to_float, to_bits


def prepare(problem, tile):
    N_i, H_i, W_i, C_i = problem.input_shape
    C_o, H_f, W_f, _ = problem.weight_shape
    _, H_o, W_o, _ = problem.output_shape
    s_h, s_w, d_h, d_w, p_h, p_w = (
        problem.s_h, problem.s_w, problem.d_h, problem.d_w, problem.p_h, problem.p_w,
    )  # fmt: skip
    OUTPUTS, WEIGHTS = N_i * H_o * W_o * C_o, math.prod(problem.weight_shape)
    to_float, to_bits = converters(problem.number_type)

    @cuda.jit
    def copy_filter(weight, packed):
        w = uint32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        if w < WEIGHTS:
            packed[w] = weight[w]

    @cuda.jit
    def direct_16(input, packed, bias, output):
        biases = cuda.shared.array(0, float32)
        for m in range(cuda.threadIdx.x, C_o, THREADS):
            biases[m] = to_float(bias[m])
        cuda.syncthreads()
        place = uint32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        if place < OUTPUTS:
            m, pixel = place % C_o, place // C_o
            column, row, image = pixel % W_o, pixel // W_o % H_o, pixel // (W_o * H_o)
            total = float32(0)
            for u in range(H_f):
                for v in range(W_f):
                    i = int32(row * s_h + u * d_h) - int32(p_h)
                    j = int32(column * s_w + v * d_w) - int32(p_w)
                    inside = i >= 0 and i < H_i and j >= 0 and j < W_i
                    for c in range(C_i):
                        x = float32(0)
                        if inside:
                            x = to_float(input[image, i, j, c])
                        w = to_float(packed[((m * H_f + u) * W_f + v) * C_i + c])
                        total = float32(total + float32(x * w))
            output[place] = to_bits(float32(total + biases[m]))

    blocks, arguments = (blocks_for(WEIGHTS, THREADS),), (Flat("weight"), "packed")
    copy = Launch(copy_filter, blocks, (THREADS,), arguments)
    blocks, arguments = (blocks_for(OUTPUTS, THREADS),), ("input", "packed", "bias", Flat("output"))
    main = Launch(direct_16, blocks, (THREADS,), arguments, shared_bytes=4 * C_o)
    return Program((Buffer("packed", (WEIGHTS,), "uint16"),), (copy, main))


DIRECT_16 = Stage(
    "tests.x01_halves",
    title="Direct, 16 bits, channels last",
    source="ours",
    builds_on=(),
    prepare=prepare,
    dtypes=("bfloat16", "float16"),
    channels_last=True,
)
