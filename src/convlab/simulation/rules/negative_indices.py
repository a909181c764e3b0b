"""Indices that count from the end of an array, by a kernel's text.

Numba adds the array's size to an index below zero. A kernel that means it writes ``a[-1]`` or
``a[-1 - i]``, or uses the array as a ring: another index of the same array wraps around, by ``%
n``, ``& mask``, ``if right == n: right = 0`` and the like. Otherwise an index below zero is a halo
without a guard.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType

from convlab.simulation.recording.instructions import code_at
from convlab.simulation.recording.source_text import source_tree


def axes_from_end(site: int) -> frozenset[int]:
    """Return the axes along which the index at this site may be below zero."""
    code = code_at(site)
    return frozenset() if code is None else _axes(code, site - id(code))


@cache
def _axes(code: CodeType, offset: int) -> frozenset[int]:
    at = next((step for step in dis.get_instructions(code) if step.offset == offset), None)
    tree = source_tree(code, code.co_filename)
    if at is None or tree is None or not _takes_an_element(at):
        return frozenset()
    nodes = [*ast.walk(tree)]
    subscripts = [node for node in nodes if isinstance(node, ast.Subscript)]
    here = next((node for node in subscripts if _position(node) == at.positions), None)
    if here is None:
        return frozenset()
    rounds, negated = {*_going_round(nodes)}, {*_assigned(nodes, _is_negated)}
    found = {
        axis
        for axis, entry in enumerate(_entries(here))
        if _is_negated(entry) or ast.unparse(entry) in negated
    }
    chosen = {id(arm) for node in nodes if isinstance(node, ast.IfExp) for arm in _arms(node)}
    for other in subscripts:
        if ast.unparse(other.value) != ast.unparse(here.value):
            continue
        for axis, entry in enumerate(_entries(other)):
            from_the_first = id(other) in chosen and _is_zero(entry)  # ... else a[0]
            if _goes_round(entry) or ast.unparse(entry) in rounds or from_the_first:
                found.add(axis)
    return frozenset(found)


def _takes_an_element(step: dis.Instruction) -> bool:
    """Return whether an instruction loads or stores an element: since Python 3.14 a load is a
    binary operation."""
    return "SUBSCR" in step.opname or (step.opname == "BINARY_OP" and step.argrepr == "[]")


def _position(node: ast.Subscript) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _entries(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _arms(node: ast.IfExp) -> tuple[ast.expr, ast.expr]:
    return node.body, node.orelse


def _assigned(nodes: list[ast.AST], by: Callable[[ast.expr], bool]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Assign) and by(node.value):
            yield ast.unparse(node.targets[0])


def _going_round(nodes: list[ast.AST]) -> Iterator[str]:
    """Give the variables that begin again at an array's first element."""
    yield from _assigned(nodes, _goes_round)
    for node in nodes:
        if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
            continue
        name, arms = ast.unparse(node.test.left), [node.body, node.orelse]
        zeros, others = ({*_assigned([*arm], _is_zero)} for arm in arms)
        firsts, seconds = ({*_assigned([*arm], lambda value: True)} for arm in arms)
        yield from (zeros & seconds) | (others & firsts)  # if i == n - 1: right = 0, else: ...
        if isinstance(node.test.ops[0], ast.Eq | ast.GtE | ast.Gt):
            less = (f"{name} -= ", f"{name} = {name} - ")  # if right >= n: right -= n
            if name in zeros or ast.unparse(node.body[0]).startswith(less):
                yield name


def _is_zero(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == 0


def _goes_round(index: ast.expr) -> bool:
    if isinstance(index, ast.IfExp):
        return any(map(_is_zero, _arms(index)))
    return isinstance(index, ast.BinOp) and isinstance(index.op, ast.Mod | ast.BitAnd)


def _is_negated(index: ast.expr) -> bool:
    while isinstance(index, ast.BinOp):
        index = index.left
    return isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub | ast.Invert)
