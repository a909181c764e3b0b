"""Answers to the exercises of lesson 09."""

from check_answers import given, right, wrong

STEPS = """                for k in range(0, K_B - 2, 2):  # lines 9-12: read one step ahead
                    read(S_F, S_I, row0 + k + 1, ty, tx, R_F1, R_I1)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, row0 + k + 2, ty, tx, R_F0, R_I0)
                    multiply(R_F1, R_I1, R_O)
"""
LATE_STEPS = """                for k in range(0, K_B - 2, 2):
                    read(S_F, S_I, row0 + k, ty, tx, R_F0, R_I0)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, row0 + k + 1, ty, tx, R_F1, R_I1)
                    multiply(R_F1, R_I1, R_O)
                read(S_F, S_I, row0 + K_B - 2, ty, tx, R_F0, R_I0)
"""
COUNTED = """                k = 0
                while k < K_B - 2:
                    read(S_F, S_I, row0 + 1 + k, ty, tx, R_F1, R_I1)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, row0 + 2 + k, ty, tx, R_F0, R_I0)
                    multiply(R_F1, R_I1, R_O)
                    k += 2
"""
TURN = "                row0 = uint32(K_B - row0)  # uint32, since never negative\n"
STORE = "                store(fetched_F, fetched_I, row0, t, column, S_F, S_I)\n"
BARRIER = "                cuda.syncthreads()  # lines 5 and 16: all have filled it, and have read the other\n"
FIRST = "                read(S_F, S_I, row0, ty, tx, R_F0, R_I0)  # lines 6-7 and 17-18\n"
LOAD = """            if slice_ < SLICES:  # lines 3-4 and 14-15, first half: global memory to registers
                load(input, packed, i_n, o_h, o_w, m0, slice_, t, fetched_F, fetched_I)
"""
ASK = LOAD.split("\n", 1)[1]  # without its condition
# The hunt, where these lines are parts.
WORK = """            if slice_ > 0:
                all_but_two_steps(S_F, S_I, row0, ty, tx, R_F0, R_I0, R_F1, R_I1, R_O)
                read(S_F, S_I, row0 + K_B - 1, ty, tx, R_F1, R_I1)
                multiply(R_F0, R_I0, R_O)
"""
OTHER = "                row0 = other_buffer(row0)\n"
WAIT = "                wait_and_read(S_F, S_I, row0, ty, tx, R_F0, R_I0)\n"
ALWAYS = "            if True:\n" + ASK

ANSWERS = {
    "rounds": [
        wrong("no barrier", "shared race", (BARRIER, ""), told="Put cuda.syncthreads()"),
        wrong("a warp's barrier, not the block's", "shared race", (BARRIER, BARRIER.replace("threads()", "warp()"))),
        wrong("the barrier before the stores", "shared race", (STORE + BARRIER, BARRIER + STORE)),
        wrong("always the same buffer", "shared race", (TURN, "                row0 = uint32(0)\n"), told="stored to the same buffer"),
        wrong("roles changed after the stores", "uninitialised", (TURN + STORE, STORE + TURN)),
        wrong("step 0 of the next slice not read", "answer", (FIRST, "")),
        wrong("registers not exchanged", "answer", ("row0 + k + 2, ty, tx, R_F0, R_I0", "row0 + k + 2, ty, tx, R_F1, R_I1")),
        wrong("a turn too many", "answer", ("range(0, K_B - 2, 2)", "range(0, K_B, 2)")),
        wrong("one step a turn", "answer", ("range(0, K_B - 2, 2)", "range(0, K_B - 2)")),
        wrong("operands of two steps mixed", "answer", (STEPS, STEPS.replace("multiply(R_F1, R_I1", "multiply(R_F0, R_I1"))),
        wrong("every step read when it is needed", "counts", (STEPS, LATE_STEPS)),
        wrong("two barriers as before", "counts", (STORE, "                cuda.syncthreads()\n" + STORE)),
        right("counted by hand", (STEPS, COUNTED)),
        right("the buffer by the slice's number", (TURN, "                row0 = uint32(slice_ % 2 * K_B)\n")),
        right("counted from one", (STEPS, STEPS.replace("range(0, K_B - 2, 2)", "range(1, K_B - 1, 2)").replace("k + 1", "k").replace("k + 2", "k + 1"))),
    ],
    "late": [
        given("counts"),
        wrong("loaded after the steps", "counts", (LOAD + WORK, WORK + LOAD)),
        wrong("loaded without a bounds check", "out of bounds", (LOAD, ALWAYS)),
        wrong("the slice before", "answer", (ASK, ASK.replace("slice_", "max(slice_, 1) - 1"))),
        wrong("loaded after the stores", "uninitialised", (LOAD, ""), (STORE, STORE + ASK)),
        wrong("waited before the stores", "shared race", (STORE + WAIT, WAIT + STORE)),
        wrong("loaded twice", "counts", (OTHER, ASK + OTHER)),
        wrong("not waited for", "shared race", (WAIT, "")),
        wrong("waited by warps", "shared race", (WAIT, "                cuda.syncwarp()\n                read(S_F, S_I, row0, ty, tx, R_F0, R_I0)\n")),
        wrong("always the same buffer", "shared race", (OTHER, "                row0 = uint32(0)\n"), told="stored to the same buffer"),
        wrong("step 0 of the next slice not read", "answer", (WAIT, "                cuda.syncthreads()\n")),
        wrong("a barrier more", "counts", (STORE, "                cuda.syncthreads()\n" + STORE)),
        right("loaded in both cases", (LOAD, "            if slice_ == 0:\n" + ASK + "            if 0 < slice_ < SLICES:\n" + ASK)),
        right("the condition reversed", (LOAD, LOAD.replace("slice_ < SLICES", "SLICES > slice_"))),
        right("the buffer by the slice\'s number", (OTHER, "                row0 = uint32(slice_ % 2 * K_B)\n")),
    ],
}
