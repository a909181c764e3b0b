"""i04 with a library's GEMM: cuBLAS, through PyTorch or CuPy; NumPy's on a simulator.

Source: im2win paper (000), section 2.3, and the baseline of its section 4. The im2col kernel writes
one matrix per image, so that BLAS writes the output tensor itself:
``output[i] = filter @ columns[i]``, all images in one batched call. With a ``workspace_limit`` of
one image's matrix the stage works as Caffe does, one image at a time.
"""

from typing import Any

from convlab.ladder.im2col.batch_slices import in_slices
from convlab.ladder.im2col.im2col_gemm import im2col_launch
from convlab.ladder.stage import Buffer, LibraryCall, Program, Stage, Step
from convlab.problems.problem import ConvProblem


def matrices(problem: ConvProblem) -> tuple[Buffer, ...]:
    """One matrix per image."""
    return (Buffer("columns", (problem.N_i, problem.K, problem.H_o * problem.W_o)),)


def blas(library: Any, columns: Any, weight: Any, bias: Any, output: Any) -> None:
    """``output = weight @ columns + bias``, image by image."""
    N_i, C_o, H_o, W_o = output.shape
    matrices = columns[:N_i]  # the last slice may be smaller than the memory
    filters = library.broadcast_to(weight.reshape(C_o, -1), (N_i, C_o, matrices.shape[1]))
    library.matmul(filters, matrices, out=output.reshape(N_i, C_o, H_o * W_o))
    output += bias.reshape(1, C_o, 1, 1)


def prepare(problem: ConvProblem, tile: None = None, workspace_limit: int | None = None) -> Program:
    """Return the program: the im2col matrices of some images, then a library's products of
    matrices, in slices of the batch whose workspace is within ``workspace_limit`` bytes."""

    def steps(part: ConvProblem) -> list[Step]:
        product = LibraryCall(blas, ("columns", "weight", "bias", "output"))
        return [im2col_launch(part, by_image=True), product]

    return in_slices(problem, matrices, steps, workspace_limit)


STAGE = Stage(
    __name__,
    title="im2col and BLAS: the same matrix, a library's GEMM",
    source="im2win paper (000), 2.3",
    builds_on=("i01_im2col",),
    prepare=prepare,
)
