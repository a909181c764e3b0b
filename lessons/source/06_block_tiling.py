# %% [markdown]
"""
# s06: block tiling, several outputs a thread

**You will be able to** give a thread several outputs, keep their sums in registers, and say how much less a
larger tile fetches. It takes half an hour.

In s05 every thread computes one output, and for each multiplication it reads two numbers from shared
memory. Here a thread computes several outputs, one below the other. A number of the input, once read,
serves all of them, and a block's tile becomes larger than the block. You should have done
[s05, shared memory](05_shared_memory.ipynb).
"""

# %% setup=true
from convlab import ConvProblem, Tile, trace_stage
from convlab.lessons import check, measured, reads_in_turn, side_by_side
from convlab.lessons import thread_in_tile, tile_of_threads, traced

# %% [markdown]
"""
## The idea

As in s05 the convolution is a matrix product: rows are the `M` output channels, columns the `N` output
pixels, and a block computes a tile of `M_B` x `N_B` outputs. In s05 that is one output for each thread.
Here is such a tile with 128 threads:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=4, height=6, width=16, out_channels=16, kernel_size=3, padding=1
)
s05 = trace_stage("s05", problem, Tile(M_B=4, N_B=32, K_B=8)).main
tile_of_threads(s05, problem, thread=34)

# %% [markdown]
"""
A larger tile would be better. A number fetched from global memory into `S_I` serves all *rows* of the
tile, one in `S_F` all its *columns*: the larger the tile, the less is fetched for each output. The floating-point operations for
each byte of memory traffic are the **arithmetic intensity**: a larger tile raises it. But a block
has at most 1,024 threads, and so in s05 a tile has at most 1,024 outputs.

The way out: every thread computes `M_T` outputs. With `M_T = 4` the same 128 threads have a tile of
four times the size. Thread 34 keeps its column and gets four of the rows:
"""

# %%
tile = Tile(M_B=16, N_B=32, K_B=8, M_T=4)
ours = trace_stage("s06", problem, tile).main
tile_of_threads(ours, problem, thread=34)

# %% [markdown]
"""
That alone makes fetching cheaper. There is a second gain. The four outputs of thread 34 are in *one
column*: they see the same window, through four different filters. So it reads the window's number
once and uses it four times:
"""

# %%
thread_in_tile(ours, problem, thread=34)

# %% [markdown]
"""
Five reads for four multiplications, where s05 takes eight. Between its uses the number stays in a
**register**. Registers are the fastest memory there is: each thread has some of its own, and arithmetic
works on nothing else. A plain variable such as `value` is in a register. Several sums need an array of
registers, `R_O`:

```python
R_O = cuda.local.array(M_T, float32)  # M_T numbers of this thread's own
```

No other thread sees it, so there is nothing to wait for; but the kernel must clear it. Its size is a plain number
to the compiler, and so are the bounds of `for i in range(M_T)`: the compiler writes this loop out
`M_T` times and gives every element a register of its own.
"""

# %% [markdown]
"""
## Your turn

Loading is s05's and is given, barriers included; so is the loop that sets the sums to zero. The thread's row of the block of threads is `ty`, its
column `tx`; there are `ROWS = M_B // M_T` rows of threads. Output `i` of this thread is in row
`ty + i * ROWS` of the tile, column `tx`. Two places are left for you:

- **Compute:** for each term `k` of the slice read the window's number `S_I[k, tx]` once, multiply it with
  the filters' numbers `S_F[row, k]` of this thread's rows, and add to its sums.
- **Write** the sums. Output `i` is in channel `m = m0 + ty + i * ROWS`.
  Write `R_O[i] + bias[m]` to `output[i_n, m, o_h, o_w]`, but only where the output exists: `m < M` and `n < N`.

<details><summary>Tip: which loop is inside?</summary>

Outside `for k in range(K_B)`: read the window's number into a variable. Inside
`for i in range(M_T)`: add to `R_O[i]`.
</details>
<details><summary>Tip: the edge of the output</summary>

Check each of a thread's channels by itself. The first may exist and the last not.
</details>
"""

# %% exercise="outputs"
stage_kernel(
    "s06",
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
)

# %% check="outputs"
wide = Tile(M_B=8, N_B=16, K_B=2, M_T=4)  # is tried, too
check(make_kernel, "s06", also=wide)

# %% [markdown]
"""
## What the memory sees

Here is the order in which a warp reads from shared memory. In s05 a read of the filter and one of the
windows take turns, and two reads make one product. In s06 one of the windows serves `M_T` of the filter:
"""

# %%
reads_in_turn({"s05": s05, "s06": ours})

# %% [markdown]
"""
And here is all of it for the two tiles above, both of 128 threads:
"""

# %%
side_by_side(
    {"s05": s05, "s06": ours},
    "requests to global memory",
    "requests to shared memory",
    "bytes an operation",
)

# %% [markdown]
"""
Both fall. The larger tile saves requests to *global* memory: there are fewer tiles, and each fetches its
pixels once for all of its rows. Reading once saves requests to *shared* memory.

## Find the bug

Pass the check above first: this cell gives its answer away.

This kernel is right, and its tile is as large as yours. But it has lost one of the two gains. Run both
cells and compare the order of its reads with the picture above. Then fix it.
"""

# %% hunt="reuse"
stage_kernel(
    "s06",
    planted=(
        (
            """for k in range(K_B):  # compute
                value = S_I[k, tx]
                for i in range(M_T):
""",
            """for i in range(M_T):  # compute
                for k in range(K_B):
""",
        ),
        ("R_O[i] += S_F[ty + i * ROWS, k] * value", "R_O[i] += S_F[ty + i * ROWS, k] * S_I[k, tx]"),
    ),
    called="make_slow",
)

# %%
slow = traced(make_slow, "s06", problem, tile)
reads_in_turn({"s06": ours, "this kernel": slow})

# %% check="reuse"
check(make_slow, "s06")

# %% [markdown]
"""
<details><summary>Tip: why does it read more?</summary>

Its outer loop takes one output after the other, and each of them goes through all terms of the slice. By the
time the second output wants the number of term 0, that number is long gone. It is read `M_T` times.
</details>
<details><summary>Tip: two ways to fix it</summary>

Exchange the loops and keep the number in a variable. Or keep the loops, and before them copy the
thread's column of the slice into a local array of `K_B` numbers. (The first needs one register, the
second `K_B` of them.)
</details>

A compiler that writes both loops out may see that the same number is read again, and repair this by
itself. It also may not. It is better to say what you mean.

## On a real GPU
"""

# %%
measured("s01", "s04", "s05", "s06", "s07")

# %% [markdown]
"""
There it is: s06 takes far less time than s05 and, for the first time since s04, less than the simple s01. Nothing else has changed, only how often a number serves once it is there:

- The tile measured for s06 is larger than s05's, and so global memory gets fewer requests.
- For `M_T` products a thread reads `M_T + 1` times from shared memory, where s05 reads `2 * M_T` times.

Still there is more than one read for each product, as every product needs *its own* number of the
filter. s07 lets a thread compute several columns too, and then the filter's numbers serve several times
as well.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why has a thread rows that lie <code>ROWS</code> apart, and not rows that lie side by side?</summary>

Here both are right, and both make as many requests: a warp's threads are all in one row of the block, so they
want the same number of `S_F` whichever row it is. (Try it: `ty * M_T + i` in both places.) From s07 on a
warp spans several rows and columns, and then it matters which.
</details>

<details><summary>A thread with 4,096 outputs would need hardly any reads of the windows. Why not?</summary>

Its sums would not fit into registers: a thread has at most 255 of them. What does not fit goes to
main memory and is fetched again for every use. And the block would need a tile of millions of outputs;
there would be few blocks, and most of the GPU would have nothing to do.
</details>
"""

# %% [markdown]
"""
<details><summary>Why may the kernel not check <code>if m0 + ty &lt; M</code> once, before the last loop?</summary>

That is the thread's first channel. Its others are `ROWS`, `2 * ROWS`, ... further on and may be past
the last one. They would be written outside of the array, or into the next image.
</details>

<details><summary>And without <code>n &lt; N</code>?</summary>

It works by luck: threads past the last pixel fetched the *last* window again
(`window = min(n, N - 1)`), have its sums, and write the same numbers to the same place once more. One
changed line further up and it would be a race.
</details>

## Where to read on

- The whole file: [s06_block_tiling.py](../src/convlab/stages/s06_block_tiling.py), and what was
  measured: [ladder](../docs/ladder.md#s06_block_tiling).
- The im2win paper (000), section 3.3, "Tiling": `M_B`, `N_B`, `K_B` at the block level, `M_T` and `N_T`
  at the thread level: [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Step through every request: `convlab trace s06 --html s06.html` writes a [page](../docs/trace.md).
- Next on the ladder: [s07, the micro-kernel](07_microkernel.ipynb).
"""
