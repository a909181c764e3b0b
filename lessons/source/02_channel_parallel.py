# %% [markdown]
"""
# s02: channel-parallel, several threads for one output

**You will be able to** let several threads add to one output with **atomic additions**, and say when
that is worth it. It takes three quarters of an hour.

In s01 a thread computes a whole output, input channel after input channel. Here each input channel gets
a thread of its own, and several threads add to the same output. Then the threads of a block fetch their
pixels together. You should have done [01_direct](01_direct.ipynb).
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

A GPU wants many threads: an H200 runs hundreds of thousands of them at a time. A small image with few output
channels does not have as many outputs. But each output is a sum over all `C_i` input channels, and the
parts of a sum can be computed by different threads:

```
an output = part of channel 0
          + part of channel 1 + ...
```

Here is how that looks for an image with three channels and 4 x 8 pixels. One block has a thread for each
output pixel *and input channel*. A thread goes through all output channels `j`, computes its channel's
part and adds it to the output:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=3, height=4, width=8, out_channels=4, kernel_size=3, padding=1
)
small = trace_stage("s02_cin_naive", problem).main
who_adds(small, problem)

# %% [markdown]
"""
Threads 0, 32 and 64 all add to the same number. You know from [00_start_here](00_start_here.ipynb) what
that is: a race. To add, a thread reads the number, adds to it, and writes it back. If two do it at the
same time, both read the old number, and one addition is lost. The simulator says so:
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
The remedy is an **atomic** addition: reading, adding and writing as one step that no other thread can
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

The thread already knows its output pixel (image `i`, row `o_h`, column `o_w`) and its *input* channel `r`.
A **field** describes the block: `B_X` columns, `B_Y` rows and `B_Z` input channels, a thread for each.
(`gpu_only(launch_bounds=...)` tells a GPU's compiler how many that are; the simulator does not need it.)
What is left is all of the thread's work. For each output channel `j`:

- compute this input channel's part: the sum over filter rows `u` and columns `v`, with 0 for pixels
  outside the image, as in s01,
- add it atomically to the output.

Here `output` has one dimension. Image `i`, channel `j`, row `o_h`, column `o_w` is element
`((i * C_o + j) * H_o + o_h) * W_o + o_w`. A kernel that runs before yours has put the bias into every
output, so you add to something that is there.
"""

# %% [markdown]
"""
<details><summary>Tip: the loops</summary>

Three `for` loops: `j` in `range(C_o)`, inside it `u` in `range(H_f)`, inside that `v` in `range(W_f)`.
There is none over `r`: that is the thread's own.
</details>
<details><summary>Tip: where does the sum begin, and where is it added?</summary>

It begins with `partial = float32(0)` for *each* `j`. The addition is outside the loops over `u` and `v`:
one atomic addition for each output channel, not one for each product.
</details>
<details><summary>Tip: the pixel</summary>

`i_h = o_h * s_h + u * d_h - p_h`, likewise `i_w`. Where `0 <= i_h < H_i and 0 <= i_w < W_i`, the pixel is
`input[i, r, i_h, i_w]`, else `float32(0)`. It is multiplied by `weight[j, r, u, v]`.
</details>
"""

# %% exercise="parts"
stage_kernel(
    "s02_cin_naive",
    blank(
        "for each output channel: this input channel's part, added atomically",
        first="for j in range(C_o):",
        last="cuda.atomic.add(",
    ),
)

# %% check="parts"
check(with_field(make_kernel), "s02_cin_naive")  # with_field chooses the block's size

# %% [markdown]
"""
Sums come out a little differently each time they are added in another order, because every addition
rounds. So two runs of this kernel on a GPU may differ in the last digit. The check allows for that.

## What the memory sees

An atomic addition is a request like others. Here the 32 lanes of a warp add to 32 neighbours:
"""

# %%
one_request(small, "output", "atomic")

# %% [markdown]
"""
That is as good as it gets: no two lanes of *one warp* want the same number. The threads that do, one for
each input channel, are in different warps, and mostly come at different times.

## The next step: fetch the field once

Every thread still fetches nine pixels of its channel for each output channel, and its neighbours fetch
nearly the same ones. Together the threads of a block see one rectangle of each input channel: the
**receptive field** of the block, its region of outputs with a rim around it.
"""

# %%
wide = ConvProblem(batch=1, in_channels=2, height=12, width=40, out_channels=2, kernel_size=5)
region_and_field(trace_stage("s02_cin", wide).main, wide)

# %% [markdown]
"""
Stage `s02_cin` copies that rectangle into **shared memory**: a small, fast memory that belongs to a block
and that all its threads see. Then the threads wait for each other (`cuda.syncthreads()`, a **barrier**), so
that no thread reads a pixel before it is there. From then on they read pixels from shared memory. You will write such a kernel
in [05_shared_memory](05_shared_memory.ipynb).

A third stage, `s02_cout`, does without atomic additions: a block owns one *output* channel, its threads go
through all input channels, and the fields of these come through shared memory one after the other.
Counted on the same problem:
"""

# %%
names = ("s01", "s02_cin_naive", "s02_cin", "s02_cout")
side_by_side(
    {name: trace_stage(name, wide).main for name in names},
    "requests to global memory",
    "requests to shared memory",
    "atomic additions",
)

# %% [markdown]
"""
`s02_cin` asks global memory for far less than `s02_cin_naive`, because its pixels come from shared memory;
the filter still comes from global memory. `s02_cout` has no atomic additions.

## Find the bug

Pass the check above first: this cell gives its answer away.

This is `s02_cin`. `stage_field` is the function by which the block's threads fetch the field, `S` the
field in shared memory. Its answers are right. But columns, rows and channels are assigned to the
threads in another order. Look at the picture and compare it with the one above: now lanes of *one* warp add
to the same number, and so wait for each other. Fix it so that they add to neighbours.
"""

# %% hunt="lanes"
stage_kernel(
    "s02_cin",
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
one_request(traced(with_field(make_slow), "s02_cin", channels), "output", "atomic")

# %% check="lanes"
# Its receptive field does not fit shared memory, so that a block takes it in two parts.
in_parts = ConvProblem(1, 2, 113, 121, 3, kernel_size=2, dilation=110)
check(with_field(make_slow), "s02_cin", also=in_parts)

# %% [markdown]
"""
<details><summary>Tip: who are neighbours?</summary>

`t` is the thread's number in its block, and a warp is 32 threads with neighbouring numbers. When `t` grows
by one, the *column* `x` should grow by one. Here the channel `z` does.
</details>
<details><summary>Tip: what else it costs</summary>

In the line that multiplies, the lanes of a warp now want weights of several input channels where they used
to want one and the same number. Draw it: put `"weight", number=3` in the place of `"output", "atomic"`.
</details>

## On a real GPU
"""

# %%
measured("s01", "s02_cin_naive", "s02_cin", "s02_cout")

# %% [markdown]
"""
None of them is a step forward on this layer. Why?

- It has more than enough outputs to keep the GPU busy without a thread for each channel. The naive
  kernel does not need more threads here, and pays for them with 64 additions to each output.
- Fetching the field once saves requests to global memory. But s01 gets its neighbours' pixels from the
  **cache**, which is made of the same fast memory. What `s02_cin` and `s02_cout` add is work: copying,
  barriers, and for each number still a read from shared memory and one of the filter.

The source of these kernels (001) found that they do well with large filters. That is true here too: for
`s02_cout` from 9 x 9 on, for `s02_cin` with very large ones. A number in shared memory is then used by many
windows, with 31 x 31 by hundreds, and there s01's neighbours are probably too far apart for the cache:
"""

# %%
measured_sweep("kernel_size", "s02_cin", "s02_cout")

# %% [markdown]
"""
What you should keep: `cuda.atomic.add` where threads have to share an output; that a warp's lanes should
want neighbours; and that fetching together only pays when each number fetched is used often *and* cheaply.
Lessons 05 to 07 make it cheap.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why does a kernel have to put the bias into the outputs before this one runs?</summary>

Threads add to what is there, and fresh memory holds anything. Somebody has to write a first number, and
no thread of this kernel knows whether it is the first. So a small kernel runs before: blocks of the next
kernel start when it has ended.
</details>

<details><summary>How many atomic additions does an output of a layer with 64 input channels get?</summary>

One from each input channel: 64. However many output channels there are, that number stays the same; but
each thread makes one addition for each of them.
</details>

<details><summary>Could one thread for each product, so one for each <code>r</code>, <code>u</code> and <code>v</code>, be better still?</summary>

There would be nine times the threads for a 3 x 3 filter, each of which multiplies once and then adds
atomically. An atomic addition costs far more than a multiplication in a register, and all of them queue up
at the same outputs. Parts of a sum are worth sharing out only when they are large.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The files: [s02_cin_naive.py](../src/convlab/stages/s02_cin_naive.py),
  [s02_cin.py](../src/convlab/stages/s02_cin.py), [s02_cout.py](../src/convlab/stages/s02_cout.py), and what
  they share, [receptive_field.py](../src/convlab/kernels/receptive_field.py). What was measured:
  [ladder](../docs/ladder.md#s02_cin_naive), and all four sweeps:
  [comparisons](../docs/notes/measurements.md).
- Accelerating 2D Convolutions on GPU (001): section 2.2 for the C_in-parallel kernel, section 2.3 and
  Algorithm 2 for the C_out-parallel one, sections 3.2 to 3.5 for the sweeps.
- Races and what else the simulator finds: [findings](../docs/findings.md).
- Next: [03_im2col](03_im2col.ipynb) writes out what every output sees.
"""
