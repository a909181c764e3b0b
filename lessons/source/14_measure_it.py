# %% [markdown]
"""
# Measure it: how fast is it really?

**You will be able to** time a kernel without the usual four mistakes, and read a table of times.

So far you have counted requests. This lesson is about seconds: how to measure a kernel, which
mistakes are usual, and what the ladder's numbers say. With a GPU you can measure your own kernels;
without a GPU you have the stored results of an NVIDIA H200. You should have done a few stages, among them
[04](04_implicit_gemm.ipynb), which introduces `M`, `N` and `K`.
"""

# %% setup=true
import statistics

from convlab import ConvProblem
from convlab.problems import workloads
from convlab.lessons import PretendGPU, as_bars, check_function, gpus, ladder_speeds
from convlab.lessons import measured, pretended, where

print(where())

# %% [markdown]
"""
## The idea

A stopwatch around a kernel measures almost anything but the kernel. Four effects disturb the
measurement:

- **A launch does not wait.** `kernel[grid, block](a, out)` only puts work into the GPU's queue and
  returns. If you read the clock then, you measure only how long it takes to fill the queue.
- **The first launch compiles.** Numba compiles a kernel to machine code at its first launch.
  Compiling takes a second, and the kernel takes perhaps a millisecond.
- **Caches remember.** The second launch finds in the cache the numbers that the first launch has
  read. In a network other layers run in between, so the numbers would not be in the cache.
- **Sometimes something else slows a run down.** The mean of ten runs with one such hiccup is the
  time of no run.

To show each effect, the next cell uses a pretended GPU whose right answer is known. Its kernel
takes 1.0 milliseconds if it reads from memory and 0.7 if it reads from the cache. It has four
methods: `launch()`, `wait()`, `flush_cache()`, which empties the cache, and `clock()`, which returns the time in
milliseconds.
"""


# %%
def without_waiting(gpu, repeats):
    gpu.launch()
    gpu.wait()
    start = gpu.clock()
    for _ in range(repeats):
        gpu.launch()
    return (gpu.clock() - start) / repeats


def with_compiling(gpu, repeats):
    start = gpu.clock()
    for _ in range(repeats):
        gpu.launch()
    gpu.wait()
    return (gpu.clock() - start) / repeats


def from_the_cache(gpu, repeats):
    gpu.launch()
    gpu.wait()
    times = []
    for _ in range(repeats):
        start = gpu.clock()
        gpu.launch()
        gpu.wait()
        times.append(gpu.clock() - start)
    return statistics.median(times)


ways = (without_waiting, with_compiling, from_the_cache)
found = {way.__name__.replace("_", " "): way(PretendGPU(1.0, 0.7), 21) for way in ways}
as_bars(found, "milliseconds", "One kernel, measured in three wrong ways; the dotted line is its real time:", 1.0)

# %% [markdown]
"""
## Your turn: from times to figures

A time alone says little: is 1 millisecond fast? The answer depends on how much work the kernel
does. Three figures are usual:

- the **median** of the repeated times: half of them are shorter, half longer;
- **TFLOP/s**: floating-point operations divided by the time, in units of 10^12 a second. A
  convolution has two operations, a product and a sum, for each term of each output:
  `2 * M * N * K`;
- the **speedup** over another time: the other time divided by ours.

Write a function that gives all three. `times_ms` is a list of milliseconds, `problem` has `M`, `N` and
`K`, `other_ms` is the time to compare with.
"""

# %% [markdown]
"""
<details><summary>Tip: how many bytes, operations and seconds are in the units of the answer?</summary>

A millisecond is a thousandth of a second, and a TFLOP is 10^12 operations. Bytes do not matter here.
</details>
<details><summary>Tip: the plan</summary>

First the median of the times, because both other figures use it. Then the operations divided by its seconds, in units of
10^12. Then the other time divided by the median.
</details>
<details><summary>Tip: the code</summary>

`statistics.median(times_ms)` is the median, and `median / 1000` are its seconds.
</details>
"""


# %% exercise="figures"
def figures(times_ms, problem, other_ms):
    ### BEGIN SOLUTION: compute the median, TFLOP/s and the speedup over the other time
    median = statistics.median(times_ms)
    operations = 2 * problem.M * problem.N * problem.K
    tflops = operations / (median / 1000) / 1e12
    speedup = other_ms / median
    ### END SOLUTION
    return median, tflops, speedup


# %% check="figures"
def wanted_figures(times_ms, problem, other_ms):
    ordered = sorted(times_ms)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return middle, problem.flops / middle / 1e9, other_ms / middle


layer = workloads.paper_layer("conv9")
small = ConvProblem(batch=2, in_channels=3, height=9, width=9, out_channels=5, kernel_size=3, stride=2)
cases = [([1.03, 1.237, 9.0], layer, 6.1), ([0.512, 0.733], small, 0.3), ([2.0], layer, 2.0)]
check_function(figures, wanted_figures, cases)

# %% [markdown]
"""
## Find the bug

Pass the check above first.

This function should measure, on the pretended GPU, the time of one launch that reads from memory
and has no hiccup. It makes all four mistakes from above. Fix the function; the picture shows how
far off its result is.
"""


# %% hunt="stopwatch"
def measure(gpu, repeats):
    ### BEGIN SOLUTION
    gpu.launch()
    times = []
    for _ in range(repeats):
        gpu.flush_cache()
        gpu.wait()
        start = gpu.clock()
        gpu.launch()
        gpu.wait()
        times.append(gpu.clock() - start)
    return statistics.median(times)
    ### PLANTED
    #: times = []
    #: for _ in range(repeats):
    #:     gpu.wait()
    #:     start = gpu.clock()
    #:     gpu.launch()
    #:     times.append(gpu.clock() - start)
    #: return statistics.mean(times)
    ### END SOLUTION


# %%
found = {f"{cold} ms": measure(PretendGPU(cold, cached), 21) for cold, cached in ((1.0, 0.7), (5.0, 4.0))}
as_bars(found, "milliseconds", "What the function above finds for two kernels of 1 and 5 milliseconds:")

# %% [markdown]
"""
<details><summary>Tip: which of the four effects from the beginning does this function prevent?</summary>

None of them. Find for each effect the call, or the kind of average, that prevents it.
</details>
<details><summary>Tip: the plan</summary>

It lacks a launch before the loop, a call before the clock starts, and a call before the clock stops. It also needs another
average than the mean.
</details>
<details><summary>Tip: the code</summary>

`gpu.flush_cache()` is work for the GPU, too. If you do not call `gpu.wait()` after it and before you read the clock, you
measure it as well.
</details>
"""

# %% check="stopwatch"
check_function(measure, pretended, gpus((1.0, 0.7), (5.0, 4.0), (3.0, 1.0)), within=0.03)

# %% [markdown]
"""
This repository measures in the same way, with two refinements. The GPU itself takes the times,
between two marks in its queue (CUDA events). The answer is checked before *and after* the
measurement, so that no wrong kernel can look fast ([measuring](../docs/measuring.md)).

## What the ladder says

The chart shows all stages on one layer, from the stored results:
"""

# %%
ladder_speeds("conv9")

# %% [markdown]
"""
With a GPU of your own, run this in a terminal; it takes a minute or two and prints the same as a table:

```sh
convlab ladder --layer conv9
convlab ladder --layer conv9 --json mine.json
```

Then compare: are the *steps* the same, even if the numbers are not? A GPU with less memory
bandwidth in relation to its arithmetic shows larger steps where a stage fetches numbers less often.

A single layer may not be representative. On a layer with three channels the bars look different:
"""

# %%
ladder_speeds("conv7")

# %%
measured("m01", "m03", "m05", "m08", "m11")

# %% [markdown]
"""
The charts show three things:

- Most of the gain lies between m02 and m05, in the steps that fetch a number once and use it many
  times.
- Not every step is a gain. For example, m02 (the matrix product without its matrix) and m09 (im2win's order) are slower
  than the stages that they build on, but later stages need their idea.
- The speeds alone do not show how near a stage is to the limit. A GPU has a highest speed of
  arithmetic and a highest speed of memory, and one of the two limits each layer: see the
  [roofline](../docs/measuring.md#the-roofline).
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>A kernel that only copies numbers: what would you report instead of TFLOP/s?</summary>

Bytes per second: the bytes that the kernel must at least read and write, divided by the time.
</details>

<details><summary>Somebody reports the best of 100 runs for one program and the mean for another. What is wrong with that?</summary>

The best run has no hiccup and the warmest cache; the mean includes every hiccup. The two numbers
would differ even for the same program. The im2win paper reports the best of 100 runs (section 4.2);
we report medians, with their spread.
</details>

<details><summary>Two stages differ by 1 percent. Is one of them faster?</summary>

Look at the spread. If repeated runs of one stage differ by as much, the measurement cannot tell. Alternate
the stages and repeat more often; a GPU's clock also changes with its temperature.
</details>

## Where to read on

- How this repository measures: [measuring](../docs/measuring.md). All that was measured:
  [results](../docs/results.md), and the ladder layer by layer: [ladder](../docs/ladder.md#measured).
- The im2win paper, sections 4.1 and 4.2: what was measured there, and how:
  [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Next and last: [read the paper with us](15_read_the_paper.ipynb).
"""
