"""Answers to the exercises of lesson 04."""

from check_answers import given, right, wrong

IMAGE = "i_n = n // (H_o * W_o)"
ROW = "o_h = n % (H_o * W_o) // W_o"
COLUMN = "o_w = n % W_o"
BORDER = "if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                pixel = input[i_n, i_c, i_h, i_w]"
ADD = "total += pixel * weight[m * K + k]"
F_H = "f_h = k % (H_f * W_f) // W_f"
F_W = "f_w = k % W_f"
I_C = "i_c = k // (H_f * W_f)  # lines 8-13: which terms are number k of its sum?"
TERMS = f"{I_C}\n            {F_H}\n            {F_W}"

ANSWERS = {
    "indices": [
        wrong("the filter as if it had rows of N", "out of bounds", ("weight[m * K + k]", "weight[m * N + k]"), line="m * N"),
        wrong("the filter transposed", "answer", ("weight[m * K + k]", "weight[k * M + m]")),
        wrong("four indices for an array of one dimension", "refused by Numba", ("weight[m * K + k]", "weight[m, i_c, f_h, f_w]")),
        wrong("the image not taken off", "out of bounds", (ROW, "o_h = n // W_o")),
        wrong("rows of the input's width", "out of bounds", (ROW, "o_h = n % (H_o * W_o) // W_i"), (COLUMN, "o_w = n % W_i")),
        wrong("down before across", "counts", (ROW, "o_w = n % (H_o * W_o) // H_o"), (COLUMN, "o_h = n % H_o")),
        wrong("filter row without its channel taken off", "answer", (F_H, "f_h = k // W_f")),
        wrong("channels fastest", "answer", (I_C, "i_c = k % (K // (H_f * W_f))"), (F_H, "f_h = k // (K // (H_f * W_f)) // W_f"), (F_W, "f_w = k // (K // (H_f * W_f)) % W_f")),
        wrong("padding forgotten", "answer", (" - p_h", ""), (" - p_w", "")),
        wrong("stride forgotten", "answer", ("o_w * s_w", "o_w")),
        wrong("dilation forgotten", "answer", ("f_h * d_h", "f_h")),
        wrong("no border", "out of bounds", (BORDER, "pixel = input[i_n, i_c, i_h, i_w]"), line="input[i_n, i_c, i_h, i_w]"),
        wrong("padding skipped, not multiplied", "answer", (f"            {ADD}", f"                {ADD}")),
        wrong("everything fetched twice", "counts", (ADD, "total += (pixel * weight[m * K + k] + pixel * weight[m * K + k]) / 2")),
        wrong("padding with the dilation", "answer", ("f_h * d_h - p_h", "(f_h - p_h) * d_h")),
        right("by subtraction", (ROW, "rest = n - i_n * H_o * W_o\n        o_h = rest // W_o"), (COLUMN, "o_w = rest - o_h * W_o")),
        right("from the inside out", (TERMS, "f_w = k % W_f\n            f_h = k // W_f % H_f\n            i_c = k // W_f // H_f")),
        right("with divmod", (IMAGE, "i_n, rest = divmod(n, H_o * W_o)"), (ROW, "o_h, o_w = divmod(rest, W_o)"), (f"        {COLUMN}\n", "")),
    ],
    "oblong": [
        given("answer"),
        wrong("the column alone fixed", "answer", (F_H, "f_h = k % (H_f * W_f) // H_f")),
        wrong("the row alone fixed", "answer", (F_W, "f_w = k % H_f")),
        wrong("rows and columns of the filter exchanged", "answer", (F_H, "f_w = k % (H_f * W_f) // H_f"), (F_W, "f_h = k % H_f")),
        wrong("the longer side for both", "answer", (F_H, "f_h = k % (H_f * W_f) // max(H_f, W_f)"), (F_W, "f_w = k % max(H_f, W_f)")),
        wrong("squares in the channel too", "answer", (I_C, "i_c = k // (W_f * W_f)")),
        wrong("the channel not taken off", "answer", (F_H, "f_h = k // W_f")),
        wrong("squares of the other side", "answer", (F_H, "f_h = k % (H_f * H_f) // H_f"), (F_W, "f_w = k % H_f")),
        wrong("rows counted in channels", "answer", (F_H, "f_h = k // (H_f * W_f) % H_f")),
        wrong("both sides added", "answer", (F_W, "f_w = k % (H_f + W_f)")),
        wrong("rows in the place of channels", "out of bounds", (I_C, "i_c = k // W_f")),
        wrong("the filter from right to left", "answer", (F_W, "f_w = W_f - 1 - k % W_f")),
        right("the row by remainder", (F_H, "f_h = k // W_f % H_f")),
        right("by subtraction", (F_W, "f_w = k - (i_c * H_f + f_h) * W_f")),
        right("with divmod", (F_H, "f_h, f_w = divmod(k % (H_f * W_f), W_f)"), (f"            {F_W}\n", "")),
    ],
}
