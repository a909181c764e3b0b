"""The ends of a verb: its exit codes, and its errors in one line each.

A verb exits 0 (fine), 1 (something is wrong) or 2 (arguments or environment, with one line that
says what to do).
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any, NoReturn, get_args, get_type_hints

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from convlab.commands.interrupts import raised
from convlab.support.progress import say
from convlab.support.values import shown

WRONG, REFUSED, INTERRUPTED = 1, 2, 130
LONGEST = 280  # characters of a message
# What stands for characters that a console's encoding lacks.
ASCII = {**dict.fromkeys("─━═", "-"), **dict.fromkeys("│┃", "|"), "█": "#", "…": "~", "\u00d7": "x"}


class Verbs(TyperGroup):
    """Keeps the arguments as ``obj``. Usage errors and Ctrl-C get one line each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as ``ctx.obj``; exit 2 with one line if they are wrong."""
        ctx.obj = list(args)
        with _ended_in_one_line(), _usage_in_one_line() if args else nullcontext():  # else the help
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> object:
        """Run the verb; exit 130 for Ctrl-C, 2 where standard output cannot be written."""
        with _ended_in_one_line(), raised(), _usage_in_one_line():
            return super().invoke(ctx)


@contextmanager
def _ended_in_one_line() -> Iterator[None]:
    """Exit 130 for Ctrl-C, 2 where standard output is closed or cannot be written."""
    if sys.stderr is None:  # it is closed, and print would use standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        refuse("standard output is closed: give it a file or a terminal")
    for stream in sys.stdout, sys.stderr:
        if isinstance(stream, io.TextIOWrapper):  # so that no character makes a console fail
            stream.reconfigure(errors="convlab")
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
    except OSError as error:
        if error.filename is not None:
            refuse(f"{shown(error.filename)} cannot be used: {error.strerror}")
        # Otherwise Python fails to write the rest when it ends.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        if isinstance(error, BrokenPipeError):  # the reader has read enough: convlab stages | head
            raise typer.Exit(REFUSED) from None
        refuse(f"cannot write to standard output: {error.strerror}")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Return a replacement for characters that an encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(ASCII.get(character, "?") for character in missing), error.end


codecs.register_error("convlab", _in_ascii)


@contextmanager
def _usage_in_one_line() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Typer's usage errors: the module of their class changes with Typer's version.
        if not hasattr(error, "format_message"):
            raise
        context = getattr(error, "ctx", None)
        more = f" ({context.command_path} --help says more)" if context else ""
        said = _wrong_number(error) or " ".join(error.format_message().split()).removesuffix(".")
        refuse(said + more)


def _wrong_number(error: Exception) -> str | None:
    """Return a sentence about an option's wrong number, with the value that was typed.

    Not every version of Typer names that value. The result is None for other errors.
    """
    context, option = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or option is None or context.command.callback is None:
        return None
    hints = get_type_hints(context.command.callback, include_extras=True)
    kind, *more = get_args(hints.get(option.name)) or (None,)
    number = next((one for one in (int, float) if one in (kind, *get_args(kind))), None)
    typed = _typed_value(context.find_root().obj or [], option.opts)
    if number is None or typed is None:
        return None
    rule = "an integer" if number is int else "a number"
    least = next((one.min for one in more if getattr(one, "min", None) is not None), None)
    if least is not None:
        rule += f" of at least {least:g}"
    return f"Invalid value for '{option.opts[0]}': it is {shown(typed)} and must be {rule}"


def _typed_value(words: Sequence[str], options: Sequence[str]) -> str | None:
    """The last value that was typed for an option; None without one."""
    found = None
    for word, after in pairwise([*words, ""]):
        name, is_given, value = word.partition("=")
        if name in options:
            found = value if is_given else after
    return found


def refuse(message: str) -> NoReturn:
    """End the verb, because its arguments or its environment are wrong."""
    fail(message, REFUSED)


def fail(message: str, code: int) -> NoReturn:
    """End the verb with one line on standard error, which stays short for long arguments."""
    if len(message) > LONGEST:
        message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 3 :]}"
    try:
        say(message)
    except OSError:  # standard error is full
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    raise typer.Exit(code)


@contextmanager
def refusing(*errors: type[Exception], hint: str = "") -> Iterator[None]:
    """Turn these errors into one line and exit code 2."""
    try:
        yield
    except typer.Exit:  # a RuntimeError, which has had its line
        raise
    except errors as error:
        refuse((one_line(error) or type(error).__name__) + hint)


def one_line(error: Exception) -> str:
    """Return an error's message without its line breaks."""
    return " ".join(str(error).split())


def conclude(console: Console, errors: Sequence[Text], noun: str, checked: int, right: str) -> None:
    """Print what is wrong and exit with 1, or say that all is right."""
    for line in errors:
        console.print(line, soft_wrap=True)
    if errors:
        raise typer.Exit(WRONG)
    all_are = f"The {noun} is" if checked == 1 else f"All {checked} {noun}s are"
    console.print(Text(f"{all_are} {right}.", "green"))
