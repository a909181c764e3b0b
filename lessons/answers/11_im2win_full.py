"""Answers to the exercises of lesson 11."""

from check_answers import given, right, wrong

SPLIT = "f_h, i_c = place // C_i, place % C_i"
PIXEL_ROW = "i_h = o_h * s_h + f_h * d_h - p_h"
PIXEL_COLUMN = "i_w = column - p_w"
INSIDE = "f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i"
PIXEL = "value = input[i_n, i_c, i_h, i_w]"
KEPT_PIXEL = "            windows[e] = value"
COLUMN = "f_w, place = term // G, term % G"
WEIGHT = "value = weight[o_c, i_c, f_h, f_w]"
THERE = "o_c < M and f_h < H_f and f_w < W_f"
KEPT_WEIGHT = "            packed[e] = value"
WINDOW = "window = min(n0 + (t + f * THREADS) // K_4, N - 1)"
START = "first_I[f] = (window // W_o * W_w + window % W_o * s_w) * G"
LOOP = f"""        for f in range(I_FLOAT4S):
            {WINDOW}
            {START}
"""
ZEROS = "            four = (float32(0), float32(0), float32(0), float32(0))\n"
GUARD = "if (K_EVEN or term < K_W) and (I_EVEN or e < I_ALL):"
LOAD = "                four = load4(windows, first_I[f] + term + term // G * G * (d_w - 1))\n"
BY_ONES = """                at = first_I[f] + term + term // G * G * (d_w - 1)
                four = (windows[at], windows[at + 1], windows[at + 2], windows[at + 3])
"""
KEPT = "            fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = four\n"
LAST = "term = slice_ * K_B + e % K_4 * FLOAT4\n"
PUT = "S_I[(row0 + e % K_4 * FLOAT4 + c) * PITCH + e // K_4] = fetched_I[f, c]"
HAS = "if I_EVEN or e < I_ALL:"
FOUR = "                for c in range(FLOAT4):\n                    " + PUT + "\n"
ONE_BY_ONE = """                at = (row0 + e % K_4 * FLOAT4) * PITCH + e // K_4
                S_I[at] = fetched_I[f, 0]
                S_I[at + PITCH] = fetched_I[f, 1]
                S_I[at + 2 * PITCH] = fetched_I[f, 2]
                S_I[at + 3 * PITCH] = fetched_I[f, 3]
"""
ROWS = "(2 * K_B, N_B + PADDING)"
WRITE = "write(R_O, bias, m0, n0, ty, tx, output)"
# The capstone's kernel.
FIRST_BARRIER = "four[3]\n            cuda.syncthreads()\n"
SECOND_BARRIER = "R_I[j]\n            cuda.syncthreads()\n"
FROM_PACKED = "load4(packed, m0 * K_P + (k0 + k) * M_B + row)"
GROUP = "group = n // W_o * W_w + n % W_o * s_w + (k0 + k) // G * d_w"
FROM_WINDOWS = "four = load4(windows, group * G + (k0 + k) % G)"
TERMS = """            for k in range(K_B):
                for i in range(M_T):
                    R_F[i] = S_F[k, ty + i * ROWS]
                for j in range(N_T):
                    R_I[j] = S_I[k, tx + j * COLUMNS]
                for i in range(M_T):
                    for j in range(N_T):
                        R_O[i, j] += R_F[i] * R_I[j]
"""
WITHOUT_REGISTERS = """            for k in range(K_B):
                for i in range(M_T):
                    for j in range(N_T):
                        R_O[i, j] += S_F[k, ty + i * ROWS] * S_I[k, tx + j * COLUMNS]
"""
ROWS_OF_THREAD = "S_F[k, ty + i * ROWS]"
OUTPUT_ROW = "m = m0 + ty + i * ROWS"
EXISTS = "if m < M and n < N:"
PLACE = "at = (n // (H_o * W_o) * M + m) * (H_o * W_o) + n % (H_o * W_o)"
FOUR_ROWS = """                S_I[k, column], S_I[k + 1, column] = four[0], four[1]
                S_I[k + 2, column], S_I[k + 3, column] = four[2], four[3]
"""
LOAD_WINDOWS = f"""            for e in range(t, N_B * K_4, THREADS):
                k, column = e % K_4 * FLOAT4, e // K_4
                n = min(n0 + column, N - 1)
                four = (float32(0), float32(0), float32(0), float32(0))
                if k0 + k < K_W:
                    {GROUP}
                    {FROM_WINDOWS}
{FOUR_ROWS}"""
FROM_GLOBAL = f"""                for j in range(N_T):
                    n = min(n0 + tx + j * COLUMNS, N - 1)
                    R_I[j] = float32(0)
                    if k0 + k < K_W:
                        {GROUP}
                        R_I[j] = windows[group * G + (k0 + k) % G]
"""

ANSWERS = {
    "transform": [
        wrong("padding forgotten", "answer", (" - p_h", ""), (" - p_w", "")),
        wrong("stride forgotten", "answer", ("o_h * s_h", "o_h")),
        wrong("dilation forgotten", "answer", ("f_h * d_h", "f_h")),
        wrong("rows fastest, as in lesson 10", "answer", (SPLIT, "f_h, i_c = place % H_f, place // H_f")),
        wrong("the place split by the filter's rows", "answer", (SPLIT, "f_h, i_c = place // H_f, place % H_f")),
        wrong("no border", "out of bounds", (INSIDE, "f_h < H_f"), line=PIXEL),
        wrong("a border one too wide", "out of bounds", ("i_w < W_i", "i_w <= W_i")),
        wrong("the border's own pixels left out", "answer", ("0 <= i_h", "0 < i_h")),
        wrong("the zeros that fill a group not thought of", "answer", ("f_h < H_f and ", "")),
        wrong("padding left as it was", "answer", (KEPT_PIXEL, "    " + KEPT_PIXEL)),
        wrong("the first channel alone", "answer", ("input[i_n, i_c,", "input[i_n, 0,")),
        wrong("always the first image", "answer", ("input[i_n, i_c,", "input[0, i_c,")),
        wrong("rows and columns exchanged", "out of bounds", (PIXEL, "value = input[i_n, i_c, i_w, i_h]")),
        wrong("everything fetched twice", "counts", (PIXEL, "value = (input[i_n, i_c, i_h, i_w] + input[i_n, i_c, i_h, i_w]) / 2")),
        wrong("columns counted fastest", "answer", ("windows[e] = value", "windows[row * G * W_w + place * W_w + column] = value")),
        wrong("a name that does not exist", "broken", (SPLIT, "f_h, i_c = place // C_in, place % C_in")),
        wrong("padding with the dilation", "answer", ("f_h * d_h - p_h", "(f_h - p_h) * d_h")),
        wrong("paddings exchanged", "answer", ("f_h * d_h - p_h", "f_h * d_h - p_w"), ("column - p_w", "column - p_h")),
        wrong("groups without their zeros", "out of bounds", ("e // (G * W_w), e // G % W_w, e % G", "e // (H_f * C_i * W_w), e // (H_f * C_i) % W_w, e % (H_f * C_i)")),
        wrong("rows counted by the image's", "answer", ("i_n, o_h = row // H_o, row % H_o", "i_n, o_h = row // H_i, row % H_i")),
        wrong("a guard one too wide", "out of bounds", ("if e < NUMBERS", "if e <= NUMBERS")),
        wrong("row and image exchanged", "answer", ("row // H_o, row % H_o", "row % N_i, row // N_i")),
        right("with divmod", (SPLIT, "f_h, i_c = divmod(place, C_i)")),
        right("by subtraction", (SPLIT, "f_h = place // C_i\n            i_c = place - f_h * C_i")),
        right("the border as questions one by one", (f"if {INSIDE}:", "if not (f_h >= H_f or i_h < 0 or i_h >= H_i or i_w < 0 or i_w >= W_i):")),
        right("the place computed again", ("windows[e] = value", "windows[(row * W_w + column) * G + place] = value")),
        right("the row by its group", ("row, column, place = e // (G * W_w), e // G % W_w, e % G", "group, place = divmod(e, G)\n            row, column = divmod(group, W_w)")),
        wrong("0 stored first, then the pixel", "counts", ("            value = float32(0)\n            if f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n            windows[e] = value", "            windows[e] = float32(0)\n            if f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:\n                windows[e] = input[i_n, i_c, i_h, i_w]\n            "), told="stores to the same element of windows twice"),
        wrong("a store in each branch, the zero one further", "out of bounds", ("            value = float32(0)\n            if f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n            windows[e] = value", "            if f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:\n                windows[e] = input[i_n, i_c, i_h, i_w]\n            else:\n                windows[e + 1] = float32(0)")),
        wrong("the column's stride", "answer", (PIXEL_COLUMN, "i_w = column * p.s_w - p_w")),
        right("a store in each branch", ("            value = float32(0)\n            if f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n            windows[e] = value", "            if f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:\n                windows[e] = input[i_n, i_c, i_h, i_w]\n            else:\n                windows[e] = 0")),
        right("a return after the pixel", ("            value = float32(0)\n            if f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:\n                value = input[i_n, i_c, i_h, i_w]\n            windows[e] = value", "            if f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i:\n                windows[e] = input[i_n, i_c, i_h, i_w]\n                return\n            windows[e] = float32(0)")),
    ],
    "pack": [
        wrong("terms in m02's order", "answer", (COLUMN, "f_w, place = term % W_f, term // W_f")),
        wrong("rows before columns", "answer", ("weight[o_c, i_c, f_h, f_w]", "weight[o_c, i_c, f_w % H_f, f_h % W_f]")),
        wrong("the place split by the filter's rows", "answer", (SPLIT, "f_h, i_c = place % H_f, place // H_f")),
        wrong("channels of input and output exchanged", "out of bounds", ("weight[o_c, i_c,", "weight[i_c, o_c,")),
        wrong("channels past the last not thought of", "out of bounds", ("o_c < M and ", "")),
        wrong("the zeros that fill a group not thought of", "out of bounds", (" and f_h < H_f", "")),
        wrong("terms past the last not thought of", "out of bounds", (" and f_w < W_f", "")),
        wrong("a channel too many", "out of bounds", ("o_c < M", "o_c <= M")),
        wrong("zeros not written", "answer", (KEPT_WEIGHT, "    " + KEPT_WEIGHT)),
        wrong("one where there is no weight", "answer", ("value = float32(0)", "value = float32(1)")),
        wrong("groups without their zeros", "answer", (COLUMN, "f_w, place = term // (H_f * C_i), term % (H_f * C_i)")),
        wrong("the filter flipped", "answer", ("f_h, f_w]", "H_f - 1 - f_h, f_w]")),
        wrong("everything fetched twice", "counts", (WEIGHT, "value = (weight[o_c, i_c, f_h, f_w] + weight[o_c, i_c, f_h, f_w]) / 2")),
        wrong("a name that does not exist", "broken", (COLUMN, "f_w, place = term // GROUP, term % GROUP")),
        wrong("the tile's first channel alone", "answer", ("e // (K_P * M_B) * M_B + e % M_B", "e // (K_P * M_B) * M_B")),
        wrong("the channel in the tile alone", "answer", ("e // (K_P * M_B) * M_B + e % M_B", "e % M_B"), told="more output channels than a tile"),
        wrong("K for K_P", "answer", ("term = e // M_B % K_P", "term = e // M_B % (W_f * G)")),
        wrong("channels slowest", "answer", ("e // (K_P * M_B) * M_B + e % M_B", "e // K_P"), ("term = e // M_B % K_P", "term = e % K_P")),
        wrong("columns from the end", "answer", ("weight[o_c, i_c, f_h, f_w]", "weight[o_c, i_c, f_h, W_f - 1 - f_w]")),
        right("with divmod", (COLUMN, "f_w, place = divmod(term, G)"), (SPLIT, "f_h, i_c = divmod(place, C_i)")),
        right("the last term by its number", (THERE, "o_c < M and f_h < H_f and term < W_f * G")),
        right("the place in the group by its number", (THERE, "o_c < M and place < H_f * C_i and f_w < W_f")),
        right("the channel by its tile", ("o_c = e // (K_P * M_B) * M_B + e % M_B", "tile_, rest = divmod(e, K_P * M_B)\n            o_c = tile_ * M_B + rest % M_B")),
        wrong("0 stored first, then the weight", "counts", ("            value = float32(0)\n            if o_c < M and f_h < H_f and f_w < W_f:\n                value = weight[o_c, i_c, f_h, f_w]\n            packed[e] = value", "            packed[e] = float32(0)\n            if o_c < M and f_h < H_f and f_w < W_f:\n                packed[e] = weight[o_c, i_c, f_h, f_w]\n            "), told="stores to the same element of packed twice"),
        wrong("the weight stored by its term", "global race", ("            value = float32(0)\n            if o_c < M and f_h < H_f and f_w < W_f:\n                value = weight[o_c, i_c, f_h, f_w]\n            packed[e] = value", "            if o_c < M and f_h < H_f and f_w < W_f:\n                packed[term] = weight[o_c, i_c, f_h, f_w]\n            else:\n                packed[e] = float32(0)")),
        wrong("the filter's height for its width", "answer", ("f_w < W_f", "f_w < H_f")),
        right("a store in each branch", ("            value = float32(0)\n            if o_c < M and f_h < H_f and f_w < W_f:\n                value = weight[o_c, i_c, f_h, f_w]\n            packed[e] = value", "            if o_c < M and f_h < H_f and f_w < W_f:\n                packed[e] = weight[o_c, i_c, f_h, f_w]\n            else:\n                packed[e] = float32(0)")),
        right("nested branches", ("            value = float32(0)\n            if o_c < M and f_h < H_f and f_w < W_f:\n                value = weight[o_c, i_c, f_h, f_w]\n            packed[e] = value", "            if o_c < M:\n              if f_h < H_f and f_w < W_f:\n                packed[e] = weight[o_c, i_c, f_h, f_w]\n              else:\n                packed[e] = float32(0)\n            else:\n                packed[e] = float32(0)")),
    ],
    "begin": [
        wrong("the number in the tile alone", "answer", (WINDOW, "window = min((t + f * THREADS) // K_4, N - 1)")),
        wrong("no end", "out of bounds", (WINDOW, "window = n0 + (t + f * THREADS) // K_4")),
        wrong("an end one too far", "out of bounds", ("N - 1", "N")),
        wrong("every turn the same window", "answer", ("(t + f * THREADS) // K_4", "t // K_4")),
        wrong("a window for each thread", "answer", ("(t + f * THREADS) // K_4", "(t + f * THREADS)")),
        wrong("remainder for quotient", "answer", ("// K_4", "% K_4")),
        wrong("stride forgotten", "answer", ("window % W_o * s_w", "window % W_o")),
        wrong("rows as long as the output's", "answer", ("window // W_o * W_w", "window // W_o * W_o")),
        wrong("the number of the window for its place", "answer", (START, "first_I[f] = window * G")),
        wrong("the stride of rows, too", "out of bounds", ("window // W_o * W_w", "window // W_o * W_w * 2")),
        wrong("groups not times their size", "misaligned", (START, "first_I[f] = window // W_o * W_w + window % W_o * s_w")),
        wrong("only the first one stored", "uninitialised", (START, "first_I[0] = (window // W_o * W_w + window % W_o * s_w) * G")),
        wrong("a name that does not exist", "broken", ("* W_w +", "* W_W +")),
        wrong("the last window left out", "out of bounds", ("N - 1)", "N - 2)"), told="computed from what your part stores or returns"),
        wrong("rows of the image", "out of bounds", ("window // W_o * W_w", "window // p.H_o * W_w")),
        wrong("the group not counted for columns", "misaligned", ("first_I[f] = (window // W_o * W_w + window % W_o * s_w) * G", "first_I[f] = window // W_o * W_w * G + window % W_o * s_w")),
        right("the end by a condition", (WINDOW, "window = n0 + (t + f * THREADS) // K_4\n            if window >= N:\n                window = N - 1")),
        right("row and column first", (START, "row, column = divmod(window, W_o)\n            first_I[f] = G * (column * s_w + W_w * row)")),
        right("from the last to the first", ("for f in range(I_FLOAT4S):", "for f in range(I_FLOAT4S - 1, -1, -1):")),
        right("the column by subtraction", ("window % W_o * s_w", "(window - window // W_o * W_o) * s_w")),
        right("the end by an expression", ("window = min(n0 + (t + f * THREADS) // K_4, N - 1)", "window = n0 + (t + f * THREADS) // K_4\n            window = window if window < N else N - 1")),
    ],
    "fetch": [
        wrong("no guard past the last term", "out of bounds", (GUARD, "if I_EVEN or e < I_ALL:")),
        wrong("always the first slice", "answer", (LAST, "term = e % K_4 * FLOAT4\n")),
        wrong("float4s not times four", "misaligned", (LAST, "term = slice_ * K_B + e % K_4\n")),
        wrong("dilation forgotten", "answer", (LOAD, "                four = load4(windows, first_I[f] + term)\n")),
        wrong("the same window's start for all float4s", "answer", (LOAD, LOAD.replace("first_I[f]", "first_I[0]"))),
        wrong("window and float4 exchanged", "answer", (LAST, "term = slice_ * K_B + e // K_4 % K_4 * FLOAT4\n")),
        wrong("one number at a time", "counts", (LOAD, BY_ONES)),
        wrong("nothing kept past the end", "uninitialised", (ZEROS, ""), (LOAD + KEPT, LOAD + "    " + KEPT)),
        wrong("two numbers exchanged", "answer", (KEPT, KEPT.replace("fetched_I[f, 1], fetched_I[f, 2]", "fetched_I[f, 2], fetched_I[f, 1]"))),
        wrong("always the filter\'s first slice", "answer", ("first_F + slice_ * (K_B * M_B)", "first_F")),
        wrong("a slice too far", "answer", (LAST, "term = (slice_ + 1) * K_B + e % K_4 * FLOAT4\n")),
        wrong("only the first float4 of a thread", "answer", (KEPT, KEPT.replace("[f, ", "[0, "))),
        wrong("dilation in the other direction", "out of bounds", ("G * (d_w - 1)", "G * d_w")),
        wrong("the guard for the term one too wide", "out of bounds", ("term < K_W)", "term <= K_W)")),
        wrong("dilation for each float4", "out of bounds", ("four = load4(windows, first_I[f] + term + term // G * G * (d_w - 1))", "four = load4(windows, first_I[f] + term * d_w)")),
        right("the dilation by columns", (LOAD, "                column, rest = term // G, term % G\n                four = load4(windows, first_I[f] + column * d_w * G + rest)\n")),
        right("taken apart by hand", (ZEROS, ""), (LOAD + KEPT, "                a, b, c, d = load4(windows, first_I[f] + term + term // G * G * (d_w - 1))\n            else:\n                a = b = c = d = float32(0)\n            fetched_I[f, 0] = a\n            fetched_I[f, 1] = b\n            fetched_I[f, 2] = c\n            fetched_I[f, 3] = d\n")),
        right("the condition reversed", (GUARD, "if not (K_W <= term and not K_EVEN or I_ALL <= e and not I_EVEN):")),
    ],
    "put": [
        wrong("four neighbours of a row", "answer", (PUT, "S_I[(row0 + e % K_4 * FLOAT4) * PITCH + (e // K_4 + c) % N_B] = fetched_I[f, c]")),
        wrong("always the first buffer", "answer", (PUT, PUT.replace("row0 + ", ""))),
        wrong("one number of four", "uninitialised", (FOUR, FOUR.replace("range(FLOAT4)", "range(1)"))),
        wrong("rows and columns exchanged", "answer", (PUT, "S_I[(row0 + e // K_4 % K_B) * PITCH + e % K_4 * FLOAT4 + c] = fetched_I[f, c]")),
        wrong("the four numbers in reverse order", "answer", (PUT, PUT.replace("fetched_I[f, c]", "fetched_I[f, FLOAT4 - 1 - c]"))),
        wrong("all in the same row", "answer", (PUT, PUT.replace("* FLOAT4 + c)", "* FLOAT4)"))),
        wrong("rows without their padding", "answer", (PUT, PUT.replace("* PITCH", "* N_B"))),
        wrong("only the first float4 of a thread", "uninitialised", (PUT, PUT.replace("fetched_I[f, c]", "fetched_I[0, c]")), (HAS, "if f == 0 and (I_EVEN or e < I_ALL):")),
        wrong("no guard for threads with no float4 left", "out of bounds", (HAS, "if True:")),
        wrong("the buffer counted in numbers", "answer", (PUT, "S_I[row0 + (e % K_4 * FLOAT4 + c) * PITCH + e // K_4] = fetched_I[f, c]")),
        wrong("the same float4 for all turns", "answer", (PUT, PUT.replace("fetched_I[f, c]", "fetched_I[0, c]"))),
        wrong("the filter in the wrong buffer", "answer", ("store4(S_F, row0 * M_B + e * FLOAT4, four)", "store4(S_F, e * FLOAT4, four)")),
        wrong("the terms' rows one further", "answer", ("FLOAT4 + c)", "FLOAT4 + (c + 1) % FLOAT4)")),
        wrong("the neighbour's column", "answer", ("* PITCH + e // K_4]", "* PITCH + (e // K_4 + 1) % N_B]")),
        right("written out", (FOUR, ONE_BY_ONE)),
        right("without the constant that saves the check", (HAS, "if e < K_B * N_B // FLOAT4:")),
        right("from the last one on", (PUT, "S_I[(row0 + e % K_4 * FLOAT4 + FLOAT4 - 1 - c) * PITCH + e // K_4] = fetched_I[f, FLOAT4 - 1 - c]")),
        right("the row first", ("S_I[(row0 + e % K_4 * FLOAT4 + c) * PITCH + e // K_4] = fetched_I[f, c]", "row = row0 + e % K_4 * FLOAT4 + c\n                    S_I[row * PITCH + e // K_4] = fetched_I[f, c]")),
    ],
    "skew": [
        given("counts"),
        wrong("one longer, as in lesson 05", "misaligned", (ROWS, "(2 * K_B, N_B + 1)")),
        wrong("two longer", "misaligned", (ROWS, "(2 * K_B, N_B + 2)")),
        wrong("32 longer", "counts", (ROWS, "(2 * K_B, N_B + 32)")),
        wrong("eight longer", "counts", (ROWS, "(2 * K_B, N_B + 8)")),
        wrong("as long as the tile is wide", "counts", (ROWS, "(2 * K_B, N_B + N_B)")),
        wrong("three longer", "misaligned", (ROWS, "(2 * K_B, N_B + 3)")),
        wrong("16 longer", "counts", (ROWS, "(2 * K_B, N_B + 16)")),
        wrong("four shorter", "out of bounds", (ROWS, "(2 * K_B, N_B - 4)")),
        wrong("more rows, not longer ones", "counts", (ROWS, "(2 * K_B + PADDING, N_B)")),
        wrong("rows and columns exchanged", "out of bounds", (ROWS, "(N_B + PADDING, 2 * K_B)")),
        wrong("one buffer", "out of bounds", (ROWS, "(K_B, N_B + PADDING)")),
        wrong("the filter's rows longer", "counts", (ROWS, "(2 * K_B, N_B)"), ("(2 * K_B, M_B)", "(2 * K_B, M_B + PADDING)")),
        right("twelve longer", (ROWS, "(2 * K_B, N_B + 12)")),
        right("a float4 longer", (ROWS, "(2 * K_B, N_B + FLOAT4)")),
        right("twenty longer", (ROWS, "(2 * K_B, N_B + 20)")),
    ],
    "im2win": [
        wrong("the transform without padding", "answer", (" - p_h", ""), (" - p_w", "")),
        wrong("the transform without its zeros", "answer", ("if f_h < H_f and 0 <= i_h", "if 0 <= i_h")),
        wrong("the filter in m02's order", "answer", (COLUMN, "f_w, place = term % W_f, term // W_f")),
        wrong("no barrier before multiplying", "shared race", (FIRST_BARRIER, "four[3]\n")),
        wrong("no barrier before the next slice", "shared race", (SECOND_BARRIER, "R_I[j]\n")),
        wrong("always the filter's first slice", "answer", (FROM_PACKED, "load4(packed, m0 * K_P + k * M_B + row)")),
        wrong("dilation forgotten", "answer", ("(k0 + k) // G * d_w", "(k0 + k) // G")),
        wrong("stride forgotten", "answer", ("n % W_o * s_w", "n % W_o")),
        wrong("no guard past the last term", "out of bounds", ("if k0 + k < K_W:", "if True:")),
        wrong("no end of the windows", "out of bounds", ("n = min(n0 + column, N - 1)", "n = n0 + column")),
        wrong("no guard for outputs", "out of bounds", (EXISTS, "if True:")),
        wrong("the bias forgotten", "answer", ("R_O[i, j] + bias[m]", "R_O[i, j]")),
        wrong("sums not cleared", "uninitialised", ("        for i in range(M_T):\n            for j in range(N_T):\n                R_O[i, j] = float32(0)\n", "")),
        wrong("sums begun anew for each slice", "answer", ("        for k0 in range(0, K_P, K_B):\n", "        for k0 in range(0, K_P, K_B):\n            for i in range(M_T):\n                for j in range(N_T):\n                    R_O[i, j] = float32(0)\n")),
        wrong("rows read and written differently", "answer", (OUTPUT_ROW, "m = m0 + ty * M_T + i")),
        wrong("operands read for every product", "counts", (TERMS, WITHOUT_REGISTERS)),
        wrong("the output's images and channels exchanged", "answer", (PLACE, "at = m * N + n")),
        wrong("windows one number at a time", "counts", (FROM_WINDOWS, "at = group * G + (k0 + k) % G\n                    four = (windows[at], windows[at + 1], windows[at + 2], windows[at + 3])"), line="windows[at]"),
        wrong("the filter one number at a time", "counts", (f"store4(S_F, (k, row), {FROM_PACKED})", f"for c in range(FLOAT4):\n                    S_F[k, row + c] = {FROM_PACKED[:-1].replace('load4(packed, ', 'packed[')} + c]"), line="packed["),
        wrong("a name that does not exist", "broken", (EXISTS, "if m < M and n < NN:")),
        wrong("returned without an output", "barrier divergence", ("        for k0 in range(0, K_P, K_B):\n", "        if m0 + ty >= M or n0 + tx >= N:\n            return\n        for k0 in range(0, K_P, K_B):\n")),
        wrong("the first term of the slice in its index", "out of bounds", ("R_I[j] = S_I[k, tx", "R_I[j] = S_I[k0 + k, tx"), told="leave k0 out of the index"),
        wrong("the window begins with the image's padding", "out of bounds", ("n % W_o * s_w + (k0 + k)", "n % W_o * s_w - p.p_w + (k0 + k)")),
        wrong("filter's tile not counted", "answer", ("m0 * K_P + (k0 + k) * M_B + row", "(k0 + k) * M_B + row")),
        right("a thread's rows and columns are neighbours", (ROWS_OF_THREAD, "S_F[k, ty * M_T + i]"), (OUTPUT_ROW, "m = m0 + ty * M_T + i")),
        right("longer rows in shared memory", ("(K_B, N_B), (M_T", "(K_B, N_B + 4), (M_T")),
        right("the barrier at the loop's head", (SECOND_BARRIER, "R_I[j]\n"), ("        for k0 in range(0, K_P, K_B):\n", "        for k0 in range(0, K_P, K_B):\n            cuda.syncthreads()\n")),
        right("the four rows in a loop", (FOUR_ROWS, "                a, b, c, d = four\n                S_I[k, column] = a\n                S_I[k + 1, column] = b\n                S_I[k + 2, column] = c\n                S_I[k + 3, column] = d\n")),
        right("the output's place by its parts", (PLACE, "i_n, pixel = divmod(n, H_o * W_o)\n                    at = i_n * M * H_o * W_o + m * H_o * W_o + pixel")),
        wrong("the filter's operand read for every product", "counts", (TERMS, TERMS.replace("                for i in range(M_T):\n                    R_F[i] = S_F[k, ty + i * ROWS]\n", "").replace("R_F[i] *", "S_F[k, ty + i * ROWS] *")), told="Each thread reads the same number of S_F"),
        wrong("the windows' operand read for every product", "counts", (TERMS, TERMS.replace("                for j in range(N_T):\n                    R_I[j] = S_I[k, tx + j * COLUMNS]\n", "").replace("* R_I[j]", "* S_I[k, tx + j * COLUMNS]")), told="Each thread reads the same number of S_I"),
        wrong("operands not in registers", "counts", (TERMS, WITHOUT_REGISTERS), told="keep it in a variable or a local array, that is in a register"),
        right("one operand in a variable", (TERMS, TERMS.replace("                for i in range(M_T):\n                    R_F[i] = S_F[k, ty + i * ROWS]\n", "").replace("                for i in range(M_T):\n                    for j", "                for i in range(M_T):\n                    mine = S_F[k, ty + i * ROWS]\n                    for j").replace("R_F[i] *", "mine *"))),
        right("the products column by column", (TERMS, TERMS.replace("                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O", "                for j in range(N_T):\n                    for i in range(M_T):\n                        R_O"))),
        wrong("windows read from global memory for each product", "counts", (LOAD_WINDOWS, ""), ("                for j in range(N_T):\n                    R_I[j] = S_I[k, tx + j * COLUMNS]\n", FROM_GLOBAL), told="threads of a block read the same number of windows"),
        wrong("the windows' slice transposed", "counts", ("(K_B, M_B), (K_B, N_B)", "(K_B, M_B), (N_B, K_B)"), (FOUR_ROWS, "                for c in range(FLOAT4):\n                    S_I[column, k + c] = four[c]\n"), ("S_I[k, tx + j * COLUMNS]", "S_I[tx + j * COLUMNS, k]"), told="Lanes that access different numbers in one bank take turns"),
        wrong("a window for each K_B float4s", "uninitialised", ("k, column = e % K_4 * FLOAT4, e // K_4", "k, column = e % K_4 * FLOAT4, e // K_B"), told="No thread stores to columns 2 to 7 of S_I"),
        wrong("row and channel of the filter exchanged", "out of bounds", ("weight[o_c, i_c, f_h, f_w]", "weight[o_c, f_h, i_c, f_w]"), told="Are f_h and i_c in the right order"),
        wrong("one index for a slice of two dimensions", "broken", ("store4(S_F, (k, row), ", "store4(S_F, k * M_B + row, "), told="a pair, such as (row, column)"),
        wrong("a step of ROWS threads", "counts", ("for e in range(t, K_B * M_4, THREADS):", "for e in range(t, K_B * M_4, ROWS):"), told="Several threads store the same element of S_F"),
        right("zeros of 64 bits, which is noted", ("four = (float32(0), float32(0), float32(0), float32(0))", "four = 0, 0, 0, 0")),
    ],
}
