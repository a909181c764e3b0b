"""A kernel's Python function with everything it calls replaced by something plain Python can run.

A ``@cuda.jit`` kernel refers to ``cuda``, to device functions, to intrinsics and to Numba types
through its globals and closure. A simulator needs the same body with other meanings, in a process
that may also run the original on a GPU: so the function is copied, never changed.
"""

from __future__ import annotations

import ast
import dis
import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numba.core import types as numba_types
from numba.cuda import types as cuda_types

from convlab import device
from convlab.device import ENGINE_CONSTANTS, emulation_of
from convlab.simulation.access_log import Paths
from convlab.simulation.findings import NotSimulated

_NUMBERS = (numba_types.Number, cuda_types.Number)
_STUBS = ("numba.cuda.stubs", "numba.cuda.intrinsics")
_ALWAYS = {"__builtins__", "__name__"}  # what globals have of themselves
Meaning = Callable[[Any], Any]


def python_body(kernel: Any, fake_cuda: Any) -> Callable[..., Any]:
    """A copy of the kernel's function in which ``cuda`` is ``fake_cuda``, intrinsics are their
    emulations, device functions are copied in the same way, and Numba's number types cast with
    NumPy."""
    return Copier(fake_cuda, _numpy_numbers).copy(kernel.py_func)


class Copier:
    """Copies functions for one simulated ``cuda``, each once, each with code of its own: two device
    functions from one factory are two, as they are to a GPU's compiler.

    ``meaning(value)`` says what any other global stands for, None where for itself. ``builtins``
    are names that get another meaning than Python's. ``emulation(value)`` is what stands for an
    intrinsic, None for anything else. ``endless`` is what ``while`` loops run through. ``paths``
    hears of loops and calls. ``used`` are the names of ``cuda`` that functions imported by
    themselves.
    """

    def __init__(
        self,
        fake_cuda: Any,
        meaning: Meaning,
        builtins: Mapping[str, Any] | None = None,
        emulation: Meaning = emulation_of,
        paths: Paths | None = None,
        endless: Callable[[], Iterable[int]] = itertools.count,
    ) -> None:
        self.fake_cuda, self._meaning, self._emulation = fake_cuda, meaning, emulation
        self._builtins, self._paths, self._endless = dict(builtins or {}), paths, endless
        if paths is not None:
            self._builtins["range"] = paths.range
        self.used: set[str] = set()
        self._copies: dict[FunctionType, FunctionType] = {}
        self._modules: dict[int, ModuleType] = {}

    def copy(self, function: FunctionType) -> FunctionType:
        """The function with its globals and closure replaced."""
        if function in self._copies:
            return self._copies[function]
        # Not all of them: they would live as long as the copy.
        globals_ = {name: function.__globals__[name] for name in _ALWAYS & {*function.__globals__}}
        originals = function.__closure__ or ()
        cells = tuple(CellType() for _ in originals)
        globals_[ENDLESS] = self._endless
        code = _code_of(function, not self._copies)
        copy = FunctionType(code, globals_, function.__name__, function.__defaults__, cells)
        self._copies[function] = copy  # before what it refers to is copied: that may be itself
        attributes = names_used(code)
        for name in _global_names(code):
            if name in function.__globals__:
                value = function.__globals__[name]
                known = name in ENGINE_CONSTANTS and value is getattr(device, name)
                constant = ENGINE_CONSTANTS[name] if known else None
                globals_[name] = constant or self.replaced(value, attributes)
            elif name in self._builtins:
                globals_[name] = self._builtins[name]
        for cell, original in zip(cells, originals, strict=True):
            try:
                cell.cell_contents = self.replaced(original.cell_contents, attributes)
            except ValueError:  # a variable that has no value yet
                continue
        return copy

    def codes(self) -> Iterator[CodeType]:
        """The code of every function copied so far."""
        for copy in self._copies.values():
            yield from _nested(copy.__code__)

    def replaced(self, value: Any, attributes: Iterable[str] = ()) -> Any:
        """The replacement for the value of a global, a closure variable or a module's attribute.
        ``attributes`` are what the function may ask of it: what it calls is copied beforehand."""
        if value is sys.modules["numba.cuda"]:
            return self.fake_cuda
        if (emulation := self._emulation(value)) is not None:
            return emulation
        if isinstance(getattr(value, "py_func", None), FunctionType):  # a device function
            copy = self.copy(value.py_func)
            return copy if self._paths is None else self._paths.call(copy)
        if (name := _imported_names().get(id(value))) is not None:  # `from numba.cuda import name`
            self.used.add(name)
            if name == "laneid":  # a number, which changes
                return Unknown("laneid imported by its name is not simulated: write cuda.laneid")
            try:
                return getattr(self.fake_cuda, name)
            except NotSimulated as error:
                return Unknown(str(error))
        if isinstance(value, ModuleType):
            module = self._modules.setdefault(id(value), ModuleType(value.__name__))
            for name in attributes:
                if name in vars(value) and name not in vars(module):
                    setattr(module, name, None)  # a module may refer to itself
                    setattr(module, name, self.replaced(vars(value)[name], attributes))
            return module
        meant = self._meaning(value)
        if meant is not None:
            return meant
        module_name = str(getattr(value, "__module__", None) or type(value).__module__)
        if callable(value) and module_name.split(".")[0] == "numba":
            name = getattr(value, "__name__", None) or type(value).__name__
            return Unknown(f"{module_name}.{name} is not simulated")
        if isinstance(value, FunctionType):
            return Unknown(
                f"{value.__name__} is a plain function, which no kernel can call: it needs "
                "@cuda.jit(device=True)"
            )
        return value


@cache
def _imported_names() -> dict[int, str]:
    """Of `from numba.cuda import threadIdx` the name, by the id of what is imported."""
    return {
        id(value): name
        for name, value in vars(sys.modules["numba.cuda"]).items()
        if str(getattr(value, "__module__", "")).startswith(_STUBS)
    }


class Unknown:
    """What cannot be simulated. It says so when it is used, so that the line is known."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSimulated(self._why)

    def _refuse(self, *_: Any) -> Any:
        raise NotSimulated(self._why)

    __call__ = __getitem__ = __int__ = __index__ = __float__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __rand__ = __rshift__ = __rlshift__ = _refuse


_codes: WeakKeyDictionary[FunctionType, dict[bool, CodeType]] = WeakKeyDictionary()


def _code_of(function: FunctionType, is_kernel: bool) -> CodeType:
    """The function's code, shared with no other function of a factory, and with its ``while`` loops
    counted: always the same, so that Python and the caches of instructions in it need to look
    at it only once."""
    codes = _codes.setdefault(function, {})
    if is_kernel not in codes:
        codes[is_kernel] = _with_counted_loops(function, is_kernel) or function.__code__.replace()
    return codes[is_kernel]


@lru_cache(maxsize=1000)  # asked at every launch
def _global_names(code: CodeType) -> frozenset[str]:
    """The names of globals alone, which an attribute's may be like."""
    return frozenset(
        step.argval
        for nested in _nested(code)
        for step in dis.get_instructions(nested)
        if step.opname == "LOAD_GLOBAL"
    )


def names_used(code: CodeType) -> set[str]:
    """The names of globals and attributes in a function and those nested in it."""
    return {name for nested in _nested(code) for name in nested.co_names}


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _numpy_numbers(value: Any) -> Any:
    if isinstance(value, _NUMBERS):
        return _checked_index if value.name == "uint32" else getattr(np, value.name)
    return None


def _checked_index(value: Any) -> int:
    """``uint32(value)`` as kernels use it, for indices: a Python int, refused where a GPU wraps."""
    index = int(value)
    if not 0 <= index < 2**32:
        raise OverflowError(f"uint32({index}) does not fit: a GPU would wrap around")
    return index


# A ``while`` calls nothing that could count its iterations. So a function with ``while`` loops is
# compiled anew from its source, with ``while condition:`` as ``for _ in endless():`` and ``if not
# condition: break``. A kernel's ``return`` returns its line, to tell which one ended a thread.
# Lines and columns stay those of the source.


ENDLESS = "_endless_"  # in the function's globals


def _with_counted_loops(function: FunctionType, is_kernel: bool) -> CodeType | None:
    """None where there is nothing to change, or no source."""
    original = function.__code__
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        return None
    ast.increment_lineno(found, first - 1)
    counter = _Counter(is_kernel)
    counter.generic_visit(found)
    if not counter.changes:
        return None
    found.decorator_list = []
    # Around it a function that has what the original closes over.
    free = original.co_freevars
    outer: Any = ast.parse(f"def {ENDLESS}({', '.join(free)}):\n pass").body[0]
    outer.body, tree.body = [found], [outer]
    ast.fix_missing_locations(tree)
    compiled = compile(tree, original.co_filename, "exec")
    code = next(code for code in _nested(compiled) if code.co_name == found.name)
    # A source that has changed since the function was made is another function's.
    same = code.co_freevars == free and {*code.co_names} - {ENDLESS} == {*original.co_names}
    return code if same else None


class _Counter(ast.NodeTransformer):
    """Makes ``for`` loops of ``while`` loops, and lets a kernel's ``return`` say where it is."""

    def __init__(self, is_kernel: bool) -> None:
        self._is_kernel, self.changes = is_kernel, 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node  # a function inside is none of the kernel's loops

    def visit_Return(self, node: ast.Return) -> Any:
        if self._is_kernel and node.value is None:
            self.changes += 1
            node.value = ast.copy_location(ast.Constant(node.lineno), node)
        return node

    def visit_While(self, node: ast.While) -> Any:
        self.generic_visit(node)
        parts = [part for statement in node.orelse for part in ast.walk(statement)]
        if any(isinstance(part, ast.Break | ast.Continue) for part in parts):
            return node  # they are of a loop further out
        self.changes += 1
        text = f"for {ENDLESS}{self.changes} in {ENDLESS}():\n if not condition: break"
        loop: Any = ast.parse(text).body[0]
        for part in ast.walk(loop):
            ast.copy_location(part, node)
        leave = loop.body[0]
        leave.test.operand, leave.body[:0] = node.test, node.orelse
        loop.body += node.body
        return loop
