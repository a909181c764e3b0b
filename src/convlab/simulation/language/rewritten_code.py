"""A function compiled again from its source, with loops and arithmetic that suit a simulation.

A ``range`` can be replaced by one that counts its iterations. But a ``while`` calls nothing, and
neither does a division of Python's numbers, which raises an error where a GPU's gives infinity. So
a function with either is compiled again from its source: ``while condition:`` as ``for _ in
endless():`` and ``if not condition: break``, and ``a / b`` as ``a / ((d := b) or by_zero(d))``. A
kernel's ``return`` returns its line, which tells which one ended a thread. Lines and columns stay
those of the source.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FunctionType
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from greenlet import getcurrent

from convlab.simulation.language.code_names import WAITING_CALL, nested_codes, references, waits
from convlab.simulation.language.inference import Typed, infer
from convlab.simulation.language.refusals import Untyped
from convlab.simulation.language.signatures import Types
from convlab.simulation.language.source_nodes import positions, written
from convlab.simulation.language.typed_arithmetic import TypedArithmetic
from convlab.simulation.recording.source_text import parsed_source

Bits = tuple[int, ...]  # the most bits of each integer among the arguments
Step = TypeVar("Step")

# Globals of rewritten functions.
ENDLESS = "_endless_"  # the iterable of former ``while`` loops
NUMBERED = "_numbered_"  # counts the iterations of loops in which threads may wait


class RewrittenCode(NamedTuple):
    """A function's code, and the calls of device functions in it, by number."""

    code: CodeType
    calls: list[Typed]


_codes: WeakKeyDictionary[FunctionType, dict[tuple[bool, Types | None, Bits], RewrittenCode]] = (
    WeakKeyDictionary()
)


def code_of(
    function: FunctionType, is_kernel: bool, types: Types | None, bits: Bits
) -> RewrittenCode:
    """Return the function's code, rewritten for arguments of these types, if they are given.

    No other function of the same factory shares the code. Later calls return the same code, so that
    Python and the caches of its instructions need to look at it only once.
    """
    codes, key = _codes.setdefault(function, {}), (is_kernel, types, bits)
    if key not in codes:
        code = function.__code__
        waiting = frozenset(name for name, value in references(function) if waits(value))
        try:
            if types is None:
                shared = _untyped(code, code.co_filename, is_kernel, waiting)
                codes[key] = RewrittenCode(shared.code.replace(), [])
            else:
                codes[key] = _compiled_again(
                    code,
                    code.co_filename,
                    is_kernel,
                    waiting,
                    expressions=infer(function, types, bits),
                )
        except (OSError, TypeError, SyntaxError) as error:
            if types is not None:
                raise Untyped(f"{function.__name__}: {error}") from None
            codes[key] = RewrittenCode(code.replace(), [])
    return codes[key]


def _compiled_again(
    code: CodeType,
    file: str,
    is_kernel: bool,
    waiting: frozenset[str],
    expressions: dict[int, Typed] | None = None,
) -> RewrittenCode:
    """Return the rewritten code, with typed arithmetic if the types of ``expressions`` are known.

    ``waiting`` are the names of device functions in which threads may wait for each other. ``file``
    is the code's file, because equal code of two files is not the same. Raises ``OSError``,
    ``TypeError`` or ``SyntaxError`` if the source is missing or has changed.
    """
    tree, found, same = _source(code, file)
    typed = TypedArithmetic(positions(same, expressions or {}))
    typed.generic_visit(found)
    _LoopRewriter(is_kernel, waiting).generic_visit(found)
    if expressions is not None:  # the rewritten code still closes over names that it calls no more
        closed_over = f"[{', '.join(code.co_freevars)}]"
        if isinstance(found, ast.Lambda):
            found.body = written(f"value if 1 else {closed_over}", found, value=found.body)
        else:
            found.body.insert(0, written(f"if 0:\n {closed_over}", found))
    made = _inner(tree, file, code.co_name)
    assert made is not None  # the source has it
    return RewrittenCode(made, typed.calls)


_untyped = lru_cache(maxsize=1000)(_compiled_again)  # functions of one factory have equal code


def _source(code: CodeType, file: str) -> tuple[ast.Module, ast.FunctionDef | ast.Lambda, CodeType]:
    """Return the tree of the code's source, the function in it, and the code that it compiles to.
    Raises ``TypeError`` unless that code does the same."""
    source = parsed_source(code)
    function = source.body[0]
    for found in [function] if isinstance(function, ast.FunctionDef) else ast.walk(source):
        if not isinstance(found, ast.FunctionDef | ast.Lambda):
            continue
        if isinstance(found, ast.FunctionDef):
            found.decorator_list = []
        # A function around it has the variables that the original closes over. Imports stand before
        # it: a call such as ``cuda.grid(1)`` is another instruction if the name is imported.
        tree = ast.parse(f"def {ENDLESS}({', '.join(code.co_freevars)}):\n pass")
        outer = tree.body[0]
        assert isinstance(outer, ast.FunctionDef)
        outer.body = [found if isinstance(found, ast.FunctionDef) else ast.Expr(found)]
        tree.body[:0] = _imports([*dis.get_instructions(code)])
        ast.fix_missing_locations(tree)
        same = _inner(tree, file, code.co_name)
        if same is not None and _identity(same) == _identity(code):
            return tree, found, same
    raise TypeError("the source is not, or no longer, its own")


def _identity(code: CodeType) -> tuple[object, ...]:
    """Return what tells the code from other code of its line, such as a second lambda."""
    # Without strings: indentation changes docstrings. As repr, because 1 == 1.0 == True.
    constants = [repr(one) for one in code.co_consts if not isinstance(one, CodeType | str)]
    return code.co_code, code.co_names, code.co_varnames, constants


def _imports(steps: list[dis.Instruction]) -> list[ast.stmt]:
    """Return an import of each name of which the code calls no method. The compiler looks whether
    the module imports the name, even if it is a parameter or a closure variable."""
    loads = [(name, then) for one, then in pairwise(steps) if (name := _loaded(one))]
    asked = {name for name, then in loads if then.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    methods = {
        name for name, then in loads
        if then.opname == "LOAD_METHOD"
        or (then.opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and (then.arg or 0) & 1)
    }  # fmt: skip
    return [ast.Import([ast.alias(name)]) for name in sorted(asked - methods)]


def _loaded(step: dis.Instruction) -> str:
    """Return the variable that an instruction loads, the last one of two; empty without one."""
    if not step.opname.startswith(("LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF", "LOAD_NAME")):
        return ""
    name = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
    return str(name)


def _inner(tree: ast.Module, file: str, name: str) -> CodeType | None:
    """Return the code of the tree's function of that name; None without one."""
    compiled = compile(tree, file, "exec")
    return next((code for code in nested_codes(compiled) if code.co_name == name), None)


def numbered_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps of a loop in which threads may wait for each other. Count them in the loops
    of the thread's greenlet."""
    loops = getcurrent().loops
    depth = len(loops)
    loops.append(0)
    try:
        for step in steps:
            loops[depth] += 1
            yield step
    finally:  # after `break` and `return` too
        del loops[depth:]


class _LoopRewriter(ast.NodeTransformer):
    """Rewrites ``while`` loops as ``for`` loops, and lets a kernel's ``return`` return its line."""

    def __init__(self, is_kernel: bool, waiting: frozenset[str]) -> None:
        self._is_kernel, self._waiting, self._loops = is_kernel, waiting, 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # loops of a function inside are not the kernel's

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if self._is_kernel and node.value is None:
            node.value = ast.copy_location(ast.Constant(node.lineno), node)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        parts = [part for statement in node.orelse for part in ast.walk(statement)]
        if any(isinstance(part, ast.Break | ast.Continue) for part in parts):
            return node  # they belong to an outer loop
        self._loops += 1
        text = f"for {ENDLESS}{self._loops} in {ENDLESS}():\n if not condition: break"
        loop = written(text, node, condition=node.test)
        loop.body[0].body[:0] = node.orelse
        loop.body += node.body
        return self._numbered(loop)

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        return self._numbered(node)

    def _numbered(self, loop: ast.For) -> ast.For:
        """Return the loop with its iterations counted, if threads in it may wait for each other."""
        calls = (part.func for part in ast.walk(loop) if isinstance(part, ast.Call))
        names = [str(getattr(call, "attr", getattr(call, "id", ""))) for call in calls]
        if any(WAITING_CALL.search(name) or name in self._waiting for name in names):
            loop.iter = written(f"{NUMBERED}(steps)", loop.iter, steps=loop.iter)
        return loop
