# %% [markdown]
"""
# m10 and m11: the whole of im2win, four numbers at a time

**You will be able to** write the whole of im2win: both layout transforms, float4 loads of windows, stores to
shared memory, and at the end all of it from an empty cell.

m09, the stage of lesson 10, has the right order and a slow kernel; m08, that of lesson 09, has a fast kernel and the
wrong order. m10 combines the right order with the fast kernel, and m11 tunes it: the result is the paper's Algorithm 3.
You should have done [00b](00b_small_kernels.ipynb), [05](05_shared_memory.ipynb) (slices and barriers) and
[10](10_im2win.ipynb). Lessons 06 to 09 lead to m08's kernel step by step; what the exercises need of them is said
here again, in short.
"""

# %% setup=true
import numpy as np

from convlab import ConvProblem, Tile, trace_stage
from convlab.ladder.layouts.im2win_layout import group_size, window_columns
from convlab.lessons import algorithm_3, check, check_im2win, check_layout, im2win_orders
from convlab.lessons import measured, measured_parts, one_request, packed_filter, part_of
from convlab.lessons import side_by_side, time_mine, traced, whole_im2win

# %% [markdown]
"""
## The idea

One instruction can move four numbers, 16 bytes, if they are neighbours and begin at a multiple of 16 bytes. The four
are a **float4**. Since m06 (lesson 08) the kernels fetch the filter with such float4 loads. They cannot fetch the input in
this way, because in an image a window's pixels begin anywhere.

In m09's tensor they begin anywhere, too. There a window has `H_f * W_f` contiguous numbers for each channel,
for example nine, which is not a multiple of four. One more change solves this: put the **channels
innermost**. For each column of the input the numbers of *all* channels form a **column group** of
`H_f * C_i` numbers. If this is not a multiple of four, zeros fill up the group. Then

- all numbers of a window are **contiguous**, `W_f` groups long (without dilation of the width);
- every window begins at a multiple of four numbers, as groups do;
- the next number of a window is always the next number in memory, so the kernel needs no index
  arithmetic for it.
"""

# %%
im2win_orders(ConvProblem(1, 2, 3, 5, out_channels=2, kernel_size=2))

# %% [markdown]
"""
A window's numbers now lie column by column, in a column row by row, and in a row channel by
channel. The terms of a sum may have any order, as long as the filter has the same order. So a small
kernel packs the filter in this order, too, with zeros where the tensor has zeros.

The rest of the kernel is m08's. A block computes a tile of outputs, slice by slice, as in lesson 05, with two changes.
Each thread computes several outputs and keeps their sums in registers, a thread's own memory. And shared memory has two
**buffers**, each with room for a slice: the block fetches the next slice into one while it multiplies from the other.
Only the code that fetches and stores a slice changes. That is m10. (m11 also tunes the kernel; the end of the lesson says
how.)

In NumPy the new tensor takes a few lines. `G` is the size of a group and `W_w` the number of columns that a row
of windows covers. The numbers of a group lie filter row by filter row, and in each row channel by channel:
"""


# %% setup=true
def windows_in_numpy(input, problem):
    p, G, W_w = problem, group_size(problem), window_columns(problem)
    padded = np.pad(input, ((0, 0), (0, 0), *p.padding))
    tensor = np.zeros((p.N_i, p.H_o, W_w, G), np.float32)
    for o_h in range(p.H_o):
        for f_h in range(p.H_f):
            row = padded[:, :, o_h * p.s_h + f_h * p.d_h, :W_w]  # image, channel, column
            tensor[:, o_h, :, f_h * p.C_i : (f_h + 1) * p.C_i] = row.transpose(0, 2, 1)
    return tensor


# %% [markdown]
"""
## Your turn: the transform of the input

Write the same as a kernel. Each number of the tensor gets a thread. These names are given for number `e`:

| name | is |
| --- | --- |
| `row` | the number's row of the tensor; the rows of all images follow each other |
| `column` | its column group in this row |
| `place` | its place in the group, from 0 to `G - 1` |
| `i_n`, `o_h` | the image and the output row that `row` belongs to |

Find the filter row `f_h` and the channel `i_c`, then the pixel's row `i_h` and column `i_w` in the image. Compute the
number first, the pixel or 0 where there is none, and then store it to `windows[e]` with one line.
"""

# %% [markdown]
"""
<details><summary>Tip: for which places of a group is there no pixel?</summary>

For the places in the image's padding, as in lesson 10. And for the places that only fill up the group: from
`H_f * C_i` on. What would `f_h` be there?
</details>
<details><summary>Tip: the plan</summary>

Split `place` by `C_i`: channels count fastest, then filter rows. Compute `i_h` and `i_w` as in lesson 10. Start with
0, replace it by the pixel if `f_h`, `i_h` and `i_w` are all inside, and store it in any case.
</details>
<details><summary>Tip: the code</summary>

`f_h, i_c = place // C_i, place % C_i`, and `i_w = column - p_w`. The condition is
`f_h < H_f and 0 <= i_h < H_i and 0 <= i_w < W_i`.
</details>
"""

# %% exercise="transform"
stage_kernel(
    "plain_im2win",
    blank(
        "find f_h, i_c, i_h and i_w; write the pixel, or 0 where there is none",
        first="f_h, i_c = place // C_i",
        last="windows[e] = value",
    ),
    name="make_transform",
)

# %% check="transform"
check_layout(make_transform, windows_in_numpy, "input")

# %% [markdown]
"""
The check numbers the pixels 1, 2, 3, ..., so in "the kernel wrote 7, wanted is 9" the 7 and the 9 are pixels. (In the
next exercise it numbers the weights in the same way.) m11's own
transform writes the same tensor faster, through shared memory:
[im2win_layout.py](../src/convlab/ladder/layouts/im2win_layout.py).

## Your turn: pack the filter

The filter must have the order of the windows. The picture shows six filters of two channels, with 3 rows and 2 columns
each. `weight` is packed for tiles of `M_B = 4` output channels and slices of `K_B = 8` terms:
"""

# %%
packed_filter(ConvProblem(1, 2, 4, 4, 6, kernel_size=(3, 2)), Tile(M_B=4, N_B=4, K_B=8))

# %% [markdown]
"""
Look at the first column of the first matrix, which is filter 0. Its terms come column by column, in a column row by row,
and in a row channel by channel. The `G` terms of a filter's column are a group, as in the tensor, and zeros fill up the
group. So the term with number `term` is number `term % G` of the group of filter column `term // G`. (In this lesson
`term` counts the terms of a whole window, and `k` those of a slice.)

A kernel multiplies `M_B` output channels at a time, so `packed` has one matrix for each `M_B` of them. A matrix has `M_B`
columns and `K_P` rows, one for each term; `K_P` is rounded up to whole slices. A slice is then contiguous (a frame in the
picture). In NumPy:
"""


# %% setup=true
def packed_in_numpy(weight, problem, tile):
    p, G, M_B = problem, group_size(problem), tile.M_B
    K_P, tiles = tile.whole_slices(p.W_f * G), -(-p.M // M_B)  # -(-a // b) rounds up
    # weight is [filter, channel, row, column]; columns is [column, row and channel, filter].
    columns = weight.transpose(3, 2, 1, 0).reshape(p.W_f, p.H_f * p.C_i, p.M)
    # [column, place in the group, filter]: zeros fill up the groups and the last tile of filters.
    grouped = np.zeros((p.W_f, G, tiles * M_B), np.float32)
    grouped[:, : p.H_f * p.C_i, : p.M] = columns
    # [term, filter]: zeros fill up the last slice.
    rows = np.zeros((K_P, tiles * M_B), np.float32)
    rows[: p.W_f * G] = grouped.reshape(p.W_f * G, -1)
    return rows.reshape(K_P, tiles, M_B).transpose(1, 0, 2)  # [tile, term, filter of the tile]


# %% [markdown]
"""
In the kernel below, number `e` of `packed` belongs to output channel `o_c` and term `term`; both are given. Find the
filter's column `f_w`, row `f_h` and channel `i_c`. Compute the number first, the weight or 0 where there is none, and then
store it to `packed[e]` with one line. (`place` is again a number's place in its group, from 0 to `G - 1`.
`blocks_for(a, b)` is `a / b`, rounded up.)

<details><summary>Tip: where is there no weight?</summary>

In three cases: past the last output channel, in the zeros that fill up a group, and past the last term. Which of
`o_c`, `f_h` and `f_w` is too large in each?
</details>
<details><summary>Tip: the plan</summary>

Split `term` by `G` into the column and the place in its group. Split the place by `C_i` as in the transform. Then one
`if` with three comparisons.
</details>
<details><summary>Tip: the code</summary>

`f_w, place = term // G, term % G`, then `f_h, i_c = place // C_i, place % C_i`. The weight is
`weight[o_c, i_c, f_h, f_w]`.
</details>
"""

# %% exercise="pack"
stage_kernel(
    "plain_im2win",
    blank(
        "find f_w, f_h and i_c; write the weight, or 0 where there is none",
        first="f_w, place = term // G",
        last="packed[e] = value",
    ),
    name="make_packing",
)

# %% check="pack"
check_layout(make_packing, packed_in_numpy, "weight")

# %% [markdown]
"""
## Algorithm 3

Now the kernel. This is the paper's Algorithm 3, beside the lines of
[m11_warp_tiling](../src/convlab/ladder/main/m11_warp_tiling.py) that do the same. Lessons 05 to 09 explain every line;
for the exercises you need only what is marked 3, 4, 14 and 15.

| in the listing | is | in m11 |
| --- | --- | --- |
| `S`, `R` | shared memory, registers | `S_F`, `S_I`, `R_F0`, ... |
| `I`, `F`, `O` | the tensor, the packed filter, the output | `windows`, `packed`, `output` |
| `bx`, `by` | the block's numbers: `bx` of its output channels, `by` of its windows | in `m0` and `n0` |
| `kk` | the number of a slice | `slice_` |
| `k'` | a term of the slice | `k` |
| `load`, `store` | the numbers of two buffers: one is filled while the other is read, then they change roles | 0 and 1 in names, `row0` |
| `vec_load` | float4 loads from shared memory | in `read` |

A row with nothing on the left is m11's own. (Line 19 is as the arithmetic needs it; lesson
[15](15_read_the_paper.ipynb) says what is printed there.)
"""

# %%
algorithm_3()

# %% [markdown]
"""
Three things are not in the listing:

- Lines 3, 4, 14 and 15 have two halves, as in lesson 09: `fetch` loads from global memory to registers, `store`
  stores to shared memory. m11 fetches the next slice *before* lines 9 to 12, so that their arithmetic hides the latency.
- `steps` multiplies two terms at a time: while it multiplies the numbers of one term, it reads those of the next. The
  exercises do not need this.
- The listing says which slice is loaded, but not from where. That depends on the tensor, and it is your next task.

The exercises show one part of m11 each. The check puts your part in the place of m11's.
"""

# %% [markdown]
"""
## Your turn: where does a window begin?

Window `n` is the window of output pixel `n`. There are `N` of them, `W_o` in each row of the output. A slice has `N_B`
windows, from window `n0` on, and `K_B` terms of each window. That is `K_4 = K_B // FLOAT4` float4s of each window;
`FLOAT4` is 4.

The threads share these float4s. Thread `t` of `THREADS` has up to `I_FLOAT4S` of them: float4 number
`e = t + f * THREADS` for each `f` below `I_FLOAT4S`. It belongs to window `e // K_4` of the slice.

For each `f`, find which window `n` it is, counted through all images, and store to `first_I[f]` the index in `windows`
at which this window begins. The array `windows` has one dimension here. The rows of the tensor are the output's rows, of
all images one after the other, so window `n` is in row `n // W_o`. A row has `W_w` groups of `G` numbers, and neighbouring
windows of a row begin `s_w` groups apart. Past the last window, `N - 1`, take the last one again: its results
are not written.
"""

# %% [markdown]
"""
<details><summary>Tip: in which row of the tensor is a window, and at which column does it begin?</summary>

The rows of windows of all images follow each other, in the tensor as in the output. So the number of the window and `W_o`
give both.
</details>
<details><summary>Tip: the plan</summary>

The window is `n0` plus its number in the tile, but at most `N - 1`. Its row is `window // W_o`, and it begins at column
`window % W_o * s_w` of that row. Count the groups before it, times `G`.
</details>
<details><summary>Tip: the code</summary>

`window = min(n0 + (t + f * THREADS) // K_4, N - 1)`, and there are `window // W_o * W_w + window % W_o * s_w` groups
before it.
</details>
"""

# %% exercise="begin"
stage_part(
    "m11",
    "find_windows",
    blank(
        "for each of my float4s: which window is it, and where does that begin?",
        first="for f in range(I_FLOAT4S):",
        last="first_I[f] = (window",
    ),
)

# %% check="begin"
check(part_of("m11", find_windows=make_find_windows), "m11")

# %% [markdown]
"""
## Your turn: float4 loads

Thread `t` fetches its float4s of slice number `slice_`. For each `f` it fetches float4 number `e = t + f * THREADS`,
which is float4 number `e % K_4` of its window. So the number of its first term in the window is
`term = slice_ * K_B + e % K_4 * FLOAT4`. A window's terms are contiguous, so this term lies at `first_I[f] + term`. (With a
dilation `d_w` of the width the columns of a window are `d_w` groups apart, so add `term // G * G * (d_w - 1)`. Without
dilation this is zero, and the compiler removes it.)
"""

# %% [markdown]
"""
`load4(windows, index)` returns the four numbers from `index` on. Assign them to `fetched_I[f, 0]` to `fetched_I[f, 3]`,
which are registers of this thread. The loop for the filter is given and works in the same way.

| name | is |
| --- | --- |
| `K_W` | the number of a window's terms |
| `I_ALL` | the number of float4s in a slice of the windows |
| `K_EVEN` | a constant, true if no slice goes past the last term |
| `I_EVEN` | a constant, true if every thread has a float4 for every `f` |

The last two save comparisons where the answer is known. You need not use them. (`forceinline` asks the compiler to copy
the function into the kernel that calls it; this changes no result.)
"""

# %% [markdown]
"""
<details><summary>Tip: which float4s do not exist?</summary>

Past the last term, `K_W`, a window has no numbers: take four zeros. A slice has `I_ALL` float4s. If `THREADS` does not
divide `I_ALL`, some threads have no float4 for their last `f`.
</details>
<details><summary>Tip: the plan</summary>

Compute `term`. Start with four zeros. If `term < K_W` and `e < I_ALL`, load four numbers. Store the four in any case.
</details>
<details><summary>Tip: the code</summary>

`four = (float32(0), float32(0), float32(0), float32(0))`, then `if (K_EVEN or term < K_W) and (I_EVEN or e < I_ALL):` and
in it `four = load4(windows, first_I[f] + term + ...)`. The last line is as in the loop for the filter.
</details>
"""

# %% exercise="fetch"
stage_part(
    "m11",
    "fetch",
    blank(
        "float4 f of the windows' slice: load four numbers, or zeros past the end",
        first="term = slice_ * K_B + e % K_4 * FLOAT4",
        last="fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = four",
    ),
)

# %% check="fetch"
check(part_of("m11", fetch=make_fetch), "m11")

# %% [markdown]
"""
## Your turn: store single numbers (scalars)

In shared memory the slice must lie as `read` expects it: a row for each term, so that neighbouring
threads find neighbouring windows. So a float4 with four terms of *one* window goes to four rows, one number each.

`S_I` has one dimension in m11: row `row`, column `column` is `S_I[row * PITCH + column]`. It holds both buffers, one below
the other. The buffer that the thread stores to begins at row `row0`, so term `k` of the slice is in row `row0 + k`.
`PITCH` is the length of a row, a multiple of four numbers, as float4 loads need it.

Float4 `e` of this thread is the same as before: window `e // K_4` of the slice is the column, and the float4 begins at term
`k = e % K_4 * FLOAT4` of the slice.
"""

# %% [markdown]
"""
<details><summary>Tip: why is this not one float4 store?</summary>

Its four numbers are four terms, and these belong in four rows, which lie `PITCH` numbers apart. A float4 store writes
four neighbours.
</details>
<details><summary>Tip: the plan</summary>

Loop over this thread's float4s, `fetched_I[f, 0]` to `fetched_I[f, 3]` for each `f`. As before, it may have none for its
last `f`. In the loop, four stores: number `c` of the float4, from 0 to 3, goes `c` rows further down.
</details>
<details><summary>Tip: the code</summary>

`if I_EVEN or e < I_ALL:`, in it `for c in range(FLOAT4):`, and in that one store: row `row0 + e % K_4 * FLOAT4 + c`, column
`e // K_4`, number `fetched_I[f, c]`.
</details>
"""

# %% exercise="put"
stage_part(
    "m11",
    "store",
    blank(
        "each of my float4s: its four numbers into four rows of S_I",
        first="for f in range(I_FLOAT4S):  # four terms",
        last="S_I[(row0 + e % K_4 * FLOAT4 + c) * PITCH + e // K_4] = fetched_I[f, c]",
    ),
    replaced=(
        ("\nPADDING = 4  # makes a row of the input slice an odd number of float4s, which stay aligned\n", ""),
        ("import blocks_for\n", "import blocks_for\nfrom convlab.lessons.hunted import row_pitch\n"),
        ("PITCH = N_B + PADDING", "PITCH = row_pitch(tile)"),
    ),
)

# %% check="put"
uneven = Tile(M_B=24, N_B=16, K_B=8, M_T=4, N_T=4)  # the check tries it, too: 32 float4s for 24 threads
check(part_of("m11", store=make_store), "m11", also=uneven)

# %% [markdown]
"""
## What the memory sees

A warp fetches 32 float4s with one instruction, 512 bytes. Each lane's four numbers are neighbours, and so are
the float4s of a window:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=4, height=8, width=16, out_channels=16, kernel_size=3, padding=1
)
tile = Tile(M_B=16, N_B=32, K_B=8, M_T=4, N_T=4)
launches = {stage: trace_stage(stage, problem, tile).main for stage in ("m08", "m11")}
one_request(launches["m11"], "windows")

# %%
side_by_side(launches, "requests to global memory", "sectors of global memory")

# %% [markdown]
"""
m11 makes half as many requests as m08, because each lane loads four numbers at a time. (It needs a third
more sectors than m08: here two lanes read eight neighbouring numbers of each window, and these often begin
in the middle of a sector.) The counts do not show the saved arithmetic: m08 divides, takes
remainders and compares for every single number of the input; m11 makes at most two comparisons per
float4.

## Find the bug

This is m10's kernel; `solved` gives its parts, which do what yours do. In m10 `S_I` has two dimensions, and a place is
`S_I[row, column]`. The kernel's results are right, but look how the lanes of one store to `S_I` share the banks. The second
picture shows the same store in the stage. One line of constants is wrong: find the line and correct it. (Lesson 05 had a
remedy that nearly fits here. But `read` loads four neighbours of a row at once, and these four must begin at a multiple of
four numbers.)
"""

# %% hunt="skew"
stage_kernel(
    "m10",
    planted=(("N_B + PADDING", "N_B"), ("PADDING = 4  # makes a row of the input slice an odd number of float4s, which stay aligned\n\n\n", "\n")),
    called="make_unpadded",
    hidden=(
        "find_windows", "clear", "load", "all_but_two_steps", "read", "multiply", "other_buffer",
        "store", "wait_and_read", "write",
    ),
)

# %%
one_request(traced(make_unpadded, "m10", problem, tile), "S_I", "store")

# %%
one_request(trace_stage("m10", problem, tile).main, "S_I", "store")

# %% [markdown]
"""
<details><summary>Tip: which lanes meet in a bank?</summary>

Lanes 0 and 1 have two float4s of the same window, so they store into the same column, four rows
apart. If the length of the rows is a multiple of 32 numbers, all rows begin in the same bank.
</details>
<details><summary>Tip: the plan</summary>

Make the rows longer than the tile is wide. A padding of one number would avoid the bank conflicts but misalign the
float4 loads, so add the smallest padding that keeps rows at multiples of four.
</details>
<details><summary>Tip: the code</summary>

The shape of `S_I` is `(2 * K_B, N_B + 4)`. (In slices of 16 terms, which most layers
have, four lanes store into the same column. Then a padding of four numbers leaves a two-way bank
conflict instead of a four-way conflict, and no other multiple of four is better.)
</details>
"""

# %% check="skew"
check(make_unpadded, "m10", at_most=1.1)

# %% [markdown]
"""
## On a real GPU
"""

# %%
measured_parts("m06", "m08", "m11")

# %% [markdown]
"""
The main kernel is much faster than that of m08, because of the new order. But the transform takes
time in every run, because every input is new. (Packing the filter takes almost no time, and a
network that is no longer trained packs its filter once for all images.)

On this layer the kernel gains more than the transform costs. On a layer with three channels, such
as Conv7, the first layer of a network, the kernel gains much less: a window has few terms, and a quarter
of them are zeros that only fill up the groups.
"""

# %%
measured_parts("m08", "m11", layer="conv7")

# %%
measured("m01", "m08", "m11")

# %% [markdown]
"""
## Capstone: im2win from an empty cell

You have written every part of im2win, each in a frame of ours. Now write all of it, as plainly as you like, with one
buffer for each slice and two barriers. Three functions return a kernel each:

| function | its kernel | has |
| --- | --- | --- |
| `make_transform(problem)` | `transform(input, windows)` | a thread for each number of the tensor, `cuda.grid(1)` |
| `make_packing(problem, tile)` | `packing(weight, packed)` | a thread for each number of the packed filter |
| `make_kernel(problem, tile)` | `im2win(windows, packed, bias, output)` | blocks of `tile.threads` threads; `blockIdx.x` counts tiles of windows, `blockIdx.y` tiles of output channels |
"""

# %% [markdown]
"""
`windows`, `packed` and `output` have one dimension:

| array | where is what |
| --- | --- |
| `windows` | as in the exercises: rows of `W_w` groups, groups of `G` numbers |
| `packed` | the matrix of the tile whose first channel is `m0` begins at `m0 * K_P`; its row `term` is `M_B` numbers |
| `output` | image, channel, row, column: output pixel `n` is pixel `o_p = n % (H_o * W_o)` of image `i_n = n // (H_o * W_o)`, and its channel `m` is at `(i_n * M + m) * (H_o * W_o) + o_p` |
"""

# %% [markdown]
"""
Sizes that a kernel uses are constants, which `make_kernel` computes before the kernel:

| size | is |
| --- | --- |
| `M`, `N`, `H_o`, `W_o`, `s_w`, `d_w` | `problem.M` and so on |
| `G`, `W_w` | `group_size(problem)`, `window_columns(problem)` |
| `K_W` | `problem.W_f * G`, the terms of a window |
| `K_P` | `tile.whole_slices(K_W)`, the terms rounded up to whole slices |
| `M_B`, `N_B`, `K_B`, `M_T`, `N_T` | `tile.M_B` and so on; a thread computes `M_T` x `N_T` outputs |
| `ROWS`, `COLUMNS` | `tile.rows`, which is `M_B // M_T`, and `tile.columns`, which is `N_B // N_T` |
| `THREADS` | `tile.threads`, which is `ROWS * COLUMNS` |
"""

# %% [markdown]
"""
In the kernel the block's tile begins at channel `m0 = cuda.blockIdx.y * M_B` and window `n0 = cuda.blockIdx.x * N_B`.
Thread `t` is in row `ty = t // COLUMNS`, column `tx = t % COLUMNS` of the block's threads. A shared array that float4s are
loaded from or stored to needs `alignment=BYTES_16`, as in `cuda.shared.array(F_SLICE, float32, alignment=BYTES_16)`: it
then begins at a multiple of 16 bytes. `F_SLICE` is the tuple `(K_B, M_B)`, made outside of the kernel. (m11's `S_F` and `S_I`
have one dimension. Two, as in lesson 05, are plainer: `S_F[k, row]` and `S_I[k, column]`.)
"""

# %% [markdown]
"""
### What the kernel needs of lessons 06 to 08

- **Registers.** `cuda.local.array(O_SHAPE, float32)` makes a thread's own array. It is in registers if all loops over
  it have constant bounds. It begins with arbitrary numbers.
- **A thread's outputs.** Sum `i`, `j` of a thread belongs to row `ty + i * ROWS` and column `tx + j * COLUMNS` of the
  tile. A row of the tile is an output channel, from `m0` on; a column is a window, from `n0` on.
- **Sums and operands in registers.** **Operands** are the numbers that are multiplied. For each term `k` of a slice a
  thread copies `M_T` of them from `S_F` and `N_T` from `S_I` to local arrays, and then multiplies each of the first by each
  of the second, which is an **outer product**: `M_T + N_T` reads for `M_T * N_T` products. Without copies each product needs
  two reads, which the check rejects.
- **float4s.** `load4(array, place)` returns four numbers, `store4(array, place, four)` stores them. With two dimensions the
  place is a pair, `(row, column)`: the four are in this row, from this column on. The first one must lie at a multiple of
  four numbers.
"""

# %% [markdown]
"""
The check tries each layout first, then all together on the problems on which m11 is tried. You can also check a layout
alone: `check_layout(make_transform, windows_in_numpy, "input")`, `check_layout(make_packing, packed_in_numpy, "weight")`.
The memory traffic may be four times that of m11. A kernel with a thread for each output makes far more requests than that:
use tiles in shared memory, with sums *and* operands in registers. The kernel must load `windows` and `packed` as float4s;
the check counts its loads of a single number (**scalar** loads) of both.
"""

# %% [markdown]
"""
<details><summary>Tip: what does your kernel do first, what for each slice, and what last?</summary>

The steps of lesson 05 are the same here, but a thread has several sums: clear them; for each slice load, wait, multiply,
wait; write them. Which of these steps reads `windows`, and which reads `packed`?
</details>
<details><summary>Tip: the plan of the kernel</summary>

Clear the `M_T` x `N_T` sums. For each slice, from term `k0` on: the threads share the float4s of `packed`, which go to
`S_F[k, row]` as float4s, and those of the windows, each of which goes to four rows of `S_I[k, column]`. Where a window
begins you know from `first_I`. Wait. For each term copy the operands and multiply each by each. Wait. At last each sum
whose output exists is written, with the bias of its channel.
</details>
"""

# %% [markdown]
"""
<details><summary>Tip: the code of the loads</summary>

`for e in range(t, K_B * M_B // 4, THREADS):` with `k, row = e // (M_B // 4), e % (M_B // 4) * 4`, and
`load4(packed, m0 * K_P + (k0 + k) * M_B + row)`. `for e in range(t, N_B * K_4, THREADS):` with
`k, column = e % K_4 * 4, e // K_4`. Group `(k0 + k) // G` of the window is `d_w` groups after the one before.
</details>
<details><summary>Tip: the code of the products and of the store</summary>

`R_F[i] = S_F[k, ty + i * ROWS]` for each `i` copies the operands of the filter; those of the windows follow the same rule.
Write a sum where `m < M and n < N`, with `m = m0 + ty + i * ROWS` and `n = n0 + tx + j * COLUMNS`.
</details>
"""

# %% capstone="im2win"
whole_functions(
    "plain_im2win",
    make_transform="the layout transform of the input",
    make_packing="the layout transform of the filter",
    make_kernel="tiles in shared memory, an outer product in registers, float4 loads",
)

# %% check="im2win"
check_im2win(
    make_transform, make_packing, make_kernel,
    windows=windows_in_numpy, packed=packed_in_numpy, at_most=4,
)

# %% [markdown]
"""
With a GPU, the next cell times your im2win, transforms included, beside m11 and a library:
"""

# %%
time_mine(whole_im2win(make_transform, make_packing, make_kernel), "m11")

# %% [markdown]
"""
You have written a paper's algorithm from nothing. `convlab check` takes such a kernel from a file:
[check your own kernel](../docs/check.md). What makes m11 faster than a plain im2win is in lessons 08 and 09 and in the
section "Tuned" below: try one of these in your kernel, and time it again.
"""

# %% [markdown]
"""
## Tuned

[m11_warp_tiling](../src/convlab/ladder/main/m11_warp_tiling.py) makes m10's kernel faster and keeps its
idea, by four changes.

- **A warp is 4 x 8 threads** instead of 2 x 16, so that more lanes share the numbers that they
  read (`make_warp_tile`).
- **The steps of k are unrolled.** The compiler does not unroll m08's loop over k, so each step
  costs a counter and the computation of addresses. `unrolled(two_steps, ...)` makes a function that
  calls `two_steps` with each `k` as a constant.
"""

# %% [markdown]
"""
- **A tile for each problem.** [tile_heuristic.py](../src/convlab/ladder/tile_heuristic.py) chooses
  among eight shapes by a model of what the busiest SM has to do. With some shapes the threads do
  not share a slice evenly. `F_EVEN`, `I_EVEN` and `K_EVEN` are constants, so a bounds check costs
  nothing where it is always true.
- **Loads stay where they are written.** After `fetch` comes `issue_loads()`. Without it the
  compiler moves the loads of the next slice behind most multiplications of this slice. Here this
  hardly matters, because an SM has other blocks to run at the same time (its **resident** blocks). With a single image
  it may have none, and then this line saves a fifth to a quarter of the time on layers with long sums ([measured](../docs/notes/fast.md)).

Of 100 instructions in the loop over slices, 72 multiply without these changes and 88 with the first two.
With all four changes the kernel takes four fifths of the time, on average over twelve layers.
[fast.md](../docs/notes/fast.md) tells what else was tried. For example, fetching ahead gains little
where an SM has other blocks to run.

Could a kernel have this order without the transform's pass over memory? The
[next lesson](12_fused_im2win.ipynb) shows such a kernel.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>With three channels and a 3 x 3 filter, how many numbers has a group, and how many of them are zeros?</summary>

A group has 12 numbers, which is the next multiple of four: 3 x 3 = 9 numbers and three zeros. So a
quarter of the tensor, of the loads and of the multiplications is wasted. With 64 channels there are
no zeros at all.
</details>

<details><summary>Why may the terms of a sum come in another order than in m08? Are the results the same?</summary>

The sum is the same, but every addition rounds its result to 32 bits, so the last digits may differ.
The checks compare with an error bound that holds for every order.
</details>

<details><summary>The paper's own code keeps channels outermost and loads scalars from global memory. Why then does it still call its loads vectorized?</summary>

Its loads from <em>shared</em> memory are vectorized, as section 3.3 says. A float4 load from global
memory needs windows that begin at multiples of four, and channels innermost give that.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The whole files: [m11_warp_tiling.py](../src/convlab/ladder/main/m11_warp_tiling.py) and its transform,
  [im2win_layout.py](../src/convlab/ladder/layouts/im2win_layout.py); what was measured:
  [ladder](../docs/ladder.md#m11_warp_tiling).
- The im2win paper, Algorithm 3 and section 3.3, "Vectorized load/store"; section 4.4 leaves out one
  technique after the other: [arXiv 2306.14316](https://arxiv.org/abs/2306.14316). Here too:
  `convlab.plan(problem, stage="ablation", vectorized=False)`.
- Next on the ladder: [m12 to m15, im2win without its tensor](12_fused_im2win.ipynb).
"""
