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
        wrong("no parentheses around the image's pixels", "out of bounds", ("n // (H_o * W_o)", "n // H_o * W_o")),
        wrong("no parentheses around the filter's numbers", "answer", ("f_h = k % (H_f * W_f) // W_f", "f_h = k % H_f * W_f // W_f")),
        wrong("guards one too wide", "out of bounds", ("if m >= M or n >= N:", "if m > M or n > N:")),
        wrong("the bias of the pixel", "out of bounds", ("bias[m]", "bias[n]")),
        wrong("the bias forgotten", "answer", ("total + bias[m]", "total"), told="lack the bias, and nothing else"),
        wrong("paddings exchanged", "answer", (" - p_h", " - p_w"), ("f_w * d_w - p_w", "f_w * d_w - p_h"), told="The padding above and that on the left are exchanged"),
        wrong("x and y of the thread exchanged", "answer", ("cuda.threadIdx.x)", "cuda.threadIdx.y)"), ("BLOCK_M + uint32(cuda.threadIdx.y)", "BLOCK_M + uint32(cuda.threadIdx.x)")),
        wrong("the other side of the block", "answer", ("cuda.blockIdx.x) * BLOCK_N", "cuda.blockIdx.x) * BLOCK_M")),
        wrong("the filter from its end", "answer", ("weight[m * K + k]", "weight[m * K + K - 1 - k]"), told="The terms of the filter are read from the last to the first"),
        wrong("the output's row and column exchanged", "out of bounds", ("output[i_n, m, o_h, o_w]", "output[i_n, m, o_w, o_h]"), told="Are o_w and o_h in the right order in this line?"),
        wrong("one term too few", "answer", ("range(K):", "range(K - 1):"), told="The last term of each sum is missing"),
        wrong("the first term left out", "answer", ("range(K):", "range(1, K):"), told="The first term of each sum is missing"),
        wrong("the filter's rows as long as the image's", "answer", ("f_w = k % W_f", "f_w = k % W_i")),
        wrong("continue at the padding", "answer", ("if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                pixel = input[i_n, i_c, i_h, i_w]", "if i_h < 0 or i_h >= H_i or i_w < 0 or i_w >= W_i:\n                continue\n            pixel = input[i_n, i_c, i_h, i_w]")),
        right("by subtraction", (ROW, "rest = n - i_n * H_o * W_o\n        o_h = rest // W_o"), (COLUMN, "o_w = rest - o_h * W_o")),
        right("from the inside out", (TERMS, "f_w = k % W_f\n            f_h = k // W_f % H_f\n            i_c = k // W_f // H_f")),
        right("with divmod", (IMAGE, "i_n, rest = divmod(n, H_o * W_o)"), (ROW, "o_h, o_w = divmod(rest, W_o)"), (f"        {COLUMN}\n", "")),
        right("three loops, k counted", ("        for term in range(K):\n            k = uint32(term)  # 32-bit divisions cost a third of 64-bit ones\n            i_c = k // (H_f * W_f)  # lines 8-13: which terms are number k of its sum?\n            f_h = k % (H_f * W_f) // W_f\n            f_w = k % W_f\n", "        for row in range(K // W_f):\n          i_c, f_h = row // H_f, row % H_f\n          for f_w in range(W_f):\n            k = row * W_f + f_w\n")),
        wrong("the image's size for the output's", "answer", ("n // (H_o * W_o)  #", "n // (H_i * W_i)  #"), line="H_i * W_i", told="Are H_i and W_i the right names in this line?"),
        wrong("the output's size for the border", "answer", ("0 <= i_h < H_i and 0 <= i_w < W_i", "0 <= i_h < H_o and 0 <= i_w < W_o"), line="i_h < H_o", told="Are H_o and W_o the right names in this line?"),
        wrong("row and column of the output named exchanged", "out of bounds", (ROW, "o_w = n % (H_o * W_o) // W_o"), (COLUMN, "o_h = n % W_o"), told="Has each of o_w and o_h the value of the other?"),
        wrong("row and column of the filter named exchanged", "answer", (F_H, "f_w = k % (H_f * W_f) // W_f"), (F_W, "f_h = k % W_f"), told="Has each of f_w and f_h the value of the other?"),
        wrong("the filter's height for its width", "answer", (F_H, "f_h = k % (H_f * W_f) // H_f"), line="// H_f", told="Are H_f and W_f in the right places"),
        wrong("the pixel's filter", "out of bounds", ("weight[m * K + k]", "weight[n * K + k]"), line="n * K", told="Is n the right name"),
        wrong("image and channel exchanged", "out of bounds", ("input[i_n, i_c, i_h, i_w]", "input[i_c, i_n, i_h, i_w]"), told="Are i_c and i_n in the right order in this line?"),
        wrong("the stride multiplies the filter's place, too", "answer", ("o_h * s_h + f_h * d_h", "(o_h + f_h * d_h) * s_h"), told="The stride multiplies the filter's place in the rows too"),
        wrong("an unsigned row", "wraps around", ("i_h = o_h * s_h + f_h * d_h - p_h", "i_h = uint32(o_h * s_h + f_h * d_h - p_h)")),
        right("indices one after the other", ("output[i_n, m, o_h, o_w] =", "output[i_n][m][o_h][o_w] ="), ("input[i_n, i_c, i_h, i_w]", "input[i_n][i_c][i_h][i_w]")),
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
