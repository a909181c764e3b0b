"""Find names that a learner's kernel has exchanged, or used in place of another, by trying.

A wrong answer says little about its cause if rows and columns are exchanged somewhere. So this
module exchanges two neighbouring indices, arguments, compared or assigned names at a time, then
replaces one name by another. If the changed kernel is right on every launch, this is the cause.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from itertools import chain
from time import process_time
from typing import Any, NamedTuple

from convlab.lessons.changed_text import SECONDS, made_of
from convlab.lessons.kernel_text import own_tree

MOST_TOLD = 2  # exchanges: any one of them makes the kernel right
NOT_EXCHANGED = {"range", "max", "min", "array"}  # calls whose arguments nobody mistakes


class Exchange(NamedTuple):
    """Two pieces of a line that are to be exchanged: the line's number, and the pieces. Without an
    ``other`` the piece is a name that stands in the place of another one."""

    line: int
    one: str
    other: str = ""

    @property
    def advice(self) -> str:
        """The question that leads to the mistake."""
        if not self.other:
            return f"Is {self.one} the right name everywhere in this line?"
        return (
            f"Are {self.one} and {self.other} in the right order in this line? Exchanged, they "
            "give the right answer."
        )


def exchanged_in(kernels: Sequence[Any], is_right: Callable[[list[Any]], bool]) -> list[Exchange]:
    """Return the pieces of a kernel that must be exchanged to make it right, one of those in the
    list; empty if there are none, or if the search takes too long.

    ``kernels`` are of one text, with different constants. ``is_right`` tries them changed.
    """
    own = own_tree(kernels[0].py_func)
    found: list[Exchange] = []
    if own is None:
        return found
    began = process_time()
    for exchange, changed in chain(changed_pairs(own), _renamed(own)):
        if process_time() - began > SECONDS or len(found) == MOST_TOLD:
            break
        if any(one.line == exchange.line for one in found):
            continue
        with suppress(Exception), ExitStack() as made:  # a changed kernel may fail in any way
            tried = [made.enter_context(made_of(changed, one.py_func)) for one in kernels]
            if is_right(tried):
                found.append(exchange)
    return found


def advice_on(exchanges: Sequence[Exchange]) -> str:
    """Return the question that leads to the mistake, of which each exchange is a remedy."""
    if len(exchanges) == 1 or not all(one.other for one in exchanges):
        return exchanges[0].advice
    first, *others = exchanges
    said = f"Are {first.one} and {first.other} in the right order in line {first.line}"
    for one in others:
        said += f", and {one.one} and {one.other} in line {one.line}"
    return f"{said}? Exchanged in one of these lines, they give the right answer."


def changed_pairs(own: ast.FunctionDef) -> Iterator[tuple[Exchange, ast.FunctionDef]]:
    """Yield copies of a function with one pair exchanged in each."""
    for number, node in enumerate(ast.walk(own)):
        compared = _compared(node)
        for at in range(len(_pieces(node) or compared) - 1):
            copy = deepcopy(own)
            its_node = next(one for n, one in enumerate(ast.walk(copy)) if n == number)
            pieces = _pieces(its_node) or [one.left for one in _compared(its_node)]
            one, other = (ast.unparse(piece) for piece in pieces[at : at + 2])
            if one != other:
                pieces[at], pieces[at + 1] = pieces[at + 1], pieces[at]
                for comparison, left in zip(_compared(its_node), pieces, strict=False):
                    comparison.left = left
                yield Exchange(getattr(node, "lineno", 0), one, other), copy


def _renamed(own: ast.FunctionDef) -> Iterator[tuple[Exchange, ast.FunctionDef]]:
    """Yield copies of a function with one name replaced by another that is assigned together with
    it, as ``x`` with ``y``."""
    nodes = [node for node in ast.walk(own) if isinstance(node, ast.Name)]
    together: dict[str, set[str]] = {}
    for node in ast.walk(own):
        if isinstance(node, ast.Assign):
            names = {one.id for one in _pieces(node) if isinstance(one, ast.Name)}
            for name in names:
                together.setdefault(name, set()).update(names - {name})
    for number, node in enumerate(nodes):
        if isinstance(node.ctx, ast.Load):
            for other in sorted(together.get(node.id, ())):
                copy = deepcopy(own)
                names_there = [one for one in ast.walk(copy) if isinstance(one, ast.Name)]
                names_there[number].id = other
                yield Exchange(node.lineno, node.id), copy


def _pieces(node: ast.AST) -> list[ast.expr]:
    """Return the indices of an access, the arguments of a call, or the names of an assignment, in
    the list that the node has."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        return node.slice.elts
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        return [] if name in NOT_EXCHANGED or node.keywords else node.args
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        names = node.targets[0].elts
        return names if all(isinstance(one, ast.Name) for one in names) else []
    return []


def _compared(node: ast.AST) -> list[ast.Compare]:
    """Return the comparisons of a condition such as ``row < M and column < N``, whose names on the
    left may be exchanged."""
    values = node.values if isinstance(node, ast.BoolOp) else []
    found = [one for one in values if isinstance(one, ast.Compare)]
    return found if all(isinstance(one.left, ast.Name) for one in found) else []
