# %% [markdown]
"""
# m06: vectorised access, four numbers at a time

**You will be able to** use 128-bit loads and stores, and arrange numbers so that these are allowed.

A thread of m05, the stage of lesson 07, reads shared memory with **scalar** loads: each instruction brings one number. GPUs also have
instructions that move four neighbours at once: 16 bytes, 128 bits, a **float4**. The four numbers must be
neighbours, and the first one must lie at a multiple of 16 bytes. You should have done
[m05, the micro-kernel](07_microkernel.ipynb).
"""

# %% setup=true
from convlab import ConvProblem, Tile, trace_stage
from convlab.lessons import check, measured, one_request, reads_in_turn
from convlab.lessons import side_by_side, thread_in_tile, traced

several = Tile(M_B=32, N_B=16, K_B=2, M_T=8, N_T=4)  # the checks try it, too: two float4s of rows

# %% [markdown]
"""
## The idea

For each term a thread of m05 makes `M_T + N_T` scalar loads, one instruction each. The thread's rows and
columns lie apart, so a wider load would bring numbers that the thread does not need:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=4, height=6, width=16, out_channels=16, kernel_size=3, padding=1
)
tile = Tile(M_B=16, N_B=32, K_B=8, M_T=4, N_T=4)
m05 = trace_stage("m05", problem, tile).main
thread_in_tile(m05, problem, thread=9)

# %% [markdown]
"""
In m06 the columns of a thread are **float4s**, and so are its rows. One 128-bit load brings a whole float4:
"""

# %%
ours = trace_stage("m06", problem, tile).main
thread_in_tile(ours, problem, thread=9)

# %% [markdown]
"""
In lesson 07 it was a bug to give a thread neighbouring columns, because each lane read one number and
skipped three. Here each lane reads all four, and skips nothing.
"""

# %% [markdown]
"""
A thread with more than four rows has several float4s. The float4 with the thread's row `i` as its first
(`i` = 0, 4, 8, ...) begins at row `ty * FLOAT4 + i * ROWS` of the tile, where `FLOAT4` is 4. So the first
float4s of all threads come first, then the second float4s of all threads: the threads of a warp read
neighbours.

Two functions move a float4. `array` is in shared or in global memory:

| call | does |
| --- | --- |
| `load4(array, index)` | a 128-bit load: returns the four numbers from `index` on |
| `store4(array, index, four)` | a 128-bit store: writes four numbers there, such as those that `load4` returned |

For an array with two dimensions the index is a pair, `(row, column)`, and the four numbers are neighbours in
the row. **The index must be a multiple of four numbers** from the array's start. Otherwise a GPU stops the
kernel, and the simulator says `misaligned`.
"""

# %% [markdown]
"""
### The filter is transposed

`load4` can bring four *rows* of the filter's slice only if these are neighbours in memory. In m05's
`S_F[row, k]` neighbours are terms. So m06 transposes the slice: `S_F[k, row]`. To fill the slice with float4s
too, the filter in global memory must be transposed as well. A layout transform of the filter does that: a
kernel that runs first copies the filter into `packed`, transposed and padded with zeros up to whole tiles. This
kernel is given, and it is cheap because a filter is small. The padding also removes the bounds checks from the
filter's loads.

| array | number of channel `row`, term `k` | size |
| --- | --- | --- |
| `weight` (m05) | `weight[row * K + k]` | `M` x `K` |
| `packed` | `packed[k * M_P + row]` | `K` x `M`, each rounded up to whole tiles |
| `S_F` | `S_F[k, row]` | `K_B` x `M_B` |
"""

# %% [markdown]
"""
## Your turn

Below is the kernel of m06. The outer product is the one of m05. At the end the kernel stores the sums as
float4s. Two places are left for you:

- **Load the filter's slice,** one float4 at a time. It has `K_B` rows of `M_4 = M_B // FLOAT4` float4s, which
  the `THREADS` threads share; `t` is this thread's number. Float4 `e` is in row `e // M_4`. In `packed` the
  block's part begins at row `k0`, column `m0`; a row there has `M_P` numbers.
- **Load the operands of term `k`,** the numbers that the thread multiplies, in the loop over `k`. For each float4 of the thread, `i` from 0 to `M_T` in
  steps of `FLOAT4`, load four numbers of `S_F` into `R_F[i]` to `R_F[i + 3]`. The four are in row `k`, from
  column `ty * FLOAT4 + i * ROWS` on. Likewise load `N_T` numbers of `S_I` into `R_I`, from column
  `tx * FLOAT4 + j * COLUMNS` on.
"""

# %% [markdown]
"""
<details><summary>Tip: which float4 of its row is float4 number <code>e</code> of the slice, and at which column does it begin?</summary>

In lesson 05 element `e` was in row `e // K_B`, column `e % K_B`. Here a row has `M_4` float4s, and each float4 has four
columns.
</details>
<details><summary>Tip: the plan</summary>

Load: a loop over this thread's float4s, in it one `load4` from `packed` and one `store4` to `S_F`. Operands: a loop over
the thread's float4s of rows, one over its float4s of columns, in each one `load4` and an assignment to four places.
</details>
<details><summary>Tip: the code</summary>

`packed` has one dimension here: the number in row `a`, column `b` is at `a * M_P + b`, and row `k` of `S_F` is row
`k0 + k` of `packed`. An operand is `four = load4(S_F, (k, ty * FLOAT4 + i * ROWS))`, and
`R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = four` assigns its numbers.
</details>
"""

# %% exercise="float4"
stage_kernel(
    "m06",
    blank(
        "load the filter's slice from packed into S_F, one float4 at a time",
        first="for e in range(t, K_B * M_4, THREADS):  # load",
        last="store4(S_F, (k, row), load4(packed",
    ),
    blank(
        "load the thread's float4s of S_F into R_F and those of S_I into R_I",
        first="for i in range(0, M_T, FLOAT4):",
        last="R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four",
    ),
    hidden=("of_window", "load_windows", "clear", "write"),
)

# %% check="float4"
check(make_kernel, "m06", also=several)

# %% [markdown]
"""
## What the memory sees

For each product a thread makes a quarter of the loads that a thread of m05 makes:
"""

# %%
reads_in_turn({"m05": m05, "m06": ours})

# %%
side_by_side(
    {"m05": m05, "m06": ours},
    "requests to shared memory",
    "wavefronts of shared memory",
    "requests to global memory",
)

# %% [markdown]
"""
m06 makes far fewer requests than m05, but its number of *wavefronts* does not fall as much. 32 lanes with a
float4 each need up to 128 numbers, and 32 banks still deliver 32 numbers per wavefront:
"""

# %%
one_request(ours, "S_I")

# %% [markdown]
"""
No bank is idle, so nothing is wasted. The gain is in instructions: the SM must fetch, decode and
issue each one before any memory moves, and it issues few at a time. Each load that the SM does not
issue leaves room for one more multiplication.

The kernel also loads the filter from global memory as float4s. One request of a warp now moves many sectors,
and uses every byte of them:
"""

# %%
one_request(ours, "packed")

# %% [markdown]
"""
With one more request the warp stores these numbers to shared memory. All banks are busy in each wavefront:
"""

# %%
one_request(ours, "S_F", operation="store")

# %% [markdown]
"""
The loads of the input stay scalar. Neighbouring pixels are neighbours in memory, but a window's row, with its
padding, seldom begins at a multiple of four. Lesson [11](11_im2win_full.ipynb) stores the input in another order, in
which every window does.

## Find the bug

This kernel is right: it loads every float4 of the filter's slice exactly once. Yet shared memory
works much harder than for your kernel. One line is the cause. Run the cells, compare the picture
with the last one above, and correct the line.
"""

# %% hunt="order"
stage_kernel(
    "m06",
    planted=(
        (
            "k, row = e // M_4, e % M_4 * FLOAT4",
            "k, row = e % K_B, e // K_B * FLOAT4",
        ),
    ),
    called="make_slow",
    hidden=("of_window", "copy_float4", "load_windows", "clear", "read", "write"),
)

# %%
model = Tile(M_B=32, N_B=64, K_B=16, M_T=4, N_T=4)  # more rows and terms, as in the check
slow = traced(make_slow, "m06", problem, model)
one_request(slow, "S_F", operation="store")

# %% [markdown]
"""
<details><summary>Tip: what do neighbouring threads store?</summary>

Thread 0 takes the first float4 of row 0, thread 1 the first float4 of row 1. In `S_F` these are `M_B` numbers
apart, and with `M_B = 32` they are in the same four banks: a bank conflict, so the lanes take turns. (In
`packed` they are `M_P` numbers apart, in different sectors. The rest of each sector is fetched for nothing
unless another lane of the warp happens to need it.)
</details>
<details><summary>Tip: the plan</summary>

Neighbouring threads should store neighbours: first the float4s of one row, then those of the next. How many float4s has a
row?
</details>
"""

# %% check="order"
check(make_slow, "m06", also=several)

# %% [markdown]
"""
## On a real GPU
"""

# %%
measured("m01", "m04", "m05", "m06", "m08")

# %% [markdown]
"""
m06 takes less time than m05, with the same arithmetic in the same order. (The last bar, m08, is lesson 09.)
Two things save time:

- For each term a thread makes `(M_T + N_T) / 4` loads where m05 makes `M_T + N_T`. The SM issues
  multiplications in their place.
- The kernel loads the filter as float4s and without bounds checks. The layout transform that this needs is a
  kernel of its own, before this one. Its time is counted, and it is short because a filter is small.

The kernel still loses time by waiting. While a block loads a slice it does not compute, and while
it computes it does not load. The next two stages change that: m07 loads the next slice into
registers while the block multiplies this one, and m08 gives each slice a buffer of its own.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>In lesson 05 a padding of one number per row kept lanes in different banks. Why not here?</summary>

With rows of `M_B + 1` numbers the second row begins at number `M_B + 1`, which is not a multiple of four: its
float4s are misaligned, and a GPU stops the kernel. A padding of *four* numbers is allowed.
</details>

<details><summary>Shared memory delivers as many numbers to m06 as to m05. Why is m06 faster, then?</summary>

Mostly because it issues fewer instructions: at 8 x 8, m05 issues 16 loads for 64 products, and m06
issues 4. Besides, many lanes of a warp need the same numbers, and a wavefront delivers these once
for all of them.
</details>

<details><summary>When must the kernel store its sums with scalar stores after all?</summary>

When the number of pixels of an output image is not a multiple of four (`ALIGNED` is false). Then a float4 of
columns may begin in one image and end in the next, and the pixel of the next image lies elsewhere in memory.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The whole file: [m06_vectorized.py](../src/convlab/ladder/main/m06_vectorized.py), and what was
  measured: [ladder](../docs/ladder.md#m06_vectorized).
- The im2win paper, section 3.3, "Vectorized load/store":
  [arXiv 2306.14316](https://arxiv.org/abs/2306.14316). The paper vectorises only the loads from shared memory.
- How `load4` becomes one instruction: [intrinsics.py](../src/convlab/device/intrinsics.py).
- The layout transform of the filter: [filter_layout.py](../src/convlab/ladder/layouts/filter_layout.py).
- Next on the ladder: [m07_prefetch.py](../src/convlab/ladder/main/m07_prefetch.py), then
  [m08, the double buffer](09_double_buffer.ipynb).
"""
