"""Answers to the exercises of lesson 10."""

from check_answers import given, right, wrong

NUMBERS = """        f_h = e % H_f
        column = e // H_f % W_w
        o_h = e // (H_f * W_w) % H_o
        i_c = e // (H_f * W_w * H_o) % C_i
        i_n = e // (H_f * W_w * H_o * C_i)
"""
FROM_OUTSIDE = """        i_n = e // (C_i * H_o * W_w * H_f)
        i_c = e // (H_o * W_w * H_f) - i_n * C_i
        row, place = e // (W_w * H_f), e % (W_w * H_f)
        o_h = row % H_o
        column, f_h = place // H_f, place % H_f
"""
BORDER = "            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n"
STORE = "windows[i_n, i_c, o_h, column * H_f + f_h] = value"
WORK = "        if i_n < N_i:\n"
TERMS = """            i_c = k // (H_f * W_f)  # lines 6-9, in window order
            f_w = k % (H_f * W_f) // H_f
            f_h = k % H_f
"""
PIXEL = "pixel = windows[i_n, i_c, o_h, (o_w * s_w + f_w * d_w) * H_f + f_h]"
PLACE = """        o_h = n % (H_o * W_o) // W_o
        o_w = n % W_o
"""

FIND = "            i_c, f_h, f_w, pixel = find_pixel(windows, i_n, o_h, o_w, k)\n"

ANSWERS = {
    "transform": [
        wrong("columns counted fastest", "answer", (STORE, STORE.replace("column * H_f + f_h", "f_h * W_w + column"))),
        wrong("padding forgotten", "answer", (" - p_h", ""), (" - p_w", "")),
        wrong("stride forgotten", "answer", ("i_h = o_h * s_h", "i_h = o_h")),
        wrong("no border", "out of bounds", (BORDER, "            if True:\n"), line="input[i_n, i_c, i_h, i_w]"),
        wrong("no guard for the last block", "out of bounds", (WORK, "        if True:\n")),
        wrong("padding left as it was", "answer", ("            " + STORE, "                " + STORE)),
        wrong("the image's columns for the tensor's", "answer", ("e // H_f % W_w", "e // H_f % W_i")),
        wrong("dilation forgotten", "answer", ("f_h * d_h", "f_h")),
        wrong("a name that does not exist", "broken", ("f_h = e % H_f", "f_h = e % F_h")),
        wrong("neighbours in the input first", "counts", (NUMBERS, NUMBERS.replace("f_h = e % H_f", "column = e % W_w").replace("column = e // H_f % W_w", "f_h = e // W_w % H_f"))),
        wrong("images counted as channels", "out of bounds", (" % C_i\n", "\n")),
        wrong("always the first image", "answer", ("value = input[i_n, i_c", "value = input[0, i_c")),
        wrong("padding with the dilation", "answer", ("f_h * d_h - p_h", "(f_h - p_h) * d_h")),
        wrong("the output's stride for columns, too", "answer", ("i_w = column - p_w", "i_w = column * p.s_w - p_w")),
        wrong("paddings exchanged", "answer", ("f_h * d_h - p_h", "f_h * d_h - p_w"), ("column - p_w", "column - p_h"), told="The padding above and that on the left are exchanged"),
        wrong("a guard one too wide", "out of bounds", ("if i_n < N_i", "if i_n <= N_i")),
        wrong("a border one too wide", "out of bounds", ("i_w < W_i", "i_w <= W_i")),
        wrong("the output's columns for the tensor's", "answer", ("e // H_f % W_w", "e // H_f % W_o"), ("H_f, H_o, W_w = p.H_f, p.H_o, window_columns(p)", "H_f, H_o, W_w, W_o = p.H_f, p.H_o, window_columns(p), p.W_o")),
        wrong("rows from the window's end", "answer", ("o_h * s_h + f_h * d_h", "o_h * s_h + (H_f - 1 - f_h) * d_h")),
        wrong("no parentheses around the row's numbers", "answer", ("o_h = e // (H_f * W_w) % H_o", "o_h = e // H_f * W_w % H_o")),
        wrong("a thread fewer in each block", "answer", ("* TRANSFORM_THREADS +", "* (TRANSFORM_THREADS - 1) +")),
        wrong("the place not times the filter's rows", "global race", ("column * H_f + f_h] = value", "column + f_h] = value")),
        right("from the outside in", (NUMBERS, FROM_OUTSIDE)),
        right("returning early", (WORK, "        if i_n >= N_i:\n            return\n        if True:\n")),
        right("with divmod", (NUMBERS, "        rest, f_h = divmod(e, H_f)\n        rest, column = divmod(rest, W_w)\n        rest, o_h = divmod(rest, H_o)\n        i_n, i_c = divmod(rest, C_i)\n")),
        right("clamped, then zero", ("            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n", "            value = input[i_n, i_c, min(max(i_h, 0), H_i - 1), min(max(i_w, 0), W_i - 1)]\n            if i_h < 0 or i_h >= H_i or i_w < 0 or i_w >= W_i:\n                value = float32(0)\n")),
        right("an expression with if and else", ("            value = float32(0)\n            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n", "            value = input[i_n, i_c, i_h, i_w] if 0 <= i_h < H_i and 0 <= i_w < W_i else float32(0)\n")),
        wrong("0 stored first, then the pixel", "counts", ("            value = float32(0)\n            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n            windows[i_n, i_c, o_h, column * H_f + f_h] = value", "            windows[i_n, i_c, o_h, column * H_f + f_h] = float32(0)\n            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                windows[i_n, i_c, o_h, column * H_f + f_h] = input[i_n, i_c, i_h, i_w]\n            "), told="stores to the same element of windows twice"),
        wrong("a store in each branch, one of them elsewhere", "answer", ("            value = float32(0)\n            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n            windows[i_n, i_c, o_h, column * H_f + f_h] = value", "            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                windows[i_n, i_c, o_h, column * H_f + f_h] = input[i_n, i_c, i_h, i_w]\n            else:\n                windows[i_n, i_c, o_h, column] = float32(0)")),
        wrong("ones around the image", "answer", ("            value = float32(0)\n            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n            windows[i_n, i_c, o_h, column * H_f + f_h] = value", "            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                windows[i_n, i_c, o_h, column * H_f + f_h] = input[i_n, i_c, i_h, i_w]\n            else:\n                windows[i_n, i_c, o_h, column * H_f + f_h] = float32(1)")),
        right("a store in each branch", ("            value = float32(0)\n            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n            windows[i_n, i_c, o_h, column * H_f + f_h] = value", "            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                windows[i_n, i_c, o_h, column * H_f + f_h] = input[i_n, i_c, i_h, i_w]\n            else:\n                windows[i_n, i_c, o_h, column * H_f + f_h] = float32(0)")),
        right("a return after the pixel", ("            value = float32(0)\n            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n            windows[i_n, i_c, o_h, column * H_f + f_h] = value", "            if 0 <= i_h < H_i and 0 <= i_w < W_i:\n                windows[i_n, i_c, o_h, column * H_f + f_h] = input[i_n, i_c, i_h, i_w]\n                return\n            windows[i_n, i_c, o_h, column * H_f + f_h] = float32(0)")),
        wrong("an index too few", "missing index", ("windows[i_n, i_c, o_h, column * H_f + f_h] = value", "windows[i_n, i_c, o_h] = value"), told="windows has four dimensions"),
        wrong("the rows' padding for the columns", "answer", ("d_h - p_h", "d_h - p_w"), line="d_h - p_w", told="Is p_w the right name"),
        wrong("the output's height for the border", "answer", ("0 <= i_h < H_i", "0 <= i_h < H_o"), line="i_h < H_o", told="Is H_o the right name"),
    ],
    "terms": [
        wrong("row after row, as in the image", "answer", ("f_w = k % (H_f * W_f) // H_f", "f_w = k % W_f"), ("f_h = k % H_f", "f_h = k % (H_f * W_f) // W_f"), (PIXEL, PIXEL.replace("(o_w * s_w + f_w * d_w) * H_f + f_h", "o_w * s_w * H_f + f_h * W_f + f_w"))),
        wrong("stride forgotten", "answer", ("o_w * s_w", "o_w"), told="The stride is left out in the columns"),
        wrong("dilation forgotten", "answer", ("f_w * d_w", "f_w")),
        wrong("the filter's width for its height", "out of bounds", ("% (H_f * W_f) // H_f", "% (H_f * W_f) // W_f"), ("f_h = k % H_f", "f_h = k % W_f")),
        wrong("one channel's terms in all", "out of bounds", ("f_w = k % (H_f * W_f) // H_f", "f_w = k // H_f")),
        wrong("the column not times its height", "answer", ("(o_w * s_w + f_w * d_w) * H_f + f_h", "o_w * s_w + f_w * d_w + f_h")),
        wrong("the row of the image, as in the paper's listing", "out of bounds", ("i_c, o_h, (", "i_c, o_h + f_h, (")),
        wrong("a name that does not exist", "broken", ("f_h = k % H_f", "f_h = k % F_h")),
        wrong("every pixel fetched twice", "counts", (PIXEL, PIXEL + "\n            pixel += windows[i_n, i_c, o_h, (o_w * s_w + f_w * d_w) * H_f + f_h]\n            pixel /= 2")),
        wrong("im2col's order, row after row", "counts", ("f_w = k % (H_f * W_f) // H_f", "f_w = k % W_f"), ("f_h = k % H_f", "f_h = k // W_f % H_f")),
        wrong("window order, channels fastest", "counts", (TERMS, "            i_c = k % C_i\n            f_w = k // (C_i * H_f)\n            f_h = k // C_i % H_f\n"), ("s_w, d_w = p.s_w, p.d_w", "s_w, d_w, C_i = p.s_w, p.d_w, p.C_i")),
        wrong("rows and columns of the filter exchanged", "out of bounds", ("weight[m, i_c, f_h, f_w]", "weight[m, i_c, f_w, f_h]")),
        wrong("the column of the filter before the stride", "out of bounds", ("(o_w * s_w + f_w * d_w)", "(o_w + f_w * d_w) * s_w")),
        wrong("the next window", "out of bounds", ("(o_w * s_w + f_w", "((o_w + 1) * s_w + f_w")),
        wrong("rows first, then columns", "answer", ("(o_w * s_w + f_w * d_w) * H_f + f_h", "f_h * W_w + o_w * s_w + f_w * d_w"), ("s_w, d_w = p.s_w, p.d_w", "s_w, d_w, W_w = p.s_w, p.d_w, (p.W_o - 1) * p.s_w + (p.W_f - 1) * p.d_w + 1")),
        wrong("dilation for the rows, too", "out of bounds", ("* H_f + f_h]", "* H_f + f_h * p.d_h]")),
        wrong("padding taken off once more", "out of bounds", ("(o_w * s_w + f_w * d_w)", "(o_w * s_w + f_w * d_w - p.p_w)")),
        wrong("the bias forgotten", "answer", ("total + bias[m]", "total"), told="lack the bias, and nothing else"),
        wrong("the weight from its end", "answer", ("weight[m, i_c, f_h, f_w]", "weight[m, i_c, H_f - 1 - f_h, f_w]")),
        wrong("as many terms as one channel has", "answer", ("range(K):", "range(H_f * W_f):")),
        right("from the window's end to its beginning", ("k = uint32(term)", "k = uint32(K - 1 - term)")),
        right("what is left, step by step", (TERMS, "            i_c, rest = k // (H_f * W_f), k % (H_f * W_f)\n            f_w = rest // H_f\n            f_h = rest - f_w * H_f\n")),
        right("with divmod", (TERMS, "            i_c, rest = divmod(k, H_f * W_f)\n            f_w, f_h = divmod(rest, H_f)\n")),
        right("the window's first place outside the loop", ("        total = float32(0)\n", "        first = o_w * s_w * H_f\n        total = float32(0)\n"), ("(o_w * s_w + f_w * d_w) * H_f + f_h", "first + f_w * d_w * H_f + f_h")),
        wrong("row and column named exchanged", "out of bounds", ("f_w = k % (H_f * W_f) // H_f", "f_h = k % (H_f * W_f) // H_f"), ("f_h = k % H_f", "f_w = k % H_f"), told="Has each of f_h and f_w the value of the other?"),
        wrong("columns as wide as the filter", "out of bounds", ("* H_f + f_h]", "* W_f + f_h]"), line="* W_f + f_h", told="Is W_f the right name"),
    ],
    "rows": [
        given("counts"),
        wrong("one line corrected", "answer", ("o_h = n % (H_o * W_o) // W_o", "o_h = n % H_o")),
        wrong("the other line corrected", "answer", ("o_w = n % W_o", "o_w = n % (H_o * W_o) // H_o")),
        wrong("the image left in the row", "out of bounds", ("o_h = n % (H_o * W_o) // W_o", "o_h = n // W_o")),
        wrong("written elsewhere instead", "answer", (PLACE, "        o_h = n % H_o\n        o_w = n % (H_o * W_o) // H_o\n"), ("output[i_n, m, o_h, o_w]", "output[i_n, m, n % (H_o * W_o) // W_o, n % W_o]")),
        wrong("no guard for the channels", "out of bounds", ("if m >= M or n >= N:", "if n >= N:")),
        wrong("always the first image", "answer", ("i_n = n // (H_o * W_o)", "i_n = 0")),
        wrong("rows and columns written exchanged", "out of bounds", ("output[i_n, m, o_h, o_w]", "output[i_n, m, o_w, o_h]")),
        wrong("the weight's rows and columns exchanged", "out of bounds", ("weight[m, i_c, f_h, f_w]", "weight[m, i_c, f_w, f_h]")),
        wrong("the window\'s bias", "out of bounds", ("bias[m]", "bias[n]")),
        wrong("every pixel fetched twice", "counts", (FIND, FIND + "            _, _, _, again = find_pixel(windows, i_n, o_h, o_w, k)\n            pixel = (pixel + again) / 2\n")),
        wrong("a name that does not exist", "broken", ("o_w = n % W_o", "o_w = n % W_out")),
        wrong("the columns of the tensor", "out of bounds", ("o_w = n % W_o", "o_w = n % (W_o + 1)")),
        wrong("no parentheses", "out of bounds", ("n // (H_o * W_o)  # lines 2-4", "n // H_o * W_o  # lines 2-4"), told="The line with windows is given"),
        wrong("the bias forgotten", "answer", ("total + bias[m]", "total"), told="lack the bias, and nothing else"),
        right("even columns first, of which a request has all anyway", (PLACE, "        o_h = n % (H_o * W_o) // W_o\n        half = (W_o + 1) // 2\n        o_w = n % W_o\n        o_w = 2 * o_w if o_w < half else 2 * (o_w - half) + 1\n")),
        right("with divmod", (PLACE, "        o_h, o_w = divmod(n % (H_o * W_o), W_o)\n")),
        right("by subtraction", (PLACE, "        o_h = n // W_o % H_o\n        o_w = n - n // W_o * W_o\n")),
    ],
}
