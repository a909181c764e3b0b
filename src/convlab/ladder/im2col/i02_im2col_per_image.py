"""i02, per image: :mod:`i01_im2col` with one image's matrix at a time.

Source: im2win paper (000), section 2.3: "processed in N_i batches, each batch contains a single
image". The matrix is N_i times smaller and the same memory serves all images. In exchange N_i
matrix products run one after the other, each too small to fill a large GPU if the image is small.
"""

from convlab.ladder.im2col.i01_im2col import program
from convlab.ladder.stage import Program, Stage, Tile, Tiles
from convlab.problems.problem import ConvProblem


def prepare(problem: ConvProblem, tile: Tile) -> Program:
    """Return the program: for each image its im2col matrix, then the matrix product."""
    return program(problem, tile, None, images=1)


STAGE = Stage(
    __name__,
    title="im2col per image: a matrix and a GEMM for each image in turn",
    source="im2win paper (000), 2.3",
    builds_on=("i01_im2col",),
    prepare=prepare,
    tiles=Tiles(tiny=Tile(M_B=16, N_B=8, K_B=4, M_T=4, N_T=4)),
    vectorized=True,
)
