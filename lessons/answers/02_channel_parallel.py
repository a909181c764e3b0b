"""Answers to the exercises of lesson 02."""

from check_answers import given, right, wrong

ATOMIC = "cuda.atomic.add(output, ((i_n * C_o + o_c) * H_o + o_h) * W_o + o_w, partial)"
ATOMIC_IN_LINES = """cuda.atomic.add(
                            output, ((i_n * C_o + o_c) * H_o + o_h) * W_o + o_w, partial
                        )"""
PLACE = "((i_n * C_o + o_c) * H_o + o_h) * W_o + o_w"
BORDER = "if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                        pixel = input[i_n, i_c, i_h, i_w]"
ADD = "partial += pixel * weight[o_c, i_c, f_h, f_w]"
LOOPS = "            for f_h in range(H_f):\n                for f_w in range(W_f):\n"
XYZ = "x, y, z = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), uint32(cuda.threadIdx.z)"
NUMBER = "t = uint32((z * B_Y + y) * B_X + x)"
FROM_T = "t = uint32((cuda.threadIdx.z * B_Y + cuda.threadIdx.y) * B_X + cuda.threadIdx.x)\n        "
OWN = "S[z, y * s_h + f_h * d_h, x * s_w + f_w * d_w]"

ANSWERS = {
    "parts": [
        wrong("added, but not atomically", "global race", (ATOMIC, f"output[{PLACE}] += partial"), line="+= partial"),
        wrong("written, not added", "global race", (ATOMIC, f"output[{PLACE}] = partial")),
        wrong("an atomic addition for each product", "counts", (ADD, f"cuda.atomic.add(output, {PLACE}, pixel * weight[o_c, i_c, f_h, f_w])"), (f"            {ATOMIC}", "            pass")),
        wrong("the sum begins once for all output channels", "answer", ("        for o_c in range(C_o):\n            partial = float32(0)\n", "        partial = float32(0)\n        for o_c in range(C_o):\n")),
        wrong("all input channels, in every thread", "answer", (ADD, "for c in range(C_i):\n                        partial += pixel * weight[o_c, c, f_h, f_w]")),
        wrong("only one output channel", "answer", ("for o_c in range(C_o):", "for o_c in range(1):")),
        wrong("no border", "out of bounds", (BORDER, "pixel = input[i_n, i_c, i_h, i_w]"), line="input[i_n, i_c, i_h, i_w]"),
        wrong("padding forgotten", "answer", (" - p_h", ""), (" - p_w", "")),
        wrong("channels of the filter exchanged", "out of bounds", ("weight[o_c, i_c, f_h, f_w]", "weight[i_c, o_c, f_h, f_w]")),
        wrong("rows and columns of the output exchanged", "answer", (PLACE, "((i_n * C_o + o_c) * W_o + o_w) * H_o + o_h")),
        wrong("the first image's outputs for all", "answer", (PLACE, "(o_c * H_o + o_h) * W_o + o_w")),
        wrong("four indices for an array of one dimension", "broken", (ATOMIC, "cuda.atomic.add(output, (i_n, o_c, o_h, o_w), partial)")),
        wrong("padding with the dilation", "answer", ("f_h * d_h - p_h", "(f_h - p_h) * d_h")),
        right("one loop over the filter", (LOOPS, "            for k in range(H_f * W_f):\n                f_h, f_w = k // W_f, k % W_f\n                if True:\n")),
        right("columns before rows", (LOOPS, "            for f_w in range(W_f):\n                for f_h in range(H_f):\n")),
        right("added backwards, channel after channel", ("for o_c in range(C_o):", "for o_c in range(C_o - 1, -1, -1):"), (PLACE, "o_w + W_o * (o_h + H_o * (o_c + C_o * i_n))")),
        wrong("the input channel's place", "out of bounds", (PLACE, "((i_n * C_o + i_c) * H_o + o_h) * W_o + o_w"), line="+ i_c)", told="Is i_c the right name"),
        wrong("as many outputs as input channels", "out of bounds", ("for o_c in range(C_o):", "for o_c in range(C_i):"), line="range(C_i)", told="Is C_i the right name"),
        right("parts that are zero are not added", (ATOMIC, "if partial != 0:\n                cuda.atomic.add(output, ((i_n * C_o + o_c) * H_o + o_h) * W_o + o_w, partial)")),
    ],
    "lanes": [
        given("counts"),
        wrong("rows for columns", "counts", (XYZ, f"{FROM_T}y, x, z = t % B_Y, t // B_Y % B_X, t // (B_X * B_Y)"), (NUMBER, "")),
        wrong("channels in the middle", "counts", (XYZ, f"{FROM_T}y, z, x = t % B_Y, t // B_Y % B_Z, t // (B_Y * B_Z)"), (NUMBER, "")),
        wrong("the field's channel exchanged", "answer", (OWN, "S[B_Z - 1 - z, y * s_h + f_h * d_h, x * s_w + f_w * d_w]")),
        wrong("the same number for all rows", "answer", (NUMBER, "t = uint32(z * B_X + x)")),
        wrong("a barrier taken out", "shared race", ("                cuda.syncthreads()  # all have fetched before any computes\n", "")),
        wrong("no barrier before the next part", "shared race", ("                cuda.syncthreads()  # all have read this part before any overwrites it\n", "")),
        wrong("a warp's barrier, not the block's", "shared race", ("cuda.syncthreads()  # all have fetched", "cuda.syncwarp()  # all have fetched")),
        wrong("written, not added", "global race", (ATOMIC_IN_LINES, f"output[{PLACE}] += partial")),
        wrong("channels first", "counts", (XYZ, f"{FROM_T}z, x, y = t % B_Z, t // B_Z % B_X, t // (B_Z * B_X)"), (NUMBER, "")),
        wrong("the field\'s row and column exchanged", "out of bounds", (OWN, "S[z, x * s_h + f_h * d_h, y * s_w + f_w * d_w]")),
        wrong("no guard for channels past the last", "out of bounds", (" and i_c < C_i", "")),
        right("from the thread's number", (XYZ, f"{FROM_T}x, y, z = t % B_X, t // B_X % B_Y, t // (B_X * B_Y)"), (NUMBER, "")),
        right("by subtraction", (XYZ, f"{FROM_T}z = t // (B_X * B_Y)\n        y = (t - z * B_X * B_Y) // B_X\n        x = t - (z * B_Y + y) * B_X"), (NUMBER, "")),
        right("the number summed up", (NUMBER, "t = uint32(x + B_X * y + B_X * B_Y * z)")),
    ],
}
