"""Find the name that stands in the place of another in a learner's function for a stage, by trying.

A kernel for a stage is made by a function of a problem. So this module changes the text of that
function inside its kernel: it exchanges neighbours as :mod:`convlab.lessons.exchanged` does, gives
two assigned names each other's values, and replaces a name by one that is easily taken for it, such
as ``H_f`` by ``W_f`` or ``K`` by ``K_B``. If the changed function is right on the problems that
went wrong, this is the cause.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import chain, combinations, product
from time import process_time
from types import FunctionType
from typing import Any, NamedTuple

from convlab.lessons.changed_text import SECONDS, made_of
from convlab.lessons.exchanged import Exchange, changed_pairs
from convlab.lessons.kernel_text import own_tree
from convlab.lessons.missing_barriers import loops_around

LETTERS = (
    {"m", "n"},
    {"x", "y", "z"},
    {"t", "tx", "ty"},
    {"M", "N", "K"},
    {"h", "w"},
    {"row", "column"},
    {"m0", "n0", "k0"},
)
Changed = tuple["Change", ast.FunctionDef]


class Change(NamedTuple):
    """A change of a line that makes a kernel right, and the question that leads to it."""

    line: int
    advice: str


def change_that_helps(
    maker: FunctionType, is_right: Callable[[Any], bool], first: Collection[int] = ()
) -> Change | None:
    """Return the change of one line in the kernel that ``maker`` makes which makes it right; None
    if there is none, or if the search takes too long.

    ``is_right`` tries a changed maker, and names in the lines ``first`` are replaced first.
    """
    own = own_tree(maker)
    if own is None or not _kernels(own):
        return None
    began = process_time()
    changes = chain(
        _exchanged(own),
        _assigned(own),
        _swapped_in_line(own),
        _swapped_in_lines(own, first),
        _renamed(own, _other_direction, lambda line: line in first),
        _renamed(own, _same_family, lambda line: line in first),
        _with_other_endings(own),
        _renamed(own, _other_direction),
        _renamed(own, _same_family),
    )
    for change, changed in changes:
        if process_time() - began > SECONDS:
            return None
        with suppress(Exception), made_of(changed, maker) as made:  # it may fail in any way
            if is_right(made):
                return change
    return None


def _kernels(own: ast.FunctionDef) -> list[ast.FunctionDef]:
    """Return the functions inside a function: its kernel, and device functions."""
    nodes = (node for node in ast.walk(own) if node is not own)
    return [node for node in nodes if isinstance(node, ast.FunctionDef)]


def _exchanged(own: ast.FunctionDef) -> Iterator[Changed]:
    """Yield copies with two neighbouring indices, arguments or names exchanged in a kernel."""
    for number, kernel in enumerate(_kernels(own)):
        for exchange, changed in changed_pairs(kernel):
            copy = deepcopy(own)
            _kernels(copy)[number].body = changed.body
            yield Change(exchange.line, exchange.advice), copy


def _assigned(own: ast.FunctionDef) -> Iterator[Changed]:
    """Yield copies in which two names that are alike have got each other's values."""
    for number, kernel in enumerate(_kernels(own)):
        nodes = enumerate(ast.walk(kernel))
        single = [
            (at, node, node.targets[0])
            for at, node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        ]
        for (at, node, one), (other_at, _, other) in combinations(single, 2):
            if one.id != other.id and _same_family(one.id, other.id):
                copy = deepcopy(own)
                within = list(ast.walk(_kernels(copy)[number]))
                first, second = within[at], within[other_at]
                assert isinstance(first, ast.Assign)
                assert isinstance(second, ast.Assign)
                first.targets, second.targets = second.targets, first.targets
                both = f"{one.id} and {other.id}"
                advice = f"Has each of {both} the value of the other? Exchanged, they give the "
                yield Change(node.lineno, f"{advice}right answer."), copy


def _swapped_in_line(own: ast.FunctionDef) -> Iterator[Changed]:
    """Yield copies in which two names that are taken for each other change places in a line."""
    for number, kernel in enumerate(_kernels(own)):
        by_line: dict[int, dict[str, list[int]]] = {}
        for at, node in enumerate(ast.walk(kernel)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                by_line.setdefault(node.lineno, {}).setdefault(node.id, []).append(at)
        for line, places in by_line.items():
            for one, other in combinations(sorted(places), 2):
                if not _other_direction(one, other):
                    continue
                copy = deepcopy(own)
                nodes = list(ast.walk(_kernels(copy)[number]))
                for name, instead in ((one, other), (other, one)):
                    for at in places[name]:
                        nodes[at].id = instead  # type: ignore[attr-defined]
                advice = f"Are {one} and {other} in the right places in this line? Exchanged, they "
                yield Change(line, f"{advice}give the right answer."), copy


def _swapped_in_lines(own: ast.FunctionDef, lines: Collection[int]) -> Iterator[Changed]:
    """Yield copies in which two names that are taken for each other change places in two of the
    lines, or of the loops around them: ``tx`` stands in one of them, and ``ty`` in the other."""
    for number, kernel in enumerate(_kernels(own)):
        by_line: dict[int, dict[str, list[int]]] = {}
        lines = {*lines, *(loop.lineno for line in lines for loop in loops_around(kernel, line))}
        for at, node in enumerate(ast.walk(kernel)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                if node.lineno in lines:
                    by_line.setdefault(node.lineno, {}).setdefault(node.id, []).append(at)
        for first, second in combinations(sorted(by_line), 2):
            for one, other in product(sorted(by_line[first]), sorted(by_line[second])):
                if not _other_direction(one, other):
                    continue
                copy = deepcopy(own)
                nodes = list(ast.walk(_kernels(copy)[number]))
                for place, name, instead in ((first, one, other), (second, other, one)):
                    for at in by_line[place][name]:
                        nodes[at].id = instead  # type: ignore[attr-defined]
                yield (
                    Change(
                        first,
                        f"Are {one} in line {first} and {other} in line {second} in the right "
                        "places? Exchanged, they give the right answer.",
                    ),
                    copy,
                )


def _renamed(
    own: ast.FunctionDef,
    alike: Callable[[str, str], bool],
    in_line: Callable[[int], bool] = lambda line: True,
) -> Iterator[Changed]:
    """Yield copies with one name replaced by another that is ``alike``, in lines ``in_line``."""
    known = _known(own)
    for number, kernel in enumerate(_kernels(own)):
        for at, node in enumerate(ast.walk(kernel)):
            if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
                continue
            if not in_line(node.lineno):
                continue
            for other in sorted(name for name in known if alike(node.id, name)):
                copy = deepcopy(own)
                _name_at(copy, number, at).id = other
                yield Change(node.lineno, Exchange(node.lineno, node.id).advice), copy


def _with_other_endings(own: ast.FunctionDef) -> Iterator[Changed]:
    """Yield copies in which all names of a line with one ending have another: of ``H_i`` and
    ``W_i`` those are ``H_o`` and ``W_o``."""
    known = _known(own)
    endings = sorted({_parts(name)[1] for name in known} - {""})
    for number, kernel in enumerate(_kernels(own)):
        by_line: dict[tuple[int, str], list[tuple[int, str]]] = {}
        for at, node in enumerate(ast.walk(kernel)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                stem, ending = _parts(node.id)
                if ending and stem.isupper():  # sizes, not the numbers of this thread
                    by_line.setdefault((node.lineno, ending), []).append((at, stem))
        for (line, ending), found in by_line.items():
            stems = sorted({stem for _, stem in found})
            for other in endings:
                if len(stems) < 2 or other == ending:
                    continue
                if not all(f"{stem}_{other}" in known for stem in stems):
                    continue
                copy = deepcopy(own)
                for at, stem in found:
                    _name_at(copy, number, at).id = f"{stem}_{other}"
                names = " and ".join(f"{stem}_{ending}" for stem in stems)
                yield Change(line, f"Are {names} the right names in this line?"), copy


def _name_at(copy: ast.FunctionDef, number: int, at: int) -> ast.Name:
    """Return the name that is node ``at`` of the function's kernel of that number."""
    node = next(one for n, one in enumerate(ast.walk(_kernels(copy)[number])) if n == at)
    assert isinstance(node, ast.Name)
    return node


def _known(own: ast.FunctionDef) -> set[str]:
    """Return the names that a function and those in it give values."""
    names = [node for node in ast.walk(own) if isinstance(node, ast.Name)]
    return {one.id for one in names if isinstance(one.ctx, ast.Store)}


def _parts(name: str) -> tuple[str, str]:
    """Return what a name has before and after its last ``_``; a name without has no ending."""
    stem, _, ending = name.rpartition("_")
    return (stem, ending) if stem else (ending, "")


def _other_direction(one: str, other: str) -> bool:
    """Return whether names are easily taken for each other, because they differ in a direction
    alone, as ``o_h`` and ``o_w``, ``H_f`` and ``W_f`` or ``m`` and ``n`` do, or in a block's
    ending, as ``K`` and ``K_B``."""
    if one == other:
        return False
    (stem, ending), (other_stem, other_ending) = _parts(one), _parts(other)
    if stem == other_stem and {ending, other_ending} in ({"h", "w"}, {"", "B"}):
        return True
    if ending == other_ending and {stem.lower(), other_stem.lower()} == {"h", "w"}:
        return True
    return ending == other_ending and any({stem, other_stem} <= alike for alike in LETTERS)


def _same_family(one: str, other: str) -> bool:
    """Return whether names are parts of the same family: ``H_i`` and ``H_o``, or ``o_h`` and
    ``f_h``."""
    if one == other:
        return False
    (stem, ending), (other_stem, other_ending) = _parts(one), _parts(other)
    same_kind = stem.isupper() == other_stem.isupper()
    return stem == other_stem or (bool(ending) and ending == other_ending and same_kind)
