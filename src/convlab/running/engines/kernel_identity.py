"""A key for a compiled kernel: a hash of everything that its machine code depends on.

Numba compiles a function's bytecode, so the bytecode stands for the source here; it has every
constant and name of the source, but no comments and no line numbers. Names are followed to their
values: constants, device functions with their options, what those close over, and so on. What the
values are made by (Python, both compilers, the linker, convlab's intrinsics) is in the key too.

A value that this module does not know makes the kernel one without a key, which is then compiled
each time: a key that leaves something out would give the wrong machine code.
"""

from __future__ import annotations

import builtins
import dis
import json
import os
import platform
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numba.core.types
import numpy as np
from numba import cuda
from numba.cuda.core import config

from convlab.ladder.stage import Capability, Kernel
from convlab.running.compilers import MLIR
from convlab.support.whole_files import fingerprint

ArgumentTypes: TypeAlias = tuple[Any, ...]  # Numba's types, which have no annotations

SOURCE = Path(__file__).parents[2]
# Convlab's own part of the machine code: its intrinsics, and the way to a cubin.
OWN_CODE = (
    "device/*.py",
    "running/engines/compilation.py",
    "running/engines/cubin.py",
    "running/engines/device_functions.py",
    "running/engines/kernels.py",
    "support/numba_shortcuts.py",
)
# Packages whose functions are known by their names, because the key has the packages' versions.
KNOWN_PACKAGES = ("numba", "numba_cuda", "numpy", "math", "cmath", "operator", "builtins")
OWN_INTRINSICS = "convlab.device"  # known by their names, because the key has their source

# What a value is described by: what JSON has.
Description: TypeAlias = "str | int | bool | Sequence[Description] | None"


class NoKey(Exception):
    """A kernel depends on a value that has no description here; the message names it."""


def kernel_key(
    kernel: Kernel, types: ArgumentTypes, capability: Capability, compiler: str
) -> str | None:
    """Return the key of a kernel's machine code, as a hexadecimal number; None where the kernel
    depends on something that has no description here."""
    try:
        parts: list[Description] = [
            _functions_of(kernel),
            [f"{type(kind).__name__} {kind}" for kind in types],
            [*capability],
            toolchain(compiler),
            [repr(config.OPT), repr(config.CUDA_DEBUGINFO_DEFAULT)],
        ]
    except (NoKey, OSError, ImportError, RecursionError):
        return None
    return sha256(json.dumps(parts).encode()).hexdigest()


def function_key(dispatcher: Any) -> str | None:
    """Return the key of a device function, as a hexadecimal number: of what Numba makes of it and
    of the functions that it calls, in this process. None where it depends on something that has no
    description here, or where the machine code tells lines of the source, which no key has."""
    functions = _Functions()
    try:
        functions.number_of(dispatcher)
        functions.describe_all()
    except (NoKey, RecursionError):
        return None
    if functions.with_lines:
        return None
    return sha256(json.dumps(functions.descriptions).encode()).hexdigest()


# What the kernel is.


class _Functions:
    """The functions that a kernel is made of. Each is described once, and named by its number, so
    that functions may call each other in any way."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._found: list[Any] = []  # dispatchers: what `@cuda.jit` makes of a function
        self.descriptions: list[Description] = []
        self.with_lines = False  # whether the machine code of one tells lines of the source

    def number_of(self, dispatcher: Any) -> int:
        """Return the function's number; a new function is described later."""
        if id(dispatcher) not in self._numbers:
            self._numbers[id(dispatcher)] = len(self._numbers)
            self._found.append(dispatcher)
        return self._numbers[id(dispatcher)]

    def describe_all(self) -> None:
        """Describe the functions that have a number, and those that they lead to."""
        for dispatcher in self._found:  # which grows meanwhile
            function, options = dispatcher.py_func, dispatcher.targetoptions
            if options.get("link") or options.get("extensions"):
                raise NoKey(f"{function.__name__} links files or has extensions")
            self.with_lines |= bool(options.get("debug") or options.get("lineinfo"))
            chosen: list[Description] = [
                [name, self.value(option)] for name, option in sorted(options.items())
            ]
            self.descriptions.append([self.function(function), chosen])

    def function(self, function: FunctionType) -> Description:
        """Return a Python function's code and the values of its names."""
        code = function.__code__
        try:
            cells = [self.value(cell.cell_contents) for cell in function.__closure__ or ()]
        except ValueError as error:
            raise NoKey(f"{function.__name__} has a variable without a value") from error
        names: list[Description] = [
            [name, self.value(value, attributes=_names_in(code))]
            for name, value in _globals_of(function)
        ]
        defaults = [self.value(value) for value in function.__defaults__ or ()]
        keywords = [
            [name, self.value(value)]
            for name, value in sorted((function.__kwdefaults__ or {}).items())
        ]
        return [function.__name__, self.code(code), cells, names, defaults, keywords]

    def code(self, code: CodeType) -> Description:
        """Return what a code object computes, without its file and lines."""
        return [
            code.co_code.hex(),
            getattr(code, "co_exceptiontable", b"").hex(),
            [self.value(constant) for constant in code.co_consts],
            [*code.co_names],
            [*code.co_varnames],
            [*code.co_freevars],
            [*code.co_cellvars],
            [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
        ]

    def value(self, value: Any, attributes: Iterable[str] = ()) -> Description:
        """Return the description of a value that code uses; of a module, that of the attributes
        with these names. Raises :class:`NoKey` for a value of an unknown kind."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            if type(value).__module__ == "builtins":
                return [type(value).__name__, repr(value)]
        if isinstance(value, Enum):
            return ["enum", _name_of(type(value)), value.name, self.value(value.value)]
        if isinstance(value, tuple | list | frozenset):
            entries: list[Description] = [self.value(entry) for entry in value]
            if isinstance(value, frozenset):  # in an order that differs from process to process
                entries.sort(key=json.dumps)
            return [_name_of(type(value)), [*getattr(value, "_fields", ())], entries]
        if value is Ellipsis:
            return ["Ellipsis"]
        if isinstance(value, np.generic | np.ndarray):
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise NoKey("an array of Python's objects")
            content = sha256(array.tobytes()).hexdigest()
            kind = type(value).__name__
            return ["array", kind, repr(array.dtype.descr), [*array.shape], content]
        if isinstance(value, np.dtype):
            return ["dtype", repr(value.descr)]
        if isinstance(value, CodeType):
            return ["code", self.code(value)]
        if isinstance(value, numba.core.types.Type | cuda.types.Type):
            return ["type", _name_of(type(value)), str(value)]
        if hasattr(value, "py_func") and hasattr(value, "targetoptions"):
            return ["function", self.number_of(value)]
        if isinstance(value, ModuleType):
            return self._module(value, attributes)
        if isinstance(value, np.ufunc):
            return ["ufunc", value.__name__]
        if isinstance(intrinsic := getattr(value, "_defn", None), FunctionType):
            if intrinsic.__module__.startswith(OWN_INTRINSICS) and not intrinsic.__closure__:
                return ["intrinsic", _name_of(intrinsic)]
        elif isinstance(value, type | BuiltinFunctionType | FunctionType) and _is_known(value):
            return ["name", _name_of(value)]
        raise NoKey(f"a value of type {type(value).__name__}")

    def _module(self, module: ModuleType, attributes: Iterable[str]) -> Description:
        if module.__name__.partition(".")[0] in KNOWN_PACKAGES:
            return ["module", module.__name__]
        names = [name for name in attributes if hasattr(module, name)]
        used: list[Description] = [
            [name, self.value(getattr(module, name), attributes=names)] for name in names
        ]
        return ["module", module.__name__, used]


def _functions_of(kernel: Kernel) -> Description:
    functions = _Functions()
    functions.number_of(kernel)
    functions.describe_all()
    return functions.descriptions


def _name_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _is_known(value: Any) -> bool:
    """Return True for a function or class of a package whose version is in the key."""
    module = getattr(value, "__module__", None) or ""
    return module.partition(".")[0] in KNOWN_PACKAGES and "<locals>" not in value.__qualname__


def _names_in(code: CodeType) -> list[str]:
    """Return the names of globals and attributes in a code object and those inside it."""
    names = [*code.co_names]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _names_in(constant)
    return sorted({*names})


def _globals_of(function: FunctionType) -> list[tuple[str, Any]]:
    """Return the globals that a function reads, with their values; of a name that is Python's own,
    the builtin. A name that has no value yet is left out: such a kernel does not compile."""
    names = sorted(_global_names(function.__code__))
    everywhere = vars(builtins) | function.__globals__
    return [(name, everywhere[name]) for name in names if name in everywhere]


@lru_cache(maxsize=1024)  # equal functions of many kernels
def _global_names(code: CodeType) -> frozenset[str]:
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return frozenset(names)


# What it is compiled by.


@lru_cache(maxsize=2)
def toolchain(compiler: str) -> tuple[tuple[str, str], ...]:
    """Return what compiles kernels here, as names and versions. Raises ``OSError`` or
    ``ImportError`` where a part of it is not there."""
    from numba.cuda.cudadrv.libs import get_libdevice

    packages = ["numba", "numba-cuda", "llvmlite", "numpy", "cuda-bindings"]
    if compiler == MLIR:
        packages.append("numba-cuda-mlir")
    own = sorted(file for pattern in OWN_CODE for file in SOURCE.glob(pattern))
    settings = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
    return (
        ("compiler", compiler),
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
        *((name, version(name)) for name in packages),
        *(("library", _size_of(file)) for file in compiler_libraries()),
        ("library", _size_of(get_libdevice())),
        ("convlab", fingerprint(own, below=SOURCE)),
        *sorted(settings.items()),
    )


def compiler_libraries() -> tuple[str, ...]:
    """Return the files of CUDA's compilers. They are those that the process has loaded, for example
    by PyTorch, so two processes of one environment may have others. Raises ``OSError`` where there
    are none."""
    return _library("nvvm"), _library("nvJitLink")


def _library(name: str) -> str:
    """Return the file of one of CUDA's compilers."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        return load_nvidia_dynamic_lib(name).abs_path or ""
    except RuntimeError as error:
        raise OSError(f"{name} was not found") from error


def _size_of(file: str) -> str:
    """Return a file's name and size: patches of a library have the same version number."""
    path = Path(file).resolve(strict=True)
    return f"{path.name}, {path.stat().st_size} bytes"
