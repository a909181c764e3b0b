"""Counters that wrap: narrow integers that an endless loop changes and tests."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

from numba.cuda import types

from convlab.simulation.language.numbas_types import typed_function
from convlab.simulation.language.refusals import Refused, Untyped
from convlab.simulation.language.signatures import Types
from convlab.simulation.recording.source_text import source_tree
from convlab.simulation.rules.finding_words import GOES_ON


def said_of_counter(
    function: FunctionType,
    arguments: Types | None,
    line: int,
    values: Mapping[str, object],
) -> str:
    """Return the sentence about the first narrow integer that the loop around the line changes and
    tests: ``i is uint8, which goes on from 255 to 0 and never reaches 300``.

    Empty if there is none. ``values`` are those of the function's variables.
    """
    code = function.__code__
    tree = source_tree(code, code.co_filename)
    loop = None if tree is None else _loop_at(tree, line)
    if loop is None or arguments is None:
        return ""
    try:
        kinds = typed_function(function, arguments).typemap
    except (Refused, Untyped):
        return ""
    stored = [*_stored(loop)]
    for test in _tests(loop):
        for node in ast.walk(test):
            if not isinstance(node, ast.Name | ast.Subscript):
                continue
            changes = any(_may_be_one(node, target) for target in stored)
            kind = _narrow(kinds, node) if changes else None
            if kind is not None:
                told = _told(ast.unparse(node), kind, _bounds(test, node, values))
                if told:
                    return told
    return ""


def _told(text: str, kind: types.Integer, bounds: list[int]) -> str:
    low = -(2 ** (kind.bitwidth - 1)) if kind.signed else 0
    high = low + 2**kind.bitwidth - 1
    beyond = [bound for bound in bounds if not low < bound < high]
    if kind.bitwidth > 16 and not beyond:  # it takes long to wrap
        return ""
    never = f", so it never passes {beyond[0]}" if beyond else ""
    return f"{text} is {kind.name}, which {GOES_ON} {high} to {low}{never}"


def _loop_at(tree: ast.AST, line: int) -> ast.While | None:
    """Return the innermost ``while`` loop with that line."""
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.While) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(loops, key=lambda loop: loop.lineno, default=None)


def _tests(loop: ast.While) -> Iterator[ast.expr]:
    """Yield the conditions that end the loop: its own, and those of branches that leave it."""
    yield loop.test
    for node in ast.walk(loop):
        if isinstance(node, ast.If):
            inside = (part for statement in node.body for part in ast.walk(statement))
            if any(isinstance(part, ast.Break | ast.Return) for part in inside):
                yield node.test


def _stored(loop: ast.While) -> Iterator[ast.expr]:
    """Yield the targets of the loop's assignments, and the arrays that it passes to atomics."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from target.elts if isinstance(target, ast.Tuple) else [target]
        elif isinstance(node, ast.AugAssign | ast.NamedExpr):
            yield node.target
        elif isinstance(node, ast.Call):
            yield from node.args[:1]


def _may_be_one(node: ast.expr, target: ast.expr) -> bool:
    """Return whether a tested and a stored element may be the same: not two constant indices."""
    if _base(node) != _base(target) or not _base(node):
        return False
    indices = [one.slice for one in (node, target) if isinstance(one, ast.Subscript)]
    constants = {ast.unparse(one) for one in indices if isinstance(one, ast.Constant)}
    return len(constants) < 2


def _base(node: ast.AST) -> str:
    """Return the variable of ``i``, ``a[0]`` or ``a[0].x``."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _narrow(
    kinds: Mapping[str, types.Type], node: ast.Name | ast.Subscript
) -> types.Integer | None:
    """Return the type of a variable or an array's element if it is an integer of fewer than 64
    bits; None otherwise. Numba has a variable for each assignment: ``i``, ``i.1``, ``i.2``."""
    every = {kind for name, kind in kinds.items() if name.partition(".")[0] == _base(node)}
    if isinstance(node, ast.Subscript):
        every = {getattr(kind, "dtype", None) for kind in every}
    found = {types.unliteral(kind) for kind in every - {None, types.undefined}}
    narrow = [one for one in found if isinstance(one, types.Integer) and one.bitwidth < 64]
    return narrow[0] if len(narrow) == 1 else None


def _bounds(test: ast.expr, counter: ast.AST, values: Mapping[str, object]) -> list[int]:
    """Return the integers that the counter is compared with."""
    found = []
    for node in ast.walk(test):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if any(counter in [*ast.walk(side)] for side in sides):
            others = (side for side in sides if counter not in [*ast.walk(side)])
            found += [one for one in (_integer(side, values) for side in others) if one is not None]
    return found


_ARITHMETIC = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow},
    **{ast.LShift: operator.lshift, ast.RShift: operator.rshift},
}


def _integer(node: ast.AST, values: Mapping[str, object]) -> int | None:
    """Return the integer value of an expression of constants, variables and sizes of arrays; None
    for any other expression."""
    found: Any = None
    if isinstance(node, ast.Constant):
        found = node.value
    elif isinstance(node, ast.Name):
        found = values.get(node.id)
    elif isinstance(node, ast.Attribute) and node.attr == "size":
        found = getattr(values.get(_base(node)), "size", None)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand, values)
        found = None if inner is None else -inner
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        sides = _integer(node.left, values), _integer(node.right, values)
        if None not in sides:
            with suppress(ArithmeticError, ValueError, MemoryError):
                found = _ARITHMETIC[type(node.op)](*sides)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and len(node.args) == 1:
        shape = getattr(values.get(_base(node.args[0])), "shape", ())
        found = shape[0] if shape else None
    elif isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "shape":
        axis, shape = _integer(node.slice, values), getattr(values.get(_base(node)), "shape", ())
        found = shape[axis] if axis is not None and -len(shape) <= axis < len(shape) else None
    return found if isinstance(found, int) else None
