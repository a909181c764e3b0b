# %% [markdown]
"""
# Find two bugs in a public kernel

**You will be able to** read a kernel that somebody published, find what is wrong with it, and say why its
tests did not notice.

Each kernel below does what a public one does, and has its fault. We wrote the kernels anew, and each of them
has **two bugs**. Where the report tells of one, the other is ours. You should know shared memory and barriers
([00b](00b_small_kernels.ipynb)). The last section explains shuffles.

Before you run a check, read the kernel and write down what you suspect. A check names the lines of a fault,
and then there is nothing left to find.
"""

# %% setup=true
import numpy as np
from numba import cuda, float32

from convlab import trace
from convlab.lessons import On, check_function, check_kernel, who_does_what

weights = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]], np.float32)
numbers = np.random.default_rng(17).standard_normal(4000, dtype=np.float32)


def image(rows, columns):
    return numbers[: rows * columns].reshape(rows, columns)


def vector(size):
    return numbers[:size].copy()


# %% [markdown]
"""
## 1. Two guards on the wrong axis

The public kernel relaxes a plate: each inner point becomes the mean of its four neighbours. A block copies
its tile of 8 x 8 points into shared memory, and a **halo** around it: the points next to the tile, which
belong to other blocks. Threads at the tile's sides fetch the halo.

At the rim of the plate there is no neighbour to fetch. Each of the four loads has a guard for that, and two
of the guards ask for the wrong thing.

*The report:* [public programs](../docs/ledger.md), `laplace2d-numba-cuda-smem.py` of
[numba/numba-examples](https://github.com/numba/numba-examples/blob/c423f5419a459f5ab8874fda6d39bb5ea05d04b2/legacy/laplace2d/laplace2d-numba-cuda-smem.py).
Its result may be right on a GPU all the same, because no point uses what the wrong loads fetch.

<details><summary>Tip: what should I ask about each guard?</summary>

Which neighbour does the line below it fetch: the row above, the row below, the column to the left or to the
right? When is that neighbour outside of the plate?
</details>
<details><summary>Tip: the plan</summary>

Write for each load which index it changes, by how much, and which index its guard tests. They must be the
same index.
</details>
"""

# %% hunt="halo"
T = 8
SIDE = T + 2  # of the tile with its halo; sizes of shared arrays are constants


@cuda.jit
def relax(a, out):
    tile = cuda.shared.array((SIDE, SIDE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    rows, columns = a.shape
    if row < rows and column < columns:
        tile[y + 1, x + 1] = a[row, column]
        ### BEGIN SOLUTION
        if y == 0 and row > 0:
            tile[0, x + 1] = a[row - 1, column]
        if y == T - 1 and row < rows - 1:
            tile[T + 1, x + 1] = a[row + 1, column]
        if x == 0 and column > 0:
            tile[y + 1, 0] = a[row, column - 1]
        if x == T - 1 and column < columns - 1:
            tile[y + 1, T + 1] = a[row, column + 1]
        ### PLANTED
        #: if y == 0 and column > 0:
        #:     tile[0, x + 1] = a[row - 1, column]
        #: if y == T - 1 and row < rows - 1:
        #:     tile[T + 1, x + 1] = a[row + 1, column]
        #: if x == 0 and column > 0:
        #:     tile[y + 1, 0] = a[row, column - 1]
        #: if x == T - 1 and row < rows - 1:
        #:     tile[y + 1, T + 1] = a[row, column + 1]
        ### END SOLUTION
    cuda.syncthreads()
    if 0 < row < rows - 1 and 0 < column < columns - 1:
        around = tile[y, x + 1] + tile[y + 2, x + 1] + tile[y + 1, x] + tile[y + 1, x + 2]
        out[row, column] = float32(0.25) * around
    elif row < rows and column < columns:
        out[row, column] = a[row, column]


# %% [markdown]
"""
Which threads of a block in the middle of the plate fetch which part of tile and halo:
"""

# %%
middle = trace(relax, (3, 3), (T, T), image(24, 32), np.zeros((24, 32), np.float32), block_shown=4).main
who_does_what(middle, "tile")

# %% check="halo"
def relaxed(a):
    wanted = a.copy()
    wanted[1:-1, 1:-1] = (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]) / 4
    return wanted


check_kernel(
    relax,
    relaxed,
    [
        On(grid=(1, 1), block=(T, T), inputs=(image(8, 8),)),
        On(grid=(2, 2), block=(T, T), inputs=(image(16, 16),)),
        On(grid=(3, 2), block=(T, T), inputs=(image(13, 21),)),
    ],
)

# %% [markdown]
"""
## 2. A picture with a rim, and a tap that counts twice

The public kernel blurs a picture: each pixel becomes a weighted mean of its 3 x 3 neighbours, with the
weights 1, 2, 1 / 2, 4, 2 / 1, 2, 1, divided by 16. Each of the nine products is a **tap**.

*The report:* [public programs](../docs/ledger.md), `42__kernel_authoring__gaussian_blur.ipynb` of
[NVIDIA/accelerated-computing-hub](https://github.com/NVIDIA/accelerated-computing-hub/blob/a776efdfc2fba159a0aecced3e7c0dfafaf81b8b/tutorials/accelerated-python/notebooks/kernels/42__kernel_authoring__gaussian_blur.ipynb).

One bug is an access outside of the picture, which the simulator finds by itself. The other one touches only
memory of the picture, so no check of memory can find it: somebody has to say what is wanted.

### Your turn: say what is wanted

Write the blur with NumPy, or with plain loops: it need not be fast. `weights` is the 3 x 3 matrix of weights. The rim, where a pixel has no 3 x 3
neighbours, keeps its numbers.
"""

# %% [markdown]
"""
<details><summary>Tip: which numbers does the result of one pixel need, and which pixels have all of them?</summary>

The nine pixels around it, itself included. The first and the last row have a neighbour missing, and so have the first and
the last column.
</details>
<details><summary>Tip: the plan</summary>

Two loops, over rows `1` to `rows - 2` and columns `1` to `columns - 2`, both included. For each pixel multiply the 3 x 3
matrix around it by `weights`, add up, divide by 16. Read from `a` and write to `made`.
</details>
<details><summary>Tip: the code</summary>

`a[row - 1 : row + 2, column - 1 : column + 2]` is the 3 x 3 matrix around a pixel.
</details>
"""

# %% exercise="wanted"
def blurred(a):
    made = a.copy()
    rows, columns = a.shape
    ### BEGIN SOLUTION: each pixel with 3 x 3 neighbours becomes their weighted mean
    for row in range(1, rows - 1):
        for column in range(1, columns - 1):
            around = a[row - 1 : row + 2, column - 1 : column + 2]
            made[row, column] = (weights * around).sum() / 16
    ### END SOLUTION
    return made


# %% check="wanted"
def our_blur(a):
    made = np.array(a)
    windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3))
    made[1:-1, 1:-1] = np.einsum("rcuv,uv->rc", windows, weights) / 16
    return made


check_function(
    blurred,
    our_blur,
    lambda: [(1 + abs(image(*shape)),) for shape in ((3, 3), (4, 6), (7, 5))],
    within=1e-5,
)

# %% [markdown]
"""
### Find both bugs

<details><summary>Tip: which pixels have a neighbour that is not there?</summary>

Look at the guard in the first line. Which rows and columns does it let through? For which of them is
`row - 1` or `column + 1` outside?
</details>
<details><summary>Tip: the plan</summary>

Nine pixels are around, and four of them are corners. Write their places as (up or down, left or right), and
tick each one that you find in the sum.
</details>
"""

# %% hunt="blur"
@cuda.jit
def blur(a, out):
    column, row = cuda.grid(2)
    rows, columns = a.shape
    ### BEGIN SOLUTION
    if 0 < row < rows - 1 and 0 < column < columns - 1:
        sides = a[row - 1, column] + a[row + 1, column] + a[row, column - 1] + a[row, column + 1]
        corners = a[row - 1, column - 1] + a[row - 1, column + 1]
        corners += a[row + 1, column - 1] + a[row + 1, column + 1]
        out[row, column] = float32(0.0625) * (corners + 2 * sides + 4 * a[row, column])
    elif row < rows and column < columns:
        out[row, column] = a[row, column]
    ### PLANTED
    #: if row < rows and column < columns:
    #:     sides = a[row - 1, column] + a[row + 1, column] + a[row, column - 1] + a[row, column + 1]
    #:     corners = a[row - 1, column - 1] + a[row - 1, column + 1]
    #:     corners += a[row + 1, column - 1] + a[row - 1, column + 1]
    #:     out[row, column] = float32(0.0625) * (corners + 2 * sides + 4 * a[row, column])
    ### END SOLUTION


# %% check="blur"
check_kernel(
    blur,
    our_blur,
    [
        On(grid=(1, 1), block=(8, 4), inputs=(image(3, 5),)),
        On(grid=(2, 2), block=(8, 4), inputs=(image(8, 16),)),
        On(grid=(2, 3), block=(8, 4), inputs=(image(9, 13),)),
    ],
)

# %% [markdown]
"""
## 3. A return before the barrier

The public kernel computes derivatives of a function from its values: numbers in shared memory, neighbours in
the halo, a barrier, differences. Two public programs return from threads past the end of the array, as a
kernel without a barrier may. Here is one of them, for the second difference
`f[i - 1] - 2 * f[i] + f[i + 1]`. Both ends have no such difference: there `out` is 0.

*The reports:* [public programs](../docs/ledger.md), `shared.py` of
[TheSong96/ME574-Applied-Parallel-Computing](https://github.com/TheSong96/ME574-Applied-Parallel-Computing/blob/36f5415cecd2620177042d3115de5ddc418a5b62/hw3/shared.py)
and `gpu_v2.py` of
[liltommy142/cuda-nms-numba](https://github.com/liltommy142/cuda-nms-numba/blob/114df94ff8a6a3f17eef96c51c35584b52407473/src/gpu_v2.py).
The second bug is ours.

<details><summary>Tip: who waits for whom?</summary>

A barrier waits for all threads of the block. Which threads never reach it?
</details>
<details><summary>Tip: the plan</summary>

Go through the elements of `part` for the last thread that has a number. Which thread writes the element that
it reads on the right?
</details>
"""

# %% hunt="difference"
THREADS = 32
PLACES = THREADS + 2


@cuda.jit
def second_difference(f, out):
    part = cuda.shared.array(PLACES, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < f.size:
        part[t + 1] = f[i]
        if t == 0 and i > 0:
            part[0] = f[i - 1]
        if t == THREADS - 1 and i < f.size - 1:
            part[THREADS + 1] = f[i + 1]
    cuda.syncthreads()
    if 0 < i < f.size - 1:
        out[i] = part[t] - 2 * part[t + 1] + part[t + 2]
    elif i < f.size:
        out[i] = 0
    ### PLANTED
    #: if i >= f.size:
    #:     return
    #: part[t + 1] = f[i]
    #: if t == 0 and i > 0:
    #:     part[0] = f[i - 1]
    #: if t == THREADS - 1 and i < f.size - 1:
    #:     part[THREADS + 1] = f[i + 1]
    #: cuda.syncthreads()
    #: if i > 0:
    #:     out[i] = part[t] - 2 * part[t + 1] + part[t + 2]
    #: else:
    #:     out[i] = 0
    ### END SOLUTION


# %%
who_does_what(trace(second_difference, 2, THREADS, vector(40), vector(40), block_shown=1).main, "part")

# %% check="difference"
def differences(f):
    wanted = np.zeros_like(f)
    wanted[1:-1] = f[:-2] - 2 * f[1:-1] + f[2:]
    return wanted


check_kernel(
    second_difference,
    differences,
    [On(grid=(size + 31) // 32, block=THREADS, inputs=(vector(size),)) for size in (3, 32, 40, 97)],
)

# %% [markdown]
"""
## 4. A scan in place

A **scan** replaces each number by the sum of all numbers up to it. This one takes six steps for 64 numbers: in
the steps each thread adds the number that is 1, 2, 4, 8, 16 and 32 places before its own. Each block scans
its own 64 numbers.

The public kernel was the *solution* of a puzzle. It reads and writes the same array in the same step.

*The report:* [modular/mojo-gpu-puzzles, issue 26](https://github.com/modular/mojo-gpu-puzzles/issues/26). The
same fault: [ORNL/HeCBench, issue 255](https://github.com/ORNL/HeCBench/issues/255). The second bug is ours.

<details><summary>Tip: what may happen between two lines?</summary>

Thread 5 adds what thread 4 holds. Thread 4 adds in the same step. Does thread 5 read before or after that?
</details>
<details><summary>Tip: the plan</summary>

Make two halves of a step: first all threads read into a variable of their own; when all have read, all add. And look at the
last block: it has threads without a number. What do these threads add to?
</details>
"""

# %% hunt="scan"
SCANNED = 64


@cuda.jit
def running_sums(a, out):
    part = cuda.shared.array(SCANNED, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    part[t] = a[i] if i < a.size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < SCANNED:
        before = float32(0)
        if t >= step:
            before = part[t - step]
        cuda.syncthreads()
        part[t] += before
        cuda.syncthreads()
        step *= 2
    ### PLANTED
    #: if i < a.size:
    #:     part[t] = a[i]
    #: cuda.syncthreads()
    #: step = 1
    #: while step < SCANNED:
    #:     if t >= step:
    #:         part[t] += part[t - step]
    #:     cuda.syncthreads()
    #:     step *= 2
    ### END SOLUTION
    if i < a.size:
        out[i] = part[t]


# %% check="scan"
def sums_of_blocks(a):
    return np.concatenate([a[n : n + SCANNED].cumsum() for n in range(0, a.size, SCANNED)])


check_kernel(
    running_sums,
    sums_of_blocks,
    [On(grid=(size + 63) // 64, block=SCANNED, inputs=(1 + abs(vector(size)),)) for size in (5, 64, 150)],
)

# %% [markdown]
"""
## 5. A warp's sum that only one lane has

Lanes of a warp can exchange numbers without memory, by a **shuffle**. `cuda.shfl_down_sync(mask, x, 16)` gives
each lane the `x` of the lane 16 further on. `cuda.shfl_xor_sync(mask, x, 16)` lets lanes exchange their numbers in
pairs: lanes 0 and 16, 1 and 17, and so on. The mask has a bit for each lane that takes part: all of them must reach the
shuffle.

Five shuffles with 16, 8, 4, 2 and 1 add up 32 numbers. Here each lane then divides its number by the sum.

*The reports:* [CFD-GO/TCLB, pull request 287](https://github.com/CFD-GO/TCLB/pull/287), where all lanes used the
sum, and [NVIDIA/cuda-samples, issue 398](https://github.com/NVIDIA/cuda-samples/issues/398), where the mask is
questioned.

<details><summary>Tip: which numbers does one lane get, step by step?</summary>

After the shuffle by 16, lane 0 has the sum of lanes 0 and 16. What has lane 31? The lane 16 further on does
not exist, so it gets its own number.
</details>
<details><summary>Tip: the plan</summary>

The mask names 32 lanes. In the last warp of an array of 40 numbers, how many lanes reach the shuffle? A lane
without a number can take part with a 0.
</details>
"""

# %% hunt="shares"
ALL = 0xFFFFFFFF


@cuda.jit
def shares(a, out):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    mine = a[i] if i < a.size else float32(0)
    total = mine
    distance = 16
    while distance > 0:
        total += cuda.shfl_xor_sync(ALL, total, distance)
        distance //= 2
    if i < a.size:
        out[i] = mine / total
    ### PLANTED
    #: if i < a.size:
    #:     mine = a[i]
    #:     total = mine
    #:     distance = 16
    #:     while distance > 0:
    #:         total += cuda.shfl_down_sync(ALL, total, distance)
    #:         distance //= 2
    #:     out[i] = mine / total
    ### END SOLUTION


# %%
who_does_what(trace(shares, 2, 32, 1 + abs(vector(40)), vector(40), block_shown=1).main, "out")

# %% check="shares"
def shares_of_warps(a):
    return np.concatenate([a[n : n + 32] / a[n : n + 32].sum() for n in range(0, a.size, 32)])


check_kernel(
    shares,
    shares_of_warps,
    [On(grid=(size + 31) // 32, block=32, inputs=(1 + abs(vector(size)),)) for size in (7, 32, 40, 96)],
)

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>The relaxation's result may be right on a GPU. Why is its bug a bug?</summary>

The memory before the array belongs to something else, or to nothing: then the program ends with an error that
names no line. And a later change may use what was fetched.
</details>

<details><summary>Which of the ten bugs can no test of results find, whatever the numbers?</summary>

The two guards of the relaxation, because no result depends on what they fetch. The races and the barrier may
give right results on one GPU and wrong ones on the next.
</details>

<details><summary>Which one can no check of memory find?</summary>

The tap that counts twice, and the sum that only lane 0 has: all accesses are allowed. Only a reference shows
that the numbers are not the wanted ones.
</details>

## Where to read on

- What the simulator found in public programs: [public programs](../docs/ledger.md). To try one of your own:
  [the simulator](../docs/simulator.md).
- Every kind of finding, with a kernel: [findings](../docs/findings.md).
"""
