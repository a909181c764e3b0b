"""Numba's types of everything in a kernel, by its type inference alone: no compiler, no GPU.

Numba's own intermediate representation is typed as for a launch, but each expression remembers the
instruction of Python that it comes from.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import math
import operator
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numba.cuda
import numpy as np
from numba.core import errors as core_errors
from numba.cuda import types
from numba.cuda.core import config, errors, ir
from numba.cuda.core.compiler_machinery import FunctionPass, PassManager, register_pass

Types = tuple[Any, ...]
WIDEST, SIZE, STEPS = 63, 40, 32  # bits of: an int64, a size or index, how often a loop can run
SMALL = 31  # bits of an integer argument that is called small
# Of Numba's reasons those that mean a kernel is wrong, and not that its types are unknown here.
_REFUSALS = re.compile(
    r"Cannot unify .*(?=, defined at)|Cannot unify .*|Use of unsupported NumPy function .*"
    r"|Illegal IR, .*|Untyped global name '\w+': .* <class 'builtin_function_or_method'>"
    r"|No implementation of function Function\(<class '(?:str|tuple|list|dict|set)'>\)"
    r"|Unknown attribute '.*' of type (?:array|list|Literal|int|float|unicode|Tuple).*"
)
_RUN_TIME_SHAPE = re.compile(
    r"Function\(<function (shared|local)\.array .*?>>> array\("
    r"(?:shape=)?(?:u?int\d|UniTuple\(u?int)",
    re.DOTALL,
)
_NO_FUNCTION = re.compile(r"No implementation of function Function\(<(?:built-in )?function (\w+)")
_UNSUPPORTED = (errors.UnsupportedError, core_errors.UnsupportedError)
_CONTAINERS = {"build_list": "a list", "build_map": "a dict", "build_set": "a set"}


@dataclass(frozen=True)
class _Device:
    """A device function, as Numba's types name it."""

    function: FunctionType


class Refused(Exception):
    """Numba does not compile the function: its reason in one line, and the line of the source."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True)
class Typed:
    """One expression: Numba's types of its operands, its signature, and whether it is known to stay
    within 63 bits. ``calls`` is the device function that it calls, ``key`` any other function."""

    operands: Types
    signature: Any
    mixed: tuple[bool, ...] = ()  # operands of a float's type that may hold an integer
    narrow: bool = False
    key: Any = None
    calls: Any = None


@dataclass(frozen=True)
class Inferred:
    """A function's types: expressions and stores by the offset of their instruction."""

    expressions: dict[int, Typed]
    returns: Any
    mixed: bool  # whether it may return an integer for a float


def infer(function: FunctionType, arguments: Types, small: tuple[bool, ...] = ()) -> Inferred:
    """The function's types for arguments of these Numba types, of which ``small`` names integers
    below 2**31. Raises :class:`Refused` where Numba does, any other exception where the types are
    not known here."""
    numbas = _numbas()
    with _real_compiler():
        state = numbas.state(function, arguments)
    return _Reader(state, small).inferred()


@contextmanager
def _real_compiler() -> Iterator[None]:
    """Inside, Numba's compiler can be imported in a process whose ``numba.cuda`` is its simulator.
    Its modules are not kept: the program shall not see them."""
    if not config.ENABLE_CUDASIM:
        yield
        return
    package = "numba.cuda"
    shadows = {
        name: module
        for name, module in sys.modules.items()
        if name.startswith(f"{package}.") and module.__name__.startswith(f"{package}.simulator")
    }
    own = {name: m for name, m in shadows.items() if not name.startswith(f"{package}.simulator")}
    before = dict(vars(numba.cuda))
    for name in own:
        del sys.modules[name]
        vars(numba.cuda).pop(name.removeprefix(f"{package}."), None)
    sys.modules.update(_kept)
    with patch.object(config, "ENABLE_CUDASIM", 0):
        try:
            from numba.cuda import cache_hints, intrinsics, stubs
            from numba.cuda.cudadrv import linkable_code

            for module in stubs, intrinsics, cache_hints, linkable_code:
                for name, value in vars(module).items():
                    if getattr(value, "__module__", None) == module.__name__:
                        setattr(numba.cuda, name, value)
            yield
        finally:
            _kept.update({name: sys.modules[name] for name in own if name in sys.modules})
            sys.modules.update(own)
            for name in [*vars(numba.cuda)]:
                if name not in before:
                    delattr(numba.cuda, name)
            vars(numba.cuda).update(before)


_kept: dict[str, Any] = {}


@cache
def _numbas() -> SimpleNamespace:
    """What is made of Numba's classes, which cost half a second to import."""
    with _real_compiler():
        return _made_of_numbas()


def _made_of_numbas() -> SimpleNamespace:
    from numba.cuda import compiler, dispatcher, typing, utils
    from numba.cuda.core.callconv import CUDACallConv
    from numba.cuda.core.compiler import CompilerBase
    from numba.cuda.core.typed_passes import NopythonTypeInference
    from numba.cuda.flags import CUDAFlags
    from numba.cuda.target import CUDATargetContext, CUDATypingContext
    from numba.cuda.typing.templates import AbstractTemplate, fold_arguments

    class Interpreter(compiler.CUDABytecodeInterpreter):  # type: ignore[misc]
        def _iter_inst(self) -> Iterator[Any]:
            for instruction, more in super()._iter_inst():
                self.loc: Any = ir.Loc(self.loc.filename, instruction.lineno, instruction.offset)
                yield instruction, more

    @register_pass(mutates_CFG=True, analysis_only=False)
    class Translate(FunctionPass):  # type: ignore[misc]
        _name = "translate and keep offsets"

        def __init__(self) -> None:
            FunctionPass.__init__(self)

        def run_pass(self, state: Any) -> bool:
            state["func_ir"] = Interpreter(state["func_id"]).interpret(state["bc"])
            return True

    class Ended(BaseException):
        pass

    @register_pass(mutates_CFG=False, analysis_only=True)
    class End(FunctionPass):  # type: ignore[misc]
        _name = "end after the types"

        def __init__(self) -> None:
            FunctionPass.__init__(self)

        def run_pass(self, state: Any) -> bool:
            raise Ended(state)

    class OnlyTyped(CompilerBase):  # type: ignore[misc]
        def define_pipelines(self) -> list[Any]:
            manager = PassManager("types")
            untyped = compiler.DefaultPassBuilder.define_untyped_pipeline(self.state)
            for one, what in untyped.passes:
                mine = one.__name__ == "TranslateByteCode"
                manager.passes.append((Translate if mine else one, what))
            manager.add_pass(NopythonTypeInference, "types")
            manager.add_pass(End, "end")
            manager.finalize()
            return [manager]

    class Context(CUDATypingContext):  # type: ignore[misc]
        def resolve_value_type(self, value: Any) -> Any:
            function = getattr(value, "py_func", None)
            if not isinstance(function, FunctionType):
                return super().resolve_value_type(value)
            if function not in templates:
                templates[function] = types.Function(template(function))
            return templates[function]

    templates: dict[FunctionType, Any] = {}
    states: dict[Any, Any] = {}

    def template(function: FunctionType) -> Any:
        signature = inspect.signature(function)

        class Template(AbstractTemplate):  # type: ignore[misc]
            key = _Device(function)

            def generic(self, arguments: Any, named: Any) -> Any:
                folded = fold_arguments(
                    *(signature, arguments, named),
                    lambda index, parameter, value: value,
                    lambda index, parameter, default: types.Omitted(default),
                    lambda index, parameter, values: types.StarArgTuple(values),
                )
                found = typing.signature(state(function, folded).return_type, *folded)
                return found.replace(pysig=signature)

        return Template

    context = Context()
    target = CUDATargetContext(context)

    def state(function: FunctionType, arguments: Types) -> Any:
        key = function, arguments
        if key not in states:
            _check_instructions(function)
            states[key] = None  # until it is known: it may call itself
            flags = CUDAFlags()
            flags.no_compile, flags.error_model = True, "numpy"
            flags.compute_capability = (9, 0)
            pipeline = OnlyTyped(
                *(context, target, None, arguments, None, flags, {}, CUDACallConv(target), {})
            )
            try:
                with (
                    utils.numba_target_override(),
                    # Overloads of Numba's own are compiled for "the current device".
                    patch.object(dispatcher, "get_current_device", return_value=flags),
                ):
                    pipeline.compile_extra(function)
            except Ended as ended:
                states[key] = _unsupported(pipeline.state) or ended.args[0]
            except Exception as error:
                states[key] = _unsupported(pipeline.state) or _refusal(error, function) or error
        if isinstance(states[key], Exception):
            raise states[key]
        if states[key] is None:
            raise RuntimeError(f"{function.__name__} calls itself")
        return states[key]

    return SimpleNamespace(state=state)


def check_kernel(function: FunctionType, arguments: Types) -> None:
    """Raises :class:`Refused` where a kernel returns anything."""
    with _real_compiler():
        state = _numbas().state(function, arguments)
    if state.return_type not in (types.none, types.Omitted(None)):
        lines = [
            one.loc.line
            for block in state.func_ir.blocks.values()
            for one in block.body
            if isinstance(one, ir.Return)
        ]
        raise Refused(f"a kernel returns nothing, and this returns {state.return_type}", lines[0])


def _check_instructions(function: FunctionType) -> None:
    line = 0
    for step in dis.get_instructions(function):
        line = (step.positions and step.positions.lineno) or line
        if step.opname == "PUSH_EXC_INFO":
            raise Refused("try and with statements", line)


def _unsupported(state: Any) -> Refused | None:
    """What types alone do not refuse: lists, dicts, sets, generators."""
    if (function := state.func_ir) is None:
        return None
    for block in function.blocks.values():
        for one in block.body:
            value = getattr(one, "value", None)
            if isinstance(value, ir.Yield):
                return Refused("a generator", value.loc.line)
            if isinstance(value, ir.Expr) and value.op in _CONTAINERS:
                return Refused(f"{_CONTAINERS[value.op]}, which a GPU has not", value.loc.line)
    return None


def _refusal(error: Exception, function: FunctionType) -> Refused | None:
    """Numba's reason and line, if they mean that the kernel is wrong."""
    if not isinstance(error, errors.NumbaError | core_errors.NumbaError):
        return None
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    first = function.__code__.co_firstlineno
    own = [line for *_, line in function.__code__.co_lines() if line is not None and line > first]
    named = [int(line) for line in re.findall(r"(?:line |\()(\d+)(?:\)|:)", said)]
    line = next((one for one in named if min(own) <= one <= max(own)), min(own))
    if (shape := _RUN_TIME_SHAPE.search(said)) is not None:
        return Refused(f"cuda.{shape[1]}.array with a shape known only at run time", line)
    missing = _NO_FUNCTION.search(said)
    if missing is not None and hasattr(np, missing[1]):
        if not any(hasattr(module, missing[1]) for module in (builtins, math, operator)):
            return Refused(f"np.{missing[1]} of such arguments", line)
    if (found := _REFUSALS.search(said)) is not None:
        return Refused(found[0], line)
    if isinstance(error, _UNSUPPORTED):
        return Refused(said.strip().splitlines()[0], line)
    return None


class _Reader:
    """Reads what type inference has left behind."""

    def __init__(self, state: Any, small: tuple[bool, ...]) -> None:
        self._state, self._types, self._small = state, state.typemap, small
        self._values = defaultdict(list)  # of each variable all that is assigned to it
        self._bits: dict[str, int | None] = {}
        self._statements = [one for block in state.func_ir.blocks.values() for one in block.body]
        for one in self._statements:
            if isinstance(one, ir.Assign):
                self._values[one.target.name].append(one.value)

    def inferred(self) -> Inferred:
        found: dict[int, Typed] = {}
        several: set[int] = set()
        for expression, signature in self._state.calltypes.items():
            offset = getattr(expression.loc, "col", None)
            typed = None if offset is None else self._typed(expression, signature)
            if offset is None or typed is None:
                continue
            if offset in found and found[offset] != typed:
                several.add(offset)
            found[offset] = typed
        for offset in several:
            del found[offset]
        returned = [one.value for one in self._statements if isinstance(one, ir.Return)]
        mixed = any(self._is_mixed(one.name) for one in returned)
        return Inferred(found, self._state.return_type, mixed)

    def _typed(self, expression: Any, signature: Any) -> Typed | None:
        if isinstance(expression, ir.SetItem | ir.StaticSetItem):
            return Typed((self._types[expression.target.name],), signature)
        operation = getattr(expression, "op", None)
        if operation == "call":
            function = self._types[expression.func.name]
            key = getattr(function, "typing_key", function)
            calls = key.function if isinstance(key, _Device) else None
            return Typed(tuple(signature.args), signature, key=key, calls=calls)
        if operation in ("binop", "inplace_binop"):
            operands: Types = (expression.lhs, expression.rhs)
        elif operation == "unary":
            operands = (expression.value,)
        else:
            return None
        names = [one.name for one in operands]
        bits = self._bits_of_expression(expression)
        if operation == "unary":  # of its operand's width, which has one number more below zero
            kind = types.unliteral(self._types[names[0]])
            wide = isinstance(kind, types.Integer) and kind.signed and kind.bitwidth == 64
            bits = bits if wide else None
        return Typed(
            tuple(self._types[name] for name in names),
            signature,
            tuple(map(self._is_mixed, names)),
            bits is not None and bits < WIDEST,
        )

    def _is_mixed(self, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a variable of a float's type may hold an integer: a phi of both."""
        kind = self._types.get(name)
        if name in seen or not isinstance(kind, types.Float):
            return isinstance(kind, types.Integer | types.Boolean) and bool(seen)
        for value in self._values[name]:
            parts = [value] if isinstance(value, ir.Var) else []
            if isinstance(value, ir.Expr):
                parts = value.incoming_values if value.op == "phi" else parts
                parts = [value.value] if value.op == "cast" else parts
            elif isinstance(value, ir.Const | ir.Global | ir.FreeVar):
                if isinstance(value.value, int):
                    return True
            for part in parts:
                if isinstance(part, ir.Var) and self._is_mixed(part.name, seen | {name}):
                    return True
        return False

    # How many bits an integer can have. Python's are of any size, and only those that may get too
    # long for an int64 have to be checked when the kernel runs. None: it depends on itself.

    def _bits_of(self, name: str) -> int | None:
        if name not in self._bits:
            self._bits[name] = None
            known = [self._bits_of_value(value, name) for value in self._values[name]]
            self._bits[name] = max((n for n in known if n is not None), default=None)
        return self._bits[name]

    def _bits_of_value(self, value: Any, name: str) -> int | None:
        kind = types.unliteral(self._types[name])
        if not isinstance(kind, types.Integer):
            return 1 if isinstance(kind, types.Boolean) else WIDEST + 1
        if isinstance(value, ir.Var):
            return self._bits_of(value.name)
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            return int(value.value).bit_length()
        if isinstance(value, ir.Arg) and self._small[value.index : value.index + 1] == (True,):
            return SMALL
        if isinstance(value, ir.Expr):
            if value.op == "phi":
                incoming = [one for one in value.incoming_values if isinstance(one, ir.Var)]
                known = [self._bits_of(one.name) for one in incoming]
                return max((n for n in known if n is not None), default=None)
            if value.op in ("cast", "pair_first", "iternext", "getiter"):
                return self._bits_of_iterated(value)
            if (bits := self._bits_of_expression(value)) is None or bits < WIDEST:
                return bits
        return int(min(kind.bitwidth - kind.signed, WIDEST + 1))

    def _bits_of_iterated(self, value: Any) -> int | None:
        """Of what a loop over a range gives: no more than the range's limits have."""
        (inner, *_) = self._values[value.value.name] or [None]
        if value.op == "cast":
            return self._bits_of(value.value.name)
        while isinstance(inner, ir.Var | ir.Expr) and getattr(inner, "op", "") != "call":
            if isinstance(inner, ir.Expr) and inner.op == "phi":
                name = inner.incoming_values[0].name
            else:
                name = inner.name if isinstance(inner, ir.Var) else getattr(inner, "value", inner)
                name = getattr(name, "name", None)
            (inner, *_) = self._values.get(name) or [None]
        if not isinstance(inner, ir.Expr):
            return WIDEST
        known = [self._bits_of(one.name) for one in inner.args]
        return WIDEST if None in known else max([n for n in known if n is not None], default=WIDEST)

    def _bits_of_expression(self, value: Any) -> int | None:
        if value.op == "call":
            key = getattr(self._types[value.func.name], "typing_key", None)
            return SIZE if key in (len, numba.cuda.grid, numba.cuda.gridsize) else WIDEST
        if value.op == "static_getitem" and self._is_shape(value.value.name):
            return SIZE
        if value.op in ("exhaust_iter", "unary") and value.op == "unary":
            bits = self._bits_of(value.value.name)
            return None if bits is None else bits + 1
        if value.op not in ("binop", "inplace_binop"):
            return WIDEST
        function = value.immutable_fn if value.op == "inplace_binop" else value.fn
        left, right = self._bits_of(value.lhs.name), self._bits_of(value.rhs.name)
        if function is operator.and_:
            known = [
                self._bits_of(one.name)
                for one in (value.lhs, value.rhs)
                if isinstance(self._types[one.name], types.IntegerLiteral)
                and self._types[one.name].literal_value >= 0
            ]
            if known:
                return known[0]
        if function is operator.mod and right is not None:
            return right
        if function in (operator.rshift, operator.floordiv):
            return left
        if function in (operator.add, operator.sub):
            if left is None or right is None:
                other = left if right is None else right
                return WIDEST if other is None else other + STEPS
            return max(left, right) + 1
        if left is None or right is None:
            return WIDEST
        if function in (operator.or_, operator.xor, operator.and_):
            return max(left, right)
        if function is operator.mul:
            return left + right
        if function is operator.lshift:
            kind = self._types[value.rhs.name]
            return left + int(getattr(kind, "literal_value", WIDEST))
        return WIDEST

    def _is_shape(self, name: str) -> bool:
        (value, *_) = self._values[name] or [None]
        return isinstance(value, ir.Expr) and value.op == "getattr" and value.attr == "shape"
