"""Answers to the exercises of lesson 08."""

from convlab.lessons.answers import given, right, wrong

READ_F = "load4(S_F, (k, ty * RUN + i * ROWS))"
READ_I = "load4(S_I, (k, tx * RUN + j * COLUMNS))"
RUNS_F = "R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = " + READ_F
SHARED_OUT = "for e in range(t, K_B * M_RUNS, THREADS):  # load"
PLACE = "k, row = e // M_RUNS, e % M_RUNS * RUN"
STORE = "store4(S_F, (k, row), load4(packed, (k0 + k) * M_P + m0 + row))"
LOAD = f"{SHARED_OUT}\n                {PLACE}\n                {STORE}\n"
IN_TURN = """for e in range(RUN * t, K_B * M_B, RUN * THREADS):
                a, b, c, d = load4(packed, (k0 + e // M_B) * M_P + m0 + e % M_B)
                store4(S_F, (e // M_B, e % M_B), (a, b, c, d))
"""
ONE_BY_ONE = """for e in range(t, K_B * M_B, THREADS):
                S_F[e // M_B, e % M_B] = packed[(k0 + e // M_B) * M_P + m0 + e % M_B]
"""
ONE_READ = """for c in range(RUN):
                R_F[i + c] = S_F[k, ty * RUN + i * ROWS + c]"""
OTHER_READ = """four = load4(S_F, (k, (ty + i // RUN * ROWS) * RUN))
            for c in range(RUN):
                R_F[i + c] = four[c]"""

ANSWERS = {
    "runs": [
        wrong("from s07: rows ROWS apart", "misaligned", (READ_F, "load4(S_F, (k, ty + i * ROWS))"), line="load4(S_F, (k, ty + i * ROWS))"),
        wrong("runs of a thread side by side", "answer", (READ_F, "load4(S_F, (k, ty * M_T + i))")),
        wrong("columns for rows", "out of bounds", (READ_F, "load4(S_F, (k, tx * RUN + i * COLUMNS))"), (READ_I, "load4(S_I, (k, ty * RUN + j * ROWS))")),
        wrong("row and column of the slice exchanged", "misaligned", (READ_F, "load4(S_F, (ty * RUN + i * ROWS, k))")),
        wrong("the first run alone", "uninitialised", ("for i in range(0, M_T, RUN):", "for i in range(0, RUN, RUN):")),
        wrong("a run begins at each number", "out of bounds", ("for i in range(0, M_T, RUN):", "for i in range(M_T):")),
        wrong("a number for each thread, not a run", "misaligned", (PLACE, "k, row = e // M_RUNS, e % M_RUNS")),
        wrong("as many runs as numbers", "out of bounds", (SHARED_OUT, "for e in range(t, K_B * M_B, THREADS):")),
        wrong("always the first slice", "answer", ("load4(packed, (k0 + k)", "load4(packed, k")),
        wrong("always the first block's rows", "answer", (" * M_P + m0 + row", " * M_P + row")),
        wrong("rows as long as the slice's", "answer", ("(k0 + k) * M_P + m0", "(k0 + k) * M_B + m0")),
        wrong("the filter as s07 has it", "misaligned", ("(k0 + k) * M_P + m0 + row", "(m0 + row) * K + k0 + k")),
        wrong("the slice fetched one by one", "counts", (LOAD, ONE_BY_ONE)),
        wrong("the registers filled one by one", "counts", (RUNS_F, ONE_READ)),
        wrong("every thread fetches the whole slice", "counts", (SHARED_OUT, "for e in range(K_B * M_RUNS):")),
        wrong("one run a thread", "uninitialised", (SHARED_OUT, "for e in range(t, min(THREADS, K_B * M_RUNS) // 2, THREADS):")),
        right("counted in numbers", (LOAD, IN_TURN)),
        right("from the last run to the first", (PLACE, "k, row = K_B - 1 - e // M_RUNS, (M_RUNS - 1 - e % M_RUNS) * RUN")),
        right("run by its number", (RUNS_F, OTHER_READ)),
    ],
    "order": [
        given("counts"),
        wrong("the run not counted in numbers", "misaligned", (PLACE, "k, row = e // M_RUNS, e % M_RUNS")),
        wrong("divided by the terms", "out of bounds", (PLACE, "k, row = e // K_B, e % K_B * RUN")),
        wrong("divided by the rows", "uninitialised", (PLACE, "k, row = e // M_B, e % M_B * RUN % M_B")),
        wrong("terms still first", "counts", (PLACE, "k, row = e % K_B, (M_RUNS - 1 - e // K_B) * RUN")),
        wrong("one number at a time", "counts", (LOAD, ONE_BY_ONE)),
        right("by subtraction", (PLACE, "k = e // M_RUNS\n                row = (e - k * M_RUNS) * RUN")),
        right("counted in numbers", (LOAD, IN_TURN)),
    ],
}
