# %% [markdown]
"""
# m01: direct convolution, one thread for each output

**You will be able to** write a convolution as a GPU kernel and give each output a thread.

A convolution slides a small filter over an image. At each position the pixels under the filter are a
**window**. The convolution multiplies them by the filter's numbers and adds up the products. In code this takes seven loops, of
which four become threads. This kernel, m01, is the first **stage** of a **ladder**. Each stage adds one
idea to the stage that it builds on. (`m` stands for the main route; other routes branch off from it.) The main route
leads to **im2win**, a way to reorder the image before a convolution, from a paper that these lessons follow. You should have done [00_start_here](00_start_here.ipynb) and
[00b_small_kernels](00b_small_kernels.ipynb).
"""

# %% setup=true
from convlab import ConvProblem, trace_stage
from convlab.lessons import check, measured, one_request, one_thread
from convlab.lessons import time_mine, traced, who_does_what

# %% [markdown]
"""
## The idea

Images have channels (three for a colour photograph, dozens inside a network), and there are several
filters. Each filter sees all channels of an image and makes one channel of the output. The names
are those of the im2win paper's Algorithm 1, and they stay the same in all lessons.

| letter | counts | runs over |
| --- | --- | --- |
| `i_n` | images | `N_i` |
| `o_c` | filters, and so output channels | `C_o` |
| `o_h`, `o_w` | rows and columns of the output | `H_o`, `W_o` |
| `i_c` | input channels | `C_i` |
| `f_h`, `f_w` | rows and columns of the filter | `H_f`, `W_f` |
"""

# %% [markdown]
"""
In plain Python, with a step `s` from one window to the next, the whole convolution is seven loops:

```python
for i_n in range(N_i):
    for o_c in range(C_o):
        for o_h in range(H_o):
            for o_w in range(W_o):
                for i_c in range(C_i):
                    for f_h in range(H_f):
                        for f_w in range(W_f):
                            pixel = input[i_n, i_c, o_h * s + f_h, o_w * s + f_w]
                            output[i_n, o_c, o_h, o_w] += pixel * weight[o_c, i_c, f_h, f_w]
```

The first four say *which output*. No output depends on another one, so each gets **a thread of its
own**, and these four loops disappear. The last three say *which products make up the output*. They
stay loops, and each thread runs them. The small problem below has one image with two channels,
and its output has four channels. (`kernel_size=3` is the size of the filter, 3 x 3; this meaning of *kernel* is older
than GPUs.)
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=2, height=8, width=10, out_channels=4, kernel_size=3, padding=1
)
small = trace_stage("m01", problem).main
who_does_what(small, "output")

# %% [markdown]
"""
The next picture shows the part of one thread. The thread reads a 3 x 3 window of each input channel
and one whole filter, and it writes one number:
"""

# %%
one_thread(small, thread=34)

# %% [markdown]
"""
**Padding.** `padding=1` puts a frame of zeros around the image, so that the output is as large as
the input. These zeros are not stored: where an index is outside the image, the kernel takes 0.
Thread 0 computes the output in the corner, so its filter covers only four pixels of each channel:
"""

# %%
one_thread(small, thread=0)

# %% [markdown]
"""
## Your turn

The kernel is a function inside a function. `make_kernel` gets a problem and makes the kernel *for
the problem's sizes*, so `C_i`, `H_f` and so on are constants for the compiler. The kernel already
splits the thread's number into `i_n`, `o_c`, `o_h` and `o_w`. Columns count fastest: after the last
column of a row comes the next row, and after the last row comes the next channel, as in the first
picture. (`uint32` is an integer of 32 bits without a sign; GPUs are fastest with integers of 32 bits.)
"""

# %% [markdown]
"""
The sum is left for you. These names are given, with `_h` for rows and `_w` for columns:

| name | is |
| --- | --- |
| `s_h`, `s_w` | the **stride**: the step from one window to the next |
| `p_h`, `p_w` | the padding: rows of zeros above the image, columns of zeros on its left |
| `d_h`, `d_w` | the **dilation**: the step from one row or column of the filter to the next, mostly 1 |
| `H_i`, `W_i` | rows and columns of the image |
| `bias` | a number for each output channel; the last line adds it |

The pixel that filter row `f_h` meets is in input row `o_h * s_h + f_h * d_h - p_h`. Columns follow the same rule. Above
the image the result is negative. (This works: `o_h` is unsigned, but `s_h` and `p_h` are signed, so the result is signed.)

A pixel outside the image is 0, but do not skip it: multiply it like any other, because 0 times an infinite weight is
not 0.
"""

# %% [markdown]
"""
<details><summary>Tip: which pixels and weights does this thread multiply, and what does it do where there is no pixel?</summary>

For each of the `C_i` channels a window of `H_f` rows and `W_f` columns, and the weights at the same places of its filter.
Outside the image the pixel is 0, and it is multiplied all the same: zero times infinity is not zero.
</details>
<details><summary>Tip: the plan</summary>

Three `for` loops, one in the other: channels, filter rows, filter columns. Inside: compute the pixel's row and column,
begin with 0, replace it by the pixel if both are inside the image, multiply by the weight and add to `total`.
</details>
<details><summary>Tip: the code</summary>

`pixel = float32(0)`, and the condition for a pixel is `0 <= i_h < H_i and 0 <= i_w < W_i`. (Plain `0` and `0.0` have
64 bits, and so would every sum with them. Most GPUs are many times slower with 64 bits.)
</details>
"""

# %% [markdown]
"""
The check runs your kernel on small problems on which careless kernels fail: strides, dilations,
padding wider than the image, infinities. If it names a problem, as in `1x2x7x5 * 3x2x3x2`, these
are the shapes of the input and of the filters. `padding ((3, 1), (0, 2))` means three rows of zeros above the image
and one below, no column of zeros on the left and two on the right. The check compares every output with the same sum in
64 bits. Rounding may change an output a little; the **bound** is the largest change that is allowed.

The number of problems differs from check to check: some problems are for some stages only, and some are tried only
after all others are right.
"""

# %% exercise="loops"
stage_kernel(
    "m01",
    blank(
        "add up pixel times weight in three loops, with 0 for pixels outside the image",
        first="for i_c in range(C_i):",
        last="total += pixel * weight",
    ),
)

# %% check="loops"
check(make_kernel, "m01")

# %% [markdown]
"""
## What the memory sees

In the innermost line a warp makes two requests. For the input, neighbouring threads read
neighbouring pixels, with a small jump where the warp continues in the next row of the output:
"""

# %%
one_request(small, "input", number=7)

# %% [markdown]
"""
For the filter, all lanes read the *same* number, because all lanes of the warp compute the same
output channel:
"""

# %%
one_request(small, "weight", number=4)

# %% [markdown]
"""
The two requests need five sectors and one sector, which is good. But the kernel does little with
the numbers: it makes **two requests for one multiplication and one addition**, and it keeps no
number. The next thread fetches almost the same pixels again. Up to 9 windows and 4 filters need
each pixel of this problem, so the kernel fetches a pixel up to 36 times. The rest of the ladder is
about fetching less often.

## Find the bug

The three loops that you have written are hidden here in the function `add_up`; `solved` takes such functions from the
stage.

This kernel gives the right answers, but it causes much more memory traffic than yours. Two lines
are the cause. Run both cells and compare the picture with the one above: what do neighbouring
threads read? Then fix the lines and run the check. (In its table, *sectors stored* are the sectors that the kernel writes.)
"""

# %% hunt="order"
stage_kernel(
    "m01",
    planted=(
        ("        # Columns are innermost, so neighbouring threads read and write neighbouring addresses.\n", ""),
        ("o_w = thread % W_o\n", "o_h = thread % H_o\n"),
        ("o_h = thread // W_o % H_o\n", "o_w = thread // H_o % W_o\n"),
    ),
    called="make_slow",
    hidden=("add_up",),
)

# %%
one_request(traced(make_slow, "m01", problem), "input", number=7)

# %% [markdown]
"""
<details><summary>Tip: which output does thread number 1 compute?</summary>

Thread number 0 computes row 0, column 0. In memory, the next
*column* is the neighbour; the next row is `W_o` numbers away.
</details>
<details><summary>Tip: the plan</summary>

Columns must count fastest, as in your kernel: the column is a plain remainder, and the row is a quotient and then a
remainder. Compare the two lines with those of your cell.
</details>
"""

# %% check="order"
check(make_slow, "m01")

# %% [markdown]
"""
## On a real GPU

The times below were measured on an NVIDIA H200 with a layer of a real network, for this stage and some later ones.
These are the stages of the main route and their lessons:

| lesson | stages | what they add |
| --- | --- | --- |
| 01 | m01 | a thread for each output |
| [04](04_implicit_gemm.ipynb) | m02 | the convolution as a matrix product |
| [05](05_shared_memory.ipynb) | m03 | a block fetches numbers once, into shared memory |
| [06](06_block_tiling.ipynb) | m04 | several outputs for each thread |
| [07](07_microkernel.ipynb) | m05 | a small matrix of outputs for each thread |
| [08](08_vectorized.ipynb) | m06 | four numbers with one instruction |
| [09](09_double_buffer.ipynb) | m07, m08 | the next numbers are fetched while a thread multiplies |
| [10](10_im2win.ipynb) | m09 | im2win's order of the image |
| [11](11_im2win_full.ipynb) | m10, m11 | im2win with all of the above |
| [12](12_fused_im2win.ipynb) | m12 to m15 | im2win that stores no reordered image |
"""

# %%
measured("m01", "m03", "m05", "m08", "m11")

# %% [markdown]
"""
If you have a GPU, the next cell times your own kernel, once it is right, beside the stage's kernel
and a library. A **cache** is a small fast memory that keeps what was fetched last; the L2 cache serves the whole GPU.
Before each run the L2 cache is flushed, that is, filled with other numbers. Otherwise a run would find in the cache
what the run before has fetched.
"""

# %%
time_mine(make_kernel, "m01")

# %% [markdown]
"""
Your first kernel is a respectable start. It is even faster than m03, which waits at barriers for each slice and does
index arithmetic that m01 does not need ([05](05_shared_memory.ipynb) tells the reasons). Every multiplication waits for two numbers from memory,
but most of them come from a cache, because a
neighbouring thread has just fetched nearly the same numbers. Later stages do not rely on this luck.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why does each output channel get a thread, but not each input channel?</summary>

Different output channels are different outputs, so their threads do not disturb each other.
Different input channels add to the *same* output. If each input channel had a thread, all these
threads would write to one place, which is a race, unless they add atomically, one after the other.
Lesson [02](02_channel_parallel.ipynb) tries this.
</details>

<details><summary>The kernel returns early for threads past the last output. Why is that fine here?</summary>

Here no thread waits for another one. From m03 on the threads of a block wait at barriers, which all
of them must reach.
</details>

<details><summary>How many multiplications does one output of a 3 x 3 filter over 64 channels need, and how many numbers does its thread fetch?</summary>

3 x 3 x 64 = 576 multiplications, and two numbers for each: 1,152.
</details>

## Where to read on

- The whole file: [m01_direct.py](../src/convlab/ladder/main/m01_direct.py), and what was measured:
  [ladder](../docs/ladder.md#m01_direct).
- The im2win paper, section 2.1 for the letters and Equation 1, section 2.2 for the direct
  convolution: [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Next: [channels in parallel](02_channel_parallel.ipynb), or [m02](04_implicit_gemm.ipynb) on the main route.
"""
