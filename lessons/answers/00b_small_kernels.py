"""Answers to the exercises of lesson 00b."""

from check_answers import given, right, wrong

ROW = "row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y"
COLUMN = "column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x"
BOUNDS = "row < a.shape[0] and column < a.shape[1]"
EDGES = """    if t == 0:
        tile[0] = load(a, i - 1)
    if t == THREADS - 1:
        tile[THREADS + 1] = load(a, i + 1)
"""
LAST_SUM = "out[i] = tile[t] + tile[t + 1] + tile[t + 2]"
BARRIER = "    cuda.syncthreads()\n    if i < a.size"
SUM_OF_TWO = "out[i] = tile[t] + tile[t + 1]"
LEFT_EDGE = "    if t == 0:\n        tile[0] = load(a, i - 1)\n"
STEP = """        if t < half:
            part[t] += part[t + half]
        cuda.syncthreads()
"""
LOOP = f"""    half = THREADS // 2
    while half > 0:
{STEP}        half //= 2
"""
STORE = """    if t == 0:
        out[cuda.blockIdx.x] = part[0]"""
FIRST_BARRIER = "n)\n        cuda.syncthreads()"
SECOND_BARRIER = "tile_B[k, x]\n        cuda.syncthreads()"
PRODUCTS = """        for k in range(T):
            total += tile_A[y, k] * tile_B[k, x]
"""

ANSWERS = {
    "rows": [
        wrong("no bounds", "out of bounds", (BOUNDS, "True")),
        wrong("no bound for columns", "out of bounds", (" and column < a.shape[1]", "")),
        wrong("no bound for rows", "out of bounds", ("row < a.shape[0] and ", "")),
        wrong("one bound or the other", "out of bounds", ("and column", "or column")),
        wrong("bounds exchanged", "out of bounds", (BOUNDS, "row < a.shape[1] and column < a.shape[0]")),
        wrong("a bound one too wide", "out of bounds", ("column < a", "column <= a")),
        wrong("rows across, columns down", "answer", (ROW, COLUMN.replace("column", "row")), (COLUMN, ROW.replace("row", "column"))),
        wrong("the row of the thread alone", "answer", (ROW, "row = cuda.threadIdx.y")),
        wrong("the block's width for its height", "answer", ("cuda.blockDim.y", "cuda.blockDim.x")),
        wrong("the grid's height for the block's", "answer", ("cuda.blockDim.y", "cuda.gridDim.y")),
        wrong("b by row", "out of bounds", ("b[column]", "b[row]")),
        wrong("nothing of b", "answer", (" + b[column]", "")),
        wrong("negative numbers left", "answer", ("max(total, float32(0))", "total")),
        wrong("the smaller one", "answer", ("max(total", "min(total")),
        wrong("without its sign", "answer", ("max(total, float32(0))", "abs(total)")),
        wrong("in place", "input changed", ("total = a[row, column] + b[column]", "a[row, column] += b[column]; total = a[row, column]")),
        wrong("all columns in each thread of a row", "counts", (f"    if {BOUNDS}:\n", "    if row < a.shape[0]:\n      for column in range(a.shape[1]):\n")),
        wrong("grid's two the wrong way round", "answer", (ROW, "row, column = cuda.grid(2)"), (COLUMN, "pass")),
        wrong("two indices for b", "refused by Numba", ("b[column]", "b[row, column]")),
        wrong("only positive numbers written", "answer", ("out[row, column] = max(total, float32(0))", "if total > 0:\n            out[row, column] = total")),
        wrong("ReLU before the bias", "answer", ("total = a[row, column] + b[column]", "total = max(a[row, column], float32(0)) + b[column]"), ("max(total, float32(0))", "total")),
        wrong("b by the thread's number", "answer", ("b[column]", "b[cuda.threadIdx.x]")),
        wrong("NumPy's maximum of arrays", "refused by Numba", ("max(total, float32(0))", "np.maximum(a, 0)")),
        wrong("row and column exchanged in a", "out of bounds", ("a[row, column] + b", "a[column, row] + b")),
        wrong("one where it is negative", "answer", ("float32(0)", "float32(1)")),
        right("with cuda.grid", (ROW, "column, row = cuda.grid(2)"), (COLUMN, "pass")),
        right("returning early", (f"    if {BOUNDS}:\n        total", "    if row >= a.shape[0] or column >= a.shape[1]:\n        return\n    if True:\n        total")),
        right("by out's shape", (BOUNDS, "column < out.shape[1] and row < out.shape[0]")),
        right("b first", ("a[row, column] + b[column]", "b[column] + a[row, column]")),
        right("by a condition", ("out[row, column] = max(total, float32(0))", "if total < 0:\n            total = float32(0)\n        out[row, column] = total")),
        right("row after row", ("a[row, column] + b", "a[row][column] + b")),
        right("a zero without its type", ("float32(0)", "0")),
    ],
    "left": [
        wrong("no barrier", "shared race", (BARRIER, "    if i < a.size")),
        wrong("a barrier of the warp", "shared race", ("cuda.syncthreads()", "cuda.syncwarp()")),
        wrong("a barrier for those with an output", "barrier divergence", (f"{BARRIER}:\n        {SUM_OF_TWO}", f"    if i < a.size:\n        cuda.syncthreads()\n        {SUM_OF_TWO}")),
        wrong("the barrier first", "shared race", ("    tile[t + 1] = load(a, i)", "    cuda.syncthreads()\n    tile[t + 1] = load(a, i)"), (BARRIER, "    if i < a.size")),
        wrong("no edge", "uninitialised", (LEFT_EDGE, "")),
        wrong("zero at the edge", "answer", ("load(a, i - 1)", "0")),
        wrong("my own number at the edge", "answer", ("load(a, i - 1)", "load(a, i)")),
        wrong("the right neighbour at the edge", "answer", ("load(a, i - 1)", "load(a, i + 1)")),
        wrong("no place for the edge", "uninitialised", ("    tile[t + 1] = load(a, i)", "    tile[t] = load(a, i)")),
        wrong("the right neighbour", "out of bounds", (SUM_OF_TWO, "out[i] = tile[t + 1] + tile[t + 2]")),
        wrong("no bound for the output", "out of bounds", ("if i < a.size:", "if True:")),
        wrong("my number twice", "answer", (SUM_OF_TWO, "out[i] = tile[t + 1] + tile[t + 1]")),
        wrong("the left neighbour alone", "answer", (SUM_OF_TWO, "out[i] = tile[t]")),
        wrong("without the tile", "counts", (SUM_OF_TWO, "out[i] = load(a, i - 1) + load(a, i)")),
        wrong("every thread stores the edge", "shared race", ("    if t == 0:\n        tile[0] = load(a, i - 1)", "    tile[0] = load(a, i - 1)")),
        wrong("no place for the edge, by a negative index", "uninitialised", ("tile[t + 1] = load(a, i)", "tile[t] = load(a, i)"), ("tile[t] + tile[t + 1]", "tile[t - 1] + tile[t]")),
        wrong("the edge read without load", "answer", ("tile[0] = load(a, i - 1)", "tile[0] = a[i - 1]")),
        wrong("an edge in the first block alone", "uninitialised", ("if t == 0:", "if i == 0:")),
        wrong("written to the block's own places", "answer", ("out[i] =", "out[t] =")),
        wrong("an array of each thread's own", "uninitialised", ("cuda.shared.array", "cuda.local.array")),
        wrong("returned before the barrier", "barrier divergence", ("    cuda.syncthreads()", "    if i >= a.size:\n        return\n    cuda.syncthreads()")),
        wrong("the left number from global memory", "counts", ("tile[t] + tile[t + 1]", "load(a, i - 1) + tile[t + 1]")),
        wrong("the barrier for thread 0 alone", "barrier divergence", ("    cuda.syncthreads()", "    if t == 0:\n        cuda.syncthreads()")),
        wrong("the edge is the block before's first", "answer", ("load(a, i - 1)", "load(a, i - THREADS)")),
        wrong("syncthreads not called", "not called", ("cuda.syncthreads()", "cuda.syncthreads")),
        right("the edge by the last thread", (LEFT_EDGE, "    if t == THREADS - 1:\n        tile[0] = load(a, i - THREADS)\n")),
        right("the edge first", ("    tile[t + 1] = load(a, i)\n" + LEFT_EDGE, LEFT_EDGE + "    tile[t + 1] = load(a, i)\n")),
        right("my own number from a register", ("    tile[t + 1] = load(a, i)", "    mine = load(a, i)\n    tile[t + 1] = mine"), (SUM_OF_TWO, "out[i] = mine + tile[t]")),
    ],
    "three": [
        wrong("no barrier", "shared race", (BARRIER, "    if i < a.size")),
        wrong("a barrier of the warp", "shared race", ("cuda.syncthreads()", "cuda.syncwarp()")),
        wrong("a barrier for those with an output", "barrier divergence", (f"{BARRIER}:\n        {LAST_SUM}", f"    if i < a.size:\n        cuda.syncthreads()\n        {LAST_SUM}")),
        wrong("the barrier first", "shared race", ("    tile[t + 1] = load(a, i)", "    cuda.syncthreads()\n    tile[t + 1] = load(a, i)"), (BARRIER, "    if i < a.size")),
        wrong("no edges", "uninitialised", (EDGES, "")),
        wrong("no left edge", "uninitialised", ("    if t == 0:\n        tile[0] = load(a, i - 1)\n", "")),
        wrong("no right edge", "uninitialised", ("    if t == THREADS - 1:\n        tile[THREADS + 1] = load(a, i + 1)\n", "")),
        wrong("zeros at the edges", "answer", ("load(a, i - 1)", "0"), ("load(a, i + 1)", "0")),
        wrong("edges exchanged", "answer", ("load(a, i - 1)", "load(a, i + 1)")),
        wrong("my own number at the edge", "answer", ("load(a, i - 1)", "load(a, i)")),
        wrong("no place for the left edge", "out of bounds", (LAST_SUM, "out[i] = tile[t + 1] + tile[t + 2] + tile[t + 3]")),
        wrong("no bound for the output", "out of bounds", ("if i < a.size:", "if True:")),
        wrong("without the tile", "counts", (LAST_SUM, "out[i] = load(a, i - 1) + load(a, i) + load(a, i + 1)")),
        wrong("every thread fetches three", "counts", ("    tile[t + 1] = load(a, i)\n" + EDGES, "    tile[t + 1] = load(a, i - 1) * 0 + load(a, i + 1) * 0 + load(a, i)\n" + EDGES)),
        wrong("two of three", "answer", (LAST_SUM, "out[i] = tile[t] + tile[t + 1]")),
        right("edges by two other threads", ("t == 0:\n        tile[0] = load(a, i - 1)", "t == 1:\n        tile[0] = load(a, i - 2)")),
        right("edges first", ("    tile[t + 1] = load(a, i)\n" + EDGES, EDGES + "    tile[t + 1] = load(a, i)\n")),
        right("a sum step by step", (LAST_SUM, "total = tile[t]\n        for d in range(1, 3):\n            total += tile[t + d]\n        out[i] = total")),
        right("my own number from a register", ("    tile[t + 1] = load(a, i)", "    mine = load(a, i)\n    tile[t + 1] = mine"), (LAST_SUM, "out[i] = mine + tile[t] + tile[t + 2]")),
    ],
    "dot": [
        wrong("no barrier in the loop", "shared race", (STEP, STEP.replace("        cuda.syncthreads()\n", ""))),
        wrong("a barrier of the warp", "shared race", (STEP, STEP.replace("syncthreads", "syncwarp"))),
        wrong("the barrier inside the if", "barrier divergence", (STEP, STEP.replace("        cuda", "            cuda"))),
        wrong("all threads add", "out of bounds", ("if t < half:", "if True:")),
        wrong("one thread too many adds", "out of bounds", ("t < half", "t <= half")),
        wrong("begun with a quarter", "answer", ("THREADS // 2", "THREADS // 4")),
        wrong("begun with the whole", "out of bounds", ("THREADS // 2", "THREADS")),
        wrong("ended one step early", "answer", ("while half > 0", "while half > 1")),
        wrong("a loop without an end", "broken", ("half //= 2", "half = max(half // 2, 1)")),
        wrong("halved twice", "answer", ("half //= 2", "half //= 4")),
        wrong("products once more", "answer", ("part[t] += part[t + half]", "part[t] *= part[t + half]")),
        wrong("the last sum of the block", "answer", ("= part[0]", "= part[THREADS - 1]")),
        wrong("every block to place 0", "answer", ("out[cuda.blockIdx.x]", "out[0]")),
        wrong("added to what was there", "answer", ("= part[0]", "+= part[0]")),
        wrong("every thread writes", "global race", (STORE, STORE.replace("if t == 0", "if t >= 0").replace("part[0]", "part[t]"))),
        wrong("neighbours without a barrier between", "answer", (LOOP, LOOP.replace("part[t] += part[t + half]", "part[2 * t] = part[2 * t] + part[2 * t + 1]"))),
        wrong("one thread adds all", "counts", (LOOP, "    total = float32(0)\n    if t == 0:\n        for k in range(THREADS):\n            total += part[k]\n"), ("part[0]", "total")),
        wrong("halved by /", "broken", ("half //= 2", "half /= 2")),
        wrong("halved before the first step", "answer", ("    while half > 0:\n", "    while half > 0:\n        half //= 2\n"), ("        half //= 2\n    if", "    if")),
        wrong("the threads above return", "barrier divergence", ("            part[t] += part[t + half]\n", "            part[t] += part[t + half]\n        else:\n            return\n")),
        wrong("written to the number's place", "out of bounds", ("out[cuda.blockIdx.x]", "out[i]")),
        wrong("added atomically to nothing", "answer", ("        out[cuda.blockIdx.x] = part[0]", "        cuda.atomic.add(out, cuda.blockIdx.x, part[0])")),
        wrong("pairs in place", "shared race", ("part[t] += part[t + half]", "part[t] = part[2 * t] + part[2 * t + 1]")),
        wrong("the first two numbers at last", "answer", ("= part[0]", "= part[0] + part[1]")),
        wrong("the greater half written over", "answer", ("part[t] += part[t + half]", "part[t + half] += part[t]")),
        wrong("syncthreads not called", "not called", ("        cuda.syncthreads()\n        half", "        cuda.syncthreads\n        half")),
        right("the steps as a for loop", (LOOP, LOOP.replace("    half = THREADS // 2\n    while half > 0:\n", "    for step in range(1, 8):\n        half = THREADS >> step\n").replace("        half //= 2\n", ""))),
        right("strides that double", (LOOP, "    stride = 1\n    while stride < THREADS:\n        if t % (2 * stride) == 0:\n            part[t] += part[t + stride]\n        cuda.syncthreads()\n        stride *= 2\n")),
        right("the last thread writes", ("if t == 0:", "if t == THREADS - 1:")),
        right("the barrier first", (STEP, "        cuda.syncthreads()\n        if t < half:\n            part[t] += part[t + half]\n")),
    ],
    "largest": [
        given("shared race"),
        wrong("no barrier at all", "shared race", ("        cuda.syncthreads()\n        distance", "        distance")),
        wrong("a barrier of the warp", "shared race", ("        cuda.syncthreads()\n        distance", "        cuda.syncwarp()\n        distance")),
        wrong("a barrier for those that compare", "barrier divergence", ("        cuda.syncthreads()\n        distance", "        if t % (2 * distance) == 0:\n            cuda.syncthreads()\n        distance")),
        wrong("a barrier for the first warp", "barrier divergence", ("        cuda.syncthreads()\n        distance", "        if t < 32:\n            cuda.syncthreads()\n        distance")),
        wrong("only above a warp", "shared race", ("        cuda.syncthreads()\n        distance", "        if distance >= 32:\n            cuda.syncthreads()\n        distance")),
        wrong("all but the first step", "shared race", ("        cuda.syncthreads()\n        distance", "        if distance > 1:\n            cuda.syncthreads()\n        distance")),
        wrong("a fence", "shared race", ("        cuda.syncthreads()\n        distance", "        cuda.threadfence_block()\n        distance")),
        wrong("without the first barrier", "shared race", ("    part[t] = a[i]\n    cuda.syncthreads()\n", "    part[t] = a[i]\n")),
        wrong("the smallest", "answer", ("max(part[t], part[t + distance])", "min(part[t], part[t + distance])")),
        wrong("one step less", "answer", ("distance < THREADS", "distance < THREADS // 2")),
        wrong("half of the threads' numbers", "answer", ("distance = 1", "distance = 2")),
        wrong("in place", "input changed", ("    if t == 0:\n        out", "    a[i] = part[0]\n    if t == 0:\n        out")),
        right("at the head of the loop", ("    while distance < THREADS:\n", "    while distance < THREADS:\n        cuda.syncthreads()\n"), ("        cuda.syncthreads()\n        distance", "        distance")),
        right("whole block above a warp, the warp below", ("        cuda.syncthreads()\n        distance", "        if distance > 16:\n            cuda.syncthreads()\n        else:\n            cuda.syncthreads()\n        distance")),
        right("twice", ("        cuda.syncthreads()\n        distance", "        cuda.syncthreads()\n        cuda.syncthreads()\n        distance")),
    ],
    "product": [
        wrong("no barrier before the products", "shared race", (FIRST_BARRIER, "n)")),
        wrong("no barrier after them", "shared race", (SECOND_BARRIER, "tile_B[k, x]")),
        wrong("barriers of the warp", "shared race", (FIRST_BARRIER, FIRST_BARRIER.replace("threads", "warp")), (SECOND_BARRIER, SECOND_BARRIER.replace("threads", "warp"))),
        wrong("a barrier inside the loop over k only", "shared race", (FIRST_BARRIER, "n)"), (SECOND_BARRIER, "tile_B[k, x]\n            cuda.syncthreads()")),
        wrong("a barrier for threads with an output", "barrier divergence", (FIRST_BARRIER, "n)\n        if m < C.shape[0] and n < C.shape[1]:\n            cuda.syncthreads()")),
        wrong("x and y of A exchanged", "answer", ("tile_A[y, x] =", "tile_A[x, y] =")),
        wrong("x and y of B exchanged", "answer", ("tile_B[y, x] =", "tile_B[x, y] =")),
        wrong("the row of A by x", "answer", ("load_2d(A, m, k0 + x)", "load_2d(A, m, k0 + y)")),
        wrong("the row of B by x", "answer", ("load_2d(B, k0 + y, n)", "load_2d(B, k0 + x, n)")),
        wrong("always the first tile", "answer", ("load_2d(A, m, k0 + x)", "load_2d(A, m, x)")),
        wrong("one product too few", "answer", ("range(T):", "range(T - 1):")),
        wrong("a product of the wrong tiles", "answer", ("tile_A[y, k] * tile_B[k, x]", "tile_A[k, y] * tile_B[x, k]")),
        wrong("the total begun anew", "answer", (PRODUCTS, "        total = float32(0)\n" + PRODUCTS)),
        wrong("products from global memory", "counts", ("tile_A[y, k] * tile_B[k, x]", "load_2d(A, m, k0 + k) * load_2d(B, k0 + k, n)")),
        wrong("past the edges", "out of bounds", ("load_2d(A, m, k0 + x)", "A[m, k0 + x]")),
        wrong("one thread copies all", "counts", ("        tile_A[y, x] = load_2d(A, m, k0 + x)\n", "        if x == 0 and y == 0:\n            for r in range(T):\n                for c in range(T):\n                    tile_A[r, c] = load_2d(A, m + r, k0 + c)\n")),
        wrong("terms of the whole row", "out of bounds", ("for k in range(T):", "for k in range(A.shape[1]):")),
        wrong("the last product alone", "answer", ("total += tile_A", "total = tile_A")),
        wrong("steps counted in tiles", "answer", ("load_2d(A, m, k0 + x)", "load_2d(A, m, k0 * T + x)"), ("load_2d(B, k0 + y, n)", "load_2d(B, k0 * T + y, n)")),
        wrong("columns of both", "answer", ("tile_B[k, x]", "tile_B[x, k]")),
        wrong("its own row of the step", "answer", ("load_2d(B, k0 + y, n)", "load_2d(B, y, n)")),
        wrong("read without load_2d", "out of bounds", ("load_2d(A, m, k0 + x)", "A[m, k0 + x]")),
        wrong("added, not multiplied", "answer", ("tile_A[y, k] * tile_B[k, x]", "tile_A[y, k] + tile_B[k, x]")),
        wrong("the row for the column of A", "answer", ("load_2d(A, m, k0 + x)", "load_2d(A, n, k0 + x)")),
        wrong("an array of each thread's own", "uninitialised", ("tile_B = cuda.shared", "tile_B = cuda.local")),
        wrong("products of the warp's own k", "answer", ("for k in range(T):", "for k in range(y, T):")),
        right("B's tile first", ("        tile_A[y, x] = load_2d(A, m, k0 + x)\n        tile_B[y, x] = load_2d(B, k0 + y, n)\n", "        tile_B[y, x] = load_2d(B, k0 + y, n)\n        tile_A[y, x] = load_2d(A, m, k0 + x)\n")),
        right("the second barrier first", ("        tile_A[y, x] = load_2d(A, m, k0 + x)\n", "        cuda.syncthreads()\n        tile_A[y, x] = load_2d(A, m, k0 + x)\n"), (SECOND_BARRIER, "tile_B[k, x]")),
        right("k counted down", ("for k in range(T):", "for k in range(T - 1, -1, -1):")),
        right("A's tile transposed", ("tile_A[y, x] =", "tile_A[x, y] ="), ("tile_A[y, k]", "tile_A[k, y]")),
    ],
}
