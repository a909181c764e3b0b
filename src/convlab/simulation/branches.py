"""Where in the source threads of a block part."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType

_BRANCHES = {ast.If: "if", ast.For: "for", ast.While: "while"}


@lru_cache(maxsize=1000)
def branch_between(code: CodeType, file: str, line: int, other: int | None) -> str:
    """``the if in line 12 of program.py``: the innermost branch or loop in a function that has
    ``line`` in it, but not ``other``, or the other way round; empty if there is none, or no
    source."""
    found = ""
    for kind, begin, within in _blocks(code):
        if (line in within) != (other is not None and other in within):
            found = f"the {kind} in line {begin} of {Path(file).name}"
    return found


@lru_cache(maxsize=1000)
def together_in_branch(code: CodeType, file: str, line: int, other: int) -> bool:
    """Whether an ``if`` contains both lines and all that may run between them. A line that follows
    itself in a loop counts only if the ``if`` contains the loop."""
    around = [kind for kind, _, within in _blocks(code) if line in within and other in within]
    while line == other and around and around[-1] == "if":
        around.pop()
    return "if" in around


@lru_cache(maxsize=1000)
def in_while(code: CodeType, file: str, line: int) -> bool:
    """Whether the line is in a ``while`` loop, or its condition."""
    return any(
        kind == "while" and (begin == line or line in within)
        for kind, begin, within in _blocks(code)
    )


def _blocks(code: CodeType) -> Iterator[tuple[str, int, range]]:
    """The branches and loops of a function, outer ones first: the kind of each, the line where it
    begins, and the lines in it. Yields nothing for a function without source."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.For | ast.While):
            for block in filter(None, (node.body, node.orelse)):
                within = range(block[0].lineno + first - 1, (block[-1].end_lineno or 0) + first)
                yield _BRANCHES[type(node)], node.lineno + first - 1, within
