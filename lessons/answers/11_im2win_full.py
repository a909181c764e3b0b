"""Answers to the exercises of lesson 11."""

from check_answers import given, right, wrong

ZEROS = "            four = (float32(0), float32(0), float32(0), float32(0))\n"
GUARD = "if (K_EVEN or k < K_W) and (I_EVEN or e < I_ALL):"
LOAD = "                four = load4(windows, first_I[f] + k + k // G * G * (d_w - 1))\n"
BY_ONES = """                at = first_I[f] + k + k // G * G * (d_w - 1)
                four = (windows[at], windows[at + 1], windows[at + 2], windows[at + 3])
"""
KEPT = "            fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = four\n"
LAST = "k = slice_ * K_B + e % K_4 * FLOAT4\n"
PUT = "S_I[(k0 + e % K_4 * FLOAT4 + c) * PITCH + e // K_4] = fetched_I[f, c]"
BARRIER = """\
                cuda.syncthreads()  # line 16: all have filled the next slice and have read this one
"""
HAS = "if I_EVEN or e < I_ALL:"
FOUR = "                for c in range(FLOAT4):\n                    " + PUT + "\n"
ONE_BY_ONE = """                at = (k0 + e % K_4 * FLOAT4) * PITCH + e // K_4
                S_I[at] = fetched_I[f, 0]
                S_I[at + PITCH] = fetched_I[f, 1]
                S_I[at + 2 * PITCH] = fetched_I[f, 2]
                S_I[at + 3 * PITCH] = fetched_I[f, 3]
"""
PADDED = "PITCH = N_B + PADDING"

ANSWERS = {
    "fetch": [
        wrong("no guard past the last term", "out of bounds", (GUARD, "if I_EVEN or e < I_ALL:")),
        wrong("always the first slice", "answer", (LAST, "k = e % K_4 * FLOAT4\n")),
        wrong("float4s not times four", "misaligned", (LAST, "k = slice_ * K_B + e % K_4\n")),
        wrong("dilation forgotten", "answer", (LOAD, "                four = load4(windows, first_I[f] + k)\n")),
        wrong("the same window's start for all float4s", "answer", (LOAD, LOAD.replace("first_I[f]", "first_I[0]"))),
        wrong("window and float4 exchanged", "answer", (LAST, "k = slice_ * K_B + e // K_4 % K_4 * FLOAT4\n")),
        wrong("one number at a time", "counts", (LOAD, BY_ONES)),
        wrong("nothing kept past the end", "uninitialised", (ZEROS, ""), (LOAD + KEPT, LOAD + "    " + KEPT)),
        wrong("two numbers exchanged", "answer", (KEPT, KEPT.replace("fetched_I[f, 1], fetched_I[f, 2]", "fetched_I[f, 2], fetched_I[f, 1]"))),
        wrong("always the filter\'s first slice", "answer", ("first_F + slice_ * (K_B * M_B)", "first_F")),
        wrong("a slice too far", "answer", (LAST, "k = (slice_ + 1) * K_B + e % K_4 * FLOAT4\n")),
        wrong("a barrier taken out", "shared race", (BARRIER, "")),
        right("the dilation by columns", (LOAD, "                column, rest = k // G, k % G\n                four = load4(windows, first_I[f] + column * d_w * G + rest)\n")),
        right("taken apart by hand", (ZEROS, ""), (LOAD + KEPT, "                a, b, c, d = load4(windows, first_I[f] + k + k // G * G * (d_w - 1))\n            else:\n                a = b = c = d = float32(0)\n            fetched_I[f, 0] = a\n            fetched_I[f, 1] = b\n            fetched_I[f, 2] = c\n            fetched_I[f, 3] = d\n")),
        right("the condition reversed", (GUARD, "if not (K_W <= k and not K_EVEN or I_ALL <= e and not I_EVEN):")),
    ],
    "put": [
        wrong("four neighbours of a row", "answer", (PUT, "S_I[(k0 + e % K_4 * FLOAT4) * PITCH + (e // K_4 + c) % N_B] = fetched_I[f, c]")),
        wrong("always the first buffer", "answer", (PUT, PUT.replace("k0 + ", ""))),
        wrong("one number of four", "uninitialised", (FOUR, FOUR.replace("range(FLOAT4)", "range(1)"))),
        wrong("rows and columns exchanged", "answer", (PUT, "S_I[(k0 + e // K_4 % K_B) * PITCH + e % K_4 * FLOAT4 + c] = fetched_I[f, c]")),
        wrong("the four numbers in reverse order", "answer", (PUT, PUT.replace("fetched_I[f, c]", "fetched_I[f, FLOAT4 - 1 - c]"))),
        wrong("all in the same row", "answer", (PUT, PUT.replace("* FLOAT4 + c)", "* FLOAT4)"))),
        wrong("rows without their padding", "answer", (PUT, PUT.replace("* PITCH", "* N_B"))),
        wrong("only the first float4 of a thread", "uninitialised", (PUT, PUT.replace("fetched_I[f, c]", "fetched_I[0, c]")), (HAS, "if f == 0 and (I_EVEN or e < I_ALL):")),
        wrong("no guard for threads with no float4 left", "out of bounds", (HAS, "if True:")),
        wrong("the buffer counted in numbers", "answer", (PUT, "S_I[k0 + (e % K_4 * FLOAT4 + c) * PITCH + e // K_4] = fetched_I[f, c]")),
        wrong("the same float4 for all turns", "answer", (PUT, PUT.replace("fetched_I[f, c]", "fetched_I[0, c]"))),
        wrong("a barrier taken out", "shared race", (BARRIER, "")),
        right("written out", (FOUR, ONE_BY_ONE)),
        right("without the constant that saves the check", (HAS, "if e < K_B * N_B // FLOAT4:")),
        right("from the last one on", (PUT, "S_I[(k0 + e % K_4 * FLOAT4 + FLOAT4 - 1 - c) * PITCH + e // K_4] = fetched_I[f, FLOAT4 - 1 - c]")),
    ],
    "skew": [
        given("counts"),
        wrong("one longer, as in lesson 05", "misaligned", (PADDED, "PITCH = N_B + 1")),
        wrong("two longer", "misaligned", (PADDED, "PITCH = N_B + 2")),
        wrong("32 longer", "counts", (PADDED, "PITCH = N_B + 32")),
        wrong("eight longer", "counts", (PADDED, "PITCH = N_B + 8")),
        wrong("as long as the tile is wide", "counts", (PADDED, "PITCH = N_B + N_B")),
        wrong("three longer", "misaligned", (PADDED, "PITCH = N_B + 3")),
        wrong("16 longer", "counts", (PADDED, "PITCH = N_B + 16")),
        wrong("four shorter", "shared race", (PADDED, "PITCH = N_B - 4")),
        wrong("the array without the padding", "out of bounds", ("2 * K_B * PITCH, (M_T", "2 * K_B * N_B, (M_T")),
        wrong("stored in longer rows, read in short ones", "answer", ("(k * PITCH + j * COLUMNS)", "(k * N_B + j * COLUMNS)")),
        wrong("a barrier taken out", "shared race", (BARRIER, "")),
        right("twelve longer", (PADDED, "PITCH = N_B + 12")),
        right("a float4 longer", (PADDED, "PITCH = N_B + FLOAT4")),
        right("twenty longer", (PADDED, "PITCH = N_B + 20")),
    ],
}
