"""Slips in the text of a learner's kernel: indices that do not fit, a function not called."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any

from numba.cuda.core import config

from convlab.lessons.explanations import lines_of
from convlab.lessons.feedback import MISSING_INDEX, NOT_CALLED, REFUSED, Line, Mistake
from convlab.lessons.missing_barriers import tree_of
from convlab.lessons.pictures import joined
from convlab.running.engines.compilation import float64_lines
from convlab.tracing.branched_stores import branched_lines

NUMBERS = {1: "one dimension", 2: "two dimensions", 3: "three dimensions", 4: "four dimensions"}


def slip(kernel: Any, dimensions: Iterable[int]) -> Mistake | None:
    """Return the mistake that the text of a kernel shows: a function that is not called, or else an
    access to an argument with too few or too many indices; None if there is none.

    ``dimensions`` are those of the arguments. A slip says more than what follows from it.
    """
    function = kernel.py_func
    own = own_tree(function)
    if own is None:
        return None
    file = function.__code__.co_filename
    ranks = dict(zip(signature(function).parameters, dimensions, strict=False))
    return not_called(own, file, "cuda.") or _wrong_indices(own, file, ranks)


def float_constant(kernel: Any, types: Iterable[Any]) -> Line | None:
    """Return the first line of a kernel with a constant such as 0.0 if the kernel computes in
    float64; None if it does not, or if that is not known here. ``float32(0.0)`` is no reason."""
    function = kernel.py_func
    own = own_tree(function)
    if own is None or config.ENABLE_CUDASIM:
        return None
    converted = {
        id(argument)
        for node in ast.walk(own)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("float32")
        for argument in node.args
    }
    lines = [
        node.lineno
        for node in ast.walk(own)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, float)
        and id(node) not in converted
    ]
    if not lines or not float64_lines(kernel, tuple(types)):
        return None
    (found,) = lines_of((function.__code__.co_filename, min(lines)))
    return found


def plain_zeros(function: Any) -> list[int]:
    """Return the lines of a function with a plain number, such as 0, in the place of an array's: of
    a variable that becomes an array's number elsewhere, or in the other branch of an expression.

    Such a number has 64 bits, and so has what is computed with it.
    """
    own = own_tree(function)
    nodes = [] if own is None else list(ast.walk(own))
    assigned = [node for node in nodes if isinstance(node, ast.Assign | ast.AugAssign)]
    read = {name for node in assigned if _reads(node.value) for name in _targets(node)}
    lines = {
        node.lineno
        for node in assigned
        if isinstance(node, ast.Assign) and _is_plain(node.value) and read & set(_targets(node))
    }
    for node in nodes:
        if isinstance(node, ast.IfExp):
            one, other = node.body, node.orelse
            if (_is_plain(one) and _reads(other)) or (_is_plain(other) and _reads(one)):
                lines.add(node.lineno)
    return sorted(lines)


def _targets(node: ast.Assign | ast.AugAssign) -> list[str]:
    """Return the names that an assignment gives a value."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [
        one for each in targets for one in (each.elts if isinstance(each, ast.Tuple) else [each])
    ]
    return [one.id for one in names if isinstance(one, ast.Name)]


def _is_plain(value: ast.expr) -> bool:
    """Return whether a value is a number as it stands, or several."""
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(_is_plain, value.elts))
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _reads(value: ast.expr) -> bool:
    """Return whether a value has an element of an array, or a float4 of one."""
    return any(
        isinstance(node, ast.Subscript)
        or (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("load"))
        for node in ast.walk(value)
    )


def branched_stores(function: Any) -> tuple[str, ...]:
    """Return the note on stores in branches of which a thread takes one; empty if there are none.

    ``function`` is a kernel, or makes one.
    """
    lines = branched_lines(function)
    if not lines:
        return ()
    *first, last = lines
    told = f"""lines {", ".join(map(str, first))} and {last} store in different branches, and the
        counts take these stores as one. On a GPU a warp whose threads take both branches makes a
        request for each: find the number in the branches, and store it in one line after them."""
    return (joined(told),)


def not_called(own: ast.FunctionDef, file: str, begin: str = "") -> Mistake | None:
    """Return the mistake of a line that only names a function which it must call. Its name begins
    with ``begin``."""
    for node in ast.walk(own):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute):
            name = ast.unparse(node.value)
            if name.startswith(begin):
                what = f"This line names {name} and does not call it, so nothing happens."
                advice = f"Write {name}(), with parentheses."
                return Mistake(NOT_CALLED, what, lines_of((file, node.lineno)), advice)
    return None


def _wrong_indices(own: ast.FunctionDef, file: str, ranks: Mapping[str, int]) -> Mistake | None:
    """Return the mistake of the first access to an array of ``ranks`` that has fewer or more
    indices than the array has dimensions. ``a[i][j]`` has both indices of a matrix, and ``a[i, :]``
    leaves one out on purpose."""
    tuples = _tuples(own)
    nodes = [node for node in ast.walk(own) if isinstance(node, ast.Subscript)]
    inner = {id(node.value) for node in nodes}
    for node in sorted(nodes, key=lambda one: (one.lineno, one.col_offset)):
        name, indices = _indices(node)
        rank = ranks.get(name, 0)
        unknown = any(_is_part(index) or ast.unparse(index) in tuples for index in indices)
        if id(node) in inner or unknown or not rank or len(indices) == rank:
            continue
        count = "one index" if len(indices) == 1 else f"{len(indices)} indices"
        told = (
            f"{name} has {NUMBERS.get(rank, f'{rank} dimensions')}, and {ast.unparse(node)} gives"
        )
        lines = lines_of((file, node.lineno))
        if len(indices) < rank:
            what = f"{told} {count}: that is a whole part of {name}, not one number."
            return Mistake(MISSING_INDEX, what, lines, "Give an index for each dimension.")
        return Mistake(REFUSED, f"{told} {count}.", lines, "Give one index for each dimension.")
    return None


def own_tree(function: Any) -> ast.FunctionDef | None:
    """Return the tree of a function's text, if there is one."""
    tree = tree_of(function.__code__.co_filename)
    nodes = [] if tree is None else ast.walk(tree)
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef))
    first = function.__code__.co_firstlineno
    return next((node for node in functions if _begins(node) == first), None)


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
