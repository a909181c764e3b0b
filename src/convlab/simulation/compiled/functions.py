"""The functions of a kernel with other meanings of their globals, for Numba's compiler of CPUs.

Each function is copied. In the copy ``cuda``'s names, device functions, intrinsics of
``convlab.device`` and arrays from outside are what machine code of this CPU takes for them, and the
copy's compiler inserts checks (:mod:`convlab.simulation.compiled.instrumentation`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba import njit
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager
from numba.core.dispatcher import Dispatcher
from numba.core.untyped_passes import IRProcessing

from convlab.device import emulation_of
from convlab.simulation.compiled import array_names as _array_names  # noqa: F401  fills CUDA
from convlab.simulation.compiled import atomic_names as _atomic_names  # noqa: F401
from convlab.simulation.compiled import fences as _fences  # noqa: F401
from convlab.simulation.compiled import guesses as _guesses  # noqa: F401  calls by name
from convlab.simulation.compiled import indexing as _indexing  # noqa: F401
from convlab.simulation.compiled import number_names as _number_names  # noqa: F401
from convlab.simulation.compiled import warp_names as _warp_names  # noqa: F401
from convlab.simulation.compiled.arrays import CompiledConstant
from convlab.simulation.compiled.instrumentation import Instrument
from convlab.simulation.compiled.kernel_text import KernelText
from convlab.simulation.compiled.memory import check_dtype
from convlab.simulation.compiled.names import CUDA
from convlab.simulation.compiled.numbers import GpuNumbers
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.compiled.wide_accesses import INTRINSICS
from convlab.simulation.language.compiled_values import Values, attribute, kept, values_of
from convlab.simulation.language.python_body import name_in_cuda
from convlab.simulation.threads.block_memory import CONSTANT_BYTES
from convlab.support.numba_successor import name_in_numba_cuda

_PLAIN = ("math", "numpy", "operator", "numba")  # modules whose names mean the same on a CPU


class CheckingCompiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler with the pass that inserts checks, for numbers as a GPU has them."""

    def __init__(self, typingctx: Any, targetctx: Any, *more: Any) -> None:
        super().__init__(typingctx, GpuNumbers.of(targetctx), *more)

    def define_pipelines(self) -> list[PassManager]:
        """Return Numba's passes, with the one that inserts checks."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.add_pass_after(Instrument, IRProcessing)
        manager.finalize()
        return [manager]


native = partial(njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


class Functions:
    """A kernel's function and those that it calls. ``values`` are those from outside that the
    kernel is compiled with. ``text`` says all that the machine code depends on."""

    def __init__(self, kernel: FunctionType, values: Values) -> None:
        self._values = values
        self._dispatchers: dict[FunctionType, Dispatcher] = {}
        self._modules: dict[int, ModuleType] = {}
        self.text = KernelText()
        self.kernel = self._dispatcher(kernel)

    def _dispatcher(self, original: FunctionType) -> Any:
        """Return what compiles a function with its checks."""
        number = [*self._dispatchers].index(original) if original in self._dispatchers else None
        if number is not None:
            self.text.add("function", number)
            return self._dispatchers[original]
        is_kernel = not self._dispatchers
        values = self._values if is_kernel else values_of(original, None)
        names = set(original.__code__.co_names)
        globals_ = {"__builtins__": __builtins__, "__name__": original.__globals__.get("__name__")}
        cells = tuple(CellType() for _ in original.__closure__ or ())
        copy = FunctionType(
            original.__code__, globals_, original.__name__, original.__defaults__, cells
        )
        made = self._dispatchers[original] = native(pipeline_class=CheckingCompiler)(copy)
        self.text.add_function(original)
        for name in sorted(names & {*original.__globals__}):
            value = kept(values, name, original.__globals__[name])
            self.text.add("global", name)
            globals_[name] = self._meaning(value, names, values)
        free = original.__code__.co_freevars
        for name, cell, source in zip(free, cells, original.__closure__ or (), strict=True):
            self.text.add("free", name)
            with suppress(ValueError):  # a variable that has no value yet
                value = kept(values, name, source.cell_contents)
                cell.cell_contents = self._meaning(value, names, values)
        self.text.add("end")
        return made

    def _meaning(self, value: Any, names: set[str], values: Values) -> Any:
        """Return what a value from outside means in compiled code. ``names`` are those that the
        function may look up in a module."""
        if isinstance(value, ModuleType) and name_in_numba_cuda(value.__name__) == "numba.cuda":
            self.text.add("cuda")
            return CUDA
        if not hasattr(value, "py_func") and (emulation := emulation_of(value)) is not None:
            self.text.add("device", emulation.__qualname__)
            return _of_device(value, emulation)
        if isinstance(function := getattr(value, "py_func", None), FunctionType):
            if getattr(value, "declared", None):
                raise NeedsGreenlets("a device function with declared types")
            return self._dispatcher(function)
        if (name := name_in_cuda(value)) is not None:
            self.text.add("cuda", name)
            return getattr(CUDA, name)
        if type(value) is tuple:
            self.text.add("tuple", len(value))
            return tuple(self._meaning(entry, names, values) for entry in value)
        if hasattr(value, "__cuda_array_interface__"):
            raise NeedsGreenlets("a device array that the kernel refers to by name")
        if isinstance(value, np.ndarray):
            check_dtype(value.dtype)
            if value.nbytes > CONSTANT_BYTES:
                raise NeedsGreenlets("an array that is larger than constant memory")
            self.text.add_value(value)
            return CompiledConstant(value)
        if isinstance(value, ModuleType) and value.__name__ not in _PLAIN:
            return self._module(value, names, values)
        self.text.add_value(value)
        return value

    def _module(self, value: ModuleType, names: set[str], values: Values) -> ModuleType:
        """Return a module with the attributes that a function may use."""
        if value.__name__.startswith("numba."):
            raise NeedsGreenlets(value.__name__)
        module = self._modules.setdefault(id(value), ModuleType(value.__name__))
        self.text.add("module", value.__name__)
        for name in sorted(names & {*vars(value)} - {*vars(module)}):
            self.text.add("attribute", name)
            setattr(module, name, None)  # a module may refer to itself
            now = kept(values, attribute(value, name), vars(value)[name])
            setattr(module, name, self._meaning(now, names, values))
        return module


def _of_device(value: object, emulation: Callable[..., object]) -> Any:
    """Return what an intrinsic of ``convlab.device`` is in compiled code."""
    if emulation not in INTRINSICS:
        raise NeedsGreenlets(f"{getattr(value, '__name__', value)} of convlab.device")
    return INTRINSICS[emulation]
