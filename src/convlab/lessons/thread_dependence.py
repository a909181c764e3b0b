"""Indices that do not depend on the thread, found in the text of a learner's kernel.

If every thread of a block stores to the same element of a shared array, no barrier helps: each
thread needs an element of its own, or the array must be a local one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from convlab.lessons.missing_barriers import function_around
from convlab.lessons.pictures import joined
from convlab.simulation.rules.findings import Finding

# Pieces of code whose values differ from thread to thread.
OF_A_THREAD = ("threadIdx", "cuda.grid", "laneid", "shfl", "atomic")
LOCAL = """Every thread of a block stores to the same elements of {array} in line {line}, because
    the index {index} does not depend on the thread. If each thread needs numbers of its own, make
    {array} with cuda.local.array; otherwise let the index depend on the thread."""


def stored_by_all(finding: Finding) -> str:
    """Return the advice on a race whose store has an index that is the same in all threads; empty
    for any other finding. The array must be a shared one that the kernel makes."""
    if finding.kind != "shared race" or finding.array is None:
        return ""
    if finding.other_file not in (None, finding.file):
        return ""
    function = function_around(finding.file, finding.line)
    if function is None or not _makes_shared(function, finding.array):
        return ""
    differs = _names_that_differ(function)
    for line in (finding.line, finding.other_line):
        for store in _stores(function, finding.array, line):
            if not _differs(store.slice, differs) and not _is_chosen(function, store, differs):
                index = ast.unparse(store.slice).strip("()")
                told = LOCAL.format(array=finding.array, line=line, index=index)
                return joined(told)
    return ""


def _makes_shared(function: ast.FunctionDef, array: str) -> bool:
    """Return whether a function makes a shared array of that name."""
    return any(
        isinstance(node, ast.Assign)
        and "shared.array(" in ast.unparse(node.value)
        and array in {ast.unparse(target) for target in node.targets}
        for node in ast.walk(function)
    )


def _stores(function: ast.FunctionDef, array: str, line: int | None) -> Iterable[ast.Subscript]:
    """Yield the stores to an array in a line."""
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if node.lineno == line and ast.unparse(node.value) == array:
                yield node


def _names_that_differ(function: ast.FunctionDef) -> set[str]:
    """Return the names whose values may differ between the threads of a block."""
    differ = set[str]()
    before = -1
    while before < len(differ):
        before = len(differ)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AugAssign):
                targets, value = [node.target], node.value
            elif isinstance(node, ast.For):
                targets, value = [node.target], node.iter
            else:
                continue
            if _differs(value, differ):
                names = (one for target in targets for one in ast.walk(target))
                stored = (one for one in names if isinstance(one, ast.Name))
                differ |= {one.id for one in stored if isinstance(one.ctx, ast.Store)}
    return differ


def _differs(value: ast.expr, names: set[str]) -> bool:
    """Return whether a value may differ between threads: it has a number of the thread's, one of
    the names, or an element of an array."""
    if any(piece in ast.unparse(value) for piece in OF_A_THREAD):
        return True
    nodes = list(ast.walk(value))
    if any(isinstance(node, ast.Subscript) for node in nodes):
        return True
    return any(isinstance(node, ast.Name) and node.id in names for node in nodes)


def _is_chosen(function: ast.FunctionDef, store: ast.Subscript, names: set[str]) -> bool:
    """Return whether not all threads come to a store: it is in a branch, or below one that threads
    leave by, whose condition may differ between threads."""
    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.While) and _differs(node.test, names):
            inside = node.lineno <= store.lineno <= (node.end_lineno or 0)
            leaves = isinstance(node.body[-1], ast.Return | ast.Continue | ast.Break)
            if inside or (leaves and node.lineno < store.lineno):
                return True
    return False
