# %% [markdown]
"""
# s01: direct convolution, one thread for each output

**You will be able to** write a convolution as a GPU kernel and give each output a thread. It takes half an hour.

A convolution slides a small filter over an image. Everywhere it multiplies what lies under the filter
with the filter's numbers and adds up. That is seven loops, of which four become threads. This kernel, s01,
is the first **stage** of a **ladder**: each stage adds one idea to the one before. You should have done
[00_start_here](00_start_here.ipynb) and [00b_small_kernels](00b_small_kernels.ipynb).
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
are those of the im2win paper, but for `o_h` and `o_w`: its Equation 1 calls them `m` and `n`, which are
an output channel and an output pixel in all later lessons.

| letter | counts | runs over |
| --- | --- | --- |
| `i` | images | `N_i` |
| `j` | filters, and so output channels | `C_o` |
| `o_h`, `o_w` | rows and columns of the output | `H_o`, `W_o` |
| `r` | input channels | `C_i` |
| `u`, `v` | rows and columns of the filter | `H_f`, `W_f` |
"""

# %% [markdown]
"""
In plain Python, with a step `s` from one window to the next, all of it is seven loops:

```python
for i in range(N_i):
    for j in range(C_o):
        for o_h in range(H_o):
            for o_w in range(W_o):
                for r in range(C_i):
                    for u in range(H_f):
                        for v in range(W_f):
                            output[i, j, o_h, o_w] += (
                                input[i, r, o_h * s + u, o_w * s + v] * weight[j, r, u, v]
                            )
```

The first four say *which output*. No output needs another one, so each gets **a thread of its own**, and
these four loops disappear. The last three say *what it is the sum of*. They stay: each thread runs them.
This small problem has one image with two channels and makes four channels of it:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=2, height=8, width=10, out_channels=4, kernel_size=3, padding=1
)
small = trace_stage("s01", problem).main
who_does_what(small, "output")

# %% [markdown]
"""
One thread's part of it. It reads a 3 x 3 window of each input channel and one whole filter, and it writes
one number:
"""

# %%
one_thread(small, thread=34)

# %% [markdown]
"""
**Padding.** `padding=1` puts a frame of zeros around the image, so that the output is as large as the
input. These zeros are not stored: the kernel sees that it is outside and takes 0. Thread 0 sits in the
corner and has only four pixels of each channel under its filter:
"""

# %%
one_thread(small, thread=0)

# %% [markdown]
"""
## Your turn

The kernel is a function inside a function. `make_kernel` gets a problem and makes the kernel *for its
sizes*: `C_i`, `H_f` and so on are then plain numbers to the compiler. The thread's number is already
taken apart into `i`, `j`, `o_h`, `o_w`: columns count fastest, after the last column of a row comes the next
row, after the last row the next channel, as in the first picture. (`uint32` is a whole number without a
sign; GPUs are quickest with those.)

What is left is the sum. Besides the stride (`s_h`, `s_w`) there is the padding (`p_h`, `p_w`: zero rows
above, zero columns on the left) and the dilation (`d_h`, `d_w`: the step from one row or column of the
filter to the next, mostly 1). The pixel that filter row `u` meets is in input row
`o_h * s_h + u * d_h - p_h`. Columns go likewise.
"""

# %% [markdown]
"""
<details><summary>Tip: the loops</summary>

Three `for` loops, over `r` in `range(C_i)`, `u` in `range(H_f)` and `v` in `range(W_f)`. Inside:
compute the row and the column, fetch the pixel, multiply and add to `total`.
</details>
<details><summary>Tip: outside the image</summary>

Start with `pixel = float32(0)`. Only where `0 <= i_h < H_i and 0 <= i_w < W_i`, replace it by
`input[i, r, i_h, i_w]`. Then add `pixel * weight[j, r, u, v]`, also where the pixel is 0: zero times
infinity is not zero, and padding *is* zeros that are multiplied.
</details>
<details><summary>Tip: why <code>float32(0)</code> and not <code>0.0</code>?</summary>

A plain `0.0` is a 64-bit number, and everything added to it becomes 64 bits wide. GPUs are many times
slower with those. The simulator would not notice; a GPU would.
</details>
"""

# %% exercise="loops"
stage_kernel(
    "s01",
    blank(
        "add up pixel times weight over r, u and v, with 0 for pixels outside the image",
        first="for r in range(C_i):",
        last="total += pixel * weight",
    ),
)

# %% check="loops"
check(make_kernel, "s01")

# %% [markdown]
"""
The check runs your kernel on small problems on which careless kernels fail: strides, dilations,
padding wider than the image, infinities. Where it names one, `1x2x7x5 * 3x2x3x2` are the shapes of the
input and of the filters. Every output is compared with the same sum in 64 bits; rounding may change it a
little, and the *bound* is by how much at most.

## What the memory sees

In the innermost line a warp makes two requests. For the input, neighbouring threads want neighbouring
pixels; where the warp goes on to the next row of the output, there is a small jump:
"""

# %%
one_request(small, "input", number=7)

# %% [markdown]
"""
For the filter, all lanes of the warp compute the same output channel, so all want the *same* number:
"""

# %%
one_request(small, "weight", number=4)

# %% [markdown]
"""
Five sectors and one sector: not bad at all. But look how little is done with them: **two requests for one
multiplication and one addition**, and nothing is kept. The next thread fetches almost the same pixels
again. Each pixel of this problem is wanted by up to 9 windows and 4 filters, 36 times in all. The rest of
the ladder is about fetching less often.

## Find the bug

Pass the check above first: this cell gives its answer away.

This kernel has the right answers, and still it makes memory work much harder than yours. Two lines are to
blame. Run both cells and compare the picture with the one above: what do neighbouring threads want? Then
fix the lines and run the check.
"""

# %% hunt="order"
stage_kernel(
    "s01",
    planted=(
        ("o_w = thread % W_o\n", "o_h = thread % H_o\n"),
        ("o_h = thread // W_o % H_o\n", "o_w = thread // H_o % W_o\n"),
    ),
    called="make_slow",
)

# %%
one_request(traced(make_slow, "s01", problem), "input", number=7)

# %% check="order"
check(make_slow, "s01")

# %% [markdown]
"""
<details><summary>Tip</summary>

Thread number 0 computes row 0, column 0. Which output does thread number 1 compute? In memory, the next
*column* is the neighbour; the next row is `W_o` numbers away.
</details>

## On a real GPU

The times below were measured on an NVIDIA H200 with a layer of a real network, for this stage and some
that you will write later.
"""

# %%
measured("s01", "s05", "s07", "s09", "s11")

# %% [markdown]
"""
With a GPU this times your own kernel, once it is right, beside the stage's and a library's:
"""

# %%
time_mine(make_kernel, "s01")

# %% [markdown]
"""
Your first kernel is a respectable start. Every multiplication waits for two numbers from memory, but
most of them come from the **caches**: small fast memories that keep what was fetched last. The neighbour
fetched nearly the same numbers. Later stages do not leave that to luck.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why is the loop over output channels a thread and the loop over input channels not?</summary>

Different output channels are different outputs, so their threads do not disturb each other. Different input channels
are added into the *same* output. As threads they would all write to one place, which is a race, unless
they add atomically, one after the other. Lesson [02](02_channel_parallel.ipynb) tries that.
</details>

<details><summary>The kernel returns early for threads past the last output. Why is that fine here?</summary>

No thread waits for another one. From s05 on threads of a block wait for each other, and then all have
to come.
</details>

<details><summary>How many multiplications does one output of a 3 x 3 filter over 64 channels need, and how many numbers does its thread fetch?</summary>

3 x 3 x 64 = 576 multiplications, and two numbers for each: 1,152.
</details>

## Where to read on

- The whole file of this stage: [s01_direct.py](../src/convlab/stages/s01_direct.py), and what was measured:
  [ladder](../docs/ladder.md#s01_direct).
- The im2win paper (000), section 2.1 for the letters and Equation 1, section 2.2 for the direct
  convolution: [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Next on the ladder: [s02, channel-parallel](02_channel_parallel.ipynb).
"""
