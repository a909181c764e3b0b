"""Answers to the exercises of lesson 03."""

from check_answers import given, right, wrong

TERM = "i_c, f_h, f_w = k // (H_f * W_f), k % (H_f * W_f) // W_f, k % W_f"
PIXEL = "i_n, pixel = n // PIXELS, INDEX(n % PIXELS)"
INSIDE = "if n < N and 0 <= i_h < H_i and 0 <= i_w < W_i:"
FETCH = "value = input[i_n, i_c, i_h, i_w]"
ZERO = "        value = float32(0)  # outside the image is padding, beyond the last window nothing\n"
PLACE = "k, n = uint32(e // WIDTH), e % WIDTH"
STORE = "columns[e] = value"
GUARD = "if k >= K:"

ANSWERS = {
    "windows": [
        wrong("beyond the last window not thought of", "out of bounds", ("n < N and ", ""), line=FETCH),
        wrong("no border", "out of bounds", (INSIDE, "if n < N:"), line=FETCH),
        wrong("a border one too wide", "out of bounds", ("i_h < H_i", "i_h <= H_i")),
        wrong("padding forgotten", "answer", (" - p_h", ""), (" - p_w", "")),
        wrong("stride forgotten", "answer", (" * s_h", "")),
        wrong("dilation forgotten", "answer", ("f_w * d_w", "f_w")),
        wrong("rows and columns of the filter exchanged", "answer", (TERM, "i_c, f_w, f_h = k // (H_f * W_f), k % (H_f * W_f) // H_f, k % H_f")),
        wrong("channels fastest", "answer", (TERM, "i_c, f_h, f_w = k % C_i, k // C_i // W_f, k // C_i % W_f"), ("N, K, PIXELS = p.N, p.K,", "C_i = p.C_i\n    N, K, PIXELS = p.N, p.K,")),
        wrong("rows of the output as long as the input's", "answer", ("pixel // W_o", "pixel // W_i"), ("pixel % W_o", "pixel % W_i")),
        wrong("the first image alone", "answer", (PIXEL, "i_n, pixel = 0, INDEX(n % PIXELS)")),
        wrong("no value for padding", "uninitialised", (ZERO, "")),
        wrong("one where it is padding", "answer", ("value = float32(0)", "value = float32(1)")),
        wrong("everything fetched twice", "counts", (FETCH, "value = (input[i_n, i_c, i_h, i_w] + input[i_n, i_c, i_h, i_w]) / 2")),
        wrong("an index that is a list", "refused by Numba", (FETCH, "value = input[[i_n, i_c, i_h, i_w]]")),
        wrong("padding with the dilation", "answer", ("f_h * d_h - p_h", "(f_h - p_h) * d_h")),
        right("by subtraction", (TERM, "i_c = k // (H_f * W_f)\n        f_h = (k - i_c * H_f * W_f) // W_f\n        f_w = k - (i_c * H_f + f_h) * W_f")),
        right("row and column of the output first", (PIXEL, "i_n, pixel = n // PIXELS, INDEX(n % PIXELS)\n        m, o = pixel // W_o, pixel - pixel // W_o * W_o"), ("pixel // W_o * s_h", "m * s_h"), ("pixel % W_o * s_w", "o * s_w")),
        right("the border as questions one by one", (INSIDE, "if n >= N or i_h < 0 or i_h >= H_i or i_w < 0 or i_w >= W_i:\n            value = float32(0)\n        else:")),
    ],
    "order": [
        given("counts"),
        wrong("only the store corrected", "answer", (PLACE, "k, n = uint32(e % K), e // K"), (GUARD, "if n >= WIDTH:")),
        wrong("only the column corrected", "answer", (PLACE, "k, n = uint32(e % K), e % WIDTH")),
        wrong("the old guard", "out of bounds", (GUARD, "if n >= WIDTH:")),
        wrong("rows of N", "answer", (PLACE, "k, n = uint32(e // N), e % N"), ("K, PIXELS = p.K, p.H_o * p.W_o", "K, PIXELS, N = p.K, p.H_o * p.W_o, p.N")),
        wrong("the matrix transposed", "answer", (STORE, "columns[n * K + k] = value")),
        wrong("the last row left out", "answer", (GUARD, "if k >= K - 1:")),
        wrong("every second column first", "counts", (PLACE, "k, n = uint32(e // WIDTH), e % WIDTH\n        n = n * 5 % WIDTH if WIDTH % 5 else n * 7 % WIDTH"), (STORE, "columns[k * WIDTH + n] = value")),
        wrong("no guard for the last block", "out of bounds", (GUARD, "if False:")),
        wrong("one row too many", "out of bounds", (GUARD, "if k > K:")),
        wrong("the pixel's number for its window's", "answer", ("find_value(input, k, n)", "find_value(input, k, n % PIXELS)")),
        wrong("one matrix for all images, always", "answer", ("if BY_IMAGE:", "if False:")),
        right("the place from row and column", (STORE, "columns[k * WIDTH + n] = value")),
        right("with divmod", (PLACE, "k, n = divmod(e, WIDTH)")),
        right("by subtraction", (PLACE, "k = uint32(e // WIDTH)\n        n = e - k * WIDTH")),
    ],
}
