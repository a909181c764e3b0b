"""Finds the kernel that ``FILE.py::NAME`` names."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

DEFAULT_NAMES = ("make_kernel", "prepare")


def load(target: str, fits: Callable[[Any], bool] = lambda value: True) -> Any:
    """The kernel, or the function that makes one, that ``FILE.py::NAME`` names; without a name
    ``make_kernel``, or ``prepare`` where there is no ``make_kernel`` that ``fits``.

    Raises ``ValueError`` where there is no such file or name, or the file cannot be run.
    """
    file, _, name = target.partition("::")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"{file!r} is no Python file: name one, as in my_kernels.py::make_kernel")
    module = _run(path)
    names = (name,) if name else DEFAULT_NAMES
    named = [vars(module).get(one) for one in names]
    found = [value for value in named if is_kernel(value) or isinstance(value, FunctionType)]
    if not found:
        there = [key for key, value in vars(module).items() if _is_of(value, module)]
        raise ValueError(
            f"{file} has no kernel {names[0]!r}: name a @cuda.jit kernel, or a function that makes "
            f"one; it has {', '.join(there) or 'neither'}; try "
            + (f"{file}::{there[-1]}" if there else "a stage's own file, changed")
        )
    return next(filter(fits, found), found[0])


def is_kernel(value: Any) -> bool:
    """Whether that is a ``@cuda.jit`` kernel."""
    return isinstance(getattr(value, "py_func", None), FunctionType)


def _is_of(value: Any, module: ModuleType) -> bool:
    """Whether it is a kernel or a function that the file itself defines."""
    function = value.py_func if is_kernel(value) else value
    return isinstance(function, FunctionType) and function.__module__ == module.__name__


def _run(path: Path) -> ModuleType:
    """The file as a module, run again at each call, since its author is changing it."""
    name = f"checked_{path.stem}_{hashlib.sha1(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up there
    try:
        # The loader might take a compiled file of the same second.
        code = compile(path.read_bytes(), str(path), "exec")
        exec(code, vars(module))
    except (Exception, SystemExit) as error:
        raise ValueError(f"{place_of(error, str(path))}: {in_words(error)}") from error
    return module


def in_words(error: BaseException) -> str:
    """``KeyError: 5``, in one line."""
    if isinstance(error, SystemExit):
        return "the file ends the program (sys.exit): put that below if __name__ == '__main__'"
    said = error.msg if isinstance(error, SyntaxError) else error
    return " ".join(f"{type(error).__name__}: {said}".removesuffix(": ").split())


def place_of(error: BaseException, file: str) -> str:
    """``FILE:LINE``: the innermost line of ``file`` in the traceback; for a syntax error the line
    that has it, in whichever file."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}:{error.lineno}"
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{file}:{line}" if line else file
