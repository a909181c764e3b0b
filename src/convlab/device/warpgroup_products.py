"""What a warpgroup's tensor cores compute, in NumPy: for the simulators, which have none.

Where the matrices lie, :mod:`convlab.device.warpgroup` says. Each of the four warps multiplies 16
of the 64 rows, with the same matrix on the right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convlab.device.fragments import WARP, multiply_add

WARPGROUP = 4 * WARP
ROWS, TERMS = 16, 16  # of a warp's matrix on the left
MOST_COLUMNS = 256

_GROUP, _MEMBER = np.divmod(np.arange(WARP), 4)
# Where a lane's eight numbers are in that matrix: rows, columns.
_A = (
    np.stack([_GROUP, _GROUP + 8] * 4, 1),
    np.stack([_MEMBER + k for k in (0, 0, 4, 4, 8, 8, 12, 12)], 1),
)

Brought = tuple[Sequence[Any], Sequence[Any], np.ndarray]


def check_width(N: int) -> None:
    """Raise ``ValueError`` for a number of columns that the instruction does not have."""
    if N % 8 or not 8 <= N <= MOST_COLUMNS:
        raise ValueError(f"N is {N}: it must be a multiple of 8, up to {MOST_COLUMNS}")


def warp_product(lanes: Mapping[int, Brought]) -> dict[int, list[float]]:
    """Each lane's numbers of the product. A lane brings its large parts, its small ones, and the
    numbers of B, which is the first lane's; what a lane would bring that is not there is NaN."""
    lefts = {lane: (large, small) for lane, (large, small, _) in lanes.items()}
    with np.errstate(all="ignore"):  # a GPU says nothing when numbers overflow or become NaN
        large, small = (
            _left({lane: numbers[which] for lane, numbers in lefts.items()}) for which in (0, 1)
        )
        right = next(iter(lanes.values()))[2]
        columns = right.size // (2 * TERMS)
        # [terms // 8, part, terms // 4 % 2, column, term % 4], the columns last
        parts = right.reshape(2, 2, 2, columns, 4).transpose(1, 0, 2, 4, 3)
        large_b, small_b = parts.reshape(2, TERMS, columns)
        total = np.zeros((ROWS, columns), np.float32)
        first, second = slice(0, 8), slice(8, 16)
        for a, b, terms in (
            (small, large_b, first), (large, small_b, first),
            (small, large_b, second), (large, small_b, second),
            (large, large_b, first), (large, large_b, second),
        ):  # fmt: skip
            total = multiply_add(a[:, terms], b[terms], total)
    row, column = _places(columns)
    result = total[row, column]
    return {lane: result[lane].tolist() for lane in lanes}


def _places(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a lane's numbers are in the product: rows, columns."""
    first = 8 * np.arange(columns // 8)
    row = np.stack([_GROUP, _GROUP, _GROUP + 8, _GROUP + 8], 1)
    column = np.stack([2 * _MEMBER, 2 * _MEMBER + 1] * 2, 1)
    return (
        np.tile(row, (1, len(first))),
        (first[None, :, None] + column[:, None, :]).reshape(WARP, -1),
    )


def _left(brought: Mapping[int, Sequence[Any]]) -> np.ndarray:
    matrix = np.full((ROWS, TERMS), np.nan, np.float32)
    lanes = list(brought)
    matrix[_A[0][lanes], _A[1][lanes]] = [[float(x) for x in brought[lane]] for lane in lanes]
    return matrix
