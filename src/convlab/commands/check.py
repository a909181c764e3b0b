"""``convlab check``: somebody's kernel compared with a stage."""

from __future__ import annotations

from typing import Annotated

import typer

from convlab.commands import display, exits, options, output_files, requirements


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
    dtype: options.Dtype = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the random tensors.")] = 0,
    json_file: options.JsonFile = None,
) -> None:
    """Check your own kernel as a stage: its answers, its findings and its memory traffic.

    Exits 1 when an answer is wrong or something is found.
    """
    console = output_files.console_for(json_file)
    with requirements.numba_needed():
        from convlab.checking import check as checked
        from convlab.checking.launches import FOR_SOME, PROBLEMS
    names = [*PROBLEMS, *FOR_SOME, "counts"]
    with exits.refusing(ValueError), display.progress(names) as advance:
        found = checked(kernel, stage, seed=seed, on_step=advance, dtype=dtype)
    console.print(found.as_text(console.width))
    output_files.write_json(json_file, found.as_json())
    if not found.ok:
        raise typer.Exit(exits.WRONG)
