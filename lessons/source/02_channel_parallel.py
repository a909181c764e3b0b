# %% [markdown]
"""
# c01 to c03: channels in parallel, several threads for one output

**You will be able to** let several threads add to one output with **atomic additions**, and say
when they are worth their cost.

In m01, the stage of lesson 01, a thread computes a whole output, input channel after input channel. Here each input channel gets
a thread of its own, and several threads add to the same output. Then the threads of a block fetch their
pixels together. These stages are a route of their own on the ladder; its letter is `c`. You should have done [01_direct](01_direct.ipynb).
"""

# %% setup=true
import numpy as np
from numba import cuda

from convlab import ConvProblem, trace_stage
from convlab.lessons import check, measured, measured_sweep, one_request, region_and_field
from convlab.lessons import run, side_by_side, traced, what_is_wrong, who_adds, with_field

# %% [markdown]
"""
## The idea

A GPU needs many threads to be busy: an H200 runs hundreds of thousands of them at a time. A small
image with few output channels has fewer outputs. But each output is a sum over all `C_i` input
channels, and the parts of a sum can be computed by different threads:

```
an output = part of channel 0
          + part of channel 1 + ...
```

The next picture shows this for an image with three channels and 4 x 8 pixels. One block has a
thread for each output pixel *and input channel*. A thread goes through all output channels `o_c`,
computes the part of its input channel and adds this part to the output:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=3, height=4, width=8, out_channels=4, kernel_size=3, padding=1
)
small = trace_stage("c01_input_channels", problem).main
who_adds(small, problem)

# %% [markdown]
"""
Threads 0, 32 and 64 all add to the same number. You know this mistake from
[00_start_here](00_start_here.ipynb): it is a race. To add, a thread reads the number, adds to it,
and writes it back. If two threads do this at the same time, both read the old number, and one
addition is lost. The simulator reports the race:
"""


# %%
@cuda.jit
def add_up(a, total):
    i = cuda.grid(1)
    if i < a.size:
        total[0] += a[i]


what_is_wrong(add_up, 2, 32, np.ones(64, np.float32), np.zeros(1, np.float32))

# %% [markdown]
"""
The remedy is an **atomic** addition: it reads, adds and writes in one step that no other thread can
interrupt. `cuda.atomic.add(total, 0, a[i])` adds `a[i]` to `total[0]`. Threads that add to the same
element take turns, in no fixed order.
"""


# %%
@cuda.jit
def add_up_atomically(a, total):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(total, 0, a[i])


total = np.zeros(1, np.float32)
run(add_up_atomically, 2, 32, np.ones(64, np.float32), total)
print(total)

# %% [markdown]
"""
## Your turn

The thread already knows its output pixel (image `i_n`, row `o_h`, column `o_w`) and its *input*
channel `i_c`. A **field** describes the block: it has `B_X` columns, `B_Y` rows and `B_Z` input
channels of threads. (`gpu_only(launch_bounds=...)` tells a GPU's compiler how many threads the
block has; the simulator does not need this.) The whole work of the thread is left for you. For each
output channel `o_c`:

- compute this input channel's part: the sum over filter rows `f_h` and columns `f_w`, with 0 for pixels
  outside the image, as in m01,
- add it atomically to the output.

Here `output` has one dimension. Image `i_n`, channel `o_c`, row `o_h`, column `o_w` is element
`((i_n * C_o + o_c) * H_o + o_h) * W_o + o_w`. A kernel that runs before yours has stored the bias in
every output, so your kernel adds to the bias.
"""

# %% [markdown]
"""
<details><summary>Tip: over what does this thread loop, and over what not?</summary>

Over the output channels, and over the filter's rows and columns. There is no loop over `i_c`, because each thread has its
own `i_c`.
</details>
<details><summary>Tip: the plan</summary>

A loop over the output channels. In it a partial sum begins with zero, two loops over the filter add to it as in m01, and
one atomic addition ends the turn: one for each output channel, not one for each product.
</details>
<details><summary>Tip: the code</summary>

`partial = float32(0)` for *each* `o_c`. Its product is a pixel times `weight[o_c, i_c, f_h, f_w]`, and at the end
`cuda.atomic.add(output, place, partial)`, where `place` is the element's number from the text above.
</details>
"""

# %% exercise="parts"
stage_kernel(
    "c01_input_channels",
    blank(
        "for each output channel: this input channel's part, added atomically",
        first="for o_c in range(C_o):",
        last="cuda.atomic.add(",
    ),
)

# %% check="parts"
check(with_field(make_kernel), "c01_input_channels")  # with_field chooses the block's size

# %% [markdown]
"""
A sum changes a little when its terms are added in another order, because every addition rounds. So
two runs of this kernel on a GPU may differ in the last digit. The check allows for that.

## What the memory sees

An atomic addition is a memory request like any other. Here the 32 lanes of a warp add to 32
neighbours:
"""

# %%
one_request(small, "output", "atomic")

# %% [markdown]
"""
This is the best case, because no two lanes of *one warp* add to the same number. The threads that add
to the same number, one for each input channel, are in different warps, and mostly add at different
times.

## The next step: fetch the field once

Every thread still fetches nine pixels of its channel for each output channel, and its neighbours fetch
nearly the same ones. Together the threads of a block see one rectangle of each input channel: the
**receptive field** of the block, its region of outputs with a rim around it.
"""

# %%
wide = ConvProblem(batch=1, in_channels=2, height=12, width=40, out_channels=2, kernel_size=5)
region_and_field(trace_stage("c02_receptive_field", wide).main, wide)

# %% [markdown]
"""
Stage c02 copies that rectangle into **shared memory**: a small, fast memory that belongs to a block and
that all its threads see. Then the threads wait for each other (`cuda.syncthreads()`, a
**barrier**), so that no thread reads a pixel before another thread has stored it. From then on they
read pixels from shared memory. You will write such a kernel in
[05_shared_memory](05_shared_memory.ipynb).

A third stage, c03, needs no atomic additions. A block owns one *output* channel, its threads go through
all input channels, and the block loads the receptive fields of these channels into shared memory one
after the other. The chart shows the counts on the same problem:
"""

# %%
names = ("m01", "c01_input_channels", "c02_receptive_field", "c03_output_channels")
side_by_side(
    {name: trace_stage(name, wide).main for name in names},
    "requests to global memory",
    "requests to shared memory",
    "atomic additions",
)

# %% [markdown]
"""
c02 makes far fewer requests to global memory than c01, because its pixels come from shared memory. The
filter still comes from global memory. c03 has no atomic additions.

## Find the bug

This kernel is c02 with one change. With the function `stage_field` the block's threads fetch the field,
and `S` is the field in shared memory. The answers are right, but the kernel assigns
columns, rows and channels to the threads in another order. Look at the picture and compare it with
the one above: now lanes of *one* warp add to the same number, so they wait for each other. Fix the
kernel so that the lanes add to neighbours.
"""

# %% hunt="lanes"
stage_kernel(
    "c02_receptive_field",
    planted=(
        (
            "x, y, z = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), uint32(cuda.threadIdx.z)",
            "t = uint32((cuda.threadIdx.z * B_Y + cuda.threadIdx.y) * B_X + cuda.threadIdx.x)",
        ),
        ("t = uint32((z * B_Y + y) * B_X + x)\n", "x, y, z = t // B_Z % B_X, t // B_Z // B_X, t % B_Z\n"),
    ),
    called="make_slow",
)

# %%
channels = ConvProblem(1, 4, 4, 16, 4, kernel_size=3, padding=1)
one_request(traced(with_field(make_slow), "c02_receptive_field", channels), "output", "atomic")

# %% [markdown]
"""
<details><summary>Tip: which of <code>x</code>, <code>y</code> and <code>z</code> grows when <code>t</code> grows by one?</summary>

`t` is the thread's number in its block, and a warp is 32 threads with neighbouring numbers. Here the channel `z` grows
first, because it is the plain remainder.
</details>
<details><summary>Tip: the plan</summary>

The *column* `x` should grow first, then the row, then the channel. Split `t` in this order: the fastest is a remainder,
the slowest only a quotient.
</details>
"""

# %% check="lanes"
# Its receptive field does not fit into shared memory, so a block fetches it in two parts.
in_parts = ConvProblem(1, 2, 113, 121, 3, kernel_size=2, dilation=110)
check(with_field(make_slow), "c02_receptive_field", also=in_parts)

# %% [markdown]
"""
<details><summary>What does this order cost besides?</summary>

In the line that multiplies, the lanes of a warp now read weights of several input channels. Before,
all lanes read the same number. To see this, replace `"output", "atomic"` by
`"weight", number=3` in the cell that draws the picture.
</details>

## On a real GPU
"""

# %%
measured("m01", "c01_input_channels", "c02_receptive_field", "c03_output_channels")

# %% [markdown]
"""
None of these stages is faster than m01 on this layer. Why?

- The layer has more than enough outputs to keep the GPU busy without a thread for each channel. c01
  gains nothing from its additional threads, and they cost 64 atomic additions to each output.
- Fetching the field once saves requests to global memory. But m01 gets the pixels that neighbouring
  threads have fetched from the **cache**, which is made of the same fast memory. c02 and c03 only add
  work: they copy pixels and wait at barriers, and each product still needs a read from shared memory and
  a read of the filter.

The article that these kernels come from (the first one under "Where to read on") found that they do well with large
filters. Our measurements agree: c03 is faster than m01 from 9 x 9 on, and c02 only with very large filters. A large filter
has large windows, so many windows contain the same pixel, with 31 x 31 hundreds of them. Each pixel in shared memory then
serves all these windows, and m01's neighbours are probably too far apart for the cache:
"""

# %%
measured_sweep("kernel_size", "c02_receptive_field", "c03_output_channels")

# %% [markdown]
"""
Remember three rules. Use `cuda.atomic.add` where threads must share an output. Let the lanes of a
warp access neighbours. Let threads fetch numbers together only if they use each fetched number often
*and* each use is cheap; lessons 05 to 07 make it cheap.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why does a kernel have to put the bias into the outputs before this one runs?</summary>

The threads add to the numbers in memory, and new memory holds arbitrary numbers. Some thread must
write a first number, but no thread of this kernel knows whether it is the first. So a small kernel
writes the bias before: the blocks of the next kernel start only when the small kernel has ended.
</details>

<details><summary>How many atomic additions does an output of a layer with 64 input channels get?</summary>

64, one from each input channel. The number of output channels does not change this, but each thread
makes one addition for each output channel.
</details>

<details><summary>Would one thread for each product, so one for each <code>i_c</code>, <code>f_h</code> and <code>f_w</code>, be better still?</summary>

No. A 3 x 3 filter would need nine times as many threads, and each would multiply once and then add
atomically. An atomic addition costs far more than a multiplication in a register, and all these
additions wait for the same outputs. Splitting a sum among threads pays off only if the parts are
large.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The files: [c01_input_channels.py](../src/convlab/ladder/channels/c01_input_channels.py),
  [c02_receptive_field.py](../src/convlab/ladder/channels/c02_receptive_field.py),
  [c03_output_channels.py](../src/convlab/ladder/channels/c03_output_channels.py), and the code that they
  share, [receptive_field.py](../src/convlab/ladder/channels/receptive_field.py). What was measured:
  [ladder](../docs/ladder.md#c01_input_channels), and all four sweeps:
  [sweeps_h200.json](../docs/results/sweeps_h200.json).
- Accelerating 2D Convolutions on GPU: section 2.2 for the C_in-parallel kernel, section 2.3 and
  Algorithm 2 for the C_out-parallel one, sections 3.2 to 3.5 for the sweeps.
- Races and all other mistakes that the simulator finds: [findings](../docs/findings.md).
- Next: [03_im2col](03_im2col.ipynb) writes out the pixels that every output sees.
"""
