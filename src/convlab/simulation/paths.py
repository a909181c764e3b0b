"""Where in its loops and calls a simulated thread is, as one number.

A GPU runs the lanes of a warp together: lanes that are in the same iteration of the same loops, in
the same calls, execute an instruction at once, and wait for each other after a branch. A path is
the number of such a position. Two lanes with equal paths are in equal iterations of all loops
around them, so that one lane's third iteration is not taken for another's second.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from convlab.simulation.access_log import AccessLog, site_of


class Paths:
    """The paths of a block's threads. ``log`` hears where in it that of the running one changes."""

    def __init__(self, threads: int, log: AccessLog) -> None:
        self.now = 0
        self.running = 0
        self.addresses, self.marks = log.addresses, log.path_marks
        self.numbers = itertools.count(1)  # of paths that no thread has been on
        self._of = [0] * threads
        # By the path outside and the site: those of a loop's iterations, in their order as far as
        # they are known, and a call's.
        self.iterations: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._calls: dict[tuple[int, int], int] = defaultdict(lambda: next(self.numbers))

    def new_block(self) -> None:
        """All threads are where the kernel begins."""
        self._of = [0] * len(self._of)
        self.now = self.running = 0

    def enter(self, thread: int) -> None:
        """Another thread runs from here on."""
        self._of[self.running] = self.now
        self.running = thread
        self.to(self._of[thread])

    def to(self, path: int) -> None:
        """The running thread is there from here on."""
        self.now = path
        self.marks.extend((len(self.addresses), path))

    def range(self, *bounds: Any) -> Loop:
        """The ``range`` of a kernel whose paths are recorded."""
        return Loop(self, site_of(1), builtins.range(*bounds))

    def endless(self) -> Loop:
        """What a ``while`` runs through: see :func:`with_counted_loops`."""
        return Loop(self, site_of(1), itertools.count())

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A device function that knows where it was called."""
        calls, note, addresses = self._calls, self.marks.extend, self.addresses

        def called(*arguments: Any) -> Any:
            outer = self.now
            self.now = inner = calls[outer, site_of(1)]
            note((len(addresses), inner))  # `to`, written out
            try:
                return function(*arguments)
            finally:
                self.now = outer
                note((len(addresses), outer))

        return called


class Loop:
    """A loop that notes its iterations."""

    __slots__ = ("_paths", "_site", "_steps")

    def __init__(self, paths: Paths, site: int, steps: Iterable[int]) -> None:
        self._paths, self._site, self._steps = paths, site, steps

    def __len__(self) -> int:
        return len(self._steps)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> int:
        return self._steps[index]  # type: ignore[index, no-any-return]

    def __iter__(self) -> Iterator[int]:
        paths = self._paths
        outer = paths.now
        iterations = paths.iterations[outer, self._site]
        # Every iteration of every thread comes by here: `to`, written out.
        note, addresses = paths.marks.extend, paths.addresses
        try:
            for iteration, step in enumerate(self._steps):
                if iteration == len(iterations):  # nobody has been there yet
                    iterations.append(next(paths.numbers))
                paths.now = path = iterations[iteration]
                note((len(addresses), path))
                yield step
        finally:  # after `break` and `return` too
            paths.to(outer)


# A ``range`` can be replaced by one that counts; a ``while`` calls nothing. So a function with
# ``while`` loops is compiled anew from its source, with ``while condition:`` as ``for _ in
# endless():`` and ``if not condition: break``. Lines and columns stay those of the source.


ENDLESS = "_endless_"  # in the function's globals

_made: WeakKeyDictionary[FunctionType, CodeType | None] = WeakKeyDictionary()


def with_counted_loops(function: FunctionType) -> CodeType | None:
    """The function's code with its ``while`` loops counted, the same object each time; None if it
    has no ``while`` loop or no source."""
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
    """Makes ``for`` loops of ``while`` loops."""

    loops = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node  # a function inside is none of the kernel's loops

    def visit_While(self, node: ast.While) -> ast.stmt:
        self.generic_visit(node)
        parts = [part for statement in node.orelse for part in ast.walk(statement)]
        if any(isinstance(part, ast.Break | ast.Continue) for part in parts):
            return node  # they are of a loop further out
        self.loops += 1
        text = f"for {ENDLESS}{self.loops} in {ENDLESS}():\n if not condition: break"
        loop, leave = (made := ast.parse(text).body[0]), made.body[0]  # type: ignore[attr-defined]
        for part in ast.walk(loop):
            ast.copy_location(part, node)
        leave.test.operand = node.test
        leave.body[:0] = node.orelse
        loop.body += node.body  # type: ignore[attr-defined]
        return loop
