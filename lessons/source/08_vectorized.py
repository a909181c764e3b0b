# %% [markdown]
"""
# s08: vectorised access, four numbers at a time

A thread of s07 reads its numbers from shared memory one by one, each with an instruction of its own. GPUs
have instructions that move **four neighbours** at once, 16 bytes or 128 bits. Here you use them. The
condition is that what is wanted together lies together, and begins at the right place. You should have done
[s07, the micro-kernel](07_microkernel.ipynb). It takes three quarters of an hour.
"""

# %% setup=true
from convlab import ConvProblem, Tile, trace_stage
from convlab.lessons import check, measured, one_request, reads_in_turn
from convlab.lessons import side_by_side, thread_in_tile, traced

# %% [markdown]
"""
## The idea

For each term a thread of s07 makes `M_T + N_T` reads: each brings one number, and each is an instruction.
Its rows and columns lie apart, so that nothing else is possible:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=4, height=6, width=16, out_channels=16, kernel_size=3, padding=1
)
tile = Tile(M_B=16, N_B=32, K_B=8, M_T=4, N_T=4)
s07 = trace_stage("s07", problem, tile).main
thread_in_tile(s07, problem, thread=9)

# %% [markdown]
"""
In s08 a thread takes its columns in **runs** of four neighbours, its rows likewise. A run is read by one
instruction:
"""

# %%
ours = trace_stage("s08", problem, tile).main
thread_in_tile(ours, problem, thread=9)

# %% [markdown]
"""
Was it not the bug of lesson 07 to give a thread columns that lie side by side? Yes, because there each lane
read one number and skipped three. Here it takes all four, and nothing is skipped.

A thread with more than four rows has several runs. Its run `i` (counted in numbers: `i` = 0, 4, 8, ...)
begins at row `ty * RUN + i * ROWS`: at first every thread of a column has one run, then every thread has its
second, and so on. `RUN` is 4. So the threads of a warp read runs that are neighbours.

Two functions move four numbers. `array` is one of shared or of global memory:

| call | does |
| --- | --- |
| `load4(array, index)` | gives four numbers, from `index` on: `a, b, c, d = load4(...)` |
| `store4(array, index, four)` | writes four numbers there, such as those that a `load4` gave |

For an array with two dimensions the index is a pair, `(row, column)`, and the four are neighbours in the
row. **The place must be a multiple of four numbers** from the array's start. Elsewhere a GPU stops the
kernel, and the simulator says `misaligned`.

### What has to lie together

For `load4` a thread's four *rows* of the filter's slice must be neighbours in memory. In s07's `S_F[row, k]`
neighbours are terms. So the slice is turned round: `S_F[k, row]`. To fill it by fours as well, the filter
itself must lie like that in global memory. It does not; but it is small and always the same. A kernel that
runs first copies it into `packed`: `K` rows of `M_P` numbers, turned round, with zeros up to whole tiles. It is
given. So fetching needs no more questions about what exists:

| array | number of channel `row`, term `k` | size |
| --- | --- | --- |
| `weight` (s07) | `weight[row * K + k]` | `M` x `K` |
| `packed` | `packed[k * M_P + row]` | `K` x `M`, each rounded up to whole tiles |
| `S_F` | `S_F[k, row]` | `K_B` x `M_B` |

## Your turn

Here are two functions. `make_read` makes a **device function**: one that a kernel calls in each thread. Yours
reads a term's numbers into the registers. `make_kernel` calls it in the loop over `k`. (`multiply` is s07's
outer product and `write` writes the sums by fours; both are given.) Two places are left for you:

- **`read`:** for each run of the thread, `i` from 0 to `M_T` in steps of `RUN`, load four numbers of `S_F`
  into `R_F[i]` to `R_F[i + 3]`. They are in row `k`, from column `ty * RUN + i * ROWS` on. Likewise `N_T`
  numbers of `S_I` into `R_I`, from column `tx * RUN + j * COLUMNS` on.
- **Load the filter's slice,** four numbers at a time. It has `K_B` rows of `M_RUNS = M_B // RUN` runs,
  which the `THREADS` threads share out; `t` is this thread's number. Run `e` is in row `e // M_RUNS`. In
  `packed` the block's part begins at row `k0`, column `m0`; a row there has `M_P` numbers.

<details><summary>Tip: four at once on the left</summary>

`R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = load4(S_F, (k, ...))`
</details>
<details><summary>Tip: which run is <code>e</code>?</summary>

In lesson 05 element `e` was in row `e // K_B`, column `e % K_B`. Here a row has `M_RUNS` runs: row
`e // M_RUNS`, run `e % M_RUNS`, and that begins at column `e % M_RUNS * RUN`.
</details>
<details><summary>Tip: loading and storing</summary>

`store4(S_F, (k, row), load4(packed, ...))`: the row of `S_F` is `k`, in `packed` it is `k0 + k`. `packed`
has one dimension here: its number in row `a`, column `b` is at `a * M_P + b`.
</details>
"""

# %% exercise="runs"
stage_kernel(
    "s08",
    blank(
        "load the thread's runs of S_F into R_F and of S_I into R_I, four numbers at a time",
        first="for i in range(0, M_T, RUN):",
        last="= load4(S_I, (k, tx * RUN + j * COLUMNS))",
    ),
    blank(
        "fetch the filter's slice from packed into S_F, four numbers at a time",
        first="for e in range(t, K_B * M_RUNS, THREADS):  # load",
        last="store4(S_F, (k, row), load4(packed",
    ),
    parts=("make_read",),
)

# %% check="runs"
several_runs = Tile(M_B=32, N_B=16, K_B=2, M_T=8, N_T=4)  # is tried, too
check(make_kernel, "s08", also=several_runs)

# %% [markdown]
"""
## What the memory sees

For each product there is a quarter of the reads:
"""

# %%
reads_in_turn({"s07": s07, "s08": ours})

# %%
side_by_side(
    {"s07": s07, "s08": ours},
    "requests to shared memory",
    "wavefronts of shared memory",
    "requests to global memory",
)

# %% [markdown]
"""
There are far fewer requests, but *passes* do not fall as much. 32 lanes with four numbers each want up to 128
numbers, and 32 banks still give 32 in a pass:
"""

# %%
one_request(ours, "S_I")

# %% [markdown]
"""
Nothing is wasted in it. The gain is in instructions: each has to be fetched, decoded and issued before any
memory moves, and a multiprocessor issues few at a time. An instruction less is room for a multiplication.

The filter is fetched from global memory by fours as well. One request of a warp moves many sectors now, each
of them full:
"""

# %%
one_request(ours, "packed")

# %% [markdown]
"""
And with one request the warp puts them into the slice, all banks busy in each pass:
"""

# %%
one_request(ours, "S_F", operation="store")

# %% [markdown]
"""
The input is still fetched one number at a time. In memory neighbouring pixels are neighbours, but where a
window's row begins, with its padding, is seldom a multiple of four. That is what the im2win tensor will mend,
in s11.

## Find the bug

Pass the check above first: this cell gives its answer away.

This kernel is right: every run of the filter's slice is fetched, each once, by fours. Yet shared memory
works much harder than for yours. One line is to blame. Run the cells and compare the picture with the last one
above, then mend the line.
"""

# %% hunt="order"
stage_kernel(
    "s08",
    planted=(
        (
            "k, row = e // M_RUNS, e % M_RUNS * RUN",
            "k, row = e % K_B, e // K_B * RUN",
        ),
    ),
    called="make_slow",
)

# %%
model = Tile(M_B=32, N_B=64, K_B=16, M_T=4, N_T=4)  # more rows and terms, as in the check
slow = traced(make_slow, "s08", problem, model)
one_request(slow, "S_F", operation="store")

# %% check="order"
check(make_slow, "s08", also=several_runs)

# %% [markdown]
"""
<details><summary>Tip: what do neighbouring threads want?</summary>

Thread 0 takes the first run of row 0, thread 1 the first run of row 1. In `S_F` that is `M_B` numbers
further on, and with `M_B = 32` the same four banks. So the lanes are served one after the other. (In
`packed` it is `M_P` numbers further on, in another sector; the rest of that sector is fetched in vain
unless another lane of the warp happens to want it.)
</details>
<details><summary>Tip: what should they want?</summary>

Neighbours: the runs of one row, and then those of the next. A row has `M_RUNS` runs.
</details>

## On a real GPU
"""

# %%
measured("s01", "s06", "s07", "s08", "s09")

# %% [markdown]
"""
Again less time, with the same arithmetic in the same order:

- For each term a thread has `(M_T + N_T) / 4` reads where s07 has `M_T + N_T`. What the multiprocessor no
  longer spends on reads it spends on products.
- The filter comes without a question about what exists, and by fours. The copy that this takes is a kernel
  of its own, before this one. It is counted in the time, and it is short: a filter is small.

What is left is waiting. While a slice is fetched nobody computes, and while it is computed nobody fetches.
s09 does both at the same time.

## Questions

Think first, then unfold.

<details><summary>In lesson 05 rows one number longer kept lanes in different banks. Why not here?</summary>

With rows of `M_B + 1` numbers the second row begins at number `M_B + 1`, and that is no multiple of four: its
runs are misaligned. A GPU would stop the kernel. Rows longer by *four* are allowed.
</details>

<details><summary>Shared memory moves as many numbers as before. Where does the time come from, then?</summary>

It does not quite: in a warp many lanes want the same numbers, and those come once for all of them. But mostly
it is instructions. s07 issues 16 reads for 64 products at 8 x 8, s08 issues 4.
</details>

<details><summary>When must <code>write</code> store single numbers after all?</summary>

Where an image's output has a number of pixels that is no multiple of four. Then a run of four columns may
begin in one image and end in the next, and the next image's pixel lies elsewhere in memory.
</details>

## Where to read on

- The whole file: [s08_vectorized.py](../src/convlab/stages/s08_vectorized.py), and what was
  measured: [ladder](../docs/ladder.md#s08_vectorized).
- The im2win paper (000), section 3.3, "Vectorized load/store":
  [arXiv 2306.14316](https://arxiv.org/abs/2306.14316). There only reads from shared memory are by fours.
- How `load4` becomes one instruction: [vector.py](../src/convlab/device/vector.py).
- Next on the ladder: [s09, the double buffer](09_double_buffer.ipynb).
"""
