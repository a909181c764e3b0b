# %% [markdown]
"""
# m04: block tiling, several outputs for each thread

**You will be able to** give a thread several outputs, keep their sums in registers, and say how many fewer
numbers a larger tile fetches.

In m03, the stage of lesson 05, every thread computes one output, and for each multiplication it reads two numbers from
shared memory. Here a thread computes several outputs, one below the other. One read of an input
number serves all these outputs, and a block's tile has more outputs than the block has threads. You
should have done [m03, shared memory](05_shared_memory.ipynb).
"""

# %% setup=true
from convlab import ConvProblem, Tile, trace_stage
from convlab.lessons import block_of_product, check, measured, reads_in_turn, side_by_side
from convlab.lessons import slider, thread_in_tile, tile_of_threads, traced

# %% [markdown]
"""
## The idea

As in m03 the convolution is a matrix product: rows are the `M` output channels, columns the `N` output
pixels, and a block computes a tile of `M_B` x `N_B` outputs. In m03 that is one output for each thread.
Here is such a tile with 128 threads:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=4, height=6, width=16, out_channels=16, kernel_size=3, padding=1
)
m03 = trace_stage("m03", problem, Tile(M_B=4, N_B=32, K_B=8)).main
tile_of_threads(m03, problem, thread=34)

# %% [markdown]
"""
A larger tile would be better. A number that the block fetches from global memory into `S_I` serves
all *rows* of the tile, and a number in `S_F` serves all its *columns*. So a larger tile fetches
fewer numbers for each output: its arithmetic intensity is higher. But a block has at most 1,024
threads, and so in m03 a tile has at most 1,024 outputs.

The remedy is that every thread computes `M_T` outputs. With `M_T = 4` the same 128 threads have a
tile of four times the size. Thread 34 keeps its column and gets four of the rows:
"""

# %%
tile = Tile(M_B=16, N_B=32, K_B=8, M_T=4)
ours = trace_stage("m04", problem, tile).main
tile_of_threads(ours, problem, thread=34)

# %% [markdown]
"""
This is what a block fetches from the filter and from the windows for its tile. Move the slider: a tile with more rows
has more outputs for each number of the windows that the block fetches.
"""


# %%
def fetched(M_B):
    of_a_block = trace_stage("m04", problem, Tile(M_B=M_B, N_B=32, K_B=8, M_T=M_B // 4)).main
    return block_of_product(of_a_block, problem, 8)


slider(fetched, M_B=(4, 8, 16))

# %% [markdown]
"""
This alone makes fetching cheaper. There is a second gain. The four outputs of thread 34 are in *one
column*: they see the same window, through four different filters. So the thread reads the window's
number once and uses it four times:
"""

# %%
thread_in_tile(ours, problem, thread=34)

# %% [markdown]
"""
The thread makes five reads for four multiplications, where m03 makes eight. Between its uses the
number stays in a **register**. Registers are the fastest memory: each thread has registers of its
own, and arithmetic instructions work on them. A plain variable such as `value` is in a register.
Several sums need an array of registers, `R_O`:

```python
R_O = cuda.local.array(M_T, float32)  # M_T numbers of this thread's own
```

No other thread sees this array, so it needs no barrier, but the kernel must set it to zero. The
array's size is a constant for the compiler, and so are the bounds of `for i in range(M_T)`. So the
compiler **unrolls** this loop: it writes the loop's body `M_T` times, without a loop, and gives every element a register
of its own.
"""

# %% [markdown]
"""
## Your turn

The functions that load the slices, as in lesson 05, are given. In the block the thread is in row `ty`, column `tx`; there are `ROWS = M_B // M_T` rows of
threads. Output `i` of this thread is in row `ty + i * ROWS` of the tile, column `tx`. Two places
are left for you:

- **Compute:** for each term `k` of the slice read the window's number `S_I[k, tx]` once, multiply
  it by the filters' numbers `S_F[row, k]` of this thread's rows, and add to its sums.
- **Write** the sums. Output `i` is in channel `m = m0 + ty + i * ROWS`. Write `R_O[i] + bias[m]` to
  `output[i_n, m, o_h, o_w]`, but only where the output exists: `m < M` and `n < N`.
"""

# %% [markdown]
"""
<details><summary>Tip: which number can serve several sums, and which loop must then be the inner one?</summary>

All `M_T` outputs of this thread see the same window. So one of the two numbers of a product is the same for all of them.
Read this number once, and keep it while a loop goes through the outputs.
</details>
<details><summary>Tip: the plan</summary>

Compute: the outer loop goes over the `K_B` terms and reads the window's number into a variable; the inner loop goes over
the `M_T` sums. Write: a loop over the sums, with the check inside it, because the first channel may exist and the last may
not.
</details>
<details><summary>Tip: the code</summary>

The inner line of the first place is `R_O[i] += S_F[ty + i * ROWS, k] * value`.
</details>
"""

# %% exercise="outputs"
stage_kernel(
    "m04",
    blank(
        "for each term read the window's number once and use it for all M_T sums",
        first="for k in range(K_B):  # compute",
        last="R_O[i] += S_F[ty + i * ROWS, k] * value",
    ),
    blank(
        "write the sums that exist, each with its channel's bias",
        first="m = m0 + ty + i * ROWS",
        last="output[i_n, m, o_h, o_w] = R_O[i] + bias[m]",
    ),
    hidden=("of_window", "load_filter", "load_windows"),
)

# %% check="outputs"
wide = Tile(M_B=8, N_B=16, K_B=2, M_T=4)  # the check tries this tile, too
check(make_kernel, "m04", also=wide)

# %% [markdown]
"""
## What the memory sees

The picture shows the order in which a warp reads from shared memory. In m03 reads of the filter and
reads of the windows alternate, and each product needs two reads. In m04 one read of the windows
serves `M_T` reads of the filter:
"""

# %%
reads_in_turn({"m03": m03, "m04": ours})

# %% [markdown]
"""
The next chart shows the counts for the two tiles above, both of 128 threads:
"""

# %%
side_by_side(
    {"m03": m03, "m04": ours},
    "requests to global memory",
    "requests to shared memory",
    "operations per byte",
)

# %% [markdown]
"""
m04 makes fewer requests of both kinds than m03. The larger tile saves requests to *global* memory: there are
fewer tiles, and each fetches its pixels once for all its rows. Reading each window's number only
once saves requests to *shared* memory.

## Find the bug

This kernel is right, and its tile is as large as yours. But it has only one of the two gains. Run
both cells and compare the order of its reads with the picture above. Then fix it. (`add_products` adds the products of
a row of `S_F` and a column of `S_I` to a sum, by a loop over `k`.)
"""

# %% hunt="reuse"
from convlab.lessons import add_products

stage_kernel(
    "m04",
    planted=(
        (
            """for k in range(K_B):  # compute
                value = S_I[k, tx]
                for i in range(M_T):
                    R_O[i] += S_F[ty + i * ROWS, k] * value
""",
            """for i in range(M_T):  # compute
                R_O[i] = add_products(S_F, S_I, ty + i * ROWS, tx, R_O[i])
""",
        ),
    ),
    called="make_slow",
    hidden=("of_window", "load_filter", "load_windows", "write"),
)

# %%
slow = traced(make_slow, "m04", problem, tile)
reads_in_turn({"m04": ours, "this kernel": slow})

# %% [markdown]
"""
<details><summary>Tip: how often does this thread read the window's number of term 0?</summary>

The loop takes one output after the other, and each of them goes through all terms of the
slice. When the second output needs the number of term 0, the thread no longer holds this number. So
the thread reads each number `M_T` times.
</details>
<details><summary>Tip: the plan</summary>

There are two ways. Make the loop over the terms the outer one and keep the number in a variable. Or copy the thread's
column of the slice into a local array of `K_B` numbers before the loop. (The first way needs one register, the second
`K_B` of them.)
</details>
"""

# %% check="reuse"
check(make_slow, "m04")

# %% [markdown]
"""
A compiler that unrolls both loops may notice that the kernel reads the same number again, and
remove the second read. But it may also not notice this, so write the kernel that you mean.

## On a real GPU
"""

# %%
measured("m01", "m02", "m03", "m04", "m05")

# %% [markdown]
"""
m04 takes far less time than m03. It also takes less time than the simple m01, which m02 and m03 do
not. Only one thing has changed: how often the kernel uses each number that it has read:

- The tile measured for m04 is larger than m03's, so it needs fewer requests to global memory for each output.
- For `M_T` products a thread reads `M_T + 1` times from shared memory, where m03 reads `2 * M_T` times.

m04 still makes more than one read for each product, because every product needs *its own* number of
the filter. In m05 a thread also computes several columns, so it uses each number of the filter
several times as well.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why are a thread's rows <code>ROWS</code> apart, and not neighbours?</summary>

Here both are right, and both make the same number of requests: all threads of a warp are in one row
of the block, so in both cases they read the same number of `S_F`. (Try `ty * M_T + i` in both
places.) From m05 on a warp spans several rows and columns, and then the choice matters.
</details>

<details><summary>A thread with 4,096 outputs would need hardly any reads of the windows. Why does no stage do this?</summary>

Its sums would not fit into registers: a thread has at most 255 registers. Sums that do not fit go
to main memory, and the thread fetches them again for every use. Besides, the tile of a block would
have a million outputs or more, so there would be few blocks, and most of the GPU would have nothing
to do.
</details>
"""

# %% [markdown]
"""
<details><summary>Why may the kernel not check <code>if m0 + ty &lt; M</code> once, before the last loop?</summary>

`m0 + ty` is only the thread's first channel. Its other channels are `ROWS`, `2 * ROWS`, ... further
on and may be past the last channel. The kernel would write them outside of the array, or into the
next image.
</details>

<details><summary>What happens without the check <code>n &lt; N</code>?</summary>

The kernel works by luck: threads past the last pixel fetch the *last* window again
(`window = min(n, N - 1)`), compute its sums again, and write the same numbers to the same place. If
one line further up changed, this would be a race.
</details>

## Where to read on

- The whole file: [m04_block_tiling.py](../src/convlab/ladder/main/m04_block_tiling.py), and what was
  measured: [ladder](../docs/ladder.md#m04_block_tiling).
- The im2win paper, section 3.3, "Tiling": `M_B`, `N_B`, `K_B` at the block level, `M_T` and `N_T`
  at the thread level: [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Step through every request: `convlab trace m04 --html m04.html` writes a [page](../docs/trace.md).
- Next on the ladder: [m05, the micro-kernel](07_microkernel.ipynb).
"""
