"""A kernel's Python function with everything it calls replaced by something plain Python can run.

A ``@cuda.jit`` kernel refers to ``cuda``, to device functions, to intrinsics and to Numba types
through its globals and closure. A simulator needs the same body with other meanings, in a process
that may also run the original on a GPU. So the function is copied, never changed.
"""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Never

import numpy as np
from numba.core import types as numba_types
from numba.cuda import types as cuda_types

from convlab import device
from convlab.device import ENGINE_CONSTANTS, emulation_of
from convlab.simulation.language.advice import advice_for
from convlab.simulation.language.code_names import global_names, names_used, nested_codes
from convlab.simulation.language.compilations import NumbaKernel
from convlab.simulation.language.compiled_values import Values, attribute, kept, values_of
from convlab.simulation.language.overloads import Overload, overloads_of, type_of
from convlab.simulation.language.rewritten_code import (
    ENDLESS,
    NUMBERED,
    Bits,
    code_of,
    numbered_steps,
)
from convlab.simulation.language.signatures import Declared, Types, casting
from convlab.simulation.language.typed_arithmetic import CALLED
from convlab.simulation.language.typed_results import BY_ZERO
from convlab.simulation.numbers.registers import GLOBALS
from convlab.simulation.numbers.scalars import by_zero
from convlab.simulation.recording.loops import Loops
from convlab.simulation.rules.findings import NotSimulated
from convlab.support.numba_successor import name_in_numba_cuda

_NUMBERS = (numba_types.Number, cuda_types.Number)
_STUBS = tuple(
    f"numba.cuda.{name}"
    for name in ("stubs", "intrinsics", "cache_hints", "vector_types", "simulator.vector_types")
)
_MODULES = {
    f"numba.cuda.{name}": name
    for name in ("bf16", "cg", "const", "fp16", "libdevice", "local", "shared")
}
_MODULES["numba.cuda._internal.cuda_bf16"] = "bf16"
_ALWAYS = {"__builtins__", "__name__"}  # globals that every module has

Meaning = Callable[[Any], Any]  # from a value to its replacement, or None


def python_body(kernel: NumbaKernel, fake_cuda: object) -> Callable[..., object]:
    """Return a copy of the kernel's function in which ``cuda`` is ``fake_cuda``, intrinsics are
    their emulations, device functions are copied in the same way, and Numba's number types cast
    with NumPy."""
    return Copier(fake_cuda, _numpy_numbers).copy(kernel.py_func)


class Copier:
    """Copies functions for one simulated ``cuda``.

    Each function is copied once, and each copy has code of its own: two device functions from one
    factory are two, as they are to a GPU's compiler.

    ``meaning(value)`` returns the replacement of any other global, None to keep the global.
    ``builtins`` maps names to meanings other than Python's. ``emulation(value)`` returns the
    replacement of an intrinsic, None for anything else. ``loops`` is told of loops and calls, and
    ``while`` loops iterate over ``endless()``. If ``kernel`` is given, the values from outside are
    the ``compiled_values`` of the kernel and of the device functions that it calls. ``used`` are
    the names of ``cuda`` that functions have imported by themselves.
    """

    def __init__(
        self,
        fake_cuda: object,
        meaning: Meaning,
        builtins: Mapping[str, object] | None = None,
        emulation: Callable[[object], Callable[..., object] | None] = emulation_of,
        loops: Loops | None = None,
        endless: Callable[[], Iterable[int]] = itertools.count,
        kernel: NumbaKernel | None = None,
    ) -> None:
        self.fake_cuda, self._meaning, self._emulation = fake_cuda, meaning, emulation
        self._builtins, self._loops, self._endless = dict(builtins or {}), loops, endless
        if loops is not None:
            self._builtins["range"] = loops.range
        self._kernel = kernel
        self.used: set[str] = set()
        self._copies: dict[tuple[FunctionType, Types | None, Bits], FunctionType] = {}
        self._modules: dict[tuple[int, int], ModuleType] = {}

    def copy(
        self, function: FunctionType, types: Types | None = None, bits: Bits = ()
    ) -> FunctionType:
        """Return the function with its globals and closure replaced.

        If Numba's ``types`` of its arguments are given, the copy computes as these types do.
        Integers among the arguments have at most that many ``bits``. Raises ``Refused`` and
        ``Untyped`` as :func:`infer` does.
        """
        key = function, types, bits
        if key in self._copies:
            return self._copies[key]
        values: Values = {}
        if self._kernel is not None:
            values = values_of(function if self._copies else self._kernel, types)
        # Only the globals that it needs: others would live as long as the copy.
        globals_ = {name: function.__globals__[name] for name in _ALWAYS & {*function.__globals__}}
        originals = function.__closure__ or ()
        cells = tuple(CellType() for _ in originals)
        globals_[BY_ZERO] = self._builtins.get(BY_ZERO, by_zero)
        globals_[ENDLESS], globals_[NUMBERED] = self._endless, numbered_steps
        rewritten = code_of(function, is_kernel=not self._copies, types=types, bits=bits)
        copy = FunctionType(rewritten.code, globals_, function.__name__, None, cells)
        self._copies[key] = copy  # before its callees are copied: it may call itself
        if types is not None:
            globals_ |= GLOBALS
        for number, typed in enumerate(rewritten.calls):
            assert typed.calls is not None
            called = self.copy(typed.calls.function, tuple(typed.signature.args), typed.bits)
            declared = [typed.calls.declared] if typed.calls.declared else []
            globals_[f"{CALLED}{number}"] = self._called(called, declared)
        attributes = names_used(function.__code__)
        for name in global_names(rewritten.code):
            if name in function.__globals__:
                value = kept(values, name, function.__globals__[name])
                known = name in ENGINE_CONSTANTS and value is getattr(device, name)
                constant = ENGINE_CONSTANTS[name] if known else None
                globals_[name] = constant or self._replaced(value, attributes, values)
            elif name in self._builtins:
                globals_[name] = self._builtins[name]
        names = function.__code__.co_freevars
        for name, cell, original in zip(names, cells, originals, strict=True):
            try:
                value = kept(values, name, original.cell_contents)
            except ValueError:  # a variable that has no value yet
                continue
            cell.cell_contents = self._replaced(value, attributes, values)
        # As globals: NumPy's numbers become Python's, and what changes later is not seen.
        copy.__defaults__ = tuple(
            self._replaced(kept(values, f"default {number}", default), attributes, values)
            for number, default in enumerate(function.__defaults__ or ())
        )
        return copy

    def codes(self) -> Iterator[CodeType]:
        """Yield the code of every function copied so far."""
        for copy in self._copies.values():
            yield from nested_codes(copy.__code__)

    def original(self, code: CodeType) -> tuple[FunctionType, Types | None] | None:
        """Return the function that was copied to this code, and the types of its arguments. None
        for the code of a function inside another."""
        for (function, types, _), copy in self._copies.items():
            if copy.__code__ is code:
                return function, types
        return None

    def calls(self) -> Iterator[tuple[CodeType, int, CodeType]]:
        """Yield the calls of copied functions in copied functions, as far as names tell them: the
        caller's code, its line and the called code."""
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

    def _called(self, copy: FunctionType, declared: Declared) -> Callable[..., object]:
        """Return a device function's copy as kernels call it: with its declared types, and with
        calls noted."""
        called = casting(copy, declared)
        return called if self._loops is None else self._loops.call(called)

    def _replaced(self, value: Any, attributes: set[str], values: Values) -> object:
        """Return the replacement for the value of a global, a closure variable or a module's
        attribute. ``attributes`` are the names that the function may look up in a module,
        ``values`` the values that the function is compiled with."""
        if isinstance(value, ModuleType) and name_in_numba_cuda(value.__name__) == "numba.cuda":
            return self.fake_cuda
        if (emulation := self._emulation(value)) is not None:
            return emulation
        if isinstance(getattr(value, "py_func", None), FunctionType):  # a device function
            return self._called(self.copy(value.py_func), getattr(value, "declared", None) or [])
        if (name := name_in_cuda(value)) is not None:  # `from numba.cuda import name`
            return self._of_cuda(name)
        if type(value) is tuple:
            return tuple(self._replaced(entry, attributes, values) for entry in value)
        if isinstance(value, ModuleType):
            return self._module(value, attributes, values)
        meant = self._meaning(value)
        return self._function(value) if meant is None else meant

    def _of_cuda(self, name: str) -> object:
        """Return the replacement of a name that was imported from ``numba.cuda``."""
        self.used.add(name)
        if name == "laneid":  # a number, which changes
            return Unknown("laneid imported by its name is not simulated: write cuda.laneid")
        try:
            return getattr(self.fake_cuda, name)
        except NotSimulated as error:
            return Unknown(str(error))

    def _module(self, value: ModuleType, attributes: set[str], values: Values) -> object:
        """Return a module whose attributes are replaced, or the simulated module."""
        if (whole := name_in_numba_cuda(value.__name__)) in _MODULES:
            return getattr(self.fake_cuda, _MODULES[whole])
        key = id(value), id(values)
        module = self._modules.setdefault(key, ModuleType(value.__name__))
        for name in attributes & {*vars(value)} - {*vars(module)}:
            setattr(module, name, None)  # a module may refer to itself
            now = kept(values, attribute(value, name), vars(value)[name])
            setattr(module, name, self._replaced(now, attributes, values))
        return module

    def _function(self, value: Any) -> object:
        """Return the replacement of a library's function or a plain one; other values stay."""
        module_name = name_in_numba_cuda(
            str(getattr(value, "__module__", None) or type(value).__module__)
        )
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

    def _overloaded(
        self, function: FunctionType, overloads: list[Overload]
    ) -> Callable[..., object]:
        """Return a function that calls, for each types of arguments, the body that the first
        matching overload gives."""
        chosen: dict[object, FunctionType | None] = {}

        def called(*values: object, **named: object) -> object:
            types = tuple(map(type_of, values))
            kinds = {name: type_of(value) for name, value in named.items()}
            key = types, tuple(kinds.items())
            if key not in chosen:
                bodies = (overload(*types, **kinds) for overload in overloads)
                body = next((one for one in bodies if one is not None), None)
                chosen[key] = None if body is None else self.copy(getattr(body, "py_func", body))
            if (found := chosen[key]) is None:
                shown = ", ".join(map(str, types))
                raise NotSimulated(f"{function.__name__} has no overload for ({shown})")
            return found(*values, **named)

        return called


def name_in_cuda(value: object) -> str | None:
    """Return the name of a value that programs import from ``numba.cuda``; None for any other."""
    return _imported_names().get(id(value))


@cache
def _imported_names() -> dict[int, str]:
    """Return the names that a program may import from ``numba.cuda``, by the id of the value."""
    return {
        id(value): name
        for name, value in vars(sys.modules["numba.cuda"]).items()
        if (module := name_in_numba_cuda(str(getattr(value, "__module__", "")))) == "numba.cuda"
        or module.startswith(_STUBS)
    }


class Unknown:
    """A value that the simulator lacks. It raises ``NotSimulated`` when it is used, so that the
    line is known."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Never:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSimulated(self._why)

    def _refuse(self, *_: object) -> Never:
        raise NotSimulated(self._why)

    __call__ = __getitem__ = __int__ = __index__ = __float__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __rand__ = __rshift__ = __rlshift__ = _refuse


def _numpy_numbers(value: Any) -> Callable[[Any], object] | None:
    if not isinstance(value, _NUMBERS):
        return None
    cast: Callable[[Any], object] = getattr(np, value.name)
    return _checked_index if value.name == "uint32" else cast


def _checked_index(value: Any) -> int:
    """Return ``uint32(value)`` as kernels use it for indices: a Python int. Raises
    ``OverflowError`` where a GPU wraps around."""
    index = int(value)
    if not 0 <= index < 2**32:
        raise OverflowError(f"uint32({index}) does not fit: a GPU would wrap around")
    return index


_checked_index.dtype = np.dtype(np.uint32)  # type: ignore[attr-defined]  # of arrays of uint32
