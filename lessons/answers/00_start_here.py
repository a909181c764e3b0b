"""Answers to the exercises of lesson 00."""

from check_answers import given, right, wrong

NUMBER = "cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x"
WORK = "    if i < a.size:\n        out[i] = a[i] + 10"
SUM = """    if i < a.size:
        total = a[i]
        if i + 1 < a.size:
            total += a[i + 1]
        out[i] = total"""
PLACE = "row, column = i // columns, i % columns"

ANSWERS = {
    "any_number": [
        wrong("no guard", "out of bounds", ("if i < a.size:", "if True:"), line="a[i] + 10"),
        wrong("a guard one too wide", "out of bounds", ("i < a.size", "i <= a.size")),
        wrong("the number in the block alone", "answer", (NUMBER, "cuda.threadIdx.x")),
        wrong("block and thread added", "answer", (NUMBER, "cuda.blockIdx.x + cuda.threadIdx.x")),
        wrong("the grid's size for the block's", "answer", ("cuda.blockDim.x", "cuda.gridDim.x")),
        wrong("32 threads in every block", "answer", ("cuda.blockDim.x", "32")),
        wrong("thread 0 does everything", "counts", (WORK, "    if i == 0:\n        for k in range(a.size):\n            out[k] = a[k] + 10")),
        wrong("a loop without an end", "broken", ("if i < a.size:", "while i < a.size:"), line="while i < a.size:"),
        wrong("in place", "input changed", (WORK, WORK.replace("out[i] = a[i] + 10", "a[i] += 10; out[i] = a[i]"))),
        wrong("added to what was there", "answer", ("out[i] =", "out[i] +=")),
        wrong("every thread does everything", "counts", (WORK, "    for i in range(a.size):\n        out[i] = a[i] + 10")),
        wrong("a name that does not exist", "broken", ("cuda.threadIdx.x", "cuda.threadId.x")),
        wrong("a list of numbers", "refused by Numba", (WORK, "    if i < a.size:\n        values = [a[i], 10]\n        out[i] = values[0] + values[1]"), line="values = ["),
        wrong("the whole array at once", "refused by Numba", (WORK, "    out[:] = a + 10"), line="a + 10"),
        wrong("a barrier below the guard", "barrier divergence", ("        out[i]", "        cuda.syncthreads()\n        out[i]")),
        wrong("every thread strides by its block", "counts", ("    if i < a.size:\n        out[i] = a[i] + 10", "    while i < a.size:\n        out[i] = a[i] + 10\n        i += cuda.blockDim.x")),
        wrong("a zero past the end", "out of bounds", ("    if i < a.size:\n        out[i] = a[i] + 10", "    out[i] = a[i] + 10 if i < a.size else 0")),
        wrong("a guard for a single block", "answer", ("if i < a.size", "if i < 32 and i < a.size")),
        wrong("returned, not stored", "answer", ("        out[i] = a[i] + 10", "        return a[i] + 10")),
        wrong("the thread's number in its block guarded", "out of bounds", ("if i < a.size", "if cuda.threadIdx.x < a.size")),
        wrong("errors caught", "out of bounds", ("    if i < a.size:\n        out[i] = a[i] + 10", "    try:\n        out[i] = a[i] + 10\n    except IndexError:\n        pass")),
        wrong("threadIdx called", "broken", ("cuda.threadIdx.x", "cuda.threadIdx.x()")),
        wrong("the number of blocks for the block's", "answer", ("cuda.blockIdx.x * cuda.blockDim.x", "cuda.blockIdx.x")),
        wrong("a loop over all, the thread's own picked", "counts", ("    if i < a.size:\n        out[i] = a[i] + 10", "    for e in range(a.size):\n        if e == i:\n            out[e] = a[e] + 10\n        else:\n            a[e]")),
        right("with cuda.grid", (NUMBER, "cuda.grid(1)")),
        right("returning early", (WORK, "    if i >= a.size:\n        return\n    out[i] = a[i] + 10")),
        right("striding through the array", (WORK, "    for k in range(i, a.size, cuda.gridsize(1)):\n        out[k] = 10 + a[k]")),
        right("the guard turned round", ("if i < a.size", "if not i >= a.size")),
    ],
    "neighbours": [
        given("out of bounds"),
        wrong("the last one left out", "answer", (SUM, "    if i < a.size - 1:\n        out[i] = a[i] + a[i + 1]")),
        wrong("around the end of the array", "answer", (SUM, "    if i < a.size:\n        out[i] = a[i] + a[(i + 1) % a.size]")),
        wrong("a guard one too wide", "out of bounds", ("i + 1 < a.size", "i + 1 <= a.size"), line="total += a[i + 1]"),
        wrong("the last one twice", "answer", (SUM, "    if i < a.size:\n        out[i] = a[i] + a[min(i + 1, a.size - 1)]")),
        wrong("the left neighbour", "answer", ("total += a[i + 1]", "total += a[i - 1]")),
        wrong("added to the neighbour's output", "global race", (SUM, "    if i < a.size:\n        out[i] = a[i]\n        if i > 0:\n            out[i - 1] += a[i]")),
        wrong("in place", "global race", (SUM, "    if i < a.size:\n        if i + 1 < a.size:\n            a[i] += a[i + 1]\n        out[i] = a[i]")),
        wrong("the number in the block alone", "answer", ("cuda.grid(1)", "cuda.threadIdx.x")),
        wrong("both neighbours", "answer", ("total = a[i]\n", "total = a[i]\n        if i > 0:\n            total += a[i - 1]\n")),
        wrong("the neighbour alone", "answer", ("total = a[i]\n", "total = 0\n")),
        wrong("read before it is guarded", "out of bounds", ("        if i + 1 < a.size:\n            total += a[i + 1]", "        right = a[i + 1]\n        if i + 1 < a.size:\n            total += right"), line="right = a[i + 1]"),
        wrong("all that follow", "answer", ("total += a[i + 1]", "for k in range(i + 1, a.size):\n                total += a[k]")),
        wrong("a name that does not exist", "broken", ("cuda.grid(1)", "cuda.gird(1)")),
        right("by every thread again, which is noted", (SUM, SUM.replace("    if i < a.size:", "    for i in range(a.size):"))),
        right("two cases", (SUM, "    if i + 1 < a.size:\n        out[i] = a[i] + a[i + 1]\n    elif i < a.size:\n        out[i] = a[i]")),
        right("a zero instead", (SUM, "    if i < a.size:\n        out[i] = a[i] + (a[i + 1] if i < a.size - 1 else 0)")),
        right("returning early", (SUM, "    if i >= a.size:\n        return\n    out[i] = a[i]\n    if i + 1 < a.size:\n        out[i] += a[i + 1]")),
    ],
    "double": [
        given("counts"),
        wrong("rows and columns exchanged", "out of bounds", (PLACE, "column, row = i // columns, i % columns")),
        wrong("divided by the rows", "out of bounds", (PLACE, "row, column = i // rows, i % rows")),
        wrong("reads corrected, writes not", "answer", ("out[row, column]", "out[i % rows, i // rows]")),
        wrong("the remainder alone fixed", "answer", (PLACE, "row, column = i // rows % rows, i % columns")),
        wrong("every second one first", "counts", (PLACE, "k = 2 * i % a.size + 2 * i // a.size\n        row, column = k // columns, k % columns")),
        wrong("the number in the block alone", "answer", ("i = cuda.grid(1)", "i = cuda.threadIdx.x")),
        wrong("a guard one too wide", "out of bounds", ("i < a.size", "i <= a.size")),
        wrong("the remainder by rows", "answer", (PLACE, "row, column = i // columns, i % rows")),
        wrong("a row a thread", "counts", ("if i < a.size:", "if i < rows:"), (PLACE, "row, column = i, 0\n        for k in range(1, columns):\n            out[row, k] = 2 * a[row, k]")),
        wrong("squared", "answer", ("2 * a[row, column]", "a[row, column] * a[row, column]")),
        wrong("thread 0 does everything", "counts", ("if i < a.size:", "for i in range(a.size if i == 0 else 0):")),
        right("with divmod", (PLACE, "row, column = divmod(i, columns)")),
        right("by subtraction", (PLACE, "row = i // columns\n        column = i - row * columns")),
        right("striding through the matrix", ("if i < a.size:", "for i in range(i, a.size, cuda.gridsize(1)):")),
        wrong("columns by the rows' number", "counts", ("row, column = i // columns, i % columns", "column, row = divmod(i, rows)"), told="mostly lie 24 apart"),
        wrong("a row for each thread of a warp", "out of bounds", ("row, column = i // columns, i % columns", "row, column = i % 32, i // 32")),
        wrong("the row before", "out of bounds", ("row, column = i // columns, i % columns", "row, column = i // columns - 1, i % columns")),
        right("with divmod in order", ("row, column = i // columns, i % columns", "row, column = divmod(i, columns)")),
        right("the column by subtraction from the row", ("row, column = i // columns, i % columns", "row = i // columns\n        column = i - columns * row")),
    ],
}
