"""The type of indices, and which part of a block tile a thread has."""

from __future__ import annotations

from typing import Any

from numba import cuda, int64, uint32

from convlab.device.intrinsics import gpu_only


def index_type(largest: int) -> Any:
    """The type for numbers up to ``largest``: 32 bits if they suffice, because they divide
    faster."""
    return uint32 if largest < 2**32 else int64


def make_warp_tile(ROWS: int, COLUMNS: int) -> Any:
    """``row_and_column(t)``: the thread's place among ROWS x COLUMNS threads, so that a warp is
    4 x 8 where that divides them: lanes (0, 0), (1, 0), (0, 1), ... s10c gives the reason."""
    BY_WARPS, WARPS_N = ROWS % 4 == COLUMNS % 8 == 0, max(1, COLUMNS // 8)

    @cuda.jit(device=True, **gpu_only(forceinline=True))
    def row_and_column(t):  # type: ignore[no-untyped-def]
        if BY_WARPS:
            warp, lane = t // 32, t % 32
            ty = warp // WARPS_N * 4 + lane // 16 * 2 + lane % 2
            tx = warp % WARPS_N * 8 + lane % 16 // 2
        else:
            ty, tx = t // COLUMNS, t % COLUMNS
        return uint32(ty), uint32(tx)

    return row_and_column
