"""Answers to the exercises of lesson 16."""

from check_answers import given, right, wrong

IMAGES = "images = input.swapaxes(0, 1)"
FILTERS = "filters = of_output.swapaxes(0, 1)"
MADE = "made = conv2d(images, filters, stride=dilation, padding=padding, dilation=stride)"
KEPT = "made.swapaxes(0, 1)[:, :, :H_f, :W_f]"
ASKED = "at_h >= 0 and at_w >= 0 and at_h % s_h == 0 and at_w % s_w == 0"
INSIDE = "o_h < H_o and o_w < W_o"
PLACES = """                    o_h = at_h // s_h
                    o_w = at_w // s_w
"""
ADDED = """                            of_pixel = of_output[i_n, first + o_c, o_h, o_w]
                            total += of_pixel * weight[first + o_c, i_c % C_g, f_h, f_w]"""
TWO_IFS = f"                if {ASKED}:\n{PLACES}                    if {INSIDE}:\n"
ATOMIC = "cuda.atomic.add(of_input, (i_n, i_c, o_h + f_h, o_w + f_w), product)"
PRODUCT = "product = of_output[i_n, o_c, o_h, o_w] * weight[o_c, i_c, f_h, f_w]"
NUMBERS = """    o_w = thread % W_o
    o_h = thread // W_o % H_o
    o_c = thread // (W_o * H_o) % C_o
    i_n = thread // (W_o * H_o * C_o)
"""
LOOPS = """            for f_h in range(weight.shape[2]):
                for f_w in range(weight.shape[3]):
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
        wrong("padding forgotten", "answer", ("i_h + p_h - f_h", "i_h - f_h"), ("i_w + p_w - f_w", "i_w - f_w")),
        wrong("padding subtracted", "answer", ("i_h + p_h", "i_h - p_h")),
        wrong("the filter not flipped", "answer", ("p_h - f_h * d_h", "p_h - (H_f - 1 - f_h) * d_h")),
        wrong("as in the forward pass", "answer", ("i_h + p_h - f_h * d_h", "i_h * s_h + f_h * d_h - p_h"), ("i_w + p_w - f_w * d_w", "i_w * s_w + f_w * d_w - p_w")),
        wrong("dilation forgotten", "answer", ("f_h * d_h", "f_h")),
        wrong("negative rows taken", "answer", ("at_h >= 0 and ", "")),
        wrong("whether the stride divides not asked", "answer", (" and at_w % s_w == 0", "")),
        wrong("not divided by the stride", "answer", ("o_h = at_h // s_h", "o_h = at_h")),
        wrong("no end of the output", "out of bounds", ("o_h < H_o and ", "")),
        wrong("an end one too far", "out of bounds", ("o_w < W_o", "o_w <= W_o")),
        wrong("the input's end", "out of bounds", (INSIDE, "o_h < H_i and o_w < W_i")),
        wrong("the first pixel left out", "answer", ("at_h >= 0", "at_h > 0")),
        wrong("rows and columns exchanged", "out of bounds", ("of_output[i_n, first + o_c, o_h, o_w]", "of_output[i_n, first + o_c, o_w, o_h]")),
        wrong("one filter alone", "answer", ("range(M_g)", "range(1)")),
        wrong("the first group's filters", "answer", ("of_output[i_n, first + o_c", "of_output[i_n, o_c"), ("weight[first + o_c", "weight[o_c")),
        wrong("the filter's channel not counted in its group", "out of bounds", ("i_c % C_g, f_h", "i_c, f_h")),
        wrong("the last product, not the sum", "answer", ("total += of_pixel", "total = of_pixel")),
        wrong("each output fetched twice", "counts", ("of_pixel = of_output[i_n, first + o_c, o_h, o_w]", "of_pixel = of_output[i_n, first + o_c, o_h, o_w] + of_output[i_n, first + o_c, o_h, o_w] - of_output[i_n, first + o_c, o_h, o_w]")),
        wrong("a name that does not exist", "broken", ("range(M_g)", "range(M)")),
        wrong("padding with the dilation", "answer", ("i_h + p_h - f_h * d_h", "i_h + (p_h - f_h) * d_h")),
        right("one question", (TWO_IFS, f"{PLACES.replace('    o_h', 'o_h', 1).replace('    o_w', 'o_w', 1)}                if True:\n                    if o_h * s_h == at_h and o_w * s_w == at_w and 0 <= o_h < H_o and 0 <= o_w < W_o:\n")),
        right("the filters from the last to the first", (ADDED, ADDED.replace("first + o_c", "first + M_g - 1 - o_c"))),
        right("with divmod", (PLACES, "                    o_h, _ = divmod(at_h, s_h)\n                    o_w, _ = divmod(at_w, s_w)\n")),
        right("skipping what does not meet", (TWO_IFS, f"                if not ({ASKED}):\n                    continue\n{PLACES.replace('                    ', '                ')}                if o_h < H_o:\n                    if o_w < W_o:\n")),
    ],
    "scatter": [
        given("global race"),
        wrong("written, not added", "answer", (ATOMIC, "of_input[i_n, i_c, o_h + f_h, o_w + f_w] = product")),
        wrong("a barrier before", "global race", (ATOMIC, "cuda.syncthreads()\n                    of_input[i_n, i_c, o_h + f_h, o_w + f_w] += product")),
        wrong("a barrier of the warp", "global race", (ATOMIC, "cuda.syncwarp()\n                    of_input[i_n, i_c, o_h + f_h, o_w + f_w] += product")),
        wrong("a fence", "global race", (ATOMIC, "of_input[i_n, i_c, o_h + f_h, o_w + f_w] += product\n                    cuda.threadfence()")),
        wrong("read, added and written apart", "global race", (ATOMIC, "before = of_input[i_n, i_c, o_h + f_h, o_w + f_w]\n                    of_input[i_n, i_c, o_h + f_h, o_w + f_w] = before + product")),
        wrong("to the output's own place", "answer", (", o_h + f_h, o_w + f_w), product", ", o_h, o_w), product")),
        wrong("the taps flipped", "answer", ("weight[o_c, i_c, f_h, f_w]", "weight[o_c, i_c, weight.shape[2] - 1 - f_h, weight.shape[3] - 1 - f_w]")),
        wrong("to the filter's channel", "out of bounds", ("(i_n, i_c, o_h + f_h", "(i_n, o_c, o_h + f_h")),
        wrong("rows and columns exchanged", "out of bounds", ("o_h + f_h, o_w + f_w)", "o_w + f_w, o_h + f_h)")),
        wrong("always the first image", "answer", ("(i_n, i_c, o_h + f_h", "(0, i_c, o_h + f_h")),
        wrong("the maximum, not the sum", "answer", ("atomic.add", "atomic.max")),
        wrong("subtracted", "answer", ("atomic.add", "atomic.sub")),
        wrong("twice", "answer", (ATOMIC, f"{ATOMIC}\n                    {ATOMIC}")),
        wrong("no bound", "out of bounds", ("if i_n < N_i:", "if True:")),
        wrong("a name that does not exist", "broken", (ATOMIC, ATOMIC.replace("of_input", "input"))),
        right("with the product inside", (f"{PRODUCT}\n", "place = i_n, i_c, o_h + f_h, o_w + f_w\n"), (ATOMIC, "cuda.atomic.add(of_input, place, of_output[i_n, o_c, o_h, o_w] * weight[o_c, i_c, f_h, f_w])")),
        right("subtracting the negative", (ATOMIC, ATOMIC.replace("add", "sub").replace("product", "-product"))),
        right("from the last tap to the first", (LOOPS, LOOPS.replace("range(weight.shape[2])", "range(weight.shape[2] - 1, -1, -1)"))),
        right("with divmod", (NUMBERS, "    rest, o_w = divmod(thread, W_o)\n    rest, o_h = divmod(rest, H_o)\n    i_n, o_c = divmod(rest, C_o)\n")),
    ],
}
