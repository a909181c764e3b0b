"""Answers to the exercises of lesson 17."""

from check_answers import given, right, wrong

ABOVE = "if y == 0 and row > 0:"
BELOW = "if y == T - 1 and row < rows - 1:"
LEFT = "if x == 0 and column > 0:"
RIGHT = "if x == T - 1 and column < columns - 1:"
INNER = "    if 0 < row < rows - 1 and 0 < column < columns - 1:\n        around"
PIXELS = """    for row in range(1, rows - 1):
        for column in range(1, columns - 1):
            around = a[row - 1 : row + 2, column - 1 : column + 2]
            made[row, column] = (weights * around).sum() / 16"""
GUARD = "if 0 < row < rows - 1 and 0 < column < columns - 1:"
LAST_CORNERS = "corners += a[row + 1, column - 1] + a[row + 1, column + 1]"
RIM = """    elif row < rows and column < columns:
        out[row, column] = a[row, column]"""
ENDS = """    if 0 < i < f.size - 1:
        out[i] = part[t] - 2 * part[t + 1] + part[t + 2]
    elif i < f.size:
        out[i] = 0"""
LOADS = """    if i < f.size:
        part[t + 1] = f[i]
        if t == 0 and i > 0:
            part[0] = f[i - 1]
        if t == THREADS - 1 and i < f.size - 1:
            part[THREADS + 1] = f[i + 1]
    cuda.syncthreads()
"""
FIRST = "part[t] = a[i] if i < a.size else float32(0)"
IN_TWO = """        before = float32(0)
        if t >= step:
            before = part[t - step]
        cuda.syncthreads()
        part[t] += before
        cuda.syncthreads()
"""
SUM = """    while distance > 0:
        total += cuda.shfl_xor_sync(ALL, total, distance)
        distance //= 2
"""
MINE = "mine = a[i] if i < a.size else float32(0)"

ANSWERS = {
    "halo": [
        given("out of bounds"),
        wrong("only the guard above is fixed", "out of bounds", (RIGHT, "if x == T - 1 and row < rows - 1:")),
        wrong("only the guard at the right is fixed", "out of bounds", (ABOVE, "if y == 0 and column > 0:")),
        wrong("no guard above", "out of bounds", (ABOVE, "if y == 0:")),
        wrong("no guard at the right", "out of bounds", (RIGHT, "if x == T - 1:")),
        wrong("no guard below", "out of bounds", (BELOW, "if y == T - 1:")),
        wrong("the right guard one too wide", "out of bounds", (RIGHT, "if x == T - 1 and column < columns:")),
        wrong("the guard above one too wide", "out of bounds", (ABOVE, "if y == 0 and row >= 0:")),
        wrong("rows for columns at the right", "uninitialised", (RIGHT, "if x == T - 1 and column < rows - 1:")),
        wrong("one guard or the other", "out of bounds", (RIGHT, "if x == T - 1 and (column < columns - 1 or row < rows - 1):")),
        wrong("no load above", "uninitialised", (ABOVE, "if False:")),
        wrong("no load at the right", "uninitialised", (RIGHT, "if False:")),
        wrong("a guard above that lets one row through", "uninitialised", (ABOVE, "if y == 0 and row > T:")),
        wrong("a guard at the right that stops too early", "uninitialised", (RIGHT, "if x == T - 1 and column < columns - T:")),
        wrong("halo above and below exchanged", "answer", ("tile[0, x + 1] = a[row - 1", "tile[0, x + 1] = a[row"),),
        wrong("the barrier left out", "shared race", ("    cuda.syncthreads()\n", "")),
        wrong("the barrier for those with a point", "barrier divergence", ("    cuda.syncthreads()\n", "        cuda.syncthreads()\n")),
        right("guards by the last index", (RIGHT, "if x == T - 1 and column + 1 < columns:"), (ABOVE, "if y == 0 and row >= 1:")),
        right("guards that are not needed elsewhere", (ABOVE, "if y == 0 and row != 0:")),
        right("guards by both indices", (ABOVE, "if y == 0 and 0 < row < rows:"), (RIGHT, "if x == T - 1 and 0 <= column < columns - 1:")),
        right("guards nested", (ABOVE, "if y == 0:\n         if row > 0:")),
    ],
    "wanted": [
        wrong("the plain mean", "answer", ("(weights * around).sum() / 16", "around.mean()")),
        wrong("not divided", "answer", (".sum() / 16", ".sum()")),
        wrong("divided by the number of taps", "answer", (".sum() / 16", ".sum() / 9")),
        wrong("one row less", "answer", ("range(1, rows - 1)", "range(1, rows - 2)")),
        wrong("one column less", "answer", ("range(1, columns - 1)", "range(1, columns - 2)")),
        wrong("the first row left out", "answer", ("range(1, rows - 1)", "range(2, rows - 1)")),
        wrong("rows and columns exchanged", "broken", ("range(1, rows - 1):\n        for column in range(1, columns - 1)", "range(1, columns - 1):\n        for column in range(1, rows - 1)")),
        wrong("a window of two rows", "broken", ("row - 1 : row + 2,", "row - 1 : row + 1,")),
        wrong("a window one to the right", "broken", ("column - 1 : column + 2]", "column : column + 3]")),
        wrong("in place", "answer", ("around = a[", "around = made[")),
        wrong("the middle twice", "answer", (".sum() / 16", ".sum() / 16 + a[row, column] / 16")),
        wrong("without the middle", "answer", (".sum() / 16", ".sum() / 16 - a[row, column] / 4")),
        wrong("weights' sum by hand, wrong", "answer", (".sum() / 16", ".sum() / 15")),
        wrong("returns nothing", "answer", ("return made", "made")),
        wrong("the rim is zero", "answer", ("made = a.copy()", "made = np.zeros_like(a)")),
        right("by slices", (PIXELS, "    made[1:-1, 1:-1] = sum(weights[u, v] * a[u : rows - 2 + u, v : columns - 2 + v] for u in range(3) for v in range(3)) / 16")),
        right("divided by the weights' sum", (".sum() / 16", ".sum() / weights.sum()")),
        right("tap by tap", ("            made[row, column] = (weights * around).sum() / 16", "            total = 0.0\n            for u in range(3):\n                for v in range(3):\n                    total += weights[u, v] * around[u, v]\n            made[row, column] = total / 16")),
        right("as a dot product", ("(weights * around).sum()", "weights.ravel() @ around.ravel()")),
    ],
    "blur": [
        given("out of bounds"),
        wrong("only the tap is fixed", "out of bounds", (GUARD, "if row < rows and column < columns:")),
        wrong("only the guard is fixed", "answer", (LAST_CORNERS, "corners += a[row + 1, column - 1] + a[row - 1, column + 1]")),
        wrong("the guard for rows only", "out of bounds", (GUARD, "if 0 < row < rows - 1 and column < columns:")),
        wrong("the guard for columns only", "out of bounds", (GUARD, "if row < rows and 0 < column < columns - 1:")),
        wrong("no guard at the far side", "out of bounds", (GUARD, "if 0 < row < rows and 0 < column < columns:")),
        wrong("no guard at the near side", "out of bounds", (GUARD, "if row < rows - 1 and column < columns - 1:")),
        wrong("a guard that is too narrow", "answer", (GUARD, "if 1 < row < rows - 2 and 1 < column < columns - 2:")),
        wrong("one guard or the other", "out of bounds", (GUARD, "if 0 < row < rows - 1 or 0 < column < columns - 1:")),
        wrong("rows and columns exchanged in the guard", "out of bounds", (GUARD, "if 0 < row < columns - 1 and 0 < column < rows - 1:")),
        wrong("the rim is not written", "answer", (RIM, "")),
        wrong("the rim is zero", "answer", (RIM, RIM.replace("= a[row, column]", "= 0"))),
        wrong("another corner twice", "answer", (LAST_CORNERS, "corners += a[row + 1, column - 1] + a[row + 1, column - 1]")),
        wrong("a side for the corner", "answer", (LAST_CORNERS, "corners += a[row + 1, column - 1] + a[row + 1, column]")),
        wrong("the corner left out", "answer", (LAST_CORNERS, "corners += a[row + 1, column - 1]")),
        wrong("the rim's guard left out", "out of bounds", ("    elif row < rows and column < columns:", "    else:")),
        wrong("in place", "input changed", ("out[row, column] = float32(0.0625) * (corners + 2 * sides + 4 * a[row, column])", "a[row, column] = float32(0.0625) * (corners + 2 * sides + 4 * a[row, column]); out[row, column] = a[row, column]")),
        right("the rim first", (GUARD, "if row < rows and column < columns:\n        out[row, column] = a[row, column]\n    " + GUARD), (RIM, "")),
        right("as loops over the taps", (LAST_CORNERS, LAST_CORNERS.replace("a[row + 1, column - 1] + a[row + 1, column + 1]", "a[row + 1, column + 1] + a[row + 1, column - 1]"))),
        right("a guard by products", (GUARD, "if row > 0 and column > 0 and row + 1 < rows and column + 1 < columns:")),
        right("returning early", ("    " + GUARD, "    if row >= rows or column >= columns:\n        return\n    " + GUARD), ("    elif row < rows and column < columns:", "    else:")),
    ],
    "difference": [
        given("barrier divergence"),
        wrong("the return stays", "barrier divergence", (LOADS, "    if i >= f.size:\n        return\n" + LOADS)),
        wrong("the barrier for those with a number", "barrier divergence", ("    cuda.syncthreads()\n", "    if i < f.size:\n        cuda.syncthreads()\n")),
        wrong("a barrier in both branches' first", "barrier divergence", ("            part[THREADS + 1] = f[i + 1]\n    cuda.syncthreads()", "            part[THREADS + 1] = f[i + 1]\n        cuda.syncthreads()")),
        wrong("no barrier", "shared race", ("    cuda.syncthreads()\n", "")),
        wrong("the last element has a difference", "uninitialised", ("if 0 < i < f.size - 1:", "if 0 < i < f.size:")),
        wrong("the first element has a difference", "uninitialised", ("if 0 < i < f.size - 1:", "if i < f.size - 1:")),
        wrong("a return at the last element only", "uninitialised", ("if 0 < i < f.size - 1:", "if 0 < i <= f.size - 1:")),
        wrong("no guard for the loads", "out of bounds", ("    if i < f.size:\n        part", "    if True:\n        part")),
        wrong("no guard for the ends", "out of bounds", ("elif i < f.size:", "else:")),
        wrong("the last load has no guard", "out of bounds", ("t == THREADS - 1 and i < f.size - 1", "t == THREADS - 1")),
        wrong("the first load has no guard", "out of bounds", ("t == 0 and i > 0", "t == 0")),
        wrong("the ends are not written", "answer", ("    elif i < f.size:\n        out[i] = 0", "")),
        wrong("zeros past the end", "answer", (LOADS, LOADS.replace("    cuda.syncthreads()", "    else:\n        part[t + 1] = 0\n    cuda.syncthreads()")), ("if 0 < i < f.size - 1:", "if 0 < i < f.size - 2:")),
        wrong("one element too few", "answer", ("if 0 < i < f.size - 1:", "if 1 < i < f.size - 1:")),
        wrong("a right halo that nobody fetches", "uninitialised", ("t == THREADS - 1 and i < f.size - 1", "t == THREADS and i < f.size - 1")),
        wrong("a barrier of the warp for some", "shared race", ("    cuda.syncthreads()\n", "    if i < f.size - 1:\n        cuda.syncwarp(1 << (t % 32))\n")),
        right("returning after the barrier", ("    cuda.syncthreads()\n", "    cuda.syncthreads()\n    if i >= f.size:\n        return\n")),
        right("zeros past the end of the array", ("            part[THREADS + 1] = f[i + 1]\n", "            part[THREADS + 1] = f[i + 1]\n    else:\n        part[t + 1] = 0\n")),
        right("as a difference of differences", ("part[t] - 2 * part[t + 1] + part[t + 2]", "(part[t] - part[t + 1]) + (part[t + 2] - part[t + 1])")),
        right("a warp's barrier, because the block is one warp", ("cuda.syncthreads()", "cuda.syncwarp()")),
        right("the ends first", (ENDS, "    if i == 0 or i == f.size - 1:\n        out[i] = 0\n    elif i < f.size:\n        out[i] = part[t] - 2 * part[t + 1] + part[t + 2]")),
    ],
    "scan": [
        given("shared race"),
        wrong("only the zeros", "shared race", (IN_TWO, "        if t >= step:\n            part[t] += part[t - step]\n        cuda.syncthreads()\n")),
        wrong("only the two halves", "uninitialised", (f"    {FIRST}\n", "    if i < a.size:\n        part[t] = a[i]\n")),
        wrong("no barrier between the halves", "shared race", (IN_TWO, IN_TWO.replace("        cuda.syncthreads()\n        part", "        part"))),
        wrong("no barrier after the halves", "shared race", (IN_TWO, IN_TWO.replace("+= before\n        cuda.syncthreads()", "+= before"))),
        wrong("no barrier after the load", "shared race", (f"    {FIRST}\n    cuda.syncthreads()\n", f"    {FIRST}\n")),
        wrong("a barrier for those that add", "barrier divergence", (IN_TWO, IN_TWO.replace("            before = part[t - step]\n        cuda", "            before = part[t - step]\n            cuda"))),
        wrong("barriers of the warp", "shared race", (IN_TWO, IN_TWO.replace("syncthreads", "syncwarp"))),
        wrong("a fence between", "shared race", (IN_TWO, IN_TWO.replace("        cuda.syncthreads()\n        part", "        cuda.threadfence_block()\n        part"))),
        wrong("read from the front", "shared race", (IN_TWO, "        if t >= step:\n            part[t] = part[t - step] + part[t]\n        cuda.syncthreads()\n")),
        wrong("one step less", "answer", ("while step < SCANNED", "while step < SCANNED // 2")),
        wrong("steps by one", "answer", ("step *= 2", "step += 1")),
        wrong("without the first step", "answer", ("step = 1", "step = 2")),
        wrong("the sum before the number", "answer", ("out[i] = part[t]", "out[i] = part[t] - a[i]")),
        wrong("a one for threads without a number", "answer", ("out[i] = part[t]", "out[i] = part[SCANNED - 1]")),
        wrong("past the end", "out of bounds", ("    if i < a.size:\n        out", "    if True:\n        out")),
        wrong("returning past the end", "barrier divergence", (f"    {FIRST}\n", f"    {FIRST}\n    if i >= a.size:\n        return\n")),
        wrong("added backwards", "answer", ("part[t - step]", "part[SCANNED - 1 - t]")),
        wrong("the step one too far", "answer", ("if t >= step", "if t > step")),
        wrong("returned for the threads below", "barrier divergence", ("        if t >= step:\n", "        if t < step:\n            return\n        if True:\n")),
        wrong("the block's sums go on", "answer", ("        out[i] = part[t]", "        out[i] = part[t] + a[0]")),
        wrong("one barrier for the step, before it", "shared race", ("        part[t] += before\n        cuda.syncthreads()\n", "        part[t] += before\n")),
        wrong("the number itself for what is before", "answer", ("before = part[t - step]", "before = part[t]")),
        wrong("doubled once too often", "answer", ("step *= 2", "step *= 4")),
        wrong("sums in the input", "input changed", ("    if i < a.size:\n        out[i]", "    if i < a.size:\n        a[i] = part[t]\n        out[i]")),
        wrong("only the zero for every number", "answer", ("part[t] = a[i] if i < a.size else float32(0)", "part[t] = float32(0)")),
        wrong("syncthreads not called", "not called", ("        cuda.syncthreads()\n        part", "        cuda.syncthreads\n        part")),
        right("two arrays that take turns", (IN_TWO, "        if t >= step:\n            other[t] = part[t] + part[t - step]\n        else:\n            other[t] = part[t]\n        cuda.syncthreads()\n        part[t] = other[t]\n        cuda.syncthreads()\n"), (f"    {FIRST}\n", f"    other = cuda.shared.array(SCANNED, float32)\n    {FIRST}\n")),
        right("both in variables", (IN_TWO, "        now = part[t]\n        if t >= step:\n            now += part[t - step]\n        cuda.syncthreads()\n        part[t] = now\n        cuda.syncthreads()\n")),
        right("a barrier first", (f"    {FIRST}\n    cuda.syncthreads()\n", f"    {FIRST}\n"), (IN_TWO, IN_TWO.replace("        before = float32(0)\n", "        before = float32(0)\n        cuda.syncthreads()\n").replace("+= before\n        cuda.syncthreads()\n", "+= before\n"))),
        right("a zero by an if", (f"    {FIRST}\n", "    part[t] = 0\n    if i < a.size:\n        part[t] = a[i]\n")),
    ],
    "shares": [
        given("answer"),
        wrong("only lane 0's sum", "answer", ("shfl_xor_sync", "shfl_down_sync")),
        wrong("only the mask", "inactive lane", (MINE, "mine = float32(0)"), (SUM, "    if i < a.size:\n        mine = a[i]\n        total = mine\n        while distance > 0:\n            total += cuda.shfl_xor_sync(ALL, total, distance)\n            distance //= 2\n")),
        wrong("a return before the shuffles", "inactive lane", (f"    {MINE}\n", f"    if i >= a.size:\n        return\n    {MINE}\n")),
        wrong("the sum from below", "answer", ("shfl_xor_sync", "shfl_up_sync")),
        wrong("lane 0's own number for all", "answer", (SUM, "    total = cuda.shfl_sync(ALL, mine, 0)\n")),
        wrong("the sum of a half", "answer", ("distance = 16", "distance = 8")),
        wrong("one step less", "answer", ("distance > 0", "distance > 1")),
        wrong("a one for lanes without a number", "answer", (MINE, MINE.replace("float32(0)", "float32(1)"))),
        wrong("no guard for the load", "out of bounds", (MINE, "mine = a[i]")),
        wrong("no guard for the store", "out of bounds", ("    if i < a.size:\n        out", "    if True:\n        out")),
        wrong("only lane 0 writes", "answer", ("    if i < a.size:\n        out", "    if i < a.size and cuda.laneid == 0:\n        out")),
        wrong("the last lane's for all", "answer", (SUM, SUM.replace("xor", "down") + "    total = cuda.shfl_sync(ALL, total, 31)\n")),
        wrong("the sum itself", "answer", ("mine / total", "total")),
        wrong("distances that grow too far", "answer", (SUM, "    distance = 1\n    while distance < 16:\n        total += cuda.shfl_xor_sync(ALL, total, distance)\n        distance *= 2\n")),
        wrong("a mask of half a warp", "inactive lane", ("cuda.shfl_xor_sync(ALL", "cuda.shfl_xor_sync(0xFFFF")),
        right("lane 0 sends its sum to all", (SUM, SUM.replace("xor", "down") + "    total = cuda.shfl_sync(ALL, total, 0)\n")),
        right("distances that grow", (SUM, "    distance = 1\n    while distance < 32:\n        total += cuda.shfl_xor_sync(ALL, total, distance)\n        distance *= 2\n")),
        right("the zero first", (f"    {MINE}\n", "    mine = float32(0)\n    if i < a.size:\n        mine = a[i]\n")),
        right("through shared memory", (SUM, "    box = cuda.shared.array(1, float32)\n    if cuda.threadIdx.x == 0:\n        box[0] = 0\n    cuda.syncthreads()\n    cuda.atomic.add(box, 0, mine)\n    cuda.syncthreads()\n    total = box[0]\n")),
    ],
}
