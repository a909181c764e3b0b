"""Answers to the exercises of lesson 09."""

from check_answers import given, right, wrong

STEPS = """                for k in range(0, K_B - 2, 2):  # lines 9-12: read one step ahead
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
TURN = "                k0 = uint32(K_B - k0)  # uint32, since never negative\n"
STORE = """                for f in range(F_FETCHED[0]):
                    e = t + f * THREADS
                    four = (fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3])
                    store4(S_F, (k0 + e // M_4, e % M_4 * FLOAT4), four)
                for f in range(I_FETCHED):
                    S_I[k0 + t // N_B + f * I_ROWS, column] = fetched_I[f]
"""
BARRIER = "                cuda.syncthreads()  # lines 5 and 16: all have filled it, and have read the other\n"
FIRST = "                read(S_F, S_I, k0, ty, tx, R_F0, R_I0)  # lines 6-7 and 17-18\n"
LOAD = """            if slice_ < SLICES:  # lines 3-4 and 14-15, first half: global memory to registers
                for f in range(F_FETCHED[0]):
                    e = t + f * THREADS
                    four = load4(packed, (slice_ * K_B + e // M_4) * M_P + m0 + e % M_4 * FLOAT4)
                    fetched_F[f, 0], fetched_F[f, 1], fetched_F[f, 2], fetched_F[f, 3] = four
                for f in range(I_FETCHED):
                    k = uint32(slice_ * K_B + t // N_B + f * I_ROWS)
                    i_c = k // (H_f * W_f)
                    i_h = o_h * s_h + k % (H_f * W_f) // W_f * d_h - p_h
                    i_w = o_w * s_w + k % W_f * d_w - p_w
                    pixel = float32(0)
                    if k < K and 0 <= i_h < H_i and 0 <= i_w < W_i:
                        pixel = input[i_n, i_c, i_h, i_w]
                    fetched_I[f] = pixel
"""
ASK = LOAD.split("\n", 1)[1]  # without its condition
COMPUTE = """            if slice_ > 0:
                for k in range(0, K_B - 2, 2):  # lines 9-12: read one step ahead
                    read(S_F, S_I, k0 + k + 1, ty, tx, R_F1, R_I1)
                    multiply(R_F0, R_I0, R_O)
                    read(S_F, S_I, k0 + k + 2, ty, tx, R_F0, R_I0)
                    multiply(R_F1, R_I1, R_O)
                read(S_F, S_I, k0 + K_B - 1, ty, tx, R_F1, R_I1)
                multiply(R_F0, R_I0, R_O)
"""
ALWAYS = "            if True:\n" + ASK

ANSWERS = {
    "rounds": [
        wrong("no barrier", "shared race", (BARRIER, "")),
        wrong("a warp's barrier, not the block's", "shared race", (BARRIER, BARRIER.replace("threads()", "warp()"))),
        wrong("the barrier before the stores", "shared race", (STORE + BARRIER, BARRIER + STORE)),
        wrong("always the same buffer", "shared race", (TURN, "                k0 = uint32(0)\n")),
        wrong("roles changed after the stores", "uninitialised", (TURN + STORE, STORE + TURN)),
        wrong("step 0 of the next slice not read", "answer", (FIRST, "")),
        wrong("registers not exchanged", "answer", ("k0 + k + 2, ty, tx, R_F0, R_I0", "k0 + k + 2, ty, tx, R_F1, R_I1")),
        wrong("a turn too many", "answer", ("range(0, K_B - 2, 2)", "range(0, K_B, 2)")),
        wrong("one step a turn", "answer", ("range(0, K_B - 2, 2)", "range(0, K_B - 2)")),
        wrong("operands of two steps mixed", "answer", (STEPS, STEPS.replace("multiply(R_F1, R_I1", "multiply(R_F0, R_I1"))),
        wrong("every step read when it is needed", "counts", (STEPS, LATE_STEPS)),
        wrong("two barriers as before", "counts", (STORE, "                cuda.syncthreads()\n" + STORE)),
        right("counted by hand", (STEPS, COUNTED)),
        right("the buffer by the slice's number", (TURN, "                k0 = uint32(slice_ % 2 * K_B)\n")),
        right("counted from one", (STEPS, STEPS.replace("range(0, K_B - 2, 2)", "range(1, K_B - 1, 2)").replace("k + 1", "k").replace("k + 2", "k + 1"))),
    ],
    "late": [
        given("counts"),
        wrong("loaded after the steps", "counts", (LOAD + COMPUTE, COMPUTE + LOAD)),
        wrong("loaded without a bounds check", "out of bounds", (LOAD, ALWAYS)),
        wrong("the slice before", "answer", (LOAD, LOAD.replace("slice_ * K_B", "(max(slice_, 1) - 1) * K_B"))),
        wrong("loaded after the stores", "uninitialised", (LOAD, ""), (STORE, STORE + ASK)),
        wrong("the barrier moved, too", "shared race", (STORE + BARRIER, BARRIER + STORE)),
        wrong("loaded twice", "counts", (TURN, ASK + TURN)),
        wrong("no barrier", "shared race", (BARRIER, "")),
        wrong("a warp\'s barrier, not the block\'s", "shared race", (BARRIER, BARRIER.replace("threads()", "warp()"))),
        wrong("always the same buffer", "shared race", (TURN, "                k0 = uint32(0)\n")),
        wrong("step 0 of the next slice not read", "answer", (FIRST, "")),
        wrong("a barrier more", "counts", (STORE, "                cuda.syncthreads()\n" + STORE)),
        right("loaded in both cases", (LOAD, "            if slice_ == 0:\n" + ASK + "            if 0 < slice_ < SLICES:\n" + ASK)),
        right("the condition reversed", (LOAD, LOAD.replace("slice_ < SLICES", "SLICES > slice_"))),
        right("the buffer by the slice\'s number", (TURN, "                k0 = uint32(slice_ % 2 * K_B)\n")),
    ],
}
