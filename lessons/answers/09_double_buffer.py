"""Answers to the exercises of lesson 09."""

from convlab.lessons.answers import given, right, wrong

STEPS = """                for k in range(0, K_B - 2, 2):  # lines 9-12: read a step ahead
                    read(S_F, S_I, k0 + k + 1, ty, tx, R_F1, R_I1)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, k0 + k + 2, ty, tx, R_F0, R_I0)
                    multiply(R_F1, R_I1, R_O)
"""
LATE_STEPS = """                for k in range(0, K_B - 2, 2):
                    read(S_F, S_I, k0 + k, ty, tx, R_F0, R_I0)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, k0 + k + 1, ty, tx, R_F1, R_I1)
                    multiply(R_F1, R_I1, R_O)
                read(S_F, S_I, k0 + K_B - 2, ty, tx, R_F0, R_I0)
"""
COUNTED = """                k = 0
                while k < K_B - 2:
                    read(S_F, S_I, k0 + 1 + k, ty, tx, R_F1, R_I1)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, k0 + 2 + k, ty, tx, R_F0, R_I0)
                    multiply(R_F1, R_I1, R_O)
                    k += 2
"""
TURN = "                k0 = uint32(K_B - k0)  # the other buffer's turn; uint32, since never negative\n"
PUT = "                put(fetched_F, fetched_I, t, k0, S_F, S_I)\n"
BARRIER = "                cuda.syncthreads()  # lines 5 and 16: nobody reads it before all have filled it\n"
FIRST = "                read(S_F, S_I, k0, ty, tx, R_F0, R_I0)  # lines 6-7 and 17-18\n"
FETCH = "            if slice_ < SLICES:\n                fetch(input, packed, i_n, o_h, o_w, m0, t, slice_, fetched_F, fetched_I)\n"
CALL = "fetch(input, packed, i_n, o_h, o_w, m0, t, slice_, fetched_F, fetched_I)"

ANSWERS = {
    "rounds": [
        wrong("no barrier", "shared race", (BARRIER, "")),
        wrong("the barrier before put", "shared race", (PUT + BARRIER, BARRIER + PUT)),
        wrong("always the same buffer", "shared race", (TURN, "                k0 = uint32(0)\n")),
        wrong("roles changed after put", "uninitialised", (TURN + PUT, PUT + TURN)),
        wrong("step 0 of the next slice not read", "answer", (FIRST, "")),
        wrong("registers not exchanged", "answer", ("k0 + k + 2, ty, tx, R_F0, R_I0", "k0 + k + 2, ty, tx, R_F1, R_I1")),
        wrong("a turn too many", "answer", ("range(0, K_B - 2, 2)", "range(0, K_B, 2)")),
        wrong("one step a turn", "answer", ("range(0, K_B - 2, 2)", "range(0, K_B - 2)")),
        wrong("operands of two steps mixed", "answer", (STEPS, STEPS.replace("multiply(R_F1, R_I1", "multiply(R_F0, R_I1"))),
        wrong("every step read when it is needed", "counts", (STEPS, LATE_STEPS)),
        wrong("two barriers as before", "counts", (PUT, "                cuda.syncthreads()\n" + PUT)),
        right("counted by hand", (STEPS, COUNTED)),
        right("the buffer by the slice's number", (TURN, "                k0 = uint32(slice_ % 2 * K_B)\n")),
        right("counted from one", (STEPS, STEPS.replace("range(0, K_B - 2, 2)", "range(1, K_B - 1, 2)").replace("k + 1", "k").replace("k + 2", "k + 1"))),
    ],
    "late": [
        given("counts"),
        wrong("asked after the steps", "counts", (FETCH, ""), ("            if slice_ < SLICES:\n                k0 =", "            if slice_ < SLICES:\n                " + CALL + "\n                k0 =")),
        wrong("asked for without a question", "out of bounds", (FETCH, "            " + CALL + "\n")),
        wrong("the slice before", "answer", (FETCH, FETCH.replace("slice_, fetched_F", "max(slice_, 1) - 1, fetched_F"))),
        wrong("asked after put", "uninitialised", (FETCH, ""), (PUT, PUT + "                " + CALL + "\n")),
        wrong("the barrier moved, too", "shared race", (PUT + BARRIER, BARRIER + PUT)),
        wrong("asked for twice", "counts", (PUT, "                " + CALL + "\n" + PUT)),
        right("asked in both cases", (FETCH + "            if slice_ > 0:\n", "            if slice_ == 0:\n                " + CALL + "\n            if slice_ > 0:\n                if slice_ < SLICES:\n                    " + CALL + "\n")),
        right("the question turned round", (FETCH, FETCH.replace("slice_ < SLICES", "SLICES > slice_"))),
    ],
}
