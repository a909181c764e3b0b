"""Dependence of what a line of a function writes on what another line reads, by its text.

A thread that reads an element and then changes it needs both in one atomic step only if the change
depends on the value that it has read. Threads that load a slice of shared memory together overwrite
what they and others have read before, and need a barrier.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache
from types import CodeType

from convlab.simulation.recording.source_text import source_tree

ENDS = ast.Return | ast.Continue | ast.Break
DEPENDENCES = 1000  # pairs of lines that are kept


@lru_cache(maxsize=DEPENDENCES)
def depends(code: CodeType, file: str, read: int, write: int) -> bool:
    """Return whether the value that the line ``write`` of a function stores, or where or whether it
    stores one, depends on what its line ``read`` reads. True for a function without source.
    ``file`` is the code's, because codes of two files may be equal."""
    tree = source_tree(code, file)
    if tree is None:
        return True
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    known: set[str] = set()  # variables with values that depend on what was read
    decided: list[range] = []  # lines that run or not depending on what was read
    before = (-1, -1)
    while before != (len(known), len(decided)):
        before = len(known), len(decided)
        for one in statements:
            if not _uses(one, known, read) and not _within(one.lineno, decided):
                continue
            known |= _assigned(one)
            for lines in _controlled(one, tree):
                if lines not in decided:
                    decided.append(lines)
    stores = [one for one in statements if _own_lines(one, write)]
    return _within(write, decided) or any(
        _uses(one, known, read) or not known.isdisjoint(_names_in(_indices(one))) for one in stores
    )


def calling_lines(code: CodeType, file: str, function: str) -> list[int]:
    """Return the lines in which a function calls another one by its name."""
    tree = source_tree(code, file)
    return sorted(
        node.lineno
        for node in (() if tree is None else ast.walk(tree))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == function
    )


def _within(line: int, ranges: list[range]) -> bool:
    return any(line in lines for lines in ranges)


def _own_lines(statement: ast.stmt, line: int) -> bool:
    """Return whether a line belongs to a statement itself, not to the statements inside of it."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) and body else statement.end_lineno
    return statement.lineno <= line <= max(last or 0, statement.lineno)


def _expressions(statement: ast.stmt) -> list[ast.expr]:
    """Return the expressions whose values a statement uses: a condition, a value, a range."""
    found: list[ast.expr | None] = []
    if isinstance(statement, ast.If | ast.While):
        found.append(statement.test)
    elif isinstance(statement, ast.For):
        found.append(statement.iter)
    elif isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr):
        found.append(statement.value)
        if isinstance(statement, ast.AugAssign):
            found.append(statement.target)
    return [one for one in found if one is not None]


def _uses(statement: ast.stmt, known: set[str], read: int) -> bool:
    """Return whether a statement uses what is known to depend, or is at the line that reads."""
    if _own_lines(statement, read) and not isinstance(statement, ast.FunctionDef):
        return True
    return not known.isdisjoint(_names_in(_expressions(statement)))


def _names_in(expressions: Iterable[ast.expr]) -> set[str]:
    return {
        node.id
        for expression in expressions
        for node in ast.walk(expression)
        if isinstance(node, ast.Name)
    }


def _indices(statement: ast.stmt) -> list[ast.expr]:
    """Return the indices of the elements in which a statement stores."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [
        node.slice
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Subscript)
    ]


def _assigned(statement: ast.stmt) -> set[str]:
    """Return the names of variables and arrays to which a statement assigns."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign | ast.For):
        targets = [statement.target]
    found = set()
    for target in targets:
        for one in target.elts if isinstance(target, ast.Tuple) else [target]:
            while isinstance(one, ast.Subscript | ast.Attribute):
                one = one.value
            if isinstance(one, ast.Name):
                found.add(one.id)
    return found


def _controlled(statement: ast.stmt, tree: ast.AST) -> list[range]:
    """Return the lines that run or not by the condition of a statement: its body, and all that
    follows if its body leaves the loop or function."""
    if not isinstance(statement, ast.If | ast.While):
        return []
    inner = [*statement.body, *statement.orelse]
    found = [range(one.lineno, (one.end_lineno or one.lineno) + 1) for one in inner]
    if any(isinstance(node, ENDS) for one in inner for node in ast.walk(one)):
        last = max(getattr(node, "end_lineno", None) or 0 for node in ast.walk(tree))
        found.append(range((statement.end_lineno or 0) + 1, last + 1))
    return found
