"""The kernel to check: given, made by a function, or found in a file."""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from convlab.ladder import Launch, Program, Stage, Tile
from convlab.ladder.stage import Kernel
from convlab.problems.problem import ConvProblem
from convlab.support.values import shown

DEFAULT_NAMES = ("make_kernel", "prepare")  # of a file, in this order
# A function of a problem, a tile or None, and options.
Maker = Callable[..., Kernel | Program]


def maker(kernel: Any, stage: Stage) -> Maker:
    """A function that makes the kernel for a problem and tile, from what ``check`` takes. Raises
    ``ValueError`` for what gives no kernel; so does the function that it returns."""
    wanted = ("problem",) if stage.tiny_tile is None else ("problem", "tile")
    if isinstance(kernel, str):
        kernel = _load(kernel, wanted)
    if is_kernel(kernel):
        return lambda problem, tile: kernel
    title = title_of(kernel)
    try:
        parameters = inspect.signature(kernel).parameters
    except Exception:  # no function, or one that Python does not know, such as dict
        raise ValueError(
            f"kernel is {shown(kernel)}: it must be a @cuda.jit kernel, or a function that makes "
            "one"
        ) from None
    if not _takes(kernel, wanted):
        raise ValueError(
            f"{title} takes ({', '.join(parameters)}): to make a kernel like {stage.name}'s it "
            f"must take ({', '.join(wanted)}); try FILE.py::prepare, a function that does and "
            "returns a whole Program"
        )

    @wraps(kernel)  # whose options it has
    def make(problem: ConvProblem, tile: Tile | None, **options: object) -> Kernel | Program:
        try:
            made: Kernel | Program = kernel(*(problem, tile)[: len(wanted)], **options)
        except (Exception, SystemExit) as error:
            place = _place_of(error, getattr(getattr(kernel, "__code__", None), "co_filename", ""))
            raise ValueError(f"{place}: {title} raised {_in_words(error)}") from error
        if isinstance(made, Program):
            if not made.launches or not isinstance(made.launches[-1], Launch):
                raise ValueError(f"{title}: its Program must end with a kernel's Launch")
        elif not is_kernel(made):
            raise ValueError(
                f"{title} returned {shown(made)}: it must return a @cuda.jit kernel or a Program"
            )
        return made

    return make


def is_kernel(value: object) -> bool:
    """Return whether a value is a ``@cuda.jit`` kernel."""
    return isinstance(getattr(value, "py_func", None), FunctionType)


def title_of(kernel: object) -> str:
    """The name of a kernel or function."""
    name = getattr(getattr(kernel, "py_func", kernel), "__name__", None)
    return name if isinstance(name, str) else shown(kernel)


def offers(value: Callable[..., object], options: Mapping[str, object]) -> bool:
    """Return whether a function has all of these parameters."""
    return options.keys() <= inspect.signature(value).parameters.keys()


def _takes(value: Callable[..., object], wanted: tuple[str, ...]) -> bool:
    try:
        inspect.signature(value).bind(*wanted)
    except TypeError:
        return False
    return True


def _load(target: str, wanted: tuple[str, ...]) -> object:
    """The kernel, or the function that makes one, that ``FILE.py::NAME`` names; without a name
    ``make_kernel``, or ``prepare`` where there is no ``make_kernel`` that takes what is wanted."""
    file, _, name = target.partition("::")
    path = Path(file)
    said = None
    if not path.exists():
        said = f"there is no file {file!r}"
    elif not path.is_file():
        said = f"{file!r} is not a file"
    elif path.suffix != ".py":
        said = f"{file!r} is not a Python file"
    if said is not None:
        raise ValueError(f"{said}: name one, as in my_kernels.py::make_kernel")
    module = _run_file(path)
    values = {key: getattr(value, "py_func", value) for key, value in vars(module).items()}
    there = {key: value for key, value in values.items() if isinstance(value, FunctionType)}
    names = (name,) if name else DEFAULT_NAMES
    found = [getattr(module, one) for one in names if one in there]
    if not found:
        own = [key for key, value in there.items() if value.__module__ == module.__name__]
        raise ValueError(
            f"{file} has no kernel {names[0]!r}: name a @cuda.jit kernel, or a function that makes "
            f"one; it has {', '.join(own) or 'neither'}; try "
            + (f"{file}::{own[-1]}" if own else "a stage's own file, changed")
        )
    return next((one for one in found if is_kernel(one) or _takes(one, wanted)), found[0])


def _run_file(path: Path) -> ModuleType:
    """The file as a module, run again at each call, since its author is changing it."""
    name = f"checked_{path.stem}_{hashlib.sha1(str(path.resolve()).encode()).hexdigest()[:8]}"
    module = sys.modules[name] = ModuleType(name)  # its dataclasses look themselves up there
    module.__file__ = str(path)
    try:
        # The loader might take a compiled file of the same second.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise ValueError(f"{_place_of(error, str(path))}: {_in_words(error)}") from error
    return module


def _in_words(error: BaseException) -> str:
    """``KeyError: 5``, in one line."""
    if isinstance(error, SystemExit):
        return "the file ends the program (sys.exit): put that below if __name__ == '__main__'"
    said = error.msg if isinstance(error, SyntaxError) else error
    return " ".join(f"{type(error).__name__}: {said}".removesuffix(": ").split())


def _place_of(error: BaseException, file: str) -> str:
    """``FILE:LINE``: the traceback's innermost line of ``file``, or a syntax error's line."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    line = next((one.lineno for one in reversed(frames) if one.filename == file), None)
    return f"{file}:{line}" if line else file
