# %% [markdown]
"""
# m02: implicit GEMM, the matrix product without the matrix

**You will be able to** compute where each number of im2col's matrix lies, and multiply without storing it.

A convolution is a matrix product if all windows of the image stand in a matrix, each window in a column of its own.
Building this matrix is called **im2col** ([03_im2col](03_im2col.ipynb) does it; you need not have read it). But the
matrix is several times as large as the input. Each number of it is a pixel, and a little arithmetic finds this pixel.
So never build the matrix: compute where each number lies when a thread needs it. (**GEMM**, "general matrix
multiplication", is what libraries call a matrix product.) You should have done
[00b_small_kernels](00b_small_kernels.ipynb), section 4, and [01_direct](01_direct.ipynb).
"""

# %% setup=true
from convlab import ConvProblem, trace_stage
from convlab.lessons import check, column_of_windows, measured, measured_memory, one_request
from convlab.lessons import side_by_side
from convlab.ladder.main import m02_implicit_gemm

# %% [markdown]
"""
## The idea

In m01 a convolution was seven loops. As a matrix product it is three: rows `m`, columns `n`, and the terms
`k` of each sum.

```python
for m in range(M):
    for n in range(N):
        for k in range(K):
            output[m, n] += filters[m, k] * windows[k, n]
```
"""

# %% [markdown]
"""
Row `m` of `filters` is filter `m`, all its numbers in one row. Column `n` of `windows` holds the `K` pixels that output
pixel `n` sees. For example, an image of 2 x 3 pixels and a filter of 2 x 2:

```text
image: 1 2 3    window 0: 1 2    window 1: 2 3    windows: 1 2   k = 0
       4 5 6              4 5              5 6             2 3   k = 1
                                                           4 5   k = 2
                                                           5 6   k = 3
```

There are `M = C_o` output channels, `N = N_i * H_o * W_o` output pixels of all images, and
`K = C_i * H_f * W_f` terms in each sum.

`m` and `n` say which output, so they become threads again, and each thread runs the loop over `k`.
There is no array `windows`. From `k` and `n` a thread computes where in the input the number lies.
Output pixel 6 is the first pixel of the second row, so the left part of its window is padding:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=2, height=5, width=6, out_channels=8, kernel_size=3, padding=1
)
column_of_windows(m02_implicit_gemm.make_kernel, "m02", problem, column=6)

# %% [markdown]
"""
## Your turn

A block has 32 x 8 threads, and `m` and `n` are given. Two places are left for you:

- **Which output is row `m`, column `n`?** Its channel is `m`. Compute its image `i_n`, its row
  `o_h` and its column `o_w`. An image has `H_o * W_o` output pixels, `W_o` in a row.
- **Which numbers are term `k`?** Compute the input channel `i_c`, the filter row `f_h` and the
  filter column `f_w`. From these compute the row `i_h` and the column `i_w` of the input, and the
  `pixel` there, 0 outside the image. Then add pixel times weight to `total`. `weight` has one
  dimension here: it *is* the `M` x `K` matrix of filters, row after row.

These are lines 2 to 6 and 8 to 14 of Algorithm 1 in the im2win paper.
"""

# %% [markdown]
"""
<details><summary>Tip: how do you split a number of seconds into hours, minutes and seconds?</summary>

By remainders and quotients, the fastest first. In `n` columns of the output count fastest, then rows, then images. Which
of channel, filter row and filter column counts fastest in `k`?
</details>
<details><summary>Tip: the plan</summary>

Split `n` into image, row and column. In the loop split `k` into channel, filter row and filter column. The pixel's row and
column follow as in lesson 01, and the pixel is 0 outside the image. The weight is the element in row `m`, column `k`.
</details>
<details><summary>Tip: the code</summary>

`f_h = k % (H_f * W_f) // W_f`, a remainder and then a quotient; `n` is split in the same way by `W_o` and `H_o * W_o`.
Row `m`, column `k` of a matrix with `K` columns is element `m * K + k`.
</details>
"""

# %% exercise="indices"
stage_kernel(
    "m02",
    blank(
        "i_n, o_h and o_w: which output is row m, column n?",
        first="i_n = n //",
        last="o_w = n % W_o",
    ),
    blank(
        "i_c, f_h and f_w from k, then i_h and i_w; add up pixel times weight",
        first="i_c = k // (H_f * W_f)",
        last="total += pixel * weight",
    ),
)

# %% check="indices"
check(make_kernel, "m02")

# %% [markdown]
"""
## What the memory sees

The requests are the same as in m01. Neighbouring threads have neighbouring columns `n`, which are
neighbouring pixels. All lanes of a warp are in the same row `m`, so they read the same weight:
"""

# %%
layer = ConvProblem(1, 2, 8, 32, out_channels=8, kernel_size=3, padding=1)
ours = trace_stage("m02", layer).main
one_request(ours, "weight", number=4)

# %%
one_request(ours, "input", number=7)

# %% [markdown]
"""
Counted over the whole launch, m02 makes as many requests as m01. The third chart shows the **arithmetic intensity**: the
number of floating-point operations for each byte of memory traffic. More is better, and it is the same, too:
"""

# %%
before = trace_stage("m01", layer).main
side_by_side(
    {"m01": before, "m02": ours},
    "requests to global memory",
    "sectors of global memory",
    "operations per byte",
)

# %% [markdown]
"""
## Find the bug

(`of_output` and `find_pixel` do what you have written: they find the output of column `n`, and the pixel of a term.
`solved` takes both from the stage. Comments with numbers of lines mean the paper's Algorithm 1.)

Somebody tried this kernel on a hundred layers, all with filters of 3 x 3, 5 x 5 and 7 x 7, and it
was always right. Then came a filter of 2 x 4. The picture shows which pixels the kernel takes as a
window of this filter. Which terms are in the wrong place, and which line is the cause?
"""

# %% hunt="oblong"
stage_kernel(
    "m02",
    planted=(
        (
            """f_h = k % (H_f * W_f) // W_f
            f_w = k % W_f""",
            "f_h, f_w = divmod(k % (H_f * W_f), H_f)",
        ),
    ),
    called="make_square",
    hidden=("of_output", "find_pixel"),
)

# %%
oblong = ConvProblem(1, 1, 6, 8, out_channels=8, kernel_size=(2, 4))
column_of_windows(make_square, "m02", oblong, column=1)

# %% [markdown]
"""
<details><summary>Tip: what should the picture show?</summary>

A window of 2 rows and 4 columns: terms 0 to 3 beside each other, terms 4 to 7 below them.
</details>
<details><summary>Tip: the plan</summary>

The next filter row begins after a whole row of the filter. How many terms has a row? To split a number, always divide by
the size of the *faster* index.
</details>
"""

# %% check="oblong"
check(make_square, "m02")

# %% [markdown]
"""
## On a real GPU
"""

# %%
measured("m01", "i01_im2col", "m02", "m03")

# %% [markdown]
"""
m02 is several times slower than m01, though its memory traffic is the same. **These counts do not
show everything.** For each term a thread splits `k`, which needs two divisions (a remainder comes from the
same division). A GPU has no
instruction that divides integers, so each division becomes several other instructions. Then come
the addresses and the bounds checks. All this work serves *one* multiplication and addition. m01's
loops count `i_c`, `f_h` and `f_w` up by one, which costs next to nothing.

i01 builds im2col's matrix, but this is not why it is fast: it multiplies with tiles in shared memory and sums in
registers, the techniques of lessons 05 to 08.

So why use this form? Because the convolution now has the *shape* of a matrix product, without the
matrix:
"""

# %%
measured_memory("i01_im2col", "m09", "m11")

# %% [markdown]
"""
m02 takes no memory beside input, filter and output, so it has no bar. The later stages m09 and m11 are those of
im2win ([10](10_im2win.ipynb) and [11](11_im2win_full.ipynb)): they
store something smaller than im2col's matrix. From here on, the kernels can use all known
techniques for fast matrix products. The very next stage, m03, fetches each number once for a whole
block, and splits `k` once for each number *fetched* instead of once for each multiplication. This
alone wins back most of the lost time.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why is <code>n</code> along <code>threadIdx.x</code> and not <code>m</code>?</summary>

Lanes of a warp have neighbouring `threadIdx.x`. With `n` there, they read neighbouring pixels and write
neighbouring outputs. With `m` there, each lane would read another filter, `K` numbers further on: 32 sectors
for 32 numbers.
</details>

<details><summary>Why does <code>weight</code> not need index arithmetic such as the input needs?</summary>

The filter tensor `[o_c, i_c, f_h, f_w]` lies in memory row after row, and a row of the matrix is one filter. Its
elements are in the order in which `k` counts. Padding, stride and overlap make the input difficult,
and a filter has none of them.
</details>

<details><summary>In another order of the terms, with <code>i_c</code> counting fastest, would the sum be the same?</summary>

Yes, up to rounding, as long as `weight` is read in that order too. Lesson [11](11_im2win_full.ipynb) chooses this
order, which is one of the reasons why its kernel is fast.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The whole file: [m02_implicit_gemm.py](../src/convlab/ladder/main/m02_implicit_gemm.py), and what was measured:
  [ladder](../docs/ladder.md#m02_implicit_gemm).
- The im2win paper, Algorithm 1, and section 2.4 on how cuDNN does it:
  [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- The machine code that the compiler makes of a kernel: [compile gate](../docs/compile-gate.md).
- Next: [05_shared_memory](05_shared_memory.ipynb).
"""
