"""The inner loop of s11 and s12: a slice's product with its steps written out, and threads put in a
warp so that their reads of shared memory overlap.

Two things cost s09's inner loop its speed beside cuBLAS, and both are mended here. The compiler
does not unroll a loop over k of this size, so that every step pays for its counter and its
addresses: here each step is a call with its own k, a constant. And a warp of 2 x 16 threads reads
16 different runs of S_I, two of S_F: here it has 4 x 8 threads in an order in which lanes l and
l ^ 1 want the same run of S_I, lanes l and l ^ 2 the same of S_F, which an SM serves together
(docs/counters.md, "How wide accesses are served"): four passes for both instead of six.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, uint32

from convlab.device import gpu_only, load4
from convlab.kernels.gemm import RUN, make_multiply
from convlab.stage import Tile

WARP_ROWS, WARP_COLUMNS = 4, 8  # threads of a warp along M and N


def make_place(tile: Tile) -> Any:
    """Which row and column of threads a thread is: in warps of 4 x 8 where the tile has them, lane
    by lane (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), ..."""
    COLUMNS = tile.columns
    BY_WARPS = tile.rows % WARP_ROWS == tile.columns % WARP_COLUMNS == 0
    ACROSS = max(1, COLUMNS // WARP_COLUMNS)  # warps along N

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def place(t):
        if BY_WARPS:
            warp, lane = t // 32, t % 32
            ty = warp // ACROSS * WARP_ROWS + lane // 16 * 2 + lane % 2
            tx = warp % ACROSS * WARP_COLUMNS + lane % 16 // 2
        else:
            ty, tx = t // COLUMNS, t % COLUMNS
        return uint32(ty), uint32(tx)

    return place


def make_read(tile: Tile, skew: int = 0) -> Any:
    """s08's ``read`` of step k, from where in shared memory the thread's own runs of that slice
    begin. Rows of S_I are ``skew`` longer than the tile is wide."""
    M_B, M_T, N_T, ROWS, COLUMNS = tile.M_B, tile.M_T, tile.N_T, tile.rows, tile.columns
    PITCH = tile.N_B + skew

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def read(S_F, S_I, at_F, at_I, k, R_F, R_I):
        for i in range(0, M_T, RUN):
            run = load4(S_F, at_F + (k * M_B + i * ROWS))
            R_F[i], R_F[i + 1], R_F[i + 2], R_F[i + 3] = run
        for j in range(0, N_T, RUN):
            run = load4(S_I, at_I + (k * PITCH + j * COLUMNS))
            R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = run

    return read


def make_compute(tile: Tile, read: Any) -> Any:
    """All steps of a slice but the last product: read step k + 1 while step k is multiplied. The
    registers that step K_B - 1 is in are R_F0 and R_I0 for an odd K_B, R_F1 and R_I1 else."""
    multiply = make_multiply(tile)

    def steps_from(k: int) -> Any:
        if k == tile.K_B - 1:

            @cuda.jit(device=True, **gpu_only(forceinline=True))
            def nothing(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
                pass

            return nothing
        following = steps_from(k + 1)

        @cuda.jit(device=True, **gpu_only(forceinline=True))
        def step(S_F, S_I, at_F, at_I, R_F0, R_I0, R_F1, R_I1, R_O):
            read(S_F, S_I, at_F, at_I, k + 1, R_F1, R_I1)
            multiply(R_F0, R_I0, R_O)
            following(S_F, S_I, at_F, at_I, R_F1, R_I1, R_F0, R_I0, R_O)

        return step

    return steps_from(0)
