"""The ``convlab`` command: its verbs are in ``convlab.commands``.

Numba is imported only by the verbs that need it, when they run: it is slow.
"""

from __future__ import annotations

import typer

from convlab.commands.bench import bench
from convlab.commands.check import check
from convlab.commands.ladder import ImageAlone, ladder
from convlab.commands.lessons import lessons
from convlab.commands.lint import lint
from convlab.commands.report import report
from convlab.commands.show import doctor, stages
from convlab.commands.trace import trace
from convlab.commands.tune import tune
from convlab.shell import Verbs

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Convolution kernels in Numba CUDA, step by step, with and without a GPU.",
)
for verb in (doctor, stages, ladder, check, trace, lint, tune, bench, report, lessons):
    app.command(cls=ImageAlone if verb is ladder else None)(verb)


def main() -> None:
    """The console entry point."""
    app(prog_name="convlab")
