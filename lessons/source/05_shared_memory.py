# %% [markdown]
"""
# s05: shared memory, fetch together and read many times

**You will be able to** fetch a slice into shared memory with all threads of a block, place the two
barriers that this needs, and find a request that keeps it busy for too long. It takes three quarters of an hour.

In s04 every thread fetches its own numbers from the GPU's main memory, and each number is fetched by many
threads. Here the threads of a block work together: they fetch a slice once, store it in **shared memory**,
wait for each other, and then all read it from there. You should know what a thread, a block and a
request are ([00_start_here](00_start_here.ipynb)), and a tile ([00b](00b_small_kernels.ipynb)).
"""

# %% setup=true
from convlab import ConvProblem, Tile, trace_stage
from convlab.lessons import block_of_product, check, measured
from convlab.lessons import memory_levels, one_request, side_by_side, step_through
from convlab.lessons import tile_over_input, time_mine, traced

# %% [markdown]
"""
## The idea

Since s04 a convolution is a **matrix product**. Row `m` of the first matrix is filter `m`, all its numbers
in a row. Column `n` of the second one is the window that output pixel `n` sees. Each output is a row
times a column:

| letter | is | here |
| --- | --- | --- |
| `M` | output channels | rows of the filter matrix |
| `N` | output pixels of all images | columns of the matrix of windows |
| `K` | numbers in a window, over all channels | what is summed over |

The filter matrix lies in memory as it is. The matrix of windows is stored nowhere: its element in row `k`
and column `n` is a pixel of the input, and a little arithmetic says which.

A block computes a **tile** of the output, `M_B` x `N_B` numbers, one for each thread. For that it needs
`M_B` rows of the one matrix and `N_B` columns of the other, all `K` terms of them. They do not fit at
once, so they come in slices of `K_B` terms:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=4, height=6, width=16, out_channels=16, kernel_size=3, padding=1
)
tile = Tile(M_B=8, N_B=32, K_B=8)
ours = trace_stage("s05", problem, tile).main
block_of_product(ours, problem, tile.K_B)

# %% [markdown]
"""
In the image it looks like this. A column of the matrix is a window, and the block's 32 windows lie side by
side: so a term of all of them is a strip of the image, moved a little for the next term.
"""

# %%
tile_over_input(ours, tile.K_B)

# %% [markdown]
"""
In the first picture look at one row of the filter's blue slice: it is needed by the 32 threads of a row of
the tile. In s04 each of them fetches it. Now it is fetched **once**, into shared memory: a small memory next
to the arithmetic, as fast as a cache, that all threads of a block see and that the kernel fills itself.

A GPU has many **SM**s (streaming multiprocessors), each of which runs blocks and has a shared memory. These
are a GPU's memories, from the nearest to the farthest:
"""

# %%
memory_levels()

# %% [markdown]
"""
For every slice a block does this:

1. **Load.** The threads share out the work: each fetches a few numbers of the two slices into the shared
   arrays `S_F` (filter) and `S_I` (input).
2. **Wait.** `cuda.syncthreads()` is a **barrier**: no thread of the block goes on before all have come.
3. **Compute.** Each thread multiplies its row of `S_F` with its column of `S_I`.
4. **Wait again,** before the next slice is written over this one.
"""

# %% [markdown]
"""
## Your turn

`S_F[row, k]` holds the filter's slice, `S_I[k, column]` the windows'. This thread computes row `ty`,
column `tx` of the tile, and is number `t` of the `THREADS` in its block. How a pixel is found is given, and
you may take the loading of `S_I` as an example. Two places are left for you:

- **Load the filter's slice.** It has `M_B * K_B` numbers, and there are `THREADS` threads, perhaps fewer,
  perhaps more. The block's first row is `m0`, the slice's first term `k0`. `weight` has one dimension
  here: row `row`, term `k` is `weight[row * K + k]`. Rows past `M` and terms past `K` do not exist: store
  0 there.
- **Wait, compute, wait.**
"""

# %% [markdown]
"""
<details><summary>Tip: sharing out the work</summary>

`for e in range(t, M_B * K_B, THREADS):` gives thread `t` the elements `t`, `t + THREADS`, and so on: all
elements come, each once, and neighbouring threads have neighbours. Element `e` is in row `e // K_B`,
column `e % K_B` of the slice.
</details>
<details><summary>Tip: past the end</summary>

A thread that has no number to fetch must still write a 0 into its place. Otherwise the place holds
whatever was there before, and the sum takes it.
</details>
<details><summary>Tip: where do the two barriers go?</summary>

One between writing the slices and reading them, one between reading them and writing the next. Both
outside of every `if`: all threads of the block must come.
</details>
"""

# %% exercise="slices"
stage_kernel(
    "s05",
    blank(
        "fetch the filter's slice into S_F, with 0 past the last row and the last term",
        first="for e in range(t, M_B * K_B, THREADS):",
        last="S_F[e // K_B, e % K_B] = value",
    ),
    blank(
        "wait, add up the slice's products in total, wait",
        first="cuda.syncthreads()  # nobody computes",
        last="cuda.syncthreads()  # nobody fetches",
    ),
)

# %% check="slices"
few_threads = Tile(M_B=8, N_B=4, K_B=8)  # is tried, too
check(make_kernel, "s05", also=few_threads, at_most=1.6)

# %% [markdown]
"""
`launch_bounds` in the first line of the kernel tells the compiler how many threads a block will have;
`gpu_only` leaves that out where no GPU is. It changes no result.

## What the memory sees

Here are s04 and s05 on the same problem. Fetching together leaves a tenth of the requests to global
memory:
"""

# %%
before = trace_stage("s04", problem).main
side_by_side(
    {"s04": before, "s05": ours},
    "requests to global memory",
    "requests to shared memory",
    "bytes an operation",
)

# %% [markdown]
"""
In exchange there are requests to shared memory, two for each multiplication. Shared memory has no
sectors. It has 32 **banks**, each of which gives one number at a time. Lanes that want numbers of
different banks, or all the same number, are served at once. Different numbers of one bank are a **bank
conflict**: their lanes take turns. In the line that computes, all lanes of a
warp are in one row of the tile and so want the same number of `S_F`...
"""

# %%
one_request(ours, "S_F")

# %% [markdown]
"""
... and 32 neighbours of `S_I`, one in each bank:
"""

# %%
one_request(ours, "S_I")

# %% [markdown]
"""
Here you can step through a block of s05, line by line, and see where each barrier stands:
"""

# %%
few = ConvProblem(batch=1, in_channels=2, height=4, width=8, out_channels=8, kernel_size=2)
step_through(trace_stage("s05", few))

# %% [markdown]
"""
## Find the bug

Pass the check above first: this cell gives its answer away.

This kernel is right. No race, no wrong answer. But in the line that computes it keeps shared memory busy
for several times as long. Look at the same request in it, and fix the kernel. There is more than one
way.
"""

# %% hunt="banks"
stage_kernel(
    "s05",
    planted=(
        ("(M_B, K_B), (K_B, N_B)", "(M_B, K_B), (N_B, K_B)"),
        ("S_I[e, tx] = pixel", "S_I[tx, e] = pixel"),
        ("S_F[ty, k] * S_I[k, tx]", "S_F[ty, k] * S_I[tx, k]"),
    ),
    called="make_slow",
)

# %%
one_request(traced(make_slow, "s05", problem, tile), "S_I")

# %% check="banks"
check(make_slow, "s05")

# %% [markdown]
"""
<details><summary>Tip: why do they meet?</summary>

`S_I` is now `N_B` rows of `K_B` numbers. Neighbouring lanes have neighbouring `tx`, and so want numbers
that lie `K_B = 8` apart: lanes 0, 4, 8, ... end up in the same bank.
</details>
<details><summary>Tip: two ways to fix it</summary>

Transpose the array, so that `tx` is its last index. Or leave it and make its rows one number longer
than they need to be, `K_B + 1`: then neighbouring lanes are 9 apart, and 32 of them hit 32 banks.
</details>

## On a real GPU
"""

# %%
measured("s01", "s04", "s05", "s06")

# %%
time_mine(make_kernel, "s05")  # with a GPU, beside the stage's and a library's

# %% [markdown]
"""
s05 is far faster than s04, and not faster than the simple s01. That is honest and worth understanding:

- s04 lost its time to index arithmetic, not to memory. Every thread worked out for every term which
  pixel it is. In s05 that is done once for each number *fetched*, and the rest of the threads profit.
- s01 never had that arithmetic, and its numbers came mostly from the caches, which do by luck what
  shared memory does on purpose.
- Two barriers a slice cost time, and two reads from shared memory for one multiplication are too many.

The next stages all live in the two arrays that you have just filled. s06 lets each thread compute several
outputs, so that a number read once serves several sums, and there the gain comes.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why are there two barriers and not one?</summary>

The first keeps threads from computing with a slice that is not complete. The second keeps fast threads
from writing the next slice while slow ones still read this one. Leave out either and the simulator
names both lines; a GPU would give wrong answers now and then.
</details>

<details><summary>Threads past the edge of the output do not return early here. Why not?</summary>

They fetch numbers for the others, and a barrier waits for every thread of the block. A thread that has
returned never reaches the barrier. So only the last line checks whether the output exists.
</details>

<details><summary>How often is a number of the input fetched by the tile above, compared with s04?</summary>

In s04 each of the `M` rows of threads fetches it. In s05 one fetch serves the `M_B = 8` rows of the
tile: an eighth. For the filter one fetch serves `N_B = 32` columns. With tiles of 128 x 128, as in s09,
it is a 128th.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The whole file: [s05_shared_memory.py](../src/convlab/stages/s05_shared_memory.py), and what was
  measured: [ladder](../docs/ladder.md#s05_shared_memory).
- The im2win paper (000), section 3.3, "Shared memory and register", and lines 3 to 7 of its Algorithm 3:
  [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- All that the simulator finds, races and barriers among them: [findings](../docs/findings.md).
- Step through every request: `convlab trace s05 --html s05.html` writes a [page](../docs/trace.md).
- Next on the ladder: [s06, block tiling](06_block_tiling.ipynb).
"""
