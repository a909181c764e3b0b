"""Kernels whose ``while`` loops tell their turns, as those over ``range`` do.

A ``range`` can be replaced by one that counts (:mod:`convlab.engines.paths`); a ``while`` calls
nothing. So where turns are to be known, a function with such loops is compiled anew from its
source, with a call at the head of each body and one behind each loop. Nothing else changes: lines
and columns stay those of the source.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

NAME = "_while_loops_"  # in the function's globals: what makes a loop's counter


_made: WeakKeyDictionary[FunctionType, CodeType | None] = WeakKeyDictionary()


def with_turns(function: FunctionType) -> CodeType | None:
    """The function's code with its ``while`` loops counted, the same each time; None where it has
    none, or where its source is not to be had."""
    if function not in _made:
        _made[function] = _compiled(function)
    return _made[function]


def _compiled(function: FunctionType) -> CodeType | None:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        return None
    counter = _Counter()
    counter.generic_visit(found)
    if not counter.loops:
        return None
    found.decorator_list = []
    # Around it a function that has what the original closes over.
    outer = ast.parse(f"def outer({', '.join(function.__code__.co_freevars)}):\n pass").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [found]
    tree.body = [outer]
    ast.increment_lineno(found, first - 1)
    ast.fix_missing_locations(tree)
    compiled = compile(tree, function.__code__.co_filename, "exec")
    code = _inner(_inner(compiled, "outer"), found.name)
    same = code.co_freevars == function.__code__.co_freevars
    return code if same else None


def _inner(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)


class _Counter(ast.NodeTransformer):
    """Puts the calls in: before a loop its counter is made, each turn tells it, the end too."""

    def __init__(self) -> None:
        self.loops = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node  # a function inside is none of the kernel's loops

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        self.loops += 1
        name = f"{NAME}{self.loops}"
        self.generic_visit(node)
        node.body.insert(0, _statement(f"{name}.turn()", node))
        return [
            _statement(f"{name} = {NAME}({self.loops})", node),
            node,
            _statement(f"{name}.end()", node),
        ]


def _statement(text: str, at: ast.stmt) -> ast.stmt:
    made = ast.parse(text).body[0]
    for part in ast.walk(made):
        ast.copy_location(part, at)
    return made
