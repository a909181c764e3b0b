# %% [markdown]
"""
# Read the paper with us

**You will be able to** check a paper's claims, figures and listings against code that works.

The ladder follows a paper: *Im2win: An Efficient Convolution Paradigm on GPU* by Lu, Chu, Guo and
Liu ([arXiv 2306.14316](https://arxiv.org/abs/2306.14316)). In lessons 01 to [11](11_im2win_full.ipynb), which you
should have done, you have written most of what is in it. Now read it with the paper open beside this page. People write papers, so this paper has slips, too.
Finding them is part of reading.
"""

# %% setup=true
from convlab import ConvProblem
from convlab.problems import workloads
from convlab.lessons import check, check_function, event_log, im2col_beside_im2win, ladder_speeds
from convlab.lessons import measured, measured_parts, timeline, workspaces

# %% [markdown]
"""
## The idea

Read in this order, which is not the order of the pages, and ask the question before you read:

| read | ask | lesson |
| --- | --- | --- |
| the abstract | What is claimed? Against whom? Write the numbers down. | |
| 2.1, Equation 1 | Which letter runs over what? Over which letters does the sum run? | [01](01_direct.ipynb) |
| Figure 1, 3.1 | What is stored, how often, and in which order? | [10](10_im2win.ipynb) |
| Algorithms 1 and 2 | Which line differs? | [10](10_im2win.ipynb) |
| Algorithm 3, 3.3 | Which line is which technique? Where are the barriers? | [05](05_shared_memory.ipynb), [09](09_double_buffer.ipynb), [11](11_im2win_full.ipynb) |
| 4.1, 4.2 | How was it measured? | [14](14_measure_it.ipynb) |
| 4.2 to 4.4, the figures | Do they confirm what the abstract claims? | this one |

## Figure 1, again

It is worth drawing a paper's figures again, from code that works. This is Figure 1, drawn from what
our kernels write:
"""

# %%
im2col_beside_im2win(ConvProblem(1, 3, 3, 3, out_channels=2, kernel_size=2))

# %% [markdown]
"""
The text below the equation says that the tensor has "1/3 less elements" than the matrix. Count the
elements in the picture.

## Your turn: how large is it?

Section 3.1 gives the tensor's size: `N_i x C_i x H_o x (W_i * H_f)`. The im2col matrix has a column
for each output pixel of each image and a row for each term, so it has `N * K` elements. Compute
both sizes, and the part by which the tensor is smaller: 0.25 if it is a quarter smaller. There is
no padding here, and the stride is 1.

`problem` has all the letters: `problem.N_i`, `problem.C_i`, `problem.H_o`, `problem.W_i`, `problem.H_f`,
`problem.N`, `problem.K`.

<details><summary>Tip: of which of the two numbers is it a part?</summary>

36 instead of 48 is 12 less, and 12 is a quarter *of 48*, the larger number.
</details>
<details><summary>Tip: the plan</summary>

Multiply the factors of each size. Then divide what is saved by the size of the matrix.
</details>
<details><summary>Tip: the code</summary>

For Figure 1 the part is `1 - 36 / 48`.
</details>
"""


# %% exercise="sizes"
def sizes(problem):
    ### BEGIN SOLUTION: compute the elements of matrix and tensor, and the part by which the tensor is smaller
    matrix = problem.N * problem.K
    tensor = problem.N_i * problem.C_i * problem.H_o * problem.W_i * problem.H_f
    less = 1 - tensor / matrix
    ### END SOLUTION
    return matrix, tensor, less


# %% check="sizes"
def wanted_sizes(problem):
    pixels, rows = problem.H_o * problem.W_o, problem.H_o * problem.H_f
    matrix = problem.N_i * pixels * problem.C_i * problem.H_f * problem.W_f
    tensor = problem.N_i * problem.C_i * rows * problem.W_i
    return matrix, tensor, (matrix - tensor) / matrix


figure_1 = ConvProblem(1, 3, 3, 3, out_channels=2, kernel_size=2)
layers = [workloads.paper_layer(name) for name in ("conv5", "conv9")]
wide = ConvProblem(2, 5, 4, 9, out_channels=3, kernel_size=(2, 3))
check_function(sizes, wanted_sizes, [(problem,) for problem in (figure_1, *layers, wide)])

# %% [markdown]
"""
## The memory that is claimed

The abstract claims 23.1 % less memory than im2col with cuBLAS. Figure 3 has no exact numbers, so
the next chart shows what our stages store beside input, filter and output on the paper's twelve
layers. PyTorch makes im2col's matrix for one image at a time, and uses its memory again for the
next image. The third bar of each layer is a stage that does the same:
"""

# %%
workspaces({"im2col, all images": "i01", "im2win": "m09", "im2col, one image": "i02"})

# %% [markdown]
"""
Compared with the matrix of the whole batch, the im2win tensor is far smaller on every layer.
Compared with the matrix of one image it is not smaller, because that matrix takes almost no memory.
So a claim in percent must say *what it compares with*. The page [from paper to code](../docs/papers.md)
compares the tensor with both.

## Find the bug: Algorithm 2, as printed

Below is m09's kernel with lines 8 to 10 of the paper's Algorithm 2 exactly as printed:

- line 8: `f_h = k_res / W_f`, `f_w = k_res % W_f`, where `k_res` is what is left of `k` in its channel;
- line 9: `i_h = o_h * s + f_h`, `i_w = o_w * s + f_w`;
- line 10: the im2win tensor at `(i_n, i_c, i_h, i_w)`.

These are the indices of the *image*, copied from Algorithm 1. Is the pixel at these indices in the
tensor? Run the check, see what it says, look at Figure 1 above, and fix the kernel. More than one
order of the terms is right, as long as each pixel meets its own weight.
"""

# %% hunt="printed"
stage_kernel(
    "m09",
    planted=(
        ("f_w = k % (H_f * W_f) // H_f\n", "f_w = k % W_f\n"),
        ("f_h = k % H_f\n", "f_h = k % (H_f * W_f) // W_f\n"),
        (
            "windows[i_n, i_c, o_h, (o_w * s_w + f_w * d_w) * H_f + f_h]",
            "windows[i_n, i_c, o_h * s_w + f_h, o_w * s_w + f_w]",
        ),
    ),
    called="make_printed",
    hidden=("of_output",),
)

# %% [markdown]
"""
<details><summary>Tip: what are the tensor's rows?</summary>

Its third index is the row of the *output*, `o_h`: all pixels that this row of windows covers are in
this one row of the tensor.
</details>
<details><summary>Tip: the plan</summary>

The third index is `o_h` alone. The fourth is the place in the row, by Equation 2: the pixels of a column follow each other,
`H_f` of them, and then comes the next column. The column is the first column of the window plus the column in the filter.
</details>
<details><summary>Tip: the code</summary>

The pixel's column in the tensor is `o_w * s_w + f_w * d_w`.
</details>
"""

# %% check="printed"
check(make_printed, "m09")

# %% [markdown]
"""
Such a slip is no shame: the authors' program is right, and only the lines of the listing were
copied. But a reader who implements the listing notices the slip late. The page
[from paper to code](../docs/papers.md) lists the other slips that we noticed, line by line, with
our solutions. Here are two of them for you to find:

<details><summary>Equation 2 has a subscript too many on its right side. Which?</summary>

The right side is <code>I(i, r, m + u, n + v)</code>, and the left one has neither <code>n</code> nor <code>v</code>,
but <code>k</code>. It should be column <code>k</code>, and row <code>m * s + u</code>, for strides other than 1.
</details>
"""

# %% [markdown]
"""
<details><summary>What is wrong with line 19 of Algorithm 3?</summary>

It multiplies <code>R_I[1]</code> by <code>R_I[1]</code>, that is, the input by itself. One of the
two factors should be the filter's, <code>R_F[1]</code>. (We read a scanned copy; compare it with
yours.)
</details>

## Algorithm 3

Read it beside the picture below. Lines 3 to 7 come before the first multiplication. Lines 14 and 15
load the next slice, and line 16 is the barrier. Our kernel loads earlier than line 14. (The
compiler would move these loads later: [this note](../docs/notes/fast.md) says what keeps them in
place.)
"""

# %%
timeline(m11=event_log("m11"))

# %% [markdown]
"""
## On a real GPU

Section 4.2 reports that im2win is 3.5 times as fast as im2col with cuBLAS, and 5 to 155 times as
fast as direct convolution, on an RTX 3090, each the best of 100 runs. The paper does not say
whether these times include the input's transform. Our times include it:
"""

# %%
ladder_speeds("conv9")

# %%
measured_parts("i04_im2col_blas", "m08", "m11")

# %%
measured("m01", "i04_im2col_blas", "m11")

# %% [markdown]
"""
On this layer and this GPU m11 is faster than im2col with a library's matrix product, even with its
transform, but by less than 3.5 times; our GPU and our library are not those of the paper. A direct
convolution can be very slow or fairly fast. Ours, m01, is far less than 155 times slower than m11,
because its threads read neighbours. A speedup says as much about the slow program as about the fast
program.
"""

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>The abstract: "up to 1.8x TFLOPS compared with the best performant convolutions in cuDNN". On how many of the twelve layers would that have to hold?</summary>

On one. "Up to" names the best case; on average it is 1.1 (section 1). Read averages first.
</details>

<details><summary>In section 4.4 double buffering helps least, and the reason given is that it halves shared memory and registers. How would you test that reason?</summary>

Change one thing at a time: measure the same kernel without prefetching but with the same amount of
shared memory, or with prefetching but with a tile of half the size. In this repository
<code>convlab.plan(problem, stage="ablation", prefetch=False)</code> leaves prefetching out, so you
can measure the paper's Figure 4 again.
</details>

<details><summary>Winograd and FFT convolutions need fewer operations. How can they be compared in TFLOP/s?</summary>

Divide the operations of the direct convolution by the time, whatever the program really computes.
Then a figure above the GPU's highest speed is possible and is no mistake.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The im2win paper, now from the first page on: [arXiv 2306.14316](https://arxiv.org/abs/2306.14316).
- Each equation, algorithm, table and figure, with its file and our values: [from paper to code](../docs/papers.md).
- The measurements of all stages and of libraries: [results](../docs/results.md).
- How to write a stage of your own: [contributing](../docs/contributing.md).
"""
