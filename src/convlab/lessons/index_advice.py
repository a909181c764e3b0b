"""Advice on an index that is outside of an array, by the text of the access."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import combinations

from convlab.lessons.missing_barriers import function_around, loops_around

OF_THE_GRID = ("cuda.grid(", "cuda.blockIdx")
RANGE_WITH_A_STEP = 3  # arguments
# Ends of names that stand for two directions.
OPPOSITES = ({"h", "w"}, {"row", "column"}, {"rows", "columns"}, {"x", "y"}, {"i", "j"})


def index_advice(
    file: str, line: int, array: str, numbers: Sequence[int], shape: Sequence[int], memory: str
) -> str:
    """Return advice on an access with these indices to an array of this shape.

    ``memory`` is ``shared`` or ``local`` for an array that the kernel makes, otherwise empty. Empty
    if nothing more is known than that the index is outside.
    """
    accesses = _accesses(file, line, array, len(shape))
    outside = [axis for axis, size in enumerate(shape) if not 0 <= numbers[axis] < size]
    if not accesses or not outside:
        return ""
    axis = outside[0]
    if memory == "shared":
        starts = _starts_of_slices(file, line)
        for access in accesses:
            names = {node.id for node in ast.walk(access[axis]) if isinstance(node, ast.Name)}
            if begun := sorted(names & starts):
                return (
                    f"{array} holds one slice at a time, so its indices begin at 0 in every pass "
                    f"of the loop over {begun[0]}: leave {begun[0]} out of the index. Here "
                    f"{ast.unparse(access[axis])} must stay below {shape[axis]}."
                )
    if len(accesses) == 1 and (swapped := _swapped(accesses[0], numbers, shape)) is not None:
        one, other = swapped
        otherwise = "correct the index" if memory else f"guard the access with the size of {array}"
        return f"Are {one} and {other} swapped? Exchanged, they are inside. If not, {otherwise}."
    if not memory:
        return ""
    of_the_grid = [one[axis] for one in accesses if _of_the_grid(file, line, one[axis])]
    named = of_the_grid if memory == "shared" and of_the_grid else [one[axis] for one in accesses]
    below = f"{ast.unparse(named[0]) if len(named) == 1 else 'the index'} must stay below"
    if memory == "shared" and of_the_grid:
        return (
            f"Each block has {array} to itself, so its indices begin at 0 in every block: index it "
            "with cuda.threadIdx, not with the thread's number in the whole grid. Here "
            f"{below} {shape[axis]}."
        )
    return (
        f"Is the index right? Here {below} {shape[axis]}. Make {array} larger only if the task "
        "needs more elements than it has."
    )


def _accesses(file: str, line: int, array: str, dimensions: int) -> list[list[ast.expr]]:
    """Return the indices of each different access of a line to an array."""
    function = function_around(file, line)
    found: dict[str, list[ast.expr]] = {}
    for node in [] if function is None else ast.walk(function):
        if (
            isinstance(node, ast.Subscript)
            and node.lineno <= line <= (node.end_lineno or 0)
            and ast.unparse(node.value) == array
        ):
            entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if len(entries) == dimensions:
                found[ast.unparse(node)] = entries
    return list(found.values())


def _swapped(
    index: Sequence[ast.expr], numbers: Sequence[int], shape: Sequence[int]
) -> tuple[str, str] | None:
    """Return two indices that are inside if they are exchanged, and with them all others."""
    computed = [axis for axis, one in enumerate(index) if not isinstance(one, ast.Constant)]
    nearest = sorted(combinations(computed, 2), key=lambda pair: pair[1] - pair[0])
    for one, other in nearest:
        if len(index) > 2 and not _alike(index[one], index[other]):
            continue
        exchanged = list(numbers)
        exchanged[one], exchanged[other] = numbers[other], numbers[one]
        if all(0 <= number < size for number, size in zip(exchanged, shape, strict=True)):
            return ast.unparse(index[one]), ast.unparse(index[other])
    return None


def _alike(one: ast.expr, other: ast.expr) -> bool:
    """Return whether two indices are names that are easily taken for each other: ``o_h`` and
    ``o_w``, ``i_c`` and ``o_c``, ``row`` and ``column``.

    In an array of many dimensions some exchange nearly always leads inside, because most numbers
    are small. So the names must speak for it, too.
    """
    if not (isinstance(one, ast.Name) and isinstance(other, ast.Name)):
        return False
    (first, _, first_of), (second, _, second_of) = (
        name.rpartition("_") for name in (one.id, other.id)
    )
    if first == second and {first_of, second_of} in OPPOSITES:
        return True
    return bool(first) and bool(second) and first_of == second_of


def _starts_of_slices(file: str, line: int) -> set[str]:
    """Return the variables of loops over slices around a line: of loops that count in steps, as
    ``for k0 in range(0, K, K_B)`` does, and in which the threads wait for each other."""
    function = function_around(file, line)
    loops = [] if function is None else loops_around(function, line)
    return {
        loop.target.id
        for loop in loops
        if isinstance(loop, ast.For)
        and isinstance(loop.target, ast.Name)
        and isinstance(loop.iter, ast.Call)
        and ast.unparse(loop.iter.func) == "range"
        and len(loop.iter.args) == RANGE_WITH_A_STEP
        and "syncthreads" in ast.unparse(loop)
    }


def _of_the_grid(file: str, line: int, index: ast.expr) -> bool:
    """Return whether an index is computed from the thread's number in the whole grid."""
    function = function_around(file, line)
    names = {node.id for node in ast.walk(index) if isinstance(node, ast.Name)}
    if any(call in ast.unparse(index) for call in OF_THE_GRID):
        return True
    for node in [] if function is None else ast.walk(function):
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node):
                grid = any(call in ast.unparse(value) for call in OF_THE_GRID)
                if grid and isinstance(target, ast.Name) and target.id in names:
                    return True
    return False


def _pairs(assignment: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets of an assignment, each with its value."""
    target, value = assignment.targets[0], assignment.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    return [(one, value) for one in targets]
