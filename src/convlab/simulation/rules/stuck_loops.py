"""Loops that wait for nobody and do not end, by a kernel's text.

A thread that polls tests what another thread or the host can change. A loop that only computes goes
on from its own variables: once these take no new numbers, nothing ends it, and there is no lock or
flag to look for. All tests in the loop count, and all that they are computed from: a branch may
decide whether a variable changes. A ``cas`` in a loop whose expected number was read before the
loop is another such mistake.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from convlab.simulation.recording.source_text import source_tree
from convlab.simulation.rules.element_owners import PURE

CAS = ("cas", "compare_and_swap")
OF_LAUNCH = ("cuda.grid", "cuda.gridsize")  # calls whose results stay the same in a thread
LEAVES = ast.Break | ast.Return
BRANCHES = ast.If | ast.While | ast.IfExp


class Stuck(NamedTuple):
    """A loop that waits for nobody: the variables that take no new numbers; ``by_cas`` if a ``cas``
    expects the first of them."""

    names: tuple[str, ...] = ()
    by_cas: bool = False


@lru_cache(maxsize=1000)
def stuck_loop(code: CodeType, file: str, line: int, of_kernel: bool) -> Stuck:
    """Return the loop around a line, of which a thread repeats the same steps for ever, if it waits
    for nobody; without names if it may wait. The arrays of a device function, which is not the code
    ``of_kernel``, may be changed elsewhere. ``file`` is the code's, because codes of two files may
    be equal."""
    tree = source_tree(code, file)
    loops = [
        node
        for node in (() if tree is None else ast.walk(tree))
        if isinstance(node, ast.While) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if tree is None or not loops:
        return Stuck()
    loop = loops[-1]
    values = _values(loop)
    if stale := _stale_numbers(tree, loop, set(values)):
        return Stuck(stale, by_cas=True)
    changed = None
    if of_kernel:
        changed = (_stored_arrays(tree) | _passed_arrays(tree)) - _settled_arrays(tree, loop)
    tested = dict.fromkeys(name for test in _tests(loop) for name in _names(test))
    own = [name for name in tested if name in values and name in _reached(name, values)]
    tests = [loop.test, *(node.test for node in ast.walk(loop) if isinstance(node, BRANCHES))]
    deciding = {*own, *(name for test in tests for name in _names(test) if name in values)}
    reached = deciding.union(*(_reached(name, values) for name in deciding))
    sources = [*tests, *(value for name in reached for value in values[name])]
    parts = (part for source in sources for part in ast.walk(source))
    return Stuck() if any(_may_be_changed(part, changed) for part in parts) else Stuck(tuple(own))


def _values(loop: ast.While) -> dict[str, list[ast.expr]]:
    """Return the values that a loop assigns to each variable."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(loop):
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AugAssign):  # the old value counts too
            old = ast.Name(node.target.id) if isinstance(node.target, ast.Name) else node.target
            targets, value = [node.target], ast.Tuple([old, node.value])
        elif isinstance(node, ast.For):
            targets, value = [node.target], node.iter
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(one, ast.Name) and value is not None:
                    found.setdefault(one.id, []).append(value)
    return found


def _tests(loop: ast.While) -> Iterator[ast.expr]:
    """Give the conditions that end a loop."""
    yield loop.test
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and any(
            isinstance(inner, LEAVES) for part in node.body for inner in ast.walk(part)
        ):
            yield node.test


def _names(expression: ast.AST) -> list[str]:
    """Return the names in an expression, in the order of the text."""
    nodes = [node for node in ast.walk(expression) if isinstance(node, ast.Name)]
    return [node.id for node in sorted(nodes, key=lambda node: getattr(node, "col_offset", 0))]


def _reached(name: str, values: dict[str, list[ast.expr]]) -> set[str]:
    """Return the variables of a loop from which a variable is computed there: with the variable
    itself if it goes on from its old number, as a bound of a search does."""
    found: set[str] = set()
    rest = [name]
    while rest:
        for value in values[rest.pop()]:
            new = ({*_names(value)} & set(values)) - found
            found |= new
            rest += new
    return found


def _stored_arrays(tree: ast.AST) -> set[str]:
    """Return the arrays in which a part of a function stores by their names."""
    subscripts = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    return {ast.unparse(one.value) for one in subscripts if isinstance(one.ctx, ast.Store)}


def _passed_arrays(tree: ast.AST) -> set[str]:
    """Return the arrays that an atomic, another function or another name may change."""
    nodes = [*ast.walk(tree)]
    arrays = {ast.unparse(node.value) for node in nodes if isinstance(node, ast.Subscript)}
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            found |= {one.id for one in node.args if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Assign) and not _is_new_array(node.value):
            targets = {name for target in node.targets for name in _names(target)}
            if not any(isinstance(one, ast.Subscript) for one in node.targets) and targets & arrays:
                found |= {*targets, *_names(node.value)}  # a view, or arrays that change places
    return found


def _settled_arrays(tree: ast.Module, loop: ast.While) -> set[str]:
    """Return the arrays in shared memory in which a kernel stores only before a barrier that all
    threads pass before the loop."""
    function = tree.body[0]
    body = function.body if isinstance(function, ast.FunctionDef) else []
    before = [one for one in body if (one.end_lineno or 0) < loop.lineno]
    barriers = [one for one in before if ast.unparse(one) == "cuda.syncthreads()"]
    if not barriers:
        return set()
    new = [one for one in before if isinstance(one, ast.Assign) and _is_new_array(one.value)]
    names = {name for one in new for name in _names(one.targets[0])}
    later = body[body.index(barriers[-1]) :]
    return names.difference(_passed_arrays(tree), *map(_stored_arrays, later))


def _is_new_array(value: ast.expr) -> bool:
    """Return whether a value is an array of its own in shared or local memory. Arrays of size 0 are
    not: all of them are the same memory."""
    if not isinstance(value, ast.Call) or not value.args or ast.unparse(value.args[0]) == "0":
        return False
    return ast.unparse(value.func) in ("cuda.shared.array", "cuda.local.array")


def _may_be_changed(node: ast.AST, changed: set[str] | None) -> bool:
    """Return whether a part of a value may be what another thread changes: an element of an array
    that is ``changed``, or of any array without that, or the result of an atomic or of another
    function."""
    if isinstance(node, ast.Subscript):
        return changed is None or ast.unparse(node.value) in changed
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return not (name.startswith("math.") or name in PURE or name in OF_LAUNCH)


def _stale_numbers(tree: ast.AST, loop: ast.While, assigned: set[str]) -> tuple[str, ...]:
    """Return the number that a ``cas`` of the loop expects, if it was read from the same element
    and the loop does not read it again."""
    for call in ast.walk(loop):
        if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") not in CAS:
            continue
        expected = call.args[-2] if len(call.args) > 2 else None
        if not isinstance(expected, ast.Name) or expected.id in assigned:
            continue
        if _is_read(tree, expected.id, [*map(ast.unparse, call.args[:2])]):
            return (expected.id,)
    return ()


def _is_read(tree: ast.AST, name: str, element: list[str]) -> bool:
    """Return whether a variable is what was read of an element: an array and an index."""
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
        and any(_element(part) == element for part in ast.walk(node.value))
        for node in ast.walk(tree)
    )


def _element(node: ast.AST) -> list[str]:
    """Return the array and the index of a load, or of a call such as an atomic's."""
    parts = node.args[:2] if isinstance(node, ast.Call) else []
    if isinstance(node, ast.Subscript):
        parts = [node.value, node.slice]
    return [*map(ast.unparse, parts)]
