"""The thread to which an element belongs, by the text of the index with which a line stores.

Many threads may want one element at the same time if the index is the same for all, or if it comes
from memory, as in a hash table or a list: then to read the element and to change it must be one
atomic step. An index that comes from the thread's own number is another matter: each thread has
elements of its own in each step of the algorithm, and threads that race lack a barrier.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import lru_cache
from types import CodeType
from typing import TypeGuard

from convlab.simulation.recording.source_text import source_tree
from convlab.simulation.rules.retries import position_at, position_of

KEPT = 1000  # answers that are kept
# Calls whose results depend on their arguments alone, beside the types of numbers.
PURE = {"min", "max", "abs", "len", "range", "round", "divmod", "int", "float", "bool"}
TYPES = ("int", "uint", "float")
OF_BLOCK = {"blockIdx"}  # the same for all threads of a block
OF_THREAD = {"threadIdx", "laneid", "grid"}
THREAD_NUMBERS = {"cuda.threadIdx.x", "cuda.grid(1)"}  # different in each thread of a 1-D block
OF_LAUNCH = {"blockDim", "gridDim", "gridsize", "warpsize"}


class Owner(IntEnum):
    """The origin of an index: the largest of those of its parts."""

    ALL = 0  # the same for all threads, or for all of the block in which they race
    THREAD = 1  # from the thread's number
    MEMORY = 2  # from memory, or from a call that may read it


class Needed(IntEnum):
    """The means to separate the threads that read an element from those that change it."""

    ATOMIC = 0  # threads may want the same element at the same time
    BARRIER_IN_LOOP = 1  # or they are in different steps of a loop, and no barrier ends a step
    BARRIER = 2  # each thread changes elements of its own


@lru_cache(maxsize=KEPT)
def needed(
    code: CodeType,
    file: str,
    read_at: int,
    read: int,
    change: int,
    in_one_block: bool,
    by_one_thread: bool,
) -> Needed:
    """Return the means to separate the read at an offset of a function, in the line ``read``, from
    its line ``change``, where threads race, ``in_one_block`` or not. ``by_one_thread`` if no other
    one has changed the element there. ``ATOMIC`` for a function without source. ``file`` is the
    code's, because codes of two files may be equal."""
    if (tree := source_tree(code, file)) is None:
        return Needed.ATOMIC
    stores = [*_stores(tree, change)]
    if not stores:
        return Needed.ATOMIC
    owners = _Owners(tree, in_one_block)
    if any(owners.of(one.slice) != Owner.THREAD for one in stores):
        alone = in_one_block and by_one_thread and owners.lets_one_through(tree, change, read)
        return Needed.BARRIER if alone else Needed.ATOMIC
    loads, position = [*_loads(tree, read)], position_at(code, read_at)
    reads = [one for one in loads if position_of(one) == position] or loads
    loop = _loop_around(tree, read, change)
    if loop is not None:  # a step of it may store in several lines: two elements change places
        stores = [node for node in ast.walk(loop) if _is_store(node)]
    if {*map(ast.unparse, stores)}.isdisjoint(map(ast.unparse, reads)):
        return Needed.BARRIER
    if loop is None or _synchronises(loop, in_one_block):
        return Needed.ATOMIC
    return Needed.BARRIER_IN_LOOP


@lru_cache(maxsize=KEPT)
def belongs_to_thread(code: CodeType, file: str, change: int, in_one_block: bool) -> bool:
    """Return whether the elements in which a line stores come from the thread's number alone, among
    the threads of one block or of all blocks."""
    tree = source_tree(code, file)
    if tree is None:
        return True
    owners = _Owners(tree, in_one_block)
    return all(owners.of(one.slice) == Owner.THREAD for one in _stores(tree, change))


@lru_cache(maxsize=KEPT)
def is_same_element(code: CodeType, file: str, read: int, change: int) -> bool:
    """Return whether a line reads the element that another line changes, by the same text."""
    if (tree := source_tree(code, file)) is None:
        return False
    stored = {ast.unparse(one) for one in _stores(tree, change)}
    return not stored.isdisjoint(ast.unparse(one) for one in _loads(tree, read))


@lru_cache(maxsize=KEPT)
def is_an_index(code: CodeType, file: str, read: int, atomic: int) -> bool:
    """Return whether the line ``read`` uses an element of the array that the line ``atomic``
    updates as an index, there or by a variable."""
    if (tree := source_tree(code, file)) is None:
        return False
    arrays = {
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and node.lineno == atomic
    }
    loads = [one for one in _loads(tree, read) if ast.unparse(one.value) in arrays]
    slices = [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    inner = [one for part in slices for one in ast.walk(part)]
    if any(one is load for one in inner for load in loads):
        return True
    used = {one.id for one in inner if isinstance(one, ast.Name)}
    return any(
        isinstance(node, ast.Assign)
        and any(one is load for one in ast.walk(node.value) for load in loads)
        and any(isinstance(target, ast.Name) and target.id in used for target in node.targets)
        for node in ast.walk(tree)
    )


class _Owners:
    """The origins of a function's variables, where threads of one block race or of all blocks."""

    def __init__(self, tree: ast.AST, in_one_block: bool) -> None:
        self._of_thread = OF_THREAD if in_one_block else OF_THREAD | OF_BLOCK
        self._arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        self._values: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value:
                self._assign(node.target, node.value)
            elif isinstance(node, ast.For):
                self._assign(node.target, node.iter)

    def of(self, expression: ast.AST, known: frozenset[str] = frozenset()) -> Owner:
        """Return the origin of an expression's value; ``known`` are variables on the way to it."""
        if isinstance(expression, ast.Name):
            if expression.id in known:
                return Owner.ALL
            values = self._values.get(expression.id, [])
            known |= {expression.id}
            return max((self.of(value, known) for value in values), default=Owner.ALL)
        if isinstance(expression, ast.Attribute):
            return self._of_attribute(expression)
        if isinstance(expression, ast.Subscript):  # of a shape, or of an array
            shape = isinstance(expression.value, ast.Attribute) and expression.value.attr == "shape"
            return Owner.ALL if shape else Owner.MEMORY
        if isinstance(expression, ast.Call):
            name = getattr(expression.func, "attr", getattr(expression.func, "id", ""))
            if name in self._of_thread:
                return Owner.THREAD
            if name not in PURE | OF_LAUNCH and not name.startswith(TYPES):
                return Owner.MEMORY
            return max((self.of(one, known) for one in expression.args), default=Owner.ALL)
        parts = ast.iter_child_nodes(expression)
        return max((self.of(one, known) for one in parts), default=Owner.ALL)

    def lets_one_through(self, tree: ast.AST, change: int, read: int) -> bool:
        """Return whether a test such as ``if t == 0`` lets one thread of a 1-D block through to the
        line that changes the element, and the line that reads it is not in that branch."""
        return any(
            isinstance(node, ast.If)
            and _holds(node.body, change)
            and not _holds(node.body, read)
            and self._is_true_in_one(node.test)
            for node in ast.walk(tree)
        )

    def _is_true_in_one(self, test: ast.expr) -> bool:
        """Return whether a test compares the thread's number with a number that all threads of the
        block have: not its lane, nor a remainder, which several threads of the block share."""
        if not isinstance(test, ast.Compare) or [*map(type, test.ops)] != [ast.Eq]:
            return False
        sides = test.left, test.comparators[0]
        return any(
            self._is_thread_number(one) and self.of(other) == Owner.ALL
            for one, other in (sides, sides[::-1])
        )

    def _is_thread_number(self, expression: ast.expr) -> bool:
        if not isinstance(expression, ast.Name):
            return ast.unparse(expression) in THREAD_NUMBERS
        values = self._values.get(expression.id, [])
        is_number = all(ast.unparse(value) in THREAD_NUMBERS for value in values)
        return bool(values) and is_number and expression.id not in self._arguments

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        values = [value] * len(parts)
        if isinstance(value, ast.Tuple) and len(value.elts) == len(parts):
            values = value.elts
        for one, its in zip(parts, values, strict=True):
            if isinstance(one, ast.Name):
                self._values.setdefault(one.id, []).append(its)

    def _of_attribute(self, expression: ast.Attribute) -> Owner:
        parts = set(ast.unparse(expression).split("."))
        return Owner.THREAD if parts & self._of_thread else Owner.ALL


def _stores(tree: ast.AST, line: int) -> Iterator[ast.Subscript]:
    """Give the elements in which a line stores."""
    yield from filter(_is_store, _subscripts(tree, line))


def _is_store(node: ast.AST) -> TypeGuard[ast.Subscript]:
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def _loads(tree: ast.AST, line: int) -> Iterator[ast.Subscript]:
    """Give the elements that a line reads, also to update them, as by ``+=``."""
    updated = {id(node.target) for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
    for one in _subscripts(tree, line):
        if isinstance(one.ctx, ast.Load) or id(one) in updated:
            yield one


def _subscripts(tree: ast.AST, line: int) -> Iterator[ast.Subscript]:
    """Give the elements that a line names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and node.lineno <= line <= (node.end_lineno or 0):
            yield node


def _holds(body: Iterable[ast.stmt], line: int) -> bool:
    return any(one.lineno <= line <= (one.end_lineno or 0) for one in body)


def _loop_around(tree: ast.AST, read: int, change: int) -> ast.For | ast.While | None:
    """Return the innermost loop that contains both lines."""
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While)
        and _holds(node.body, change)
        and (node.lineno == read or _holds(node.body, read))
    ]
    return loops[-1] if loops else None


def _synchronises(loop: ast.For | ast.While, in_one_block: bool) -> bool:
    """Return whether a barrier ends each step of a loop: one of the block, or of the grid."""
    names = ("syncthreads",) if in_one_block else ("sync",)
    return any(
        isinstance(node, ast.Call) and getattr(node.func, "attr", "") in names
        for node in ast.walk(loop)
    )
