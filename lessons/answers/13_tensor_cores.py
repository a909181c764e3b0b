"""Answers to the exercises of lesson 13."""

from convlab.lessons.answers import given, right, wrong

A = "a = (A[g, t], A[g + 8, t], A[g, t + 4], A[g + 8, t + 4])"
B = "b = (B[t, g], B[t + 4, g])"
D = "d = mma_tf32(a, b, (zero, zero, zero, zero))"
SUMS = "    C[g, 2 * t] = d[0]\n    C[g, 2 * t + 1] = d[1]\n    C[g + 8, 2 * t] = d[2]\n    C[g + 8, 2 * t + 1] = d[3]"
LOOP = "    for i in range(4):\n        C[g + i // 2 * 8, 2 * t + i % 2] = d[i]"
BY_LANE = (
    "a = (A[lane // 4, lane % 4], A[lane // 4 + 8, lane % 4], A[lane // 4, lane % 4 + 4], A[lane // 4 + 8, lane % 4 + 4])"
)

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

UPPER = "    a0 = A[g, t] if upper else zero\n    a2 = A[g, t + 4] if upper else zero\n"
A0, A2 = "A[g, t] if upper else zero", "A[g, t + 4] if upper else zero"

ANSWERS = {
    "product": [
        wrong("rows and columns of A exchanged", "out of bounds", (A, "a = (A[t, g], A[t, g + 8], A[t + 4, g], A[t + 4, g + 8])")),
        wrong("rows and columns of B exchanged", "answer", (B, "b = (B[g, t], B[g, t + 4])")),
        wrong("t + 4 forgotten in A", "answer", (A, "a = (A[g, t], A[g + 8, t], A[g, t], A[g + 8, t])")),
        wrong("t + 4 forgotten in B", "answer", (B, "b = (B[t, g], B[t, g])")),
        wrong("A's right column before its lower row", "answer", (A, "a = (A[g, t], A[g, t + 4], A[g + 8, t], A[g + 8, t + 4])")),
        wrong("A's numbers are neighbours in the row", "answer", (A, "a = (A[g, 2 * t], A[g + 8, 2 * t], A[g, 2 * t + 1], A[g + 8, 2 * t + 1])")),
        wrong("sums written to column g", "answer", ("C[g, 2 * t] = d[0]", "C[2 * t, g] = d[0]"), ("C[g, 2 * t + 1] = d[1]", "C[2 * t + 1, g] = d[1]"), ("C[g + 8, 2 * t] = d[2]", "C[2 * t + 8, g] = d[2]"), ("C[g + 8, 2 * t + 1] = d[3]", "C[2 * t + 9, g] = d[3]")),
        wrong("sums written to t and t + 4", "answer", ("C[g, 2 * t] =", "C[g, t] ="), ("C[g, 2 * t + 1]", "C[g, t + 4]"), ("C[g + 8, 2 * t] =", "C[g + 8, t] ="), ("C[g + 8, 2 * t + 1]", "C[g + 8, t + 4]")),
        wrong("t for 2 * t", "global race", (SUMS, SUMS.replace("2 * t", "t"))),
        wrong("the lower rows never written", "answer", ("    C[g + 8, 2 * t] = d[2]\n    C[g + 8, 2 * t + 1] = d[3]", "    pass")),
        wrong("g and t exchanged", "answer", (A, f"g, t = lane % 8, lane // 8\n    {A}")),
        wrong("b before a", "broken", (D, "d = mma_tf32(b, a, (zero, zero, zero, zero))")),
        wrong("sums begin with what is in C", "answer", (D, "d = mma_tf32(a, b, (C[g, 2 * t], C[g, 2 * t + 1], C[g + 8, 2 * t], C[g + 8, 2 * t + 1]))")),
        wrong("only lanes with t below 2", "inactive lane", (D, f"if t > 1:\n        return\n    {D}")),
        wrong("no product, only zeros", "answer", (D, "d = (zero, zero, zero, zero)")),
        right("the sums in a loop", (SUMS, LOOP)),
        right("the sums at once", (SUMS, "    C[g, 2 * t], C[g, 2 * t + 1], C[g + 8, 2 * t], C[g + 8, 2 * t + 1] = d")),
        right("from the lane's number, all in the call", (A, BY_LANE), (f"    {B}\n", ""), (D, f"d = mma_tf32(a, {B[4:]}, (zero, zero, zero, zero))")),
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
        right("the windows' small part first", (f"{SMALL_LARGE}{NEXT}{LARGE_SMALL}", f"{LARGE_SMALL}{NEXT}{SMALL_LARGE}")),
        right("the parts added in two loops", (ADDED, ADDED_BY_LOOPS)),
        right("split into names, then stored", (SPLITS, TAKEN_APART)),
        right("small products in a part of their own", (f"{SMALL_LARGE}{NEXT}{LARGE_SMALL}{NEXT}{LARGE_LARGE}", f"rest = mma_tf32(small_f, large_i, (zero, zero, zero, zero)){NEXT}rest = mma_tf32(large_f, small_i, rest){NEXT}part = (part[0] + rest[0], part[1] + rest[1], part[2] + rest[2], part[3] + rest[3]){NEXT}{LARGE_LARGE}")),
    ],
    "rows": [
        given("inactive lane"),
        wrong("returns where there is no lower row", "inactive lane", (UPPER, "    if not lower:\n        return\n    a0, a2 = A[g, t], A[g, t + 4]\n")),
        wrong("no check", "out of bounds", (A0, "A[g, t]"), (A2, "A[g, t + 4]")),
        wrong("checks one of both", "out of bounds", (A2, "A[g, t + 4]")),
        wrong("zeros for all", "answer", (A0, "zero"), (A2, "zero")),
        wrong("asks whether there is a lower row", "answer", (A0, "A[g, t] if lower else zero"), (A2, "A[g, t + 4] if lower else zero")),
        wrong("checks t in place of g", "out of bounds", (A0, "A[g, t] if t < A.shape[0] else zero"), (A2, "A[g, t + 4] if t < A.shape[0] else zero")),
        wrong("the columns exchanged", "answer", (A0, A2), (UPPER[UPPER.index("    a2"):], "    a2 = A[g, t] if upper else zero\n")),
        wrong("the lower rows not checked", "out of bounds", ("A[g + 8, t] if lower else zero", "A[g + 8, t]")),
        wrong("the lower rows written without a check", "out of bounds", ("    if lower:\n", "    if True:\n")),
        wrong("rows and columns of B exchanged", "answer", ("b = (B[t, g], B[t + 4, g])", "b = (B[g, t], B[g, t + 4])")),
        wrong("a product of whole matrices alone", "answer", ("    d = mma_tf32(", "    if A.shape[0] < 16:\n        return\n    d = mma_tf32(")),
        right("another row instead, which nobody writes", (A0, "A[min(g, A.shape[0] - 1), t]"), (A2, "A[min(g, A.shape[0] - 1), t + 4]")),
        right("zeros first, then what there is", (UPPER, "    a0, a2 = zero, zero\n    if upper:\n        a0, a2 = A[g, t], A[g, t + 4]\n")),
        right("returns after the product", ("    if upper:\n        C[g, 2 * t] = d[0]\n        C[g, 2 * t + 1] = d[1]\n", "    if not upper:\n        return\n    C[g, 2 * t] = d[0]\n    C[g, 2 * t + 1] = d[1]\n")),
    ],
}
