# %% [markdown]
"""
# Start here: how a GPU runs threads

**You will be able to** write a kernel (a function that each thread of a GPU runs) for any number of elements, find a
race (a result that depends on which thread is faster) and a read outside of an array, and see whether neighbouring
threads read neighbouring numbers.

You know NumPy. This notebook shows what a GPU does differently, with kernels of three lines. No GPU
is needed: a simulator, a program on the CPU, runs them and shows what happens.

**How these notebooks work.** Read from top to bottom and run each cell with **Shift+Enter**. The
output below each cell is stored from an earlier run. Run every cell anyway, because later cells
need what earlier cells define. Where a cell says `FILL ME IN`, write your lines in its place, run
the cell, then run the check below it. A check never breaks anything: it says what is wrong, and you
try again. If a cell does not end, press the button with the square (■). The worked answers are in
the folder [solutions](solutions/00_start_here.ipynb).
"""

# %% setup=true
import numpy as np
from numba import cuda

from convlab import trace
from convlab.lessons import On, check_kernel, one_request, run, slider
from convlab.lessons import warps_of_blocks, what_is_wrong, where, who_does_what


def launch(size, block=32):  # for the checks, which try a kernel in several launches
    numbers = np.arange(1, size + 1, dtype=np.float32)
    # On describes a launch (a start of the kernel): how many blocks, threads in each, input arrays.
    return On(grid=(size + block - 1) // block, block=block, inputs=(numbers,))


print(where())

# %% [markdown]
"""
## 1. A kernel is what one thread does

In NumPy you say what happens to a whole array: `out = a + 10`. On a GPU you write a **kernel**:
what *one thread* does. The GPU then runs it in thousands of threads at the same time. Each thread
knows its own number, so it finds its own element.
"""


# %%
@cuda.jit  # turns the function into a kernel
def add_ten(a, out):
    i = cuda.threadIdx.x  # my number: 0, 1, 2, ...
    out[i] = a[i] + 10


a = np.arange(8, dtype=np.float32)
out = np.zeros(8, np.float32)
run(add_ten, 1, 8, a, out)  # on a GPU: add_ten[1, 8](a, out), 1 block of 8 threads
print(out)

# %% [markdown]
"""
Eight threads ran, one for each element, and the kernel has no loop. Starting a kernel is called a **launch**; this
launch had one block of 8 threads. The next picture shows what the threads really did. `trace(add_ten, 1, 8, a, out)`
makes the same launch on the simulator and notes every access to memory: that is a **trace**. (Some convolutions of
later lessons launch several kernels; `.main` is the last launch.)
"""

# %%
who_does_what(trace(add_ten, 1, 8, a, out).main, "out")

# %% [markdown]
"""
## 2. Blocks: when one group of threads is not enough

Threads come in **blocks**. A block has at most 1,024 threads, so a large array needs many blocks;
all blocks together are the **grid**. Three numbers tell a thread its place:

| name | is |
| --- | --- |
| `cuda.threadIdx.x` | my number in my block |
| `cuda.blockIdx.x` | my block's number |
| `cuda.blockDim.x` | how many threads a block has |

With blocks of 4 threads, block 0 has elements 0 to 3, block 1 has elements 4 to 7, and so on.
"""

# %% [markdown]
"""
### Your turn: any number of elements

Write a kernel that adds ten to *every* element, however many there are. Blocks have 32 threads in
some launches and 80 in others, and there are enough blocks for all elements. The last block often
has more threads than there are elements left. The extra threads must do nothing. A GPU does not
report an error for `a[i]` past the end of the array: the thread then touches the memory of another
array.

If your kernel is right, the check also counts its accesses to memory. In its table a *request* is one access that up to
32 threads make together; section 5 shows requests.

<details><summary>Tip: how many threads do the blocks before mine have together?</summary>

There are `cuda.blockIdx.x` blocks before mine, and each has `cuda.blockDim.x` threads. Which of the three names says
where I am in my own block?
</details>
<details><summary>Tip: the plan</summary>

Compute my number among all threads: those before my block, plus my number in it. If it is the number of an element, do
the work; otherwise do nothing.
</details>
<details><summary>Tip: the code</summary>

`i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x`, and the array has `a.size` elements.
</details>
"""


# %% exercise="any_number"
@cuda.jit
def add_ten_to_all(a, out):
    ### BEGIN SOLUTION: compute my number among all threads; do the work if it is inside the array
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < a.size:
        out[i] = a[i] + 10
    ### END SOLUTION


# %% check="any_number"
def wanted(a):  # what NumPy does
    return a + 10


launches = [*map(launch, (1, 31, 32, 100)), launch(250, 80)]
# each_once: each element is read and written once, not several times.
check_kernel(add_ten_to_all, wanted, launches, each_once=True)

# %% [markdown]
"""
## 3. What the simulator sees: find the bug

A GPU does not report when a kernel reads outside of an array: it returns some number, and the
result is sometimes wrong. The simulator looks at every single access and reports each one outside of its array.
A trace holds these reports, too.

This kernel adds to each element of `a` its right neighbour. The last element has no right neighbour,
so the last element of `out` is a copy of the last element of `a`. The kernel has one bug. Run the check, read what it
found, and fix the kernel.

<details><summary>Tip: which element does the thread with the last element read?</summary>

For the last element `i + 1` is `a.size`, and the last number of `a` is `a[a.size - 1]`.
</details>
<details><summary>Tip: the plan</summary>

Two cases: where `a` has a right neighbour, `out` gets the sum; for the last element it gets a copy. The guard that is
there belongs to both cases.
</details>
"""


# %% hunt="neighbours"
@cuda.jit
def add_neighbour(a, out):
    i = cuda.grid(1)  # short for blockIdx.x * blockDim.x + threadIdx.x
    ### BEGIN SOLUTION
    if i < a.size:
        total = a[i]
        if i + 1 < a.size:
            total += a[i + 1]
        out[i] = total
    ### PLANTED
    #: if i < a.size:
    #:     out[i] = a[i] + a[i + 1]
    ### END SOLUTION


# %% check="neighbours"
def wanted_sums(a):
    sums = a.copy()
    sums[:-1] += a[1:]
    return sums


check_kernel(add_neighbour, wanted_sums, [*map(launch, (5, 32, 70)), launch(250, 80)])

# %% [markdown]
"""
## 4. Threads have no order

No rule says which thread runs first. So a thread must not write an element that another thread
reads, unless the two threads wait for each other. This kernel adds the left neighbour *in place*.
Whether `a[i - 1]` holds the old or the new value depends on which thread is faster. This is a
**race**. The simulator finds the race even if the result happens to be right. It also says what usually helps. Two of
the words come in later lessons: at a *barrier* the threads of a block wait for each other
([00b](00b_small_kernels.ipynb)), and an *atomic* addition cannot be interrupted by another thread
([02](02_channel_parallel.ipynb)). A thread has three numbers, x, y and z; here only x counts, so thread `(1, 0, 0)` is
number 1.
"""


# %%
@cuda.jit
def add_left_in_place(a):
    i = cuda.grid(1)
    if 0 < i < a.size:
        a[i] = a[i] + a[i - 1]


what_is_wrong(add_left_in_place, 1, 8, np.ones(8, np.float32))

# %% [markdown]
"""
## 5. Thirty-two at a time: warps and sectors

The hardware runs threads in groups of 32, called **warps**. When a warp reads `a[i]`, it makes
*one* request to memory with 32 addresses, one for each **lane** (thread) of the warp. Memory does
not deliver single numbers: it moves **sectors** of 32 bytes, which are eight `float32` numbers.

Here is the first request of the kernel from section 2:
"""


# %%
@cuda.jit
def add_ten_here(a, out):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] + 10


a = np.arange(64, dtype=np.float32)
one_request(trace(add_ten_here, 2, 32, a, np.zeros_like(a)).main, "a")

# %% [markdown]
"""
The lanes read 32 neighbouring numbers, which lie in four sectors, and nothing is wasted. Such a
request is called **coalesced**. Arranging threads in this way is called **coalescing**. Such
pictures show most of the reasons why a kernel is fast or slow.

Now the lanes read numbers that lie `stride` apart. Move the slider: the further apart the numbers are, the
more sectors the request needs.
"""


# %%
def request_with(stride):
    @cuda.jit
    def take(a, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a[stride * i]

    out = np.zeros(32, np.float32)
    return one_request(trace(take, 1, 32, np.arange(256, dtype=np.float32), out).main, "a")


slider(request_with, stride=(1, 3, 4, 8))

# %% [markdown]
"""
A warp belongs to one block. The next picture shows all warps of a launch of 64 threads. Move the slider, which changes
the size of the blocks. A block of 8 threads fills only a quarter of a warp, so 24 of its lanes do nothing. A block of
64 threads has two warps.
"""

# %%
slider(
    lambda block: warps_of_blocks(trace(add_ten_here, 64 // block, block, a, np.zeros_like(a)).main),
    block=(8, 16, 32, 64),
)

# %% [markdown]
"""
### Find the bug, second part: right and slow

This kernel doubles a matrix. Its answer is right, but each request makes memory move eight times as many
bytes as it uses. Look at the picture below the cell, then fix the kernel so that neighbouring
threads touch neighbouring elements. (The check adds up three launches. Two of them have small matrices, for which the
factor is smaller, so the check says somewhat less than eight.)
"""


# %% hunt="double"
@cuda.jit
def double(a, out):
    rows, columns = a.shape
    i = cuda.grid(1)
    if i < a.size:
        ### BEGIN SOLUTION
        row, column = i // columns, i % columns
        ### PLANTED
        #: row, column = i % rows, i // rows
        ### END SOLUTION
        out[row, column] = 2 * a[row, column]


matrix = np.arange(32 * 64, dtype=np.float32).reshape(32, 64)
one_request(trace(double, 64, 32, matrix, np.zeros_like(matrix)).main, "a")

# %% [markdown]
"""
<details><summary>Tip: which elements of a matrix are neighbours in memory?</summary>

NumPy stores a matrix row after row. `a[0, 0]` and `a[0, 1]` are neighbours; `a[0, 0]` and `a[1, 0]`
are a whole row apart.
</details>
<details><summary>Tip: the plan</summary>

When `i` grows by one, the *column* should grow by one, and after the last column comes the next row. So the column is a
remainder and the row is a quotient. By how many elements must you divide?
</details>
<details><summary>Tip: the code</summary>

The column is `i % columns`.
</details>
"""

# %% check="double"
check_kernel(
    double,
    lambda a: 2 * a,
    [
        On(grid=64, block=32, inputs=(matrix,)),
        On(grid=17, block=32, inputs=(matrix[:, :16].copy(),)),
        On(grid=13, block=80, inputs=(matrix.reshape(64, 32)[:40, :24].copy(),)),
    ],
    fewest_sectors=True,  # as few sectors as the arrays have
)

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>A block has at most 1,024 threads. How many blocks of 256 threads does an array of 1,000 elements need, and how many threads do nothing?</summary>

Four blocks. Three blocks have only 3 x 256 = 768 threads; four have 1,024, so 24 threads do
nothing.
</details>

<details><summary>A warp reads <code>a[2 * i]</code>, every second number. How many sectors does it need?</summary>

Eight sectors, because the 32 numbers are spread over 64 places, which are 256 bytes. Half of these
bytes are moved for nothing.
</details>

<details><summary>All 32 lanes of a warp read the same number. How many sectors?</summary>

One. Memory delivers the number once, and all lanes get it. This is common in convolutions, because
many threads use the same filter.
</details>

## Where to read on

- [00b_small_kernels](00b_small_kernels.ipynb): rows and columns, shared memory, sums, a matrix product.
- [01_direct](01_direct.ipynb): the first convolution, one thread for each output.
- The words of GPUs, in one table: [documentation](../docs/glossary.md#the-words-of-gpus).
- All kinds of mistakes that the simulator finds: [findings](../docs/findings.md).
"""
