"""Answers to the exercises of lesson 05."""

from check_answers import given, right, wrong

FIRST = "            cuda.syncthreads()  # nobody computes before all have fetched\n"
SECOND = "            cuda.syncthreads()  # nobody fetches the next slice over what others still read\n"
COMPUTE = "total += S_F[ty, k] * S_I[k, tx]"
LOAD = """            for e in range(t, M_B * K_B, THREADS):  # load
                row, k = m0 + e // K_B, k0 + e % K_B
                value = float32(0)
                if row < M and k < K:
                    value = weight[row * K + k]
                S_F[e // K_B, e % K_B] = value
"""
BY_ROWS = """            for e in range(tx, K_B, N_B):
                S_F[ty, e] = weight[m * K + k0 + e] if m < M and k0 + e < K else float32(0)
"""
SLICES = "F_SLICE, I_SLICE = (M_B, K_B), (K_B, N_B)"
TURNED = (("S_I[e, tx]", "S_I[tx, e]"), ("S_I[k, tx]", "S_I[tx, k]"))

ANSWERS = {
    "slices": [
        wrong("no barrier before computing", "shared race", (FIRST, ""), line=COMPUTE),
        wrong("no barrier before the next slice", "shared race", (SECOND, ""), line=COMPUTE),
        wrong("warps' barriers, not the block's", "shared race", ("cuda.syncthreads()  # nobody computes", "cuda.syncwarp()  # nobody computes"), ("cuda.syncthreads()  # nobody fetches", "cuda.syncwarp()  # nobody fetches")),
        wrong("a barrier that some do not reach", "barrier divergence", (FIRST, "            if m < M and n < N:\n                cuda.syncthreads()\n")),
        wrong("nothing written past the end", "uninitialised", ("                S_F[e // K_B, e % K_B] = value", "                    S_F[e // K_B, e % K_B] = value")),
        wrong("no guard for what is past the end", "out of bounds", ("if row < M and k < K:", "if True:"), line="weight[row * K + k]"),
        wrong("rows guarded, terms not", "answer", ("row < M and k < K", "row < M and row * K + k < M * K"), ("if k < K and 0 <= i_h", "if i_c < K // (H_f * W_f) and 0 <= i_h")),
        wrong("always the first slice", "answer", ("row, k = m0 + e // K_B, k0 + e % K_B", "row, k = m0 + e // K_B, e % K_B")),
        wrong("rows and columns of the slice exchanged", "out of bounds", ("S_I[k, tx]", "S_I[tx, k]")),
        wrong("all terms of a slice", "out of bounds", ("for k in range(K_B):", "for k in range(K):")),
        wrong("the last term, not the sum", "answer", (COMPUTE, "total = S_F[ty, k] * S_I[k, tx]")),
        wrong("every thread fetches the whole slice", "counts", ("range(t, M_B * K_B, THREADS)", "range(M_B * K_B)")),
        wrong("the tile's rows for the block's threads", "counts", ("range(t, M_B * K_B, THREADS)", "range(t, M_B * K_B, M_B)")),
        wrong("one number a thread", "uninitialised", ("for e in range(t, M_B * K_B, THREADS):  # load", "e = t\n            if e < M_B * K_B:")),
        wrong("the filter read past shared memory", "counts", (COMPUTE, "if m < M and k0 + k < K:\n                    total += weight[m * K + k0 + k] * S_I[k, tx]")),
        right("a row of threads fetches a row", (LOAD, BY_ROWS)),
        right("the second barrier at the top", (LOAD, "            cuda.syncthreads()\n" + LOAD), (SECOND, "")),
        right("summed up backwards", (COMPUTE, "total += S_I[K_B - 1 - k, tx] * S_F[ty, K_B - 1 - k]")),
    ],
    "banks": [
        given("counts"),
        wrong("only the store transposed", "out of bounds", (SLICES, "F_SLICE, I_SLICE = (M_B, K_B), (N_B, K_B)"), ("S_I[k, tx]", "S_I[tx, k]")),
        wrong("only the array transposed", "out of bounds", *TURNED),
        wrong("only the load transposed", "out of bounds", ("S_I[e, tx]", "S_I[tx, e]")),
        wrong("rows two longer", "counts", (SLICES, "F_SLICE, I_SLICE = (M_B, K_B), (N_B, K_B + 2)"), *TURNED),
        wrong("the filter's slice made longer", "counts", (SLICES, "F_SLICE, I_SLICE = (M_B, K_B + 1), (N_B, K_B)"), *TURNED),
        wrong("a barrier taken out", "shared race", (SECOND, ""), line=COMPUTE),
        wrong("rows four longer", "counts", (SLICES, "F_SLICE, I_SLICE = (M_B, K_B), (N_B, K_B + 4)"), *TURNED),
        wrong("rows one too short", "out of bounds", (SLICES, "F_SLICE, I_SLICE = (M_B, K_B), (N_B, K_B - 1)"), *TURNED),
        wrong("no barrier before computing", "shared race", (FIRST, ""), line=COMPUTE),
        wrong("a warp\'s barrier, not the block\'s", "shared race", ("cuda.syncthreads()  # nobody computes", "cuda.syncwarp()  # nobody computes")),
        wrong("the window of another thread", "answer", ("S_I[k, tx]", "S_I[k, N_B - 1 - tx]")),
        right("rows one longer", (SLICES, "F_SLICE, I_SLICE = (M_B, K_B), (N_B, K_B + 1)"), *TURNED),
        right("rows three longer", (SLICES, "F_SLICE, I_SLICE = (M_B, K_B), (N_B, K_B + 3)"), *TURNED),
        right("not transposed, rows one longer", (SLICES, "F_SLICE, I_SLICE = (M_B, K_B), (K_B, N_B + 1)")),
    ],
}
