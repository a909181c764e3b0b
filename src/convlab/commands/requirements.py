"""Requirements of verbs: Numba, a GPU, compilers; refused in one line if missing."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from convlab.commands.exits import refuse, refusing
from convlab.commands.interrupts import importing
from convlab.support import numba_successor

SOURCE = Path(__file__).parents[1]  # convlab's own


@contextmanager
def numba_needed() -> Iterator[None]:
    """Report in one line that the import of Numba or of a stage's file fails."""
    try:
        with importing(), numba_settings():
            yield
    except typer.Exit:
        raise
    except Exception as error:
        if (place := _mistake(error)) is not None:
            said = error.msg if isinstance(error, SyntaxError) else error
            refuse(f"{place}: {type(error).__name__}: {said}")
        # Versions that do not fit each other, or a setting such as NUMBA_NUM_THREADS=0.
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if (reason := numba_successor.why_not()) is not None:
            refuse(reason)
        given = [f"{name}={value}" for name, value in os.environ.items() if name[:6] == "NUMBA_"]
        if given and "NUMBA_" not in said:
            said += f" with {', '.join(given)}"
        refuse(f"Numba CUDA cannot be imported ({said}): convlab doctor says what is here")


@contextmanager
def numba_settings() -> Iterator[None]:
    """Inside, a setting that Numba cannot read is an error instead of a warning of twenty lines."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Environment variable 'NUMBA_", RuntimeWarning)
        yield


def _mistake(error: Exception) -> str | None:
    """``FILE:LINE`` if the import failed in convlab's own source; None if it failed elsewhere."""
    here: Any = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, SyntaxError):
        here = error
    absent = error.name if isinstance(error, ImportError) else None
    if absent is not None and not absent.startswith("convlab"):  # such as Numba
        return None
    path = Path(here.filename or "")
    if not path.is_relative_to(SOURCE):
        return None
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{here.lineno}"


def refuse_simulator() -> None:
    """Make Numba compile: it decides at its first import whether it simulates CUDA."""
    if "numba" not in sys.modules:
        os.environ.pop("NUMBA_ENABLE_CUDASIM", None)
    from numba.cuda.core import config

    if config.ENABLE_CUDASIM:
        refuse("Numba runs as its CUDA simulator, which compiles nothing: start without it")


def refuse_without_gpu(verb: str) -> None:
    """Refuse a verb that measures where no GPU can be used, and say why it cannot."""
    from convlab.running.engines import unavailable

    with refusing(ValueError):
        reason = unavailable("gpu")
    if reason is not None:
        refuse(f"{verb} needs a GPU, because a simulator's times mean nothing: {reason}")


def check_compilers(user: str) -> None:
    """Refuse if a compiler or the disassembler is missing; ``user`` is what needs them."""
    from convlab.measuring.machine import compilers
    from convlab.running.compilers import why_no_compiler

    with refusing(ValueError):
        reason = why_no_compiler()
    if reason is not None:
        refuse(reason)
    for tool in compilers():
        if not tool["found"]:
            refuse(f"{tool['name']} is missing, and {user} needs it: run {tool['install']}")
