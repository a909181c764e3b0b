"""The properties that the wrong ones of several cases share, and the right ones lack.

That eleven of sixteen problems fail says little. That those eleven have padding, and no other has,
says where to look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from convlab.ladder import Tile
from convlab.problems.problem import ConvProblem

Case = TypeVar("Case")
Properties = Mapping[str, Callable[[Case], bool]]
FEWEST = 2  # right cases, at least: with one alone, all that differs from it seems to matter
MOST = 3  # properties that are named


class Launched(NamedTuple):
    """A problem, the tile that it runs with, and the blocks of the main kernel's launch."""

    problem: ConvProblem
    tile: Tile | None
    blocks: int


def _of(test: Callable[[ConvProblem], bool]) -> Callable[[Launched], bool]:
    return lambda case: test(case.problem)


def _by_tile(test: Callable[[ConvProblem, Tile], bool]) -> Callable[[Launched], bool]:
    return lambda case: case.tile is not None and test(case.problem, case.tile)


# Those that say more come first.
OF_PROBLEMS: dict[str, Callable[[Launched], bool]] = {
    "padding": _of(lambda p: max(map(max, p.padding)) > 0),
    "dilation": _of(lambda p: _dilated(p, 0) or _dilated(p, 1)),
    "a stride larger than 1": _of(lambda p: max(p.stride) > 1),
    "groups": _of(lambda p: p.groups > 1),
    "several blocks": lambda case: case.blocks > 1,
    "sums of several terms": _of(lambda p: p.K > 1),
    "several images": _of(lambda p: p.batch > 1),
    "several input channels": _of(lambda p: p.in_channels > 1),
    "several output channels": _of(lambda p: p.out_channels > 1),
    "tiles with several output channels": _by_tile(lambda p, tile: min(p.M, tile.M_B) > 1),
    "tiles with several windows": _by_tile(lambda p, tile: min(p.N, tile.N_B) > 1),
    "tiles with several rows of threads": _by_tile(lambda p, tile: p.M > 1 and tile.rows > 1),
    "more output channels than the tile has rows of threads": _by_tile(
        lambda p, tile: tile.rows < p.M
    ),
    "more windows than the tile has columns of threads": _by_tile(
        lambda p, tile: tile.columns < p.N
    ),
    "more output channels than four times the rows of threads": _by_tile(
        lambda p, tile: 4 * tile.rows < p.M
    ),
    "more windows than four times the columns of threads": _by_tile(
        lambda p, tile: 4 * tile.columns < p.N
    ),
    "more terms (K) than a slice": _by_tile(lambda p, tile: p.K > tile.K_B),
    "more output channels than a tile": _by_tile(lambda p, tile: p.M > tile.M_B),
    "more windows than a tile": _by_tile(lambda p, tile: p.N > tile.N_B),
    "slices of more than 8 terms": _by_tile(lambda p, tile: tile.K_B > 8),
    "a last slice that is not full": _by_tile(lambda p, tile: p.K % tile.K_B > 0),
    "a last tile without all rows": _by_tile(lambda p, tile: p.M % tile.M_B > 0),
    "a last tile without all columns": _by_tile(lambda p, tile: p.N % tile.N_B > 0),
    "padding above": _of(lambda p: p.padding[0][0] > 0),
    "padding below": _of(lambda p: p.padding[0][1] > 0),
    "padding above or below": _of(lambda p: max(p.padding[0]) > 0),
    "padding on the left": _of(lambda p: p.padding[1][0] > 0),
    "padding on the right": _of(lambda p: p.padding[1][1] > 0),
    "padding on the left or right": _of(lambda p: max(p.padding[1]) > 0),
    "dilation along the height": _of(lambda p: _dilated(p, 0)),
    "dilation along the width": _of(lambda p: _dilated(p, 1)),
    "a stride larger than 1 along the height": _of(lambda p: p.stride[0] > 1),
    "a stride larger than 1 along the width": _of(lambda p: p.stride[1] > 1),
    "a filter of several rows": _of(lambda p: p.kernel_size[0] > 1),
    "a filter of several columns": _of(lambda p: p.kernel_size[1] > 1),
    "a filter that is not square": _of(lambda p: p.kernel_size[0] != p.kernel_size[1]),
    "unequal padding": _of(lambda p: len({*p.padding[0], *p.padding[1]}) > 1),
    "unequal strides": _of(lambda p: p.stride[0] != p.stride[1]),
    "unequal dilations": _of(lambda p: p.dilation[0] != p.dilation[1]),
    "an output of several rows": _of(lambda p: p.H_o > 1),
    "an output of several columns": _of(lambda p: p.W_o > 1),
    "an output that is not square": _of(lambda p: p.H_o != p.W_o),
}


# What a problem may have beyond a convolution with stride 1 of one image and one channel.
FEATURES = (
    "padding", "dilation", "a stride larger than 1", "groups", "several images",
    "several input channels", "several output channels",
)  # fmt: skip


def features(problem: ConvProblem) -> str:
    """Return what a problem has beyond the simplest convolution, in words."""
    case = Launched(problem, None, 1)
    found = [name for name in FEATURES if OF_PROBLEMS[name](case)]
    if not found:
        return "stride 1, one image and one channel"
    *first, last = found
    return f"{', '.join(first)} and {last}" if first else last


def numbers_in(problem: ConvProblem) -> int:
    """Return the numbers that a problem's input, filters and output have together."""
    shapes = problem.input_shape, problem.weight_shape, problem.output_shape
    return sum(map(math.prod, shapes))


def _dilated(problem: ConvProblem, axis: int) -> bool:
    return problem.dilation[axis] > 1 and problem.kernel_size[axis] > 1


def shared(
    wrong: Sequence[Case], right: Sequence[Case], properties: Properties[Case]
) -> tuple[str, ...]:
    """Return the properties that all of ``wrong`` have and none of ``right``, the first few; if
    there are none, two that all of ``wrong`` have and none of ``right`` has both of.

    Empty if too few cases are right to tell.
    """
    if not wrong or len(right) < FEWEST:
        return ()
    common = [name for name, test in properties.items() if all(map(test, wrong))]
    alone: list[str] = []
    for name in common:
        implied = any(other in name for other in alone)  # padding by "padding above or below"
        if not implied and not any(map(properties[name], right)):
            alone.append(name)
    if alone:
        return tuple(alone[:MOST])
    for pair in combinations(common, 2):
        if not any(all(properties[name](case) for name in pair) for case in right):
            return pair
    return ()


def said(names: Sequence[str], wrong: int, what: str) -> str:
    """Return the sentence about shared properties; ``what`` is the plural of a case's name."""
    if not names:
        return ""
    *first, last = names
    listed = f"{', '.join(first)} and {last}" if first else last
    if wrong == 1:
        return f"It is the only one of the {what} with {listed}."
    neither = "has both" if len(names) == 2 else "has all of these" if first else "has that"
    return f"All of them have {listed}; none of the {what} that are right {neither}."
