"""Answers to the exercises of lesson 01."""

from check_answers import given, right, wrong

BORDER = "if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                        pixel = input[i_n, i_c, i_h, i_w]"
ADD = "total += pixel * weight[o_c, i_c, f_h, f_w]"
PIXEL = "pixel = float32(0)  # outside the image is padding\n"
LOOPS = """        for i_c in range(C_i):
            for f_h in range(H_f):
                for f_w in range(W_f):
"""
ROWS = "o_w = thread % W_o\n        o_h = thread // W_o % H_o\n"
NUMBERS = """        o_w = thread % W_o
        o_h = thread // W_o % H_o
        o_c = thread // (W_o * H_o) % C_o
        i_n = thread // (W_o * H_o * C_o)
"""

ANSWERS = {
    "loops": [
        wrong("padding forgotten", "answer", (" - p_h", ""), (" - p_w", ""), told="The padding is not taken off"),
        wrong("no border", "out of bounds", (BORDER, "pixel = input[i_n, i_c, i_h, i_w]"), line="input[i_n, i_c, i_h, i_w]"),
        wrong("a border one too wide", "out of bounds", ("i_w < W_i", "i_w <= W_i")),
        wrong("the border's own pixels left out", "answer", ("0 <= i_h", "0 < i_h")),
        wrong("the first channel alone", "answer", ("range(C_i)", "range(1)"), told="the first input channel only"),
        wrong("stride forgotten", "answer", ("o_w * s_w", "o_w"), told="The stride is left out in the columns"),
        wrong("dilation forgotten", "answer", ("f_h * d_h", "f_h"), told="The dilation is left out in the rows"),
        wrong("rows and columns of the filter exchanged", "out of bounds", ("weight[o_c, i_c, f_h, f_w]", "weight[o_c, i_c, f_w, f_h]")),
        wrong("the last term, not the sum", "answer", ("total += pixel", "total = pixel"), told="Each output is its last product"),
        wrong("padding skipped, not multiplied", "answer", (BORDER + "\n                    " + ADD, BORDER + "\n                        " + ADD)),
        wrong("everything fetched twice", "counts", (ADD, "total += (pixel * weight[o_c, i_c, f_h, f_w] + pixel * weight[o_c, i_c, f_h, f_w]) / 2")),
        wrong("a name that does not exist", "broken", ("range(H_f)", "range(F_h)")),
        wrong("the filter's first row left out", "answer", ("for f_h in range(H_f)", "for f_h in range(1, H_f)"), told="The first row of the filter is missing"),
        wrong("padding with the dilation", "answer", ("f_h * d_h - p_h", "(f_h - p_h) * d_h"), told="The padding is multiplied by the dilation"),
        wrong("padding added", "answer", ("f_h * d_h - p_h", "f_h * d_h + p_h"), told="The padding is added in the rows"),
        wrong("strides exchanged", "answer", ("o_h * s_h", "o_h * s_w"), ("o_w * s_w", "o_w * s_h"), told="The strides of rows and columns are exchanged"),
        wrong("the pixel of the last turn kept", "answer", ("        total = float32(0)\n", "        total = float32(0)\n        pixel = float32(0)\n"), ("                    pixel = float32(0)  # outside the image is padding\n", "")),
        wrong("the filter flipped, as in mathematics", "answer", ("weight[o_c, i_c, f_h, f_w]", "weight[o_c, i_c, H_f - 1 - f_h, W_f - 1 - f_w]"), told="The rows and columns of the filter are read from the last"),
        wrong("as many channels as outputs have", "out of bounds", ("for i_c in range(C_i)", "for i_c in range(C_o)")),
        wrong("row and column of the pixel exchanged", "out of bounds", ("input[i_n, i_c, i_h, i_w]", "input[i_n, i_c, i_w, i_h]")),
        wrong("three indices", "missing index", ("weight[o_c, i_c, f_h, f_w]", "weight[o_c, f_h, f_w]")),
        wrong("added once for each row", "answer", ("                    total += pixel", "                total += pixel")),
        wrong("the bias forgotten", "answer", ("total + bias[o_c]", "total"), told="lack the bias, and nothing else"),
        wrong("the bias added to each product", "answer", ("total += pixel * weight[o_c, i_c, f_h, f_w]", "total += pixel * weight[o_c, i_c, f_h, f_w] + bias[o_c]"), told="The bias is added with every product"),
        wrong("divided by the stride", "answer", ("o_h * s_h", "o_h // s_h"), ("o_w * s_w", "o_w // s_w")),
        wrong("padding taken off before the stride", "answer", ("o_h * s_h + f_h * d_h - p_h", "(o_h - p_h) * s_h + f_h * d_h"), ("o_w * s_w + f_w * d_w - p_w", "(o_w - p_w) * s_w + f_w * d_w"), told="The padding is multiplied by the stride"),
        wrong("paddings exchanged", "answer", (" - p_h", " - p_w"), ("f_w * d_w - p_w", "f_w * d_w - p_h"), told="The padding above and that on the left are exchanged"),
        wrong("dilations exchanged", "answer", ("f_h * d_h", "f_h * d_w"), ("f_w * d_w", "f_w * d_h"), told="The dilations of rows and columns are exchanged"),
        wrong("the border's pixel repeated", "answer", ("if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                        pixel = input[i_n, i_c, i_h, i_w]", "pixel = input[i_n, i_c, min(max(i_h, 0), H_i - 1), min(max(i_w, 0), W_i - 1)]\n                    if True:\n                        pass")),
        wrong("around the image", "answer", ("if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                        pixel = input[i_n, i_c, i_h, i_w]", "pixel = input[i_n, i_c, i_h % H_i, i_w % W_i]\n                    if True:\n                        pass")),
        wrong("the output's channel for the input's", "out of bounds", ("input[i_n, i_c, i_h", "input[i_n, o_c, i_h"), told="Is o_c the right name everywhere in this line?"),
        wrong("the bias by column", "out of bounds", ("bias[o_c]", "bias[o_w]")),
        wrong("the stride for the filter, too", "answer", ("f_h * d_h", "f_h * s_h"), ("f_w * d_w", "f_w * s_w"), told="The stride stands in the place of the dilation"),
        wrong("ended at the first pixel of the padding", "answer", ("                    if 0 <= i_h < H_i and", "                    if i_h < 0 or i_w < 0 or i_h >= H_i or i_w >= W_i:\n                        break\n                    if 0 <= i_h < H_i and"), told="All of them have padding on the left"),
        wrong("the mean, not the sum", "answer", ("total + bias", "total / (C_i * H_f * W_f) + bias")),
        wrong("continue at the padding", "answer", ("if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                        pixel = input[i_n, i_c, i_h, i_w]", "if i_h < 0 or i_h >= H_i or i_w < 0 or i_w >= W_i:\n                        continue\n                    pixel = input[i_n, i_c, i_h, i_w]")),
        right("one loop over all terms", (LOOPS, "        for k in range(C_i * H_f * W_f):\n            i_c, f_h, f_w = k // (H_f * W_f), k // W_f % H_f, k % W_f\n            if True:\n                if True:\n")),
        right("loops in another order", (LOOPS, "        for f_h in range(H_f):\n            for f_w in range(W_f):\n                for i_c in range(C_i):\n")),
        right("the border as two questions", ("if 0 <= i_h < H_i and 0 <= i_w < W_i:", "if not (i_h < 0 or i_h >= H_i or i_w < 0 or i_w >= W_i):")),
        right("one index after the other", ("input[i_n, i_c, i_h, i_w]", "input[i_n][i_c][i_h][i_w]")),
        right("begun with the bias", ("total = float32(0)", "total = bias[o_c]"), ("total + bias[o_c]", "total")),
        right("the pixel's row outside the loop over columns", ("            for f_h in range(H_f):\n                for f_w in range(W_f):\n                    i_h = o_h * s_h + f_h * d_h - p_h\n", "            for f_h in range(H_f):\n                i_h = o_h * s_h + f_h * d_h - p_h\n                for f_w in range(W_f):\n")),
    ],
    "order": [
        given("counts"),
        wrong("one line corrected", "answer", ("o_h = thread // W_o % H_o", "o_h = thread % H_o")),
        wrong("the image's sizes for the output's", "out of bounds", (ROWS, "o_w = thread % W_i\n        o_h = thread // W_i % H_o\n"), ("N_i, _, _, _ = p.input_shape", "N_i, _, _, W_i = p.input_shape")),
        wrong("the written place exchanged", "answer", ("output[i_n, o_c, o_h, o_w]", "output[i_n, o_c, o_w % H_o, o_h % W_o]")),
        wrong("channels first", "counts", (NUMBERS, "        o_c = thread % C_o\n        o_w = thread // C_o % W_o\n        o_h = thread // (C_o * W_o) % H_o\n        i_n = thread // (W_o * H_o * C_o)\n")),
        wrong("rows still first", "counts", (ROWS, "o_w = thread // H_o % W_o\n        o_h = thread - thread // H_o * H_o\n")),
        wrong("no guard for the last block", "out of bounds", ("        if i_n >= N_i:\n            return\n\n", "")),
        wrong("the number in the block alone", "answer", ("uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)", "uint32(cuda.threadIdx.x)")),
        wrong("written from the right", "answer", ("output[i_n, o_c, o_h, o_w]", "output[i_n, o_c, o_h, W_o - 1 - o_w]")),
        wrong("images without their channels", "answer", ("i_n = thread // (W_o * H_o * C_o)", "i_n = thread // (W_o * H_o)")),
        wrong("the bias added twice", "answer", ("total + bias[o_c]", "total + 2 * bias[o_c]"), told="The bias is in each output twice"),
        wrong("a name that does not exist", "broken", ("if i_n >= N_i:", "if i_n >= N:")),
        wrong("a guard one too wide", "out of bounds", ("i_n >= N_i", "i_n > N_i"), told="The line with input is given. Its index is computed from the arguments of the call"),
        wrong("the column by the rows", "answer", ("o_w = thread % W_o", "o_w = thread % H_o")),
        wrong("channels without their rows", "answer", ("o_c = thread // (W_o * H_o) % C_o", "o_c = thread // W_o % C_o")),
        wrong("no parentheses around the plane's pixels", "answer", ("thread // (W_o * H_o) % C_o", "thread // W_o * H_o % C_o")),
        right("from the outside in", (NUMBERS, "        i_n = thread // (C_o * H_o * W_o)\n        rest = thread % (C_o * H_o * W_o)\n        o_c, pixel = rest // (H_o * W_o), rest % (H_o * W_o)\n        o_h, o_w = pixel // W_o, pixel % W_o\n")),
        right("by subtraction", (ROWS, "o_h = thread // W_o % H_o\n        o_w = thread - thread // W_o * W_o\n")),
        right("with divmod", (NUMBERS, "        rest, o_w = divmod(thread, W_o)\n        rest, o_h = divmod(rest, H_o)\n        i_n, o_c = divmod(rest, C_o)\n")),
        right("a guard by the thread's number", ("i_n >= N_i", "thread >= N_i * C_o * H_o * W_o")),
    ],
}
