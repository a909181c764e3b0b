"""From a kernel's function to machine code of this CPU, with checks.

The function is copied with other meanings of its globals, and Numba compiles the copy with a pass
more (:mod:`convlab.simulation.compiled.instrumentation`). The types that Numba infers for a CPU
must be those that it infers for a GPU, or the kernel is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import errors, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager
from numba.core.dispatcher import Dispatcher
from numba.core.extending import intrinsic
from numba.core.untyped_passes import IRProcessing

from convlab.device import emulation_of
from convlab.simulation.compiled import runtime
from convlab.simulation.compiled import warp_names as _warp_names  # noqa: F401  more of CUDA
from convlab.simulation.compiled.arrays import I64, CompiledArray, CompiledConstant, made
from convlab.simulation.compiled.context import ARGUMENTS, load_word
from convlab.simulation.compiled.instrumentation import Instrument, Places, in_work
from convlab.simulation.compiled.memory import check_dtype
from convlab.simulation.compiled.names import CUDA
from convlab.simulation.compiled.numbers import GpuNumbers
from convlab.simulation.compiled.refused import NotCompiled
from convlab.simulation.compiled.stacks import machine_code
from convlab.simulation.compiled.wide_accesses import INTRINSICS
from convlab.simulation.language.compiled_values import Values, attribute, kept, values_of
from convlab.simulation.language.python_body import name_in_cuda
from convlab.simulation.threads.block_memory import CONSTANT_BYTES
from convlab.support.numba_successor import name_in_numba_cuda

COMPILER_FAULT = "an error inside the compiler"
_PLAIN = ("math", "numpy", "operator", "numba")  # modules whose names mean the same on a CPU


class CheckingCompiler(CompilerBase):
    """Numba's compiler with the pass that inserts checks, for numbers as a GPU has them."""

    def __init__(self, typingctx: Any, targetctx: Any, *more: Any) -> None:
        targetctx = targetctx.subtarget()  # a copy
        targetctx.__class__ = GpuNumbers
        super().__init__(typingctx, targetctx, *more)

    def define_pipelines(self) -> list[PassManager]:
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.add_pass_after(Instrument, IRProcessing)
        manager.finalize()
        return [manager]


_njit = partial(njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


class Functions:
    """The functions of a kernel with other meanings of their globals. ``values`` are those that the
    kernel is compiled with."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.dispatchers: dict[FunctionType, Dispatcher] = {}
        self._modules: dict[int, ModuleType] = {}
        self.constants: list[CompiledConstant] = []  # whose memory the machine code refers to

    def dispatcher(self, original: FunctionType) -> Dispatcher:
        """Return what compiles a function with its checks."""
        if original in self.dispatchers:
            return self.dispatchers[original]
        is_kernel = not self.dispatchers
        values = self._values if is_kernel else values_of(original, None)
        names = set(original.__code__.co_names)
        globals_ = {"__builtins__": __builtins__, "__name__": original.__globals__.get("__name__")}
        cells = tuple(CellType() for _ in original.__closure__ or ())
        copy = FunctionType(
            original.__code__, globals_, original.__name__, original.__defaults__, cells
        )
        made = self.dispatchers[original] = _njit(pipeline_class=CheckingCompiler)(copy)
        for name in names & {*original.__globals__}:
            value = kept(values, name, original.__globals__[name])
            globals_[name] = self._meaning(value, names, values)
        free = original.__code__.co_freevars
        for name, cell, source in zip(free, cells, original.__closure__ or (), strict=True):
            with suppress(ValueError):  # a variable that has no value yet
                value = kept(values, name, source.cell_contents)
                cell.cell_contents = self._meaning(value, names, values)
        return made

    def _meaning(self, value: Any, names: set[str], values: Values) -> Any:
        """Return what a value from outside means in compiled code. ``names`` are those that the
        function may look up in a module."""
        if isinstance(value, ModuleType) and name_in_numba_cuda(value.__name__) == "numba.cuda":
            return CUDA
        if not hasattr(value, "py_func") and (emulation := emulation_of(value)) is not None:
            return _of_device(value, emulation)
        if isinstance(function := getattr(value, "py_func", None), FunctionType):
            if getattr(value, "declared", None):
                raise NotCompiled("a device function with declared types")
            return self.dispatcher(function)
        if (name := name_in_cuda(value)) is not None:
            return _of_cuda(name)
        if type(value) is tuple:
            return tuple(self._meaning(entry, names, values) for entry in value)
        if hasattr(value, "__cuda_array_interface__"):
            raise NotCompiled("a device array that the kernel refers to by name")
        if isinstance(value, np.ndarray):
            return self._constant(value)
        if isinstance(value, ModuleType) and value.__name__ not in _PLAIN:
            return self._module(value, names, values)
        return value

    def _constant(self, value: np.ndarray) -> CompiledConstant:
        """Return an array that is compiled into the kernel."""
        check_dtype(value.dtype)
        if value.nbytes > CONSTANT_BYTES:
            raise NotCompiled("an array that is larger than constant memory")
        self.constants.append(CompiledConstant(value))
        return self.constants[-1]

    def _module(self, value: ModuleType, names: set[str], values: Values) -> ModuleType:
        """Return a module with the attributes that a function may use."""
        if value.__name__.startswith("numba."):
            raise NotCompiled(value.__name__)
        module = self._modules.setdefault(id(value), ModuleType(value.__name__))
        for name in names & {*vars(value)} - {*vars(module)}:
            setattr(module, name, None)  # a module may refer to itself
            now = kept(values, attribute(value, name), vars(value)[name])
            setattr(module, name, self._meaning(now, names, values))
        return module


def _of_cuda(name: str) -> Any:
    return getattr(CUDA, name)


def _of_device(value: object, emulation: Callable[..., object]) -> Any:
    """Return what an intrinsic of ``convlab.device`` is in compiled code."""
    if emulation not in INTRINSICS:
        raise NotCompiled(f"{getattr(value, '__name__', value)} of convlab.device")
    return INTRINSICS[emulation]


# The arguments of a launch.


@intrinsic
def argument_values(typing, kinds):
    """Return the arguments of the launch, whose types are those of a tuple's instance."""
    kind = kinds.instance_type

    def generate(context, builder, types_, arguments):
        words = _Words(builder)
        values = [_argument(context, builder, one, words) for one in kind.types]
        return context.make_tuple(builder, kind, values)

    return kind(kinds), generate


class _Words:
    """The words of the arguments, read one after the other."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self._builder, self._count = builder, 0
        self._begin = builder.inttoptr(load_word(builder, ARGUMENTS), I64.as_pointer())

    def next(self) -> ir.Value:
        index = ir.Constant(ir.IntType(32), self._count)
        self._count += 1
        return self._builder.load(self._builder.gep(self._begin, [index]))


def _argument(context, builder: ir.IRBuilder, kind: types.Type, words: _Words) -> ir.Value:
    """Return one argument from the words that hold it."""
    if isinstance(kind, CompiledArray):
        data, cells, serial = words.next(), words.next(), words.next()
        shape = [words.next() for _ in range(kind.ndim)]
        strides = [words.next() for _ in range(kind.ndim)]
        return made(
            context,
            builder,
            kind,
            data=data,
            cells=cells,
            serial=serial,
            shape=shape,
            strides=strides,
        )
    if isinstance(kind, types.BaseTuple):
        values = [_argument(context, builder, one, words) for one in kind.types]
        return context.make_tuple(builder, kind, values)
    if isinstance(kind, types.Boolean):
        return builder.trunc(words.next(), ir.IntType(1))
    if isinstance(kind, types.Integer):
        word = words.next()
        return word if kind.bitwidth == 64 else builder.trunc(word, ir.IntType(kind.bitwidth))
    double = builder.bitcast(words.next(), ir.DoubleType())
    return double if kind.bitwidth == 64 else builder.fptrunc(double, ir.FloatType())


# Compiling.


@dataclass(frozen=True)
class CompiledKernel:
    """The machine code of a kernel for arguments of some types."""

    name: str
    entry: int  # its address
    places: Places
    kept_alive: object  # the machine code, and what it refers to


def compile_kernel(
    function: FunctionType, kinds: tuple[types.Type, ...], values: Values
) -> tuple[CompiledKernel, dict[str, types.Type]]:
    """Return a kernel's machine code for arguments of these types, and the types of its variables
    by name. Raises :class:`NotCompiled` for what is not known here."""
    machine_code()  # of the switch, then of the rules, to which kernels refer by their symbols
    runtime.load()
    functions = Functions(values)
    kernel = functions.dispatcher(function)
    whole = types.NumberClass(types.Tuple(kinds))

    def enter():
        kernel(*argument_values(whole))

    entry, places = _njit(enter), Places()
    in_work.append(places)
    try:
        entry.compile(())
    except errors.NumbaError as error:
        raise NotCompiled(f"Numba does not compile it for a CPU: {_first_reason(error)}") from None
    except NotCompiled:
        raise
    except Exception as error:  # Numba's compiler has faults, and the other engine needs none of it
        raise NotCompiled(f"{COMPILER_FAULT}: {type(error).__name__}: {error}") from error
    finally:
        in_work.pop()
    compiled = entry.overloads[()]
    address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    (typed,) = kernel.overloads.values()
    result = CompiledKernel(
        name=function.__name__,
        entry=address,
        places=places,
        kept_alive=(compiled.library, functions.constants),
    )
    return result, typed.type_annotation.typemap


def _first_reason(error: Exception) -> str:
    """Return the line of Numba's message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Failed in", "During", "["))]
    return said[0] if said else type(error).__name__
