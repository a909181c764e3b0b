"""Numba's types of everything in a kernel, and Numba's refusals, with no GPU or CUDA compiler.

Numba types the kernel as for a launch, but each expression remembers the instruction of Python that
it comes from. Then Numba lowers it to LLVM IR. That is dropped, but an error in lowering is an
error on a GPU too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol
from unittest.mock import patch

import numba.cuda
from numba.cuda import types
from numba.cuda.core import config, ir
from numba.cuda.core.bytecode import FunctionIdentity
from numba.cuda.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.cuda.typing.templates import Signature

from convlab.simulation.language.refusals import (
    CompilerState,
    Refused,
    Untyped,
    check_instructions,
    refusal,
    unsupported,
)
from convlab.simulation.language.signatures import Types, best_fit
from convlab.simulation.language.toolchains import Toolchain, of_numba_cuda, of_successor
from convlab.support.numba_shortcuts import numba_shortcuts
from convlab.support.numba_successor import only_successor


@dataclass(frozen=True)
class Device:
    """A device function, as Numba's types name it, with its signatures. ``declared`` is the
    signature of a call: the only one, or the one that fits best. ``inlined`` if Numba puts its body
    in place of each call, so it may return arrays of its own."""

    function: FunctionType
    signatures: tuple[tuple[Types, types.Type], ...] = ()
    declared: tuple[Types, types.Type] | None = None
    inlined: bool = False

    def called(self, arguments: Types) -> Device:
        """Return the device function for a call with these types. Raises ``TypeError`` if no
        signature fits."""
        if not self.signatures:
            return self
        takes = self.signatures[0][0]
        if len(self.signatures) > 1 or len(takes) != len(arguments):
            takes = best_fit(self.signatures, arguments, first=True)
        return replace(self, declared=next(one for one in self.signatures if one[0] == takes))


class TypedFunction(NamedTuple):
    """A typed function: its code, types by variable, signatures by expression."""

    func_ir: ir.FunctionIR
    typemap: dict[str, types.Type]
    calltypes: dict[ir.Inst, Signature]
    return_type: types.Type


class Pipeline(CompilerState, Protocol):
    """The state of Numba's compiler after type inference, also as a dictionary."""

    func_id: FunctionIdentity
    typemap: dict[str, types.Type]
    calltypes: dict[ir.Inst, Signature]
    return_type: types.Type

    def __getitem__(self, name: str) -> Any: ...

    def __setitem__(self, name: str, value: object) -> None: ...


# Types a function for arguments of these types. Raises ``Refused`` or ``Untyped``.
TypedCompiler = Callable[[Device, Types], TypedFunction]


@contextmanager
def _real_compiler() -> Iterator[None]:
    """Inside, Numba's compiler can be imported in a process whose ``numba.cuda`` is its simulator.
    Afterwards its modules are hidden again, so that the program does not see them."""
    if not config.ENABLE_CUDASIM or only_successor():  # the successor has no simulator
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
    sys.modules.update(_hidden)
    for name, module in _hidden.items():
        parent, _, last = name.rpartition(".")
        if parent == package:
            setattr(numba.cuda, last, module)
    with patch.object(config, "ENABLE_CUDASIM", 0):
        try:
            from numba.cuda import cache_hints, decorators, intrinsics, stubs
            from numba.cuda.cudadrv import linkable_code

            numba.cuda.declare_device = decorators.declare_device
            for module in stubs, intrinsics, cache_hints, linkable_code:
                for name, value in vars(module).items():
                    if getattr(value, "__module__", None) == module.__name__:
                        setattr(numba.cuda, name, value)
            for stub in stubs._vector_type_stubs:
                for name in stub.__name__, *stub.aliases:
                    setattr(numba.cuda, name, stub)
            yield
        finally:
            # Imported a second time, the modules would have other registries.
            _hidden.update(
                (name, module)
                for name, module in sys.modules.items()
                if name.startswith(f"{package}.") and name not in shadows.keys() - own.keys()
            )
            sys.modules.update(own)
            for name in [*vars(numba.cuda)]:
                if name not in before:
                    delattr(numba.cuda, name)
            vars(numba.cuda).update(before)


_hidden: dict[str, ModuleType] = {}  # modules of Numba's compiler, by name


@cache
def _compiler() -> KernelTyper:
    """Return the compiler, whose classes of Numba take half a second to import."""
    with _real_compiler():
        return _made_compiler()


def _shortcuts() -> AbstractContextManager[None]:
    """Shortcuts through Numba's compiler; the successor has a compiler of its own."""
    return nullcontext() if only_successor() else numba_shortcuts()


def _made_compiler() -> KernelTyper:
    return KernelTyper(of_successor() if only_successor() else of_numba_cuda())


def _pipeline_of(toolchain: Toolchain) -> type[Any]:
    """Return Numba's compiler with two passes more: expressions keep their instructions, and the
    types are kept before lowering changes the code."""
    compiler: Any = toolchain.compiler
    interpreter: Any = toolchain.interpreter

    class Interpreter(interpreter):  # type: ignore[misc]
        def _iter_inst(self) -> Iterator[tuple[object, object]]:
            for instruction, more in super()._iter_inst():
                self.loc: ir.Loc = ir.Loc(self.loc.filename, instruction.lineno, instruction.offset)
                yield instruction, more

    @register_pass(mutates_CFG=True, analysis_only=False)
    class Translate(FunctionPass):  # type: ignore[misc]
        _name = "translate and keep offsets"

        def __init__(self) -> None:
            FunctionPass.__init__(self)

        def run_pass(self, state: Pipeline) -> bool:
            state["func_ir"] = Interpreter(state["func_id"]).interpret(state["bc"])
            return True

    @register_pass(mutates_CFG=False, analysis_only=True)
    class Keep(FunctionPass):  # type: ignore[misc]
        _name = "keep the types, because lowering changes the code"

        def __init__(self) -> None:
            FunctionPass.__init__(self)

        def run_pass(self, state: Pipeline) -> bool:
            if (found := unsupported(state, state.func_id.func)) is not None:
                raise found
            state["typed"] = TypedFunction(
                state["func_ir"].copy(), state.typemap, {**state.calltypes}, state.return_type
            )
            return False

    @register_pass(mutates_CFG=False, analysis_only=True)
    class End(FunctionPass):  # type: ignore[misc]
        _name = "end without code"

        def __init__(self) -> None:
            FunctionPass.__init__(self)

        def run_pass(self, state: Pipeline) -> bool:
            state["cr"] = state["typed"]
            return False

    class Compiler(compiler):  # type: ignore[misc]
        def define_pipelines(self) -> list[PassManager]:
            (usual,) = super().define_pipelines()
            manager = PassManager("cuda")
            for one, what in usual.passes:
                mine = one is toolchain.translation
                manager.passes.append((Translate if mine else one, what))
                if one is toolchain.inference:
                    manager.add_pass(Keep, "keep the types")
                    if not toolchain.lowers:
                        manager.add_pass(End, "end without code")
                        break
            manager.finalize()
            return [manager]

    return Compiler


def _context_of(toolchain: Toolchain, type_of: Callable[[Device], types.Type]) -> Any:
    """Return Numba's typing context, in which ``type_of`` gives the types of device functions."""
    typing_context: Any = toolchain.typing_context

    class Context(typing_context):  # type: ignore[misc]
        def resolve_value_type(self, value: object) -> types.Type:
            function = getattr(value, "py_func", None)
            if not isinstance(function, FunctionType):
                return super().resolve_value_type(value)
            signatures = tuple(getattr(value, "declared", None) or ())
            return type_of(Device(function, signatures, inlined=_is_inlined(value)))

    return Context()


def _is_inlined(dispatcher: object) -> bool:
    """Return whether Numba inlines a device function before it infers types."""
    options = getattr(dispatcher, "jit_options", None) or getattr(dispatcher, "targetoptions", {})
    return options.get("inline") in (True, "always")


def _template_of(device: Device, typed: TypedCompiler) -> type[Any]:
    """Return the template by which Numba types the calls of a device function."""
    from numba.cuda import typing
    from numba.cuda.typing.templates import AbstractTemplate, fold_arguments

    signature = inspect.signature(device.function)

    class Template(AbstractTemplate):  # type: ignore[misc]
        key, prefer_literal = device, True  # as Numba compiles for a constant

        def generic(self, arguments: Types, named: dict[str, types.Type]) -> Signature:
            folded = fold_arguments(
                signature,
                arguments,
                named,
                lambda index, parameter, value: value,
                lambda index, parameter, default: types.Omitted(default),
                lambda index, parameter, values: types.StarArgTuple(values),
            )
            called = device.called(folded)
            folded = called.declared[0] if called.declared else folded
            found = typing.signature(typed(called, folded).return_type, *folded)
            return found.replace(pysig=signature)

    return Template


class KernelTyper:
    """Types functions as Numba's compiler does, each once for the same types of arguments."""

    def __init__(self, toolchain: Toolchain) -> None:
        from numba.cuda.flags import CUDAFlags

        self._toolchain = toolchain
        self._pipeline = _pipeline_of(toolchain)
        self._context = _context_of(toolchain, self._type_of)
        self._flags = CUDAFlags()
        self._flags.no_compile = True
        self._flags.no_cpython_wrapper = self._flags.no_cfunc_wrapper = True
        self._flags.error_model, self._flags.compute_capability = "numpy", (9, 0)
        self._types: dict[Device, types.Type] = {}
        self._known: dict[tuple[Device, Types], TypedFunction | Exception] = {}
        # The functions that are being typed, each called by the one before.
        self._running: list[tuple[Device, Types]] = []
        # Functions with a signature, which converts their arguments, and inlined functions.
        self._declared: set[FunctionType] = set()
        self._inlined: set[FunctionType] = set()

    def __call__(self, device: Device, arguments: Types) -> TypedFunction:
        """Return the function, typed. Raises :class:`Refused` or :class:`Untyped`."""
        function, key = device.function, (device, arguments)
        if key not in self._known:
            check_instructions(function)
            begun = [before for one, before in self._running if one.function is function]
            if begun and function not in self._declared:
                what = f"a call of itself with {arguments} in one with {begun[-1]}"
                raise Refused(what, function, function.__code__.co_firstlineno)
            # Until more is known.
            self._known[key] = Untyped(f"{function.__name__} calls itself")
            self._running.append(key)
            with _real_compiler(), _shortcuts():
                self._known[key] = self._lowered(device, arguments)
            self._running.pop()
        found = self._known[key]
        if isinstance(found, Exception):
            raise found
        return found

    def of_function(self, function: FunctionType, arguments: Types) -> TypedFunction:
        """Return a kernel, or a device function whose caller has been typed. Raises
        :class:`Refused` or :class:`Untyped`."""
        return self(Device(function, inlined=function in self._inlined), arguments)

    def _type_of(self, device: Device) -> types.Type:
        if device.signatures:
            self._declared.add(device.function)
        if device.inlined:
            self._inlined.add(device.function)
        if device not in self._types:
            self._types[device] = types.Function(_template_of(device, self))
        return self._types[device]

    def _lowered(self, device: Device, arguments: Types) -> TypedFunction | Exception:
        function, (_, gives) = device.function, device.declared or (None, None)
        flags = self._flags.copy()
        flags.inline = "always" if device.inlined else "never"
        pipeline = self._pipeline(
            typingctx=self._context,
            targetctx=self._toolchain.target_context,
            library=None,
            args=arguments,
            return_type=gives,
            flags=flags,
            locals={},
            **self._toolchain.options,
        )
        try:
            with self._toolchain.running(flags):
                made = pipeline.compile_extra(function)
                if self._toolchain.lowers:
                    made.library.finalize()
            if self._toolchain.lowers:
                key = replace(device, declared=None)  # by which a call names it
                self._toolchain.target_context.insert_user_function(
                    key, made.fndesc, [made.library]
                )
            found: TypedFunction = pipeline.state.typed
            return found
        except Exception as error:
            return unsupported(pipeline.state, function) or refusal(error, function)


def load_compiler() -> None:
    """Import Numba's compiler now. That of numba-cuda-mlir has to be imported before a simulation
    changes the names of ``numba.cuda``, by which it knows what kernels call."""
    if only_successor():
        _compiler()


def typed_function(function: FunctionType, arguments: Types) -> TypedFunction:
    """Return the function as Numba's compiler types it for arguments of these types. Raises
    :class:`Refused` if Numba refuses the function, and :class:`Untyped` if its types are not known
    here."""
    return _compiler().of_function(function, arguments)


def check_kernel(function: FunctionType, arguments: Types) -> None:
    """Raise :class:`Refused` if a kernel returns a value."""
    state = typed_function(function, arguments)
    if state.return_type not in (types.none, types.Omitted(None)):
        lines = [
            one.loc.line
            for block in state.func_ir.blocks.values()
            for one in block.body
            if isinstance(one, ir.Return)
        ]
        what = f"a kernel returns nothing, and this returns {state.return_type}"
        raise Refused(what, function, lines[0])
