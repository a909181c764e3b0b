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
        wrong("the filter's indices exchanged", "out of bounds", ('S_F[ty + i * ROWS, k]', 'S_F[k, ty + i * ROWS]'), told='Are k and ty + i * ROWS in the right order'),
        wrong("row and column of the thread exchanged", "out of bounds", ('S_F[ty + i * ROWS, k]', 'S_F[tx + i * ROWS, k]'), ('S_I[k, tx]', 'S_I[k, ty]'), told='in the right places? Exchanged'),
        wrong("the thread's number for its row", "out of bounds", ('S_F[ty + i * ROWS, k]', 'S_F[t + i * ROWS, k]'), told='Is t the right name'),
        wrong("the slice's first term in the indices", "out of bounds", ('S_I[k, tx]', 'S_I[k0 + k, tx]'), ('S_F[ty + i * ROWS, k]', 'S_F[ty + i * ROWS, k0 + k]'), told='leave k0 out of the index'),
        wrong("a sum for each row of the tile", "out of bounds", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n', 'for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_B):\n'), told='Is M_B the right name everywhere in line'),
        wrong("one pass of the loop over the terms", "answer", ('for k in range(K_B):  # compute', 'for k in range(1):'), told='only the first term of each slice'),
        wrong("one of two guards is enough", "out of bounds", ('if m < M and n < N:', 'if m < M or n < N:'), told='lets m = '),
        wrong("a guard one too wide", "out of bounds", ('if m < M and n < N:', 'if m <= M and n < N:'), told='lets m = '),
        wrong("the bias of the sum's number", "answer", ('bias[m]', 'bias[i]'), told='the bias of another channel'),
        wrong("added to the output", "answer", ('output[i_n, m, o_h, o_w] = R_O[i] + bias[m]', 'output[i_n, m, o_h, o_w] += R_O[i] + bias[m]')),
        wrong("written after every slice", "counts", ('        for i in range(M_T):\n            m = m0 + ty + i * ROWS\n            if m < M and n < N:\n                output[i_n, m, o_h, o_w] = R_O[i] + bias[m]', '            for i in range(M_T):\n                m = m0 + ty + i * ROWS\n                if m < M and n < N:\n                    output[i_n, m, o_h, o_w] = R_O[i] + bias[m]'), told='only the last store counts'),
        wrong("the second barrier in the loop over the terms", "counts", ('            cuda.syncthreads()  # all have read this slice before any overwrites it\n', '                cuda.syncthreads()\n'), told='Which of these barriers'),
        wrong("threads past the last pixel return first", "barrier divergence", ('        window = min', '        if n >= N:\n            return\n        window = min'), told='Delete the return'),
        wrong("one output for each thread, as in m03", "answer", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'total = float32(0)\n            for k in range(K_B):\n                total += S_F[ty, k] * S_I[k, tx]\n            R_O[0] += total'), told='more output channels than the tile has rows of threads'),
        wrong("the products in a generator", "refused by Numba", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'for i in range(M_T):\n                R_O[i] += sum(S_F[ty + i * ROWS, k] * S_I[k, tx] for k in range(K_B))'), told='makes a generator'),
        right("rows counted in steps", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'for k in range(K_B):\n                value = S_I[k, tx]\n                for row in range(ty, M_B, ROWS):\n                    R_O[row // ROWS] += S_F[row, k] * value')),
        right("rows numbered by enumerate", ('for i in range(M_T):\n            m = m0 + ty + i * ROWS\n            if m < M and n < N:\n                output[i_n, m, o_h, o_w] = R_O[i] + bias[m]', 'if n < N:\n            for i in range(M_T):\n                m = m0 + ty + i * ROWS\n                if m < M:\n                    output[i_n, m, o_h, o_w] = bias[m] + R_O[i]')),
        right("returns past the last row", ('for i in range(M_T):\n            m = m0 + ty + i * ROWS\n            if m < M and n < N:\n                output[i_n, m, o_h, o_w] = R_O[i] + bias[m]', 'if n >= N:\n            return\n        for i in range(M_T):\n            m = m0 + ty + i * ROWS\n            if m >= M:\n                return\n            output[i_n, m, o_h, o_w] = R_O[i] + bias[m]')),
        right("by a fused multiply-add", ('R_O[i] += S_F[ty + i * ROWS, k] * value', 'R_O[i] = cuda.fma(S_F[ty + i * ROWS, k], value, R_O[i])')),
        right("the thread's column of the slice as a view", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'column = S_I[:, tx]\n            for k in range(K_B):\n                value = column[k]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value')),
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
        wrong("read again for each output", "counts", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n', 'for k in range(K_B):\n                for i in range(M_T):\n                    value = S_I[k, tx]\n'), told='reads the same number of S_I'),
        wrong("all products for each term", "answer", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'for k in range(K_B):\n                for i in range(M_T):\n                    R_O[i] = add_products(S_F, S_I, ty + i * ROWS, tx, R_O[i])')),
        wrong("the copy of the column in shared memory", "shared race", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'R_I = cuda.shared.array(K_B, float32)\n            for k in range(K_B):\n                R_I[k] = S_I[k, tx]\n            for i in range(M_T):\n                for k in range(K_B):\n                    R_O[i] += S_F[ty + i * ROWS, k] * R_I[k]'), told='does not depend on the thread'),
        wrong("a copy as long as the sums", "out of bounds", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'R_I = cuda.local.array(M_T, float32)\n            for k in range(K_B):\n                R_I[k] = S_I[k, tx]\n            for i in range(M_T):\n                for k in range(K_B):\n                    R_O[i] += S_F[ty + i * ROWS, k] * R_I[k]'), told='must stay below'),
        wrong("a copy that is never filled", "uninitialised", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'R_I = cuda.local.array(K_B, float32)\n            for i in range(M_T):\n                for k in range(K_B):\n                    R_O[i] += S_F[ty + i * ROWS, k] * R_I[k]'), line='R_I[k]'),
        wrong("nothing multiplied", "answer", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'pass'), told='the bias alone'),
        wrong("a view in the place of a copy", "counts", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'R_I = S_I[:, tx]\n            for i in range(M_T):\n                for k in range(K_B):\n                    R_O[i] += S_F[ty + i * ROWS, k] * R_I[k]'), told='reads the same number of S_I'),
        right("by while loops", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'k = 0\n            while k < K_B:\n                value = S_I[k, tx]\n                i = 0\n                while i < M_T:\n                    R_O[i] += S_F[ty + i * ROWS, k] * value\n                    i += 1\n                k += 1')),
        right("each slice summed by itself", ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'R_P = cuda.local.array(M_T, float32)\n            for i in range(M_T):\n                R_P[i] = float32(0)\n            for k in range(K_B):\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_P[i] += S_F[ty + i * ROWS, k] * value\n            for i in range(M_T):\n                R_O[i] += R_P[i]')),
        right("the row's products in a function", ('    @cuda.jit(**gpu_only', '    @cuda.jit(device=True)\n    def add(R_O, S_F, value, ty, k):\n        for i in range(M_T):\n            R_O[i] += S_F[ty + i * ROWS, k] * value\n\n    @cuda.jit(**gpu_only'), ('for k in range(K_B):  # compute\n                value = S_I[k, tx]\n                for i in range(M_T):\n                    R_O[i] += S_F[ty + i * ROWS, k] * value', 'for k in range(K_B):\n                add(R_O, S_F, S_I[k, tx], ty, k)')),
    ],
}
