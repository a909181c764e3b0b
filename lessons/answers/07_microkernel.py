"""Answers to the exercises of lesson 07."""

from check_answers import given, right, wrong

FILL_F = """for i in range(M_T):
                    R_F[i] = S_F[ty + i * ROWS, k]
"""
FILL_I = """for j in range(N_T):
                    R_I[j] = S_I[k, tx + j * COLUMNS]
"""
ALL = """for i in range(M_T):
                    for j in range(N_T):
                        R_O[i, j] += R_F[i] * R_I[j]
"""
FILLED = "                " + FILL_F + "                " + FILL_I + "                "
SAME_WINDOW = """for j in range(N_T):
                    value = S_I[k, tx + j * COLUMNS]
                    for i in range(M_T):
                        R_O[i, j] += R_F[i] * value
"""
READ = "S_I[k, tx * N_T + j]"
CONSTANTS, NAMES = "tile.threads, tile.columns", "THREADS, COLUMNS"
PLACE = "n = n0 + tx * N_T + j"

ANSWERS = {
    "outer": [
        wrong("rows side by side read", "answer", ("S_F[ty + i * ROWS, k]", "S_F[ty * M_T + i, k]")),
        wrong("columns side by side read", "answer", ("S_I[k, tx + j * COLUMNS]", "S_I[k, tx * N_T + j]")),
        wrong("the next column", "answer", ("tx + j * COLUMNS]", "tx + j]")),
        wrong("columns N_T apart", "out of bounds", ("tx + j * COLUMNS]", "tx + j * N_T]")),
        wrong("ROWS and COLUMNS exchanged", "out of bounds", ("S_F[ty + i * ROWS, k]", "S_F[ty + i * COLUMNS, k]"), ("tx + j * COLUMNS]", "tx + j * ROWS]")),
        wrong("rows and columns of the sums exchanged", "out of bounds", ("R_O[i, j] +=", "R_O[j, i] +=")),
        wrong("each with its own, not all with all", "answer", (ALL, "for i in range(min(M_T, N_T)):\n                    R_O[i, i] += R_F[i] * R_I[i]\n")),
        wrong("both read for every product", "counts", (FILLED + ALL, "                " + ALL.replace("R_F[i]", "S_F[ty + i * ROWS, k]").replace("R_I[j]", "S_I[k, tx + j * COLUMNS]")), told="Each thread reads the same number of S_F 4 times"),
        wrong("the windows read for every product", "counts", (FILL_I + "                " + ALL, ALL.replace("R_I[j]", "S_I[k, tx + j * COLUMNS]")), told="Each thread reads the same number of S_I 4 times"),
        wrong("multiplied before it is read", "uninitialised", (FILLED + ALL, "                " + ALL + FILLED.rstrip(" "))),
        wrong("M_T columns", "uninitialised", (FILL_I, FILL_I.replace("N_T", "M_T"))),
        wrong("warps' barriers, not the block's", "shared race", ("cuda.syncthreads()  # all have fetched", "cuda.syncwarp()  # all have fetched"), ("cuda.syncthreads()  # all have read", "cuda.syncwarp()  # all have read")),
        wrong("the last term, not the sum", "answer", ("R_O[i, j] +=", "R_O[i, j] =")),
        wrong("all terms of a slice", "out of bounds", ("for k in range(K_B):  # compute", "for k in range(K):")),
        wrong("the first term of the slice", "answer", ("S_I[k, tx + j * COLUMNS]", "S_I[0, tx + j * COLUMNS]")),
        wrong("the factors exchanged", "out of bounds", ("R_F[i] * R_I[j]", "R_F[j] * R_I[i]")),
        wrong("registers filled for the first term alone", "answer", ("                for i in range(M_T):\n                    R_F[i] = S_F[ty + i * ROWS, k]\n", "                if k == 0:\n                    for i in range(M_T):\n                        R_F[i] = S_F[ty + i * ROWS, k]\n")),
        wrong("the last row left out", "answer", ("                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n", "                for i in range(M_T - 1):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n")),
        wrong("the next term of the filter", "answer", ("S_F[ty + i * ROWS, k]", "S_F[ty + i * ROWS, (k + 1) % K_B]")),
        wrong("ty and tx exchanged", "out of bounds", ("S_F[ty + i * ROWS, k]", "S_F[tx + i * ROWS, k]"), ("S_I[k, tx + j", "S_I[k, ty + j")),
        wrong("M_T for ROWS", "out of bounds", ("ty + i * ROWS", "ty + i * M_T")),
        wrong("sums cleared in each slice", "answer", ("            for k in range(K_B):  # compute\n", "            clear(R_O)\n            for k in range(K_B):  # compute\n")),
        wrong("one register for all rows", "answer", ("R_F[i] = S_F", "R_F[0] = S_F"), ("R_F[i] * R_I[j]", "R_F[0] * R_I[j]")),
        wrong("the first term of the slice in its index", "out of bounds", ("S_I[k, tx + j * COLUMNS]", "S_I[k0 + k, tx + j * COLUMNS]"), told="leave k0 out of the index"),
        wrong("barriers in the loop over terms", "counts", ("            for k in range(K_B):  # compute\n", "            for k in range(K_B):  # compute\n                cuda.syncthreads()\n")),
        right("the windows' number in a variable", (FILL_I + "                " + ALL, SAME_WINDOW)),
        right("columns outside, rows inside", (ALL, "for j in range(N_T):\n                    for i in range(M_T):\n                        R_O[i, j] += R_I[j] * R_F[i]\n")),
        right("the windows first, terms from the last", (FILLED, "                k = K_B - 1 - k\n                " + FILL_I + "                " + FILL_F + "                ")),
        right("one loop over all sums", ("                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n", "                for p in range(M_T * N_T):\n                    i, j = p // N_T, p % N_T\n                    R_O[i, j] += R_F[i] * R_I[j]\n")),
        right("the rows' number in a variable", ("                for i in range(M_T):\n                    R_F[i] = S_F[ty + i * ROWS, k]\n                for j in range(N_T):\n                    R_I[j] = S_I[k, tx + j * COLUMNS]\n                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n", "                for j in range(N_T):\n                    R_I[j] = S_I[k, tx + j * COLUMNS]\n                for i in range(M_T):\n                    factor = S_F[ty + i * ROWS, k]\n                    for j in range(N_T):\n                        R_O[i, j] += factor * R_I[j]\n")),
        right("a row of the sums as an array", (ALL, "for i in range(M_T):\n                    row = R_O[i]\n                    for j in range(N_T):\n                        row[j] += R_F[i] * R_I[j]\n")),
        wrong("the thread's number for its row", "out of bounds", ('S_F[ty + i * ROWS, k]', 'S_F[t + i * ROWS, k]'), told='Is t the right name'),
        wrong("the products below the loop over the terms", "answer", ('                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n', '            for i in range(M_T):\n                for j in range(N_T):\n                    R_O[i, j] += R_F[i] * R_I[j]\n'), told='only the last term of each slice'),
        wrong("the filter's numbers read before the loop over the terms", "answer", ('            for k in range(K_B):  # compute\n                for i in range(M_T):\n                    R_F[i] = S_F[ty + i * ROWS, k]\n', '            k = 0\n            for i in range(M_T):\n                R_F[i] = S_F[ty + i * ROWS, k]\n            for k in range(K_B):  # compute\n'), told="the filter's number of its first term"),
        wrong("terms counted in the whole sum", "out of bounds", ('            for k in range(K_B):  # compute\n', '            for k in range(k0, min(k0 + K_B, K)):\n'), told='which the loop in line'),
        wrong("bounds of rows and columns exchanged", "out of bounds", ('                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n', '                for i in range(N_T):\n                    for j in range(M_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n'), told='in the right places? Exchanged'),
        wrong("the thread's numbers in shared memory", "shared race", ('R_F = cuda.local.array(M_T, float32)', 'R_F = cuda.shared.array(M_T, float32)'), told='does not depend on the thread'),
        wrong("filled by slices", "refused by Numba", ('                for i in range(M_T):\n                    R_F[i] = S_F[ty + i * ROWS, k]\n                for j in range(N_T):\n                    R_I[j] = S_I[k, tx + j * COLUMNS]\n                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n', '                R_F[:] = S_F[ty::ROWS, k]\n                R_I[:] = S_I[k, tx::COLUMNS]\n                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n'), line='R_F[:] ='),
        wrong("the columns read again for each row", "counts", ('                for i in range(M_T):\n                    R_F[i] = S_F[ty + i * ROWS, k]\n                for j in range(N_T):\n                    R_I[j] = S_I[k, tx + j * COLUMNS]\n                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n', '                for i in range(M_T):\n                    R_F[i] = S_F[ty + i * ROWS, k]\n                    for j in range(N_T):\n                        R_I[j] = S_I[k, tx + j * COLUMNS]\n                        R_O[i, j] += R_F[i] * R_I[j]\n'), told='reads the same number of S_I'),
        wrong("rows by rows", "answer", ('                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n', '                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_F[j]\n'), told='Is R_F the right name'),
        wrong("the last term left out", "answer", ('            for k in range(K_B):  # compute\n', '            for k in range(K_B):  # compute\n                if k0 + k >= K - 1:\n                    break\n'), told='The last term of each sum is missing'),
        right("stops past the last term", ('            for k in range(K_B):  # compute\n', '            for k in range(K_B):  # compute\n                if k0 + k >= K:\n                    break\n')),
        right("by while loops", ('            for k in range(K_B):  # compute\n                for i in range(M_T):\n                    R_F[i] = S_F[ty + i * ROWS, k]\n                for j in range(N_T):\n                    R_I[j] = S_I[k, tx + j * COLUMNS]\n                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n', '            k = 0\n            while k < K_B:\n                i = 0\n                while i < M_T:\n                    R_F[i] = S_F[ty + i * ROWS, k]\n                    i += 1\n                for j in range(N_T):\n                    R_I[j] = S_I[k, tx + j * COLUMNS]\n                    for i in range(M_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n                k += 1\n')),
        right("rows and columns counted in steps", ('            for k in range(K_B):  # compute\n                for i in range(M_T):\n                    R_F[i] = S_F[ty + i * ROWS, k]\n                for j in range(N_T):\n                    R_I[j] = S_I[k, tx + j * COLUMNS]\n                for i in range(M_T):\n                    for j in range(N_T):\n                        R_O[i, j] += R_F[i] * R_I[j]\n', '            for k in range(K_B):\n                for row in range(ty, M_B, ROWS):\n                    R_F[row // ROWS] = S_F[row, k]\n                for col in range(tx, N_B, COLUMNS):\n                    value = S_I[k, col]\n                    for i in range(M_T):\n                        R_O[i, col // COLUMNS] += R_F[i] * value\n')),
    ],
    "columns": [
        given("counts"),
        wrong("only the read corrected", "answer", ("n = n0 + tx + j * COLUMNS", PLACE)),
        wrong("only the write corrected", "answer", ("S_I[k, tx + j * COLUMNS]", READ)),
        wrong("columns N_T apart", "out of bounds", ("S_I[k, tx + j * COLUMNS]", "S_I[k, tx + j * N_T]"), ("n = n0 + tx + j * COLUMNS", "n = n0 + tx + j * N_T")),
        wrong("no barrier before the next slice", "shared race", ("            cuda.syncthreads()  # all have read this slice before any overwrites it\n", "")),
        wrong("the slice's rows one longer", "counts", ("S_I[k, tx + j * COLUMNS]", READ), ("n = n0 + tx + j * COLUMNS", PLACE), ("(M_B, K_B), (K_B, N_B), (M_T, N_T)", "(M_B, K_B), (K_B, N_B + 1), (M_T, N_T)")),
        wrong("threads in columns", "counts", ("ty, tx = t // COLUMNS, t % COLUMNS", "ty, tx = t % ROWS, t // ROWS"), (CONSTANTS, f"{CONSTANTS}, tile.rows"), (NAMES, f"{NAMES}, ROWS")),
        wrong("no barrier before computing", "shared race", ("            cuda.syncthreads()  # all have fetched before any computes\n", "")),
        wrong("a warp's barrier, not the block's", "shared race", ("cuda.syncthreads()  # all have fetched", "cuda.syncwarp()  # all have fetched")),
        wrong("ROWS for COLUMNS", "out of bounds", ("S_I[k, tx + j * COLUMNS]", "S_I[k, tx + j * ROWS]"), (CONSTANTS, f"{CONSTANTS}, tile.rows"), (NAMES, f"{NAMES}, ROWS")),
        wrong("always the first column", "answer", ("S_I[k, tx + j * COLUMNS]", "S_I[k, tx]")),
        wrong("pairs side by side", "counts", ("S_I[k, tx + j * COLUMNS]", "S_I[k, 2 * tx + j // 2 * 2 * COLUMNS + j % 2]"), ("n = n0 + tx + j * COLUMNS", "n = n0 + 2 * tx + j // 2 * 2 * COLUMNS + j % 2")),
        right("from the right to the left", ("S_I[k, tx + j * COLUMNS]", "S_I[k, tx + (N_T - 1 - j) * COLUMNS]"), ("n = n0 + tx + j * COLUMNS", "n = n0 + tx + (N_T - 1 - j) * COLUMNS")),
        right("threads from the right to the left", ("ty, tx = t // COLUMNS, t % COLUMNS", "ty, tx = t // COLUMNS, COLUMNS - 1 - t % COLUMNS")),
        right("the second half first", ("S_I[k, tx + j * COLUMNS]", "S_I[k, tx + (j + N_T // 2) % N_T * COLUMNS]"), ("n = n0 + tx + j * COLUMNS", "n = n0 + tx + (j + N_T // 2) % N_T * COLUMNS")),
    ],
}
