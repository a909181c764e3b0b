"""Stores that stand in branches of an ``if`` which exclude each other, as one request.

``if inside: out[i] = x`` and ``else: out[i] = 0`` store each element once, as one line after the
``if`` would. Where a warp takes both branches it makes two requests. A count that compares kernels
may take the two as one, because it is a matter of style where the store stands.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from convlab.simulation.recording.access_log import WRITE
from convlab.simulation.recording.sites import Sites
from convlab.simulation.recording.source_text import source_tree
from convlab.simulation.rules.memory_traffic import Requests

Branches = dict[int, int]  # by the line of an ``if``: the branch that a statement is in
LEAVES = ast.Return | ast.Continue | ast.Break


def branches_of(tree: ast.AST) -> dict[int, Branches]:
    """Return the branches that each line of a text is in.

    What follows an ``if`` whose branch leaves by ``return``, ``continue`` or ``break`` is in its
    other branch.
    """
    found: dict[int, Branches] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for line, branches in _lines_in(node.body, {}):
                found[line] = branches
    return found


def _lines_in(block: Sequence[ast.stmt], around: Branches) -> Iterator[tuple[int, Branches]]:
    here = dict(around)
    for statement in block:
        if isinstance(statement, ast.If):
            for number, branch in enumerate((statement.body, statement.orelse)):
                yield from _lines_in(branch, {**here, statement.lineno: number})
            if isinstance(statement.body[-1], LEAVES):
                here[statement.lineno] = 1
        elif isinstance(statement, ast.For | ast.While | ast.With):
            yield from _lines_in(statement.body, here)
        elif not isinstance(statement, ast.FunctionDef):
            for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1):
                yield line, here


def exclude(one: Branches, other: Branches) -> bool:
    """Return whether two lines are in different branches of an ``if``."""
    return any(other.get(line, branch) != branch for line, branch in one.items())


def with_branches_together(requests: Requests, sites: Sites) -> Requests:
    """Return the requests, where a warp's stores to an array from branches that exclude each other
    are one request if each lane is in one of them."""
    which = np.unique(requests.site[requests.kind == WRITE]).tolist()
    excluding = _excluding(which, sites)
    if not any(excluding.values()):
        return requests
    group = np.arange(len(requests))
    ends = np.append(requests.starts[1:], len(requests.request))
    opened: dict[tuple[int, int], list[_Group]] = defaultdict(list)
    for at in np.flatnonzero(requests.kind == WRITE).tolist():
        site = int(requests.site[at])
        if not excluding[site]:
            continue
        lanes = set(requests.lane[requests.starts[at] : ends[at]].tolist())
        key = int(requests.warp[at]), int(requests.span[at])
        found = next((one for one in opened[key] if one.takes(excluding[site], lanes)), None)
        if found is None:
            found = _Group(at)
            opened[key].append(found)
        found.add(site, lanes)
        group[at] = found.first
    return _grouped(requests, group)


def _excluding(which: Iterable[int], sites: Sites) -> dict[int, set[int]]:
    """Return, for each site of a store, the sites of stores in branches that exclude its own."""
    placed = {}
    for site in which:
        code = sites.code(site)
        tree = None if code is None else source_tree(code, code.co_filename)
        line = sites.line(site)[1]
        placed[site] = code, {} if tree is None else branches_of(tree).get(line, {})
    return {
        site: {
            other
            for other, (its_code, its_branches) in placed.items()
            if its_code is code and exclude(branches, its_branches)
        }
        for site, (code, branches) in placed.items()
    }


class _Group:
    """Stores of a warp that count as one; ``first`` is the number of the first request."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._sites: set[int] = set()
        self._lanes: set[int] = set()

    def takes(self, excluding: set[int], lanes: set[int]) -> bool:
        """Return whether a store belongs here: its branch excludes the others', and no lane has
        stored yet."""
        return self._sites <= excluding and self._lanes.isdisjoint(lanes)

    def add(self, site: int, lanes: set[int]) -> None:
        self._sites.add(site)
        self._lanes |= lanes


def _grouped(requests: Requests, group: np.ndarray) -> Requests:
    """Return the requests of which each is that of its ``group``, the number of its first one."""
    first, number = np.unique(group, return_inverse=True)
    of_lane = number.reshape(-1)[requests.request]
    order = np.lexsort((requests.lane, of_lane))
    columns = (requests.site, requests.kind, requests.span, requests.warp)
    lanes = (of_lane, requests.lane, requests.address, requests.width)
    return Requests(*(column[first] for column in columns), *(column[order] for column in lanes))


def branched_lines(function: Callable[..., object]) -> tuple[int, ...]:
    """Return the lines of the first stores to one array of a kernel's arguments, or to one shared
    array, that stand in branches which exclude each other; empty if there are none."""
    code = function.__code__
    tree = source_tree(code, code.co_filename)
    if tree is None:
        return ()
    branches = branches_of(tree)
    stores: dict[str, list[int]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    stores[ast.unparse(target.value)].append(node.lineno)
    for lines in stores.values():
        apart = [
            line
            for line in lines
            if any(exclude(branches.get(line, {}), branches.get(one, {})) for one in lines)
        ]
        if apart:
            return tuple(sorted(apart))
    return ()
