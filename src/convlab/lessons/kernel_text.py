"""Facts from the text of a learner's kernel: indices that leave out a dimension."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from inspect import signature
from typing import Any

from convlab.lessons.explanations import lines_of
from convlab.lessons.feedback import MISSING_INDEX, Problem
from convlab.lessons.missing_barriers import tree_of

NUMBERS = {1: "one dimension", 2: "two dimensions", 3: "three dimensions", 4: "four dimensions"}


def missing_index(kernel: Any, dimensions: Iterable[int]) -> Problem | None:
    """Return the problem of the first access of a kernel to an argument that has fewer indices than
    the argument has dimensions; None if there is none.

    ``dimensions`` are those of the arguments. ``a[i][j]`` has both indices of a matrix, and
    ``a[i, :]`` leaves one out on purpose.
    """
    function = kernel.py_func
    tree = tree_of(function.__code__.co_filename)
    if tree is None:
        return None
    ranks = dict(zip(signature(function).parameters, dimensions, strict=False))
    first = function.__code__.co_firstlineno
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    own = next((node for node in functions if _begins(node) == first), None)
    if own is None:
        return None
    tuples = _tuples(own)
    nodes = [node for node in ast.walk(own) if isinstance(node, ast.Subscript)]
    inner = {id(node.value) for node in nodes}
    for node in sorted(nodes, key=lambda one: (one.lineno, one.col_offset)):
        name, indices = _indices(node)
        rank = ranks.get(name, 0)
        unknown = any(_is_part(index) or ast.unparse(index) in tuples for index in indices)
        if id(node) not in inner and 0 < len(indices) < rank and not unknown:
            written = ast.unparse(node)
            count = "one index" if len(indices) == 1 else f"{len(indices)} indices"
            what = (
                f"{name} has {NUMBERS.get(rank, f'{rank} dimensions')}, and {written} gives "
                f"{count}: that is a whole part of {name}, not one number"
            )
            advice = "Give an index for each dimension."
            return Problem(
                MISSING_INDEX,
                f"{what}.",
                lines_of((function.__code__.co_filename, node.lineno)),
                advice,
            )
    return None


def _begins(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(one.lineno for one in function.decorator_list)])


def _indices(node: ast.Subscript) -> tuple[str, list[ast.expr]]:
    """Return the array of a subscript, or of a chain of them, and all indices of the chain."""
    found: list[ast.expr] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Subscript):
        entries = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
        found = [*entries, *found]
        inner = inner.value
    return (inner.id if isinstance(inner, ast.Name) else ""), found


def _tuples(function: ast.FunctionDef) -> set[str]:
    """Return the variables that hold a tuple."""
    return {
        ast.unparse(target)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and _is_tuple(node.value)
        for target in node.targets
    }


def _is_part(index: ast.expr) -> bool:
    """Return whether an index stands for several: a slice, an ellipsis, a tuple."""
    dots = isinstance(index, ast.Constant) and index.value is Ellipsis
    return dots or isinstance(index, ast.Slice | ast.Starred | ast.List) or _is_tuple(index)


def _is_tuple(value: ast.expr) -> bool:
    calls = "cuda.grid(2)", "cuda.grid(3)", "divmod("
    return isinstance(value, ast.Tuple) or ast.unparse(value).startswith(calls)
