# %% [markdown]
"""
# i01 to i05: im2col, make the convolution a matrix product

**You will be able to** write a convolution as a matrix product, write the kernel that makes its matrix,
and say what the matrix costs.

People have spent decades on making matrix products fast. **im2col** ("image to columns") turns a
convolution into a matrix product: it writes out the pixels that every output sees. The stages that do
so are a route of their own, `i`. You should have done [01_direct](01_direct.ipynb).
"""

# %% setup=true
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import convlab
from convlab import ConvProblem
from convlab.lessons import check_im2col, measured, measured_memory, measured_kernels
from convlab.lessons import one_request, traced_im2col, windows_written_out

# %% [markdown]
"""
## The idea

An output is the sum of pixel times weight over all input channels and all places of the filter. If
you write the weights of one filter in a row and the pixels under the filter in a column, this sum
is *row times column*. So write all filters below each other and all windows beside each other:

| matrix | has | rows | columns |
| --- | --- | --- | --- |
| filters | a filter in each row | `M = C_o` | `K = C_i * H_f * W_f` |
| windows | the pixels that an output sees, in each column | `K` | `N = N_i * H_o * W_o` |
| output | filters times windows | `M` | `N` |

In memory the filter tensor already is the matrix of filters. Only the matrix of windows has to be
made. The picture shows it for one image with two channels and a filter of 2 x 2:
"""

# %%
tiny = ConvProblem(batch=1, in_channels=2, height=3, width=4, out_channels=1, kernel_size=2)
windows_written_out(tiny, column=4)

# %% [markdown]
"""
In NumPy this takes four lines. `sliding_window_view` shows all windows without copying; `window_shape` is the size of a
window, that of the filter if there is no dilation. The last
line puts the axes in the right order, (channel, filter row, filter column) before (image, row,
column), and writes the matrix out:
"""


# %% setup=true
def im2col_in_numpy(input, problem):
    p = problem
    padded = np.pad(input, ((0, 0), (0, 0), *p.padding))
    windows = sliding_window_view(padded, p.window_shape, axis=(2, 3))
    windows = windows[:, :, :: p.s_h, :: p.s_w, :: p.d_h, :: p.d_w]  # strides and dilation
    return windows.transpose(1, 4, 5, 0, 2, 3).reshape(p.K, p.N)


# %% [markdown]
"""
Then the convolution is one product, `@` in NumPy. Is the result the same?
"""

# %%
problem = ConvProblem(2, 3, 8, 10, out_channels=4, kernel_size=3, padding=1)
random = np.random.default_rng(0)
input = random.standard_normal(problem.input_shape, dtype=np.float32)
weight = random.standard_normal(problem.weight_shape, dtype=np.float32)

filters = weight.reshape(problem.M, problem.K)
product = filters @ im2col_in_numpy(input, problem)
ours = product.reshape(4, 2, 8, 10).transpose(1, 0, 2, 3)  # the images' axis first
print(np.allclose(ours, convlab.conv2d(input, weight, padding=1), atol=1e-4))

# %% [markdown]
"""
## Your turn

Write the kernel that makes the matrix of windows. Each **element** of the matrix gets a thread.
Element `e` of `columns` is in row `k` (the term) and column `n` (the output pixel); both are given.
A row has `WIDTH` numbers, a few more than `N`, so that each row begins at the start of a sector.
Write 0 to the columns past the last output pixel.

- Which pixel of the output is `n`? Compute the image `i_n`, and the pixel's number `pixel` in this
  image. An image has `PIXELS = H_o * W_o` output pixels, `W_o` in a row. (Write
  `pixel = INDEX(...)`, an integer with enough bits.)
- Which term is `k`? Compute the channel `i_c`, the filter row `f_h` and the filter column `f_w`; `f_w`
  counts fastest, then `f_h`.
- Where in the input is this number? Compute the row `i_h` and the column `i_w`: output row times
  stride, plus filter row times dilation, minus padding, as in m01.
- `value` is this pixel, or `float32(0)` outside the image and past the last output pixel.

The last lines store `value`. `BY_IMAGE` is for a stage that makes a matrix for each image.
"""

# %% [markdown]
"""
<details><summary>Tip: how do you split a number of seconds into hours, minutes and seconds?</summary>

By remainders and quotients, the fastest first. Here `f_w` counts fastest, then `f_h`, then `i_c`. And which of image, row
and column counts fastest in `n`?
</details>
<details><summary>Tip: the plan</summary>

Split `k` and `n`. Compute the input's row and column. Check three things before the load: is there such an output pixel,
and are row and column inside the image? Without the first one, threads beyond the last window look for an image that does
not exist.
</details>
<details><summary>Tip: the code</summary>

The index in the middle is a remainder and then a quotient: `f_h = k % (H_f * W_f) // W_f`. The row in the image is
`i_h = pixel // W_o * s_h + f_h * d_h - p_h`. The conditions are `n < N`, `0 <= i_h < H_i` and `0 <= i_w < W_i`.
</details>
"""

# %% exercise="windows"
stage_kernel(
    "im2col",
    blank(
        "take n and k apart, find the place in the input, fetch value",
        first="i_n, pixel = n // PIXELS",
        last="value = input[i_n, i_c, i_h, i_w]",
    ),
    name="make_im2col",
    called="make_im2col",
)

# %% check="windows"
check_im2col(make_im2col, im2col_in_numpy)

# %% [markdown]
"""
The check numbers the pixels 1, 2, 3, ..., so in "the kernel wrote 7, wanted is 9" the 7 and
the 9 are pixels: count them in the input.

## What the memory sees

This kernel computes nothing: it only moves numbers. So only the order of its requests matters.
Neighbouring threads write neighbours in a row of the matrix:
"""

# %%
layer = ConvProblem(1, 2, 16, 32, out_channels=8, kernel_size=3, padding=1)
launch = traced_im2col(convlab.ladder.im2col.im2col_gemm.make_im2col, layer)
one_request(launch, "columns", "store")

# %% [markdown]
"""
They also read neighbours in a row of the input, because neighbouring windows see neighbouring
pixels:
"""

# %%
one_request(launch, "input", number=3)

# %% [markdown]
"""
## Find the bug

(`find_value` is what you have written above; `solved` takes it from the stage.)

This kernel writes the right matrix. Its author thought: a window is a column, so let neighbouring
threads write the terms of one window. Look at the stores of a warp, and fix the kernel. Two or
three lines are the cause.
"""

# %% hunt="order"
stage_kernel(
    "im2col",
    planted=(
        ("k, n = uint32(e // WIDTH), e % WIDTH\n        if k >= K:", "k, n = uint32(e % K), e // K\n        if n >= WIDTH:"),
        ("columns[e] = value", "columns[k * WIDTH + n] = value"),
    ),
    name="make_im2col",
    called="make_slow",
    hidden=("find_value",),
)

# %%
one_request(traced_im2col(make_slow, layer), "columns", "store")

# %% [markdown]
"""
<details><summary>Tip: which element of the matrix is the next one in memory?</summary>

The matrix lies in memory row after row. The neighbour of row `k`, column `n` is row `k`, column `n + 1`: the
same term of the *next window*.
</details>
<details><summary>Tip: the plan</summary>

When `e` grows by one, `n` should grow by one, and a row has `WIDTH` elements. Then other threads than before are past the
last element: which of `k` and `n` is too large in these?
</details>
<details><summary>Tip: the code</summary>

When `e` counts along the rows, the threads past the last element have `k >= K`. They must return.
</details>
"""

# %% check="order"
check_im2col(make_slow, im2col_in_numpy)

# %% [markdown]
"""
## What it costs

im2col costs memory. In a layer with a 3 x 3 filter and stride 1, an inner pixel is in nine windows,
so the matrix contains it nine times:
"""

# %%
measured_memory("i01_im2col", "i02_im2col_per_image")

# %% [markdown]
"""
The matrix takes several times as much memory as input, filter and output together. The stage
`i02_im2col_per_image` makes the matrix of one image at a time. It takes hardly any memory, because
each image overwrites the matrix of the image before.

## On a real GPU
"""

# %%
measured("m01", "i01_im2col", "i02_im2col_per_image", "m11")

# %% [markdown]
"""
With one matrix for all images (i01), im2col is much faster than m01, although it moves all these numbers,
because it can use a very fast matrix product. (The product in `i01_im2col` uses what you will learn
in lessons 05 to 08.) Image by image, im2col is slow, because the product of one image is too small
to keep the whole GPU busy, and there are many such products. So im2col costs either memory or time.

Where does the time go? `im2col` is your kernel:
"""

# %%
measured_kernels("i01_im2col", "i04_im2col_blas", "i03_im2col_depth_last")

# %% [markdown]
"""
- Making the matrix takes a good part of the time, and computes nothing.
- `i04_im2col_blas` calls NVIDIA's own library, cuBLAS, for the product, which is faster than i01's own product.
- `i03_im2col_depth_last` makes the same matrix from an input in which the channels of a pixel are
  neighbours. So its kernel `im2col_by_runs` moves four numbers with each instruction and takes less time.
  In exchange, another kernel (`to_depth_last`) must first write the input in this order.

The main route gets rid of the matrix. [Lesson 04](04_implicit_gemm.ipynb) does not store it. The stages m09 to
m12 ([10](10_im2win.ipynb) to [12](12_fused_im2win.ipynb)) store something smaller, the im2win tensor, in which a pixel
stands less often. One of them, m11, is the fastest stage in the first chart of this section.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>An input has 64 channels of 56 x 56 pixels, the filter is 3 x 3 with stride 1 and no padding. How many numbers has an image's matrix?</summary>

`K` = 64 x 3 x 3 = 576 rows and `N` = 54 x 54 = 2,916 columns: about 1.7 million numbers, made from 200,704.
</details>

<details><summary>With which stride does im2col with a 3 x 3 filter copy nothing twice?</summary>

With stride 3 or more: then no two windows overlap. With stride 2 a pixel is in up to four windows.
</details>

<details><summary>With a 1 x 1 filter and stride 1, what is the matrix of windows?</summary>

The input itself, channel by channel: `K` = `C_i` rows, each with all pixels of a channel. For one image
nothing would have to be copied at all.
</details>

<details><summary>The paper writes a window into each <em>row</em>. Is ours wrong?</summary>

No: theirs is the same matrix transposed, and the product then has its factors exchanged. With a window in
each column, neighbouring numbers of the product are neighbouring pixels, as in the output tensor.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The kernel: [im2col_gemm.py](../src/convlab/ladder/im2col/im2col_gemm.py), the stages:
  [ladder](../docs/ladder.md#i01_im2col). The memory that they take:
  [results](../docs/results.md#memory).
- The im2win paper, section 2.3 and Figure 1:
  [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Faster Convolution, section 2.2 and Algorithm 1: padding, unfolding, one product and
  folding, without a custom kernel. [unfold.py](../src/convlab/problems/unfold.py) and the stage
  `i05_unfold_einsum` implement it.
- CUDA IM2COL Kernels Design, equations 1.2 and 1.4 for the matrices, case 1 (a depth pitch
  of 4) for the kernel that moves four numbers at a time:
  [depth_last_layout.py](../src/convlab/ladder/im2col/depth_last_layout.py).
- Next: [04_implicit_gemm](04_implicit_gemm.ipynb), the same product without the matrix.
"""
