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
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from convlab.simulation.access_log import AccessLog, instruction, site_of


class Paths:
    """The paths of a block's threads. ``log`` hears where in it that of the running one changes."""

    def __init__(self, threads: int, log: AccessLog) -> None:
        self.now = 0
        self.running = 0
        self._addresses, self._marks = log.addresses, log.path_marks
        self._of = [0] * threads
        self._numbers = itertools.count(1)
        # By the path outside and the site: those of a loop's iterations, in their order, and a
        # call's.
        self._iterations_of: dict[tuple[int, int], list[int]] = {}
        self._calls: dict[tuple[int, int], int] = {}
        # The same lists by any offset of the instruction: see `access_log.instruction`.
        self._iterations_at: dict[tuple[int, int], list[int]] = {}

    def new_block(self) -> None:
        """All threads are where the kernel begins."""
        self._of = [0] * len(self._of)
        self.now = self.running = 0

    def enter(self, thread: int) -> int:
        """Another thread runs from here on; its path."""
        self._of[self.running] = self.now
        self.running = thread
        self.to(self._of[thread])
        return self.now

    def to(self, path: int) -> None:
        """The running thread is there from here on."""
        self.now = path
        self._marks.extend((len(self._addresses), path))

    def new(self) -> int:
        """A path that no thread has been on."""
        return next(self._numbers)

    def iterations(self, outer: int, site: int) -> list[int]:
        """The paths of the iterations of the loop there, as far as they are known."""
        return self._iterations_of.setdefault((outer, site), [])

    def iterations_at(self, outer: int, code: CodeType, offset: int) -> list[int]:
        """The same by a position in the code, which is faster."""
        key = outer, id(code) + offset
        found = self._iterations_at.get(key)
        if found is None:
            site = id(code) + instruction(code, offset)
            found = self._iterations_at[key] = self.iterations(outer, site)
        return found

    def range(self, *bounds: Any) -> Loop:
        """What ``range`` is in a kernel whose paths are kept."""
        frame = sys._getframe(1)
        return Loop(self, frame.f_code, frame.f_lasti, builtins.range(*bounds))

    def while_loop(self, number: int) -> WhileLoop:
        """The counter of a loop that is entered; ``number`` is the loop's in its function."""
        return WhileLoop(self, site_of(1) + number)

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A device function that knows where it was called."""
        calls, note, addresses = self._calls, self._marks.extend, self._addresses

        def called(*arguments: Any) -> Any:
            outer = self.now
            key = outer, site_of(1)
            inner = calls.get(key)
            if inner is None:
                inner = calls[key] = self.new()
            self.now = inner  # `to`, written out
            note((len(addresses), inner))
            try:
                return function(*arguments)
            finally:
                self.now = outer
                note((len(addresses), outer))

        return called


class WhileLoop:
    """A ``while`` that notes its iterations (:mod:`convlab.simulation.paths`)."""

    __slots__ = ("_iteration", "_iterations", "_outer", "_paths")

    def __init__(self, paths: Paths, site: int) -> None:
        self._paths, self._outer, self._iteration = paths, paths.now, 0
        self._iterations = paths.iterations(paths.now, site)

    def next(self) -> None:
        """Another one begins."""
        if self._iteration == len(self._iterations):
            self._iterations.append(self._paths.new())
        self._paths.to(self._iterations[self._iteration])
        self._iteration += 1

    def end(self) -> None:
        """The loop is left, by its condition or by ``break``."""
        self._paths.to(self._outer)


class Loop:
    """A ``range`` that notes its iterations."""

    __slots__ = ("_code", "_offset", "_paths", "_steps")

    def __init__(self, paths: Paths, code: CodeType, offset: int, steps: builtins.range) -> None:
        self._paths, self._code, self._offset, self._steps = paths, code, offset, steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> int:
        return self._steps[index]

    def __iter__(self) -> Iterator[int]:
        paths = self._paths
        outer = paths.now
        iterations = paths.iterations_at(outer, self._code, self._offset)
        # Every iteration of every thread comes by here: `to`, written out.
        note, addresses = paths._marks.extend, paths._addresses
        try:
            for iteration, step in enumerate(self._steps):
                if iteration == len(iterations):  # nobody has been there yet
                    iterations.append(paths.new())
                paths.now = path = iterations[iteration]
                note((len(addresses), path))
                yield step
        finally:  # after `break` and `return` too
            paths.to(outer)


# A ``range`` can be replaced by one that counts; a ``while`` calls nothing. So a function with
# ``while`` loops is compiled anew from its source, with a call at the head of each body and one
# behind each loop. Lines and columns stay those of the source.


WHILE_LOOPS = "_while_loops_"  # in the function's globals: what makes a loop's counter


_made: WeakKeyDictionary[FunctionType, CodeType | None] = WeakKeyDictionary()


def with_counted_loops(function: FunctionType) -> CodeType | None:
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
    """Puts the calls in: before a loop its counter is made, each iteration tells it, the end
    too."""

    def __init__(self) -> None:
        self.loops = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node  # a function inside is none of the kernel's loops

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        self.loops += 1
        name = f"{WHILE_LOOPS}{self.loops}"
        self.generic_visit(node)
        node.body.insert(0, _statement(f"{name}.next()", node))
        return [
            _statement(f"{name} = {WHILE_LOOPS}({self.loops})", node),
            node,
            _statement(f"{name}.end()", node),
        ]


def _statement(text: str, at: ast.stmt) -> ast.stmt:
    made = ast.parse(text).body[0]
    for part in ast.walk(made):
        ast.copy_location(part, at)
    return made
