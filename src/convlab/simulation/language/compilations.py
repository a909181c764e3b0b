"""Compilations that happen before a launch: by declared signatures, ``compile``, ``recompile``.

Each keeps the values that the kernel and the device functions that it calls are compiled with.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Protocol

from convlab.simulation.language.code_names import names_used, references
from convlab.simulation.language.compiled_values import (
    Values,
    attribute,
    forget,
    kept,
    values_declared,
    values_of,
)
from convlab.simulation.language.inference import WIDEST, infer
from convlab.simulation.language.refusals import Refused, Untyped
from convlab.simulation.language.signatures import Types


class NumbaKernel(Protocol):
    """A kernel of ``numba.cuda``."""

    py_func: FunctionType


def keep_declared(compiled: object, function: FunctionType, signatures: Iterable[Types]) -> None:
    """Keep the values that a kernel or device function, declared with these types of arguments, is
    compiled with, and those of the device functions that it calls."""
    _keep(function, values_declared(compiled))
    for types in signatures:
        _keep_called(function, types, set())


def keep_compiled(kernel: NumbaKernel, types: Types) -> None:
    """Keep the values that a kernel is compiled with for arguments of these types."""
    _keep(kernel.py_func, values_of(kernel, types))
    _keep_called(kernel.py_func, types, set())


def recompile(kernel: NumbaKernel) -> None:
    """Let the kernel read its globals again: now, if it is declared, or at its next launch."""
    forget(kernel)
    if signatures := getattr(kernel, "declared", None):
        keep_declared(kernel, kernel.py_func, [arguments for arguments, _ in signatures])


def _keep_called(
    function: FunctionType, types: Types, done: set[tuple[FunctionType, Types]]
) -> None:
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
    """Keep all values that the function reads from outside."""
    attributes, modules = names_used(function.__code__), list[ModuleType]()
    for name, value in references(function):
        kept(values, name, value)
        if isinstance(value, ModuleType):
            modules.append(value)
    seen: set[int] = set()
    while modules:
        module = modules.pop()
        if id(module) in seen:  # a module may refer to itself
            continue
        seen.add(id(module))
        for name in attributes & {*vars(module)}:
            value = vars(module)[name]
            kept(values, attribute(module, name), value)
            if isinstance(value, ModuleType):
                modules.append(value)
