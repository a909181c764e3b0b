"""Answers to the exercises of lesson 11."""

from convlab.lessons.answers import given, right, wrong

RUN = "            run = (float32(0), float32(0), float32(0), float32(0))\n"
GUARD = "if k < K_W and e < N_B * K_RUNS:  # d_w - 1 is 0 without dilation, and the term gone"
LOAD = "                run = load4(windows, first[f] + k + k // G * G * (d_w - 1))\n"
BY_ONES = """                at = first[f] + k + k // G * G * (d_w - 1)
                run = (windows[at], windows[at + 1], windows[at + 2], windows[at + 3])
"""
KEPT = "            fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = run\n"
LAST = "k = slice_ * K_B + e % K_RUNS * RUN\n"
PUT = "S_I[k0 + e % K_RUNS * RUN + c, e // K_RUNS] = fetched_I[f, c]"
HAS = "if e < N_B * K_RUNS:"
FOUR = "                for c in range(RUN):\n                    " + PUT + "\n"
ONE_BY_ONE = """                k, column = k0 + e % K_RUNS * RUN, e // K_RUNS
                S_I[k, column] = fetched_I[f, 0]
                S_I[k + 1, column] = fetched_I[f, 1]
                S_I[k + 2, column] = fetched_I[f, 2]
                S_I[k + 3, column] = fetched_I[f, 3]
"""
ROWS = "(2 * K_B, N_B + SKEW)"

ANSWERS = {
    "fetch": [
        wrong("no guard past the last term", "out of bounds", (GUARD, "if e < N_B * K_RUNS:")),
        wrong("always the first slice", "answer", (LAST, "k = e % K_RUNS * RUN\n")),
        wrong("runs not times four", "misaligned", (LAST, "k = slice_ * K_B + e % K_RUNS\n")),
        wrong("dilation forgotten", "answer", (LOAD, "                run = load4(windows, first[f] + k)\n")),
        wrong("the same run for all turns", "answer", (LOAD, LOAD.replace("first[f]", "first[0]"))),
        wrong("window and run exchanged", "answer", (LAST, "k = slice_ * K_B + e // K_RUNS % K_RUNS * RUN\n")),
        wrong("one number at a time", "counts", (LOAD, BY_ONES)),
        wrong("nothing kept past the end", "uninitialised", (RUN, ""), (LOAD + KEPT, LOAD + "    " + KEPT)),
        wrong("two numbers exchanged", "answer", (KEPT, KEPT.replace("fetched_I[f, 1], fetched_I[f, 2]", "fetched_I[f, 2], fetched_I[f, 1]"))),
        right("the dilation by columns", (LOAD, "                column, rest = k // G, k % G\n                run = load4(windows, first[f] + column * d_w * G + rest)\n")),
        right("taken apart by hand", (RUN, ""), (LOAD + KEPT, "                a, b, c, d = load4(windows, first[f] + k + k // G * G * (d_w - 1))\n            else:\n                a = b = c = d = float32(0)\n            fetched_I[f, 0] = a\n            fetched_I[f, 1] = b\n            fetched_I[f, 2] = c\n            fetched_I[f, 3] = d\n")),
    ],
    "put": [
        wrong("four neighbours of a row", "answer", (PUT, "S_I[k0 + e % K_RUNS * RUN, (e // K_RUNS + c) % N_B] = fetched_I[f, c]")),
        wrong("always the first buffer", "answer", (PUT, PUT.replace("k0 + ", ""))),
        wrong("one number of four", "uninitialised", (FOUR, FOUR.replace("range(RUN)", "range(1)"))),
        wrong("rows and columns exchanged", "answer", (PUT, "S_I[k0 + e // K_RUNS, e % K_RUNS * RUN + c] = fetched_I[f, c]")),
        wrong("the four rows turned round", "answer", (PUT, PUT.replace("fetched_I[f, c]", "fetched_I[f, RUN - 1 - c]"))),
        wrong("all in the same row", "answer", (PUT, PUT.replace("* RUN + c,", "* RUN,"))),
        wrong("only the first run of a thread", "uninitialised", (PUT, PUT.replace("fetched_I[f, c]", "fetched_I[0, c]")), (HAS, "if f == 0 and e < N_B * K_RUNS:")),
        right("written out", (FOUR, ONE_BY_ONE)),
        right("from the last one on", (PUT, "S_I[k0 + e % K_RUNS * RUN + RUN - 1 - c, e // K_RUNS] = fetched_I[f, RUN - 1 - c]")),
    ],
    "skew": [
        given("counts"),
        wrong("one longer, as in lesson 05", "misaligned", (ROWS, "(2 * K_B, N_B + 1)")),
        wrong("two longer", "misaligned", (ROWS, "(2 * K_B, N_B + 2)")),
        wrong("32 longer", "counts", (ROWS, "(2 * K_B, N_B + 32)")),
        wrong("the filter's rows made longer", "counts", ("(2 * K_B, M_B), " + ROWS, "(2 * K_B, M_B + SKEW), (2 * K_B, N_B)")),
        wrong("more rows, not longer ones", "counts", (ROWS, "(2 * K_B + SKEW, N_B)")),
        wrong("one buffer as long as two", "out of bounds", (ROWS, "(K_B, 2 * N_B + SKEW)")),
        right("four longer, by hand", (ROWS, "(2 * K_B, N_B + 4)")),
        right("twelve longer", (ROWS, "(2 * K_B, N_B + 3 * SKEW)")),
    ],
}
