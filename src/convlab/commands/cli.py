"""The ``convlab`` command: its longer verbs are in ``convlab.commands``.

Numba is imported only by the verbs that need it, when they run: it is slow.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from convlab.commands import shell, tables
from convlab.commands.bench import bench
from convlab.commands.ladder import ImageAlone, ladder
from convlab.commands.lessons import lessons
from convlab.commands.lint import lint
from convlab.commands.report import report
from convlab.commands.run import run
from convlab.commands.trace import trace
from convlab.commands.tune import tune
from convlab.support.interrupts import importing


def doctor(json_file: shell.JsonFile = None) -> None:
    """What is installed here: GPU, driver, engines, versions; which engine is used, and why."""
    console = shell.console_for(json_file)
    with importing(), shell.numba_settings():
        from convlab.measuring.machine import facts

        found = facts()
    console.print(tables.doctor_table(found))
    for warning in found["warnings"]:
        console.print(Text(f"Warning: {warning}", "yellow"))
    shell.write_json(json_file, found)
    if found["would_use"]["engine"] is None:
        shell.refuse("no engine works here: the lines above say why")


def stages(json_file: shell.JsonFile = None) -> None:
    """The stages of the ladder and of gradients: idea, source and what each builds on."""
    console = shell.console_for(json_file)
    with shell.numba_needed():
        from convlab.ladder import BACKWARD, LADDER
    console.print(tables.stages_table(LADDER))
    console.print(tables.stages_table(BACKWARD, "backward"))
    keys = ("name", "title", "source", "builds_on", "module")
    shell.write_json(
        json_file, [{key: getattr(stage, key) for key in keys} for stage in (*LADDER, *BACKWARD)]
    )


def check(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py::KERNEL",
            help="A @cuda.jit kernel, or a function that makes one; make_kernel if not named.",
        ),
    ],
    stage: Annotated[
        str, typer.Option("--as", metavar="STAGE", help="The stage whose work the kernel does.")
    ],
    seed: Annotated[int, typer.Option(min=0, help="The seed of the random tensors.")] = 0,
    json_file: shell.JsonFile = None,
) -> None:
    """Check your own kernel as a stage: its answers, its findings and its memory traffic.

    Exits 1 when an answer is wrong or something is found.
    """
    console = shell.console_for(json_file)
    with shell.numba_needed():
        from convlab.checking import check as checked
        from convlab.checking.launches import PROBLEMS
    names = [*PROBLEMS, "counts"]
    with shell.refusing(ValueError), tables.progress(names) as advance:
        found = checked(kernel, stage, seed=seed, on_step=advance)
    console.print(found.as_text(console.width))
    shell.write_json(json_file, found.as_json())
    if not found.ok:
        raise typer.Exit(shell.WRONG)


def show_help(
    context: typer.Context,
    verb: Annotated[
        str | None, typer.Argument(metavar="[VERB]", help="A verb; all of them if none is named.")
    ] = None,
) -> None:
    """The help of convlab, or of one verb: as convlab VERB --help."""
    words = [] if verb is None else [verb]
    raise typer.Exit(app([*words, "--help"], prog_name="convlab", standalone_mode=False))


def _show_version(asked: bool) -> None:
    if asked:
        from convlab.measuring.machine import version

        print(f"convlab {version('convlab')}")
        raise typer.Exit


def main_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Convolution kernels in Numba CUDA, step by step, with and without a GPU."""


app = typer.Typer(
    cls=shell.Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(main_options)
for verb in (doctor, stages, ladder, check, trace, lint, tune, bench, report, lessons):
    app.command(cls=ImageAlone if verb is ladder else None)(verb)
# Arguments after the program belong to the program.
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command("help")(show_help)


def main() -> None:
    app(prog_name="convlab")
