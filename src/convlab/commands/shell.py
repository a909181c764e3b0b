"""What the command's verbs share: options, how they end, how they write files.

A verb exits 0 (fine), 1 (something is wrong) or 2 (arguments or environment, with one line
that says what to do).
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args, get_type_hints

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from convlab.problems import workloads
from convlab.problems.problem import ConvProblem
from convlab.support import files
from convlab.support.interrupts import importing, raised
from convlab.support.progress import duration, say
from convlab.support.terminal import Terminal
from convlab.support.values import shown

if TYPE_CHECKING:
    from convlab.ladder import Stage
    from convlab.ladder.stage import Capability
    from convlab.running.engines import Engine

WRONG, REFUSED, INTERRUPTED = 1, 2, 130
LONGEST = 280  # characters of a message
# What stands for characters that a console's encoding lacks.
ASCII = {**dict.fromkeys("─━═", "-"), **dict.fromkeys("│┃", "|"), "█": "#", "…": "~", "\u00d7": "x"}
SOURCE = Path(__file__).parent
STANDARD_OUTPUT = "-"

JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Also write JSON to FILE; - is standard output."),
]
Layer = Annotated[
    str | None, typer.Option(metavar="NAME", help="A layer of the paper: conv1 to conv12.")
]
Batch = Annotated[int | None, typer.Option(metavar="N", help="How many images.")]
Yes = Annotated[bool, typer.Option("--yes", help="Wait, however long it takes.")]


class Verbs(TyperGroup):
    """Keeps the arguments as ``obj``. Usage errors and Ctrl-C get one line each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as ``ctx.obj``; exit 2 with one line if they are wrong."""
        ctx.obj = list(args)
        with _ended_in_one_line(), _usage_in_one_line() if args else nullcontext():  # else the help
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
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
    """What stands for characters that an encoding lacks."""
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


def _wrong_number(error: Any) -> str | None:
    """What is wrong with an option's number, with the value that was typed, which not every version
    of Typer names. None for other errors."""
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
    except errors as error:
        refuse((one_line(error) or type(error).__name__) + hint)


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


def one_line(error: Exception) -> str:
    """What an error says, without its line breaks."""
    return " ".join(str(error).split())


def console_for(json_file: str | None) -> Console:
    """Where a verb prints for people. Refuses a file for the JSON that cannot be written."""
    if json_file is not None and json_file != STANDARD_OUTPUT:
        check_writable("--json", Path(json_file))
    return Terminal(stderr=json_file == STANDARD_OUTPUT)


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
    """Refuse, before any work is done, a file that could not be written after the work. ``instead``
    is what to do if no option names another file."""
    given = f"{option} is {str(path)!r}"
    try:
        target = path.resolve()
        if path.is_dir():
            refuse(f"{given}, which is a folder: {instead or 'give a file'}")
        folder = target.parent if path.is_symlink() else path.parent
        if not folder.is_dir():
            refuse(f"{given}, but there is no folder {str(folder)!r}: make it first")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError
        if not path.exists() or path.is_file():  # not a pipe or a device
            files.check_room_for(target)
    except typer.Exit:
        raise
    except (OSError, RuntimeError) as error:  # RuntimeError: links that form a circle
        reason = getattr(error, "strerror", None) or one_line(error) or "it is write-protected"
        refuse(f"{given}, which cannot be written ({reason}): {instead or 'give another file'}")


def check_files(
    written: Mapping[str, str | Path | None], read: Iterable[str | Path] = (), as_what: str = ""
) -> None:
    """Refuse a file that cannot be ``written`` or that would overwrite another file. ``written``
    has the files by their options; ``read`` are files that the verb reads, and the message calls
    them ``as_what``."""
    taken = {os.path.realpath(file): as_what for file in read}
    for option, file in written.items():
        if file is None or file == STANDARD_OUTPUT:
            continue
        check_writable(option, Path(file))
        if what := taken.get(os.path.realpath(file)):
            refuse(f"{option} is {str(file)!r}, {what}: give another file")
        taken[os.path.realpath(file)] = f"the file of {option}"


def how_made(file: str | Path, command: str) -> str:
    """What a message adds about a file that is not there: the command that makes it."""
    return "" if os.path.lexists(file) else f"; {command} makes it"


def refuse_without_gpu(verb: str) -> None:
    """Refuse a verb that measures where no GPU can be used, and say why it cannot."""
    from convlab.running.engines import unavailable

    with refusing(ValueError):
        reason = unavailable("gpu")
    if reason is not None:
        refuse(f"{verb} needs a GPU, because a simulator's times mean nothing: {reason}")


def write_whole(path: Path, content: bytes) -> None:
    """:func:`convlab.support.files.write_whole`, refused in one sentence if it fails."""
    with refusing(OSError):
        files.write_whole(path, content)


def stages_named(names: Sequence[str] | None) -> tuple[Stage, ...]:
    """The stages of these names, those of the ladder first; without names, the ladder."""
    from convlab.ladder import ABLATION, GROUPED, LADDER, stage_named

    wanted = LADDER if not names else [stage_named(name) for name in names]
    return tuple(stage for stage in (*LADDER, ABLATION, GROUPED) if stage in wanted)


def problem_from(layer: str | None, batch: int | None, engine: Engine) -> ConvProblem:
    """The layer of that name, or the engine's default problem, with that many images."""
    from convlab.measuring.ladder_run import default_problem

    problem = default_problem(engine) if layer is None else workloads.paper_layer(layer)
    return problem if batch is None else replace(problem, batch=batch)


def refuse_slow(
    problem: ConvProblem, seconds: float, engine: Engine, usual_seconds: float, gpu: bool = True
) -> None:
    """Refuse work that takes longer than a person waits; say how long, and what to do instead.
    ``usual_seconds`` is how long the default problem takes."""
    from convlab.measuring.ladder_run import PATIENCE_SECONDS

    if seconds <= PATIENCE_SECONDS:
        return
    alone = seconds / problem.batch
    one = f" --batch 1 (about {duration(alone)})," if alone <= PATIENCE_SECONDS else ""
    usual = f" the default problem (about {duration(usual_seconds)})"
    or_gpu = " or a GPU" if gpu else ""
    refuse(
        f"this takes {engine.device} about {duration(seconds)}: use{one}{usual}{or_gpu}, or add "
        "--yes to wait"
    )


def capability(option: str, arch: str) -> Capability:
    """(9, 0) for ``sm_90``. Raises ``ValueError``, naming the option, for any other name."""
    digits = re.fullmatch(r"sm_([0-9]{1,2})([0-9])", arch)
    if digits is None:
        raise ValueError(f"{option} is {arch!r}: it must be sm_ and digits, such as sm_90")
    return int(digits[1]), int(digits[2])


def check_compilers(user: str) -> None:
    """Refuse if a compiler or the disassembler is missing; ``user`` is what needs them."""
    from convlab.measuring.machine import compilers
    from convlab.running.engines.compiler import why_no_compiler

    with refusing(ValueError):
        reason = why_no_compiler()
    if reason is not None:
        refuse(reason)
    for tool in compilers():
        if not tool["found"]:
            refuse(f"{tool['name']} is missing, and {user} needs it: run {tool['install']}")


def conclude(console: Console, errors: Sequence[Text], noun: str, checked: int, right: str) -> None:
    """Print what is wrong and exit with 1, or say that all is right."""
    for line in errors:
        console.print(line, soft_wrap=True)
    if errors:
        raise typer.Exit(WRONG)
    all_are = f"The {noun} is" if checked == 1 else f"All {checked} {noun}s are"
    console.print(Text(f"{all_are} {right}.", "green"))
