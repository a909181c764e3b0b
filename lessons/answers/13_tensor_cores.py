"""Answers to the exercises of lesson 13."""

from check_answers import given, right, wrong

A = """a = (
        A[group_id, thread_in_group], A[group_id + 8, thread_in_group],
        A[group_id, thread_in_group + 4], A[group_id + 8, thread_in_group + 4],
    )"""
B = "b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])"
D = "d = mma_tf32(a, b, (zero, zero, zero, zero))"
SUMS = "    C[group_id, 2 * thread_in_group] = d[0]\n    C[group_id, 2 * thread_in_group + 1] = d[1]\n    C[group_id + 8, 2 * thread_in_group] = d[2]\n    C[group_id + 8, 2 * thread_in_group + 1] = d[3]"
LOOP = "    for i in range(4):\n        C[group_id + i // 2 * 8, 2 * thread_in_group + i % 2] = d[i]"
BY_LANE = (
    "a = (A[lane // 4, lane % 4], A[lane // 4 + 8, lane % 4], A[lane // 4, lane % 4 + 4], A[lane // 4 + 8, lane % 4 + 4])"
)

NUMBERS = "    a = numbers_of_a(A, lane)\n"
X = "L_I[half, j], T_I[half, j] = split_tf32(x)"
SPLITS = "".join(
    f"                L_I[half, j{at}], T_I[half, j{at}] = split_tf32({one})\n"
    for at, one in (("", "x"), (" + 1", "y"), (" + 2", "z"), (" + 3", "w"))
)
TAKEN_APART = "".join(
    f"                large, small = split_tf32({one})\n                L_I[half, j + {at}] = large\n                T_I[half, j + {at}] = small\n"
    for at, one in enumerate("xyzw")
)
START = "part = (zero, zero, zero, zero)"
GOES_ON = "part = (R_O[i, j // FLOAT4 * (2 * FLOAT4) + j % FLOAT4], R_O[i, j // FLOAT4 * (2 * FLOAT4) + j % FLOAT4 + FLOAT4], R_O[i + 1, j // FLOAT4 * (2 * FLOAT4) + j % FLOAT4], R_O[i + 1, j // FLOAT4 * (2 * FLOAT4) + j % FLOAT4 + FLOAT4])"
SMALL_LARGE = "part = mma_tf32(small_f, large_i, part)"
LARGE_SMALL = "part = mma_tf32(large_f, small_i, part)"
LARGE_LARGE = "part = mma_tf32(large_f, large_i, part)"
NEXT = "\n                    "
PARTS = (
    ("R_O[i, left] += part[0]", "R_O[i, left] = part[0]"),
    ("R_O[i, left + FLOAT4] += part[1]", "R_O[i, left + FLOAT4] = part[1]"),
    ("R_O[i + 1, left] += part[2]", "R_O[i + 1, left] = part[2]"),
    ("R_O[i + 1, left + FLOAT4] += part[3]", "R_O[i + 1, left + FLOAT4] = part[3]"),
)
ADDED = "\n                ".join(old for old, _ in PARTS)
ADDED_BY_LOOPS = "for h in range(2):\n                    for s in range(2):\n                        R_O[i + h, left + s * FLOAT4] += part[2 * h + s]"


ANSWERS = {
    "product": [
        wrong("rows and columns of A exchanged", "out of bounds", (A, "a = (A[thread_in_group, group_id], A[thread_in_group, group_id + 8], A[thread_in_group + 4, group_id], A[thread_in_group + 4, group_id + 8])")),
        wrong("rows and columns of B exchanged", "answer", (B, "b = (B[group_id, thread_in_group], B[group_id, thread_in_group + 4])")),
        wrong("thread_in_group + 4 forgotten in A", "answer", (A, "a = (A[group_id, thread_in_group], A[group_id + 8, thread_in_group], A[group_id, thread_in_group], A[group_id + 8, thread_in_group])")),
        wrong("thread_in_group + 4 forgotten in B", "answer", (B, "b = (B[thread_in_group, group_id], B[thread_in_group, group_id])")),
        wrong("A's right column before its lower row", "answer", (A, "a = (A[group_id, thread_in_group], A[group_id, thread_in_group + 4], A[group_id + 8, thread_in_group], A[group_id + 8, thread_in_group + 4])")),
        wrong("A's numbers are neighbours in the row", "answer", (A, "a = (A[group_id, 2 * thread_in_group], A[group_id + 8, 2 * thread_in_group], A[group_id, 2 * thread_in_group + 1], A[group_id + 8, 2 * thread_in_group + 1])")),
        wrong("sums written to column group_id", "answer", ("C[group_id, 2 * thread_in_group] = d[0]", "C[2 * thread_in_group, group_id] = d[0]"), ("C[group_id, 2 * thread_in_group + 1] = d[1]", "C[2 * thread_in_group + 1, group_id] = d[1]"), ("C[group_id + 8, 2 * thread_in_group] = d[2]", "C[2 * thread_in_group + 8, group_id] = d[2]"), ("C[group_id + 8, 2 * thread_in_group + 1] = d[3]", "C[2 * thread_in_group + 9, group_id] = d[3]")),
        wrong("sums written to thread_in_group and thread_in_group + 4", "answer", ("C[group_id, 2 * thread_in_group] =", "C[group_id, thread_in_group] ="), ("C[group_id, 2 * thread_in_group + 1]", "C[group_id, thread_in_group + 4]"), ("C[group_id + 8, 2 * thread_in_group] =", "C[group_id + 8, thread_in_group] ="), ("C[group_id + 8, 2 * thread_in_group + 1]", "C[group_id + 8, thread_in_group + 4]")),
        wrong("thread_in_group for 2 * thread_in_group", "global race", (SUMS, SUMS.replace("2 * thread_in_group", "thread_in_group"))),
        wrong("the lower rows never written", "answer", ("    C[group_id + 8, 2 * thread_in_group] = d[2]\n    C[group_id + 8, 2 * thread_in_group + 1] = d[3]", "    pass")),
        wrong("group_id and thread_in_group exchanged", "answer", (A, f"group_id, thread_in_group = lane % 8, lane // 8\n    {A}")),
        wrong("b before a", "broken", (D, "d = mma_tf32(b, a, (zero, zero, zero, zero))")),
        wrong("sums begin with what is in C", "answer", (D, "d = mma_tf32(a, b, (C[group_id, 2 * thread_in_group], C[group_id, 2 * thread_in_group + 1], C[group_id + 8, 2 * thread_in_group], C[group_id + 8, 2 * thread_in_group + 1]))")),
        wrong("only lanes with thread_in_group below 2", "inactive lane", (D, f"if thread_in_group > 1:\n        return\n    {D}")),
        wrong("no product, only zeros", "answer", (D, "d = (zero, zero, zero, zero)")),
        wrong("operands in a list", "refused by Numba", ("b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])", "b = [B[thread_in_group, group_id], B[thread_in_group + 4, group_id]]")),
        wrong("a row of B", "missing index", ("B[thread_in_group + 4, group_id]", "B[thread_in_group + 4]"), line="B[thread_in_group + 4]"),
        wrong("sums begin with one", "answer", ("d = mma_tf32(a, b, (zero, zero, zero, zero))", "one = float32(1)\n    d = mma_tf32(a, b, (one, one, one, one))")),
        wrong("the second and third sums exchanged", "answer", ("2 * thread_in_group + 1] = d[1]", "2 * thread_in_group + 1] = d[2]"), ("C[group_id + 8, 2 * thread_in_group] = d[2]", "C[group_id + 8, 2 * thread_in_group] = d[1]")),
        wrong("rows two apart", "answer", ("A[group_id, thread_in_group], A[group_id + 8, thread_in_group],", "A[2 * group_id, thread_in_group], A[2 * group_id + 1, thread_in_group],"), ("A[group_id, thread_in_group + 4], A[group_id + 8, thread_in_group + 4],", "A[2 * group_id, thread_in_group + 4], A[2 * group_id + 1, thread_in_group + 4],")),
        wrong("groups of eight lanes", "out of bounds", ("lane // 4, lane % 4", "lane // 8, lane % 8")),
        wrong("the lane for its group", "out of bounds", ("group_id, thread_in_group = lane // 4, lane % 4", "group_id, thread_in_group = lane, lane % 4")),
        wrong("B's rows neighbours", "answer", ("b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])", "b = (B[2 * thread_in_group, group_id], B[2 * thread_in_group + 1, group_id])")),
        wrong("the product added to C", "answer", ("C[group_id, 2 * thread_in_group] = d[0]", "C[group_id, 2 * thread_in_group] += d[0]")),
        wrong("only the first lane of a group", "inactive lane", ("    d = mma_tf32(a, b, (zero, zero, zero, zero))", "    d = (zero, zero, zero, zero)\n    if thread_in_group == 0:\n        d = mma_tf32(a, b, (zero, zero, zero, zero))")),
        right("two sums by a slice", ("    C[group_id, 2 * thread_in_group] = d[0]\n    C[group_id, 2 * thread_in_group + 1] = d[1]\n", "    C[group_id, 2 * thread_in_group : 2 * thread_in_group + 2] = d[0], d[1]\n")),
        right("the sums in a loop", (SUMS, LOOP)),
        right("the sums at once", (SUMS, "    C[group_id, 2 * thread_in_group], C[group_id, 2 * thread_in_group + 1], C[group_id + 8, 2 * thread_in_group], C[group_id + 8, 2 * thread_in_group + 1] = d")),
        right("from the lane's number, all in the call", (A, BY_LANE), (f"    {B}\n", ""), (D, f"d = mma_tf32(a, {B[4:]}, (zero, zero, zero, zero))")),
        right("columns of the sums in a variable", ("    C[group_id, 2 * thread_in_group] = d[0]\n    C[group_id, 2 * thread_in_group + 1] = d[1]\n", "    at = thread_in_group + thread_in_group\n    C[group_id, at], C[group_id, at + 1] = d[0], d[1]\n")),
        right("both orders of terms permuted alike", ("b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])", "b = (B[2 * thread_in_group, group_id], B[2 * thread_in_group + 1, group_id])"), ("A[group_id, thread_in_group], A[group_id + 8, thread_in_group],", "A[group_id, 2 * thread_in_group], A[group_id + 8, 2 * thread_in_group],"), ("A[group_id, thread_in_group + 4], A[group_id + 8, thread_in_group + 4],", "A[group_id, 2 * thread_in_group + 1], A[group_id + 8, 2 * thread_in_group + 1],")),
        wrong("whole numbers for zeros", "refused by Numba", ('d = mma_tf32(a, b, (zero, zero, zero, zero))', 'd = mma_tf32(a, b, (0, 0, 0, 0))'), told='Write float32(0)'),
        wrong("whole matrices", "refused by Numba", ('    a = (\n        A[group_id, thread_in_group], A[group_id + 8, thread_in_group],\n        A[group_id, thread_in_group + 4], A[group_id + 8, thread_in_group + 4],\n    )\n    b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])\n    d = mma_tf32(a, b, (zero, zero, zero, zero))\n    C[group_id, 2 * thread_in_group] = d[0]\n    C[group_id, 2 * thread_in_group + 1] = d[1]\n    C[group_id + 8, 2 * thread_in_group] = d[2]\n    C[group_id + 8, 2 * thread_in_group + 1] = d[3]', '    C[:] = A @ B'), line='A @ B'),
        wrong("products by each lane alone", "counts", ('    a = (\n        A[group_id, thread_in_group], A[group_id + 8, thread_in_group],\n        A[group_id, thread_in_group + 4], A[group_id + 8, thread_in_group + 4],\n    )\n    b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])\n    d = mma_tf32(a, b, (zero, zero, zero, zero))\n    C[group_id, 2 * thread_in_group] = d[0]\n    C[group_id, 2 * thread_in_group + 1] = d[1]\n    C[group_id + 8, 2 * thread_in_group] = d[2]\n    C[group_id + 8, 2 * thread_in_group + 1] = d[3]', '    for at in range(4):\n        i, j = group_id + at // 2 * 8, 2 * thread_in_group + at % 2\n        total = zero\n        for k in range(8):\n            total += A[i, k] * B[k, j]\n        C[i, j] = total'), told='0 times'),
        wrong("the product twice", "answer", ('d = mma_tf32(a, b, (zero, zero, zero, zero))', 'd = (zero, zero, zero, zero)\n    for k in range(2):\n        d = mma_tf32(a, b, d)'), told='calls mma_tf32 2 times'),
        wrong("without the sums before", "broken", ('d = mma_tf32(a, b, (zero, zero, zero, zero))', 'd = mma_tf32(a, b)'), told='mma_tf32() missing'),
        wrong("the lane's number for its thread_in_group", "out of bounds", ('b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])', 'b = (B[lane, group_id], B[lane + 4, group_id])'), told='row thread_in_group'),
        wrong("returned, not stored", "answer", ('    C[group_id, 2 * thread_in_group] = d[0]\n    C[group_id, 2 * thread_in_group + 1] = d[1]\n    C[group_id + 8, 2 * thread_in_group] = d[2]\n    C[group_id + 8, 2 * thread_in_group + 1] = d[3]', '    return d')),
        wrong("sums by columns", "answer", ('    C[group_id, 2 * thread_in_group] = d[0]\n    C[group_id, 2 * thread_in_group + 1] = d[1]\n    C[group_id + 8, 2 * thread_in_group] = d[2]\n    C[group_id + 8, 2 * thread_in_group + 1] = d[3]', '    C[group_id, 2 * thread_in_group] = d[0]\n    C[group_id + 8, 2 * thread_in_group] = d[1]\n    C[group_id, 2 * thread_in_group + 1] = d[2]\n    C[group_id + 8, 2 * thread_in_group + 1] = d[3]'), told='holds the sum that belongs in'),
        right("the sums in four names", ('    C[group_id, 2 * thread_in_group] = d[0]\n    C[group_id, 2 * thread_in_group + 1] = d[1]\n    C[group_id + 8, 2 * thread_in_group] = d[2]\n    C[group_id + 8, 2 * thread_in_group + 1] = d[3]', '    upper_left, upper_right, lower_left, lower_right = d\n    column = thread_in_group * 2\n    C[group_id][column] = upper_left\n    C[group_id][column + 1] = upper_right\n    C[group_id + 8][column] = lower_left\n    C[group_id + 8][column + 1] = lower_right')),
        right("rows and columns named", ('    a = (\n        A[group_id, thread_in_group], A[group_id + 8, thread_in_group],\n        A[group_id, thread_in_group + 4], A[group_id + 8, thread_in_group + 4],\n    )\n    b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])\n    d = mma_tf32(a, b, (zero, zero, zero, zero))\n    C[group_id, 2 * thread_in_group] = d[0]\n    C[group_id, 2 * thread_in_group + 1] = d[1]\n    C[group_id + 8, 2 * thread_in_group] = d[2]\n    C[group_id + 8, 2 * thread_in_group + 1] = d[3]', '    top, bottom, left, right = group_id, group_id + 8, thread_in_group, thread_in_group + 4\n    d = mma_tf32((A[top, left], A[bottom, left], A[top, right], A[bottom, right]), (B[left, top], B[right, top]), (zero, zero, zero, zero))\n    for row, first in ((top, 0), (bottom, 2)):\n        for side in range(2):\n            C[row, 2 * left + side] = d[first + side]')),
        right("A's numbers in a local array", ('a = (\n        A[group_id, thread_in_group], A[group_id + 8, thread_in_group],\n        A[group_id, thread_in_group + 4], A[group_id + 8, thread_in_group + 4],\n    )', 'R = cuda.local.array(4, float32)\n    for i in range(4):\n        R[i] = A[group_id + i % 2 * 8, thread_in_group + i // 2 * 4]\n    a = (R[0], R[1], R[2], R[3])')),
        right("B transposed", ('b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])', 'b = (B.T[group_id, thread_in_group], B.T[group_id, thread_in_group + 4])')),
    ],
    "accurate": [
        wrong("small times small in place of large times large", "answer", (LARGE_LARGE, "part = mma_tf32(small_f, small_i, part)")),
        wrong("the filter's small part forgotten", "answer", (SMALL_LARGE, "pass")),
        wrong("the windows' small part forgotten", "answer", (LARGE_SMALL, "pass")),
        wrong("large times large alone: TF32", "answer", (SMALL_LARGE, "pass"), (LARGE_SMALL, "pass")),
        wrong("large for small, of one window", "answer", (X, "T_I[half, j], L_I[half, j] = split_tf32(x)")),
        wrong("only the large part is stored", "uninitialised", (SPLITS, SPLITS.replace(", T_I[half, j] =", ", _ =").replace(", T_I[half, j + 1] =", ", _ =").replace(", T_I[half, j + 2] =", ", _ =").replace(", T_I[half, j + 3] =", ", _ ="))),
        wrong("the same window four times", "answer", (SPLITS, SPLITS.replace("(y)", "(x)").replace("(z)", "(x)").replace("(w)", "(x)"))),
        wrong("goes on from the sums: one chain", "accuracy", (START, GOES_ON), *PARTS),
        wrong("goes on from the sums and adds again", "answer", (START, GOES_ON)),
        wrong("the large product first", "accuracy", (f"{SMALL_LARGE}{NEXT}{LARGE_SMALL}{NEXT}{LARGE_LARGE}", f"{LARGE_LARGE}{NEXT}{LARGE_SMALL}{NEXT}{SMALL_LARGE}")),
        wrong("the parts written, not added", "answer", *PARTS),
        wrong("products each from zero", "answer", (LARGE_LARGE, "part = mma_tf32(large_f, large_i, (zero, zero, zero, zero))")),
        wrong("the second number for the second row", "answer", ("R_O[i, left + FLOAT4] += part[1]", "R_O[i, left + FLOAT4] += part[2]"), ("R_O[i + 1, left] += part[2]", "R_O[i + 1, left] += part[1]")),
        wrong("neighbours for the next float4", "answer", ("R_O[i, left + FLOAT4] +=", "R_O[i, left + 1] +="), ("R_O[i + 1, left + FLOAT4] +=", "R_O[i + 1, left + 1] +=")),
        wrong("the lower row forgotten", "answer", ("                R_O[i + 1, left] += part[2]\n", ""), ("R_O[i + 1, left + FLOAT4] += part[3]", "pass")),
        wrong("all four products", "counts", (SMALL_LARGE, f"part = mma_tf32(small_f, small_i, part){NEXT}{SMALL_LARGE}")),
        wrong("the first step of the chain for both", "answer", ("L_I[2 * c, j], L_I[2 * c + 1, j]", "L_I[c, j], L_I[c + 1, j]")),
        wrong("the place of the odd float4 for all", "answer", ("left = j // FLOAT4 * (2 * FLOAT4) + j % FLOAT4", "left = j")),
        wrong("always the first term", "answer", ("at_I + k * PITCH, L_I", "at_I, L_I"), told="the only one of the problems with slices of more than 8 terms"),
        wrong("small parts of the filter in both", "answer", ("part = mma_tf32(large_f, small_i, part)", "part = mma_tf32(small_f, small_i, part)")),
        right("the windows' small part first", (f"{SMALL_LARGE}{NEXT}{LARGE_SMALL}", f"{LARGE_SMALL}{NEXT}{SMALL_LARGE}")),
        right("the parts added in two loops", (ADDED, ADDED_BY_LOOPS)),
        right("split into names, then stored", (SPLITS, TAKEN_APART)),
        right("small products in a part of their own", (f"{SMALL_LARGE}{NEXT}{LARGE_SMALL}{NEXT}{LARGE_LARGE}", f"rest = mma_tf32(small_f, large_i, (zero, zero, zero, zero)){NEXT}rest = mma_tf32(large_f, small_i, rest){NEXT}part = (part[0] + rest[0], part[1] + rest[1], part[2] + rest[2], part[3] + rest[3]){NEXT}{LARGE_LARGE}")),
        right("the sum by itself", ("R_O[i, left] += part[0]", "R_O[i, left] = part[0] + R_O[i, left]")),
        wrong("large for small, of all windows", "answer", ('                L_I[half, j], T_I[half, j] = split_tf32(x)\n                L_I[half, j + 1], T_I[half, j + 1] = split_tf32(y)\n                L_I[half, j + 2], T_I[half, j + 2] = split_tf32(z)\n                L_I[half, j + 3], T_I[half, j + 3] = split_tf32(w)\n', '                T_I[half, j], L_I[half, j] = split_tf32(x)\n                T_I[half, j + 1], L_I[half, j + 1] = split_tf32(y)\n                T_I[half, j + 2], L_I[half, j + 2] = split_tf32(z)\n                T_I[half, j + 3], L_I[half, j + 3] = split_tf32(w)\n'), told='No product multiplies the small parts of the filter by the large parts'),
        wrong("the number itself for its small part", "answer", ('                L_I[half, j], T_I[half, j] = split_tf32(x)\n                L_I[half, j + 1], T_I[half, j + 1] = split_tf32(y)\n                L_I[half, j + 2], T_I[half, j + 2] = split_tf32(z)\n                L_I[half, j + 3], T_I[half, j + 3] = split_tf32(w)\n', '                L_I[half, j], T_I[half, j] = split_tf32(x)\n                L_I[half, j + 1], T_I[half, j + 1] = split_tf32(y)\n                L_I[half, j + 2], T_I[half, j + 2] = split_tf32(z)\n                L_I[half, j + 3], T_I[half, j + 3] = split_tf32(w)\n                T_I[half, j + 0] = x\n                T_I[half, j + 1] = y\n                T_I[half, j + 2] = z\n                T_I[half, j + 3] = w\n'), told='neither all large parts'),
        wrong("two of four windows split", "uninitialised", ('                L_I[half, j], T_I[half, j] = split_tf32(x)\n                L_I[half, j + 1], T_I[half, j + 1] = split_tf32(y)\n                L_I[half, j + 2], T_I[half, j + 2] = split_tf32(z)\n                L_I[half, j + 3], T_I[half, j + 3] = split_tf32(w)\n', '                L_I[half, j], T_I[half, j] = split_tf32(x)\n                L_I[half, j + 1], T_I[half, j + 1] = split_tf32(y)\n'), told='which of its elements'),
        wrong("each product put behind the others", "broken", ('part = mma_tf32(small_f, large_i, part)\n                    part = mma_tf32(large_f, small_i, part)\n                    part = mma_tf32(large_f, large_i, part)', 'part += mma_tf32(small_f, large_i, part)\n                    part += mma_tf32(large_f, small_i, part)\n                    part += mma_tf32(large_f, large_i, part)'), told='one tuple behind the other'),
        right("the windows in a loop", ('                L_I[half, j], T_I[half, j] = split_tf32(x)\n                L_I[half, j + 1], T_I[half, j + 1] = split_tf32(y)\n                L_I[half, j + 2], T_I[half, j + 2] = split_tf32(z)\n                L_I[half, j + 3], T_I[half, j + 3] = split_tf32(w)\n', '                for s, value in enumerate((x, y, z, w)):\n                    L_I[half, j + s], T_I[half, j + s] = split_tf32(value)\n')),
        right("the part in four names", ('R_O[i, left] += part[0]\n                R_O[i, left + FLOAT4] += part[1]\n                R_O[i + 1, left] += part[2]\n                R_O[i + 1, left + FLOAT4] += part[3]', 'one, two, three, four = part\n                R_O[i + 1, left + FLOAT4] += four\n                R_O[i + 1, left] += three\n                R_O[i, left + FLOAT4] += two\n                R_O[i, left] += one')),
    ],
    "rows": [
        given("inactive lane"),
        wrong("returns where there is no lower row", "inactive lane", (NUMBERS, "    if lane // 4 + 8 >= A.shape[0]:\n        return\n" + NUMBERS)),
        wrong("a guard one too wide", "inactive lane", (NUMBERS, "    if lane // 4 > A.shape[0]:\n        return\n" + NUMBERS)),
        wrong("the lane's number for the row's", "inactive lane", (NUMBERS, "    if lane >= A.shape[0]:\n        return\n" + NUMBERS)),
        wrong("returns just before the product", "inactive lane", ("    d = mma_tf32", "    if lane // 4 >= A.shape[0]:\n        return\n    d = mma_tf32")),
        wrong("the product for lanes with a row", "inactive lane", ("    d = mma_tf32", "    d = zeros\n    if lane // 4 < A.shape[0]:\n        d = mma_tf32")),
        wrong("a barrier of the warp does not help", "inactive lane", (NUMBERS, "    cuda.syncwarp()\n    if lane // 4 >= A.shape[0]:\n        return\n" + NUMBERS)),
        wrong("a product of whole matrices alone", "answer", ("    d = mma_tf32", "    if A.shape[0] < 16:\n        return\n    d = mma_tf32")),
        wrong("zeros for all of A", "answer", ("numbers_of_a(A, lane)", "zeros")),
        wrong("zeros for B where A has no row", "answer", ("    d = mma_tf32", "    if lane // 4 >= A.shape[0]:\n        b = zeros[:2]\n    d = mma_tf32")),
        wrong("not multiplied", "answer", ("d = mma_tf32(a, b, zeros)", "d = a")),
        wrong("added to A", "answer", ("mma_tf32(a, b, zeros)", "mma_tf32(a, b, a)")),
        wrong("multiplied twice", "answer", ("mma_tf32(a, b, zeros)", "mma_tf32(a, b, mma_tf32(a, b, zeros))")),
        wrong("only the first four lanes store", "answer", ("    store_sums", "    if lane < 4:\n        store_sums")),
        wrong("lanes without a lower row do not store", "answer", ("    store_sums", "    if lane // 4 + 8 < A.shape[0]:\n        store_sums")),
        wrong("the guard for the upper row by the lower", "inactive lane", ("    a = numbers_of_a(A, lane)\n", "    if lane // 4 < A.shape[0]:\n        a = numbers_of_a(A, lane)\n    else:\n        return\n")),
        wrong("all rows written again by the last lanes", "answer", ("store_sums(C, lane, d)", "store_sums(C, 31 - lane, d)")),
        right("returns after the product", ("    store_sums", "    if lane // 4 >= A.shape[0]:\n        return\n    store_sums")),
        right("zeros first, then what there is", ("    a = numbers_of_a(A, lane)\n", "    a = zeros\n    if lane // 4 < A.shape[0]:\n        a = numbers_of_a(A, lane)\n")),
        right("another lane's row instead, which is not stored", ("numbers_of_a(A, lane)", "numbers_of_a(A, min(lane, 4 * A.shape[0] - 4 + lane % 4))")),
        right("the numbers of B first", (NUMBERS + "    b = numbers_of_b(B, lane)\n", "    b = numbers_of_b(B, lane)\n" + NUMBERS)),
    ],
}
