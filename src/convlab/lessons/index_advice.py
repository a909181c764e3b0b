"""Advice on an index that is outside of an array, by the text of the access."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import combinations

from convlab.lessons.missing_barriers import function_around, loops_around

OF_THE_GRID = ("cuda.grid(", "cuda.blockIdx")
RANGE_WITH_A_STEP = 3  # arguments
OF_FLOAT4S = ("load4", "store4")  # calls with an array and an index
LEAVE = (ast.Return, ast.Continue, ast.Break)
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
    pair = _swapped(accesses[0], numbers, shape) if len(accesses) == 1 else None
    told = _in_memory(file, line, array, accesses, axis, shape[axis], memory)
    if not told and len(accesses) == 1:
        told = _too_weak(file, line, accesses[0][axis], numbers[axis], array, shape[axis])
    if pair is None:
        return told
    one, other = pair
    of_a_loop = _loop_of(file, line, accesses[0][axis]) is not None
    between = f"{ast.unparse(one)} and {ast.unparse(other)} swapped? Exchanged, they are inside."
    if _alike(one, other) and not of_a_loop:
        otherwise = "correct the index" if memory else f"guard the access with the size of {array}"
        return f"Are {between} If not, {otherwise}."
    told = told or f"Guard the access with the size of {array}, or correct the index."
    return f"{told} Or are {between}"


def _too_weak(file: str, line: int, index: ast.expr, number: int, array: str, size: int) -> str:
    """Return which condition lets through an index that is outside; empty if none tests it."""
    function = function_around(file, line)
    names = {node.id for node in ast.walk(index) if isinstance(node, ast.Name)}
    guards = [] if function is None else _conditions_of(function.body, line)
    for guard in reversed(guards):
        if names & {node.id for node in ast.walk(guard.test) if isinstance(node, ast.Name)}:
            return (
                f"The condition in line {guard.lineno} lets {ast.unparse(index)} = {number} "
                f"through, and {array} has the indices 0 to {size - 1} there: correct the "
                "condition, or the index."
            )
    return ""


def _conditions_of(body: Sequence[ast.stmt], line: int) -> list[ast.If]:
    """Return the conditions that a thread has passed when it comes to a line below ``body``: of the
    branches around the line, and of branches above it that a thread does not leave."""
    found: list[ast.If] = []
    for statement in body:
        if not statement.lineno <= line <= (statement.end_lineno or 0):
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], LEAVE):
                found += [statement] if statement.lineno < line else []
            continue
        for inside in (getattr(statement, "body", []), getattr(statement, "orelse", [])):
            if inside and inside[0].lineno <= line <= (inside[-1].end_lineno or 0):
                if isinstance(statement, ast.If) and inside is statement.body:
                    found.append(statement)
                found += _conditions_of(inside, line)
    return found


def _in_memory(
    file: str, line: int, array: str, accesses: Sequence[Sequence[ast.expr]], axis: int, size: int,
    memory: str,
) -> str:  # fmt: skip
    """Return what an index must be along the axis where it is outside. Empty if nothing is known of
    it, as in global memory, where a guard may be missing."""
    of_the_grid = [one[axis] for one in accesses if _of_the_grid(file, line, one[axis])]
    named = of_the_grid if memory == "shared" and of_the_grid else [one[axis] for one in accesses]
    said = ast.unparse(named[0]) if len(named) == 1 else "the index"
    if len(named) == 1 and (loop := _loop_of(file, line, named[0])) is not None:
        said += f", which the loop in line {loop} counts,"
        if not memory:
            return f"Here {said} must stay below {size}."
    if not memory:
        return ""
    if memory == "shared" and of_the_grid:
        return (
            f"Each block has {array} to itself, so its indices begin at 0 in every block: index it "
            "with cuda.threadIdx, not with the thread's number in the whole grid. Here "
            f"{said} must stay below {size}."
        )
    return (
        f"Is the index right? Here {said} must stay below {size}. Make {array} larger only if the "
        "task needs more elements than it has."
    )


def _loop_of(file: str, line: int, index: ast.expr) -> int | None:
    """Return the line of the loop around a line that counts the index, if it is such a variable."""
    function = function_around(file, line)
    for loop in [] if function is None else loops_around(function, line):
        if isinstance(loop, ast.For) and ast.unparse(loop.target) == ast.unparse(index):
            return loop.lineno
    return None


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
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in OF_FLOAT4S:
            if len(node.args) > 1 and node.lineno <= line <= (node.end_lineno or 0):
                index = node.args[1]
                entries = index.elts if isinstance(index, ast.Tuple) else [index]
                if ast.unparse(node.args[0]) == array and len(entries) == dimensions:
                    found[ast.unparse(node)] = entries
    return list(found.values())


def _swapped(
    index: Sequence[ast.expr], numbers: Sequence[int], shape: Sequence[int]
) -> tuple[ast.expr, ast.expr] | None:
    """Return two indices that are inside if they are exchanged, and with them all others. Of three
    and more dimensions only indices with names alike."""
    computed = [axis for axis, one in enumerate(index) if not isinstance(one, ast.Constant)]
    nearest = sorted(combinations(computed, 2), key=lambda pair: pair[1] - pair[0])
    for one, other in nearest:
        if len(index) > 2 and not _alike(index[one], index[other]):
            continue
        exchanged = list(numbers)
        exchanged[one], exchanged[other] = numbers[other], numbers[one]
        if all(0 <= number < size for number, size in zip(exchanged, shape, strict=True)):
            return index[one], index[other]
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
