# %% [markdown]
"""
# m07 and m08: fetch the next slice while this one is multiplied

**You will be able to** fetch a slice while the one before is multiplied, and see on a timeline whether loads
and arithmetic overlap.

Since m03, in lessons 05 to 08, a block fetches a slice, waits, multiplies it, waits, and fetches the next. While it
fetches it does not multiply, and while it multiplies it does not fetch. Here it does both at the same time: m07
fetches the next slice into registers, and m08 gives shared memory two buffers. You should have done
[08_vectorized](08_vectorized.ipynb): both stages change its kernel, m06.
"""

# %% setup=true
from convlab import ConvProblem, Tile, trace_stage
from convlab.lessons import check_prefetch, event_log, measured
from convlab.lessons import side_by_side, slices_in_buffers, timeline

# %% [markdown]
"""
## The idea

A thread does not wait when it **requests** a number from global memory. It goes on, and waits only
at the first line that **needs** the number. The load has a latency of several hundred cycles; a
multiplication takes four. So the speed depends on what a thread can do between the request and the
use.

m06 does nothing in between. It requests a number, and its next instruction, which stores the number
to shared memory, already needs the number. The timeline shows thread 0 of m06 on a small problem of
four slices:
"""

# %%
timeline(m06=event_log("m06"))

# %% [markdown]
"""
A GPU hides latency by itself: while the warps of one block wait, it runs those of another. But each thread
holds 64 sums and their operands in registers, so few other warps fit on an SM.

The remedy is **two of everything**: while the threads multiply slice 1 from one half of shared
memory, slice 2 is **in flight** (requested, but not there yet), and goes into the other half. Then the halves change roles. The second
barrier of m06 is no longer necessary: no thread overwrites numbers that others still read, because
the next slice goes to the other half.
"""

# %%
timeline(m06=event_log("m06"), m08=event_log("m08"))

# %%
slices_in_buffers(m06=event_log("m06"), m08=event_log("m08"))

# %% [markdown]
"""
The kernel does the same with registers, because a load from shared memory to registers takes some
30 cycles. It has two sets of registers for the operands, `R_F0`, `R_I0` and `R_F1`, `R_I1`: it
reads the operands of term `k + 1` into one set while it multiplies those of term `k` from the other.
"""

# %% [markdown]
"""
## Your turn

The loop has one **round** more than there are slices, so that all rounds have the same code:

| round | loads into registers | multiplies | at its end |
| --- | --- | --- | --- |
| 0 | slice 0 | nothing yet | stores slice 0 to shared memory |
| 1 | slice 1 | slice 0 | stores slice 1 beside it |
| 2 | slice 2 | slice 1 | stores slice 2 over slice 0 |
| last | nothing more | the last slice | |

The registers `fetched_F` and `fetched_I` hold what a thread has loaded from global memory. The functions that load
and store are given, and so are these:

| call | does |
| --- | --- |
| `read(S_F, S_I, row, ty, tx, R_F, R_I)` | loads the operands in row `row` of shared memory into registers |
| `multiply(R_F, R_I, R_O)` | adds their products to the thread's sums |

(Comments name lines of the im2win paper's Algorithm 3, which lesson [11](11_im2win_full.ipynb) prints.)
"""

# %% [markdown]
"""
`S_F` and `S_I` have `2 * K_B` rows: one buffer begins at row 0, the other at row `K_B`. The buffer of the slice
that the block multiplies begins at row `row0`, so term `k` of the slice is in row `row0 + k`. To multiply one term is a
**step**. Three places are left for you:

- **The steps of a slice, one ahead.** The operands of step 0 are in `R_F0`, `R_I0` already (a line in your third
  place loads them). Read those of step `k + 1` into the other registers *before* you multiply step `k`. A
  kernel cannot compute the name of a register, so each turn of your loop does two steps. The lines
  after the loop are given: they read step `K_B - 1` and multiply step `K_B - 2`. (The last product
  comes at the end of the round.)
- **The other buffer.** Set `row0` to the first row of the buffer that the block does not multiply
  from. The given lines store the loaded slice in that buffer.
- **The change of roles.** Wait until all threads have stored, and read step 0 of the new slice into
  `R_F0`, `R_I0`.
"""

# %% [markdown]
"""
<details><summary>Tip: which steps are left for the loop, and which registers are free at the beginning of a turn?</summary>

With eight terms in a slice the steps are 0 to 7. The given lines after the loop read step 7 and multiply step 6. So the loop multiplies
steps 0 to 5, two in a turn. Step 0 is in `R_F0`, `R_I0`; the other two arrays are free.
</details>
<details><summary>Tip: the plan</summary>

One turn: read step `k + 1` into the free registers, multiply step `k`, read step `k + 2` into the registers that are free
now, multiply step `k + 1`. At the round's end `row0` becomes the other of its two values; after the store comes a barrier,
and then the read of step 0.
</details>
<details><summary>Tip: the code</summary>

The loop is `for k in range(0, K_B - 2, 2)`, and its first line `read(S_F, S_I, row0 + k + 1, ty, tx, R_F1, R_I1)`. `row0`
is 0 or `K_B`, so `K_B - row0` is the other of the two; `uint32(K_B - row0)` tells the compiler that it is never negative.
</details>
"""

# %% exercise="rounds"
stage_kernel(
    "m08",
    blank(
        "all steps but the last two: read a step ahead, multiply",
        first="for k in range(0, K_B - 2, 2):",
        last="multiply(R_F1, R_I1, R_O)",
    ),
    blank(
        "the other buffer",
        first="row0 = uint32(K_B - row0)",
        last="row0 = uint32(K_B - row0)",
    ),
    blank(
        "wait for all threads, read step 0 of the new slice",
        first="cuda.syncthreads()  # lines 5 and 16",
        last="read(S_F, S_I, row0, ty, tx, R_F0, R_I0)",
    ),
    hidden=("of_window", "clear", "load", "read", "multiply", "store", "write"),
)

# %% check="rounds"
check_prefetch(make_kernel, "m08")

# %% [markdown]
"""
This check also looks at the order: it counts the multiplications between the request for a number
and the use of this number. A kernel that reads each step only when it needs the operands has the
right answer and the right counts, but it still waits.

## What the memory sees

m08 makes exactly the same requests as m06. Only their order has changed, and each slice needs one barrier
fewer. Counts cannot show the gain of this stage; the timeline can.
"""

# %%
problem = ConvProblem(
    batch=1, in_channels=4, height=8, width=16, out_channels=16, kernel_size=3, padding=1
)
tile = Tile(M_B=16, N_B=32, K_B=8, M_T=4, N_T=4)
launches = {stage: trace_stage(stage, problem, tile).main for stage in ("m06", "m08")}
side_by_side(launches, "requests to global memory", "requests to shared memory")

# %% [markdown]
"""
Double buffering costs memory: shared memory holds two slices instead of one, and each thread holds the numbers
in flight in registers.

## Find the bug

(What you have written is in the functions `all_but_two_steps`, `other_buffer` and `wait_and_read`.)

This kernel is right, has all the buffers and takes as much memory as yours, but gains nothing.
Compare its timeline with the one of m08 above. What is in flight while the thread multiplies? Then
fix the kernel.
"""

# %% hunt="late"
stage_kernel(
    "m08",
    planted=(
        (
            "            if slice_ < SLICES:  # lines 3-4 and 14-15, first half: global memory to registers\n"
            "                load(input, packed, i_n, o_h, o_w, m0, slice_, t, fetched_F, fetched_I)\n",
            "",
        ),
        (
            "            if slice_ < SLICES:  # lines 3-4 and 14-15, second half: to the buffer that is free\n",
            "            if slice_ < SLICES:  # lines 3-4 and 14-15, first half: global memory to registers\n"
            "                load(input, packed, i_n, o_h, o_w, m0, slice_, t, fetched_F, fetched_I)\n"
            "            if slice_ < SLICES:  # lines 3-4 and 14-15, second half: to the buffer that is free\n",
        ),
    ),
    called="make_slow",
    hidden=(
        "of_window", "clear", "load", "all_but_two_steps", "read", "multiply", "other_buffer",
        "store", "wait_and_read", "write",
    ),
)

# %%
timeline(yours=event_log("m08", make_slow))

# %% [markdown]
"""
<details><summary>Tip: what does the thread do between a request and the use of its number?</summary>

`load` requests numbers: it loads from global memory into `fetched_F` and `fetched_I`. `store` needs these numbers. What
stands between the two calls, and what should stand there?
</details>
<details><summary>Tip: the plan</summary>

The multiplications of this slice need nothing of the next one. So request the next slice *before* the multiplications,
and store it after them.
</details>
"""

# %% check="late"
check_prefetch(make_slow, "m08")

# %% [markdown]
"""
## On a real GPU
"""

# %%
measured("m05", "m06", "m07", "m08", "m11")

# %% [markdown]
"""
m08 is clearly faster than m06 with the very same requests: m06 spends the difference waiting. Most of the
gain comes from m07; on this layer m08's second buffer adds nothing. And m08 is not twice as fast as m06, for
two reasons. (The last bar, m11, is the whole of im2win: [lesson 11](11_im2win_full.ipynb).)

- In m06 other warps already work during a part of the waiting time. Double buffering takes
  registers and shared memory away from these warps. The paper reports that this technique helped
  least of all on its GPU, for the same reason.
- The rest of the time is work, not waiting. The input still comes one number at a time, and for
  each number a thread divides, takes remainders and checks whether the pixel is in the image.
  [Lesson 11](11_im2win_full.ipynb) removes this work.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>m06 has two barriers for each slice. Which one is gone, and why is the other one still needed?</summary>

The barrier after the multiplication is gone. It kept fast threads from storing the next slice over
the slice that slow threads still read. Now the next slice goes to the other buffer. The other
barrier stays: a thread reads numbers that other threads have stored, so all threads must have
stored their numbers.
</details>

<details><summary>Could a fast thread run ahead by two rounds, and overwrite numbers that a slow thread still reads?</summary>

No. To store its next slice, the fast thread must pass the barrier of this round. The barrier lets
no thread through before the slow thread has reached it, and then the slow thread has finished
reading.
</details>

<details><summary>The paper loads the next slice after its inner loop (line 14 of Algorithm 3). What does that change?</summary>

Then only one step lies between the request and the use, because only the last step is left to
multiply. Our kernel makes its requests at the beginning of the round.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The whole file: [m08_double_buffer.py](../src/convlab/ladder/main/m08_double_buffer.py), and what was
  measured: [ladder](../docs/ladder.md#m08_double_buffer).
- The im2win paper, section 3.3, "Double buffer and prefetching", and lines 8 to 19 of its
  Algorithm 3; section 4.4 for what it gained there: [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Next on the ladder: [m09, im2win](10_im2win.ipynb), which starts again from m02.
"""
