"""Nodes of a function's source: their positions, and new nodes from text."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any

from convlab.simulation.language.inference import Typed

Position = tuple[int | None, ...]  # first line, last line, first column, last column
_CACHE_BYTES = 2  # bytes of an instruction
_NUMBAS_OFFSET = 2  # Numba puts an instruction before the first


def positions(code: CodeType, expressions: dict[int, Typed]) -> dict[Position, Typed]:
    """Return the typed expressions by their position in the source of ``code``."""
    where = [*code.co_positions()]
    found: dict[Position, Typed] = {}
    for offset, typed in expressions.items():
        line, end, column, last = where[(offset - _NUMBAS_OFFSET) // _CACHE_BYTES]
        found[line, end, column, last] = typed
    return found


def position_of(node: ast.expr | ast.stmt) -> Position:
    """Return the first and last line and column of a node."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def written(text: str, at: ast.AST, **nodes: ast.expr) -> Any:
    """Return the expression or statement of that text, with the position of ``at``. Names in the
    text that are keys of ``nodes`` are replaced by these nodes."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return nodes.get(name.id, name)

    (made,) = ast.parse(text).body
    for part in ast.walk(made):
        ast.copy_location(part, at)
    made = Fill().visit(made)
    return made.value if isinstance(made, ast.Expr) else made


def call(name: str, *nodes: ast.expr) -> ast.Call:
    """Return a call of the global ``name``, with the position of the first argument."""
    made = ast.Call(ast.Name(name, ast.Load()), [*nodes], [])
    for part in made, made.func:
        ast.copy_location(part, nodes[0])
    return made
