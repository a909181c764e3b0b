"""Answers to the exercises of lesson 06."""

from check_answers import given, right, wrong

KEPT = "value = S_I[k, tx]"
ADD = "R_O[i] += S_F[ty + i * ROWS, k] * value"
TERMS = """for k in range(K_B):  # compute
                value = S_I[k, tx]
                for i in range(M_T):
"""
COMPUTE = TERMS + "                    " + ADD
PLACE = "m = m0 + ty + i * ROWS"
GUARD = "if m < M and n < N:"
WRITE = "output[i_n, m, o_h, o_w] = R_O[i] + bias[m]"
EXCHANGED = "for i in range(M_T):  # compute\n                for k in range(K_B):\n"
COLUMN = """R_I = cuda.local.array(K_B, float32)
            for k in range(K_B):
                R_I[k] = S_I[k, tx]
            """

ANSWERS = {
    "outputs": [
        wrong("always the thread's first row", "answer", ("S_F[ty + i * ROWS, k]", "S_F[ty, k]")),
        wrong("rows side by side read, rows apart written", "answer", ("S_F[ty + i * ROWS, k]", "S_F[ty * M_T + i, k]")),
        wrong("rows apart read, rows side by side written", "answer", (PLACE, "m = m0 + ty * M_T + i")),
        wrong("the next row", "answer", ("S_F[ty + i * ROWS, k]", "S_F[ty + i, k]")),
        wrong("M_T rows further on", "answer", ("S_F[ty + i * ROWS, k]", "S_F[ty + i * M_T, k]")),
        wrong("the window's number read for each output", "counts", (KEPT + "\n", "\n"), (ADD, ADD.replace("value", "S_I[k, tx]")), told="reads the same number of S_I"),
        wrong("warps' barriers, not the block's", "shared race", ("cuda.syncthreads()  # all have fetched", "cuda.syncwarp()  # all have fetched"), ("cuda.syncthreads()  # all have read", "cuda.syncwarp()  # all have read")),
        wrong("the last term, not the sum", "answer", ("R_O[i] +=", "R_O[i] =")),
        wrong("one sum for all outputs", "answer", (ADD, ADD.replace("R_O[i]", "R_O[0]"))),
        wrong("no guard for the channels", "out of bounds", (GUARD, "if n < N:")),
        wrong("the first channel's guard for all", "out of bounds", (GUARD, "if m0 + ty < M and n < N:"), line="bias[m]"),
        wrong("the bias of the row in the tile", "answer", ("bias[m]", "bias[ty + i * ROWS]")),
        wrong("no bias", "answer", (" + bias[m]", "")),
        wrong("all terms of a slice", "out of bounds", ("for k in range(K_B):  # compute", "for k in range(K):")),
        right("rows side by side", ("S_F[ty + i * ROWS, k]", "S_F[ty * M_T + i, k]"), (PLACE, "m = m0 + ty * M_T + i")),
        right("from the last to the first", ("S_F[ty + i * ROWS, k]", "S_F[ty + (M_T - 1 - i) * ROWS, k]"), (PLACE, "m = m0 + ty + (M_T - 1 - i) * ROWS")),
        right("threads past the last pixel write that one again", (GUARD, "if m < M:")),
        right("two questions", (f"{GUARD}\n                {WRITE}", f"if n >= N or m >= M:\n                continue\n            {WRITE}")),
    ],
    "reuse": [
        given("counts"),
        wrong("the loops exchanged, the number not kept", "counts", (KEPT + "\n", "\n"), (ADD, ADD.replace("value", "S_I[k, tx]"))),
        wrong("kept before all terms", "answer", (TERMS, "value = S_I[0, tx]\n            " + EXCHANGED)),
        wrong("the filter's number kept instead", "answer", (COMPUTE, "for k in range(K_B):\n                value = S_F[ty, k]\n                for i in range(M_T):\n                    R_O[i] += value * S_I[k, tx]")),
        wrong("the filter's number read twice", "counts", (ADD, "R_O[i] += (S_F[ty + i * ROWS, k] + S_F[ty + i * ROWS, k]) / 2 * value")),
        wrong("rows M_T apart", "answer", ("S_F[ty + i * ROWS, k]", "S_F[ty + i * M_T, k]")),
        wrong("no barrier before computing", "shared race", ("            cuda.syncthreads()  # all have fetched before any computes\n", "")),
        wrong("no barrier before the next slice", "shared race", ("            cuda.syncthreads()  # all have read this slice before any overwrites it\n", "")),
        wrong("one sum for all outputs", "answer", (ADD, ADD.replace("R_O[i]", "R_O[0]"))),
        wrong("the last term, not the sum", "answer", ("R_O[i] +=", "R_O[i] =")),
        wrong("kept for two terms", "answer", (KEPT, "value = S_I[k // 2 * 2, tx]")),
        wrong("kept from the term before", "answer", (COMPUTE, "value = S_I[0, tx]\n            for k in range(K_B):\n                for i in range(M_T):\n                    " + ADD + "\n                value = S_I[k, tx]")),
        right("a column of the slice copied first", (COMPUTE, COLUMN + EXCHANGED + "                    " + ADD.replace("value", "R_I[k]"))),
        right("the product's factors exchanged", (ADD, "R_O[i] += value * S_F[ty + i * ROWS, k]")),
        right("terms from the last to the first", (TERMS, TERMS.replace("range(K_B)", "range(K_B - 1, -1, -1)"))),
    ],
}
