"""The ``convlab`` command: the list of its verbs, each of which has a file of its own.

Numba is imported only by the verbs that need it, when they run: it is slow.
"""

from __future__ import annotations

from typing import Annotated

import typer

from convlab.commands import exits
from convlab.commands.bench import bench
from convlab.commands.check import check
from convlab.commands.doctor import doctor
from convlab.commands.ladder import ImageAlone, ladder
from convlab.commands.lessons import lessons
from convlab.commands.lint import lint
from convlab.commands.report import report
from convlab.commands.run import run
from convlab.commands.stages import stages
from convlab.commands.trace import trace
from convlab.commands.tune import tune


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
    cls=exits.Verbs,
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
    """Run the command with the arguments of this process."""
    app(prog_name="convlab")
