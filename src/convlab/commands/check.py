"""``convlab check``."""

from __future__ import annotations

from typing import Annotated

import typer

from convlab import shell, tables


def check(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py::KERNEL",
            help="A @cuda.jit kernel, or a function that makes one; make_kernel if not named.",
        ),
    ],
    stage: Annotated[
        str, typer.Option("--as", metavar="STAGE", help="The stage that it is to do the work of.")
    ],
    seed: Annotated[int, typer.Option(min=0, help="Chooses the numbers.")] = 0,
    json_file: shell.JsonFile = None,
) -> None:
    """Check your own kernel as a stage: its answers, the findings, its memory traffic.

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
