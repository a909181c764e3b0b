# %% [markdown]
"""
# t01 to t05: tensor cores, to float32 accuracy

**You will be able to** multiply matrices with a warp's tensor core, and get float32 accuracy from it.

On the main route every thread multiplies for itself. A GPU also has **tensor cores**: with them a whole warp
multiplies two small matrices with one instruction, which is many times faster but much less exact. The route
`t` makes the result exact again, beyond the paper. t01 replaces the micro-kernel of m05 (lesson 07), t02 adds the window
copies and the pipeline of m13 (lesson 12), and t03, the stage of this lesson, splits each number only once. You
should have done [07](07_microkernel.ipynb) and [12](12_fused_im2win.ipynb).
"""

# %% setup=true
import numpy as np
from numba import cuda, float32, uint64

from convlab import ConvProblem, Tile, trace_stage
from convlab.device import mma_tf32
from convlab.device.shared_barriers import arrive_barrier, init_barrier, wait_barrier
from convlab.lessons import bits_of_split, check_accuracy, check_one_warp, errors_by_terms
from convlab.lessons import measured, measured_parts, numbers_of_a, numbers_of_b, part_of
from convlab.lessons import side_by_side, store_sums, tile_of_threads, what_is_wrong
from convlab.lessons import who_holds_what

# %% [markdown]
"""
## The idea: 32 lanes hold a matrix together

`d = mma_tf32(a, b, c)` computes `D = A @ B + C` ("matrix multiply-add"). `A` is 16 x 8, `B` is 8 x 8, `C` and
`D` are 16 x 8. That is 1,024 multiply-adds, where a warp without tensor cores does 32 at a time.

No thread needs the whole matrices: they are spread over the registers of the warp. Each lane holds
four numbers of `A`, two of `B`, and four each of `C` and `D`. Each lane passes *its* numbers to the
call and gets *its* four numbers of `D` back. The hardware fixes which lane holds which numbers:
"""

# %%
who_holds_what(lane=5)

# %% [markdown]
"""
Two numbers describe a lane: `group_id = lane // 4`, from 0 to 7, and `thread_in_group = lane % 4`, from
0 to 3. (PTX, the GPU's assembly language, calls them groupID and threadID_in_group.) Find lane 5, which has
`group_id = 1` and `thread_in_group = 1`, in all three matrices, then lane 6 and lane 9. Which rows and
columns follow from `group_id`, and which from `thread_in_group`?

In a kernel a lane's numbers are tuples, in this order:

| tuple | has | in the order |
| --- | --- | --- |
| `a` | 4 of `A` | upper left, lower left, upper right, lower right |
| `b` | 2 of `B` | upper, lower |
| `c`, `d` | 4 of `C` or `D` | the upper two from left to right, then the lower two |

All 32 lanes must reach the call, because the whole warp multiplies. If a lane does not reach the
call, its numbers are missing.
"""

# %% [markdown]
"""
## Your turn: a product by one warp

Write `C = A @ B`. `A` is 16 x 8, `B` 8 x 8, `C` 16 x 8, all stored row by row, as in NumPy. The
kernel is launched with one block of 32 threads; `lane`, `group_id`, `thread_in_group` and `zero` are
given. (`c = (zero, zero, zero, zero)`, because there is nothing to add yet.)
"""

# %% [markdown]
"""
<details><summary>Tip: which rows and columns of <code>A</code> follow from <code>group_id</code>, and which from <code>thread_in_group</code>?</summary>

Look at lanes 5 and 6 in the picture: they differ only in `thread_in_group`, and their numbers are in one row. In which
direction does the next lane lie in `B`?
</details>
<details><summary>Tip: the plan</summary>

Make the tuples `a`, of four numbers, and `b`, of two; compute `d`; store its four numbers. In `A` the group gives the row;
the lower numbers are 8 rows below, the right ones 4 columns further right. In `B` the group gives the *column*, and the
second number is four rows below the first. In `C` a lane has two neighbours of row `group_id`, and two 8 rows below.
</details>
<details><summary>Tip: the code</summary>

The first number of `a` is `A[group_id, thread_in_group]`, and the second of `b` is `B[thread_in_group + 4, group_id]`.
`d[0]` belongs to `C[group_id, 2 * thread_in_group]`.
</details>
"""


# %% exercise="product"
@cuda.jit
def product(A, B, C):
    lane = cuda.threadIdx.x
    group_id, thread_in_group = lane // 4, lane % 4
    zero = float32(0)
    ### BEGIN SOLUTION: load this lane's numbers of A and B, multiply, store four sums to C
    a = (
        A[group_id, thread_in_group], A[group_id + 8, thread_in_group],
        A[group_id, thread_in_group + 4], A[group_id + 8, thread_in_group + 4],
    )
    b = (B[thread_in_group, group_id], B[thread_in_group + 4, group_id])
    d = mma_tf32(a, b, (zero, zero, zero, zero))
    C[group_id, 2 * thread_in_group] = d[0]
    C[group_id, 2 * thread_in_group + 1] = d[1]
    C[group_id + 8, 2 * thread_in_group] = d[2]
    C[group_id + 8, 2 * thread_in_group + 1] = d[3]
    ### END SOLUTION


# %% check="product"
check_one_warp(product)

# %% [markdown]
"""
The check gives your kernel matrices whose elements are numbered, and records the numbers that the
lanes pass.

## Less exact: what TF32 leaves of a number

A float32 is a number with some digits, its mantissa, times a power of two, whose exponent is stored beside it. A tensor
core does not use all bits of a float32. **TF32** has the same 8 bits of exponent, but only
the first 10 of the 23 bits of mantissa. Rounding to TF32 changes a number by up to 1 part in 2,000;
rounding to float32 changes it by up to 1 part in 16 million.

But the kernel can keep the lost part. `large, small = split_tf32(x)` splits one number into two:
`large` is `x` rounded to TF32, and `small` is the rest, `x - large`, a small number with an
exponent and 10 bits of its own:
"""

# %%
bits_of_split(3.14159265)

# %% [markdown]
"""
Multiply two split numbers as you learned at school:

    x * w  =  large_x * large_w  +  large_x * small_w
            + small_x * large_w  +  small_x * small_w

The last of these products is so small that a float32 sum has no room for it. So three products are
left, and a tensor core can compute each of them.

There is a second problem. When a thread adds, it *rounds*, sometimes up and sometimes down, and in
a long sum most of these errors cancel out. A tensor core *truncates*: it drops all bits below the
last place of the largest number that it adds. Truncation always goes towards zero, so the errors of
a long sum add up. The chart shows the errors of sums computed in four ways, the first three by
tensor cores:
"""

# %%
errors_by_terms()

# %% [markdown]
"""
Three products alone do not help in long sums: in one long chain of additions the truncation errors
cancel the gain. The remedy is to let the tensor core add only **few terms**, at most 16, and then
begin again from zero. An ordinary addition, which rounds, adds each such part to the sum. Within a
part the small products come first, while the sum is still small, so that truncation drops little.

With both measures, three products are as exact as float32 in a thread, or better. This is Ootomo
and Yokota's method. (The exponents of TF32 set a limit: for a number below `2**-113` TF32 cannot
hold the whole small part, so t03 is less exact than float32.)

## Your turn: make it accurate

This is the inner loop of t03. The slices `S_F` (filter) and `S_I` (windows) are in shared memory as
in m15, the last stage of lesson 12. A lane's sums are in `R_O`, which has `M_T` rows and `N_T` columns. The picture shows which
outputs of a small tile the lanes have:
"""

# %%
small = ConvProblem(
    batch=1, in_channels=8, height=5, width=9, out_channels=16, kernel_size=2
)
tile = Tile(M_B=16, N_B=32, K_B=8, M_T=2, N_T=8)
tile_of_threads(trace_stage("t03", small, tile).main, small, thread=5)

# %% [markdown]
"""
Each thread is a lane here, because the block is one warp. The rows are those of the first picture:
lane 5 has row 1 and, 8 below, row 9 (in `R_O` these are rows 0 and 1). The columns are in another
order. The kernel may choose which window is which column of a matrix, and t03 chooses an order in
which a lane's columns are float4s, so that one load or store moves four numbers. Each product gives
two columns of `d`: the left columns of four products are one float4 (`left`), and the right columns
are the next float4 (`left + FLOAT4`).
"""

# %% [markdown]
"""
For every pair of rows `i`, `i + 1` and every `j`, the kernel adds up `CHAIN` steps of 8 terms;
`CHAIN` is 1 or 2. Four places are left for you:

- **Split.** `x, y, z, w` are the numbers of four neighbouring windows. Store their large parts in
  `L_I[half, j]` to `L_I[half, j + 3]`, and their small parts in the same way in `T_I` ("tiny").
  (The filter is the same for all windows, so another kernel has already split it into `L_F` and
  `T_F`.)
- **Begin again.** `part` is the `c` that the first product of these steps adds to.
- **Three products**, of the tuples `small_f`, `large_f` of the filter and `small_i`, `large_i` of
  the windows. Each adds to `part`. Mind the order.
- **Add the part** to the lane's sums: rows `i` and `i + 1` (which is 8 below) of `R_O`, columns
  `left` and `left + FLOAT4`.
"""

# %% [markdown]
"""
<details><summary>Tip: with what should <code>part</code> begin, so that the tensor core adds only few terms?</summary>

With zeros. If `part` began with the sums in `R_O`, the tensor core would add all terms in one chain.
</details>
<details><summary>Tip: the plan</summary>

Split each of the four numbers: `split_tf32` returns the large part and the small part. Begin `part` with four zeros. Add
the two products with a small factor to it, and the product of the large parts last. Then add its four numbers to `R_O`. As
with `d` in the first exercise, `part[0]` and `part[1]` are of the upper row, left and right; `part[2]` and `part[3]` of
the lower one.
</details>
<details><summary>Tip: the code</summary>

`L_I[half, j], T_I[half, j] = split_tf32(x)`, and `part = mma_tf32(small_f, large_i, part)` is the first product.
</details>
"""

# %% exercise="accurate"
stage_kernel(
    "t03",
    blank(
        "split x, y, z and w",
        first="L_I[half, j], T_I[half, j] = split_tf32(x)",
        last="L_I[half, j + 3], T_I[half, j + 3] = split_tf32(w)",
    ),
    blank(
        "begin again",
        first="part = (zero, zero, zero, zero)",
        last="part = (zero, zero, zero, zero)",
    ),
    blank(
        "three products, in the right order",
        first="part = mma_tf32(small_f, large_i, part)",
        last="part = mma_tf32(large_f, large_i, part)",
    ),
    blank(
        "add the part to this lane's sums",
        first="R_O[i, left] += part[0]",
        last="R_O[i + 1, left + FLOAT4] += part[3]",
    ),
    called="make_kernel",
    hidden=("read_filter", "find_lane", "clear", "wait"),
)

# %% check="accurate"
check_accuracy(part_of("t03", make_kernel=make_kernel), "t03")

# %% [markdown]
"""
In addition to the usual checks, this check takes a layer with many terms, all positive, and
compares your error with the stage's. It also counts the products by tensor cores.

## What the memory sees

t03 does more arithmetic and makes fewer requests than m15. The chart has the same tile for both:
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=16, height=8, width=16, out_channels=32, kernel_size=3, padding=1
)
tile = Tile(M_B=32, N_B=64, K_B=16, M_T=4, N_T=8)
launches = {stage: trace_stage(stage, problem, tile).main for stage in ("m15", "t03")}
counts = "floating-point operations", "requests to shared memory", "wavefronts of shared memory"
side_by_side(launches, *counts)

# %% [markdown]
"""
t03 computes three products for one, which takes three times the operations. But in m15 every thread
reads the numbers that *it* multiplies, and many threads of a warp read the same numbers. In t03 the
lanes share: each number of a matrix is in one lane's registers, and the tensor core brings it to
all lanes that need it. So the kernel makes fewer requests to shared memory than m15, although each number of
the filter is now two numbers.

## Find the bug

This kernel multiplies as yours did, for an `A` of 1 to 16 rows. Three functions are given: `numbers_of_a` and
`numbers_of_b` load a lane's numbers, with zeros for rows that `A` does not have, and `store_sums` stores its four sums to
the rows that `C` has. The kernel's author has learned that a thread with nothing to do returns immediately. The picture below shows the effect if `A` has 5 rows:
lanes 0 to 19 have a row of `A`, lanes 20 to 31 have none. Fix the kernel.
"""


# %% hunt="rows"
@cuda.jit
def few_rows(A, B, C):
    lane = cuda.threadIdx.x
    zeros = float32(0), float32(0), float32(0), float32(0)
    ### BEGIN SOLUTION
    ### PLANTED
    #: if lane // 4 >= A.shape[0]:
    #:     return
    ### END SOLUTION
    a = numbers_of_a(A, lane)
    b = numbers_of_b(B, lane)
    d = mma_tf32(a, b, zeros)
    store_sums(C, lane, d)


# %%
who_holds_what(few_rows, rows=5, lane=5)

# %% [markdown]
"""
<details><summary>Tip: which numbers of <code>B</code> are grey, and which lanes hold them?</summary>

The lanes without a row of `A` hold numbers of `B` all the same, which other lanes' sums need.
</details>
<details><summary>Tip: the plan</summary>

Every lane must reach the product. A lane without a row passes zeros for this row, and does not
write it; the given functions see to both.
</details>
"""

# %% check="rows"
check_one_warp(few_rows, rows=(16, 11, 5))

# %% [markdown]
"""
A GPU shows no message: the result is undefined. In t03 the last tiles also reach past `M` and `N`.
There t03 multiplies zeros and unneeded windows, and checks bounds only when it writes.

## On a real GPU
"""

# %%
measured_parts("m15", "t03")

# %%
measured("m01", "m08", "m11", "m15", "t03")

# %% [markdown]
"""
t03 computes three products for one, but it still takes about a quarter less time than m15 on this
layer. An H200's tensor cores can do several times the arithmetic of its ordinary units; both roofs
are in the [results](../docs/results.md). t03 is still far from its own roof, because ordinary
instructions do all the rest of a warp's work: they fetch, split and add parts. Most of
[what was tried](../docs/notes/fast.md) reduces the number of these instructions. On Conv7, where an
output is a sum of only 27 terms, there is so little to multiply that m15 stays ahead.

The layout transform splits the filter and writes it in the order in which lanes hold it, so that a
lane gets its `a` with one float4 load. A network that is no longer trained needs this transform
only once.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>All numbers of a layer are whole numbers from -1000 to 1000. How exact would TF32 alone be?</summary>

Products would be exact. TF32 has 11 significant bits, one of them implied, so that it holds all whole numbers up to
2,048: <code>large</code> is the whole number and <code>small</code> is zero. This is why the first check could ask
for exact results.
</details>

<details><summary>Why is <code>small_x * small_w</code> left out, and what would it cost?</summary>

Each small part is at most 1 part in 2,048 of its number, so that product is at most 1 in 4 million of the
whole product, and on average far less, with either sign. A float32 sum of many terms is off by more. A fourth product
would be a third more work for the tensor cores.
</details>
"""

# %% [markdown]
"""
<details><summary>A pixel is infinite. What are its two parts, and what becomes of the sums?</summary>

<code>large</code> is infinite, and <code>small</code> is infinity minus infinity, which is NaN. So
all sums with this pixel would be NaN, where float32 may give infinity. t03 checks its sums before
it writes them. It computes the sums that are not finite again, in the slow way of m01. (The
transform packs an infinite weight as infinity in both parts, so that the kernel can read it back.)
</details>

<details><summary>Why does the tensor core begin again after 16 terms, and not after each step of 8?</summary>

Four ordinary additions per part and lane are instructions that tensor cores wait for. With parts of 16 terms there are
half as many of them, and the error is still below that of float32. (Where <code>K_B</code> is 8, t03 does begin
again after 8.)
</details>
"""

# %% [markdown]
"""
## Beyond this lesson: one product

After this section you can say what each later stage changes, and who waits for whom in it.

Networks mostly run in TF32 or in 16 bits. Then nothing is split, and one product is enough:

| numbers | stages | significant bits | largest rounding | products |
| --- | --- | ---: | ---: | ---: |
| float32 | t01 to t06 | 24 | 1 part in 16 million | 3 |
| TF32 | t07 | 11 | 1 part in 2,048 | 1 |
| float16 | h01 to h04 | 11 | 1 part in 2,048 | 1 |
| bfloat16 | h01 to h04 | 8 | 1 part in 256 | 1 |

t07 rounds both factors of each product. Tensors of 16 bits are rounded before the kernel begins, so
their products are exact; each output is rounded once. Each type has
[a bound of its own](../docs/checking.md).

With one product instead of three, tensor cores finish a slice in a third of the time. So the later stages
remove the other instructions and the waiting.
"""

# %% [markdown]
"""
## Who waits for whom

Each stage is a file of [the ladder](../docs/ladder.md#tensor-cores). After t04:

| stage | what is new | who waits for whom |
| --- | --- | --- |
| t05 | Four warps, a **warpgroup**, start a product together. The tensor cores read the filter from shared memory. | The warpgroup waits for its product, and all threads meet at a barrier for each slice. |
| t06 | Several blocks share the slices of a tile (split-K). | No block waits. Each stores its part of the sums and counts itself; the block that arrives last adds all parts. |
| t07 | One product in TF32. | The threads start two products and wait once. |
"""

# %% [markdown]
"""
The stages of 16 bits need a Hopper GPU:

| stage | what is new | who waits for whom |
| --- | --- | --- |
| h01 | Windows and filter lie in shared memory as **panels**: rows of 128 bytes, swizzled against bank conflicts. | Each thread waits for its own copies, then all meet at a barrier. |
| h02 | One thread asks the **copy engine**, which walks the windows itself. | All threads wait for the barrier `full` of a slice, which counts the bytes that land. |
| h03 | Warps have roles: a **producer** asks for copies, and two **consumers**, warpgroups, multiply. | The producer waits for `empty`, a consumer for `full`, and the consumers for their `turn`. |
| h04 | Rows of the input are the windows of a stem with few channels. | The warps of a warpgroup wait for their copies and meet; other warpgroups do not wait. |
"""

# %% [markdown]
"""
## Which phase?

`full` and `empty` are barriers in shared memory (`mbarrier`). Such a barrier has **phases**: a phase ends
when all arrivals that it expects have come, and then the next phase begins. A wait names the *parity* of
its phase: 0 for the first phase, 1 for the second, 0 for the third.

The kernel below has h03's roles, but threads copy. Warp 0 fills the two stages of a pipeline in turn, and
warp 1 reads them. A *round* fills both stages once:

| round | warp 0, the producer | warp 1, the consumer |
| --- | --- | --- |
| 0 | waits for `empty`, parity 1: returns at once, because nothing has to be read yet. It stores, and arrives at `full`. | waits for `full`, parity 0. It reads, and arrives at `empty`. |
| 1 | waits for `empty`, parity 0: warp 1 has read round 0 | waits for `full`, parity 1 |
| 2 | waits for `empty`, parity 1: warp 1 has read round 1 | waits for `full`, parity 0 |
"""


# %%
def make_two_roles(flips):
    @cuda.jit
    def two_roles(slices, doubled):
        S = cuda.shared.array((2, 32), float32)  # a pipeline of two stages
        full, empty = cuda.shared.array(2, uint64), cuda.shared.array(2, uint64)
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        if cuda.threadIdx.x == 0:
            for pipe in range(2):
                init_barrier(full, pipe, 32)  # a phase ends when 32 threads have arrived
                init_barrier(empty, pipe, 32)
        cuda.syncthreads()

        pipe, parity = 0, 0
        for number in range(slices.shape[0]):
            if warp == 0:
                wait_barrier(empty, pipe, 1 - parity)
                S[pipe, lane] = slices[number, lane]
                arrive_barrier(full, pipe)
            else:
                wait_barrier(full, pipe, parity if flips else 0)
                doubled[number, lane] = 2 * S[pipe, 31 - lane]
                arrive_barrier(empty, pipe)
            pipe += 1
            if pipe == 2:  # the next round
                pipe, parity = 0, 1 - parity

    return two_roles


slices = np.arange(6 * 32, dtype=np.float32).reshape(6, 32)
what_is_wrong(make_two_roles(flips=True), 1, 64, slices, np.zeros_like(slices))

# %% [markdown]
"""
Now the consumer always waits for parity 0. In round 1 that is the parity of the phase that ended in round 0,
so the wait returns at once. The consumer reads a stage that the producer may not have filled again:
"""

# %%
what_is_wrong(make_two_roles(flips=False), 1, 64, slices, np.zeros_like(slices))

# %% [markdown]
"""
Read the finding of `full[0]` first: the others follow from it. Nothing makes the producer of round 1 wait until
the consumer has noticed the end of round 0. On a GPU the result may be right all the same, if the producer
happens to be early. In h03 the copies of a
slice arrive at `full` as bytes, and its file has this table with the turns of the consumers:
[h03_warp_specialization.py](../src/convlab/ladder/half_precision/h03_warp_specialization.py).

## Where to read on

- The whole file: [t03_split_once.py](../src/convlab/ladder/tensor_cores/t03_split_once.py). What the simulator's tensor
  cores do, and how that was found out: [engines](../docs/engines.md#tensor-cores).
- Next on this route: [t04](../docs/ladder.md#t04_swapped_operands) swaps the two matrices for
  [t05](../docs/ladder.md#t05_warpgroups), then [t06](../docs/ladder.md#t06_split_k) and
  [t07](../docs/ladder.md#t07_tf32). 16 bits begin at [h01](../docs/ladder.md#h01_panels).
  [What was tried](../docs/notes/fast.md).
- H. Ootomo, R. Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
  theoretical peak performance", 2022: [arXiv 2203.03341](https://arxiv.org/abs/2203.03341).
- M. Fasi, N. J. Higham, M. Mikaitis, S. Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer
  Science 7, e330, 2021: [doi 10.7717/peerj-cs.330](https://doi.org/10.7717/peerj-cs.330).
- Which lane holds what: [PTX ISA](https://docs.nvidia.com/cuda/parallel-thread-execution/), "Matrix Fragments for
  mma.m16n8k8".
- The loop around this is still Algorithm 3 of the im2win paper:
  [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Next: [measure it](14_measure_it.ipynb).
"""
