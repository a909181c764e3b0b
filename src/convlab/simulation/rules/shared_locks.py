"""Locks in shared memory, of which each block has its own, by a kernel's text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

from convlab.simulation.recording.sites import source_tree
from convlab.simulation.rules.retries import LOCKING


@lru_cache(maxsize=1000)
def is_under_lock_of_block(code: CodeType, file: str, line: int) -> bool:
    """Return whether a line lies between the loop that takes a lock in shared memory and the atomic
    that frees it. ``file`` is the code's, because codes of two files may be equal."""
    tree = source_tree(code, file)
    if tree is None:
        return False
    shared = set(_shared_arrays(tree))
    takes = (
        (name, loop.end_lineno or 0)
        for loop in ast.walk(tree)
        if isinstance(loop, ast.While)
        for name, _ in _atomics(loop, LOCKING)
    )
    taken = {name for name, end in takes if end < line} & shared
    return any(name in taken and at > line for name, at in _atomics(tree, ()))


def _shared_arrays(tree: ast.AST) -> Iterator[str]:
    """Give the names of arrays in shared memory."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if ast.unparse(node.value.func).endswith("shared.array"):
                yield from (one.id for one in node.targets if isinstance(one, ast.Name))


def _atomics(tree: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Give the array and the line of each atomic with one of these names, or of all."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            is_atomic = ".atomic." in f".{ast.unparse(node.func)}"
            if is_atomic and (not names or node.func.attr in names):
                yield ast.unparse(node.args[0]), node.lineno
