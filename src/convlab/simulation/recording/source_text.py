"""The source of functions, with the lines of its file, and the branches and loops in it."""

from __future__ import annotations

import ast
import inspect
import linecache
from functools import lru_cache
from tokenize import TokenError
from types import CodeType


def source_lines(code: CodeType) -> tuple[list[str], int]:
    """Return the lines of a function's source and the number of the first. Raises ``OSError`` if
    there is no source, or if it has been changed so that no function begins there.

    ``inspect.getsourcelines`` returns the same, but searches all loaded modules for the code's own,
    which takes longer than many launches. Only code in an archive needs the module.
    """
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    if not lines:
        return inspect.getsourcelines(code)
    try:
        return inspect.getblock(lines), code.co_firstlineno
    except TokenError as error:
        raise OSError(f"the source has changed: {error}") from None


def parsed_source(code: CodeType) -> ast.Module:
    """Return the source of a function with the lines and columns of its file. Raises ``OSError`` or
    ``TypeError`` if there is no source, and ``SyntaxError`` if it is not whole."""
    lines, first = source_lines(code)
    text = "".join(lines)
    if not lines[0][:1].isspace():
        return ast.increment_lineno(ast.parse(text), first - 1)
    # An indented function is parsed as the body of a branch, so that its columns stay those of the
    # file, which the positions of its instructions name, and a comment may begin further left.
    tree = ast.parse(f"if 1:\n{text}")
    (branch,) = tree.body
    assert isinstance(branch, ast.If)
    tree.body = branch.body
    return ast.increment_lineno(tree, first - 2)


@lru_cache(maxsize=1000)
def source_tree(code: CodeType, file: str) -> ast.Module | None:
    """Return the source of a function with the lines and columns of its file; None without
    source. ``file`` is the code's, because codes of two files may be equal."""
    try:
        return parsed_source(code)
    except (OSError, TypeError, SyntaxError):
        return None


@lru_cache(maxsize=1000)
def has_while(code: CodeType, file: str) -> bool:
    """Return whether a function has a ``while`` loop; False without source."""
    tree = source_tree(code, file)
    return tree is not None and any(isinstance(node, ast.While) for node in ast.walk(tree))


@lru_cache(maxsize=1000)
def branches_and_loops(code: CodeType, file: str) -> list[tuple[str, int, range]]:
    """Return the branches and loops of a function, outer ones first: the kind of each, the line
    where it begins, and its lines. Nothing for a function without source. ``file`` is the code's,
    because codes of two files may be equal."""
    tree = source_tree(code, file)
    found = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.If | ast.For | ast.While):
            for block in filter(None, (node.body, node.orelse)):
                within = range(block[0].lineno, (block[-1].end_lineno or 0) + 1)
                found.append((type(node).__name__.lower(), node.lineno, within))
    return found
