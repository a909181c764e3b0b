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
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from itertools import pairwise
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from greenlet import getcurrent
from numba.core import types as numba_types
from numba.core.typing.templates import builtin_registry as numbas_registry
from numba.cuda import types as cuda_types
from numba.cuda.np.numpy_support import from_dtype
from numba.cuda.typing.templates import builtin_registry
from numba.cuda.typing.typeof import typeof

from convlab import device
from convlab.device import ENGINE_CONSTANTS, emulation_of
from convlab.simulation.language.advice import advice_for
from convlab.simulation.language.compiled_values import (
    Values,
    attribute,
    forget,
    kept,
    values_declared,
    values_of,
)
from convlab.simulation.language.inference import WIDEST, Typed, infer
from convlab.simulation.language.refusals import Refused, Untyped
from convlab.simulation.language.signatures import casting
from convlab.simulation.language.typed_arithmetic import (
    BY_ZERO,
    CALLED,
    TypedArithmetic,
    positions,
    written,
)
from convlab.simulation.numbers.registers import GLOBALS
from convlab.simulation.numbers.scalars import by_zero
from convlab.simulation.recording.access_log import Loops
from convlab.simulation.rules.findings import NotSimulated

_NUMBERS = (numba_types.Number, cuda_types.Number)
_STUBS = tuple(
    f"numba.cuda.{name}"
    for name in ("stubs", "intrinsics", "cache_hints", "simulator.vector_types")
)
_MODULES = {f"numba.cuda.{name}": name for name in ("bf16", "cg", "fp16", "libdevice")}
_MODULES["numba.cuda._internal.cuda_bf16"] = "bf16"
_ALWAYS = {"__builtins__", "__name__"}  # what globals have of themselves
Meaning = Callable[[Any], Any]


def python_body(kernel: Any, fake_cuda: Any) -> Callable[..., Any]:
    """A copy of the kernel's function in which ``cuda`` is ``fake_cuda``, intrinsics are their
    emulations, device functions are copied in the same way, and Numba's number types cast with
    NumPy."""
    return Copier(fake_cuda, _numpy_numbers).copy(kernel.py_func)


class Reads(NamedTuple):
    """What a function reads from outside: the names of attributes in it, of which it may ask a
    module, and the values that it is compiled with."""

    attributes: set[str]
    values: Values


class Copier:
    """Copies functions for one simulated ``cuda``, each once, each with code of its own: two device
    functions from one factory are two, as they are to a GPU's compiler.

    ``meaning(value)`` says what any other global stands for, None where for itself. ``builtins``
    are names that get another meaning than Python's. ``emulation(value)`` is what stands for an
    intrinsic, None for anything else. ``loops`` hears of loops and calls, ``endless`` is what
    ``while`` loops run through. What functions read from outside are the ``compiled_values`` of
    ``kernel`` and of the device functions that it calls, if it is given. ``used`` are the names of
    ``cuda`` that functions imported by themselves.
    """

    def __init__(
        self,
        fake_cuda: Any,
        meaning: Meaning,
        builtins: Mapping[str, Any] | None = None,
        emulation: Meaning = emulation_of,
        loops: Loops | None = None,
        endless: Callable[[], Iterable[int]] = itertools.count,
        kernel: Any = None,
    ) -> None:
        self.fake_cuda, self._meaning, self._emulation = fake_cuda, meaning, emulation
        self._builtins, self._loops, self._endless = dict(builtins or {}), loops, endless
        if loops is not None:
            self._builtins["range"] = loops.range
        self._kernel = kernel
        self.used: set[str] = set()
        self._copies: dict[Any, FunctionType] = {}
        self._modules: dict[tuple[int, int], ModuleType] = {}

    def copy(
        self, function: FunctionType, types: Types | None = None, bits: Bits = ()
    ) -> FunctionType:
        """The function with its globals and closure replaced and, if the Numba ``types`` of its
        arguments are given, with arithmetic as those have it; integers among them have no more than
        so many ``bits``. Raises ``Refused`` and ``Untyped`` as :func:`infer` does."""
        key = function, types, bits
        if key in self._copies:
            return self._copies[key]
        values: Values = {}
        if self._kernel is not None:
            values = values_of(function if self._copies else self._kernel, types)
        reads = Reads(names_used(function.__code__), values)
        # Not all of them: they would live as long as the copy.
        globals_ = {name: function.__globals__[name] for name in _ALWAYS & {*function.__globals__}}
        originals = function.__closure__ or ()
        cells = tuple(CellType() for _ in originals)
        globals_[BY_ZERO] = self._builtins.get(BY_ZERO, by_zero)
        globals_[ENDLESS], globals_[NUMBERED] = self._endless, _numbered_steps
        code, calls = _code_of(function, not self._copies, types, bits)
        copy = FunctionType(code, globals_, function.__name__, function.__defaults__, cells)
        self._copies[key] = copy  # before what it calls is copied: that may be itself
        if types is not None:
            globals_ |= GLOBALS
        for number, typed in enumerate(calls):
            called: Any = self.copy(typed.calls.function, tuple(typed.signature.args), typed.bits)
            if typed.calls.declared:
                called = casting(called, [typed.calls.declared])
            loops = self._loops
            globals_[f"{CALLED}{number}"] = called if loops is None else loops.call(called)
        for name in _global_names(code):
            if name in function.__globals__:
                value = kept(values, name, function.__globals__[name])
                known = name in ENGINE_CONSTANTS and value is getattr(device, name)
                constant = ENGINE_CONSTANTS[name] if known else None
                globals_[name] = constant or self.replaced(value, reads)
            elif name in self._builtins:
                globals_[name] = self._builtins[name]
        names = function.__code__.co_freevars
        for name, cell, original in zip(names, cells, originals, strict=True):
            try:
                value = kept(values, name, original.cell_contents)
            except ValueError:  # a variable that has no value yet
                continue
            cell.cell_contents = self.replaced(value, reads)
        return copy

    def codes(self) -> Iterator[CodeType]:
        """The code of every function copied so far."""
        for copy in self._copies.values():
            yield from _nested(copy.__code__)

    def original(self, code: CodeType) -> tuple[FunctionType, Types | None] | None:
        """The function that was copied to this code, and the types of its arguments; None for the
        code of a function inside another."""
        for (function, types, _), copy in self._copies.items():
            if copy.__code__ is code:
                return function, types
        return None

    def calls(self) -> Iterator[tuple[CodeType, int, CodeType]]:
        """The calls of copied functions in copied functions: a code, its line and the called code,
        as far as names tell."""
        for copy in self._copies.values():
            named = {**copy.__globals__}
            for name, cell in zip(copy.__code__.co_freevars, copy.__closure__ or (), strict=True):
                with suppress(ValueError):  # it has no value yet
                    named[name] = cell.cell_contents
            modules = [one for one in named.values() if isinstance(one, ModuleType)]
            line = copy.__code__.co_firstlineno
            for step in dis.get_instructions(copy.__code__):
                line = (step.positions and step.positions.lineno) or line
                if not step.opname.startswith("LOAD_") or not isinstance(step.argval, str):
                    continue
                where = [vars(one) for one in modules] if "ATTR" in step.opname else [named]
                for function in (one.get(step.argval) for one in where):
                    if isinstance(function, FunctionType):
                        yield copy.__code__, line, function.__code__

    def replaced(self, value: Any, reads: Reads) -> Any:
        """The replacement for the value of a global, a closure variable or a module's attribute."""
        if value is sys.modules["numba.cuda"]:
            return self.fake_cuda
        if (emulation := self._emulation(value)) is not None:
            return emulation
        if isinstance(getattr(value, "py_func", None), FunctionType):  # a device function
            copy: Any = self.copy(value.py_func)
            if declared := getattr(value, "declared", None):
                copy = casting(copy, declared)
            return copy if self._loops is None else self._loops.call(copy)
        if (name := _imported_names().get(id(value))) is not None:  # `from numba.cuda import name`
            self.used.add(name)
            if name == "laneid":  # a number, which changes
                return Unknown("laneid imported by its name is not simulated: write cuda.laneid")
            try:
                return getattr(self.fake_cuda, name)
            except NotSimulated as error:
                return Unknown(str(error))
        if type(value) is tuple:
            return tuple(self.replaced(entry, reads) for entry in value)
        if isinstance(value, ModuleType) and value.__name__ in _MODULES:
            return getattr(self.fake_cuda, _MODULES[value.__name__])
        if isinstance(value, ModuleType):
            key = id(value), id(reads.values)
            module = self._modules.setdefault(key, ModuleType(value.__name__))
            for name in reads.attributes & {*vars(value)} - {*vars(module)}:
                setattr(module, name, None)  # a module may refer to itself
                now = kept(reads.values, attribute(value, name), vars(value)[name])
                setattr(module, name, self.replaced(now, reads))
            return module
        meant = self._meaning(value)
        if meant is not None:
            return meant
        module_name = str(getattr(value, "__module__", None) or type(value).__module__)
        if module_name in _MODULES:  # `from numba.cuda.libdevice import sinf`
            name = value.__name__.lstrip("_")
            return getattr(getattr(self.fake_cuda, _MODULES[module_name]), name)
        if isinstance(value, FunctionType) and (overloads := overloads_of(value)):
            return self._overloaded(value, overloads)
        if callable(value) and module_name.split(".")[0] == "numba":
            name = getattr(value, "__name__", None) or type(value).__name__
            return Unknown(f"{module_name}.{name} is not simulated")
        if isinstance(value, FunctionType):
            return Unknown(
                f"{value.__name__} is a plain function, which no kernel can call: "
                + advice_for(value)
            )
        return value

    def _overloaded(self, function: FunctionType, overloads: list[Any]) -> Callable[..., Any]:
        """A function that stands for its overloads: of types it knows, the body that the first of
        them gives for the types of the arguments."""
        chosen: dict[Any, Any] = {}

        def called(*values: Any, **named: Any) -> Any:
            types = tuple(map(type_of, values))
            kinds = {name: type_of(value) for name, value in named.items()}
            key = types, tuple(kinds.items())
            if key not in chosen:
                bodies = (overload(*types, **kinds) for overload in overloads)
                body = next((one for one in bodies if one is not None), None)
                chosen[key] = None if body is None else self.copy(getattr(body, "py_func", body))
            if chosen[key] is None:
                shown = ", ".join(map(str, types))
                raise NotSimulated(f"{function.__name__} has no overload for ({shown})")
            return chosen[key](*values, **named)

        return called


def overloads_of(function: FunctionType) -> list[Any]:
    """What ``overload`` and ``register_jitable``, Numba's and numba-cuda's, have registered for a
    function on a GPU, the newest first."""
    templates = [
        template
        for registry in (numbas_registry, builtin_registry)
        for value, kind in registry.globals
        if value is function
        for template in getattr(kind, "templates", ())
        if getattr(template, "metadata", {}).get("target") != "cpu"
    ]
    return [one._overload_func for one in templates[::-1] if hasattr(one, "_overload_func")]


def type_of(value: Any) -> Any:
    """Numba's type of a value in a kernel, as far as that is known."""
    if isinstance(value, tuple):
        return cuda_types.BaseTuple.from_types(tuple(map(type_of, value)))
    if isinstance(value, FunctionType):
        return cuda_types.pyobject
    if hasattr(value, "dtype") and hasattr(value, "ndim"):
        return cuda_types.Array(from_dtype(value.dtype), value.ndim, "A")
    return typeof(value)


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


Types = tuple[Any, ...]
Bits = tuple[int, ...]
_Code = tuple[CodeType, list[Typed]]
_codes: WeakKeyDictionary[FunctionType, dict[Any, _Code]] = WeakKeyDictionary()


def _code_of(function: FunctionType, is_kernel: bool, types: Types | None, bits: Bits) -> _Code:
    """The function's code, shared with no other function of a factory, and what it calls by types:
    code in which divisions are a GPU's, arithmetic that of the types and ``while`` loops count. It
    is always the same, so that Python and the caches of instructions in it need to look at it only
    once."""
    codes, key = _codes.setdefault(function, {}), (is_kernel, types, bits)
    if key not in codes:
        code = function.__code__
        names = frozenset(name for name, value in _refers_to(function) if waits(value))
        how = code, code.co_filename, is_kernel, names
        try:
            if types is None:
                codes[key] = _untyped(*how)[0].replace(), []
            else:
                codes[key] = _compiled_anew(*how, infer(function, types, bits))
        except (OSError, TypeError, SyntaxError) as error:
            if types is not None:
                raise Untyped(f"{function.__name__}: {error}") from None
            codes[key] = code.replace(), []
    return codes[key]


def keep_declared(compiled: Any, function: FunctionType, signatures: Iterable[Types]) -> None:
    """Keep what a kernel or device function that is declared with these types of arguments is
    compiled with: it, and the device functions that it calls."""
    _keep(function, values_declared(compiled))
    for types in signatures:
        _keep_called(function, types, set())


def _keep_called(function: FunctionType, types: Types, done: set[Any]) -> None:
    try:
        expressions = infer(function, types, (WIDEST + 1,) * len(types))
    except (Refused, Untyped):
        return
    for typed in expressions.values():
        if typed.calls is None:
            continue
        called, its_types = typed.calls.function, tuple(typed.signature.args)
        if (called, its_types) not in done:
            done.add((called, its_types))
            _keep(called, values_of(called, its_types))
            _keep(called, values_of(called, None))  # for launches without types
            _keep_called(called, its_types, done)


def _keep(function: FunctionType, values: Values) -> None:
    """Keep all that the function reads from outside."""
    attributes, modules = names_used(function.__code__), []
    for name, value in _refers_to(function):
        kept(values, name, value)
        modules += [value] * isinstance(value, ModuleType)
    seen: set[int] = set()
    while modules:
        module = modules.pop()
        if id(module) in seen:  # a module may refer to itself
            continue
        seen.add(id(module))
        for name in attributes & {*vars(module)}:
            value = vars(module)[name]
            kept(values, attribute(module, name), value)
            modules += [value] * isinstance(value, ModuleType)


def recompile(kernel: Any) -> None:
    """Let the kernel have globals as they are now, if it is declared, or at its next launch."""
    forget(kernel)
    if signatures := getattr(kernel, "declared", None):
        keep_declared(kernel, kernel.py_func, [arguments for arguments, _ in signatures])


def keep_compiled(kernel: Any, types: Types) -> None:
    """Keep what a kernel is compiled with for arguments of these types."""
    _keep(kernel.py_func, values_of(kernel, types))
    _keep_called(kernel.py_func, types, set())


def _refers_to(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals and the variables of functions around it that a function refers to."""
    for name in _global_names(function.__code__) & {*function.__globals__}:
        yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            continue


def waits(value: Any, known: frozenset[Any] = frozenset()) -> bool:
    """Whether it is a device function whose threads may wait for each other."""
    function = getattr(value, "py_func", None)
    if not isinstance(function, FunctionType) or function in known:
        return False
    known |= {function}
    return may_wait(function.__code__) or any(waits(v, known) for _, v in _refers_to(function))


def may_wait(code: CodeType) -> bool:
    """Whether it calls, by their names, what makes threads wait for each other."""
    return any(map(_WAITS, names_used(code)))


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


# A ``range`` can be replaced by one that counts; a ``while`` calls nothing, and neither does a
# division of Python's numbers, which raises an error where a GPU's gives infinity. So a function
# with any is compiled anew from its source, ``while condition:`` as ``for _ in endless():`` and
# ``if not condition: break``, and ``a / b`` as ``a / ((d := b) or by_zero(d))``. A kernel's
# ``return`` returns its line, to tell which one ended a thread. Lines and columns stay those of
# the source.


ENDLESS = "_endless_"  # a global
NUMBERED = "_numbered_"  # a global too: what a loop runs through in which threads may wait
_WAITS = re.compile("sync|^activemask$|^mma_|_product$").search


def _compiled_anew(
    code: CodeType,
    file: str,
    is_kernel: bool,
    waiting: frozenset[str],
    expressions: dict[int, Typed] | None = None,
) -> _Code:
    """The code, with the arithmetic of its types if they are known, and what it calls. ``waiting``
    are the names of device functions in which threads may wait for each other; ``file`` is the
    code's: codes of two files may be equal. Raises ``OSError`` or its like where the source is not
    there or no longer its own."""
    tree, found, same = _source(code, file)
    typed = TypedArithmetic(positions(same, expressions or {}))
    typed.generic_visit(found)
    _LoopRewriter(is_kernel, waiting).generic_visit(found)
    if expressions is not None:  # a name that is called no longer is still closed over
        kept = f"[{', '.join(code.co_freevars)}]"
        if isinstance(found, ast.Lambda):
            found.body = written(f"value if 1 else {kept}", found, value=found.body)
        else:
            found.body.insert(0, written(f"if 0:\n {kept}", found))
    made = _inner(tree, file, code.co_name)
    assert made is not None  # the source has it
    return made, typed.calls


_untyped = lru_cache(maxsize=1000)(_compiled_anew)  # functions of one factory have one code


def _source(code: CodeType, file: str) -> tuple[ast.Module, ast.FunctionDef | ast.Lambda, CodeType]:
    """The tree of the code's source, the function in it, and the code that it compiles to: one that
    does the same, or ``TypeError``."""
    lines, first = inspect.getsourcelines(code)
    source = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(source, first - 1)
    function = source.body[0]
    for found in [function] if isinstance(function, ast.FunctionDef) else ast.walk(source):
        if not isinstance(found, ast.FunctionDef | ast.Lambda):
            continue
        if isinstance(found, ast.FunctionDef):
            found.decorator_list = []
        # Around it a function that has what the original closes over, and before it the imports:
        # a call such as ``cuda.grid(1)`` is another instruction where the name is imported.
        text = f"def {ENDLESS}({', '.join(code.co_freevars)}):\n pass"
        tree = ast.parse(text)
        outer: Any = tree.body[0]
        outer.body = [found if isinstance(found, ast.FunctionDef) else ast.Expr(found)]
        tree.body[:0] = _imports([*dis.get_instructions(code)])
        ast.fix_missing_locations(tree)
        same = _inner(tree, file, code.co_name)
        if same is not None and _does(same) == _does(code):
            return tree, found, same
    raise TypeError("the source is not, or no longer, its own")


def _does(code: CodeType) -> tuple[Any, ...]:
    """What tells the code from another one of its line, such as a second lambda."""
    # Not by its texts: without indentation a docstring is another. As repr: 1 == 1.0 == True.
    constants = [repr(one) for one in code.co_consts if not isinstance(one, CodeType | str)]
    return code.co_code, code.co_names, code.co_varnames, constants


def _imports(steps: list[dis.Instruction]) -> list[ast.stmt]:
    """An import of each name of which the code calls no method. The compiler looks whether the
    module imports the name, even if it is a parameter or a variable of a function around."""
    loads = [(name, then) for one, then in pairwise(steps) if (name := _loaded(one))]
    asked = {name for name, then in loads if then.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    methods = {
        name for name, then in loads
        if then.opname == "LOAD_METHOD"
        or (then.opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and (then.arg or 0) & 1)
    }  # fmt: skip
    return [ast.Import([ast.alias(name)]) for name in sorted(asked - methods)]


def _loaded(step: dis.Instruction) -> str:
    """The variable that an instruction loads, the last one of two; empty if it loads none."""
    if not step.opname.startswith(("LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF", "LOAD_NAME")):
        return ""
    name = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
    return str(name)


def _inner(tree: ast.Module, file: str, name: str) -> CodeType | None:
    """The code of the function in the tree's function; None if none has that name."""
    compiled = compile(tree, file, "exec")
    return next((code for code in _nested(compiled) if code.co_name == name), None)


def _numbered_steps(steps: Iterable[Any]) -> Iterator[Any]:
    """Yield the steps of a loop in which threads may wait for each other, and count them in the
    loops of the thread's greenlet."""
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
    """Makes ``for`` loops of ``while`` loops, and lets a kernel's ``return`` say where it is."""

    def __init__(self, is_kernel: bool, waiting: frozenset[str]) -> None:
        self._is_kernel, self._waiting, self._loops = is_kernel, waiting, 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node  # a function inside is none of the kernel's loops

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        if self._is_kernel and node.value is None:
            node.value = ast.copy_location(ast.Constant(node.lineno), node)
        return node

    def visit_While(self, node: ast.While) -> Any:
        self.generic_visit(node)
        parts = [part for statement in node.orelse for part in ast.walk(statement)]
        if any(isinstance(part, ast.Break | ast.Continue) for part in parts):
            return node  # they are of a loop further out
        self._loops += 1
        text = f"for {ENDLESS}{self._loops} in {ENDLESS}():\n if not condition: break"
        loop = written(text, node, condition=node.test)
        loop.body[0].body[:0] = node.orelse
        loop.body += node.body
        return self._numbered(loop)

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        return self._numbered(node)

    def _numbered(self, loop: ast.For) -> ast.For:
        """The loop with its iterations counted, if threads in it may wait for each other."""
        calls = (part.func for part in ast.walk(loop) if isinstance(part, ast.Call))
        names = [str(getattr(call, "attr", getattr(call, "id", ""))) for call in calls]
        if any(_WAITS(name) or name in self._waiting for name in names):
            loop.iter = written(f"{NUMBERED}(steps)", loop.iter, steps=loop.iter)
        return loop
