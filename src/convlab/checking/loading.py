"""Finds the kernel that ``FILE.py::NAME`` names."""

from __future__ import annotations

import hashlib
import sys
from importlib import util
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

DEFAULT_NAME = "make_kernel"


def load(target: str) -> Any:
    """The kernel, or the function that makes one, that ``FILE.py::NAME`` names; without a name
    ``make_kernel``.

    Raises ``ValueError`` where there is no such file or name, or the file cannot be run.
    """
    file, _, name = target.partition("::")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"{file!r} is no Python file: name one, as in my_kernels.py::make_kernel")
    module = _run(path)
    found = vars(module).get(name or DEFAULT_NAME)
    if not is_kernel(found) and not isinstance(found, FunctionType):
        there = [key for key, value in vars(module).items() if _is_of(value, module)]
        raise ValueError(
            f"{file} has no kernel {name or DEFAULT_NAME!r}: name a @cuda.jit kernel, or a "
            f"function that makes one; it has {', '.join(there) or 'neither'}"
        )
    return found


def is_kernel(value: Any) -> bool:
    """Whether that is a ``@cuda.jit`` kernel."""
    return isinstance(getattr(value, "py_func", None), FunctionType)


def _is_of(value: Any, module: ModuleType) -> bool:
    """Whether it is a kernel or a function that the file itself defines."""
    function = value.py_func if is_kernel(value) else value
    return isinstance(function, FunctionType) and function.__module__ == module.__name__


def _run(path: Path) -> ModuleType:
    """The file as a module of its own, run anew each time: it is being worked on."""
    name = f"checked_{path.stem}_{hashlib.sha1(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up there
    try:
        # Not by the loader: that may take a compiled file of the same second.
        code = compile(path.read_bytes(), str(path), "exec")
        exec(code, vars(module))
    except Exception as error:
        line = _line(error, path)
        where = f"{path}:{line}" if line else str(path)
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error
    return module


def _line(error: Exception, path: Path) -> int | None:
    """The last line of the file that the error came through."""
    if isinstance(error, SyntaxError):
        return error.lineno
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
