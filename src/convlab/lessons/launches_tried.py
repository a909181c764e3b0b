"""Launches that a kernel is tried on, and what those with wrong answers may share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from convlab.lessons.feedback import Mistake
from convlab.simulation.rules.memory_traffic import WARP
from convlab.tracing import LaunchTrace


class On(NamedTuple):
    """A launch to try a kernel on: its grid, its block and its input arrays."""

    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    inputs: tuple[np.ndarray, ...]


class Tried(NamedTuple):
    """A launch that a kernel was tried on: its trace, its mistakes by cause, its output.

    ``right`` is what the output should be. ``ended`` is False if the launch could not go on.
    """

    launch: On
    trace: LaunchTrace
    mistakes: dict[Any, Mistake]
    output: np.ndarray
    right: np.ndarray
    ended: bool


def _count(shape: int | tuple[int, ...]) -> int:
    return math.prod(shape) if isinstance(shape, tuple) else shape


def threads_along(launch: On, axis: int) -> int:
    """Return how many threads a launch has along an axis: 0 for x, across; 1 for y, down."""
    grid, block = (
        sizes if isinstance(sizes, tuple) else (sizes,) for sizes in (launch.grid, launch.block)
    )
    return math.prod(sizes[axis] for sizes in (grid, block) if axis < len(sizes))


def _last_block_is_partly_full(launch: On, dimensions: int) -> bool:
    """Return whether blocks and first input have so many dimensions, and the input's rows are not a
    multiple of the block's width."""
    block = launch.block if isinstance(launch.block, tuple) else (launch.block,)
    if not launch.inputs or {len(block), launch.inputs[0].ndim} != {dimensions}:
        return False
    return bool(launch.inputs[0].shape[-1] % block[0])


LARGER_BLOCKS = f"blocks of more than {WARP} threads"
# What launches with wrong answers may share. Properties that say more come first.
OF_LAUNCHES: dict[str, Callable[[Tried], bool]] = {
    "several blocks": lambda one: _count(one.launch.grid) > 1,
    LARGER_BLOCKS: lambda one: _count(one.launch.block) > WARP,
    "more threads than results": lambda one: (
        _count(one.launch.grid) * _count(one.launch.block) > one.right.size
    ),
    "a length that is not a multiple of the block's": lambda one: _last_block_is_partly_full(
        one.launch, dimensions=1
    ),
    "a first matrix with rows that are not a multiple of the block's width": lambda one: (
        _last_block_is_partly_full(one.launch, dimensions=2)
    ),
    "different numbers of rows and columns": lambda one: len({*one.right.shape}) > 1,
    "blocks that are not square": lambda one: (
        isinstance(one.launch.block, tuple) and len({*one.launch.block}) > 1
    ),
}


def properties(right: Sequence[Tried]) -> dict[str, Callable[[Tried], bool]]:
    """Return what launches with wrong answers may share, after the size of a block that all right
    ones have: a kernel that has this size as a constant is wrong for any other."""
    sizes = {_count(one.launch.block) for one in right}
    if len(sizes) != 1:
        return OF_LAUNCHES
    (size,) = sizes
    others = {name: test for name, test in OF_LAUNCHES.items() if name != LARGER_BLOCKS}
    return {
        f"blocks that do not have {size} threads": lambda one: _count(one.launch.block) != size,
        **others,
    }
