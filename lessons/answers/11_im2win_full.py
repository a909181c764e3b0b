"""Answers to the exercises of lesson 11."""

from convlab.lessons.answers import given, right, wrong

ZEROS = "            run = (float32(0), float32(0), float32(0), float32(0))\n"
GUARD = "if (K_EVEN or k < K_W) and (I_EVEN or e < I_ALL):"
LOAD = "                run = load4(windows, first_I[f] + k + k // G * G * (d_w - 1))\n"
BY_ONES = """                at = first_I[f] + k + k // G * G * (d_w - 1)
                run = (windows[at], windows[at + 1], windows[at + 2], windows[at + 3])
"""
KEPT = "            fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = run\n"
LAST = "k = slice_ * K_B + e % K_RUNS * FLOAT4\n"
PUT = "S_I[(k0 + e % K_RUNS * FLOAT4 + c) * PITCH + e // K_RUNS] = fetched_I[f, c]"
HAS = "if I_EVEN or e < I_ALL:"
FOUR = "                for c in range(FLOAT4):\n                    " + PUT + "\n"
ONE_BY_ONE = """                at = (k0 + e % K_RUNS * FLOAT4) * PITCH + e // K_RUNS
                S_I[at] = fetched_I[f, 0]
                S_I[at + PITCH] = fetched_I[f, 1]
                S_I[at + 2 * PITCH] = fetched_I[f, 2]
                S_I[at + 3 * PITCH] = fetched_I[f, 3]
"""
LONGER = "return 4 if"

ANSWERS = {
    "fetch": [
        wrong("no guard past the last term", "out of bounds", (GUARD, "if I_EVEN or e < I_ALL:")),
        wrong("always the first slice", "answer", (LAST, "k = e % K_RUNS * FLOAT4\n")),
        wrong("runs not times four", "misaligned", (LAST, "k = slice_ * K_B + e % K_RUNS\n")),
        wrong("dilation forgotten", "answer", (LOAD, "                run = load4(windows, first_I[f] + k)\n")),
        wrong("the same run for all turns", "answer", (LOAD, LOAD.replace("first_I[f]", "first_I[0]"))),
        wrong("window and run exchanged", "answer", (LAST, "k = slice_ * K_B + e // K_RUNS % K_RUNS * FLOAT4\n")),
        wrong("one number at a time", "counts", (LOAD, BY_ONES)),
        wrong("nothing kept past the end", "uninitialised", (ZEROS, ""), (LOAD + KEPT, LOAD + "    " + KEPT)),
        wrong("two numbers exchanged", "answer", (KEPT, KEPT.replace("fetched_I[f, 1], fetched_I[f, 2]", "fetched_I[f, 2], fetched_I[f, 1]"))),
        right("the dilation by columns", (LOAD, "                column, rest = k // G, k % G\n                run = load4(windows, first_I[f] + column * d_w * G + rest)\n")),
        right("taken apart by hand", (ZEROS, ""), (LOAD + KEPT, "                a, b, c, d = load4(windows, first_I[f] + k + k // G * G * (d_w - 1))\n            else:\n                a = b = c = d = float32(0)\n            fetched_I[f, 0] = a\n            fetched_I[f, 1] = b\n            fetched_I[f, 2] = c\n            fetched_I[f, 3] = d\n")),
    ],
    "put": [
        wrong("four neighbours of a row", "answer", (PUT, "S_I[(k0 + e % K_RUNS * FLOAT4) * PITCH + (e // K_RUNS + c) % N_B] = fetched_I[f, c]")),
        wrong("always the first buffer", "answer", (PUT, PUT.replace("k0 + ", ""))),
        wrong("one number of four", "uninitialised", (FOUR, FOUR.replace("range(FLOAT4)", "range(1)"))),
        wrong("rows and columns exchanged", "answer", (PUT, "S_I[(k0 + e // K_RUNS % K_B) * PITCH + e % K_RUNS * FLOAT4 + c] = fetched_I[f, c]")),
        wrong("the four rows turned round", "answer", (PUT, PUT.replace("fetched_I[f, c]", "fetched_I[f, FLOAT4 - 1 - c]"))),
        wrong("all in the same row", "answer", (PUT, PUT.replace("* FLOAT4 + c)", "* FLOAT4)"))),
        wrong("rows without what they are longer", "answer", (PUT, PUT.replace("* PITCH", "* N_B"))),
        wrong("only the first run of a thread", "uninitialised", (PUT, PUT.replace("fetched_I[f, c]", "fetched_I[0, c]")), (HAS, "if f == 0 and (I_EVEN or e < I_ALL):")),
        wrong("no guard for who has no run left", "out of bounds", (HAS, "if True:")),
        right("written out", (FOUR, ONE_BY_ONE)),
        right("without what is known before", (HAS, "if e < K_B * N_B // FLOAT4:")),
        right("from the last one on", (PUT, "S_I[(k0 + e % K_RUNS * FLOAT4 + FLOAT4 - 1 - c) * PITCH + e // K_RUNS] = fetched_I[f, FLOAT4 - 1 - c]")),
    ],
    "skew": [
        given("counts"),
        wrong("one longer, as in lesson 05", "misaligned", (LONGER, "return 1 if")),
        wrong("two longer", "misaligned", (LONGER, "return 2 if")),
        wrong("32 longer", "counts", (LONGER, "return 32 if")),
        wrong("eight longer", "counts", (LONGER, "return 8 if")),
        wrong("as long as the tile is wide", "counts", (LONGER, "return tile.N_B if")),
        wrong("for one output a thread alone", "counts", (LONGER + " tile.M_T * tile.N_T > 1 else 1", "return 4 if tile.M_T * tile.N_T == 1 else 0")),
        right("twelve longer", (LONGER, "return 12 if")),
        right("four longer whatever the tile", (LONGER + " tile.M_T * tile.N_T > 1 else 1", "return 4")),
    ],
}
