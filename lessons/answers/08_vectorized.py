"""Answers to the exercises of lesson 08."""

from check_answers import given, right, wrong

READ_F = "load4(S_F, (k, ty * FLOAT4 + i * ROWS))"
READ_I = "load4(S_I, (k, tx * FLOAT4 + j * COLUMNS))"
FLOAT4_F = f"four = {READ_F}\n                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four"
SHARED_OUT = "for e in range(t, K_B * M_4, THREADS):  # load"
PLACE = "k, row = e // M_4, e % M_4 * FLOAT4"
STORE = "store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))"
LOAD = f"{SHARED_OUT}\n                {PLACE}\n                {STORE}\n"
IN_TURN = """for e in range(FLOAT4 * t, K_B * M_B, FLOAT4 * THREADS):
                a, b, c, d = load4(packed, (k0 + e // M_B) * M_P + m0 + e % M_B)
                store4(S_F, (e // M_B, e % M_B), (a, b, c, d))
"""
SCALAR = """for e in range(t, K_B * M_B, THREADS):
                S_F[e // M_B, e % M_B] = packed[(k0 + e // M_B) * M_P + m0 + e % M_B]
"""
ONE_READ = """for c in range(FLOAT4):
                        R_F[i + c] = S_F[k, ty * FLOAT4 + i * ROWS + c]"""
OTHER_READ = """four = load4(S_F, (k, (ty + i // FLOAT4 * ROWS) * FLOAT4))
                    for c in range(FLOAT4):
                        R_F[i + c] = four[c]"""

ANSWERS = {
    "float4": [
        wrong("from m05: rows ROWS apart", "misaligned", (READ_F, "load4(S_F, (k, ty + i * ROWS))"), line="load4(S_F, (k, ty + i * ROWS))"),
        wrong("float4s of a thread side by side", "answer", (READ_F, "load4(S_F, (k, ty * M_T + i))")),
        wrong("columns for rows", "out of bounds", (READ_F, "load4(S_F, (k, tx * FLOAT4 + i * COLUMNS))"), (READ_I, "load4(S_I, (k, ty * FLOAT4 + j * ROWS))")),
        wrong("row and column of the slice exchanged", "misaligned", (READ_F, "load4(S_F, (ty * FLOAT4 + i * ROWS, k))")),
        wrong("the first float4 alone", "uninitialised", ("for i in range(0, M_T, FLOAT4):", "for i in range(0, FLOAT4, FLOAT4):")),
        wrong("a float4 begins at each number", "out of bounds", ("for i in range(0, M_T, FLOAT4):", "for i in range(M_T):")),
        wrong("a number for each thread, not a float4", "misaligned", (PLACE, "k, row = e // M_4, e % M_4")),
        wrong("as many float4s as numbers", "out of bounds", (SHARED_OUT, "for e in range(t, K_B * M_B, THREADS):")),
        wrong("warps' barriers, not the block's", "shared race", ("cuda.syncthreads()  # all have fetched", "cuda.syncwarp()  # all have fetched"), ("cuda.syncthreads()  # all have read", "cuda.syncwarp()  # all have read")),
        wrong("always the first slice", "answer", ("load4(packed, (k0 + k)", "load4(packed, k")),
        wrong("always the first block's rows", "answer", (" * M_P + m0 + row", " * M_P + row")),
        wrong("rows as long as the slice's", "answer", ("(k0 + k) * M_P + m0", "(k0 + k) * M_B + m0")),
        wrong("the filter as m05 has it", "misaligned", ("(k0 + k) * M_P + m0 + row", "(m0 + row) * K + k0 + k")),
        wrong("scalar loads of the slice", "counts", (LOAD, SCALAR), told="use load4"),
        wrong("scalar loads of the registers", "counts", (FLOAT4_F, ONE_READ), told="use load4"),
        wrong("every thread fetches the whole slice", "counts", (SHARED_OUT, "for e in range(K_B * M_4):")),
        wrong("one float4 a thread", "uninitialised", (SHARED_OUT, "for e in range(t, min(THREADS, K_B * M_4) // 2, THREADS):")),
        right("counted in numbers", (LOAD, IN_TURN)),
        right("from the last float4 to the first", (PLACE, "k, row = K_B - 1 - e // M_4, (M_4 - 1 - e % M_4) * FLOAT4")),
        right("float4 by its number", (FLOAT4_F, OTHER_READ)),
        wrong("rows without the padding", "misaligned", ('load4(packed, (k0 + k) * M_P + m0 + row)', 'load4(packed, (k0 + k) * M + m0 + row)')),
        wrong("the slice's first term and the block's first channel exchanged", "answer", ('load4(packed, (k0 + k) * M_P + m0 + row)', 'load4(packed, (m0 + k) * M_P + k0 + row)'), told='Are k0 and m0 in the right places'),
        wrong("an element in the place of array and index", "broken", ('                for i in range(0, M_T, FLOAT4):\n                    four = load4(S_F, (k, ty * FLOAT4 + i * ROWS))\n                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four\n', '                for i in range(0, M_T, FLOAT4):\n                    four = load4(S_F[k, ty * FLOAT4 + i * ROWS])\n                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four\n'), told='load4() missing 1'),
        wrong("the index not a pair", "broken", ('                for i in range(0, M_T, FLOAT4):\n                    four = load4(S_F, (k, ty * FLOAT4 + i * ROWS))\n                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four\n', '                for i in range(0, M_T, FLOAT4):\n                    four = load4(S_F, k, ty * FLOAT4 + i * ROWS)\n                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four\n'), told='in parentheses'),
        wrong("the float4 before its index", "broken", ('            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n', '            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, load4(packed, (k0 + k) * M_P + m0 + row), (k, row))\n'), told='The orders are'),
        wrong("one number for four", "broken", ('            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n', '            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, (k, row), packed[(k0 + k) * M_P + m0 + row])\n'), told='such as load4 returns'),
        wrong("a float4's numbers from the last to the first", "answer", ('                for i in range(0, M_T, FLOAT4):\n                    four = load4(S_F, (k, ty * FLOAT4 + i * ROWS))\n                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four\n', '                for i in range(0, M_T, FLOAT4):\n                    four = load4(S_F, (k, ty * FLOAT4 + i * ROWS))\n                    R_F[i + 3], R_F[i + 2], R_F[i + 1], R_F[i] = four\n'), told='stand in the place of output channel'),
        wrong("rows for columns in the windows' float4s", "out of bounds", ('                for j in range(0, N_T, FLOAT4):\n                    four = load4(S_I, (k, tx * FLOAT4 + j * COLUMNS))\n                    R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four\n', '                for j in range(0, N_T, FLOAT4):\n                    four = load4(S_I, (k, tx * FLOAT4 + j * ROWS))\n                    R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four\n'), told='must stay below'),
        wrong("each thread one float4", "uninitialised", ('            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n', '            k, row = t // M_4, t % M_4 * FLOAT4\n            store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n'), told='in a loop'),
        wrong("no zero past the last term", "uninitialised", ('            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n', '            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                if k0 + k < K:\n                    store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n'), told='where its condition is false'),
        wrong("steps four times too long", "uninitialised", ('            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n', '            for e in range(t, K_B * M_4, THREADS * FLOAT4):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n'), told='in the right steps'),
        wrong("the float4 stored by four stores", "counts", ('            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n', '            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                four = load4(packed, (k0 + k) * M_P + m0 + row)\n                S_F[k, row], S_F[k, row + 1], S_F[k, row + 2], S_F[k, row + 3] = four\n'), told='use store4'),
        wrong("the float4 loaded by four loads", "counts", ('            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n', '            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                at = (k0 + k) * M_P + m0 + row\n                store4(S_F, (k, row), (packed[at], packed[at + 1], packed[at + 2], packed[at + 3]))\n'), told='use load4'),
        right("four numbers stored by a slice", ('                for i in range(0, M_T, FLOAT4):\n                    four = load4(S_F, (k, ty * FLOAT4 + i * ROWS))\n                    R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four\n', '                for i in range(0, M_T, FLOAT4):\n                    four = load4(S_F, (k, ty * FLOAT4 + i * ROWS))\n                    R_F[i : i + 4] = four\n')),
        right("a guard that is always true", ('            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n', '            for e in range(t, K_B * M_4, THREADS):  # load\n                k, row = e // M_4, e % M_4 * FLOAT4\n                if m0 + row < M_P:\n                    store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))\n')),
    ],
    "order": [
        given("counts"),
        wrong("the float4 not counted in numbers", "misaligned", (PLACE, "k, row = e // M_4, e % M_4")),
        wrong("divided by the terms", "out of bounds", (PLACE, "k, row = e // K_B, e % K_B * FLOAT4")),
        wrong("divided by the rows", "uninitialised", (PLACE, "k, row = e // M_B, e % M_B * FLOAT4 % M_B")),
        wrong("terms still first", "counts", (PLACE, "k, row = e % K_B, (M_4 - 1 - e // K_B) * FLOAT4")),
        wrong("the thread's number for the float4's", "uninitialised", (PLACE, "k, row = t // M_4 % K_B, t % M_4 * FLOAT4")),
        wrong("row and term exchanged", "out of bounds", (PLACE, "row, k = e // M_4, e % M_4 * FLOAT4")),
        wrong("from the right, not counted in numbers", "misaligned", (PLACE, "k, row = e // M_4, M_4 - 1 - e % M_4")),
        wrong("one float4 too few", "uninitialised", (SHARED_OUT, "for e in range(t, K_B * M_4 - 1, THREADS):")),
        wrong("half of the float4s", "uninitialised", (SHARED_OUT, "for e in range(t, K_B * M_4 // 2, THREADS):")),
        wrong("no barrier before computing", "shared race", ("            cuda.syncthreads()  # all have fetched before any computes\n", "")),
        wrong("a warp's barrier, not the block's", "shared race", ("cuda.syncthreads()  # all have fetched", "cuda.syncwarp()  # all have fetched")),
        wrong("no barrier before the next slice", "shared race", ("            cuda.syncthreads()  # all have read this slice before any overwrites it\n", "")),
        wrong("as many float4s as numbers", "out of bounds", (SHARED_OUT, "for e in range(t, K_B * M_B, THREADS):")),
        wrong("every thread fetches the whole slice", "counts", (SHARED_OUT, "for e in range(K_B * M_4):")),
        right("by subtraction", (PLACE, "k = e // M_4\n                row = (e - k * M_4) * FLOAT4")),
        right("counted in numbers", (SHARED_OUT, "for e in range(FLOAT4 * t, K_B * M_B, FLOAT4 * THREADS):"), (PLACE, "k, row = e // M_B, e % M_B")),
        right("from the last float4 to the first", (PLACE, "k, row = K_B - 1 - e // M_4, (M_4 - 1 - e % M_4) * FLOAT4")),
    ],
}
