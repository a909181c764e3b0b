# %% [markdown]
"""
# m10 and m11: the whole of im2win, four numbers at a time

**You will be able to** load windows as float4s from the im2win tensor, and pad shared memory against bank
conflicts.

m09 has the right order and a slow kernel; m08 has a fast kernel and the wrong order. m10 combines the
right order with the fast kernel, and m11 tunes it: the result is the paper's Algorithm 3. You should have
done [09](09_double_buffer.ipynb) and [10](10_im2win.ipynb).
"""

# %% setup=true
from convlab import ConvProblem, Tile, trace_stage
from convlab.lessons import check, im2win_orders, measured, measured_parts
from convlab.lessons import one_request, side_by_side, traced

# %% [markdown]
"""
## The idea

One instruction can move four numbers, 16 bytes, if they are neighbours and begin at a multiple of 16 bytes.
Since m06 the kernels fetch the filter with such float4 loads. They cannot fetch the input in this way,
because in an image a window's pixels begin anywhere.

In m09's tensor they begin anywhere, too. There a window has `H_f * W_f` contiguous numbers for each channel,
for example nine, which is not a multiple of four. One more change solves this: put the **channels
innermost**. For each column of the input the numbers of *all* channels form a **column group** of
`H_f * C_i` numbers. If this is not a multiple of four, zeros fill up the group. Then

- all numbers of a window are **contiguous**, `W_f` groups long;
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

The rest of the kernel is m08's: tiles, registers, two buffers. Only the code that fetches and
stores a slice changes. That is m10. (m11 also tunes the kernel; the end of the lesson says how.)
"""

# %% [markdown]
"""
## Your turn: float4 loads

[m10_im2win_vectorized](../src/convlab/ladder/main/m10_im2win_vectorized.py) is m08's kernel with this idea
alone. The kernel below is m11's, whose loads are the same. A slice has `N_B` windows and `K_B` terms of each window,
that is `K_4 = K_B // FLOAT4` float4s of each window; `FLOAT4` is 4. Thread `t` of `THREADS` fetches
up to `I_FLOAT4S` float4s. For each `f` it fetches float4 number `e = t + f * THREADS`, which is
float4 number `e % K_4` of window `e // K_4` of the tile. A group has `G` numbers, so a window has
`K_W = W_f * G`, zeros included.

Before the loop over slices the kernel computes where this window begins: `first_I[f]` for float4
`f` of this thread. The first term of the float4 is `k = slice_ * K_B + e % K_4 * FLOAT4`, and it
lies at `first_I[f] + k`. (With a dilation `d_w` of the width the columns of a window are `d_w`
groups apart, so add `k // G * G * (d_w - 1)`. Without dilation this is zero, and the compiler
removes it.)
"""

# %% [markdown]
"""
`load4(windows, place)` loads four numbers at once. Assign them to `fetched_I[f, 0]` to
`fetched_I[f, 3]`. The loop for the filter is given and works in the same way.

<details><summary>Tip: what does not exist</summary>

Past the last term (where `k < K_W` is false) take four zeros:
`(float32(0), float32(0), float32(0), float32(0))`. A slice has `I_ALL` float4s of windows. If
`THREADS` does not divide `I_ALL`, some threads have no float4 for their last `f`, so check
`e < I_ALL`, too. The constants `K_EVEN` and `I_EVEN` are true where no check is needed:
`if (K_EVEN or k < K_W) and ...` compares only where it must.
</details>
<details><summary>Tip: four at once</summary>

`a, b, c, d = load4(windows, place)` splits the float4 into four numbers; so does an assignment to
four places of `fetched_I[f, ...]`, as in the loop for the filter.
</details>
"""

# %% exercise="fetch"
stage_kernel(
    "m11",
    blank(
        "float4 f of the windows' slice: load four numbers, or zeros past the end",
        first="k = slice_ * K_B + e % K_4 * FLOAT4",
        last="fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = four",
    ),
)

# %% check="fetch"
check(make_kernel, "m11")

# %% [markdown]
"""
## Your turn: store scalars

In shared memory the slice must lie as `read` expects it: a row for each term, so that neighbouring
threads find neighbouring windows. Term `k` of column `c` is at `S_I[k * PITCH + c]`. A float4 with
four terms of *one* window therefore goes to four rows, one number each. The slice that is stored
begins at row `k0`.

Float4 `e` of this thread is the same as before: window `e // K_4` is the column, and its terms begin at
`e % K_4 * FLOAT4`. As before, a thread may have no float4 for its last `f`: `if I_EVEN or e < I_ALL:`.

<details><summary>Tip: four rows</summary>

Write `for c in range(FLOAT4):` and in this loop one store: row `k0 + e % K_4 * FLOAT4 + c`, column
`e // K_4`, number `fetched_I[f, c]`.
</details>
"""

# %% exercise="put"
stage_kernel(
    "m11",
    blank(
        "each of my float4s: its four numbers into four rows of S_I",
        first="for f in range(I_FLOAT4S):  # four terms",
        last="S_I[(k0 + e % K_4 * FLOAT4 + c) * PITCH + e // K_4] = fetched_I[f, c]",
    ),
    called="make_storing",
)

# %% check="put"
uneven = Tile(M_B=24, N_B=16, K_B=8, M_T=4, N_T=4)  # the check tries it, too: 32 float4s for 24 threads
check(make_storing, "m11", also=uneven)

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
m11 makes far fewer requests, because each lane loads four numbers at a time. (It needs somewhat
more sectors: here two lanes read eight neighbouring numbers of each window, and these often begin
in the middle of a sector.) The counts do not show the saved arithmetic: m08 divides, takes
remainders and compares for every single number of the input; m11 makes at most two comparisons per
float4.

## Find the bug

Pass the checks above first, because this cell shows an answer.

The results of this kernel are right, but look how the lanes of one store to `S_I` share the banks.
The picture below it shows the same store in the stage. One line of constants is wrong: find the
line and correct it. (Lesson 05 had a remedy that nearly fits here. But `read` loads four neighbours
of a row at once, and these four must begin at a multiple of four numbers.)
"""

# %% hunt="skew"
stage_kernel(
    "m11",
    planted=(("PITCH = N_B + PADDING", "PITCH = N_B + 0"),),
    called="make_unpadded",
)

# %%
one_request(traced(make_unpadded, "m11", problem, tile), "S_I", "store")

# %%
one_request(launches["m11"], "S_I", "store")

# %% check="skew"
check(make_unpadded, "m11", at_most=1.1)

# %% [markdown]
"""
<details><summary>Tip: which lanes meet in a bank?</summary>

Lanes 0 and 1 have two float4s of the same window, so they store into the same column, four rows
apart. If the length of the rows is a multiple of 32 numbers, all rows begin in the same bank.
</details>
<details><summary>Tip: how large must the padding be?</summary>

A padding of one number would avoid the bank conflicts but misalign the float4 loads. So add the
smallest padding that keeps rows at multiples of four. (In slices of 16 terms, which most layers
have, four lanes store into the same column. Then a padding of four numbers leaves a two-way bank
conflict instead of a four-way conflict, and no other multiple of four is better.)
</details>

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
as the first layer of a network, the kernel gains much less: a window has few terms, and a quarter
of them are zeros that only fill up the groups.
"""

# %%
measured_parts("m08", "m11", layer="conv7")

# %%
measured("m01", "m08", "m11")

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
- **Loads stay where they are written.** After `fetch` comes `issue_loads()`. Without this call the
  compiler moves the loads of the next slice behind most multiplications of this slice. Here this
  hardly matters, because an SM has other resident blocks to run. With a single image an SM may have
  no other block, and then this one line saves a fifth to a quarter of the time on layers with long
  sums ([measured](../docs/notes/fast.md)).

Of 100 instructions in the loop over slices, 72 multiply without these changes and 88 with the first two.
With all four changes the kernel takes four fifths of the time, on average over twelve layers.
[fast.md](../docs/notes/fast.md) tells what else was tried. For example, fetching ahead gains hardly
anything where an SM has other blocks to run.

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
- The im2win paper (000), Algorithm 3 and section 3.3, "Vectorized load/store"; section 4.4 leaves out one
  technique after the other: [arXiv 2306.14316](https://arxiv.org/abs/2306.14316). Here too:
  `convlab.plan(problem, stage="ablation", vectorized=False)`.
- Next on the ladder: [m12 to m15, im2win without its tensor](12_fused_im2win.ipynb).
"""
