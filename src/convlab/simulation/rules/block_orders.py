"""Means by which two blocks are meant to be ordered, and are not.

A thread signals before its block is ready, or reads a signal for its block, which does not wait for
it; a fence orders memory for one block only; a lock is in shared memory, of which each block
has its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType

from convlab.simulation.recording.access_log import LoggedAccess
from convlab.simulation.recording.sites import Sites
from convlab.simulation.recording.source_text import source_tree
from convlab.simulation.rules.happens_before import BLOCK_FENCE
from convlab.simulation.rules.retries import LOCKING


def stands_above(one: LoggedAccess | None, other: LoggedAccess | None, sites: Sites) -> bool:
    """Return whether the text of one access stands above that of another, so that a barrier between
    the two lines would order them."""
    if one is None or other is None:
        return False
    (file, line), (its_file, its_line) = map(sites.line, (one.site, other.site))
    return file == its_file and line < its_line


def are_under_locks_of_blocks(accesses: Iterable[LoggedAccess], sites: Sites) -> bool:
    """Return whether all of these accesses lie between the loop that takes a lock in shared memory
    and the atomic that frees it."""
    return all(
        (code := sites.code(one.site)) is not None
        and is_under_lock_of_block(code, code.co_filename, sites.line(one.site)[1])
        for one in accesses
    )


def has_narrow_fence(
    first: LoggedAccess, second: LoggedAccess, fences: Iterable[LoggedAccess]
) -> bool:
    """Return whether the first thread, of another block than the second, has called a fence after
    its access that orders memory for its own block only."""
    return first.block != second.block and any(
        one.kind == BLOCK_FENCE
        and one.thread == first.thread
        and first.position < one.position < second.position
        for one in fences
    )


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
