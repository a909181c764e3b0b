"""All that a kernel's machine code depends on, as text, from which its key on disk is made.

Numba compiles a function's bytecode, so the bytecode stands for the source here. It has every
constant and name of the source, but no comments and no line numbers: a kernel keeps its machine
code when its file changes elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import sha256
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, ModuleType

import numpy as np
from numba.core import types
from numba.cuda import types as cuda_types

# Packages whose functions and classes are known by their names: the key has the versions.
_KNOWN = {"numba", "numba_cuda", "numba_cuda_mlir", "numpy", *sys.stdlib_module_names}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), EllipsisType)


class KernelText:
    """Lines that name a kernel's code and the values that it is compiled with. ``whole`` is false
    if a value of an unknown kind is among these: then the text may not be a key."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.whole = True

    def add(self, *words: object) -> None:
        """Add a line of words."""
        self._lines.append(repr(words))

    def add_function(self, function: FunctionType) -> None:
        """Add a function's code and the values of its defaults, without those of its names."""
        self.add("code", function.__name__, *_code_words(function.__code__))
        for value in function.__defaults__ or ():
            self.add_value(value)

    def add_value(self, value: object) -> None:
        """Add a value from outside."""
        if type(value) in _PLAIN:
            self.add(type(value).__name__, value)
        elif type(value) is tuple:
            self.add("tuple", len(value))
            for entry in value:
                self.add_value(entry)
        elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            content = sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            self.add(type(value).__name__, value.dtype.descr, value.shape, content)
        elif isinstance(value, np.dtype):
            self.add("dtype", value.descr)
        elif isinstance(value, types.Type | cuda_types.Type):
            self.add(type(value).__name__, str(value))
        elif isinstance(value, ModuleType):
            self.add("module", value.__name__)
        elif isinstance(value, np.ufunc):
            self.add("ufunc", value.__name__)
        elif isinstance(value, type | BuiltinFunctionType | FunctionType) and _is_known(value):
            self.add(value.__module__, value.__qualname__)
        else:
            self.whole = False

    def __str__(self) -> str:
        return "\n".join(self._lines)


def _is_known(value: type | BuiltinFunctionType | FunctionType) -> bool:
    package = (value.__module__ or "").partition(".")[0]
    return package in _KNOWN and "<locals>" not in value.__qualname__


def _code_words(code: CodeType) -> Iterator[object]:
    """Give what a code object computes, without its file and lines."""
    yield code.co_code
    yield code.co_exceptiontable
    yield code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    yield code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_words(constant)
        elif isinstance(constant, frozenset):  # in an order that differs between processes
            yield sorted(map(repr, constant))
        else:
            yield constant
