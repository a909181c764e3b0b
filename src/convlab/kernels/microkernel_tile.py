"""The tiles of the stages with a micro-kernel (s07 to s09, and the matrix product of s03)."""

from __future__ import annotations

from convlab.problem import ConvProblem
from convlab.stage import Tile, blocks_for

MODEL_TILE = Tile(M_B=32, N_B=64, K_B=16, M_T=4, N_T=4)  # what they are counted with


def microkernel_tile(problem: ConvProblem) -> Tile:
    """The production tile: the paper's own sizes (128 x 128 x 8, 8 x 8 a thread), but 64 rows where
    128 would leave at least a quarter of all rows without a channel, and 64 leave fewer."""
    rows_of_128, rows_of_64 = (blocks_for(problem.M, size) * size for size in (128, 64))
    wasteful = 4 * (rows_of_128 - problem.M) >= rows_of_128
    M_B = 64 if wasteful and rows_of_64 < rows_of_128 else 128
    return Tile(M_B=M_B, N_B=128, K_B=8, M_T=8, N_T=8)
