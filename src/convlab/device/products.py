"""The products of tensor cores in NumPy, for the simulators.

Matrices are spread over a warp's 32 lanes, each of which holds a fragment:
:func:`convlab.device.mma_tf32` and :mod:`convlab.device.tensor_core` say which. In a warpgroup each
of the four warps multiplies 16 of the 64 rows, with the same matrix on the right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

WARP = 32
M, N, K = 16, 8, 8
MULTIPLY_ADDS = M * N * K  # of one instruction, by all lanes together
WARPGROUP = 4 * WARP
ROWS, TERMS = 16, 16  # of a warp's matrix on the left of a warpgroup's product
MOST_COLUMNS = 256
SIZES = {"a": 4, "b": 2, "c": 4}  # how many numbers a lane has of each

# By lane: group_id and thread_in_group, PTX's groupID and threadID_in_group.
_GROUP, _THREAD = np.divmod(np.arange(WARP), 4)
_TF32_BITS, _HALF = np.uint32(0xFFFFE000), np.uint32(0x1000)  # half of its last place
_NUMBER_BITS = memoryview(bytearray(4)).cast("I")
_NUMBER = _NUMBER_BITS.cast("B").cast("f")  # the same four bytes; storing rounds, with no warning
# Exponents in a tensor core: subnormal numbers have the first, sums at least the second. Zero has
# no exponent, so it gets the third, which is below all others.
_SUBNORMAL, _LEAST, _NONE = -126, -133, -1000
# Where the numbers of the lanes' fragments are in the matrices: rows, columns, by lane and number.
_A = np.stack([_GROUP, _GROUP + 8] * 2, 1), np.stack([_THREAD] * 2 + [_THREAD + 4] * 2, 1)
_B = np.stack([_THREAD, _THREAD + 4], 1), np.stack([_GROUP] * 2, 1)
_C = np.stack([_GROUP] * 2 + [_GROUP + 8] * 2, 1), np.stack([2 * _THREAD, 2 * _THREAD + 1] * 2, 1)


def _positions(
    shape: tuple[int, int], where: tuple[np.ndarray, np.ndarray], first: int
) -> np.ndarray:
    """Return, for each matrix element, its position in the concatenated fragments of all lanes.
    ``first`` is where this matrix begins in one lane's fragments."""
    positions = np.empty(shape, np.int64)
    count = where[0].shape[1]
    positions[where] = np.arange(WARP)[:, None] * sum(SIZES.values()) + first + np.arange(count)
    return positions


# Of A, B and C, whose fragments follow each other in each lane.
_POSITIONS = (
    _positions((M, K), _A, 0),
    _positions((K, N), _B, SIZES["a"]),
    _positions((M, N), _C, SIZES["a"] + SIZES["b"]),
)
# The same for the eight numbers of a warpgroup's matrix on the left.
_LEFT = (
    np.stack([_GROUP, _GROUP + 8] * 4, 1),
    np.stack([_THREAD + k for k in (0, 0, 4, 4, 8, 8, 12, 12)], 1),
)

Float: TypeAlias = float | np.floating
Fragment: TypeAlias = Sequence[Float]
Fragments = tuple[Fragment, Fragment, Fragment]  # a lane's of A, B and C
Brought = tuple[Fragment, Fragment, np.ndarray]  # a lane's large and small parts of A, and B
BroughtToSum = tuple[Fragment, np.ndarray, Fragment]  # a lane's part of A, B, and its sums


def checked_fragments(a: object, b: object, c: object) -> Fragments:
    """Return the three fragments. Raises ``TypeError`` unless each has as many numbers as a lane
    holds of it."""
    found: list[tuple[Any, ...]] = []
    for (name, size), numbers in zip(SIZES.items(), (a, b, c), strict=True):
        if not isinstance(numbers, tuple) or len(numbers) != size:
            what = type(numbers).__name__
            if isinstance(numbers, tuple):
                what = f"a tuple of {len(numbers)}"
            raise TypeError(f"mma_tf32: {name} is {what}, but must be a tuple of {size}")
        found.append(numbers)
    a_numbers, b_numbers, c_numbers = found
    return a_numbers, b_numbers, c_numbers


def warp_mma(lanes: Mapping[int, Fragments]) -> dict[int, tuple[float, ...]]:
    """Return each lane's numbers of D. The numbers of a missing lane are NaN."""
    with np.errstate(all="ignore"):  # a GPU says nothing when numbers overflow or become NaN
        brought = np.full((WARP, sum(SIZES.values())), np.nan, np.float32)
        brought[[*lanes]] = np.array([(*a, *b, *c) for a, b, c in lanes.values()], np.float64)
        left, right, total = (brought.take(positions) for positions in _POSITIONS)
        result = multiply_add(left, right, total)[_C].tolist()
    return {lane: tuple(result[lane]) for lane in lanes}


def multiply_add(left: np.ndarray, right: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return ``left @ right + total`` of float32 matrices as an H200's tensor cores compute it.

    The eight products and the number that they are added to are aligned to the largest exponent
    among them, cut 25 bits below it and added exactly; the sum is cut to float32. A product's
    exponent is the sum of its factors' exponents. Experiments showed all this, as they did for
    earlier GPUs in Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores"
    (2021).
    """
    left, right = (without_last_bits(matrix).astype(np.float64) for matrix in (left, right))
    total = total.astype(np.float64)
    products = left.T[:, :, None] * right[:, None, :]
    terms = np.concatenate([products, total[None]])
    exponents = np.concatenate([
        _exponents(left).T[:, :, None] + _exponents(right)[:, None, :], _exponents(total)[None],
    ])  # fmt: skip
    unit = np.ldexp(1.0, np.maximum(exponents.max(axis=0), _LEAST) - 25)
    return cut_toward_zero(np.trunc(terms / unit).sum(axis=0) * unit + 0.0)  # no negative zero


def rounded_to_tf32(value: Float) -> np.float32:
    """Return the nearest number of TF32, ties away from zero. Infinities and NaN stay
    themselves."""
    with np.errstate(all="ignore"):
        number = np.float32(value)
    if not np.isfinite(number):
        return number
    return np.float32(((number.view(np.uint32) + _HALF) & _TF32_BITS).view(np.float32))


def split_into_tf32(value: Float) -> tuple[np.float32, np.float32]:
    """Emulate ``split_tf32``: return the value rounded to TF32, ties away from zero, and the
    rest."""
    # In plain Python, which takes a quarter of NumPy's time: a kernel's innermost loop calls this.
    _NUMBER[0] = value  # type: ignore[assignment]  # takes NumPy's numbers too
    number = _NUMBER[0]
    _NUMBER_BITS[0] = (_NUMBER_BITS[0] + 0x1000) & 0xFFFFE000  # without what a NaN carries over
    large = _NUMBER[0]
    return np.float32(large), np.float32(number - large)


def _matrix(
    shape: tuple[int, int],
    where: tuple[np.ndarray, np.ndarray],
    lanes: list[int],
    numbers: np.ndarray | Sequence[Fragment],
) -> np.ndarray:
    """Return the matrix whose numbers these lanes hold."""
    matrix = np.full(shape, np.nan, np.float32)
    rows, columns = (axis[lanes] for axis in where)
    matrix[rows, columns] = numbers
    return matrix


def without_last_bits(matrix: np.ndarray) -> np.ndarray:
    """Return the matrix without the 13 bits of a float32 that TF32 lacks and tensor cores
    ignore."""
    return (matrix.view(np.uint32) & _TF32_BITS).view(np.float32)


def _exponents(matrix: np.ndarray) -> np.ndarray:
    return np.where(matrix == 0, _NONE, np.maximum(np.frexp(matrix)[1] - 1, _SUBNORMAL))


def cut_toward_zero(total: np.ndarray) -> np.ndarray:
    """Return the total cut to float32, as a tensor core does; other units round to the nearest."""
    nearest = total.astype(np.float32)
    beyond = (np.abs(nearest.astype(np.float64)) > np.abs(total)) & (np.abs(total) < 2.0**128)
    return np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest)


def check_width(N: int) -> None:
    """Raise ``ValueError`` for a number of columns that the instruction does not have."""
    if N % 8 or not 8 <= N <= MOST_COLUMNS:
        raise ValueError(f"N is {N}: it must be a multiple of 8, up to {MOST_COLUMNS}")


def warp_product(lanes: Mapping[int, Brought]) -> dict[int, list[float]]:
    """Return each lane's numbers of the product.

    A lane brings its large parts, its small ones, and the numbers of B; the first lane's B counts.
    The numbers of a missing lane are NaN."""
    with np.errstate(all="ignore"):  # a GPU says nothing when numbers overflow or become NaN
        left = (ROWS, TERMS), _LEFT, [*lanes]
        large = _matrix(*left, [numbers for numbers, _, _ in lanes.values()])
        small = _matrix(*left, [numbers for _, numbers, _ in lanes.values()])
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
    result = total[_coordinates_of_sums(columns)]
    return {lane: result[lane].tolist() for lane in lanes}


def warp_sum(lanes: Mapping[int, BroughtToSum]) -> dict[int, list[float]]:
    """Return each lane's sums after a product of TF32 is added to them.

    A lane brings its numbers of A, those of B, and its sums; the first lane's B counts. The numbers
    of a missing lane are NaN."""
    with np.errstate(all="ignore"):
        present = [*lanes]
        left = _matrix((ROWS, TERMS), _LEFT, present, [numbers for numbers, _, _ in lanes.values()])
        right = next(iter(lanes.values()))[1]
        columns = right.size // TERMS
        # [terms // 8, terms // 4 % 2, column, term % 4], the columns last
        right = right.reshape(2, 2, columns, 4).transpose(0, 1, 3, 2).reshape(TERMS, columns)
        coordinates, sums = (
            _coordinates_of_sums(columns),
            [numbers for _, _, numbers in lanes.values()],
        )
        total = _matrix((ROWS, columns), coordinates, present, sums)
        for terms in slice(0, 8), slice(8, 16):
            total = multiply_add(left[:, terms], right[terms], total)
    result = total[coordinates]
    return {lane: result[lane].tolist() for lane in lanes}


def _coordinates_of_sums(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the columns of each lane's sums in a warp's product."""
    eights = 8 * np.arange(columns // 8)[None, :, None]
    row = np.tile(_C[0], (1, columns // 8))
    return row, (eights + _C[1][:, None, :]).reshape(WARP, -1)
