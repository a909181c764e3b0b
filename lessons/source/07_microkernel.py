# %% [markdown]
"""
# m05: the micro-kernel, every row with every column

**You will be able to** compute a matrix of outputs in one thread's registers by an outer product,
and choose which outputs a thread computes.

In m04, the stage of lesson 06, a thread computes several outputs of one column. Here it computes a small matrix of outputs,
several rows *and* several columns. It reads a few numbers of the filter and a few of the input into
registers and multiplies each number of the filter by each number of the input. The more numbers of
both it reads, the fewer reads each product needs. You should have done
[m04, block tiling](06_block_tiling.ipynb).
"""

# %% setup=true
from convlab import ConvProblem, Tile, trace_stage
from convlab.lessons import check, measured, one_request, reads_in_turn
from convlab.lessons import side_by_side, thread_in_tile, tile_of_threads, traced

# %% [markdown]
"""
## The idea

In m04 one read of a window's number serves the `M_T` outputs of a thread. But one read of a
filter's number still serves only one output, because the thread's outputs lie in one column, and
every row of the filter crosses this column once.
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=4, height=6, width=16, out_channels=16, kernel_size=3, padding=1
)
m04 = trace_stage("m04", problem, Tile(M_B=16, N_B=32, K_B=8, M_T=4)).main
thread_in_tile(m04, problem, thread=9)

# %% [markdown]
"""
Now give the thread `N_T` columns as well. The thread reads `M_T` numbers of the filter and `N_T`
numbers of the windows, and each of its rows crosses each of its columns in one output of this
thread. So it can multiply each number of the filter by each number of the windows. This is called
an **outer product**:
"""

# %%
tile = Tile(M_B=16, N_B=32, K_B=8, M_T=4, N_T=4)
ours = trace_stage("m05", problem, tile).main
thread_in_tile(ours, problem, thread=9)

# %% [markdown]
"""
Reads grow with the *edges* of the little matrix, `M_T + N_T`. Products grow with its *area*,
`M_T * N_T`. At 8 x 8, the im2win paper's size, 16 reads serve 64 products. This inner part, a few
reads into registers and then only arithmetic, is called the **micro-kernel**.

Which rows and columns does a thread get? The block has `ROWS = M_B // M_T` rows of threads and
`COLUMNS = N_B // N_T` columns of them. A thread's rows lie `ROWS` apart, as in m04, and its columns
lie `COLUMNS` apart:
"""

# %%
tile_of_threads(ours, problem, thread=9)

# %% [markdown]
"""
## Your turn

Loading and writing are given. In the last lines of the kernel you see which outputs are this thread's:
sum `R_O[i, j]` is in row `ty + i * ROWS` and column `tx + j * COLUMNS` of the tile. The arrays of registers
are there too: `R_F` for `M_T` numbers of the filter, `R_I` for `N_T` numbers of the windows, `R_O` for the
`M_T` x `N_T` sums, which are zero already. One place is left for you, the micro-kernel. For each term `k`
of the slice:

1. Read this thread's `M_T` numbers of `S_F[row, k]` into `R_F`.
2. Read its `N_T` numbers of `S_I[k, column]` into `R_I`.
3. Multiply each number in `R_F` by each number in `R_I` and add each product to its sum in `R_O`.
"""

# %% [markdown]
"""
<details><summary>Tip: how often may the kernel read each number of the slice, for all the products of a term?</summary>

Once. Each number of the filter meets `N_T` numbers of the windows, and each of these `M_T` numbers of the filter. So read
them into registers first.
</details>
<details><summary>Tip: the plan</summary>

One loop over `k` from 0 to `K_B`, and three parts in it: a loop over `i` that fills `R_F`, a loop over `j`
that fills `R_I`, and a loop over `i` with a loop over `j` in it that multiplies.
</details>
<details><summary>Tip: the code</summary>

Number `i` of `R_F` is `S_F[ty + i * ROWS, k]`: the kernel must read the rows and columns of the outputs that it writes.
The line of the products is `R_O[i, j] += R_F[i] * R_I[j]`.
</details>
"""

# %% exercise="outer"
stage_kernel(
    "m05",
    blank(
        "for each term fill R_F and R_I, multiply every number of one by every number of the other, add to R_O",
        first="for k in range(K_B):  # compute",
        last="R_O[i, j] += R_F[i] * R_I[j]",
    ),
    hidden=("of_window", "load_filter", "load_windows", "of_output", "write_column", "clear"),
)

# %% check="outer"
high = Tile(M_B=32, N_B=8, K_B=2, M_T=8, N_T=2)  # the check tries this tile, too
check(make_kernel, "m05", also=high)

# %% [markdown]
"""
## What the memory sees

The picture shows the reads for the same tile of outputs, first with one column for each thread and
then with four. Now the reads of the windows come in groups, too, and each product needs far fewer
reads than in m04:
"""

# %%
reads_in_turn({"m04": m04, "m05": ours})

# %%
side_by_side(
    {"m04": m04, "m05": ours},
    "requests to global memory",
    "requests to shared memory",
    "wavefronts of shared memory",
)

# %% [markdown]
"""
The traffic to global memory is about the same, because the tile is the same. m05 makes fewer requests to shared memory than
m04.

A warp's threads now stand in several rows *and* columns of the block. So a request for `S_I` reads
only a few different numbers, each for several lanes. These numbers are neighbours, so they lie in
different banks:
"""

# %%
one_request(ours, "S_I")

# %% [markdown]
"""
When the warp writes its outputs, neighbouring outputs lie in one sector of global memory:
"""

# %%
one_request(ours, "output", operation="store")

# %% [markdown]
"""
## Find the bug

This kernel is right, and it makes as few reads as yours. But its author gave each thread
neighbouring columns. Run the cells below and compare their three pictures with those above: which
thread has which output, what a warp writes with one request, and what it reads with one request.
Then fix the kernel.
"""

# %% hunt="columns"
stage_kernel(
    "m05",
    planted=(
        ("R_I[j] = S_I[k, tx + j * COLUMNS]", "R_I[j] = S_I[k, tx * N_T + j]"),
        ("n = n0 + tx + j * COLUMNS", "n = n0 + tx * N_T + j"),
    ),
    called="make_slow",
    hidden=(
        "of_window", "load_filter", "load_windows", "read_rows", "multiply", "of_output", "write_column", "clear"
    ),
)

# %%
slow = traced(make_slow, "m05", problem, tile)
tile_of_threads(slow, problem, thread=9)

# %%
one_request(slow, "output", operation="store")

# %%
model = Tile(M_B=32, N_B=64, K_B=16, M_T=4, N_T=4)  # more columns of threads, as in the check
one_request(traced(make_slow, "m05", problem, model), "S_I")

# %% [markdown]
"""
<details><summary>Tip: for <code>j = 0</code>, which columns do lanes 0, 1 and 2 read?</summary>

Lane 0 reads column 0, lane 1 column `N_T`, lane 2 column `2 * N_T`. A *thread* accesses neighbours one after the other.
But the number of sectors depends on the numbers that the 32 lanes of a warp access at the same *time*: the warp uses only
one of every `N_T` numbers in memory.
</details>
<details><summary>Tip: the plan</summary>

Lane 0 and lane 1 should access neighbours, as in your kernel. Correct two places, which must agree: where the column is
read, and where it is written.
</details>
"""

# %% check="columns"
check(make_slow, "m05")

# %% [markdown]
"""
## On a real GPU
"""

# %%
measured("m01", "m03", "m04", "m05", "m06")

# %% [markdown]
"""
m05 takes clearly less time than m04, and less than half of m01's. The im2win paper found the same: when
it removed its techniques one at a time, removing the micro-kernel cost most.

- A multiplication no longer waits for two reads: it works on registers, and most of its **operands**
  (the numbers that it multiplies) are already there.
- The compiler knows the bounds of both loops, so it unrolls them into a long row of multiplications
  and additions with no counters and no jumps between them.
- Registers are few. A thread has at most 255, and all threads of an SM share the SM's registers:
  the more a thread takes, the fewer blocks fit. The number of blocks (or warps) that an SM holds at
  a time is its **occupancy**. 8 x 8 sums, 8 and 8 operands and some addresses do fit; 16 x 16 sums
  alone would need too many.

One weakness is left: each read from shared memory brings only one number. In m06 each read brings
four.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>A thread tile of 16 x 4 has as many outputs as one of 8 x 8. Which reads less?</summary>

8 x 8 reads less: it makes 16 reads for 64 products, and 16 x 4 makes 20. Of all rectangles with the
same area, the square has the shortest edges.
</details>

<details><summary>In the bug above a thread's columns are neighbours. What would neighbouring rows change?</summary>

Again only the lanes of a warp matter. They stand in a few rows of threads, for example in two. In
`S_F` the rows of the tile lie one after the other, with `K_B` numbers each. For `i = 0` the two
rows of threads read rows 0 and 1 of the tile, which lie `K_B` numbers apart. If a thread's rows were
neighbours, they would read rows 0 and `M_T`, which lie `M_T * K_B` apart. With `K_B = 16` and
`M_T = 4` the first two numbers are in two banks, the second two in the same bank, which is a bank
conflict.
</details>
"""

# %% [markdown]
"""
<details><summary>Why does the kernel copy numbers to <code>R_F</code> first, instead of reading <code>S_F</code> in the multiplications? The compiler could keep the number, too.</summary>

The compiler can keep the number only if it can prove that no thread changes it in between. This is
hard to prove for shared memory, because other threads write to it. A number in a local array
belongs to one thread alone.
</details>

## Where to read on

- The whole file: [m05_microkernel.py](../src/convlab/ladder/main/m05_microkernel.py), and what was
  measured: [ladder](../docs/ladder.md#m05_microkernel).
- The im2win paper, section 3.3, "Micro-kernel", and section 4.4, where techniques are removed
  one at a time: [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- How the tests keep registers in registers: [the compile gate](../docs/compile-gate.md).
- Next on the ladder: [m06, vectorised access](08_vectorized.ipynb).
"""
