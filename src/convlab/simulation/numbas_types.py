"""Numba's types of everything in a kernel, by its type inference alone: no compiler, no GPU.

Numba's own intermediate representation is typed as for a launch, but each expression remembers the
instruction of Python that it comes from.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numba.cuda
from numba.cuda import types
from numba.cuda.core import config, ir
from numba.cuda.core.compiler_machinery import FunctionPass, PassManager, register_pass

from convlab.simulation.refusals import Refused, Untyped, check_instructions, refusal, unsupported

Types = tuple[Any, ...]


@dataclass(frozen=True)
class Device:
    """A device function, as Numba's types name it."""

    function: FunctionType


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
            # Imported once more, its registries would be other ones.
            _kept.update(
                (name, module)
                for name, module in sys.modules.items()
                if name.startswith(f"{package}.") and name not in shadows.keys() - own.keys()
            )
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
            key, prefer_literal = Device(function), True  # as Numba compiles for a constant

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
            check_instructions(function)
            states[key] = None  # until it is known: it may call itself
            with _real_compiler():
                states[key] = inferred(function, arguments)
        if states[key] is None:
            raise Untyped(f"{function.__name__} calls itself")
        if isinstance(states[key], Exception):
            raise states[key]
        return states[key]

    def inferred(function: FunctionType, arguments: Types) -> Any:
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
            return unsupported(pipeline.state) or ended.args[0]
        except Exception as error:
            return unsupported(pipeline.state) or refusal(error, function)

    return SimpleNamespace(state=state)


def typed_function(function: FunctionType, arguments: Types) -> Any:
    """Numba's compiler's state after it has typed the function for arguments of these types.
    Raises :class:`Refused` where it refuses the function, and :class:`Untyped` where what it says
    is not known here."""
    return _numbas().state(function, arguments)


def check_kernel(function: FunctionType, arguments: Types) -> None:
    """Raises :class:`Refused` where a kernel returns anything."""
    state = typed_function(function, arguments)
    if state.return_type not in (types.none, types.Omitted(None)):
        lines = [
            one.loc.line
            for block in state.func_ir.blocks.values()
            for one in block.body
            if isinstance(one, ir.Return)
        ]
        raise Refused(f"a kernel returns nothing, and this returns {state.return_type}", lines[0])
