# %% [markdown]
"""
# Gradients: training is two more convolutions

**You will be able to** derive both gradients of a convolution, compute one with a convolution that you
already have, write a kernel for the other, and train a small network with them.

You should have done [01_direct](01_direct.ipynb) and [02_channel_parallel](02_channel_parallel.ipynb).
The rest of the ladder is not needed. Two stages, g01 and g02, are a route of their own, `g`. Everything runs with NumPy; PyTorch is an extra at the end.
"""

# %% setup=true
import numpy as np
from numba import cuda

from convlab import ConvProblem, Gradient, conv2d, plan, trace, trace_stage
from convlab.problems.reference import reference
from convlab.lessons import On, check_function, check_gradient, check_kernel, lines, one_thread
from convlab.lessons import side_by_side, what_is_wrong, who_uses


def numbers(*shape, seed=1):  # small whole numbers, so sums are exact in any order
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def wanted_input(of_output, weight):  # the right gradient of the input
    N_i, C_o, H_o, W_o = of_output.shape
    _, C_i, H_f, W_f = weight.shape
    problem = ConvProblem(N_i, C_i, H_o + H_f - 1, W_o + W_f - 1, C_o, (H_f, W_f))
    return reference(Gradient(problem, "input"), of_output, weight).astype(np.float32)


# %% [markdown]
"""
## The idea

Training makes one number small: the **loss** `L`, which says how wrong a network's answers are. To
do this, training computes for every number in the network: *if this number grows a little, how much does
`L` grow?* The answer is the **gradient** of `L` with respect to that number. Each step of training
moves the filters a little against their gradients.

The gradients are computed from the last layer to the first, in the **backward pass**. A convolution
receives `of_output`, the gradients of its outputs (`dL/doutput` in formulas), and computes two tensors:

| the gradients of | needed for |
| --- | --- |
| the weight, `of_weight` | the step of training |
| the input, `of_input` | the layer before, whose output this is |

Each has the shape of the tensor that it belongs to. So a layer that is trained costs three convolutions
instead of one: one forward and two backward.
"""

# %% [markdown]
"""
### By hand

Take one row of four pixels `x` and a filter `w` of two numbers, its **taps**:

```
y[0] = x[0] w[0] + x[1] w[1]
y[1] = x[1] w[0] + x[2] w[1]
y[2] = x[2] w[0] + x[3] w[1]
```

Let the gradients of the outputs be `g = 1, 0, 2`: when `y[2]` grows by 1, the loss grows by 2. Now let
`x[2]` grow by 1. It is in `y[1]`, times `w[1]`, and in `y[2]`, times `w[0]`. So the loss grows by
`g[1] w[1] + g[2] w[0]`. Let `w[0]` grow by 1. It is in all three outputs, each time with another pixel. So
the loss grows by `g[0] x[0] + g[1] x[1] + g[2] x[2]`. That is the **chain rule**. In general:

```
of_x[i_w] = sum over f_w of g[i_w - f_w] w[f_w]     where there is an output i_w - f_w
of_w[f_w] = sum over o_w of g[o_w] x[o_w + f_w]
```

Both are sums of products along a row, as `y` itself is. In the first sum one index runs
*backwards*: where `f_w` grows, `i_w - f_w` falls. This is the same as a sum with a flipped filter.
"""

# %%
x, w, g = np.array([1, 2, 3, 4]), np.array([10, 1]), np.array([1, 0, 2])
print("y          ", np.correlate(x, w))  # the sums as written above
print("of_weight  ", np.correlate(x, g))  # the filter is now g
print("of_input   ", np.correlate(np.pad(g, 1), w[::-1]))  # w flipped, zeros around g

# %% [markdown]
"""
Check two of these numbers. `L` is `1 y[0] + 0 y[1] + 2 y[2] = 12 + 68 = 80`. With `w[0] = 11` the
outputs are 13, 25 and 37, so `L` is 87: it grows by 7, the first number of `of_weight`. With
`x[2] = 4` the outputs are 12, 24 and 44, so `L` is 100: it grows by 20, the third number of
`of_input`.

## The weight's gradient

In two dimensions the letters are those of [01](01_direct.ipynb). With stride `s` and dilation `d`:

```
output[i_n, o_c, o_h, o_w] = sum over i_c, f_h, f_w of
    input[i_n, i_c, o_h s + f_h d, o_w s + f_w d] weight[o_c, i_c, f_h, f_w]

of_weight[o_c, i_c, f_h, f_w] = sum over i_n, o_h, o_w of
    input[i_n, i_c, o_h s + f_h d, o_w s + f_w d] of_output[i_n, o_c, o_h, o_w]
```

Both sums read the same pixels. They differ in the letters over which they run, and in the letters
that say *which result*.
"""

# %% [markdown]
"""
So this is a convolution as well, with the roles exchanged:

| role | in the forward pass | for the weight's gradient |
| --- | --- | --- |
| which image | `i_n` | `i_c` |
| which filter | `o_c` | `o_c` |
| channels, which are summed | `i_c` | `i_n` |
| the filter's rows and columns | `f_h`, `f_w` | `o_h`, `o_w` |
| the output's rows and columns | `o_h`, `o_w` | `f_h`, `f_w` |
| the step of the window | `s` | `d` |
| the step inside the window | `d` | `s` |

The filters are now as large as the output was, and the result is as small as a filter was.

## Your turn: exchange the roles

`conv2d(input, weight, stride=..., padding=..., dilation=...)` is the convolution that you know; any stage
can compute it. Give it the right tensors. `array.swapaxes(0, 1)` exchanges the first two axes. `taps` are the
filter's rows and columns, `H_f` and `W_f`.
"""

# %% [markdown]
"""
<details><summary>Tip: which axis of the input do the "images" need first?</summary>

The channels: in the table channel `i_c` is an image, and image `i_n` is a channel. Which axis of `of_output` must come
first, so that there is one filter for each `o_c`?
</details>
<details><summary>Tip: the plan</summary>

Exchange the first two axes of both tensors. Convolve, with stride and dilation exchanged. The result is
`[i_c, o_c, f_h, f_w]`, and `of_weight` is `[o_c, i_c, f_h, f_w]`: exchange the axes once more. With a stride the last rows
of the input may lie under no window. Then the result has more rows than the filter: keep the first `H_f` rows and `W_f`
columns.
</details>
<details><summary>Tip: the code</summary>

The window's step is `stride=dilation`, and the step inside of it `dilation=stride`.
</details>
"""


# %% exercise="exchange"
def weight_gradient(input, of_output, taps, stride, padding, dilation):
    ### BEGIN SOLUTION: make images and filters, convolve them, keep the part that is of_weight
    images = input.swapaxes(0, 1)
    filters = of_output.swapaxes(0, 1)
    made = conv2d(images, filters, stride=dilation, padding=padding, dilation=stride)
    H_f, W_f = taps
    of_weight = made.swapaxes(0, 1)[:, :, :H_f, :W_f]
    ### END SOLUTION
    return of_weight


# %% check="exchange"
def layer(*sizes, stride=1, padding=0, dilation=1):
    problem = ConvProblem(*sizes, stride, padding, dilation)
    images, of_output = numbers(*problem.input_shape), numbers(*problem.output_shape, seed=2)
    return images, of_output, problem.kernel_size, stride, padding, dilation


def wanted_weight(input, of_output, taps, stride, padding, dilation):
    problem = ConvProblem(*input.shape, of_output.shape[1], taps, stride, padding, dilation)
    return reference(Gradient(problem, "weight"), input, of_output)


check_function(
    weight_gradient,
    wanted_weight,
    [
        layer(1, 1, 4, 5, 1, (2, 3)),
        layer(2, 3, 5, 6, 4, 3, padding=1),
        layer(2, 1, 10, 10, 2, (2, 3), stride=(3, 2)),
        layer(1, 2, 7, 8, 3, 2, dilation=(2, 3)),
        layer(3, 2, 9, 10, 2, 2, stride=2, padding=(2, 1), dilation=3),
    ],
)

# %% [markdown]
"""
## Which outputs use one pixel

A convolution looks for the pixels that an output needs. The input's gradient looks for the opposite: *the
outputs that needed this pixel*. These outputs are the pixel's **fan-out**. This picture follows every
thread of m01 and marks the outputs whose thread has read the blue pixel:
"""

# %%
problem = ConvProblem(1, 1, 6, 8, out_channels=2, kernel_size=3)
who_uses(trace_stage("m01", problem).main, problem, pixel=(0, 0, 2, 3))

# %% [markdown]
"""
A pixel is part of up to nine outputs of each filter, one for each tap; at the border there are
fewer. The taps appear flipped, from `2,2` to `0,0`, as in the row that you computed by hand.

There are two ways to give work to threads:

- **Scatter**: one thread for each output. It adds to every pixel of its window. Nine threads add to the same
  pixel.
- **Gather**: one thread for each *pixel*. It finds the outputs of its fan-out and adds them up. Only this
  thread writes to the pixel.

Stage g01 gathers. One thread of it reads exactly the boxes of the picture above:
"""

# %%
one_thread(trace_stage("g01", Gradient(problem, "input")).main, thread=2 * 8 + 3)

# %% [markdown]
"""
## Your turn: gather

A thread has the pixel in row `i_h`, column `i_w` of channel `i_c`. For each tap `f_h`, `f_w` there is at most one
output row and column in whose window the pixel lies under this tap. In the forward pass
`i_h = o_h * s_h + f_h * d_h - p_h`. Solve that for `o_h`:

- `at_h = i_h + p_h - f_h * d_h` must be `o_h * s_h`. So it must not be negative, and `s_h` must divide it.
- Then `o_h = at_h // s_h`, and it must be an output row: below `H_o`.

Columns follow the same rule. Then add up over the filters. (A convolution may have **groups**: then a filter sees only
the channels of its group.) `M_g` filters see channel `i_c`, the first has number `first`, and in them the channel has number
`i_c % C_g`. Without groups these are `C_o`, 0 and `i_c`. Each adds `of_output[i_n, first + o_c, o_h, o_w] * weight[first + o_c, i_c % C_g, f_h, f_w]` to `total`.
"""

# %% [markdown]
"""
<details><summary>Tip: which of the conditions can be checked before <code>o_h</code> and <code>o_w</code> are known?</summary>

Those on `at_h` and `at_w`. With a stride of 2 every other `at_h` is odd: then no window has this tap over the pixel, and
nothing is added. A negative `at_h` has no output either. (`-3 // 3` is -1, and Python and Numba do not report an error for
row -1: it is the last row.)
</details>
<details><summary>Tip: the plan</summary>

Compute `at_h` and `at_w`. One `if` checks the four conditions on them. Inside it, compute `o_h` and `o_w`; a second `if`
checks whether both are inside the output. The loop over the filters is inside the second `if`.
</details>
<details><summary>Tip: the code</summary>

The first `if` is `if at_h >= 0 and at_w >= 0 and at_h % s_h == 0 and at_w % s_w == 0:`.
</details>
"""

# %% exercise="gather"
stage_kernel(
    "g01_direct_gradients",
    blank(
        "find the output; if there is one, add up over the filters",
        first="# The output whose window",
        last="total += of_pixel",
    ),
    name="make_input_kernel",
    called="make_gather",
)

# %% check="gather"
check_gradient(make_gather, "input")

# %% [markdown]
"""
The check compares your gradient with the same sums in 64 bits, on strides, dilations, padding, groups, and
images smaller than the filter.

## Find the bug: scatter

Most people write this kernel first: it has one thread for each output, which adds its products to
the pixels of its window. (The stride is 1, there is no padding, and `of_input` holds zeros before
the launch.) The simulator runs threads one after the other, so the answer is right there. Run the
next two cells, read what the simulator found, and fix one line.
"""


# %% hunt="scatter"
@cuda.jit
def scatter(of_output, weight, of_input):
    N_i, C_o, H_o, W_o = of_output.shape
    thread = cuda.grid(1)
    o_w = thread % W_o
    o_h = thread // W_o % H_o
    o_c = thread // (W_o * H_o) % C_o
    i_n = thread // (W_o * H_o * C_o)
    if i_n < N_i:
        for i_c in range(weight.shape[1]):
            for f_h in range(weight.shape[2]):
                for f_w in range(weight.shape[3]):
                    product = of_output[i_n, o_c, o_h, o_w] * weight[o_c, i_c, f_h, f_w]
                    ### BEGIN SOLUTION
                    cuda.atomic.add(of_input, (i_n, i_c, o_h + f_h, o_w + f_w), product)
                    ### PLANTED
                    #: of_input[i_n, i_c, o_h + f_h, o_w + f_w] += product
                    ### END SOLUTION


# %%
outputs, filters = numbers(*problem.output_shape), numbers(*problem.weight_shape, seed=2)
zeros = np.zeros(problem.input_shape, np.float32)
what_is_wrong(scatter, 1, 64, outputs, filters, zeros)

# %% [markdown]
"""
<details><summary>Tip: who else adds to this pixel?</summary>

Thread 0 adds to pixels 0 to 2 of a row, thread 1 to pixels 1 to 3. Both read the old sum, both add
to it, and the later write overwrites the earlier one.
</details>
<details><summary>Tip: the plan</summary>

The addition must read, add and write in one step that no other thread can interrupt. Lesson
[02](02_channel_parallel.ipynb) has such an addition.
</details>
<details><summary>Tip: the code</summary>

`of_input` has four dimensions, so the place is a tuple: `cuda.atomic.add(of_input, (i_n, ...), product)`.
</details>
"""

# %% check="scatter"
sizes = [((1, 1, 3, 4), (1, 1, 2, 2)), ((2, 3, 4, 5), (3, 2, 3, 2)), ((3, 2, 5, 6), (2, 4, 2, 3))]
check_kernel(
    scatter,
    wanted_input,
    [On(4, 64, (numbers(*g), numbers(*w, seed=2))) for g, w in sizes],
    before=0.0,
)

# %% [markdown]
"""
## What the memory sees

Both kernels are right now. The chart shows their counts on the same gradient:
"""

# %%
gather = trace_stage("g01", Gradient(problem, "input")).main
scattered = trace(scatter, 1, 64, outputs, filters, zeros).main
side_by_side(
    {"gather": gather, "scatter": scattered}, "requests to global memory", "atomic additions"
)

# %% [markdown]
"""
Scatter makes slightly fewer loads, because a thread keeps its output in a register. But it needs an
atomic addition for every product, and the order of its additions changes from run to run. Gather
writes each pixel once. For these reasons most programs compute gradients by gathering.

Gathering with flipped filters is a convolution, too: `of_output`, with `H_f - 1` zeros above and below, under
filters whose rows, columns and first two axes are reversed or exchanged. Where the stride is 1, that is all:
"""

# %%
flipped = filters.swapaxes(0, 1)[:, :, ::-1, ::-1]
by_convolution = conv2d(outputs, flipped, padding=2)
print(np.array_equal(by_convolution, wanted_input(outputs, filters)))

# %% [markdown]
"""
So neither gradient needs a kernel of its own: every stage of the ladder can compute them. Stage g02
does that. With a stride it also sorts the pixels by the taps that they see. Without this order it
would have to put zeros between the outputs, and the kernel would multiply by these zeros.

## Is it right? Ask the loss

A formula can be wrong on paper as well. **Finite differences** check it without any derivation: change one
number by a little `h`, compute the loss again, and divide the difference by the change. PyTorch's `gradcheck`
does the same. It needs 64 bits, because the loss hardly changes. A convolution is linear in its input and
in its weight, so here even a large `h` gives the derivative up to rounding:
"""

# %%
rng = np.random.default_rng(0)
strided = ConvProblem(2, 3, 7, 8, 4, kernel_size=3, stride=2, padding=1)
shapes = strided.input_shape, strided.weight_shape, strided.output_shape
images, filters, of_output = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def loss(images, filters):  # its gradients with respect to the outputs are of_output
    return (of_output * reference(strided, images, filters)).sum()


def computed(problem, stage, first, second):
    output = np.empty(problem.output_shape, np.float32)
    return plan(problem, stage, engine="simulator")(first, second, output)


of_input = computed(Gradient(strided, "input"), "g01", of_output, filters)
of_weight = computed(Gradient(strided, "weight"), "g01", images, of_output)
change = np.zeros(strided.input_shape)
change[1, 2, 3, 4] = h = 0.5
difference = (loss(images + change, filters) - loss(images - change, filters)) / (2 * h)
print(f"input[1, 2, 3, 4]:  {difference:.4f} by differences, {of_input[1, 2, 3, 4]:.4f} by g01")
change = np.zeros(strided.weight_shape)
change[3, 2, 1, 0] = h
difference = (loss(images, filters + change) - loss(images, filters - change)) / (2 * h)
print(f"weight[3, 2, 1, 0]: {difference:.4f} by differences, {of_weight[3, 2, 1, 0]:.4f} by g01")

# %% [markdown]
"""
## Train a network

The network has two convolutions with a ReLU between them, and learns to tell horizontal stripes
from vertical stripes. A score is the mean of an output channel; the larger score is the answer. The scores become
probabilities, and the loss is the usual cross-entropy: minus the logarithm of the right answer's probability. Images are
6 x 6, with noise:
"""


# %%
def stripes(count, seed):
    rng = np.random.default_rng(seed)
    rows, shift = np.arange(6)[:, None], rng.integers(0, 2, (count, 1, 1))
    images = np.broadcast_to((rows + shift) % 2, (count, 6, 6)).astype(np.float32)
    vertical = np.arange(count) % 2
    images = np.where(vertical[:, None, None], images.swapaxes(1, 2), images)
    return (images + rng.normal(0, 0.4, images.shape))[:, None].astype(np.float32), vertical


conv1 = ConvProblem(12, 1, 6, 6, out_channels=3, kernel_size=3)
conv2 = ConvProblem(12, 3, 4, 4, out_channels=2, kernel_size=3)


def forward(images, weight1, weight2):
    sums = computed(conv1, "m01", images, weight1)
    hidden = np.maximum(sums, 0)
    return sums, hidden, computed(conv2, "m01", hidden, weight2)


# %% [markdown]
"""
The backward pass goes through the same steps from the end: cross-entropy, mean, second convolution, ReLU
(where the sum was negative, nothing goes back), first convolution. Nothing needs the first layer's
`of_input`. Then each weight makes a step against its gradient:
"""

# %%
images, vertical = stripes(12, seed=1)
rng = np.random.default_rng(3)
weight1 = rng.normal(0, 0.4, conv1.weight_shape).astype(np.float32)
weight2 = rng.normal(0, 0.4, conv2.weight_shape).astype(np.float32)
losses = []
for _ in range(31):
    sums, hidden, maps = forward(images, weight1, weight2)
    scores = maps.mean(axis=(2, 3))
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    losses.append(-np.log(chances[np.arange(12), vertical]).mean())
    of_scores = (chances - np.eye(2)[vertical]) / 12
    of_maps = np.broadcast_to(of_scores[:, :, None, None] / 4, maps.shape).astype(np.float32)
    of_weight2 = computed(Gradient(conv2, "weight"), "g01", hidden, of_maps)
    of_hidden = computed(Gradient(conv2, "input"), "g01", of_maps, weight2)
    of_sums = np.where(sums > 0, of_hidden, np.float32(0))
    of_weight1 = computed(Gradient(conv1, "weight"), "g01", images, of_sums)
    weight1 -= of_weight1
    weight2 -= of_weight2

every = range(0, 31, 5)
lines(
    every,
    {"loss": [losses[step] for step in every]},
    "Loss by step",
    "The loss of a network trained by g01 on the simulator.",
    xlabel="step",
    ylim=(0, None),
)

# %% [markdown]
"""
What has the network learned? The next cell tests it on images that it has never seen:
"""

# %%
right = 0
for seed in range(10, 15):
    images, vertical = stripes(12, seed)
    *_, maps = forward(images, weight1, weight2)
    right += (maps.mean(axis=(2, 3)).argmax(axis=1) == vertical).sum()
print(f"{right} of 60 are right")

# %% [markdown]
"""
Replace `"g01"` by `"g02"` and `"m01"` by another stage: the network learns the same.

With PyTorch, `convlab.torch.Conv2d` is a layer whose forward and backward passes are our stages; PyTorch does
the rest. This cell does nothing where PyTorch is not installed:
"""

# %%
from importlib.util import find_spec

if find_spec("torch"):
    import torch

    from convlab.torch import Conv2d

    net = torch.nn.Sequential(Conv2d(1, 3, 3), torch.nn.ReLU(), Conv2d(3, 2, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scores = net(torch.from_numpy(images)).mean(dim=(2, 3))
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(vertical)).backward()
    optimizer.step()

# %% [markdown]
"""
## Questions

Think first, then unfold.

<details><summary>Why are the sums of the weight's gradient so long, and what does this mean for its kernel?</summary>

An output of a 3 x 3 filter over 64 channels is a sum of 576 products. A tap of the weight's gradient sums over
all pixels of all images: 128 images of 54 x 54 outputs are 373,248 products. And there are few sums: 64 x 64
filters of 3 x 3 have 36,864 taps, where the outputs are 24 million. A thread for each sum leaves most of a GPU
idle, so fast kernels split each sum between several blocks.
</details>

<details><summary>What must be kept from the forward pass, and what does that cost?</summary>

The weight's gradient needs the layer's input, the ReLU needs to know where its sums were negative.
So the inputs of all layers (activations) stay in memory until the backward pass has used them. They, not the
weights, take most of the memory of training.
</details>

<details><summary>What is the gradient of a bias?</summary>

The bias of channel `o_c` is added to all its outputs, once each. So its gradient is the sum of `of_output` over
images, rows and columns.
</details>
"""

# %% [markdown]
"""
## Where to read on

- The stages: [g01_direct_gradients.py](../src/convlab/ladder/gradients/g01_direct_gradients.py) has both kernels,
  [g02_exchanged_roles.py](../src/convlab/ladder/gradients/g02_exchanged_roles.py) computes gradients by any stage.
- The page on [training](../docs/training.md): the layer for PyTorch, and a table of the roles.
- Strides without the zeros between outputs: Shi et al. (2016), *Real-Time Single Image and Video
  Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural Network*,
  [arXiv 1609.05158](https://arxiv.org/abs/1609.05158).
- Why memory, not arithmetic, limits what you can train: Chen et al. (2016), *Training Deep Nets with Sublinear
  Memory Cost*, [arXiv 1604.06174](https://arxiv.org/abs/1604.06174).
"""
