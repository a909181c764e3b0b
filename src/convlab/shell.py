"""How the command's verbs end, with one line each, and how they write files.

A verb exits 0 (fine), 1 (something is wrong) or 2 (arguments or environment, with one line
that says what to do).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from convlab import files

WRONG, REFUSED, INTERRUPTED = 1, 2, 130
SOURCE = Path(__file__).parent
STANDARD_OUTPUT = "-"


class Verbs(TyperGroup):
    """Keeps the arguments as ``obj``. Usage errors and Ctrl-C get one line each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as ``ctx.obj``; exit 2 with one line if they are wrong."""
        ctx.obj = list(args)
        if not args:  # gets the help
            return super().parse_args(ctx, args)
        with _usage_in_one_line():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; exit 130 for Ctrl-C, 2 where standard output cannot be written."""
        try:
            with _usage_in_one_line():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            fail("interrupted", INTERRUPTED)
        except BrokenPipeError:
            raise  # the reader has read enough: `convlab stages | head`
        except OSError as error:
            refuse(f"cannot write to standard output: {error.strerror}")


@contextmanager
def _usage_in_one_line() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Typer's usage errors: which module their class is in changes with its version.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        more = f" ({context.command_path} --help says more)" if context else ""
        refuse(" ".join(error.format_message().split()).removesuffix(".") + more)


def refuse(message: str) -> NoReturn:
    """End the verb: its arguments or environment will not do."""
    fail(message, REFUSED)


def fail(message: str, code: int) -> NoReturn:
    """End the verb with one line on standard error."""
    print(f"convlab: {message}", file=sys.stderr)
    raise typer.Exit(code)


@contextmanager
def refusing(*errors: type[Exception], hint: str = "") -> Iterator[None]:
    """Turn these errors into one line and exit code 2."""
    try:
        yield
    except errors as error:
        refuse((one_line(error) or type(error).__name__) + hint)


@contextmanager
def numba_needed() -> Iterator[None]:
    """Report an import of Numba or of a stage's file that fails, in one line."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if (place := _mistake(error)) is not None:
            said = error.msg if isinstance(error, SyntaxError) else error
            refuse(f"{place}: {type(error).__name__}: {said}")
        if isinstance(error, ImportError | AttributeError):  # seen when versions do not fit
            refuse(f"Numba CUDA cannot be imported ({error}): convlab doctor says what is here")
        raise


def _mistake(error: Exception) -> str | None:
    """``FILE:LINE`` in convlab's own source where its import failed; None if the cause is
    elsewhere, such as in Numba."""
    if isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file, line = frame.filename, frame.lineno
    absent = error.name if isinstance(error, ImportError) else None
    if absent is not None and not absent.startswith("convlab"):  # such as Numba
        return None
    if file is None or not Path(file).is_relative_to(SOURCE):
        return None
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"


def refuse_simulator() -> None:
    """Make Numba compile: it decides at its first import whether it simulates CUDA."""
    if "numba" not in sys.modules:
        os.environ.pop("NUMBA_ENABLE_CUDASIM", None)
    from numba.cuda.core import config

    if config.ENABLE_CUDASIM:
        refuse("Numba runs as its CUDA simulator, which compiles nothing: start without it")


def one_line(error: Exception) -> str:
    """What an error says, without its line breaks."""
    return " ".join(str(error).split())


def console_for(json_file: str | None) -> Console:
    """Where a verb prints for people. Refuses a file for the JSON that cannot be written."""
    if json_file is not None and json_file != STANDARD_OUTPUT:
        check_writable("--json", Path(json_file))
    return Console(stderr=json_file == STANDARD_OUTPUT, highlight=False)


def write_json(json_file: str | None, document: Any, indent: int | None = 2) -> None:
    """Write the document where ``--json`` says, if it does; on one line for ``indent=None``."""
    if json_file is None:
        return
    text = json.dumps(document, indent=indent, allow_nan=False) + "\n"
    if json_file == STANDARD_OUTPUT:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_whole(Path(json_file), text.encode())


def check_writable(option: str, path: Path, instead: str = "") -> None:
    """Refuse, before any work is done, a file that could not be written after it. ``instead`` is
    what to do where no option gives another one."""
    try:
        target = path.resolve()
        if path.is_dir():
            refuse(f"{option} is {str(path)!r}, which is a folder: {instead or 'give a file'}")
        folder = target.parent if path.is_symlink() else path.parent
        if not folder.is_dir():
            refuse(
                f"{option} is {str(path)!r}, but there is no folder {str(folder)!r}: make it first"
            )
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError
        if not path.exists() or path.is_file():  # not a pipe or a device
            files.beside(target).touch()
            files.beside(target).unlink()
    except typer.Exit:
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError: links that go round in circles
        reason = getattr(error, "strerror", None) or one_line(error) or "it is write-protected"
        refuse(
            f"{option} is {str(path)!r}, which cannot be written ({reason}): "
            f"{instead or 'give another file'}"
        )


def write_whole(path: Path, content: bytes) -> None:
    """:func:`convlab.files.write_whole`, refused in a sentence where it cannot."""
    with refusing(OSError):
        files.write_whole(path, content)
