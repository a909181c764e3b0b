"""Answers to the exercises of lesson 05."""

from check_answers import given, right, wrong

SHAPES = "(M_B, K_B), (N_B, K_B + 1)"
FIRST = "            cuda.syncthreads()  # all have fetched before any computes\n"
SECOND = "            cuda.syncthreads()  # all have read this slice before any overwrites it\n"
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
        wrong("without a step", "counts", ("range(t, M_B * K_B, THREADS)", "range(t, M_B * K_B)")),
        wrong("two indices for weight", "broken", ("weight[row * K + k]", "weight[row, k]")),
        wrong("one index for S_F", "out of bounds", ("S_F[e // K_B, e % K_B] = value", "S_F[e] = value")),
        wrong("rows of the slice for rows of the matrix", "answer", ("weight[row * K + k]", "weight[row * K_B + k]")),
        wrong("row and term exchanged", "answer", ("m0 + e // K_B, k0 + e % K_B", "m0 + e % K_B, k0 + e // K_B")),
        wrong("one number for each thread", "uninitialised", ("for e in range(t, M_B * K_B, THREADS):  # load", "for e in range(t, min(t + 1, M_B * K_B)):")),
        wrong("returned past the last row", "uninitialised", ("            value = float32(0)\n", "            if row >= M:\n                return\n            value = float32(0)\n")),
        wrong("stored by the matrix's row", "out of bounds", ("S_F[e // K_B, e % K_B] = value", "S_F[row, k] = value")),
        wrong("past the end from the beginning", "answer", ("if row < M and k < K:", "if True:"), ("weight[row * K + k]", "weight[(row * K + k) % (M * K)]")),
        wrong("only the last row guarded", "answer", ("if row < M and k < K", "if row * K + k < M * K")),
        wrong("the next slice", "answer", ("row, k = m0 + e // K_B, k0 + e % K_B", "row, k = m0 + e // K_B, k0 + K_B + e % K_B")),
        wrong("the last number of the slice not fetched", "uninitialised", ("M_B * K_B, THREADS)", "M_B * K_B - 1, THREADS)")),
        wrong("terms guarded one too wide", "out of bounds", ("if row < M and k < K:", "if row < M and k <= K:")),
        wrong("a barrier for those that fetch", "barrier divergence", ("                value = weight[row * K + k]\n", "                value = weight[row * K + k]\n                cuda.syncthreads()\n")),
        wrong("from the thread's number in the grid", "uninitialised", ("for e in range(t, M_B * K_B, THREADS):  # load", "for e in range(cuda.grid(1), M_B * K_B, THREADS):")),
        wrong("one row further", "answer", ("S_F[e // K_B, e % K_B]", "S_F[(e // K_B + 1) % M_B, e % K_B]")),
        wrong("thread 0 fetches all", "counts", ("for e in range(t, M_B * K_B, THREADS):  # load", "for e in range(M_B * K_B if t == 0 else 0):")),
        wrong("the slice's rows by M_B", "answer", ("row, k = m0 + e // K_B, k0 + e % K_B", "row, k = m0 + e % M_B, k0 + e // M_B"), told="tiles with several output channels"),
        right("zeros first", (LOAD, ZEROS_FIRST)),
        right("row and term counted up", (LOAD, IN_TURN)),
        right("from the last to the first", (LOAD, LOAD.replace("e // K_B", "(M_B * K_B - 1 - e) // K_B").replace("e % K_B", "(M_B * K_B - 1 - e) % K_B"))),
        right("a while loop", ("for e in range(t, M_B * K_B, THREADS):  # load", "e = t\n        while e < M_B * K_B:"), ("            S_F[e // K_B, e % K_B] = value\n", "            S_F[e // K_B, e % K_B] = value\n            e += THREADS\n")),
        right("clamped, then zero", ("                value = weight[row * K + k]\n", "                value = weight[min(row, M - 1) * K + min(k, K - 1)]\n")),
        wrong("a chunk for each thread", "counts", ("for e in range(t, M_B * K_B, THREADS):  # load", "each = (M_B * K_B + THREADS - 1) // THREADS\n        for e in range(t * each, min((t + 1) * each, M_B * K_B)):"), line="weight[row * K + k]", told="the numbers of neighbouring threads mostly lie 8 apart"),
        wrong("column after column", "counts", (PLACE, "row, k = m0 + e % M_B, k0 + e // M_B"), (KEPT, "            S_F[e % M_B, e // M_B] = value"), line="weight[row * K + k]", told="the numbers of neighbouring threads mostly lie 36 apart"),
        wrong("every thread fetches its numbers twice", "counts", (KEPT, KEPT + "\n            if row < M and k < K:\n                S_F[e // K_B, e % K_B] = (value + weight[row * K + k]) / 2"), told="reads the same number of weight twice"),
        right("a store in each branch", (LOAD, LOAD.replace("            value = float32(0)\n", "").replace("                value = weight[row * K + k]\n            S_F[e // K_B, e % K_B] = value\n", "                S_F[e // K_B, e % K_B] = weight[row * K + k]\n            else:\n                S_F[e // K_B, e % K_B] = float32(0)\n"))),
        right("turns counted", ("for e in range(t, M_B * K_B, THREADS):  # load", "for turn in range((M_B * K_B + THREADS - 1) // THREADS):\n            e = turn * THREADS + t\n            if e >= M_B * K_B:\n                break")),
        wrong("an if in the place of the loop", "uninitialised", ("for e in range(t, M_B * K_B, THREADS):  # load", "e = t\n        if e < M_B * K_B:"), line="S_F[e // K_B", told="a thread must store more of them, in a loop"),
        wrong("only the first row", "uninitialised", ("range(t, M_B * K_B, THREADS)", "range(t, K_B, THREADS)"), told="No thread stores to rows 1 to 3 of S_F"),
        wrong("the slice's first term forgotten", "answer", ("k0 + e % K_B", "e % K_B"), told="Each slice has the filter's numbers of the first one"),
        wrong("rows of the slice's length", "answer", ("weight[row * K + k]", "weight[row * K_B + k]"), line="row * K_B", told="Is K_B the right name"),
        wrong("every thread from the first number on", "counts", ("range(t, M_B * K_B, THREADS)", "range(0, M_B * K_B)"), told="Several threads store the same element of S_F"),
        right("a loop with while", ("        for e in range(t, M_B * K_B, THREADS):  # load\n            row, k = m0 + e // K_B, k0 + e % K_B\n            value = float32(0)\n            if row < M and k < K:\n                value = weight[row * K + k]\n            S_F[e // K_B, e % K_B] = value\n", "        e = t\n        while e < M_B * K_B:\n            r, c = divmod(e, K_B)\n            inside = m0 + r < M and k0 + c < K\n            S_F[r, c] = weight[(m0 + r) * K + k0 + c] if inside else float32(0)\n            e += THREADS\n")),
    ],
    "slices": [
        wrong("no barrier before computing", "shared race", (FIRST, ""), line=COMPUTE),
        wrong("no barrier before the next slice", "shared race", (SECOND, ""), line=COMPUTE),
        wrong("warps' barriers, not the block's", "shared race", ("cuda.syncthreads()  # all have fetched", "cuda.syncwarp()  # all have fetched"), ("cuda.syncthreads()  # all have read", "cuda.syncwarp()  # all have read")),
        wrong("a barrier that some do not reach", "barrier divergence", (FIRST, "            if m < M and n < N:\n                cuda.syncthreads()\n")),
        wrong("the first barrier before the loads", "shared race", (FIRST, ""), ("            load_filter(weight", "            cuda.syncthreads()\n            load_filter(weight")),
        wrong("the second barrier in the loop over terms", "counts", (SECOND, SECOND.replace("            cuda", "                cuda"))),
        wrong("rows and columns of the slice exchanged", "out of bounds", ("S_I[k, tx]", "S_I[tx, k]")),
        wrong("all terms of a slice", "out of bounds", ("for k in range(K_B):", "for k in range(K):")),
        wrong("one term too few", "answer", ("for k in range(K_B):", "for k in range(K_B - 1):")),
        wrong("the last term, not the sum", "answer", (COMPUTE, "total = S_F[ty, k] * S_I[k, tx]")),
        wrong("added, not multiplied", "answer", (COMPUTE, "total += S_F[ty, k] + S_I[k, tx]")),
        wrong("the filter read past shared memory", "counts", (COMPUTE, "if m < M and k0 + k < K:\n                    total += weight[m * K + k0 + k] * S_I[k, tx]")),
        wrong("the first term of the slice in its index", "out of bounds", ("S_F[ty, k] *", "S_F[ty, k0 + k] *"), told="leave k0 out of the index"),
        wrong("returned without an output", "barrier divergence", ("        total = float32(0)\n", "        if m >= M or n >= N:\n            return\n        total = float32(0)\n"), told="nor to the barrier in line 36"),
        wrong("the first barrier only for the first slice", "shared race", ("            cuda.syncthreads()  # all have fetched before any computes\n", "            if k0 == 0:\n                cuda.syncthreads()\n")),
        wrong("the neighbour's column", "answer", ("S_I[k, tx]", "S_I[k, (tx + 1) % N_B]")),
        wrong("the bias added in each slice", "answer", ("            cuda.syncthreads()  # all have read this slice before any overwrites it\n", "            cuda.syncthreads()  # all have read this slice before any overwrites it\n            total += bias[min(m, M - 1)]\n"), ("total + bias[m]", "total"), told="The bias is added with every slice"),
        wrong("the bias forgotten", "answer", ("total + bias[m]", "total"), told="lack the bias, and nothing else"),
        wrong("the sum begun anew for each slice", "answer", ("            cuda.syncthreads()  # all have fetched before any computes\n", "            cuda.syncthreads()  # all have fetched before any computes\n            total = float32(0)\n")),
        wrong("barriers in every term", "counts", ("                total += S_F[ty, k] * S_I[k, tx]", "                cuda.syncthreads()\n                total += S_F[ty, k] * S_I[k, tx]")),
        wrong("both barriers before the products", "shared race", ("            cuda.syncthreads()  # all have fetched before any computes\n", "            cuda.syncthreads()  # all have fetched before any computes\n            cuda.syncthreads()  # all have fetched before any computes\n"), ("            cuda.syncthreads()  # all have read this slice before any overwrites it\n", "")),
        wrong("products of the slices' sums", "answer", ("total += S_F[ty, k] * S_I[k, tx]", "total += S_F[ty, k] * S_I[K_B - 1 - k, tx]")),
        right("the second barrier at the top", ("            load_filter(weight", "            cuda.syncthreads()\n            load_filter(weight"), (SECOND, "")),
        right("summed up backwards", (COMPUTE, "total += S_I[K_B - 1 - k, tx] * S_F[ty, K_B - 1 - k]")),
        right("a sum for each slice", ("            for k in range(K_B):  # compute\n", "            part = float32(0)\n            for k in range(K_B):\n"), (COMPUTE, "part += S_F[ty, k] * S_I[k, tx]\n            total += part")),
        right("no further than the last term", ("range(K_B):", "range(min(K_B, K - k0)):")),
        right("the sum by itself", ("total += S_F[ty, k] * S_I[k, tx]", "total = total + S_I[k, tx] * S_F[ty, k]")),
        wrong("the sum cleared for each slice", "answer", ("            load_filter(weight", "            total = float32(0)\n            load_filter(weight"), told="The sums have the terms of the last slice only"),
        wrong("row and column of the thread exchanged", "out of bounds", ("S_F[ty, k] * S_I[k, tx]", "S_F[tx, k] * S_I[k, ty]"), told="Are tx and ty in the right places in this line?"),
        wrong("all terms in each slice", "out of bounds", ("for k in range(K_B)", "for k in range(K)"), line="range(K)", told="Is K the right name"),
    ],
    "banks": [
        given("counts"),
        wrong("rows two longer", "counts", (SHAPES, "(M_B, K_B), (N_B, K_B + 2)")),
        wrong("rows four longer", "counts", (SHAPES, "(M_B, K_B), (N_B, K_B + 4)")),
        wrong("rows twice as long", "counts", (SHAPES, "(M_B, K_B), (N_B, 2 * K_B)")),
        wrong("rows as long as a warp", "counts", (SHAPES, "(M_B, K_B), (N_B, 32)")),
        wrong("one row more", "counts", (SHAPES, "(M_B, K_B), (N_B + 1, K_B)")),
        wrong("the filter's slice made longer", "counts", (SHAPES, "(M_B, K_B + 1), (N_B, K_B)")),
        wrong("rows one too short", "out of bounds", (SHAPES, "(M_B, K_B), (N_B, K_B - 1)")),
        wrong("only the array transposed", "out of bounds", (SHAPES, "(M_B, K_B), (K_B, N_B)")),
        wrong("transposed, and its rows one longer", "out of bounds", (SHAPES, "(M_B, K_B), (K_B, N_B + 1)")),
        wrong("an array of each thread's own", "uninitialised", ("S_I = cuda.shared", "S_I = cuda.local")),
        wrong("the sum begun anew for each slice", "answer", ("        for k0 in range(0, K, K_B):\n", "        for k0 in range(0, K, K_B):\n            total = float32(0)\n")),
        wrong("every second slice", "answer", ("range(0, K, K_B)", "range(0, K, 2 * K_B)")),
        wrong("the sum not kept", "answer", ("total = add_up", "add_up")),
        wrong("row and column of the thread exchanged", "out of bounds", ("ty, tx = t // N_B, t % N_B", "ty, tx = t % N_B, t // N_B")),
        wrong("no check of the channel", "out of bounds", ("if m < M and n < N", "if n < N")),
        right("rows three longer", (SHAPES, "(M_B, K_B), (N_B, K_B + 3)")),
        right("rows of an odd length", (SHAPES, "(M_B, K_B), (N_B, K_B | 1)")),
        right("rows as long as a warp and one", (SHAPES, "(M_B, K_B), (N_B, 33)")),
    ],
}
