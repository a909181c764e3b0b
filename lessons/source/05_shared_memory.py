# %% [markdown]
"""
# m03: shared memory, fetch together and read many times

**You will be able to** fetch a slice into shared memory with all threads of a block, place the two
barriers that this needs, and find a request that needs too many wavefronts (steps) of shared memory.

In m02, the stage of [04_implicit_gemm](04_implicit_gemm.ipynb), every thread fetches its own numbers from the GPU's
main memory, so many threads fetch the same number. Here the threads of a block work together: they fetch a part of the
numbers, a **slice**, once, store it in **shared memory**, wait for each other, and then all read it from there. You
should have done [00](00_start_here.ipynb), [00b](00b_small_kernels.ipynb) (tiles and barriers) and
[04](04_implicit_gemm.ipynb) (the convolution as a matrix product).
"""

# %% setup=true
import numpy as np
from numba import cuda, float32

from convlab import ConvProblem, Tile, trace, trace_stage
from convlab.lessons import block_of_product, check, measured
from convlab.lessons import memory_levels, one_request, part_of, side_by_side, slider
from convlab.lessons import step_through
from convlab.lessons import tile_over_input, time_mine, traced

few_threads = Tile(M_B=16, N_B=2, K_B=16)  # the checks try this tile, too: 32 threads load 256 numbers

# %% [markdown]
"""
## The idea

In m02 a convolution is a **matrix product**. Row `m` of the first matrix is filter `m`, all its numbers
in a row. Column `n` of the second one is the window that output pixel `n` sees. Each output is a row
times a column:

| letter | is | here |
| --- | --- | --- |
| `M` | output channels | rows of the filter matrix |
| `N` | output pixels of all images | columns of the matrix of windows |
| `K` | numbers in a window, over all channels | terms of each sum |
"""

# %% [markdown]
"""
The filter matrix lies in memory as it is. The matrix of windows is stored nowhere: its element in
row `k` and column `n` is a pixel of the input, and a little arithmetic finds this pixel.

A block computes a **tile** of the output, `M_B` x `N_B` numbers, one for each thread. For these outputs the
block needs `M_B` rows of the first matrix and `N_B` columns of the second, with all their `K`
terms. They do not fit into shared memory at once, so the block fetches them in slices of `K_B`
terms:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=4, height=6, width=16, out_channels=16, kernel_size=3, padding=1
)
tile = Tile(M_B=8, N_B=32, K_B=8)
ours = trace_stage("m03", problem, tile).main
block_of_product(ours, problem, tile.K_B)

# %% [markdown]
"""
The next picture shows the same in the image. A column of the matrix is a window. The block's 32 windows belong to two
rows of the output, which has 16 columns. So one term of all 32 windows is two rows of pixels; a row that
lies in the padding is not drawn. For the next term these rows move a little.
"""

# %%
tile_over_input(ours, tile.K_B)

# %% [markdown]
"""
In the first picture look at one row of the filter's blue slice: the 32 threads of a row of the tile
need it. In m02 each of these threads fetches the row. In m03 the block fetches the row **once**,
into shared memory: a small memory next to the arithmetic units, as fast as a cache. All threads of
a block see shared memory, and the kernel itself fills it.

A GPU has many **SM**s (streaming multiprocessors), each of which runs blocks and has a shared memory. An SM also has an
L1 cache, and all SMs together have an L2 cache: caches keep by themselves what was fetched last. Shared memory and the
L1 cache of an SM are one memory, which each kernel divides between the two. A cycle is one tick of
the GPU's clock. These are a GPU's memories, from the nearest to the farthest:
"""

# %%
memory_levels()

# %% [markdown]
"""
For every slice a block does this:

1. **Load.** The threads share the work: each fetches a few numbers of the two slices into the
   shared arrays `S_F` (filter) and `S_I` (input).
2. **Wait.** `cuda.syncthreads()` is a **barrier**: no thread of the block goes on before all have
   come.
3. **Compute.** Each thread multiplies its row of `S_F` by its column of `S_I`.
4. **Wait again,** before the threads overwrite this slice with the next.
"""

# %% [markdown]
"""
## Your turn: load a slice together

The first step is one function, which fills the filter's slice `S_F`. The threads of a block call it together, each with
its own number `t`.

| name | is |
| --- | --- |
| `S_F` | the slice, an array of `M_B` rows and `K_B` columns, which are terms |
| `THREADS` | threads of the block |
| `weight` | the filter's whole matrix, of `M` rows and `K` terms, in one dimension |
| `m0`, `k0` | the row and the term of the whole matrix where the slice begins |

So row `row`, column `k` of the slice is row `m0 + row`, term `k0 + k` of the whole matrix. Row `m`, term `term` of the
whole matrix is `weight[m * K + term]`. Rows from `M` on and terms from `K` on do not exist: store 0 there.

The slice has `M_B * K_B` numbers, and the block may have fewer threads than that, or more. If it has fewer, a thread
fetches several numbers, one in each turn of a loop. (`range(2, 12, 4)` counts in steps of 4: 2, 6, 10.)
"""

# %% [markdown]
"""
<details><summary>Tip: which numbers of the slice should neighbouring threads fetch?</summary>

Neighbours, as in lesson 00: then a warp's request is coalesced. How far is it to the number that a thread fetches next?
</details>
<details><summary>Tip: the plan</summary>

Number the slice's elements row after row. Thread `t` takes elements `t`, `t + THREADS`, and so on. For each element find
its row and its term, take 0 if it does not exist and the weight if it does, and store it in any case: otherwise the place
holds an old number, and this number goes into the sum.
</details>
<details><summary>Tip: the code</summary>

`for e in range(t, M_B * K_B, THREADS):`. Element `e` is in row `e // K_B`, column `e % K_B` of the slice.
</details>
"""

# %% exercise="load"
stage_part(
    "m03",
    "load_filter",
    blank(
        "fetch the filter's slice into S_F, with 0 past the last row and the last term",
        first="for e in range(t, M_B * K_B, THREADS):",
        last="S_F[e // K_B, e % K_B] = value",
    ),
)

# %% check="load"
# part_of puts your function in the place of m03's; at_most says how many times m03's memory traffic is allowed.
check(part_of("m03", load_filter=make_load_filter), "m03", also=few_threads, at_most=1.6)

# %% [markdown]
"""
## Your turn: wait, compute, wait

The second step is the kernel. Three functions are given; `solved` takes them from the stage:

| call | does |
| --- | --- |
| `of_window(window)` | returns the image, the row and the column of an output pixel |
| `load_filter(weight, m0, k0, t, S_F)` | what you have just written |
| `load_windows(input, i_n, o_h, o_w, k0, ty, tx, S_I)` | the same for the windows' slice |

`S_F[row, k]` holds the slice of the filter, and `S_I[k, column]` the slice of the windows; `k` counts the terms of the
slice, from 0. This thread computes row `ty`, column `tx` of the tile. Both slices are loaded. Wait, add the products of
this slice to `total`, and wait again.
"""

# %% [markdown]
"""
<details><summary>Tip: what could go wrong without the first barrier, and what without the second?</summary>

Without the first, a thread multiplies a number that its neighbour has not stored yet. Without the second, a fast thread
stores the next slice over numbers that a slow thread still has to read.
</details>
<details><summary>Tip: the plan</summary>

A barrier, a loop over the `K_B` terms of the slice, a barrier. Both barriers belong outside of every `if`, because all
threads of the block must reach them.
</details>
<details><summary>Tip: the code</summary>

A product is `S_F[ty, k] * S_I[k, tx]`, for `k` from 0 to `K_B - 1`.
</details>
"""

# %% exercise="slices"
stage_kernel(
    "m03",
    blank(
        "wait, add up the slice's products in total, wait",
        first="cuda.syncthreads()  # all have fetched",
        last="cuda.syncthreads()  # all have read",
    ),
    hidden=("of_window", "load_filter", "load_windows"),
)

# %% check="slices"
check(make_kernel, "m03", also=few_threads, at_most=1.6)

# %% [markdown]
"""
`launch_bounds` in the first line of the kernel tells the compiler how many threads a block will
have; without a GPU, `gpu_only` leaves this information out. It changes no result.

## What the memory sees

The chart compares m02 and m03 on the same problem. Because its threads fetch together, m03 makes
only a tenth of the requests to global memory, and does more operations per byte (its arithmetic intensity is higher):
"""

# %%
before = trace_stage("m02", problem).main
side_by_side(
    {"m02": before, "m03": ours},
    "requests to global memory",
    "requests to shared memory",
    "operations per byte",
)

# %% [markdown]
"""
In exchange m03 makes requests to shared memory, two for each multiplication. Shared memory has no
sectors. It has 32 **banks**. Neighbouring numbers lie in neighbouring banks, and bank 0 follows bank 31: number `e` of an
array is in bank `e % 32`, if the array begins in bank 0. In one step, called a **wavefront**, each bank delivers one number. If all lanes
read from different banks, one wavefront serves them all. If several lanes read the same number, one
wavefront serves them too. If lanes read different numbers from one bank, this is a **bank conflict**: the
request takes several wavefronts. In the line that computes, all lanes of a warp are in one row of the tile,
so they read the same number of `S_F`:
"""

# %%
one_request(ours, "S_F")

# %% [markdown]
"""
They also read 32 neighbours of `S_I`, one in each bank:
"""

# %%
one_request(ours, "S_I")

# %% [markdown]
"""
The next picture has bank conflicts. Each lane reads the first number of a row of its own, in an array with rows of 16
numbers. So neighbouring lanes read numbers that lie 16 apart, and 16 lanes share each of two banks. Move the slider,
which **pads** the rows: it makes each row longer than necessary, by numbers that nobody reads. (This padding of shared
memory has nothing to do with the zeros around an image.)
"""


# %%
def first_column(padding):
    @cuda.jit
    def read(out):
        tile = cuda.shared.array((32, 16 + padding), float32)
        t = cuda.threadIdx.x
        tile[t, 0] = 0
        out[t] = tile[t, 0]

    return one_request(trace(read, 1, 32, np.zeros(32, np.float32)).main, "tile")


slider(first_column, padding=(0, 1, 2, 4))

# %% [markdown]
"""
Here you can step through a block of m03, line by line, and see where each barrier stands:
"""

# %%
few = ConvProblem(batch=1, in_channels=2, height=4, width=8, out_channels=8, kernel_size=2)
step_through(trace_stage("m03", few))

# %% [markdown]
"""
## Find the bug

This kernel has no race, and its answers are right. But the line that computes needs several times as many
wavefronts as the same line of your kernel. Look at the request for `S_I` in this kernel: which lanes read from the same
bank?

`load_slices` and `add_up` do what you have written above, barriers included. But they expect the windows' slice
transposed: a row of `S_I` is a window here, and term `k` of window `tx` is `S_I[tx, k]`. So leave the order of the two
sizes as it is. One line of constants is the cause. Find the line and correct it. (If a check's table has *threads at barriers*, it adds up the threads that come to
each barrier.)
"""

# %% hunt="banks"
from numba import cuda, float32, uint32
from convlab.device import gpu_only
from convlab.lessons import make_add_up, make_load_slices, solved


def make_slow(problem, tile):
    M, N, K = problem.M, problem.N, problem.K
    M_B, N_B, K_B, THREADS = tile.M_B, tile.N_B, tile.K_B, tile.threads
    ### BEGIN SOLUTION
    F_SLICE, I_SLICE = (M_B, K_B), (N_B, K_B + 1)
    ### PLANTED
    #: F_SLICE, I_SLICE = (M_B, K_B), (N_B, K_B)
    ### END SOLUTION
    of_window = solved("m03", "of_window", problem, tile)
    load_slices, add_up = make_load_slices(problem, tile), make_add_up(tile)

    @cuda.jit(**gpu_only(launch_bounds=(THREADS, 1)))
    def shared_memory(input, weight, bias, output):
        S_F = cuda.shared.array(F_SLICE, float32)
        S_I = cuda.shared.array(I_SLICE, float32)
        t = uint32(cuda.threadIdx.x)
        ty, tx = t // N_B, t % N_B
        m0 = uint32(cuda.blockIdx.y) * M_B
        m, n = m0 + ty, uint32(cuda.blockIdx.x) * N_B + tx
        i_n, o_h, o_w = of_window(min(n, N - 1))

        total = float32(0)
        for k0 in range(0, K, K_B):
            load_slices(input, weight, i_n, o_h, o_w, m0, k0, t, S_F, S_I)
            total = add_up(S_F, S_I, ty, tx, total)

        if m < M and n < N:
            output[i_n, m, o_h, o_w] = total + bias[m]

    return shared_memory


# %%
one_request(traced(make_slow, "m03", problem, tile), "S_I")

# %% [markdown]
"""
<details><summary>Tip: why do lanes meet in one bank?</summary>

`S_I` is now `N_B` rows of `K_B` numbers. Neighbouring lanes have neighbouring `tx`, and so read numbers
that lie `K_B = 8` apart: the numbers of lanes 0, 4, 8, ... are in the same bank.
</details>
<details><summary>Tip: the plan</summary>

Lanes in neighbouring rows should read from different banks. So pad each row by one number. Then neighbouring lanes read
numbers that lie 9 apart, and 32 lanes use 32 different banks.
</details>
"""

# %% check="banks"
check(make_slow, "m03")

# %% [markdown]
"""
## On a real GPU
"""

# %%
measured("m01", "m02", "m03", "m04")

# %%
time_mine(make_kernel, "m03")  # with a GPU, beside the stage's and a library's

# %% [markdown]
"""
m03 is far faster than m02, but not faster than the simple m01. There are three reasons:

- m02 loses its time to index arithmetic, not to memory: every thread computes for every term which
  pixel it needs. In m03 the block does this arithmetic only once for each number *fetched*, and all
  its threads use the result.
- m01 does not need this arithmetic, and most of its numbers come from the caches. Caches keep numbers by
  chance; the kernel decides which numbers shared memory keeps.
- m03 waits at two barriers for each slice, and it reads shared memory twice for each
  multiplication, which is too often.

All the next stages use the two arrays that you have just filled. In m04 each thread computes several
outputs. One read of a number then serves several sums, which makes the kernel faster.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why are there two barriers and not one?</summary>

The first keeps threads from computing with a slice that is not complete. The second keeps fast
threads from writing the next slice while slow ones still read this one. Without either, a GPU would
sometimes give wrong answers.
</details>

<details><summary>Threads past the edge of the output do not return early here. Why not?</summary>

They fetch numbers for the others, and a barrier waits for every thread of the block. A thread that has
returned never reaches the barrier. So only the last line checks whether the output exists.
</details>

<details><summary>How often does a block with the tile above fetch a number of the input, compared with m02?</summary>

In m02 each of the `M` rows of threads fetches it. In m03 one fetch serves the `M_B = 8` rows of the
tile, so there are an eighth of the fetches. For the filter one fetch serves `N_B = 32` columns.
A later stage, m08, has tiles of 64 x 128: there one fetch of the input serves 64 rows, and one of the filter 128
columns.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The whole file: [m03_shared_memory.py](../src/convlab/ladder/main/m03_shared_memory.py), and what was
  measured: [ladder](../docs/ladder.md#m03_shared_memory).
- The im2win paper, section 3.3, "Shared memory and register", and lines 3 to 7 of its
  Algorithm 3: [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- All kinds of mistakes that the simulator finds, such as races and wrong barriers:
  [findings](../docs/findings.md).
- Step through every request: `convlab trace m03 --html m03.html` writes a [page](../docs/trace.md).
- Next on the ladder: [m04, block tiling](06_block_tiling.ipynb).
"""
