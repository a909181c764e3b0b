"""Kernels in the terms of numba-cuda-mlir, numba-cuda's successor.

A kernel is a Python function that ``numba.cuda`` has decorated. :func:`translated` copies the
function and gives its names what they mean to numba-cuda-mlir: that package's ``cuda`` and types,
the copies of its device functions, and convlab's intrinsics, which
``mlir_intrinsics`` writes in MLIR. So a stage has one source, which both compilers read.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any, Protocol

import numba.core.types
import numba.cuda
from numba_cuda_mlir import cuda, types

from convlab.device import mlir_hopper, mlir_intrinsics  # noqa: F401  they fill COUNTERPARTS
from convlab.device.mlir_code_generation import COUNTERPARTS

# The options of ``@cuda.jit`` that change the machine code.
OPTIONS = ("device", "fastmath", "launch_bounds", "max_registers")


class Dispatcher(Protocol):
    """A kernel or device function of numba-cuda's."""

    py_func: FunctionType
    targetoptions: dict[str, Any]

    def compile(self, signature: Any) -> Any:
        """Compile the function for arguments of the types in ``signature``."""


@lru_cache(maxsize=256)  # kernels and their device functions
def translated(kernel: Dispatcher, chip: str, lineinfo: bool = False) -> Dispatcher:
    """Return numba-cuda-mlir's dispatcher for a kernel, or a device function, of numba-cuda's. It
    compiles for a GPU such as ``sm_90a``."""
    given, function = kernel.targetoptions, kernel.py_func
    options = {name: given[name] for name in OPTIONS if given.get(name)}

    def meaning(value: Any) -> object:
        if hasattr(value, "py_func"):  # a device function
            return translated(value, chip, lineinfo)
        if type(value) is tuple:
            return tuple(map(meaning, value))
        return _meaning(value)

    cells = tuple(CellType(meaning(cell.cell_contents)) for cell in function.__closure__ or ())
    names = {name: meaning(value) for name, value in _globals_of(function)}
    names |= {"__builtins__": builtins, "__name__": function.__module__}
    code, defaults = function.__code__, function.__defaults__
    copy = FunctionType(code, names, function.__name__, defaults, cells)
    options |= {"chip": chip, "lto": True, "lineinfo": lineinfo, "inline": _left_to_nvvm}
    made: Dispatcher = cuda.jit(**options)(copy)
    return made


def _left_to_nvvm(*_: object) -> bool:
    """Tell numba-cuda-mlir not to inline a device function, because NVVM inlines it."""
    return False


def type_of(kind: numba.cuda.types.Type) -> types.Type:
    """Return numba-cuda-mlir's type of a kernel's argument, an array or a number, for Numba's."""
    if hasattr(kind, "layout"):
        return types.Array(_meaning(kind.dtype), kind.ndim, kind.layout)
    return _meaning(kind)


def _globals_of(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the globals that a function and those in it refer to."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]


def _meaning(value: object) -> object:
    """Return the value of a global, or of a closure's variable, in numba-cuda-mlir's terms."""
    if value is numba.cuda:
        return cuda
    if id(value) in COUNTERPARTS:
        return COUNTERPARTS[id(value)]
    if isinstance(value, numba.core.types.Type | numba.cuda.types.Type):
        return getattr(types, str(value))
    return value
