# %% [markdown]
"""
# m09: im2win, another order for the input

**You will be able to** write the input in the order in which windows read it, and convolve from there.

The kernels of lessons 01 to 09 read the input as it lies in memory. Now a layout transform, a kernel that
runs first, writes the input in another order: the order in which windows read it. That is the idea
of the im2win paper. (The kernel of this lesson is still slow; [lesson 11](11_im2win_full.ipynb), which needs lesson 05
first, makes it fast.) You should have done [00](00_start_here.ipynb), [00b](00b_small_kernels.ipynb),
[01](01_direct.ipynb) and [04](04_implicit_gemm.ipynb), whose stage m02 this lesson changes.
"""

# %% setup=true
from convlab import ConvProblem, trace_stage
from convlab.lessons import check, im2col_beside_im2win, measured, measured_parts
from convlab.lessons import one_request, part_of, side_by_side, slider, traced, workspaces

# %% [markdown]
"""
## The idea

Take the 2 x 2 filter in the picture below. Its first window covers the pixels 1, 2, 4 and 5. In
memory pixels lie row after row. So 1 and 2 are neighbours, and 4 and 5 are neighbours, but 2 and 4
are not: each row of the window lies in another place, and so does each channel.

There are two ways to write windows out:

- **im2col** copies every window whole, each into a column of its own. Then the convolution is a
  matrix product. But if several windows contain a pixel, the matrix stores it several times, up to
  `H_f * W_f` times.
- **im2win** uses the fact that neighbouring windows share columns of pixels. For each row of the
  output it takes the `H_f` rows of the input that this row sees and writes them **column by
  column**. Each channel's part of a window is then contiguous, and the next window's part begins inside it. If two *rows* of windows
  contain a pixel, the tensor stores it twice; at most it stores a pixel `H_f` times.

This is the example of the paper's Figure 1, drawn from what our kernels write:
"""

# %%
im2col_beside_im2win(ConvProblem(1, 3, 3, 3, out_channels=2, kernel_size=2))

# %% [markdown]
"""
Look for the second window, 2, 3, 5, 6, in all three. In the im2col matrix it is the second column.
In the im2win tensor it is 2, 5, 3, 6: its first two numbers are the last two numbers of the window
before.

With padding, the transform writes out the zeros around the image, too. So a kernel that reads the
tensor needs no bounds checks:
"""

# %%
im2col_beside_im2win(ConvProblem(1, 1, 3, 4, out_channels=2, kernel_size=3, padding=1), window=5)

# %% [markdown]
"""
Move the slider. With a larger stride, windows share fewer pixels. In the last picture they share none, and
im2win stores as many numbers as im2col:
"""

# %%
slider(
    lambda stride: im2col_beside_im2win(
        ConvProblem(1, 1, 5, 9, out_channels=2, kernel_size=3, stride=stride), window=1
    ),
    stride=(1, 2, 3),
)

# %% [markdown]
"""
Padding adds zeros around the image, and windows that see them:
"""

# %%
slider(
    lambda padding: im2col_beside_im2win(
        ConvProblem(1, 1, 3, 3, out_channels=2, kernel_size=2, padding=padding), window=1
    ),
    padding=(0, 1),
)

# %% [markdown]
"""
The memory that each way needs depends on the layer. The chart shows it for layers of real networks:
"""

# %%
chosen = ("conv1", "conv3", "conv4", "conv5", "conv7", "conv9")
workspaces({"im2col": "i01", "im2win": "m09"}, layers=chosen)

# %% [markdown]
"""
## Your turn: the transform

The tensor is `windows[i_n, i_c, o_h, place]`: image, channel, row of the output, and the place in this
row. This is Equation 2 of the paper in our letters, with padding and dilation:

`windows[i_n, i_c, o_h, column * H_f + f_h] = input[i_n, i_c, i_h, i_w]`

| name | is |
| --- | --- |
| `f_h` | a row of the filter, from 0 to `H_f - 1` |
| `column` | a column of the padded image, from 0 to `W_w - 1` |
| `W_w` | the number of columns that the windows of a row cover: without padding and with stride 1, all `W_i` of the image |
| `i_h` | the row of the input, `o_h * s_h + f_h * d_h - p_h` |
| `i_w` | the column of the input, `column - p_w` |

A row of the tensor has `W_w * H_f` numbers. Where the pixel is outside the image, the number is 0.
"""

# %% [markdown]
"""
Each thread writes one number. To find which, split the thread's number `e` as in lesson 01: `f_h`
counts fastest, then `column`, then `o_h`, then `i_c`, then `i_n`.

Compute the number first, the pixel or 0, and then store it with one line. With one store in each branch of an `if`, a
warp that takes both branches makes two requests.
"""

# %% [markdown]
"""
<details><summary>Tip: which of the five indices is a plain remainder of <code>e</code>, and which needs no remainder at all?</summary>

The index that counts fastest, `f_h`, is a plain remainder. The slowest, `i_n`, is only a quotient. In the last block it
may be too large: what must a thread do then?
</details>
<details><summary>Tip: the plan</summary>

For each next index divide by everything that counts faster, then take a remainder. A thread has work to do only if
`i_n < N_i`. Compute the row and the column in the image, begin with 0, take the pixel if both are inside, and store the
value in any case, because the memory held something else before.
</details>
<details><summary>Tip: the code</summary>

`column = e // H_f % W_w`, `o_h = e // (H_f * W_w) % H_o`, and so on: each time the divisor grows by one factor. The pixel
exists where `0 <= i_h < H_i and 0 <= i_w < W_i`.
</details>
"""

# %% exercise="transform"
stage_kernel(
    "m09",
    blank(
        "which number is mine, which pixel belongs there, 0 for padding",
        first="f_h = e % H_f",
        last="windows[i_n, i_c, o_h, column * H_f + f_h] = value",
    ),
    name="make_transform",
    called="make_transform",
)

# %% check="transform"
# The check tries this problem, too: its tensor has 512 numbers, two blocks with no thread to spare.
two_blocks = ConvProblem(batch=1, in_channels=4, height=5, width=16, out_channels=3, kernel_size=(2, 1))
check(part_of("m09", make_transform=make_transform), "m09", also=two_blocks)

# %% [markdown]
"""
## Your turn: the kernel on it

The kernel is almost that of m02, which [lesson 04](04_implicit_gemm.ipynb) is about; the sizes `M`, `N` and `K` are
those of the matrix product there. A thread computes one output: it goes through the `K` terms of its
window and computes for each term which pixel and which weight meet. The only difference is that each channel's part of
the window is contiguous in `windows`. The terms come in the window's order: first down a column, then
on to the next column, then to the next channel.

You are given the term's number `k` and the thread's image `i_n`, its row `o_h` and its column `o_w` of the
output. Find the channel `i_c`, the filter's column `f_w` and row `f_h`, and the `pixel`. The window of
output column `o_w` begins at the tensor's column `o_w * s_w`; the filter's next column is `d_w` further. (Comments name
lines of the paper's Algorithm 2, which this kernel follows.)
"""

# %% [markdown]
"""
<details><summary>Tip: in which order do the terms of a window lie in the tensor?</summary>

Channel by channel, in a channel column by column, in a column row by row. Which of the three counts fastest, and by what
do you have to divide for the others?
</details>
<details><summary>Tip: the plan</summary>

A channel has `H_f * W_f` terms; the remainder is the term's number in the channel. Split that by `H_f` into column and
row. In the row `windows[i_n, i_c, o_h]` column `c` of pixels begins at `c * H_f`, and `f_h` counts from there.
</details>
<details><summary>Tip: the code</summary>

`f_w = k % (H_f * W_f) // H_f`. The pixel's column of the tensor is `o_w * s_w + f_w * d_w`; its place in
`windows[i_n, i_c, o_h]` is this column times `H_f`, plus `f_h`.
</details>
"""

# %% exercise="terms"
stage_kernel(
    "m09",
    blank(
        "channel, column and row of term k in window order, and the pixel there",
        first="i_c = k // (H_f * W_f)  # lines 6-9",
        last="pixel = windows[i_n, i_c, o_h,",
    ),
    hidden=("of_output",),
)

# %% check="terms"
check(make_kernel, "m09", in_order="windows")  # counts jumps: a thread's next read is not beside its last

# %% [markdown]
"""
## What the memory sees

For a single thread the order is now ideal: its next number is mostly the neighbour of its last
number. But a GPU does not read thread by thread. A *warp* makes a request, and the request is cheap
only if the 32 lanes read neighbours *at the same time*. This is one request of m02, on the input as
it lies in memory:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=2, height=16, width=16, out_channels=8, kernel_size=3, padding=1
)
before = trace_stage("m02", problem).main
ours = trace_stage("m09", problem).main
one_request(before, "input", number=7)

# %% [markdown]
"""
This is one request of m09. Neighbouring lanes have neighbouring windows, and these begin
`s_w * H_f` numbers apart:
"""

# %%
one_request(ours, "windows", number=4)

# %%
side_by_side({"m02": before, "m09": ours}, "requests to global memory", "sectors of global memory")

# %% [markdown]
"""
The order that suits one thread on a CPU, number after number, does not suit a warp. Later requests use the hatched
numbers of the last picture, those for the other terms of the windows. So the other numbers of a sector are used later,
but each time the warp must ask the cache again.

## Find the bug

(`find_pixel` is what you have written above.)

This kernel is right, but it causes even more memory traffic than yours. Compare the picture with the last one:
which outputs do neighbouring threads compute? Fix the kernel.
"""

# %% hunt="rows"
stage_kernel(
    "m09",
    planted=(
        ("o_h = n % (H_o * W_o) // W_o\n", "o_h = n % H_o\n"),
        ("o_w = n % W_o\n", "o_w = n % (H_o * W_o) // H_o\n"),
    ),
    called="make_slow",
    hidden=("find_pixel",),
)

# %%
one_request(traced(make_slow, "m09", problem), "windows", number=4)

# %% [markdown]
"""
<details><summary>Tip: where does the window of the next thread begin?</summary>

Thread 1's `n` is 1. In which row and column of the output is this thread, and where does its window
begin in the tensor? Where would the window begin if thread 1 had the output to the right of thread
0's?
</details>
<details><summary>Tip: the plan</summary>

Neighbouring threads should compute neighbouring *columns* of a row, as in lesson 01: so the column is the plain remainder
of `n`, and the row a remainder and then a quotient. By what do you have to divide?
</details>
"""

# %% check="rows"
check(make_slow, "m09", at_most=1.1)

# %% [markdown]
"""
## On a real GPU
"""

# %%
measured_parts("m02", "m09", "m08")

# %% [markdown]
"""
m09 is slower than m02. It is many times slower than m08, the stage of lesson 09, in which a block fetches numbers
together and uses each of them many times. The paper expects this, too: it calls this algorithm *basic*.

- m09 still makes all the divisions of m02, for every single term.
- A warp's requests take more sectors than those of m02, as you have seen.
- The transform takes additional time, but it is the smallest part.

So why is this order useful? Because it makes *float4 loads of the input possible*. A float4 load is one instruction
that fetches four neighbours (lesson 08). m08 fetches the input one number at a time, because in the image only the
pixels of one row of a window are neighbours: three of them for a 3 x 3 filter. In the tensor all numbers of a window's
channel are neighbours. m10, in the [next lesson](11_im2win_full.ipynb), uses float4 loads.
"""

# %%
measured("m01", "m02", "m09", "m11")

# %% [markdown]
"""
m09 is the slowest bar, but m11 has the same idea: it adds channels innermost, float4 loads, and tiles in shared memory
and registers. With all of this it is faster even than m08.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>An image of 56 x 56 pixels, a 3 x 3 filter, no padding, stride 1. How many numbers has the im2win tensor of a channel, and how many the im2col matrix?</summary>

The output has 54 x 54 pixels. im2win: 54 rows of 56 x 3 numbers, 9,072. im2col: 54 x 54 windows of 9, that
is 26,244. The image itself has 3,136.
</details>

<details><summary>For which filters is the im2win tensor as large as the im2col matrix?</summary>

For filters that are one pixel wide, and for layers whose windows do not overlap sideways, as with a
stride that equals the filter's width. Then no two windows of a row share a column of pixels.
</details>

<details><summary>The paper says that the 36 numbers of its Figure 1 are "1/3 less" than the 48 of im2col. Are they?</summary>

36 is a quarter less than 48. (48 is a third more than 36.) Such things happen in papers; count for
yourself. [Lesson 15](15_read_the_paper.ipynb) has more of them.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The whole file: [m09_im2win.py](../src/convlab/ladder/main/m09_im2win.py), and what was measured:
  [ladder](../docs/ladder.md#m09_im2win).
- The im2win paper, section 3.1 with Figure 1 and Equation 2, section 3.2 with Algorithm 2:
  [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Memory of im2col and im2win: [results](../docs/results.md#memory).
- Next on the ladder: [m10 and m11, the whole of im2win](11_im2win_full.ipynb).
"""
