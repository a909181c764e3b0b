"""The machine code that all compiled kernels share: the rules and the scheduler.

Each is a Python function with a signature, which Numba compiles to a native function. Kernels call
it by its symbol. Compiling takes seconds, so the machine code is kept on disk
(:mod:`convlab.simulation.compiled.code_cache`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar, cast

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit
from numba.core import cgutils, sigutils

from convlab.simulation.compiled import code_cache
from convlab.simulation.compiled.code_cache import Loaded, ObjectCode, Stored
from convlab.simulation.compiled.thread_switch import machine_code

Takes = ParamSpec("Takes")
Gives = TypeVar("Gives")
_SHARED: dict[str, tuple[Any, str]] = {}  # dispatchers and their signatures, by symbol


def shared_code(
    signature: str,
) -> Callable[[Callable[Takes, Gives]], Callable[Takes, Gives]]:
    """Make a function shared machine code with that signature. Functions that are compiled with it
    may call it by its Python name."""

    def decorate(function: Callable[Takes, Gives]) -> Callable[Takes, Gives]:
        if is_loaded():
            raise RuntimeError(
                f"{function.__module__} is imported after the shared machine code was loaded: "
                f"import it before, or {function.__name__} is missing there"
            )
        made = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
        _SHARED[symbol_of(function.__name__)] = made, signature
        return cast("Callable[Takes, Gives]", made)

    return decorate


def symbol_of(name: str) -> str:
    """Return the symbol of shared machine code by the name of its function."""
    return f"convlab_{name}"


def _key() -> str:
    """Return the key on disk: for those functions whose modules have been imported."""
    return code_cache.key_of("\n".join(["what all kernels share", *_SHARED]))


def is_loaded() -> bool:
    """Return whether the shared machine code is in memory."""
    return load.cache_info().currsize > 0


def is_kept() -> bool:
    """Return whether the shared machine code is in memory or on disk."""
    return is_loaded() or code_cache.stored(_key()) is not None


@cache
def load() -> dict[str, Loaded]:
    """Return the shared machine code in memory, by symbol. Raises :class:`NeedsGreenlets` on a
    machine that has no switch of threads."""
    machine_code()  # of the switch, which this code calls by its symbol
    key = _key()
    stored = code_cache.stored(key)
    if stored is None:
        stored = Stored(_compiled(), {})
        code_cache.store(key, stored)
    found = {}
    for code in stored.codes:
        found[code.symbol] = code_cache.loaded(code)
        llvm.add_symbol(code.symbol, found[code.symbol].address)
    return found


def _compiled() -> list[ObjectCode]:
    """Compile the functions in the order in which they call each other."""
    codes: list[ObjectCode] = []
    for symbol, (made, signature) in _SHARED.items():
        arguments, _ = sigutils.normalize_signature(signature)
        made.compile(arguments)
        made.disable_compile()  # or it would be compiled again for each constant argument
        compiled = made.overloads[arguments]
        _, _, (content, _) = compiled.library.serialize_using_object_code()
        codes.append(ObjectCode(symbol, compiled.fndesc.llvm_func_name, content))
    return codes


def call(
    builder: ir.IRBuilder, name: str, *arguments: ir.Value, gives: ir.Type | None = None
) -> ir.Value:
    """Generate a call of shared machine code, and return its result, which is of the type
    ``gives``."""
    pointer = ir.IntType(8).as_pointer().as_pointer()
    result = cgutils.alloca_once(builder, gives or pointer.pointee)
    raised = cgutils.alloca_once(builder, pointer.pointee)
    takes = [result.type, raised.type, *(one.type for one in arguments)]
    symbol, known = symbol_of(name), builder.module.globals
    function = known.get(symbol) or ir.Function(
        builder.module, ir.FunctionType(ir.IntType(32), takes), symbol
    )
    builder.call(function, [result, raised, *arguments])
    return builder.load(result)


def callable_from_python(name: str, arguments: int) -> Callable[..., int]:
    """Return shared machine code as a function of integers that returns one. It keeps Python's
    lock, and raises an exception that a signal has raised meanwhile."""
    kinds = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * arguments]
    native = ctypes.PYFUNCTYPE(ctypes.c_int32, *kinds)(load()[symbol_of(name)].address)

    def called(*given: int) -> int:
        result, raised = ctypes.c_int64(), ctypes.c_void_p()
        native(ctypes.addressof(result), ctypes.addressof(raised), *given)
        return result.value

    return called
