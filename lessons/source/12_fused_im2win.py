# %% [markdown]
"""
# m12 to m15: im2win without its tensor

**You will be able to** write a multistage pipeline of asynchronous copies, and wait for the right one.

m11, the stage of lesson 11, writes the im2win tensor to global memory, and then reads it again. In this lesson each block makes the
slice that it needs, in shared memory, from the input. This goes beyond the paper. Four stages lead there:

| stage | adds |
| --- | --- |
| m12 | asynchronous copies in a multistage pipeline |
| m13 | windows copied from the input: no tensor is left |
| m14 | an **epilogue** (the code after the loop) that stores whole sectors |
| m15 | **split-K** for few outputs: several blocks share the terms of each sum; and slices of any number of terms |

You should have done [09](09_double_buffer.ipynb) and [11](11_im2win_full.ipynb).
"""

# %% setup=true
from convlab import ConvProblem, Tile, trace_stage
from convlab.lessons import check_prefetch, event_log, global_traffic, measured_parts, measured
from convlab.lessons import one_request, part_of, pipeline_stages, timeline

# %% [markdown]
"""
## The idea

The chart shows the arrays that the launches of m11 and m15 read from and write to global memory, on
a small problem:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=8, height=8, width=16, out_channels=16, kernel_size=3, padding=1
)
tile = Tile(M_B=16, N_B=64, K_B=8, M_T=4, N_T=4)
m15 = trace_stage("m15", problem, tile)
global_traffic(m11=trace_stage("m11", problem, tile), m15=m15)

# %% [markdown]
"""
m11 writes `windows` once and reads it again, and it is several times as large as the input. But a
block needs only one slice of it at a time: `K_B` terms of `N_B` windows. So from m13 on the block copies
just these terms from the input, and stores them to shared memory in window order. (A window's terms may
come in any order, as long as the filter has the same order. Here a slice takes 8 or 16 channels of one
filter position, and the next slice takes the next position. So the kernel computes the address of the
position once for all terms.)

Neighbouring lanes take the same term of neighbouring windows, and these terms are neighbours in the
image:
"""

# %%
one_request(m15.main, "input", number=16)

# %% [markdown]
"""
**Asynchronous copies.** In m08 (lesson 09) and m11 a number in flight occupies a register. From m12 on it does not:
`copy_async` copies a number from global memory to shared memory without a register. The
thread goes on immediately, and keeps its registers for sums. If the position is in the padding, the
copy writes a zero. You need three calls:

| call | does |
| --- | --- |
| `copy_async(...)` | starts a copy; inside `fetch_filter` and `fetch_windows` |
| `commit_copies()` | makes a **commit group** of the copies that this thread has started since its last `commit_copies()` |
| `wait_copies(n)` | waits until at most the `n` last commit groups of this thread are still in flight |

The copies need no registers, so more than one slice can be in flight. Shared memory is a **multistage pipeline**
of `DEPTH` stages, usually three: while the block multiplies the slice in one stage, the next two slices arrive
in the others. The index of a stage is `pipe`. When the next slice is needed, `IN_FLIGHT = DEPTH - 2` later slices may
still be in flight.
"""

# %%
pipeline_stages(event_log("m15"))

# %% [markdown]
"""
## Your turn

Below is the kernel of [m13](../src/convlab/ladder/main/m13_window_copies.py), the first stage without the tensor. It first fetches slices 0 and 1, and waits for slice 0 (`start_first`). Then it multiplies
one slice after the other, while later ones arrive. Three places are left for you:

- **`fetch`** starts the copies of slice `slice_` into stage `pipe`.
- **In the loop**, `slice_` is the slice to multiply next, and `free` is the stage whose slice is already
  multiplied. Start the copies of slice `slice_ + IN_FLIGHT` into `free`. The last slice is `SLICES - 1`. Past
  it start no copy, but still commit a group: `wait_copies` counts groups, so every round must make one.
- **Before slice `slice_` is read**, wait until it is there. `IN_FLIGHT` later ones may still be in flight. Your
  own part of the slice is there when `wait_copies` returns. But other threads have fetched the other parts, and
  each thread can wait only for its own copies.
"""

# %% [markdown]
"""
| call | does |
| --- | --- |
| `fetch_filter(packed, slice_, pipe, t, S_F)` | starts the copies of this thread's part of the filter's slice |
| `fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)` | starts the copies of this thread's part of the windows' slice |

<details><summary>Tip: when is there no copy to start, and what must still happen then?</summary>

In the last rounds there is no later slice. Each round must still make a group, so put `commit_copies()` outside of the
`if`.
</details>
<details><summary>Tip: the plan</summary>

`fetch`: start the filter's copies, then the windows' copies. In the loop: an `if` for the copies, then the group. Before
the slice is read: first wait for your own copies, then meet all threads at a barrier. (In the other order you would know
that the others have *reached* the barrier, but not that their copies have landed.) After the barrier no thread reads the
previous slice any more, so the next round may fill its stage.
</details>
<details><summary>Tip: the code</summary>

The condition is `slice_ + IN_FLIGHT < SLICES`. `fetch` takes `slice_ + IN_FLIGHT` and `free` in the place of its
parameters `slice_` and `pipe`.
</details>
"""

# %% exercise="pipeline"
stage_kernel(
    "m13",
    blank(
        "start both parts of the slice",
        first="fetch_filter(packed, slice_, pipe, t, S_F)",
        last="fetch_windows(",
    ),
    blank(
        "start the slice that comes IN_FLIGHT later; in any case make a group",
        first="if slice_ + IN_FLIGHT < SLICES:",
        last="commit_copies()",
    ),
    blank(
        "wait for my copies, then for everybody",
        first="wait_copies(IN_FLIGHT)  # lines 14-15",
        last="cuda.syncthreads()",
    ),
    hidden=("clear", "start_first", "read", "two_steps", "steps", "multiply", "next_stage", "write"),
)

# %% check="pipeline"
check_prefetch(part_of("m13", make_kernel=make_kernel), "m13")

# %% [markdown]
"""
## What the memory sees

Between the request for a number and the use of this number, m15 makes even more multiplications than m08 does:
"""

# %%
timeline(m08=event_log("m08"), m15=event_log("m15"))

# %% [markdown]
"""
Loads of the input are scalar again, as in m08: a window's pixels begin anywhere. In m08 the index
arithmetic for every number makes scalar loads expensive. m15 avoids this arithmetic: a small table
holds the offset of each filter position.

m15 has two techniques from m11 ([lesson 11](11_im2win_full.ipynb)): the steps of a slice are unrolled, and a
warp is 4 x 8 threads of the tile instead of m08's 2 x 16, so that more threads share the numbers that they
read from shared memory. m11 has no asynchronous copies: it prefetches into registers, so fewer blocks fit
on an SM.

## Find the bug

(`fetch` and `start_next` are what you have written above.)

This `make_kernel` is right, and has a pipeline of three stages. Look how it uses these stages, and
compare this picture with the picture above. Which line keeps the copies from being two slices
ahead?
"""

# %% hunt="impatient"
from convlab.lessons import make_wait

stage_kernel(
    "m13",
    planted=(
        (
            """wait_copies(IN_FLIGHT)  # lines 14-15
                cuda.syncthreads()  # line 16: all have filled the next slice and have read this one
""",
            "wait()  # lines 14-16: all have filled the next slice and have read this one\n",
        ),
        ("    clear, start_first, read", "    wait = make_wait(0)\n    clear, start_first, read"),
    ),
    called="make_slow",
    hidden=("fetch", "clear", "start_first", "next_stage", "start_next", "read", "two_steps", "steps", "multiply", "write"),
)

# %%
pipeline_stages(event_log("m13", part_of("m13", make_kernel=make_slow)))

# %% [markdown]
"""
<details><summary>Tip: for how many slices does a thread have to wait here?</summary>

`wait_copies(n)` waits until at most `n` groups are still in flight. How many may be in flight here?
</details>
<details><summary>Tip: the plan</summary>

The thread needs only the next slice. The groups of the `IN_FLIGHT` slices after it may stay in flight.
</details>
"""

# %% check="impatient"
check_prefetch(part_of("m13", make_kernel=make_slow), "m13")

# %% [markdown]
"""
## On a real GPU
"""

# %%
measured_parts("m08", "m11", "m15")

# %%
measured("m01", "m08", "m11", "m15")

# %% [markdown]
"""
The first chart shows the parts of each stage. m15 has no transform of the input: before its main
kernel it only packs the filter, and a network that is no longer trained needs this only once. The
workspace of m15 is only the packed filter, and the workspace of m11 is several times as large as
the input.

The [results](../docs/results.md) compare m15 with libraries, and
[how it came to be fast](../docs/notes/fast.md) tells what was tried. Two stages refine the kernel above. m14
lets the lanes of a warp store whole sectors. m15 is for small problems: if there are few outputs, several
blocks share the slices of each sum (split-K).
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why does every round commit a group, even when there is nothing left to fetch?</summary>

<code>wait_copies(1)</code> waits for all groups but the last one. In the last rounds the kernel
starts no copy. If it committed no group either, "the last one" would be the very slice that is
needed, and no thread would wait for it.
</details>

<details><summary>A copy into a stage of the pipeline is in flight. What happens if a thread reads that stage?</summary>

The thread gets either the old or the new number, which depends on the timing. The simulator reports
a <em>copy in flight</em>, with the line that started the copy and the line that read.
</details>

<details><summary>Windows overlap, so m15 fetches most pixels several times. Why is this cheaper than the tensor of m11?</summary>

The caches answer nearly all of these fetches, because the same block and its neighbours have just
fetched the same rows. m11's tensor is far larger than the caches, so m11 writes it to memory and
reads it back.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The whole files: [m12_async_copies.py](../src/convlab/ladder/main/m12_async_copies.py),
  [m13_window_copies.py](../src/convlab/ladder/main/m13_window_copies.py),
  [m14_epilogue.py](../src/convlab/ladder/main/m14_epilogue.py),
  [m15_split_k.py](../src/convlab/ladder/main/m15_split_k.py), and
  [tile_heuristic.py](../src/convlab/ladder/tile_heuristic.py), which chooses a tile for each layer.
- The im2win paper, Algorithm 3, lines 8 to 19, which this loop still is:
  [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Copies in flight and all other mistakes that the simulator finds: [findings](../docs/findings.md).
- Next: [13_tensor_cores](13_tensor_cores.ipynb), whole warps that multiply.
"""
