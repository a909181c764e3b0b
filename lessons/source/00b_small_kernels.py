# %% [markdown]
"""
# Small kernels: shared memory, sums, two dimensions, a matrix product

**You will be able to** let the threads of a block share numbers through fast memory, wait for each other at a
barrier, add up an array together, give each thread a row and a column, and multiply two matrices tile by tile.
The convolutions of the next lessons are made of these parts.

You should have done [00_start_here](00_start_here.ipynb).
"""

# %% setup=true
import numpy as np
from numba import cuda, float32

from convlab import trace
from convlab.lessons import On, check_kernel, halo, line_by_line, one_request, reduction, run
from convlab.lessons import what_is_wrong, who_does_what


def numbers(*shape, seed=1):  # small whole numbers, so sums are exact in any order
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


THREADS = 128  # in a block of sections 1 and 2: four warps
# Sizes of shared arrays. A kernel takes such a size from a number, or from a name like these.
WITH_LEFT, WITH_BOTH = THREADS + 1, THREADS + 2


@cuda.jit(device=True)  # a device function: a function that kernels call
def load(a, i):
    return a[i] if 0 <= i < a.size else float32(0)


def in_blocks(size):  # for the checks: a launch with blocks of THREADS threads
    return On((size + THREADS - 1) // THREADS, THREADS, (numbers(size),))


# %% [markdown]
"""
## 1. Shared memory: a kernel that works

Each block has **shared memory**: a small memory on the chip that all threads of the block see and
no other block sees. A number from shared memory arrives in about a twentieth of the time that a
number from the GPU's main memory, called **global memory**, takes. (This time is the **latency**.)

This kernel reverses the order of the numbers. Thread `t` needs the number that another thread has fetched. So the
threads store their numbers in shared memory, in an array `tile` of one number for each thread, and wait for each other:
"""


# %%
@cuda.jit
def reverse(a, out):
    tile = cuda.shared.array(8, float32)  # 8 numbers of type float32, for the whole block
    t = cuda.threadIdx.x
    tile[t] = a[t]  # 1. each thread copies one number from global to shared memory
    cuda.syncthreads()  # 2. a barrier: no thread goes on before all threads of the block are here
    out[t] = tile[7 - t]  # 3. each thread reads a number that another thread has stored


a, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
run(reverse, 1, 8, a, out)
print(out)

# %%
line_by_line(trace(reverse, 1, 8, a, np.zeros_like(a)).main, "a", "tile", "out")

# %% [markdown]
"""
The array's size and type must be constants, because the compiler reserves the memory before the kernel runs: a number,
or a name that has a number outside of the kernel, such as `THREADS`.

`cuda.syncthreads()` is a **barrier**: no thread goes on before all threads of the block have reached it. What if it
is missing? Some thread reads a place that another thread has not filled yet. Here is the same kernel for blocks of
`THREADS` threads without its barrier. The answer may be right by luck, so the simulator looks at
every access. (Thread `(1, 0, 0)` is number 1.)
"""


# %%
@cuda.jit
def reverse_without_barrier(a, out):
    tile = cuda.shared.array(THREADS, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = a[i]
    # the barrier is missing here
    out[i] = tile[THREADS - 1 - t]


what_is_wrong(reverse_without_barrier, 2, THREADS, numbers(256), np.zeros(256, np.float32))

# %% [markdown]
"""
### Your turn: add the left neighbour

Write `a[i - 1] + a[i]` to `out[i]`; an element outside of `a` counts as 0. Each number is needed twice, so fetch it
once, into a tile. The tile has one place more than the block has threads: `tile[t + 1]` is for the number of thread
`t`, and `tile[0]` for the left neighbour of the block's first number. `load(a, i)` from the first cell returns `a[i]`,
or 0 outside of `a`.

All threads must reach the barrier, also those past the end of the array. So no thread returns early, and only the store
to `out` belongs in an `if` about the end of the array.
"""

# %% [markdown]
"""
<details><summary>Tip: thread 0 needs two numbers. Which of them belongs to no thread of its block?</summary>

The left neighbour of the block's first number. It belongs to the last thread of the block before. Which thread of this
block should fetch it as well?
</details>
<details><summary>Tip: the plan</summary>

Each thread stores its number. Thread 0 also stores the left neighbour of its number to `tile[0]`. Then all wait. Then
each thread with an output reads two places of the tile and writes their sum.
</details>
<details><summary>Tip: the code</summary>

Only thread 0 executes `tile[0] = load(a, i - 1)`. After the barrier the two numbers are in `tile[t]` and
`tile[t + 1]`.
</details>
"""


# %% exercise="left"
@cuda.jit
def add_left(a, out):
    tile = cuda.shared.array(WITH_LEFT, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    ### BEGIN SOLUTION: fill the tile, wait, write the sum of two neighbours
    tile[t + 1] = load(a, i)
    if t == 0:
        tile[0] = load(a, i - 1)
    cuda.syncthreads()
    if i < a.size:
        out[i] = tile[t] + tile[t + 1]
    ### END SOLUTION


# %% check="left"
check_kernel(
    add_left,
    lambda a: a + np.pad(a, (1, 0))[:-1],
    [*map(in_blocks, (1, 128, 129, 256, 300, 700))],
    each_once=True,
)

# %% [markdown]
"""
`each_once=True` makes the check count accesses, too: the kernel should fetch each number of `a` only once. (The numbers
at the edges of blocks are fetched twice, once by each block.)

### Your turn: a neighbour on each side

With both neighbours, `a[i - 1] + a[i] + a[i + 1]`, each number is needed three times. Such additional numbers around a
block's own are called a **halo**. A convolution's blocks have one, too. The animation shows the second of three blocks, of
eight threads each. Its first box of `a` is the number before the block's own, and its last box is the number after
them. Where the code shows three dots, the line is yours to write:
"""

# %%
line_by_line(halo(), "a", "tile", "out", hidden="out[i]")

# %% [markdown]
"""
Your block has `THREADS` threads. The tile has two places more: `tile[t + 1]` is for the number of thread `t`, `tile[0]`
for the left neighbour of the first number, and `tile[THREADS + 1]` for the right neighbour of the last.

<details><summary>Tip: which threads should fetch the two extra numbers?</summary>

The first thread of the block and the last one: the extra numbers are next to theirs. What is `t` in these two threads?
</details>
<details><summary>Tip: the plan</summary>

As before, and the last thread also stores the right neighbour of its number. Then all wait, and each thread with an
output adds three places of the tile.
</details>
<details><summary>Tip: the code</summary>

Only the thread with `t == THREADS - 1` executes `tile[THREADS + 1] = load(a, i + 1)`. The three numbers are `tile[t]`,
`tile[t + 1]` and `tile[t + 2]`.
</details>
"""


# %% exercise="three"
@cuda.jit
def sum_of_three(a, out):
    tile = cuda.shared.array(WITH_BOTH, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    ### BEGIN SOLUTION: fill the tile and its two edges, wait, write the sum
    tile[t + 1] = load(a, i)
    if t == 0:
        tile[0] = load(a, i - 1)
    if t == THREADS - 1:
        tile[THREADS + 1] = load(a, i + 1)
    cuda.syncthreads()
    if i < a.size:
        out[i] = tile[t] + tile[t + 1] + tile[t + 2]
    ### END SOLUTION


# %% check="three"
def three(a):
    wide = np.pad(a, 1)
    return wide[:-2] + wide[1:-1] + wide[2:]


sizes = 1, 128, 129, 256, 300, 700
check_kernel(sum_of_three, three, [*map(in_blocks, sizes)], each_once=True)

# %% [markdown]
"""
## 2. A sum of many: the threads halve it

One thread needs 127 steps to add 128 numbers. Many threads together need seven: 64 threads add the
upper half to the lower half, then 32 threads add the second quarter to the first, and so on, until
the sum is in place 0. This is a **reduction**. A barrier separates each step from the next. Here eight threads do it
(the three dots are again a line for you to write):
"""

# %%
line_by_line(reduction(), "part", hidden="part[t] +=")

# %% [markdown]
"""
If the condition of an `if` is true for some threads of a warp and false for others, the warp executes both paths one
after the other: this is **warp divergence**. Our reduction has little divergence, because the threads
that add have neighbouring numbers. So most warps add as a whole or not at all.

### Your turn: a dot product

Each block adds up the products of *its* part: `out[block]` is the sum of `a[i] * b[i]` over the 128
numbers of that block, where `block` is `cuda.blockIdx.x`. The last block may have fewer numbers.
`part[t]` already holds the product of thread `t`.
"""

# %% [markdown]
"""
<details><summary>Tip: how many threads add in the first step, and how many in the second?</summary>

Half of them, then half of that. So keep that number in a variable, `half`. Which two places does thread `t` add?
</details>
<details><summary>Tip: the plan</summary>

While `half` is above 0: the threads below `half` add the number `half` places further on to their own; then *all* threads
meet at the barrier, so it belongs inside the loop but outside of the `if`; then `half` is halved. After the loop one
thread writes the block's sum.
</details>
<details><summary>Tip: the code</summary>

The loop is `while half > 0:`, and its last line is `half //= 2`. An addition is `part[t] += part[t + half]`.
</details>
"""


# %% exercise="dot"
@cuda.jit
def dot_of_blocks(a, b, out):
    part = cuda.shared.array(THREADS, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    part[t] = load(a, i) * load(b, i)
    cuda.syncthreads()
    ### BEGIN SOLUTION: halve until the sum is in part[0]; one thread writes it
    half = THREADS // 2
    while half > 0:
        if t < half:
            part[t] += part[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = part[0]
    ### END SOLUTION


# %% check="dot"
def dots(a, b):
    wide = np.pad(a * b, (0, -a.size % THREADS))
    return wide.reshape(-1, THREADS).sum(axis=1)


def two_arrays(size):
    return On((size + THREADS - 1) // THREADS, THREADS, (numbers(size), numbers(size, seed=2)))


launches = [*map(two_arrays, (1, 128, 200, 256, 600))]
# busiest=26: the busiest thread needs 26 accesses; a quarter more are allowed. Here it is thread 0:
# it reads a and b and stores their product (3), in each of 7 steps it reads two places and writes
# one (21), and at the end it reads the sum and writes it to out (2).
check_kernel(dot_of_blocks, dots, launches, each_once=True, busiest=26)

# %% [markdown]
"""
### Find the bug: the largest number of each block

This kernel finds the largest number with `max` instead of `+`, and it begins with neighbours: first each thread with
an even number compares two neighbours, then every fourth thread compares two numbers at a distance of 2, and so on. On
many GPUs its answer is right. Run the check, read what the simulator says, and repair the kernel.
"""


# %% hunt="largest"
@cuda.jit
def largest_of_blocks(a, out):
    part = cuda.shared.array(THREADS, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    part[t] = a[i]
    cuda.syncthreads()
    distance = 1
    while distance < THREADS:
        if t % (2 * distance) == 0:
            part[t] = max(part[t], part[t + distance])
        ### BEGIN SOLUTION
        cuda.syncthreads()
        ### PLANTED
        #: if distance > 8:
        #:     cuda.syncthreads()
        ### END SOLUTION
        distance *= 2
    if t == 0:
        out[cuda.blockIdx.x] = part[0]


# %% [markdown]
"""
<details><summary>Tip: do the threads of a warp wait for each other without a barrier?</summary>

In the steps of distance 1 to 16 a thread reads numbers of its own warp. On older GPUs the threads of a warp went in
step. Today no rule says so.
</details>
<details><summary>Tip: the plan</summary>

Each step reads what another thread has written in the step before. So a barrier belongs after *every* step, for all
threads. Which line lets some steps go without one?
</details>
"""

# %% check="largest"
def no_two_alike(size):
    order = np.random.default_rng(3).permutation(size).astype(np.float32)
    return On(size // THREADS, THREADS, (order,))


check_kernel(
    largest_of_blocks,
    lambda a: a.reshape(-1, THREADS).max(axis=1),
    [*map(no_two_alike, (THREADS, 3 * THREADS, 9 * THREADS))],
    each_once=True,
)

# %% [markdown]
"""
## 3. Rows and columns

An image has rows and columns, so a block may have them too. `x` counts across and `y` counts down, for threads and for
blocks:

| down | across |
| --- | --- |
| `cuda.threadIdx.y` | `cuda.threadIdx.x` |
| `cuda.blockIdx.y` | `cuda.blockIdx.x` |
| `cuda.blockDim.y` | `cuda.blockDim.x` |

CUDA and NumPy write shapes in opposite orders. A *block* of shape `(8, 4)` has 8 threads across and 4 down, 32 in all:
across comes first. An *array* of shape `(7, 14)` has 7 rows and 14 columns: down comes first.

Threads that differ by one in `x` are neighbours in a warp. So `x` should be the column, because the
numbers of a row are neighbours in memory.
"""


# %%
@cuda.jit
def copy_table(a, out):
    column, row = cuda.grid(2)  # like cuda.grid(1), in both directions; across comes first
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = a[row, column]


table = numbers(7, 14)
who_does_what(trace(copy_table, (2, 2), (8, 4), table, np.zeros_like(table)).main, "out")

# %% [markdown]
"""
Four blocks cover a table of 7 rows and 14 columns. In each direction the last block has too many
threads, so each direction needs its own bounds check.
"""

# %% [markdown]
"""
### Your turn: a bias for each column, and nothing below zero

A layer of a network adds a bias and then replaces negative numbers by zero (its **ReLU**). Compute
`a[row, column] + b[column]`, and write it to `out[row, column]`, or 0 if it is negative. The check
launches the kernel with blocks of several shapes.

Compute the number first, the sum or 0, and then store it with one line. With one store in each branch of an `if`, a warp
that takes both branches makes two requests.

<details><summary>Tip: how many rows have all the blocks above mine?</summary>

`cuda.blockIdx.y` blocks are above, each with `cuda.blockDim.y` rows. And my row in my block? Columns follow the same rule,
with `x`.
</details>
<details><summary>Tip: the plan</summary>

Compute my row and my column. A thread works only if *both* are inside; `a.shape` holds the number of rows and then the
number of columns. Then add, and take the larger of the sum and 0.
</details>
<details><summary>Tip: the code</summary>

`column, row = cuda.grid(2)` computes both at once. The result is `max(total, float32(0))`. (Plain `0` and `0.0` have 64
bits, and most GPUs are slow with these.)
</details>
"""


# %% exercise="rows"
@cuda.jit
def add_to_rows(a, b, out):
    ### BEGIN SOLUTION: compute my row and my column; if both are inside, write the sum or 0
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if row < a.shape[0] and column < a.shape[1]:
        total = a[row, column] + b[column]
        out[row, column] = max(total, float32(0))
    ### END SOLUTION


# %% check="rows"
def on_table(rows, columns, block):
    across, down = block
    grid = (columns + across - 1) // across, (rows + down - 1) // down
    return On(grid, block, (numbers(rows, columns), numbers(columns, seed=2)))


check_kernel(
    add_to_rows,
    lambda a, b: np.maximum(a + b, 0),
    [on_table(1, 1, (8, 4)), on_table(7, 14, (8, 4)), on_table(33, 20, (16, 5))],
    each_once=True,
    at_most=3,  # accesses, times the fewest possible: b is read again for every row
)

# %% [markdown]
"""
## 4. A matrix product, tile by tile

For each element of `C`, the product `C = A @ B` needs a whole row of `A` and a whole column of `B`:

```python
for k in range(K):
    total += A[m, k] * B[k, n]
```

From here on, in all lessons with a matrix product, `m` is a row of `C`, `n` a column and `k` a term of the
sum. There are `M` rows, `N` columns and `K` terms.

All threads of a row need the same numbers of `A`, and all threads of a column need the same numbers
of `B`. So a block of 8 x 8 threads computes a **tile** of 8 x 8 elements and goes along `k` in
steps of 8: it copies 8 x 8 numbers of `A` and 8 x 8 numbers of `B` to shared memory, waits, and each
thread adds 8 products. The block uses each fetched number eight times.

First the plain kernel, without shared memory. Its blocks have 8 x 8 threads, too. Which thread writes which element?
"""


# %%
@cuda.jit
def plain_product(A, B, C):
    n, m = cuda.grid(2)  # my column and my row among all threads
    if m < C.shape[0] and n < C.shape[1]:
        total = float32(0)
        for k in range(A.shape[1]):
            total += A[m, k] * B[k, n]
        C[m, n] = total


A, B = numbers(10, 12), numbers(12, 14, seed=2)
plain = trace(plain_product, (2, 2), (8, 8), A, B, np.zeros((10, 14), np.float32)).main
who_does_what(plain, "C")

# %% [markdown]
"""
The next picture shows a warp's request for `A` in this plain kernel. A warp is four rows of 8
threads. Each row needs one number, so the warp reads four numbers, and it uses only one of the
eight numbers in each sector.
"""

# %%
one_request(plain, "A")

# %% [markdown]
"""
### Your turn: one step along k

The loop over the steps and the store are given. In each step every thread copies one number of `A`
and one of `B`, or 0 outside of the matrices (`load_2d` does this), and adds up 8 products. Each
step needs **two** barriers: one before the threads read the tiles, and one before the next step
overwrites them. All threads of the block must reach both.

| name | is |
| --- | --- |
| `m`, `n` | this thread's row and column of `C` |
| `y`, `x` | its row and column in the block, and in both tiles |
| `k0` | the first term of this step: 0, then 8, then 16, ... |
| `k` | a term of this step, from 0 to 7, so term `k0 + k` of the sum |
"""

# %% [markdown]
"""
<details><summary>Tip: which number of <code>A</code> should I copy, and which of <code>B</code>?</summary>

The block needs columns `k0` to `k0 + 7` of its rows of `A`, and rows `k0` to `k0 + 7` of its columns of `B`. There are
as many threads as numbers, so each copies one of each. Which of mine, `x` or `y`, counts along a row?
</details>
<details><summary>Tip: the plan</summary>

Copy a number of `A` and one of `B`, both to place `[y, x]` of their tiles. Wait. Add 8 products: row `y` of one tile times
column `x` of the other. Wait.
</details>
<details><summary>Tip: the code</summary>

The number of `A` is `load_2d(A, m, k0 + x)`. The products are `tile_A[y, k] * tile_B[k, x]`, for `k` from 0 to 7.
</details>
"""

# %% exercise="product"
T = 8  # rows and columns of a tile


@cuda.jit(device=True)
def load_2d(matrix, row, column):
    inside = row < matrix.shape[0] and column < matrix.shape[1]
    return matrix[row, column] if inside else float32(0)


@cuda.jit
def tiled_product(A, B, C):
    tile_A = cuda.shared.array((T, T), float32)
    tile_B = cuda.shared.array((T, T), float32)
    n, m = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k0 in range(0, A.shape[1], T):
        ### BEGIN SOLUTION: copy one number of each, wait, add T products, wait
        tile_A[y, x] = load_2d(A, m, k0 + x)
        tile_B[y, x] = load_2d(B, k0 + y, n)
        cuda.syncthreads()
        for k in range(T):
            total += tile_A[y, k] * tile_B[k, x]
        cuda.syncthreads()
        ### END SOLUTION
    if m < C.shape[0] and n < C.shape[1]:
        C[m, n] = total


# %% check="product"
def matrices(M, N, K):
    grid = (N + T - 1) // T, (M + T - 1) // T
    return On(grid, (T, T), (numbers(M, K), numbers(K, N, seed=2)))


check_kernel(
    tiled_product,
    np.matmul,
    [matrices(*sizes) for sizes in ((1, 1, 1), (8, 16, 24), (16, 8, 20), (17, 9, 20), (16, 24, 32))],
    each_once=True,
    at_most=4,  # accesses, times the fewest possible: each block of a row reads the same tiles of A
)

# %% [markdown]
"""
This is the whole idea of [05_shared_memory](05_shared_memory.ipynb): there a convolution is a
matrix product too, with larger tiles.

## Questions

Think first, then unfold.

<details><summary>A barrier inside <code>if t &lt; half:</code> looks right: only those threads have done anything. Why is it wrong?</summary>

A barrier waits for *all* threads of the block. If some threads do not reach it, the others wait for
ever, or on some GPUs they go on too early.
</details>

<details><summary>Two blocks add up one array. Can they share a tile?</summary>

No. Shared memory belongs to one block, and blocks may run at different times. Blocks can combine
their results only in global memory: with a second kernel, or with additions that cannot be interrupted
([02](02_channel_parallel.ipynb)).
</details>

<details><summary>With tiles of 16 x 16 instead of 8 x 8, how often is a number of A fetched for a C of 64 columns?</summary>

Each block in its row of blocks fetches it once: 64 / 16 = 4 times, not 8.
</details>

## Where to read on

- The first convolution: [01_direct](01_direct.ipynb).
- The words: [glossary](../docs/glossary.md#the-words-of-gpus). What the simulator finds:
  [findings](../docs/findings.md).
- More puzzles of this size: Sasha Rush, [GPU Puzzles](https://github.com/srush/GPU-Puzzles).
"""
