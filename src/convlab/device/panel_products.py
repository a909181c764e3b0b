"""The products of a warpgroup from panels of shared memory in NumPy, for the simulators.

:mod:`convlab.device.swizzled_products` says what a panel is, and which thread holds which sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Protocol

import numpy as np

from convlab.device.products import WARP, WARPGROUP, cut_toward_zero, without_last_bits

PANEL_ROW_BYTES = 128  # 64 terms of 16 bits, or 32 of TF32
PANEL_ALIGNMENT = 1024  # bytes: eight rows, after which the swizzle repeats
PIECE_BYTES = 16  # what the swizzle moves
PIECES = PANEL_ROW_BYTES // PIECE_BYTES
PANEL_ROWS = 64  # rows of A's panel; B's has N rows
F16, BF16, TF32 = "f16", "bf16", "tf32"
ITEM_BYTES = {F16: 2, BF16: 2, TF32: 4}
TERMS_OF_A_STEP = {F16: 16, BF16: 16, TF32: 8}  # of one instruction


@cache
def _places(rows: int) -> np.ndarray:
    """Return where each 16-byte piece of each row lies, counted in pieces."""
    row, piece = np.arange(rows)[:, None], np.arange(PIECES)[None]
    return np.asarray(row * PIECES + (piece ^ row % PIECES))


def without_swizzle(memory: np.ndarray) -> np.ndarray:
    """Return a panel's rows, 128 bytes each, from the panel's bytes as they lie in memory."""
    rows = memory.size // PANEL_ROW_BYTES
    pieces = memory.reshape(-1, PIECE_BYTES)[_places(rows)]
    return np.asarray(pieces.reshape(rows, PANEL_ROW_BYTES))


def with_swizzle(rows: np.ndarray) -> np.ndarray:
    """Return a panel's bytes as they lie in memory, from its rows of 128 bytes."""
    pieces = np.empty((rows.shape[0] * PIECES, PIECE_BYTES), np.uint8)
    pieces[_places(rows.shape[0])] = rows.reshape(-1, PIECES, PIECE_BYTES)
    return pieces.reshape(-1)


def numbers_of(rows: np.ndarray, kind: str) -> np.ndarray:
    """Return the numbers that rows of bytes stand for, as the tensor cores read them, in
    float64."""
    if kind == F16:
        numbers = rows.view(np.float16)
    elif kind == BF16:
        numbers = (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = without_last_bits(rows.view(np.float32))
    return np.asarray(numbers.astype(np.float64))


def panel_product(
    kind: str, A: np.ndarray, B: np.ndarray, sums: np.ndarray, terms: int
) -> np.ndarray:
    """Return ``sums + A @ B.T`` in float32, for the first terms of two panels as they lie in
    memory.

    Each instruction adds the products of 16 terms of 16 bits, or of 8 of TF32, to the sums. Here
    it adds them in float64 and cuts the result to float32. Tensor cores also cut each term far
    below the largest, so the last bit of a sum may be another one on a GPU.
    """
    with np.errstate(all="ignore"):  # a GPU says nothing when numbers overflow or become NaN
        left = numbers_of(without_swizzle(A), kind)
        right = numbers_of(without_swizzle(B), kind)
        step = TERMS_OF_A_STEP[kind]
        for first in range(0, terms, step):
            some = slice(first, first + step)
            sums = cut_toward_zero(left[:, some] @ right[:, some].T + sums)
    return sums


def check_terms(name: str, kind: str, terms: int) -> None:
    """Raise ``ValueError`` for a number of terms that no product of a panel has."""
    step, most = TERMS_OF_A_STEP[kind], PANEL_ROW_BYTES // ITEM_BYTES[kind]
    if terms not in range(step, most + 1, step):
        raise ValueError(f"{name}: TERMS is {terms}: it must be a multiple of {step}, up to {most}")


@cache
def places_of_sums(N: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and the column of each thread's N / 2 sums, in the order of ``D``."""
    thread = np.arange(WARPGROUP)
    warp, lane = np.divmod(thread, WARP)
    group, in_group = np.divmod(lane, 4)
    number = np.arange(N // 2)[None]
    row = (16 * warp + group)[:, None] + number // 2 % 2 * 8
    column = 8 * (number // 4) + 2 * in_group[:, None] + number % 2
    return row, column


def sums_of(fragments: Mapping[int, Sequence[float]], N: int) -> np.ndarray:
    """Return the 64 x N sums that the threads of a warpgroup hold. Those of a missing thread are
    NaN."""
    rows, columns = places_of_sums(N)
    sums = np.full((PANEL_ROWS, N), np.nan, np.float32)
    threads = [*fragments]
    with np.errstate(all="ignore"):
        sums[rows[threads], columns[threads]] = np.array([*fragments.values()], np.float32)
    return sums


def fragments_of(sums: np.ndarray) -> list[list[float]]:
    """Return each thread's sums as Python's numbers, in the order of ``D``."""
    fragments: list[list[float]] = sums[places_of_sums(sums.shape[1])].tolist()
    return fragments


WORDS_OF_A_STEP = 4  # of A in a thread's registers: two rows, two words of each


def panel_of_words(words: Mapping[int, Sequence[int]]) -> np.ndarray:
    """Return the panel, as bytes in memory, whose numbers the threads of a warpgroup hold as words
    of two 16-bit numbers. The numbers of a missing thread are NaN."""
    rows = np.full((PANEL_ROWS, PANEL_ROW_BYTES // 4), 0x7FFF7FFF, np.uint32)
    for thread, held in words.items():
        warp, lane = divmod(thread, WARP)
        group, in_group = divmod(lane, 4)
        number = np.arange(len(held))
        step, word = np.divmod(number, WORDS_OF_A_STEP)
        row = 16 * warp + group + word % 2 * 8
        rows[row, 8 * step + in_group + word // 2 * 4] = held
    return with_swizzle(rows.view(np.uint8))


class BroughtToAll(Protocol):
    """A thread's part of a call of a warp or warpgroup that knows how all parts are computed."""

    @property
    def of_all(self) -> Callable[[Mapping[int, BroughtToAll]], Mapping[int, object]]:
        """The results by thread, from what all threads bring."""


def from_all(brought: Mapping[int, BroughtToAll]) -> Mapping[int, object]:
    """Return the results of a call, computed as the part of its first thread says."""
    return next(iter(brought.values())).of_all(brought)
