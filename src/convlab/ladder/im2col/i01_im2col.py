"""i01: im2col. Write out each window, and the convolution is a matrix product.

Source: im2win paper (000), section 2.3. A small kernel copies each window of the input into a
column of the im2col matrix; then a GEMM multiplies the filter matrix with it. All images go into
one matrix here ("batched"), which makes one large product; :mod:`i02_im2col_per_image` takes one
image at a time. The cost is memory: each pixel is stored once for each window that contains it. A
``workspace_limit`` makes the stage take as many images at a time as fit.
"""

from convlab.ladder.im2col.batch_slices import in_slices
from convlab.ladder.im2col.im2col_gemm import columns_buffer, im2col_launch, product_launch
from convlab.ladder.layouts.filter_layout import pack_filter
from convlab.ladder.stage import Buffer, Program, Stage, Step, Tile, Tiles
from convlab.problems.problem import ConvProblem


def prepare(problem: ConvProblem, tile: Tile, workspace_limit: int | None = None) -> Program:
    """Return the program: the im2col matrix of some images, then the matrix product, in slices of
    the batch whose workspace is within ``workspace_limit`` bytes."""
    return program(problem, tile, workspace_limit)


def program(
    problem: ConvProblem, tile: Tile, workspace_limit: int | None, images: int | None = None
) -> Program:
    """The program for that many images at a time, or for as many as the limit in bytes allows."""
    pack = pack_filter(problem, tile)

    def buffers(part: ConvProblem) -> tuple[Buffer, ...]:
        return columns_buffer(part), *pack.buffers

    def steps(part: ConvProblem) -> list[Step]:
        return [im2col_launch(part), product_launch(part, tile)]

    made = in_slices(problem, buffers, steps, workspace_limit, images)
    return Program(made.buffers, (*pack.launches, *made.launches), tile)


STAGE = Stage(
    __name__,
    title="im2col: windows written out as a matrix, then one GEMM for all images",
    source="im2win paper (000), 2.3",
    builds_on=("m01_direct",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=8, K_B=4, M_T=4, N_T=4)),
    vectorized=True,
)
