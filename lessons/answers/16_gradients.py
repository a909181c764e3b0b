"""Answers to the exercises of lesson 16."""

from check_answers import given, right, wrong

IMAGES = "images = input.swapaxes(0, 1)"
FILTERS = "filters = of_output.swapaxes(0, 1)"
MADE = "made = conv2d(images, filters, stride=dilation, padding=padding, dilation=stride)"
KEPT = "made.swapaxes(0, 1)[:, :, :H_f, :W_f]"
ASKED = "at_h >= 0 and at_w >= 0 and at_h % s_h == 0 and at_w % s_w == 0"
INSIDE = "m < H_o and n < W_o"
PLACES = """                    m = at_h // s_h
                    n = at_w // s_w
"""
ADDED = """                            of_pixel = of_output[i, first + j, m, n]
                            total += of_pixel * weight[first + j, r % C_g, u, v]"""
TWO_IFS = f"                if {ASKED}:\n{PLACES}                    if {INSIDE}:\n"
ATOMIC = "cuda.atomic.add(of_input, (i, r, m + u, n + v), product)"
PRODUCT = "product = of_output[i, j, m, n] * weight[j, r, u, v]"
NUMBERS = """    n = thread % W_o
    m = thread // W_o % H_o
    j = thread // (W_o * H_o) % C_o
    i = thread // (W_o * H_o * C_o)
"""
LOOPS = """            for u in range(weight.shape[2]):
                for v in range(weight.shape[3]):
"""

ANSWERS = {
    "exchange": [
        wrong("the input as it is", "broken", (IMAGES, "images = input")),
        wrong("of_output as it is", "broken", (FILTERS, "filters = of_output")),
        wrong("the result not exchanged back", "answer", (KEPT, "made[:, :, :H_f, :W_f]")),
        wrong("too many rows", "answer", ("[:, :, :H_f, :W_f]", "")),
        wrong("the last rows, not the first", "answer", (":H_f, :W_f]", "-H_f:, -W_f:]")),
        wrong("stride and dilation not exchanged", "answer", ("stride=dilation, padding=padding, dilation=stride", "stride=stride, padding=padding, dilation=dilation")),
        wrong("stride forgotten", "answer", (", dilation=stride", "")),
        wrong("dilation forgotten", "answer", ("stride=dilation, ", "")),
        wrong("padding forgotten", "answer", ("padding=padding, ", "")),
        wrong("filters flipped", "answer", (FILTERS, FILTERS + "[:, :, ::-1, ::-1]")),
        wrong("rows and columns exchanged", "answer", (":H_f, :W_f]", ":W_f, :H_f]")),
        wrong("the two tensors exchanged", "broken", ("conv2d(images, filters,", "conv2d(filters, images,")),
        wrong("the mean over images", "answer", ("[:, :, :H_f, :W_f]", "[:, :, :H_f, :W_f] / len(input)")),
        wrong("a name that does not exist", "broken", ("filters, stride", "filter_s, stride")),
        wrong("nothing computed", "answer", (MADE, "made = images[:, : filters.shape[0]]")),
        right("by transpose", (IMAGES, "images = input.transpose(1, 0, 2, 3)"), (FILTERS, "filters = of_output.transpose(1, 0, 2, 3)")),
        right("by einsum", (IMAGES, "images = np.einsum('irhw->rihw', input)")),
        right("tap by tap in NumPy", (MADE, "(s_h, s_w), (d_h, d_w), (p_h, p_w) = (np.broadcast_to(one, 2) for one in (stride, dilation, padding))\n    padded = np.pad(input, ((0, 0), (0, 0), (p_h, p_h), (p_w, p_w)))\n    H_o, W_o = of_output.shape[2:]\n    made = np.array([[np.einsum('ijmn,irmn->rj', of_output, padded[:, :, u * d_h :: s_h, v * d_w :: s_w][:, :, :H_o, :W_o]) for v in range(taps[1])] for u in range(taps[0])]).transpose(2, 3, 0, 1)")),
    ],
    "gather": [
        wrong("padding forgotten", "answer", ("i_h + p_h - u", "i_h - u"), ("i_w + p_w - v", "i_w - v")),
        wrong("padding subtracted", "answer", ("i_h + p_h", "i_h - p_h")),
        wrong("the filter not flipped", "answer", ("p_h - u * d_h", "p_h - (H_f - 1 - u) * d_h")),
        wrong("as in the forward pass", "answer", ("i_h + p_h - u * d_h", "i_h * s_h + u * d_h - p_h"), ("i_w + p_w - v * d_w", "i_w * s_w + v * d_w - p_w")),
        wrong("dilation forgotten", "answer", ("u * d_h", "u")),
        wrong("negative rows taken", "answer", ("at_h >= 0 and ", "")),
        wrong("whether the stride divides not asked", "answer", (" and at_w % s_w == 0", "")),
        wrong("not divided by the stride", "answer", ("m = at_h // s_h", "m = at_h")),
        wrong("no end of the output", "out of bounds", ("m < H_o and ", "")),
        wrong("an end one too far", "out of bounds", ("n < W_o", "n <= W_o")),
        wrong("the input's end", "out of bounds", (INSIDE, "m < H_i and n < W_i")),
        wrong("the first pixel left out", "answer", ("at_h >= 0", "at_h > 0")),
        wrong("rows and columns exchanged", "out of bounds", ("of_output[i, first + j, m, n]", "of_output[i, first + j, n, m]")),
        wrong("one filter alone", "answer", ("range(M_g)", "range(1)")),
        wrong("the first group's filters", "answer", ("of_output[i, first + j", "of_output[i, j"), ("weight[first + j", "weight[j")),
        wrong("the filter's channel not counted in its group", "out of bounds", ("r % C_g, u", "r, u")),
        wrong("the last product, not the sum", "answer", ("total += of_pixel", "total = of_pixel")),
        wrong("each output fetched twice", "counts", ("of_pixel = of_output[i, first + j, m, n]", "of_pixel = of_output[i, first + j, m, n] + of_output[i, first + j, m, n] - of_output[i, first + j, m, n]")),
        wrong("a name that does not exist", "broken", ("range(M_g)", "range(M)")),
        right("one question", (TWO_IFS, f"{PLACES.replace('    m', 'm', 1).replace('    n', 'n', 1)}                if True:\n                    if m * s_h == at_h and n * s_w == at_w and 0 <= m < H_o and 0 <= n < W_o:\n")),
        right("the filters from the last to the first", (ADDED, ADDED.replace("first + j", "first + M_g - 1 - j"))),
        right("with divmod", (PLACES, "                    m, _ = divmod(at_h, s_h)\n                    n, _ = divmod(at_w, s_w)\n")),
        right("skipping what does not meet", (TWO_IFS, f"                if not ({ASKED}):\n                    continue\n{PLACES.replace('                    ', '                ')}                if m < H_o:\n                    if n < W_o:\n")),
    ],
    "scatter": [
        given("global race"),
        wrong("written, not added", "answer", (ATOMIC, "of_input[i, r, m + u, n + v] = product")),
        wrong("a barrier before", "global race", (ATOMIC, "cuda.syncthreads()\n                    of_input[i, r, m + u, n + v] += product")),
        wrong("a barrier of the warp", "global race", (ATOMIC, "cuda.syncwarp()\n                    of_input[i, r, m + u, n + v] += product")),
        wrong("a fence", "global race", (ATOMIC, "of_input[i, r, m + u, n + v] += product\n                    cuda.threadfence()")),
        wrong("read, added and written apart", "global race", (ATOMIC, "before = of_input[i, r, m + u, n + v]\n                    of_input[i, r, m + u, n + v] = before + product")),
        wrong("to the output's own place", "answer", (", m + u, n + v), product", ", m, n), product")),
        wrong("the taps flipped", "answer", ("weight[j, r, u, v]", "weight[j, r, weight.shape[2] - 1 - u, weight.shape[3] - 1 - v]")),
        wrong("to the filter's channel", "out of bounds", ("(i, r, m + u", "(i, j, m + u")),
        wrong("rows and columns exchanged", "out of bounds", ("m + u, n + v)", "n + v, m + u)")),
        wrong("always the first image", "answer", ("(i, r, m + u", "(0, r, m + u")),
        wrong("the maximum, not the sum", "answer", ("atomic.add", "atomic.max")),
        wrong("subtracted", "answer", ("atomic.add", "atomic.sub")),
        wrong("twice", "answer", (ATOMIC, f"{ATOMIC}\n                    {ATOMIC}")),
        wrong("no bound", "out of bounds", ("if i < N_i:", "if True:")),
        wrong("a name that does not exist", "broken", (ATOMIC, ATOMIC.replace("of_input", "input"))),
        right("with the product inside", (f"{PRODUCT}\n", "place = i, r, m + u, n + v\n"), (ATOMIC, "cuda.atomic.add(of_input, place, of_output[i, j, m, n] * weight[j, r, u, v])")),
        right("subtracting the negative", (ATOMIC, ATOMIC.replace("add", "sub").replace("product", "-product"))),
        right("from the last tap to the first", (LOOPS, LOOPS.replace("range(weight.shape[2])", "range(weight.shape[2] - 1, -1, -1)"))),
        right("with divmod", (NUMBERS, "    rest, n = divmod(thread, W_o)\n    rest, m = divmod(rest, H_o)\n    i, j = divmod(rest, C_o)\n")),
    ],
}
