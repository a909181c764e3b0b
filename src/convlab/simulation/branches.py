"""Where in the source threads of a block part."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import lru_cache
from types import CodeType

_BRANCHES = {ast.If: "if", ast.For: "for", ast.While: "while"}


@lru_cache(maxsize=1000)
def branch_between(code: CodeType, file: str, line: int, other: int | None) -> str:
    """``the if in line 12``: the innermost branch or loop in a function that has ``line`` in it,
    but not ``other``, or the other way round; empty if there is none, or no source."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ""
    found = ""
    for node in ast.walk(tree):  # the outer ones first
        if not isinstance(node, ast.If | ast.For | ast.While):
            continue
        for block in filter(None, (node.body, node.orelse)):
            within = range(block[0].lineno + first - 1, (block[-1].end_lineno or 0) + first)
            if (line in within) != (other is not None and other in within):
                found = f"the {_BRANCHES[type(node)]} in line {node.lineno + first - 1}"
    return found
