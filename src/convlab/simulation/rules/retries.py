"""Updates by ``cas`` in a kernel's text: whether they are tried until they succeed.

A ``cas`` that fails has changed nothing, so its result must decide whether a loop goes on: by the
loop's condition, or by an ``if`` that leaves the loop. The result may go through variables, and
through the ``return`` of a device function to the loop of its caller. A loop around a ``cas`` whose
result is thrown away, stored or counted loses updates.

Some right kernels need no second try: a thread that helps another one with its queue, or that
shortens a path of a tree, may find that a third one has done so. They do not compute the new value
from the old one, and do so while they walk, in a loop that no counter ends.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from convlab.simulation.recording.instructions import instruction
from convlab.simulation.recording.sites import Sites
from convlab.simulation.recording.source_text import source_tree

SourcePosition = tuple[int | None, ...]


class Retry(IntEnum):
    """The number of times that a ``cas`` is tried again if it fails."""

    NEVER = 0
    BOUNDED = 1  # by a ``for`` loop
    LIMITED = 2  # by a ``while`` loop that has another end too
    UNTIL_DONE = 3
    RETURNED = 4  # the function returns the result, so its caller decides


LOCKING = ("cas", "compare_and_swap", "exch")  # the atomics that take locks


class Update(NamedTuple):
    """The facts from the text about an update of an element by an atomic. A load has no name, and
    only counts as tried again in a loop that only polls."""

    retry: Retry = Retry.NEVER
    computed: bool = False  # from the element's old value, or an ``exch`` that this value decides
    follows: bool = False  # an ``exch`` that the result of another element's atomic decides
    walks: bool = False  # in a ``while`` loop that no counter ends
    name: str = ""  # the atomic's


@lru_cache(maxsize=1000)
def update_of(code: CodeType, offset: int, file: str) -> Update:
    """Return the update by the call or load at ``offset``, as far as this function's text shows it;
    nothing without source. ``file`` is the code's, because codes of two files may be equal."""
    tree, position = source_tree(code, file), position_at(code, offset)
    nodes = [] if tree is None else [*ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.Call) and position_of(node) == position:
            return Update(
                retry=_Result(nodes, node).retry(),
                computed=_is_computed(nodes, node) or _is_decided_by_old_value(nodes, node),
                follows=_is_decided_by_another(nodes, node),
                walks=_walks(nodes, node),
                name=getattr(node.func, "attr", ""),
            )
        if isinstance(node, ast.Subscript) and position_of(node) == position:
            return Update(Retry.UNTIL_DONE) if _only_polls(nodes, node) else Update()
    return Update()


def update_at(sites: Sites, site: int) -> Update:
    """Return the facts from the kernel's text about the access at a site."""
    if (code := sites.code(site)) is None:
        return Update()
    return update_of(code, instruction(code, site - id(code)), code.co_filename)


class _Result:
    """The result of a call, and the variables that depend on it."""

    def __init__(self, nodes: list[ast.AST], call: ast.Call) -> None:
        self._call, self._nodes = call, nodes
        # The value that a ``cas`` returns if it succeeds, and the variables that hold its result,
        # that tell its success, and that tell its failure.
        self._expected = ""
        if _is_cas(call):
            self._expected = ast.unparse(call.args[-2])
        self._results: set[str] = set()
        self._success: set[str] = set()
        self._failure: set[str] = set()
        self._names: set[str] = set()  # variables that depend on the result
        self._follow()

    def retry(self) -> Retry:
        """Return how often the call is tried again."""
        loops = (node for node in self._nodes if isinstance(node, ast.While | ast.For))
        found = max(map(self._by, loops), default=Retry.NEVER)
        returns = (node for node in self._nodes if isinstance(node, ast.Return) and node.value)
        if not found and any(self._decides(node) for node in returns):
            return Retry.RETURNED
        return found

    def _follow(self) -> None:
        """Find the variables that depend on the result, until there are no more."""
        known = -1
        while known < len(self._names):
            known = len(self._names)
            for node in self._nodes:
                if isinstance(node, ast.If) and self._in(node.test):
                    for inner in ast.walk(node):
                        self._names.update(_targets(inner))
                value = getattr(node, "value", None) if [*_targets(node)] else None
                if value is not None and self._in(value):
                    self._names.update(_targets(node))
                    self._name_outcome(node, value)

    def _name_outcome(self, node: ast.AST, value: ast.expr) -> None:
        """Keep the name that holds just the result, or whether the call has succeeded."""
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name):
            if self._is_result(value):
                self._results.add(target.id)
            elif (succeeded := self._succeeded(value)) is not None:
                (self._success if succeeded else self._failure).add(target.id)

    def _in(self, expression: ast.AST) -> bool:
        """Return whether the expression depends on the result."""
        sizes = {
            id(node.value)
            for node in ast.walk(expression)
            if isinstance(node, ast.Attribute) and node.attr in ("size", "shape")
        }
        return any(
            node is self._call
            or (isinstance(node, ast.Name) and node.id in self._names and id(node) not in sizes)
            for node in ast.walk(expression)
        )

    def _is_result(self, expression: ast.expr) -> bool:
        return expression is self._call or (
            isinstance(expression, ast.Name) and expression.id in self._results
        )

    def _succeeded(self, test: ast.expr) -> bool | None:
        """Return whether the test is true if the call has succeeded, or if it has failed; None if
        the text does not show it."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            found = self._succeeded(test.operand)
            return None if found is None else not found
        if isinstance(test, ast.Name):
            return True if test.id in self._success else False if test.id in self._failure else None
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            sides = test.left, test.comparators[0]
            for one, other in (sides, sides[::-1]):
                if self._is_result(one) and ast.unparse(other) == self._expected:
                    return {ast.Eq: True, ast.NotEq: False}.get(type(test.ops[0]))
        return None

    def _decides(self, returns: ast.Return) -> bool:
        """Return whether the result is in the returned value, or decides which ``return`` is
        reached."""
        assert returns.value is not None
        return self._in(returns.value) or any(
            isinstance(node, ast.If)
            and self._in(node.test)
            and any(inner is returns for inner in ast.walk(node))
            for node in self._nodes
        )

    def _by(self, loop: ast.While | ast.For) -> Retry:
        """Return how often this loop tries again."""
        if not any(node is self._call or _is_cas(node) for node in ast.walk(loop)):
            return Retry.NEVER
        ends = [node for node in _inside(loop.body) if isinstance(node, ast.If)]
        mine = [node for node in ends if self._in(node.test)]
        if isinstance(loop, ast.For):
            leaves = any(self._leaves(node, (ast.Break, ast.Return)) for node in mine)
            return Retry.BOUNDED if leaves else Retry.NEVER
        # The condition `cas(...) == expected` ends the loop where it fails.
        by_condition = self._in(loop.test) and self._succeeded(loop.test) is not True
        if not by_condition and not any(
            self._leaves(node, (ast.Break, ast.Return, ast.Continue)) for node in mine
        ):
            return Retry.NEVER
        return Retry.LIMITED if _is_counted(loop) else Retry.UNTIL_DONE

    def _leaves(self, node: ast.If, ways: tuple[type[ast.stmt], ...]) -> bool:
        """Return whether this ``if`` leaves the loop's body in one of these ways: by ``continue``
        only if the call has failed, otherwise only if it has succeeded."""
        succeeded = self._succeeded(node.test)
        for arm, success in zip(_arms(node), (succeeded, succeeded is False), strict=True):
            unknown = succeeded is None
            if _has(arm, tuple(way for way in ways if way is not ast.Continue)) and (
                unknown or success
            ):
                return True
            if ast.Continue in ways and _has(arm, (ast.Continue,)) and (unknown or not success):
                return True
        return False


def _is_computed(nodes: list[ast.AST], call: ast.Call) -> bool:
    """Return whether the new value is computed from a value that the thread has read of the
    element. A value that the old one points to is not."""
    if _is_cas(call):
        names = {node.id for node in ast.walk(call.args[-2]) if isinstance(node, ast.Name)}
    else:
        names = {
            name
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            if _is_of_same_element(node.value, call)
            for name in _targets(node)
        }
    names = _computed_from(names, nodes)
    return bool(call.args) and _computes(call.args[-1], names)


def _is_decided_by_old_value(nodes: list[ast.AST], call: ast.Call) -> bool:
    """Return whether the call is an ``exch`` that a test of the element's old value decides, as in
    ``if a[i] > atomic.add(most, 0, 0): atomic.exch(most, 0, a[i])``."""
    reads = [
        node for node in nodes if isinstance(node, ast.Call) and _is_of_same_element(node, call)
    ]
    return _is_decided(nodes, call, reads)


def _is_decided_by_another(nodes: list[ast.AST], call: ast.Call) -> bool:
    """Return whether the call is an ``exch`` that a test of the result of another element's atomic
    decides, as in ``if a[i] > atomic.max(most, 0, a[i]): atomic.exch(place, 0, i)``.

    An ``exch`` of a constant is not: it sets a flag, to the same number whichever thread is last.
    """
    if not call.args or isinstance(call.args[-1], ast.Constant):
        return False
    atomics = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and ".atomic." in f".{ast.unparse(node.func)}"
        if not _is_of_same_element(node, call)
    ]
    return _is_decided(nodes, call, atomics)


def _is_decided(nodes: list[ast.AST], call: ast.Call, atomics: list[ast.Call]) -> bool:
    """Return whether the call is an ``exch``, and a test before it depends on the result of one of
    these atomics. The test need not contain the call: a thread may return early."""
    if getattr(call.func, "attr", "") != "exch" or not call.args:
        return False
    results = [one for one in atomics if one is not call and not _is_cas(one)]
    stored = {
        name
        for node in nodes
        if isinstance(node, ast.Assign) and any(node.value is result for result in results)
        for name in _targets(node)
    }
    names = _computed_from(stored, nodes)
    return any(
        part in results or (isinstance(part, ast.Name) and part.id in names)
        for node in nodes
        if isinstance(node, ast.If | ast.While) and node.lineno <= call.lineno
        for part in ast.walk(node.test)
    )


def _is_of_same_element(one: ast.Call, other: ast.Call) -> bool:
    """Return whether two atomics have the same array and index, as the text names them."""
    return [*map(ast.unparse, one.args[:2])] == [*map(ast.unparse, other.args[:2])]


def _computed_from(names: set[str], nodes: list[ast.AST]) -> set[str]:
    """Return these variables and those that are computed from them."""
    found, known = {*names}, -1
    while known < len(found):
        known = len(found)
        for node in nodes:
            if isinstance(node, ast.Assign) and _computes(node.value, found):
                found.update(_targets(node))
    return found


@lru_cache(maxsize=1000)
def has_update_by_two_atomics(code: CodeType, file: str) -> bool:
    """Return whether a function has a call, other than a ``cas``, whose operand is computed from
    the result of another call with the same array and index, or an ``exch`` that the result of
    another atomic decides."""
    tree = source_tree(code, file)
    nodes = [] if tree is None else [*ast.walk(tree)]
    calls = (node for node in nodes if isinstance(node, ast.Call) and not _is_cas(node))
    return any(
        _is_computed(nodes, call)
        or _is_decided_by_old_value(nodes, call)
        or _is_decided_by_another(nodes, call)
        for call in calls
    )


def _computes(expression: ast.AST, names: set[str]) -> bool:
    if isinstance(expression, ast.Name):
        return expression.id in names
    if isinstance(expression, ast.Subscript) or ".atomic." in ast.unparse(expression)[:20]:
        return False
    return any(_computes(node, names) for node in ast.iter_child_nodes(expression))


def _only_polls(nodes: list[ast.AST], load: ast.Subscript) -> bool:
    """Return whether a loop's condition contains this load, and the loop does nothing but pause."""
    return any(
        isinstance(loop, ast.While)
        and any(node is load for node in ast.walk(loop.test))
        and all(isinstance(node, ast.Pass | ast.Expr) for node in loop.body)
        for loop in nodes
    )


def _walks(nodes: list[ast.AST], call: ast.Call) -> bool:
    """Return whether a ``while`` loop around the call, or the condition of one, has no counter."""
    loops = (node for node in nodes if isinstance(node, ast.While))
    around = [loop for loop in loops if any(node is call for node in ast.walk(loop))]
    return bool(around) and not any(map(_is_counted, around))


def _is_counted(loop: ast.While) -> bool:
    """Return whether the loop, or an ``if`` that leaves it, tests a variable that only steps."""
    steps: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(loop):
        step = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub)
        (steps if step else others).update(_targets(node))
    tests = [loop.test]
    for node in _inside(loop.body):
        if isinstance(node, ast.If) and _has(node.body, (ast.Break, ast.Return)):
            tests.append(node.test)
    names = {node.id for test in tests for node in ast.walk(test) if isinstance(node, ast.Name)}
    return bool(names & (steps - others))


def position_at(code: CodeType, offset: int) -> SourcePosition:
    """Return the position in the source of the expression of an instruction."""
    one = instruction(code, offset)
    at = next((step for step in dis.get_instructions(code) if step.offset == one), None)
    return () if at is None or at.positions is None else tuple(at.positions)


def position_of(node: ast.expr) -> SourcePosition:
    """Return the position of an expression in the source."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _targets(node: ast.AST) -> Iterator[str]:
    """Give the variables that a statement or expression assigns to, and the arrays in which it
    stores."""
    rest: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        rest += node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
        rest.append(node.target)
    while rest:
        target = rest.pop()
        if isinstance(target, ast.Tuple | ast.List):
            rest += target.elts
        while isinstance(target, ast.Subscript | ast.Attribute | ast.Starred):
            target = target.value
        if isinstance(target, ast.Name):
            yield target.id


def _is_cas(node: ast.AST) -> bool:
    names = ("cas", "compare_and_swap")
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in names


def _arms(node: ast.If) -> tuple[list[ast.stmt], list[ast.stmt]]:
    return node.body, node.orelse


def _inside(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Give the nodes in these statements. Of loops among them, only the parts that may leave the
    outer loop."""
    for node in body:
        yield node
        inner = node.orelse if isinstance(node, ast.While | ast.For) else ast.iter_child_nodes(node)
        yield from _inside([*inner])
        if isinstance(node, ast.While | ast.For):
            ifs = (one for one in ast.walk(node) if isinstance(one, ast.If))
            yield from (one for one in ifs if any(isinstance(n, ast.Return) for n in ast.walk(one)))


def _has(arm: Sequence[ast.AST], ways: tuple[type[ast.stmt], ...]) -> bool:
    return any(isinstance(node, ways) for node in _inside(arm))
