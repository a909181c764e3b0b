"""Answers to the exercises of lesson 05."""

from check_answers import given, right, wrong

FIRST = "            cuda.syncthreads()  # nobody computes before all have fetched\n"
SECOND = "            cuda.syncthreads()  # nobody fetches the next slice over what others still read\n"
COMPUTE = "total += S_F[ty, k] * S_I[k, tx]"
LOAD = """        for e in range(t, M_B * K_B, THREADS):  # load
            row, k = m0 + e // K_B, k0 + e % K_B
            value = float32(0)
            if row < M and k < K:
                value = weight[row * K + k]
            S_F[e // K_B, e % K_B] = value
"""
WINDOWS = "            load_windows(input, i_n, o_h, o_w, k0, ty, tx, S_I)\n"
PLACE = "row, k = m0 + e // K_B, k0 + e % K_B"
KEPT = "            S_F[e // K_B, e % K_B] = value"
GUARD = "if row < M and k < K:"
IN_TURN = """        row, k = t // K_B, t % K_B
        while row < M_B:
            S_F[row, k] = weight[(m0 + row) * K + k0 + k] if m0 + row < M and k0 + k < K else float32(0)
            k += THREADS
            row += k // K_B
            k %= K_B
"""
ZEROS_FIRST = """        for e in range(t, M_B * K_B, THREADS):  # load
            S_F[e // K_B, e % K_B] = float32(0)
            if m0 + e // K_B < M and k0 + e % K_B < K:
                S_F[e // K_B, e % K_B] = weight[(m0 + e // K_B) * K + k0 + e % K_B]
"""
SLICES = "F_SLICE, I_SLICE = (M_B, K_B), (K_B, N_B)"
TURNED = (("S_I[e, tx]", "S_I[tx, e]"), ("S_I[k, tx]", "S_I[tx, k]"))

ANSWERS = {
    "load": [
        wrong("nothing written past the end", "uninitialised", (KEPT, "    " + KEPT)),
        wrong("no guard for what is past the end", "out of bounds", (GUARD, "if True:"), line="weight[row * K + k]"),
        wrong("terms guarded, rows not", "out of bounds", (GUARD, "if k < K:")),
        wrong("rows guarded, terms not", "out of bounds", (GUARD, "if row < M:")),
        wrong("a guard one too wide", "out of bounds", (GUARD, "if row <= M and k < K:")),
        wrong("the row in the slice guarded", "out of bounds", (GUARD, "if e // K_B < M and k < K:")),
        wrong("always the first slice", "answer", (PLACE, "row, k = m0 + e // K_B, e % K_B")),
        wrong("always the first block's rows", "answer", (PLACE, "row, k = e // K_B, k0 + e % K_B")),
        wrong("split by the rows", "out of bounds", (PLACE, "row, k = m0 + e // M_B, k0 + e % M_B"), (KEPT, "            S_F[e // M_B, e % M_B] = value")),
        wrong("rows and terms of the slice exchanged", "out of bounds", (KEPT, "            S_F[e % K_B, e // K_B] = value")),
        wrong("rows as long as the slice's", "answer", ("weight[row * K + k]", "weight[row * K_B + k]")),
        wrong("the filter transposed", "answer", ("weight[row * K + k]", "weight[k * M + row]")),
        wrong("every thread fetches the whole slice", "counts", ("range(t, M_B * K_B, THREADS)", "range(M_B * K_B)")),
        wrong("the tile's rows for the block's threads", "counts", ("range(t, M_B * K_B, THREADS)", "range(t, M_B * K_B, M_B)")),
        wrong("one number a thread", "uninitialised", ("for e in range(t, M_B * K_B, THREADS):  # load", "e = t\n        if e < M_B * K_B:")),
        wrong("two indices for an array of one dimension", "broken", ("weight[row * K + k]", "weight[row, k]")),
        right("zeros first", (LOAD, ZEROS_FIRST)),
        right("row and term counted up", (LOAD, IN_TURN)),
        right("from the last to the first", (LOAD, LOAD.replace("e // K_B", "(M_B * K_B - 1 - e) // K_B").replace("e % K_B", "(M_B * K_B - 1 - e) % K_B"))),
    ],
    "slices": [
        wrong("no barrier before computing", "shared race", (FIRST, ""), line=COMPUTE),
        wrong("no barrier before the next slice", "shared race", (SECOND, ""), line=COMPUTE),
        wrong("warps' barriers, not the block's", "shared race", ("cuda.syncthreads()  # nobody computes", "cuda.syncwarp()  # nobody computes"), ("cuda.syncthreads()  # nobody fetches", "cuda.syncwarp()  # nobody fetches")),
        wrong("a barrier that some do not reach", "barrier divergence", (FIRST, "            if m < M and n < N:\n                cuda.syncthreads()\n")),
        wrong("the first barrier before the loads", "shared race", (FIRST, ""), ("            load_filter(weight", "            cuda.syncthreads()\n            load_filter(weight")),
        wrong("the second barrier in the loop over terms", "counts", (SECOND, SECOND.replace("            cuda", "                cuda"))),
        wrong("rows and columns of the slice exchanged", "out of bounds", ("S_I[k, tx]", "S_I[tx, k]")),
        wrong("row and column of the thread exchanged", "out of bounds", (COMPUTE, "total += S_F[tx, k] * S_I[k, ty]")),
        wrong("all terms of a slice", "out of bounds", ("for k in range(K_B):", "for k in range(K):")),
        wrong("one term too few", "answer", ("for k in range(K_B):", "for k in range(K_B - 1):")),
        wrong("the last term, not the sum", "answer", (COMPUTE, "total = S_F[ty, k] * S_I[k, tx]")),
        wrong("added, not multiplied", "answer", (COMPUTE, "total += S_F[ty, k] + S_I[k, tx]")),
        wrong("the filter read past shared memory", "counts", (COMPUTE, "if m < M and k0 + k < K:\n                    total += weight[m * K + k0 + k] * S_I[k, tx]")),
        right("the second barrier at the top", ("            load_filter(weight", "            cuda.syncthreads()\n            load_filter(weight"), (SECOND, "")),
        right("summed up backwards", (COMPUTE, "total += S_I[K_B - 1 - k, tx] * S_F[ty, K_B - 1 - k]")),
        right("a sum for each slice", ("            for k in range(K_B):  # compute\n", "            part = float32(0)\n            for k in range(K_B):\n"), (COMPUTE, "part += S_F[ty, k] * S_I[k, tx]\n            total += part")),
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
