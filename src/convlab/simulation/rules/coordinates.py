"""Coordinates of blocks and threads: their sizes as a program gives them, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convlab.support.values import entries_of, integer, shown

Coordinates = tuple[int, int, int]


def coordinates_of(number: int, shape: Coordinates) -> Coordinates:
    """Return the x, y, z of the thread of a block, or block of a grid, with that number; x runs
    first."""
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


def three(size: object, what: str) -> Coordinates:
    """Return a grid's or a block's sizes along x, y and z. Raises ``TypeError`` or ``ValueError``
    for anything but one to three integers from 1 on."""
    if isinstance(size, np.ndarray):
        size = size.tolist()
    sizes, whole = [size], None
    if isinstance(size, Sequence) and not isinstance(size, str):
        if (entries := entries_of(what, size, (1, 2, 3))) is None:
            raise ValueError(f"{what} is {shown(size)}: it has one to three sizes, x, y and z")
        sizes, whole = entries, size
    x, y, z = [*(integer(what, one, at_least=1, whole=whole) for one in sizes), 1, 1][:3]
    return x, y, z
