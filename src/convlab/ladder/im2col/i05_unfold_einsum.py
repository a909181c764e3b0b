"""i05, unfold and einsum: im2col as calls of an array library, without a kernel of convlab.

Source: Faster Convolution (002), Algorithm 1: pad, unfold, einsum, fold, bias, each a call of
NumPy (on a simulator), PyTorch or CuPy (on a GPU). :func:`convlab.problems.unfold.unfold_einsum` is
the same as a function for any number of dimensions. Here the steps write to the plan's own memory,
so that they can be timed one by one and captured in a graph. Unfolding is one copy per filter
element; einsum of ``bis,oi->bos`` is a batched matrix product, and fold with a 1 x 1 kernel moves
nothing."""

from typing import Any

from convlab.ladder.im2col.batch_slices import in_slices
from convlab.ladder.stage import Buffer, LibraryCall, Program, Stage, Step
from convlab.problems.problem import ConvProblem
from convlab.problems.unfold import taps


def buffers_for(problem: ConvProblem) -> tuple[Buffer, ...]:
    """The padded input, if there is padding, and the unfolded input."""
    p = problem
    unfolded = Buffer("unfolded", (p.N_i, p.C_i, p.H_f, p.W_f, p.H_o, p.W_o))
    if p.padded_shape == (p.H_i, p.W_i):
        return (unfolded,)
    return Buffer("padded", (p.N_i, p.C_i, *p.padded_shape)), unfolded


def make_pad(problem: ConvProblem) -> Any:
    """``padded``: the input with zeros around it."""
    p = problem
    rows, columns = slice(p.p_h, p.p_h + p.H_i), slice(p.p_w, p.p_w + p.W_i)

    def pad(library: Any, input: Any, padded: Any) -> None:
        padded[:] = 0
        padded[: p.N_i, :, rows, columns] = input

    return pad


def make_unfold(problem: ConvProblem) -> Any:
    """``unfolded[i, r, u, v]``: the pixel that filter element (u, v) meets, for each output."""
    p = problem
    met = list(taps(p.kernel_size, (p.H_o, p.W_o), p.stride, p.dilation))

    def unfold(library: Any, padded: Any, unfolded: Any) -> None:
        for (u, v), (rows, columns) in met:
            unfolded[: p.N_i, :, u, v] = padded[: p.N_i, :, rows, columns]

    return unfold


def make_einsum(problem: ConvProblem) -> Any:
    """``output``: the result of einsum, written where fold would put it, plus the bias."""
    N_i, M, K, PIXELS = problem.N_i, problem.M, problem.K, problem.H_o * problem.W_o

    def einsum(library: Any, unfolded: Any, weight: Any, bias: Any, output: Any) -> None:
        columns = unfolded[:N_i].reshape(N_i, K, PIXELS)
        filters = library.broadcast_to(weight.reshape(M, K), (N_i, M, K))
        library.matmul(filters, columns, out=output.reshape(N_i, M, PIXELS))
        output += bias.reshape(1, M, 1, 1)

    return einsum


def make_steps(problem: ConvProblem) -> list[Step]:
    """The calls for one slice of the batch."""
    names = [buffer.name for buffer in buffers_for(problem)]
    pads = "padded" in names
    pad = [LibraryCall(make_pad(problem), ("input", "padded"))] if pads else []
    return [
        *pad,
        LibraryCall(make_unfold(problem), ("padded" if pads else "input", "unfolded")),
        LibraryCall(make_einsum(problem), ("unfolded", "weight", "bias", "output")),
    ]


def prepare(problem: ConvProblem, tile: None = None, workspace_limit: int | None = None) -> Program:
    """Return the program: calls of an array library for slices of the batch whose workspace is
    within ``workspace_limit`` bytes."""
    return in_slices(problem, buffers_for, make_steps, workspace_limit)


STAGE = Stage(
    __name__,
    title="Unfold and einsum: im2col as calls of an array library",
    source="Faster Convolution (002), Algorithm 1",
    builds_on=("i04_im2col_blas",),
    prepare=prepare,
)
